//! Events that a program got and has not acknowledged. The object of an event holds it.

use std::sync::Condvar;
use std::time::Duration;

use uverbs::completion_channel::DetachedCqEvent;
use uverbs::events::DetachedEvent;
use uverbs::{Error, ErrorKind};

use std::ffi::c_int;

use crate::lock::Shared;
use crate::result::failed;

/// Longest sleep of a waiting destroy before it checks again. An event that moves from one list to
/// another is in neither for a moment, so a wake-up can be missed.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// An event that can represent several events of the same object.
pub(crate) trait Counted: Sized {
    /// Adds another event of the same object.
    fn join(&mut self, other: Self);
    /// Acknowledges `count` of them. Returns whether any are left.
    fn acknowledge(&mut self, count: u32) -> bool;
}

macro_rules! counted {
    ($($type:ty),*) => {$(
        impl Counted for $type {
            fn join(&mut self, other: Self) {
                // This fails only for an event of another object. Dropping it acknowledges it.
                let _ = self.merge(other);
            }
            fn acknowledge(&mut self, count: u32) -> bool {
                self.acknowledge_some(count);
                self.count() > 0
            }
        }
    )*};
}

counted!(DetachedCqEvent, DetachedEvent);

/// The events of one object, as one event with a count.
#[derive(Debug)]
pub(crate) struct Held<E> {
    state: Shared<State<E>>,
    acknowledged: Condvar,
}

#[derive(Debug)]
struct State<E> {
    event: Option<E>,
    /// Threads that wait until all are acknowledged.
    waiting: usize,
}

impl<E> Default for Held<E> {
    fn default() -> Self {
        let state = Shared::new(State { event: None, waiting: 0 });
        Self { state, acknowledged: Condvar::new() }
    }
}

impl<E: Counted> Held<E> {
    /// Keeps an event until it is acknowledged.
    pub(crate) fn hold(&self, event: E) {
        let Some(mut state) = self.state.lock() else { return };
        match &mut state.event {
            Some(held) => held.join(event),
            None => state.event = Some(event),
        }
    }

    /// Acknowledges `count` events, or all if there are fewer.
    pub(crate) fn acknowledge(&self, count: u32) {
        let Some(mut state) = self.state.lock() else { return };
        if state.event.as_mut().is_some_and(|event| !event.acknowledge(count)) {
            state.event = None;
            // A notification is a system call, even if no thread waits.
            if state.waiting > 0 {
                self.acknowledged.notify_all();
            }
        }
    }

    /// Waits until all are acknowledged.
    pub(crate) fn wait(&self) {
        let Some(mut state) = self.state.lock() else { return };
        while state.event.is_some() {
            state.waiting += 1;
            let waited = self.acknowledged.wait_timeout(state, LOOK_AGAIN);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
            state.waiting -= 1;
        }
    }
}

/// Destroys an object in place as soon as all its events are acknowledged. Until then `attempt`
/// fails with `TimedOut`, and `wait` waits. Meanwhile the object stays usable, because another
/// thread may poll it between getting an event and acknowledging it.
pub(crate) fn destroy(mut attempt: impl FnMut() -> Result<(), Error>, wait: impl Fn()) -> c_int {
    loop {
        match attempt() {
            Ok(()) => return 0,
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                wait();
                std::thread::yield_now();
            }
            Err(error) => return failed(&error),
        }
    }
}

#[cfg(test)]
mod tests;
