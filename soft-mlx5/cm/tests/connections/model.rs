//! The programs, with checks of the events that each gets.
//!
//! Every attempt to connect has a token in the private data of REQ and REP. With it the model finds
//! the ids that belong together, and compares both sides' state.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use uverbs_soft_cm::ib_cm::{CmId, Ece, Event, MraTiming, Path, RepParam, ReqParam, State};
use uverbs_soft_cm::mad::{RejReason, Req, TransportService};
use uverbs_soft_packet::Addressing;

use crate::network::{Faults, MILLISECOND, Network, gid};

const HOSTS: usize = 3;
const ATTEMPTS: u64 = 25;
const SERVICE: u64 = 0x0106_1c06;
const REJECTED: &[u8] = b"the model refuses";

/// The counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) attempts: u64,
    /// Requests that a server accepted.
    pub(crate) accepted: u64,
    /// Attempts that both sides call established.
    pub(crate) established: u64,
    pub(crate) rejected: u64,
    /// Attempts that their client gave up.
    pub(crate) cancelled: u64,
    pub(crate) unreachable: u64,
    pub(crate) trace: u64,
}

/// A program's planned action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Task {
    Connect(u64),
    Accept(usize, CmId),
    Confirm(usize, CmId),
    Disconnect(usize, CmId),
    Agree(usize, CmId),
    Destroy(usize, CmId),
}

/// The stage of an id according to its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Asking,
    Asked,
    Accepting,
    Answered,
    Established,
    Ending,
    Over,
}

#[derive(Clone, Copy, Debug)]
struct Side {
    token: u64,
    active: bool,
    stage: Stage,
}

/// The values that both sides of an attempt agreed on.
#[derive(Clone, Debug, Default)]
struct Attempt {
    client_host: usize,
    client_psn: u32,
    client_depth: u8,
    /// Ids that accepted, with their PSNs: a request that arrives again after a refusal or after
    /// its connection makes another id.
    accepted: Vec<(usize, CmId, u32)>,
    /// The accepting id whose reply the client received.
    chosen: Option<(usize, CmId)>,
    client_established: bool,
    server_established: bool,
}

pub(crate) struct Run {
    network: Network,
    tasks: BinaryHeap<Reverse<(u64, u64, Task)>>,
    order: u64,
    sides: HashMap<(usize, CmId), Side>,
    attempts: BTreeMap<u64, Attempt>,
    outcome: Outcome,
}

fn qpn(token: u64, server: bool) -> u32 {
    0x1000 + 2 * token as u32 + u32::from(server)
}

impl Run {
    pub(crate) fn new(seed: u64, faults: Faults) -> Self {
        let (tasks, order, outcome) = (BinaryHeap::new(), 0, Outcome::default());
        let (sides, attempts) = Default::default();
        let network = Network::new(seed, HOSTS, faults);
        let mut run = Self { network, tasks, order, sides, attempts, outcome };
        for host in 0..HOSTS {
            let listener = run.network.hosts[host].create();
            run.network.hosts[host].listen(listener, SERVICE, 0).unwrap();
        }
        for token in 0..ATTEMPTS {
            run.later(30_000, Task::Connect(token));
        }
        run
    }

    fn later(&mut self, milliseconds: u64, task: Task) {
        let at = self.network.now + self.network.prng.within(0, milliseconds) * MILLISECOND;
        self.order += 1;
        self.tasks.push(Reverse((at, self.order, task)));
    }

    /// Runs until no task, datagram or timer is left.
    pub(crate) fn run_to_end(mut self) -> Outcome {
        loop {
            self.handle_events();
            let task = self.tasks.peek().map(|Reverse((at, ..))| *at);
            let Some(next) = self.network.next_time().into_iter().chain(task).min() else {
                break;
            };
            self.network.advance(next);
            // An event at the same time may have ended the task's id.
            self.handle_events();
            if task.is_some_and(|at| at <= self.network.now) {
                let Some(Reverse((_, _, task))) = self.tasks.pop() else { break };
                self.perform(task);
            }
        }
        self.verify();
        self.outcome
    }

    fn handle_events(&mut self) {
        self.network.send_outgoing();
        while let Some((host, id, event)) = self.network.take_event() {
            self.on_event(host, id, event);
            self.network.send_outgoing();
        }
    }

    fn perform(&mut self, task: Task) {
        match task {
            Task::Connect(token) => self.connect(token),
            Task::Accept(host, id) => self.accept(host, id),
            Task::Confirm(host, id) => self.confirm(host, id),
            Task::Disconnect(host, id) => {
                // The peer may have been faster.
                let _ = self.network.hosts[host].send_dreq(self.network.now, id, &[]);
            }
            Task::Agree(host, id) => {
                let _ = self.network.hosts[host].send_drep(self.network.now, id, &[]);
                self.later(100, Task::Destroy(host, id));
            }
            Task::Destroy(host, id) => self.destroy(host, id),
        }
    }

    fn connect(&mut self, token: u64) {
        let client = self.network.prng.below(HOSTS as u64) as usize;
        let server = self.network.prng.below(HOSTS as u64) as usize;
        let psn = self.network.prng.next() as u32 & 0xff_ffff;
        let depth = self.network.prng.within(1, 16) as u8;
        let addressing = Addressing::roce(gid(client), gid(server));
        let param = ReqParam {
            service_id: SERVICE,
            path: Path { addressing, pkey: 0xffff, mtu: 3, rate: 0, life: 16 },
            transport: TransportService::Rc,
            qpn: qpn(token, false),
            starting_psn: psn,
            responder_resources: 1,
            initiator_depth: depth,
            remote_cm_response_timeout: 20,
            local_cm_response_timeout: 20,
            flow_control: false,
            retry_count: 7,
            rnr_retry_count: 7,
            max_cm_retries: 15,
            srq: false,
            ece: Ece::default(),
            private_data: &token.to_be_bytes(),
        };
        let id = self.network.hosts[client].create();
        self.network.hosts[client].send_req(self.network.now, id, &param).unwrap();
        self.sides.insert((client, id), Side { token, active: true, stage: Stage::Asking });
        let attempt = Attempt {
            client_host: client,
            client_psn: psn,
            client_depth: depth,
            ..Attempt::default()
        };
        self.attempts.insert(token, attempt);
        self.outcome.attempts += 1;
        if self.network.prng.chance(50_000) {
            self.later(10_000, Task::Destroy(client, id));
        }
    }

    /// An event must fit the stage of its id; no id gets the same event twice.
    fn on_event(&mut self, host: usize, id: CmId, event: Event) {
        if let Event::ReqReceived(_, req) = &event {
            return self.requested(host, id, req);
        }
        let side = *self.sides.get(&(host, id)).expect("an id of the model's");
        let state = self.network.hosts[host].state(id);
        let now = (side.stage, side.active);
        match event {
            Event::RepReceived(_, rep) => {
                assert_eq!(now, (Stage::Asking, true));
                assert_eq!(rep.private_data[..8], side.token.to_be_bytes());
                self.stage(host, id, Stage::Answered);
                self.later(6000, Task::Confirm(host, id));
                self.network.hosts[host].send_mra(id, 24, MraTiming::OnDuplicate, &[]).unwrap();
            }
            Event::RtuReceived(_) => {
                assert_eq!(now, (Stage::Accepting, false));
                self.established(host, id);
            }
            Event::MraReceived(_) => {
                assert!(matches!(side.stage, Stage::Asking | Stage::Accepting))
            }
            Event::RejReceived(rej) => {
                assert!(side.stage != Stage::Over);
                self.rejected(side, rej.reason(), &rej.private_data);
                self.over(host, id);
            }
            Event::ReqError => {
                assert_eq!(now, (Stage::Asking, true));
                self.outcome.unreachable += 1;
                self.over(host, id);
            }
            Event::RepError => {
                assert_eq!(now, (Stage::Accepting, false));
                self.over(host, id);
            }
            Event::DreqReceived(_) => {
                // Also before the RTU, because the peer has an established connection.
                assert!(matches!(side.stage, Stage::Accepting | Stage::Established));
                if side.stage == Stage::Accepting {
                    self.confirmed(host, id, side);
                }
                assert_eq!(state, Some(State::DreqReceived));
                self.stage(host, id, Stage::Ending);
                self.later(3000, Task::Agree(host, id));
            }
            Event::DrepReceived(_) | Event::DreqError => {
                assert!(matches!(side.stage, Stage::Established | Stage::Ending));
                assert_eq!(state, Some(State::TimeWait));
                self.stage(host, id, Stage::Ending);
            }
            Event::TimewaitExit => {
                assert_eq!(state, Some(State::Idle));
                self.over(host, id);
            }
            event => panic!("unexpected {event:?}"),
        }
    }

    fn stage(&mut self, host: usize, id: CmId, stage: Stage) {
        self.sides.get_mut(&(host, id)).expect("an id of the model's").stage = stage;
    }

    fn over(&mut self, host: usize, id: CmId) {
        self.stage(host, id, Stage::Over);
        self.later(50, Task::Destroy(host, id));
    }

    fn requested(&mut self, host: usize, id: CmId, req: &Req) {
        let token = u64::from_be_bytes(req.private_data[..8].try_into().unwrap());
        let attempt = &self.attempts[&token];
        assert_eq!((req.qpn(), req.starting_psn()), (qpn(token, false), attempt.client_psn));
        assert_eq!(req.initiator_depth(), attempt.client_depth);
        self.sides.insert((host, id), Side { token, active: false, stage: Stage::Asked });
        self.network.hosts[host].send_mra(id, 24, MraTiming::OnDuplicate, &[]).unwrap();
        match self.network.prng.below(10) {
            0 => {
                let (reason, now) = (RejReason::CONSUMER_DEFINED, self.network.now);
                self.network.hosts[host].send_rej(now, id, reason, &[], REJECTED).unwrap();
                self.over(host, id);
            }
            _ => self.later(8000, Task::Accept(host, id)),
        }
    }

    fn accept(&mut self, host: usize, id: CmId) {
        let Some(side) = self.sides.get(&(host, id)).copied() else { return };
        if side.stage != Stage::Asked {
            return;
        }
        let psn = self.network.prng.next() as u32 & 0xff_ffff;
        let rep = RepParam {
            qpn: qpn(side.token, true),
            starting_psn: psn,
            responder_resources: self.attempts[&side.token].client_depth,
            initiator_depth: 1,
            rnr_retry_count: 7,
            private_data: &side.token.to_be_bytes(),
            ..RepParam::default()
        };
        self.network.hosts[host].send_rep(self.network.now, id, &rep).unwrap();
        self.stage(host, id, Stage::Accepting);
        self.outcome.accepted += 1;
        self.attempt(side).accepted.push((host, id, psn));
    }

    fn confirm(&mut self, host: usize, id: CmId) {
        if self.sides.get(&(host, id)).is_none_or(|side| side.stage != Stage::Answered) {
            return;
        }
        self.compare(host, id);
        self.network.hosts[host].send_rtu(id, &[]).unwrap();
        self.established(host, id);
    }

    /// The client's queue pair gets the server's attributes, and the reverse.
    fn compare(&mut self, host: usize, id: CmId) {
        let side = self.sides[&(host, id)];
        let (token, attempt) = (side.token, &self.attempts[&side.token]);
        let (rtr, rts) = (
            self.network.hosts[host].rtr_attr(id).unwrap(),
            self.network.hosts[host].rts_attr(id).unwrap(),
        );
        assert_eq!((rtr.dest_qpn, rtr.rq_psn), (qpn(token, true), attempt.client_psn));
        let requester = rts.requester.expect("RC");
        assert_eq!(requester.max_rd_atomic, attempt.client_depth);
        let server = attempt.accepted.iter().find(|(.., psn)| *psn == rts.sq_psn);
        let (server_host, server_id, _) = *server.expect("a server gave this PSN");
        assert_eq!(rtr.path.addressing.destination, gid(server_host));
        self.attempt(side).chosen = Some((server_host, server_id));
    }

    fn established(&mut self, host: usize, id: CmId) {
        self.stage(host, id, Stage::Established);
        let side = self.sides[&(host, id)];
        if side.active {
            let attempt = self.attempt(side);
            assert!(!attempt.client_established, "twice");
            attempt.client_established = true;
        } else {
            self.confirmed(host, id, side);
        }
        match self.network.prng.below(8) {
            0 => self.later(20_000, Task::Destroy(host, id)),
            _ => self.later(20_000, Task::Disconnect(host, id)),
        }
    }

    /// The client confirms first, and only one of the server's ids.
    fn confirmed(&mut self, host: usize, id: CmId, side: Side) {
        let attempt = self.attempt(side);
        assert!(attempt.client_established && !attempt.server_established);
        assert_eq!(attempt.chosen, Some((host, id)));
        attempt.server_established = true;
        self.outcome.established += 1;
    }

    fn attempt(&mut self, side: Side) -> &mut Attempt {
        self.attempts.get_mut(&side.token).expect("every side is of an attempt")
    }

    fn rejected(&mut self, side: Side, reason: RejReason, data: &[u8]) {
        if !side.active {
            return;
        }
        assert!(matches!(side.stage, Stage::Asking), "{side:?} {reason:?}");
        if reason == RejReason::CONSUMER_DEFINED && data[..REJECTED.len()] == *REJECTED {
            self.outcome.rejected += 1;
        }
    }

    fn destroy(&mut self, host: usize, id: CmId) {
        let Some(side) = self.sides.remove(&(host, id)) else { return };
        if side.active && matches!(side.stage, Stage::Asking | Stage::Answered) {
            self.outcome.cancelled += 1;
        }
        self.network.hosts[host].destroy(self.network.now, id).unwrap();
    }

    /// At the end no host has more than its listener.
    fn verify(&mut self) {
        assert!(self.sides.is_empty(), "{:?}", self.sides);
        for cm in &self.network.hosts {
            assert_eq!((cm.id_count(), cm.next_wake()), (1, None));
        }
        for attempt in self.attempts.values() {
            assert!(attempt.client_host < HOSTS);
            assert!(!attempt.server_established || attempt.client_established);
        }
        self.outcome.trace = self.network.trace;
    }
}
