//! Connecting, step by step.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use uverbs::AccessFlags;
use uverbs::ErrorKind;
use uverbs::cm::{Channel, ConnectOptions, Event, EventKind, Id, PortSpace, QpOptions};

use crate::config::Config;
use crate::handshake::Offer;
use crate::lookup::in_words_of_sockets;
use crate::prepared::Prepared;
use crate::shared::Shared;

/// The timeout of address and route resolution, unless the caller's is shorter.
const RESOLVE: Duration = Duration::from_secs(2);

/// An attempt to connect, advanced by each event. Dropping it withdraws the request.
#[derive(Debug)]
pub(crate) struct Connecting<'c> {
    id: Id,
    pub(crate) channel: Channel,
    config: &'c Config,
    prepared: Option<Prepared>,
}

/// An event channel for the configured device.
pub(crate) fn channel(config: &Config) -> uverbs::Result<Channel> {
    match &config.context {
        Some(context) => Channel::of(context),
        None => Channel::open(),
    }
}

/// Options of the queue pairs of streams.
pub(crate) fn qp_options(config: &Config) -> QpOptions {
    let access = AccessFlags::REMOTE_WRITE;
    QpOptions { access, timeout: config.ack_timeout, ..QpOptions::default() }
}

impl<'c> Connecting<'c> {
    pub(crate) fn begin(config: &'c Config, address: SocketAddr) -> io::Result<Self> {
        let channel = channel(config)?;
        let id = channel.create_id(PortSpace::Tcp)?;
        let connecting = Self { id, channel, config, prepared: None };
        let resolving = connecting.id.resolve_address(None, address, connecting.patience());
        resolving.map_err(in_words_of_sockets)?;
        Ok(connecting)
    }

    fn patience(&self) -> Duration {
        self.config.connect_timeout.unwrap_or(RESOLVE).min(RESOLVE)
    }

    /// Takes the next step. Returns the peer's description of its ring once the peer has accepted.
    pub(crate) fn step(&mut self, event: Event) -> io::Result<Option<Offer>> {
        match event.kind {
            EventKind::AddressResolved => self.id.resolve_route(self.patience())?,
            EventKind::RouteResolved => self.request()?,
            EventKind::ConnectResponse(reply) => {
                let offer = Offer::decode(&reply.private_data);
                let refuse = |cause| io::Error::new(io::ErrorKind::InvalidData, cause);
                return offer.map(Some).map_err(refuse);
            }
            other => other.into_failure().map_or(Ok(()), Err)?,
        }
        Ok(None)
    }

    fn request(&mut self) -> io::Result<()> {
        let prepared = Prepared::new(&self.id, self.config)?;
        let options = ConnectOptions {
            private_data: prepared.offer.request(),
            responder_reads: Some(0),
            initiator_reads: Some(0),
            retry_count: self.config.retries,
            ..ConnectOptions::default()
        };
        self.id.connect(&prepared.qp, &options)?;
        self.prepared = Some(prepared);
        Ok(())
    }

    /// Establishes the connection.
    pub(crate) fn finish(self, peer: &Offer) -> io::Result<Shared> {
        let mut prepared = self.prepared.ok_or(io::ErrorKind::NotConnected)?;
        self.id.establish(&mut prepared.qp, &qp_options(self.config)).map_err(reset)?;
        Shared::new((self.id, self.channel), prepared, peer, self.config)
    }
}

/// Reports EINVAL as `ConnectionReset`: the kernel returns it if the peer has ended since it
/// accepted.
fn reset(error: uverbs::Error) -> io::Error {
    match Errno::from_raw(error.errno()) {
        Errno::EINVAL => io::Error::new(io::ErrorKind::ConnectionReset, error),
        _ => error.into(),
    }
}

/// Connects, and waits until the stream is established.
pub(crate) fn connect(
    config: &Config,
    address: SocketAddr,
    deadline: Option<Instant>,
) -> io::Result<Shared> {
    let mut connecting = Connecting::begin(config, address)?;
    loop {
        let event = match deadline {
            Some(deadline) => connecting.channel.next_event_until(deadline),
            None => connecting.channel.next_event(),
        };
        match event {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            event => {
                if let Some(peer) = connecting.step(event?)? {
                    return connecting.finish(&peer);
                }
            }
        }
    }
}

/// When connecting times out.
pub(crate) fn deadline(config: &Config) -> Option<Instant> {
    config.connect_timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}
