//! Doorbell registers for queues that a program's commands create.

use uverbs_mlx5::format::BLUEFLAME_OFFSET;
use uverbs_uapi::mlx5::enums::UarAllocType;

use super::Devx;
use crate::device::context::Context;
use crate::error::{Error, Result};
use crate::mlx5::uar::Page;

/// The mapping of a page of registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum UarKind {
    /// Write-combined: for doorbells and for copies of WQEs (BlueFlame).
    BlueFlame,
    /// Not cached: for doorbells of eight bytes.
    NonCached,
    /// The non-cached page of the context, which its completion queues also use.
    SharedNonCached,
}

/// A page of doorbell registers.
#[derive(Debug)]
pub struct DevxUar {
    page: Place,
}

#[derive(Debug)]
enum Place {
    Own(Page),
    Shared(Context),
}

impl Devx {
    /// Allocates a page.
    ///
    /// # Errors
    /// `Unsupported` for BlueFlame on a machine without write combining, and on kernels before 5.7,
    /// which assign pages only at open; other errors of the kernel.
    #[doc(alias = "mlx5dv_devx_alloc_uar")]
    pub fn alloc_uar(&self, kind: UarKind) -> Result<DevxUar> {
        const VERB: &str = "devx_alloc_uar";
        let inner = self.context.inner();
        if !inner.uars.is_dynamic() {
            let cause = "the kernel gives doorbell pages at open only";
            return Err(Error::unsupported(VERB, cause).cure_with("use Linux 5.7 or later"));
        }
        let page = match kind {
            UarKind::BlueFlame => Place::Own(Page::allocate(&inner.commands, UarAllocType::BF)?),
            UarKind::NonCached => Place::Own(Page::allocate(&inner.commands, UarAllocType::NC)?),
            UarKind::SharedNonCached => Place::Shared(self.context.clone()),
        };
        Ok(DevxUar { page })
    }
}

impl DevxUar {
    fn page(&self) -> &Page {
        match &self.page {
            Place::Own(page) => page,
            Place::Shared(context) => context.inner().uars.arming(),
        }
    }

    /// Address of the page.
    pub fn base(&self) -> *mut u8 {
        self.page().as_ptr()
    }

    /// Address of its first register.
    pub fn register(&self) -> *mut u8 {
        self.base().wrapping_add(BLUEFLAME_OFFSET)
    }

    /// The page's number in commands.
    pub fn id(&self) -> u32 {
        self.page().id()
    }

    /// Its offset for `mmap(2)` of the open device.
    pub fn mmap_offset(&self) -> u64 {
        self.page().offset()
    }
}
