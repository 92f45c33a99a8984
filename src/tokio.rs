//! Waiting in tokio tasks: completion queues, completion channels, asynchronous events,
//! connections.
//!
//! ```no_run
//! # async fn example() -> Result<(), uverbs::Error> {
//! let context = uverbs::open_default()?;
//! let mut cq = context.create_cq(256).build_async()?;
//! let (slot, completion) = cq.completion().await?;
//! # drop((slot, completion));
//! # Ok(())
//! # }
//! ```
//!
//! # Lost wake-ups and cancellation
//! [`AsyncCompletionQueue::completion`] polls, arms, and polls once more before it waits: the
//! second poll finds completions from before the arming, and later completions raise an event. Each
//! queue has its own channel, so no other task can take that event. Every future here may be
//! dropped at any time: none waits between taking a value and returning it.
//!
//! # Peers that end
//! No completion reports that a peer has ended its connection. So a task that serves a connection
//! waits for its completions and for [`wait_disconnected`], in one `select!`.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{self, Poll};
use std::time::{Duration, Instant};

use ::tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use ::tokio::task::coop::consume_budget;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::cm::{Channel, Connection, Connector, Event, Id, Link, Listener};
use crate::cq::builder::CqBuilder;
use crate::cq::channel::{CompletionChannel, DetachedCqEvent};
use crate::cq::poll::Completion;
use crate::cq::{CompletionQueue, CqHandle, PollError, WorkCompletion};
use crate::device::context::Context;
use crate::device::events::DetachedEvent;
use crate::device::layer::{Layer, Raw, Safe};
use crate::error::{Error, ErrorKind, Result};
use crate::host::system::{READABLE, Watched};
use crate::memory::slot::Slot;
use crate::qp::qp_type::Rc;
use crate::qp::{QueuePair, Register};

/// A context's event file, for the reactor.
#[derive(Debug)]
struct ContextEvents(Context);

impl AsFd for ContextEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.events_fd()
    }
}

fn watch<T: AsFd>(owner: T) -> Result<AsyncFd<Watched<T>>> {
    Watched::register(owner).map_err(|error| Error::io("register_with_tokio", &error))
}

/// Waits until `attempt` no longer returns `WouldBlock`, and returns its result.
async fn take<T, R>(fd: &AsyncFd<Watched<T>>, attempt: impl Fn(&T) -> Result<R>) -> Result<R> {
    let attempt = |file: &Watched<T>| loop {
        match attempt(file.owner()) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return Ok(result),
        }
    };
    let taken = fd.async_io(READABLE, attempt).await;
    taken.map_err(|error| Error::io("wait_in_tokio", &error))?
}

/// A file on which tasks wait for readability: for files that combine several event files of this
/// library, such as epoll(7) files.
#[derive(Debug)]
pub struct AsyncFile(AsyncFd<Watched<OwnedFd>>);

/// Shows that an [`AsyncFile`] may be readable.
#[derive(Debug)]
pub struct Readable<'a>(AsyncFdReadyGuard<'a, Watched<OwnedFd>>);

impl AsyncFile {
    /// Watches `file`.
    ///
    /// # Errors
    /// Errors of `epoll_ctl(2)`.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn new(file: OwnedFd) -> Result<Self> {
        watch(file).map(Self)
    }

    /// Ready if the file may be readable or has an error (POLLERR). Otherwise the task is woken
    /// when it is. If several tasks poll, only the last one is woken.
    ///
    /// # Errors
    /// Errors of the runtime as it shuts down.
    pub fn poll_readable(&self, task: &mut task::Context<'_>) -> Poll<Result<Readable<'_>>> {
        // mio reports an error alone as the end of writing, not of reading.
        let ready = match self.0.poll_read_ready(task) {
            Poll::Pending => self.0.poll_write_ready(task),
            ready => ready,
        };
        ready.map_ok(Readable).map_err(|error| Error::io("wait_in_tokio", &error))
    }

    /// Waits until the file may be readable, or has an error (POLLERR). Cancel safe.
    ///
    /// # Errors
    /// Errors of the runtime as it shuts down.
    pub async fn readable(&self) -> Result<Readable<'_>> {
        let ready = self.0.ready(READABLE).await;
        ready.map(Readable).map_err(|error| Error::io("wait_in_tokio", &error))
    }
}

impl Readable<'_> {
    /// Clears the readiness, unless the file has become readable again meanwhile: for a caller that
    /// found nothing to read.
    pub fn clear(mut self) {
        self.0.clear_ready();
    }
}

/// Wakes a task at a given time, even if the runtime has no timers.
#[derive(Debug)]
#[doc(hidden)]
pub struct Alarm {
    timer: AsyncFd<Watched<TimerFd>>,
    /// When the timer expires, if it is set.
    set: Mutex<Option<Instant>>,
}

impl Alarm {
    /// # Errors
    /// Errors of `timerfd_create(2)` and `epoll_ctl(2)`.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn new() -> Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags);
        let timer = timer.map_err(|errno| Error::os("timerfd_create", errno))?;
        Ok(Self { timer: watch(timer)?, set: Mutex::default() })
    }

    /// Ready at `at` or later; it may also be ready once before. If several tasks poll, only the
    /// last one is woken.
    ///
    /// # Errors
    /// Errors of the runtime as it shuts down.
    pub fn poll(&self, at: Instant, task: &mut task::Context<'_>) -> Poll<Result<()>> {
        self.set(at)?;
        let ended = task::ready!(self.timer.poll_read_ready(task));
        ended.map_err(|error| Error::io("wait_in_tokio", &error))?.clear_ready();
        *self.lock() = None;
        Poll::Ready(Ok(()))
    }

    fn set(&self, at: Instant) -> Result<()> {
        let mut set = self.lock();
        if *set != Some(at) {
            // A time of 0 would disarm the timer.
            let left = at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
            let once = Expiration::OneShot(TimeSpec::from_duration(left));
            let timer = self.timer.get_ref().owner();
            timer
                .set(once, TimerSetTimeFlags::empty())
                .map_err(|errno| Error::os("timerfd_settime", errno))?;
            *set = Some(at);
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A completion channel for tasks. Share it by reference; if several tasks wait, exactly one gets
/// each event.
#[derive(Debug)]
pub struct AsyncCompletionChannel(AsyncFd<Watched<CompletionChannel>>);

impl AsyncCompletionChannel {
    /// Watches `channel`.
    ///
    /// # Errors
    /// Errors of `epoll_ctl(2)`.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn new(channel: CompletionChannel) -> Result<Self> {
        watch(channel).map(Self)
    }

    /// The channel, for making completion queues.
    pub fn channel(&self) -> &CompletionChannel {
        self.0.get_ref().owner()
    }

    /// Waits for one event. Cancel safe.
    ///
    /// # Errors
    /// `DeviceGone` (EIO) after the device was removed.
    pub async fn event(&self) -> Result<DetachedCqEvent> {
        take(&self.0, |channel| channel.try_get_event().map(|event| event.detach())).await
    }
}

impl AsFd for AsyncCompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel().as_fd()
    }
}

/// The asynchronous events of a context, for tasks.
#[derive(Debug)]
pub struct AsyncEvents(AsyncFd<Watched<ContextEvents>>);

impl AsyncEvents {
    /// Watches the events of `context`.
    ///
    /// # Errors
    /// Errors of `epoll_ctl(2)`: EEXIST if this runtime watches them already.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn new(context: &Context) -> Result<Self> {
        watch(ContextEvents(context.clone())).map(Self)
    }

    /// Waits for one event. Cancel safe.
    ///
    /// # Errors
    /// `DeviceGone` (EIO) after the device was removed and its last event taken.
    pub async fn event(&self) -> Result<DetachedEvent> {
        take(&self.0, |context| context.0.try_get_event().map(|event| event.detach())).await
    }
}

/// A completion queue with its own completion channel, for one task at a time.
#[derive(Debug)]
pub struct AsyncCompletionQueue<L: Layer = Safe> {
    queue: CompletionQueue<L>,
    channel: AsyncCompletionChannel,
}

impl<L: Layer> CqBuilder<L> {
    /// Creates a completion queue for tasks, with its own channel, which replaces any channel set
    /// before.
    ///
    /// # Errors
    /// As [`CqBuilder::build`]; errors of opening and watching the channel.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn build_async(self) -> Result<AsyncCompletionQueue<L>> {
        let channel = self.context().create_completion_channel()?;
        let queue = self.channel(&channel).build()?;
        Ok(AsyncCompletionQueue { queue, channel: AsyncCompletionChannel::new(channel)? })
    }
}

impl<L: Layer> AsyncCompletionQueue<L> {
    /// Its handle, for making queue pairs.
    pub fn handle(&self) -> &CqHandle<L> {
        self.queue.handle()
    }

    /// The queue, for polling without waiting. Arming it does no harm.
    pub fn queue(&mut self) -> &mut CompletionQueue<L> {
        &mut self.queue
    }

    async fn take<T>(
        &mut self,
        poll: impl Fn(&mut CompletionQueue<L>) -> std::result::Result<T, PollError>,
    ) -> Result<T> {
        consume_budget().await;
        let mut is_armed = false;
        loop {
            match poll(&mut self.queue) {
                Err(PollError::Empty) if is_armed => self.channel.event().await?.acknowledge(),
                Err(PollError::Empty) => self.queue.arm(),
                result => return Ok(result?),
            }
            is_armed = !is_armed;
        }
    }
}

impl AsyncCompletionQueue {
    /// Waits for the next completion and its slot. Cancel safe.
    ///
    /// # Errors
    /// Permanent errors: the queue was overrun, or the device was removed.
    pub async fn completion(&mut self) -> Result<(Option<Slot>, WorkCompletion)> {
        self.take(|queue| queue.poll().map(Completion::copied)).await
    }
}

impl AsyncCompletionQueue<Raw> {
    /// Waits for the next completion. Cancel safe.
    ///
    /// # Errors
    /// Permanent errors: the queue was overrun, or the device was removed.
    pub async fn completion(&mut self) -> Result<WorkCompletion> {
        self.take(|queue| queue.poll().map(|done| done.to_work_completion())).await
    }

    /// Waits until there is at least one completion, and appends those that are there, up to
    /// `most`, to `out`. Cancel safe.
    ///
    /// # Errors
    /// As [`AsyncCompletionQueue::completion`].
    pub async fn completions(&mut self, out: &mut Vec<WorkCompletion>, most: usize) -> Result<()> {
        out.push(self.completion().await?);
        let mut batch = self.queue.batch();
        // The next call returns the error that ended this batch.
        for _ in 1..most {
            let Ok(completion) = batch.next() else { break };
            out.push(completion.to_work_completion());
        }
        Ok(())
    }
}

/// An event channel of the [connection manager](crate::cm) for tasks. Share it by reference; if
/// several tasks wait, exactly one gets each event.
#[derive(Debug)]
pub struct AsyncCmChannel(AsyncFd<Watched<Channel>>);

impl AsyncCmChannel {
    /// Watches `channel`.
    ///
    /// # Errors
    /// Errors of `epoll_ctl(2)`.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn new(channel: Channel) -> Result<Self> {
        watch(channel).map(Self)
    }

    /// The channel, for making ids.
    pub fn channel(&self) -> &Channel {
        self.0.get_ref().owner()
    }

    /// Waits for one event. Cancel safe.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub async fn event(&self) -> Result<Event> {
        take(&self.0, Channel::try_next_event).await
    }
}

/// A listener for tasks.
#[derive(Debug)]
pub struct AsyncListener<
    L: Layer = crate::layer::Safe,
    X = crate::cm::Resources,
    R: Register = crate::qp::BlueFlame,
> {
    listener: Listener<L, X, R>,
    channel: AsyncCmChannel,
    /// Ends a wait when a silent peer may lose its place.
    alarm: Alarm,
}

impl<L: Layer, X, R: Register> AsyncListener<L, X, R> {
    /// Watches `listener`.
    ///
    /// # Errors
    /// Errors of `epoll_ctl(2)`.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn new(listener: Listener<L, X, R>) -> Result<Self> {
        let channel = AsyncCmChannel::new(listener.channel().clone())?;
        Ok(Self { listener, channel, alarm: Alarm::new()? })
    }

    /// The listener, for example for its address.
    pub fn listener(&self) -> &Listener<L, X, R> {
        &self.listener
    }

    /// Waits for the next established connection. Cancel safe: half-open connections are kept.
    ///
    /// # Errors
    /// As [`Listener::accept`].
    pub async fn accept(&mut self) -> Result<Connection<L, X, R>> {
        loop {
            consume_budget().await;
            self.listener.prepare()?;
            let arrived = self.listener.arrived()?;
            let eviction = self.listener.next_eviction();
            let event = match arrived {
                Some(event) => Some(event),
                None => event_or_eviction(&self.channel, &self.alarm, eviction).await?,
            };
            let Some(event) = event else { continue };
            if let Some(connection) = self.listener.step(event)? {
                return Ok(connection);
            }
        }
    }
}

/// The next event; `None` if a silent peer may lose its place before one arrives.
async fn event_or_eviction(
    channel: &AsyncCmChannel,
    alarm: &Alarm,
    eviction: Option<Instant>,
) -> Result<Option<Event>> {
    let mut event = pin!(channel.event());
    poll_fn(|task| {
        let arrived = event.as_mut().poll(task).map_ok(Some);
        match (arrived, eviction) {
            (Poll::Pending, Some(at)) => alarm.poll(at, task).map_ok(|()| None),
            (arrived, _) => arrived,
        }
    })
    .await
}

/// Connects to `address`, as [`Connector::connect`] does. Dropping the future withdraws the
/// request. It ignores [`Connector::timeout`] except for resolving; use a timeout of the runtime
/// instead.
///
/// # Errors
/// As [`Connector::connect`].
///
/// # Panics
/// Outside a tokio runtime with I/O enabled.
pub async fn connect(connector: &Connector, address: SocketAddr) -> Result<Connection> {
    connect_with(connector, address, connector.maker()).await
}

/// As [`connect`], with a queue pair that `make` creates, as for [`Connector::connect_with`].
///
/// # Errors
/// As [`Connector::connect_with`].
///
/// # Panics
/// As [`connect`].
pub async fn connect_with<L: Layer, X, R: Register>(
    connector: &Connector,
    address: SocketAddr,
    mut make: impl FnMut(&Id) -> Result<(QueuePair<Rc, L, R>, X)>,
) -> Result<Connection<L, X, R>> {
    let mut connecting = connector.begin(address.into())?;
    let channel = AsyncCmChannel::new(connecting.channel.clone())?;
    loop {
        if let Some(reply) = connecting.step(channel.event().await?, &mut make)? {
            return connecting.finish(reply);
        }
    }
}

/// Waits until the connection of `link` has ended, as [`Link::wait_disconnected`] does. One task at
/// a time waits. Cancel safe. Requests are flushed when the connection is dropped, or by
/// [`Connection::has_ended`].
///
/// ```no_run
/// # use uverbs::{cm::Connection, tokio::AsyncCompletionQueue};
/// # async fn example(
/// #     connection: Connection,
/// #     mut cq: AsyncCompletionQueue,
/// # ) -> Result<(), uverbs::Error> {
/// tokio::select! {
///     done = cq.completion() => println!("{:?}", done?),
///     ended = uverbs::tokio::wait_disconnected(&connection.link) => return ended,
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`Link::has_ended`]; errors of `epoll_ctl(2)`.
///
/// # Panics
/// Outside a tokio runtime with I/O enabled.
pub async fn wait_disconnected(link: &Link) -> Result<()> {
    if link.has_ended()? {
        return Ok(());
    }
    let file = watch(link.channel().clone())?;
    let pending = || Error::new("wait_disconnected", ErrorKind::WouldBlock, "");
    take(&file, |_| if link.has_ended()? { Ok(()) } else { Err(pending()) }).await
}

#[cfg(test)]
mod tests;
