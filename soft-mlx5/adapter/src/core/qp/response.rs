//! The requester's receiving side: acknowledgements, READ and atomic responses, timeouts, retries.

use super::super::env::Env;
use super::super::{AsyncKind, EventObject};
use super::syndrome::Failure;
use super::tag::Offload;
use super::wqe::SendWqe;
use super::{MigrationState, Qp, ScatterToCqe};
use crate::core::{CqeSize, Cqn};
use crate::packet::{NakCode, Operation, Psn, RnrTimer, Syndrome, View};
use uverbs_mlx5_format::Opcode;

/// The result of an acknowledgement.
enum Confirmed {
    /// All PSNs are acknowledged.
    All,
    /// The response of the READ or atomic at this index is missing.
    Missing(usize),
}

/// The contents of a response.
#[derive(Clone, Copy)]
enum Response<'a> {
    /// Data of a READ.
    Data(&'a [u8]),
    /// The operand's value before an atomic.
    Original(u64),
}

/// The acknowledgement timer runs for at most this power of two times the timeout of the path.
const LOG_LONGEST_TIMEOUT: u8 = 2;

impl Qp {
    /// Handles a response.
    pub(super) fn receive_response(&mut self, env: &mut Env, packet: &View<'_>) {
        let psn = packet.bth.psn();
        // Responses to requests that have completed, or that this connection never sent (late
        // packets of an earlier connection).
        if psn.precedes(self.requester.oldest_psn()) || !psn.precedes(self.requester.sent_psn) {
            return;
        }
        match packet.operation {
            Operation::ReadResponse => self.read_response(env, psn, Response::Data(packet.payload)),
            Operation::AtomicAcknowledge => {
                let original = packet.atomic_ack.map_or(0, |ack| ack.original.get());
                self.read_response(env, psn, Response::Original(original));
            }
            _ => {
                let syndrome = packet.aeth.map(|aeth| aeth.syndrome());
                self.acknowledged(env, psn, syndrome.unwrap_or(Syndrome::ACK));
            }
        }
        self.retire(env);
    }

    fn acknowledged(&mut self, env: &mut Env, psn: Psn, syndrome: Syndrome) {
        match syndrome {
            Syndrome::Ack { .. } => self.confirm_or_ask_again(env, psn),
            Syndrome::RnrNak(timer) => self.not_ready(env, psn, timer),
            Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR) => {
                if self.confirm_or_ask_again_before(env, psn) {
                    self.out_of_sequence(env, psn);
                }
            }
            Syndrome::Nak(code) => self.refused(env, psn, code),
            Syndrome::Reserved(_) => {}
        }
    }

    /// Acknowledges everything up to `psn`. If an earlier response is missing, requests it again.
    fn confirm_or_ask_again(&mut self, env: &mut Env, psn: Psn) {
        if let Confirmed::Missing(at) = self.confirm(env, psn) {
            self.ask_again(env, at);
        }
    }

    fn confirm_or_ask_again_before(&mut self, env: &mut Env, psn: Psn) -> bool {
        match self.confirm(env, psn.prev()) {
            Confirmed::All => true,
            Confirmed::Missing(at) => {
                self.ask_again(env, at);
                false
            }
        }
    }

    /// As `confirm_or_ask_again_before`, for a NAK that names the request with this PSN. The NAK
    /// may replace the next response of a READ, or refuse a READ that was repeated from that PSN.
    fn confirm_or_ask_again_up_to(&mut self, env: &mut Env, psn: Psn) -> bool {
        match self.confirm(env, psn.prev()) {
            Confirmed::Missing(at) if self.missing_psn(at) != psn => {
                self.ask_again(env, at);
                false
            }
            _ => true,
        }
    }

    fn confirm(&mut self, env: &mut Env, psn: Psn) -> Confirmed {
        let mut progress = false;
        let mut result = Confirmed::All;
        for (at, wqe) in self.requester.begun.iter_mut().enumerate() {
            if wqe.outcome.is_some() {
                continue;
            }
            if psn.precedes(wqe.first_psn) {
                break;
            }
            if wqe.is_read_or_atomic() {
                result = Confirmed::Missing(at);
                break;
            }
            let confirmed = (psn.distance(wqe.first_psn) as u32 + 1).min(wqe.packets);
            progress |= confirmed > wqe.confirmed;
            wqe.confirmed = wqe.confirmed.max(confirmed);
            if wqe.confirmed == wqe.packets {
                wqe.outcome = Some(Ok(()));
            }
        }
        if progress {
            self.progress(env);
        }
        result
    }

    /// Restarts the retry counters and the timer after new PSNs were acknowledged.
    fn progress(&mut self, env: &mut Env) {
        self.requester.set_retries(self.settings.retry_count, self.settings.rnr_retry);
        self.requester.missed = None;
        self.requester.not_ready = None;
        if !self.requester.rnr_wait {
            self.deadline.clear();
            if self.requester.is_outstanding() {
                self.start_ack_timer(env);
            }
        }
        self.schedule(env);
    }

    /// Handles a response with data: READ or atomic.
    fn read_response(&mut self, env: &mut Env, psn: Psn, response: Response<'_>) {
        let is_missing = |wqe: &SendWqe| wqe.is_read_or_atomic() && wqe.outcome.is_none();
        let Some(at) = self.requester.begun.iter().position(|wqe| is_missing(wqe)) else { return };
        let wqe = &self.requester.begun[at];
        let expected = wqe.first_psn + wqe.confirmed;
        if psn.precedes(expected) {
            return;
        }
        if psn != expected {
            env.counters.out_of_sequence += 1;
            return self.ask_again(env, at);
        }
        self.confirm(env, expected.prev());
        let wqe = &self.requester.begun[at];
        let offset = u64::from(wqe.confirmed) * u64::from(self.mtu(env));
        let wanted = (wqe.len - offset).min(u64::from(self.mtu(env)));
        let (low, whole) = match response {
            Response::Original(value) => ((value as u32).to_ne_bytes(), value.to_ne_bytes()),
            Response::Data(_) => Default::default(),
        };
        let data = match response {
            Response::Data(data) if wqe.opcode == Opcode::RDMA_READ => data,
            Response::Original(_) if wqe.opcode.is_atomic() && wqe.len == 4 => &low[..],
            Response::Original(_) if wqe.opcode.is_atomic() => &whole[..],
            _ => return self.fail(at, Failure::BAD_RESPONSE),
        };
        if wanted != data.len() as u64 {
            return self.fail(at, Failure::BAD_RESPONSE);
        }
        self.store_response(env, at, offset, data);
        self.progress(env);
    }

    fn store_response(&mut self, env: &mut Env, at: usize, offset: u64, data: &[u8]) {
        let limit = self.requester_inline_limit(env);
        let mut who = self.accessor();
        let wqe = &mut self.requester.begun[at];
        if let Some(Offload::Read { pd, .. }) = wqe.offload {
            who.pd = pd;
        }
        let into_cqe = wqe.flags.is_signaled() && wqe.len > 0 && wqe.len <= u64::from(limit);
        if into_cqe {
            wqe.inline.clear();
            wqe.inline.extend_from_slice(data);
        } else if env.scatter(who, &wqe.sges, offset, data).is_err() {
            return self.fail(at, Failure::SCATTER);
        }
        wqe.confirmed += 1;
        if wqe.confirmed == wqe.packets {
            wqe.outcome = Some(Ok(()));
        }
    }

    /// The longest result that goes into the CQE.
    fn requester_inline_limit(&self, env: &Env) -> u32 {
        inline_limit(env, self.params.scatter_requester, self.params.send_cq)
    }

    /// Requests a lost response again, unless that was done already.
    fn ask_again(&mut self, env: &mut Env, at: usize) {
        let expected = self.missing_psn(at);
        if self.requester.missed != Some(expected) {
            self.retry_from(env, expected);
            self.requester.missed = Some(expected);
        }
    }

    /// The PSN of the first missing response to the WQE at this index of `begun`.
    fn missing_psn(&self, at: usize) -> Psn {
        let wqe = &self.requester.begun[at];
        wqe.first_psn + wqe.confirmed
    }

    fn not_ready(&mut self, env: &mut Env, psn: Psn, timer: RnrTimer) {
        const FOREVER: u8 = 7;
        // A repeated NAK: nothing was sent since the first.
        if self.requester.rnr_wait && self.requester.not_ready == Some(psn) {
            return;
        }
        if !self.confirm_or_ask_again_up_to(env, psn) {
            return;
        }
        let Some(at) = self.place_of(psn) else { return };
        if self.settings.rnr_retry != FOREVER {
            if self.requester.rnr_retries_left == 0 {
                return self.fail(at, Failure::RNR);
            }
            self.requester.rnr_retries_left -= 1;
        }
        // The peer answers, so earlier losses do not count any more. Otherwise a long wait for a
        // receive would use up the retries. It is unconfirmed that a ConnectX does so.
        self.requester.retries_left = self.settings.retry_count;
        self.go_back_to(psn);
        self.requester.rnr_wait = true;
        self.requester.not_ready = Some(psn);
        let owner = self.timer();
        self.deadline.clear();
        self.deadline.set(env.now.saturating_add(timer.nanoseconds()), owner, &mut env.timers);
    }

    /// Handles a sequence-error NAK: the peer misses the packet with this PSN. After an RNR NAK,
    /// some peers send one such NAK for the next packet that they drop (`check_psn` in
    /// drivers/infiniband/sw/rxe/rxe_resp.c). That is not a second failure, so it costs no retry.
    fn out_of_sequence(&mut self, env: &mut Env, psn: Psn) {
        let was_not_ready = self.requester.not_ready.take_if(|at| *at == psn).is_some();
        // A repeated NAK: the packet has not been retransmitted yet.
        if self.requester.is_at(psn) {
            return;
        }
        if !was_not_ready {
            return self.retry_from(env, psn);
        }
        if !self.requester.rnr_wait {
            self.go_back_to(psn);
            self.schedule(env);
        }
    }

    /// Handles a NAK that refuses the request with this PSN.
    fn refused(&mut self, env: &mut Env, psn: Psn, code: NakCode) {
        if self.confirm_or_ask_again_up_to(env, psn) {
            self.fail_refused(psn, code);
        }
    }

    /// [`Qp::refused`] for a QP that is its own peer. Missing responses are not requested again,
    /// because the QP's requests are about to be flushed.
    pub(super) fn refused_by_itself(&mut self, env: &mut Env, psn: Psn, code: NakCode) {
        match self.confirm(env, psn.prev()) {
            Confirmed::Missing(at) if self.missing_psn(at) != psn => {}
            _ => self.fail_refused(psn, code),
        }
    }

    fn fail_refused(&mut self, psn: Psn, code: NakCode) {
        let failure = match code {
            NakCode::REMOTE_ACCESS_ERROR => Failure::REMOTE_ACCESS,
            NakCode::REMOTE_OPERATIONAL_ERROR => Failure::REMOTE_OPERATION,
            _ => Failure::REMOTE_INVALID,
        };
        if let Some(at) = self.place_of(psn) {
            self.fail(at, failure);
        }
    }

    /// The WQE that a PSN belongs to, if it is unfinished.
    fn place_of(&self, psn: Psn) -> Option<usize> {
        self.requester.begun.iter().position(|wqe| {
            let inside = psn.distance(wqe.first_psn);
            wqe.outcome.is_none() && inside >= 0 && (inside as u32) < wqe.packets
        })
    }

    /// Moves the cursor back to the packet with this PSN, if the cursor is after it.
    fn go_back_to(&mut self, psn: Psn) {
        let Some(at) = self.place_of(psn) else { return };
        let wqe = &self.requester.begun[at];
        let packet = if wqe.is_read_or_atomic() { 0 } else { psn.distance(wqe.first_psn) as u32 };
        if (at, packet) < (self.requester.cursor, self.requester.packet) {
            self.requester.go_back(at, packet);
        }
    }

    /// Retransmits from `psn` on. Without retries left, the WQE fails.
    fn retry_from(&mut self, env: &mut Env, psn: Psn) {
        let Some(at) = self.place_of(psn) else { return };
        if self.requester.retries_left == 0 && !self.try_alternate_path(env) {
            return self.fail(at, Failure::RETRY);
        }
        self.requester.retries_left = self.requester.retries_left.saturating_sub(1);
        self.go_back_to(psn);
        if !self.requester.rnr_wait {
            self.deadline.clear();
        }
        self.schedule(env);
    }

    fn try_alternate_path(&mut self, env: &mut Env) -> bool {
        match self.settings.migration {
            MigrationState::Armed => {
                self.take_alternate_path(env);
                self.requester.retries_left = self.settings.retry_count;
                true
            }
            MigrationState::Rearm => {
                env.raise(AsyncKind::PathMigrationFailed, EventObject::Qp(self.number));
                false
            }
            MigrationState::Migrated => false,
        }
    }

    /// Starts the acknowledgement timer if it is not running. It runs for 4.096 us * 2^code, and up
    /// to four times as long is allowed (specification 9.7.6.1.3). Each retry doubles the time up
    /// to that limit: a single loss is repaired soon, and a peer whose threads wait for a processor
    /// gets most of the time that the specification allows.
    pub(super) fn start_ack_timer(&mut self, env: &mut Env) {
        let code = self.settings.path.ack_timeout;
        if code != 0 {
            let retries = self.settings.retry_count.saturating_sub(self.requester.retries_left);
            let at = env.now.saturating_add(4096 << code << retries.min(LOG_LONGEST_TIMEOUT));
            let owner = self.timer();
            self.deadline.start(at, owner, &mut env.timers);
        }
    }

    /// Handles the deadline: the RNR wait is over, or no acknowledgement arrived.
    pub(super) fn time_out(&mut self, env: &mut Env) {
        if self.is_raw() {
            return self.schedule(env);
        }
        if std::mem::replace(&mut self.requester.rnr_wait, false) {
            return self.schedule(env);
        }
        self.requester.missed = None;
        if self.requester.is_outstanding() {
            env.counters.timeouts += 1;
            let unfinished = self.requester.begun.iter().find(|wqe| wqe.outcome.is_none());
            let psn = unfinished.map(|wqe| wqe.first_psn + wqe.confirmed);
            psn.into_iter().for_each(|psn| self.retry_from(env, psn));
            self.retire(env);
        }
    }
}

/// The longest data that goes into a CQE of this queue.
pub(super) fn inline_limit(env: &Env, wanted: ScatterToCqe, cqn: Cqn) -> u32 {
    let size = env.cqs.get(cqn.0).map(|cq| cq.cqe_size());
    match size {
        Some(CqeSize::B128) => wanted.max(),
        _ => wanted.max().min(32),
    }
}
