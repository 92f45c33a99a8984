//! Entries of receive queues and shared receive queues.

use super::{DataSegment, U16};

wire! {
    /// The first segment of a shared receive queue's WQE: a link to the next one
    /// (`mlx5_wqe_srq_next_seg`).
    pub struct SrqNextSegment: 16 {
        /// Reserved.
        0 => pub reserved0: [u8; 2],
        /// Index of the next WQE of the list.
        2 => pub next_wqe_index: U16,
        /// Checksum if the SRQ has signatures, else 0.
        4 => pub signature: u8,
        /// Reserved.
        5 => pub reserved5: [u8; 11],
    }
}

impl SrqNextSegment {
    /// A link to WQE `next`.
    #[inline(always)]
    pub const fn new(next: u16) -> Self {
        Self { reserved0: [0; 2], next_wqe_index: U16::new(next), signature: 0, reserved5: [0; 11] }
    }
}

wire! {
    /// A striding (multi-packet) receive WQE: one buffer that many packets fill (`mlx5_mprq_wqe`).
    ///
    /// Both the linked and the cyclic form start with the link, which is unused in the cyclic form
    /// (`struct mlx5_wqe_mprq` of DPDK; `mlx5_calc_rwq_size` of libmlx5).
    pub struct StridingWqe: 32 {
        /// Link to the next WQE.
        0 => pub next: SrqNextSegment,
        /// The buffer.
        16 => pub data: DataSegment,
    }
}

wire! {
    /// The signature before the scatter list of a receive WQE on a queue with
    /// signatures (`mlx5_rwqe_sig`).
    pub struct ReceiveSignature: 16 {
        /// Reserved.
        0 => pub reserved0: [u8; 4],
        /// Checksum of the WQE.
        4 => pub signature: u8,
        /// Reserved.
        5 => pub reserved5: [u8; 11],
    }
}
