//! Completion channels: event files that CQs report completions to. Kernel: `ib_uverbs_create_comp_channel`.
#![forbid(unsafe_code)]

use nix::errno::Errno;
use uverbs_uapi::objects::async_event::alloc;
use uverbs_uapi::write::comp_channel::{CreateCompChannel, CreateCompChannelResp};

use super::call::Call;
use super::object::Kind;
use super::spec::Attribute;

/// `IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL`.
pub(crate) fn create(call: &mut Call<'_>) -> Result<(), Errno> {
    let _: CreateCompChannel = call.request()?;
    let fd = call.new_event_file(Kind::CompChannel)? as u32;
    call.response(&CreateCompChannelResp { fd })
}

pub(crate) const ALLOC_ASYNC: &[Attribute] =
    &[Attribute::new_descriptor(alloc::HANDLE, Kind::AsyncEvent)];

/// `UVERBS_METHOD_ASYNC_EVENT_ALLOC`: the attribute has made the file already.
pub(crate) fn alloc_async(_: &mut Call<'_>) -> Result<(), Errno> {
    Ok(())
}
