//! mlx5's direct verbs: names that programs import from `libmlx5.so.1`, which is another name of
//! this file.
//!
//! What plain verbs can do is done by them. Everything else answers EOPNOTSUPP, and
//! `mlx5dv_is_supported` says beforehand that it will, so that UCX and others choose plain verbs.

use std::ffi::c_int;

use crate::abi::*;
use crate::result::null;
use crate::{context, cq, qp};

/// `struct mlx5dv_context_attr`, as far as all releases have it.
#[repr(C)]
pub(crate) struct ContextAttr {
    flags: u32,
    comp_mask: u64,
}

/// The attributes of mlx5 for queues begin with a mask of those that are given.
type OwnAttr = u64;

/// `mlx5dv_is_supported`: no.
pub(crate) unsafe extern "C" fn is_supported(_device: *mut ibv_device) -> c_int {
    0
}

/// `mlx5dv_open_device`: without DEVX.
pub(crate) unsafe extern "C" fn open_device(
    device: *mut ibv_device,
    attr: *const ContextAttr,
) -> *mut ibv_context {
    // SAFETY: null, or the caller's struct.
    let asks = unsafe { attr.as_ref() }.is_some_and(|attr| attr.flags != 0 || attr.comp_mask != 0);
    if asks {
        return null(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's device.
    unsafe { context::open_device(device) }
}

/// `mlx5dv_create_qp`: as `ibv_create_qp_ex`, if nothing of mlx5's own is asked for.
pub(crate) unsafe extern "C" fn create_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
    own: *const OwnAttr,
) -> *mut ibv_qp {
    // SAFETY: null, or the caller's struct.
    if unsafe { own.as_ref() }.is_some_and(|mask| *mask != 0) {
        return null(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's objects.
    unsafe { qp::create_qp_ex(context, attr) }
}

/// `mlx5dv_create_cq`: as `ibv_create_cq_ex`, if nothing of mlx5's own is asked for.
pub(crate) unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
    own: *const OwnAttr,
) -> *mut ibv_cq_ex {
    // SAFETY: null, or the caller's struct.
    if unsafe { own.as_ref() }.is_some_and(|mask| *mask != 0) {
        return null(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's objects.
    unsafe { cq::create_cq_ex(context, attr) }
}
