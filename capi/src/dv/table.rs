//! The direct verbs that programs call, with an observer around them, as in `verbs.rs`.

use std::ffi::{c_int, c_void};

use super::anchor::{Anchor, AnchorAttr};
use super::build::DirectQp;
use super::channels::{Answers, Events};
use super::devx::{Memory, MemoryIn, Object};
use super::keys::{Key, KeyAttr};
use super::matchers::{Action, Matcher, MatcherAttr, Parameters};
use super::objects::Objects;
use super::pages::{Pacing, Uar, Var};
use super::queues::{CqAttr, QpAttr, WqAttr};
use super::{
    ClockInfo, ContextAttr, DeviceContext, anchor, build, channels, devx, keys, matchers, objects,
    pages, queues, reserved,
};
use crate::abi::*;
use crate::verbs::verbs;
use crate::{dv, extras};

verbs! {
    "mlx5dv_";
    Makes "C" open_device =
        dv(given device: *mut ibv_device, at attr: *const ContextAttr) -> *mut ibv_context;
    Uses "C" query_device =
        dv(given context: *mut ibv_context, at into: *mut DeviceContext) -> c_int;
    Uses "C" get_clock_info =
        dv(given context: *mut ibv_context, at into: *mut ClockInfo) -> c_int;
    Makes "C" reg_dmabuf_mr = dv(
        given pd: *mut ibv_pd, given offset: u64, given length: usize, given iova: u64,
        given fd: c_int, given access: c_int, given own_access: c_int
    ) -> *mut ibv_mr;
    Uses "C" reserved_qpn_alloc =
        reserved(given context: *mut ibv_context, told qpn: *mut u32) -> c_int;
    Uses "C" reserved_qpn_dealloc =
        reserved(given context: *mut ibv_context, given qpn: u32) -> c_int;
    Uses "C" init_obj = objects(at objects: *mut Objects, given kinds: u64) -> c_int;
    Makes "C" create_qp = queues(
        given context: *mut ibv_context, given attr: *mut ibv_qp_init_attr_ex,
        at own: *const QpAttr
    ) -> *mut ibv_qp;
    Makes "C" create_cq = queues(
        given context: *mut ibv_context, given attr: *mut ibv_cq_init_attr_ex,
        at own: *const CqAttr
    ) -> *mut ibv_cq_ex;
    Makes "C" create_wq = queues(
        given context: *mut ibv_context, given attr: *mut ibv_wq_init_attr, at own: *const WqAttr
    ) -> *mut ibv_wq;
    Uses "C" qp_ex_from_ibv_qp_ex = build(given qp: *mut ibv_qp_ex) -> *mut DirectQp;
    Makes "C" alloc_var = pages(given context: *mut ibv_context, given flags: u32) -> *mut Var;
    Destroys "C" free_var = pages(given var: *mut Var) -> ();
    Makes "C" pp_alloc = pages(
        given context: *mut ibv_context, given length: usize, at parameters: *const c_void,
        given flags: u32
    ) -> *mut Pacing;
    Destroys "C" pp_free = pages(given entry: *mut Pacing) -> ();
    Makes "C" create_mkey = keys(at attr: *mut KeyAttr) -> *mut Key;
    Destroys "C" destroy_mkey = keys(given key: *mut Key) -> c_int;
    Uses "C" dm_map_op_addr = extras(given dm: *mut ibv_dm, given op: u8) -> *mut c_void;
    Makes "C" create_steering_anchor = anchor(
        given context: *mut ibv_context, at attr: *mut AnchorAttr
    ) -> *mut Anchor;
    Destroys "C" destroy_steering_anchor = anchor(given anchor: *mut Anchor) -> c_int;
    Makes "C" create_flow_matcher = matchers(
        given context: *mut ibv_context, at attr: *const MatcherAttr
    ) -> *mut Matcher;
    Destroys "C" destroy_flow_matcher = matchers(given matcher: *mut Matcher) -> c_int;
    Makes "C" create_flow = matchers(
        given matcher: *mut Matcher, at value: *const Parameters, given count: usize,
        at actions: *const Action
    ) -> *mut ibv_flow;
    Makes "C" create_flow_action_modify_header = matchers(
        given context: *mut ibv_context, given length: usize, at actions: *const c_void,
        given table: u32
    ) -> *mut ibv_flow_action;
    Makes "C" create_flow_action_packet_reformat = matchers(
        given context: *mut ibv_context, given length: usize, at data: *const c_void,
        given kind: u32, given table: u32
    ) -> *mut ibv_flow_action;
}

verbs! {
    "";
    Makes "C" __mlx5dv_create_flow = matchers(
        given matcher: *mut Matcher, at value: *const Parameters, given count: usize,
        at actions: *const Action, given size: usize
    ) -> *mut ibv_flow;
}

verbs! {
    "mlx5dv_devx_";
    Makes "C" alloc_uar = pages(given context: *mut ibv_context, given flags: u32) -> *mut Uar;
    Destroys "C" free_uar = pages(given uar: *mut Uar) -> ();
    Uses "C" general_cmd = devx(
        given context: *mut ibv_context, at input: *const c_void, given input_length: usize,
        at output: *mut c_void, given output_length: usize
    ) -> c_int;
    Makes "C" obj_create = devx(
        given context: *mut ibv_context, at input: *const c_void, given input_length: usize,
        at output: *mut c_void, given output_length: usize
    ) -> *mut Object;
    Uses "C" obj_query = devx(
        given object: *mut Object, at input: *const c_void, given input_length: usize,
        at output: *mut c_void, given output_length: usize
    ) -> c_int;
    Uses "C" obj_modify = devx(
        given object: *mut Object, at input: *const c_void, given input_length: usize,
        at output: *mut c_void, given output_length: usize
    ) -> c_int;
    Destroys "C" obj_destroy = devx(given object: *mut Object) -> c_int;
    Uses "C" query_eqn = devx(
        given context: *mut ibv_context, given vector: u32, told eqn: *mut u32
    ) -> c_int;
    Uses "C" cq_query = devx(
        given cq: *mut ibv_cq, at input: *const c_void, given input_length: usize,
        at output: *mut c_void, given output_length: usize
    ) -> c_int;
    Uses "C" cq_modify = devx(
        given cq: *mut ibv_cq, at input: *const c_void, given input_length: usize,
        at output: *mut c_void, given output_length: usize
    ) -> c_int;
    Uses "C" qp_query = devx(
        given qp: *mut ibv_qp, at input: *const c_void, given input_length: usize,
        at output: *mut c_void, given output_length: usize
    ) -> c_int;
    Uses "C" qp_modify = devx(
        given qp: *mut ibv_qp, at input: *const c_void, given input_length: usize,
        at output: *mut c_void, given output_length: usize
    ) -> c_int;
    Uses "C" srq_query = devx(
        given srq: *mut ibv_srq, at input: *const c_void, given input_length: usize,
        at output: *mut c_void, given output_length: usize
    ) -> c_int;
    Uses "C" srq_modify = devx(
        given srq: *mut ibv_srq, at input: *const c_void, given input_length: usize,
        at output: *mut c_void, given output_length: usize
    ) -> c_int;
    Uses "C" wq_query = devx(
        given wq: *mut ibv_wq, at input: *const c_void, given input_length: usize,
        at output: *mut c_void, given output_length: usize
    ) -> c_int;
    Uses "C" wq_modify = devx(
        given wq: *mut ibv_wq, at input: *const c_void, given input_length: usize,
        at output: *mut c_void, given output_length: usize
    ) -> c_int;
    Uses "C" ind_tbl_query = devx(
        given table: *mut ibv_rwq_ind_table, at input: *const c_void, given input_length: usize,
        at output: *mut c_void, given output_length: usize
    ) -> c_int;
    Uses "C" ind_tbl_modify = devx(
        given table: *mut ibv_rwq_ind_table, at input: *const c_void, given input_length: usize,
        at output: *mut c_void, given output_length: usize
    ) -> c_int;
    Makes "C" umem_reg = devx(
        given context: *mut ibv_context, given addr: *mut c_void, given size: usize,
        given access: u32
    ) -> *mut Memory;
    Makes "C" umem_reg_ex = devx(
        given context: *mut ibv_context, at input: *mut MemoryIn
    ) -> *mut Memory;
    Destroys "C" umem_dereg = devx(given memory: *mut Memory) -> c_int;
    Makes "C" create_cmd_comp = channels(given context: *mut ibv_context) -> *mut Answers;
    Destroys "C" destroy_cmd_comp = channels(given channel: *mut Answers) -> ();
    Uses "C" obj_query_async = channels(
        given object: *mut Object, at input: *const c_void, given input_length: usize,
        given output_length: usize, given wr_id: u64, given channel: *mut Answers
    ) -> c_int;
    Uses "C" get_async_cmd_comp = channels(
        given channel: *mut Answers, at into: *mut c_void, given length: usize
    ) -> c_int;
    Makes "C" create_event_channel =
        channels(given context: *mut ibv_context, given flags: u32) -> *mut Events;
    Destroys "C" destroy_event_channel = channels(given channel: *mut Events) -> ();
    Uses "C" subscribe_devx_event = channels(
        given channel: *mut Events, given object: *mut Object, given bytes_of_types: u16,
        at types: *const u16, given cookie: u64
    ) -> c_int;
    Uses "C" subscribe_devx_event_fd = channels(
        given channel: *mut Events, given fd: c_int, given object: *mut Object, given number: u16
    ) -> c_int;
    Uses "C" get_event = channels(
        given channel: *mut Events, at into: *mut c_void, given length: usize
    ) -> isize as Count;
}
