//! Established connections: a queue pair, and the id that ends the connection.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use uverbs_mlx5::mmio::{BlueFlame, Register};

use super::channel::Channel;
use super::event::{Event, EventKind};
use super::id::Id;
use crate::cq::CompletionQueue;
use crate::device::context::Context;
use crate::device::layer::{Layer, Safe};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::pd::ProtectionDomain;
use crate::qp::qp_type::Rc;
use crate::qp::{QueuePair, State};

/// A reliable connection that is established.
///
/// `X` is what was made along with the queue pair: a protection domain and a completion queue
/// ([`Resources`]), unless the program makes queue pairs itself
/// ([`ListenerBuilder::bind_with`](super::ListenerBuilder::bind_with),
/// [`Connector::connect_with`](super::Connector::connect_with)).
///
/// `R` is the doorbell register of the queue pair: [`SharedBlueFlame`](crate::qp::SharedBlueFlame)
/// for queue pairs that share one
/// ([`QpBuilder::build_in`](crate::qp::builder::QpBuilder::build_in)), for programs with more
/// connections than the device has registers.
///
/// Dropping it ends the connection at once: it tells the peer, and requests in flight are lost.
///
/// Completions do not tell that the peer has ended the connection: posted receives stay posted. A
/// program that polls calls [`Connection::has_ended`] now and then; one that sleeps also waits for
/// the descriptor of [`Link::channel`]. If the peer disappears without a message (its host failed),
/// only a failing request shows it (`RetryExceeded`): a program that only receives sends something
/// now and then, or has a deadline of its own.
#[derive(Debug)]
pub struct Connection<L: Layer = Safe, X = Resources, R: Register = BlueFlame> {
    /// Ends the connection when it is dropped, and tells the peer. It is the first field, because
    /// the kernel's id has to be destroyed before the queue pair.
    pub link: Link,
    /// The queue pair, in RTS.
    pub qp: QueuePair<Rc, L, R>,
    /// What was made along with it.
    pub resources: X,
}

/// The protection domain and the completion queue of a [`Connection`], unless the program makes
/// queue pairs itself.
#[derive(Debug)]
pub struct Resources {
    /// Sends and receives complete here.
    pub cq: CompletionQueue,
    /// The protection domain, for slabs and regions.
    pub pd: ProtectionDomain,
}

/// The connection manager's side of a connection: an id with a channel of its own.
#[derive(Debug)]
pub struct Link {
    id: Id,
    channel: Channel,
    private_data: Vec<u8>,
    /// What the event of the connection's end said, once it was taken.
    end: OnceLock<End>,
}

/// How often a thread looks whether another one has taken the event of the connection's end.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy)]
enum End {
    Disconnected,
    Removed,
}

impl Link {
    pub(super) fn new(id: Id, channel: Channel, private_data: Vec<u8>) -> Self {
        Self { id, channel, private_data, end: OnceLock::new() }
    }

    /// The id.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// The channel of this id's events only.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// What the peer sent along when it connected (56 bytes) or accepted (196 bytes), padded with
    /// zeros.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The local address.
    ///
    /// # Errors
    /// As [`Id::local_address`].
    pub fn local_address(&self) -> Result<Option<SocketAddr>> {
        self.id.local_address()
    }

    /// The peer's address.
    ///
    /// # Errors
    /// As [`Id::peer_address`].
    pub fn peer_address(&self) -> Result<Option<SocketAddr>> {
        self.id.peer_address()
    }

    /// Waits until the connection has ended at both ends, `timeout` at most. If the peer ends it,
    /// this end agrees. Once it has ended, every call returns at once.
    ///
    /// # Errors
    /// `TimedOut`, also if the peer never answered (74 to 78 seconds); `DeviceGone`.
    pub fn wait_disconnected(&self, timeout: Option<Duration>) -> Result<()> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        while !self.was_told()? {
            let look = Instant::now() + LOOK;
            let until = deadline.map_or(look, |deadline| deadline.min(look));
            match self.channel.next_event_until(until) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::TimedOut && deadline != Some(until) => {}
                Err(error) if error.kind() == ErrorKind::TimedOut => return Err(open_still(error)),
                event => self.take(event?)?,
            }
        }
        Ok(())
    }

    /// Whether the connection has ended at both ends, without waiting. If the peer ends it, this
    /// end agrees.
    ///
    /// # Errors
    /// `TimedOut` if the peer never answered; `DeviceGone`; errors of the kernel.
    pub fn has_ended(&self) -> Result<bool> {
        while !self.was_told()? {
            match self.channel.try_next_event() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                event => self.take(event?)?,
            }
        }
        Ok(true)
    }

    pub(super) fn take(&self, event: Event) -> Result<()> {
        match event.kind {
            EventKind::Disconnected(result) => {
                let _ = self.end.set(End::Disconnected);
                result.and(self.id.disconnect())
            }
            EventKind::DeviceRemoval => {
                let _ = self.end.set(End::Removed);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Whether the connection's end was reported. No further event follows a removal, so it is an
    /// error every time.
    fn was_told(&self) -> Result<bool> {
        match self.end.get() {
            None => Ok(false),
            Some(End::Disconnected) => Ok(true),
            Some(End::Removed) => Err(removed()),
        }
    }
}

fn open_still(error: Error) -> Error {
    error
        .because("the peer has neither ended the connection nor agreed to its end")
        .cure_with("the peer calls disconnect, has_ended or wait_disconnected")
}

fn removed() -> Error {
    Error::new("disconnect", ErrorKind::DeviceGone, "the device was removed")
}

impl<L: Layer, X, R: Register> Connection<L, X, R> {
    /// The context of the queue pair.
    pub fn context(&self) -> &Context {
        self.qp.context()
    }

    /// What the peer sent along: [`Link::private_data`].
    pub fn private_data(&self) -> &[u8] {
        self.link.private_data()
    }

    /// Begins to end the connection, or agrees that the peer ends it. Outstanding requests complete
    /// as flushed: poll for what must arrive before this call.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn disconnect(&mut self) -> Result<()> {
        self.flush()?;
        self.link.id.disconnect()
    }

    /// Waits until the connection has ended: [`Link::wait_disconnected`]. Outstanding requests
    /// complete as flushed then.
    ///
    /// # Errors
    /// As [`Link::wait_disconnected`] and [`Link::has_ended`].
    pub fn wait_disconnected(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.link.wait_disconnected(timeout)?;
        self.flush()
    }

    /// Whether the connection has ended, without waiting: [`Link::has_ended`]. Outstanding requests
    /// complete as flushed then. Until the connection has ended, each call is a system call.
    ///
    /// # Errors
    /// As [`Link::wait_disconnected`] and [`Link::has_ended`].
    #[doc(alias = "is_disconnected")]
    pub fn has_ended(&mut self) -> Result<bool> {
        let ended = self.link.has_ended()?;
        if ended {
            self.flush()?;
        }
        Ok(ended)
    }

    fn flush(&mut self) -> Result<()> {
        if self.qp.state() == State::Err { Ok(()) } else { self.qp.to_error() }
    }
}
