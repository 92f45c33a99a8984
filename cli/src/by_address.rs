//! Connects a link by address, through the connection manager (`--cm`), instead of by exchanged
//! endpoints.
//!
//! The end that chooses the operation listens and offers its address; the other end connects to it.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

use uverbs::cm::{AcceptOptions, Channel, ConnectOptions, EventKind, Id, PortSpace, QpOptions};
use uverbs::gid::GidEntry;
use uverbs::qp_type::Rc;
use uverbs::{Context, ErrorKind, GidKind, raw};

use crate::failure::{Failure, Outcome};
use crate::rendezvous::{PATIENCE, Rendezvous};

/// Prefix of an address in the place of an endpoint.
const PREFIX: &str = "cm:";
/// Interval at which the listening end checks that its peer still exists.
const PEER_CHECK: Duration = Duration::from_millis(50);

/// A listener for the only peer of a link.
#[derive(Debug)]
pub(crate) struct Offer {
    channel: Channel,
    id: Id,
}

/// The ids of a connection; dropping them disconnects.
#[derive(Debug)]
#[allow(dead_code, reason = "held until the link ends")]
pub(crate) struct Connected(Id, Channel);

impl Offer {
    /// Listens at the device's own address, on any port.
    pub(crate) fn new(context: &Context, gid: &GidEntry) -> Outcome<Self> {
        let channel = Channel::of(context)?;
        let id = channel.create_id(PortSpace::Tcp)?;
        id.bind(address_of(gid)?)?;
        id.listen(1)?;
        Ok(Self { channel, id })
    }

    /// The offer for the peer: the prefix and the address.
    pub(crate) fn text(&self) -> Outcome<String> {
        let address = self.id.local_address()?;
        let address = address.ok_or_else(|| Failure::failed("the listener has no address"))?;
        Ok(format!("{PREFIX}{address}"))
    }

    /// Waits until the peer has connected to `qp`. Fails if the peer disappears.
    pub(crate) fn accept(
        self,
        qp: &mut raw::QueuePair<Rc>,
        options: QpOptions,
        peer: &mut Rendezvous,
    ) -> Outcome<Connected> {
        let options = AcceptOptions { qp: options, ..AcceptOptions::default() };
        let mut accepted = None;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            match self.channel.next_event_until(Instant::now() + PEER_CHECK) {
                Err(error)
                    if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
                event => match event?.kind {
                    EventKind::ConnectRequest(request) if accepted.is_none() => {
                        accepted = Some(request.accept(qp, &options)?);
                    }
                    EventKind::Established => {
                        let id = accepted.ok_or_else(|| Failure::failed("no request came"))?;
                        return Ok(Connected(id, self.channel));
                    }
                    EventKind::Unreachable(error) => return Err(error.into()),
                    EventKind::Rejected(rejection) => {
                        return Err(uverbs::Error::from(rejection).into());
                    }
                    _ => {}
                },
            }
            peer.watch()?;
        }
        Err(Failure::failed("the peer did not connect in time"))
    }
}

/// The address in an offer, if it has one.
pub(crate) fn offered(text: &str) -> Option<Outcome<SocketAddr>> {
    let address = text.strip_prefix(PREFIX)?;
    Some(address.parse().map_err(|_| Failure::failed("the peer's address is garbled")))
}

/// Connects `qp` to a peer that offers this address.
pub(crate) fn connect(
    address: SocketAddr,
    qp: &mut raw::QueuePair<Rc>,
    options: QpOptions,
) -> Outcome<Connected> {
    let channel = Channel::of(qp.context())?;
    let id = channel.create_id(PortSpace::Tcp)?;
    id.resolve_address(None, address, PATIENCE)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let event = match channel.next_event_until(deadline) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            event => event?,
        };
        match event.kind {
            EventKind::AddressResolved => id.resolve_route(PATIENCE)?,
            EventKind::RouteResolved => id.connect(qp, &ConnectOptions::default())?,
            EventKind::ConnectResponse(_) => {
                id.establish(qp, &options)?;
                return Ok(Connected(id, channel));
            }
            EventKind::AddressError(error)
            | EventKind::RouteError(error)
            | EventKind::Unreachable(error) => return Err(error.into()),
            EventKind::Rejected(rejection) => return Err(uverbs::Error::from(rejection).into()),
            _ => {}
        }
    }
}

/// The IP address in a GID, with any port.
fn address_of(gid: &GidEntry) -> Outcome<SocketAddr> {
    if gid.kind != GidKind::RoceV2 {
        return Err(Failure::failed(format!(
            "--cm needs an IP address, and GID {} ({}) has none: choose another with --gid-index",
            gid.index, gid.kind
        )));
    }
    if let Some(v4) = gid.gid.ipv4() {
        return Ok(SocketAddr::new(IpAddr::from(v4), 0));
    }
    let scope = if gid.gid.is_link_local() { gid.interface } else { 0 };
    Ok(SocketAddrV6::new(Ipv6Addr::from(gid.gid.0), 0, 0, scope).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_is_told_from_an_endpoint() {
        let address = offered("cm:127.18.0.1:4000").expect("an offer").expect("an address");
        assert_eq!(address.to_string(), "127.18.0.1:4000");
        assert!(offered("75767262").is_none());
        assert!(offered("cm:nowhere").expect("an offer").is_err());
    }
}
