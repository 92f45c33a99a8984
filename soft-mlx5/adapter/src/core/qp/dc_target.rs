//! A DC target: answers any initiator that knows its access key.
//!
//! Each initiator gets a session, with a responder of its own; the sessions have the shared receive
//! queue, the completion queue and the rights in common. A refused request ends its session only:
//! the target goes on. The number of sessions is bounded.
//!
//! What a ConnectX does where the key is wrong or the bound is reached is unconfirmed. This device
//! drops packets with a wrong key, so that the initiator's retries run out; without a place for a
//! session it says that it is not ready.

use std::collections::{BTreeMap, VecDeque};

use super::super::env::Env;
use super::dc_initiator::{FRESH, is_routed_by_gid};
use super::receive::ReceiveWqe;
use super::responder::Responder;
use super::{AddressPath, Qp, QpType};
use crate::packet::{
    Addressing, Aeth, DcEth, Gid, NakCode, Opcode, Operation, Psn, RnrTimer, Syndrome, View,
};

/// Most sessions at a time. With as many, the one that was not used for the longest time ends for a
/// new one, if it was not used for [`KEPT`].
const SESSIONS: usize = 1024;

/// How long an unused session is kept at least, in nanoseconds.
const KEPT: u64 = 2 * FRESH;

/// How long a message may pause before another session may have its receive, if there is no other,
/// in nanoseconds.
const ABANDONED: u64 = 4 * FRESH;

/// An initiator, as packets name it: its GID or LID, and its number.
type Peer = (Gid, u16, u32);

/// What a target knows beside its settings.
#[derive(Debug)]
pub(super) struct Target {
    sessions: BTreeMap<Peer, Box<Session>>,
    /// Sessions with answers to send, each at most once, with their numbers: what is left of one
    /// that has ended is no turn of its peer's next one.
    ready: VecDeque<(Peer, u32)>,
    /// The session whose packet is being handled, or whose answers are being sent.
    current: Option<Current>,
    /// Receives that were taken for messages that never ended.
    #[allow(clippy::vec_box, reason = "they come and go in their boxes")]
    unused: Vec<Box<ReceiveWqe>>,
}

/// What answers of a session name.
#[derive(Clone, Copy, Debug)]
struct Current {
    attempt: u64,
    number: u32,
}

/// What a target knows of one initiator.
#[derive(Debug)]
struct Session {
    answers: Current,
    /// PSN of the CONNECT that made it.
    connected: Psn,
    responder: Responder,
    /// The way back.
    path: AddressPath,
    /// When the initiator was last heard.
    heard: u64,
    /// It is in `ready`.
    is_queued: bool,
}

impl Target {
    pub(super) fn new() -> Self {
        Self {
            sessions: BTreeMap::new(),
            ready: VecDeque::new(),
            current: None,
            unused: Vec::new(),
        }
    }

    fn end(&mut self, peer: Peer) {
        if let Some(mut session) = self.sessions.remove(&peer) {
            self.unused.extend(session.responder.take_receive());
        }
    }

    /// Ends a session if there is no place for another one. `false` if there still is none.
    fn reserve_session(&mut self, now: u64) -> bool {
        if self.sessions.len() < SESSIONS {
            return true;
        }
        let oldest = self.sessions.iter().min_by_key(|(_, session)| session.heard);
        let Some((&peer, session)) = oldest else { return true };
        let unused = now.saturating_sub(session.heard) >= KEPT;
        if unused {
            self.end(peer);
        }
        unused
    }

    /// Ends a session whose message has paused for too long, for the sake of its receive.
    fn reclaim(&mut self, now: u64) {
        let abandoned = self.sessions.iter().find(|(_, session)| {
            session.responder.has_receive() && now.saturating_sub(session.heard) >= ABANDONED
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

    /// A packet for a target arrived.
    pub(super) fn receive_for_target(
        &mut self,
        env: &mut Env,
        from: &Addressing,
        packet: &View<'_>,
    ) {
        let known = packet.dceth.filter(|dceth| dceth.key.get() == self.params.access_key);
        let Some(dceth) = known else {
            env.counters.dropped += 1;
            return;
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

    /// A CONNECT: begins a session, or repeats the answer to a CONNECT that came before.
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
                    // Once a request has come, the initiator has heard the answer.
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
        let session =
            Session { answers, connected: psn, responder, path, heard: env.now, is_queued: false };
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

    /// The way to the sender of a packet. The answer has the address as its source that the packet
    /// was sent to.
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
        session.heard = env.now;
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

    /// Sends at most `budget` packets of answers, the sessions in turn.
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

    /// As `send_promised`, for all sessions.
    pub(super) fn send_promised_of_sessions(&mut self, env: &mut Env) {
        let ready = self.target.as_mut().map(|target| std::mem::take(&mut target.ready));
        for (peer, _) in ready.unwrap_or_default() {
            self.in_session(env, peer, |qp, env| qp.send_promised(env));
        }
    }

    /// The header of the answers of the session that is at work.
    pub(super) fn answer_header(&self) -> Option<DcEth> {
        let Current { attempt, number } = self.target.as_ref()?.current?;
        Some(DcEth::new(attempt, self.number.0, number))
    }

    /// Refuses a request finally: a NAK follows the answers that are due, and the session takes
    /// nothing more. (What an error at one initiator means for a ConnectX's target is unconfirmed.)
    pub(super) fn refuse_session(&mut self, env: &mut Env, psn: Psn, code: NakCode) {
        let unused = self.responder.take_receive();
        self.target.iter_mut().zip(unused).for_each(|(target, wqe)| target.unused.push(wqe));
        self.responder.refuse(psn, code);
        self.schedule(env);
    }

    /// A receive that was taken for a message that never ended.
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

/// How an attempt to connect relates to the one that made a session.
enum Order {
    Older,
    Same,
    Newer,
}

impl Session {
    /// Attempts of one incarnation are counted. Another incarnation is another initiator, which
    /// has the number of one that is gone.
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
