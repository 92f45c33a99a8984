//! The process that is killed.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use uverbs::cm::{
    AcceptOptions, Channel, ConnectOptions, ConnectionRequest, EventKind, PortSpace, ReplyData,
    RequestData,
};
use uverbs::qp_type::Rc;
use uverbs::{CompletionQueue, Context, QueuePair};
use uverbs_stream::{Config, Stream};

use crate::http2;
use crate::process::{Peer, role, wait_for_parent};

/// A limit for waits that must end; only a defect reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The private data of a handshake (`handshake::Offer`): version 1, 128 receives, a 64 KiB ring.
const OFFER: [u8; 24] =
    [b'u', b'v', b's', b't', 0, 1, 0, 128, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Bytes of the endless data that a peer writes, from this position on.
pub(crate) fn pattern(from: usize, count: usize) -> Vec<u8> {
    (from..from + count).map(|at| (at % 251) as u8).collect()
}

/// Its role is `serve STAGE` or `connect STAGE ADDRESS`.
#[test]
#[ignore = "the other process of the tests"]
fn peer() {
    let Some(role) = role() else { return };
    let context = uverbs::device("soft").unwrap().open().unwrap();
    match role.split(' ').collect::<Vec<_>>()[..] {
        ["serve", stage] => serve(&context, stage),
        ["connect", "http2", to] => http2::client(&context, to.parse().unwrap()),
        ["connect", stage, to] => connect(&context, stage, to.parse().unwrap()),
        _ => panic!("{role}"),
    }
}

fn serve(context: &Context, stage: &str) {
    if ["asked", "accepts_when_told", "accepted"].contains(&stage) {
        return serve_by_steps(context, stage);
    }
    let listener = Config::new().context(context).bind(address_of(context)).unwrap();
    println!("\naddress {}", listener.local_addr().unwrap());
    match stage {
        "listening" => wait_for_parent(),
        stage => established(listener.accept().unwrap().0, stage),
    }
}

/// A server that has the request, or that has accepted it but not handled the confirmation.
fn serve_by_steps(context: &Context, stage: &str) {
    let channel = Channel::of(context).unwrap();
    let listening = channel.create_id(PortSpace::Tcp).unwrap();
    listening.bind(address_of(context)).unwrap();
    listening.listen(0).unwrap();
    println!("\naddress {}", listening.local_address().unwrap().unwrap());
    let request = request(&channel);
    match stage {
        "asked" => return wait_for_parent(),
        "accepts_when_told" => wait_for_parent(),
        _ => {}
    }
    let (mut qp, _cq) = queue_pair(context);
    let private_data = ReplyData::new(&OFFER).unwrap();
    let options = AcceptOptions { private_data, ..AcceptOptions::default() };
    let _id = request.accept(&mut qp, &options).unwrap();
    wait_for_parent();
}

fn connect(context: &Context, stage: &str, to: SocketAddr) {
    if ["resolved", "asked", "answered"].contains(&stage) {
        return connect_by_steps(context, stage, to);
    }
    established(Config::new().context(context).connect(to).unwrap(), stage);
}

/// A client that ends before it confirms.
fn connect_by_steps(context: &Context, stage: &str, to: SocketAddr) {
    let channel = Channel::of(context).unwrap();
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    id.resolve_address(None, to, PATIENCE).unwrap();
    assert!(matches!(next(&channel), EventKind::AddressResolved));
    id.resolve_route(PATIENCE).unwrap();
    assert!(matches!(next(&channel), EventKind::RouteResolved));
    if stage == "resolved" {
        return wait_for_parent();
    }
    let (qp, _cq) = queue_pair(context);
    let private_data = RequestData::new(&OFFER).unwrap();
    id.connect(&qp, &ConnectOptions { private_data, ..ConnectOptions::default() }).unwrap();
    if stage == "answered" {
        assert!(matches!(next(&channel), EventKind::ConnectResponse(_)));
    }
    wait_for_parent();
}

/// The stages of an established stream; `established.rs` has the other end of each.
fn established(mut stream: Stream, stage: &str) {
    match stage {
        "idle" | "deaf" => {}
        "writes" => write_for_ever(&mut stream),
        "wrote" => stream.write_all(&pattern(0, 1000)).unwrap(),
        "heard_the_end" => assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0),
        "ended" => {
            stream.write_all(&pattern(0, 1000)).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        }
        "closed" => {
            stream.write_all(&pattern(0, 1000)).unwrap();
            return drop_and_wait(stream);
        }
        _ => panic!("{stage}"),
    }
    wait_for_parent();
}

fn drop_and_wait(stream: Stream) {
    drop(stream);
    wait_for_parent();
}

fn write_for_ever(stream: &mut Stream) {
    println!("\nready");
    let mut at = 0;
    while let Ok(count) = stream.write(&pattern(at, 10_000)) {
        at += count;
    }
}

fn next(channel: &Channel) -> EventKind {
    channel.next_event_until(Instant::now() + PATIENCE).expect("an event").kind
}

fn request(channel: &Channel) -> ConnectionRequest {
    match next(channel) {
        EventKind::ConnectRequest(request) => request,
        other => panic!("{other:?}"),
    }
}

fn queue_pair(context: &Context) -> (QueuePair<Rc>, CompletionQueue) {
    let cq = context.create_cq(4).build().unwrap();
    let pd = context.alloc_pd().unwrap();
    (pd.create_qp::<Rc>(cq.handle(), cq.handle()).build().unwrap(), cq)
}

/// The IPv4 address of a device, with port 0.
pub(crate) fn address_of(context: &Context) -> SocketAddr {
    let gids = context.gid_table(1).unwrap();
    let ipv4 = gids.iter().find_map(|entry| entry.gid.ipv4()).expect("an IPv4 address");
    SocketAddr::new(IpAddr::from(ipv4), 0)
}

impl Peer {
    pub(crate) fn serving(stage: &str) -> (Self, SocketAddr) {
        let mut peer = Self::start("peer::peer", &format!("serve {stage}"));
        let to = peer.after("address ").parse().unwrap();
        (peer, to)
    }

    pub(crate) fn connecting(stage: &str, to: SocketAddr) -> Self {
        Self::start("peer::peer", &format!("connect {stage} {to}"))
    }

    /// Lets the process continue if it waits for its parent.
    pub(crate) fn tell(&mut self) {
        writeln!(self.input.as_mut().unwrap()).unwrap();
    }

    /// Waits until the process has reached its stage.
    pub(crate) fn wait_until_ready(&mut self) {
        self.after("ready");
    }
}
