//! Memory regions: memory that a device may read and write.

#![allow(unsafe_code)]

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};

use uverbs_mlx5::request::{MAX_SGE_LENGTH, Remote, Sge};
use uverbs_uapi::enums::AdviseMrAdvice;
use uverbs_uapi::flags::{AccessFlags, AdviseMrFlags, CoreSupport, OdpGeneralCaps, ReregMrFlags};
use uverbs_uapi::objects::mr::{advise, destroy, reg_dm, reg_dmabuf};
use uverbs_uapi::write::mr::Sge as KernelSge;
use uverbs_uapi::write::mr::{RegMr, ReregMr};
use zerocopy::IntoBytes;

use super::device_memory::{ALLOWED_ACCESS, DeviceMemory};
use super::pd::ProtectionDomain;
use super::{Buffer, MemoryView};
use crate::device::context::Context;
use crate::error::{DestroyError, Error, Result};

const REG: &str = "reg_mr";
const REREG: &str = "rereg_mr";

/// The memory of a region.
#[derive(Debug)]
enum Memory {
    /// Memory that the region owns.
    Owned(Buffer),
    /// Memory on the device.
    Device(#[allow(dead_code, reason = "held for its lifetime")] DeviceMemory),
    /// Memory that the caller promised to keep, or that is not of this process: a dma-buf, the null
    /// region, an implicit region.
    Foreign,
}

/// Builder of a memory region: from [`ProtectionDomain::registration`].
///
/// By default the device may read and write the memory for local requests, peers have no access,
/// and work requests use its virtual addresses.
///
/// ```no_run
/// use uverbs::{AccessFlags, Buffer};
/// let pd = uverbs::open_default()?.alloc_pd()?;
/// let region = pd
///     .registration()
///     .access(AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)
///     .relaxed_ordering()
///     .register(Buffer::new(1 << 20)?)?;
/// region.view().write(0, b"hello")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is registered until one of the register methods is called"]
pub struct Registration {
    pd: ProtectionDomain,
    access: AccessFlags,
    iova: Option<u64>,
}

impl ProtectionDomain {
    /// Starts a registration of memory.
    pub fn registration(&self) -> Registration {
        Registration { pd: self.clone(), access: AccessFlags::LOCAL_WRITE, iova: None }
    }

    /// Registers a [`Buffer`] with the given rights; [`ProtectionDomain::registration`] has further
    /// options.
    ///
    /// # Errors
    /// As [`Registration::register`].
    #[doc(alias = "ibv_reg_mr")]
    #[doc(alias = "ibv_reg_mr_iova2")]
    pub fn register(&self, buffer: Buffer, access: AccessFlags) -> Result<MemoryRegion> {
        self.registration().access(access).register(buffer)
    }

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
}

impl ProtectionDomain {
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

impl Registration {
    /// Sets what may be done with the memory. Remote writes and atomics need `LOCAL_WRITE` as well.
    pub fn access(mut self, access: AccessFlags) -> Self {
        self.access = access;
        self
    }

    /// Sets the first address that work requests and peers use, instead of the memory's virtual
    /// address. Its offset within a page must be that of the memory.
    pub fn iova(mut self, iova: u64) -> Self {
        self.iova = Some(iova);
        self
    }

    /// Lets the device's writes to this memory overtake each other on PCIe, which can be faster.
    /// Kernels that do not know the flag ignore it. After a completion all data is there, as
    /// without it. A program that polls a byte of the data instead cannot rely on the other bytes
    /// (`docs/ordering.md`).
    pub fn relaxed_ordering(mut self) -> Self {
        self.access |= AccessFlags::RELAXED_ORDERING;
        self
    }

    /// Uses on-demand paging: the memory is not pinned, and the device faults pages in.
    pub fn on_demand(mut self) -> Self {
        self.access |= AccessFlags::ON_DEMAND;
        self
    }

    /// Registers a buffer and keeps it.
    ///
    /// # Errors
    /// `InvalidInput` for remote writes or atomics without `LOCAL_WRITE`; ENOMEM, with the memlock
    /// limit if that is the likely reason; other errors of the kernel.
    pub fn register(self, buffer: Buffer) -> Result<MemoryRegion> {
        let (start, length) = (buffer.address(), buffer.len() as u64);
        self.register_range(start, length, Memory::Owned(buffer))
    }

    /// Registers the caller's memory: any mapping, such as huge pages or shared memory.
    ///
    /// # Errors
    /// As [`Registration::register`].
    ///
    /// # Safety
    /// Until the region has been deregistered, the memory stays mapped (writable if the rights
    /// include writing), and no reference covers bytes that the device or a remote peer may write.
    /// If peers have access, an 8-byte word that they may write in part is accessed only by 64-bit
    /// atomics or a [`MemoryView`] (`docs/ordering.md`, "Sizes of accesses"). Two such regions over
    /// the same memory begin and end at the same addresses or at multiples of eight.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register_raw(self, start: *mut u8, length: usize) -> Result<MemoryRegion> {
        self.register_range(start.expose_provenance() as u64, length as u64, Memory::Foreign)
    }

    /// Registers the whole address space with on-demand paging (an implicit region): its key is
    /// valid for any address of this process.
    ///
    /// # Errors
    /// As [`Registration::register`]; `Unsupported` without implicit on-demand paging.
    ///
    /// # Safety
    /// As [`Registration::register_raw`], for all memory that work requests or peers name.
    pub unsafe fn register_everything(mut self) -> Result<MemoryRegion> {
        self.access |= AccessFlags::ON_DEMAND;
        self.register_range(0, u64::MAX, Memory::Foreign)
    }

    /// Registers part of a dma-buf (memory of another device). Addresses begin at the `iova`, by
    /// default 0.
    ///
    /// # Errors
    /// As [`Registration::register`]; `Unsupported` if the kernel or the device does not support
    /// it.
    ///
    /// # Safety
    /// The owner of the dma-buf's memory accepts that the device, and peers if they have the right,
    /// write to it until the region has been deregistered.
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub unsafe fn register_dma_buf(
        self,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: u64,
    ) -> Result<MemoryRegion> {
        const VERB: &str = "reg_dmabuf_mr";
        self.check(VERB)?;
        let iova = self.iova.unwrap_or(0);
        let (mut lkey, mut rkey) = (0u32, 0u32);
        let context = self.pd.context();
        let mut request = context.commands().request::<reg_dmabuf::Call>();
        request.handle(reg_dmabuf::PD_HANDLE, self.pd.kernel_handle());
        request.value(reg_dmabuf::OFFSET, offset);
        request.value(reg_dmabuf::LENGTH, length);
        request.value(reg_dmabuf::IOVA, iova);
        request.value(reg_dmabuf::FD, fd.as_raw_fd());
        request.flags(reg_dmabuf::ACCESS_FLAGS, self.effective_access().bits());
        request.output(reg_dmabuf::RESP_LKEY, &mut lkey);
        request.output(reg_dmabuf::RESP_RKEY, &mut rkey);
        let handle = Some(context.commands().create(VERB, request, reg_dmabuf::HANDLE)?);
        let registered = Registered { handle, lkey, rkey, iova };
        Ok(MemoryRegion::new(&self.pd, registered, Memory::Foreign, length, self.access))
    }

    /// Registers part of device memory. Addresses begin at 0.
    ///
    /// # Errors
    /// As [`Registration::register`]; `InvalidInput` also for bytes outside it, for an `iova`, and
    /// for other rights than local writes and remote reads, writes and atomics.
    #[doc(alias = "ibv_reg_dm_mr")]
    pub fn register_device_memory(
        self,
        memory: &DeviceMemory,
        offset: usize,
        length: usize,
    ) -> Result<MemoryRegion> {
        const VERB: &str = "reg_dm_mr";
        self.check(VERB)?;
        let context = self.pd.context();
        context.require_same(VERB, memory.context(), "device memory")?;
        let access = self.effective_access();
        if !ALLOWED_ACCESS.contains(access) || self.iova.is_some_and(|iova| iova != 0) {
            let cause =
                "device memory has addresses from 0, and only local and remote access rights";
            return Err(Error::invalid(VERB, cause).asked(format!("access {access}")));
        }
        if offset.checked_add(length).is_none_or(|end| end > memory.len()) {
            let cause = format!(
                "{length} bytes at offset {offset} are outside of the {} bytes",
                memory.len()
            );
            return Err(Error::invalid(VERB, cause));
        }
        let (mut lkey, mut rkey) = (0u32, 0u32);
        let mut request = context.commands().request::<reg_dm::Call>();
        request.value(reg_dm::OFFSET, offset as u64);
        request.value(reg_dm::LENGTH, length as u64);
        request.handle(reg_dm::PD_HANDLE, self.pd.kernel_handle());
        request.flags(reg_dm::ACCESS_FLAGS, (access | AccessFlags::ZERO_BASED).bits());
        request.handle(reg_dm::DM_HANDLE, memory.kernel_handle());
        request.output(reg_dm::RESP_LKEY, &mut lkey);
        request.output(reg_dm::RESP_RKEY, &mut rkey);
        let handle = Some(context.commands().create(VERB, request, reg_dm::HANDLE)?);
        let registered = Registered { handle, lkey, rkey, iova: 0 };
        let memory = Memory::Device(memory.clone());
        Ok(MemoryRegion::new(&self.pd, registered, memory, length as u64, access))
    }

    fn register_range(self, start: u64, length: u64, memory: Memory) -> Result<MemoryRegion> {
        self.check(REG)?;
        self.require_paging(REG)?;
        let iova = self.iova.unwrap_or(start);
        let command = RegMr {
            start,
            length,
            hca_va: iova,
            pd_handle: self.pd.kernel_handle(),
            access_flags: self.effective_access(),
            ..RegMr::default()
        };
        let sent = self.pd.context().commands().write(REG, &command);
        let answer = sent.map_err(|error| {
            let asked = format!("{length} bytes, access {}", self.access);
            error.pinning(length).asked(asked)
        })?;
        let handle = Some(answer.mr_handle);
        let registered = Registered { handle, lkey: answer.lkey, rkey: answer.rkey, iova };
        Ok(MemoryRegion::new(&self.pd, registered, memory, length, self.access))
    }

    fn check(&self, verb: &'static str) -> Result<()> {
        check_access(verb, self.access)
    }

    fn require_paging(&self, verb: &'static str) -> Result<()> {
        if !self.access.contains(AccessFlags::ON_DEMAND) {
            return Ok(());
        }
        require_paging(verb, self.pd.context())
    }

    /// The rights, without optional ones that the kernel would refuse.
    fn effective_access(&self) -> AccessFlags {
        effective_access(self.pd.context(), self.access)
    }
}

/// Fails if the device has no on-demand paging.
fn require_paging(verb: &'static str, context: &Context) -> Result<()> {
    let general = context.attributes()?.kernel.odp_caps.general_caps;
    if general.contains(OdpGeneralCaps::SUPPORT) {
        return Ok(());
    }
    let cause = "the device or the kernel has no on-demand paging";
    Err(Error::unsupported(verb, cause).cure_with("register the memory pinned"))
}

fn check_access(verb: &'static str, access: AccessFlags) -> Result<()> {
    let remote_change = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    if access.intersects(remote_change) && !access.contains(AccessFlags::LOCAL_WRITE) {
        let cause = "remote writes and atomics need LOCAL_WRITE as well";
        return Err(Error::invalid(verb, cause).asked(format!("access {access}")));
    }
    Ok(())
}

fn effective_access(context: &Context, access: AccessFlags) -> AccessFlags {
    if context.inner().core_support.contains(CoreSupport::OPTIONAL_MR_ACCESS) {
        access
    } else {
        access - AccessFlags::OPTIONAL_RANGE
    }
}

#[derive(Debug, Clone, Copy)]
struct Registered {
    /// `None` for the null region, which has no kernel object.
    handle: Option<u32>,
    lkey: u32,
    rkey: u32,
    iova: u64,
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
    fn new(
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
    /// As [`Registration::register`]. If the kernel refuses, the region is unchanged. If it fails
    /// half-way (ENOMEM, EIO), the region's keys no longer work and it can only be dropped.
    #[doc(alias = "ibv_rereg_mr")]
    pub fn change_access(&mut self, access: AccessFlags) -> Result<()> {
        check_access(REREG, access)?;
        self.rereg(ReregMrFlags::CHANGE_ACCESS, None, None, access)?;
        self.access = access;
        Ok(())
    }

    /// Moves the region to another protection domain of the same context. Its keys change.
    ///
    /// # Errors
    /// As [`MemoryRegion::change_access`].
    #[doc(alias = "ibv_rereg_mr")]
    pub fn change_pd(&mut self, pd: &ProtectionDomain) -> Result<()> {
        self.pd.context().require_same(REREG, pd.context(), "protection domain")?;
        self.rereg(ReregMrFlags::CHANGE_PD, Some(pd), None, self.access)?;
        self.pd = pd.clone();
        Ok(())
    }

    /// Replaces the memory of the region; its addresses are then those of the new memory, and its
    /// keys change. Returns the old buffer if the region owned one.
    ///
    /// # Errors
    /// As [`MemoryRegion::change_access`]. On an error the region also keeps the new buffer until
    /// it is deregistered, because the device may already use it.
    #[doc(alias = "ibv_rereg_mr")]
    pub fn change_buffer(&mut self, buffer: Buffer) -> Result<Option<Buffer>> {
        let flags = ReregMrFlags::CHANGE_TRANSLATION;
        if let Err(error) = self.rereg(flags, None, Some(&buffer), self.access) {
            // The kernel may have failed after the change; then the device writes to the new
            // buffer.
            self.failed.push(buffer);
            return Err(error);
        }
        self.registered.iova = buffer.address();
        self.length = buffer.len() as u64;
        match std::mem::replace(&mut self.memory, Memory::Owned(buffer)) {
            Memory::Owned(old) => Ok(Some(old)),
            Memory::Device(_) | Memory::Foreign => Ok(None),
        }
    }

    fn rereg(
        &mut self,
        flags: ReregMrFlags,
        pd: Option<&ProtectionDomain>,
        buffer: Option<&Buffer>,
        access: AccessFlags,
    ) -> Result<()> {
        let handle = self.registered.handle.filter(|_| self.live);
        let mr_handle = handle.ok_or_else(|| {
            Error::unsupported(REREG, "null and imported regions cannot be changed")
        })?;
        let start = buffer.map_or(0, Buffer::address);
        let command = ReregMr {
            mr_handle,
            flags,
            start,
            length: buffer.map_or(0, |buffer| buffer.len() as u64),
            hca_va: start,
            pd_handle: pd.map_or(0, ProtectionDomain::kernel_handle),
            access_flags: effective_access(self.pd.context(), access),
            ..ReregMr::default()
        };
        let sent = self.pd.context().commands().write(REREG, &command);
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
