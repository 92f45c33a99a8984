//! Memory regions: memory that a device may read and write.

use std::fmt;

use uverbs_mlx5::request::{MAX_SGE_LENGTH, Remote, Sge};
use uverbs_uapi::enums::AdviseMrAdvice;
use uverbs_uapi::flags::{AccessFlags, AdviseMrFlags, CoreSupport, OdpGeneralCaps, ReregMrFlags};
use uverbs_uapi::objects::mr::{advise, destroy};
use uverbs_uapi::write::mr::ReregMr;
use uverbs_uapi::write::mr::Sge as KernelSge;
use zerocopy::IntoBytes;

use super::device_memory::DeviceMemory;
use super::pd::ProtectionDomain;
use super::{Buffer, MemoryView};
use crate::device::context::Context;
use crate::error::{DestroyError, Error, Result};

const REREG: &str = "rereg_mr";

/// The memory of a region.
#[derive(Debug)]
pub(super) enum Memory {
    /// Memory that the region owns.
    Owned(Buffer),
    /// Memory on the device.
    Device(#[allow(dead_code, reason = "held for its lifetime")] DeviceMemory),
    /// Memory that the caller promised to keep, or that is not of this process: a dma-buf, the null
    /// region, an implicit region.
    Foreign,
}

impl ProtectionDomain {
    /// The null region, which has any address: writes to it are discarded and reads return zeros.
    ///
    /// # Errors
    /// `Unsupported` if the device has none.
    #[doc(alias = "ibv_alloc_null_mr")]
    pub fn null_region(&self) -> Result<MemoryRegion> {
        let lkey = self.context().inner().null_key();
        let lkey = lkey.ok_or_else(|| {
            Error::unsupported("alloc_null_mr", "the device or the kernel has no null region")
        })?;
        let registered = Registered { handle: None, lkey, rkey: 0, iova: 0 };
        let access = AccessFlags::LOCAL_WRITE;
        Ok(MemoryRegion::new(self, registered, Memory::Foreign, u64::MAX, access))
    }

    /// Advises the device about the use of memory of on-demand regions. With `now` it returns when
    /// the device has acted on it. For a single region, [`MemoryRegion::prefetch`] checks the
    /// arguments.
    ///
    /// # Errors
    /// Errors of the kernel: EFAULT for pages that cannot be mapped, EINVAL or ENOENT for keys that
    /// do not belong to a region.
    #[doc(alias = "ibv_advise_mr")]
    pub fn advise(&self, advice: AdviseMrAdvice, now: bool, memory: &[Sge]) -> Result<()> {
        const VERB: &str = "advise_mr";
        let of =
            |sge: &Sge| KernelSge { addr: sge.address(), length: sge.length(), lkey: sge.lkey() };
        let list: Vec<_> = memory.iter().map(of).collect();
        let flags = if now { AdviseMrFlags::FLUSH } else { AdviseMrFlags::empty() };
        let mut request = self.context().commands().request::<advise::Call>();
        request.handle(advise::PD_HANDLE, self.kernel_handle());
        request.constant(advise::ADVICE, advice.0);
        request.flags(advise::FLAGS, flags.bits());
        let stored = request.input_bytes(advise::SGE_LIST, list.as_bytes()).map(drop);
        stored.map_err(|error| Error::invalid(VERB, error.to_string()))?;
        self.context().commands().send(VERB, &mut request)
    }
}

/// Fails if the device has no on-demand paging.
pub(super) fn require_paging(verb: &'static str, context: &Context) -> Result<()> {
    let general = context.attributes()?.kernel.odp_caps.general_caps;
    if general.contains(OdpGeneralCaps::SUPPORT) {
        return Ok(());
    }
    let cause = "the device or the kernel has no on-demand paging";
    Err(Error::unsupported(verb, cause).cure_with("register the memory pinned"))
}

pub(super) fn check_access(verb: &'static str, access: AccessFlags) -> Result<()> {
    let remote_change = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    if access.intersects(remote_change) && !access.contains(AccessFlags::LOCAL_WRITE) {
        let cause = "remote writes and atomics need LOCAL_WRITE as well";
        return Err(Error::invalid(verb, cause).asked(format!("access {access}")));
    }
    Ok(())
}

/// Without the optional rights where the kernel would refuse them.
pub(super) fn effective_access(context: &Context, access: AccessFlags) -> AccessFlags {
    if context.inner().core_support.contains(CoreSupport::OPTIONAL_MR_ACCESS) {
        access
    } else {
        access - AccessFlags::OPTIONAL_RANGE
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Registered {
    /// `None` for the null region, which has no kernel object.
    pub(super) handle: Option<u32>,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
    pub(super) iova: u64,
}

/// Registered memory.
///
/// It keeps its memory (if it owns it) and its protection domain, and is deregistered when dropped.
/// [`MemoryRegion::sge`] names its bytes in raw work requests, [`MemoryRegion::remote`] for peers;
/// both are plain numbers and do not keep the region alive.
///
/// ```no_run
/// use uverbs::{AccessFlags, Buffer};
/// let pd = uverbs::open_default()?.alloc_pd()?;
/// let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
/// let region = pd.register(Buffer::new(1 << 20)?, access)?;
/// region.view().write(64, b"hello")?;
/// let remote = region.remote(64)?; // an address and a key, to send to a peer
/// # let _ = remote;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MemoryRegion {
    pd: ProtectionDomain,
    registered: Registered,
    memory: Memory,
    /// Buffers of failed changes, which the device may still use.
    failed: Vec<Buffer>,
    length: u64,
    access: AccessFlags,
    /// Whether this process still has to deregister it.
    live: bool,
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("address", &format_args!("{:#x}", self.registered.iova))
            .field("length", &self.length)
            .field("lkey", &format_args!("{:#x}", self.registered.lkey))
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

impl MemoryRegion {
    pub(super) fn new(
        pd: &ProtectionDomain,
        registered: Registered,
        memory: Memory,
        length: u64,
        access: AccessFlags,
    ) -> Self {
        Self { pd: pd.clone(), registered, memory, failed: Vec::new(), length, access, live: true }
    }

    /// A region of another process: keys and addresses without memory.
    pub(crate) fn imported(
        pd: &ProtectionDomain,
        handle: u32,
        (lkey, rkey): (u32, u32),
        (iova, length): (u64, u64),
    ) -> Self {
        let registered = Registered { handle: Some(handle), lkey, rkey, iova };
        let access = AccessFlags::empty();
        let mut region = Self::new(pd, registered, Memory::Foreign, length, access);
        region.live = false;
        region
    }

    /// The handle for [`ProtectionDomain::import_region`] in another process; `None` for the null
    /// region.
    pub fn kernel_handle(&self) -> Option<u32> {
        self.registered.handle
    }

    /// The domain it belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The key for local work requests.
    pub fn lkey(&self) -> u32 {
        self.registered.lkey
    }

    /// The key for peers.
    pub fn rkey(&self) -> u32 {
        self.registered.rkey
    }

    /// The first address that work requests and peers use.
    pub fn address(&self) -> u64 {
        self.registered.iova
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Its rights; none for an imported region, whose rights are unknown.
    pub fn access(&self) -> AccessFlags {
        self.access
    }

    /// Whether it is known to lack `right`.
    pub(crate) fn lacks(&self, right: AccessFlags) -> bool {
        self.live && !self.access.contains(right)
    }

    /// The bytes of a buffer that the region owns. Empty for other memory, because the program may
    /// hold references to it; a program that holds none can make a [`MemoryView`] itself.
    pub fn view(&self) -> MemoryView<'_> {
        match &self.memory {
            Memory::Owned(buffer) => buffer.view(),
            Memory::Device(_) | Memory::Foreign => MemoryView::empty(),
        }
    }

    /// The SGE of `length` bytes at `offset`.
    ///
    /// # Errors
    /// `InvalidInput` if they are outside the region, or 2 GiB or more.
    pub fn sge(&self, offset: usize, length: usize) -> Result<Sge> {
        let end = offset.checked_add(length);
        let inside = end.is_some_and(|end| end as u64 <= self.length);
        let fits = u32::try_from(length).ok().filter(|length| inside && *length <= MAX_SGE_LENGTH);
        let Some(bytes) = fits else {
            let cause = format!(
                "bytes {offset}+{length} are not within {} bytes, or are 2 GiB or more",
                self.length
            );
            return Err(Error::invalid("sge", cause));
        };
        Ok(Sge::new(self.registered.iova.wrapping_add(offset as u64), bytes, self.registered.lkey))
    }

    /// Address and key of the byte at `offset`, to send to a peer. They do not keep the region
    /// alive. The queue pair that the peer is connected to has to grant the access, too
    /// ([`QpBuilder::access`](crate::QpBuilder::access)).
    ///
    /// # Errors
    /// `InvalidInput` if it is outside.
    pub fn remote(&self, offset: usize) -> Result<Remote> {
        if offset as u64 > self.length {
            let cause = format!("offset {offset} is outside of the {} bytes", self.length);
            return Err(Error::invalid("remote", cause));
        }
        Ok(Remote::new(self.registered.iova.wrapping_add(offset as u64), self.registered.rkey))
    }

    /// Changes the rights, and with them the keys.
    ///
    /// # Errors
    /// As [`MemoryRegion::change`].
    #[doc(alias = "ibv_rereg_mr")]
    pub fn change_access(&mut self, access: AccessFlags) -> Result<()> {
        self.change(None, Some(access), None).map(drop)
    }

    /// Moves the region to another protection domain of the same context. Its keys change.
    ///
    /// # Errors
    /// As [`MemoryRegion::change`].
    #[doc(alias = "ibv_rereg_mr")]
    pub fn change_pd(&mut self, pd: &ProtectionDomain) -> Result<()> {
        self.change(Some(pd), None, None).map(drop)
    }

    /// Replaces the memory of the region; its addresses are then those of the new memory, and its
    /// keys change. Returns the old buffer if the region owned one.
    ///
    /// # Errors
    /// As [`MemoryRegion::change`].
    #[doc(alias = "ibv_rereg_mr")]
    pub fn change_buffer(&mut self, buffer: Buffer) -> Result<Option<Buffer>> {
        self.change(None, None, Some(buffer))
    }

    /// Several of these changes in one command.
    ///
    /// # Errors
    /// As [`Registration::register`](super::Registration::register). If the kernel refuses, the
    /// region is unchanged. If it fails half-way (ENOMEM, EIO), the region's keys no longer work
    /// and it can only be dropped. On an error the region also keeps the new buffer until it is
    /// deregistered, because the device may already use it.
    #[doc(alias = "ibv_rereg_mr")]
    pub fn change(
        &mut self,
        pd: Option<&ProtectionDomain>,
        access: Option<AccessFlags>,
        buffer: Option<Buffer>,
    ) -> Result<Option<Buffer>> {
        if let Err(error) = self.rereg(pd, access, buffer.as_ref()) {
            // The kernel may have failed after the change; then the device writes to the new
            // buffer.
            self.failed.extend(buffer);
            return Err(error);
        }
        self.access = access.unwrap_or(self.access);
        if let Some(pd) = pd {
            self.pd = pd.clone();
        }
        let Some(buffer) = buffer else { return Ok(None) };
        self.registered.iova = buffer.address();
        self.length = buffer.len() as u64;
        match std::mem::replace(&mut self.memory, Memory::Owned(buffer)) {
            Memory::Owned(old) => Ok(Some(old)),
            Memory::Device(_) | Memory::Foreign => Ok(None),
        }
    }

    fn rereg(
        &mut self,
        pd: Option<&ProtectionDomain>,
        access: Option<AccessFlags>,
        buffer: Option<&Buffer>,
    ) -> Result<()> {
        let context = self.pd.context();
        if let Some(access) = access {
            check_access(REREG, access)?;
        }
        if let Some(pd) = pd {
            context.require_same(REREG, pd.context(), "protection domain")?;
        }
        let handle = self.registered.handle.filter(|_| self.live);
        let mr_handle = handle.ok_or_else(|| {
            Error::unsupported(REREG, "null and imported regions cannot be changed")
        })?;
        let mut flags = ReregMrFlags::empty();
        flags.set(ReregMrFlags::CHANGE_PD, pd.is_some());
        flags.set(ReregMrFlags::CHANGE_ACCESS, access.is_some());
        flags.set(ReregMrFlags::CHANGE_TRANSLATION, buffer.is_some());
        let start = buffer.map_or(0, Buffer::address);
        let command = ReregMr {
            mr_handle,
            flags,
            start,
            length: buffer.map_or(0, |buffer| buffer.len() as u64),
            hca_va: start,
            pd_handle: pd.map_or(0, ProtectionDomain::kernel_handle),
            access_flags: effective_access(context, access.unwrap_or(self.access)),
            ..ReregMr::default()
        };
        let sent = context.commands().write(REREG, &command);
        let keys = sent.map_err(|error| error.pinning(command.length).asked(flags.to_string()))?;
        (self.registered.lkey, self.registered.rkey) = (keys.lkey, keys.rkey);
        Ok(())
    }

    /// Faults in pages of an on-demand region, for reading or for writing. With `now` it returns
    /// when they are present.
    ///
    /// # Errors
    /// `InvalidInput` for bytes outside the region, or if it is pinned; `Unsupported` without
    /// on-demand paging; errors of the kernel (EFAULT for pages that cannot be mapped).
    #[doc(alias = "ibv_advise_mr")]
    pub fn prefetch(
        &self,
        offset: usize,
        length: usize,
        for_writing: bool,
        now: bool,
    ) -> Result<()> {
        const VERB: &str = "advise_mr";
        require_paging(VERB, self.pd.context())?;
        if self.lacks(AccessFlags::ON_DEMAND) {
            return Err(Error::invalid(
                VERB,
                "the region is pinned: its pages are in memory already",
            ));
        }
        let advice =
            if for_writing { AdviseMrAdvice::PREFETCH_WRITE } else { AdviseMrAdvice::PREFETCH };
        self.pd.advise(advice, now, &[self.sge(offset, length)?])
    }

    /// Deregisters the memory. Returns the buffer if the region owned one.
    ///
    /// # Errors
    /// EBUSY while memory windows are bound to it; other errors of the kernel. The region is
    /// returned unchanged.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister(mut self) -> std::result::Result<Option<Buffer>, DestroyError<Self>> {
        if let Err(error) = self.dereg() {
            return Err(DestroyError::new(self, error));
        }
        match std::mem::replace(&mut self.memory, Memory::Foreign) {
            Memory::Owned(buffer) => Ok(Some(buffer)),
            Memory::Device(_) | Memory::Foreign => Ok(None),
        }
    }

    fn dereg(&mut self) -> Result<()> {
        if let Some(handle) = self.registered.handle.filter(|_| self.live) {
            let commands = self.pd.context().commands();
            commands.destroy_handle("dereg_mr", destroy::HANDLE, handle)?;
        }
        self.live = false;
        Ok(())
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if !self.live {
            return;
        }
        let Err(error) = self.dereg() else { return };
        // The device may still write to the memory.
        let owned = match std::mem::replace(&mut self.memory, Memory::Foreign) {
            Memory::Owned(buffer) => Some(buffer),
            // Device memory need not be kept: the kernel does not free it while the region exists.
            Memory::Device(_) | Memory::Foreign => None,
        };
        let memory = (owned, std::mem::take(&mut self.failed));
        self.pd.context().inner().until_close.keep("memory region", &error, memory);
    }
}
