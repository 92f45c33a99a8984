//! A DC target: answers any initiator that knows its access key.
//!
//! Each initiator gets a session with a responder of its own. The sessions share the receive queue,
//! the completion queue and the rights. A refused request ends only its own session. The number of
//! sessions is bounded.
//!
//! It is unconfirmed what a ConnectX does when the key is wrong or the bound is reached. This
//! device drops packets with a wrong key, so that the initiator's retries run out. When no session
//! is free, it answers "receiver not ready".

use std::collections::{BTreeMap, VecDeque};

use super::super::env::Env;
use super::dc_initiator::{FRESH, is_routed_by_gid};
use super::receive::ReceiveWqe;
use super::responder::Responder;
use super::{AddressPath, Qp, QpType};
use crate::core::Event;
use crate::packet::{
    Addressing, Aeth, DcEth, Gid, NakCode, Opcode, Operation, Psn, RnrTimer, Syndrome, View,
};

/// Most sessions at a time. When all are in use, a new one replaces the one that has been idle
/// longest, if it was idle for at least [`KEPT`].
const SESSIONS: usize = 1024;

/// The shortest time that an idle session is kept, in nanoseconds.
const KEPT: u64 = 2 * FRESH;

/// The time in nanoseconds that a message may pause before another session may take its receive, if
/// no other receive is posted.
const ABANDONED: u64 = 4 * FRESH;

/// An initiator, as packets name it: its GID or LID, and its number.
type Peer = (Gid, u16, u32);

/// The state of a target in addition to its settings.
#[derive(Debug)]
pub(super) struct Target {
    sessions: BTreeMap<Peer, Box<Session>>,
    /// Sessions with answers to send, each at most once, with their numbers. The number keeps an
    /// entry of an ended session from counting for its peer's next session.
    ready: VecDeque<(Peer, u32)>,
    /// The session whose packet is being handled, or whose answers are being sent.
    current: Option<Current>,
    /// Receives that were taken for messages that were never completed.
    #[allow(clippy::vec_box, reason = "they come and go in their boxes")]
    unused: Vec<Box<ReceiveWqe>>,
    /// Whether a packet with a wrong key raises an event.
    is_armed: bool,
}

/// The fields that a session's answers carry.
#[derive(Clone, Copy, Debug)]
struct Current {
    attempt: u64,
    number: u32,
}

/// A session with one initiator.
#[derive(Debug)]
struct Session {
    answers: Current,
    /// PSN of the CONNECT that began it.
    connected: Psn,
    responder: Responder,
    /// The path back to the initiator.
    path: AddressPath,
    /// When the last packet from the initiator arrived.
    last_packet: u64,
    /// Whether it is in `ready`.
    is_queued: bool,
}

impl Target {
    pub(super) fn new() -> Self {
        Self {
            sessions: BTreeMap::new(),
            ready: VecDeque::new(),
            current: None,
            unused: Vec::new(),
            is_armed: false,
        }
    }

    fn end(&mut self, peer: Peer) {
        if let Some(mut session) = self.sessions.remove(&peer) {
            self.unused.extend(session.responder.take_receive());
        }
    }

    /// Makes space for a session, if necessary by ending another one. Returns `false` if none may
    /// be ended.
    fn reserve_session(&mut self, now: u64) -> bool {
        if self.sessions.len() < SESSIONS {
            return true;
        }
        let oldest = self.sessions.iter().min_by_key(|(_, session)| session.last_packet);
        let Some((&peer, session)) = oldest else { return true };
        let unused = now.saturating_sub(session.last_packet) >= KEPT;
        if unused {
            self.end(peer);
        }
        unused
    }

    /// Ends a session whose message has paused for too long, to reuse its receive.
    fn reclaim(&mut self, now: u64) {
        let abandoned = self.sessions.iter().find(|(_, session)| {
            session.responder.has_receive() && now.saturating_sub(session.last_packet) >= ABANDONED
        });
        if let Some((&peer, _)) = abandoned {
            self.end(peer);
        }
    }
}

impl Qp {
    pub(super) fn is_target(&self) -> bool {
        self.params.qp_type == QpType::DcTarget
    }

    /// Handles a packet for a target.
    pub(super) fn receive_for_target(
        &mut self,
        env: &mut Env,
        from: &Addressing,
        packet: &View<'_>,
    ) {
        let known = packet.dceth.filter(|dceth| dceth.key.get() == self.params.access_key);
        let Some(dceth) = known else {
            env.counters.dropped += 1;
            return self.report_violation(env);
        };
        let by_gid = is_routed_by_gid(env);
        let gid = if by_gid { from.source } else { Gid::default() };
        let peer = (gid, if by_gid { 0 } else { from.source_lid }, dceth.sender());
        match packet.operation {
            Operation::Connect => self.accept(env, from, packet, peer),
            operation => {
                let number = dceth.session.get();
                if !self.target.as_ref().is_some_and(|target| target.has(peer, number)) {
                    env.counters.dropped += 1;
                } else if operation == Operation::Disconnect {
                    self.target.iter_mut().for_each(|target| target.end(peer));
                } else {
                    self.in_session(env, peer, |qp, env| qp.receive_request(env, from, packet));
                }
            }
        }
    }

    /// Arms an event for the next packet with a wrong key. Returns `false` if this is not a target.
    pub(in crate::core) fn arm_for_violation(&mut self) -> bool {
        self.target.iter_mut().for_each(|target| target.is_armed = true);
        self.target.is_some()
    }

    fn report_violation(&mut self, env: &mut Env) {
        let armed = self.target.as_mut().map(|target| std::mem::take(&mut target.is_armed));
        if armed == Some(true) {
            env.events.push_back(Event::AccessKeyViolation { dctn: self.number });
        }
    }

    /// Handles a CONNECT: begins a session, or repeats the answer to an earlier CONNECT.
    fn accept(&mut self, env: &mut Env, from: &Addressing, packet: &View<'_>, peer: Peer) {
        let Some(attempt) = packet.dc_connect.map(|connect| connect.number()) else { return };
        let psn = packet.bth.psn();
        let number = (env.connections.draw() as u32).max(1);
        let path = self.path_back(env, from);
        let Some(target) = &mut self.target else { return };
        if let Some(session) = target.sessions.get(&peer) {
            match session.order(attempt) {
                Order::Older => return,
                Order::Same => {
                    // The arrival of a request shows that the initiator received the answer.
                    let number = session.answers.number;
                    if session.is_unused() {
                        let answers = Current { attempt, number };
                        self.answer_connect(env, &path, peer, psn, answers, Syndrome::ACK);
                    }
                    return;
                }
                Order::Newer => target.end(peer),
            }
        }
        let mut answers = Current { attempt, number };
        if !target.reserve_session(env.now) {
            answers.number = 0;
            let timer = RnrTimer::new(self.settings.min_rnr_timer);
            env.counters.rnr_naks += 1;
            let syndrome = Syndrome::RnrNak(timer);
            return self.answer_connect(env, &path, peer, psn, answers, syndrome);
        }
        let mut responder = Responder::default();
        responder.expect(psn.next());
        let session = Session {
            answers,
            connected: psn,
            responder,
            path,
            last_packet: env.now,
            is_queued: false,
        };
        target.sessions.insert(peer, Box::new(session));
        self.answer_connect(env, &path, peer, psn, answers, Syndrome::ACK);
    }

    fn answer_connect(
        &mut self,
        env: &mut Env,
        path: &AddressPath,
        peer: Peer,
        psn: Psn,
        answers: Current,
        syndrome: Syndrome,
    ) {
        let own = std::mem::replace(&mut self.settings.path, *path);
        self.settings.destination_qpn = peer.2;
        let mut packet = env.pool.take();
        packet.start(self.route(env), self.bth(env, Opcode::DC_ACKNOWLEDGE, psn));
        self.settings.path = own;
        packet.push(DcEth::new(answers.attempt, self.number.0, answers.number));
        packet.push(Aeth::new(syndrome, 0));
        env.send(packet);
    }

    /// The path to the sender of a packet. An answer's source address is the packet's destination.
    fn path_back(&self, env: &Env, from: &Addressing) -> AddressPath {
        let gids = &env.config.gids;
        let own = gids.iter().position(|gid| env.is_same_port(*gid, from.destination));
        let own_path = self.settings.path;
        AddressPath {
            source_gid_index: own.map_or(own_path.source_gid_index, |index| index as u8),
            global: from.global,
            destination_gid: from.source,
            destination_lid: from.source_lid,
            source_path_bits: (from.destination_lid ^ env.config.lid) as u8,
            service_level: from.service_level,
            destination_mac: [0; 6],
            udp_source_port: 0,
            ..own_path
        }
    }

    /// Runs `work` as the responder of a session.
    fn in_session<R>(
        &mut self,
        env: &mut Env,
        peer: Peer,
        work: impl FnOnce(&mut Self, &mut Env) -> R,
    ) -> Option<R> {
        let target = self.target.as_mut()?;
        let session = target.sessions.get_mut(&peer)?;
        session.last_packet = env.now;
        target.current = Some(session.answers);
        std::mem::swap(&mut self.responder, &mut session.responder);
        let own = std::mem::replace(&mut self.settings.path, session.path);
        self.settings.destination_qpn = peer.2;
        let done = work(self, env);
        self.settings.path = own;
        let target = self.target.as_mut()?;
        target.current = None;
        let session = target.sessions.get_mut(&peer)?;
        std::mem::swap(&mut self.responder, &mut session.responder);
        if !session.responder.answers.is_empty() && !std::mem::replace(&mut session.is_queued, true)
        {
            target.ready.push_back((peer, session.answers.number));
        }
        Some(done)
    }

    /// Sends at most `budget` packets of answers, alternating between the sessions.
    pub(super) fn run_sessions(&mut self, env: &mut Env, budget: u32) -> u32 {
        let mut sent = 0;
        while sent < budget {
            let Some(target) = &mut self.target else { break };
            let Some((peer, number)) = target.ready.pop_front() else { break };
            let session = target.sessions.get_mut(&peer);
            let Some(session) = session.filter(|session| session.answers.number == number) else {
                continue;
            };
            session.is_queued = false;
            let turn = (budget - sent).min(env.config.turn.max(1));
            let answered = self.in_session(env, peer, |qp, env| qp.send_answers(env, turn));
            sent += answered.unwrap_or(0);
        }
        sent
    }

    /// As `send_due_answers`, for all sessions.
    pub(super) fn send_due_answers_of_sessions(&mut self, env: &mut Env) {
        let ready = self.target.as_mut().map(|target| std::mem::take(&mut target.ready));
        for (peer, _) in ready.unwrap_or_default() {
            self.in_session(env, peer, |qp, env| qp.send_due_answers(env));
        }
    }

    /// The header of the current session's answers.
    pub(super) fn answer_header(&self) -> Option<DcEth> {
        let Current { attempt, number } = self.target.as_ref()?.current?;
        Some(DcEth::new(attempt, self.number.0, number))
    }

    /// Refuses a request: a NAK follows the answers that are due, and the session accepts nothing
    /// more. (How a ConnectX's target treats an error of one initiator is unconfirmed.)
    pub(super) fn refuse_session(&mut self, env: &mut Env, psn: Psn, code: NakCode) {
        let unused = self.responder.take_receive();
        self.target.iter_mut().zip(unused).for_each(|(target, wqe)| target.unused.push(wqe));
        self.responder.refuse(psn, code);
        self.schedule(env);
    }

    /// A receive that was taken for a message that was never completed.
    pub(super) fn take_unused_receive(&mut self) -> Option<Box<ReceiveWqe>> {
        self.target.as_mut()?.unused.pop()
    }

    /// The receive of a message that has paused for too long.
    pub(super) fn reclaim_receive(&mut self, env: &Env) -> Option<Box<ReceiveWqe>> {
        self.target.as_mut()?.reclaim(env.now);
        self.take_unused_receive()
    }
}

impl Target {
    fn has(&self, peer: Peer, number: u32) -> bool {
        let session = self.sessions.get(&peer).filter(|session| !session.responder.is_refused());
        session.is_some_and(|session| session.answers.number == number)
    }
}

/// How an attempt to connect relates to the one that began a session.
enum Order {
    Older,
    Same,
    Newer,
}

impl Session {
    /// The initiator counts its attempts. If the random half differs, a new initiator has the
    /// number of a destroyed one.
    fn order(&self, attempt: u64) -> Order {
        let own = self.answers.attempt;
        if own >> 32 != attempt >> 32 {
            return Order::Newer;
        }
        match (attempt as u32).wrapping_sub(own as u32) as i32 {
            0 => Order::Same,
            1.. => Order::Newer,
            _ => Order::Older,
        }
    }

    fn is_unused(&self) -> bool {
        self.responder.expected() == self.connected.next()
    }
}
