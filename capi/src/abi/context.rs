//! Devices, contexts, and the table of functions that programs call through a context.
//!
//! Most verbs are inline functions of the header. They call a function of `ibv_context.ops` or of
//! [`verbs_context`]. The latter precedes the `ibv_context` that `ibv_open_device` returns, and
//! grows towards lower addresses in newer releases. Its size, `sz`, determines which slots exist.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::pthread_mutex_t;

use super::attributes::*;
use super::given::*;
use super::objects::*;
use super::work::*;

/// A slot without a type here, mostly null. Inline functions of the header return EOPNOTSUPP for
/// null; they call no `_compat_` slot.
pub(crate) type Unused = *mut c_void;

/// `ibv_context.abi_compat` of contexts that have a [`verbs_context`].
pub(crate) const EXTENDED: *mut c_void = usize::MAX as *mut c_void;

super::c_structs! {
    struct ibv_device {
        _ops: [Unused; 2],
        node_type: c_int,
        transport_type: c_int,
        name: [c_char; 64],
        dev_name: [c_char; 64],
        dev_path: [c_char; 256],
        ibdev_path: [c_char; 256],
    }

    struct ibv_context_ops {
        _compat_query_device: Unused,
        _compat_query_port: Unused,
        _compat_alloc_pd: Unused,
        _compat_dealloc_pd: Unused,
        _compat_reg_mr: Unused,
        _compat_rereg_mr: Unused,
        _compat_dereg_mr: Unused,
        alloc_mw: unsafe extern "C" fn(*mut ibv_pd, c_uint) -> *mut ibv_mw,
        bind_mw: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int,
        dealloc_mw: unsafe extern "C" fn(*mut ibv_mw) -> c_int,
        _compat_create_cq: Unused,
        poll_cq: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
        req_notify_cq: unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int,
        _compat_cq_event: Unused,
        _compat_resize_cq: Unused,
        _compat_destroy_cq: Unused,
        _compat_create_srq: Unused,
        _compat_modify_srq: Unused,
        _compat_query_srq: Unused,
        _compat_destroy_srq: Unused,
        post_srq_recv: unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
        _compat_create_qp: Unused,
        _compat_query_qp: Unused,
        _compat_modify_qp: Unused,
        _compat_destroy_qp: Unused,
        post_send: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
        post_recv: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
        _compat_create_ah: Unused,
        _compat_destroy_ah: Unused,
        _compat_attach_mcast: Unused,
        _compat_detach_mcast: Unused,
        _compat_async_event: Unused,
    }

    struct ibv_context {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: pthread_mutex_t,
        abi_compat: *mut c_void,
    }

    struct verbs_context {
        free_buf: Unused,
        alloc_buf: Unused,
        dm_export_dmabuf_fd: Unused,
        reg_mr_ex: Unused,
        dealloc_dmah: Unused,
        alloc_dmah: Unused,
        query_port: unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int,
        advise_mr: unsafe extern "C" fn(*mut ibv_pd, c_uint, u32, *mut ibv_sge, u32) -> c_int,
        alloc_null_mr: unsafe extern "C" fn(*mut ibv_pd) -> *mut ibv_mr,
        read_counters: unsafe extern "C" fn(*mut ibv_counters, *mut u64, u32, u32) -> c_int,
        attach_counters_point_flow:
            unsafe extern "C" fn(*mut ibv_counters, *mut ibv_counter_attach_attr, *mut ibv_flow) -> c_int,
        create_counters: unsafe extern "C" fn(*mut ibv_context, *mut ibv_counters_init_attr) -> *mut ibv_counters,
        destroy_counters: unsafe extern "C" fn(*mut ibv_counters) -> c_int,
        reg_dm_mr: unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> *mut ibv_mr,
        alloc_dm: unsafe extern "C" fn(*mut ibv_context, *mut ibv_alloc_dm_attr) -> *mut ibv_dm,
        free_dm: unsafe extern "C" fn(*mut ibv_dm) -> c_int,
        modify_flow_action_esp: Unused,
        destroy_flow_action: unsafe extern "C" fn(*mut ibv_flow_action) -> c_int,
        create_flow_action_esp: Unused,
        modify_qp_rate_limit: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_rate_limit_attr) -> c_int,
        alloc_parent_domain:
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd,
        dealloc_td: unsafe extern "C" fn(*mut ibv_td) -> c_int,
        alloc_td: unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td,
        modify_cq: unsafe extern "C" fn(*mut ibv_cq, *mut ibv_modify_cq_attr) -> c_int,
        post_srq_ops: unsafe extern "C" fn(*mut ibv_srq, *mut ibv_ops_wr, *mut *mut ibv_ops_wr) -> c_int,
        destroy_rwq_ind_table: unsafe extern "C" fn(*mut ibv_rwq_ind_table) -> c_int,
        create_rwq_ind_table:
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table,
        destroy_wq: unsafe extern "C" fn(*mut ibv_wq) -> c_int,
        modify_wq: unsafe extern "C" fn(*mut ibv_wq, *mut ibv_wq_attr) -> c_int,
        create_wq: unsafe extern "C" fn(*mut ibv_context, *mut ibv_wq_init_attr) -> *mut ibv_wq,
        query_rt_values: unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int,
        create_cq_ex: unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex,
        r#priv: *mut c_void,
        query_device_ex:
            unsafe extern "C" fn(*mut ibv_context, *const c_void, *mut ibv_device_attr_ex, usize) -> c_int,
        ibv_destroy_flow: unsafe extern "C" fn(*mut ibv_flow) -> c_int,
        ABI_placeholder2: unsafe extern "C" fn(*mut ibv_flow) -> c_int,
        ibv_create_flow: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_flow_attr) -> *mut ibv_flow,
        ABI_placeholder1: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_flow_attr) -> *mut ibv_flow,
        open_qp: unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_open_attr) -> *mut ibv_qp,
        create_qp_ex: unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp,
        get_srq_num: unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int,
        create_srq_ex: unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq,
        open_xrcd: unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd,
        close_xrcd: unsafe extern "C" fn(*mut ibv_xrcd) -> c_int,
        _ABI_placeholder3: u64,
        sz: usize,
        context: ibv_context,
    }
}
