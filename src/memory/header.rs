//! What a slot's pointer leads to, and where slots in flight are known to be.

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use uverbs_mlx5::request::Sge;
use uverbs_mlx5::send_queue::RequestId;

use super::slab::{Inner, Slot};
use crate::device::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::host::channel::Inherited;
use crate::host::events::ObjectId;

/// Bits of a flight below the queue's serial number: a [`Kind`], and the number of a completion queue.
const SERIAL_SHIFT: u32 = 27;
const KIND_SHIFT: u32 = 24;
/// Completion queues have numbers of 24 bits.
const CQ_MASK: u64 = (1 << KIND_SHIFT) - 1;
const KINDS: u64 = (1 << SERIAL_SHIFT) - (1 << KIND_SHIFT);

/// What kind of request carries a slot; none of these: a signaled send that no unsignaled one waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
enum Kind {
    Receive = 1,
    /// A send whose slot another one's completion releases.
    Unsignaled = 2,
    /// A signaled send that releases those before it.
    Chained = 3,
    /// A receive of a shared queue.
    SharedReceive = 4,
}

impl Kind {
    const fn bits(self) -> u64 {
        (self as u64) << KIND_SHIFT
    }
}

/// Names a queue pair or shared receive queue for as long as the program runs: 37 bits, never 0, never used
/// again. It is what completions of the queue hand back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Serial(u64);

impl Serial {
    /// # Errors
    /// `Refused` once 2^37 objects have been made: a number is never used again, so that a completion of an old queue
    /// releases nothing of a new one.
    pub(crate) fn new(verb: &'static str) -> Result<Self> {
        Self::of_object(verb, ObjectId::new().0)
    }

    fn of_object(verb: &'static str, id: u64) -> Result<Self> {
        if id >= 1 << (u64::BITS - SERIAL_SHIFT) {
            let cause =
                "this process has made 2^37 objects, and no number is left for another queue";
            return Err(Error::new(verb, ErrorKind::Refused, cause).cure_with("start it again"));
        }
        Ok(Self(id << SERIAL_SHIFT))
    }

    /// Of a completion, whose queue was registered with [`Serial::get`].
    #[inline(always)]
    pub(crate) fn of(user_context: u64) -> Self {
        Self(user_context)
    }

    pub(crate) fn get(self) -> u64 {
        self.0
    }

    /// What completions of its sends and of its receives hand back: a [`Flight`] but for the completion queue.
    pub(crate) fn side_contexts(self) -> [u64; 2] {
        [self.0, self.0 | Kind::Receive.bits()]
    }

    /// Signaled sends that complete to the completion queue with this number, and release nothing else.
    #[inline(always)]
    pub(crate) fn sends(self, cq: CqBits) -> Flight {
        Flight(self.0 | cq.0)
    }

    /// Receives of its own that complete to the completion queue with this number.
    pub(crate) fn receives(self, cq: CqBits) -> Flight {
        self.sends(cq).of(Kind::Receive)
    }

    /// Receives that any queue pair of it consumes, wherever that completes.
    #[inline(always)]
    pub(crate) fn shared_receives(self) -> Flight {
        Flight(self.0 | Kind::SharedReceive.bits())
    }
}

/// A completion queue, as flights name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CqBits(u64);

impl CqBits {
    pub(crate) fn of(number: u32) -> Self {
        Self(u64::from(number) & CQ_MASK)
    }
}

/// On which queue a slot is in flight, by what kind of request, and to which completion queue. Never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flight(u64);

impl Flight {
    #[inline(always)]
    fn of(self, kind: Kind) -> Self {
        Self(self.0 & !KINDS | kind.bits())
    }

    /// In which a request of its own may have been that completed to `cq`, on a queue that was given
    /// [`Serial::side_contexts`]: a receive, or a signaled send that releases nothing else.
    #[inline(always)]
    pub(crate) fn of_completion(side_context: u64, cq: CqBits) -> Self {
        Self(side_context | cq.0)
    }

    /// The completion queue that requests in this flight complete to.
    #[inline(always)]
    pub(crate) fn cq(self) -> CqBits {
        CqBits(self.0 & CQ_MASK)
    }

    /// Whether a flight [of a completion](Flight::of_completion) is of a receive.
    #[inline(always)]
    pub(crate) fn is_of_receive(self) -> bool {
        self.0 & KINDS != 0
    }

    /// Whether other slots are to be released with the one in this flight.
    fn has_chain(self) -> bool {
        self == self.of(Kind::Unsignaled) || self == self.of(Kind::Chained)
    }
}

/// What a slot's pointer leads to.
///
/// While a slot is held its holder alone uses the header; while it is in flight the posting thread writes it
/// before the request is published and the polling thread reads it after the completion. Relaxed atomics,
/// because that order comes from the device.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Header {
    /// The [`Flight`] that it is in; 0 while it is held or free.
    flight: AtomicU64,
    /// Always 0, so no flight: where the id of a request leads that only [`RELEASES`].
    nothing: AtomicU64,
    /// Its filled part and all of it, as requests name them: the first words of two [`Sge`]s, the second of both is
    /// `address`.
    filled: AtomicU64,
    whole: AtomicU64,
    address: AtomicU64,
    /// The protection domain of its memory.
    domain: AtomicUsize,
    /// The slot posted unsignaled before this one, which is released with it. Means something in flights that have a
    /// chain only.
    before: AtomicPtr<Header>,
    capacity: AtomicU32,
    index: u32,
    tag: AtomicU64,
    slab: AtomicPtr<Inner>,
}

/// The domain of slots in a forked child: no queue's.
const INHERITED: usize = usize::MAX;

impl Inherited for Header {
    fn in_child(&self) {
        self.domain.store(INHERITED, Ordering::Relaxed);
    }
}

/// A place in memory to assign to a header.
pub(crate) struct Piece {
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

    pub(crate) fn assign(&self, slab: *mut Inner, piece: &Piece) {
        self.slab.store(slab, Ordering::Relaxed);
        let start = piece.start.expose_provenance() as u64;
        let [whole, address] = Sge::new(start, piece.capacity, piece.lkey).to_words();
        self.whole.store(whole, Ordering::Relaxed);
        self.address.store(address, Ordering::Relaxed);
        self.capacity.store(piece.capacity, Ordering::Relaxed);
        self.set_length(0);
        self.domain.store(piece.domain, Ordering::Relaxed);
    }

    /// Whether this process is a forked child of the one whose slot it is.
    pub(crate) fn is_inherited(&self) -> bool {
        self.domain() == INHERITED
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

    #[inline(always)]
    pub(crate) fn set_length(&self, length: usize) {
        let length = length.min(self.capacity() as usize) as u32;
        let [filled, _] = self.whole().with_length(length).to_words();
        self.filled.store(filled, Ordering::Relaxed);
    }

    pub(crate) fn tag(&self) -> &AtomicU64 {
        &self.tag
    }

    #[inline(always)]
    pub(crate) fn domain(&self) -> usize {
        self.domain.load(Ordering::Relaxed)
    }

    /// The filled part of its memory, as a request names it.
    #[inline(always)]
    pub(crate) fn filled(&self) -> Sge {
        Self::piece(&self.filled, &self.address)
    }

    /// All of its memory, as a request names it.
    #[inline(always)]
    pub(crate) fn whole(&self) -> Sge {
        Self::piece(&self.whole, &self.address)
    }

    #[inline(always)]
    fn piece(first: &AtomicU64, second: &AtomicU64) -> Sge {
        Sge::from_words([first.load(Ordering::Relaxed), second.load(Ordering::Relaxed)])
    }

    #[inline(always)]
    fn flight(&self) -> Flight {
        Flight(self.flight.load(Ordering::Relaxed))
    }

    /// Whether it is in any flight of the queue with this number.
    fn is_on(&self, serial: Serial) -> bool {
        self.flight().0 >> SERIAL_SHIFT == serial.0 >> SERIAL_SHIFT
    }
}

/// What is added to a header's address in the id of a request that carries no slot itself, and releases the chain that
/// ends in the header's: there lies a word that is no flight, so looking for one finds out.
const RELEASES: u64 = std::mem::offset_of!(Header, nothing) as u64;

/// The id of a signaled request without a slot: when it completes, the chain of slots `pending` before it goes back.
#[inline(always)]
pub(crate) fn id_that_releases(pending: *mut Header) -> u64 {
    if pending.is_null() { 0 } else { pending.expose_provenance() as u64 + RELEASES }
}

/// Whether the request with this id is one of [`id_that_releases`].
fn releases_only(wr_id: u64) -> bool {
    wr_id & RELEASES != 0
}

/// The header that the id of a request leads to. Ids of safe queues are 0 or a header's address, [`RELEASES`] aside.
#[inline(always)]
pub(crate) fn header_of(wr_id: u64) -> Option<NonNull<Header>> {
    NonNull::new(ptr::with_exposed_provenance_mut((wr_id & !RELEASES) as usize))
}

/// Puts a slot into flight once its request is sure to be posted; until then it is its holder's.
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

    /// Of a send, on a queue with `pending` unsignaled ones: a signaled one releases, when it completes, the chain of
    /// those before it.
    #[inline(always)]
    pub(crate) fn send(
        slot: &Slot,
        sends: Flight,
        pending: *mut Header,
        is_unsignaled: bool,
    ) -> Self {
        if pending.is_null() && !is_unsignaled {
            return Self::new(slot, sends);
        }
        slot.header().before.store(pending, Ordering::Relaxed);
        Self::new(slot, sends.of(if is_unsignaled { Kind::Unsignaled } else { Kind::Chained }))
    }

    /// The id of its request.
    #[inline(always)]
    pub(crate) fn id(self) -> u64 {
        self.header.as_ptr().expose_provenance() as u64
    }

    /// The slot is in flight from here on.
    #[inline(always)]
    pub(crate) fn start(self) {
        // SAFETY: the slot, which the caller still has, keeps its header.
        unsafe { self.header.as_ref() }.flight.store(self.flight.0, Ordering::Relaxed);
    }
}

impl RequestId for Launch {
    #[inline(always)]
    fn take(self) -> u64 {
        self.start();
        self.id()
    }
}

/// Takes the slot out of `flight` that the request with this id carried, if that is where it is.
///
/// # Safety
/// The id is 0 or that of a [`Launch`] or of [`id_that_releases`], the context of its header is alive, and no other thread
/// lands slots of the same flight meanwhile.
#[inline(always)]
pub(crate) unsafe fn land_id(wr_id: u64, flight: Flight) -> Option<Slot> {
    let word = NonNull::new(ptr::with_exposed_provenance_mut::<AtomicU64>(wr_id as usize))?;
    // SAFETY: the header's flight, or its word that is none; headers live as long as their context.
    let word = unsafe { word.as_ref() };
    if word.load(Ordering::Relaxed) != flight.0 {
        return None;
    }
    // Nobody came between: slots of this flight are landed by this thread alone.
    word.store(0, Ordering::Relaxed);
    // SAFETY: it was in flight, so the word is a header's first, and nobody has the slot.
    Some(unsafe { Slot::from_flight(NonNull::from(word).cast()) })
}

/// The slot of a send that [`land_id`] does not find: one that failed, or releases others too.
///
/// # Safety
/// The id is 0 or that of a [`Launch`] or of [`id_that_releases`], the context of its header is alive, and this thread
/// alone lands slots that complete to `cq`.
#[cold]
#[inline(never)]
pub(crate) unsafe fn land_other(wr_id: u64, serial: Serial, cq: CqBits) -> Option<Slot> {
    let header = header_of(wr_id)?;
    let sends = serial.sends(cq);
    if releases_only(wr_id) {
        // SAFETY: they were posted unsignaled before it, on the same send queue, and only it releases them.
        unsafe { release_chain(header.as_ptr(), sends) };
        return None;
    }
    // SAFETY: the caller's promise.
    if let Some(slot) = unsafe { land(header, sends) } {
        return Some(slot);
    }
    // One that was posted unsignaled failed, so it completes; whoever was to release it still does.
    // SAFETY: the caller's promise.
    let slot = unsafe { land(header, sends.of(Kind::Chained)) }?;
    // SAFETY: as for one that only releases.
    unsafe { release_chain(slot.header().before.load(Ordering::Relaxed), sends) };
    Some(slot)
}

/// Takes the slot with this header out of `flight`, if that is where it is.
///
/// # Safety
/// `header` is one that a [`Launch`] gave out, its context is alive, and no other thread lands slots of the
/// same flight meanwhile.
#[inline(always)]
pub(crate) unsafe fn land(header: NonNull<Header>, flight: Flight) -> Option<Slot> {
    // SAFETY: the caller's promise.
    unsafe { land_id(header.as_ptr().expose_provenance() as u64, flight) }
}

/// As [`land`], where several threads may land slots of the flight: pollers of different completion queues.
///
/// # Safety
/// `header` is one that a [`Launch`] gave out, and its context is alive.
#[inline(always)]
pub(crate) unsafe fn land_shared(header: NonNull<Header>, flight: Flight) -> Option<Slot> {
    // SAFETY: headers live as long as their context.
    let slot = unsafe { header.as_ref() };
    let (relaxed, held) = (Ordering::Relaxed, 0);
    slot.flight.compare_exchange(flight.0, held, relaxed, relaxed).ok()?;
    // SAFETY: it was in flight, so nobody has it.
    Some(unsafe { Slot::from_flight(header) })
}

/// Gives back the slots that were posted unsignaled on a send queue, from `header` back to the first.
///
/// # Safety
/// As for [`land`].
unsafe fn release_chain(mut header: *mut Header, sends: Flight) {
    while let Some(current) = NonNull::new(header) {
        // SAFETY: the caller's promise.
        let landed = unsafe { land(current, sends.of(Kind::Unsignaled)) };
        let Some(slot) = landed else { return };
        header = slot.header().before.load(Ordering::Relaxed);
    }
}

/// Gives back a slot, and everything that was posted unsignaled before it, if it is in flight on this queue.
///
/// # Safety
/// As for [`land`], for all flights of the queue.
pub(crate) unsafe fn release_all(header: NonNull<Header>, serial: Serial) {
    // SAFETY: headers live as long as their context, which the caller holds.
    let flight = unsafe { header.as_ref() }.flight();
    // SAFETY: as above.
    if !unsafe { header.as_ref() }.is_on(serial) {
        return;
    }
    // By an exchange: a completion that a lying device writes into a queue which the slot never belonged to may be taken by a
    // poller there at the same time.
    // SAFETY: the caller's promise.
    let Some(slot) = (unsafe { land_shared(header, flight) }) else { return };
    if flight.has_chain() {
        // SAFETY: the caller's promise.
        unsafe { release_chain(slot.header().before.load(Ordering::Relaxed), flight) };
    }
}

/// The headers of a slab's slots. They outlive the slab and are used again by later ones of the same size, so that a
/// completion that names an old request meets a header in any case.
#[derive(Debug)]
pub(crate) struct Headers(Arc<[Header]>);

impl Headers {
    /// Headers for `count` slots of a slab of `context`. `None` in a forked child that finds them locked.
    pub(crate) fn allocate(context: &Context, count: u32) -> Option<Arc<[Header]>> {
        let kept = &context.inner().kept;
        let fits = |headers: &Self| {
            headers.0.len() == count as usize && Arc::strong_count(&headers.0) == 1
        };
        let make = || Self((0..count).map(Header::new).collect());
        Some(kept.block(fits, make)?.0.clone())
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;
    use crate::Slab;

    /// What a completion of a send is looked for in, and one of a receive.
    fn completed(queue: Serial, cq: u32) -> [Flight; 2] {
        queue.side_contexts().map(|context| Flight::of_completion(context, CqBits::of(cq)))
    }

    fn slab(slots: u32) -> Slab {
        let device = uverbs_soft::chardev::SoftDevice::builder("soft0").without_wire().build();
        let context = crate::Device::from_soft(device.unwrap()).open().unwrap();
        context.alloc_pd().unwrap().create_slab(slots, 8).unwrap()
    }

    fn launch(slab: &Slab, flight: Flight) -> NonNull<Header> {
        let slot = std::mem::ManuallyDrop::new(slab.take().unwrap());
        let launch = Launch::new(&slot, flight);
        assert_eq!(launch.take(), launch.id());
        header_of(launch.id()).unwrap()
    }

    #[test]
    fn numbers_of_queues_are_never_used_again() {
        let last = (1 << (64 - SERIAL_SHIFT)) - 1;
        assert_eq!(Serial::of_object("test", last).unwrap().get() >> SERIAL_SHIFT, last);
        let error = Serial::of_object("test", last + 1).unwrap_err();
        assert!(error.cause().contains("no number is left"), "{error}");
        assert!(Serial::of_object("test", u64::MAX).is_err());
    }

    #[test]
    fn a_slot_lands_once_and_where_it_was_going() {
        let slab = slab(1);
        let (queue, other) = (Serial::new("test").unwrap(), Serial::new("test").unwrap());
        let flight = queue.sends(CqBits::of(3));
        let header = launch(&slab, flight);
        assert_eq!(slab.free(), 0);
        let id = header.as_ptr() as u64;
        // Made-up completions: of another queue pair, of another completion queue, of another kind of request.
        for [sent, _] in [completed(other, 3), completed(queue, 4)] {
            // SAFETY: launched above, its context alive, and one thread.
            assert!(unsafe { land_id(id, sent) }.is_none(), "{sent:?}");
        }
        for kind in [Kind::Receive, Kind::Unsignaled, Kind::Chained, Kind::SharedReceive] {
            // SAFETY: as above.
            assert!(unsafe { land(header, flight.of(kind)) }.is_none(), "{kind:?}");
        }
        let [sent, received] = completed(queue, 3);
        // SAFETY: as above.
        assert!(unsafe { land_id(id, received) }.is_none());
        // SAFETY: as above.
        let (landed, again) = unsafe { (land_id(id, sent), land_id(id, sent)) };
        assert!(landed.is_some() && again.is_none(), "{landed:?} {again:?}");
        // SAFETY: as above.
        assert!(unsafe { land_id(0, sent) }.is_none(), "no request's id");
        drop(landed);
        assert_eq!(slab.free(), 1);
    }

    #[test]
    fn each_kind_of_request_lands_its_own_way() {
        let slab = slab(1);
        let queue = Serial::new("test").unwrap();
        let land = |flight: Flight, id_offset| {
            let id = launch(&slab, flight).as_ptr() as u64 + id_offset;
            let [sent, received] = completed(queue, 0);
            // SAFETY: launched just now, its context alive, and one thread.
            assert!(unsafe { land_id(id, sent) }.is_none(), "an old completion of a send");
            // SAFETY: as above.
            let landed = unsafe { land_id(id, received) };
            // SAFETY: as above.
            let other = unsafe { land_other(id, queue, CqBits::of(0)) };
            let what = (landed.is_some(), other.is_some());
            drop((landed, other));
            let free = slab.free();
            // SAFETY: as above.
            unsafe { release_all(header_of(id).unwrap(), queue) };
            assert_eq!(slab.free(), 1, "{flight:?}");
            (what, free)
        };
        assert_eq!(land(queue.receives(CqBits::of(0)), 0), ((true, false), 1));
        assert_eq!(land(queue.sends(CqBits::of(0)).of(Kind::Chained), 0), ((false, true), 1));
        // Whoever was to release it still does.
        assert_eq!(land(queue.sends(CqBits::of(0)).of(Kind::Unsignaled), 0), ((false, false), 0));
        assert_eq!(
            land(queue.sends(CqBits::of(0)).of(Kind::Unsignaled), RELEASES),
            ((false, false), 1)
        );
        // Of a shared queue, also where the completion queue's number is 0: several pollers might meet.
        assert_eq!(land(queue.shared_receives(), 0), ((false, false), 0));
    }

    #[test]
    fn of_several_threads_that_land_a_shared_receive_one_gets_it() {
        const ROUNDS: usize = 200;
        let slab = slab(1);
        let flight = Serial::new("test").unwrap().shared_receives();
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
        let (queue, other) = (Serial::new("test").unwrap(), Serial::new("test").unwrap());
        let headers = [
            launch(&slab, queue.receives(CqBits::of(9))),
            launch(&slab, other.receives(CqBits::of(9))),
        ];
        // SAFETY: launched above, their context alive, and one thread.
        headers.iter().for_each(|header| unsafe { release_all(*header, queue) });
        assert_eq!(slab.free(), 1);
    }
}
