//! Completions of tag matching SRQs (`handle_tag_matching` of libmlx5): messages that matched an
//! entry of the list, messages in receives of the SRQ, and changes of the list.

use core::mem::offset_of;

use super::completion::Raw;
use super::ring::CqeView;
use super::{CompletionQueue, PollError, Status};
use crate::format::{Cqe, OpOwn, TagEvent, TagReport};
use crate::queue_state::QueueState;
use crate::tag_list::TagList;

/// Whether a CQE is one of tag matching, if the SRQ matches tags.
pub(super) fn is_tagged(cqe: CqeView, op_own: OpOwn) -> bool {
    op_own.opcode().may_match_tags() && cqe.u8(offset_of!(Cqe, app)) == Cqe::TAG_MATCHING
}

/// Whether a CQE of a tag matching SRQ holds one of its receives.
pub(super) fn holds_receive(cqe: CqeView) -> bool {
    matches!(event(cqe), TagEvent::UNEXPECTED | TagEvent::NO_TAG)
}

/// If the queue is the command QP of a tag list, records that the changes from this WQE on have
/// failed.
pub(super) fn fail_changes(state: &QueueState, index: u16) {
    let srq = state.receives();
    if srq.matches_tags() {
        srq.with_tags(|list| {
            if list.command() == Some(state.user_index()) {
                list.fail(index);
            }
        });
    }
}

fn event(cqe: CqeView) -> TagEvent {
    TagEvent(cqe.u8(offset_of!(Cqe, app_op)))
}

/// How a tag matching CQE is handled.
enum Outcome {
    /// The QP that posted the change is closed. CQEs of other closed queues are dropped, too.
    Dropped,
    NotOutstanding,
    Done(u64, Status),
}

impl CompletionQueue {
    /// Completes the request that the CQE of a tag matching SRQ reports. `state` is the queue that
    /// the CQE names: the SRQ itself or a QP that uses it. `None` if the CQE must be dropped.
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
        let outcome = match event {
            _ if event.is_of_entry() => self.complete_entry(cqe, op_own, event, srq),
            _ if event.is_of_change() => self.confirm_change(cqe, event, srq),
            _ => Outcome::Dropped,
        };
        let (side, format) = (state.recv_side(), op_own.format());
        match outcome {
            Outcome::Dropped => None,
            Outcome::NotOutstanding => Some(Err(PollError::NotOutstanding)),
            Outcome::Done(wr_id, status) => Some(Ok(Raw { cqe, side, wr_id, status, format })),
        }
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
    ) -> Outcome {
        let entry = cqe.u16(offset_of!(Cqe, app_info));
        let matched = srq.with_tags(|list| list.complete(event, entry)).flatten();
        let Some(matched) = matched else { return Outcome::NotOutstanding };
        let status = match self.deliver_matched(cqe, op_own, matched.buffer) {
            Status::Success if event.is_rendezvous_incomplete() => Status::RendezvousIncomplete,
            status => status,
        };
        Outcome::Done(matched.wr_id, status)
    }

    /// Completes a change, and all sends of the command QP up to it.
    fn confirm_change(&self, cqe: CqeView, event: TagEvent, srq: &QueueState) -> Outcome {
        let is_done = cqe.u32(offset_of!(TagReport, success)) & TagReport::SUCCESS != 0;
        let mut outcome = Outcome::NotOutstanding;
        srq.with_tags(|list| match list.command_is_gone() {
            true => outcome = Outcome::Dropped,
            false => {
                let confirmed = self.confirm_next(cqe, event, is_done, list);
                confirmed.into_iter().for_each(|confirmed| outcome = confirmed);
            }
        });
        outcome
    }

    /// `None` if the next change to be confirmed is not of this kind.
    fn confirm_next(
        &self,
        cqe: CqeView,
        event: TagEvent,
        is_done: bool,
        list: &mut TagList,
    ) -> Option<Outcome> {
        let phase = cqe.u16(offset_of!(TagReport, hardware_phase));
        let command = self.queues.table().block(list.command()?);
        let index = list.next_change(event)?;
        if !command.is_open() || !command.has_send(index) {
            return None;
        }
        command.complete_sends(index);
        let confirmed = list.confirm(is_done, phase)?;
        self.ring.note_sync(self.consumed, confirmed.is_behind);
        let failed = event == TagEvent::REMOVE && !is_done;
        let status = if failed { Status::TagNotRemoved } else { Status::Success };
        Some(Outcome::Done(confirmed.wr_id, status))
    }
}
