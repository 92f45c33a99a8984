//! Slabs: registered memory divided into slots.

use std::fmt;
use std::sync::Arc;

use uverbs_mlx5::free_stack::FreeStack;

use super::pd::ProtectionDomain;
use super::slot::{Header, Headers, Slot, Span};
use super::{AccessFlags, Buffer, MemoryRegion};
use crate::device::context::Context;
use crate::error::{Error, Result};
use crate::host::fork::forked;
use crate::host::system::Listed;

const VERB: &str = "create_slab";
/// Slots begin at cache lines, so that slots of different threads never share one.
const ALIGNMENT: usize = 64;

/// Registered memory, divided into slots of one size. Clones share the memory.
///
/// ```no_run
/// # fn example(pd: &uverbs::ProtectionDomain) -> Result<(), Box<dyn std::error::Error>> {
/// let slab = pd.create_slab(64, 4096)?;
/// let mut slot = slab.take().ok_or("all 64 slots are in use")?;
/// slot.write(b"hello")?; // a send transmits these 5 bytes; a receive may fill all 4096
/// assert_eq!(&slot[..], b"hello");
/// drop(slot); // it is free again
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Slab(Arc<Inner>);

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab")
            .field("slots", &self.0.slots.len())
            .field("region", &self.0.region)
            .finish_non_exhaustive()
    }
}

pub(crate) struct Inner {
    region: Arc<MemoryRegion>,
    pub(super) slots: Arc<[Header]>,
    #[allow(dead_code, reason = "for forked children")]
    disowned: Listed<Header>,
    pub(super) free: FreeStack,
}

impl ProtectionDomain {
    /// Registers memory for `slots` slots of `bytes` each.
    ///
    /// # Errors
    /// `InvalidInput` for no slots, or slots of 0 bytes or 2 GiB and more; ENOMEM, with the memlock
    /// limit if that is the likely reason; other errors of the kernel.
    pub fn create_slab(&self, slots: u32, bytes: u32) -> Result<Slab> {
        let length = self::bytes(slots, bytes)?;
        let buffer = Buffer::new(length).map_err(|error| {
            Error::io(VERB, &error).asked(format!("{slots} slots of {bytes} bytes"))
        })?;
        let start = buffer.as_ptr();
        self.cut(&self.slab_region(buffer)?, start, slots, bytes)
    }

    /// As [`ProtectionDomain::create_slab`], for several slabs in one registration. `sizes` has the
    /// number of slots and the bytes per slot of each slab.
    ///
    /// # Errors
    /// As for [`ProtectionDomain::create_slab`].
    pub fn create_slabs<const N: usize>(&self, sizes: [(u32, u32); N]) -> Result<[Slab; N]> {
        let (mut starts, mut length) = ([0; N], 0usize);
        for ((slots, bytes), start) in sizes.into_iter().zip(&mut starts) {
            *start = length;
            length = length.saturating_add(self::bytes(slots, bytes)?);
        }
        let asked = |error| Error::io(VERB, &error).asked(format!("slabs of {sizes:?}"));
        let buffer = Buffer::new(length).map_err(asked)?;
        let at = buffer.as_ptr();
        let region = self.slab_region(buffer)?;
        let cut = |((slots, bytes), start)| self.cut(&region, at.wrapping_add(start), slots, bytes);
        let slabs: Result<Vec<Slab>> = sizes.into_iter().zip(starts).map(cut).collect();
        slabs?.try_into().map_err(|_| Error::invalid(VERB, "there is no slab"))
    }

    /// Registers `buffer`, for example huge pages or memory of one NUMA node, and divides it into
    /// as many slots of `bytes` bytes as it holds. Slots begin at multiples of 64 bytes.
    ///
    /// ```no_run
    /// use uverbs::{Buffer, PageSize};
    /// let pd = uverbs::open_default()?.alloc_pd()?;
    /// let buffer = Buffer::with_pages(2 << 20, PageSize::Huge2M)?;
    /// let slab = pd.create_slab_with(buffer, 2048)?;
    /// assert_eq!(slab.free(), 1024);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`ProtectionDomain::create_slab`]; `InvalidInput` also if no slot fits, or the buffer
    /// does not begin at a multiple of 64 bytes.
    pub fn create_slab_with(&self, buffer: Buffer, bytes: u32) -> Result<Slab> {
        let asked = format!("slots of {bytes} bytes in {} at {:p}", buffer.len(), buffer.as_ptr());
        let stride = stride(bytes).map_err(|error| error.asked(asked.as_str()))?;
        let slots = u32::try_from(buffer.len() / stride).unwrap_or(u32::MAX);
        if slots == 0 || buffer.as_ptr() as usize % ALIGNMENT != 0 {
            let cause = "a slab has at least one slot, and begins at a multiple of 64 bytes";
            return Err(Error::invalid(VERB, cause).asked(asked));
        }
        let start = buffer.as_ptr();
        self.cut(&self.slab_region(buffer)?, start, slots, bytes)
    }

    fn slab_region(&self, buffer: Buffer) -> Result<Arc<MemoryRegion>> {
        self.register(buffer, AccessFlags::LOCAL_WRITE).map(Arc::new)
    }

    /// Cuts slots out of a region's memory, from `start` on.
    fn cut(
        &self,
        region: &Arc<MemoryRegion>,
        start: *mut u8,
        slots: u32,
        bytes: u32,
    ) -> Result<Slab> {
        let (region, stride) = (region.clone(), stride(bytes)?);
        let lkey = region.lkey();
        let slots = Headers::allocate(self.context(), slots).ok_or_else(|| forked(VERB))?;
        let free = FreeStack::full(slots.len() as u32);
        let disowned = Listed::new(slots.clone());
        let inner = Arc::new(Inner { region, slots, disowned, free });
        let slab = Arc::as_ptr(&inner).cast_mut();
        for slot in inner.slots.iter() {
            let start = start.wrapping_add(slot.index() as usize * stride);
            slot.assign(slab, &Span { start, capacity: bytes, lkey, domain: self.identity() });
        }
        Ok(Slab(inner))
    }
}

/// Bytes of a slab's memory.
pub(crate) fn bytes(slots: u32, slot_bytes: u32) -> Result<usize> {
    let asked = |error: Error| error.asked(format!("{slots} slots of {slot_bytes} bytes"));
    if slots == 0 {
        return Err(asked(Error::invalid(VERB, "a slab has at least one slot")));
    }
    let length = stride(slot_bytes).map_err(asked)?.checked_mul(slots as usize);
    length.ok_or_else(|| asked(Error::invalid(VERB, "more bytes than an address space has")))
}

/// Bytes from the start of one slot to the start of the next.
fn stride(bytes: u32) -> Result<usize> {
    if bytes == 0 || bytes > i32::MAX as u32 {
        return Err(Error::invalid(VERB, "a slot has 1 byte to 2 GiB - 1"));
    }
    Ok((bytes as usize).next_multiple_of(ALIGNMENT))
}

impl Slab {
    /// A free slot, of length 0; `None` if all are owned or in flight.
    ///
    /// Taking a slot and dropping it wait for no other thread. Each changes two words of the slab
    /// atomically, so on a hot path reuse the slots that completions return, and give each thread
    /// its own slab.
    #[inline]
    pub fn take(&self) -> Option<Slot> {
        self.pop().or_else(|| self.pop_late())
    }

    #[inline]
    fn pop(&self) -> Option<Slot> {
        Slot::of(&self.0, self.0.free.take()?)
    }

    /// [`Slab::take`] where none is free, but slots of destroyed queue pairs may be ready for
    /// release.
    #[cold]
    #[inline(never)]
    fn pop_late(&self) -> Option<Slot> {
        self.context().inner().kept.release_ready();
        self.pop()
    }

    /// Bytes per slot.
    pub fn slot_bytes(&self) -> u32 {
        self.0.slots.first().map_or(0, Header::capacity)
    }

    /// Slots that are neither owned nor in flight. The slot of an unsignaled send becomes free when
    /// the completion of a later signaled send is polled, even if its own send failed. The slots of
    /// a destroyed or reset queue pair become free when its completion queues have been polled past
    /// the completions that they held.
    pub fn free(&self) -> usize {
        self.context().inner().kept.release_ready();
        self.0.free.len()
    }

    fn context(&self) -> &Context {
        self.0.region.pd().context()
    }
}
