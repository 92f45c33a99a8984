//! Doorbell registers, in the device's UAR pages (user access regions).
//!
//! Every queue pair gets its own BlueFlame register unless the program shares one in a thread
//! domain. Kernels since 5.7 allocate UAR pages as objects. Older kernels assign a fixed set at
//! open and choose the register themselves, possibly one for several queues. On those kernels, and
//! on machines without write combining, queues ring only 8-byte doorbells, which need no lock, and
//! never copy WQEs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use uverbs_mlx5::format::{
    ALL_BLUEFLAME_REGISTERS_PER_UAR, BLUEFLAME_OFFSET, BLUEFLAME_REGISTERS_PER_UAR, CQ_ARM_OFFSET,
    UAR_SIZE,
};
use uverbs_mlx5::mmio::{InChild, SharedBlueFlame};
use uverbs_uapi::mlx5::context::AllocUcontextResp;
use uverbs_uapi::mlx5::enums::{MmapCommand, UarAllocType};
use uverbs_uapi::mlx5::object::uar;

use crate::error::{Error, ErrorKind, Result};
use crate::host::buffer::page_size;
use crate::host::channel::Access;
use crate::host::command::Commands;
use crate::host::fork::{self, Lock};
use crate::host::system::{Inherited, Listed, Mapping};

const VERB: &str = "alloc_uar";
/// Registers per UAR that queues may use.
const USABLE: u32 = BLUEFLAME_REGISTERS_PER_UAR as u32;
/// All registers per UAR.
const PER_UAR: u32 = ALL_BLUEFLAME_REGISTERS_PER_UAR as u32;

/// The doorbell pages of a context. They stay mapped as long as the context lives, so that a queue
/// may ring at any time, even after the device was removed.
#[derive(Debug)]
pub(crate) struct Uars {
    commands: Arc<Commands>,
    register_bytes: u32,
    arming: ArmPage,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Pages are objects of the kernel. The list has the free registers.
    Dynamic(Lock<Vec<Location>>),
    /// Pages were assigned at open; the kernel chooses registers.
    Static { pages: Vec<Arc<Mapping>>, uars_per_page: u32, page_size: usize },
}

/// The location of a register.
#[derive(Debug, Clone)]
struct Location {
    mapping: Arc<Mapping>,
    page_id: u32,
    index: u32,
    /// Bytes per half; 0 if it takes only 8-byte doorbells.
    half: u32,
}

/// The page with the register that arms completion queues. Kernels with dynamic UARs need its id.
#[derive(Debug)]
struct ArmPage {
    page: Page,
    is_named: bool,
}

/// A page of doorbell registers. Dropping it frees the page, if `owner` is set.
#[derive(Debug)]
pub(crate) struct Page {
    mapping: Arc<Mapping>,
    id: u32,
    offset: u64,
    owner: Option<(Arc<Commands>, u32)>,
}

/// A register, owned by one queue or by a thread domain; dropping it frees the register.
#[derive(Debug)]
pub(crate) struct Register {
    uars: Arc<Uars>,
    location: Location,
    is_claimed: AtomicBool,
    /// For forked children: the lock of the queues that share the register.
    disowned: OnceLock<Listed<SharedBlueFlame>>,
}

impl Inherited for SharedBlueFlame {
    fn in_child(&self, child: InChild) {
        self.disown(child);
    }
}

impl Uars {
    pub(crate) fn new(commands: Arc<Commands>, limits: &AllocUcontextResp) -> Result<Self> {
        let page_size = page_size();
        check_registers(limits)?;
        if limits.tot_bfregs == 0 {
            let page = Page::allocate(&commands, UarAllocType::NC)?.until_close();
            let arming = ArmPage { page, is_named: true };
            let kind = Kind::Dynamic(Lock::default());
            return Ok(Self { commands, register_bytes: limits.bf_reg_size, arming, kind });
        }
        let uars_per_page = limits.num_uars_per_page.max(1);
        let count = limits.tot_bfregs.div_ceil(uars_per_page * USABLE);
        let pages = (0..count)
            .map(|index| {
                let offset = MmapCommand::REGULAR_PAGE.offset(index as u16, page_size as u64);
                commands.mmap(VERB, page_size, Access::Write, offset).map(Arc::new)
            })
            .collect::<Result<Vec<_>>>()?;
        let mapping = pages.first().cloned().ok_or_else(no_page)?;
        let page = Page { mapping, id: 0, offset: 0, owner: None };
        let arming = ArmPage { page, is_named: false };
        let kind = Kind::Static { pages, uars_per_page, page_size };
        Ok(Self { commands, register_bytes: limits.bf_reg_size, arming, kind })
    }

    /// Whether pages are objects of the kernel.
    pub(crate) fn is_dynamic(&self) -> bool {
        matches!(self.kind, Kind::Dynamic(_))
    }

    /// Whether the machine combines writes to registers, as BlueFlame needs. The kernel has tested
    /// it, and refuses BlueFlame pages if not.
    pub(crate) fn combines_writes(&self) -> Result<bool> {
        if !self.is_dynamic() {
            return Ok(self.register_bytes > 0);
        }
        match Page::allocate(&self.commands, UarAllocType::BF) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Address of the register that arms completion queues, a multiple of 8.
    pub(super) fn arm_address(&self) -> *mut u64 {
        self.arm_page().wrapping_add(CQ_ARM_OFFSET).cast()
    }

    /// Address of the page with the register that arms completion queues.
    pub(crate) fn arm_page(&self) -> *mut u8 {
        self.arming.page.as_ptr()
    }

    /// The arm register's page, for the creation of completion queues.
    pub(crate) fn arm_page_id(&self) -> Option<u32> {
        self.arming.is_named.then_some(self.arming.page.id)
    }

    /// The page with the register that arms completion queues.
    pub(crate) fn arming(&self) -> &Page {
        &self.arming.page
    }

    /// A register for one queue; `None` if the kernel chooses (see [`Uars::chosen`]).
    pub(crate) fn dedicated(self: &Arc<Self>) -> Result<Option<Register>> {
        let Kind::Dynamic(free) = &self.kind else { return Ok(None) };
        let mut free = free.lock().ok_or_else(|| fork::forked(VERB))?;
        if free.is_empty() {
            let page = self.new_page()?;
            free.extend((0..USABLE).rev().map(|index| Location { index, ..page.clone() }));
        }
        let location = free.pop().ok_or_else(no_page)?;
        Ok(Some(self.register(location)))
    }

    /// The first register of a new page: of BlueFlame registers, or of plain doorbells if the
    /// machine has no write combining, like many virtual machines. (The kernel tests this once, and
    /// then refuses BlueFlame pages with EOPNOTSUPP.)
    fn new_page(&self) -> Result<Location> {
        let (page, half) = match Page::allocate(&self.commands, UarAllocType::BF) {
            Ok(page) => (page, self.register_bytes / 2),
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                tracing::debug!("no write combining: queues ring by doorbells only");
                (Page::allocate(&self.commands, UarAllocType::NC)?, 0)
            }
            Err(error) => return Err(error),
        };
        let page = page.until_close();
        Ok(Location { mapping: page.mapping.clone(), page_id: page.id, index: 0, half })
    }

    /// The register that an older kernel chose for a queue (`bfreg_index` in the kernel's answer).
    pub(crate) fn chosen(self: &Arc<Self>, bfreg: u32) -> Result<Register> {
        let Kind::Static { pages, uars_per_page, page_size } = &self.kind else {
            return Err(no_page());
        };
        let uar = bfreg / PER_UAR;
        let page = pages.get((uar / uars_per_page) as usize).ok_or_else(no_page)?;
        let in_page = (uar % uars_per_page) as usize * UAR_SIZE;
        if in_page + UAR_SIZE > *page_size {
            return Err(no_page());
        }
        let index = bfreg % PER_UAR + (in_page as u32 / self.register_bytes.max(1));
        let mapping = page.clone();
        Ok(self.register(Location { mapping, page_id: bfreg, index, half: 0 }))
    }

    fn register(self: &Arc<Self>, location: Location) -> Register {
        let (is_claimed, disowned) = (AtomicBool::new(false), OnceLock::new());
        Register { uars: self.clone(), location, is_claimed, disowned }
    }

    fn give_back(&self, location: &Location) {
        let Kind::Dynamic(free) = &self.kind else { return };
        if let Some(mut free) = free.lock() {
            free.push(location.clone());
        }
    }
}

impl Register {
    /// Lets forked children free the lock of `shared`, which is this register.
    pub(crate) fn disown_in_children(&self, shared: &SharedBlueFlame) {
        self.disowned.get_or_init(|| Listed::new(Arc::new([shared.clone()])));
    }

    /// Id of the page, for the creation of the queue.
    pub(crate) fn page_id(&self) -> u32 {
        self.location.page_id
    }

    /// Address of the register, and bytes per half: 0 if it takes only 8-byte doorbells.
    pub(crate) fn address(&self) -> (*mut u8, u32) {
        let Location { mapping, index, half, .. } = &self.location;
        let offset = BLUEFLAME_OFFSET + *index as usize * self.uars.register_bytes as usize;
        (mapping.as_ptr().wrapping_add(offset), *half)
    }

    /// As [`address`](Self::address), for [`Doorbell`](super::queues::Doorbell). A register with
    /// halves is returned only once.
    pub(super) fn claim(&self) -> Option<(*mut u8, u32)> {
        if self.is_claimed.swap(true, Ordering::Relaxed) && self.location.half != 0 {
            return None;
        }
        Some(self.address())
    }
}

impl Drop for Register {
    fn drop(&mut self) {
        self.uars.give_back(&self.location);
    }
}

/// Checks that registers are inside their page and aligned to their size; the provider relies on
/// both. A size of 0 means that there is no write combining.
fn check_registers(limits: &AllocUcontextResp) -> Result<()> {
    let count = if limits.tot_bfregs == 0 { USABLE } else { PER_UAR };
    let most = (UAR_SIZE - BLUEFLAME_OFFSET) as u32 / count;
    match limits.bf_reg_size {
        0 => Ok(()),
        size if size.is_power_of_two() && (16..=most).contains(&size) => Ok(()),
        size => {
            let cause = format!("a doorbell page cannot hold registers of {size} bytes");
            Err(Error::new(VERB, ErrorKind::Refused, cause))
        }
    }
}

impl Page {
    /// Allocates a page.
    pub(crate) fn allocate(commands: &Arc<Commands>, kind: UarAllocType) -> Result<Self> {
        let (mut offset, mut length, mut id) = (0u64, 0u32, 0u32);
        let mut request = commands.request::<uar::alloc::Call>();
        request.constant(uar::alloc::TYPE, kind.0);
        request.output(uar::alloc::MMAP_OFFSET, &mut offset);
        request.output(uar::alloc::MMAP_LENGTH, &mut length);
        request.output(uar::alloc::PAGE_ID, &mut id);
        let handle = commands.create(VERB, request, uar::alloc::HANDLE)?;
        let mapping = map(commands, length, offset).inspect_err(|_| free(commands, handle))?;
        let owner = Some((commands.clone(), handle));
        Ok(Self { mapping: Arc::new(mapping), id, offset, owner })
    }

    /// Leaves the page to the kernel, which frees it when the context is closed.
    fn until_close(mut self) -> Self {
        self.owner = None;
        self
    }

    /// Address of the page.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    /// Its id in commands.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Its offset for `mmap(2)` of the open device.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if let Some((commands, handle)) = self.owner.take() {
            free(&commands, handle);
        }
    }
}

fn map(commands: &Commands, length: u32, offset: u64) -> Result<Mapping> {
    if (length as usize) < UAR_SIZE {
        return Err(no_page());
    }
    commands.mmap(VERB, length as usize, Access::Write, offset)
}

/// Frees a page. If that fails, the page stays until the context is closed.
fn free(commands: &Commands, handle: u32) {
    let freed = commands.destroy_handle("destroy_uar", uar::destroy::HANDLE, handle);
    if let Err(error) = freed {
        tracing::warn!(%error, "a doorbell page stays until the device is closed");
    }
}

fn no_page() -> Error {
    Error::new(VERB, ErrorKind::Refused, "the device gave no usable doorbell page")
}

#[cfg(test)]
mod tests;
