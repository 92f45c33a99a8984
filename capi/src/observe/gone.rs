//! Destroyed objects. With `UVERBS_CHECK=1` they stay in memory, for two reasons: inline functions
//! of the C header read an object before they call this library, and no new object may get the
//! address of a destroyed one.

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

/// A function pointer in a queue pair's struct, whatever its other arguments are.
type Method = unsafe extern "C" fn(*mut ibv_qp_ex);

/// Frees a queue pair. If its memory stays, its `wr_start` reports the use, its `wr_complete`
/// fails, and its other functions do nothing.
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
        for offset in (start..end).step_by(size_of::<Method>()) {
            // SAFETY: memory that stays, and there are only functions from `start` to `end`.
            unsafe { qp.byte_add(offset).cast::<Method>().write(do_nothing) };
        }
    }
    // SAFETY: memory that stays.
    unsafe {
        let ex = qp.cast::<ibv_qp_ex>();
        (*ex).wr_start = start;
        (*ex).wr_complete = complete;
    }
}

unsafe extern "C" fn do_nothing(_: *mut ibv_qp_ex) {}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    let seen = Seen { address: qp.expose_provenance(), kind: Kind::Qp };
    let _ = misuse::is_alive("ibv_wr_start", seen);
}

unsafe extern "C" fn complete(_: *mut ibv_qp_ex) -> c_int {
    libc::EINVAL
}
