//! The state of a device that all of its open files share.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use nix::errno::Errno;
use uverbs_soft_adapter::firmware::Objects;

use super::clock::ClockPages;
use super::event_queue::EventQueue;
use super::events::{self, Routes};
use super::faults::Faults;
use super::file::FileShared;
use super::management::{Agent, answer_without_agent};
use super::options::Options;
use super::shared_pages::SharedPages;
use super::sysfs::hw_counters;
use crate::chardev::objects::dm::DeviceMemory;
use crate::chardev::objects::pacing::Rates;
use crate::chardev::objects::uar::UarPages;
use crate::chardev::objects::xrcd::XrcDomains;
use crate::chardev::rdma_cm::WeakRdmaCm;
use crate::core::{
    AsyncKind, Core, CoreError, CqParams, CqRing, CqeSize, Cqn, Datagram, Event, EventObject, Mkey,
    MkeyParams, Moderation, Pdn,
};
use crate::locking::lock;
use crate::memory::PageMap;
use crate::packet::Gid;
use crate::runtime::{self, Expected, Host, Machine, Runtime};
use crate::wire::{Interface, Neighbours, Station};

/// Interval at which full event files are checked for space, in nanoseconds.
const FULL_PIPE_CHECK: u64 = 1_000_000;
/// Most checks of the clock while waiting for its update: a failed device no longer updates it.
const CLOCK_TRIES: u32 = 10_000;

/// The device's state, shared by its open files.
#[derive(Debug)]
pub(crate) struct DeviceShared {
    pub(super) options: Options,
    pub(super) runtime: Runtime,
    pub(super) host: Arc<HostSide>,
    pub(super) internal: Internal,
    pub(crate) uars: UarPages,
    pub(crate) device_memory: DeviceMemory,
    pub(crate) xrc_domains: XrcDomains,
    /// The firmware's record of the objects that programs' commands have created. Lock order: the
    /// machine first, then this. The core locks it to route a frame through a flow table, so no
    /// frame is sent or received while a command holds the lock.
    pub(crate) firmware: Arc<Mutex<Objects>>,
    /// The table of rates.
    pub(crate) rates: Mutex<Rates>,
    pub(super) reach: Reach,
    pub(super) removed: AtomicBool,
    pub(super) faults: Faults,
    pub(super) files: Mutex<Vec<Weak<FileShared>>>,
    /// The connection manager of [`SoftDevice::rdma_cm`](super::SoftDevice::rdma_cm), if it exists.
    pub(super) manager: Mutex<WeakRdmaCm>,
}

/// Which devices can be neighbours of this one.
#[derive(Debug)]
pub(crate) enum Reach {
    /// Those of the loopback network.
    Network(Neighbours),
    /// Those to which the machine has a route from the device's address.
    Routed(Interface),
    /// None: it has no wire.
    Itself,
    /// Unknown, because the wire is the program's own.
    Unknown,
}

impl Reach {
    /// Whether a neighbour has the GID.
    pub(crate) fn has(&self, gid: Gid, now: u64) -> bool {
        match self {
            Self::Routed(interface) => interface.has_route_to(gid),
            Self::Unknown => true,
            Self::Network(_) | Self::Itself => {
                Station::from_gid(gid).is_some_and(|station| self.has_station(station, now))
            }
        }
    }

    /// Whether a neighbour has the station.
    pub(crate) fn has_station(&self, station: Station, now: u64) -> bool {
        match self {
            Self::Network(found) => found.has(station, now),
            Self::Routed(_) | Self::Itself => false,
            Self::Unknown => true,
        }
    }

    /// Whether the device is on the network of the machine's software devices.
    pub(crate) fn is_machines_network(&self) -> bool {
        matches!(self, Self::Network(_))
    }

    /// Whether neighbours are other processes' devices, and not at the end of a program's own wire.
    pub(crate) fn leads_to_processes(&self) -> bool {
        matches!(self, Self::Network(_) | Self::Routed(_))
    }
}

/// Objects that the driver creates for itself.
#[derive(Debug)]
pub(super) struct Internal {
    pd: Pdn,
    cq: Cqn,
    null_key: Mkey,
    /// Ring and doorbell record of the CQ.
    _memory: SharedPages,
}

impl Internal {
    /// A firmware without objects. This PD is its driver's own protection domain.
    pub(super) fn firmware(&self) -> Objects {
        Objects::new(self.pd)
    }

    pub(super) fn create(core: &mut Core) -> io::Result<Self> {
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
pub(super) struct HostSide {
    pub(super) routes: Mutex<Routes>,
    pub(super) clock: ClockPages,
    pub(super) port_down: AtomicBool,
    pub(super) agent: Mutex<Option<Agent>>,
    /// The stations whose process has ended.
    pub(super) ended: Mutex<HashSet<Station>>,
}

impl Host for HostSide {
    fn event(&self, event: Event) {
        let mut routes = self.routes();
        routes.tell_subscribers(event);
        match event {
            Event::Completion { cqn } => routes.complete(cqn.0),
            Event::Async { kind, object: EventObject::Port(port) } => {
                self.note_port(kind);
                routes.broadcast(&events::record(port.into(), kind));
            }
            Event::Async { kind, object: EventObject::Device } => {
                routes.broadcast(&events::record(0, kind));
            }
            Event::Async { kind, object } => routes.report(kind, object),
            // Only the firmware has this event.
            Event::AccessKeyViolation { .. } => {}
        }
    }

    fn datagram(&self, datagram: Datagram) -> Vec<Datagram> {
        let agent = lock(&self.agent);
        let Some(agent) = &*agent else { return answer_without_agent(&datagram) };
        agent.datagram(datagram);
        Vec::new()
    }

    fn peer_ended(&self, station: Station) {
        lock(&self.ended).insert(station);
        if let Some(agent) = &*lock(&self.agent) {
            agent.peer_ended(station);
        }
    }

    /// Updates the clock and moves waiting events into their pipes. It runs again soon if events
    /// wait, because nothing notifies the device when the program reads.
    fn tick(&self, now: u64) -> Option<u64> {
        self.clock.update(now);
        let flush = self.routes().flush().then_some(now + FULL_PIPE_CHECK);
        flush.or_else(|| self.clock.next_update(now))
    }
}

impl HostSide {
    fn routes(&self) -> MutexGuard<'_, Routes> {
        lock(&self.routes)
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

    /// Whether this is a forked child of the process that the device runs in. A child must not use
    /// the device, because it shares events, doorbells and pages with the parent.
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

    /// Whether a process that had the station has ended. Another one may have it since.
    pub(crate) fn has_ended(&self, gid: Gid) -> bool {
        Station::from_gid(gid).is_some_and(|station| lock(&self.host.ended).contains(&station))
    }

    /// Call this when a context maps a page of the clock. The command wakes the device's thread,
    /// which may sleep without a deadline.
    pub(crate) fn watch_clock(&self) -> Result<(), Errno> {
        self.clock().watch();
        self.control(|_| Ok(()))
    }

    /// Updates the clock's counter, except in a child process. Only a whole step of the device
    /// updates it, so that it is never ahead of the timestamp of a later completion.
    pub(crate) fn refresh_clock(&self) {
        let asked = runtime::now();
        for _ in 0..CLOCK_TRIES {
            if self.is_orphan() || self.clock().shown() >= asked {
                return;
            }
            // The device's thread may be running a step, or still waking up.
            if !self.runtime.progress() {
                std::thread::yield_now();
            }
        }
    }

    pub(crate) fn is_port_down(&self) -> bool {
        self.host.port_down.load(Ordering::Relaxed)
    }

    /// Makes progress in the calling thread or lets other threads run, see [`Runtime::idle`].
    pub(crate) fn idle(&self) {
        self.runtime.idle();
    }

    /// See [`Runtime::wait_readable`].
    pub(crate) fn wait_readable(
        &self,
        files: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> nix::Result<Option<usize>> {
        self.runtime.wait_readable(files, timeout)
    }

    /// See [`Runtime::wait_for`].
    pub(crate) fn wait_for_event(
        &self,
        expected: &dyn Expected,
        files: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> nix::Result<Option<usize>> {
        self.runtime.wait_for(expected, files, timeout)
    }

    /// Runs a command on core and doorbells; EIO in a child process, where the device does not run.
    pub(crate) fn control<R>(
        &self,
        command: impl FnOnce(&mut Machine) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        self.runtime.control(command).unwrap_or(Err(Errno::EIO))
    }

    /// A counter of the port, by its name in sysfs.
    pub(crate) fn hw_counter(&self, name: &str) -> Option<u64> {
        let counters = self.control(|machine| Ok(machine.core.counters())).unwrap_or_default();
        hw_counters(&counters).into_iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// As [`control`](Self::control), for a command that needs only the core.
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

    /// Appends a record to an event file. If its pipe is full, the device's thread writes the
    /// record later.
    pub(crate) fn push(&self, queue: &Arc<EventQueue>, record: &[u8]) -> Result<(), Errno> {
        self.control(|_| {
            self.routes().push(queue, record);
            Ok(())
        })
    }

    /// PD and CQ for XRC targets: the core's QPs need both, and a program's target has neither
    /// (`mlx5_ib_resources`, p0 and c0).
    pub(crate) fn internal_objects(&self) -> (Pdn, Cqn) {
        (self.internal.pd, self.internal.cq)
    }

    /// Passes management datagrams to an agent from now on.
    ///
    /// # Errors
    /// `AlreadyExists` if the device has one; EIO in a child process.
    pub(crate) fn open_management(&self, agent: Agent) -> io::Result<()> {
        if self.is_orphan() {
            return Err(Errno::EIO.into());
        }
        match &mut *lock(&self.host.agent) {
            Some(_) => Err(io::ErrorKind::AlreadyExists.into()),
            none => {
                *none = Some(agent);
                Ok(())
            }
        }
    }

    /// Stops passing datagrams to this agent, unless another one has replaced it.
    pub(crate) fn close_management(&self, agent: &Agent) {
        lock(&self.host.agent).take_if(|now| Arc::ptr_eq(now, agent));
    }

    pub(super) fn tell_agent_of_removal(&self) {
        if let Some(agent) = &*lock(&self.host.agent) {
            agent.removed();
        }
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

    pub(super) fn files(&self) -> Vec<Arc<FileShared>> {
        let mut files = lock(&self.files);
        files.retain(|file| file.strong_count() > 0);
        files.iter().filter_map(Weak::upgrade).collect()
    }
}
