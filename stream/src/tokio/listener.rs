//! Listening in tokio tasks.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Duration;

use tokio::net::{ToSocketAddrs, lookup_host};
use uverbs::tokio::{Alarm, AsyncFile, Readable};

use super::accepting::{Accepting, Call};
use super::stream::Stream;
use crate::config::Config;
use crate::lookup::explain;
use crate::shared::Shared;

/// Listens for streams, as [`TcpListener`](tokio::net::TcpListener) does. Dropping it refuses peers
/// that have not been accepted.
#[derive(Debug)]
pub struct Listener {
    /// A duplicate of the listener's event file.
    events: AsyncFile,
    /// Ends a wait when a half-open peer may be evicted.
    alarm: Alarm,
    accepting: Arc<Accepting>,
    /// Connections that tokio could not watch yet because no file descriptor was free.
    unwatched: Mutex<VecDeque<Arc<Shared>>>,
    listener: crate::Listener,
}

/// Aborts connections that were not accepted, as TCP does, so that dropping them does not wait.
impl Drop for Listener {
    fn drop(&mut self) {
        self.unwatched().iter().for_each(|shared| shared.set_linger(Duration::ZERO));
    }
}

impl Listener {
    /// Listens on `address`; port 0 chooses a free port. [`Listener::bind_with`] takes options.
    ///
    /// # Errors
    /// As [`Config::bind`].
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub async fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::bind_with(&Config::new(), address).await
    }

    /// Listens on `address`. If a name has several addresses, the first that works is used.
    ///
    /// # Errors
    /// As [`Config::bind`].
    ///
    /// # Panics
    /// As [`Listener::bind`].
    pub async fn bind_with(config: &Config, address: impl ToSocketAddrs) -> io::Result<Self> {
        let addresses: Vec<SocketAddr> = lookup_host(address).await.map_err(explain)?.collect();
        Self::from_blocking(config.bind(&addresses[..])?)
    }

    /// Converts a blocking listener.
    ///
    /// # Errors
    /// Errors of epoll_ctl(2).
    ///
    /// # Panics
    /// As [`Listener::bind`].
    pub fn from_blocking(listener: crate::Listener) -> io::Result<Self> {
        let file = listener.as_fd().try_clone_to_owned()?;
        let events = AsyncFile::new(file)?;
        Ok(Self {
            events,
            alarm: Alarm::new()?,
            accepting: Arc::default(),
            unwatched: Mutex::default(),
            listener,
        })
    }

    /// The address that it listens on, with the port that was chosen.
    ///
    /// # Errors
    /// None: it is a `Result` because [`TcpListener`](tokio::net::TcpListener) returns one.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Waits for the next stream, and returns it with the peer's address. Several tasks may wait.
    /// It is cancel safe: no connection is lost.
    ///
    /// # Errors
    /// As [`crate::Listener::accept`].
    pub async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let call = self.accepting.call();
        std::future::poll_fn(|task| self.poll_accept_as(call.number, task)).await
    }

    /// As [`Listener::accept`], for hand-written futures. Only the task of the last call is woken.
    ///
    /// # Errors
    /// As [`Listener::accept`].
    pub fn poll_accept(&self, task: &mut Context<'_>) -> Poll<io::Result<(Stream, SocketAddr)>> {
        self.poll_accept_as(Call::BY_HAND, task)
    }

    fn poll_accept_as(
        &self,
        call: u64,
        task: &Context<'_>,
    ) -> Poll<io::Result<(Stream, SocketAddr)>> {
        self.accepting.set(call, task.waker());
        // A separate statement, so that the lock is released here.
        let unwatched = self.unwatched().pop_front();
        if let Some(shared) = unwatched {
            return Poll::Ready(self.watch(shared));
        }
        let all = Waker::from(self.accepting.clone());
        loop {
            let ready = ready!(self.poll_event(&mut Context::from_waker(&all)))?;
            match self.listener.try_accept_shared() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready.into_iter().for_each(Readable::clear);
                }
                Err(error) => return Poll::Ready(Err(error)),
                Ok(shared) => return Poll::Ready(self.watch(Arc::new(shared))),
            }
        }
    }

    /// Makes a stream of a connection. If that fails, the next call tries again.
    fn watch(&self, shared: Arc<Shared>) -> io::Result<(Stream, SocketAddr)> {
        let stream = Stream::watch(&shared).inspect_err(|_| {
            self.unwatched().push_front(shared.clone());
            // Another task may have found no event because this one had taken it.
            self.accepting.wake_by_ref();
        });
        stream.map(|stream| (stream, shared.peer))
    }

    fn unwatched(&self) -> MutexGuard<'_, VecDeque<Arc<Shared>>> {
        self.unwatched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ready when there may be an event, or when a half-open peer may be evicted.
    fn poll_event(&self, task: &mut Context<'_>) -> Poll<uverbs::Result<Option<Readable<'_>>>> {
        let event = self.events.poll_readable(task).map_ok(Some);
        match (event, self.listener.next_eviction()) {
            (Poll::Pending, Some(at)) => self.alarm.poll(at, task).map_ok(|()| None),
            (event, _) => event,
        }
    }
}
