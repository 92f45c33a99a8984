//! Completions of tag matching SRQs (`handle_tag_matching` of libmlx5): messages that an entry of
//! the list took, messages that took a receive of the SRQ, and changes of the list.

use core::mem::offset_of;

use super::completion::Raw;
use super::ring::CqeView;
use super::{CompletionQueue, PollError, Status};
use crate::format::{Cqe, OpOwn, TagEvent, TagReport};
use crate::queue_state::QueueState;

/// Whether a CQE is one of tag matching, if the SRQ matches tags.
pub(super) fn is_tagged(cqe: CqeView, op_own: OpOwn) -> bool {
    op_own.opcode().may_match_tags() && cqe.u8(offset_of!(Cqe, app)) == Cqe::TAG_MATCHING
}

/// Whether a CQE of a tag matching SRQ holds one of its receives.
pub(super) fn holds_receive(cqe: CqeView) -> bool {
    matches!(event(cqe), TagEvent::UNEXPECTED | TagEvent::NO_TAG)
}

fn event(cqe: CqeView) -> TagEvent {
    TagEvent(cqe.u8(offset_of!(Cqe, app_op)))
}

/// Whether the QP that posted changes of the SRQ's list is gone.
fn has_no_command(srq: &QueueState) -> bool {
    srq.with_tags(|list| list.command_is_gone()) == Some(true)
}

impl CompletionQueue {
    /// Completes what the CQE of a tag matching SRQ reports. `state` is the queue that the CQE
    /// names, the SRQ itself or a QP on it. `None` if the CQE is to be dropped.
    pub(super) fn finish_tagged(
        &self,
        cqe: CqeView,
        op_own: OpOwn,
        state: &QueueState,
        srq: &QueueState,
    ) -> Option<Result<Raw, PollError>> {
        let event = event(cqe);
        self.ring.note_sync(self.consumed, false);
        if holds_receive(cqe) {
            let raw = self.finish_shared_receive(cqe, op_own, state, srq).transpose()?;
            return Some(raw.inspect(|_| self.count_unexpected(event, srq)));
        }
        let done = match event {
            _ if event.is_of_entry() => self.complete_entry(cqe, op_own, event, srq),
            // As CQEs of other closed queues.
            _ if event.is_of_change() && has_no_command(srq) => return None,
            _ if event.is_of_change() => self.confirm_change(cqe, event, srq),
            _ => return None,
        };
        let Some((wr_id, status)) = done else { return Some(Err(PollError::NotOutstanding)) };
        Some(Ok(Raw { cqe, side: state.recv_side(), wr_id, status, format: op_own.format() }))
    }

    fn count_unexpected(&self, event: TagEvent, srq: &QueueState) {
        let is_unexpected = event == TagEvent::UNEXPECTED;
        if is_unexpected && srq.with_tags(|list| list.count_unexpected()) == Some(true) {
            self.ring.note_sync(self.consumed, true);
        }
    }

    fn complete_entry(
        &self,
        cqe: CqeView,
        op_own: OpOwn,
        event: TagEvent,
        srq: &QueueState,
    ) -> Option<(u64, Status)> {
        let entry = cqe.u16(offset_of!(Cqe, app_info));
        let matched = srq.with_tags(|list| list.complete(event, entry))??;
        let status = match self.deliver_matched(cqe, op_own, matched.buffer) {
            Status::Success if event.leaves_rendezvous() => Status::RendezvousIncomplete,
            status => status,
        };
        Some((matched.wr_id, status))
    }

    /// Completes a change, and all sends of the hidden QP up to it.
    fn confirm_change(
        &self,
        cqe: CqeView,
        event: TagEvent,
        srq: &QueueState,
    ) -> Option<(u64, Status)> {
        let is_done = cqe.u32(offset_of!(TagReport, success)) & TagReport::SUCCESS != 0;
        let phase = cqe.u16(offset_of!(TagReport, hardware_phase));
        let confirmed = srq.with_tags(|list| {
            let command = self.queues.table().block(list.command()?);
            let index = list.next_change(event)?;
            if !command.is_open() || !command.has_send(index) {
                return None;
            }
            command.complete_sends(index);
            list.confirm(is_done, phase)
        })??;
        self.ring.note_sync(self.consumed, confirmed.is_behind);
        let failed = event == TagEvent::REMOVE && !is_done;
        Some((confirmed.wr_id, if failed { Status::TagNotRemoved } else { Status::Success }))
    }
}
