//! The responder's packets, in order: acknowledgements, READ responses, atomic results.

use super::super::env::Env;
use super::super::mkey::Accessor;
use super::super::{Access, Mkey};
use super::Qp;
use crate::packet::{Aeth, AtomicAckEth, Opcode, Packet, Position, Psn, Syndrome};

/// The packets that the responder still has to send for a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// PSN of its first packet.
    pub(super) psn: Psn,
    /// Whether it answers a duplicate request.
    is_duplicate: bool,
    body: Body,
}

#[derive(Clone, Copy, Debug)]
enum Body {
    /// An acknowledgement or a refusal.
    Short(Syndrome),
    Read(ReadAnswer),
    /// The value in memory before an atomic.
    Atomic(u64),
}

/// The data of a READ.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadAnswer {
    /// The protection domain and QP of the requester.
    pub(super) who: Accessor,
    pub(super) address: u64,
    pub(super) rkey: u32,
    pub(super) len: u32,
    /// Total number of packets.
    pub(super) packets: u32,
    /// Packets sent.
    pub(super) sent: u32,
}

impl Answer {
    const fn new(psn: Psn, body: Body) -> Self {
        Self { psn, is_duplicate: false, body }
    }

    pub(super) const fn short(psn: Psn, syndrome: Syndrome) -> Self {
        Self::new(psn, Body::Short(syndrome))
    }

    pub(super) const fn read(psn: Psn, read: ReadAnswer) -> Self {
        Self::new(psn, Body::Read(read))
    }

    pub(super) const fn atomic(psn: Psn, original: u64) -> Self {
        Self::new(psn, Body::Atomic(original))
    }

    /// The number of PSNs that it takes.
    pub(super) fn packets(&self) -> u32 {
        match &self.body {
            Body::Read(read) => read.packets,
            Body::Short(_) | Body::Atomic(_) => 1,
        }
    }

    pub(super) fn is_acknowledgement(&self) -> bool {
        matches!(self.body, Body::Short(Syndrome::Ack { .. }))
    }

    /// Whether it counts among the READs and atomics that the peer may have outstanding.
    fn is_counted(&self) -> bool {
        !self.is_duplicate && !matches!(self.body, Body::Short(_))
    }

    /// The PSN after its last packet's.
    fn end(&self) -> Psn {
        self.psn + self.packets()
    }

    /// The PSN of the next packet to send.
    fn next(&self) -> Psn {
        match &self.body {
            Body::Read(read) => self.psn + read.sent,
            Body::Short(_) | Body::Atomic(_) => self.psn,
        }
    }

    /// Restarts at `again`, if both answer the same request. A peer that repeats a READ has the
    /// responses before the repeated PSN, and discards later ones until that one arrives.
    fn restart(&mut self, again: &Self) -> bool {
        let is_same = !matches!(self.body, Body::Short(_)) && self.end() == again.end();
        if is_same && self.next() != again.psn {
            *self = Self { is_duplicate: self.is_duplicate, ..*again };
        }
        is_same
    }
}

impl Qp {
    /// Queues the answer to a duplicate request before all answers with a later PSN. If an answer
    /// to the same request is being sent, restarts that one. The queue is bounded, because a peer
    /// can repeat requests without end.
    pub(super) fn answer_duplicate(&mut self, env: &mut Env, answer: Answer) {
        const MOST_ANSWERS: usize = 512;
        let answers = &mut self.responder.answers;
        let psn = answer.psn;
        let restarts = answers.iter_mut().any(|other| other.restart(&answer));
        if restarts || answers.len() >= MOST_ANSWERS {
            return;
        }
        let later = answers.iter().position(|other| psn.precedes(other.psn));
        answers.insert(later.unwrap_or(answers.len()), Answer { is_duplicate: true, ..answer });
        self.schedule(env);
    }

    /// Sends at most `budget` packets of answers.
    pub(super) fn run_responder(&mut self, env: &mut Env, budget: u32) -> u32 {
        if self.is_target() {
            return self.run_sessions(env, budget);
        }
        self.send_answers(env, budget)
    }

    pub(super) fn send_answers(&mut self, env: &mut Env, budget: u32) -> u32 {
        let mut sent = 0;
        while sent < budget {
            let Some(answer) = self.responder.answers.pop_front() else { break };
            self.send_answer(env, answer);
            sent += 1;
        }
        sent
    }

    /// Sends the acknowledgements and atomic results that are due, before the QP is destroyed or
    /// reset. The host has seen the completions of these messages; a ConnectX would have sent the
    /// acknowledgements by then.
    pub(in crate::core) fn send_due_answers(&mut self, env: &mut Env) {
        self.send_due_answers_of_sessions(env);
        for answer in std::mem::take(&mut self.responder.answers) {
            if !matches!(answer.body, Body::Read(_)) {
                self.send_answer(env, answer);
            }
        }
    }

    /// Sends one packet of an answer, and puts the rest back in the queue.
    fn send_answer(&mut self, env: &mut Env, answer: Answer) {
        let psn = answer.psn;
        let was_last = match answer.body {
            Body::Short(syndrome) => {
                let mut packet = env.pool.take();
                self.start_answer(env, &mut packet, Opcode::RC_ACKNOWLEDGE, psn, Some(syndrome));
                env.send(packet);
                true
            }
            Body::Atomic(original) => {
                let mut packet = env.pool.take();
                let opcode = Opcode::RC_ATOMIC_ACKNOWLEDGE;
                self.start_answer(env, &mut packet, opcode, psn, Some(Syndrome::ACK));
                packet.push(AtomicAckEth { original: original.into() });
                env.send(packet);
                true
            }
            Body::Read(read) => self.send_read_data(env, answer, read),
        };
        if was_last && answer.is_counted() {
            self.responder.reads = self.responder.reads.saturating_sub(1);
        }
    }

    fn start_answer(
        &self,
        env: &Env,
        packet: &mut Packet,
        opcode: Opcode,
        psn: Psn,
        syndrome: Option<Syndrome>,
    ) {
        packet.start(self.route(env), self.bth(env, opcode.on(self.transport()), psn));
        self.answer_header().into_iter().for_each(|header| _ = packet.push(header));
        if let Some(syndrome) = syndrome {
            packet.push(Aeth::new(syndrome, self.responder.msn));
        }
    }

    /// Sends the next packet of a READ's data. Returns whether it was the last one.
    fn send_read_data(&mut self, env: &mut Env, answer: Answer, read: ReadAnswer) -> bool {
        let mtu = self.mtu(env);
        let position = Position::of(read.sent, read.packets);
        let opcode = Opcode::read_response(self.transport(), position);
        let has_aeth = position.starts() || position.ends();
        let psn = answer.psn + read.sent;
        let mut packet = env.pool.take();
        self.start_answer(env, &mut packet, opcode, psn, has_aeth.then_some(Syndrome::ACK));
        let offset = read.sent * mtu;
        let payload = packet.payload((read.len - offset).min(mtu) as usize);
        let (key, at) = (Mkey(read.rkey), read.address.wrapping_add(u64::from(offset)));
        let copied = env.mkeys.read(&*env.memory, read.who, key, at, payload, Access::REMOTE_READ);
        // A READ of no bytes accesses no memory, so its key is not checked.
        if read.len > 0 && copied.is_err() {
            env.pool.give(packet);
            // A repeated READ is dropped, as on arrival (`answer_again`): its first answer may have
            // arrived, and then the key was invalidated rightly.
            if !answer.is_duplicate {
                self.read_failed(env, psn);
            }
            return true;
        }
        env.send(packet);
        if position.ends() {
            return true;
        }
        let body = Body::Read(ReadAnswer { sent: read.sent + 1, ..read });
        self.responder.answers.push_front(Answer { body, ..answer });
        false
    }
}
