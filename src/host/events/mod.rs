//! Files of events, and the record of unacknowledged events per object.

mod end;
mod file;
mod registered;
mod registry;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use uverbs_mlx5::queue_state::QpState;
use uverbs_uapi::enums::EventType;
use uverbs_uapi::event::AsyncEventDesc;
use uverbs_uapi::objects::async_event::alloc;
use zerocopy::FromBytes;

use super::command::{Commands, Removal};
use super::system;
use crate::error::{Error, ErrorKind, Result};
use end::End;
pub(crate) use file::{EventFile, ended};
pub(crate) use registered::Registered;
pub use registry::ObjectId;
pub(crate) use registry::{Holder, Observer, Registry, Wait};

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
    /// Takes the file that was opened together with the device.
    pub(crate) fn new(fd: OwnedFd) -> Result<Self> {
        let file = EventFile::new(OPEN, fd)?;
        let end = End::new(OPEN, file.as_fd())?;
        Ok(Self { file, end })
    }

    pub(crate) fn open(commands: &Commands) -> Result<Self> {
        let mut request = commands.request::<alloc::Call>();
        request.new_fd(alloc::HANDLE);
        commands.send(OPEN, &mut request)?;
        Self::new(system::opened(OPEN, request, alloc::HANDLE)?)
    }

    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.file.registry
    }

    /// Takes one event if there is one.
    pub(crate) fn try_take(&self) -> Result<(EventType, EventSource)> {
        Ok(self.taken(&self.try_take_record()?))
    }

    /// Takes one event, waiting for one.
    pub(crate) fn take(&self) -> Result<(EventType, EventSource)> {
        Ok(self.taken(&self.take_record()?))
    }

    /// Reads the events that are there, applies them to posting and polling, and keeps them for the
    /// program. Does not wait for events, nor for another thread that is taking one.
    pub(crate) fn look(&self) {
        let mut is_fatal = false;
        self.registry().try_look(|observer| {
            self.end.keep_events(
                || self.file.read(GET),
                |record| {
                    is_fatal |= decode(record).0 == EventType::DEVICE_FATAL;
                    if let Some(observer) = whose(record).and_then(observer) {
                        learn(record, &observer);
                    }
                },
            );
        });
        if is_fatal {
            self.registry().for_each(device_is_gone);
        }
    }

    fn taken(&self, record: &[u8; RECORD]) -> (EventType, EventSource) {
        let (kind, source) = decode(record);
        if kind == EventType::DEVICE_FATAL {
            self.registry().for_each(device_is_gone);
            self.end.reach();
        }
        (kind, source)
    }

    fn try_take_record(&self) -> Result<[u8; RECORD]> {
        let next = |is_registered: &dyn Fn(ObjectId) -> bool| {
            let is_known = |record: &_| whose(record).is_none_or(is_registered);
            self.end.next(GET, is_known, || self.file.read(GET))
        };
        self.file.registry.take(GET, next, whose, learn)
    }

    fn take_record(&self) -> Result<[u8; RECORD]> {
        loop {
            match self.try_take_record() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    file::wait(GET, self.end.as_fd())?;
                }
                result => return result,
            }
        }
    }
}

/// Readable when there is an event, and after the last event of a removed device was taken.
impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}

impl Removal for AsyncEvents {
    fn device_is_gone(&self) -> bool {
        self.end.device_is_gone(|| self.file.read(GET))
    }
}

/// The object or port that an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
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
    /// The source of an event. The kernel's `element` is the object's user handle or the port
    /// number.
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

    pub(crate) fn object(self) -> Option<ObjectId> {
        match self {
            Self::CompletionQueue(id)
            | Self::QueuePair(id)
            | Self::SharedReceiveQueue(id)
            | Self::WorkQueue(id) => Some(id),
            Self::Port(_) | Self::Device => None,
        }
    }
}

/// Applies an event to the queue or poller that it concerns.
fn learn(record: &[u8; RECORD], observer: &Observer) {
    match (decode(record).0, observer) {
        (
            EventType::QP_FATAL
            | EventType::QP_REQ_ERR
            | EventType::QP_ACCESS_ERR
            | EventType::WQ_FATAL,
            Observer::Queue(queue),
        ) => queue.set_state(QpState::Err),
        (EventType::CQ_ERR, Observer::Poller(poller)) => poller.set_overrun(),
        (EventType::SRQ_ERR, Observer::Shared(srq)) => srq.fail_shared_receives(),
        _ => {}
    }
}

fn device_is_gone(observer: &Observer) {
    match observer {
        Observer::Poller(poller) => poller.set_device_removed(),
        Observer::Queue(queue) => queue.set_state(QpState::Err),
        Observer::Nothing | Observer::Count(_) | Observer::Shared(_) => {}
    }
}

fn decode(record: &[u8; RECORD]) -> (EventType, EventSource) {
    let event = AsyncEventDesc::read_from_bytes(record).unwrap_or_default();
    (event.event_type, EventSource::new(event.event_type, event.element))
}

/// Whether this is the last event of a removed device, which has no port number
/// (`uverbs_async_event_destroy_uobj`, drivers/infiniband/core/uverbs_std_types_async_fd.c).
fn is_removal(record: &[u8; RECORD]) -> bool {
    let event = AsyncEventDesc::read_from_bytes(record).unwrap_or_default();
    event.event_type == EventType::DEVICE_FATAL && event.element == 0
}

fn whose(record: &[u8; RECORD]) -> Option<ObjectId> {
    decode(record).1.object()
}

/// Logs a destruction that failed inside a `Drop`, which cannot return the error.
pub(crate) fn log_failed_drop(what: &str, error: &Error) {
    if error.kind() != ErrorKind::ForkedChild {
        tracing::warn!(what, %error, "not destroyed; it stays until the device is closed");
    }
}
