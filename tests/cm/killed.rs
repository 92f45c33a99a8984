//! A peer is killed in each phase of a connection. The other end must get an error that reports
//! this, and its device must keep no object of the connection. `process` has the remaining phases.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use uverbs::cm::{
    AcceptOptions, Channel, ConnectOptions, ConnectionRequest, Connector, EventKind, Id, Listener,
    PortSpace, QpOptions,
};
use uverbs::qp_type::Rc;
use uverbs::soft::SoftDevice;
use uverbs::{CompletionQueue, Context, Device, ErrorKind, QueuePair};

use crate::long::queue_pair;
use crate::peer::{Peer, wait_for_parent};
use crate::process::start;
use crate::{PATIENCE, address_of, listener, next, resolved};

/// Prefix of a client's role, followed by the last phase and the address.
pub(crate) const CLIENT: &str = "client ";
/// Prefix of a server's role, followed by its last phase.
pub(crate) const SERVER: &str = "server ";

/// The client in the other process: it waits for its parent once it has reached the phase.
pub(crate) fn client(context: &Context, role: &str) {
    let (phase, to) = role.split_once(' ').unwrap();
    let channel = Channel::of(context).unwrap();
    let id = resolved(&channel, to.parse().unwrap(), PortSpace::Tcp);
    if phase == "resolved" {
        return wait_for_parent();
    }
    let (mut qp, _cq) = queue_pair(context);
    id.connect(&qp, &ConnectOptions::default()).unwrap();
    if phase == "asked" {
        return wait_for_parent();
    }
    assert!(matches!(next(&channel).kind, EventKind::ConnectResponse(_)));
    id.establish(&mut qp, &QpOptions::default()).unwrap();
    assert_eq!(phase, "leaving");
    id.disconnect().unwrap();
    wait_for_parent();
}

/// The server in the other process.
pub(crate) fn server(context: &Context, phase: &str) {
    let (channel, _listening, to) = listener(context, address_of(context), PortSpace::Tcp);
    println!("\naddress {to}");
    if phase == "listening" {
        return wait_for_parent();
    }
    let request = request(&channel);
    if phase == "asked" {
        wait_for_parent();
        return drop(request);
    }
    let (mut qp, _cq) = queue_pair(context);
    let id = request.accept(&mut qp, &AcceptOptions::default()).unwrap();
    if phase == "accepted" {
        return wait_for_parent();
    }
    assert!(matches!(next(&channel).kind, EventKind::Established));
    if phase == "leaving" {
        id.disconnect().unwrap();
    }
    wait_for_parent();
}

fn request(channel: &Channel) -> ConnectionRequest {
    match next(channel).kind {
        EventKind::ConnectRequest(request) => request,
        other => panic!("{other:?}"),
    }
}

/// A device of the test's own on the loopback network.
struct Own {
    soft: SoftDevice,
    context: Context,
    before: String,
}

impl Own {
    fn new() -> Self {
        let soft = SoftDevice::builder("soft0").build().unwrap();
        let context = Device::from_soft(soft.clone()).open().unwrap();
        let before = objects(&soft);
        Self { soft, context, before }
    }

    fn assert_no_object_left(&self) {
        assert_eq!(objects(&self.soft), self.before);
    }
}

fn objects(soft: &SoftDevice) -> String {
    soft.inspect(|core| format!("{:?}", core.counts())).unwrap()
}

/// The error has a verb, an errno and a cure, and its cause says that the peer may have ended.
fn assert_peer_ended(error: &uverbs::Error) {
    let text = error.to_string();
    assert!(error.cause().contains("ended"), "{text}");
    assert!(!error.verb().is_empty() && error.errno() != 0, "{text}");
    assert!(!error.cure().is_empty(), "{text}");
}

/// Kills a client before it sends its request, or after, and accepts the next client.
#[test]
fn a_listener_serves_the_next_client_after_one_that_was_killed() {
    let own = Own::new();
    for state in ["resolved", "asked"] {
        let (mut listener, to) = short_listener(&own.context);
        let mut peer = start(&format!("{CLIENT}{state} {to}"));
        peer.after("ready");
        peer.kill();
        let context = own.context.clone();
        let other = std::thread::spawn(move || connector(&context).connect(to).unwrap());
        let server = listener.accept_until(Instant::now() + PATIENCE).unwrap();
        drop((other.join().unwrap(), server, listener));
        own.assert_no_object_left();
    }
}

/// The server reads the request before the client is killed, or after.
#[test]
fn accepting_a_killed_client_reports_that_it_ended() {
    let own = Own::new();
    for taken_first in [true, false] {
        let address = address_of(&own.context);
        let (channel, listening, to) = listener(&own.context, address, PortSpace::Tcp);
        let mut peer = start(&format!("{CLIENT}asked {to}"));
        peer.after("ready");
        let taken = taken_first.then(|| request(&channel));
        peer.kill();
        let request = taken.unwrap_or_else(|| request(&channel));
        let (mut qp, cq) = queue_pair(&own.context);
        match request.accept(&mut qp, &AcceptOptions::default()) {
            Err(error) => assert_peer_ended(&error),
            // The end was not noticed yet. Afterwards the client's device rejects the REP.
            Ok(id) => {
                let event = next(&channel);
                assert!(matches!(event.kind, EventKind::Rejected(_)), "{event:?}");
                drop(id);
            }
        }
        drop((qp, cq, listening, channel));
        own.assert_no_object_left();
    }
}

#[test]
fn a_client_killed_while_disconnecting_has_disconnected() {
    let own = Own::new();
    let (channel, listening, to) = listener(&own.context, address_of(&own.context), PortSpace::Tcp);
    let mut peer = start(&format!("{CLIENT}leaving {to}"));
    let (mut qp, cq) = queue_pair(&own.context);
    let id = request(&channel).accept(&mut qp, &AcceptOptions::default()).unwrap();
    assert!(matches!(next(&channel).kind, EventKind::Established));
    peer.after("ready");
    peer.kill();
    assert!(matches!(next(&channel).kind, EventKind::Disconnected(Ok(()))));
    id.disconnect().unwrap();
    drop((id, qp, cq, listening, channel));
    own.assert_no_object_left();
}

fn short_listener(context: &Context) -> (Listener, SocketAddr) {
    let listener = Listener::builder().context(context).bind(address_of(context)).unwrap();
    let to = listener.local_address().unwrap();
    (listener, to)
}

fn connector(context: &Context) -> Connector {
    Connector::new().context(context).timeout(PATIENCE)
}

/// A server in the other process, and its address.
fn serving(phase: &str) -> (Peer, SocketAddr) {
    let mut peer = start(&format!("{SERVER}{phase}"));
    let to = peer.after("address ").parse().unwrap();
    (peer, to)
}

fn asking(context: &Context, to: SocketAddr) -> (Channel, Id, QueuePair<Rc>, CompletionQueue) {
    let channel = Channel::of(context).unwrap();
    let id = resolved(&channel, to, PortSpace::Tcp);
    let (qp, cq) = queue_pair(context);
    id.connect(&qp, &ConnectOptions::default()).unwrap();
    (channel, id, qp, cq)
}

#[test]
fn a_server_killed_before_its_address_is_resolved_does_not_answer() {
    let own = Own::new();
    let (mut peer, to) = serving("listening");
    peer.kill();
    let error = connector(&own.context).connect(to).unwrap_err();
    assert_peer_ended(&error);
    assert!(error.to_string().contains(&to.to_string()), "{error}");
    own.assert_no_object_left();
}

/// A kernel refuses requests to a process that has ended.
#[test]
fn a_request_to_a_killed_server_is_refused() {
    let own = Own::new();
    let (mut peer, to) = serving("listening");
    let channel = Channel::of(&own.context).unwrap();
    let id = resolved(&channel, to, PortSpace::Tcp);
    peer.kill();
    let (qp, cq) = queue_pair(&own.context);
    id.connect(&qp, &ConnectOptions::default()).unwrap();
    let asked = Instant::now();
    assert_peer_ended(&next(&channel).kind.into_failure().unwrap());
    assert!(asked.elapsed() < PATIENCE / 2, "it takes {:?}", asked.elapsed());
    drop((id, qp, cq, channel));
    own.assert_no_object_left();
}

/// Both an id and a connector report the refusal.
#[test]
fn a_server_killed_with_a_pending_request_refuses_it() {
    let own = Own::new();
    let (mut peer, to) = serving("asked");
    let (channel, id, qp, cq) = asking(&own.context, to);
    peer.after("ready");
    peer.kill();
    assert_peer_ended(&next(&channel).kind.into_failure().unwrap());
    drop((id, qp, cq, channel));
    let (mut peer, to) = serving("asked");
    let context = own.context.clone();
    let client = std::thread::spawn(move || connector(&context).connect(to).unwrap_err());
    peer.after("ready");
    peer.kill();
    assert_peer_ended(&client.join().unwrap());
    own.assert_no_object_left();
}

#[test]
fn a_server_killed_after_accepting_leaves_no_connection() {
    let own = Own::new();
    let (mut peer, to) = serving("accepted");
    let (channel, id, mut qp, cq) = asking(&own.context, to);
    assert!(matches!(next(&channel).kind, EventKind::ConnectResponse(_)));
    peer.after("ready");
    peer.kill();
    match id.establish(&mut qp, &QpOptions::default()) {
        Err(error) => assert_peer_ended(&error),
        Ok(()) => {
            assert!(matches!(next(&channel).kind, EventKind::Disconnected(Ok(()))));
            id.disconnect().unwrap();
        }
    }
    drop((id, qp, cq, channel));
    own.assert_no_object_left();
}

#[test]
fn a_server_killed_while_disconnecting_has_disconnected() {
    let own = Own::new();
    let (mut peer, to) = serving("leaving");
    let mut client = connector(&own.context).connect(to).unwrap();
    peer.after("ready");
    peer.kill();
    client.wait_disconnected(Some(PATIENCE)).unwrap();
    drop(client);
    own.assert_no_object_left();
}

/// The server is stopped, so it does not answer the DREQ. Then it is killed.
#[test]
fn a_server_killed_before_it_answers_a_disconnect_has_disconnected() {
    let own = Own::new();
    let (mut peer, to) = serving("established");
    let mut client = connector(&own.context).connect(to).unwrap();
    peer.after("ready");
    peer.stop();
    client.disconnect().unwrap();
    let error = client.wait_disconnected(Some(Duration::from_millis(50))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("the peer has neither ended the connection"), "{error}");
    peer.kill();
    client.wait_disconnected(Some(PATIENCE)).unwrap();
    drop(client);
    own.assert_no_object_left();
}
