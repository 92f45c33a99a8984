//! Memory regions: register, re-register, query, dma-buf.
//! Kernel: `ib_uverbs_reg_mr`, `ib_uverbs_rereg_mr`, uverbs_std_types_mr.c, `ib_umem_get`,
//! hw/mlx5/mr.c.
#![forbid(unsafe_code)]

use nix::errno::Errno;
use uverbs_uapi::flags::{AccessFlags, ReregMrFlags as Change};
use uverbs_uapi::objects::mr::{destroy, query, reg_dmabuf};
use uverbs_uapi::write::mr::{DeregMr, RegMr, RegMrResp, ReregMr, ReregMrResp};

use super::object::{Kind, Object};
use crate::chardev::abi::call::Call;
use crate::chardev::abi::spec::Attribute;
use crate::chardev::abi::user_memory::PAGE_SIZE;
use crate::chardev::device::DeviceShared;
use crate::chardev::device::shared_pages::{ForeignPages, Memfds};
use crate::core::{Access, Mkey, MkeyParams, Pdn};
use crate::memory::PageMap;

/// A memory region.
#[derive(Debug)]
pub(crate) struct Mr {
    pub(crate) pd: u32,
    /// Handle of its on-device memory, if any.
    pub(crate) dm: Option<u32>,
    pub(crate) mkey: Mkey,
    pub(crate) iova: u64,
    pub(crate) length: u64,
    pub(crate) access: AccessFlags,
    /// Address of the bytes in this process.
    pub(crate) start: u64,
    /// The pages of a dma-buf, mapped as long as the region exists.
    pub(crate) foreign: Option<ForeignPages>,
}

impl Mr {
    /// EBUSY while windows are bound to it (ibv_dereg_mr(3)). It is unconfirmed that mlx5's
    /// firmware refuses this; mlx4's does (`CMD_STAT_REG_BOUND` of
    /// net/ethernet/mellanox/mlx4/cmd.c).
    pub(crate) fn destroy(&self, device: &DeviceShared) -> Result<(), Errno> {
        device.core(|core| core.destroy_region(self.mkey))
    }

    fn is_on_demand(&self) -> bool {
        self.access.contains(AccessFlags::ON_DEMAND)
    }

    fn pinned(&self) -> u64 {
        if self.dm.is_some() || self.foreign.is_some() || self.is_on_demand() {
            0
        } else {
            pages_of(self.start, self.length)
        }
    }
}

const PAGE_MASK: u64 = PAGE_SIZE - 1;

/// `IB_ACCESS_SUPPORTED`.
pub(crate) const KNOWN_ACCESS: u32 = 0x3ff | AccessFlags::OPTIONAL_RANGE.bits();

pub(crate) const DESTROY: &[Attribute] = &[Attribute::destroy(destroy::HANDLE, Kind::Mr)];

pub(crate) const QUERY: &[Attribute] = &[
    Attribute::handle(query::HANDLE, Kind::Mr),
    Attribute::output(query::RESP_LKEY, 4),
    Attribute::output(query::RESP_RKEY, 4),
    Attribute::output(query::RESP_LENGTH, 8),
    Attribute::output(query::RESP_IOVA, 8).optional(),
];

pub(crate) const REG_DMABUF: &[Attribute] = &[
    Attribute::new_handle(reg_dmabuf::HANDLE, Kind::Mr),
    Attribute::handle(reg_dmabuf::PD_HANDLE, Kind::Pd),
    Attribute::input(reg_dmabuf::OFFSET, 8),
    Attribute::input(reg_dmabuf::LENGTH, 8),
    Attribute::input(reg_dmabuf::IOVA, 8),
    Attribute::input(reg_dmabuf::FD, 4),
    Attribute::flags(reg_dmabuf::ACCESS_FLAGS),
    Attribute::output(reg_dmabuf::RESP_LKEY, 4),
    Attribute::output(reg_dmabuf::RESP_RKEY, 4),
];

/// `IB_USER_VERBS_CMD_REG_MR`.
pub(crate) fn register(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: RegMr = call.request()?;
    if request.start & PAGE_MASK != request.hca_va & PAGE_MASK {
        return Err(Errno::EINVAL);
    }
    let mr_handle = call.reserve()?;
    check_access(request.access_flags)?;
    let pdn = call.pdn(request.pd_handle)?;
    let place = (request.start, request.length, request.hca_va);
    let params = user_region(pdn, place, request.access_flags)?;
    let pinned = pin(call, request.start, request.length, request.access_flags)?;
    let created = call.file.device.create_key(params);
    let mkey = created.inspect_err(|_| call.state.uncharge(pinned))?;
    call.commit(Object::Mr(Mr {
        pd: request.pd_handle,
        dm: None,
        mkey,
        iova: request.hca_va,
        length: request.length,
        access: request.access_flags,
        start: request.start,
        foreign: None,
    }))?;
    call.response(&RegMrResp { mr_handle, lkey: mkey.0, rkey: mkey.0 })
}

/// `ib_check_mr_access`.
pub(crate) fn check_access(access: AccessFlags) -> Result<(), Errno> {
    let remote_write = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    if access.intersects(remote_write) && !access.contains(AccessFlags::LOCAL_WRITE) {
        return Err(Errno::EINVAL);
    }
    if access.bits() & !KNOWN_ACCESS != 0 {
        return Err(Errno::EINVAL);
    }
    let missing = AccessFlags::FLUSH_GLOBAL | AccessFlags::FLUSH_PERSISTENT;
    if access.intersects(missing) { Err(Errno::EOPNOTSUPP) } else { Ok(()) }
}

/// `ib_access_writable`.
pub(crate) fn is_writable(access: AccessFlags) -> bool {
    access.intersects(
        AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_ATOMIC
            | AccessFlags::MW_BIND,
    )
}

/// The memory key of a region of the program's memory: start, length, and address in the key's
/// space.
fn user_region(
    pd: Pdn,
    (start, length, iova): (u64, u64, u64),
    access: AccessFlags,
) -> Result<MkeyParams, Errno> {
    let on_demand = access.contains(AccessFlags::ON_DEMAND);
    let whole_space = on_demand && is_implicit(start, length, iova)?;
    let region = region(pd, iova, length, access, PageMap::linear(start));
    Ok(MkeyParams { on_demand, whole_space, ..region })
}

/// Whether a region is over all of memory (`create_user_odp_mr`).
fn is_implicit(start: u64, length: u64, iova: u64) -> Result<bool, Errno> {
    let implicit = start == 0 && length == u64::MAX;
    if implicit && iova != 0 { Err(Errno::EINVAL) } else { Ok(implicit) }
}

/// Pins the pages of a region, and returns their size in bytes. Those of an on-demand region are
/// only checked.
fn pin(call: &mut Call<'_>, start: u64, length: u64, access: AccessFlags) -> Result<u64, Errno> {
    call.user.in_reach()?;
    if !access.contains(AccessFlags::ON_DEMAND) {
        pin_user(call, start, length, access)?;
        return Ok(pages_of(start, length));
    }
    // `ib_init_umem_odp` checks that the range, rounded to pages, does not wrap. It does not check
    // the range of an implicit region.
    let end = start.checked_add(length).and_then(|end| end.checked_add(PAGE_MASK));
    let fits = end.is_some() || is_implicit(start, length, 0)?;
    match (length, fits) {
        (0, _) => Err(Errno::EINVAL),
        (_, false) => Err(Errno::EOVERFLOW),
        _ => Ok(0),
    }
}

/// `ib_umem_get`: checks the range, charges it, and pins its pages.
fn pin_user(
    call: &mut Call<'_>,
    start: u64,
    length: u64,
    access: AccessFlags,
) -> Result<(), Errno> {
    let end = start.checked_add(length).and_then(|end| end.checked_add(PAGE_MASK));
    if length == 0 || end.is_none() {
        return Err(Errno::EINVAL);
    }
    let pages = pages_of(start, length);
    call.state.charge(&call.file.device, pages)?;
    call.user.pin(start, length, is_writable(access)).inspect_err(|_| call.state.uncharge(pages))
}

/// Bytes of the whole pages that a range touches.
pub(crate) fn pages_of(start: u64, length: u64) -> u64 {
    let end = start.saturating_add(length).saturating_add(PAGE_MASK) & !PAGE_MASK;
    end.saturating_sub(start & !PAGE_MASK)
}

/// The memory key of a region.
pub(crate) fn region(
    pd: Pdn,
    iova: u64,
    length: u64,
    access: AccessFlags,
    memory: PageMap,
) -> MkeyParams {
    let pairs = [
        (AccessFlags::LOCAL_WRITE, Access::LOCAL_WRITE),
        (AccessFlags::REMOTE_READ, Access::REMOTE_READ),
        (AccessFlags::REMOTE_WRITE, Access::REMOTE_WRITE),
        (AccessFlags::REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
        // Binding a window is a UMR operation on the region's key.
        (AccessFlags::MW_BIND, Access::UMR),
    ];
    let given = pairs.into_iter().filter(|(flag, _)| access.contains(*flag));
    let rights = given.fold(Access::empty(), |all, (_, right)| all | right);
    MkeyParams::region(pd, iova, length, rights, memory)
}

/// `IB_USER_VERBS_CMD_REREG_MR`. The key keeps its number, as on a device that can change keys in
/// place.
pub(crate) fn reregister(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: ReregMr = call.request()?;
    let flags = request.flags;
    if flags.is_empty() {
        return Err(Errno::EINVAL);
    }
    if !Change::all().contains(flags) {
        return Err(Errno::EOPNOTSUPP);
    }
    if flags.contains(Change::CHANGE_TRANSLATION)
        && request.start & PAGE_MASK != request.hca_va & PAGE_MASK
    {
        return Err(Errno::EINVAL);
    }
    let before = call.object(Kind::Mr, request.mr_handle)?.mr()?;
    if before.dm.is_some() {
        return Err(Errno::EINVAL);
    }
    let mut access = before.access;
    if flags.contains(Change::CHANGE_ACCESS) {
        access = request.access_flags;
        check_access(access)?;
    }
    let pd = if flags.contains(Change::CHANGE_PD) { request.pd_handle } else { before.pd };
    let place = if flags.contains(Change::CHANGE_TRANSLATION) {
        (request.start, request.length, request.hca_va)
    } else {
        (before.start, before.length, before.iova)
    };
    let mkey = before.mkey;
    apply_changes(call, request.mr_handle, pd, access, place, flags)?;
    call.response(&ReregMrResp { lkey: mkey.0, rkey: mkey.0 })
}

/// Changes key and region to these values. Pins the pages again if `flags` require it.
fn apply_changes(
    call: &mut Call<'_>,
    handle: u32,
    pd: u32,
    access: AccessFlags,
    (start, length, iova): (u64, u64, u64),
    flags: Change,
) -> Result<(), Errno> {
    let pdn = call.pdn(pd)?;
    let new_pages = flags.contains(Change::CHANGE_TRANSLATION);
    let (mkey, old_pd, old_pinned, was_on_demand) = {
        let mr = call.any_object(handle)?.mr()?;
        (mr.mkey, mr.pd, mr.pinned(), mr.is_on_demand())
    };
    let on_demand = access.contains(AccessFlags::ON_DEMAND);
    let params =
        MkeyParams { variant: mkey.0 as u8, ..user_region(pdn, (start, length, iova), access)? };
    let pinned = match new_pages {
        true => pin(call, start, length, access)?,
        // A pinned region cannot become an on-demand one, nor the reverse.
        false if on_demand != was_on_demand => return Err(Errno::EOPNOTSUPP),
        false if on_demand => 0,
        false => call.user.pin(start, length, is_writable(access)).map(|()| 0)?,
    };
    let modified = call.file.device.core(|core| core.modify_mkey(mkey, params));
    modified.inspect_err(|_| call.state.uncharge(pinned))?;
    if new_pages {
        call.state.uncharge(old_pinned);
    }
    call.state.handles.get_mut(old_pd)?.users -= 1;
    call.state.handles.get_mut(pd)?.users += 1;
    let mr = call.state.handles.get_mut(handle)?.object.mr_mut()?;
    (mr.pd, mr.access, mr.start, mr.length, mr.iova) = (pd, access, start, length, iova);
    if new_pages {
        mr.foreign = None;
    }
    Ok(())
}

/// `IB_USER_VERBS_CMD_DEREG_MR`.
pub(crate) fn deregister(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: DeregMr = call.request()?;
    call.destroy(Kind::Mr, request.mr_handle)?;
    destroyed(call)
}

/// `UVERBS_METHOD_MR_DESTROY`.
pub(crate) fn destroyed(call: &mut Call<'_>) -> Result<(), Errno> {
    let pinned = call.destroyed()?.mr()?.pinned();
    call.state.uncharge(pinned);
    Ok(())
}

/// `UVERBS_METHOD_QUERY_MR`.
pub(crate) fn query(call: &mut Call<'_>) -> Result<(), Errno> {
    let mr = call.any_object(call.handle(query::HANDLE)?)?.mr()?;
    let (key, length, iova) = (mr.mkey.0, mr.length, mr.iova);
    call.output(query::RESP_LKEY, &key)?;
    call.output(query::RESP_RKEY, &key)?;
    call.output(query::RESP_LENGTH, &length)?;
    call.optional_output(query::RESP_IOVA, &iova)
}

/// `UVERBS_METHOD_REG_DMABUF_MR`.
pub(crate) fn register_dmabuf(call: &mut Call<'_>) -> Result<(), Errno> {
    // The descriptor number of another process would name another file in this process.
    call.user.in_reach()?;
    let offset: u64 = call.input(reg_dmabuf::OFFSET)?;
    let length: u64 = call.input(reg_dmabuf::LENGTH)?;
    let iova: u64 = call.input(reg_dmabuf::IOVA)?;
    if offset & PAGE_MASK != iova & PAGE_MASK {
        return Err(Errno::EINVAL);
    }
    let fd: u32 = call.input(reg_dmabuf::FD)?;
    let allowed = AccessFlags::LOCAL_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_ATOMIC
        | AccessFlags::RELAXED_ORDERING;
    let access =
        AccessFlags::from_bits_retain(call.flags(reg_dmabuf::ACCESS_FLAGS, allowed.bits())?);
    check_access(access)?;
    let pd = call.handle(reg_dmabuf::PD_HANDLE)?;
    let pdn = call.pdn(pd)?;
    let memfds = match call.file.device.options().memfds_as_dma_bufs {
        true => Memfds::Allowed,
        false => Memfds::Refused,
    };
    let foreign = ForeignPages::map(fd as i32, offset, length, is_writable(access), memfds)?;
    let start = foreign.address();
    let params = region(pdn, iova, length, access, PageMap::linear(start));
    let mkey = call.file.device.create_key(params)?;
    call.commit(Object::Mr(Mr {
        pd,
        dm: None,
        mkey,
        iova,
        length,
        access,
        start,
        foreign: Some(foreign),
    }))?;
    call.output(reg_dmabuf::RESP_LKEY, &mkey.0)?;
    call.output(reg_dmabuf::RESP_RKEY, &mkey.0)
}
