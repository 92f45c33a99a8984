//! Registered memory cut into slots.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use uverbs_mlx5::request::Sge;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::memory::{AccessFlags, Buffer, MemoryRegion};
use crate::pd::ProtectionDomain;

const VERB: &str = "create_slab";
/// Slots begin on cache lines, so that those of different threads share none.
const ALIGNMENT: usize = 64;

/// Registered memory, cut into slots of one size. Clones are handles to the same memory.
#[derive(Debug, Clone)]
pub struct Slab(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    region: MemoryRegion,
    slots: Arc<[Header]>,
    free: Mutex<Vec<u32>>,
}

/// The headers of a context's slabs. They outlive their slabs and are used again by later ones of the same
/// size, so that a completion that names an old request meets a header in any case.
#[derive(Debug, Default)]
pub(super) struct Headers(Mutex<Vec<Arc<[Header]>>>);

impl Headers {
    fn allocate(&self, count: u32) -> Arc<[Header]> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let unused = |headers: &&Arc<[Header]>| {
            headers.len() == count as usize && Arc::strong_count(headers) == 1
        };
        if let Some(headers) = all.iter().find(unused) {
            return headers.clone();
        }
        let headers: Arc<[Header]> = (0..count).map(Header::new).collect();
        all.push(headers.clone());
        headers
    }
}

/// What a slot's pointer leads to.
///
/// While a slot is held its holder alone uses the header; while it is in flight the posting thread writes it
/// before the request is published and the polling thread reads it after the completion. Relaxed atomics,
/// because that order comes from the device.
#[derive(Debug)]
pub(super) struct Header {
    index: u32,
    slab: AtomicPtr<Inner>,
    start: AtomicPtr<u8>,
    capacity: AtomicU32,
    length: AtomicU32,
    tag: AtomicU64,
    /// The protection domain of its memory.
    domain: AtomicUsize,
    /// The queue pair that it is in flight on, 0 while it is held or free.
    owner: AtomicU64,
    /// The completion queue that brings it back.
    cq: AtomicU64,
    /// The slot posted unsignaled before this one: released with it.
    pub(super) before: AtomicPtr<Header>,
    /// Whether it was posted unsignaled: another slot's completion releases it.
    pub(super) unsignaled: AtomicU32,
}

/// On which queue pair a slot is in flight, and to which completion queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flight {
    /// Never 0.
    pub(super) owner: u64,
    pub(super) cq: u64,
}

impl ProtectionDomain {
    /// Registers memory for `slots` slots of `bytes` each.
    ///
    /// # Errors
    /// `InvalidInput` for no slots or more than 2 GiB in one; ENOMEM, with the memlock limit where that is the
    /// likely reason; what else the kernel says.
    pub fn create_slab(&self, slots: u32, bytes: u32) -> Result<Slab> {
        if slots == 0 || bytes == 0 || bytes > i32::MAX as u32 {
            let cause = "a slab has at least one slot, of 1 byte to 2 GiB - 1";
            return Err(Error::invalid(VERB, cause).asked(format!("{slots} of {bytes} bytes")));
        }
        let stride = (bytes as usize).next_multiple_of(ALIGNMENT);
        let length = stride.checked_mul(slots as usize);
        let length = length.ok_or_else(|| Error::invalid(VERB, "more memory than there is"))?;
        let buffer = Buffer::new(length).map_err(|error| Error::io(VERB, &error))?;
        let start = buffer.as_ptr();
        let region = self.register(buffer, AccessFlags::LOCAL_WRITE)?;
        let slots = self.context().inner().safe.headers.allocate(slots);
        let free = Mutex::new((0..slots.len() as u32).rev().collect());
        let inner = Arc::new(Inner { region, slots, free });
        let slab = Arc::as_ptr(&inner).cast_mut();
        for slot in inner.slots.iter() {
            slot.domain.store(self.identity(), Ordering::Relaxed);
            slot.assign(slab, start.wrapping_add(slot.index as usize * stride), bytes);
        }
        Ok(Slab(inner))
    }
}

impl Header {
    fn new(index: u32) -> Self {
        Self {
            index,
            slab: AtomicPtr::new(ptr::null_mut()),
            start: AtomicPtr::new(ptr::null_mut()),
            capacity: AtomicU32::new(0),
            length: AtomicU32::new(0),
            tag: AtomicU64::new(0),
            domain: AtomicUsize::new(0),
            owner: AtomicU64::new(0),
            cq: AtomicU64::new(0),
            before: AtomicPtr::new(ptr::null_mut()),
            unsignaled: AtomicU32::new(0),
        }
    }

    fn assign(&self, slab: *mut Inner, start: *mut u8, capacity: u32) {
        self.slab.store(slab, Ordering::Relaxed);
        self.start.store(start, Ordering::Relaxed);
        self.capacity.store(capacity, Ordering::Relaxed);
    }

    /// The completion queue that it is or was last in flight to.
    pub(super) fn cq(&self) -> u64 {
        self.cq.load(Ordering::Relaxed)
    }

    fn start(&self) -> *mut u8 {
        self.start.load(Ordering::Relaxed)
    }

    fn capacity(&self) -> u32 {
        self.capacity.load(Ordering::Relaxed)
    }

    fn length(&self) -> u32 {
        self.length.load(Ordering::Relaxed).min(self.capacity())
    }
}

impl Slab {
    /// A slot that nobody has; `None` if all are held or in flight.
    pub fn take(&self) -> Option<Slot> {
        self.pop().or_else(|| {
            // Perhaps a queue pair that is gone still keeps some.
            self.context().inner().safe.reap();
            self.pop()
        })
    }

    fn pop(&self) -> Option<Slot> {
        let index = self.0.lock().pop()?;
        let header = self.0.slots.get(index as usize)?;
        // SAFETY: the pointer came from this Arc; the slot holds the count until it is dropped.
        unsafe { Arc::increment_strong_count(Arc::as_ptr(&self.0)) };
        header.length.store(0, Ordering::Relaxed);
        Some(Slot(NonNull::from(header)))
    }

    /// Bytes per slot.
    pub fn slot_bytes(&self) -> u32 {
        self.0.slots.first().map_or(0, Header::capacity)
    }

    /// Slots that nobody has.
    pub fn free(&self) -> usize {
        self.0.lock().len()
    }

    fn context(&self) -> &Context {
        self.0.region.pd().context()
    }
}

impl Inner {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A piece of a slab, owned: the right to its bytes.
///
/// Dereferences to the filled part (all of it up to [`Slot::set_len`]). Dropping it gives it back to its slab.
pub struct Slot(NonNull<Header>);

// SAFETY: a slot is exclusive access to its bytes and header, which are not bound to a thread.
unsafe impl Send for Slot {}
// SAFETY: `&Slot` only reads.
unsafe impl Sync for Slot {}

impl Slot {
    fn header(&self) -> &Header {
        // SAFETY: the slot's count keeps the slab, which keeps the header.
        unsafe { self.0.as_ref() }
    }

    /// All bytes that it can hold.
    pub fn capacity(&self) -> usize {
        self.header().capacity() as usize
    }

    /// Declares the first `length` bytes (at most the capacity) filled: what a send carries, or how much a
    /// read fetches.
    pub fn set_len(&mut self, length: usize) {
        let length = length.min(self.capacity()) as u32;
        self.header().length.store(length, Ordering::Relaxed);
    }

    /// Copies `bytes` in, as many as fit, and declares them filled; returns how many.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let length = bytes.len().min(self.capacity());
        self.set_len(length);
        self.copy_from_slice(&bytes[..length]);
        length
    }

    /// A number of the program's own that travels with the slot.
    pub fn tag(&self) -> u64 {
        self.header().tag.load(Ordering::Relaxed)
    }

    /// Sets the number that travels with the slot.
    pub fn set_tag(&mut self, tag: u64) {
        self.header().tag.store(tag, Ordering::Relaxed);
    }

    /// The filled part, as a request names it.
    pub(super) fn filled(&self) -> Sge {
        self.piece(self.header().length())
    }

    /// All of it, as a request names it.
    pub(super) fn whole(&self) -> Sge {
        self.piece(self.header().capacity())
    }

    fn piece(&self, length: u32) -> Sge {
        Sge::new(self.header().start() as u64, length, self.lkey())
    }

    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: the slot's count keeps the slab alive.
        unsafe { (*self.header().slab.load(Ordering::Relaxed)).region.lkey() }
    }

    /// What its protection domain is known by.
    #[inline]
    pub(super) fn domain(&self) -> usize {
        self.header().domain.load(Ordering::Relaxed)
    }

    /// Puts the slot into flight; the result is the id of its request.
    #[inline]
    pub(super) fn launch(self, flight: Flight) -> NonNull<Header> {
        self.header().cq.store(flight.cq, Ordering::Relaxed);
        self.header().owner.store(flight.owner, Ordering::Relaxed);
        std::mem::ManuallyDrop::new(self).0
    }

    /// Takes the slot with this header out of `flight`, if that is where it is.
    ///
    /// # Safety
    /// `header` is one that [`Slot::launch`] gave out, its context is alive, and no other thread lands slots of the
    /// same flight meanwhile.
    #[inline]
    pub(super) unsafe fn land(header: NonNull<Header>, flight: Flight) -> Option<Self> {
        // SAFETY: headers live as long as their context.
        let slot = unsafe { header.as_ref() };
        let now = Flight { owner: slot.owner.load(Ordering::Relaxed), cq: slot.cq() };
        if flight.owner == 0 || now != flight {
            return None;
        }
        // Nobody came between: slots of this flight are landed by this thread alone.
        slot.owner.store(0, Ordering::Relaxed);
        Some(Self(header))
    }
}

impl Deref for Slot {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        let header = self.header();
        let length = header.length() as usize;
        // SAFETY: the bytes are mapped and initialized (pages of zeros at first), and while the slot is held
        // neither the device nor anybody else writes them.
        unsafe { std::slice::from_raw_parts(header.start(), length) }
    }
}

impl DerefMut for Slot {
    fn deref_mut(&mut self) -> &mut [u8] {
        let header = self.header();
        let length = header.length() as usize;
        // SAFETY: as for `deref`, and `&mut self` makes it exclusive.
        unsafe { std::slice::from_raw_parts_mut(header.start(), length) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let header = self.header();
        let slab = header.slab.load(Ordering::Relaxed).cast_const();
        let index = header.index;
        // SAFETY: the pointer came from an Arc, and this slot holds one count of it.
        let slab = unsafe { Arc::from_raw(slab) };
        slab.lock().push(index);
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({} of {} bytes)", self.len(), self.capacity())
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;

    fn slab() -> Slab {
        let device = uverbs_soft::chardev::SoftDevice::builder("soft0").without_wire().build();
        let context = crate::Device::from_soft(device.unwrap()).open().unwrap();
        context.alloc_pd().unwrap().create_slab(1, 8).unwrap()
    }

    #[test]
    fn a_slot_lands_once_and_where_it_was_going() {
        let slab = slab();
        let flight = Flight { owner: 7, cq: 3 };
        let header = slab.take().unwrap().launch(flight);
        assert_eq!(slab.free(), 0);
        // Made-up completions: of another queue pair, of another completion queue, of none.
        let lies =
            [Flight { owner: 8, cq: 3 }, Flight { owner: 7, cq: 4 }, Flight { owner: 0, cq: 3 }];
        for lie in lies {
            // SAFETY: launched above, its context alive, and one thread.
            assert!(unsafe { Slot::land(header, lie) }.is_none(), "{lie:?}");
        }
        // SAFETY: as above.
        let landed = unsafe { Slot::land(header, flight) };
        // SAFETY: as above.
        let again = unsafe { Slot::land(header, flight) };
        assert!(landed.is_some() && again.is_none());
        drop(landed);
        assert_eq!(slab.free(), 1);
    }
}
