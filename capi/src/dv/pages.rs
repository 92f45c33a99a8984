//! Doorbell pages and entries of the rate table, for queues that a program creates by firmware
//! commands.

use std::ffi::c_void;

use uverbs::devx::{DevxUar, PacingEntry, PpAllocFlags, UarKind, VarAllocFlags, VirtioDoorbell};

use super::devx::devx;
use crate::abi::*;
use crate::post::bytes;
use crate::result::{failed, null};

/// `MLX5_IB_UAPI_UAR_ALLOC_TYPE_*` and `MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED`.
const SHARED_NON_CACHED: u32 = 1;
const NON_CACHED: u32 = 1 << 31;

/// `struct mlx5dv_devx_uar`, followed by the library's handle.
#[repr(C)]
pub(crate) struct Uar {
    reg_addr: *mut c_void,
    base_addr: *mut c_void,
    page_id: u32,
    mmap_off: libc::off_t,
    comp_mask: u64,
    #[allow(dead_code, reason = "for its drop")]
    library: DevxUar,
}

/// `struct mlx5dv_var`, followed by the library's handle.
#[repr(C)]
pub(crate) struct Var {
    page_id: u32,
    length: u32,
    mmap_off: libc::off_t,
    comp_mask: u64,
    #[allow(dead_code, reason = "for its drop")]
    library: VirtioDoorbell,
}

/// `struct mlx5dv_pp`, followed by the library's handle.
#[repr(C)]
pub(crate) struct Pacing {
    index: u16,
    #[allow(dead_code, reason = "for its drop")]
    library: PacingEntry,
}

/// `mlx5dv_devx_alloc_uar`.
pub(crate) unsafe extern "C" fn alloc_uar(context: *mut ibv_context, flags: u32) -> *mut Uar {
    let kind = match flags {
        0 => UarKind::BlueFlame,
        flags if flags & !(SHARED_NON_CACHED | NON_CACHED) != 0 => return null(libc::EOPNOTSUPP),
        flags if flags & SHARED_NON_CACHED != 0 => UarKind::SharedNonCached,
        _ => UarKind::NonCached,
    };
    // SAFETY: the caller's context.
    match unsafe { devx(context) }.alloc_uar(kind) {
        Ok(library) => Box::into_raw(Box::new(Uar {
            reg_addr: library.register().cast(),
            base_addr: library.base().cast(),
            page_id: library.id(),
            mmap_off: library.mmap_offset() as libc::off_t,
            comp_mask: 0,
            library,
        })),
        Err(error) => null(failed(&error)),
    }
}

/// `mlx5dv_devx_free_uar`.
pub(crate) unsafe extern "C" fn free_uar(uar: *mut Uar) {
    // SAFETY: from `alloc_uar`, and freed once.
    unsafe { crate::observe::free(uar) };
}

/// `mlx5dv_alloc_var`.
pub(crate) unsafe extern "C" fn alloc_var(context: *mut ibv_context, flags: u32) -> *mut Var {
    let Some(flags) = VarAllocFlags::from_bits(flags) else { return null(libc::EOPNOTSUPP) };
    // SAFETY: the caller's context.
    match unsafe { devx(context) }.alloc_var(flags) {
        Ok(library) => Box::into_raw(Box::new(Var {
            page_id: library.id(),
            length: library.length(),
            mmap_off: library.mmap_offset() as libc::off_t,
            comp_mask: 0,
            library,
        })),
        Err(error) => null(failed(&error)),
    }
}

/// `mlx5dv_free_var`.
pub(crate) unsafe extern "C" fn free_var(var: *mut Var) {
    // SAFETY: from `alloc_var`, and freed once.
    unsafe { crate::observe::free(var) };
}

/// `mlx5dv_pp_alloc`.
pub(crate) unsafe extern "C" fn pp_alloc(
    context: *mut ibv_context,
    length: usize,
    parameters: *const c_void,
    flags: u32,
) -> *mut Pacing {
    let Some(flags) = PpAllocFlags::from_bits(flags) else { return null(libc::EOPNOTSUPP) };
    // SAFETY: the caller's context and memory.
    let made = unsafe {
        let parameters = bytes(parameters.cast(), length);
        devx(context).alloc_pacing(parameters, flags)
    };
    match made {
        Ok(library) => Box::into_raw(Box::new(Pacing { index: library.index(), library })),
        Err(error) => null(failed(&error)),
    }
}

/// `mlx5dv_pp_free`.
pub(crate) unsafe extern "C" fn pp_free(entry: *mut Pacing) {
    // SAFETY: from `pp_alloc`, and freed once.
    unsafe { crate::observe::free(entry) };
}
