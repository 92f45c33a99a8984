//! The device, and the state that all of its open files share.
#![allow(unsafe_code)]

pub(crate) mod clock;
pub(crate) mod context;
pub(crate) mod event_queue;
pub(crate) mod events;
pub(crate) mod faults;
pub(crate) mod file;
pub(crate) mod mapping;
pub(crate) mod open_file;
pub(crate) mod options;
pub(crate) mod shared_pages;
pub(crate) mod sysfs;

use std::io;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nix::errno::Errno;

use crate::chardev::objects::dm::DeviceMemory;
use crate::chardev::objects::object::Object;
use crate::chardev::objects::uar::UarPages;
use crate::chardev::objects::xrcd::XrcDomains;
use crate::core::{
    AsyncKind, Core, CoreConfig, CoreError, CqParams, CqRing, CqeSize, Cqn, Event, EventObject,
    LinkLayer, Mkey, MkeyParams, Moderation, Mtu, Pdn,
};
use crate::memory::{PageMap, ProcessMemory};
use crate::packet::Gid;
use crate::runtime::{self, Host, Machine, Runtime};
use crate::wire::{Carrier, Link, Neighbours, Network, NoWire, Station, Waker, Wire};
use clock::ClockPages;
use events::Routes;
use faults::{Fault, Faults};
use file::FileShared;
use open_file::OpenFile;
use options::{GidEntry, GidType, Kernel, Model, Options, PacketPacing};
use shared_pages::SharedPages;
use sysfs::Sysfs;

/// How often full event files are looked at for room, in nanoseconds.
const ROOM_CHECK: u64 = 1_000_000;
/// Looks that the clock is waited for at most: a device that has failed makes no more.
const CLOCK_TRIES: u32 = 10_000;

/// A software ConnectX with its kernel driver, running in this process.
///
/// The device exists until this handle and all open files are dropped.
///
/// ```
/// use uverbs_soft::chardev::SoftDevice;
/// let device = SoftDevice::builder("soft0").without_wire().build()?;
/// let file = device.open();
/// assert_eq!(device.sysfs().read("class/infiniband/soft0/node_type"), Some("1: CA\n"));
/// # drop(file);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SoftDevice {
    pub(crate) shared: Arc<DeviceShared>,
}

/// The device's state, shared by its open files.
#[derive(Debug)]
pub(crate) struct DeviceShared {
    options: Options,
    runtime: Runtime,
    host: Arc<HostSide>,
    internal: Internal,
    pub(crate) uars: UarPages,
    pub(crate) device_memory: DeviceMemory,
    pub(crate) xrc_domains: XrcDomains,
    reach: Reach,
    removed: AtomicBool,
    faults: Faults,
    files: Mutex<Vec<Weak<FileShared>>>,
}

/// Objects that the driver creates for itself.
#[derive(Debug)]
struct Internal {
    pd: Pdn,
    cq: Cqn,
    null_key: Mkey,
    /// Ring and doorbell record of the CQ.
    _memory: SharedPages,
}

impl Internal {
    fn create(core: &mut Core) -> io::Result<Self> {
        let memory = SharedPages::new(c"mlx5-internal", 1)?;
        let pd = core.create_pd().map_err(io::Error::other)?;
        let variant = core.mkey_variant();
        let null_key = MkeyParams { variant, ..MkeyParams::null(pd) };
        let null_key = core.create_mkey(null_key).map_err(io::Error::other)?;
        let buffer = PageMap::linear(memory.address(0));
        let ring = CqRing { buffer, log_entries: 4, cqe_size: CqeSize::B64 };
        let cq = CqParams {
            ring,
            doorbell_record: memory.address(0) + 2048,
            ignore_overrun: true,
            moderation: Moderation::default(),
        };
        let cq = core.create_cq(cq).map_err(io::Error::other)?;
        Ok(Self { pd, cq, null_key, _memory: memory })
    }
}

/// Receives events and the time from the device's thread.
#[derive(Debug)]
struct HostSide {
    routes: Mutex<Routes>,
    clock: ClockPages,
    port_down: AtomicBool,
}

impl Host for HostSide {
    fn event(&self, event: Event) {
        match event {
            Event::Completion { cqn } => self.routes().complete(cqn.0),
            Event::Async { kind, object: EventObject::Port(port) } => {
                self.note_port(kind);
                self.routes().broadcast(&events::record(port.into(), kind));
            }
            Event::Async { kind, object: EventObject::Device } => {
                self.routes().broadcast(&events::record(0, kind));
            }
            Event::Async { kind, object } => self.routes().report(kind, object),
        }
    }

    /// Events that wait for room are moved on soon: nobody tells when the program reads.
    fn tick(&self, now: u64) -> Option<u64> {
        self.clock.update(now);
        let room = self.routes().flush().then_some(now + ROOM_CHECK);
        room.or_else(|| self.clock.next_update(now))
    }
}

impl HostSide {
    fn routes(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_port(&self, kind: AsyncKind) {
        match kind {
            AsyncKind::PortError => self.port_down.store(true, Ordering::Relaxed),
            AsyncKind::PortActive => self.port_down.store(false, Ordering::Relaxed),
            _ => {}
        }
    }
}

/// The errno that the kernel gives for a refused firmware command (`cmd_status_to_err` in mlx5
/// core's cmd.c).
pub(crate) fn errno(error: CoreError) -> Errno {
    match error {
        CoreError::InUse { .. } => Errno::EBUSY,
        CoreError::LimitReached { .. } => Errno::ENOMEM,
        CoreError::FlowConflict(_) => Errno::EEXIST,
        CoreError::FlowTableFull => Errno::ENOSPC,
        CoreError::Unsupported(_) => Errno::EOPNOTSUPP,
        CoreError::Bus(_) => Errno::EFAULT,
        CoreError::NotFound { .. }
        | CoreError::BadParameter { .. }
        | CoreError::BadTransition { .. }
        | CoreError::InError { .. } => Errno::EINVAL,
    }
}

impl DeviceShared {
    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// Whether this is a forked child of the process that the device runs in. A child may do
    /// nothing with the device, because it shares events, doorbells and pages with the parent.
    pub(crate) fn is_orphan(&self) -> bool {
        !self.runtime.is_here()
    }

    /// The key that reads as zeros and discards writes, valid in every protection domain
    /// (`dump_fill_mkey`).
    pub(crate) fn null_key(&self) -> u32 {
        self.internal.null_key.0
    }

    pub(crate) fn clock(&self) -> &ClockPages {
        &self.host.clock
    }

    pub(crate) fn reach(&self) -> &Reach {
        &self.reach
    }

    /// A context maps a page of the clock. The device's thread may sleep without an end, and is
    /// woken by the command.
    pub(crate) fn watch_clock(&self) -> Result<(), Errno> {
        self.clock().watch();
        self.control(|_| Ok(()))
    }

    /// Brings the clock's counter up to date, except in a child process. Only a look at everything
    /// moves it, so that it is never ahead of the time that a later completion is stamped with.
    pub(crate) fn refresh_clock(&self) {
        let asked = runtime::now();
        for _ in 0..CLOCK_TRIES {
            if self.is_orphan() || self.clock().shown() >= asked {
                return;
            }
            // The device's thread may be looking at this moment, or have to be woken.
            if !self.lend() {
                std::thread::yield_now();
            }
        }
    }

    pub(crate) fn is_port_down(&self) -> bool {
        self.host.port_down.load(Ordering::Relaxed)
    }

    /// Makes progress in the calling thread, see [`Runtime::lend`].
    pub(crate) fn lend(&self) -> bool {
        self.runtime.lend()
    }

    /// Runs a command on core and doorbells; EIO in a child process, where the device does not run.
    pub(crate) fn control<R>(
        &self,
        command: impl FnOnce(&mut Machine) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        self.runtime.control(command).unwrap_or(Err(Errno::EIO))
    }

    /// As [`control`](Self::control), for a command of the core alone.
    pub(crate) fn core<R>(
        &self,
        command: impl FnOnce(&mut Core) -> Result<R, CoreError>,
    ) -> Result<R, Errno> {
        self.control(|machine| command(&mut machine.core).map_err(errno))
    }

    /// Creates a memory key under a random variant. (mlx5_ib counts variants, `assign_mkey_variant`
    /// in hw/mlx5/mr.c.)
    pub(crate) fn create_key(&self, params: MkeyParams) -> Result<Mkey, Errno> {
        self.core(|core| {
            let variant = core.mkey_variant();
            core.create_mkey(MkeyParams { variant, ..params })
        })
    }

    /// The routes of events. Lock order: the machine first, then the routes.
    pub(crate) fn routes(&self) -> MutexGuard<'_, Routes> {
        self.host.routes()
    }

    /// PD and CQ of XRC targets: a QP needs both, and a target has none (`mlx5_ib_resources`, p0
    /// and c0).
    pub(crate) fn internal_objects(&self) -> (Pdn, Cqn) {
        (self.internal.pd, self.internal.cq)
    }

    /// Starts to receive a multicast group from the wire.
    pub(crate) fn join(&self, group: Gid) -> Result<(), Errno> {
        self.runtime
            .join(group)
            .map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
    }

    pub(crate) fn leave(&self, group: Gid) {
        // This fails only in a forked child, which has not joined.
        let _ = self.runtime.leave(group);
    }

    pub(crate) fn faults(&self) -> &Faults {
        &self.faults
    }

    fn files(&self) -> Vec<Arc<FileShared>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|file| file.strong_count() > 0);
        files.iter().filter_map(Weak::upgrade).collect()
    }
}

impl SoftDevice {
    /// A builder for a device with this RDMA device name (such as `mlx5_0`).
    pub fn builder(name: &str) -> DeviceBuilder {
        DeviceBuilder {
            options: Options { name: name.into(), ..Options::default() },
            wire: WireChoice::Network(Carrier::default()),
            threaded: true,
        }
    }

    /// A device of this name with the defaults: a RoCE ConnectX-6 Dx on the network of the
    /// machine's software devices.
    ///
    /// # Errors
    /// As [`DeviceBuilder::build`].
    pub fn named(name: &str) -> io::Result<Self> {
        Self::builder(name).build()
    }

    /// Opens the device, as open(2) opens `/dev/infiniband/uverbsN`.
    pub fn open(&self) -> OpenFile {
        let file = Arc::new(FileShared::new(self.shared.clone()));
        let mut files = self.shared.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|known| known.strong_count() > 0);
        files.push(Arc::downgrade(&file));
        OpenFile::new(file)
    }

    /// The RDMA device name.
    pub fn name(&self) -> &str {
        &self.shared.options.name
    }

    /// The files that sysfs shows of the device.
    pub fn sysfs(&self) -> Sysfs {
        Sysfs::of(&self.shared.options)
    }

    /// The GID table.
    pub fn gids(&self) -> &[GidEntry] {
        &self.shared.options.gids
    }

    /// The port's LID; 0 on RoCE.
    pub fn lid(&self) -> u16 {
        self.shared.options.lid
    }

    /// Raises an asynchronous event. An event that reports an error state also puts the object in
    /// that state, a port event changes the answer to port queries.
    ///
    /// # Errors
    /// EINVAL if there is no such object, EIO in a child process.
    pub fn raise(&self, kind: AsyncKind, object: EventObject) -> Result<(), Errno> {
        self.shared.core(|core| core.inject_event(kind, object))
    }

    /// Makes an ioctl or mmap fail.
    pub fn inject(&self, fault: Fault) {
        self.shared.faults.order(fault);
    }

    /// Cancels the faults that have not struck and returns their number.
    pub fn clear_faults(&self) -> usize {
        self.shared.faults.clear()
    }

    /// The number of kernel objects (handles) of all open files.
    pub fn handle_count(&self) -> usize {
        self.shared.files().iter().map(|file| file.lock().handles.iter().count()).sum()
    }

    /// The number of protection domains, CQs, QPs, memory regions and SRQs of all open files, by
    /// their names in RDMA netlink (`type2str` in core/restrack.c).
    pub fn object_counts(&self) -> [(&'static str, usize); 5] {
        let files = self.shared.files();
        let count = |is_one: fn(&Object) -> bool| {
            let of_file = |file: &Arc<FileShared>| {
                file.lock().handles.iter().filter(|(_, entry)| is_one(&entry.object)).count()
            };
            files.iter().map(of_file).sum()
        };
        [
            ("pd", count(|object| matches!(object, Object::Pd(_)))),
            ("cq", count(|object| matches!(object, Object::Cq(_)))),
            ("qp", count(|object| matches!(object, Object::Qp(_)))),
            ("mr", count(|object| matches!(object, Object::Mr(_)))),
            ("srq", count(|object| matches!(object, Object::Srq(_)))),
        ]
    }

    /// The number of ioctls of all open files so far.
    pub fn ioctl_count(&self) -> u64 {
        self.shared.faults.calls()
    }

    /// Removes the device as hot-unplug does. Its objects are destroyed. Asynchronous event files
    /// deliver DEVICE_FATAL and no more events; a further read blocks, as with the kernel.
    /// Completion channels end. Every ioctl fails with EIO, except those that destroy objects.
    /// Mapped pages stay mapped without effect.
    pub fn remove(&self) {
        if self.shared.is_orphan() {
            return;
        }
        if !self.shared.removed.swap(true, Ordering::AcqRel) {
            self.shared.files().iter().for_each(|file| file.disassociate());
        }
    }

    /// Whether [`remove`](Self::remove) has been called.
    pub fn is_removed(&self) -> bool {
        self.shared.is_removed()
    }

    /// Inspects the state machine, for tests and diagnosis. The access is read-only, because the
    /// device's memory is the process's: code that created a key or a queue here could let the
    /// device write anywhere.
    ///
    /// ```compile_fail,E0596
    /// # let device = uverbs_soft::chardev::SoftDevice::named("soft0").unwrap();
    /// device.inspect(|core| core.create_pd());
    /// ```
    ///
    /// # Errors
    /// EIO in a child process.
    pub fn inspect<R>(&self, look: impl FnOnce(&Core) -> R) -> Result<R, Errno> {
        self.shared.control(|machine| Ok(look(&machine.core)))
    }
}

/// Which devices can be neighbours of this one.
#[derive(Debug)]
pub(crate) enum Reach {
    /// Those of the loopback network.
    Network(Neighbours),
    /// None: it has no wire.
    Itself,
    /// The wire is the program's own, and only the program knows.
    Unknown,
}

impl Reach {
    fn of(wire: &WireChoice) -> Self {
        match wire {
            WireChoice::Network(_) => Self::Network(Neighbours::default()),
            WireChoice::None => Self::Itself,
            WireChoice::Given(..) => Self::Unknown,
        }
    }

    /// Whether a neighbour has the GID.
    pub(crate) fn has(&self, gid: Gid, now: u64) -> bool {
        match self {
            Self::Network(found) => {
                Station::from_gid(gid).is_some_and(|station| found.has(station, now))
            }
            Self::Itself => false,
            Self::Unknown => true,
        }
    }
}

enum WireChoice {
    Network(Carrier),
    None,
    Given(Box<dyn Wire>, Arc<Waker>, Station),
}

/// The options of a device, before it starts.
pub struct DeviceBuilder {
    options: Options,
    wire: WireChoice,
    /// Whether the device has its own thread.
    threaded: bool,
}

impl std::fmt::Debug for DeviceBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceBuilder").field("options", &self.options).finish_non_exhaustive()
    }
}

impl DeviceBuilder {
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

    /// Name and index of the network device that RoCE GIDs belong to; the loopback interface by
    /// default.
    pub fn network_device(mut self, name: &str, ifindex: u32) -> Self {
        self.options.netdev = name.into();
        self.options.ifindex = ifindex;
        self
    }

    /// Whether shared receive queues can be resized. No mlx5 device can do it.
    pub fn srq_resize(mut self, offered: bool) -> Self {
        self.options.srq_resize = offered;
        self
    }

    /// Options of enhanced connection establishment (ECE); none by default. They have no effect on
    /// the connection. A new QP has all of them, and a change is granted those of its options that
    /// are among them. How a real device chooses is unconfirmed.
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

    /// The device requires the first 18 bytes of each Ethernet packet inside the WQE, as some early
    /// ConnectX-4 did (`eth_min_inline` of the context, `mlx5_query_min_inline` in the kernel).
    pub fn inline_headers(mut self) -> Self {
        self.options.inline_headers = true;
        self
    }

    /// Raw packet QPs can be limited to rates of this range, in kbit/s; by default to all up to the
    /// port's speed. It bounds no bursts.
    pub fn packet_pacing(mut self, rates: RangeInclusive<u32>) -> Self {
        self.options.packet_pacing = PacketPacing::Range(rates);
        self
    }

    /// The device paces no packets, as a ConnectX-4 does not.
    pub fn without_packet_pacing(mut self) -> Self {
        self.options.packet_pacing = PacketPacing::Absent;
        self
    }

    /// Takes memfds for dma-bufs, so that these can be tried without a device that exports any. The
    /// kernel refuses them, and so does the device by default.
    pub fn memfds_as_dma_bufs(mut self) -> Self {
        self.options.memfds_as_dma_bufs = true;
        self
    }

    /// Limits the pinned memory of each open file, in bytes (RLIMIT_MEMLOCK on a real one); ENOMEM
    /// above it. No limit by default.
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

    /// Uses no wire: the device reaches only itself.
    pub fn without_wire(mut self) -> Self {
        self.wire = WireChoice::None;
        self
    }

    /// Uses this wire, on which the device is `station`. The wire wakes the device with `waker`.
    pub fn wire(mut self, wire: Box<dyn Wire>, waker: Arc<Waker>, station: Station) -> Self {
        self.wire = WireChoice::Given(wire, waker, station);
        self
    }

    /// The device makes progress only in [`OpenFile::poll_idle`].
    #[cfg(test)]
    pub(crate) fn without_thread(mut self) -> Self {
        self.threaded = false;
        self
    }

    /// Starts the device.
    ///
    /// # Errors
    /// An error of the wire if no address is free, or of the system if there is no memory,
    /// descriptor or thread left.
    pub fn build(self) -> io::Result<SoftDevice> {
        let Self { mut options, wire, threaded } = self;
        let reach = Reach::of(&wire);
        let (wire, waker, station) = attach(wire, &options)?;
        address(&mut options, station);
        let config = CoreConfig {
            link: options.link,
            active_mtu: options.active_mtu,
            lid: options.lid,
            gids: options.gids.iter().map(|entry| entry.gid).collect(),
            pkeys: options.pkeys.clone(),
            seed: options.seed,
            gid_on_wire: Station::gid_on_wire,
            ..CoreConfig::default()
        };
        // SAFETY: the core gets ranges only from ioctls, whose callers guarantee them
        // (`OpenFile::ioctl`), and of on-device memory, which exists as long as the device.
        let memory = Arc::new(unsafe { ProcessMemory::new() });
        let mut core = Core::new(config, memory);
        let internal = Internal::create(&mut core)?;
        let host = Arc::new(HostSide {
            routes: Mutex::default(),
            clock: ClockPages::new(runtime::now())?,
            port_down: AtomicBool::new(false),
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
            reach,
            removed: AtomicBool::new(false),
            faults: Faults::default(),
            files: Mutex::default(),
        });
        Ok(SoftDevice { shared })
    }
}

fn attach(
    choice: WireChoice,
    options: &Options,
) -> io::Result<(Box<dyn Wire>, Arc<Waker>, Station)> {
    match choice {
        WireChoice::Given(wire, waker, station) => Ok((wire, waker, station)),
        WireChoice::None => Ok((Box::new(NoWire), Arc::new(Waker::new()?), Station::candidate(0))),
        WireChoice::Network(carrier) => {
            let waker = Arc::new(Waker::new()?);
            let link = if options.is_roce() { Link::Ethernet } else { Link::InfiniBand };
            let network = Network::join_any(link, Some(waker.clone()), carrier)?;
            let station = network.station();
            Ok((Box::new(network), waker, station))
        }
    }
}

/// Sets the addresses that follow from the station, in the order of mlx5 with one IPv4 address:
/// link-local, then IPv4, each as RoCE version 1 and 2.
fn address(options: &mut Options, station: Station) {
    options.node_guid = station.guid();
    options.mac = station.mac();
    let (local, ipv4) = (station.link_local_gid(), station.gid());
    let entry = |gid, kind| GidEntry { gid, kind };
    let own = if options.is_roce() {
        let kinds = [GidType::RoceV1, GidType::RoceV2];
        [local, ipv4].into_iter().flat_map(|gid| kinds.map(|kind| entry(gid, kind))).collect()
    } else {
        options.lid = station.lid().unwrap_or(1);
        options.sm_lid = 1;
        vec![entry(local, GidType::InfiniBand)]
    };
    if options.gids.is_empty() {
        options.gids = own;
    }
}
