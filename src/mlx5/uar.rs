//! Doorbell registers: which page of the device a queue rings.
//!
//! Every queue pair gets a BlueFlame register of its own unless the program shares one on purpose.
//! Kernels since 5.7 allocate UAR pages as objects; older ones hand out a fixed set at open, and
//! choose the register themselves, possibly one for several queues. On those, and where the machine
//! has no write combining, queues ring by 8-byte doorbells only, which need no lock, and never copy
//! WQEs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use uverbs_mlx5::format::{
    ALL_BLUEFLAME_REGISTERS_PER_UAR, BLUEFLAME_OFFSET, BLUEFLAME_REGISTERS_PER_UAR, CQ_ARM_OFFSET,
    UAR_SIZE,
};
use uverbs_uapi::mlx5::context::AllocUcontextResp;
use uverbs_uapi::mlx5::enums::{MmapCommand, UarAllocType};
use uverbs_uapi::mlx5::object::uar;

use crate::error::{Error, ErrorKind, Result};
use crate::host::buffer::page_size;
use crate::host::channel::Access;
use crate::host::command::Commands;
use crate::host::fork::{self, Lock};
use crate::host::system::Mapping;

const VERB: &str = "alloc_uar";
/// Registers of a UAR that queues may use, and all of them.
const USABLE: u32 = BLUEFLAME_REGISTERS_PER_UAR as u32;
const PER_UAR: u32 = ALL_BLUEFLAME_REGISTERS_PER_UAR as u32;

/// The doorbell pages of a context. They stay mapped as long as the context lives, so that a queue
/// may ring at any time, also after the device is gone.
#[derive(Debug)]
pub(crate) struct Uars {
    commands: Arc<Commands>,
    register_bytes: u32,
    arming: ArmPage,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Pages are objects.
    Dynamic(Lock<Vec<Page>>),
    /// Pages were fixed at open; the kernel chooses registers.
    Static { pages: Vec<Arc<Mapping>>, uars_per_page: u32, page_size: usize },
}

#[derive(Debug)]
struct Page {
    mapping: Arc<Mapping>,
    id: u32,
    /// Bytes per half of its registers, 0 where they take doorbells only.
    half: u32,
    free: Vec<u32>,
}

/// The page that completion queues are armed through, and its id where the kernel wants to know.
#[derive(Debug)]
struct ArmPage {
    mapping: Arc<Mapping>,
    id: Option<u32>,
}

/// A register that one queue (or one group of queues that share it) owns until this is dropped.
#[derive(Debug)]
pub(crate) struct Register {
    uars: Arc<Uars>,
    mapping: Arc<Mapping>,
    page_id: u32,
    index: u32,
    half: u32,
    is_claimed: AtomicBool,
}

impl Uars {
    pub(crate) fn new(commands: Arc<Commands>, limits: &AllocUcontextResp) -> Result<Self> {
        let page_size = page_size();
        check_registers(limits)?;
        if limits.tot_bfregs == 0 {
            let page = allocate(&commands, UarAllocType::NC)?;
            let arming = ArmPage { mapping: page.mapping, id: Some(page.id) };
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
        let first = pages.first().cloned().ok_or_else(no_page)?;
        let arming = ArmPage { mapping: first, id: None };
        let kind = Kind::Static { pages, uars_per_page, page_size };
        Ok(Self { commands, register_bytes: limits.bf_reg_size, arming, kind })
    }

    /// Whether the kernel takes the page that a queue rings as a parameter.
    pub(crate) fn is_dynamic(&self) -> bool {
        matches!(self.kind, Kind::Dynamic(_))
    }

    /// Address of the register that arms completion queues, a multiple of 8.
    pub(super) fn arm_address(&self) -> *mut u64 {
        self.arming.mapping.as_ptr().wrapping_add(CQ_ARM_OFFSET).cast()
    }

    /// Address of the page that completion queues are armed through.
    pub(crate) fn arm_page(&self) -> *mut u8 {
        self.arming.mapping.as_ptr()
    }

    /// The arm register's page, for the creation of completion queues.
    pub(crate) fn arm_page_id(&self) -> Option<u32> {
        self.arming.id
    }

    /// A register for one queue; `None` where the kernel chooses (see [`Uars::chosen`]).
    pub(crate) fn dedicated(self: &Arc<Self>) -> Result<Option<Register>> {
        let Kind::Dynamic(pages) = &self.kind else { return Ok(None) };
        let mut pages = pages.lock().ok_or_else(|| fork::forked(VERB))?;
        if pages.iter().all(|page| page.free.is_empty()) {
            pages.push(self.new_page()?);
        }
        let found = pages.iter_mut().rev().find_map(|page| Some((page.free.pop()?, &*page)));
        let (index, page) = found.ok_or_else(no_page)?;
        let (mapping, page_id, half) = (page.mapping.clone(), page.id, page.half);
        Ok(Some(self.register(mapping, page_id, index, half)))
    }

    /// A page of BlueFlame registers; of plain doorbells where the machine has no write combining
    /// (the kernel tests that once and refuses BlueFlame pages with EOPNOTSUPP: many virtual
    /// machines).
    fn new_page(&self) -> Result<Page> {
        match allocate(&self.commands, UarAllocType::BF) {
            Ok(page) => Ok(Page { half: self.register_bytes / 2, ..page }),
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                tracing::debug!("no write combining: queues ring by doorbells only");
                allocate(&self.commands, UarAllocType::NC)
            }
            Err(error) => Err(error),
        }
    }

    /// The register that an older kernel chose for a queue (`bfreg_index` of its answer).
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
        Ok(self.register(page.clone(), bfreg, index, 0))
    }

    fn register(
        self: &Arc<Self>,
        mapping: Arc<Mapping>,
        page_id: u32,
        index: u32,
        half: u32,
    ) -> Register {
        let (uars, is_claimed) = (self.clone(), AtomicBool::new(false));
        Register { uars, mapping, page_id, index, half, is_claimed }
    }

    fn give_back(&self, page_id: u32, index: u32) {
        let Kind::Dynamic(pages) = &self.kind else { return };
        let Some(mut pages) = pages.lock() else { return };
        if let Some(page) = pages.iter_mut().find(|page| page.id == page_id) {
            page.free.push(index);
        }
    }
}

impl Register {
    /// Id of the page, for the creation of the queue.
    pub(crate) fn page_id(&self) -> u32 {
        self.page_id
    }

    /// Address of the register, and bytes per half: 0 where it takes doorbells only.
    pub(crate) fn address(&self) -> (*mut u8, u32) {
        let offset = BLUEFLAME_OFFSET + self.index as usize * self.uars.register_bytes as usize;
        (self.mapping.as_ptr().wrapping_add(offset), self.half)
    }

    /// Address of the register and bytes per half, for [`Doorbell`](super::queues::Doorbell): once,
    /// if it has halves.
    pub(super) fn claim(&self) -> Option<(*mut u8, u32)> {
        if self.is_claimed.swap(true, Ordering::Relaxed) && self.half != 0 {
            return None;
        }
        Some(self.address())
    }
}

impl Drop for Register {
    fn drop(&mut self) {
        self.uars.give_back(self.page_id, self.index);
    }
}

/// Registers have to lie in their page, and to be aligned to their size: the provider relies on
/// both. 0 is said where there is no write combining.
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

fn allocate(commands: &Commands, kind: UarAllocType) -> Result<Page> {
    let (mut offset, mut length, mut id) = (0u64, 0u32, 0u32);
    let mut request = commands.request::<uar::alloc::Call>();
    request.new_handle(uar::alloc::HANDLE);
    request.constant(uar::alloc::TYPE, kind.0);
    request.output(uar::alloc::MMAP_OFFSET, &mut offset);
    request.output(uar::alloc::MMAP_LENGTH, &mut length);
    request.output(uar::alloc::PAGE_ID, &mut id);
    commands.send(VERB, &mut request)?;
    let handle = request.created(uar::alloc::HANDLE).unwrap_or_default();
    let mapping = map(commands, length, offset).inspect_err(|_| free(commands, handle))?;
    Ok(Page { mapping: Arc::new(mapping), id, half: 0, free: (0..USABLE).rev().collect() })
}

fn map(commands: &Commands, length: u32, offset: u64) -> Result<Mapping> {
    if (length as usize) < UAR_SIZE {
        return Err(no_page());
    }
    commands.mmap(VERB, length as usize, Access::Write, offset)
}

/// Frees a page that could not be used. A failure leaves it to the context's end, and the reason
/// why the page could not be used is the one to report.
fn free(commands: &Commands, handle: u32) {
    let mut request = commands.request::<uar::destroy::Call>();
    request.handle(uar::destroy::HANDLE, handle);
    if let Err(error) = commands.send("destroy_uar", &mut request) {
        tracing::warn!(%error, "a doorbell page stays until the device is closed");
    }
}

fn no_page() -> Error {
    Error::new(VERB, ErrorKind::Refused, "the device gave no usable doorbell page")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_lie_in_their_page_and_are_aligned() {
        let answer = |tot_bfregs, bf_reg_size| {
            check_registers(&AllocUcontextResp { tot_bfregs, bf_reg_size, ..Default::default() })
        };
        assert!([0, 16, 512, 1024].iter().all(|&size| answer(0, size).is_ok()));
        assert!([1, 8, 24, 2048, 1 << 31, u32::MAX].iter().all(|&size| answer(0, size).is_err()));
        assert!(answer(16, 512).is_ok() && answer(16, 1024).is_err());
    }
}
