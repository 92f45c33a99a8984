//! Receive WQEs: taking them from the QP's ring or an SRQ, filling their buffers, completing them.

use uverbs_mlx5_format::{
    Cqe, CqeOpcode, DataSegment, INLINE_FLAG, OCTOWORD, RemoteQpFlags, U16, U32, U64,
};
use zerocopy::FromBytes;

use super::super::cq::Completion;
use super::super::env::Env;
use super::super::mkey::{AccessError, Accessor};
use super::super::srq::NoReceive;
use super::super::{AsyncKind, Cqn, EventObject, LinkLayer, Pdn, Srqn};
use super::response::inline_limit;
use super::syndrome::Failure;
use super::tag::Delivery;
use super::wqe::Sge;
use super::{Qp, QpType, ReceiveRing, ReceiveSource};
use crate::packet::Addressing;

/// A receive WQE taken from a queue.
#[derive(Debug, Default)]
pub(super) struct ReceiveWqe {
    pub(super) index: u16,
    /// The SRQ that it came from.
    pub(super) srq: Option<Srqn>,
    /// The protection domain of its buffers: the SRQ's, if it came from one.
    pub(super) pd: Pdn,
    pub(super) sges: Vec<Sge>,
    /// Bytes that its buffers hold.
    pub(super) capacity: u64,
    /// Whether the WQE has inline data, which a receive cannot have.
    pub(super) malformed: bool,
    /// Data that goes into the CQE instead of memory.
    pub(super) inline: Vec<u8>,
    /// Which part of a tag matching SRQ's message it holds, if any.
    pub(super) delivery: Delivery,
    raw: Vec<u8>,
}

/// The fields of a receive completion besides the number of bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Received {
    pub(super) opcode: CqeOpcode,
    pub(super) bytes: u64,
    /// Immediate data in network byte order, or the invalidated rkey in big endian.
    pub(super) immediate: [u8; 4],
    pub(super) remote_qpn: u32,
    pub(super) solicited: bool,
}

impl Qp {
    /// Takes a receive WQE from the QP's ring, its SRQ, or for XRC the SRQ that the packet names.
    pub(super) fn take_receive_wqe(
        &mut self,
        env: &mut Env,
        xrc_srqn: Option<u32>,
    ) -> Result<Box<ReceiveWqe>, NoReceive> {
        let mut wqe = self.responder.spare.take().unwrap_or_default();
        wqe.delivery = Delivery::Untagged;
        let taken = match (&self.params.receive, xrc_srqn) {
            _ if self.params.qp_type == QpType::XrcTarget => {
                self.take_from_srq(env, Srqn(xrc_srqn.unwrap_or(0)), &mut wqe)
            }
            (ReceiveSource::Srq(srqn), _) => self.take_from_srq(env, *srqn, &mut wqe),
            (ReceiveSource::Ring(_), _) => self.take_from_ring(env, &mut wqe),
            (ReceiveSource::Spread(_) | ReceiveSource::FlowTable(_) | ReceiveSource::None, _) => {
                Err(NoReceive::Empty)
            }
        };
        match taken {
            Ok(()) => {
                let signed = self.params.signatures && wqe.srq.is_none();
                // A signature and a striding WQE's next segment are before the scatter entries.
                let heads = usize::from(signed) + usize::from(self.params.striding.is_some());
                wqe.parse(heads * OCTOWORD, self.is_raw());
                Ok(wqe)
            }
            Err(reason) => {
                self.responder.spare = Some(wqe);
                Err(reason)
            }
        }
    }

    fn take_from_srq(
        &self,
        env: &mut Env,
        srqn: Srqn,
        wqe: &mut ReceiveWqe,
    ) -> Result<(), NoReceive> {
        let Some(srq) = env.srqs.get_mut(srqn.0) else { return Err(NoReceive::Foreign) };
        let xrcd = srq.params.xrc.map(|xrc| xrc.xrcd);
        if self.params.qp_type == QpType::XrcTarget && xrcd != self.params.xrcd {
            return Err(NoReceive::Foreign);
        }
        wqe.pd = srq.params.pd;
        let was_in_error = srq.in_error;
        let taken = srq.take(&*env.memory, &mut wqe.raw);
        let is_below_limit = srq.reaches_limit(&*env.memory);
        let broke = srq.in_error && !was_in_error;
        if is_below_limit && !broke {
            env.raise(AsyncKind::SrqLimitReached, EventObject::Srq(srqn));
        }
        if broke {
            env.raise(AsyncKind::SrqError, EventObject::Srq(srqn));
        }
        wqe.index = taken?;
        wqe.srq = Some(srqn);
        Ok(())
    }

    fn take_from_ring(&mut self, env: &Env, wqe: &mut ReceiveWqe) -> Result<(), NoReceive> {
        let index = self.next_posted_receive(env).ok_or(NoReceive::Empty)?;
        let ReceiveSource::Ring(ring) = &self.params.receive else { return Err(NoReceive::Empty) };
        wqe.index = index;
        wqe.srq = None;
        wqe.pd = self.params.pd;
        ring.read(env, index, &mut wqe.raw)
    }

    /// Takes the next receive posted on the QP's ring, and returns its counter.
    pub(super) fn next_posted_receive(&mut self, env: &Env) -> Option<u16> {
        let ReceiveSource::Ring(ring) = &self.params.receive else { return None };
        let responder = &mut self.responder;
        if responder.posted == responder.taken {
            let record = env.memory.load_be32(self.params.doorbell_record);
            let posted = record.map_or(responder.taken, |counter| counter as u16);
            // A broken host may count more WQEs than the ring holds.
            let ahead = posted.wrapping_sub(responder.taken).min(1 << ring.log_wqes);
            responder.posted = responder.taken.wrapping_add(ahead);
        }
        if responder.posted == responder.taken {
            return None;
        }
        let index = responder.taken;
        responder.taken = index.wrapping_add(1);
        Some(index)
    }

    /// Writes message bytes from `offset` on to a receive WQE's buffers, or keeps them for its CQE.
    /// `is_whole` says that `data` is the whole message of a QP whose CQEs may hold data.
    pub(super) fn store_received(
        &self,
        env: &Env,
        wqe: &mut ReceiveWqe,
        offset: u64,
        data: &[u8],
        is_whole: bool,
    ) -> Result<(), Failure> {
        if wqe.malformed {
            return Err(Failure::SEGMENT);
        }
        if offset + data.len() as u64 > wqe.capacity {
            return Err(Failure::BUFFER_TOO_SHORT);
        }
        let may_inline = self.params.qp_type.is_connected() || self.is_target();
        let limit = if may_inline && is_whole && wqe.delivery == Delivery::Untagged {
            inline_limit(env, self.params.scatter_responder, self.receive_cq(env, wqe).0)
        } else {
            0
        };
        if !data.is_empty() && data.len() <= limit as usize {
            wqe.inline.extend_from_slice(data);
            return Ok(());
        }
        let who = Accessor { pd: wqe.pd, ..self.accessor() };
        let stored = env.scatter(who, &wqe.sges, offset, data);
        stored.map_err(|error| match error {
            AccessError::Bounds if wqe.sges.is_empty() => Failure::BUFFER_TOO_SHORT,
            _ => Failure::SCATTER,
        })
    }

    /// Completes a receive WQE; `false` if the CQ is in error.
    pub(super) fn complete_receive(
        &mut self,
        env: &mut Env,
        mut wqe: Box<ReceiveWqe>,
        from: &Addressing,
        received: Received,
    ) -> bool {
        let (cqn, user_index) = self.receive_cq(env, &wqe);
        let mut cqe = Cqe {
            path_bits: self.path_bits(env, from),
            slid: U16::new(from.source_lid),
            flags_remote_qpn: remote_flags(env, from, received.remote_qpn),
            srqn_user_index: U32::new(user_index),
            immediate: U32::from_bytes(received.immediate),
            byte_count: U32::new(received.bytes as u32),
            timestamp: U64::new(env.now),
            opcode_qpn_flow_tag: U32::new(self.number.0),
            wqe_counter: U16::new(wqe.index),
            ..Cqe::default()
        };
        wqe.delivery.mark(&mut cqe, wqe.index);
        if wqe.delivery.is_of_entry() {
            self.complete_entry(env, wqe.srq, wqe.index);
        }
        let inline = (!wqe.inline.is_empty()).then_some(wqe.inline.as_slice());
        let Received { opcode, solicited, .. } = received;
        let completed = env.complete(cqn, Completion { cqe, opcode, solicited, inline });
        wqe.inline.clear();
        self.responder.spare = Some(wqe);
        completed
    }

    /// The path bits of the LID to which the packet was sent.
    fn path_bits(&self, env: &Env, from: &Addressing) -> u8 {
        (from.destination_lid as u8) & ((1u8 << env.config.lmc) - 1)
    }

    /// The CQ that a receive WQE completes to, and the user index (version 1) or SRQ number
    /// (version 0) in its CQE. The CQEs of a DC target have the target's own user index, by which
    /// libmlx5 finds it (`create_dct` and `get_resp_ctx_v1` in providers/mlx5; unconfirmed on an
    /// adapter).
    pub(super) fn receive_cq(&self, env: &Env, wqe: &ReceiveWqe) -> (Cqn, u32) {
        self.cq_of_srq(env, wqe.srq)
    }

    /// [`Qp::receive_cq`] of a receive from this SRQ, or from the QP's own ring.
    pub(super) fn cq_of_srq(&self, env: &Env, srqn: Option<Srqn>) -> (Cqn, u32) {
        let srq = srqn.and_then(|srqn| env.srqs.get(srqn.0));
        let own = srq.and_then(|srq| srq.params.own_cq());
        let number = srqn.map_or(0, |srqn| srqn.0);
        match own {
            Some(own) if self.params.cqe_version_1 => own,
            Some((cq, _)) => (cq, number),
            None if self.params.cqe_version_1 => (self.params.receive_cq, self.params.user_index),
            None => (self.params.receive_cq, number),
        }
    }
}

impl ReceiveRing {
    fn read(&self, env: &Env, index: u16, into: &mut Vec<u8>) -> Result<(), NoReceive> {
        into.clear();
        into.resize(1 << self.log_stride, 0);
        let slot = u64::from(index) & ((1 << self.log_wqes) - 1);
        let read = self.buffer.read(&*env.memory, slot << self.log_stride, into);
        read.map_err(|_| NoReceive::Broken)
    }
}

impl ReceiveWqe {
    /// WQEs of frame queues may have the inline flag set. There it asks the device to write whole
    /// cache lines at the start of a frame (`MLX5_HW_START_PADDING` of mlx5e), which changes no
    /// address.
    fn parse(&mut self, skipped: usize, frames: bool) {
        self.sges.clear();
        self.inline.clear();
        self.malformed = false;
        for bytes in self.raw[skipped.min(self.raw.len())..].chunks_exact(size_of::<DataSegment>())
        {
            let Ok(mut segment) = DataSegment::read_from_bytes(bytes) else { break };
            if segment.is_terminator() {
                break;
            }
            if frames {
                segment.byte_count.set(segment.byte_count.get() & !INLINE_FLAG);
            }
            self.malformed |= segment.byte_count.get() & INLINE_FLAG != 0;
            self.sges.push(Sge::new(&segment));
        }
        self.capacity = self.sges.iter().map(|sge| u64::from(sge.len)).sum();
    }
}

/// GRH bits, service level or kind of IP header, and the remote QP number (Linux reads bits 25:24
/// as the latter on RoCE).
fn remote_flags(env: &Env, from: &Addressing, remote_qpn: u32) -> RemoteQpFlags {
    use uverbs_mlx5_format::RoceHeader;
    let kind = match env.config.link {
        LinkLayer::InfiniBand => from.service_level,
        LinkLayer::Ethernet if from.source.to_ipv4().is_some() => RoceHeader::IPV4.0,
        LinkLayer::Ethernet => RoceHeader::IPV6.0,
    };
    RemoteQpFlags::new(u8::from(from.global), kind, remote_qpn)
}
