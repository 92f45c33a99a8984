//! Striding receive queues: many frames fill the strides of one WQE (multi-packet WQEs).
//!
//! A frame begins at the next free stride and takes as many strides as it needs. Its CQE names the
//! WQE (`wqe_id`), the stride (`wqe_counter`), and the number of strides (`byte_count`):
//! `mlx5e_handle_rx_cqe_mpwrq` of mlx5/core/en_rx.c, `mlx5_rx_burst_mprq` of DPDK. If a frame does
//! not fit into the rest of a WQE, a filler CQE consumes the rest and the frame goes to the next
//! WQE.
//!
//! Unconfirmed: that `wqe_id` counts as the doorbell record does; that a filler is written even if
//! there is no next WQE; that the error CQE of a frame longer than a WQE consumes the rest of the
//! WQE; the contents of a flushed WQE's CQE.

use uverbs_mlx5_format::{Cqe, CqeOpcode, StrideByteCount, U16, U32};

use super::super::cq::Completion;
use super::super::env::Env;
use super::receive::ReceiveWqe;
use super::syndrome::Failure;
use super::{Qp, QpState};

/// How the buffers of a receive queue are divided into strides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Striding {
    /// log2 of a stride's bytes, 6..=13.
    pub log_bytes: u8,
    /// log2 of a WQE's strides, 3..=16.
    pub log_strides: u8,
    /// Frames begin two bytes after the start of a stride, so that their IP header is aligned.
    pub two_byte_shift: bool,
}

impl Striding {
    fn strides(self) -> u32 {
        1 << self.log_strides
    }

    /// Bytes before a frame in its first stride.
    fn shift(self) -> u64 {
        if self.two_byte_shift { 2 } else { 0 }
    }

    /// Number of strides of a frame. An empty frame takes one.
    fn needed(self, bytes: u64) -> u64 {
        (bytes + self.shift()).div_ceil(1 << self.log_bytes).max(1)
    }
}

/// The WQE whose strides are being filled.
#[derive(Debug)]
pub(super) struct OpenWqe {
    wqe: Box<ReceiveWqe>,
    used: u32,
}

impl OpenWqe {
    /// The CQE fields for `strides` strides from the next free one on.
    fn cqe(&self, strides: u32, bytes: u64, filler: bool) -> Cqe {
        let count = StrideByteCount::new(strides as u16, bytes as u16, filler);
        Cqe {
            wqe_id: U16::new(self.wqe.index),
            wqe_counter: U16::new(self.used as u16),
            byte_count: U32::new(count.word()),
            ..Cqe::default()
        }
    }
}

/// The strides chosen for a frame.
pub(super) struct Strides {
    open: OpenWqe,
    shape: Striding,
    taken: u32,
}

impl Strides {
    pub(super) fn wqe(&mut self) -> &mut ReceiveWqe {
        &mut self.open.wqe
    }

    /// The offset in the WQE's buffers at which the frame begins.
    pub(super) fn offset(&self) -> u64 {
        (u64::from(self.open.used) << self.shape.log_bytes) + self.shape.shift()
    }

    /// The CQE fields for a frame of `bytes` bytes.
    pub(super) fn cqe(&self, bytes: u64) -> Cqe {
        self.open.cqe(self.taken, bytes, false)
    }
}

impl Qp {
    /// The strides for a frame of `bytes` bytes; `None` if no WQE is posted.
    pub(super) fn take_strides(
        &mut self,
        env: &mut Env,
        shape: Striding,
        bytes: u64,
    ) -> Option<Result<Strides, Failure>> {
        let needed = shape.needed(bytes);
        let mut open = self.open_wqe(env)?;
        if needed > u64::from(shape.strides()) {
            self.fill_rest(env, shape, open, Some(Failure::BUFFER_TOO_SHORT));
            return Some(Err(Failure::BUFFER_TOO_SHORT));
        }
        if u64::from(open.used) + needed > u64::from(shape.strides()) {
            if !self.fill_rest(env, shape, open, None) {
                return Some(Err(Failure::SCATTER));
            }
            open = self.open_wqe(env)?;
        }
        Some(Ok(Strides { open, shape, taken: needed as u32 }))
    }

    /// The WQE that is being filled, or the next one.
    fn open_wqe(&mut self, env: &mut Env) -> Option<OpenWqe> {
        let open = self.responder.open.take();
        open.or_else(|| {
            let wqe = self.take_receive_wqe(env, None).ok()?;
            Some(OpenWqe { wqe, used: 0 })
        })
    }

    /// Records that the frame is stored in its strides.
    pub(super) fn use_strides(&mut self, strides: Strides) {
        let Strides { mut open, shape, taken } = strides;
        open.used += taken;
        if open.used < shape.strides() {
            self.responder.open = Some(open);
        } else {
            self.responder.spare = Some(open.wqe);
        }
    }

    /// Consumes the rest of a WQE, for a filler or a frame that failed. Returns `false` if the CQ
    /// is in error.
    fn fill_rest(
        &mut self,
        env: &mut Env,
        shape: Striding,
        open: OpenWqe,
        failure: Option<Failure>,
    ) -> bool {
        let (cqn, user_index) = self.receive_cq(env, &open.wqe);
        let mut cqe = open.cqe(shape.strides() - open.used, 0, failure.is_none());
        cqe.srqn_user_index = U32::new(user_index);
        let completed = match failure {
            None => env.complete(cqn, Completion::new(cqe, CqeOpcode::RESPONDER_SEND)),
            Some(failure) => self.complete_strides_with_error(env, &open.wqe, cqe, failure),
        };
        self.responder.spare = Some(open.wqe);
        if !completed {
            self.fail_fatally(env);
        }
        completed
    }

    /// Fails the queue, because a frame could not be written to the memory of its strides.
    pub(super) fn fail_strides(&mut self, env: &mut Env, strides: Strides, failure: Failure) {
        let Strides { open, shape, .. } = strides;
        let completed = self.fill_rest(env, shape, open, Some(failure));
        if completed && self.state != QpState::Error {
            self.enter_error(env);
        }
    }

    /// Flushes a posted WQE that has no frame.
    pub(super) fn flush_whole(&self, env: &mut Env, shape: Striding, index: u16) -> bool {
        let mut wqe = Box::<ReceiveWqe>::default();
        wqe.index = index;
        let open = OpenWqe { wqe, used: 0 };
        let cqe = open.cqe(shape.strides(), 0, false);
        self.complete_strides_with_error(env, &open.wqe, cqe, Failure::FLUSHED)
    }

    /// Flushes the WQE that is being filled.
    pub(super) fn flush_strides(&mut self, env: &mut Env) {
        let open = self.responder.open.take();
        if let (Some(open), Some(shape)) = (open, self.params.striding) {
            self.fill_rest(env, shape, open, Some(Failure::FLUSHED));
        }
    }
}
