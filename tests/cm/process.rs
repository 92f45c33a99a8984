//! A peer in another process, which is killed.

use std::io::{BufRead, BufReader, Lines};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use uverbs::cm::{
    AcceptOptions, Channel, ConnectOptions, Connection, ConnectionRequest, Connector, EventKind,
    Listener, PortSpace,
};
use uverbs::cq::Status;
use uverbs::qp::{AckTimeout, PostFlags};
use uverbs::{Context, PollError, op};

use crate::child::{end_after, in_child};
use crate::killed;
use crate::long::queue_pair;
use crate::{PATIENCE, address_of, next, resolved};

/// Environment variable of the peer process, with its role: [`LISTENS`], [`FORKS`], [`ASKS`] or the
/// address to connect to.
const PEER: &str = "UVERBS_CM_PEER";
const LISTENS: &str = "listens";
/// As [`LISTENS`], but a forked child waits once the connection is established.
const FORKS: &str = "forks";
/// Requests a connection from the address that follows, and never confirms it.
const ASKS: &str = "asks ";

pub(crate) fn networked() -> Context {
    uverbs::device("soft").unwrap().open().unwrap()
}

fn listener(context: &Context) -> (Listener, SocketAddr) {
    let builder = Listener::builder().context(context);
    let listener = builder.bind(address_of(context)).unwrap();
    let address = listener.local_address().unwrap();
    (listener, address)
}

/// Returns when the parent ends or closes the pipe.
pub(crate) fn wait_for_parent() {
    println!("\nready");
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn ask(context: &Context, address: SocketAddr) {
    let channel = Channel::of(context).unwrap();
    let id = resolved(&channel, address, PortSpace::Tcp);
    let (qp, _cq) = queue_pair(context);
    id.connect(&qp, &ConnectOptions::default()).unwrap();
    wait_for_parent();
}

#[test]
#[ignore = "the other process of the tests below"]
fn peer() {
    let Ok(role) = std::env::var(PEER) else { return };
    end_after(300);
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
        Connector::new().context(&context).timeout(PATIENCE).connect(role).unwrap()
    };
    if std::env::var(PEER).as_deref() == Ok(FORKS) {
        in_child(wait_for_parent);
    } else {
        wait_for_parent();
    }
    drop(connection);
}

pub(crate) struct Peer {
    child: Child,
    /// The pipe that the peer and its children wait on.
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    pub(crate) fn start(role: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "process::peer", "--ignored", "--nocapture"]).env(PEER, role);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Taken out, because `Child::wait` closes it.
        let input = child.stdin.take();
        Self { child, input, lines }
    }

    /// A peer that has accepted a connection from this process.
    fn connected(role: &str, context: &Context) -> (Self, Connection) {
        let mut peer = Self::start(role);
        let address = peer.after("address ");
        let connector = Connector::new().context(context).timeout(PATIENCE);
        let connector = connector.qp(|qp| qp.timeout = Some(AckTimeout::from_code(12)));
        let client = connector.connect(address).unwrap();
        peer.after("ready");
        (peer, client)
    }

    /// The rest of the line that begins with this word.
    pub(crate) fn after(&mut self, word: &str) -> String {
        let mut found = self.lines.by_ref().map(|line| line.expect("the peer lives"));
        found.find_map(|line| Some(line.strip_prefix(word)?.trim().to_owned())).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Returns when all of the peer's threads are stopped: the kernel notifies the parent after the
    /// last one.
    pub(crate) fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let peer = Pid::from_raw(self.child.id() as i32);
        let status = waitpid(peer, Some(WaitPidFlag::WUNTRACED));
        assert_eq!(status, Ok(WaitStatus::Stopped(peer, Signal::SIGSTOP)));
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The kernel disconnects the connections of a process that ends.
#[test]
fn a_killed_server_disconnects_its_client() {
    let context = networked();
    let (mut peer, mut client) = Peer::connected(LISTENS, &context);
    assert!(!client.has_ended().unwrap());
    peer.kill();
    client.wait_disconnected(Some(PATIENCE)).unwrap();
}

#[test]
fn a_killed_client_disconnects_from_its_server() {
    let context = networked();
    let (mut listener, address) = listener(&context);
    let mut peer = Peer::start(&address.to_string());
    let mut server = listener.accept().unwrap();
    peer.after("ready");
    peer.kill();
    server.wait_disconnected(Some(PATIENCE)).unwrap();
    // The listener still accepts.
    let mut peer = Peer::start(&address.to_string());
    let mut server = listener.accept().unwrap();
    peer.after("ready");
    assert!(!server.has_ended().unwrap());
}

#[test]
fn a_killed_server_refuses_a_request_that_it_has_not_accepted() {
    let context = networked();
    let mut peer = Peer::start(LISTENS);
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
    let peer = Peer::start(&format!("{ASKS}{address}"));
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

/// A stopped peer is not dead, nor is one whose forked child still has its sockets. Once the end of
/// a third peer is noticed, this side has checked all three.
#[test]
fn only_the_end_of_a_process_disconnects() {
    let context = networked();
    let (stopped, mut one) = Peer::connected(LISTENS, &context);
    stopped.stop();
    let (mut forked, mut two) = Peer::connected(FORKS, &context);
    forked.kill();
    let (mut third, mut three) = Peer::connected(LISTENS, &context);
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
    let (mut peer, mut client) = Peer::connected(LISTENS, &context);
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
