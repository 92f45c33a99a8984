//! Strides: receive work queues in which many frames share a buffer.

use uverbs_mlx5::completion_queue::StrideShape;
use uverbs_uapi::mlx5::device::StridingRqCaps;
use uverbs_uapi::mlx5::flags::CreateWqMask;
use uverbs_uapi::mlx5::wq::CreateWq;

use crate::device::context::Context;
use crate::error::{Error, ErrorKind, Result};

/// The bit of `IB_QPT_RAW_PACKET` in `supported_qpts`.
const RAW_PACKET: u32 = 1 << 8;

/// Bytes per stride.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "a number")]
pub enum StrideBytes {
    B64 = 6,
    B128 = 7,
    B256 = 8,
    B512 = 9,
    B1024 = 10,
    B2048 = 11,
    B4096 = 12,
    B8192 = 13,
}

/// Strides per work request: at least 512 on ConnectX devices, at least 8 on those with
/// `ext_stride_num_range` (mlx5_ib).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "a number")]
pub enum StridesPerWqe {
    N8 = 3,
    N16 = 4,
    N32 = 5,
    N64 = 6,
    N128 = 7,
    N256 = 8,
    N512 = 9,
    N1024 = 10,
    N2048 = 11,
    N4096 = 12,
    N8192 = 13,
    N16384 = 14,
    N32768 = 15,
    N65536 = 16,
}

/// How the buffer of each work request of a striding queue is divided
/// (`struct mlx5dv_striding_rq_init_attr`).
///
/// A frame takes as many strides as it needs. A frame that does not fit into the rest of a buffer
/// goes to the next buffer; a frame longer than a buffer is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Striding {
    bytes: StrideBytes,
    strides: StridesPerWqe,
    two_byte_shift: bool,
}

impl Striding {
    /// Buffers of `strides` strides of `bytes` bytes.
    pub const fn new(bytes: StrideBytes, strides: StridesPerWqe) -> Self {
        Self { bytes, strides, two_byte_shift: false }
    }

    /// From base-2 logarithms, as in `struct mlx5dv_striding_rq_init_attr`; `None` for values that
    /// no device supports.
    #[doc(hidden)]
    pub const fn from_logs(bytes: u32, strides: u32) -> Option<Self> {
        use StrideBytes::*;
        use StridesPerWqe::*;
        let bytes = match bytes {
            6 => B64,
            7 => B128,
            8 => B256,
            9 => B512,
            10 => B1024,
            11 => B2048,
            12 => B4096,
            13 => B8192,
            _ => return None,
        };
        let strides = match strides {
            3 => N8,
            4 => N16,
            5 => N32,
            6 => N64,
            7 => N128,
            8 => N256,
            9 => N512,
            10 => N1024,
            11 => N2048,
            12 => N4096,
            13 => N8192,
            14 => N16384,
            15 => N32768,
            16 => N65536,
            _ => return None,
        };
        Some(Self::new(bytes, strides))
    }

    /// Lets frames begin two bytes after the start of a stride, so that the IP header after the
    /// Ethernet header of 14 bytes is aligned to 4 bytes.
    pub const fn two_byte_shift(mut self) -> Self {
        self.two_byte_shift = true;
        self
    }

    /// Bytes per stride.
    pub const fn stride_bytes(self) -> u32 {
        1 << self.bytes as u32
    }

    /// Strides per buffer.
    pub const fn strides(self) -> u32 {
        1 << self.strides as u32
    }

    /// Bytes per buffer.
    pub const fn wqe_bytes(self) -> u32 {
        self.stride_bytes() * self.strides()
    }

    /// The longest frame that is received, in bytes.
    pub const fn longest_frame(self) -> u32 {
        self.wqe_bytes() - if self.two_byte_shift { 2 } else { 0 }
    }

    pub(crate) fn shape(self) -> StrideShape {
        StrideShape {
            log_bytes: self.bytes as u8,
            log_strides: self.strides as u8,
            two_byte_shift: self.two_byte_shift,
        }
    }

    /// Sets the fields of the kernel's command.
    pub(super) fn describe(self, request: &mut CreateWq) {
        request.comp_mask |= CreateWqMask::STRIDING_RQ;
        request.single_stride_log_num_of_bytes = self.bytes as u32;
        request.single_wqe_log_num_of_strides = self.strides as u32;
        request.two_byte_shift_en = u32::from(self.two_byte_shift);
    }

    /// Checks it against the device's limits.
    pub(super) fn check(self, verb: &'static str, context: &Context) -> Result<()> {
        let caps = context.attributes()?.mlx5.striding_rq_caps;
        if caps.supported_qpts & RAW_PACKET == 0 {
            let cause = "the device has no striding receive queues";
            return Err(Error::new(verb, ErrorKind::Unsupported, cause));
        }
        let StridingRqCaps {
            min_single_stride_log_num_of_bytes: least,
            max_single_stride_log_num_of_bytes: most,
            ..
        } = caps;
        self.within(verb, "bytes in a stride", self.bytes as u32, least, most)?;
        let StridingRqCaps {
            min_single_wqe_log_num_of_strides: least,
            max_single_wqe_log_num_of_strides: most,
            ..
        } = caps;
        self.within(verb, "strides in a work request", self.strides as u32, least, most)
    }

    fn within(self, verb: &'static str, what: &str, log: u32, least: u32, most: u32) -> Result<()> {
        if (least..=most).contains(&log) {
            return Ok(());
        }
        let [least, most] = [least, most].map(|log| 1u64 << log.min(63));
        let cause = format!("the device has {least} to {most} {what}");
        let asked = format!("{} strides of {} bytes", self.strides(), self.stride_bytes());
        Err(Error::invalid(verb, cause).asked(asked))
    }
}
