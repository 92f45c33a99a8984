//! UAR objects: pages of doorbell registers that a program allocates one by one.
//! Kernel: `MLX5_IB_METHOD_UAR_OBJ_ALLOC` (hw/mlx5/main.c).
#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex};

use nix::errno::Errno;
use uverbs_uapi::mlx5::object::uar::{alloc, destroy};
use uverbs_uapi::mlx5::{MmapCommand, UarAllocType};

use super::object::{Kind, Object};
use crate::chardev::abi::call::Call;
use crate::chardev::abi::spec::Attribute;
use crate::chardev::abi::user_memory::PAGE_SIZE;
use crate::chardev::device::DeviceShared;
use crate::chardev::device::context::{Mapped, Mapping};
use crate::locking::lock;
use crate::runtime::{UarPage, UarRegion};

/// First mmap command of mappings of objects (`mlx5_rdma_user_mmap_entry_insert`).
const FIRST_COMMAND: u32 = 9;

/// The device's UAR pages, and which are in use.
#[derive(Debug)]
pub(crate) struct UarPages {
    region: Arc<UarRegion>,
    used: Mutex<Used>,
}

/// Which pages are in use.
#[derive(Debug)]
struct Used {
    pages: Vec<bool>,
    /// All pages before this one are in use.
    first_free: usize,
}

impl UarPages {
    /// A BAR of 32 MiB has this many pages.
    const COUNT: usize = 8192;

    pub(crate) fn new() -> std::io::Result<Self> {
        // Page 0 is never allocated, because index 0 could be mistaken for "none".
        let used = Used { pages: vec![true], first_free: 1 };
        Ok(Self { region: Arc::new(UarRegion::new(Self::COUNT)?), used: Mutex::new(used) })
    }

    /// Takes a page.
    pub(crate) fn allocate(&self) -> Result<u32, Errno> {
        let mut used = lock(&self.used);
        let Used { pages, first_free } = &mut *used;
        let later = pages[*first_free..].iter().position(|used| !used);
        *first_free = later.map_or(pages.len(), |later| *first_free + later);
        if *first_free >= Self::COUNT {
            return Err(Errno::ENOMEM);
        }
        if *first_free == pages.len() {
            pages.push(true);
        }
        pages[*first_free] = true;
        *first_free += 1;
        Ok(*first_free as u32 - 1)
    }

    /// Frees a page. The program's mapping stays and then shows the page of the next owner.
    /// Doorbells rung through the old mapping only make the device check queues that have no work.
    pub(crate) fn free(&self, index: u32) {
        let mut used = lock(&self.used);
        if let Some(slot) = used.pages.get_mut(index as usize) {
            *slot = false;
            used.first_free = used.first_free.min(index as usize);
        }
    }

    /// A page for the doorbells of queues; EINVAL if it is not allocated.
    pub(crate) fn page(&self, index: u32) -> Result<UarPage, Errno> {
        let used = lock(&self.used);
        let is_used = index != 0 && used.pages.get(index as usize).copied().unwrap_or(false);
        let page = UarPage::new(self.region.clone(), index as usize);
        page.filter(|_| is_used).ok_or(Errno::EINVAL)
    }

    /// The memory of all pages.
    pub(crate) fn region(&self) -> &UarRegion {
        &self.region
    }
}

/// A UAR.
#[derive(Debug)]
pub(crate) struct Uar {
    index: u32,
}

impl Uar {
    pub(crate) fn destroy(&self, device: &DeviceShared) -> Result<(), Errno> {
        device.uars.free(self.index);
        Ok(())
    }
}

pub(crate) const ALLOC: &[Attribute] = &[
    Attribute::new_handle(alloc::HANDLE, Kind::Uar),
    Attribute::constant(alloc::TYPE),
    Attribute::output(alloc::MMAP_OFFSET, 8),
    Attribute::output(alloc::MMAP_LENGTH, 4),
    Attribute::output(alloc::PAGE_ID, 4),
];

pub(crate) const DESTROY: &[Attribute] = &[Attribute::destroy(destroy::HANDLE, Kind::Uar)];

/// Allocates a page. BlueFlame and non-cached pages are the same here, because they differ only on
/// a PCI bus.
pub(crate) fn allocate(call: &mut Call<'_>) -> Result<(), Errno> {
    let kind = call.constant(alloc::TYPE, u32::MAX.into())? as u32;
    if kind != UarAllocType::BF.0 && kind != UarAllocType::NC.0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let offset = call.context()?.free_offset(FIRST_COMMAND, 1)?;
    let index = call.file.device.uars.allocate()?;
    call.commit(Object::Uar(Uar { index }))?;
    let mapping = Mapping { memory: Mapped::Uar, page: index.into(), pages: 1 };
    call.context_mut()?.mappings.insert(offset, mapping);
    call.output(alloc::MMAP_OFFSET, &offset_of(offset))?;
    call.output(alloc::PAGE_ID, &index)?;
    call.output(alloc::MMAP_LENGTH, &(PAGE_SIZE as u32))
}

/// Removes a destroyed page's mmap offset; the program's mapping stays.
pub(crate) fn destroyed(call: &mut Call<'_>) -> Result<(), Errno> {
    let Object::Uar(uar) = call.destroyed()? else { return Err(Errno::EINVAL) };
    let page = u64::from(uar.index);
    if let Some(context) = call.state.context.as_mut() {
        context.mappings.retain(|_, mapping| (mapping.memory, mapping.page) != (Mapped::Uar, page));
    }
    Ok(())
}

/// mmap offset in bytes of the entry `command << 16 | index` (`mlx5_entry_to_mmap_offset`).
pub(crate) const fn offset_of(entry: u32) -> u64 {
    MmapCommand(entry >> 16).offset((entry & 0xffff) as u16, PAGE_SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_page_is_given() {
        let pages = UarPages::new().unwrap();
        assert_eq!([(); 4].map(|()| pages.allocate().unwrap()), [1, 2, 3, 4]);
        [3, 2].into_iter().for_each(|page| pages.free(page));
        assert_eq!([(); 3].map(|()| pages.allocate().unwrap()), [2, 3, 5]);
    }

    #[test]
    fn a_device_without_a_free_page_gives_none() {
        let pages = UarPages::new().unwrap();
        let given = std::iter::from_fn(|| pages.allocate().ok()).count();
        assert_eq!(given, UarPages::COUNT - 1);
        pages.free(4000);
        assert_eq!((pages.allocate(), pages.allocate()), (Ok(4000), Err(Errno::ENOMEM)));
    }
}
