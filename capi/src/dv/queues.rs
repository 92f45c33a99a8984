//! Queues with mlx5-specific attributes.

use std::mem::offset_of;

use uverbs::cq::Compression;
use uverbs::ethernet::Striding;
use uverbs::qp_type::QpType;

use crate::abi::*;
use crate::create::{Dynamic, Mlx5Attributes};
use crate::grown::{self, Grown, grown};
use crate::result::null;
use crate::{cq, qp, wq};

/// `enum mlx5dv_qp_init_attr_mask`.
const MASK_CREATE_FLAGS: u64 = 1;
const MASK_DC: u64 = 1 << 1;
const MASK_SEND_OPS: u64 = 1 << 2;
/// All of them, including streams of DC initiators.
const MASK_KNOWN: u64 = MASK_CREATE_FLAGS | MASK_DC | MASK_SEND_OPS | 1 << 3;
/// `enum mlx5dv_qp_create_send_ops_flags`: interleaved and listed memory, configuration of keys;
/// and requests that the program encodes.
const OPS_KEYS: u64 = 1 | 1 << 1 | 1 << 2;
const OPS_RAW_WQE: u64 = 1 << 3;
/// `enum mlx5dv_qp_create_flags`.
const DISABLE_SCATTER: u32 = 1 << 3;
const ALLOW_SCATTER: u32 = 1 << 4;
const FLAGS_KNOWN: u32 = (1 << 8) - 1;

/// `enum mlx5dv_dc_type`.
const TYPE_DCT: u32 = 1;
const TYPE_DCI: u32 = 2;

/// `enum mlx5dv_cq_init_attr_mask`: compression, flags, and the size of entries.
const MASK_COMPRESSED: u64 = 1 << 0;
const MASK_CQ_FLAGS: u64 = 1 << 1;
const MASK_CQE_SIZE: u64 = 1 << 2;
/// `MLX5DV_CQ_INIT_ATTR_FLAGS_CQE_PAD`, the only flag.
const PADDED: u32 = 1;

/// `struct mlx5dv_qp_init_attr`, as far as it is read.
#[derive(Default)]
#[repr(C)]
pub(crate) struct QpAttr {
    comp_mask: u64,
    create_flags: u32,
    dc: DcAttr,
    send_ops_flags: u64,
}

/// `struct mlx5dv_dc_init_attr`.
#[derive(Default)]
#[repr(C)]
struct DcAttr {
    dc_type: u32,
    /// In a union with the numbers of streams of an initiator.
    dct_access_key: u64,
}

const _: () = {
    assert!(offset_of!(QpAttr, dc) == 16 && offset_of!(QpAttr, send_ops_flags) == 32);
    assert!(offset_of!(DcAttr, dct_access_key) == 8);
};

/// `struct mlx5dv_cq_init_attr`.
#[derive(Default)]
#[repr(C)]
pub(crate) struct CqAttr {
    comp_mask: u64,
    cqe_comp_res_format: u8,
    flags: u32,
    cqe_size: u16,
}

grown! {
    QpAttr until create_flags by comp_mask {
        MASK_CREATE_FLAGS => create_flags,
        MASK_DC => dc,
        MASK_SEND_OPS => send_ops_flags,
    }
    CqAttr until cqe_comp_res_format by comp_mask {
        MASK_COMPRESSED => cqe_comp_res_format,
        MASK_CQ_FLAGS => flags,
        MASK_CQE_SIZE => cqe_size,
    }
    WqAttr until single_stride_log_num_of_bytes by comp_mask {
        MASK_STRIDING => single_stride_log_num_of_bytes,
        MASK_STRIDING => single_wqe_log_num_of_strides,
        MASK_STRIDING => two_byte_shift_en,
    }
}

/// mlx5's own attributes, or none.
///
/// # Safety
/// Null, or a program's struct, which has the fields that its mask names.
unsafe fn optional<T: Grown + Default>(own: *const T) -> T {
    // SAFETY: the caller's promise.
    if own.is_null() { T::default() } else { unsafe { grown::read(own) } }
}

/// `mlx5dv_create_qp`: `ibv_create_qp_ex` with attributes of mlx5. Supported are those for short
/// messages inside completions, requests that the program encodes (`mlx5dv_wr_raw_wqe`),
/// configuration of memory keys, and DC queue pairs.
pub(crate) unsafe extern "C" fn create_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
    own: *const QpAttr,
) -> *mut ibv_qp {
    // SAFETY: null, or the caller's struct.
    let own = unsafe { optional(own) };
    let (mask, flags, operations) = (own.comp_mask, own.create_flags, own.send_ops_flags);
    let dynamic = match (mask & MASK_DC, own.dc.dc_type) {
        (0, _) => None,
        (_, TYPE_DCT) => Some(Dynamic::Target { access_key: own.dc.dct_access_key }),
        (_, TYPE_DCI) => Some(Dynamic::Initiator),
        _ => return null(libc::EINVAL),
    };
    if mask & !MASK_KNOWN != 0 || flags & !FLAGS_KNOWN != 0 {
        return null(libc::EINVAL);
    }
    let both = DISABLE_SCATTER | ALLOW_SCATTER;
    let is_supported = mask & !(MASK_CREATE_FLAGS | MASK_SEND_OPS | MASK_DC) == 0
        && flags & !both == 0
        && operations & !(OPS_KEYS | OPS_RAW_WQE) == 0;
    let changes_keys = operations & OPS_KEYS != 0;
    // SAFETY: the caller's struct.
    let is_connected = unsafe { (*attr).qp_type } == QpType::Rc as u32;
    if !is_supported || changes_keys && !is_connected {
        return null(libc::EOPNOTSUPP);
    }
    if flags & both == both {
        return null(libc::EINVAL);
    }
    let no_scatter = flags & DISABLE_SCATTER != 0;
    let encodes = operations & OPS_RAW_WQE != 0;
    let is_extended = operations != 0;
    let own = Mlx5Attributes { no_scatter, is_extended, changes_keys, encodes, dynamic };
    // SAFETY: the caller's objects.
    unsafe { qp::create_qp_of_mlx5(context, attr, own) }
}

/// `mlx5dv_create_cq`: `ibv_create_cq_ex` with attributes of mlx5. Supported are the size of
/// entries, and compression. `ibv_poll_cq` decompresses completions here (in libmlx5 it does not).
pub(crate) unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
    own: *const CqAttr,
) -> *mut ibv_cq_ex {
    // SAFETY: null, or the caller's struct.
    let own = unsafe { optional(own) };
    let mask = own.comp_mask;
    if mask & !(MASK_CQE_SIZE | MASK_COMPRESSED | MASK_CQ_FLAGS) != 0 || own.flags & !PADDED != 0 {
        return null(libc::EINVAL);
    }
    if own.flags != 0 {
        return null(libc::EOPNOTSUPP);
    }
    let compression = match mask & MASK_COMPRESSED {
        0 => None,
        _ => match compression(own.cqe_comp_res_format) {
            None => return null(libc::EINVAL),
            found => found,
        },
    };
    let is_wide = match (mask & MASK_CQE_SIZE, own.cqe_size) {
        (0, _) => cq::is_wide_by_default(),
        (_, 64) => Some(false),
        (_, 128) => Some(true),
        _ => None,
    };
    let Some(is_wide) = is_wide else { return null(libc::EINVAL) };
    // SAFETY: the caller's objects.
    unsafe { cq::create_cq_of_mlx5(context, attr, is_wide, compression) }
}

/// A bit of `enum mlx5dv_cqe_comp_res_format`.
fn compression(format: u8) -> Option<Compression> {
    match format {
        1 => Some(Compression::Hash),
        2 => Some(Compression::Checksum),
        4 => Some(Compression::ChecksumAndStride),
        _ => None,
    }
}

/// `struct mlx5dv_wq_init_attr`.
#[derive(Default)]
#[repr(C)]
pub(crate) struct WqAttr {
    comp_mask: u64,
    single_stride_log_num_of_bytes: u32,
    single_wqe_log_num_of_strides: u32,
    two_byte_shift_en: u8,
}

/// `MLX5DV_WQ_INIT_ATTR_MASK_STRIDING_RQ`.
const MASK_STRIDING: u64 = 1;

impl WqAttr {
    /// The requested strides, or an errno if they are not supported.
    fn striding(&self) -> Result<Option<Striding>, i32> {
        match self.comp_mask {
            0 => Ok(None),
            MASK_STRIDING => {
                let (bytes, strides) =
                    (self.single_stride_log_num_of_bytes, self.single_wqe_log_num_of_strides);
                let striding = Striding::from_logs(bytes, strides).ok_or(libc::EINVAL)?;
                let shifts = self.two_byte_shift_en != 0;
                Ok(Some(if shifts { striding.two_byte_shift() } else { striding }))
            }
            _ => Err(libc::EINVAL),
        }
    }
}

/// `mlx5dv_create_wq`: as `ibv_create_wq`, or a striding queue. Completions of a striding queue
/// count strides, which `ibv_poll_cq` does not understand here: such programs read the CQ's ring
/// themselves (`mlx5dv_init_obj`).
pub(crate) unsafe extern "C" fn create_wq(
    context: *mut ibv_context,
    attr: *mut ibv_wq_init_attr,
    own: *const WqAttr,
) -> *mut ibv_wq {
    // SAFETY: null, or the caller's struct.
    match unsafe { optional(own) }.striding() {
        // SAFETY: the caller's objects.
        Ok(None) => unsafe { wq::create_wq(context, attr) },
        // SAFETY: the caller's objects.
        Ok(striding) => unsafe { wq::create(context, attr, striding) },
        Err(errno) => null(errno),
    }
}
