//! The PCI function: BAR 0 with the initialization segment and the UARs, configuration space, guest
//! memory, time.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use uverbs_mlx5_format::{
    BLUEFLAME_HALF_SIZE, BLUEFLAME_OFFSET, CQ_ARM_OFFSET, EQ_ARM_OFFSET, EQ_UPDATE_OFFSET, Opcode,
    UAR_SIZE,
};

use super::blueflame::{BlueFlame, Collected};
use super::cable::Cable;
use super::config_space::{ConfigSpace, PortType};
use super::firmware::{Firmware, UARS};
use super::guest_memory::GuestMemory;
use super::init_segment::{InitSegment, Stored};
use super::trace::Trace;
use super::vfio_user::{DmaRegion, Function, Region};
use uverbs_soft::core::{Cqn, LinkLayer, Qpn};
use uverbs_soft::packet::Gid;
use uverbs_soft::wire::Station;

/// Size of BAR 0 in bytes, as on a ConnectX-5.
const BAR0: u64 = 32 << 20;
const UAR: u64 = UAR_SIZE as u64;
/// Offsets of the doorbells in a UAR page.
const CQ_ARM_DOORBELL: u64 = CQ_ARM_OFFSET as u64;
const EQ_ARM_DOORBELL: u64 = EQ_ARM_OFFSET as u64;
const EQ_UPDATE_DOORBELL: u64 = EQ_UPDATE_OFFSET as u64;
const BLUEFLAME: u64 = BLUEFLAME_OFFSET as u64;
const BLUEFLAME_BUFFER: u64 = BLUEFLAME_HALF_SIZE as u64;

/// Most packets sent or received in one step, so that the VMM's messages do not wait long.
const BUDGET: u32 = 64;

/// The settings of an adapter.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The port's link.
    pub link: LinkLayer,
    /// Node and port GUID.
    pub guid: u64,
    /// The port's LID (InfiniBand).
    pub lid: u16,
    /// MSI-X vectors.
    pub vectors: u32,
}

impl Settings {
    /// An adapter with an InfiniBand port.
    pub fn infiniband(guid: u64, lid: u16) -> Self {
        Self { link: LinkLayer::InfiniBand, guid, lid, vectors: 8 }
    }

    /// An adapter with an Ethernet port.
    pub fn ethernet(guid: u64) -> Self {
        Self { link: LinkLayer::Ethernet, guid, lid: 0, vectors: 8 }
    }

    /// The adapter of a station, with the station's GUID, and its LID or MAC address.
    pub fn at(station: Station, link: LinkLayer) -> Self {
        let lid = match link {
            LinkLayer::InfiniBand => station.lid().unwrap_or_default(),
            LinkLayer::Ethernet => 0,
        };
        Self { link, guid: u64::from_be_bytes(station.guid()), lid, vectors: 8 }
    }

    /// The station whose adapter has these settings.
    pub(super) fn station(&self) -> Option<Station> {
        Station::from_gid(Gid::link_local(self.guid.to_be_bytes()))
    }
}

/// A software ConnectX as a PCI function. Serve it with [`serve`](super::serve).
#[derive(Debug)]
pub struct PciDevice {
    settings: Settings,
    config: ConfigSpace,
    segment: InitSegment,
    blueflame: BlueFlame,
    pub(super) firmware: Firmware,
    memory: GuestMemory,
    started: Instant,
}

impl PciDevice {
    /// An adapter in the state after power-on. Writes the commands that it executes to `trace`.
    pub fn new(settings: Settings, trace: Trace) -> Self {
        let memory = GuestMemory::default();
        Self {
            config: config_space(&settings),
            segment: InitSegment::default(),
            blueflame: BlueFlame::default(),
            firmware: Firmware::new(settings.clone(), memory.clone(), trace),
            memory,
            started: Instant::now(),
            settings,
        }
    }

    /// Plugs a cable into the port. Without a cable the adapter reaches only itself.
    pub fn plug(mut self, cable: Cable) -> Self {
        self.firmware.cable = cable;
        self
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn store_segment(&mut self, offset: u64, data: &[u8]) {
        match self.segment.write(offset, data) {
            Stored::Nothing => {}
            Stored::CommandDoorbell { queue, mask } => {
                if !self.config.bus_master() {
                    self.firmware.warn(format_args!("command doorbell without bus mastering"));
                }
                // Requests come first whose doorbells were rung before: a NIC executes them within
                // microseconds, and a command may stop their queues.
                self.firmware.core.work(self.now(), BUDGET);
                self.firmware.command_doorbell(queue, mask);
            }
            Stored::Unknown => self
                .firmware
                .warn(format_args!("store to {offset:#x} of the initialization segment")),
        }
    }

    fn store_uar(&mut self, number: u32, offset: u64, data: &[u8]) {
        if !self.firmware.has_uar(number) {
            self.firmware.warn(format_args!("store to UAR {number:#x}, which is not allocated"));
            return;
        }
        match (offset, data.len()) {
            (CQ_ARM_DOORBELL, 8) => self.arm_cq(be32(data, 4)),
            (EQ_ARM_DOORBELL, 4) => self.firmware.event_queue_doorbell(be32(data, 0), true),
            (EQ_UPDATE_DOORBELL, 4) => self.firmware.event_queue_doorbell(be32(data, 0), false),
            (BLUEFLAME.., 8) => self.store_blueflame(number, offset, data),
            _ => self
                .firmware
                .warn(format_args!("store of {} bytes to UAR {number:#x}+{offset:#x}", data.len())),
        }
    }

    fn arm_cq(&mut self, cqn: u32) {
        let now = self.now();
        if let Err(error) = self.firmware.core.arm_cq(now, Cqn(cqn & 0xff_ffff)) {
            self.firmware.warn(format_args!("CQ doorbell: {error}"));
        }
        self.firmware.deliver_events();
    }

    fn store_blueflame(&mut self, uar: u32, offset: u64, data: &[u8]) {
        let Ok(data) = <[u8; 8]>::try_from(data) else { return };
        let now = self.now();
        if let Some(collected) = self.blueflame.continue_copy(uar, offset, data, now) {
            return self.execute(collected);
        }
        // A store inside a buffer belongs to the rest of a WQE. Ignored, because the device reads
        // WQEs from the ring.
        if offset % BLUEFLAME_BUFFER != 0 {
            return;
        }
        let before = self.blueflame.abandon();
        self.execute(before);
        let queue = be32(&data, 4) >> 8;
        if is_nop(data) && self.firmware.is_kernels_queue(queue) {
            self.blueflame.begin(uar, offset, data, now);
        } else {
            self.send_doorbell(queue);
        }
    }

    /// Executes collected stores to a BlueFlame register, if there are any.
    fn execute(&mut self, collected: Option<Collected>) {
        match collected {
            // The kernel's network device rings once before it destroys a send queue
            // (`mlx5e_deactivate_txqsq`), so the queue may be gone when the deadline passes.
            Some(Collected::Doorbell(queue)) if self.firmware.is_kernels_queue(queue) => {
                self.send_doorbell(queue);
            }
            Some(Collected::Doorbell(_)) | None => {}
            Some(Collected::Block(queue, block)) => {
                self.firmware.store_blue_flame(queue, &block);
                self.send_doorbell(queue);
            }
        }
    }

    fn send_doorbell(&mut self, qpn: u32) {
        if let Err(error) = self.firmware.core.ring_sq(Qpn(qpn)) {
            self.firmware.warn(format_args!("send doorbell: {error}"));
        }
    }
}

/// Whether a WQE that begins with `head` is a NOP. The kernel's driver posts NOPs to test its
/// registers.
fn is_nop(head: [u8; 8]) -> bool {
    Opcode(head[3]) == Opcode::NOP
}

fn config_space(settings: &Settings) -> ConfigSpace {
    let port = match settings.link {
        LinkLayer::InfiniBand => PortType::InfiniBand,
        LinkLayer::Ethernet => PortType::Ethernet,
    };
    ConfigSpace::new(port, settings.vectors)
}

fn be32(data: &[u8], at: usize) -> u32 {
    data.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_be_bytes)
}

impl Function for PciDevice {
    fn bar0_size(&self) -> u64 {
        BAR0
    }

    fn vectors(&self) -> u32 {
        self.settings.vectors
    }

    fn read(&mut self, region: Region, offset: u64, data: &mut [u8]) {
        match region {
            Region::Config => self.config.read(offset, data),
            Region::Bar0 => self.segment.read(offset, self.now(), data),
        }
    }

    fn write(&mut self, region: Region, offset: u64, data: &[u8]) {
        match (region, offset / UAR) {
            (Region::Config, _) => self.config.write(offset, data),
            (Region::Bar0, page) if page < u64::from(UARS.start) => {
                self.store_segment(offset, data)
            }
            (Region::Bar0, page) => self.store_uar(page as u32, offset % UAR, data),
        }
    }

    fn dma_map(&mut self, region: &DmaRegion, file: Option<OwnedFd>) -> std::io::Result<()> {
        match file {
            Some(file) => self.memory.map(region, &file),
            // Regions without a file (ROMs) cannot be mapped, and no DMA needs them.
            None => Ok(()),
        }
    }

    fn dma_unmap(&mut self, address: u64, size: u64) -> std::io::Result<()> {
        self.memory.unmap(address, size);
        Ok(())
    }

    fn set_vector(&mut self, vector: u32, event: Option<OwnedFd>) {
        self.firmware.interrupts.set(vector, event);
    }

    fn reset(&mut self) {
        self.config = config_space(&self.settings);
        self.segment = InitSegment::default();
        self.blueflame = BlueFlame::default();
        self.firmware.reset();
    }

    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        self.firmware.cable.poll_fds(fds);
    }

    fn step(&mut self) -> Option<Duration> {
        let now = self.now();
        let expired = self.blueflame.expire(now);
        self.execute(expired);
        self.firmware.cable.prepare();
        let more = self.firmware.receive(now);
        let step = self.firmware.core.step(now, BUDGET);
        self.firmware.send(now);
        self.firmware.deliver_events();
        if more || step.more {
            return Some(Duration::ZERO);
        }
        let wakes = [step.next_wake, self.blueflame.deadline()];
        let wake = wakes.into_iter().flatten().min()?;
        Some(Duration::from_nanos(wake.saturating_sub(self.now())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_abandons_a_partial_blueflame_copy() {
        let settings = Settings { link: LinkLayer::Ethernet, guid: 1, lid: 0, vectors: 1 };
        let mut device = PciDevice::new(settings, Trace::default());
        device.blueflame.begin(8, BLUEFLAME, [0; 8], 0);
        device.reset();
        assert_eq!(device.blueflame.abandon(), None);
    }
}
