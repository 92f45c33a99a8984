//! The part of libibverbs' binary interface that the benchmark uses: `infiniband/verbs.h` and `mlx5dv.h` of rdma-core 44,
//! with the offsets that its compiler gives on 64-bit machines.

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of};

pub(crate) type Opaque = *mut c_void;

/// `struct ibv_context`, as far as the inline functions of `verbs.h` look into it. `struct verbs_context` stands before it.
#[repr(C)]
pub(crate) struct Context {
    before: [usize; 12],
    pub(crate) poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut WorkCompletion) -> c_int,
    between: [usize; 8],
    pub(crate) post_srq_recv:
        unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int,
    between2: [usize; 4],
    pub(crate) post_send: unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int,
    pub(crate) post_recv: unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int,
}

/// `struct verbs_context`, up to the [`Context`] that it ends with.
#[repr(C)]
pub(crate) struct VerbsContext {
    before: [usize; 14],
    pub(crate) alloc_parent_domain:
        unsafe extern "C" fn(*mut Context, *const ParentDomainAttr) -> Opaque,
    dealloc_td: usize,
    pub(crate) alloc_td: unsafe extern "C" fn(*mut Context, *const u32) -> Opaque,
    between: [usize; 8],
    pub(crate) create_cq_ex: unsafe extern "C" fn(*mut Context, *mut CqAttrEx) -> *mut CqEx,
    between2: [usize; 7],
    pub(crate) create_qp_ex: unsafe extern "C" fn(*mut Context, *mut QpAttrEx) -> *mut Qp,
    after: [usize; 6],
}

#[repr(C)]
pub(crate) struct Qp {
    pub(crate) context: *mut Context,
    between: [usize; 5],
    pub(crate) handle: u32,
    pub(crate) number: u32,
}

#[repr(C)]
pub(crate) struct Cq {
    pub(crate) context: *mut Context,
}

#[repr(C)]
pub(crate) struct Srq {
    pub(crate) context: *mut Context,
}

/// `struct ibv_qp_ex`: a work request is built by calls through it.
#[repr(C)]
pub(crate) struct QpEx {
    before: [usize; 21],
    pub(crate) wr_id: u64,
    pub(crate) wr_flags: u32,
    operations: [usize; 5],
    pub(crate) rdma_write: unsafe extern "C" fn(*mut QpEx, u32, u64),
    rdma_write_imm: usize,
    pub(crate) send: unsafe extern "C" fn(*mut QpEx),
    setters: [usize; 5],
    pub(crate) set_inline_data: unsafe extern "C" fn(*mut QpEx, *const u8, usize),
    set_inline_data_list: usize,
    pub(crate) set_sge: unsafe extern "C" fn(*mut QpEx, u32, u64, u32),
    set_sge_list: usize,
    pub(crate) start: unsafe extern "C" fn(*mut QpEx),
    pub(crate) complete: unsafe extern "C" fn(*mut QpEx) -> c_int,
}

/// `struct ibv_cq_ex`.
#[repr(C)]
pub(crate) struct CqEx {
    before: [u32; 33],
    pub(crate) status: u32,
    pub(crate) wr_id: u64,
    pub(crate) start_poll: unsafe extern "C" fn(*mut CqEx, *const u32) -> c_int,
    pub(crate) next_poll: unsafe extern "C" fn(*mut CqEx) -> c_int,
    pub(crate) end_poll: unsafe extern "C" fn(*mut CqEx),
    pub(crate) read_opcode: unsafe extern "C" fn(*mut CqEx) -> u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Sge {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut SendWr,
    pub(crate) sges: *mut Sge,
    pub(crate) sge_count: c_int,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    pub(crate) immediate: u32,
    /// RDMA: address, key. UD: address handle, QP number and Q_Key.
    pub(crate) target: [u64; 2],
    pub(crate) rest: [u64; 9],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RecvWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut RecvWr,
    pub(crate) sges: *mut Sge,
    pub(crate) sge_count: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct WorkCompletion {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) rest: [u32; 9],
}

#[repr(C)]
pub(crate) struct ParentDomainAttr {
    pub(crate) pd: Opaque,
    pub(crate) td: Opaque,
    pub(crate) rest: [usize; 4],
}

#[repr(C)]
#[derive(Default)]
pub(crate) struct CqAttrEx {
    pub(crate) entries: u32,
    pub(crate) before: [u32; 5],
    pub(crate) vector: u64,
    pub(crate) wc_flags: u64,
    pub(crate) mask: u32,
    pub(crate) flags: u32,
    pub(crate) parent_domain: u64,
}

#[repr(C)]
pub(crate) struct QpAttrEx {
    pub(crate) user: Opaque,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut Srq,
    /// Send requests, receives, send SGEs, receive SGEs, inline bytes.
    pub(crate) capacities: [u32; 5],
    pub(crate) kind: u32,
    pub(crate) signal_all: u32,
    pub(crate) mask: u32,
    pub(crate) pd: Opaque,
    pub(crate) rest: [usize; 7],
    pub(crate) send_operations: u64,
}

#[repr(C)]
#[derive(Default)]
pub(crate) struct AhAttr {
    pub(crate) grh: [u64; 3],
    pub(crate) dlid: u16,
    pub(crate) middle: [u8; 4],
    pub(crate) port: u8,
    pub(crate) pad: u8,
}

#[repr(C)]
#[derive(Default)]
pub(crate) struct QpAttr {
    pub(crate) state: u32,
    pub(crate) current: u32,
    pub(crate) mtu: u32,
    pub(crate) migration: u32,
    pub(crate) qkey: u32,
    pub(crate) receive_psn: u32,
    pub(crate) send_psn: u32,
    pub(crate) peer: u32,
    pub(crate) access: u32,
    pub(crate) capacities: [u32; 5],
    pub(crate) path: AhAttr,
    pub(crate) alternate: AhAttr,
    pub(crate) keys: [u16; 2],
    pub(crate) drained: [u8; 2],
    pub(crate) reads: u8,
    pub(crate) peer_reads: u8,
    pub(crate) rnr_timer: u8,
    pub(crate) port: u8,
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
    pub(crate) rnr_retries: u8,
    pub(crate) rest: [u8; 11],
}

#[repr(C)]
pub(crate) struct SrqAttr {
    pub(crate) user: Opaque,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) limit: u32,
}

/// `struct mlx5dv_srq`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct DirectSrq {
    pub(crate) buffer: usize,
    pub(crate) record: usize,
    pub(crate) stride: u32,
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) mask: u64,
    pub(crate) number: u32,
}

const _: () = {
    assert!(offset_of!(Context, poll_cq) == 96 && offset_of!(Context, post_srq_recv) == 168);
    assert!(offset_of!(Context, post_send) == 208 && offset_of!(Context, post_recv) == 216);
    assert!(offset_of!(VerbsContext, alloc_parent_domain) == 112);
    assert!(offset_of!(VerbsContext, alloc_td) == 128);
    assert!(offset_of!(VerbsContext, create_cq_ex) == 200);
    assert!(offset_of!(VerbsContext, create_qp_ex) == 264);
    assert!(size_of::<VerbsContext>() == 320);
    assert!(offset_of!(Qp, number) == 52);
    assert!(offset_of!(QpEx, wr_id) == 168 && offset_of!(QpEx, rdma_write) == 224);
    assert!(offset_of!(QpEx, send) == 240 && offset_of!(QpEx, set_inline_data) == 288);
    assert!(offset_of!(QpEx, set_sge) == 304 && offset_of!(QpEx, start) == 320);
    assert!(offset_of!(CqEx, status) == 132 && offset_of!(CqEx, start_poll) == 144);
    assert!(size_of::<SendWr>() == 128 && size_of::<RecvWr>() == 32);
    assert!(size_of::<WorkCompletion>() == 48 && size_of::<ParentDomainAttr>() == 48);
    assert!(size_of::<CqAttrEx>() == 56 && offset_of!(CqAttrEx, mask) == 40);
    assert!(size_of::<QpAttrEx>() == 136 && offset_of!(QpAttrEx, pd) == 64);
    assert!(size_of::<AhAttr>() == 32 && offset_of!(AhAttr, port) == 30);
    assert!(size_of::<QpAttr>() == 144 && offset_of!(QpAttr, port) == 129);
    assert!(offset_of!(QpAttr, path) == 56 && offset_of!(QpAttr, reads) == 126);
    assert!(size_of::<SrqAttr>() == 24);
};
