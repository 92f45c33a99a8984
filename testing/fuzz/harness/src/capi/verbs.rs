//! The exported functions of the drop-in, by their names and versions.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::sync::OnceLock;

use crate::abi::*;

macro_rules! verbs {
    ($($name:ident $version:literal ($($argument:ty),*) -> $answer:ty;)*) => {
        /// Addresses of the exported functions.
        pub(crate) struct Verbs {
            $(pub(crate) $name: unsafe extern "C-unwind" fn($($argument),*) -> $answer,)*
        }

        impl Verbs {
            fn load() -> Self {
                let find = |name: &str, version| {
                    let name = name.trim_start_matches("r#");
                    uverbs_capi::export(name, version).unwrap_or_else(|| panic!("no {name}"))
                };
                Self {$(
                    // SAFETY: functions of these signatures, which are the header's.
                    $name: unsafe {
                        std::mem::transmute::<
                            *const (),
                            unsafe extern "C-unwind" fn($($argument),*) -> $answer,
                        >(find(stringify!($name), $version))
                    },
                )*}
            }
        }
    };
}

impl Verbs {
    /// The addresses in this process.
    pub(crate) fn get() -> &'static Self {
        static VERBS: OnceLock<Verbs> = OnceLock::new();
        VERBS.get_or_init(Self::load)
    }
}

verbs! {
    ibv_get_device_list "IBVERBS_1.1" (*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list "IBVERBS_1.1" (*mut *mut ibv_device) -> ();
    ibv_get_device_name "IBVERBS_1.1" (*mut ibv_device) -> *const c_char;
    ibv_get_device_guid "IBVERBS_1.1" (*mut ibv_device) -> u64;
    ibv_open_device "IBVERBS_1.1" (*mut ibv_device) -> *mut ibv_context;
    ibv_import_device "IBVERBS_1.10" (c_int) -> *mut ibv_context;
    ibv_close_device "IBVERBS_1.1" (*mut ibv_context) -> c_int;
    ibv_query_device "IBVERBS_1.1" (*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_query_port "IBVERBS_1.1" (*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    ibv_query_gid "IBVERBS_1.1" (*mut ibv_context, u8, c_int, *mut [u64; 2]) -> c_int;
    _ibv_query_gid_ex "IBVERBS_1.11"
        (*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
    _ibv_query_gid_table "IBVERBS_1.11"
        (*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
    ibv_query_pkey "IBVERBS_1.1" (*mut ibv_context, u8, c_int, *mut u16) -> c_int;
    ibv_get_pkey_index "IBVERBS_1.5" (*mut ibv_context, u8, u16) -> c_int;
    ibv_query_port_speed "IBVERBS_1.16" (*mut ibv_context, u32, *mut u64) -> c_int;
    ibv_alloc_pd "IBVERBS_1.1" (*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd "IBVERBS_1.1" (*mut ibv_pd) -> c_int;
    ibv_reg_mr "IBVERBS_1.1" (*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_reg_mr_iova2 "IBVERBS_1.8"
        (*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
    ibv_reg_dmabuf_mr "IBVERBS_1.12" (*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
    ibv_rereg_mr "IBVERBS_1.1"
        (*mut ibv_mr, c_int, *mut ibv_pd, *mut c_void, usize, c_int) -> c_int;
    ibv_dereg_mr "IBVERBS_1.1" (*mut ibv_mr) -> c_int;
    ibv_create_ah "IBVERBS_1.1" (*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
    ibv_create_ah_from_wc "IBVERBS_1.1"
        (*mut ibv_pd, *mut ibv_wc, *mut ibv_grh, u8) -> *mut ibv_ah;
    ibv_destroy_ah "IBVERBS_1.1" (*mut ibv_ah) -> c_int;
    ibv_create_comp_channel "IBVERBS_1.0" (*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel "IBVERBS_1.0" (*mut ibv_comp_channel) -> c_int;
    ibv_get_cq_event "IBVERBS_1.1"
        (*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events "IBVERBS_1.1" (*mut ibv_cq, c_uint) -> ();
    ibv_get_async_event "IBVERBS_1.1" (*mut ibv_context, *mut ibv_async_event) -> c_int;
    ibv_ack_async_event "IBVERBS_1.1" (*mut ibv_async_event) -> ();
    ibv_create_cq "IBVERBS_1.1"
        (*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_resize_cq "IBVERBS_1.1" (*mut ibv_cq, c_int) -> c_int;
    ibv_destroy_cq "IBVERBS_1.1" (*mut ibv_cq) -> c_int;
    ibv_create_srq "IBVERBS_1.1" (*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    ibv_modify_srq "IBVERBS_1.1" (*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
    ibv_query_srq "IBVERBS_1.1" (*mut ibv_srq, *mut ibv_srq_attr) -> c_int;
    ibv_destroy_srq "IBVERBS_1.1" (*mut ibv_srq) -> c_int;
    ibv_create_qp "IBVERBS_1.1" (*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp "IBVERBS_1.1" (*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_query_qp "IBVERBS_1.1"
        (*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    ibv_destroy_qp "IBVERBS_1.1" (*mut ibv_qp) -> c_int;
    ibv_attach_mcast "IBVERBS_1.1" (*mut ibv_qp, *const [u64; 2], u16) -> c_int;
    ibv_detach_mcast "IBVERBS_1.1" (*mut ibv_qp, *const [u64; 2], u16) -> c_int;
    ibv_qp_to_qp_ex "IBVERBS_1.6" (*mut ibv_qp) -> *mut ibv_qp_ex;
    ibv_query_ece "IBVERBS_1.10" (*mut ibv_qp, *mut ibv_ece) -> c_int;
    ibv_set_ece "IBVERBS_1.10" (*mut ibv_qp, *mut ibv_ece) -> c_int;
    ibv_wc_status_str "IBVERBS_1.1" (c_uint) -> *const c_char;
    ibv_event_type_str "IBVERBS_1.1" (c_uint) -> *const c_char;
    ibv_node_type_str "IBVERBS_1.1" (c_uint) -> *const c_char;
    ibv_port_state_str "IBVERBS_1.1" (c_uint) -> *const c_char;
    ibv_rate_to_mult "IBVERBS_1.0" (c_uint) -> c_int;
    mult_to_ibv_rate "IBVERBS_1.0" (c_int) -> c_uint;
    ibv_rate_to_mbps "IBVERBS_1.1" (c_uint) -> c_int;
    mbps_to_ibv_rate "IBVERBS_1.1" (c_int) -> c_uint;
}

/// The function table in front of a context, which the header's inline functions use.
///
/// # Safety
/// `context` is open.
pub(crate) unsafe fn below<'a>(context: *mut ibv_context) -> &'a verbs_context {
    // SAFETY: the caller's promise.
    unsafe { &*context.byte_sub(offset_of!(verbs_context, context)).cast() }
}

/// `errno` of this thread.
pub(crate) fn errno() -> c_int {
    // SAFETY: the address of the calling thread's own errno.
    unsafe { *libc::__errno_location() }
}

/// Sets `errno` to 0.
pub(crate) fn clear_errno() {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = 0 };
}
