//! Slots: exclusive access to a part of a slab, and the header that records a slot's state in
//! flight.

#![allow(unsafe_code)]

use std::fmt;
use std::mem::{ManuallyDrop, take};
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use uverbs_mlx5::free_stack::Returned;
use uverbs_mlx5::mmio::InChild;
use uverbs_mlx5::request::Sge;
use uverbs_mlx5::send_queue::RequestId;
use uverbs_mlx5::user_index::QueueHandle;

use super::flight::{CqBits, Flight, Kind, Serial};
use super::posting::cold_path;
use super::slab::Inner;
use crate::device::context::Context;
use crate::device::kept::Deferred;
use crate::error::{Error, Result};
use crate::host::system::Inherited;

/// An owned part of a slab, with exclusive access to its bytes.
///
/// Dereferences to the filled part: empty after [`Slab::take`](crate::Slab::take), later the bytes
/// that were [written](Slot::write), received or read. Dropping it gives it back to its slab.
pub struct Slot(NonNull<Header>);

// SAFETY: a slot is exclusive access to its bytes and header, which are not bound to a thread.
unsafe impl Send for Slot {}
// SAFETY: `&Slot` only reads.
unsafe impl Sync for Slot {}

impl Slot {
    /// Slot `index` of a slab, which the caller has taken from the free ones.
    #[inline]
    pub(super) fn of(slab: &Arc<Inner>, index: u32) -> Option<Self> {
        let header = slab.slots.get(index as usize)?;
        header.set_length(0);
        // SAFETY: the pointer came from this Arc; the slot holds the count until it is dropped.
        unsafe { Arc::increment_strong_count(Arc::as_ptr(slab)) };
        Some(Self(NonNull::from(header)))
    }

    #[inline(always)]
    pub(crate) fn header_pointer(&self) -> NonNull<Header> {
        self.0
    }

    #[inline(always)]
    pub(crate) fn header(&self) -> &Header {
        // SAFETY: the slot's count keeps the slab, which keeps the header.
        unsafe { self.0.as_ref() }
    }

    /// Bytes that it can hold.
    pub fn capacity(&self) -> usize {
        self.header().capacity() as usize
    }

    /// Sets the length of the filled part, which a send transmits or a READ fills; the bytes keep
    /// the contents of earlier uses. Returns the new length, which is at most the capacity.
    #[inline]
    pub fn set_len(&mut self, length: usize) -> usize {
        self.header().set_length(length)
    }

    /// Copies `bytes` into the slot and sets its length to theirs.
    ///
    /// # Errors
    /// `InvalidInput`, without any change, if they exceed the capacity.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() > self.capacity() {
            let cause = format!("{} bytes do not fit into {}", bytes.len(), self.capacity());
            return Err(Error::invalid("slot_write", cause).cure_with("use a slab of longer slots"));
        }
        self.set_len(bytes.len());
        self.copy_from_slice(bytes);
        Ok(())
    }

    /// The program's number for the slot, which stays with it while it is in flight.
    pub fn tag(&self) -> u64 {
        self.header().tag().load(Ordering::Relaxed)
    }

    /// Sets the program's number for the slot.
    pub fn set_tag(&mut self, tag: u64) {
        self.header().tag().store(tag, Ordering::Relaxed);
    }

    /// The SGE of the filled part.
    #[inline(always)]
    pub(crate) fn filled(&self) -> Sge {
        self.header().filled()
    }

    /// The SGE of the whole slot.
    #[inline(always)]
    pub(crate) fn whole(&self) -> Sge {
        self.header().whole()
    }
}

impl Deref for Slot {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        let header = self.header();
        let length = header.length() as usize;
        // SAFETY: the slab, which the slot's count keeps, has the bytes mapped and initialized
        // (pages of zeros at first, or a `Buffer`), and the length is at most the capacity. No
        // other code can access them: the slab has no view, and its slots do not overlap. No
        // request names them: the slot is new from `take`, or it has landed. It lands once: by the
        // one thread that polls the completion queue of the flight, or by an atomic exchange
        // (`land_id`, `land_shared`). It lands for the completion of a request that was
        // outstanding, which the poller checks, or because the queue was destroyed or reset. No
        // peer can access the bytes: the region has no remote rights. The device does not write for
        // a request that it has completed; a faulty device could write anywhere in a region.
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
    /// Passes the pointer by value to a function out of line, so that a slot can stay in a
    /// register.
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: `self` is being dropped, so this is the last use of its header.
        unsafe { give_back(self.0) };
    }
}

/// Gives a slot back to its slab.
///
/// # Safety
/// The caller owns the slot and does not use it afterwards.
#[inline(never)]
unsafe fn give_back(header: NonNull<Header>) {
    drop(Together::of(Slot(header)));
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({} of {} bytes)", self.len(), self.capacity())
    }
}

/// The header that a slot points to.
///
/// While a program owns the slot, only the owner uses the header. While it is in flight, the
/// posting thread writes it before the request is published, and the polling thread reads it after
/// the completion. The device provides that order, so the atomics are relaxed.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Header {
    /// The [`Flight`] that it is in; 0 while it is owned by the program or free.
    flight: AtomicU64,
    /// Always 0, which is not a flight. Ids of requests that only release a chain ([`RELEASES`])
    /// are the address of this word.
    nothing: AtomicU64,
    /// The first words of the [`Sge`]s of the filled part and of the whole slot; `address` is the
    /// second word of both.
    filled: AtomicU64,
    whole: AtomicU64,
    address: AtomicU64,
    /// The protection domain of its memory.
    domain: AtomicUsize,
    /// The slot that was posted unsignaled before this one, and is released with it. Valid only in
    /// flights with a chain.
    before: AtomicPtr<Header>,
    capacity: AtomicU32,
    index: u32,
    tag: AtomicU64,
    slab: AtomicPtr<Inner>,
}

/// The domain of slots in a forked child. No queue has this domain.
pub(crate) const INHERITED: usize = usize::MAX;

impl Inherited for Header {
    fn in_child(&self, _: InChild) {
        self.domain.store(INHERITED, Ordering::Relaxed);
    }
}

/// A range of memory to assign to a header.
pub(crate) struct Span {
    pub(crate) start: *mut u8,
    pub(crate) capacity: u32,
    pub(crate) lkey: u32,
    pub(crate) domain: usize,
}

impl Header {
    pub(crate) fn new(index: u32) -> Self {
        Self {
            flight: AtomicU64::new(0),
            nothing: AtomicU64::new(0),
            filled: AtomicU64::new(0),
            whole: AtomicU64::new(0),
            address: AtomicU64::new(0),
            domain: AtomicUsize::new(0),
            before: AtomicPtr::new(ptr::null_mut()),
            capacity: AtomicU32::new(0),
            index,
            tag: AtomicU64::new(0),
            slab: AtomicPtr::new(ptr::null_mut()),
        }
    }

    pub(crate) fn assign(&self, slab: *mut Inner, span: &Span) {
        self.slab.store(slab, Ordering::Relaxed);
        let start = span.start.expose_provenance() as u64;
        let [whole, address] = Sge::new(start, span.capacity, span.lkey).to_words();
        self.whole.store(whole, Ordering::Relaxed);
        self.address.store(address, Ordering::Relaxed);
        self.capacity.store(span.capacity, Ordering::Relaxed);
        self.set_length(0);
        self.domain.store(span.domain, Ordering::Relaxed);
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    pub(crate) fn slab(&self) -> *const Inner {
        self.slab.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn start(&self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.whole().address() as usize)
    }

    #[inline(always)]
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn length(&self) -> u32 {
        self.filled().length()
    }

    /// Sets the length of the filled part, at most the capacity; returns it.
    #[inline(always)]
    pub(crate) fn set_length(&self, length: usize) -> usize {
        let length = length.min(self.capacity() as usize);
        // The first word does not depend on the address.
        let whole = Sge::from_words([self.whole.load(Ordering::Relaxed), 0]);
        let [filled, _] = whole.with_length(length as u32).to_words();
        self.filled.store(filled, Ordering::Relaxed);
        length
    }

    pub(crate) fn tag(&self) -> &AtomicU64 {
        &self.tag
    }

    #[inline(always)]
    pub(crate) fn domain(&self) -> usize {
        self.domain.load(Ordering::Relaxed)
    }

    /// The SGE of the filled part of its memory.
    #[inline(always)]
    pub(crate) fn filled(&self) -> Sge {
        Self::sge(&self.filled, &self.address)
    }

    /// The SGE of all its memory.
    #[inline(always)]
    pub(crate) fn whole(&self) -> Sge {
        Self::sge(&self.whole, &self.address)
    }

    #[inline(always)]
    fn sge(first: &AtomicU64, second: &AtomicU64) -> Sge {
        Sge::from_words([first.load(Ordering::Relaxed), second.load(Ordering::Relaxed)])
    }

    #[inline(always)]
    fn flight(&self) -> Flight {
        Flight(self.flight.load(Ordering::Relaxed))
    }
}

/// Added to a header's address in the id of a request without a slot that only releases the chain
/// ending in that header's slot. The sum is the address of `nothing`, which never matches a flight.
const RELEASES: u64 = std::mem::offset_of!(Header, nothing) as u64;

/// The newest of several slots that were posted unsignaled one after the other. Each header points
/// to the one before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chain(*mut Header);

// SAFETY: the pointer leads to slots in flight, which are not bound to a thread.
unsafe impl Send for Chain {}

impl Chain {
    pub(crate) const EMPTY: Self = Self(ptr::null_mut());

    #[inline(always)]
    pub(crate) fn is_empty(self) -> bool {
        self.0.is_null()
    }

    /// The chain that ends in `slot`, which was posted with [`Launch::following`].
    #[inline(always)]
    pub(crate) fn ending_in(slot: &Slot) -> Self {
        Self(slot.header_pointer().as_ptr())
    }

    /// The id of a signaled request without a slot whose completion releases the chain.
    #[inline(always)]
    pub(crate) fn releasing_id(self) -> u64 {
        if self.is_empty() { 0 } else { self.0.expose_provenance() as u64 + RELEASES }
    }
}

/// The header that a request's id names. Ids of safe queues are 0 or a header's address, plus
/// [`RELEASES`] in some.
#[inline(always)]
pub(crate) fn header_of(wr_id: u64) -> Option<NonNull<Header>> {
    NonNull::new(ptr::with_exposed_provenance_mut((wr_id & !RELEASES) as usize))
}

/// Marks a slot as in flight, when its request can no longer be refused. Until then the caller owns
/// the slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Launch {
    header: NonNull<Header>,
    flight: Flight,
}

impl Launch {
    #[inline(always)]
    pub(crate) fn new(slot: &Slot, flight: Flight) -> Self {
        Self { header: slot.header_pointer(), flight }
    }

    /// For a send after the unsignaled sends of `before`: an unsignaled one, or the signaled one
    /// whose completion releases the chain.
    #[inline(always)]
    pub(crate) fn following(self, before: Chain, kind: Kind) -> Self {
        // SAFETY: the slot, which the caller still owns, keeps its header.
        unsafe { self.header.as_ref() }.before.store(before.0, Ordering::Relaxed);
        Self { flight: self.flight.of(kind), ..self }
    }

    /// The chain before it, to restore when the send is refused.
    #[cold]
    pub(crate) fn before(self) -> Option<Chain> {
        // SAFETY: as for `following`.
        let header = unsafe { self.header.as_ref() };
        self.flight.has_chain().then(|| Chain(header.before.load(Ordering::Relaxed)))
    }

    /// The id of its request.
    #[inline(always)]
    pub(crate) fn id(self) -> u64 {
        self.header.as_ptr().expose_provenance() as u64
    }

    /// Marks the slot as in flight.
    #[inline(always)]
    pub(crate) fn start(self) {
        // SAFETY: the slot, which the caller still owns, keeps its header.
        unsafe { self.header.as_ref() }.flight.store(self.flight.0, Ordering::Relaxed);
    }

    /// Marks the slot as in flight for a receive into all of it. Returns the id and the SGE of the
    /// request; the SGE has 1 to 2^31 - 1 bytes.
    #[inline(always)]
    pub(crate) fn receive(self) -> (u64, Sge) {
        self.start();
        // SAFETY: as for `start`.
        (self.id(), unsafe { self.header.as_ref() }.whole())
    }
}

impl RequestId for Launch {
    #[inline(always)]
    fn take(self) -> u64 {
        self.start();
        self.id()
    }
}

/// Returns the slot of the request with this id, if it is in `flight`, and ends the flight.
///
/// # Safety
/// The id is 0 or that of a [`Launch`] or of [`Chain::releasing_id`], the context of its header is
/// alive, and no other thread lands slots of the same flight meanwhile.
#[inline(always)]
pub(crate) unsafe fn land_id(wr_id: u64, flight: Flight) -> Option<Slot> {
    let word = NonNull::new(ptr::with_exposed_provenance_mut::<AtomicU64>(wr_id as usize))?;
    // SAFETY: the header's `flight` or `nothing`; headers live as long as their context.
    let word = unsafe { word.as_ref() };
    if word.load(Ordering::Relaxed) != flight.0 {
        cold_path();
        return None;
    }
    // A plain store is enough: only this thread lands slots of this flight.
    word.store(0, Ordering::Relaxed);
    // It was in flight, so the word is a header's first, and no other code owns the slot.
    Some(Slot(NonNull::from(word).cast()))
}

/// The slot of a send that [`land_id`] does not return: the send failed, or also releases other
/// slots.
///
/// # Safety
/// The id is 0 or that of a [`Launch`] or of [`Chain::releasing_id`], the context of its header is
/// alive, and only this thread lands slots that complete to `cq`.
#[cold]
#[inline(never)]
pub(crate) unsafe fn land_other(wr_id: u64, serial: Serial, cq: CqBits) -> Option<Slot> {
    let header = header_of(wr_id)?;
    let sends = serial.sends(cq);
    if wr_id & RELEASES != 0 {
        // SAFETY: they were posted unsignaled before this request on the same send queue, and only
        // it releases them.
        unsafe { release_chain(header.as_ptr(), sends) };
        return None;
    }
    // SAFETY: the caller's promise.
    if let Some(slot) = unsafe { land(header, sends) } {
        return Some(slot);
    }
    // A failed unsignaled send completes too, and has the kind `Unsignaled`; its slot stays in
    // flight until the next signaled send. SAFETY: the caller's promise.
    let slot = unsafe { land(header, sends.of(Kind::Chained)) }?;
    // SAFETY: as for a request that only releases.
    unsafe { release_chain(slot.header().before.load(Ordering::Relaxed), sends) };
    Some(slot)
}

/// Returns the slot with this header, if it is in `flight`, and ends the flight.
///
/// # Safety
/// A [`Launch`] had `header`, its context is alive, and no other thread lands slots of the same
/// flight meanwhile.
#[inline(always)]
pub(crate) unsafe fn land(header: NonNull<Header>, flight: Flight) -> Option<Slot> {
    // SAFETY: the caller's promise.
    unsafe { land_id(header.as_ptr().expose_provenance() as u64, flight) }
}

/// As [`land`], for flights whose slots several threads may land: pollers of different completion
/// queues.
///
/// # Safety
/// A [`Launch`] had `header`, and its context is alive.
#[inline(always)]
pub(crate) unsafe fn land_shared(header: NonNull<Header>, flight: Flight) -> Option<Slot> {
    // SAFETY: headers live as long as their context.
    let slot = unsafe { header.as_ref() };
    let (relaxed, held) = (Ordering::Relaxed, 0);
    slot.flight.compare_exchange(flight.0, held, relaxed, relaxed).ok()?;
    // It was in flight, so no other code owns it.
    Some(Slot(header))
}

/// Gives back a chain of slots that were posted unsignaled on a send queue, from `header` back to
/// the first.
///
/// # Safety
/// As for [`land`].
unsafe fn release_chain(mut header: *mut Header, sends: Flight) {
    let mut last: Option<Together> = None;
    while let Some(current) = NonNull::new(header) {
        // SAFETY: the caller's promise.
        let landed = unsafe { land(current, sends.of(Kind::Unsignaled)) };
        let Some(slot) = landed else { return };
        header = slot.header().before.load(Ordering::Relaxed);
        match &mut last {
            Some(together) if together.is_of(&slot) => together.add(slot),
            _ => last = Some(Together::of(slot)),
        }
    }
}

/// Slots of one slab, which go back to it in one step when this is dropped.
struct Together {
    /// With the first slot's count.
    slab: Arc<Inner>,
    numbers: Returned,
}

impl Together {
    #[inline(always)]
    fn of(slot: Slot) -> Self {
        let slot = ManuallyDrop::new(slot);
        // SAFETY: the pointer came from an Arc, and the slot, which is not dropped, held one count
        // of it.
        let slab = unsafe { Arc::from_raw(slot.header().slab()) };
        let mut numbers = Returned::default();
        slab.free.add(&mut numbers, slot.header().index());
        Self { slab, numbers }
    }

    fn is_of(&self, slot: &Slot) -> bool {
        Arc::as_ptr(&self.slab) == slot.header().slab()
    }

    fn add(&mut self, slot: Slot) {
        let slot = ManuallyDrop::new(slot);
        self.slab.free.add(&mut self.numbers, slot.header().index());
        // SAFETY: as for `of`; `slab` has another count.
        unsafe { Arc::decrement_strong_count(slot.header().slab()) };
    }
}

impl Drop for Together {
    #[inline(always)]
    fn drop(&mut self) {
        self.slab.free.give_back(take(&mut self.numbers));
    }
}

/// Gives back a slot and the unsignaled ones before it, if it is in flight on this queue.
///
/// # Safety
/// As for [`land`], for all flights of the queue.
pub(crate) unsafe fn release_all(header: NonNull<Header>, serial: Serial) {
    // SAFETY: headers live as long as their context, which the caller holds.
    let flight = unsafe { header.as_ref() }.flight();
    if !flight.is_on(serial) {
        return;
    }
    // By an exchange: a faulty device may have written a completion of this slot to another
    // completion queue, which another thread polls at the same time. SAFETY: the caller promises
    // that a launch had the header, and that its context is alive.
    let Some(slot) = (unsafe { land_shared(header, flight) }) else { return };
    if flight.has_chain() {
        // SAFETY: the caller's promise.
        unsafe { release_chain(slot.header().before.load(Ordering::Relaxed), flight) };
    }
}

/// The headers of a slab's slots. They outlive the slab, and later slabs with the same number of
/// slots reuse them, so that the id in a completion is always the address of a header.
#[derive(Debug)]
pub(crate) struct Headers(Arc<[Header]>);

impl Headers {
    /// Headers for `count` slots of a slab of `context`. `None` in a forked child if the lock was
    /// held at the fork.
    pub(crate) fn allocate(context: &Context, count: u32) -> Option<Arc<[Header]>> {
        let kept = &context.inner().kept;
        let is_unused = |headers: &Self| Arc::strong_count(&headers.0) == 1;
        let make = || Self((0..count).map(Header::new).collect());
        Some(kept.block(count as usize, is_unused, make)?.0.clone())
    }
}

/// A destroyed queue pair or shared receive queue, or one that was reset, and the slots that were
/// in flight on it. They are released after its completion queues were polled past their
/// completions, or destroyed.
#[derive(Debug)]
pub(crate) struct Abandoned {
    handle: Option<QueueHandle>,
    /// Ids of requests of a queue pair. Receives of a shared queue are found when they are
    /// released, because queue pairs may still consume some.
    ids: Vec<u64>,
    /// Unsignaled sends of a queue pair after its last signaled one.
    pending: Chain,
    serial: Serial,
}

impl Abandoned {
    /// # Safety
    /// The ids and `pending` are of requests of the safe queue with this number and handle, which
    /// is destroyed or was reset.
    pub(crate) unsafe fn new(
        handle: Option<QueueHandle>,
        ids: Vec<u64>,
        pending: Chain,
        serial: Serial,
    ) -> Self {
        Self { handle, ids, pending, serial }
    }
}

impl Deferred for Abandoned {
    fn is_ready(&self) -> bool {
        self.handle.as_ref().is_none_or(QueueHandle::has_drained)
    }

    fn release(mut self: Box<Self>) {
        let ids = &mut self.ids;
        self.handle
            .iter()
            .for_each(|handle| handle.state().for_each_shared_receive(|id| ids.push(id)));
        let headers = self.ids.iter().filter_map(|id| header_of(*id));
        for header in headers.chain(NonNull::new(self.pending.0)) {
            // SAFETY: the caller of a release holds the context of these headers: ids of safe
            // queues name no others. They were launched on this queue, which was destroyed or
            // reset; its completion queues have been polled past it, so no other thread lands them.
            // Slots that have completed are no longer in flight on it.
            unsafe { release_all(header, self.serial) };
        }
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests;
