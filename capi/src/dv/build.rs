//! `mlx5dv_wr_…`: requests of mlx5's own between `ibv_wr_start` and `ibv_wr_complete`. Those that
//! the program encodes itself can be posted, and DC targets be named; the others need memory keys
//! of mlx5's own.

use std::ffi::c_void;
use std::mem::offset_of;

use uverbs::qp_type::QpType;

use crate::abi::*;
use crate::post::bytes;
use crate::qp::Qp;
use crate::usual::Posts;
use crate::wr;

/// A function of [`DirectQp`] that ignores its arguments.
type Lacking = unsafe extern "C" fn(*mut DirectQp);

/// `struct mlx5dv_qp_ex`, which is a part of the queue pair.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct DirectQp {
    comp_mask: u64,
    set_dc_addr: unsafe extern "C" fn(*mut DirectQp, *mut ibv_ah, u32, u64),
    mr_interleaved: Lacking,
    mr_list: Lacking,
    mkey_configure: Lacking,
    set_mkey_access_flags: Lacking,
    set_mkey_layout_list: Lacking,
    set_mkey_layout_interleaved: Lacking,
    set_mkey_sig_block: Lacking,
    raw_wqe: unsafe extern "C" fn(*mut DirectQp, *const c_void),
    set_dc_addr_stream: Lacking,
    memcpy: Lacking,
    set_mkey_crypto: Lacking,
}

impl DirectQp {
    /// The functions of a type of queue pair, which sends or does not.
    pub(crate) const fn of<T: Posts, const SENDS: bool>() -> Self {
        Self {
            comp_mask: 0,
            set_dc_addr: match T::TYPE {
                QpType::DcInitiator => set_dc_addr,
                _ => no_dc_addr,
            },
            mr_interleaved: lacking,
            mr_list: lacking,
            mkey_configure: lacking,
            set_mkey_access_flags: lacking,
            set_mkey_layout_list: lacking,
            set_mkey_layout_interleaved: lacking,
            set_mkey_sig_block: lacking,
            raw_wqe: raw_wqe::<T, SENDS>,
            set_dc_addr_stream: lacking,
            memcpy: lacking,
            set_mkey_crypto: lacking,
        }
    }
}

/// `mlx5dv_qp_ex_from_ibv_qp_ex`.
pub(crate) unsafe extern "C" fn qp_ex_from_ibv_qp_ex(qp: *mut ibv_qp_ex) -> *mut DirectQp {
    qp.wrapping_byte_add(offset_of!(Qp, direct)).cast()
}

/// The queue pair that `direct` is a part of.
fn whole(direct: *mut DirectQp) -> *mut ibv_qp_ex {
    direct.wrapping_byte_sub(offset_of!(Qp, direct)).cast()
}

unsafe extern "C" fn lacking(direct: *mut DirectQp) {
    // SAFETY: the caller's queue pair, after start.
    unsafe { wr::lacking(whole(direct)) };
}

/// `mlx5dv_wr_set_dc_addr`.
unsafe extern "C" fn set_dc_addr(direct: *mut DirectQp, ah: *mut ibv_ah, dctn: u32, key: u64) {
    // SAFETY: the caller's queue pair, after start, and its address handle.
    unsafe { wr::set_dc_addr(whole(direct), ah, dctn, key) };
}

/// The same for types of queue pairs whose requests name no target.
unsafe extern "C" fn no_dc_addr(direct: *mut DirectQp, _: *mut ibv_ah, _: u32, _: u64) {
    // SAFETY: the caller's queue pair, after start.
    unsafe { wr::lacking(whole(direct)) };
}

/// `mlx5dv_wr_raw_wqe`: the control segment says how many octowords there are.
unsafe extern "C" fn raw_wqe<T: Posts, const SENDS: bool>(
    direct: *mut DirectQp,
    wqe: *const c_void,
) {
    // SAFETY: the caller's queue pair, after start, and request, which has a control segment.
    unsafe {
        let octowords = usize::from(wqe.cast::<u8>().add(7).read() & 0x3f);
        wr::encoded::<T, SENDS>(whole(direct), bytes(wqe.cast(), octowords * 16));
    }
}
