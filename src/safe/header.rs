//! What a slot's pointer leads to, and where slots in flight are known to be.

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use uverbs_mlx5::request::Sge;
use uverbs_mlx5::send_queue::RequestId;

use super::slab::{Inner, Slot};
use crate::events::ObjectId;
use crate::fork::Lock;

/// Bits of a flight below the queue's serial number: the number of a completion queue, and [`RECEIVES`].
const SERIAL_SHIFT: u32 = 25;
const RECEIVES: u64 = 1 << 24;
/// Completion queues have numbers of 24 bits.
const CQ_MASK: u64 = RECEIVES - 1;
/// In [`Header::before`]: the slot was posted unsignaled, and another one's completion releases it.
const UNSIGNALED: usize = 1;

/// Names a queue pair or shared receive queue for as long as the program runs: 39 bits, never used again. It is what
/// completions of the queue hand back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Serial(u64);

impl Serial {
    pub(super) fn new() -> Self {
        Self(ObjectId::new().0 << SERIAL_SHIFT)
    }

    /// Of a completion, whose queue was registered with [`Serial::get`].
    #[inline(always)]
    pub(super) fn of(user_context: u64) -> Self {
        Self(user_context)
    }

    pub(super) fn get(self) -> u64 {
        self.0
    }

    /// Sends that complete to the completion queue with this number.
    #[inline(always)]
    pub(super) fn sends(self, cq: u32) -> Flight {
        Flight(self.0 | u64::from(cq) & CQ_MASK)
    }

    /// Receives of its own that complete to the completion queue with this number.
    #[inline(always)]
    pub(super) fn receives(self, cq: u32) -> Flight {
        Flight(self.0 | RECEIVES | u64::from(cq) & CQ_MASK)
    }

    /// Receives that any queue pair of it consumes, wherever that completes.
    #[inline(always)]
    pub(super) fn shared_receives(self) -> Flight {
        Flight(self.0 | RECEIVES)
    }
}

/// On which queue a slot is in flight, in which direction, and to which completion queue. Never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flight(u64);

/// What a slot's pointer leads to.
///
/// While a slot is held its holder alone uses the header; while it is in flight the posting thread writes it
/// before the request is published and the polling thread reads it after the completion. Relaxed atomics,
/// because that order comes from the device.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Header {
    start: AtomicPtr<u8>,
    /// At most `capacity`.
    length: AtomicU32,
    lkey: AtomicU32,
    /// The protection domain of its memory.
    domain: AtomicUsize,
    /// The [`Flight`] that it is in; 0 while it is held or free.
    flight: AtomicU64,
    /// The one that it will be in once it is posted.
    planned: AtomicU64,
    /// The slot posted unsignaled before this one, which is released with it; see [`UNSIGNALED`].
    before: AtomicPtr<Header>,
    tag: AtomicU64,
    slab: AtomicPtr<Inner>,
    capacity: AtomicU32,
    index: u32,
}

/// A place in memory to assign to a header.
pub(super) struct Piece {
    pub(super) start: *mut u8,
    pub(super) capacity: u32,
    pub(super) lkey: u32,
    pub(super) domain: usize,
}

impl Header {
    pub(super) fn new(index: u32) -> Self {
        Self {
            start: AtomicPtr::new(ptr::null_mut()),
            length: AtomicU32::new(0),
            lkey: AtomicU32::new(0),
            domain: AtomicUsize::new(0),
            flight: AtomicU64::new(0),
            planned: AtomicU64::new(0),
            before: AtomicPtr::new(ptr::null_mut()),
            tag: AtomicU64::new(0),
            slab: AtomicPtr::new(ptr::null_mut()),
            capacity: AtomicU32::new(0),
            index,
        }
    }

    pub(super) fn assign(&self, slab: *mut Inner, piece: &Piece) {
        self.slab.store(slab, Ordering::Relaxed);
        self.start.store(piece.start, Ordering::Relaxed);
        self.length.store(0, Ordering::Relaxed);
        self.capacity.store(piece.capacity, Ordering::Relaxed);
        self.lkey.store(piece.lkey, Ordering::Relaxed);
        self.domain.store(piece.domain, Ordering::Relaxed);
    }

    pub(super) fn index(&self) -> u32 {
        self.index
    }

    pub(super) fn slab(&self) -> *const Inner {
        self.slab.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn start(&self) -> *mut u8 {
        self.start.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn capacity(&self) -> u32 {
        self.capacity.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn length(&self) -> u32 {
        self.length.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn set_length(&self, length: usize) {
        let length = length.min(self.capacity() as usize) as u32;
        self.length.store(length, Ordering::Relaxed);
    }

    pub(super) fn tag(&self) -> &AtomicU64 {
        &self.tag
    }

    #[inline(always)]
    pub(super) fn domain(&self) -> usize {
        self.domain.load(Ordering::Relaxed)
    }

    /// `length` bytes of its memory, as a request names them.
    #[inline(always)]
    pub(super) fn piece(&self, length: u32) -> Sge {
        Sge { address: self.start() as u64, length, lkey: self.lkey.load(Ordering::Relaxed) }
    }

    #[inline(always)]
    fn flight(&self) -> u64 {
        self.flight.load(Ordering::Relaxed)
    }

    /// Whether the slot was posted unsignaled, and which one so before it.
    #[inline(always)]
    pub(super) fn chain(&self) -> (bool, *mut Header) {
        let before = self.before.load(Ordering::Relaxed);
        (before.addr() & UNSIGNALED != 0, before.map_addr(|addr| addr & !UNSIGNALED))
    }

    /// Whether it is in any flight of the queue with this number.
    fn is_on(&self, serial: Serial) -> bool {
        self.flight() >> SERIAL_SHIFT == serial.0 >> SERIAL_SHIFT
    }
}

/// Bit of a request's id: it carries no slot itself, and releases the chain that ends in the slot named.
const RELEASES: u64 = 1;

/// The id of a signaled request without a slot: when it completes, the chain of slots `pending` before it goes back.
#[inline(always)]
pub(super) fn id_that_releases(pending: *mut Header) -> u64 {
    if pending.is_null() { 0 } else { pending.expose_provenance() as u64 | RELEASES }
}

/// Whether the request with this id is one of [`id_that_releases`].
#[inline(always)]
pub(super) fn releases_only(wr_id: u64) -> bool {
    wr_id & RELEASES != 0
}

/// The header that the id of a request leads to. Ids of safe queues are 0 or a header's address, [`RELEASES`] aside.
#[inline(always)]
pub(super) fn header_of(wr_id: u64) -> Option<NonNull<Header>> {
    NonNull::new(ptr::with_exposed_provenance_mut((wr_id & !RELEASES) as usize))
}

/// Puts a slot into flight once its request is sure to be posted; until then it is its holder's, and only its header
/// says where it is going to be. One word, so that it travels in a register.
#[derive(Debug, Clone, Copy)]
pub(super) struct Launch(NonNull<Header>);

impl Launch {
    /// Of a send: a signaled one releases, when it completes, the chain of those `pending` before it.
    #[inline(always)]
    pub(super) fn send(
        slot: &Slot,
        flight: Flight,
        pending: *mut Header,
        is_unsignaled: bool,
    ) -> Self {
        let mark = if is_unsignaled { UNSIGNALED } else { 0 };
        Self::plan(slot, flight, pending.map_addr(|addr| addr | mark))
    }

    #[inline(always)]
    pub(super) fn receive(slot: &Slot, flight: Flight) -> Self {
        Self::plan(slot, flight, ptr::null_mut())
    }

    #[inline(always)]
    fn plan(slot: &Slot, flight: Flight, before: *mut Header) -> Self {
        slot.header().before.store(before, Ordering::Relaxed);
        slot.header().planned.store(flight.0, Ordering::Relaxed);
        Self(slot.header_pointer())
    }

    /// The id of its request.
    #[inline(always)]
    pub(super) fn id(self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    /// The slot is in flight from here on.
    #[inline(always)]
    pub(super) fn start(self) {
        // SAFETY: the slot, which the caller still has, keeps its header.
        let header = unsafe { self.0.as_ref() };
        header.flight.store(header.planned.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl RequestId for Launch {
    #[inline(always)]
    fn take(self) -> u64 {
        self.start();
        self.id()
    }
}

/// Takes the slot with this header out of `flight`, if that is where it is.
///
/// # Safety
/// `header` is one that a [`Launch`] gave out, its context is alive, and no other thread lands slots of the
/// same flight meanwhile.
#[inline(always)]
pub(super) unsafe fn land(header: NonNull<Header>, flight: Flight) -> Option<Slot> {
    // SAFETY: headers live as long as their context.
    let slot = unsafe { header.as_ref() };
    if slot.flight() != flight.0 {
        return None;
    }
    // Nobody came between: slots of this flight are landed by this thread alone.
    slot.flight.store(0, Ordering::Relaxed);
    // SAFETY: it was in flight, so nobody has it.
    Some(unsafe { Slot::from_flight(header) })
}

/// As [`land`], where several threads may land slots of the flight: pollers of different completion queues.
///
/// # Safety
/// `header` is one that a [`Launch`] gave out, and its context is alive.
#[inline(always)]
pub(super) unsafe fn land_shared(header: NonNull<Header>, flight: Flight) -> Option<Slot> {
    // SAFETY: headers live as long as their context.
    let slot = unsafe { header.as_ref() };
    let (relaxed, held) = (Ordering::Relaxed, 0);
    slot.flight.compare_exchange(flight.0, held, relaxed, relaxed).ok()?;
    // SAFETY: it was in flight, so nobody has it.
    Some(unsafe { Slot::from_flight(header) })
}

/// Gives back a slot in `flight` and everything that was posted unsignaled before it.
///
/// # Safety
/// As for [`land`].
pub(super) unsafe fn release_chain(mut header: *mut Header, flight: Flight) {
    while let Some(current) = NonNull::new(header) {
        // SAFETY: headers live as long as their context, which the caller holds.
        let (_, before) = unsafe { current.as_ref() }.chain();
        // SAFETY: the caller's promise.
        let Some(slot) = (unsafe { land(current, flight) }) else { return };
        drop(slot);
        header = before;
    }
}

/// Gives back a slot, and everything that was posted unsignaled before it, if it is in flight on this queue.
///
/// # Safety
/// As for [`land`], for all flights of the queue.
pub(super) unsafe fn release_all(header: NonNull<Header>, serial: Serial) {
    // SAFETY: headers live as long as their context, which the caller holds.
    let slot = unsafe { header.as_ref() };
    if slot.is_on(serial) {
        // SAFETY: the caller's promise.
        unsafe { release_chain(header.as_ptr(), Flight(slot.flight())) };
    }
}

/// The headers of a context's slabs. They outlive their slabs and are used again by later ones of the same
/// size, so that a completion that names an old request meets a header in any case.
#[derive(Debug, Default)]
pub(super) struct Headers(Lock<Vec<Arc<[Header]>>>);

impl Headers {
    /// `None` in a forked child that finds them locked.
    pub(super) fn allocate(&self, count: u32) -> Option<Arc<[Header]>> {
        let mut all = self.0.lock()?;
        let unused = |headers: &&Arc<[Header]>| {
            headers.len() == count as usize && Arc::strong_count(headers) == 1
        };
        if let Some(headers) = all.iter().find(unused) {
            return Some(headers.clone());
        }
        let headers: Arc<[Header]> = (0..count).map(Header::new).collect();
        all.push(headers.clone());
        Some(headers)
    }
}

#[cfg(test)]
impl Headers {
    /// Keeps everybody else waiting.
    pub(super) fn hold(&self) -> impl Sized + '_ {
        self.0.lock()
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;
    use crate::Slab;

    fn slab(slots: u32) -> Slab {
        let device = uverbs_soft::chardev::SoftDevice::builder("soft0").without_wire().build();
        let context = crate::Device::from_soft(device.unwrap()).open().unwrap();
        context.alloc_pd().unwrap().create_slab(slots, 8).unwrap()
    }

    fn launch(slab: &Slab, flight: Flight) -> NonNull<Header> {
        let slot = std::mem::ManuallyDrop::new(slab.take().unwrap());
        let launch = Launch::receive(&slot, flight);
        assert_eq!(launch.take(), launch.id());
        header_of(launch.id()).unwrap()
    }

    #[test]
    fn a_slot_lands_once_and_where_it_was_going() {
        let slab = slab(1);
        let (queue, other) = (Serial::new(), Serial::new());
        let flight = queue.sends(3);
        let header = launch(&slab, flight);
        assert_eq!(slab.free(), 0);
        // Made-up completions: of another queue pair, of another completion queue, of the other direction.
        for lie in [other.sends(3), queue.sends(4), queue.receives(3), queue.shared_receives()] {
            // SAFETY: launched above, its context alive, and one thread.
            assert!(unsafe { land(header, lie) }.is_none(), "{lie:?}");
        }
        // SAFETY: as above.
        let landed = unsafe { land(header, flight) };
        // SAFETY: as above.
        let again = unsafe { land(header, flight) };
        assert!(landed.is_some() && again.is_none());
        drop(landed);
        assert_eq!(slab.free(), 1);
    }

    #[test]
    fn of_several_threads_that_land_a_shared_receive_one_gets_it() {
        const ROUNDS: usize = 200;
        let slab = slab(1);
        let flight = Serial::new().shared_receives();
        let wins = std::sync::atomic::AtomicUsize::new(0);
        for _ in 0..ROUNDS {
            let id = launch(&slab, flight).as_ptr().expose_provenance() as u64;
            let start = std::sync::Barrier::new(3);
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        start.wait();
                        // SAFETY: launched above, and its context is alive.
                        let landed = unsafe { land_shared(header_of(id).unwrap(), flight) };
                        wins.fetch_add(landed.iter().count(), Ordering::Relaxed);
                    });
                }
            });
            assert_eq!(slab.free(), 1);
        }
        assert_eq!(wins.into_inner(), ROUNDS);
    }

    #[test]
    fn what_is_left_of_a_queue_goes_back_and_nothing_else() {
        let slab = slab(2);
        let (queue, other) = (Serial::new(), Serial::new());
        let headers = [launch(&slab, queue.receives(9)), launch(&slab, other.receives(9))];
        // SAFETY: launched above, their context alive, and one thread.
        headers.iter().for_each(|header| unsafe { release_all(*header, queue) });
        assert_eq!(slab.free(), 1);
    }
}
