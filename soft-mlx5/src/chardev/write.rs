//! Write commands: the verbs' first form, which travels inside the ioctl as INVOKE_WRITE.
//! Kernel: `UVERBS_METHOD_INVOKE_WRITE` (core/uverbs_std_types_device.c), `uverbs_def_write_intf` (core/uverbs_cmd.c).
#![forbid(unsafe_code)]

use nix::errno::Errno;
use uverbs_uapi::objects::device::invoke_write;
use uverbs_uapi::write::{
    WriteCmd, WriteCommand, ah, comp_channel, context, cq, device, flow, mr, mw, pd, qp, srq, wq,
    xrcd,
};

use super::call::Call;
use super::spec::Attribute;
use super::{
    address_handle, comp_channel as channel, context as contexts, cq as queue, cq_create,
    flow as rules, memory_region, memory_window, multicast, protection_domain, qp as pair,
    qp_create, qp_modify, qp_query, query, query_device, srq as shared, unsupported,
    xrcd as domain,
};

pub(crate) const INVOKE_WRITE: &[Attribute] = &[
    Attribute::constant(invoke_write::WRITE_CMD),
    Attribute::input_min(invoke_write::CORE_IN, 4).optional(),
    Attribute::output_min(invoke_write::CORE_OUT, 0).optional(),
    Attribute::driver_in(),
    Attribute::driver_out(),
];

type Run = fn(&mut Call<'_>) -> Result<(), Errno>;

/// One command: its smallest request and response, and what runs.
pub(crate) struct Command {
    command: WriteCmd,
    request: usize,
    response: usize,
    run: Run,
}

/// A command whose structs are always whole.
const fn whole<R: WriteCommand>(run: Run) -> Command {
    Command {
        command: R::COMMAND,
        request: size_of::<R>(),
        response: size_of::<R::Response>(),
        run,
    }
}

/// An extended command, whose structs may end earlier.
const fn extended<R: WriteCommand>(request: usize, response: usize, run: Run) -> Command {
    Command { command: R::COMMAND, request, response, run }
}

const COMMANDS: &[Command] = &[
    whole::<context::GetContext>(contexts::get_by_write),
    whole::<device::QueryDevice>(query_device::query),
    extended::<device::ExQueryDevice>(8, 184, query_device::query_extended),
    whole::<device::QueryPort>(query::port_by_write),
    whole::<pd::AllocPd>(protection_domain::alloc),
    whole::<pd::DeallocPd>(protection_domain::dealloc),
    whole::<ah::CreateAh>(address_handle::create),
    whole::<ah::DestroyAh>(address_handle::destroy),
    whole::<mr::RegMr>(memory_region::register),
    whole::<mr::ReregMr>(memory_region::reregister),
    whole::<mr::DeregMr>(memory_region::deregister),
    whole::<mw::AllocMw>(memory_window::alloc),
    whole::<mw::DeallocMw>(memory_window::dealloc),
    whole::<comp_channel::CreateCompChannel>(channel::create),
    whole::<cq::CreateCq>(cq_create::create_by_write),
    extended::<cq::ExCreateCq>(32, 16, cq_create::create_extended),
    whole::<cq::ResizeCq>(queue::resize),
    whole::<cq::DestroyCq>(queue::destroy_by_write),
    whole::<cq::ExModifyCq>(queue::modify),
    whole::<qp::CreateQp>(qp_create::create_by_write),
    extended::<qp::ExCreateQp>(52, 40, qp_create::create_extended),
    whole::<qp::OpenQp>(pair::open),
    whole::<qp::QueryQp>(qp_query::query),
    whole::<qp::ModifyQp>(qp_modify::modify),
    extended::<qp::ExModifyQp>(112, 8, qp_modify::modify_extended),
    whole::<qp::DestroyQp>(pair::destroy_by_write),
    whole::<qp::AttachMcast>(multicast::attach),
    whole::<qp::DetachMcast>(multicast::detach),
    whole::<srq::CreateSrq>(shared::create_by_write),
    whole::<srq::CreateXsrq>(shared::create_extended),
    whole::<srq::ModifySrq>(shared::modify),
    whole::<srq::QuerySrq>(shared::query),
    whole::<srq::DestroySrq>(shared::destroy_by_write),
    whole::<xrcd::OpenXrcd>(domain::open),
    whole::<xrcd::CloseXrcd>(domain::close),
    extended::<flow::CreateFlow>(24, 8, rules::create),
    whole::<flow::DestroyFlow>(rules::destroy_by_write),
    extended::<wq::ExCreateWq>(32, 24, unsupported::work_queues),
];

/// The kernel's commands by number; beyond the last of each form it does not even look at the sizes.
pub(crate) const FLAG_EXTENDED: u32 = 1 << 31;
const NUMBER: u32 = 0xff;

/// A command of this kernel, if it has it.
pub(crate) fn find(command: WriteCmd) -> Option<&'static Command> {
    COMMANDS.iter().find(|known| known.command == command)
}

/// `UVERBS_METHOD_INVOKE_WRITE`.
pub(crate) fn invoke(call: &mut Call<'_>) -> Result<(), Errno> {
    let command = call.constant(invoke_write::WRITE_CMD, u32::MAX.into())? as u32;
    if command & !(FLAG_EXTENDED | NUMBER) != 0 {
        return Err(Errno::EINVAL);
    }
    let known = find(WriteCmd(command)).ok_or(Errno::EOPNOTSUPP)?;
    let core = call.core();
    if core.input_length() < known.request || core.output_length() < known.response {
        return Err(Errno::ENOSPC);
    }
    (known.run)(call)
}
