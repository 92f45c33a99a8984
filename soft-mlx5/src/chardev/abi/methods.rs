//! The table of methods. Each row has the kernels with that method, its id, its attributes and its
//! handler.
#![forbid(unsafe_code)]

use nix::errno::Errno;
use uverbs_uapi::mlx5::object as driver;
use uverbs_uapi::objects as generic;
use uverbs_uapi::objects::{MethodId, ObjectId};

use super::call::Call;
use super::spec::{Attribute, Method, Since};
use super::{query, write};
use crate::chardev::device::options::Options;
use crate::chardev::device::{context, events};
use crate::chardev::objects::devx::channels;
use crate::chardev::objects::{
    address_handle, counters, cq, devx, dm, flow, indirection_table, matcher, memory_region,
    memory_window, pacing, prefetch, protection_domain, qp, srq, uar, work_queue, xrcd,
};

type Run = fn(&mut Call<'_>) -> Result<(), Errno>;

/// A row of the table; `$path` is the method's module in the ABI crate.
macro_rules! methods {
    ($($since:ident $space:ident :: $object:ident :: $method:ident => $attributes:expr, $run:expr;)*) => {
        &[$(Method {
            object: $space::$object::OBJECT,
            method: $space::$object::$method::METHOD,
            attributes: $attributes,
            run: $run as Run,
            since: Since::$since,
        },)*]
    };
}

const METHODS: &[Method] = methods! {
    Always generic::device::invoke_write => write::INVOKE_WRITE, write::invoke;
    Native generic::device::get_context => context::GET_CONTEXT, context::get;
    Native generic::device::query_context => context::QUERY_CONTEXT, context::query;
    Native generic::device::query_port => query::QUERY_PORT, query::port;
    Native generic::device::query_gid_table => query::QUERY_GID_TABLE, query::gid_table;
    Native generic::device::query_gid_entry => query::QUERY_GID_ENTRY, query::one_gid;
    Native generic::device::info_handles => query::INFO_HANDLES, query::handles;
    Native generic::async_event::alloc => events::ALLOC_ASYNC, events::alloc_async;
    Always generic::pd::destroy => protection_domain::DESTROY, nothing_left;
    Always driver::pd::query => protection_domain::QUERY, protection_domain::query;
    Always generic::mr::destroy => memory_region::DESTROY, memory_region::destroyed;
    Native generic::mr::query => memory_region::QUERY, memory_region::query;
    Native generic::mr::advise => prefetch::ADVISE, prefetch::advise;
    Native generic::mr::reg_dmabuf => memory_region::REG_DMABUF, memory_region::register_dmabuf;
    Always generic::mr::reg_dm => dm::REG, dm::register;
    Always generic::mw::destroy => memory_window::DESTROY, nothing_left;
    Always generic::dm::alloc => dm::ALLOC, dm::allocate;
    Always generic::dm::free => dm::FREE, dm::freed;
    Native driver::dm::query => dm::QUERY, dm::query;
    Native driver::dm::map_op_addr => dm::MAP_OPERATION, dm::map_operation;
    Native generic::cq::create => cq::create::CREATE, cq::create::create;
    Always generic::cq::destroy => cq::DESTROY, cq::destroyed;
    Native generic::qp::create => qp::create::CREATE, qp::create::create;
    Always generic::qp::destroy => qp::DESTROY, qp::destroyed;
    Native generic::srq::create => srq::CREATE, srq::create;
    Always generic::srq::destroy => srq::DESTROY, srq::destroyed;
    Native generic::wq::create => work_queue::CREATE, work_queue::create;
    Always generic::wq::destroy => work_queue::DESTROY, work_queue::destroyed;
    Always generic::rwq_ind_tbl::destroy => indirection_table::DESTROY, nothing_left;
    Always generic::flow::destroy => flow::DESTROY, nothing_left;
    Always driver::flow::create => matcher::CREATE_FLOW, matcher::create_flow;
    Always driver::flow::destroy => matcher::DESTROY_FLOW, nothing_left;
    Always driver::flow_matcher::create => matcher::CREATE, matcher::create;
    Always driver::flow_matcher::destroy => matcher::DESTROY, nothing_left;
    Always generic::ah::destroy => address_handle::DESTROY, nothing_left;
    Always generic::xrcd::destroy => xrcd::DESTROY, nothing_left;
    Always generic::counters::create => counters::CREATE, counters::create;
    Always generic::counters::destroy => counters::DESTROY, nothing_left;
    Always generic::counters::read => counters::READ, counters::read;
    DynamicUar driver::uar::alloc => uar::ALLOC, uar::allocate;
    DynamicUar driver::uar::destroy => uar::DESTROY, uar::destroyed;
    Devx driver::devx::other => devx::OTHER, devx::other;
    Devx driver::devx::query_eqn => devx::QUERY_EQN, devx::query_eqn;
    Devx driver::devx::query_uar => devx::QUERY_UAR, devx::query_uar;
    Devx driver::devx::subscribe_event => channels::SUBSCRIBE, channels::subscribe;
    Devx driver::devx_async_cmd_fd::alloc => channels::ALLOC_ANSWERS, nothing_left;
    Devx driver::devx_async_event_fd::alloc => channels::ALLOC_EVENTS, channels::alloc_events;
    Devx driver::devx_obj::create => devx::object::CREATE, devx::object::create;
    Devx driver::devx_obj::destroy => devx::object::DESTROY, nothing_left;
    Devx driver::devx_obj::modify => devx::object::MODIFY, devx::object::modify;
    Devx driver::devx_obj::query => devx::object::QUERY, devx::object::query;
    Devx driver::devx_obj::async_query => channels::QUERY, channels::query;
    Devx driver::devx_umem::reg => devx::umem::REG, devx::umem::register;
    Devx driver::devx_umem::dereg => devx::umem::DEREG, nothing_left;
    Pacing driver::pp::alloc => pacing::ALLOC, pacing::allocate;
    Pacing driver::pp::destroy => pacing::DESTROY, nothing_left;
};

/// A method of this kernel, if it has it.
pub(crate) fn find(
    object: ObjectId,
    method: MethodId,
    options: &Options,
) -> Option<&'static Method> {
    let known = METHODS.iter().find(|known| known.object == object && known.method == method)?;
    let has = match known.since {
        Since::Always => true,
        Since::Native => options.kernel.native_methods,
        Since::DynamicUar => options.kernel.dynamic_uar,
        Since::Devx => options.kernel.devx,
        Since::Pacing => options.kernel.devx && options.rates().is_some(),
    };
    has.then_some(known)
}

/// Handler of a method whose attributes do all the work, such as a destroy method without an answer
/// (`uverbs_destroy_def_handler`).
fn nothing_left(_: &mut Call<'_>) -> Result<(), Errno> {
    Ok(())
}

const _: () = {
    // The dispatcher searches the method's list for each attribute that is passed.
    let mut row = 0;
    while row < METHODS.len() {
        let attributes: &[Attribute] = METHODS[row].attributes;
        assert!(attributes.len() < 32);
        row += 1;
    }
};
