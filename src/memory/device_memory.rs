//! Memory on the device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use uverbs_uapi::flags::AccessFlags;
use uverbs_uapi::mlx5::enums::{DmType, MmapCommand};
use uverbs_uapi::mlx5::object::dm::{alloc as driver, map_op_addr};
use uverbs_uapi::objects::dm::{alloc, free};

use crate::device::context::Context;
use crate::error::{DestroyError, Error, ErrorKind, Result};
use crate::host::buffer::page_size;
use crate::host::channel::Access;
use crate::host::lifetime::{Kind, Object, destroy_unshared, object_kind};
use crate::host::system::Mapping;

const ALLOC: &str = "alloc_dm";
const COPY: &str = "memcpy_dm";
const MAP_OPERATION: &str = "dm_map_op_addr";
/// Lengths are rounded up to a multiple of this (`MLX5_DM_ALLOWED_ALIGNMENT` of libmlx5,
/// `MLX5_MEMIC_BASE_SIZE` of the kernel).
const GRANULE: usize = 64;
/// Bytes per access: the device accepts only whole words of four bytes.
const WORD: usize = 4;

/// Memory on the device (ibv_alloc_dm), mapped into this process.
///
/// Operations of peers on it do not cross the PCIe bus, which suits counters and locks for atomics.
/// [`Registration::register_device_memory`](crate::memory::Registration::register_device_memory)
/// makes a memory region of it. Clones share the memory; regions over it hold a clone.
///
/// ```no_run
/// use uverbs::AccessFlags;
/// let context = uverbs::open_default()?;
/// let memory = context.alloc_device_memory(64, 64)?;
/// memory.write(0, &7_u64.to_ne_bytes())?;
/// let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_ATOMIC;
/// let pd = context.alloc_pd()?;
/// let counter = pd.registration().access(access).register_device_memory(&memory, 0, 64)?;
/// # let _ = counter;
/// # Ok::<(), uverbs::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct DeviceMemory {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    object: Object<Context>,
    mapping: Mapping,
    /// Its byte offset in the mapping.
    start: usize,
    length: usize,
}

const KIND: Kind = object_kind!("free_dm", "device memory", free::HANDLE);

impl Context {
    /// Total bytes of device memory; 0 if there is none.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn device_memory_bytes(&self) -> Result<u64> {
        Ok(self.attributes()?.kernel.max_dm_size)
    }

    /// Allocates `length` bytes of zeroed device memory whose address is a multiple of `alignment`
    /// bytes.
    ///
    /// # Errors
    /// `Unsupported` if the device has none; `InvalidInput` for 0 bytes, more than the total, or an
    /// alignment that is not a power of two; ENOMEM if too little is free; other errors of the
    /// kernel.
    #[doc(alias = "ibv_alloc_dm")]
    pub fn alloc_device_memory(&self, length: usize, alignment: usize) -> Result<DeviceMemory> {
        let most = self.device_memory_bytes()?;
        if most == 0 {
            return Err(Error::unsupported(ALLOC, "the device or the kernel has no device memory"));
        }
        if length == 0 || length as u64 > most {
            return Err(Error::invalid(ALLOC, format!("the device has 1 to {most} bytes"))
                .asked(format!("{length} bytes")));
        }
        if !alignment.is_power_of_two() {
            let cause = format!("the alignment {alignment} is not a power of two");
            return Err(Error::invalid(ALLOC, cause));
        }
        let allocated = self.send_alloc(length, alignment.trailing_zeros())?;
        let object = Object::new(self.clone(), allocated.handle, &KIND);
        let (mapping, start) = self.map_device_memory(ALLOC, &allocated.place, length)?;
        let inner = Inner { object, mapping, start, length };
        Ok(DeviceMemory { inner: Arc::new(inner) })
    }

    fn send_alloc(&self, length: usize, log2_alignment: u32) -> Result<Allocated> {
        let mut place = Place::default();
        let mut request = self.commands().request::<alloc::Call>();
        request.value(alloc::LENGTH, length as u64);
        request.value(alloc::ALIGNMENT, log2_alignment);
        request.output(driver::RESP_START_OFFSET, &mut place.start);
        request.output(driver::RESP_PAGE_INDEX, &mut place.page);
        request.constant(driver::REQ_TYPE, DmType::MEMIC.0);
        let made = self.commands().create(ALLOC, request, alloc::HANDLE);
        let handle = made.map_err(|error| error.asked(format!("{length} bytes")))?;
        Ok(Allocated { handle, place })
    }

    /// Maps its pages. Returns the mapping and the byte offset of the memory in it.
    fn map_device_memory(
        &self,
        verb: &'static str,
        at: &Place,
        length: usize,
    ) -> Result<(Mapping, usize)> {
        let page = page_size();
        let start = at.start as usize % page;
        let bytes = length.next_multiple_of(GRANULE).next_multiple_of(page);
        if start % WORD != 0 || start + length > bytes {
            let cause = format!("the kernel put {length} bytes at {start} of their page");
            return Err(Error::new(verb, ErrorKind::Refused, cause));
        }
        let offset = MmapCommand::DEVICE_MEM.offset(at.page, page as u64);
        Ok((self.commands().mmap(verb, bytes, Access::ReadWrite, offset)?, start))
    }
}

/// The kernel's answer.
struct Allocated {
    handle: u32,
    place: Place,
}

/// The location of device memory, or of an operation on it, for `mmap`.
#[derive(Default)]
struct Place {
    start: u64,
    page: u16,
}

impl DeviceMemory {
    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.inner.object.parent
    }

    /// Address of its first byte in this process. The device accepts only accesses of whole words
    /// of four bytes.
    pub fn as_ptr(&self) -> *mut u8 {
        self.inner.mapping.as_ptr().wrapping_add(self.inner.start)
    }

    /// The requested length in bytes.
    pub fn len(&self) -> usize {
        self.inner.length
    }

    /// Always false.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The kernel's handle.
    pub fn kernel_handle(&self) -> u32 {
        self.inner.object.handle
    }

    /// Copies bytes to the device (ibv_memcpy_to_dm), unordered with the device's own accesses.
    ///
    /// # Errors
    /// `InvalidInput` if they are outside the memory, or if offset or length is not a multiple of
    /// four.
    #[doc(alias = "ibv_memcpy_to_dm")]
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.check(offset, from.len())?;
        for (index, bytes) in from.chunks_exact(WORD).enumerate() {
            let mut word = [0; WORD];
            word.copy_from_slice(bytes);
            let word = u32::from_ne_bytes(word);
            self.word(offset + index * WORD)?.store(word, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies bytes from the device (ibv_memcpy_from_dm). Reading across PCIe is slow.
    ///
    /// # Errors
    /// As [`DeviceMemory::write`].
    #[doc(alias = "ibv_memcpy_from_dm")]
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.check(offset, into.len())?;
        for (index, bytes) in into.chunks_exact_mut(WORD).enumerate() {
            let word = self.word(offset + index * WORD)?.load(Ordering::Relaxed);
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        Ok(())
    }

    /// Maps an address at which loads and stores perform operation `op` on the memory. The
    /// adapter's reference manual numbers the operations (`memic_operations` of its capabilities).
    /// Unconfirmed: the software device has no such operation, and it has not been tried on an
    /// adapter.
    ///
    /// # Errors
    /// `Unsupported` if the device lacks the operation, and before Linux 5.13; other errors of the
    /// kernel.
    #[doc(alias = "mlx5dv_dm_map_op_addr")]
    pub fn map_operation(&self, op: u8) -> Result<DeviceOperation> {
        use map_op_addr::{Call, REQ_HANDLE, REQ_OP, RESP_PAGE_INDEX, RESP_START_OFFSET};
        let (context, mut place) = (self.context(), Place::default());
        let mut request = context.commands().request::<Call>();
        request.handle(REQ_HANDLE, self.kernel_handle());
        request.value(REQ_OP, op);
        request.output(RESP_START_OFFSET, &mut place.start);
        request.output(RESP_PAGE_INDEX, &mut place.page);
        context.commands().send(MAP_OPERATION, &mut request)?;
        let (mapping, start) = context.map_device_memory(MAP_OPERATION, &place, self.len())?;
        Ok(DeviceOperation { mapping, start, memory: self.clone() })
    }

    fn check(&self, offset: usize, length: usize) -> Result<()> {
        if offset % WORD != 0 || length % WORD != 0 {
            let cause = "the device takes whole words: offset and length are multiples of 4";
            return Err(Error::invalid(COPY, cause).asked(format!("bytes {offset}+{length}")));
        }
        if offset.checked_add(length).is_none_or(|end| end > self.len()) {
            let cause = format!(
                "{length} bytes at offset {offset} are outside of the {} bytes",
                self.len()
            );
            return Err(Error::invalid(COPY, cause));
        }
        Ok(())
    }

    /// The word at `offset`, within the memory.
    fn word(&self, offset: usize) -> Result<&AtomicU32> {
        let word = self.inner.mapping.atomic_u32(self.inner.start + offset);
        word.ok_or_else(|| Error::invalid(COPY, format!("byte {offset} is not mapped")))
    }

    /// Frees it.
    ///
    /// # Errors
    /// `Busy` while clones exist (every region over it holds one); errors of the kernel. It is
    /// returned unchanged.
    #[doc(alias = "ibv_free_dm")]
    pub fn free(mut self) -> std::result::Result<(), DestroyError<Self>> {
        let free = |inner: &mut Inner| inner.object.destroy();
        destroy_unshared(&mut self.inner, KIND.verb, ("region", "the memory"), free)
            .map_err(|error| DestroyError::new(self, error))
    }
}

/// An operation on device memory, from [`DeviceMemory::map_operation`].
#[derive(Debug)]
pub struct DeviceOperation {
    mapping: Mapping,
    start: usize,
    memory: DeviceMemory,
}

impl DeviceOperation {
    /// The memory that it operates on.
    pub fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    /// The address that performs it on the memory's first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr().wrapping_add(self.start)
    }

    /// As [`as_ptr`](Self::as_ptr), but the pages stay mapped until the caller unmaps them.
    pub fn into_raw(self) -> *mut u8 {
        let address = self.as_ptr();
        std::mem::forget(self.mapping);
        address
    }
}

/// Rights that a region over device memory can have.
pub(crate) const ALLOWED_ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);
