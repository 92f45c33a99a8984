//! Completion channels: waiting for completions instead of polling for them.
//!
//! # The race between arming and polling
//! A completion that arrives after the last poll and before arming raises no event. So arm first,
//! poll once more, and wait only if that poll found nothing:
//!
//! ```no_run
//! # use uverbs::{CompletionChannel, PollError, Result, raw::CompletionQueue};
//! fn wait(channel: &CompletionChannel, cq: &mut CompletionQueue) -> Result<()> {
//!     loop {
//!         cq.arm();
//!         match cq.poll() {
//!             Ok(_) => return Ok(()),
//!             Err(PollError::Empty) => channel.get_event()?.acknowledge(),
//!             Err(error) => return Err(error.into()),
//!         }
//!     }
//! }
//! ```

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use uverbs_uapi::event::CompEventDesc;
use uverbs_uapi::write::comp_channel::CreateCompChannel;
use zerocopy::FromBytes;

use crate::device::context::Context;
use crate::error::{Error, Result};
use crate::host::channel::readable;
use crate::host::events::{EventFile, Holder, ObjectId, Observer, Registry};

const GET: &str = "get_cq_event";
const RECORD: usize = size_of::<CompEventDesc>();

/// A file from which completion events of any number of completion queues are read.
///
/// Clones share one channel. Completion queues made with it keep it open.
/// [`crate::completion_channel`] shows how to wait without missing a completion.
#[derive(Clone)]
#[doc(alias = "ibv_comp_channel")]
#[doc(alias = "ibv_destroy_comp_channel")]
pub struct CompletionChannel {
    inner: Arc<Inner>,
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionChannel").finish_non_exhaustive()
    }
}

struct Inner {
    file: EventFile,
    context: Context,
}

impl Context {
    /// Opens a completion channel.
    ///
    /// # Errors
    /// Errors of the kernel; EMFILE if the process has no file descriptor left.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_completion_channel(&self) -> Result<CompletionChannel> {
        const VERB: &str = "create_comp_channel";
        let command = CreateCompChannel::default();
        let no_driver: (&[u8], &mut [u8]) = (&[], &mut []);
        let (_, fd) =
            self.commands().write_opening(VERB, &command, no_driver, |answer| answer.fd as i32)?;
        let mut file = EventFile::new(VERB, fd)?;
        file.handed = self.commands().channel().handed(file.as_fd());
        Ok(CompletionChannel { inner: Arc::new(Inner { file, context: self.clone() }) })
    }
}

impl CompletionChannel {
    /// Waits for one completion event and takes it. If several threads wait, exactly one gets it.
    ///
    /// # Errors
    /// `Interrupted` by a signal; `DeviceGone` (EIO) after the device was removed.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn get_event(&self) -> Result<CqEvent> {
        // A software device makes progress in the waiting thread, which saves a thread switch.
        let wait = |file: BorrowedFd<'_>| self.wait(&[file], None);
        let record = self.inner.file.take(GET, wait, |record| Some(whose(record)), count)?;
        Ok(self.event(&record))
    }

    /// Waits, for at most `timeout`, until [`try_get_event`](Self::try_get_event) may have an event
    /// or one of `others` is readable; returns false on a timeout. A software device makes progress
    /// in this thread meanwhile, and may pass it an event without making the channel's file
    /// readable: call `try_get_event` whenever this returns true.
    ///
    /// # Errors
    /// `Interrupted` by a signal; other errors of `poll(2)`.
    pub fn wait_event(&self, others: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Result<bool> {
        self.inner.file.registry.require_opener(GET)?;
        let files = [&[self.as_fd()], others].concat();
        self.wait(&files, timeout).map_err(|errno| Error::os(GET, errno))
    }

    fn wait(&self, files: &[BorrowedFd<'_>], timeout: Option<Duration>) -> nix::Result<bool> {
        match &self.inner.file.handed {
            Some(handed) => handed.wait(files, timeout),
            None => readable(files, timeout),
        }
    }

    /// Takes one completion event if there is one.
    ///
    /// # Errors
    /// As [`CompletionChannel::get_event`], and `WouldBlock` if there is none.
    pub fn try_get_event(&self) -> Result<CqEvent> {
        let record = self.inner.file.try_take(GET, |record| Some(whose(record)), count)?;
        Ok(self.event(&record))
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.inner.file.registry
    }

    fn event(&self, record: &[u8; RECORD]) -> CqEvent {
        let holder = Some(thread::current().id());
        let inner = DetachedCqEvent { channel: self.clone(), cq: whose(record), holder, count: 1 };
        CqEvent { inner, not_send: PhantomData }
    }
}

impl AsFd for CompletionChannel {
    /// For poll(2) and epoll(7): when it is readable, [`CompletionChannel::try_get_event`] returns
    /// an event, unless another thread took it first.
    ///
    /// `O_NONBLOCK` on it changes nothing, unlike in ibv_get_cq_event(3):
    /// [`CompletionChannel::get_event`] always waits, and [`CompletionChannel::try_get_event`]
    /// never does.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.file.as_fd()
    }
}

fn whose(record: &[u8; RECORD]) -> ObjectId {
    ObjectId(CompEventDesc::read_from_bytes(record).unwrap_or_default().cq_handle)
}

/// Arming writes the number of events taken so far, so the queue has to count them.
fn count(_: &[u8; RECORD], observer: &Observer) {
    if let Observer::Count(events) = observer {
        events.fetch_add(1, Ordering::Release);
    }
}

/// A completion event that has been taken and not yet acknowledged; dropping it acknowledges.
///
/// Destroying the completion queue waits for the acknowledgement. The event belongs to the thread
/// that took it, so that a thread that would wait for itself gets `Deadlock`; [`CqEvent::detach`]
/// releases it for other threads.
pub struct CqEvent {
    inner: DetachedCqEvent,
    not_send: PhantomData<*const ()>,
}

/// A [`CqEvent`] that may move to another thread. If it is leaked, destroying its completion queue
/// waits for ever.
pub struct DetachedCqEvent {
    channel: CompletionChannel,
    cq: ObjectId,
    holder: Holder,
    count: u32,
}

impl CqEvent {
    /// The id of its completion queue: compare with [`CqHandle::id`](crate::CqHandle::id).
    pub fn cq(&self) -> ObjectId {
        self.inner.cq
    }

    /// How many events this one stands for.
    pub fn count(&self) -> u32 {
        self.inner.count
    }

    /// Joins another event of the same completion queue, so that both are acknowledged at once.
    ///
    /// # Errors
    /// Returns `other` if it is of another queue or was taken by another thread.
    pub fn merge(&mut self, other: CqEvent) -> std::result::Result<(), CqEvent> {
        if self.inner.holder != other.inner.holder {
            return Err(other);
        }
        let merged = self.inner.merge(other.inner);
        merged.map_err(|inner| CqEvent { inner, not_send: PhantomData })
    }

    /// Acknowledges; the same as dropping, by name.
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn acknowledge(self) {}

    /// Converts it to an event that may move to another thread.
    pub fn detach(self) -> DetachedCqEvent {
        let mut event = self.inner;
        event.channel.registry().detach(event.cq, event.holder, event.count);
        event.holder = None;
        event
    }
}

impl DetachedCqEvent {
    /// The id of its completion queue.
    pub fn cq(&self) -> ObjectId {
        self.cq
    }

    /// How many events this one stands for.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Joins another event of the same completion queue, so that this value stands for both.
    ///
    /// # Errors
    /// Returns `other` if it is of another queue.
    pub fn merge(&mut self, mut other: Self) -> std::result::Result<(), Self> {
        if !Arc::ptr_eq(&self.channel.inner, &other.channel.inner) || self.cq != other.cq {
            return Err(other);
        }
        // `other` then acknowledges nothing when it is dropped here.
        self.count += std::mem::take(&mut other.count);
        Ok(())
    }

    /// Acknowledges `count` of the events that it stands for; all of them if there are fewer.
    pub fn acknowledge_some(&mut self, count: u32) {
        let count = count.min(self.count);
        self.count -= count;
        if count > 0 {
            self.channel.registry().acknowledge(self.cq, self.holder, count);
        }
    }

    /// Acknowledges; the same as dropping, by name.
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn acknowledge(self) {}
}

impl Drop for DetachedCqEvent {
    fn drop(&mut self) {
        self.acknowledge_some(self.count);
    }
}

impl fmt::Debug for CqEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CqEvent({:?}, {})", self.inner.cq, self.inner.count)
    }
}

impl fmt::Debug for DetachedCqEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DetachedCqEvent({:?}, {})", self.cq, self.count)
    }
}
