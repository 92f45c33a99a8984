//! `ibv_rc_pingpong` and `ibv_uc_pingpong`: both ends send from the buffer into which they receive,
//! so the C program sends back the bytes that it has received.

use uverbs::op::Carries;
use uverbs::qp::PostFlags;
use uverbs::qp_type::Connected;
use uverbs::{op, raw};

use crate::peer::{Peer, Role, is_installed};
use crate::{ROUNDS, SIZE, Setup};

const SEND: u64 = 1;
const RECEIVE: u64 = 2;
/// Where received messages go; what is sent is at the start.
const INCOMING: usize = SIZE;

struct Game<T: Connected> {
    setup: Setup,
    qp: raw::QueuePair<T>,
    /// Completions of receives that were polled before the test waited for them.
    arrived: u64,
}

/// Runs one pingpong.
pub(crate) fn play<T: Connected + Carries<op::Send>>(program: &str, role: Role) {
    if !is_installed(program) {
        return;
    }
    let setup = Setup::new();
    let qp = setup
        .pd
        .create_raw_qp::<T>(setup.cq.handle(), setup.cq.handle())
        .build()
        .expect("a queue pair");
    let mut game = Game { setup, qp, arrived: 0 };
    game.receive();
    let own = game.qp.endpoint();
    let rounds = ROUNDS.to_string();
    let mut peer = Peer::meet(program, &["-n", &rounds], game.qp.gid(), role);
    peer.exchange(role, &[own], |peers| game.qp.connect(&peers[0]).expect("connected"));
    for round in 0..ROUNDS {
        match role {
            Role::Client => {
                game.send(round);
                game.arrival();
                game.setup.check(INCOMING, SIZE, round);
            }
            Role::Server => {
                game.arrival();
                // The first message is the program's own. Its later ones are those that it has
                // received.
                if let Some(before) = round.checked_sub(1) {
                    game.setup.check(INCOMING, SIZE, before);
                }
                game.send(round);
            }
        }
    }
    peer.end();
}

impl<T: Connected + Carries<op::Send>> Game<T> {
    fn receive(&mut self) {
        let sge = self.setup.memory.sge(INCOMING, SIZE).expect("inside");
        // SAFETY: the memory lives as long as the queue pair and is only looked at after the
        // completion.
        unsafe { self.qp.post_receive(RECEIVE, &[sge]).expect("space") };
    }

    fn send(&mut self, number: u64) {
        self.setup.fill(0, SIZE, number);
        let sge = self.setup.memory.sge(0, SIZE).expect("inside");
        // SAFETY: as above; the next message is written after this one's completion.
        unsafe { self.qp.post_send(SEND, op::Send, sge, PostFlags::SIGNALED).expect("space") };
        loop {
            match self.setup.completion().wr_id {
                SEND => return,
                _ => self.arrived += 1,
            }
        }
    }

    /// Waits for a message, then posts the receive for the next one.
    fn arrival(&mut self) {
        while self.arrived == 0 {
            self.arrived += u64::from(self.setup.completion().wr_id == RECEIVE);
        }
        self.arrived -= 1;
        // Looked at before the peer can send again, which it does when it is answered.
        self.receive();
    }
}
