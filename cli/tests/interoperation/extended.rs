//! `ibv_xsrq_pingpong`: an initiator and a target at each end. A message names the peer's shared
//! receive queue by its number. The server sends first. At the end both send a message over TCP.

use uverbs::qp::{PathOptions, PostFlags, XrcReceiver, XrcTarget};
use uverbs::qp_type::Xrc;
use uverbs::{Endpoint, ErrorKind, XrcDomain, op, raw};

use crate::peer::{Peer, Role, endpoint, gid_text, is_installed, number};
use crate::{ROUNDS, SIZE, Setup, success};

/// Characters of an address: LID, both queue pairs, PSN, shared receive queue, GID.
const ADDRESS: usize = 65;
const INCOMING: usize = SIZE;

struct Game {
    initiator: raw::QueuePair<Xrc>,
    target: XrcReceiver,
    srq: raw::SharedReceiveQueue,
    arrivals: raw::CompletionQueue,
    _domain: XrcDomain,
    setup: Setup,
}

/// Runs one pingpong.
pub(crate) fn play(role: Role) {
    let program = "ibv_xsrq_pingpong";
    if !is_installed(program) {
        return;
    }
    let Some(mut game) = Game::new() else { return };
    game.receive();
    let rounds = ROUNDS.to_string();
    let mut peer = Peer::meet(program, &["-n", &rounds], game.initiator.gid(), role);
    let their_queue = game.exchange(&mut peer, role);
    for round in 0..ROUNDS {
        match role {
            // Both send the same number of messages. `ibv_xsrq_pingpong` sends the last one that it
            // has received.
            Role::Client => {
                game.arrival();
                if let Some(before) = round.checked_sub(1) {
                    game.setup.check(INCOMING, SIZE, before);
                }
                game.send(their_queue, round);
            }
            Role::Server => {
                game.send(their_queue, round);
                game.arrival();
                game.setup.check(INCOMING, SIZE, round);
            }
        }
    }
    match role {
        Role::Client => {
            peer.say("END");
            assert_eq!(peer.hear(3), "END");
        }
        Role::Server => {
            assert_eq!(peer.hear(3), "END");
            peer.say("END");
        }
    }
    peer.end();
}

impl Game {
    fn new() -> Option<Self> {
        let setup = Setup::new();
        let domain = match setup.context.open_xrcd() {
            Ok(domain) => domain,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                eprintln!("skipped: {error}");
                return None;
            }
        };
        let arrivals = setup.context.create_raw_cq(16).build().expect("a completion queue");
        let srq = setup
            .pd
            .create_raw_srq(4)
            .xrc(&domain, arrivals.handle())
            .build()
            .expect("a shared queue");
        let target = domain.create_receiver(PathOptions::default()).expect("a target");
        let initiator = setup.pd.create_raw_qp::<Xrc>(setup.cq.handle(), setup.cq.handle());
        let initiator = initiator.build().expect("an initiator");
        Some(Self { initiator, target, srq, arrivals, _domain: domain, setup })
    }

    /// Exchanges addresses and connects. Returns the number of the peer's shared receive queue.
    fn exchange(&mut self, peer: &mut Peer, role: Role) -> u32 {
        let own = self.initiator.endpoint();
        let say = format!(
            "{:04x}:{:06x}:{:06x}:{:06x}:{:06x}:{}",
            own.lid,
            self.target.number(),
            own.qpn,
            own.psn,
            self.srq.handle().number(),
            gid_text(own.gid)
        );
        if role == Role::Client {
            peer.say(&say);
        }
        let text = peer.hear(ADDRESS);
        if role == Role::Server {
            peer.say(&say);
        }
        let words: Vec<&str> = text.split(':').collect();
        let [lid, target, initiator, psn, queue, gid] = words[..] else {
            panic!("not an address: {text}")
        };
        let to = |qpn| Endpoint { qpn: number(qpn), psn: number(psn), ..endpoint(lid, gid, &own) };
        self.target.connect(&to(initiator)).expect("the target connects");
        self.initiator.connect(&to(target)).expect("the initiator connects");
        number(queue)
    }

    fn receive(&mut self) {
        let sge = self.setup.memory.sge(INCOMING, SIZE).expect("inside");
        // SAFETY: the memory lives as long as the queue and is read only after the completion.
        unsafe { self.srq.post(1, &[sge]).expect("space") };
    }

    fn send(&mut self, queue: u32, number: u64) {
        self.setup.fill(0, SIZE, number);
        let sge = self.setup.memory.sge(0, SIZE).expect("inside");
        let operation = op::To(XrcTarget(queue), op::Send);
        // SAFETY: as above; the next message is written after this one's completion.
        unsafe { self.initiator.post_send(1, operation, sge, PostFlags::SIGNALED).expect("space") };
        self.setup.completion();
    }

    fn arrival(&mut self) {
        assert_eq!(success(&mut self.arrivals).byte_len() as usize, SIZE);
        self.receive();
    }
}
