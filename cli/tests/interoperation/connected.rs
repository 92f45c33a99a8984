//! The library's client of the connection manager against librdmacm: `rdma_client` and
//! `rdma_server`, which send each other 16 bytes, and `rping`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use uverbs::cm::{Connection, Connector, Listener};
use uverbs::cq::Status;
use uverbs::qp::PostFlags;
use uverbs::{AccessFlags, Context, PollError, Slab, Slot, op};

use crate::PATIENCE;
use crate::peer::Role;
use crate::process::{Ended, Running};
use crate::{opened, peer, rping};

/// Bytes of a message of all three programs.
pub(crate) const BYTES: u32 = 16;

/// A program of librdmacm, and what the library does as its peer.
type Game = (&'static str, Role, fn(&mut Talk));

const GAMES: [Game; 4] = [
    ("rdma_client", Role::Server, answer_once),
    ("rdma_server", Role::Client, ask_once),
    ("rping", Role::Server, rping::serve),
    ("rping", Role::Client, rping::ask),
];

/// The setup: software devices of two processes, or a kernel's device that reaches itself.
pub(crate) fn play_all() {
    let context = opened();
    let gids = context.gid_table(1).expect("a table");
    let Some(own) = gids.iter().find_map(|entry| entry.gid.ipv4()) else {
        return eprintln!("skipped: the port has no IPv4 address");
    };
    for (program, role, talk) in GAMES {
        if peer::is_installed(program) {
            let run = if role == Role::Server { serve } else { reach };
            run(&context, own, program, talk);
        }
    }
}

/// Port of the C program's server.
const PORT: &str = "7479";

fn serve(context: &Context, own: Ipv4Addr, program: &str, talk: fn(&mut Talk)) {
    let builder = Listener::builder().context(context);
    let mut listener = builder.bind(SocketAddr::new(IpAddr::from(own), 0)).expect("listening");
    let port = listener.local_address().expect("an address").port().to_string();
    let address = own.to_string();
    let words = match program {
        "rping" => vec!["-c", "-a", &address, "-p", &port, "-V", "-C", rping::COUNT],
        _ => vec!["-s", &address, "-p", &port],
    };
    let program = start(None, program, &words);
    let accepted = listener.accept_until(Instant::now() + PATIENCE).expect("it connects");
    let mut connection = Talk::new(accepted);
    talk(&mut connection);
    connection.ends.wait_disconnected(Some(PATIENCE)).expect("it disconnects");
    ended(program.end());
}

fn reach(context: &Context, own: Ipv4Addr, program: &str, talk: fn(&mut Talk)) {
    let id = std::process::id();
    let apart = Ipv4Addr::new(127, 77, (id >> 8) as u8, (id as u8).clamp(1, 254));
    let to = if peer::is_kernel() { own } else { apart };
    let address = to.to_string();
    let words = match program {
        "rping" => vec!["-s", "-a", &address, "-p", PORT, "-V"],
        _ => vec!["-s", &address, "-p", PORT],
    };
    let program = start(Some(&address), program, &words);
    let to = SocketAddr::new(IpAddr::from(to), PORT.parse().expect("a port"));
    let mut connection = Talk::new(connected(context, to));
    talk(&mut connection);
    connection.ends.disconnect().expect("disconnects");
    connection.ends.wait_disconnected(Some(PATIENCE)).expect("it agrees");
    ended(program.end());
}

/// The program has succeeded. `rping`'s main thread closes the event channel while its other
/// thread may be about to read from it (librdmacm/examples/rping.c of rdma-core 44); then that one
/// ends the program, whose work is done, with EBADF.
fn ended(program: Ended) {
    if !program.stderr.ends_with("rdma_get_cm_event: Bad file descriptor\n") {
        program.success();
    }
}

/// Starts the C program; its software device has this address.
fn start(address: Option<&str>, program: &str, words: &[&str]) -> Running {
    let line = std::iter::once(&program).chain(words).map(|word| (*word).to_owned());
    Running::start(&mut peer::command_at(address, &line.collect::<Vec<_>>()))
}

/// Connects once the program listens. It may READ and WRITE memory that it is told of.
fn connected(context: &Context, address: SocketAddr) -> Connection {
    let rights = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    let connector = Connector::new().context(context).timeout(Duration::from_secs(10));
    let connector = connector.qp(|qp| qp.access = rights);
    let deadline = Instant::now() + PATIENCE;
    loop {
        match connector.connect(address) {
            Ok(connection) => return connection,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::yield_now();
    }
}

/// A connection that sends and receives messages of [`BYTES`] bytes.
pub(crate) struct Talk {
    pub(crate) ends: Connection,
    slab: Slab,
}

impl Talk {
    /// A first receive is posted.
    fn new(ends: Connection) -> Self {
        let slab = ends.resources.pd.create_slab(4, BYTES).expect("memory");
        let mut talk = Self { ends, slab };
        talk.post_receive();
        talk
    }

    fn post_receive(&mut self) {
        self.ends.qp.post_receive(self.slab.take().expect("a slot")).expect("posted");
    }

    pub(crate) fn send(&mut self, bytes: &[u8; BYTES as usize]) {
        self.ends.qp.post_inline(op::Send, bytes, PostFlags::SIGNALED).expect("posted");
    }

    /// The next message; a receive for the one after it is posted first.
    pub(crate) fn receive(&mut self) -> [u8; BYTES as usize] {
        let slot = self.finished();
        let bytes = slot[..].try_into().expect("a whole message");
        drop(slot);
        self.post_receive();
        bytes
    }

    /// The slot of the next completion that has one. Completions of sends have none.
    pub(crate) fn finished(&mut self) -> Slot {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.ends.resources.cq.poll() {
                Ok(done) => {
                    assert_eq!(done.completion.status(), Status::Success);
                    if let Some(slot) = done.slot {
                        return slot;
                    }
                }
                Err(PollError::Empty) => {
                    assert!(Instant::now() < deadline, "the program is silent")
                }
                Err(error) => panic!("{error}"),
            }
            std::thread::yield_now();
        }
    }
}

fn answer_once(talk: &mut Talk) {
    talk.receive();
    talk.send(&[7; BYTES as usize]);
}

fn ask_once(talk: &mut Talk) {
    talk.send(&[7; BYTES as usize]);
    talk.receive();
}
