//! The connection that both halves of a stream share, and how threads wait for it.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use uverbs::cm::{Channel, EventKind, Id};
use uverbs::{CompletionChannel, Context, ErrorKind, MemoryRegion, MemoryView};

use crate::config::Config;
use crate::core::{Attempt, Core};
use crate::handshake::Offer;
use crate::prepared::Prepared;
use crate::readiness::{Readiness, Side};
use crate::window::{Incoming, Outgoing};

/// A connection. Dropping the last half closes it.
#[derive(Debug)]
pub(crate) struct Shared {
    // Dropped first, which disconnects from the peer.
    #[allow(dead_code, reason = "held for its lifetime")]
    id: Id,
    manager: Channel,
    core: Mutex<Core>,
    process: u32,
    /// Notified when the sleeping thread has handled the device's events.
    looked: Condvar,
    completions: CompletionChannel,
    context: Context,
    ring: MemoryRegion,
    /// For programs that wait for the stream's file themselves.
    readiness: OnceLock<Readiness>,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) read_timeout: Timeout,
    pub(crate) write_timeout: Timeout,
    pub(crate) is_nonblocking: AtomicBool,
    spin: Duration,
    linger: AtomicU64,
    /// Until when a dropped stream waits for delivery of its data, set by the first wait; `None` is
    /// forever.
    delivery_deadline: OnceLock<Option<Instant>>,
}

/// A timeout that any thread may change, in nanoseconds; 0 means none.
#[derive(Debug, Default)]
pub(crate) struct Timeout(AtomicU64);

impl Timeout {
    pub(crate) fn set(&self, timeout: Option<Duration>) -> io::Result<()> {
        if timeout == Some(Duration::ZERO) {
            let cause = "a timeout of zero; use set_nonblocking to not wait at all";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, cause));
        }
        self.0.store(timeout.map_or(0, nanos), Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn get(&self) -> Option<Duration> {
        let nanos = self.0.load(Ordering::Relaxed);
        (nanos != 0).then(|| Duration::from_nanos(nanos))
    }
}

impl Shared {
    /// An established connection to a peer that offered its ring.
    pub(crate) fn new(
        (id, manager): (Id, Channel),
        prepared: Prepared,
        peer: &Offer,
        config: &Config,
    ) -> io::Result<Self> {
        let Prepared { qp, cq, completions, ring, buffers, offer } = prepared;
        let context = qp.context().clone();
        let (local, peer_address) = (id.local_address()?, id.peer_address()?);
        let core = Core::new((qp, cq, buffers), Incoming::new(&offer), Outgoing::new(peer));
        Ok(Self {
            id,
            manager,
            core: Mutex::new(core),
            process: std::process::id(),
            looked: Condvar::new(),
            completions,
            context,
            ring,
            readiness: OnceLock::new(),
            local: local.ok_or_else(no_ip)?,
            peer: peer_address.ok_or_else(no_ip)?,
            read_timeout: Timeout::default(),
            write_timeout: Timeout::default(),
            is_nonblocking: AtomicBool::new(false),
            spin: config.spin,
            linger: AtomicU64::new(nanos(config.linger)),
            delivery_deadline: OnceLock::new(),
        })
    }

    /// Ignores poisoning: a panic of another thread leaves the state usable.
    ///
    /// # Errors
    /// `PermissionDenied` in a forked child if a thread of the parent held the lock at the fork.
    pub(crate) fn lock(&self) -> io::Result<MutexGuard<'_, Core>> {
        match self.core.try_lock() {
            Ok(core) => Ok(core),
            Err(TryLockError::Poisoned(core)) => Ok(core.into_inner()),
            Err(TryLockError::WouldBlock) => self.wait_for_lock(),
        }
    }

    #[cold]
    fn wait_for_lock(&self) -> io::Result<MutexGuard<'_, Core>> {
        if std::process::id() != self.process {
            let cause = "this process is a forked child of the one that opened the stream";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, cause));
        }
        Ok(self.core.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn ring(&self) -> MemoryView<'_> {
        self.ring.view()
    }

    /// Tries until `attempt` succeeds, or until the side's timeout. A non-blocking stream does not
    /// wait.
    pub(crate) fn wait<T>(
        &self,
        side: Side,
        mut attempt: impl FnMut(&mut Core) -> Attempt<T>,
    ) -> io::Result<T> {
        if let Some(result) = self.try_once(side, &mut attempt)? {
            return Ok(result);
        }
        if self.is_nonblocking.load(Ordering::Relaxed) {
            return self.look_once(side, &mut attempt)?.ok_or_else(would_block);
        }
        let timeout = match side {
            Side::Read => self.read_timeout.get(),
            Side::Write => self.write_timeout.get(),
        };
        let start = Instant::now();
        let spin = timeout.map_or(self.spin, |timeout| timeout.min(self.spin));
        if let Some(result) = self.spin(start, spin, &mut attempt)? {
            return Ok(result);
        }
        let deadline = timeout.and_then(|timeout| start.checked_add(timeout));
        self.sleep(deadline, &mut attempt)
    }

    /// Tries once, without waiting or taking events.
    pub(crate) fn try_once<T>(
        &self,
        side: Side,
        attempt: &mut impl FnMut(&mut Core) -> Attempt<T>,
    ) -> Attempt<T> {
        let mut core = self.lock()?;
        core.waiting.tries(side, self.readiness.get());
        attempt(&mut core)
    }

    /// Takes all events, arms the completion queue, and tries once more.
    ///
    /// An event may concern the other side. Then the file of [`Shared::readiness`] stays readable
    /// for it although the event is taken.
    pub(crate) fn look_once<T>(
        &self,
        side: Side,
        attempt: &mut impl FnMut(&mut Core) -> Attempt<T>,
    ) -> Attempt<T> {
        self.look_at(side, self.readable(), attempt).1
    }

    /// As [`Shared::look_once`], if it is known which of the [`Shared::files`] may be readable.
    /// Also returns whether an event was taken.
    pub(crate) fn look_at<T>(
        &self,
        side: Side,
        readable: [bool; 2],
        attempt: &mut impl FnMut(&mut Core) -> Attempt<T>,
    ) -> (bool, Attempt<T>) {
        let mut core = match self.lock() {
            Ok(core) => core,
            Err(error) => return (false, Err(error)),
        };
        core.require_opener();
        core.waiting.tries(side, self.readiness.get());
        // If another thread sleeps for events, it takes them itself.
        let taken = !core.is_watched && self.take_events(&mut core, readable);
        if !core.is_watched {
            core.arm();
        }
        let result = attempt(&mut core);
        if matches!(result, Ok(None)) {
            core.waiting.waits(side);
        }
        if taken && core.may_go_on(side.other()) {
            core.waiting.tell(side.other(), self.readiness.get());
        }
        (taken, result)
    }

    fn spin<T>(
        &self,
        start: Instant,
        time: Duration,
        attempt: &mut impl FnMut(&mut Core) -> Attempt<T>,
    ) -> Attempt<T> {
        if !time.is_zero() {
            self.lock()?.require_opener();
        }
        while start.elapsed() < time {
            self.context.poll_idle();
            if let Some(result) = attempt(&mut *self.lock()?)? {
                return Ok(Some(result));
            }
        }
        Ok(None)
    }

    /// Sleeps between tries. One thread waits for the device's events, and wakes the others after
    /// it has taken one.
    fn sleep<T>(
        &self,
        deadline: Option<Instant>,
        attempt: &mut impl FnMut(&mut Core) -> Attempt<T>,
    ) -> io::Result<T> {
        let mut core = self.lock()?;
        core.require_opener();
        loop {
            if !core.is_watched {
                core.arm();
            }
            if let Some(result) = attempt(&mut core)? {
                return Ok(result);
            }
            let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(would_block());
            }
            core = match core.is_watched {
                true => self.follow(core, left),
                false => self.watch(core, left)?,
            };
        }
    }

    /// Sleeps until the thread that waits for the device's events has taken one.
    fn follow<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        left: Option<Duration>,
    ) -> MutexGuard<'a, Core> {
        core.followers += 1;
        let mut core = match left {
            None => self.looked.wait(core).unwrap_or_else(PoisonError::into_inner),
            Some(left) => {
                let waited = self.looked.wait_timeout(core, left);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        core.followers -= 1;
        core
    }

    /// Sleeps until the device or the connection manager has an event, and takes it.
    fn watch<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        left: Option<Duration>,
    ) -> io::Result<MutexGuard<'a, Core>> {
        core.is_watched = true;
        drop(core);
        let waited = self.completions.wait_event(&[self.manager.as_fd()], left);
        let mut core = self.lock()?;
        core.is_watched = false;
        // A notification is a system call even if no thread waits.
        if core.followers > 0 {
            self.looked.notify_all();
        }
        match waited {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            waited => {
                // An event of the connection manager is rarer, and is taken in the next call if
                // there are both.
                if waited? && !self.take_completion_event(&mut core) {
                    self.take_manager_event(&mut core);
                }
            }
        }
        Ok(core)
    }

    /// The files of the stream's events: of completions, and of the connection manager.
    pub(crate) fn files(&self) -> [BorrowedFd<'_>; 2] {
        [self.completions.as_fd(), self.manager.as_fd()]
    }

    /// Which of the files are readable.
    ///
    /// One system call checks both files, which usually have no event. Fetching an event from the
    /// connection manager takes longer, because it is a command.
    fn readable(&self) -> [bool; 2] {
        let mut files = self.files().map(|file| PollFd::new(file, PollFlags::POLLIN));
        // If a signal interrupted this, the files stay readable, and the caller's next try
        // succeeds.
        if poll(&mut files, PollTimeout::ZERO).unwrap_or(0) == 0 {
            return [false; 2];
        }
        files.map(|file| file.any().unwrap_or(true))
    }

    /// Takes the pending events of files that may be readable. Returns whether there were any.
    fn take_events(&self, core: &mut Core, [completion, manager]: [bool; 2]) -> bool {
        // There is at most one completion event, as the queue is armed again only after it is
        // taken.
        let mut taken = completion && self.take_completion_event(core);
        while manager && self.take_manager_event(core) {
            taken = true;
        }
        taken
    }

    fn take_completion_event(&self, core: &mut Core) -> bool {
        match self.completions.try_get_event() {
            Ok(event) => {
                event.acknowledge();
                core.disarmed();
                true
            }
            Err(error) => {
                if !is_quiet(&error) {
                    core.removed();
                }
                false
            }
        }
    }

    fn take_manager_event(&self, core: &mut Core) -> bool {
        match self.manager.try_next_event() {
            Ok(event) => {
                match event.kind {
                    EventKind::Disconnected(_) => core.disconnected(),
                    EventKind::DeviceRemoval => core.removed(),
                    _ => {}
                }
                true
            }
            Err(error) => {
                if !is_quiet(&error) {
                    core.removed();
                }
                false
            }
        }
    }

    /// A file that is readable when another try may succeed.
    pub(crate) fn readiness(&self) -> io::Result<BorrowedFd<'_>> {
        if self.readiness.get().is_none() {
            let made = Readiness::new(self.files())?;
            let mut core = self.lock()?;
            let _ = self.readiness.set(made);
            core.arm();
            // Completions from before the arming raise no event.
            if core.may_go_on(Side::Read) {
                core.waiting.waits(Side::Read);
                core.waiting.tell(Side::Read, self.readiness.get());
            }
        }
        self.readiness.get().map(AsFd::as_fd).ok_or_else(|| io::ErrorKind::Other.into())
    }

    pub(crate) fn shutdown(&self, how: Shutdown) {
        let Ok(mut core) = self.lock() else { return };
        if how != Shutdown::Read {
            core.finish();
            core.waiting.tries(Side::Write, self.readiness.get());
        }
        if how != Shutdown::Write {
            core.shut_read();
        }
    }

    fn linger(&self) -> Duration {
        Duration::from_nanos(self.linger.load(Ordering::Relaxed))
    }

    pub(crate) fn set_linger(&self, time: Duration) {
        self.linger.store(nanos(time), Ordering::Relaxed);
    }

    /// Ends the data of this side, unless dropping the stream aborts it.
    pub(crate) fn finish_unless_aborting(&self) {
        if !self.linger().is_zero() {
            let _ = self.lock().map(|mut core| core.finish());
        }
    }

    /// The linger time begins with the first call.
    pub(crate) fn delivery_deadline(&self) -> Option<Instant> {
        *self.delivery_deadline.get_or_init(|| Instant::now().checked_add(self.linger()))
    }

    /// Ends the data of this side and returns true, unless dropping the stream aborts the
    /// connection, or nothing more can be sent.
    fn ends_in_order(&self) -> bool {
        let Ok(mut core) = self.lock() else { return false };
        let ends = !self.linger().is_zero() && !core.is_over();
        if ends {
            core.finish();
        }
        ends
    }

    /// Whether [`Shared::wait_for_delivery`] would wait.
    #[cfg(feature = "tokio")]
    pub(crate) fn awaits_delivery(&self) -> bool {
        let is_late = || self.delivery_deadline().is_some_and(|at| Instant::now() >= at);
        self.ends_in_order()
            && !is_late()
            && matches!(self.lock().and_then(|mut core| core.finished()), Ok(None))
    }

    /// Ends the data of this side, and waits until the peer's device has all of it, unless dropping
    /// the stream aborts it.
    pub(crate) fn wait_for_delivery(&self) {
        if !self.ends_in_order() {
            return;
        }
        if let Err(error) = self.sleep(self.delivery_deadline(), &mut Core::finished) {
            tracing::debug!(%error, "the last bytes of a stream may be lost");
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.wait_for_delivery();
    }
}

/// Saturates at 584 years.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn is_quiet(error: &uverbs::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn would_block() -> io::Error {
    io::ErrorKind::WouldBlock.into()
}

fn no_ip() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the connection has no IP addresses")
}
