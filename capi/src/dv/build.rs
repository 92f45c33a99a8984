//! `mlx5dv_wr_…`: mlx5's own functions between `ibv_wr_start` and `ibv_wr_complete`. With them
//! programs post requests that they have encoded, name DC targets, and configure memory keys.
//! Signatures, encryption, streams and copies are not supported.

use std::ffi::c_void;
use std::mem::offset_of;

use uverbs::qp_type::QpType;

use super::keys::Key;
use crate::abi::*;
use crate::post::bytes;
use crate::qp::Qp;
use crate::usual::Posts;
use crate::wr::{self, ConfAttr, Interleaved};

/// A function of [`DirectQp`] that is not supported: it ignores its other arguments.
type Unsupported = unsafe extern "C" fn(*mut DirectQp);

/// `struct mlx5dv_qp_ex`, which is a part of the queue pair.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct DirectQp {
    comp_mask: u64,
    set_dc_addr: unsafe extern "C" fn(*mut DirectQp, *mut ibv_ah, u32, u64),
    mr_interleaved:
        unsafe extern "C" fn(*mut DirectQp, *const Key, u32, u32, u16, *const Interleaved),
    mr_list: unsafe extern "C" fn(*mut DirectQp, *const Key, u32, u16, *const ibv_sge),
    mkey_configure: unsafe extern "C" fn(*mut DirectQp, *const Key, u8, *const ConfAttr),
    set_mkey_access_flags: unsafe extern "C" fn(*mut DirectQp, u32),
    set_mkey_layout_list: unsafe extern "C" fn(*mut DirectQp, u16, *const ibv_sge),
    set_mkey_layout_interleaved: unsafe extern "C" fn(*mut DirectQp, u32, u16, *const Interleaved),
    set_mkey_sig_block: Unsupported,
    raw_wqe: unsafe extern "C" fn(*mut DirectQp, *const c_void),
    set_dc_addr_stream: unsafe extern "C" fn(*mut DirectQp, *mut ibv_ah, u32, u64, u16),
    memcpy: Unsupported,
    set_mkey_crypto: Unsupported,
}

impl DirectQp {
    /// The functions for a type of queue pair.
    pub(crate) const fn of<T: Posts, const SENDS: bool>() -> Self {
        Self {
            comp_mask: 0,
            set_dc_addr: match T::TYPE {
                QpType::DcInitiator => set_dc_addr,
                _ => no_dc_addr,
            },
            mr_interleaved: mr_interleaved::<T, SENDS>,
            mr_list: mr_list::<T, SENDS>,
            mkey_configure: mkey_configure::<T, SENDS>,
            set_mkey_access_flags: set_mkey_access_flags::<T, SENDS>,
            set_mkey_layout_list: set_mkey_layout_list::<T, SENDS>,
            set_mkey_layout_interleaved: set_mkey_layout_interleaved::<T, SENDS>,
            set_mkey_sig_block: unsupported,
            raw_wqe: raw_wqe::<T, SENDS>,
            set_dc_addr_stream: match T::TYPE {
                QpType::DcInitiator => set_dc_addr_stream,
                _ => no_dc_addr_stream,
            },
            memcpy: unsupported,
            set_mkey_crypto: unsupported,
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

unsafe extern "C" fn unsupported(direct: *mut DirectQp) {
    // SAFETY: the caller's queue pair, after start.
    unsafe { wr::unsupported(whole(direct)) };
}

/// `mlx5dv_wr_set_dc_addr`.
unsafe extern "C" fn set_dc_addr(direct: *mut DirectQp, ah: *mut ibv_ah, dctn: u32, key: u64) {
    // SAFETY: the caller's queue pair, after start, and its address handle.
    unsafe { wr::set_dc_addr(whole(direct), ah, dctn, key) };
}

/// The same for types of queue pairs whose requests name no target.
unsafe extern "C" fn no_dc_addr(direct: *mut DirectQp, _: *mut ibv_ah, _: u32, _: u64) {
    // SAFETY: the caller's queue pair, after start.
    unsafe { wr::unsupported(whole(direct)) };
}

/// `mlx5dv_wr_set_dc_addr_stream`. Initiators have no streams here, so the number has no effect. It
/// is not refused, because perftest also numbers requests of initiators without streams.
unsafe extern "C" fn set_dc_addr_stream(
    direct: *mut DirectQp,
    ah: *mut ibv_ah,
    dctn: u32,
    key: u64,
    _stream: u16,
) {
    // SAFETY: the caller's queue pair, after start, and its address handle.
    unsafe { set_dc_addr(direct, ah, dctn, key) };
}

/// The same for types of queue pairs whose requests name no target.
unsafe extern "C" fn no_dc_addr_stream(
    direct: *mut DirectQp,
    _: *mut ibv_ah,
    _: u32,
    _: u64,
    _: u16,
) {
    // SAFETY: the caller's queue pair, after start.
    unsafe { unsupported(direct) };
}

/// `mlx5dv_wr_raw_wqe`. The WQE's control segment contains its length in octowords.
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

/// `mlx5dv_wr_mkey_configure`: only for reliable connections.
unsafe extern "C" fn mkey_configure<T: Posts, const SENDS: bool>(
    direct: *mut DirectQp,
    key: *const Key,
    setters: u8,
    attr: *const ConfAttr,
) {
    // SAFETY: the caller's queue pair, after start, its key and its struct.
    unsafe {
        match T::TYPE {
            QpType::Rc if SENDS => wr::configure::<T, SENDS>(whole(direct), key, setters, attr),
            _ => unsupported(direct),
        }
    }
}

/// `mlx5dv_wr_set_mkey_access_flags`.
unsafe extern "C" fn set_mkey_access_flags<T: Posts, const SENDS: bool>(
    direct: *mut DirectQp,
    access: u32,
) {
    // SAFETY: the caller's queue pair, after start.
    unsafe { wr::set_access::<T, SENDS>(whole(direct), access) };
}

/// `mlx5dv_wr_set_mkey_layout_list`.
unsafe extern "C" fn set_mkey_layout_list<T: Posts, const SENDS: bool>(
    direct: *mut DirectQp,
    count: u16,
    list: *const ibv_sge,
) {
    // SAFETY: the caller's queue pair, after start, and its list.
    unsafe { wr::set_list::<T, SENDS>(whole(direct), count, list) };
}

/// `mlx5dv_wr_set_mkey_layout_interleaved`.
unsafe extern "C" fn set_mkey_layout_interleaved<T: Posts, const SENDS: bool>(
    direct: *mut DirectQp,
    cycles: u32,
    count: u16,
    list: *const Interleaved,
) {
    // SAFETY: the caller's queue pair, after start, and its list.
    unsafe { wr::set_interleaved::<T, SENDS>(whole(direct), cycles, count, list) };
}

/// `mlx5dv_wr_mr_list`: a configuration with both setters.
unsafe extern "C" fn mr_list<T: Posts, const SENDS: bool>(
    direct: *mut DirectQp,
    key: *const Key,
    access: u32,
    count: u16,
    list: *const ibv_sge,
) {
    // SAFETY: the caller's queue pair, after start, its key and its list.
    unsafe {
        mkey_configure::<T, SENDS>(direct, key, 2, &raw const wr::NOTHING_ELSE);
        set_mkey_access_flags::<T, SENDS>(direct, access);
        set_mkey_layout_list::<T, SENDS>(direct, count, list);
    }
}

/// `mlx5dv_wr_mr_interleaved`: a configuration with both setters.
unsafe extern "C" fn mr_interleaved<T: Posts, const SENDS: bool>(
    direct: *mut DirectQp,
    key: *const Key,
    access: u32,
    cycles: u32,
    count: u16,
    list: *const Interleaved,
) {
    // SAFETY: the caller's queue pair, after start, its key and its list.
    unsafe {
        mkey_configure::<T, SENDS>(direct, key, 2, &raw const wr::NOTHING_ELSE);
        set_mkey_access_flags::<T, SENDS>(direct, access);
        set_mkey_layout_interleaved::<T, SENDS>(direct, cycles, count, list);
    }
}
