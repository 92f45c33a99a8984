//! Asynchronous events: what happens to objects, ports and the device outside of any work request.
//!
//! [`Context::get_event`](crate::Context::get_event) takes one event out of the context's queue as an [`AsyncEvent`], a guard
//! that acknowledges when it is dropped. Destroying an object waits until every event got for it has been
//! acknowledged; `try_destroy` and `destroy_within` give up instead and hand the object back, and a thread
//! that holds such an event itself is told so rather than left waiting for itself. Events that nobody has
//! got when their object is destroyed vanish with it.
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

mod end;
mod file;
mod gate;

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;

use uverbs_mlx5::queue_state::QpState;
pub use uverbs_uapi::enums::EventType;
use uverbs_uapi::event::AsyncEventDesc;
use uverbs_uapi::objects::async_event::alloc;
use zerocopy::FromBytes;

use crate::command::{Commands, Removal};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use end::End;
pub(crate) use file::EventFile;
pub use gate::ObjectId;
pub(crate) use gate::{Behind, Gate, Holder, Wait, destroy_when_idle};

const OPEN: &str = "open_device";
const GET: &str = "get_async_event";
const RECORD: usize = size_of::<AsyncEventDesc>();

/// The file of asynchronous events of a context.
#[derive(Debug)]
pub(crate) struct AsyncEvents {
    file: EventFile,
    end: End,
}

impl AsyncEvents {
    /// The file that opening the device has opened along with it.
    ///
    /// # Safety
    /// `fd` is open and nobody else owns it.
    pub(crate) unsafe fn adopt(fd: i32) -> Result<Self> {
        // SAFETY: the caller's promise.
        let file = unsafe { EventFile::adopt(OPEN, fd) }?;
        let end = End::new(OPEN, file.as_fd())?;
        Ok(Self { file, end })
    }

    pub(crate) fn open(commands: &Commands) -> Result<Self> {
        let mut request = commands.request::<alloc::Call>();
        request.new_fd(alloc::HANDLE);
        commands.send(OPEN, &mut request)?;
        let fd = request.opened(alloc::HANDLE).unwrap_or(-1);
        // SAFETY: the kernel has just opened this descriptor for us.
        unsafe { Self::adopt(fd) }
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.file.gate
    }

    fn try_take(&self) -> Result<[u8; RECORD]> {
        let next = |is_registered: &dyn Fn(ObjectId) -> bool| {
            let is_known = |record: &_| whose(record).is_none_or(is_registered);
            self.end.next(GET, is_known, || self.file.read(GET))
        };
        self.file.gate.take(GET, next, whose, learn)
    }

    fn take(&self) -> Result<[u8; RECORD]> {
        loop {
            match self.try_take() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    file::wait(GET, self.end.as_fd())?;
                }
                result => return result,
            }
        }
    }
}

impl Removal for AsyncEvents {
    fn device_is_gone(&self) -> bool {
        self.end.device_is_gone(|| self.file.read(GET))
    }
}

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventSource {
    /// The completion queue with this id.
    CompletionQueue(ObjectId),
    /// The queue pair with this id.
    QueuePair(ObjectId),
    /// The shared receive queue with this id.
    SharedReceiveQueue(ObjectId),
    /// The work queue with this id.
    WorkQueue(ObjectId),
    /// A port, from 1.
    Port(u8),
    /// The device as a whole.
    Device,
}

impl EventSource {
    /// Source of an event: the kernel's `element` is the object's user handle or the port number.
    fn new(kind: EventType, element: u64) -> Self {
        let id = ObjectId(element);
        match kind {
            EventType::CQ_ERR => Self::CompletionQueue(id),
            EventType::QP_FATAL
            | EventType::QP_REQ_ERR
            | EventType::QP_ACCESS_ERR
            | EventType::COMM_EST
            | EventType::SQ_DRAINED
            | EventType::PATH_MIG
            | EventType::PATH_MIG_ERR
            | EventType::QP_LAST_WQE_REACHED => Self::QueuePair(id),
            EventType::SRQ_ERR | EventType::SRQ_LIMIT_REACHED => Self::SharedReceiveQueue(id),
            EventType::WQ_FATAL => Self::WorkQueue(id),
            EventType::DEVICE_FATAL => Self::Device,
            _ => Self::Port(element as u8),
        }
    }

    fn object(self) -> Option<ObjectId> {
        match self {
            Self::CompletionQueue(id)
            | Self::QueuePair(id)
            | Self::SharedReceiveQueue(id)
            | Self::WorkQueue(id) => Some(id),
            Self::Port(_) | Self::Device => None,
        }
    }
}

/// An asynchronous event that has been got and not yet acknowledged; dropping it acknowledges.
///
/// It belongs to the thread that got it, so that destroying the object from that thread can be told to be
/// a deadlock. [`AsyncEvent::detach`] makes one that may move to another thread.
pub struct AsyncEvent {
    inner: DetachedEvent,
    not_send: PhantomData<*const ()>,
}

/// An [`AsyncEvent`] that may go to another thread. Whoever destroys its object waits for it.
pub struct DetachedEvent {
    context: Context,
    kind: EventType,
    source: EventSource,
    holder: Holder,
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

    /// Acknowledges; the same as dropping, by name.
    #[doc(alias = "ibv_ack_async_event")]
    pub fn acknowledge(self) {}

    /// The same event for another thread.
    pub fn detach(self) -> DetachedEvent {
        let mut event = self.inner;
        if let Some(id) = event.source.object() {
            event.context.inner().events.gate().detach(id, event.holder, 1);
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

    /// Acknowledges; the same as dropping, by name.
    #[doc(alias = "ibv_ack_async_event")]
    pub fn acknowledge(self) {}
}

impl Drop for DetachedEvent {
    fn drop(&mut self) {
        if let Some(id) = self.source.object() {
            self.context.inner().events.gate().acknowledge(id, self.holder, 1);
        }
    }
}

impl fmt::Debug for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl fmt::Debug for DetachedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncEvent({} of {:?})", self.kind, self.source)
    }
}

impl Context {
    /// Waits for one asynchronous event and takes it. Of several waiting threads exactly one gets it
    /// (ibv_get_async_event). It waits whatever the flags of [`Context::events_fd`] are.
    ///
    /// # Errors
    /// `Interrupted` by a signal; `DeviceGone` with EIO once the device is gone and its last event,
    /// [`EventType::DEVICE_FATAL`], was taken, by whichever thread. None is taken then. The kernel itself would have a
    /// reader wait for ever.
    #[doc(alias = "ibv_get_async_event")]
    pub fn get_event(&self) -> Result<AsyncEvent> {
        let record = self.inner().events.take()?;
        Ok(self.event(&record))
    }

    /// Takes one asynchronous event if there is one.
    ///
    /// # Errors
    /// As [`Context::get_event`], and `WouldBlock` where there is none.
    pub fn try_get_event(&self) -> Result<AsyncEvent> {
        let record = self.inner().events.try_take()?;
        Ok(self.event(&record))
    }

    /// The file of asynchronous events, for poll, epoll and the like: when it is readable,
    /// [`Context::try_get_event`] gives one, unless another thread was faster. It stays readable once the last
    /// event was taken. Not to be read itself.
    ///
    /// `O_NONBLOCK` on this descriptor changes nothing, unlike in ibv_get_async_event(3), whose example sets it:
    /// [`Context::get_event`] always waits, and [`Context::try_get_event`] never does. The example's loop is:
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
    ///     Err(error) if error.kind() == uverbs::ErrorKind::WouldBlock => {} // another thread was faster
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        self.inner().events.end.as_fd()
    }

    fn event(&self, record: &[u8; RECORD]) -> AsyncEvent {
        let (kind, source) = decode(record);
        if kind == EventType::DEVICE_FATAL {
            self.inner().events.gate().for_each(device_is_gone);
            self.inner().events.end.reach();
        }
        let holder = Some(thread::current().id());
        let inner = DetachedEvent { context: self.clone(), kind, source, holder };
        AsyncEvent { inner, not_send: PhantomData }
    }
}

/// What posting and polling have to know of an event.
fn learn(record: &[u8; RECORD], behind: &Behind) {
    match (decode(record).0, behind) {
        (
            EventType::QP_FATAL | EventType::QP_REQ_ERR | EventType::QP_ACCESS_ERR,
            Behind::Queue(queue),
        ) => queue.set_state(QpState::Err),
        (EventType::CQ_ERR, Behind::Poller(poller)) => poller.set_overrun(),
        (EventType::SRQ_ERR, Behind::Shared(srq)) => srq.fail_shared_receives(),
        _ => {}
    }
}

fn device_is_gone(behind: &Behind) {
    match behind {
        Behind::Poller(poller) => poller.set_device_removed(),
        Behind::Queue(queue) => queue.set_state(QpState::Err),
        Behind::Nothing | Behind::Count(_) | Behind::Shared(_) => {}
    }
}

fn decode(record: &[u8; RECORD]) -> (EventType, EventSource) {
    let event = AsyncEventDesc::read_from_bytes(record).unwrap_or_default();
    (event.event_type, EventSource::new(event.event_type, event.element))
}

fn is_device_fatal(record: &[u8; RECORD]) -> bool {
    decode(record).0 == EventType::DEVICE_FATAL
}

fn whose(record: &[u8; RECORD]) -> Option<ObjectId> {
    decode(record).1.object()
}

/// Logs a destroy that failed inside a `Drop`, where nobody can be told otherwise.
pub(crate) fn log_failed_drop(what: &str, error: &Error) {
    if error.kind() != ErrorKind::ForkedChild {
        tracing::warn!(what, %error, "not destroyed; it stays until the device is closed");
    }
}
