//! This library on one side, libibverbs and libmlx5 on the other: Debian's `ibv_*_pingpong`
//! programs over every transport, with the library as client and as server.
//!
//! Without `UVERBS_TEST_DEVICE` both are on software devices, the C program under `uverbs run`, and
//! packets travel over UDP. With it both are on that kernel device.

#[path = "../command/process.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod process;

mod connected;
mod connection;
mod datagram;
mod extended;
mod peer;
mod rping;
mod shared;

use std::time::{Duration, Instant};

use uverbs::cq::{Status, WorkCompletion};
use uverbs::qp_type::{Rc, Uc};
use uverbs::{AccessFlags, Buffer, Context, MemoryRegion, PollError, ProtectionDomain, raw};

use peer::Role;

/// Round trips of a pingpong.
const ROUNDS: u64 = 100;
/// Bytes of a message: the default of the C programs. Datagrams have to fit into a packet.
const SIZE: usize = 4096;
const DATAGRAM: usize = 1024;
/// Time limit, far longer than a message takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Context, domain, completion queue, memory.
struct Setup {
    context: Context,
    pd: ProtectionDomain,
    cq: raw::CompletionQueue,
    memory: MemoryRegion,
}

/// The device under test.
fn opened() -> Context {
    let name = std::env::var("UVERBS_TEST_DEVICE").unwrap_or_else(|_| "soft".to_owned());
    uverbs::device(&name).and_then(|device| device.open()).expect("a device")
}

impl Setup {
    fn new() -> Self {
        let context = opened();
        let pd = context.alloc_pd().expect("a domain");
        let cq = context.create_raw_cq(1024).build().expect("a completion queue");
        let memory = Buffer::new(1 << 20).expect("memory");
        let memory = pd.register(memory, AccessFlags::LOCAL_WRITE).expect("registered");
        Self { context, pd, cq, memory }
    }

    /// The next completion, a success.
    fn completion(&mut self) -> WorkCompletion {
        success(&mut self.cq)
    }

    /// Message number `number` into the memory at `offset`.
    fn fill(&self, offset: usize, length: usize, number: u64) {
        self.memory.view().write(offset, &message(length, number)).expect("inside");
    }

    /// Panics unless message number `number` is at `offset`.
    #[track_caller]
    fn check(&self, offset: usize, length: usize, number: u64) {
        let mut found = vec![0; length];
        self.memory.view().read(offset, &mut found).expect("inside");
        assert!(
            found == message(length, number),
            "message {number} has come back with other contents"
        );
    }
}

fn success(cq: &mut raw::CompletionQueue) -> WorkCompletion {
    let began = Instant::now();
    loop {
        match cq.poll() {
            Ok(completion) => {
                let completion = completion.to_work_completion();
                assert_eq!(completion.status, Status::Success, "{completion:?}");
                return completion;
            }
            Err(PollError::Empty) => {
                assert!(began.elapsed() < PATIENCE, "the peer has fallen silent")
            }
            Err(error) => panic!("{error}"),
        }
        std::thread::yield_now();
    }
}

fn message(length: usize, number: u64) -> Vec<u8> {
    (0..length as u64).map(|at| (at * 31 + number * 7 + 1) as u8).collect()
}

#[test]
fn reliable_connections() {
    for role in [Role::Client, Role::Server] {
        connection::play::<Rc>("ibv_rc_pingpong", role);
    }
}

#[test]
fn connections_by_address() {
    connected::play_all();
}

#[test]
fn unreliable_connections() {
    for role in [Role::Client, Role::Server] {
        connection::play::<Uc>("ibv_uc_pingpong", role);
    }
}

#[test]
fn datagrams() {
    for role in [Role::Client, Role::Server] {
        datagram::play(role);
    }
}

#[test]
fn shared_receive_queues() {
    for role in [Role::Client, Role::Server] {
        shared::play(role);
    }
}

#[test]
fn extended_reliable_connections() {
    for role in [Role::Client, Role::Server] {
        extended::play(role);
    }
}
