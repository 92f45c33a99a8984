//! The threads that hold events of each object, so that destroying the object can wait for them.
//!
//! The verbs require that destroying an object waits until every event taken for it has been
//! acknowledged. Events of threads that have ended are not waited for. libibverbs destroys first
//! and then waits for a count. Here the wait comes first, and the destruction runs with the
//! registry locked, so that a wait with a time limit can give up without changing the object.
//! Events are read under the same lock, so no event can be read and not yet counted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError, Weak};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use uverbs_mlx5::completion_queue::CqMonitor;
use uverbs_mlx5::user_index::QueueHandle;

use crate::error::{Error, ErrorKind, Result};
use crate::host::fork::{self, Lock};

/// How long a destruction may wait for acknowledgements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    Forever,
    AtMost(Duration),
    Never,
}

/// The number that this process gives an object. The kernel returns it with the object's events. It
/// is never reused, so a late event matches no other object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ObjectId(pub(crate) u64);

impl ObjectId {
    pub(crate) fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// The thread that holds an event: the thread that took it; `None` for a detached event.
pub(crate) type Holder = Option<ThreadId>;

#[derive(Debug, Default)]
struct Target {
    name: String,
    held: Vec<Held>,
    observer: Observer,
}

/// The events of one object that a thread holds.
#[derive(Debug)]
struct Held {
    holder: Holder,
    count: u32,
    /// Dead once the thread has ended; `None` for detached events.
    thread: Option<Weak<()>>,
}

thread_local! {
    /// Lives as long as the thread.
    static ALIVE: Arc<()> = Arc::default();
}

/// Interval at which a thread that waits for acknowledgements checks whether the holders have
/// ended.
const LOOK: Duration = Duration::from_millis(100);

/// The part of this library to which an object's events are applied before the program gets them.
#[derive(Debug, Clone, Default)]
pub(crate) enum Observer {
    #[default]
    Nothing,
    /// A queue pair's shared block: the device may move it to an error state.
    Queue(QueueHandle),
    /// A completion queue's poller: it may have lost completions.
    Poller(CqMonitor),
    /// The number of completion events taken, which arming has to write.
    Count(Arc<AtomicU32>),
    /// A shared receive queue, which may fail permanently.
    Shared(QueueHandle),
}

impl Target {
    fn outstanding(&self) -> u32 {
        self.held.iter().map(|held| held.count).sum()
    }

    /// A vector, because few threads hold events of one object at a time.
    fn held_by(&self, holder: Holder) -> Option<usize> {
        self.held.iter().position(|held| held.holder == holder)
    }

    fn add(&mut self, holder: Holder, count: u32) {
        match self.held_by(holder) {
            Some(at) => self.held[at].count += count,
            None => {
                let thread = holder.and_then(|_| ALIVE.try_with(Arc::downgrade).ok());
                self.held.push(Held { holder, count, thread });
            }
        }
    }

    fn remove(&mut self, holder: Holder, count: u32) {
        let Some(at) = self.held_by(holder) else { return };
        self.held[at].count = self.held[at].count.saturating_sub(count);
        if self.held[at].count == 0 {
            self.held.swap_remove(at);
        }
    }

    /// Events stay with their thread unless they are detached, so those of a thread that has ended
    /// can never be acknowledged.
    fn forget_leaked(&mut self) {
        let has_ended = |thread: &Weak<()>| thread.strong_count() == 0;
        self.held.retain(|held| !held.thread.as_ref().is_some_and(has_ended));
    }
}

#[derive(Debug, Default)]
struct State {
    targets: BTreeMap<u64, Target>,
    /// Number of threads that wait for acknowledgements.
    waiting: usize,
}

/// The objects of one event file, and their unacknowledged events.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    state: Lock<State>,
    changed: Condvar,
}

impl Registry {
    /// `None` in a forked child if the registry is locked.
    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        self.state.lock()
    }

    /// Refuses forked children: they share the file of events with the parent, and the threads that
    /// hold events exist only in the parent.
    pub(crate) fn require_opener(&self, verb: &'static str) -> Result<()> {
        if self.state.is_inherited() { Err(fork::forked(verb)) } else { Ok(()) }
    }

    fn with(&self, id: ObjectId, change: impl FnOnce(&mut Target)) {
        if let Some(target) = self.lock().as_mut().and_then(|state| state.targets.get_mut(&id.0)) {
            change(target);
        }
    }

    /// Registers an object, before it is created.
    pub(crate) fn register(&self, id: ObjectId, observer: Observer) {
        let target = Target { observer, ..Target::default() };
        if let Some(mut state) = self.lock() {
            state.targets.insert(id.0, target);
        }
    }

    /// Sets the object's name for messages, when its number is known.
    pub(crate) fn set_name(&self, id: ObjectId, name: String) {
        self.with(id, |target| target.name = name);
    }

    /// Replaces the observer of an object's events.
    pub(crate) fn set_observer(&self, id: ObjectId, observer: Observer) {
        self.with(id, |target| target.observer = observer);
    }

    /// Removes an object without waiting: it was never created, or the kernel did not destroy it.
    pub(crate) fn unregister(&self, id: ObjectId) {
        if let Some(mut state) = self.lock() {
            state.targets.remove(&id.0);
        }
    }

    /// With the registry locked, reads one record by `read`, counts it for the object that `whose`
    /// returns, and calls `learn` with that object's observer. `read` can check whether an object
    /// is registered.
    pub(crate) fn take<R>(
        &self,
        verb: &'static str,
        read: impl FnOnce(&dyn Fn(ObjectId) -> bool) -> Result<R>,
        whose: impl FnOnce(&R) -> Option<ObjectId>,
        learn: impl FnOnce(&R, &Observer),
    ) -> Result<R> {
        self.require_opener(verb)?;
        let mut state = self.lock().ok_or_else(|| fork::forked(verb))?;
        let record = read(&|id| state.targets.contains_key(&id.0))?;
        let target = whose(&record).and_then(|id| state.targets.get_mut(&id.0));
        if let Some(target) = target {
            target.add(Some(thread::current().id()), 1);
            learn(&record, &target.observer);
        }
        Ok(record)
    }

    /// Runs `look` with the registry locked. `look` can find the observers of objects.
    ///
    /// Does nothing in a forked child, or if another thread has the lock.
    pub(crate) fn try_look(&self, look: impl FnOnce(&dyn Fn(ObjectId) -> Option<Observer>)) {
        if self.state.is_inherited() {
            return;
        }
        if let Some(state) = self.state.try_lock() {
            look(&|id| state.targets.get(&id.0).map(|target| target.observer.clone()));
        }
    }

    /// Calls `learn` with the observer of every object.
    pub(crate) fn for_each(&self, mut learn: impl FnMut(&Observer)) {
        if let Some(state) = self.lock() {
            state.targets.values().for_each(|target| learn(&target.observer));
        }
    }

    /// Acknowledges `count` events held by `holder`.
    pub(crate) fn acknowledge(&self, id: ObjectId, holder: Holder, count: u32) {
        let Some(mut state) = self.lock() else { return };
        let Some(target) = state.targets.get_mut(&id.0) else { return };
        target.remove(holder, count);
        // A notification makes a system call even if no thread waits.
        if target.held.is_empty() && state.waiting > 0 {
            self.changed.notify_all();
        }
    }

    /// Detaches `count` events from `holder`, so that they may move to another thread.
    pub(crate) fn detach(&self, id: ObjectId, holder: Holder, count: u32) {
        self.with(id, |target| {
            target.remove(holder, count);
            target.add(None, count);
        });
    }

    fn wait_until_idle(&self, id: ObjectId, verb: &'static str, until: Until) -> Result<()> {
        let mut state = self.lock().ok_or_else(|| fork::forked(verb))?;
        while let Some(target) = state.targets.get_mut(&id.0) {
            target.forget_leaked();
            if target.outstanding() == 0 {
                break;
            }
            if target.held_by(Some(thread::current().id())).is_some() {
                return Err(held_by_caller(verb, target));
            }
            let left = until.left().ok_or_else(|| still_held(verb, target, until))?;
            state.waiting += 1;
            let waited = self.changed.wait_timeout(state, left.min(LOOK));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state.waiting -= 1;
        }
        Ok(())
    }
}

#[cfg(test)]
impl Registry {
    /// Keeps all other threads waiting.
    pub(crate) fn hold(&self) -> impl Sized + '_ {
        self.lock()
    }
}

#[derive(Debug, Clone, Copy)]
enum Until {
    Forever,
    At(Instant),
    Now,
}

impl Until {
    fn from(wait: Wait) -> Self {
        match wait {
            Wait::Forever => Self::Forever,
            Wait::AtMost(bound) => {
                Instant::now().checked_add(bound).map_or(Self::Forever, Self::At)
            }
            Wait::Never => Self::Now,
        }
    }

    fn left(self) -> Option<Duration> {
        match self {
            Self::Forever => Some(Duration::from_secs(3600)),
            Self::At(end) => {
                let left = end.saturating_duration_since(Instant::now());
                (!left.is_zero()).then_some(left)
            }
            Self::Now => None,
        }
    }
}

fn held_by_caller(verb: &'static str, target: &Target) -> Error {
    let cause = format!(
        "this thread itself holds {} unacknowledged event(s) of {}; waiting for them would never end",
        target.held_by(Some(thread::current().id())).map_or(0, |at| target.held[at].count),
        target.name
    );
    Error::new(verb, ErrorKind::Deadlock, cause).cure_with("drop the event first")
}

fn still_held(verb: &'static str, target: &Target, until: Until) -> Error {
    let kind = if matches!(until, Until::Now) { ErrorKind::Busy } else { ErrorKind::TimedOut };
    let cause = format!(
        "{} event(s) of {} have been got and not acknowledged",
        target.outstanding(),
        target.name
    );
    Error::new(verb, kind, cause).cure_with("drop the events that other threads hold")
}

/// Waits until no event of the object is held in any of `registries`, then runs `destroy` with all
/// of them locked, and removes the object. On failure nothing is removed.
///
/// The registries are locked in the order given, so every caller gives a completion channel's
/// before the context's.
pub(super) fn destroy_when_idle<R>(
    registries: &[Arc<Registry>],
    id: ObjectId,
    verb: &'static str,
    wait: Wait,
    destroy: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let until = Until::from(wait);
    loop {
        for registry in registries {
            registry.require_opener(verb)?;
            registry.wait_until_idle(id, verb, until)?;
        }
        let mut locked: Vec<_> = registries.iter().filter_map(|registry| registry.lock()).collect();
        let mut targets = locked.iter().filter_map(|state| state.targets.get(&id.0));
        if targets.any(|target| target.outstanding() > 0) {
            continue;
        }
        let result = destroy()?;
        for state in &mut locked {
            state.targets.remove(&id.0);
        }
        return Ok(result);
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "tests fork")]
mod tests;
