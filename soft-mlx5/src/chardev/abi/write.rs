//! Write commands: the older form of the verbs, passed inside the ioctl method INVOKE_WRITE.
//! Kernel: `UVERBS_METHOD_INVOKE_WRITE` (core/uverbs_std_types_device.c), `uverbs_def_write_intf`
//! (core/uverbs_cmd.c).
#![forbid(unsafe_code)]

use nix::errno::Errno;
use uverbs_uapi::objects::device::invoke_write;
use uverbs_uapi::write::{self, WriteCmd, WriteCommand};

use super::call::Call;
use super::spec::Attribute;
use super::{query, query_device};
use crate::chardev::device::{context, events};
use crate::chardev::objects::{
    address_handle, cq, flow, indirection_table, memory_region, memory_window, protection_domain,
    qp, srq, work_queue, xrcd,
};

pub(crate) const INVOKE_WRITE: &[Attribute] = &[
    Attribute::constant(invoke_write::WRITE_CMD),
    Attribute::input_min(invoke_write::CORE_IN, 4).optional(),
    Attribute::output_min(invoke_write::CORE_OUT, 0).optional(),
    Attribute::driver_in(),
    Attribute::driver_out(),
];

type Run = fn(&mut Call<'_>) -> Result<(), Errno>;

/// One command: its smallest request and response in bytes, and its handler.
pub(crate) struct Command {
    command: WriteCmd,
    request: usize,
    response: usize,
    run: Run,
}

/// A command whose structs have one size.
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
    whole::<write::context::GetContext>(context::get_by_write),
    whole::<write::device::QueryDevice>(query_device::query),
    extended::<write::device::ExQueryDevice>(8, 184, query_device::query_extended),
    whole::<write::device::QueryPort>(query::port_by_write),
    whole::<write::pd::AllocPd>(protection_domain::alloc),
    whole::<write::pd::DeallocPd>(protection_domain::dealloc),
    whole::<write::ah::CreateAh>(address_handle::create),
    whole::<write::ah::DestroyAh>(address_handle::destroy),
    whole::<write::mr::RegMr>(memory_region::register),
    whole::<write::mr::ReregMr>(memory_region::reregister),
    whole::<write::mr::DeregMr>(memory_region::deregister),
    whole::<write::mw::AllocMw>(memory_window::alloc),
    whole::<write::mw::DeallocMw>(memory_window::dealloc),
    whole::<write::comp_channel::CreateCompChannel>(events::create_comp_channel),
    whole::<write::cq::CreateCq>(cq::create::create_by_write),
    extended::<write::cq::ExCreateCq>(32, 16, cq::create::create_extended),
    whole::<write::cq::ResizeCq>(cq::resize),
    whole::<write::cq::DestroyCq>(cq::destroy_by_write),
    whole::<write::cq::ExModifyCq>(cq::modify),
    whole::<write::qp::CreateQp>(qp::create::create_by_write),
    extended::<write::qp::ExCreateQp>(52, 40, qp::create::create_extended),
    whole::<write::qp::OpenQp>(qp::open),
    whole::<write::qp::QueryQp>(qp::query::query),
    whole::<write::qp::ModifyQp>(qp::modify::modify),
    extended::<write::qp::ExModifyQp>(112, 8, qp::modify::modify_extended),
    whole::<write::qp::DestroyQp>(qp::destroy_by_write),
    whole::<write::qp::AttachMcast>(qp::multicast::attach),
    whole::<write::qp::DetachMcast>(qp::multicast::detach),
    whole::<write::srq::CreateSrq>(srq::create_by_write),
    whole::<write::srq::CreateXsrq>(srq::create_extended),
    whole::<write::srq::ModifySrq>(srq::modify),
    whole::<write::srq::QuerySrq>(srq::query),
    whole::<write::srq::DestroySrq>(srq::destroy_by_write),
    whole::<write::xrcd::OpenXrcd>(xrcd::open),
    whole::<write::xrcd::CloseXrcd>(xrcd::close),
    extended::<write::flow::CreateFlow>(24, 8, flow::create),
    whole::<write::flow::DestroyFlow>(flow::destroy_by_write),
    extended::<write::wq::ExCreateWq>(32, 24, work_queue::create_by_write),
    extended::<write::wq::ExModifyWq>(16, 0, work_queue::modify),
    whole::<write::wq::ExDestroyWq>(work_queue::destroy_by_write),
    Command {
        command: WriteCmd::EX_CREATE_RWQ_IND_TBL,
        request: 8,
        response: 16,
        run: indirection_table::create,
    },
    whole::<write::wq::ExDestroyRwqIndTable>(indirection_table::destroy_by_write),
];

/// Bit of an extended command's number (`IB_USER_VERBS_CMD_FLAG_EXTENDED`).
pub(crate) const FLAG_EXTENDED: u32 = 1 << 31;
const NUMBER: u32 = 0xff;

/// The command with this number, if the kernel has it.
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
    call.file.device.faults().count_command(known.command)?;
    let core = call.core();
    if core.input_length() < known.request || core.output_length() < known.response {
        return Err(Errno::ENOSPC);
    }
    (known.run)(call)
}
