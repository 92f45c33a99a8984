//! Counter sets, which count what flow rules match: none can be attached, so reading one is EINVAL, as for a set without
//! a rule. Kernel: uverbs_std_types_counters.c.
#![forbid(unsafe_code)]

use nix::errno::Errno;
use uverbs_uapi::objects::counters::{create, destroy, read};

use super::call::Call;
use super::object::{Kind, Object};
use super::spec::Attribute;

/// A counter set.
#[derive(Debug)]
pub(crate) struct Counters;

pub(crate) const CREATE: &[Attribute] = &[Attribute::new_handle(create::HANDLE, Kind::Counters)];

pub(crate) const DESTROY: &[Attribute] = &[Attribute::destroy(destroy::HANDLE, Kind::Counters)];

pub(crate) const READ: &[Attribute] = &[
    Attribute::handle(read::HANDLE, Kind::Counters),
    Attribute::output_min(read::BUFF, 0),
    Attribute::flags(read::FLAGS),
];

/// `UVERBS_METHOD_COUNTERS_CREATE`.
pub(crate) fn create(call: &mut Call<'_>) -> Result<(), Errno> {
    call.commit(Object::Counters(Counters)).map(drop)
}

/// `UVERBS_METHOD_COUNTERS_READ`.
pub(crate) fn read(_: &mut Call<'_>) -> Result<(), Errno> {
    Err(Errno::EINVAL)
}
