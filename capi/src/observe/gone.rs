//! Destroyed objects. With `UVERBS_CHECK=1` they stay in memory: inline functions of the header
//! read an object before any function of this library sees the call, and no new object gets the
//! address of an old one.

use std::ffi::c_int;
use std::mem::{offset_of, size_of};

use super::misuse::{self, Kind, Seen};
use super::wanted;
use crate::abi::*;
use crate::dv::DirectQp;
use crate::qp::Qp;

/// Frees an object.
///
/// # Safety
/// `object` is from `Box::into_raw`, and is freed once.
pub(crate) unsafe fn free<T: ?Sized>(object: *mut T) {
    if wanted().check {
        // SAFETY: the caller's promise. The memory stays, and the C structs in it have no drop.
        unsafe { object.drop_in_place() };
    } else {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(object) });
    }
}

/// A function of a queue pair, whatever its other arguments are.
type Slot = unsafe extern "C" fn(*mut ibv_qp_ex);

/// Frees a queue pair. If its memory stays, the functions in it report a use.
///
/// # Safety
/// As for [`free`].
pub(crate) unsafe fn free_queue_pair(qp: *mut Qp) {
    // SAFETY: the caller's promise.
    unsafe { free((*qp).whole()) };
    if !wanted().check {
        return;
    }
    let first = offset_of!(ibv_qp_ex, wr_atomic_cmp_swp);
    let direct = offset_of!(Qp, direct);
    let tables = [
        (first, size_of::<ibv_qp_ex>()),
        (direct + size_of::<u64>(), direct + size_of::<DirectQp>()),
    ];
    for (start, end) in tables {
        for offset in (start..end).step_by(size_of::<Slot>()) {
            // SAFETY: memory that stays, and there are only functions from `start` to `end`.
            unsafe { qp.byte_add(offset).cast::<Slot>().write(nothing) };
        }
    }
    // SAFETY: memory that stays.
    unsafe {
        let ex = qp.cast::<ibv_qp_ex>();
        (*ex).wr_start = start;
        (*ex).wr_complete = complete;
    }
}

unsafe extern "C" fn nothing(_: *mut ibv_qp_ex) {}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    let seen = Seen { address: qp.expose_provenance(), kind: Kind::Qp };
    let _ = misuse::is_alive("ibv_wr_start", seen);
}

unsafe extern "C" fn complete(_: *mut ibv_qp_ex) -> c_int {
    libc::EINVAL
}
