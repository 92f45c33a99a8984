//! `ibv_srq_pingpong`: sixteen connections on one shared receive queue at each end.

use std::collections::HashMap;

use uverbs::qp::PostFlags;
use uverbs::qp_type::Rc;
use uverbs::{Endpoint, op, raw};

use crate::peer::{Peer, Role, is_installed};
use crate::{ROUNDS, SIZE, Setup};

/// The default of the C program.
const CONNECTIONS: usize = 16;
/// Addresses that the C program exchanges, however many are in use (`MAX_QP`).
const ADDRESSES: usize = 256;
/// Receives have the ids below this number, and all sends have this id.
const RECEIVES: u64 = 64;

struct Connection {
    qp: raw::QueuePair<Rc>,
    /// Its send is not completed.
    sending: bool,
    /// The peer's next message has not arrived.
    receiving: bool,
}

struct Game {
    setup: Setup,
    srq: raw::SharedReceiveQueue,
    connections: Vec<Connection>,
    by_number: HashMap<u32, usize>,
    sent: u64,
    received: u64,
}

/// Runs one pingpong.
pub(crate) fn play(role: Role) {
    let program = "ibv_srq_pingpong";
    if !is_installed(program) {
        return;
    }
    let mut game = Game::new();
    let own = game.connections.iter().map(|connection| connection.qp.endpoint());
    let own: Vec<Endpoint> = own.cycle().take(ADDRESSES).collect();
    let rounds = ROUNDS.to_string();
    let mut peer =
        Peer::meet(program, &["-n", &rounds, "-q", "16"], game.connections[0].qp.gid(), role);
    peer.exchange(role, &own, |peers| {
        for (connection, peer) in game.connections.iter_mut().zip(peers) {
            connection.qp.connect(peer).expect("connected");
        }
    });
    for index in 0..CONNECTIONS {
        game.connections[index].receiving = true;
        if role == Role::Client {
            game.send(index);
        }
    }
    while game.sent < ROUNDS || game.received < ROUNDS {
        game.step();
    }
    peer.end();
}

impl Game {
    fn new() -> Self {
        let setup = Setup::new();
        let srq = setup.pd.create_raw_srq(RECEIVES as u32).build().expect("a shared receive queue");
        let connection = |_| {
            let qp = setup.pd.create_raw_qp::<Rc>(setup.cq.handle(), setup.cq.handle());
            let qp = qp.shared_receive_queue(srq.handle()).build().expect("a queue pair");
            Connection { qp, sending: false, receiving: false }
        };
        let connections: Vec<Connection> = (0..CONNECTIONS).map(connection).collect();
        let numbers = connections
            .iter()
            .enumerate()
            .map(|(index, connection)| (connection.qp.number(), index));
        let by_number = numbers.collect();
        let mut game = Self { setup, srq, connections, by_number, sent: 0, received: 0 };
        (0..RECEIVES).for_each(|slot| game.post_receive(slot));
        game
    }

    fn post_receive(&mut self, slot: u64) {
        let sge = self.setup.memory.sge((1 + slot as usize) * SIZE, SIZE).expect("inside");
        // SAFETY: the memory lives as long as the queue; no reference to it exists.
        unsafe { self.srq.post(slot, &[sge]).expect("space") };
    }

    fn send(&mut self, index: usize) {
        let sge = self.setup.memory.sge(0, SIZE).expect("inside");
        let connection = &mut self.connections[index];
        // SAFETY: the memory lives as long as the queue pair and does not change.
        unsafe {
            connection.qp.post_send(RECEIVES, op::Send, sge, PostFlags::SIGNALED).expect("space")
        };
        (connection.sending, connection.receiving) = (true, true);
    }

    /// Waits for a completion. A connection whose send and receive are both completed sends again,
    /// as in the C program.
    fn step(&mut self) {
        let done = self.setup.completion();
        let index = self.by_number[&done.qp_num()];
        let connection = &mut self.connections[index];
        if done.wr_id == RECEIVES {
            connection.sending = false;
            self.sent += 1;
        } else {
            assert_eq!(done.byte_len() as usize, SIZE);
            connection.receiving = false;
            self.received += 1;
            self.post_receive(done.wr_id);
        }
        let connection = &self.connections[index];
        if !connection.sending && !connection.receiving && self.sent < ROUNDS {
            self.send(index);
        }
    }
}
