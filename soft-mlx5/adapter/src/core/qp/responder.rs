//! The responder: executes requests of RC, UC and XRC peers in order.

use std::collections::VecDeque;

use uverbs_mlx5_format::CqeOpcode;

use super::super::env::Env;
use super::super::mkey::{AccessError, Accessor};
use super::super::srq::NoReceive;
use super::super::{Access, AsyncKind, EventObject, Mkey};
use super::answer::{Answer, ReadAnswer};
use super::atomic::{AtomicRequest, ExecutedAtomics};
use super::receive::{ReceiveWqe, Received};
use super::striding::OpenWqe;
use super::syndrome::Failure;
use super::{MigrationState, Qp, QpState, RemoteRights};
use crate::packet::{Addressing, NakCode, Operation, Psn, Reth, RnrTimer, Syndrome, View};

/// A message that is being received.
#[derive(Clone, Copy, Debug)]
enum Message {
    Send { offset: u64 },
    Write { address: u64, rkey: u32, len: u64, offset: u64 },
}

/// State of the receiving side.
#[derive(Debug, Default)]
pub(super) struct Responder {
    expected: Psn,
    /// Messages completed, 24 bits.
    pub(super) msn: u32,
    /// Whether a NAK for the expected PSN was sent; until that PSN arrives, other requests are
    /// ignored.
    nak_sent: bool,
    message: Option<Message>,
    /// The receive WQE of the current message, or (UC) of the message that was lost.
    pub(super) receive: Option<Box<ReceiveWqe>>,
    pub(super) spare: Option<Box<ReceiveWqe>>,
    /// The WQE of a striding queue that is being filled.
    pub(super) open: Option<OpenWqe>,
    pub(super) answers: VecDeque<Answer>,
    executed: ExecutedAtomics,
    /// Whether the session was refused, so that it accepts nothing more (DC).
    refused: bool,
    /// READs and atomics whose answers are not sent yet.
    pub(super) reads: u8,
    /// Counters of the QP's receive ring.
    pub(super) posted: u16,
    pub(super) taken: u16,
}

impl Responder {
    pub(super) fn expect(&mut self, psn: Psn) {
        self.expected = psn;
    }

    pub(super) fn expected(&self) -> Psn {
        self.expected
    }

    pub(super) fn receive_counter(&self) -> u16 {
        self.taken
    }

    pub(super) fn take_receive(&mut self) -> Option<Box<ReceiveWqe>> {
        self.receive.take()
    }

    pub(super) fn has_receive(&self) -> bool {
        self.receive.is_some()
    }

    /// Ends the session with a NAK.
    pub(super) fn refuse(&mut self, psn: Psn, code: NakCode) {
        self.message = None;
        self.answers.push_back(Answer::short(psn, Syndrome::Nak(code)));
        self.refused = true;
    }

    pub(super) fn is_refused(&self) -> bool {
        self.refused
    }

    /// Stops answering, because the QP is in error.
    pub(super) fn stop(&mut self) {
        self.message = None;
        self.answers.clear();
        self.reads = 0;
    }
}

/// Why a request is not executed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refusal {
    /// No receive WQE: the peer may try again.
    NotReady,
    /// The request is malformed, or not allowed on this QP.
    Invalid,
    /// A key forbids it.
    Access,
    /// The receive WQE fails with this failure, and the NAK carries this code.
    Receive(Failure, NakCode),
    /// The QP must enter the error state.
    Fatal,
}

impl From<AccessError> for Refusal {
    fn from(_: AccessError) -> Self {
        Self::Access
    }
}

impl Qp {
    /// Handles a request of the peer.
    pub(super) fn receive_request(&mut self, env: &mut Env, from: &Addressing, packet: &View<'_>) {
        let ahead = packet.bth.psn().distance(self.responder.expected);
        if !self.is_reliable() {
            return self.receive_unreliable(env, from, packet, ahead);
        }
        if ahead > 0 {
            env.counters.out_of_sequence += 1;
            return self.sequence_error(env);
        }
        if ahead < 0 {
            env.counters.duplicates += 1;
            return self.duplicate(env, packet);
        }
        self.responder.nak_sent = false;
        self.follow_peer(env, packet.bth.migrated());
        match self.execute(env, from, packet) {
            Ok(()) => {
                if packet.bth.ack_request() && !answers_itself(packet.operation) {
                    self.acknowledge(env);
                }
            }
            Err(refusal) => self.refuse(env, refusal),
        }
    }

    /// Path migration (specification 17.2.8). Each side stays in REARM until a packet of the other
    /// side arrives, and then is ARMED. An armed side changes to its alternate path when the peer
    /// has migrated.
    fn follow_peer(&mut self, env: &mut Env, migrated: bool) {
        match (self.settings.migration, migrated) {
            (MigrationState::Rearm, false) => self.settings.migration = MigrationState::Armed,
            (MigrationState::Armed, true) => self.take_alternate_path(env),
            _ => {}
        }
    }

    /// Handles a UC packet. A lost packet loses its message. The next message is accepted with any
    /// PSN.
    fn receive_unreliable(
        &mut self,
        env: &mut Env,
        from: &Addressing,
        packet: &View<'_>,
        ahead: i32,
    ) {
        if ahead != 0 {
            self.responder.message = None;
        }
        if self.responder.message.is_none() && !packet.position.starts() {
            return;
        }
        if packet.position.starts() {
            self.responder.message = None;
        }
        self.responder.expected = packet.bth.psn();
        if let Err(refusal) = self.execute(env, from, packet) {
            self.responder.message = None;
            self.responder.expected = packet.bth.psn().next();
            if matches!(refusal, Refusal::Receive(..) | Refusal::Fatal) {
                self.refuse(env, refusal);
            }
        }
    }

    fn sequence_error(&mut self, env: &mut Env) {
        if !std::mem::replace(&mut self.responder.nak_sent, true) {
            let syndrome = Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR);
            let psn = self.responder.expected;
            self.responder.answers.push_back(Answer::short(psn, syndrome));
            self.schedule(env);
        }
    }

    /// Acknowledges everything so far; replaces an acknowledgement that is not sent yet.
    fn acknowledge(&mut self, env: &mut Env) {
        let psn = self.responder.expected.prev();
        let ack = Answer::short(psn, Syndrome::ACK);
        match self.responder.answers.back_mut().filter(|last| last.is_acknowledgement()) {
            Some(last) => *last = ack,
            None => self.responder.answers.push_back(ack),
        }
        self.schedule(env);
    }

    fn execute(
        &mut self,
        env: &mut Env,
        from: &Addressing,
        packet: &View<'_>,
    ) -> Result<(), Refusal> {
        self.check_sequence(env, packet)?;
        match packet.operation {
            Operation::Send => self.execute_send(env, from, packet),
            Operation::Write => self.execute_write(env, from, packet),
            Operation::ReadRequest => self.execute_read(env, packet),
            operation if is_atomic(operation) => self.execute_atomic(env, packet),
            _ => Err(Refusal::Invalid),
        }
    }

    /// Checks the order of packets in messages, and their lengths.
    fn check_sequence(&self, env: &Env, packet: &View<'_>) -> Result<(), Refusal> {
        let continues = match (self.responder.message, packet.operation) {
            (None, _) => packet.position.starts(),
            (Some(Message::Send { .. }), Operation::Send)
            | (Some(Message::Write { .. }), Operation::Write) => !packet.position.starts(),
            _ => false,
        };
        let mtu = self.mtu(env) as usize;
        let len = packet.payload.len();
        let fits = match (packet.position.starts(), packet.position.ends()) {
            (_, false) => len == mtu,
            (false, true) => (1..=mtu).contains(&len),
            (true, true) => len <= mtu,
        };
        if continues && fits { Ok(()) } else { Err(Refusal::Invalid) }
    }

    fn execute_send(
        &mut self,
        env: &mut Env,
        from: &Addressing,
        packet: &View<'_>,
    ) -> Result<(), Refusal> {
        if self.responder.message.is_none() {
            if !self.begin_send(env, packet)? {
                return self.end_send(env, packet);
            }
            self.responder.message = Some(Message::Send { offset: 0 });
        }
        let Some(Message::Send { offset }) = self.responder.message else {
            return Err(Refusal::Invalid);
        };
        let bytes = offset + packet.payload.len() as u64;
        if bytes > 1 << env.config.log_max_message {
            return Err(Refusal::Receive(Failure::TOO_LONG, NakCode::INVALID_REQUEST));
        }
        let Some(mut wqe) = self.responder.receive.take() else { return Err(Refusal::Fatal) };
        let whole = offset == 0 && packet.position.ends();
        let (at, data) = wqe.delivery.place(offset, packet.payload);
        let stored = self.store_received(env, &mut wqe, at, data, whole);
        self.responder.receive = Some(wqe);
        stored.map_err(receive_failed)?;
        self.responder.message = Some(Message::Send { offset: bytes });
        if !packet.position.ends() {
            self.responder.expected += 1;
            return Ok(());
        }
        self.end_send(env, packet)?;
        let opcode = match (packet.immediate, packet.invalidate) {
            (Some(_), _) => CqeOpcode::RESPONDER_SEND_IMMEDIATE,
            (_, Some(_)) => CqeOpcode::RESPONDER_SEND_INVALIDATE,
            _ => CqeOpcode::RESPONDER_SEND,
        };
        self.finish_receive(env, from, packet, opcode, bytes)
    }

    /// Ends a SEND, and invalidates the key that it names.
    fn end_send(&mut self, env: &mut Env, packet: &View<'_>) -> Result<(), Refusal> {
        if let Some(ieth) = packet.invalidate {
            let who = self.peer(env, packet)?;
            let invalidated = env.invalidate_key(who, Mkey(ieth.rkey.get()));
            invalidated.map_err(|()| Refusal::Access)?;
        }
        self.end_message();
        Ok(())
    }

    /// Makes sure that `receive` holds a WQE.
    pub(super) fn need_receive(&mut self, env: &mut Env, packet: &View<'_>) -> Result<(), Refusal> {
        if self.responder.receive.is_none() {
            let srqn = packet.xrceth.map(|xrceth| xrceth.srqn());
            let wqe = match self.take_unused_receive() {
                Some(unused) => unused,
                None => self.take_receive_wqe(env, srqn).or_else(|reason| {
                    self.reclaim_receive(env).ok_or(match reason {
                        NoReceive::Empty => Refusal::NotReady,
                        NoReceive::Foreign => Refusal::Invalid,
                        NoReceive::Broken => Refusal::Fatal,
                    })
                })?,
            };
            self.responder.receive = Some(wqe);
        }
        Ok(())
    }

    fn end_message(&mut self) {
        self.responder.message = None;
        self.responder.expected += 1;
        self.responder.msn = self.responder.msn.wrapping_add(1);
    }

    fn finish_receive(
        &mut self,
        env: &mut Env,
        from: &Addressing,
        packet: &View<'_>,
        opcode: CqeOpcode,
        bytes: u64,
    ) -> Result<(), Refusal> {
        let Some(wqe) = self.responder.receive.take() else { return Err(Refusal::Fatal) };
        let invalidated = packet.invalidate.map(|ieth| ieth.rkey.get().to_be_bytes());
        let received = Received {
            opcode,
            bytes,
            immediate: packet
                .immediate
                .map(|immediate| immediate.0)
                .or(invalidated)
                .unwrap_or_default(),
            remote_qpn: self.settings.destination_qpn,
            solicited: packet.bth.solicited(),
        };
        if self.complete_receive(env, wqe, from, received) { Ok(()) } else { Err(Refusal::Fatal) }
    }

    fn execute_write(
        &mut self,
        env: &mut Env,
        from: &Addressing,
        packet: &View<'_>,
    ) -> Result<(), Refusal> {
        let who = self.peer(env, packet)?;
        if let Some(reth) = packet.reth {
            self.begin_write(env, who, reth)?;
        }
        let Some(Message::Write { address, rkey, len, offset }) = self.responder.message else {
            return Err(Refusal::Invalid);
        };
        let end = offset + packet.payload.len() as u64;
        let right_length = if packet.position.ends() { end == len } else { end < len };
        if !right_length {
            return Err(Refusal::Invalid);
        }
        if packet.immediate.is_some() {
            // Before the packet is executed, so that the peer can retransmit it.
            self.need_receive(env, packet).inspect_err(|_| self.undo_start(packet))?;
        }
        let (key, at) = (Mkey(rkey), address.wrapping_add(offset));
        if !packet.payload.is_empty() {
            env.mkeys.write(&*env.memory, who, key, at, packet.payload, Access::REMOTE_WRITE)?;
        }
        self.responder.message = Some(Message::Write { address, rkey, len, offset: end });
        if !packet.position.ends() {
            self.responder.expected += 1;
            return Ok(());
        }
        self.end_message();
        if packet.immediate.is_none() {
            return Ok(());
        }
        self.finish_receive(env, from, packet, CqeOpcode::RESPONDER_WRITE_IMMEDIATE, len)
    }

    fn undo_start(&mut self, packet: &View<'_>) {
        if packet.position.starts() {
            self.responder.message = None;
        }
    }

    fn begin_write(&mut self, env: &Env, who: Accessor, reth: &Reth) -> Result<(), Refusal> {
        self.need_right(RemoteRights::WRITE)?;
        let (address, rkey, len) =
            (reth.address.get(), reth.rkey.get(), u64::from(reth.length.get()));
        if len > 1 << env.config.log_max_message {
            return Err(Refusal::Invalid);
        }
        if len > 0 {
            // A message of zero bytes accesses no memory, so its key is not checked (specification
            // 9.7.4.1.5).
            env.mkeys.check(who, Mkey(rkey), address, len, Access::REMOTE_WRITE)?;
        }
        self.responder.message = Some(Message::Write { address, rkey, len, offset: 0 });
        Ok(())
    }

    /// The protection domain and QP of the peer's accesses. An XRC request names an SRQ, and the
    /// SRQ's protection domain is used.
    fn peer(&self, env: &Env, packet: &View<'_>) -> Result<Accessor, Refusal> {
        let Some(xrceth) = packet.xrceth else { return Ok(self.accessor()) };
        let srq = env.srqs.get(xrceth.srqn()).ok_or(Refusal::Invalid)?;
        let ours = srq.params.xrc.is_some_and(|xrc| Some(xrc.xrcd) == self.params.xrcd);
        if !ours {
            return Err(Refusal::Invalid);
        }
        Ok(Accessor { pd: srq.params.pd, ..self.accessor() })
    }

    fn need_right(&self, right: RemoteRights) -> Result<(), Refusal> {
        let granted = self.settings.remote_rights.contains(right);
        if granted { Ok(()) } else { Err(Refusal::Invalid) }
    }

    /// Whether the peer may have one more READ or atomic outstanding.
    fn need_free_read(&self) -> Result<(), Refusal> {
        let allowed = self.responder.reads < self.settings.max_destination_read_atomic;
        if allowed { Ok(()) } else { Err(Refusal::Invalid) }
    }

    fn execute_read(&mut self, env: &mut Env, packet: &View<'_>) -> Result<(), Refusal> {
        let Some(reth) = packet.reth else { return Err(Refusal::Invalid) };
        self.need_right(RemoteRights::READ)?;
        self.need_free_read()?;
        let who = self.peer(env, packet)?;
        let answer = self.check_read(env, who, packet.bth.psn(), reth)?;
        self.responder.expected += answer.packets();
        self.responder.msn = self.responder.msn.wrapping_add(1);
        self.responder.reads += 1;
        self.responder.answers.push_back(answer);
        self.schedule(env);
        Ok(())
    }

    fn check_read(
        &self,
        env: &Env,
        who: Accessor,
        psn: Psn,
        reth: &Reth,
    ) -> Result<Answer, Refusal> {
        let (address, rkey, len) = (reth.address.get(), reth.rkey.get(), reth.length.get());
        if u64::from(len) > 1 << env.config.log_max_message {
            return Err(Refusal::Invalid);
        }
        if len > 0 {
            env.mkeys.check(who, Mkey(rkey), address, u64::from(len), Access::REMOTE_READ)?;
        }
        let packets = len.div_ceil(self.mtu(env)).max(1);
        Ok(Answer::read(psn, ReadAnswer { who, address, rkey, len, packets, sent: 0 }))
    }

    fn execute_atomic(&mut self, env: &mut Env, packet: &View<'_>) -> Result<(), Refusal> {
        self.need_right(RemoteRights::ATOMIC)?;
        self.need_free_read()?;
        let who = self.peer(env, packet)?;
        let original = change_word(env, who, packet)?;
        let psn = packet.bth.psn();
        let depth = self.settings.max_destination_read_atomic;
        self.responder.executed.add(psn, original, depth.into());
        self.end_message();
        self.responder.reads += 1;
        self.responder.answers.push_back(Answer::atomic(psn, original));
        self.schedule(env);
        Ok(())
    }

    /// Answers a request that was executed before, without executing it again.
    fn duplicate(&mut self, env: &mut Env, packet: &View<'_>) {
        let psn = packet.bth.psn();
        match (packet.operation, packet.reth) {
            (Operation::Send | Operation::Write, _) => self.acknowledge(env),
            (Operation::ReadRequest, Some(reth)) => {
                let answer = self.answer_again(env, packet, reth);
                answer.into_iter().for_each(|answer| self.answer_duplicate(env, answer));
            }
            _ => {
                if let Some(original) = self.responder.executed.original(psn) {
                    self.answer_duplicate(env, Answer::atomic(psn, original));
                }
            }
        }
    }

    /// The answer to a repeated READ, if the whole READ is in the past and still allowed.
    fn answer_again(&self, env: &Env, packet: &View<'_>, reth: &Reth) -> Option<Answer> {
        self.need_right(RemoteRights::READ).ok()?;
        let who = self.peer(env, packet).ok()?;
        let answer = self.check_read(env, who, packet.bth.psn(), reth).ok()?;
        let end = packet.bth.psn() + answer.packets();
        (!self.responder.expected.precedes(end)).then_some(answer)
    }

    fn refuse(&mut self, env: &mut Env, refusal: Refusal) {
        let psn = self.responder.expected;
        match refusal {
            Refusal::NotReady => {
                self.responder.nak_sent = true;
                env.counters.rnr_naks += 1;
                env.counters.out_of_buffer += 1;
                let timer = RnrTimer::new(self.settings.min_rnr_timer);
                let syndrome = Syndrome::RnrNak(timer);
                self.responder.answers.push_back(Answer::short(psn, syndrome));
                self.schedule(env);
            }
            Refusal::Invalid => {
                self.fail_responder(env, psn, NakCode::INVALID_REQUEST);
                self.report_request(env, AsyncKind::QpRequestError);
            }
            Refusal::Access => {
                self.fail_responder(env, psn, NakCode::REMOTE_ACCESS_ERROR);
                self.report_request(env, AsyncKind::QpAccessError);
            }
            Refusal::Receive(failure, code) => {
                let wqe = self.responder.receive.take();
                let completed =
                    wqe.is_none_or(|wqe| self.complete_receive_with_error(env, &wqe, failure));
                self.fail_responder(env, psn, code);
                if !completed {
                    env.raise(AsyncKind::QpFatal, EventObject::Qp(self.number));
                }
            }
            Refusal::Fatal => {
                self.fail_responder(env, psn, NakCode::REMOTE_OPERATIONAL_ERROR);
                env.raise(AsyncKind::QpFatal, EventObject::Qp(self.number));
            }
        }
    }

    /// Refuses a request: a NAK follows the answers that are due, and the QP enters the error
    /// state.
    fn fail_responder(&mut self, env: &mut Env, psn: Psn, code: NakCode) {
        if self.is_target() {
            return self.refuse_session(env, psn, code);
        }
        let mut answers = std::mem::take(&mut self.responder.answers);
        let reads = self.responder.reads;
        if self.is_reliable() && self.is_own_peer(env) {
            // Before the error state, in which the QP ignores NAKs and the refused request would be
            // flushed.
            self.refused_by_itself(env, psn, code);
            self.retire(env);
        }
        self.enter_error(env);
        if self.is_reliable() {
            answers.push_back(Answer::short(psn, Syndrome::Nak(code)));
            self.responder.answers = answers;
            self.responder.reads = reads;
            self.schedule(env);
        }
    }

    /// Handles a READ whose memory became inaccessible after the request was accepted.
    pub(super) fn read_failed(&mut self, env: &mut Env, psn: Psn) {
        if self.state == QpState::Error {
            return;
        }
        self.responder.answers.clear();
        self.fail_responder(env, psn, NakCode::REMOTE_ACCESS_ERROR);
        self.report_request(env, AsyncKind::QpAccessError);
    }

    /// Raises an event about a refused request. The kernel does not report such events of DC
    /// targets to programs.
    fn report_request(&self, env: &mut Env, kind: AsyncKind) {
        if !self.is_target() {
            env.raise(kind, EventObject::Qp(self.number));
        }
    }
}

/// Whether an operation has a response that also acknowledges it.
fn answers_itself(operation: Operation) -> bool {
    operation == Operation::ReadRequest || is_atomic(operation)
}

fn is_atomic(operation: Operation) -> bool {
    use Operation::{CompareSwap, FetchAdd, MaskedCompareSwap, MaskedFetchAdd};
    matches!(operation, CompareSwap | FetchAdd | MaskedCompareSwap | MaskedFetchAdd)
}

/// Executes an atomic request and returns the operand's old value.
fn change_word(env: &Env, who: Accessor, packet: &View<'_>) -> Result<u64, Refusal> {
    let swaps = matches!(packet.operation, Operation::CompareSwap | Operation::MaskedCompareSwap);
    let (request, address, rkey) = match (packet.atomic, packet.masked_atomic) {
        (Some(plain), _) => {
            (AtomicRequest::plain(swaps, plain), plain.address.get(), plain.rkey.get())
        }
        (_, Some(masked)) => (
            AtomicRequest::masked(swaps, masked).ok_or(Refusal::Invalid)?,
            masked.address.get(),
            masked.rkey.get(),
        ),
        _ => return Err(Refusal::Invalid),
    };
    let size = u64::from(request.size);
    if address % size != 0 {
        return Err(Refusal::Invalid);
    }
    let (memory, need) = (&*env.memory, Access::REMOTE_ATOMIC);
    let operand = env.mkeys.word(memory, who, Mkey(rkey), address, size, need)?;
    let Some(operand) = operand else { return Ok(0) };
    request.execute(&*env.memory, operand).map_err(|_| Refusal::Access)
}

/// The NAK for a failed receive WQE (specification 9.9.3: a message that is too long is the
/// requester's error, any other failure the responder's).
fn receive_failed(failure: Failure) -> Refusal {
    let code = if failure == Failure::BUFFER_TOO_SHORT {
        NakCode::INVALID_REQUEST
    } else {
        NakCode::REMOTE_OPERATIONAL_ERROR
    };
    Refusal::Receive(failure, code)
}
