//! Registering memory.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use uverbs_uapi::flags::AccessFlags;
use uverbs_uapi::objects::mr::{reg_dm, reg_dmabuf};
use uverbs_uapi::write::mr::RegMr;

use super::Buffer;
use super::device_memory::{ALLOWED_ACCESS, DeviceMemory};
use super::pd::ProtectionDomain;
use super::region::{
    Memory, MemoryRegion, Registered, check_access, effective_access, require_paging,
};
use crate::error::{Error, Result};

const REG: &str = "reg_mr";

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
}

impl Registration {
    /// Sets what may be done with the memory. Remote writes and atomics need `LOCAL_WRITE` as well.
    pub fn access(mut self, access: AccessFlags) -> Self {
        self.access = access;
        self
    }

    /// Sets the first address that work requests and peers use, instead of the memory's virtual
    /// address. Its offset within a page must be that of the memory.
    #[doc(alias = "ibv_reg_mr_iova")]
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
    /// atomics or a [`MemoryView`](super::MemoryView) (`docs/ordering.md`, "Sizes of accesses").
    /// Two such regions over the same memory begin and end at the same addresses or at multiples of
    /// eight.
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
        check_access(VERB, self.access)?;
        let iova = self.iova.unwrap_or(0);
        let (mut lkey, mut rkey) = (0u32, 0u32);
        let context = self.pd.context();
        let mut request = context.commands().request::<reg_dmabuf::Call>();
        request.handle(reg_dmabuf::PD_HANDLE, self.pd.kernel_handle());
        request.value(reg_dmabuf::OFFSET, offset);
        request.value(reg_dmabuf::LENGTH, length);
        request.value(reg_dmabuf::IOVA, iova);
        request.value(reg_dmabuf::FD, fd.as_raw_fd());
        request.flags(reg_dmabuf::ACCESS_FLAGS, effective_access(context, self.access).bits());
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
        check_access(VERB, self.access)?;
        let context = self.pd.context();
        context.require_same(VERB, memory.context(), "device memory")?;
        let access = effective_access(context, self.access);
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
        check_access(REG, self.access)?;
        if self.access.contains(AccessFlags::ON_DEMAND) {
            require_paging(REG, self.pd.context())?;
        }
        let iova = self.iova.unwrap_or(start);
        let command = RegMr {
            start,
            length,
            hca_va: iova,
            pd_handle: self.pd.kernel_handle(),
            access_flags: effective_access(self.pd.context(), self.access),
            ..RegMr::default()
        };
        let sent = self.pd.context().commands().write(REG, &command);
        let answer = sent.map_err(|error| {
            let asked = format!("{length} bytes, access {}", self.access);
            let error = error.pinning(length).asked(asked);
            if error.errno() != libc::EINVAL || (iova ^ start) % 4096 == 0 {
                return error;
            }
            error.because("iova and memory have different offsets within a page")
        })?;
        let handle = Some(answer.mr_handle);
        let registered = Registered { handle, lkey: answer.lkey, rkey: answer.rkey, iova };
        Ok(MemoryRegion::new(&self.pd, registered, memory, length, self.access))
    }
}
