//! `mlx5dv_init_obj`: the memory layout of objects, for programs that write requests and read
//! completions themselves.

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::abi::*;
use crate::ah::Ah;
use crate::cq::Cq;
use crate::extras::Dm;
use crate::grown::{self, grown};
use crate::pd::Pd;
use crate::qp::Qp;
use crate::result::refused;
use crate::srq::Srq;
use crate::wq::Wq;

/// `enum mlx5dv_obj_type`.
const QP: u64 = 1;
const CQ: u64 = 1 << 1;
const SRQ: u64 = 1 << 2;
const RWQ: u64 = 1 << 3;
const DM: u64 = 1 << 4;
const AH: u64 = 1 << 5;
const PD: u64 = 1 << 6;
/// New in rdma-core 65 (`struct mlx5dv_devx_obj`); not supported.
const DEVX: u64 = 1 << 7;
const KNOWN: u64 = QP | CQ | SRQ | RWQ | DM | AH | PD;
/// `MLX5DV_SRQ_MASK_SRQN` and `MLX5DV_DM_MASK_REMOTE_VA`: fields that programs ask for.
const SRQ_NUMBER: u64 = 1;

/// An object, and the struct that describes it.
#[repr(C)]
struct Pair<I, O> {
    object: *mut I,
    into: *mut O,
}

/// `struct mlx5dv_obj`.
#[repr(C)]
pub(crate) struct Objects {
    qp: Pair<ibv_qp, QpParts>,
    cq: Pair<ibv_cq, CqParts>,
    srq: Pair<ibv_srq, SrqParts>,
    rwq: Pair<ibv_wq, WqParts>,
    dm: Pair<ibv_dm, DmParts>,
    ah: Pair<ibv_ah, AhParts>,
    pd: Pair<ibv_pd, PdParts>,
}

grown! {
    Objects until dm {
        DM => dm,
        AH => ah,
        PD => pd,
    }
    SrqParts until srqn by comp_mask {
        SRQ_NUMBER => srqn,
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Ring {
    buf: *mut c_void,
    wqe_cnt: u32,
    stride: u32,
}

/// `struct mlx5dv_qp`, up to what its mask is about.
#[derive(Clone, Copy)]
#[repr(C)]
struct QpParts {
    dbrec: *mut c_void,
    sq: Ring,
    rq: Ring,
    bf_reg: *mut c_void,
    bf_size: u32,
    comp_mask: u64,
}

/// `struct mlx5dv_cq`.
#[derive(Clone, Copy)]
#[repr(C)]
struct CqParts {
    buf: *mut c_void,
    dbrec: *mut c_void,
    cqe_cnt: u32,
    cqe_size: u32,
    cq_uar: *mut c_void,
    cqn: u32,
    comp_mask: u64,
}

/// `struct mlx5dv_srq`.
#[derive(Clone, Copy)]
#[repr(C)]
struct SrqParts {
    buf: *mut c_void,
    dbrec: *mut c_void,
    stride: u32,
    head: u32,
    tail: u32,
    comp_mask: u64,
    srqn: u32,
}

/// `struct mlx5dv_rwq`.
#[repr(C)]
struct WqParts {
    buf: *mut c_void,
    dbrec: *mut c_void,
    wqe_cnt: u32,
    stride: u32,
    comp_mask: u64,
}

/// `struct mlx5dv_dm`, up to what its mask is about.
#[repr(C)]
struct DmParts {
    buf: *mut c_void,
    length: u64,
    comp_mask: u64,
}

/// `struct mlx5dv_ah`.
#[repr(C)]
struct AhParts {
    av: *const c_void,
    comp_mask: u64,
}

/// `struct mlx5dv_pd`.
#[derive(Clone, Copy)]
#[repr(C)]
struct PdParts {
    pdn: u32,
    comp_mask: u64,
}

fields! {
    Ring { buf wqe_cnt stride }
    QpParts { dbrec sq rq bf_reg bf_size comp_mask }
    CqParts { buf dbrec cqe_cnt cqe_size cq_uar cqn comp_mask }
    SrqParts { buf dbrec stride head tail comp_mask srqn }
    PdParts { pdn comp_mask }
}

/// `mlx5dv_init_obj`. On return each mask has the bits of the fields that were filled in.
pub(crate) unsafe extern "C" fn init_obj(objects: *mut Objects, kinds: u64) -> c_int {
    if kinds == 0 || kinds & !(KNOWN | DEVX) != 0 {
        return refused(libc::EINVAL);
    }
    if kinds & DEVX != 0 {
        return refused(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's struct, with an object and a place for each kind that it names.
    unsafe {
        let objects = grown::read_masked(objects, kinds);
        let filled = [
            kinds & QP == 0 || fill_qp(&objects.qp),
            kinds & CQ == 0 || fill_cq(&objects.cq),
            kinds & SRQ == 0 || fill_srq(&objects.srq),
            kinds & RWQ == 0 || fill_wq(&objects.rwq),
            kinds & DM == 0 || fill_dm(&objects.dm),
            kinds & AH == 0 || fill_ah(&objects.ah),
            kinds & PD == 0 || fill_pd(&objects.pd),
        ];
        if filled.contains(&false) { refused(libc::EINVAL) } else { 0 }
    }
}

fn ring(ring: Option<uverbs::raw::RingLayout>) -> Ring {
    ring.map_or(Ring { buf: ptr::null_mut(), wqe_cnt: 0, stride: 0 }, |ring| Ring {
        buf: ring.start.cast(),
        wqe_cnt: ring.entries,
        stride: ring.stride,
    })
}

/// # Safety
/// A program's queue pair, and a struct of its own to be filled in. The same holds for the
/// functions below.
unsafe fn fill_qp(pair: &Pair<ibv_qp, QpParts>) -> bool {
    // SAFETY: the caller's promise.
    let Some(layout) = unsafe { Qp::of(pair.object) }.with(|library| library.layout()) else {
        return false;
    };
    let parts = QpParts {
        dbrec: layout.record.cast(),
        sq: ring(layout.send),
        rq: ring(layout.receive),
        bf_reg: layout.register.cast(),
        bf_size: layout.register_bytes,
        comp_mask: 0,
    };
    // SAFETY: the caller's promise.
    unsafe { write_padded(&parts, pair.into) };
    true
}

unsafe fn fill_cq(pair: &Pair<ibv_cq, CqParts>) -> bool {
    // SAFETY: the caller's promise.
    let queue = unsafe { Cq::of(pair.object) };
    let Some((layout, number)) = queue.show() else { return false };
    let parts = CqParts {
        buf: layout.ring.start.cast(),
        dbrec: layout.record.cast(),
        cqe_cnt: layout.ring.entries,
        cqe_size: layout.ring.stride,
        cq_uar: layout.page.cast(),
        cqn: number,
        comp_mask: 0,
    };
    // SAFETY: the caller's promise.
    unsafe { write_padded(&parts, pair.into) };
    true
}

unsafe fn fill_srq(pair: &Pair<ibv_srq, SrqParts>) -> bool {
    // SAFETY: the caller's promise.
    let (queue, asked) = unsafe { (Srq::of(pair.object), (*pair.into).comp_mask) };
    let Some(number) = queue.handle().map(|handle| handle.number()) else { return false };
    let (ring, record, head) = queue.layout();
    // As in a new queue of libmlx5, all entries are free, each links to the next one, and the last
    // is the tail.
    let tail = head.wrapping_sub(1) & (ring.entries - 1);
    let parts = SrqParts {
        buf: ring.start.cast(),
        dbrec: record.cast(),
        stride: ring.stride,
        head,
        tail,
        comp_mask: asked & SRQ_NUMBER,
        srqn: number,
    };
    // SAFETY: the caller's promise; the number's place is there if it was asked for.
    unsafe { grown::write(&parts, pair.into) };
    true
}

unsafe fn fill_wq(pair: &Pair<ibv_wq, WqParts>) -> bool {
    // SAFETY: the caller's promise.
    let (ring, record) = unsafe { Wq::of(pair.object) }.layout();
    let Some(ring) = ring else { return false };
    let parts = WqParts {
        buf: ring.start.cast(),
        dbrec: record.cast(),
        wqe_cnt: ring.entries,
        stride: ring.stride,
        comp_mask: 0,
    };
    // SAFETY: the caller's promise.
    unsafe { pair.into.write(parts) };
    true
}

unsafe fn fill_dm(pair: &Pair<ibv_dm, DmParts>) -> bool {
    // SAFETY: the caller's promise.
    let Some(memory) = (unsafe { Dm::of(pair.object) }).library() else { return false };
    let parts = DmParts { buf: memory.as_ptr().cast(), length: memory.len() as u64, comp_mask: 0 };
    // SAFETY: the caller's promise.
    unsafe { pair.into.write(parts) };
    true
}

unsafe fn fill_ah(pair: &Pair<ibv_ah, AhParts>) -> bool {
    // SAFETY: the caller's promise.
    let Some(address) = (unsafe { Ah::wire(pair.object) }) else { return false };
    // SAFETY: the caller's promise.
    unsafe { pair.into.write(AhParts { av: address.cast(), comp_mask: 0 }) };
    true
}

unsafe fn fill_pd(pair: &Pair<ibv_pd, PdParts>) -> bool {
    // SAFETY: the caller's promise.
    let Some(domain) = (unsafe { Pd::of(pair.object) }).domain() else { return false };
    // SAFETY: the caller's promise.
    unsafe { write_padded(&PdParts { pdn: domain.number(), comp_mask: 0 }, pair.into) };
    true
}
