//! A peer in another process, which is killed.

use std::net::SocketAddr;
use std::time::Instant;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use uverbs::cm::{
    AcceptOptions, Channel, ConnectOptions, Connection, ConnectionRequest, Connector, EventKind,
    Listener, PortSpace,
};
use uverbs::cq::Status;
use uverbs::qp::{AckTimeout, PostFlags};
use uverbs::{Context, ErrorKind, PollError, op};

use crate::child::in_child;
use crate::killed;
use crate::long::queue_pair;
use crate::peer::{Peer, role, wait_for_parent};
use crate::{PATIENCE, address_of, next, resolved};

/// Roles of the peer process. A role that is none of these is an address to connect to.
const LISTENS: &str = "listens";
/// As [`LISTENS`], but a forked child waits once the connection is established.
const FORKS: &str = "forks";
/// Requests a connection from the address that follows, and never confirms it.
const ASKS: &str = "asks ";
/// Opens connections until it fails, with a limited number of additional descriptors. The number
/// and the address follow.
const RUNS_OUT: &str = "runs out ";

pub(crate) fn networked() -> Context {
    uverbs::device("soft").unwrap().open().unwrap()
}

fn listener(context: &Context) -> (Listener, SocketAddr) {
    let builder = Listener::builder().context(context);
    let listener = builder.bind(address_of(context)).unwrap();
    let address = listener.local_address().unwrap();
    (listener, address)
}

fn ask(context: &Context, address: SocketAddr) {
    let channel = Channel::of(context).unwrap();
    let id = resolved(&channel, address, PortSpace::Tcp);
    let (qp, _cq) = queue_pair(context);
    id.connect(&qp, &ConnectOptions::default()).unwrap();
    wait_for_parent();
}

/// Opens connections, each with its own device, until no descriptor is free.
fn run_out(role: &str) {
    let (more, to) = role.split_once(' ').unwrap();
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let has = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    setrlimit(Resource::RLIMIT_NOFILE, has + more.parse::<u64>().unwrap(), hard).unwrap();
    let mut kept = Vec::new();
    let connect = || uverbs::cm::connect(to).map(|connection| kept.push(connection));
    let error = std::iter::repeat_with(connect).find_map(Result::err).unwrap();
    println!("\nerror {} {}: {error}", error.errno(), error.cure().contains("ulimit -n"));
}

#[test]
fn a_client_without_descriptors_is_told_so() {
    let context = networked();
    let mut listener = Listener::builder().context(&context).bind("127.0.0.1:0").unwrap();
    let address = listener.local_address().unwrap();
    let server = std::thread::spawn(move || {
        // A client that ends between its request and the answer is not accepted.
        let mut accepted = Vec::new();
        loop {
            match listener.accept_until(Instant::now() + PATIENCE) {
                Ok(connection) => accepted.push(connection),
                Err(error) if error.kind() == ErrorKind::TimedOut => break,
                Err(_) => {}
            }
        }
    });
    for more in 8..40 {
        let said = start(&format!("{RUNS_OUT}{more} {address}")).after("error");
        assert!(said.starts_with(&format!("{} true", libc::EMFILE)), "{more} more: {said}");
    }
    drop(server);
}

#[test]
#[ignore = "the other process of the tests below"]
fn peer() {
    let Some(role) = role() else { return };
    if let Some(role) = role.strip_prefix(RUNS_OUT) {
        return run_out(role);
    }
    let context = networked();
    if let Some(address) = role.strip_prefix(ASKS) {
        return ask(&context, address.parse().unwrap());
    }
    if let Some(phase) = role.strip_prefix(killed::CLIENT) {
        return killed::client(&context, phase);
    }
    if let Some(phase) = role.strip_prefix(killed::SERVER) {
        return killed::server(&context, phase);
    }
    let connection = if [LISTENS, FORKS].contains(&&*role) {
        let (mut listener, address) = listener(&context);
        println!("\naddress {address}");
        listener.accept().unwrap()
    } else {
        Connector::new().context(&context).timeout(PATIENCE).connect(&*role).unwrap()
    };
    if role == FORKS {
        in_child(wait_for_parent);
    } else {
        wait_for_parent();
    }
    drop(connection);
}

pub(crate) fn start(role: &str) -> Peer {
    Peer::start("process::peer", role)
}

/// A peer that has accepted a connection from this process.
fn connected(role: &str, context: &Context) -> (Peer, Connection) {
    let mut peer = start(role);
    let address = peer.after("address ");
    let connector = Connector::new().context(context).timeout(PATIENCE);
    let connector = connector.qp(|qp| qp.timeout = Some(AckTimeout::from_code(12)));
    let client = connector.connect(address).unwrap();
    peer.after("ready");
    (peer, client)
}

/// The kernel disconnects the connections of a process that ends.
#[test]
fn a_killed_server_disconnects_its_client() {
    let context = networked();
    let (mut peer, mut client) = connected(LISTENS, &context);
    assert!(!client.has_ended().unwrap());
    peer.kill();
    client.wait_disconnected(Some(PATIENCE)).unwrap();
}

#[test]
fn a_killed_client_disconnects_from_its_server() {
    let context = networked();
    let (mut listener, address) = listener(&context);
    let mut peer = start(&address.to_string());
    let mut server = listener.accept().unwrap();
    peer.after("ready");
    peer.kill();
    server.wait_disconnected(Some(PATIENCE)).unwrap();
    // The listener still accepts.
    let mut peer = start(&address.to_string());
    let mut server = listener.accept().unwrap();
    peer.after("ready");
    assert!(!server.has_ended().unwrap());
}

#[test]
fn a_killed_server_refuses_a_request_that_it_has_not_accepted() {
    let context = networked();
    let mut peer = start(LISTENS);
    let address: SocketAddr = peer.after("address ").parse().unwrap();
    let channel = Channel::of(&context).unwrap();
    let id = resolved(&channel, address, PortSpace::Tcp);
    let (qp, _cq) = queue_pair(&context);
    // The peer is stopped, so it cannot accept. The request arrives before the peer ends, or never.
    peer.stop();
    id.connect(&qp, &ConnectOptions::default()).unwrap();
    peer.kill();
    assert!(matches!(next(&channel).kind, EventKind::Rejected(_)));
}

/// A peer whose request has arrived at this channel.
fn asking(channel: &Channel, address: SocketAddr) -> (Peer, ConnectionRequest) {
    let peer = start(&format!("{ASKS}{address}"));
    match next(channel).kind {
        EventKind::ConnectRequest(request) => (peer, request),
        other => panic!("{other:?}"),
    }
}

/// The client is killed after the server's REP, and before its own RTU.
#[test]
fn a_client_killed_before_confirming_is_reported_as_a_rejection() {
    let context = networked();
    let (channel, _id, address) = crate::listener(&context, address_of(&context), PortSpace::Tcp);
    let (mut peer, request) = asking(&channel, address);
    let (mut qp, _cq) = queue_pair(&context);
    let id = request.accept(&mut qp, &AcceptOptions::default()).unwrap();
    peer.kill();
    let event = next(&channel);
    assert_eq!(event.id, id.key());
    assert!(matches!(event.kind, EventKind::Rejected(_)), "{event:?}");
}

/// A stopped peer has not ended, and neither has one whose forked child still has its sockets. When
/// the end of a third peer is noticed, this side has checked all three.
#[test]
fn only_the_end_of_a_process_disconnects() {
    let context = networked();
    let (stopped, mut one) = connected(LISTENS, &context);
    stopped.stop();
    let (mut forked, mut two) = connected(FORKS, &context);
    forked.kill();
    let (mut third, mut three) = connected(LISTENS, &context);
    third.kill();
    three.wait_disconnected(Some(PATIENCE)).unwrap();
    assert_eq!((one.has_ended().unwrap(), two.has_ended().unwrap()), (false, false));
    // The child ends when its input is closed.
    drop(forked.input.take());
    two.wait_disconnected(Some(PATIENCE)).unwrap();
    assert!(!one.has_ended().unwrap());
    // The stopped peer answers when it runs again.
    one.disconnect().unwrap();
    stopped.signal(Signal::SIGCONT);
    drop(stopped);
    one.wait_disconnected(Some(PATIENCE)).unwrap();
}

#[test]
fn sends_to_a_killed_peer_fail_and_disconnecting_does_not_wait() {
    let context = networked();
    let (mut peer, mut client) = connected(LISTENS, &context);
    peer.kill();
    let slab = client.resources.pd.create_slab(1, 16).unwrap();
    client.qp.post_send(op::Send, slab.take().unwrap(), PostFlags::SIGNALED).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        match client.resources.cq.poll() {
            Ok(done) => break done.completion.status(),
            Err(PollError::Empty) => assert!(Instant::now() < deadline, "the loss goes unnoticed"),
            Err(error) => panic!("{error}"),
        }
        std::thread::yield_now();
    };
    assert_eq!(status, Status::RetryExceeded);
    client.disconnect().unwrap();
    drop(client);
    assert!(Instant::now() < deadline);
}
