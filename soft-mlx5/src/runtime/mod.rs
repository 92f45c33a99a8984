//! Runs a core: the device thread, the doorbells that it checks, and the entry for commands.
//!
//! One thread drives one [`Core`]. It checks the doorbell words of the [UAR pages](UarRegion),
//! carries packets between core and wire, and passes events to the front end. A polling program can
//! do this in place of the thread ([`Runtime::progress`]). Commands run in the caller's thread
//! under the same lock ([`Runtime::control`]); the device thread yields the lock while one waits.
//!
//! # What it costs
//! A doorbell is a store to memory, which wakes no thread, so a device with queues must poll. While
//! it is busy it only calls `sched_yield` between two looks. After 200 us without work it sleeps
//! between two looks, 25 us at first, later 1 ms and finally 8 ms (below one percent of a core).
//! Packets and commands end such a sleep early. A device without queues sleeps until a packet or
//! command arrives. While programs poll and make progress for it, its thread sleeps for 25 us to 1
//! ms at a time, and takes over at the end of such a sleep if their last look was 50 us ago or
//! more.
//!
//! # Fork and exit
//! The thread does not exist in a forked child: there every command fails with [`Orphaned`],
//! doorbells are not seen, and dropping the [`Runtime`] frees only memory of the child. The child
//! shares the parent's UAR pages (as with a real device) and must not ring them. The wire's sockets
//! stay open in the child until it ends or calls `exec`. So the device keeps its station and its
//! rings that long, even if the parent is killed. A process may exit while its devices run.
//! Dropping the runtime ends the thread and waits for it.

mod at_exit;
pub(crate) mod clock;
mod idle;
pub(crate) mod os_thread;
mod pacing;
mod scheduler;
mod spins;
mod standby;
mod thread;
mod uar;
mod wait;
mod worker;

pub use clock::now;
pub use uar::{Doorbell, UAR_PAGE_SIZE, UarPage, UarRegion, Uars};
pub(crate) use wait::Expected;

use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use self::idle::Work;
use self::os_thread::OsThread;
use self::scheduler::Scheduler;
use self::standby::Standby;
use self::worker::{Whose, Worker};
use crate::core::{AsyncKind, Core, Cqn, Datagram, Event, EventObject, Qpn};
use crate::home::Home;
use crate::locking::lock;
use crate::packet::{Gid, Packet, PacketPool};
use crate::wire::{Station, Waker, Wire};

/// Receives a device's events.
///
/// All methods are called with the core locked, so that no event of an object comes after the
/// command that destroyed it. They must be quick and must not call [`Runtime::control`].
pub trait Host: Send + Sync {
    /// The device reports an event.
    fn event(&self, event: Event);

    /// A management datagram arrived at QP1. Returns the answers to send at once.
    fn datagram(&self, _datagram: Datagram) -> Vec<Datagram> {
        Vec::new()
    }

    /// The process with this station has ended. Its packets that arrived before have been passed
    /// on.
    fn peer_ended(&self, _station: Station) {}

    /// The device has looked at its doorbells. `now` is the time in nanoseconds, for a clock
    /// page that the device keeps current while it is awake. Returns the time of the next look at
    /// the latest, if the front end needs one.
    fn tick(&self, _now: u64) -> Option<u64> {
        None
    }
}

/// The state that commands change: the core, and the doorbell register of each of its queues.
#[derive(Debug)]
pub struct Machine {
    /// The state machine.
    pub core: Core,
    /// The UAR pages with the queues that use them.
    pub uars: Uars,
}

impl Machine {
    /// The most packets that a [`catch_up`](Self::catch_up) handles. It retransmits no requests,
    /// because their answers may have arrived but not been read.
    pub(crate) const CATCH_UP: u32 = 1 << 12;

    /// Executes the requests of a queue whose doorbell the program has rung. A NIC does this within
    /// microseconds of the doorbell; here the thread may not have seen the doorbell when a command
    /// ends the queue.
    pub(crate) fn catch_up(&mut self, now: u64, qpn: Qpn) {
        Doorbell::Send(qpn).pass_to(&mut self.core, now);
        self.core.work(now, Self::CATCH_UP);
    }

    /// As [`catch_up`](Self::catch_up), for the queues that complete to a CQ.
    pub(crate) fn catch_up_cq(&mut self, now: u64, cqn: Cqn) {
        self.core.qps_of(cqn).into_iter().for_each(|qpn| self.catch_up(now, qpn));
    }
}

/// The device's thread is not in this process: the process was forked from the one that created it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the software device runs in process {0} and cannot be used in its children")]
pub struct Orphaned(pub u32);

/// A running device. Dropping it ends the thread.
pub struct Runtime {
    shared: Arc<Shared>,
    thread: Option<OsThread>,
    home: Home,
}

/// State that the device's thread and commands share.
struct Shared {
    /// Held during a whole look, and taken before all other locks. Commands do not take it.
    worker: Mutex<Worker>,
    standby: Standby,
    scheduler: Scheduler,
    work: Work,
    machine: Mutex<Machine>,
    wire: Mutex<Box<dyn Wire>>,
    /// Packets that the core has sent and the wire has not. Filled with the machine locked, so that
    /// a command finds in it everything that was sent before the command. Emptied with the wire
    /// locked, so that packets stay in order.
    outbox: Mutex<Vec<Packet>>,
    /// Whether a thread has taken packets out of the outbox and is sending them. That thread has
    /// the wire locked. Set with the outbox locked.
    sending: AtomicBool,
    host: Arc<dyn Host>,
    waker: Arc<Waker>,
    /// Set when a thread that may have rung any doorbell begins to wait. Then the thread that runs
    /// the device checks all doorbells again before it sleeps, even those that it has checked since
    /// its last sleep.
    sweeps_anew: AtomicBool,
    /// How many callers wait for one of the locks. Without this count the device thread, which
    /// locks again right after unlocking, would get the lock first.
    waiting: AtomicUsize,
    /// How many packets waited for space at their receivers at the end of the last look.
    unsent: AtomicUsize,
    stop: AtomicBool,
}

impl Runtime {
    /// A device without a thread: it runs only in threads that call [`Runtime::progress`]. The wire
    /// wakes the device by `waker`.
    pub fn new(core: Core, wire: Box<dyn Wire>, waker: Arc<Waker>, host: Arc<dyn Host>) -> Self {
        let shared = Arc::new(Shared {
            worker: Mutex::new(Worker::new()),
            standby: Standby::default(),
            scheduler: Scheduler::default(),
            work: Work::default(),
            machine: Mutex::new(Machine { core, uars: Uars::default() }),
            wire: Mutex::new(wire),
            outbox: Mutex::default(),
            sending: AtomicBool::new(false),
            host,
            waker,
            sweeps_anew: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            unsent: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        });
        at_exit::register(&shared);
        Self { shared, thread: None, home: Home::new() }
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// `EAGAIN` if no thread can be created.
    pub fn start(mut self, name: &str) -> io::Result<Self> {
        self.thread = Some(thread::spawn(name, self.shared.clone())?);
        Ok(self)
    }

    /// Does one look in the calling thread: checks doorbells, wire and clock, and does the work
    /// that is due. While programs keep calling this, the device's thread stands by.
    ///
    /// Returns whether it did any work. If not, the caller should let other threads run: there was
    /// no work, another thread does a look, a command waits, or this is a forked child.
    pub fn progress(&self) -> bool {
        if !self.is_here() {
            return false;
        }
        let look = catch_unwind(AssertUnwindSafe(|| self.shared.progress()));
        look.unwrap_or_else(|_| {
            self.shared.fail();
            false
        })
    }

    /// Runs a command on the device, then passes on the events that it caused.
    ///
    /// # Errors
    /// [`Orphaned`] in a forked child; the command has not run.
    pub fn control<R>(&self, command: impl FnOnce(&mut Machine) -> R) -> Result<R, Orphaned> {
        self.check_process()?;
        let mut machine = self.shared.queue_for(&self.shared.machine);
        let result = command(&mut machine);
        self.shared.pass_events(&mut machine);
        self.shared.collect(&mut machine);
        // The command may have completed requests.
        self.shared.work.note();
        drop(machine);
        self.shared.send_before_return();
        // There may be new queues, timers and packets to send.
        self.shared.waker.wake();
        Ok(result)
    }

    /// Begins to receive a multicast group from the wire.
    ///
    /// # Errors
    /// As [`Wire::join`]; `ENODEV` in a forked child.
    pub fn join(&self, group: Gid) -> io::Result<()> {
        self.with_wire(|wire| wire.join(group))?
    }

    /// Undoes one [`Runtime::join`].
    ///
    /// # Errors
    /// `ENODEV` in a forked child.
    pub fn leave(&self, group: Gid) -> io::Result<()> {
        self.with_wire(|wire| wire.leave(group))
    }

    fn with_wire<R>(&self, command: impl FnOnce(&mut dyn Wire) -> R) -> io::Result<R> {
        self.check_process().map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?;
        let mut wire = self.shared.queue_for(&self.shared.wire);
        Ok(command(&mut **wire))
    }

    /// Whether this is the process that created it.
    pub fn is_here(&self) -> bool {
        self.home.is_here()
    }

    fn check_process(&self) -> Result<(), Orphaned> {
        if self.is_here() { Ok(()) } else { Err(Orphaned(self.home.process())) }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if !self.is_here() {
            // There is no thread to wait for.
            return;
        }
        let look = || _ = self.progress();
        at_exit::hand_over(&self.shared, Instant::now() + at_exit::LONGEST, look);
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.waker.wake();
        self.shared.standby.end();
        self.thread.take().into_iter().for_each(OsThread::join);
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("process", &self.home.process()).finish_non_exhaustive()
    }
}

impl Shared {
    /// Locks for a command. The device thread sees that a command waits and leaves the lock to it.
    fn queue_for<'a, T: ?Sized>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        // The device's thread may sleep with the wire locked.
        self.waker.wake();
        let guard = lock(mutex);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        guard
    }

    /// A look in a program's thread. Returns whether it did any work.
    fn progress(&self) -> bool {
        let worker = self.worker.try_lock();
        let now = clock::now();
        self.standby.note(now);
        let Ok(mut worker) = worker else {
            // The device's thread may sleep with the worker locked.
            self.waker.wake();
            return false;
        };
        !self.is_wanted() && worker.look(self, now, Whose::Polling).did_work
    }

    /// Reports a fatal error after a look has panicked. The worker's lock is poisoned, so there are
    /// no more looks.
    fn fail(&self) {
        let object = EventObject::Device;
        self.host.event(Event::Async { kind: AsyncKind::DeviceFatal, object });
    }

    /// Moves the outbox into `packets`, which are empty; returns whether there were any. The caller
    /// has the wire locked, and calls [`Shared::has_sent`] once it has sent them.
    fn take_outbox(&self, packets: &mut Vec<Packet>) -> bool {
        let mut outbox = lock(&self.outbox);
        mem::swap(&mut *outbox, packets);
        self.sending.store(!packets.is_empty(), Ordering::SeqCst);
        !packets.is_empty()
    }

    /// Records that the packets taken out of the outbox are on the wire.
    fn has_sent(&self, wire: &dyn Wire) {
        let waiting = wire.waiting();
        // The load keeps the cache line shared while nothing waits.
        if self.unsent.load(Ordering::Relaxed) != waiting {
            self.unsent.store(waiting, Ordering::Relaxed);
        }
        // Last, so that a thread that sees `sending` cleared also sees the number of packets that
        // wait.
        self.sending.store(false, Ordering::SeqCst);
    }

    /// Whether packets of the core may not be on the wire yet.
    fn has_unsent(&self) -> bool {
        let outbox = lock(&self.outbox);
        !outbox.is_empty() || self.sending.load(Ordering::SeqCst)
    }

    /// Moves packets that the core has sent during a command to the outbox.
    fn collect(&self, machine: &mut Machine) {
        let mut outbox = lock(&self.outbox);
        outbox.extend(std::iter::from_fn(|| machine.core.take_packet()));
    }

    /// Sends the packets in the outbox, or waits for the look that is sending them. A program may
    /// destroy its QP and exit right after its last message arrived, which also ends the device's
    /// thread. By then the acknowledgement must have left, as it would with a NIC (`ibv_rc_pingpong
    /// -e` ends like this).
    fn send_before_return(&self) {
        if self.has_unsent() {
            let (mut wire, mut packets) = (self.queue_for(&self.wire), Vec::new());
            if self.take_outbox(&mut packets) {
                wire.send(clock::now(), &mut packets, &mut PacketPool::default());
            }
            self.has_sent(&**wire);
        }
    }

    /// Makes the thread that runs the device check all doorbells before it sleeps, and wakes it.
    fn sweep_anew(&self) {
        self.sweeps_anew.store(true, Ordering::Release);
        // Wakes that thread, in case its last look did not see the flag.
        self.waker.wake();
    }

    /// Whether this look starts to check all doorbells.
    fn takes_sweep(&self) -> bool {
        // The load keeps the cache line shared while nothing happens.
        self.sweeps_anew.load(Ordering::Relaxed) && self.sweeps_anew.swap(false, Ordering::Acquire)
    }

    /// Whether a command waits for a lock, or the thread must end.
    fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) != 0 || self.stop.load(Ordering::SeqCst)
    }

    /// Passes on events and management datagrams; whether there were any.
    fn pass_events(&self, machine: &mut Machine) -> bool {
        let mut any = false;
        while let Some(event) = machine.core.take_event() {
            self.host.event(event);
            any = true;
        }
        while let Some(datagram) = machine.core.take_datagram() {
            for answer in self.host.datagram(datagram) {
                machine.core.send_datagram(answer.addressing, &answer.bytes);
            }
            any = true;
        }
        any
    }
}

#[cfg(test)]
mod tests;
