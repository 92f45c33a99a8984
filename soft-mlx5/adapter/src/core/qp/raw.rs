//! Raw packet QPs: sending frames from Ethernet WQEs, and storing received frames in receive WQEs.

use uverbs_mlx5_format::{
    Cqe, CqeOpcode, ETH_INLINE_START, EthSegment, OCTOWORD, Opcode, U16, U32, U64,
};

use super::super::MAX_TSO;
use super::super::cq::Completion;
use super::super::env::Env;
use super::super::frame::{self, Findings};
use super::receive::ReceiveWqe;
use super::striding::Striding;
use super::syndrome::Failure;
use super::wqe::{Segments, SendWqe};
use super::{Qp, QpState, QpType};

/// The result of steering for a frame that a raw packet QP receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steered {
    /// Flow tag of the rule, 24 bits; 0 without one.
    pub flow_tag: u32,
    /// Receive hash and its type, in the encoding of the CQE.
    pub hash: Option<(u32, u8)>,
}

/// A received frame that is being stored.
struct Arrived<'a> {
    /// The frame as it arrived.
    whole: &'a [u8],
    /// The frame without the VLAN tag that was stripped.
    bytes: &'a [u8],
    /// The control information of that tag.
    tag: Option<u16>,
    findings: Findings,
    steered: Steered,
}

/// The Ethernet part of a send WQE: segment and inline header.
impl Segments<'_> {
    pub(super) fn ethernet(&mut self, header: &mut Vec<u8>) -> Result<EthSegment, Failure> {
        let segment: EthSegment = self.take()?;
        let len = segment.inline_length();
        let start = len.min(ETH_INLINE_START);
        header.extend_from_slice(&segment.inline_header_start[..start]);
        let size = (EthSegment::segment_ds(len) - 1) * OCTOWORD;
        let (rest, after) = self.0.split_at_checked(size).ok_or(Failure::SEGMENT)?;
        header.extend_from_slice(rest.get(..len - start).ok_or(Failure::SEGMENT)?);
        self.0 = after;
        Ok(segment)
    }
}

impl SendWqe {
    /// Payload bytes of each frame: all of them, or those of one segment.
    fn frame_payload(&self) -> u64 {
        if self.opcode == Opcode::TSO { self.ethernet.mss.get().into() } else { self.len }
    }

    /// The number of frames that the WQE produces. It is unconfirmed that a frame or a large send
    /// that is too long fails with a local length error.
    pub(super) fn count_frames(&self) -> Result<u32, Failure> {
        let payload = self.frame_payload();
        let longest = self.header.len() as u64 + payload.min(self.len);
        if self.opcode == Opcode::TSO && payload == 0 || longest < frame::HEADER as u64 {
            return Err(Failure::SEGMENT);
        }
        if longest > frame::LONGEST as u64 || self.len > MAX_TSO.into() {
            return Err(Failure::TOO_LONG);
        }
        Ok(self.len.div_ceil(payload.max(1)).max(1) as u32)
    }
}

impl Qp {
    pub(super) fn is_raw(&self) -> bool {
        self.params.qp_type == QpType::RawPacket
    }

    /// Frame `index` of a WQE, as the port sends it.
    pub(super) fn build_frame(
        &self,
        env: &Env,
        wqe: &SendWqe,
        index: u32,
    ) -> Result<Vec<u8>, Failure> {
        let size = wqe.frame_payload();
        let offset = u64::from(index) * size;
        let len = (wqe.len - offset).min(size);
        let mut frame = wqe.header.clone();
        frame.resize(wqe.header.len() + len as usize, 0);
        self.fill(env, wqe, offset, &mut frame[wqe.header.len()..])?;
        if wqe.opcode == Opcode::TSO {
            let last = offset + len == wqe.len;
            frame::cut_segment(&mut frame, index as u16, offset as u32, last);
        }
        let segment = &wqe.ethernet;
        frame::fill_checksums(&mut frame, segment.checksum_flags);
        if segment.inserts_vlan() {
            let service = segment.inline_header_size.get() & EthSegment::INSERT_SERVICE_VLAN != 0;
            frame::insert_tag(&mut frame, service, segment.vlan_tci());
        }
        frame::pad(&mut frame);
        Ok(frame)
    }

    /// Whether the rate limit delays the next frame; if so, starts a timer.
    pub(super) fn is_held_back(&mut self, env: &mut Env) -> bool {
        let (owner, at) = (self.timer(), self.requester.paced_until);
        let waits = at > env.now;
        if waits {
            self.deadline.set(at, owner, &mut env.timers);
        }
        waits
    }

    /// Delays the next frame for the time that this one takes at the rate limit. Only the frame's
    /// own bytes count; whether a real device counts check sequence and gap as well is unconfirmed.
    pub(super) fn pace(&mut self, env: &Env, bytes: usize) {
        let Some(rate) = std::num::NonZeroU32::new(self.settings.rate_limit) else { return };
        let nanoseconds = bytes as u64 * 8 * 1_000_000 / u64::from(rate.get());
        self.requester.paced_until = self.requester.paced_until.max(env.now) + nanoseconds;
    }

    /// Stores a frame for this QP. Returns `false` if no receive is posted, so that the frame is
    /// lost.
    pub(in crate::core) fn receive_frame(
        &mut self,
        env: &mut Env,
        frame: &[u8],
        steered: Steered,
    ) -> bool {
        let ready = !matches!(self.state, QpState::Reset | QpState::Init | QpState::Error);
        if !self.is_raw() || !ready {
            env.counters.dropped += 1;
            return false;
        }
        let findings = Findings::of(frame);
        let stripped = self.params.strip_vlan.then(|| frame::strip_tag(frame)).flatten();
        let (bytes, tag) = match &stripped {
            Some((bytes, control)) => (bytes.as_slice(), Some(*control)),
            None => (frame, None),
        };
        let arrived = Arrived { whole: frame, bytes, tag, findings, steered };
        match self.params.striding {
            Some(shape) => self.receive_into_strides(env, shape, &arrived),
            None => self.receive_into_wqe(env, &arrived),
        }
    }

    /// Stores a frame in a receive of its own.
    fn receive_into_wqe(&mut self, env: &mut Env, arrived: &Arrived<'_>) -> bool {
        let Ok(mut wqe) = self.take_receive_wqe(env, None) else {
            env.counters.datagrams_lost += 1;
            env.counters.out_of_buffer += 1;
            return false;
        };
        let stored = self.store_frame(env, &mut wqe, 0, arrived);
        let completed = match stored {
            Ok(len) => {
                let at = Cqe {
                    byte_count: U32::new(len as u32),
                    wqe_counter: U16::new(wqe.index),
                    ..Cqe::default()
                };
                self.complete_frame(env, &wqe, at, arrived)
            }
            Err(failure) => self.fail_frame(env, &wqe, failure),
        };
        self.responder.spare = Some(wqe);
        if !completed {
            self.fail_fatally(env);
        }
        completed && stored.is_ok()
    }

    /// Stores a frame in strides of the WQE that is being filled.
    fn receive_into_strides(
        &mut self,
        env: &mut Env,
        shape: Striding,
        arrived: &Arrived<'_>,
    ) -> bool {
        let bytes = self.stored_length(arrived);
        let mut strides = match self.take_strides(env, shape, bytes) {
            Some(Ok(strides)) => strides,
            Some(Err(_)) => return false,
            None => {
                env.counters.datagrams_lost += 1;
                env.counters.out_of_buffer += 1;
                return false;
            }
        };
        let offset = strides.offset();
        if let Err(failure) = self.store_frame(env, strides.wqe(), offset, arrived) {
            self.fail_strides(env, strides, failure);
            return false;
        }
        let at = strides.cqe(bytes);
        let completed = self.complete_frame(env, strides.wqe(), at, arrived);
        self.use_strides(strides);
        if !completed {
            self.fail_fatally(env);
        }
        completed
    }

    /// Completes a receive with an error. If the frame was too long, the QP does not fail: mlx5e
    /// continues to use a receive queue after LOCAL_LENGTH_ERR, and recovers it after other errors
    /// (`cqe_syndrome_needs_recover` of mlx5/core/en/health.h, since Linux commit 187a9830c921).
    fn fail_frame(&mut self, env: &mut Env, wqe: &ReceiveWqe, failure: Failure) -> bool {
        let completed = self.complete_receive_with_error(env, wqe, failure);
        if failure != Failure::BUFFER_TOO_SHORT {
            self.enter_error(env);
        }
        completed
    }

    /// Bytes of a frame in memory, including its check sequence if the QP stores it.
    fn stored_length(&self, arrived: &Arrived<'_>) -> u64 {
        let sequence = if self.params.scatter_check_sequence { 4 } else { 0 };
        arrived.bytes.len() as u64 + sequence
    }

    /// Writes the frame, and its check sequence if the QP stores it, to the receive's buffers from
    /// `offset` on.
    fn store_frame(
        &self,
        env: &Env,
        wqe: &mut ReceiveWqe,
        offset: u64,
        arrived: &Arrived<'_>,
    ) -> Result<usize, Failure> {
        let frame = arrived.bytes;
        self.store_received(env, wqe, offset, frame, false)?;
        if !self.params.scatter_check_sequence {
            return Ok(frame.len());
        }
        let sequence = frame::check_sequence(arrived.whole);
        self.store_received(env, wqe, offset + frame.len() as u64, &sequence, false)?;
        Ok(frame.len() + sequence.len())
    }

    /// Completes a frame; `at` has the CQE fields with its position.
    fn complete_frame(
        &self,
        env: &mut Env,
        wqe: &ReceiveWqe,
        at: Cqe,
        arrived: &Arrived<'_>,
    ) -> bool {
        let (cqn, user_index) = self.receive_cq(env, wqe);
        let Arrived { tag, findings, steered, .. } = arrived;
        let mut cqe = Cqe {
            vlan_info: U16::new(tag.unwrap_or(0)),
            header_types: findings.header_types(tag.is_some()),
            checks: findings.checks,
            checksum: U16::new(findings.checksum),
            srqn_user_index: U32::new(user_index),
            timestamp: U64::new(env.now),
            opcode_qpn_flow_tag: U32::new(steered.flow_tag & 0xff_ffff),
            ..at
        };
        if let Some((hash, kind)) = steered.hash {
            cqe.rss_hash = U32::new(hash);
            cqe.rss_hash_type = kind;
        }
        env.complete(cqn, Completion::new(cqe, CqeOpcode::RESPONDER_SEND))
    }
}
