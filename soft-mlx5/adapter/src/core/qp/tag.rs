//! Tag matching: the list operations of a command QP, and the messages that arrive at QPs of a tag
//! matching SRQ.
//!
//! A message of several packets has two completions: one when it is matched, one when its data is
//! complete. So has a rendezvous. Its message only says where the data is: the device reads the
//! data and then sends a FIN, by requests of its own in the QP's send queue. Such a QP has no send
//! ring ([`QpParams::rendezvous`]). Rendezvous to other QPs, and those whose data does not fit into
//! the buffer, are matched but left to software.
//!
//! [`QpParams::rendezvous`]: super::QpParams::rendezvous
//!
//! Completions are those that `handle_tag_matching` (providers/mlx5/cq.c of rdma-core) expects. No
//! public source says what happens to a matched message when its connection fails: here its entry
//! completes as canceled.

use uverbs_mlx5_format::{
    ControlFlags, Cqe, CqeOpcode, Fence, Opcode, RemoteQpFlags, RendezvousHeader, TagEvent,
    TagHeader, TagMatchingSegment, TagReport, U16, U32, U64,
};
use zerocopy::{FromBytes, IntoBytes};

use super::super::cq::Completion;
use super::super::env::Env;
use super::super::tags::{Found, TagBuffer, TagEntry, TagList};
use super::super::{Pdn, Srqn};
use super::receive::ReceiveWqe;
use super::responder::Refusal;
use super::syndrome::Failure;
use super::wqe::{SendWqe, Sge};
use super::{Qp, ReceiveSource};
use crate::packet::View;

/// The longest rendezvous request: its headers, and bytes that the sender's software adds.
pub const MAX_RENDEZVOUS: usize = 64;
const HEADER: usize = size_of::<TagHeader>();
const FIN: usize = HEADER + size_of::<RendezvousHeader>();

/// How tag matching treats the message that a receive WQE holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Delivery {
    /// Not at all.
    #[default]
    Untagged,
    /// The SRQ's receive takes all of it.
    Whole(TagEvent),
    /// An entry's buffer takes it.
    Entry {
        event: TagEvent,
        /// The header for the CQE, unless an earlier CQE had it.
        header: Option<TagHeader>,
        /// Bytes at the message's start that are not stored.
        skipped: usize,
    },
}

impl Delivery {
    /// The offset in the buffers, and the bytes of a packet that go there.
    pub(super) fn place<'a>(&self, offset: u64, data: &'a [u8]) -> (u64, &'a [u8]) {
        match *self {
            Self::Entry { skipped, .. } if offset == 0 => (0, &data[skipped.min(data.len())..]),
            Self::Entry { skipped, .. } => (offset.saturating_sub(skipped as u64), data),
            Self::Untagged | Self::Whole(_) => (offset, data),
        }
    }

    pub(super) fn is_of_entry(&self) -> bool {
        matches!(self, Self::Entry { .. })
    }

    /// Adds the tag matching fields to the CQE of a receive; `place` is that of the entry. Such
    /// CQEs do not report a GRH (tests/test_tag_matching.py of rdma-core).
    pub(super) fn mark(&self, cqe: &mut Cqe, place: u16) {
        if *self != Self::Untagged {
            let flags = cqe.flags_remote_qpn;
            cqe.flags_remote_qpn = RemoteQpFlags::new(0, flags.service_level(), flags.remote_qpn());
        }
        match *self {
            Self::Untagged => {}
            Self::Whole(event) => set_event(cqe, event),
            Self::Entry { event, header, skipped } => {
                set_event(cqe, event);
                cqe.app_info = U16::new(place);
                cqe.wqe_counter = U16::new(0);
                cqe.byte_count = U32::new(cqe.byte_count.get().saturating_sub(skipped as u32));
                header.iter().for_each(|header| set_head(cqe, header.as_bytes()));
            }
        }
    }
}

fn set_event(cqe: &mut Cqe, event: TagEvent) {
    (cqe.app, cqe.app_op) = (Cqe::TAG_MATCHING, event.0);
}

fn set_head(cqe: &mut Cqe, head: &[u8]) {
    cqe.as_mut_bytes()[..head.len()].copy_from_slice(head);
}

/// A request that the device sends for a rendezvous.
#[derive(Clone, Copy, Debug)]
pub(super) enum Offload {
    /// Reads the data into an entry's buffer.
    Read { srqn: Srqn, pd: Pdn, place: u16, solicited: bool },
    /// Tells the sender that the data was read.
    Fin,
}

/// List operations.
impl Qp {
    /// The tag list of the QP's SRQ.
    fn tag_list<'a>(&self, env: &'a mut Env) -> Option<&'a mut TagList> {
        let ReceiveSource::Srq(srqn) = self.params.receive else { return None };
        env.srqs.get_mut(srqn.0)?.tags.as_mut()
    }

    /// Executes a WQE that changes the tag list.
    pub(super) fn change_tags(&mut self, env: &mut Env, wqe: &SendWqe) -> Result<(), Failure> {
        let change = &wqe.tag_change;
        let list = self.tag_list(env).ok_or(Failure::OPCODE)?;
        let (event, success) = match change.operation & 0xf0 {
            TagMatchingSegment::OPERATION_NOP => (TagEvent::NOOP, true),
            TagMatchingSegment::OPERATION_REMOVE => {
                (TagEvent::REMOVE, list.remove(change.index.get()))
            }
            TagMatchingSegment::OPERATION_APPEND => {
                list.append(entry_of(wqe), change.index.get()).ok_or(Failure::TAG_LIST)?;
                (TagEvent::APPEND, true)
            }
            _ => return Err(Failure::OPCODE),
        };
        if change.flags & TagMatchingSegment::FLAG_SOFTWARE_COUNT != 0 {
            list.report(change.software_count.get());
        }
        let phase = list.arrived();
        if change.flags & TagMatchingSegment::FLAG_COMPLETION == 0 {
            return Ok(());
        }
        let report = TagReport {
            success: U32::new(if success { TagReport::SUCCESS } else { 0 }),
            hardware_phase: U16::new(phase),
            ..TagReport::default()
        };
        let ReceiveSource::Srq(srqn) = self.params.receive else { return Err(Failure::OPCODE) };
        let cqe = Cqe { wqe_counter: U16::new(wqe.index), ..Cqe::default() };
        let written = self.write_event(env, srqn, cqe, event, report.as_bytes());
        if written { Ok(()) } else { Err(Failure::TAG_LIST) }
    }

    /// Writes a CQE that belongs to no packet.
    fn write_event(
        &self,
        env: &mut Env,
        srqn: Srqn,
        mut cqe: Cqe,
        event: TagEvent,
        head: &[u8],
    ) -> bool {
        let (cqn, user_index) = self.cq_of_srq(env, Some(srqn));
        cqe.srqn_user_index = U32::new(user_index);
        cqe.timestamp = U64::new(env.now);
        cqe.opcode_qpn_flow_tag = U32::new(self.number.0);
        set_event(&mut cqe, event);
        set_head(&mut cqe, head);
        env.complete(cqn, Completion::new(cqe, CqeOpcode::NO_PACKET))
    }

    fn write_entry_event(
        &self,
        env: &mut Env,
        srqn: Srqn,
        place: u16,
        event: TagEvent,
        head: &[u8],
    ) -> bool {
        let cqe = Cqe { app_info: U16::new(place), ..Cqe::default() };
        self.write_event(env, srqn, cqe, event, head)
    }
}

fn entry_of(wqe: &SendWqe) -> TagEntry {
    let buffer = wqe.sges.first().map(|sge| TagBuffer {
        address: sge.address,
        len: sge.len,
        lkey: sge.lkey.unwrap_or_default(),
    });
    TagEntry { tag: wqe.tag_change.tag.get(), mask: wqe.tag_change.mask.get(), buffer }
}

/// Messages.
impl Qp {
    /// Finds the receive of a message that begins. Returns `false` if there is nothing to store
    /// now, because the device reads the data later.
    ///
    /// A message that is too short for a header is untagged, like one with an unknown operation
    /// (unconfirmed).
    pub(super) fn begin_send(&mut self, env: &mut Env, packet: &View<'_>) -> Result<bool, Refusal> {
        let Some(list) = self.tag_list(env) else {
            return self.need_receive(env, packet).map(|()| true);
        };
        let header = TagHeader::read_from_prefix(packet.payload).ok().map(|(header, _)| header);
        let is_tagged = |header: &TagHeader| {
            matches!(header.operation, TagHeader::EAGER | TagHeader::RENDEZVOUS)
        };
        let Some(header) = header.filter(is_tagged) else {
            return self.take_whole(env, packet, TagEvent::NO_TAG);
        };
        match list.find(header.tag.get()) {
            None => {
                self.take_whole(env, packet, TagEvent::UNEXPECTED)?;
                self.tag_list(env).into_iter().for_each(TagList::count_unexpected);
                Ok(true)
            }
            Some(found) if header.operation == TagHeader::EAGER => {
                self.take_eager(env, packet, header, found)
            }
            Some(found) => self.take_rendezvous(env, packet, header, found),
        }
    }

    fn take_whole(
        &mut self,
        env: &mut Env,
        packet: &View<'_>,
        event: TagEvent,
    ) -> Result<bool, Refusal> {
        self.need_receive(env, packet)?;
        if let Some(wqe) = &mut self.responder.receive {
            wqe.delivery = Delivery::Whole(event);
        }
        Ok(true)
    }

    fn take_eager(
        &mut self,
        env: &mut Env,
        packet: &View<'_>,
        header: TagHeader,
        found: Found,
    ) -> Result<bool, Refusal> {
        let (event, header) = if packet.position.ends() {
            (TagEvent::CONSUMED_MESSAGE, Some(header))
        } else {
            self.report_match(env, &header, found)?;
            (TagEvent::EXPECTED, None)
        };
        self.take_entry(env, found, Delivery::Entry { event, header, skipped: HEADER })
    }

    fn report_match(&self, env: &mut Env, header: &TagHeader, found: Found) -> Result<(), Refusal> {
        let ReceiveSource::Srq(srqn) = self.params.receive else { return Err(Refusal::Fatal) };
        let head = header.as_bytes();
        let written = self.write_entry_event(env, srqn, found.place, TagEvent::CONSUMED, head);
        if written { Ok(()) } else { Err(Refusal::Fatal) }
    }

    /// Makes an entry's buffer the receive of the current message.
    fn take_entry(
        &mut self,
        env: &mut Env,
        found: Found,
        delivery: Delivery,
    ) -> Result<bool, Refusal> {
        let (srqn, pd) = self.match_entry(env, found).ok_or(Refusal::Fatal)?;
        let mut wqe = self.responder.spare.take().unwrap_or_default();
        wqe.hold_entry(found, (srqn, pd), delivery);
        self.responder.receive = Some(wqe);
        Ok(true)
    }

    /// Takes an entry out of the list. Returns its SRQ, and the protection domain of its buffer.
    fn match_entry(&self, env: &mut Env, found: Found) -> Option<(Srqn, Pdn)> {
        let ReceiveSource::Srq(srqn) = self.params.receive else { return None };
        let srq = env.srqs.get_mut(srqn.0)?;
        srq.tags.as_mut()?.take(found);
        Some((srqn, srq.params.pd))
    }

    /// Gives an entry's place back, after the CQE that ends its use.
    pub(super) fn complete_entry(&self, env: &mut Env, srqn: Option<Srqn>, place: u16) {
        let list = srqn.and_then(|srqn| env.srqs.get_mut(srqn.0)?.tags.as_mut());
        list.into_iter().for_each(|list| list.complete(place));
    }

    /// Reports that the data of a matched message will not arrive.
    pub(super) fn cancel_entry(&self, env: &mut Env, srqn: Option<Srqn>, place: u16) -> bool {
        self.complete_entry(env, srqn, place);
        srqn.is_none_or(|srqn| self.write_entry_event(env, srqn, place, TagEvent::CANCELED, &[]))
    }

    /// Cancels the matched messages of a QP that is reset or destroyed.
    pub(in crate::core) fn abandon_entries(&mut self, env: &mut Env) {
        if self.tag_list(env).is_none() {
            return;
        }
        for wqe in self.requester.abandon() {
            wqe.offload.into_iter().for_each(|offload| _ = self.cancel_offload(env, offload));
        }
        let receive = self.responder.take_receive();
        if let Some(wqe) = receive.filter(|wqe| wqe.delivery.is_of_entry()) {
            self.cancel_entry(env, wqe.srq, wqe.index);
        }
    }
}

/// Rendezvous.
impl Qp {
    fn take_rendezvous(
        &mut self,
        env: &mut Env,
        packet: &View<'_>,
        header: TagHeader,
        found: Found,
    ) -> Result<bool, Refusal> {
        let is_short = packet.position.ends() && packet.payload.len() <= MAX_RENDEZVOUS;
        let from = packet.payload.get(HEADER..FIN).filter(|_| is_short);
        let from = from.and_then(|bytes| RendezvousHeader::read_from_bytes(bytes).ok());
        let from = from.ok_or(Refusal::Invalid)?;
        let capacity = found.entry.buffer.map_or(0, |buffer| buffer.len);
        if !self.params.rendezvous || from.length.get() > capacity {
            let event = TagEvent::CONSUMED_MESSAGE_SOFTWARE_RENDEZVOUS;
            let delivery = Delivery::Entry { event, header: Some(header), skipped: 0 };
            return self.take_entry(env, found, delivery);
        }
        self.report_match(env, &header, found)?;
        let (srqn, pd) = self.match_entry(env, found).ok_or(Refusal::Fatal)?;
        let solicited = packet.bth.solicited();
        let read = Offload::Read { srqn, pd, place: found.place, solicited };
        self.requester.offload(|wqe| wqe.read_for(read, &from, found.entry.buffer));
        self.requester.offload(|wqe| wqe.fin_for(&packet.payload[..FIN]));
        self.schedule(env);
        Ok(false)
    }

    /// Completes a request that the device sent; `false` if the CQ is in error.
    pub(super) fn complete_offload(&self, env: &mut Env, wqe: &SendWqe, offload: Offload) -> bool {
        let Offload::Read { srqn, place, solicited, .. } = offload else { return true };
        self.complete_entry(env, Some(srqn), place);
        let (cqn, user_index) = self.cq_of_srq(env, Some(srqn));
        let mut cqe = Cqe {
            flags_remote_qpn: RemoteQpFlags::new(0, 0, self.settings.destination_qpn),
            srqn_user_index: U32::new(user_index),
            app_info: U16::new(place),
            byte_count: U32::new(wqe.len as u32),
            timestamp: U64::new(env.now),
            opcode_qpn_flow_tag: U32::new(self.number.0),
            ..Cqe::default()
        };
        set_event(&mut cqe, TagEvent::EXPECTED);
        let opcode = CqeOpcode::RESPONDER_SEND;
        env.complete(cqn, Completion { cqe, opcode, solicited, inline: None })
    }

    /// Ends a request of the device that was not sent, or that failed.
    pub(super) fn cancel_offload(&self, env: &mut Env, offload: Offload) -> bool {
        match offload {
            Offload::Read { srqn, place, .. } => self.cancel_entry(env, Some(srqn), place),
            Offload::Fin => true,
        }
    }
}

impl ReceiveWqe {
    fn hold_entry(&mut self, found: Found, of: (Srqn, Pdn), delivery: Delivery) {
        self.index = found.place;
        (self.srq, self.pd) = (Some(of.0), of.1);
        self.sges.clear();
        self.sges.extend(found.entry.buffer.map(Sge::from));
        self.capacity = self.sges.iter().map(|sge| u64::from(sge.len)).sum();
        self.malformed = false;
        self.inline.clear();
        self.delivery = delivery;
    }
}

impl From<TagBuffer> for Sge {
    fn from(buffer: TagBuffer) -> Self {
        Self { address: buffer.address, len: buffer.len, lkey: Some(buffer.lkey) }
    }
}

impl SendWqe {
    fn read_for(&mut self, offload: Offload, from: &RendezvousHeader, to: Option<TagBuffer>) {
        self.opcode = Opcode::RDMA_READ;
        self.remote_address = from.address.get();
        self.rkey = from.rkey.get();
        self.len = from.length.get().into();
        self.sges.extend(to.map(Sge::from));
        self.offload = Some(offload);
    }

    /// The FIN has the headers of the request. The fence holds it back until the data is read.
    fn fin_for(&mut self, headers: &[u8]) {
        self.opcode = Opcode::SEND;
        self.flags = ControlFlags::NONE.with_fence(Fence::FENCE);
        self.inline.extend_from_slice(headers);
        self.inline[0] = TagHeader::FIN;
        self.len = headers.len() as u64;
        self.sges.push(Sge { address: 0, len: headers.len() as u32, lkey: None });
        self.offload = Some(Offload::Fin);
    }
}
