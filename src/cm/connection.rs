//! Established connections: a queue pair, and an id that ends the connection.

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

/// An established reliable connection.
///
/// `X` has the objects that were made with the queue pair: a protection domain and a completion
/// queue ([`Resources`]), unless the program makes queue pairs itself
/// ([`ListenerBuilder::bind_with`](super::ListenerBuilder::bind_with),
/// [`Connector::connect_with`](super::Connector::connect_with)).
///
/// `R` is the doorbell register of the queue pair: [`SharedBlueFlame`](crate::qp::SharedBlueFlame)
/// if queue pairs share one ([`QpBuilder::build_in`](crate::qp::builder::QpBuilder::build_in)), as
/// in programs with more connections than the device has registers.
///
/// Dropping it disconnects at once: requests in flight are lost, and the peer gets an event.
///
/// No completion reports that the peer has ended the connection: posted receives stay posted. A
/// polling program has to call [`Connection::has_ended`] regularly; a program that sleeps also
/// waits for the file of [`Link::channel`], a task by `uverbs::tokio::wait_disconnected`. If the
/// peer's host fails without a message, only a failing request shows it (`RetryExceeded`): a
/// program that only receives has to send something regularly, or use a deadline.
#[derive(Debug)]
pub struct Connection<L: Layer = Safe, X = Resources, R: Register = BlueFlame> {
    /// Disconnects when it is dropped. The first field, because the kernel's id has to be destroyed
    /// before the queue pair.
    pub link: Link,
    /// The queue pair, in RTS.
    pub qp: QueuePair<Rc, L, R>,
    /// The objects that were made with it.
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

/// The connection manager's side of a connection: an id with its own channel.
#[derive(Debug)]
pub struct Link {
    id: Id,
    channel: Channel,
    private_data: Vec<u8>,
    /// How the connection ended, once the event was taken.
    end: OnceLock<End>,
}

/// Interval at which a waiting thread checks whether another one has taken the event of the
/// connection's end.
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

    /// The channel, which delivers the events of this id only.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// The private data that the peer sent when it connected (56 bytes) or accepted (196 bytes),
    /// padded with zeros.
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

    /// Waits, for at most `timeout`, until the connection has ended at both ends. If the peer
    /// disconnects, this end disconnects too. Once the connection has ended, every call returns at
    /// once.
    ///
    /// # Errors
    /// `TimedOut`, also if the peer did not answer a disconnect for 74 to 78 seconds; `DeviceGone`.
    pub fn wait_disconnected(&self, timeout: Option<Duration>) -> Result<()> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        while !self.is_end_known()? {
            let look = Instant::now() + LOOK;
            let until = deadline.map_or(look, |deadline| deadline.min(look));
            match self.channel.next_event_until(until) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::TimedOut && deadline != Some(until) => {}
                Err(error) if error.kind() == ErrorKind::TimedOut => return Err(still_open(error)),
                event => self.take(event?)?,
            }
        }
        Ok(())
    }

    /// Whether the connection has ended at both ends, without waiting. If the peer disconnects,
    /// this end disconnects too.
    ///
    /// # Errors
    /// `TimedOut` if the peer did not answer a disconnect; `DeviceGone`; errors of the kernel.
    pub fn has_ended(&self) -> Result<bool> {
        while !self.is_end_known()? {
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

    /// Whether the connection's end was reported. A removal is an error at every call, because no
    /// further event follows it.
    fn is_end_known(&self) -> Result<bool> {
        match self.end.get() {
            None => Ok(false),
            Some(End::Disconnected) => Ok(true),
            Some(End::Removed) => Err(removed()),
        }
    }
}

fn still_open(error: Error) -> Error {
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

    /// The peer's private data: [`Link::private_data`].
    pub fn private_data(&self) -> &[u8] {
        self.link.private_data()
    }

    /// Disconnects, or answers the peer's disconnect. Outstanding requests complete with a flush
    /// error, so poll the completions of requests that have to succeed before this call.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn disconnect(&mut self) -> Result<()> {
        self.flush()?;
        self.link.id.disconnect()
    }

    /// Waits until the connection has ended: [`Link::wait_disconnected`]. Outstanding requests then
    /// complete with a flush error.
    ///
    /// # Errors
    /// As [`Link::wait_disconnected`] and [`Link::has_ended`].
    pub fn wait_disconnected(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.link.wait_disconnected(timeout)?;
        self.flush()
    }

    /// Whether the connection has ended, without waiting: [`Link::has_ended`]. Outstanding requests
    /// then complete with a flush error. Until the connection has ended, each call makes a system
    /// call.
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
