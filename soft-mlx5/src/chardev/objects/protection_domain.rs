//! Protection domains.
//! Kernel: `ib_uverbs_alloc_pd`, `mlx5_ib_alloc_pd`, `MLX5_IB_METHOD_PD_QUERY` (std_types.c).
#![forbid(unsafe_code)]

use nix::errno::Errno;
use uverbs_uapi::mlx5;
use uverbs_uapi::objects::pd::destroy;
use uverbs_uapi::write::pd::{AllocPd, AllocPdResp, DeallocPd};
use zerocopy::IntoBytes;

use super::object::{Kind, Object};
use crate::chardev::abi::call::Call;
use crate::chardev::abi::spec::Attribute;
use crate::chardev::device::DeviceShared;
use crate::core::Pdn;

use mlx5::object::pd::query as driver_query;

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Pd {
    pub(crate) pdn: Pdn,
}

impl Pd {
    pub(crate) fn destroy(&self, device: &DeviceShared) -> Result<(), Errno> {
        device.core(|core| core.destroy_pd(self.pdn))
    }
}

pub(crate) const DESTROY: &[Attribute] = &[Attribute::destroy(destroy::HANDLE, Kind::Pd)];

pub(crate) const QUERY: &[Attribute] = &[
    Attribute::handle(driver_query::HANDLE, Kind::Pd),
    Attribute::output(driver_query::RESP_PDN, 4),
];

/// `IB_USER_VERBS_CMD_ALLOC_PD`.
pub(crate) fn alloc(call: &mut Call<'_>) -> Result<(), Errno> {
    let _: AllocPd = call.request()?;
    let pd_handle = call.reserve()?;
    let pdn = call.file.device.core(|core| core.create_pd())?;
    call.commit(Object::Pd(Pd { pdn }))?;
    call.driver().write(mlx5::AllocPdResp { pdn: pdn.0 }.as_bytes())?;
    call.response(&AllocPdResp { pd_handle })
}

/// `IB_USER_VERBS_CMD_DEALLOC_PD`.
pub(crate) fn dealloc(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: DeallocPd = call.request()?;
    call.destroy(Kind::Pd, request.pd_handle)
}

/// `MLX5_IB_METHOD_PD_QUERY`.
pub(crate) fn query(call: &mut Call<'_>) -> Result<(), Errno> {
    let pdn = call.any_object(call.handle(driver_query::HANDLE)?)?.pd()?.pdn;
    call.output(driver_query::RESP_PDN, &pdn.0)
}
