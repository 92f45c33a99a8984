//! The structs that programs hold pointers to, and whose fields they read.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::AtomicI32;

use libc::{pthread_cond_t, pthread_mutex_t};

use super::context::ibv_context;
use super::given::ibv_wc_tm_info;
use super::work::{ibv_data_buf, ibv_mw_bind_info, ibv_recv_wr, ibv_sge};

super::c_structs! {
    struct ibv_pd {
        context: *mut ibv_context,
        handle: u32,
    }

    struct ibv_td {
        context: *mut ibv_context,
    }

    struct ibv_xrcd {
        context: *mut ibv_context,
    }

    struct ibv_mr {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }

    struct ibv_mw {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        rkey: u32,
        handle: u32,
        r#type: c_uint,
    }

    struct ibv_dm {
        context: *mut ibv_context,
        memcpy_to_dm: Option<unsafe extern "C" fn(*mut ibv_dm, u64, *const c_void, usize) -> c_int>,
        memcpy_from_dm: Option<unsafe extern "C" fn(*mut c_void, *mut ibv_dm, u64, usize) -> c_int>,
        comp_mask: u32,
        handle: u32,
    }

    struct ibv_ah {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        handle: u32,
    }

    struct ibv_comp_channel {
        context: *mut ibv_context,
        fd: c_int,
        /// The number of completion queues that use it.
        refcnt: AtomicI32,
    }

    struct ibv_counters {
        context: *mut ibv_context,
    }

    struct ibv_flow_action {
        context: *mut ibv_context,
    }

    struct ibv_flow {
        comp_mask: u32,
        context: *mut ibv_context,
        handle: u32,
    }

    struct ibv_cq {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
    }

    struct ibv_cq_ex {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
        comp_mask: u32,
        status: c_uint,
        wr_id: u64,
        start_poll: unsafe extern "C" fn(*mut ibv_cq_ex, *mut c_void) -> c_int,
        next_poll: unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int,
        end_poll: unsafe extern "C" fn(*mut ibv_cq_ex),
        read_opcode: unsafe extern "C" fn(*mut ibv_cq_ex) -> c_uint,
        read_vendor_err: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
        read_byte_len: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
        read_imm_data: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
        read_qp_num: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
        read_src_qp: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
        read_wc_flags: unsafe extern "C" fn(*mut ibv_cq_ex) -> c_uint,
        read_slid: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
        read_sl: unsafe extern "C" fn(*mut ibv_cq_ex) -> u8,
        read_dlid_path_bits: unsafe extern "C" fn(*mut ibv_cq_ex) -> u8,
        read_completion_ts: unsafe extern "C" fn(*mut ibv_cq_ex) -> u64,
        read_cvlan: unsafe extern "C" fn(*mut ibv_cq_ex) -> u16,
        read_flow_tag: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
        read_tm_info: unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_wc_tm_info),
        read_completion_wallclock_ns: unsafe extern "C" fn(*mut ibv_cq_ex) -> u64,
    }

    struct ibv_srq {
        context: *mut ibv_context,
        srq_context: *mut c_void,
        pd: *mut ibv_pd,
        handle: u32,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }

    struct ibv_wq {
        context: *mut ibv_context,
        wq_context: *mut c_void,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        wq_num: u32,
        handle: u32,
        state: c_uint,
        wq_type: c_uint,
        post_recv: unsafe extern "C" fn(*mut ibv_wq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
        comp_mask: u32,
    }

    struct ibv_rwq_ind_table {
        context: *mut ibv_context,
        ind_tbl_handle: c_int,
        ind_tbl_num: c_int,
        comp_mask: u32,
    }

    struct ibv_qp {
        context: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        handle: u32,
        qp_num: u32,
        state: c_uint,
        qp_type: c_uint,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }

    struct ibv_qp_ex {
        qp_base: ibv_qp,
        comp_mask: u64,
        wr_id: u64,
        wr_flags: c_uint,
        wr_atomic_cmp_swp: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64),
        wr_atomic_fetch_add: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64),
        wr_bind_mw: unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_mw, u32, *const ibv_mw_bind_info),
        wr_local_inv: unsafe extern "C" fn(*mut ibv_qp_ex, u32),
        wr_rdma_read: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64),
        wr_rdma_write: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64),
        wr_rdma_write_imm: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32),
        wr_send: unsafe extern "C" fn(*mut ibv_qp_ex),
        wr_send_imm: unsafe extern "C" fn(*mut ibv_qp_ex, u32),
        wr_send_inv: unsafe extern "C" fn(*mut ibv_qp_ex, u32),
        wr_send_tso: unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, u16, u16),
        wr_set_ud_addr: unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32),
        wr_set_xrc_srqn: unsafe extern "C" fn(*mut ibv_qp_ex, u32),
        wr_set_inline_data: unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize),
        wr_set_inline_data_list: unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_data_buf),
        wr_set_sge: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32),
        wr_set_sge_list: unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge),
        wr_start: unsafe extern "C" fn(*mut ibv_qp_ex),
        wr_complete: unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int,
        wr_abort: unsafe extern "C" fn(*mut ibv_qp_ex),
        wr_atomic_write: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, *const c_void),
        wr_flush: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8),
    }
}
