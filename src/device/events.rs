//! Asynchronous events: changes of objects, ports and the device that no completion reports.
//!
//! [`Context::get_event`](crate::Context::get_event) takes one event from the context's queue as an
//! [`AsyncEvent`], a guard that acknowledges when it is dropped. Destroying an object waits until
//! every event taken for it has been acknowledged, or the thread that holds it has ended.
//! `try_destroy` does not wait, and `destroy_within` waits for a limited time; both then return the
//! object. If the calling thread itself holds such an event, destroying returns the error
//! `Deadlock`. Events that are still queued when their object is destroyed are dropped.
//!
//! An event stays with its thread unless it is detached:
//!
//! ```compile_fail,E0277
//! # use uverbs::events::AsyncEvent;
//! fn elsewhere(event: AsyncEvent) { std::thread::spawn(move || drop(event)); }
//! ```
//!
//! and it can be acknowledged only once:
//!
//! ```compile_fail,E0382
//! # use uverbs::events::AsyncEvent;
//! fn twice(event: AsyncEvent) { event.acknowledge(); event.acknowledge(); }
//! ```

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;

pub use uverbs_uapi::enums::EventType;

use super::context::Context;
use crate::error::Result;
use crate::host::events::Holder;
pub use crate::host::events::{EventSource, ObjectId};

/// An asynchronous event that has been taken and not yet acknowledged; dropping it acknowledges.
///
/// It belongs to the thread that took it, so that destroying the object there is recognised as a
/// deadlock. [`AsyncEvent::detach`] returns an event that may move to another thread.
#[doc(alias = "ibv_async_event")]
#[doc(alias = "ibv_event_type_str")]
pub struct AsyncEvent {
    inner: DetachedEvent,
    not_send: PhantomData<*const ()>,
}

/// An [`AsyncEvent`] that may move to another thread. Destroying its object waits for its
/// acknowledgement.
pub struct DetachedEvent {
    context: Context,
    kind: EventType,
    source: EventSource,
    holder: Holder,
    count: u32,
}

impl AsyncEvent {
    /// What happened.
    pub fn kind(&self) -> EventType {
        self.inner.kind
    }

    /// What it happened to.
    pub fn source(&self) -> EventSource {
        self.inner.source
    }

    /// Acknowledges, as dropping does.
    #[doc(alias = "ibv_ack_async_event")]
    pub fn acknowledge(self) {}

    /// Converts it to an event that may move to another thread.
    pub fn detach(self) -> DetachedEvent {
        let mut event = self.inner;
        if let Some(id) = event.source.object() {
            event.context.inner().events.registry().detach(id, event.holder, 1);
        }
        event.holder = None;
        event
    }
}

impl DetachedEvent {
    /// What happened.
    pub fn kind(&self) -> EventType {
        self.kind
    }

    /// What it happened to.
    pub fn source(&self) -> EventSource {
        self.source
    }

    /// Acknowledges, as dropping does.
    #[doc(alias = "ibv_ack_async_event")]
    pub fn acknowledge(self) {}

    /// How many events this one represents.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Joins another event of the same object. This value then represents both; its kind and source
    /// do not change.
    ///
    /// # Errors
    /// Returns `other` if it is of another object.
    pub fn merge(&mut self, mut other: Self) -> std::result::Result<(), Self> {
        let same_context = self.context.is_same(&other.context);
        if !same_context || self.source != other.source {
            return Err(other);
        }
        self.count += std::mem::take(&mut other.count);
        Ok(())
    }

    /// Acknowledges `count` of the events that it represents; all of them if there are fewer.
    pub fn acknowledge_some(&mut self, count: u32) {
        let count = count.min(self.count);
        self.count -= count;
        let Some(id) = self.source.object() else { return };
        if count > 0 {
            self.context.inner().events.registry().acknowledge(id, self.holder, count);
        }
    }
}

impl Drop for DetachedEvent {
    fn drop(&mut self) {
        self.acknowledge_some(self.count);
    }
}

impl fmt::Debug for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl fmt::Debug for DetachedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {:?}, {} times", self.kind, self.source, self.count)
    }
}

impl Context {
    /// Waits for one asynchronous event and takes it (ibv_get_async_event). If several threads
    /// wait, exactly one gets it. It waits even if [`Context::events_fd`] is non-blocking.
    ///
    /// # Errors
    /// `Interrupted` by a signal; `DeviceGone` (EIO) after the device was removed and a thread has
    /// taken its last event, [`EventType::DEVICE_FATAL`]. In C a reader then waits for ever.
    #[doc(alias = "ibv_get_async_event")]
    pub fn get_event(&self) -> Result<AsyncEvent> {
        self.inner().events.take().map(|event| self.event(event))
    }

    /// Takes one asynchronous event if there is one.
    ///
    /// # Errors
    /// As [`Context::get_event`], and `WouldBlock` if there is none.
    pub fn try_get_event(&self) -> Result<AsyncEvent> {
        self.inner().events.try_take().map(|event| self.event(event))
    }

    /// The file of asynchronous events, for poll(2) and epoll(7): when it is readable,
    /// [`Context::try_get_event`] returns an event, unless another thread took it first. After the
    /// last event of a removed device was taken it stays readable. Do not read from it.
    ///
    /// `O_NONBLOCK` on this descriptor changes nothing, unlike in ibv_get_async_event(3), whose
    /// example sets it: [`Context::get_event`] always waits, and [`Context::try_get_event`] never
    /// does. The example's loop is:
    ///
    /// ```no_run
    /// # use std::os::fd::AsFd;
    /// use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    /// let context = uverbs::open_default()?;
    /// let mut fds = [PollFd::new(context.events_fd(), PollFlags::POLLIN)];
    /// while poll(&mut fds, PollTimeout::from(100_u8))? == 0 {
    ///     // Nothing for 100 ms.
    /// }
    /// match context.try_get_event() {
    ///     Ok(event) => println!("{}", event.kind()),
    ///     // Another thread took it first.
    ///     Err(error) if error.kind() == uverbs::ErrorKind::WouldBlock => {}
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        self.inner().events.as_fd()
    }

    fn event(&self, (kind, source): (EventType, EventSource)) -> AsyncEvent {
        let holder = Some(thread::current().id());
        let inner = DetachedEvent { context: self.clone(), kind, source, holder, count: 1 };
        AsyncEvent { inner, not_send: PhantomData }
    }
}
