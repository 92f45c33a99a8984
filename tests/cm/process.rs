//! A peer in another process, which is killed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use uverbs::cm::{Connector, Listener};
use uverbs::cq::Status;
use uverbs::qp::{AckTimeout, PostFlags};
use uverbs::{Context, PollError, op};

use crate::{PATIENCE, address_of};

/// Tells this test program that it is the peer.
const PEER: &str = "UVERBS_CM_PEER";

fn networked() -> Context {
    uverbs::device("soft").unwrap().open().unwrap()
}

#[test]
#[ignore = "the other process of a_killed_peer_is_noticed_by_sends_and_holds_nothing_up"]
fn peer() {
    if std::env::var_os(PEER).is_none() {
        return;
    }
    let context = networked();
    let builder = Listener::builder().context(&context);
    let mut listener = builder.bind(address_of(&context)).unwrap();
    println!("\naddress {}", listener.local_address().unwrap());
    let connection = listener.accept().unwrap();
    println!("\nready");
    // Until it is killed, or its parent is gone.
    let _ = std::io::stdin().read_line(&mut String::new());
    drop(connection);
}

struct Peer(Child);

impl Peer {
    fn start() -> (Self, impl FnMut(&str) -> String) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "process::peer", "--ignored", "--nocapture"]).env(PEER, "1");
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let after = move |word: &str| {
            let mut found = lines.by_ref().map(|line| line.expect("the peer lives"));
            found.find_map(|line| Some(line.strip_prefix(word)?.trim().to_owned())).unwrap()
        };
        (Self(child), after)
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_peer_is_noticed_by_sends_and_holds_nothing_up() {
    let (mut peer, mut after) = Peer::start();
    let address = after("address ");
    let context = networked();
    let connector = Connector::new()
        .context(&context)
        .timeout(PATIENCE)
        .qp(|qp| qp.timeout = Some(AckTimeout::from_code(12)));
    let mut client = connector.connect(address).unwrap();
    after("ready");
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
