//! Connects a link by address, through the connection manager (`--cm`), instead of by exchanged
//! endpoints.
//!
//! The end that chooses the operation listens and offers its address; the other end connects to it.
//! The offer also contains a [`Token`], because any program can connect to the address, and another
//! program may listen there later.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

use uverbs::cm::{
    AcceptOptions, Channel, ConnectOptions, ConnectionRequest, Event, EventKind, Id, PortSpace,
    QpOptions, RejectData, ReplyData, RequestData,
};
use uverbs::gid::GidEntry;
use uverbs::qp_type::Rc;
use uverbs::{Context, ErrorKind, GidKind, raw};
use uverbs_mlx5_inspect::parse_hex;

use crate::failure::{Failure, Outcome};
use crate::output::hexadecimal;
use crate::rendezvous::{PATIENCE, Rendezvous, random};

/// Prefix of an address instead of an endpoint.
const PREFIX: &str = "cm:";
/// Interval at which an end that waits checks that its peer still exists.
const PEER_CHECK: Duration = Duration::from_millis(50);

/// Random bytes by which the two ends recognize each other: the first half is the private data of
/// the request, the second half that of the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Token([u8; 32]);

impl Token {
    fn new() -> Outcome<Self> {
        random().map(Self)
    }

    fn parse(text: &str) -> Option<Self> {
        parse_hex(text)?.try_into().ok().map(Self)
    }

    fn request(&self) -> &[u8] {
        &self.0[..16]
    }

    fn reply(&self) -> &[u8] {
        &self.0[16..]
    }
}

/// A listener for the one peer of a link.
#[derive(Debug)]
pub(crate) struct Offer {
    channel: Channel,
    id: Id,
    token: Token,
}

/// The contents of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offered {
    address: SocketAddr,
    token: Token,
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
        id.listen(0)?;
        Ok(Self { channel, id, token: Token::new()? })
    }

    /// The offer for the peer: the prefix, the address and the token.
    pub(crate) fn text(&self) -> Outcome<String> {
        let address = self.id.local_address()?;
        let address = address.ok_or_else(|| Failure::failed("the listener has no address"))?;
        Ok(format!("{PREFIX}{address}/{}", hexadecimal(&self.token.0)))
    }

    /// Waits until the peer has connected to `qp`. Fails if the peer or the device disappears.
    pub(crate) fn accept(
        self,
        qp: &mut raw::QueuePair<Rc>,
        options: QpOptions,
        peer: &mut Rendezvous,
    ) -> Outcome<Connected> {
        let private_data = ReplyData::new(self.token.reply())?;
        let options = AcceptOptions { private_data, qp: options, ..AcceptOptions::default() };
        let mut accepted = None;
        let deadline = Instant::now() + PATIENCE;
        while let Some(event) = next_event(&self.channel, deadline, peer)? {
            match event.kind {
                EventKind::ConnectRequest(request) if !self.is_of_peer(&request) => refuse(request),
                EventKind::ConnectRequest(request) if accepted.is_none() => {
                    accepted = Some(request.accept(qp, &options)?);
                }
                EventKind::Established => {
                    let id = accepted.ok_or_else(|| Failure::failed("no request came"))?;
                    return Ok(Connected(id, self.channel));
                }
                other => other.into_failure().map_or(Ok(()), Err)?,
            }
        }
        Err(Failure::failed("the peer did not connect in time"))
    }

    fn is_of_peer(&self, request: &ConnectionRequest) -> bool {
        request.private_data().starts_with(self.token.request())
    }
}

/// Rejects a program that does not have the token.
fn refuse(request: ConnectionRequest) {
    const CAUSE: &[u8] = b"uverbs waits here for another peer";
    // Errors are ignored, because the program may have gone.
    let _ = request.reject(&RejectData::new(CAUSE).unwrap_or_default());
}

/// Waits for the next event until the deadline. Fails if the peer disappears meanwhile.
fn next_event(
    channel: &Channel,
    deadline: Instant,
    peer: &mut Rendezvous,
) -> Outcome<Option<Event>> {
    while Instant::now() < deadline {
        match channel.next_event_until(Instant::now() + PEER_CHECK) {
            Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
            event => return Ok(Some(event?)),
        }
        peer.watch()?;
    }
    Ok(None)
}

/// Parses an offer; `None` if the text is not an offer.
pub(crate) fn offered(text: &str) -> Option<Outcome<Offered>> {
    let parse = |text: &str| {
        let (address, token) = text.rsplit_once('/')?;
        Some(Offered { address: address.parse().ok()?, token: Token::parse(token)? })
    };
    let garbled = || Failure::failed("the peer's address is garbled (is it the same uverbs?)");
    Some(parse(text.strip_prefix(PREFIX)?).ok_or_else(garbled))
}

/// Connects `qp` to a peer that offers an address. Fails if the peer or the device disappears, or
/// if another service listens there.
pub(crate) fn connect(
    offered: Offered,
    qp: &mut raw::QueuePair<Rc>,
    options: QpOptions,
    peer: &mut Rendezvous,
) -> Outcome<Connected> {
    let Offered { address, token } = offered;
    let address = on_interface(address, qp.gid().map_or(0, |gid| gid.entry.interface));
    let channel = Channel::of(qp.context())?;
    let id = channel.create_id(PortSpace::Tcp)?;
    id.resolve_address(None, address, PATIENCE)?;
    let private_data = RequestData::new(token.request())?;
    let request = ConnectOptions { private_data, ..ConnectOptions::default() };
    let deadline = Instant::now() + PATIENCE;
    while let Some(event) = next_event(&channel, deadline, peer)? {
        match event.kind {
            EventKind::AddressResolved => id.resolve_route(PATIENCE)?,
            EventKind::RouteResolved => id.connect(qp, &request)?,
            EventKind::ConnectResponse(reply) if reply.private_data.starts_with(token.reply()) => {
                id.establish(qp, &options)?;
                return Ok(Connected(id, channel));
            }
            EventKind::ConnectResponse(_) => return Err(other_service(address)),
            other => other.into_failure().map_or(Ok(()), Err)?,
        }
    }
    Err(Failure::failed(format!("the peer does not answer at {address}")))
}

/// A peer's link-local address with the interface of this end, because the peer's interface has
/// another index on its machine.
fn on_interface(address: SocketAddr, interface: u32) -> SocketAddr {
    match address {
        SocketAddr::V6(mut v6) if v6.ip().is_unicast_link_local() && interface != 0 => {
            v6.set_scope_id(interface);
            v6.into()
        }
        address => address,
    }
}

fn other_service(address: SocketAddr) -> Failure {
    Failure::failed(format!(
        "another service than the peer answers at {address} (start both ends again)"
    ))
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
    use uverbs::Device;
    use uverbs::cm::{Connector, Listener, Rejection};
    use uverbs::soft::SoftDevice;

    use super::*;

    #[test]
    fn an_offer_is_told_from_an_endpoint() {
        let token = Token([0xa5; 32]);
        let text = format!("cm:127.18.0.1:4000/{}", "a5".repeat(32));
        let found = offered(&text).expect("an offer").expect("a good one");
        assert_eq!(found, Offered { address: "127.18.0.1:4000".parse().unwrap(), token });
        assert!(offered("75767262").is_none());
        for text in ["cm:nowhere", "cm:127.18.0.1:4000", "cm:127.18.0.1:4000/a5a5"] {
            assert!(offered(text).expect("an offer").is_err(), "{text}");
        }
    }

    #[test]
    fn a_link_local_address_is_looked_for_on_the_own_interface() {
        let there = |text: &str| on_interface(text.parse().unwrap(), 7).to_string();
        assert_eq!(there("[fe80::1%3]:5"), "[fe80::1%7]:5");
        assert_eq!(there("[2001:db8::1]:5"), "[2001:db8::1]:5");
        assert_eq!(there("10.0.0.1:5"), "10.0.0.1:5");
    }

    /// A device, an offer on it, and the queue pair for the offer.
    fn offering() -> (SoftDevice, Context, Offer, raw::QueuePair<Rc>) {
        let soft = SoftDevice::builder("soft0").without_wire().build().expect("a device");
        let context = Device::from_soft(soft.clone()).open().expect("it opens");
        let gid = context.choose_gid(1, None).expect("a GID").entry;
        let offer = Offer::new(&context, &gid).expect("an offer");
        let qp = queue_pair(&context);
        (soft, context, offer, qp)
    }

    fn queue_pair(context: &Context) -> raw::QueuePair<Rc> {
        let cq = context.create_raw_cq(4).build().expect("a CQ");
        let pd = context.alloc_pd().expect("a PD");
        pd.create_raw_qp::<Rc>(cq.handle(), cq.handle()).build().expect("a queue pair")
    }

    #[test]
    fn a_device_that_goes_away_ends_the_wait() {
        let (soft, _context, offer, mut qp) = offering();
        let (mut near, _far) = Rendezvous::pair();
        soft.remove();
        let began = Instant::now();
        let failure = offer.accept(&mut qp, QpOptions::default(), &mut near).expect_err("gone");
        assert!(failure.to_string().contains("removed"), "{failure}");
        assert!(began.elapsed() < PATIENCE / 2);
    }

    /// A program that knows only the address is rejected with a reason, and the peer is served
    /// after it.
    #[test]
    fn a_stranger_does_not_take_the_place_of_the_peer() {
        let (_soft, context, offer, mut qp) = offering();
        let to = offer.id.local_address().expect("an address").expect("of IP");
        let text = offer.text().expect("an offer");
        let (mut near, mut far) = Rendezvous::pair();
        let serving = std::thread::spawn(move || {
            offer.accept(&mut qp, QpOptions::default(), &mut near).map(|connected| (connected, qp))
        });
        let stranger = Connector::new().context(&context).private_data(RequestData::of(b"other"));
        let error = stranger.connect(to).expect_err("refused");
        let source = std::error::Error::source(&error).expect("a rejection");
        let said = &source.downcast_ref::<Rejection>().expect("a rejection").private_data;
        assert!(String::from_utf8_lossy(said).contains("another peer"), "{said:?}");
        let mut mine = queue_pair(&context);
        let offered = offered(&text).expect("an offer").expect("a good one");
        connect(offered, &mut mine, QpOptions::default(), &mut far).expect("the peer connects");
        serving.join().expect("no panic").expect("the peer is accepted");
    }

    /// A service that took the address accepts every peer.
    #[test]
    fn another_service_at_the_address_is_not_the_peer() {
        let (_soft, context, offer, _qp) = offering();
        let text = offer.text().expect("an offer");
        let to = offer.id.local_address().expect("an address").expect("of IP");
        drop(offer);
        let mut other = Listener::builder().context(&context).bind(to).expect("the port is free");
        let (mut near, _far) = Rendezvous::pair();
        let offered = offered(&text).expect("an offer").expect("a good one");
        let mut qp = queue_pair(&context);
        let connecting = std::thread::spawn(move || {
            connect(offered, &mut qp, QpOptions::default(), &mut near).expect_err("a stranger")
        });
        while !connecting.is_finished() {
            let _ = other.try_accept();
            std::thread::yield_now();
        }
        let failure = connecting.join().expect("no panic");
        assert!(failure.to_string().contains("another service"), "{failure}");
    }

    #[test]
    fn a_peer_that_ends_ends_the_attempt_to_reach_it() {
        let (_soft, context, _offer, mut qp) = offering();
        let (mut near, far) = Rendezvous::pair();
        drop(far);
        let nowhere = format!("cm:127.18.255.254:4000/{}", "a5".repeat(32));
        let offered = offered(&nowhere).expect("an offer").expect("a good one");
        let failure = connect(offered, &mut qp, QpOptions::default(), &mut near);
        assert!(failure.expect_err("gone").to_string().contains("gone away"));
        drop(context);
    }
}
