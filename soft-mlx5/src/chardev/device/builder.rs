//! The options of a device, and its start.
#![allow(unsafe_code)]

use std::io;
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use super::SoftDevice;
use super::clock::ClockPages;
use super::faults::Faults;
use super::options::{GidEntry, GidType, Kernel, Model, Options, PacketPacing};
use super::shared::{DeviceShared, HostSide, Internal, Reach};
use crate::chardev::objects::dm::DeviceMemory;
use crate::chardev::objects::uar::UarPages;
use crate::chardev::objects::xrcd::XrcDomains;
use crate::core::{Core, CoreConfig, LinkLayer, Mtu};
use crate::memory::ProcessMemory;
use crate::packet::Gid;
use crate::runtime::{self, Runtime};
use crate::wire::{
    Carrier, HostAddress, Interface, Link, Neighbours, Network, NoWire, Place, RoutedWire, Station,
    Waker, Wire,
};

enum WireChoice {
    Network(Carrier),
    None,
    Given { wire: Box<dyn Wire>, waker: Arc<Waker>, place: Place, leads_to_network: bool },
}

/// The options of a device, before it starts.
pub struct DeviceBuilder {
    options: Options,
    guid: Option<[u8; 8]>,
    wire: WireChoice,
    address: Option<HostAddress>,
    /// Whether the device has its own thread.
    threaded: bool,
}

impl std::fmt::Debug for DeviceBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceBuilder").field("options", &self.options).finish_non_exhaustive()
    }
}

impl DeviceBuilder {
    /// The defaults: a RoCE ConnectX-6 Dx on the network of the machine's software devices.
    pub(super) fn new(name: &str) -> Self {
        Self {
            options: Options { name: name.into(), ..Options::default() },
            guid: None,
            wire: WireChoice::Network(Carrier::default()),
            address: None,
            threaded: true,
        }
    }

    /// The number in `uverbsN`; 0 by default.
    pub fn index(mut self, index: u32) -> Self {
        self.options.index = index;
        self
    }

    /// The ConnectX generation.
    pub fn model(mut self, model: Model) -> Self {
        self.options.model = model;
        self
    }

    /// The kernel version whose behaviour the device shows.
    pub fn kernel(mut self, kernel: Kernel) -> Self {
        self.options.kernel = kernel;
        self
    }

    /// An InfiniBand port instead of a RoCE one.
    pub fn infiniband(mut self) -> Self {
        self.options.link = LinkLayer::InfiniBand;
        self
    }

    /// The port's active MTU; 4096 by default.
    pub fn active_mtu(mut self, mtu: Mtu) -> Self {
        self.options.active_mtu = mtu;
        self
    }

    /// The GID table. By default it follows from the device's station on the wire.
    pub fn gids(mut self, gids: Vec<GidEntry>) -> Self {
        self.options.gids = gids;
        self
    }

    /// Derives queue pair numbers and memory keys from this seed, so that they are the same in
    /// every run. By default they come from the operating system's random numbers, and peers cannot
    /// guess them.
    pub fn seed(mut self, seed: u64) -> Self {
        self.options.seed = Some(seed);
        self
    }

    /// The P_Key table; `[0xffff]` by default.
    pub fn pkeys(mut self, pkeys: Vec<u16>) -> Self {
        self.options.pkeys = pkeys;
        self
    }

    /// Whether shared receive queues can be resized. No mlx5 device can do it.
    pub fn srq_resize(mut self, offered: bool) -> Self {
        self.options.srq_resize = offered;
        self
    }

    /// Options of enhanced connection establishment (ECE); none by default. They have no effect on
    /// the connection. A new QP has all of these options. A change sets those of the requested
    /// options that are among them. How a real device chooses is unconfirmed.
    pub fn connection_options(mut self, options: u32) -> Self {
        self.options.connection_options = options;
        self
    }

    /// Whether QPs can go from RTS to SQD and back. The hardware can do it, but mlx5_ib refuses it
    /// (`optab` in hw/mlx5/qp.c).
    pub fn send_queue_drain(mut self, offered: bool) -> Self {
        self.options.send_queue_drain = offered;
        self
    }

    /// Whether there are dynamically connected (DC) queue pairs, as by default. Otherwise creating
    /// one fails with EOPNOTSUPP, as on adapters whose firmware does not have them.
    pub fn dynamically_connected(mut self, offered: bool) -> Self {
        self.options.dynamically_connected = offered;
        self
    }

    /// The device requires the first 18 bytes of each Ethernet packet inside the WQE, as some early
    /// ConnectX-4 did (`eth_min_inline` of the context, `mlx5_query_min_inline` in the kernel).
    pub fn inline_headers(mut self) -> Self {
        self.options.inline_headers = true;
        self
    }

    /// Completion queues can have real-time timestamps, as with `REAL_TIME_CLOCK_ENABLE` in the
    /// firmware's configuration.
    pub fn real_time_clock(mut self) -> Self {
        self.options.real_time_clock = true;
        self
    }

    /// As [`DeviceBuilder::real_time_clock`], with a clock that does not follow the machine's: at
    /// the device's time 0 it shows `start` nanoseconds since 1970. With it, a test knows the
    /// timestamps of frames from [`SoftDevice::receive_frames`].
    pub fn real_time_clock_from(mut self, start: u64) -> Self {
        self.options.real_time_start = Some(start);
        self.real_time_clock()
    }

    /// Sets the free-running counter to this value now. Conversions to wall-clock time use 41 bits
    /// of the counter (`MLX5_TIMER_MASK`), so `(1 << 41) - n` wraps in `n` nanoseconds.
    pub fn counter_now(mut self, ticks: u64) -> Self {
        self.options.counter_start = ticks.wrapping_sub(runtime::now());
        self
    }

    /// Range of rates that raw packet QPs can be limited to, in kbit/s; by default up to the port's
    /// speed. Bursts are not limited.
    pub fn packet_pacing(mut self, rates: RangeInclusive<u32>) -> Self {
        self.options.packet_pacing = PacketPacing::Range(rates);
        self
    }

    /// The device has no packet pacing, like a ConnectX-4.
    pub fn without_packet_pacing(mut self) -> Self {
        self.options.packet_pacing = PacketPacing::Absent;
        self
    }

    /// Accepts memfds as dma-bufs, to test dma-bufs without a device that exports them. The kernel
    /// refuses memfds, and so does the device by default.
    pub fn memfds_as_dma_bufs(mut self) -> Self {
        self.options.memfds_as_dma_bufs = true;
        self
    }

    /// Limits the pinned memory of each open file, in bytes (RLIMIT_MEMLOCK on a real device);
    /// ENOMEM above it. No limit by default.
    pub fn locked_memory(mut self, bytes: u64) -> Self {
        self.options.locked_memory = Some(bytes);
        self
    }

    /// Uses the network of the machine's software devices (the default), with this carrier between
    /// processes.
    pub fn carrier(mut self, carrier: Carrier) -> Self {
        self.wire = WireChoice::Network(carrier);
        self
    }

    /// Gives the device this address of the machine, instead of a free address of the software
    /// devices' loopback network. GID, MAC address and active MTU follow from its interface.
    ///
    /// At an address of 127.0.0.0/8 the device belongs to the loopback network, whose carrier may
    /// be rings in shared memory. At any other it sends and receives RoCE v2 at UDP port 4791, and
    /// reaches adapters, the kernel's software RoCE and software devices at such addresses, of this
    /// machine and others. No two devices share an address. An InfiniBand port can only have a
    /// loopback address.
    pub fn address(mut self, address: HostAddress) -> Self {
        self.address = Some(address);
        self
    }

    /// Uses no wire: the device reaches only itself.
    pub fn without_wire(mut self) -> Self {
        self.wire = WireChoice::None;
        self
    }

    /// Uses this wire, on which the device has this place (a [`Station`] or an [`Interface`]). The
    /// wire wakes the device with `waker`.
    ///
    /// The connection manager treats every station as a neighbour, because it does not know where
    /// such a wire leads. `127.0.0.1` is the device itself there. To reach listeners of other
    /// devices by it, use [`DeviceBuilder::wire_to_network`].
    pub fn wire(mut self, wire: Box<dyn Wire>, waker: Arc<Waker>, place: impl Into<Place>) -> Self {
        let place = place.into();
        self.wire = WireChoice::Given { wire, waker, place, leads_to_network: false };
        self
    }

    /// As [`DeviceBuilder::wire`], for a wire that leads to the network of the machine's software
    /// devices, with a recorder or an injector of faults in front of it. A path to a GID that no
    /// device has fails with ETIMEDOUT, as on that network itself.
    pub fn wire_to_network(
        mut self,
        wire: Box<dyn Wire>,
        waker: Arc<Waker>,
        place: impl Into<Place>,
    ) -> Self {
        let place = place.into();
        self.wire = WireChoice::Given { wire, waker, place, leads_to_network: true };
        self
    }

    /// The device makes progress only in [`OpenFile::poll_idle`].
    #[cfg(test)]
    pub(crate) fn without_thread(mut self) -> Self {
        self.threaded = false;
        self
    }

    /// How long a path waits for neighbours that do not answer.
    #[cfg(test)]
    pub(crate) fn neighbour_wait(mut self, wait: std::time::Duration) -> Self {
        self.options.neighbour_wait = wait;
        self
    }

    /// The GUID of the device. By default it follows from the device's station on the wire. A
    /// forked child's device takes its parent's GUID, because the program's libraries remember it.
    pub fn node_guid(mut self, guid: [u8; 8]) -> Self {
        self.guid = Some(guid);
        self
    }

    /// Starts the device.
    ///
    /// # Errors
    /// An error of the wire if no address is free or the requested one is not available (see
    /// [`Interface::find`] and [`RoutedWire::bind`]), or of the system if there is no memory,
    /// descriptor or thread left.
    pub fn build(self) -> io::Result<SoftDevice> {
        let Self { mut options, guid, wire, address, threaded } = self;
        let (wire, waker, place, reach) = attach(wire, address.as_ref(), &options)?;
        apply_place(&mut options, place);
        options.node_guid = guid.unwrap_or(options.node_guid);
        let config = CoreConfig {
            link: options.link,
            active_mtu: options.active_mtu,
            lid: options.lid,
            gids: options.gids.iter().map(|entry| entry.gid).collect(),
            pkeys: options.pkeys.clone(),
            seed: options.seed,
            gid_on_wire: options.gid_on_wire(),
            ..CoreConfig::default()
        };
        // SAFETY: the core's ranges come only from ioctls, whose callers guarantee them
        // (`OpenFile::ioctl`), or are on-device memory, which exists as long as the device.
        let memory = Arc::new(unsafe { ProcessMemory::new() });
        let mut core = Core::new(config, memory);
        let internal = Internal::create(&mut core)?;
        core.open_management();
        let firmware = Arc::new(Mutex::new(internal.firmware()));
        core.set_tables(firmware.clone());
        let host = Arc::new(HostSide {
            routes: Mutex::default(),
            clock: ClockPages::new(runtime::now(), options.counter_start)?,
            port_down: AtomicBool::new(false),
            agent: Mutex::default(),
            ended: Mutex::default(),
        });
        let runtime = Runtime::new(core, wire, waker, host.clone());
        let runtime = if threaded { runtime.start(&options.name)? } else { runtime };
        let shared = Arc::new(DeviceShared {
            options,
            runtime,
            host,
            internal,
            uars: UarPages::new()?,
            device_memory: DeviceMemory::new()?,
            xrc_domains: XrcDomains::default(),
            firmware,
            rates: Mutex::default(),
            reach,
            removed: AtomicBool::new(false),
            faults: Faults::default(),
            files: Mutex::default(),
            manager: Mutex::default(),
        });
        Ok(SoftDevice { shared })
    }
}

type Attached = (Box<dyn Wire>, Arc<Waker>, Place, Reach);

fn attach(
    choice: WireChoice,
    address: Option<&HostAddress>,
    options: &Options,
) -> io::Result<Attached> {
    match choice {
        WireChoice::Given { wire, waker, place, leads_to_network } => {
            let reach = match &place {
                Place::Interface(interface) => Reach::Routed(interface.clone()),
                Place::Loopback(_) if leads_to_network => Reach::Network(Neighbours::default()),
                Place::Loopback(_) => Reach::Unknown,
            };
            Ok((wire, waker, place, reach))
        }
        WireChoice::None => {
            let waker = Arc::new(Waker::new()?);
            Ok((Box::new(NoWire), waker, Station::candidate(0).into(), Reach::Itself))
        }
        WireChoice::Network(carrier) => join(carrier, address, options),
    }
}

fn join(
    carrier: Carrier,
    address: Option<&HostAddress>,
    options: &Options,
) -> io::Result<Attached> {
    let waker = Arc::new(Waker::new()?);
    let link = if options.is_roce() { Link::Ethernet } else { Link::InfiniBand };
    let station = address.and_then(HostAddress::station);
    let network = match (station, address) {
        (Some(station), _) => Network::join_as(station, link, Some(waker.clone()), carrier)?,
        (None, None) => Network::join_any(link, Some(waker.clone()), carrier)?,
        (None, Some(address)) => {
            let wire = RoutedWire::at(address, link)?;
            let interface = wire.interface().clone();
            let reach = Reach::Routed(interface.clone());
            return Ok((Box::new(wire), waker, interface.into(), reach));
        }
    };
    let place = network.station().into();
    Ok((Box::new(network), waker, place, Reach::Network(Neighbours::default())))
}

/// Sets what follows from the device's place.
fn apply_place(options: &mut Options, place: Place) {
    let own = match &place {
        Place::Loopback(station) => at_station(options, *station),
        Place::Interface(interface) => at_interface(options, interface),
    };
    if options.gids.is_empty() {
        options.gids = own;
    }
    options.place = Some(place);
}

/// Sets the addresses that follow from the station. The GIDs are in the order of mlx5 with one IPv4
/// address: link-local, then IPv4, each as RoCE version 1 and 2.
fn at_station(options: &mut Options, station: Station) -> Vec<GidEntry> {
    options.node_guid = station.guid();
    options.mac = station.mac();
    let (local, ipv4) = (station.link_local_gid(), station.gid());
    if options.is_roce() {
        return [local, ipv4].into_iter().flat_map(both_versions).collect();
    }
    options.lid = station.lid().unwrap_or(1);
    options.sm_lid = 1;
    vec![GidEntry { gid: local, kind: GidType::InfiniBand }]
}

/// Sets what follows from an interface. The device has one address, so one GID in two versions:
/// the interface's other addresses may be other devices'.
fn at_interface(options: &mut Options, interface: &Interface) -> Vec<GidEntry> {
    options.node_guid = interface.guid();
    options.mac = interface.mac();
    options.netdev = interface.name().to_owned();
    options.ifindex = interface.index();
    options.active_mtu = options.active_mtu.min(interface.mtu());
    both_versions(interface.gid()).into()
}

fn both_versions(gid: Gid) -> [GidEntry; 2] {
    [GidType::RoceV1, GidType::RoceV2].map(|kind| GidEntry { gid, kind })
}
