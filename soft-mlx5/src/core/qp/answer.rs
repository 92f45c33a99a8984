//! What the responder has to send, in order: acknowledgements, READ responses, atomic results.

use super::super::env::Env;
use super::super::mkey::Accessor;
use super::super::{Access, Mkey};
use super::Qp;
use crate::packet::{Aeth, AtomicAckEth, Opcode, Packet, Position, Psn, Syndrome};

/// Something to send back.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// An acknowledgement or a refusal.
    Short { psn: Psn, syndrome: Syndrome },
    /// A READ's data.
    Read {
        /// The domain and QP that read.
        who: Accessor,
        psn: Psn,
        address: u64,
        rkey: u32,
        len: u32,
        /// Packets in all, and sent.
        packets: u32,
        sent: u32,
        /// An answer to a duplicate request.
        again: bool,
    },
    /// What was there before an atomic.
    Atomic { psn: Psn, original: u64, again: bool },
}

impl Answer {
    pub(super) fn read(
        who: Accessor,
        psn: Psn,
        address: u64,
        rkey: u32,
        len: u32,
        mtu: u32,
    ) -> Self {
        let packets = len.div_ceil(mtu).max(1);
        Self::Read { who, psn, address, rkey, len, packets, sent: 0, again: false }
    }

    /// PSNs that it takes.
    pub(super) fn packets(&self) -> u32 {
        match self {
            Self::Read { packets, .. } => *packets,
            _ => 1,
        }
    }

    fn psn(&self) -> Psn {
        match self {
            Self::Short { psn, .. } | Self::Read { psn, .. } | Self::Atomic { psn, .. } => *psn,
        }
    }

    fn repeated(self) -> Self {
        match self {
            Self::Read { who, psn, address, rkey, len, packets, sent, .. } => {
                Self::Read { who, psn, address, rkey, len, packets, sent, again: true }
            }
            Self::Atomic { psn, original, .. } => Self::Atomic { psn, original, again: true },
            short => short,
        }
    }

    /// Counts among the READs and atomics that the peer may have outstanding.
    fn is_counted(&self) -> bool {
        matches!(self, Self::Read { again: false, .. } | Self::Atomic { again: false, .. })
    }
}

impl Qp {
    /// Answers a duplicate request, before everything that has a later PSN.
    pub(super) fn answer_again(&mut self, env: &mut Env, answer: Answer) {
        const LIMIT: usize = 512;
        let answers = &mut self.responder.answers;
        let psn = answer.psn();
        let pending = answers.iter().any(|other| {
            matches!(other, Answer::Read { sent: 0, .. } | Answer::Atomic { .. })
                && other.psn() == psn
        });
        if pending || answers.len() >= LIMIT {
            return;
        }
        let later = answers.iter().position(|other| psn.precedes(other.psn()));
        answers.insert(later.unwrap_or(answers.len()), answer.repeated());
        self.schedule(env);
    }

    /// Sends at most `budget` packets of answers.
    pub(super) fn run_responder(&mut self, env: &mut Env, budget: u32) -> u32 {
        let mut sent = 0;
        while sent < budget {
            let Some(answer) = self.responder.answers.pop_front() else { break };
            self.send_answer(env, answer);
            sent += 1;
        }
        sent
    }

    /// Sends the acknowledgements that are due before the QP goes away. The host has seen the
    /// completions of these messages and may destroy the QP at once; a ConnectX would have sent the
    /// acknowledgements by then.
    pub(in crate::core) fn send_promised(&mut self, env: &mut Env) {
        for answer in std::mem::take(&mut self.responder.answers) {
            if !matches!(answer, Answer::Read { .. }) {
                self.send_answer(env, answer);
            }
        }
    }

    /// Sends one packet of an answer; puts the rest back.
    fn send_answer(&mut self, env: &mut Env, answer: Answer) {
        let done = match answer {
            Answer::Short { psn, syndrome } => {
                let mut packet = env.pool.take();
                self.start_answer(env, &mut packet, Opcode::RC_ACKNOWLEDGE, psn, Some(syndrome));
                env.send(packet);
                true
            }
            Answer::Atomic { psn, original, .. } => {
                let mut packet = env.pool.take();
                let opcode = Opcode::RC_ATOMIC_ACKNOWLEDGE;
                self.start_answer(env, &mut packet, opcode, psn, Some(Syndrome::ACK));
                packet.push(AtomicAckEth { original: original.into() });
                env.send(packet);
                true
            }
            Answer::Read { .. } => self.send_read_data(env, answer),
        };
        if done && answer.is_counted() {
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
        if let Some(syndrome) = syndrome {
            packet.push(Aeth::new(syndrome, self.responder.msn));
        }
    }

    /// Sends the next packet of a READ's data; whether it was the last one.
    fn send_read_data(&mut self, env: &mut Env, answer: Answer) -> bool {
        let Answer::Read { who, psn, address, rkey, len, packets, sent, again } = answer else {
            return true;
        };
        let mtu = self.mtu(env);
        let position = Position::of(sent, packets);
        let opcode = Opcode::read_response(self.transport(), position);
        let has_aeth = position.starts() || position.ends();
        let mut packet = env.pool.take();
        self.start_answer(env, &mut packet, opcode, psn + sent, has_aeth.then_some(Syndrome::ACK));
        let offset = sent * mtu;
        let payload = packet.payload((len - offset).min(mtu) as usize);
        let at = address.wrapping_add(u64::from(offset));
        let read = env.mkeys.read(&*env.memory, who, Mkey(rkey), at, payload, Access::REMOTE_READ);
        // A READ of nothing touches no memory, so its key does not count.
        if len > 0 && read.is_err() {
            env.pool.give(packet);
            self.read_failed(env, psn + sent);
            return true;
        }
        env.send(packet);
        if position.ends() {
            return true;
        }
        let rest = Answer::Read { who, psn, address, rkey, len, packets, sent: sent + 1, again };
        self.responder.answers.push_front(rest);
        false
    }
}
