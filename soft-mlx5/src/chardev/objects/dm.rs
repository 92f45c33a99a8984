//! On-device memory: allocation, mapping, and memory regions over it.
//! Kernel: uverbs_std_types_dm.c, `UVERBS_METHOD_DM_MR_REG`, hw/mlx5/dm.c.
#![forbid(unsafe_code)]

use std::sync::{Mutex, MutexGuard};

use nix::errno::Errno;
use uverbs_uapi::flags::AccessFlags;
use uverbs_uapi::mlx5::enums::DmType;
use uverbs_uapi::mlx5::object::dm::{alloc as driver_alloc, map_op_addr, query as driver_query};
use uverbs_uapi::objects::dm::{alloc, free};
use uverbs_uapi::objects::mr::reg_dm;

use super::memory_region::{Mr, check_access, region};
use super::object::{Kind, Object};
use crate::chardev::abi::call::Call;
use crate::chardev::abi::spec::Attribute;
use crate::chardev::abi::user_memory::PAGE_SIZE;
use crate::chardev::device::DeviceShared;
use crate::chardev::device::context::{Mapped, Mapping};
use crate::chardev::device::options::Options;
use crate::chardev::device::shared_pages::SharedPages;
use crate::locking::lock;
use crate::memory::PageMap;

/// mmap command of on-device memory.
const COMMAND: u32 = 8;
/// Granularity of lengths, in bytes.
const GRANULE: u64 = 64;
/// log2 of the smallest alignment, and how many powers of two the largest is above it.
const BASE_ALIGNMENT: u32 = 6;
const MAX_EXTRA_ALIGNMENT: u32 = 6;

/// An allocation of on-device memory. It consists of whole pages, so that contexts cannot see each
/// other's memory.
#[derive(Debug)]
pub(crate) struct Dm {
    /// Index in the mmap offset, after the command.
    index: u16,
    first_page: usize,
    pages: usize,
    length: u64,
}

/// The device's memory.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    pages: SharedPages,
    used: Mutex<Vec<bool>>,
}

impl DeviceMemory {
    pub(crate) fn new() -> Result<Self, Errno> {
        let count = (Options::DEVICE_MEMORY / PAGE_SIZE) as usize;
        Ok(Self {
            pages: SharedPages::new(c"mlx5-memic", count)?,
            used: Mutex::new(vec![false; count]),
        })
    }

    pub(crate) fn pages(&self) -> &SharedPages {
        &self.pages
    }

    fn used(&self) -> MutexGuard<'_, Vec<bool>> {
        lock(&self.used)
    }

    fn allocate(&self, count: usize) -> Result<usize, Errno> {
        let mut used = self.used();
        let free = used.windows(count).position(|window| window.iter().all(|used| !used));
        let first = free.ok_or(Errno::ENOMEM)?;
        used[first..first + count].fill(true);
        (first..first + count).for_each(|page| self.pages.clear(page));
        Ok(first)
    }
}

impl Dm {
    pub(crate) fn destroy(&self, device: &DeviceShared) -> Result<(), Errno> {
        device.device_memory.used()[self.first_page..self.first_page + self.pages].fill(false);
        Ok(())
    }
}

pub(crate) const ALLOC: &[Attribute] = &[
    Attribute::new_handle(alloc::HANDLE, Kind::Dm),
    Attribute::input(alloc::LENGTH, 8),
    Attribute::input(alloc::ALIGNMENT, 4),
    Attribute::output(driver_alloc::RESP_START_OFFSET, 8),
    Attribute::output(driver_alloc::RESP_PAGE_INDEX, 2).optional(),
    Attribute::constant(driver_alloc::REQ_TYPE).optional(),
];

pub(crate) const FREE: &[Attribute] = &[Attribute::destroy(free::HANDLE, Kind::Dm)];

pub(crate) const QUERY: &[Attribute] = &[
    Attribute::handle(driver_query::REQ_HANDLE, Kind::Dm),
    Attribute::output(driver_query::RESP_START_OFFSET, 8),
    Attribute::output(driver_query::RESP_PAGE_INDEX, 2),
    Attribute::output(driver_query::RESP_LENGTH, 8),
];

pub(crate) const MAP_OPERATION: &[Attribute] = &[
    Attribute::handle(map_op_addr::REQ_HANDLE, Kind::Dm),
    Attribute::input(map_op_addr::REQ_OP, 1),
    Attribute::output(map_op_addr::RESP_START_OFFSET, 8),
    Attribute::output(map_op_addr::RESP_PAGE_INDEX, 2).optional(),
];

pub(crate) const REG: &[Attribute] = &[
    Attribute::new_handle(reg_dm::HANDLE, Kind::Mr),
    Attribute::input(reg_dm::OFFSET, 8),
    Attribute::input(reg_dm::LENGTH, 8),
    Attribute::handle(reg_dm::PD_HANDLE, Kind::Pd),
    Attribute::flags(reg_dm::ACCESS_FLAGS),
    Attribute::handle(reg_dm::DM_HANDLE, Kind::Dm),
    Attribute::output(reg_dm::RESP_LKEY, 4),
    Attribute::output(reg_dm::RESP_RKEY, 4),
];

/// `UVERBS_METHOD_DM_ALLOC`.
pub(crate) fn allocate(call: &mut Call<'_>) -> Result<(), Errno> {
    let length: u64 = call.input(alloc::LENGTH)?;
    let alignment: u32 = call.input(alloc::ALIGNMENT)?;
    let kind =
        call.constant(driver_alloc::REQ_TYPE, u32::MAX.into()).or_else(|error| match error {
            Errno::ENOENT => Ok(DmType::MEMIC.0.into()),
            other => Err(other),
        })?;
    if kind != u64::from(DmType::MEMIC.0) {
        // Memory for software steering (which needs CAP_SYS_RAWIO and CAP_NET_RAW) is not modelled.
        return Err(Errno::EOPNOTSUPP);
    }
    let rounded = length.checked_next_multiple_of(GRANULE).ok_or(Errno::EINVAL)?;
    if length == 0 || alignment.saturating_sub(BASE_ALIGNMENT) > MAX_EXTRA_ALIGNMENT {
        return Err(Errno::EINVAL);
    }
    if rounded > Options::DEVICE_MEMORY {
        return Err(Errno::ENOMEM);
    }
    let pages = rounded.div_ceil(PAGE_SIZE) as usize;
    let offset = call.context()?.free_offset(COMMAND, pages as u64)?;
    let index = (offset & 0xffff) as u16;
    let first_page = call.file.device.device_memory.allocate(pages)?;
    call.commit(Object::Dm(Dm { index, first_page, pages, length }))?;
    let mapping =
        Mapping { memory: Mapped::DeviceMemory, page: first_page as u64, pages: pages as u64 };
    call.context_mut()?.mappings.insert(offset, mapping);
    call.optional_output(driver_alloc::RESP_PAGE_INDEX, &index)?;
    // The allocation starts at the start of its page.
    call.output(driver_alloc::RESP_START_OFFSET, &0u64)
}

/// `UVERBS_METHOD_DM_FREE`.
pub(crate) fn freed(call: &mut Call<'_>) -> Result<(), Errno> {
    let page = call.destroyed()?.dm()?.first_page as u64;
    if let Some(context) = call.state.context.as_mut() {
        context
            .mappings
            .retain(|_, mapping| (mapping.memory, mapping.page) != (Mapped::DeviceMemory, page));
    }
    Ok(())
}

/// `MLX5_IB_METHOD_DM_QUERY`.
pub(crate) fn query(call: &mut Call<'_>) -> Result<(), Errno> {
    let dm = call.any_object(call.handle(driver_query::REQ_HANDLE)?)?.dm()?;
    let (index, length) = (dm.index, dm.length);
    call.output(driver_query::RESP_PAGE_INDEX, &index)?;
    call.output(driver_query::RESP_START_OFFSET, &0u64)?;
    call.output(driver_query::RESP_LENGTH, &length)
}

/// `MLX5_IB_METHOD_DM_MAP_OP_ADDR`: this device's capabilities have no operations
/// (`memic_operations` is 0).
pub(crate) fn map_operation(_: &mut Call<'_>) -> Result<(), Errno> {
    Err(Errno::EOPNOTSUPP)
}

/// `UVERBS_METHOD_DM_MR_REG`.
pub(crate) fn register(call: &mut Call<'_>) -> Result<(), Errno> {
    let offset: u64 = call.input(reg_dm::OFFSET)?;
    let length: u64 = call.input(reg_dm::LENGTH)?;
    let access = AccessFlags::from_bits_retain(
        call.flags(reg_dm::ACCESS_FLAGS, super::memory_region::KNOWN_ACCESS)?,
    );
    if !access.contains(AccessFlags::ZERO_BASED) {
        return Err(Errno::EINVAL);
    }
    check_access(access)?;
    let (pd, dm) = (call.handle(reg_dm::PD_HANDLE)?, call.handle(reg_dm::DM_HANDLE)?);
    let memory = call.any_object(dm)?.dm()?;
    if offset.checked_add(length).is_none_or(|end| end > memory.length)
        || !allowed().contains(access)
    {
        return Err(Errno::EINVAL);
    }
    let start = call.file.device.device_memory.pages().address(memory.first_page) + offset;
    let pdn = call.pdn(pd)?;
    // Addresses of a zero-based region count from 0.
    let params = region(pdn, 0, length, access, PageMap::linear(start));
    let mkey = call.file.device.create_key(params)?;
    call.commit(Object::Mr(Mr {
        pd,
        dm: Some(dm),
        mkey,
        iova: 0,
        length,
        access,
        start,
        foreign: None,
    }))?;
    call.output(reg_dm::RESP_LKEY, &mkey.0)?;
    call.output(reg_dm::RESP_RKEY, &mkey.0)
}

/// Access flags that a region over on-device memory may have (`MLX5_IB_DM_MEMIC_ALLOWED_ACCESS`).
fn allowed() -> AccessFlags {
    AccessFlags::LOCAL_WRITE
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::REMOTE_ATOMIC
        | AccessFlags::ZERO_BASED
}
