//! Advice about on-demand regions: prefetching pages before the device accesses them.
//! Kernel: `UVERBS_METHOD_ADVISE_MR`, `mlx5_ib_advise_mr_prefetch` (hw/mlx5/odp.c).
#![forbid(unsafe_code)]

use nix::errno::Errno;
use uverbs_uapi::enums::AdviseMrAdvice as Advice;
use uverbs_uapi::flags::{AccessFlags, AdviseMrFlags};
use uverbs_uapi::objects::mr::advise;
use uverbs_uapi::write::mr::Sge;
use zerocopy::FromBytes;

use super::memory_region::{Mr, is_writable};
use super::object::{Kind, Object};
use crate::chardev::abi::call::Call;
use crate::chardev::abi::spec::Attribute;
use crate::chardev::abi::user_memory::PAGE_SIZE;

pub(crate) const ADVISE: &[Attribute] = &[
    Attribute::handle(advise::PD_HANDLE, Kind::Pd),
    Attribute::constant(advise::ADVICE),
    Attribute::flags(advise::FLAGS).required(),
    Attribute::input_min(advise::SGE_LIST, 16),
];

/// With this flag the pages are present when the call returns, and a failure is reported.
const FLUSH: u32 = AdviseMrFlags::FLUSH.bits();

/// `UVERBS_METHOD_ADVISE_MR`.
pub(crate) fn advise(call: &mut Call<'_>) -> Result<(), Errno> {
    let advice = Advice(call.constant(advise::ADVICE, u32::MAX.into())? as u32);
    let flags = call.flags(advise::FLAGS, FLUSH)?;
    let list = call.bytes(advise::SGE_LIST)?;
    if list.len() % size_of::<Sge>() != 0 {
        return Err(Errno::EINVAL);
    }
    if advice > Advice::PREFETCH_NO_FAULT {
        return Err(Errno::EOPNOTSUPP);
    }
    let pd = call.handle(advise::PD_HANDLE)?;
    for bytes in list.chunks_exact(size_of::<Sge>()) {
        let sge = Sge::read_from_bytes(bytes).map_err(|_| Errno::EINVAL)?;
        let (address, writable) = prefetchable(call, pd, advice, &sge)?;
        let fetched = prefetch(call, advice, address, sge.length, writable);
        // Without the flag the kernel prefetches later and reports no failure.
        if flags & FLUSH != 0 {
            fetched?;
        }
    }
    Ok(())
}

/// `get_prefetchable_mr`, and the range check of `pagefault_mr`: the range's address in the
/// process, and whether the region is writable.
fn prefetchable(call: &Call<'_>, pd: u32, advice: Advice, sge: &Sge) -> Result<(u64, bool), Errno> {
    let mut regions = call.state.handles.iter().filter_map(|(_, entry)| match &entry.object {
        Object::Mr(mr) if !entry.gone && mr.mkey.0 == sge.lkey => Some(mr),
        _ => None,
    });
    let on_demand = |mr: &&Mr| mr.access.contains(AccessFlags::ON_DEMAND);
    let mr = regions.next().filter(on_demand).ok_or(Errno::ENOENT)?;
    if mr.pd != pd || advice == Advice::PREFETCH_WRITE && !is_writable(mr.access) {
        return Err(Errno::EPERM);
    }
    let end = sge.addr.checked_add(sge.length.into()).ok_or(Errno::EFAULT)?;
    let inside = sge.addr >= mr.iova && end - mr.iova <= mr.length;
    let address = mr.start + sge.addr.saturating_sub(mr.iova);
    if inside { Ok((address, is_writable(mr.access))) } else { Err(Errno::EFAULT) }
}

/// Brings the pages in, for writing only if that is the advice. "No fault" maps only pages that are
/// present, so there is nothing to do.
fn prefetch(
    call: &Call<'_>,
    advice: Advice,
    address: u64,
    length: u32,
    writable: bool,
) -> Result<(), Errno> {
    if advice == Advice::PREFETCH_NO_FAULT || length == 0 {
        return Ok(());
    }
    if address < PAGE_SIZE {
        return Err(Errno::EFAULT);
    }
    call.user.pin(address, length.into(), writable && advice != Advice::PREFETCH)
}
