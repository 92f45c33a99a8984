//! Completions of the send queue, and the error states, in which all WQEs are flushed in order.

use uverbs_mlx5_format::{Cqe, CqeOpcode, ErrorCqe, U16, U32, U64, VendorSyndrome};
use zerocopy::{FromBytes, IntoBytes};

use super::super::cq::Completion;
use super::super::env::Env;
use super::super::{AsyncKind, EventObject};
use super::receive::ReceiveWqe;
use super::syndrome::Failure;
use super::wqe::SendWqe;
use super::{Qp, QpState, QpType, ReceiveSource};
use crate::packet::Transport;

impl Qp {
    /// Writes the CQE of a successful send WQE; `false` if the CQ is in error.
    pub(super) fn complete_send(&self, env: &mut Env, wqe: &SendWqe, opcode: CqeOpcode) -> bool {
        let cqe = Cqe {
            srqn_user_index: U32::new(self.send_user_index()),
            byte_count: U32::new(wqe.len as u32),
            timestamp: U64::new(env.now),
            opcode_qpn_flow_tag: U32::new(u32::from(wqe.opcode.0) << 24 | self.number.0),
            wqe_counter: U16::new(wqe.index),
            ..Cqe::default()
        };
        // A READ's or atomic's result is in `inline` only if it goes into the CQE.
        let inline = wqe.is_read_or_atomic() && !wqe.inline.is_empty();
        let inline = inline.then_some(wqe.inline.as_slice());
        env.complete(self.params.send_cq, Completion { inline, ..Completion::new(cqe, opcode) })
    }

    /// Writes the error CQE of a send WQE; `false` if the CQ is in error.
    fn complete_send_with_error(&self, env: &mut Env, wqe: &SendWqe, failure: Failure) -> bool {
        if let Some(offload) = wqe.offload {
            return self.cancel_offload(env, offload);
        }
        let cqe = error_cqe(
            self.send_user_index(),
            u32::from(wqe.opcode.0) << 24 | self.number.0,
            wqe.index,
            failure,
        );
        env.complete(self.params.send_cq, Completion::new(cqe, CqeOpcode::REQUESTER_ERROR))
    }

    /// Writes the error CQE of a receive WQE; `false` if the CQ is in error.
    pub(super) fn complete_receive_with_error(
        &self,
        env: &mut Env,
        wqe: &ReceiveWqe,
        failure: Failure,
    ) -> bool {
        env.counters.receives_too_short += u64::from(failure == Failure::BUFFER_TOO_SHORT);
        if wqe.delivery.is_of_entry() {
            return self.cancel_entry(env, wqe.srq, wqe.index);
        }
        let (cqn, user_index) = self.receive_cq(env, wqe);
        let cqe = error_cqe(user_index, self.number.0, wqe.index, failure);
        env.complete(cqn, Completion::new(cqe, CqeOpcode::RESPONDER_ERROR))
    }

    /// Writes the error CQE of a striding queue's WQE; `at` has its index and strides. `false` if
    /// the CQ is in error.
    pub(super) fn complete_strides_with_error(
        &self,
        env: &mut Env,
        wqe: &ReceiveWqe,
        at: Cqe,
        failure: Failure,
    ) -> bool {
        let (cqn, user_index) = self.receive_cq(env, wqe);
        let mut cqe = error_cqe(user_index, self.number.0, at.wqe_counter.get(), failure);
        (cqe.wqe_id, cqe.byte_count) = (at.wqe_id, at.byte_count);
        env.counters.receives_too_short += u64::from(failure == Failure::BUFFER_TOO_SHORT);
        env.complete(cqn, Completion::new(cqe, CqeOpcode::RESPONDER_ERROR))
    }

    /// In CQE version 0 this field is an SRQ number, and a send queue has none: 0.
    fn send_user_index(&self) -> u32 {
        if self.params.cqe_version_1 { self.params.user_index } else { 0 }
    }

    /// Reports the failure of the oldest WQE, and moves the queue to its error state.
    pub(super) fn fail_first(&mut self, env: &mut Env, failure: Failure) {
        let Some(mut wqe) = self.requester.pop() else { return };
        if wqe.connects {
            // The WQE that waits for the connection fails.
            self.requester.give_back(wqe);
            let Some(waiting) = self.requester.take_waiting() else { return };
            wqe = waiting;
        }
        let completed = self.complete_send_with_error(env, &wqe, failure);
        self.requester.give_back(wqe);
        let unreliable = matches!(self.transport(), Transport::Uc | Transport::Ud);
        if !completed {
            self.fail_fatally(env);
        } else if unreliable && self.state == QpState::ReadyToSend {
            // Only the send queue stops (specification 10.3.1.6).
            self.state = QpState::SendQueueError;
            self.flush_send_queue(env);
        } else {
            self.enter_error(env);
        }
    }

    /// Moves the QP to error after a failure that no completion can report.
    pub(super) fn fail_fatally(&mut self, env: &mut Env) {
        if self.state != QpState::Error {
            self.enter_error(env);
            env.raise(AsyncKind::QpFatal, EventObject::Qp(self.number));
        }
    }

    /// Flushes everything: the send queue, the receive in progress, and the receive queue.
    pub(super) fn enter_error(&mut self, env: &mut Env) {
        if self.state == QpState::Error {
            return;
        }
        let was_reset = self.state == QpState::Reset;
        self.state = QpState::Error;
        self.deadline.clear();
        self.disconnect(env);
        self.responder.stop();
        self.flush_send_queue(env);
        if let Some(wqe) = self.responder.take_receive() {
            self.complete_receive_with_error(env, &wqe, Failure::FLUSHED);
        }
        self.flush_strides(env);
        self.flush_receive_queue(env);
        self.last_wqe_reached(env, was_reset);
        if matches!(self.params.receive, ReceiveSource::Ring(_)) {
            env.watch_errored(self.number);
        }
    }

    /// Reports that a QP with an SRQ takes no more receives from it (`ibv_get_async_event(3)`). XRC
    /// and DC targets do not report it; whether those of a ConnectX do is unconfirmed.
    fn last_wqe_reached(&mut self, env: &mut Env, was_reset: bool) {
        let shared = matches!(self.params.receive, ReceiveSource::Srq(_))
            && !matches!(self.params.qp_type, QpType::XrcTarget | QpType::DcTarget);
        if shared && !was_reset {
            env.raise(AsyncKind::LastWqeReached, EventObject::Qp(self.number));
        }
    }

    /// Flushes the WQEs that have begun and those that are posted. WQEs posted later are flushed
    /// when their doorbell rings.
    pub(super) fn flush_send_queue(&mut self, env: &mut Env) {
        for wqe in self.requester.abandon() {
            self.complete_send_with_error(env, &wqe, Failure::FLUSHED);
            self.requester.give_back(wqe);
        }
        while self.read_next(env) {
            let Some(wqe) = self.requester.take_waiting() else { break };
            self.complete_send_with_error(env, &wqe, Failure::FLUSHED);
            self.requester.give_back(wqe);
        }
    }

    /// Flushes the receives posted on the QP's own ring. `true` if there were any.
    pub(super) fn flush_receive_queue(&mut self, env: &mut Env) -> bool {
        let mut any = false;
        if !matches!(self.params.receive, ReceiveSource::Ring(_)) {
            return any;
        }
        let mut wqe = ReceiveWqe::default();
        while let Some(index) = self.next_posted_receive(env) {
            wqe.index = index;
            match self.params.striding {
                Some(shape) => self.flush_whole(env, shape, index),
                None => self.complete_receive_with_error(env, &wqe, Failure::FLUSHED),
            };
            any = true;
        }
        any
    }

    /// Flushes receives that were posted to a QP in error; `None` once it has left that state.
    pub(in crate::core) fn flush_if_in_error(&mut self, env: &mut Env) -> Option<bool> {
        (self.state == QpState::Error).then(|| self.flush_receive_queue(env))
    }
}

fn error_cqe(user_index: u32, opcode_qpn: u32, wqe_counter: u16, failure: Failure) -> Cqe {
    let cqe = ErrorCqe {
        srqn_user_index: U32::new(user_index),
        vendor_syndrome: VendorSyndrome(failure.vendor),
        syndrome: failure.syndrome,
        opcode_qpn: U32::new(opcode_qpn),
        wqe_counter: U16::new(wqe_counter),
        ..ErrorCqe::default()
    };
    Cqe::read_from_bytes(cqe.as_bytes()).unwrap_or_default()
}
