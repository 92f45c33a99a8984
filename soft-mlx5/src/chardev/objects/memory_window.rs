//! Memory windows.
//! Kernel: `ib_uverbs_alloc_mw`, `mlx5_ib_alloc_mw` (hw/mlx5/mr.c).
#![forbid(unsafe_code)]

use nix::errno::Errno;
use uverbs_uapi::enums::MwType;
use uverbs_uapi::mlx5;
use uverbs_uapi::objects::mw::destroy;
use uverbs_uapi::write::mw::{AllocMw, AllocMwResp, DeallocMw};
use zerocopy::IntoBytes;

use super::object::{Kind, Object};
use crate::chardev::abi::call::Call;
use crate::chardev::abi::spec::Attribute;
use crate::chardev::device::DeviceShared;
use crate::core::{Mkey, MkeyParams};

/// A window.
#[derive(Debug)]
pub(crate) struct Mw {
    pub(crate) pd: u32,
    mkey: Mkey,
}

impl Mw {
    pub(crate) fn destroy(&self, device: &DeviceShared) -> Result<(), Errno> {
        device.core(|core| core.destroy_mkey(self.mkey))
    }
}

pub(crate) const DESTROY: &[Attribute] = &[Attribute::destroy(destroy::HANDLE, Kind::Mw)];

/// `IB_USER_VERBS_CMD_ALLOC_MW`.
pub(crate) fn alloc(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: AllocMw = call.request()?;
    let mw_handle = call.reserve()?;
    let pdn = call.pdn(request.pd_handle)?;
    if request.mw_type != MwType::TYPE_1 && request.mw_type != MwType::TYPE_2 {
        return Err(Errno::EINVAL);
    }
    check_driver_request(call)?;
    let params = MkeyParams::window(pdn, request.mw_type == MwType::TYPE_2);
    let mkey = call.file.device.create_key(params)?;
    call.commit(Object::Mw(Mw { pd: request.pd_handle, mkey }))?;
    // `comp_mask` and `response_length`: the driver truncates them to the program's buffer, and the
    // length is that of the truncated response.
    let driver = call.driver();
    let length = driver.output_length().min(8) as u32;
    driver.write_fitting([0, length].as_bytes())?;
    call.response(&AllocMwResp { mw_handle, rkey: mkey.0 })
}

fn check_driver_request(call: &Call<'_>) -> Result<(), Errno> {
    let request: mlx5::AllocMw = call.driver().read_known(0, Errno::EOPNOTSUPP)?;
    if request.comp_mask != 0 || request.reserved1 != 0 || request.reserved2 != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(())
}

/// `IB_USER_VERBS_CMD_DEALLOC_MW`.
pub(crate) fn dealloc(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: DeallocMw = call.request()?;
    call.destroy(Kind::Mw, request.mw_handle)
}
