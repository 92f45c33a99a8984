//! The part of libibverbs' binary interface that the harness uses: structs of `infiniband/verbs.h`
//! and `mlx5dv.h` of rdma-core 44, with their offsets on 64-bit machines. The headers describe the
//! fields.
#![allow(missing_docs, reason = "the fields are those of verbs.h and mlx5dv.h")]

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of};

pub type Opaque = *mut c_void;

/// `struct ibv_context`, up to the fields that inline functions of `verbs.h` use. It is the end of
/// a `struct verbs_context`.
#[repr(C)]
pub struct Context {
    before: [usize; 8],
    pub alloc_mw: unsafe extern "C" fn(*mut Pd, u32) -> *mut Mw,
    between0: [usize; 3],
    pub poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut WorkCompletion) -> c_int,
    between: [usize; 8],
    pub post_srq_recv: unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int,
    between2: [usize; 4],
    pub post_send: unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int,
    pub post_recv: unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int,
}

/// `struct verbs_context`, up to the [`Context`] that it ends with.
#[repr(C)]
pub struct VerbsContext {
    before: [usize; 14],
    pub alloc_parent_domain: unsafe extern "C" fn(*mut Context, *const ParentDomainAttr) -> Opaque,
    dealloc_td: usize,
    pub alloc_td: unsafe extern "C" fn(*mut Context, *const u32) -> Opaque,
    modify_cq: usize,
    pub post_srq_ops: unsafe extern "C" fn(*mut Srq, *mut OpsWr, *mut *mut OpsWr) -> c_int,
    between: [usize; 2],
    pub destroy_wq: unsafe extern "C" fn(*mut Wq) -> c_int,
    between_wqs: [usize; 3],
    pub create_cq_ex: unsafe extern "C" fn(*mut Context, *mut CqAttrEx) -> *mut CqEx,
    between2: [usize; 7],
    pub create_qp_ex: unsafe extern "C" fn(*mut Context, *mut QpAttrEx) -> *mut Qp,
    get_srq_num: usize,
    pub create_srq_ex: unsafe extern "C" fn(*mut Context, *mut SrqAttrEx) -> *mut Srq,
    after: [usize; 4],
}

#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    between: [usize; 5],
    pub handle: u32,
    pub number: u32,
}

/// `struct ibv_pd`.
#[repr(C)]
pub struct Pd {
    pub context: *mut Context,
}

#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
}

#[repr(C)]
pub struct Srq {
    pub context: *mut Context,
}

/// `struct ibv_qp_ex`, with the functions that build work requests.
#[repr(C)]
pub struct QpEx {
    before: [usize; 21],
    pub wr_id: u64,
    pub wr_flags: u32,
    pub compare_swap: unsafe extern "C" fn(*mut QpEx, u32, u64, u64, u64),
    pub fetch_add: unsafe extern "C" fn(*mut QpEx, u32, u64, u64),
    pub bind_mw: unsafe extern "C" fn(*mut QpEx, *mut Mw, u32, *const BindInfo),
    pub local_inv: unsafe extern "C" fn(*mut QpEx, u32),
    pub rdma_read: unsafe extern "C" fn(*mut QpEx, u32, u64),
    pub rdma_write: unsafe extern "C" fn(*mut QpEx, u32, u64),
    pub rdma_write_imm: unsafe extern "C" fn(*mut QpEx, u32, u64, u32),
    pub send: unsafe extern "C" fn(*mut QpEx),
    pub send_imm: unsafe extern "C" fn(*mut QpEx, u32),
    pub send_inv: unsafe extern "C" fn(*mut QpEx, u32),
    pub send_tso: unsafe extern "C" fn(*mut QpEx, *const u8, u16, u16),
    pub set_ud_addr: unsafe extern "C" fn(*mut QpEx, *mut Ah, u32, u32),
    pub set_xrc_srqn: unsafe extern "C" fn(*mut QpEx, u32),
    pub set_inline_data: unsafe extern "C" fn(*mut QpEx, *const u8, usize),
    pub set_inline_data_list: unsafe extern "C" fn(*mut QpEx, usize, *const Buffer),
    pub set_sge: unsafe extern "C" fn(*mut QpEx, u32, u64, u32),
    pub set_sge_list: unsafe extern "C" fn(*mut QpEx, usize, *const Sge),
    pub start: unsafe extern "C" fn(*mut QpEx),
    pub complete: unsafe extern "C" fn(*mut QpEx) -> c_int,
    pub abort: unsafe extern "C" fn(*mut QpEx),
}

/// `struct ibv_data_buf`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Buffer {
    pub address: *const u8,
    pub length: usize,
}

/// `struct ibv_mr`.
#[repr(C)]
pub struct Mr {
    before: [usize; 4],
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// `struct ibv_mw`.
#[repr(C)]
pub struct Mw {
    before: [usize; 2],
    pub rkey: u32,
    pub handle: u32,
    pub kind: u32,
}

/// `struct ibv_mw_bind_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct BindInfo {
    pub mr: *mut Mr,
    pub address: u64,
    pub length: u64,
    pub access: u32,
}

/// `struct ibv_ah`.
#[repr(C)]
pub struct Ah {
    pub context: *mut Context,
}

/// `struct ibv_cq_ex`.
#[repr(C)]
pub struct CqEx {
    before: [u32; 33],
    pub status: u32,
    pub wr_id: u64,
    pub start_poll: unsafe extern "C" fn(*mut CqEx, *const u32) -> c_int,
    pub next_poll: unsafe extern "C" fn(*mut CqEx) -> c_int,
    pub end_poll: unsafe extern "C" fn(*mut CqEx),
    pub read_opcode: unsafe extern "C" fn(*mut CqEx) -> u32,
    between: [usize; 2],
    pub read_imm_data: unsafe extern "C" fn(*mut CqEx) -> u32,
    between1: [usize; 2],
    pub read_wc_flags: unsafe extern "C" fn(*mut CqEx) -> u32,
    between2: [usize; 3],
    pub read_completion_ts: unsafe extern "C" fn(*mut CqEx) -> u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Sge {
    pub address: u64,
    pub length: u32,
    pub lkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sges: *mut Sge,
    pub sge_count: c_int,
    pub opcode: u32,
    pub flags: u32,
    pub immediate: u32,
    /// The union `wr`. RDMA: address, key. Atomics: address, operands, key. UD: address handle, QP
    /// number and Q_Key.
    pub target: [u64; 4],
    pub remote_srqn: u32,
    pub tail: SendWrTail,
}

/// Further fields of a request that binds a memory window or segments a packet.
#[repr(C)]
#[derive(Clone, Copy)]
pub union SendWrTail {
    pub bind: BindWr,
    pub tso: TsoWr,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct BindWr {
    pub mw: *mut Mw,
    pub rkey: u32,
    pub info: BindInfo,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct TsoWr {
    pub header: *const u8,
    pub header_length: u16,
    pub mss: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sges: *mut Sge,
    pub sge_count: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkCompletion {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Immediate data, big endian, or an invalidated key.
    pub immediate: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: u32,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

#[repr(C)]
pub struct ParentDomainAttr {
    pub pd: Opaque,
    pub td: Opaque,
    pub rest: [usize; 4],
}

#[repr(C)]
#[derive(Default)]
pub struct CqAttrEx {
    pub entries: u32,
    pub before: [u32; 5],
    pub vector: u64,
    pub wc_flags: u64,
    pub mask: u32,
    pub flags: u32,
    pub parent_domain: u64,
}

#[repr(C)]
pub struct QpAttrEx {
    pub user: Opaque,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    /// Send requests, receives, send SGEs, receive SGEs, inline bytes.
    pub capacities: [u32; 5],
    pub kind: u32,
    pub signal_all: u32,
    pub mask: u32,
    pub pd: Opaque,
    pub xrcd: Opaque,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rest: [usize; 5],
    pub send_operations: u64,
}

/// `struct mlx5dv_qp_init_attr`.
#[repr(C)]
#[derive(Default)]
pub struct DirectQpAttr {
    pub mask: u64,
    pub create_flags: u64,
    pub dc_type: u64,
    pub dc_access_key: u64,
    pub send_operations: u64,
}

/// `struct mlx5dv_qp_ex`, up to the fields that are used.
#[repr(C)]
pub struct DirectQpEx {
    mask: u64,
    pub set_dc_addr: unsafe extern "C" fn(*mut DirectQpEx, *mut Ah, u32, u64),
}

#[repr(C)]
#[derive(Default)]
pub struct AhAttr {
    pub destination_gid: [u8; 16],
    pub flow_label: u32,
    pub source_gid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub service_level: u8,
    pub path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port: u8,
    pub pad: u8,
}

#[repr(C)]
#[derive(Default)]
pub struct QpAttr {
    pub state: u32,
    pub current: u32,
    pub mtu: u32,
    pub migration: u32,
    pub qkey: u32,
    pub receive_psn: u32,
    pub send_psn: u32,
    pub peer: u32,
    pub access: u32,
    pub capacities: [u32; 5],
    pub path: AhAttr,
    pub alternate: AhAttr,
    pub keys: [u16; 2],
    pub drained: [u8; 2],
    pub reads: u8,
    pub peer_reads: u8,
    pub rnr_timer: u8,
    pub port: u8,
    pub timeout: u8,
    pub retries: u8,
    pub rnr_retries: u8,
    pub rest: [u8; 11],
}

#[repr(C)]
pub struct SrqAttr {
    pub user: Opaque,
    pub max_wr: u32,
    pub max_sge: u32,
    pub limit: u32,
}

/// `struct ibv_srq_init_attr_ex`.
#[repr(C)]
pub struct SrqAttrEx {
    pub user: Opaque,
    pub max_wr: u32,
    pub max_sge: u32,
    pub limit: u32,
    pub mask: u32,
    pub kind: u32,
    pub pd: *mut Pd,
    pub xrcd: Opaque,
    pub cq: *mut CqEx,
    pub max_tags: u32,
    pub max_ops: u32,
}

/// `struct ibv_ops_wr`.
#[repr(C)]
pub struct OpsWr {
    pub wr_id: u64,
    pub next: *mut OpsWr,
    pub opcode: u32,
    pub flags: u32,
    pub unexpected: u32,
    pub handle: u32,
    pub receive_id: u64,
    pub sges: *mut Sge,
    pub sge_count: c_int,
    pub tag: u64,
    pub mask: u64,
}

/// `struct ibv_wq`.
#[repr(C)]
pub struct Wq {
    before: [usize; 4],
    numbers: [u32; 4],
    pub post_recv: unsafe extern "C" fn(*mut Wq, *mut RecvWr, *mut *mut RecvWr) -> c_int,
}

/// `struct ibv_wq_init_attr`.
#[repr(C)]
pub struct WqAttr {
    pub user: Opaque,
    pub kind: u32,
    pub max_wr: u32,
    pub max_sge: u32,
    pub pd: *mut Pd,
    pub cq: *mut Cq,
    pub mask: u32,
    pub create_flags: u32,
}

/// `struct mlx5dv_wq_init_attr`.
#[repr(C)]
#[derive(Default)]
pub struct DirectWqAttr {
    pub mask: u64,
    pub log_stride: u32,
    pub log_strides: u32,
    pub two_byte_shift: u8,
}

/// `struct mlx5dv_qp`.
#[repr(C)]
#[derive(Default)]
pub struct DirectQp {
    pub record: usize,
    pub send: DirectRing,
    pub recv: DirectRing,
    pub register: usize,
    pub register_size: u32,
    pub mask: u64,
    pub rest: [u64; 4],
}

#[repr(C)]
#[derive(Default)]
pub struct DirectRing {
    pub buffer: usize,
    pub entries: u32,
    pub stride: u32,
}

/// `struct mlx5dv_cq`.
#[repr(C)]
#[derive(Default)]
pub struct DirectCq {
    pub buffer: usize,
    pub record: usize,
    pub entries: u32,
    pub cqe_size: u32,
    pub uar: usize,
    pub number: u32,
    pub mask: u64,
}

/// `struct mlx5dv_srq`.
#[repr(C)]
#[derive(Default)]
pub struct DirectSrq {
    pub buffer: usize,
    pub record: usize,
    pub stride: u32,
    pub head: u32,
    pub tail: u32,
    pub mask: u64,
    pub number: u32,
}

/// `struct mlx5dv_rwq`.
#[repr(C)]
#[derive(Default)]
pub struct DirectWq {
    pub buffer: usize,
    pub record: usize,
    pub entries: u32,
    pub stride: u32,
    pub mask: u64,
}

/// `struct mlx5dv_ah`.
#[repr(C)]
#[derive(Default)]
pub struct DirectAh {
    pub av: usize,
    pub mask: u64,
}

/// `struct mlx5dv_obj`.
#[repr(C)]
#[derive(Default)]
pub struct DirectObjects {
    pub qp: [usize; 2],
    pub cq: [usize; 2],
    pub srq: [usize; 2],
    pub rwq: [usize; 2],
    pub dm: [usize; 2],
    pub ah: [usize; 2],
    pub pd: [usize; 2],
}

/// `enum mlx5dv_obj_type`.
pub const DIRECT_QP: u64 = 1;
/// `enum mlx5dv_obj_type`.
pub const DIRECT_CQ: u64 = 2;
/// `enum mlx5dv_obj_type`.
pub const DIRECT_SRQ: u64 = 4;
/// `enum mlx5dv_obj_type`.
pub const DIRECT_RWQ: u64 = 8;
/// `enum mlx5dv_obj_type`.
pub const DIRECT_AH: u64 = 32;

const _: () = {
    assert!(offset_of!(Context, poll_cq) == 96 && offset_of!(Context, post_srq_recv) == 168);
    assert!(offset_of!(Context, post_send) == 208 && offset_of!(Context, post_recv) == 216);
    assert!(offset_of!(VerbsContext, alloc_parent_domain) == 112);
    assert!(offset_of!(VerbsContext, alloc_td) == 128);
    assert!(offset_of!(VerbsContext, create_cq_ex) == 200);
    assert!(offset_of!(VerbsContext, create_qp_ex) == 264);
    assert!(offset_of!(VerbsContext, post_srq_ops) == 144);
    assert!(offset_of!(VerbsContext, create_srq_ex) == 280);
    assert!(size_of::<VerbsContext>() == 320);
    assert!(size_of::<SrqAttrEx>() == 64 && offset_of!(SrqAttrEx, pd) == 32);
    assert!(size_of::<OpsWr>() == 72 && offset_of!(OpsWr, sges) == 40);
    assert!(offset_of!(Qp, number) == 52);
    assert!(offset_of!(QpEx, wr_id) == 168 && offset_of!(QpEx, rdma_write) == 224);
    assert!(offset_of!(QpEx, send) == 240 && offset_of!(QpEx, set_inline_data) == 288);
    assert!(offset_of!(QpEx, set_sge) == 304 && offset_of!(QpEx, start) == 320);
    assert!(offset_of!(CqEx, status) == 132 && offset_of!(CqEx, start_poll) == 144);
    assert!(size_of::<SendWr>() == 128 && size_of::<RecvWr>() == 32);
    assert!(size_of::<WorkCompletion>() == 48 && size_of::<ParentDomainAttr>() == 48);
    assert!(size_of::<CqAttrEx>() == 56 && offset_of!(CqAttrEx, mask) == 40);
    assert!(size_of::<QpAttrEx>() == 136 && offset_of!(QpAttrEx, pd) == 64);
    assert!(offset_of!(QpAttrEx, max_tso_header) == 84);
    assert!(size_of::<DirectQpAttr>() == 40 && offset_of!(DirectQpEx, set_dc_addr) == 8);
    assert!(size_of::<AhAttr>() == 32 && offset_of!(AhAttr, port) == 30);
    assert!(offset_of!(AhAttr, dlid) == 24 && offset_of!(AhAttr, is_global) == 29);
    assert!(size_of::<QpAttr>() == 144 && offset_of!(QpAttr, port) == 129);
    assert!(offset_of!(QpAttr, path) == 56 && offset_of!(QpAttr, reads) == 126);
    assert!(size_of::<SrqAttr>() == 24);
    assert!(offset_of!(VerbsContext, destroy_wq) == 168 && offset_of!(Wq, post_recv) == 48);
    assert!(size_of::<WqAttr>() == 48 && offset_of!(WqAttr, pd) == 24);
    assert!(size_of::<DirectWqAttr>() == 24 && size_of::<DirectWq>() == 32);
    assert!(offset_of!(Context, alloc_mw) == 64);
    assert!(offset_of!(QpEx, compare_swap) == 184 && offset_of!(QpEx, complete) == 328);
    assert!(offset_of!(SendWr, target) == 40 && offset_of!(SendWr, remote_srqn) == 72);
    assert!(offset_of!(SendWr, tail) == 80 && offset_of!(BindWr, info) == 16);
    assert!(offset_of!(TsoWr, header_length) == 8 && size_of::<BindInfo>() == 32);
    assert!(offset_of!(Mr, lkey) == 36 && offset_of!(Mr, rkey) == 40);
    assert!(offset_of!(Mw, rkey) == 16 && offset_of!(Mw, kind) == 24);
    assert!(offset_of!(WorkCompletion, qp_num) == 28 && offset_of!(WorkCompletion, sl) == 44);
    assert!(size_of::<DirectQp>() == 96 && size_of::<DirectCq>() == 48);
    assert!(size_of::<DirectSrq>() == 48 && size_of::<DirectAh>() == 16);
    assert!(size_of::<DirectObjects>() == 112);
};
