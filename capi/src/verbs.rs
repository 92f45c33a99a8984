//! The verbs that programs call. Each calls the function of its module. If the environment requests
//! a trace or checks, an observer wraps that call.

use std::ffi::{c_int, c_uint, c_void};

use crate::abi::*;
use crate::{
    ah, channel, context, cq, dv, events, extras, flow, memory, pd, qp, query, srq, window, wq, xrc,
};

/// Each row is a verb: what it does with objects, and which function it calls. Arguments marked
/// `given` are inputs, `told` ones are outputs; for `at` arguments a trace shows only the address.
/// A thread may be cancelled only in a verb of `"C-unwind"`: the others hold locks, and their
/// frames cannot unwind.
macro_rules! verbs {
    ($prefix:literal; $( $role:ident $abi:tt $name:ident = $module:ident(
        $($direction:ident $argument:ident: $type:ty),*
    ) -> $answer:ty $(as $kind:ident)?; )*) => {$(
        /// The verb of this name.
        pub(crate) unsafe extern $abi fn $name($($argument: $type),*) -> $answer {
            use $crate::observe::{Answer, Argument, Call, Role, is_on};
            // SAFETY: the caller's promise is that of the verb.
            let verb = || $crate::verbs::verbs!(@run $abi unsafe { $module::$name($($argument),*) });
            if !is_on() {
                return verb();
            }
            let arguments = [$(
                (
                    stringify!($argument),
                    $crate::verbs::verbs!(@$direction),
                    $crate::verbs::verbs!(@show $direction $argument),
                ),
            )*];
            let name = concat!($prefix, stringify!($name));
            match Call::begin(name, Role::$role, &arguments) {
                Some(call) => {
                    let answer = verb();
                    call.end(&$crate::verbs::verbs!(@answer answer $($kind)?));
                    answer
                }
                None => $crate::verbs::verbs!(@refused $($kind)?),
            }
        }
    )*};
    (@run "C" $verb:expr) => { $crate::events::uncancelled(|| $verb) };
    (@run "C-unwind" $verb:expr) => { $verb };
    (@given) => { true };
    (@told) => { false };
    (@at) => { true };
    (@show at $argument:ident) => { &$argument.cast::<::std::ffi::c_void>() as &dyn Argument };
    (@show $direction:ident $argument:ident) => { &$argument as &dyn Argument };
    (@answer $answer:ident) => { $answer };
    (@answer $answer:ident $kind:ident) => { $crate::observe::$kind($answer) };
    (@refused) => { Answer::refused() };
    (@refused $kind:ident) => { <$crate::observe::$kind as Answer>::refused().0 };
}
pub(crate) use verbs;

verbs! {
    "ibv_";
    Makes "C" open_device = context(given device: *mut ibv_device) -> *mut ibv_context;
    Makes "C" import_device = context(given cmd_fd: c_int) -> *mut ibv_context;
    Destroys "C" close_device = context(given context: *mut ibv_context) -> c_int;
    Uses "C" query_device =
        query(given context: *mut ibv_context, told into: *mut ibv_device_attr) -> c_int;
    Uses "C" query_device_ex = query(
        given context: *mut ibv_context, given input: *const c_void,
        told into: *mut ibv_device_attr_ex, given size: usize
    ) -> c_int;
    Uses "C" query_port =
        query(given context: *mut ibv_context, given port: u8, told into: *mut ibv_port_attr) -> c_int;
    Uses "C" query_port_ex = query(
        given context: *mut ibv_context, given port: u8, told into: *mut ibv_port_attr,
        given size: usize
    ) -> c_int;
    Uses "C" query_gid = query(
        given context: *mut ibv_context, given port: u8, given index: c_int, told gid: *mut [u8; 16]
    ) -> c_int as MinusOne;
    Uses "C" query_gid_ex = query(
        given context: *mut ibv_context, given port: u32, given index: u32,
        told into: *mut ibv_gid_entry, given flags: u32, given size: usize
    ) -> c_int;
    Uses "C" query_pkey = query(
        given context: *mut ibv_context, given port: u8, given index: c_int, told pkey: *mut u16
    ) -> c_int as MinusOne;
    Makes "C" alloc_pd = pd(given context: *mut ibv_context) -> *mut ibv_pd;
    Destroys "C" dealloc_pd = pd(given pd: *mut ibv_pd) -> c_int;
    Makes "C" alloc_td =
        pd(given context: *mut ibv_context, given attr: *mut ibv_td_init_attr) -> *mut ibv_td;
    Destroys "C" dealloc_td = pd(given td: *mut ibv_td) -> c_int;
    Makes "C" alloc_parent_domain = pd(
        given context: *mut ibv_context, given attr: *mut ibv_parent_domain_init_attr
    ) -> *mut ibv_pd;
    Makes "C" reg_mr = memory(
        given pd: *mut ibv_pd, given addr: *mut c_void, given length: usize, given access: c_int
    ) -> *mut ibv_mr;
    Makes "C" reg_mr_iova = memory(
        given pd: *mut ibv_pd, given addr: *mut c_void, given length: usize, given iova: u64,
        given access: c_uint
    ) -> *mut ibv_mr;
    Makes "C" reg_dmabuf_mr = memory(
        given pd: *mut ibv_pd, given offset: u64, given length: usize, given iova: u64,
        given fd: c_int, given access: c_int
    ) -> *mut ibv_mr;
    Uses "C" rereg_mr = memory(
        given mr: *mut ibv_mr, given flags: c_int, given pd: *mut ibv_pd, given addr: *mut c_void,
        given length: usize, given access: c_int
    ) -> c_int as MinusOne;
    Destroys "C" dereg_mr = memory(given mr: *mut ibv_mr) -> c_int;
    Makes "C" alloc_mw = window(given pd: *mut ibv_pd, given kind: c_uint) -> *mut ibv_mw;
    Destroys "C" dealloc_mw = window(given mw: *mut ibv_mw) -> c_int;
    Makes "C" alloc_dm = extras(
        given context: *mut ibv_context, given attr: *mut ibv_alloc_dm_attr
    ) -> *mut ibv_dm;
    Destroys "C" free_dm = extras(given dm: *mut ibv_dm) -> c_int;
    Makes "C" reg_dm_mr = extras(
        given pd: *mut ibv_pd, given dm: *mut ibv_dm, given offset: u64, given length: usize,
        given access: c_uint
    ) -> *mut ibv_mr;
    Makes "C" create_ah = ah(given pd: *mut ibv_pd, given attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    Destroys "C" destroy_ah = ah(given ah: *mut ibv_ah) -> c_int;
    Makes "C" create_comp_channel =
        channel(given context: *mut ibv_context) -> *mut ibv_comp_channel;
    Destroys "C" destroy_comp_channel = channel(given channel: *mut ibv_comp_channel) -> c_int;
    Uses "C-unwind" get_cq_event = channel(
        given channel: *mut ibv_comp_channel, told cq: *mut *mut ibv_cq,
        told cq_context: *mut *mut c_void
    ) -> c_int as MinusOne;
    Uses "C-unwind" get_async_event =
        events(given context: *mut ibv_context, told into: *mut ibv_async_event) -> c_int as MinusOne;
    Makes "C" create_cq = cq(
        given context: *mut ibv_context, given cqe: c_int, given cq_context: *mut c_void,
        given channel: *mut ibv_comp_channel, given comp_vector: c_int
    ) -> *mut ibv_cq;
    Makes "C" create_cq_ex = cq(
        given context: *mut ibv_context, given attr: *mut ibv_cq_init_attr_ex
    ) -> *mut ibv_cq_ex;
    Uses "C" resize_cq = cq(given cq: *mut ibv_cq, given cqe: c_int) -> c_int;
    Destroys "C" destroy_cq = cq(given cq: *mut ibv_cq) -> c_int;
    Makes "C" create_srq =
        srq(given pd: *mut ibv_pd, given attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    Makes "C" create_srq_ex = srq(
        given context: *mut ibv_context, given attr: *mut ibv_srq_init_attr_ex
    ) -> *mut ibv_srq;
    Uses "C" modify_srq =
        srq(given srq: *mut ibv_srq, given attr: *mut ibv_srq_attr, given mask: c_int) -> c_int;
    Uses "C" query_srq = srq(given srq: *mut ibv_srq, told into: *mut ibv_srq_attr) -> c_int;
    Destroys "C" destroy_srq = srq(given srq: *mut ibv_srq) -> c_int;
    Makes "C" open_xrcd =
        xrc(given context: *mut ibv_context, given attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd;
    Destroys "C" close_xrcd = xrc(given xrcd: *mut ibv_xrcd) -> c_int;
    Makes "C" create_wq = wq(
        given context: *mut ibv_context, given attr: *mut ibv_wq_init_attr
    ) -> *mut ibv_wq;
    Uses "C" modify_wq = wq(given wq: *mut ibv_wq, given attr: *mut ibv_wq_attr) -> c_int;
    Destroys "C" destroy_wq = wq(given wq: *mut ibv_wq) -> c_int;
    Makes "C" create_rwq_ind_table = wq(
        given context: *mut ibv_context, given attr: *mut ibv_rwq_ind_table_init_attr
    ) -> *mut ibv_rwq_ind_table;
    Destroys "C" destroy_rwq_ind_table = wq(given table: *mut ibv_rwq_ind_table) -> c_int;
    Makes "C" create_qp =
        qp(given pd: *mut ibv_pd, given attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    Makes "C" create_qp_ex = qp(
        given context: *mut ibv_context, given attr: *mut ibv_qp_init_attr_ex
    ) -> *mut ibv_qp;
    Makes "C" open_qp = xrc(
        given context: *mut ibv_context, given attr: *mut ibv_qp_open_attr
    ) -> *mut ibv_qp;
    Uses "C" modify_qp =
        qp(given qp: *mut ibv_qp, given attr: *mut ibv_qp_attr, given mask: c_int) -> c_int;
    Uses "C" query_qp = qp(
        given qp: *mut ibv_qp, told attr: *mut ibv_qp_attr, given mask: c_int,
        told init: *mut ibv_qp_init_attr
    ) -> c_int;
    Destroys "C" destroy_qp = qp(given qp: *mut ibv_qp) -> c_int;
    Uses "C" modify_qp_rate_limit =
        qp(given qp: *mut ibv_qp, given attr: *mut ibv_qp_rate_limit_attr) -> c_int;
    Uses "C" attach_mcast =
        qp(given qp: *mut ibv_qp, given gid: *const [u8; 16], given lid: u16) -> c_int;
    Uses "C" detach_mcast =
        qp(given qp: *mut ibv_qp, given gid: *const [u8; 16], given lid: u16) -> c_int;
    Uses "C" query_ece = qp(given qp: *mut ibv_qp, told into: *mut ibv_ece) -> c_int;
    Uses "C" set_ece = qp(given qp: *mut ibv_qp, given ece: *mut ibv_ece) -> c_int;
    Makes "C" create_flow =
        flow(given qp: *mut ibv_qp, given attr: *mut ibv_flow_attr) -> *mut ibv_flow;
    Destroys "C" destroy_flow = flow(given flow: *mut ibv_flow) -> c_int;
    Destroys "C" destroy_flow_action = dv(given action: *mut ibv_flow_action) -> c_int;
    Makes "C" create_counters =
        flow(given context: *mut ibv_context, given attr: *mut ibv_counters_init_attr) -> *mut ibv_counters;
    Destroys "C" destroy_counters = flow(given counters: *mut ibv_counters) -> c_int;
    Uses "C" attach_counters_point_flow = flow(
        given counters: *mut ibv_counters, given attr: *mut ibv_counter_attach_attr,
        given flow: *mut ibv_flow
    ) -> c_int;
    Uses "C" read_counters = flow(
        given counters: *mut ibv_counters, at values: *mut u64, given count: u32, given flags: u32
    ) -> c_int;
    Uses "C" modify_cq =
        cq(given cq: *mut ibv_cq, given attr: *mut ibv_modify_cq_attr) -> c_int;
    Uses "C" advise_mr = memory(
        given pd: *mut ibv_pd, given advice: c_uint, given flags: u32, given list: *mut ibv_sge,
        given count: u32
    ) -> c_int;
    Makes "C" alloc_null_mr = memory(given pd: *mut ibv_pd) -> *mut ibv_mr;
    Makes "C" import_mr = memory(given pd: *mut ibv_pd, given handle: u32) -> *mut ibv_mr;
    Destroys "C" unimport_mr = memory(given mr: *mut ibv_mr) -> ();
    Makes "C" import_pd =
        pd(given context: *mut ibv_context, given handle: u32) -> *mut ibv_pd;
    Destroys "C" unimport_pd = pd(given pd: *mut ibv_pd) -> ();
    Uses "C" get_srq_num = srq(given srq: *mut ibv_srq, told number: *mut u32) -> c_int;
    Makes "C" create_ah_from_wc = ah(
        given pd: *mut ibv_pd, given wc: *mut ibv_wc, given grh: *mut ibv_grh, given port: u8
    ) -> *mut ibv_ah;
    Uses "C" init_ah_from_wc = ah(
        given context: *mut ibv_context, given port: u8, given wc: *mut ibv_wc,
        given grh: *mut ibv_grh, told attr: *mut ibv_ah_attr
    ) -> c_int as MinusOne;
    Uses "C" query_rt_values =
        query(given context: *mut ibv_context, told values: *mut ibv_values_ex) -> c_int;
    Uses "C" query_gid_table = query(
        given context: *mut ibv_context, at entries: *mut ibv_gid_entry, given most: usize,
        given flags: u32, given size: usize
    ) -> isize as Count;
    Uses "C" query_gid_type = query(
        given context: *mut ibv_context, given port: u8, given index: u32, told kind: *mut u32
    ) -> c_int as MinusOne;
    Uses "C" query_port_speed =
        query(given context: *mut ibv_context, given port: u32, told speed: *mut u64) -> c_int;
    Uses "C" get_pkey_index = query(
        given context: *mut ibv_context, given port: u8, given pkey: u16
    ) -> c_int as MinusOne;
    Uses "C" ack_cq_events = channel(given cq: *mut ibv_cq, given count: c_uint) -> ();
    Uses "C" ack_async_event = events(given event: *mut ibv_async_event) -> ();
}
