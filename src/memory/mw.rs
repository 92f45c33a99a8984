//! Memory windows: rights to a part of a memory region, granted and revoked without a system call.

use uverbs_mlx5::send_queue::{BindWindow, UnbindWindow};
pub use uverbs_mlx5::send_queue::{WindowAccess, WindowType};
use uverbs_uapi::enums::MwType;
use uverbs_uapi::objects::mw::destroy;
use uverbs_uapi::write::mw::AllocMw;

use super::pd::ProtectionDomain;
use super::{AccessFlags, MemoryRegion};
use crate::error::{DestroyError, Error, Result};
use crate::host::lifetime::{Kind, Object, object_kind};

/// A memory window.
///
/// It grants nothing until a request binds it: [`MemoryWindow::bind`] makes the operation for
/// [`QueuePair::post_send`](crate::raw::QueuePair::post_send). Each bind gives it a new key, which
/// is valid for peers after the request has completed, until it is invalidated.
///
/// ```no_run
/// # use uverbs::{MemoryRegion, ProtectionDomain, qp::PostFlags, qp_type::Rc, raw::QueuePair};
/// # fn grant(pd: &ProtectionDomain, region: &MemoryRegion, qp: &mut QueuePair<Rc>)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// use uverbs::mw::{WindowAccess, WindowType};
/// let mut window = pd.alloc_mw(WindowType::Type2)?;
/// let bind = window.bind(region, 0, 4096, WindowAccess::REMOTE_WRITE)?;
/// // SAFETY: the region outlives the window.
/// unsafe { qp.post_send(1, bind, (), PostFlags::SIGNALED)? };
/// println!("once it has completed, peers may use key {:#x}", window.rkey());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MemoryWindow {
    object: Object<ProtectionDomain>,
    rkey: u32,
    kind: WindowType,
}

const KIND: Kind = object_kind!("dealloc_mw", "memory window", destroy::HANDLE);

impl ProtectionDomain {
    /// Allocates a memory window.
    ///
    /// # Errors
    /// `Unsupported` if the device has none; errors of the kernel.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&self, kind: WindowType) -> Result<MemoryWindow> {
        let mw_type = match kind {
            WindowType::Type1 => MwType::TYPE_1,
            WindowType::Type2 => MwType::TYPE_2,
        };
        let command = AllocMw { pd_handle: self.kernel_handle(), mw_type, ..AllocMw::default() };
        let answer = self.context().commands().write("alloc_mw", &command)?;
        let object = Object::new(self.clone(), answer.mw_handle, &KIND);
        Ok(MemoryWindow { object, rkey: answer.rkey, kind })
    }
}

impl MemoryWindow {
    /// The key that the last bind gave it.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The kernel's handle.
    pub fn kernel_handle(&self) -> u32 {
        self.object.handle
    }

    /// Its type.
    pub fn kind(&self) -> WindowType {
        self.kind
    }

    /// The domain it belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.object.parent
    }

    /// The operation that binds it to `length` bytes of `region` at `offset`. [`Self::rkey`] then
    /// returns the new key.
    ///
    /// Post the operation before making the next one. The region has to outlive the binding.
    ///
    /// # Errors
    /// `InvalidInput` for a region of another domain or without `MW_BIND`, and for 0 bytes or bytes
    /// outside it.
    #[doc(alias = "ibv_inc_rkey")]
    #[doc(alias = "ibv_bind_mw")]
    pub fn bind(
        &mut self,
        region: &MemoryRegion,
        offset: usize,
        length: usize,
        access: WindowAccess,
    ) -> Result<BindWindow> {
        self.check(region, offset, length)?;
        let (window, new_rkey) = self.next_key();
        Ok(BindWindow {
            window,
            window_type: self.kind,
            new_rkey,
            lkey: region.lkey(),
            address: region.address().wrapping_add(offset as u64),
            length: length as u64,
            access,
            zero_based: false,
        })
    }

    /// The operation that unbinds it.
    pub fn unbind(&mut self) -> UnbindWindow {
        let (window, new_rkey) = self.next_key();
        UnbindWindow { window, window_type: self.kind, new_rkey }
    }

    fn check(&self, region: &MemoryRegion, offset: usize, length: usize) -> Result<()> {
        const VERB: &str = "bind_mw";
        if !self.pd().is_same(region.pd()) {
            return Err(Error::invalid(VERB, "window and region belong to different domains"));
        }
        if region.lacks(AccessFlags::MW_BIND) {
            let cause = "the region was registered without MW_BIND";
            return Err(Error::invalid(VERB, cause));
        }
        if length == 0 {
            return Err(Error::invalid(VERB, "a window of no bytes"));
        }
        let end = offset.checked_add(length);
        if end.is_none_or(|end| end > region.len()) {
            let cause = format!("bytes {offset}+{length} are not within {} bytes", region.len());
            return Err(Error::invalid(VERB, cause));
        }
        Ok(())
    }

    /// The current key and the next one, which increments the low byte (ibv_inc_rkey).
    fn next_key(&mut self) -> (u32, u32) {
        let old = self.rkey;
        self.rkey = old & !0xff | old.wrapping_add(1) & 0xff;
        (old, self.rkey)
    }

    /// Frees it.
    ///
    /// # Errors
    /// Errors of the kernel; the window is returned unchanged.
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn dealloc(mut self) -> std::result::Result<(), DestroyError<Self>> {
        self.object.destroy().map_err(|error| DestroyError::new(self, error))
    }
}
