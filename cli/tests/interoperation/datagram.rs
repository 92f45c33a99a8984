//! `ibv_ud_pingpong`: messages of one packet, after the 40 bytes of a routing header.

use uverbs::ah::GRH_BYTES;
use uverbs::qp::{Datagram, PostFlags};
use uverbs::qp_type::Ud;
use uverbs::{op, raw};

use crate::peer::{Peer, Role, is_installed};
use crate::{DATAGRAM, ROUNDS, Setup};

const SEND: u64 = 1;
const RECEIVE: u64 = 2;
const INCOMING: usize = 4096;

struct Game {
    setup: Setup,
    qp: raw::QueuePair<Ud>,
    arrived: u64,
}

/// Runs one pingpong.
pub(crate) fn play(role: Role) {
    let program = "ibv_ud_pingpong";
    if !is_installed(program) {
        return;
    }
    let setup = Setup::new();
    let qp = setup.pd.create_raw_qp::<Ud>(setup.cq.handle(), setup.cq.handle());
    let mut qp = qp.build().expect("a queue pair");
    qp.activate().expect("active");
    let mut game = Game { setup, qp, arrived: 0 };
    game.receive();
    let own = game.qp.endpoint();
    let (rounds, size) = (ROUNDS.to_string(), DATAGRAM.to_string());
    let mut peer = Peer::meet(program, &["-n", &rounds, "-s", &size], game.qp.gid(), role);
    let mut there = None;
    peer.exchange(role, &[own], |peers| {
        let address = game.qp.address_of(&peers[0]).expect("reachable");
        let handle = game.setup.pd.create_ah(&address).expect("an address handle");
        there = Some(handle.datagram_to(&peers[0]));
    });
    let there = there.expect("exchanged");
    for round in 0..ROUNDS {
        match role {
            Role::Client => {
                game.send(Datagram(&there), round);
                game.arrival();
                game.setup.check(INCOMING + GRH_BYTES, DATAGRAM, round);
            }
            Role::Server => {
                game.arrival();
                if let Some(before) = round.checked_sub(1) {
                    game.setup.check(INCOMING + GRH_BYTES, DATAGRAM, before);
                }
                game.send(Datagram(&there), round);
            }
        }
    }
    peer.end();
}

impl Game {
    fn receive(&mut self) {
        let sge = self.setup.memory.sge(INCOMING, GRH_BYTES + DATAGRAM).expect("inside");
        // SAFETY: the memory lives as long as the queue pair and is only looked at after the
        // completion.
        unsafe { self.qp.post_receive(RECEIVE, &[sge]).expect("space") };
    }

    fn send(&mut self, there: Datagram<'_>, number: u64) {
        self.setup.fill(0, DATAGRAM, number);
        let sge = self.setup.memory.sge(0, DATAGRAM).expect("inside");
        // SAFETY: as above; the next message is written after this one's completion.
        unsafe {
            self.qp
                .post_send(SEND, op::To(there, op::Send), sge, PostFlags::SIGNALED)
                .expect("space")
        };
        while self.setup.completion().wr_id != SEND {
            self.arrived += 1;
        }
    }

    fn arrival(&mut self) {
        while self.arrived == 0 {
            self.arrived += u64::from(self.setup.completion().wr_id == RECEIVE);
        }
        self.arrived -= 1;
        self.receive();
    }
}
