//! Queue pairs that take slots.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use uverbs_mlx5::request::{PostError, PostFlags, Sge};
use uverbs_mlx5::send_queue::{AtomicResult, Carries, Inline, Operation, Takes, Ud};
use uverbs_mlx5::user_index::QueueHandle;

use super::completion::SafeCqHandle;
use super::slab::{Flight, Header, Headers, Slot};
use crate::address::AddressVector;
use crate::endpoint::Endpoint;
use crate::error::{DestroyError, Error, Result};
use crate::events::{ObjectId, Wait};
use crate::pd::ProtectionDomain;
use crate::qp::{Connected, Kind, QpBuilder, QpInfo, QueuePair, State};

/// A slot that could not be posted, and why.
pub struct Refused {
    /// The slot, untouched.
    pub slot: Slot,
    /// Why.
    pub reason: PostError,
}

impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Refused({:?})", self.reason)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl std::error::Error for Refused {}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        refused.reason.into()
    }
}

/// Makes a safe queue pair: from [`ProtectionDomain::create_safe_qp`].
#[derive(Debug, Clone)]
#[must_use = "nothing is created until build() is called"]
pub struct SafeQpBuilder<T>(QpBuilder<T>);

impl ProtectionDomain {
    /// Begins to make a queue pair that takes slots and completes to safe completion queues.
    pub fn create_safe_qp<T: Kind>(
        &self,
        send_cq: &SafeCqHandle,
        receive_cq: &SafeCqHandle,
    ) -> SafeQpBuilder<T> {
        SafeQpBuilder(self.create_qp(send_cq.raw(), receive_cq.raw()).for_slots())
    }
}

impl<T: Kind> SafeQpBuilder<T> {
    /// Changes the options that all queue pairs have: sizes, port, rights, path.
    pub fn with(self, change: impl FnOnce(QpBuilder<T>) -> QpBuilder<T>) -> Self {
        Self(change(self.0))
    }

    /// Creates it, in INIT.
    ///
    /// # Errors
    /// As [`QpBuilder::build`]; `InvalidInput` with a shared receive queue, whose receives are not slots.
    pub fn build(self) -> Result<SafeQueuePair<T>> {
        if self.0.has_shared_receives() {
            let cause = "a safe queue pair has receives of its own";
            return Err(Error::invalid("create_qp", cause));
        }
        let signal_all = self.0.signals_all();
        let domain = self.0.domain().identity();
        let owner = ObjectId::new().0;
        let [sends, receives] = self.0.completes_to().map(|cq| Flight { owner, cq: cq.0 });
        let qp = ManuallyDrop::new(self.0.build_for_slots(owner)?);
        Ok(SafeQueuePair { qp, signal_all, domain, sends, receives, pending: ptr::null_mut() })
    }
}

/// A queue pair whose memory in flight is out of everybody's reach: see [the module](crate::safe).
pub struct SafeQueuePair<T: Kind> {
    qp: ManuallyDrop<QueuePair<T>>,
    signal_all: bool,
    /// Whose memory it takes.
    domain: usize,
    /// What its slots in flight are known by; their completions name the owner.
    sends: Flight,
    receives: Flight,
    /// Slots posted unsignaled since the last signaled one, newest first.
    pending: *mut Header,
}

// SAFETY: `pending` leads to slots in flight, which belong to this queue pair and not to a thread.
unsafe impl<T: Kind> Send for SafeQueuePair<T> {}

impl<T: Kind> fmt::Debug for SafeQueuePair<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.qp.fmt(f)
    }
}

impl<T: Kind> SafeQueuePair<T> {
    /// Posts an operation on the filled part of `slot`: what a send or a write carries, or how much a read
    /// fetches.
    ///
    /// # Errors
    /// The slot, with the reason.
    #[inline]
    pub fn post<O>(
        &mut self,
        operation: O,
        slot: Slot,
        flags: PostFlags,
    ) -> std::result::Result<(), Refused>
    where
        T: Carries<O>,
        O: Takes<Sge> + Operation,
    {
        let slot = self.admit(slot)?;
        let data = slot.filled();
        let (header, wr_id) = self.launch(slot, flags);
        // SAFETY: the slot is in flight from here on, so nothing touches its memory until the completion or the
        // destruction of the queue pair, and it keeps the registration.
        let posted = unsafe { self.qp.post_send(wr_id, operation, data, flags) };
        self.settle(header, flags, posted)
    }

    /// Posts an atomic whose result goes into the first 8 bytes of `slot`.
    ///
    /// # Errors
    /// The slot, with the reason: `BadAtomic` also for a slot of less than 8 bytes.
    #[inline]
    pub fn post_atomic<O>(
        &mut self,
        operation: O,
        slot: Slot,
        flags: PostFlags,
    ) -> std::result::Result<(), Refused>
    where
        T: Carries<O>,
        O: Takes<AtomicResult> + Operation,
    {
        let mut slot = self.admit(slot)?;
        if slot.capacity() < 8 {
            return Err(Refused { slot, reason: PostError::BadAtomic });
        }
        slot.set_len(8);
        let result = AtomicResult { address: slot.filled().address, lkey: slot.lkey() };
        let (header, wr_id) = self.launch(slot, flags);
        // SAFETY: as in `post`; slots are aligned to 64 bytes.
        let posted = unsafe { self.qp.post_send(wr_id, operation, result, flags) };
        self.settle(header, flags, posted)
    }

    /// Posts an operation whose data is copied into the request; its completion carries no slot.
    ///
    /// # Errors
    /// Any [`PostError`].
    #[inline]
    pub fn post_inline<'a, O>(
        &mut self,
        operation: O,
        data: &'a [u8],
        flags: PostFlags,
    ) -> std::result::Result<(), PostError>
    where
        T: Carries<O>,
        O: Takes<Inline<'a>> + Operation,
    {
        // SAFETY: inline data demands nothing; 0 is no slot.
        unsafe { self.qp.post_send(0, operation, Inline(data), flags) }
    }

    /// Posts a receive that may fill all of `slot`; [`SafeQueuePair::publish_receives`] tells the device.
    ///
    /// # Errors
    /// The slot, with the reason.
    #[inline]
    pub fn receive(&mut self, slot: Slot) -> std::result::Result<(), Refused> {
        let slot = self.admit(slot)?;
        let data = slot.whole();
        let (header, wr_id) = launch(slot, self.receives, ptr::null_mut(), false);
        // SAFETY: as in `post`.
        let posted = unsafe { self.qp.post_receive(wr_id, &[data]) };
        posted.map_err(|reason| refuse(header, self.receives, reason))
    }

    /// Tells the device of every receive built so far.
    #[inline]
    pub fn publish_receives(&mut self) {
        self.qp.publish_receives();
    }

    /// Memory of another domain the device would refuse, and a slot of another context might not outlive what is
    /// left of this queue pair's requests.
    #[inline]
    fn admit(&self, slot: Slot) -> std::result::Result<Slot, Refused> {
        if slot.domain() == self.domain {
            return Ok(slot);
        }
        Err(Refused { slot, reason: PostError::ForeignMemory })
    }

    /// Puts a slot of a send into flight. A signaled one releases, when it completes, what was posted
    /// unsignaled before it.
    #[inline]
    fn launch(&mut self, slot: Slot, flags: PostFlags) -> (NonNull<Header>, u64) {
        let unsignaled = self.is_unsignaled(flags);
        launch(slot, self.sends, self.pending, unsignaled)
    }

    fn is_unsignaled(&self, flags: PostFlags) -> bool {
        !self.signal_all && !flags.contains(PostFlags::SIGNALED)
    }

    /// After posting: an unsignaled slot waits for the next signaled one, which has taken all before it.
    #[inline]
    fn settle(
        &mut self,
        header: NonNull<Header>,
        flags: PostFlags,
        posted: std::result::Result<(), PostError>,
    ) -> std::result::Result<(), Refused> {
        match posted {
            Ok(()) if self.is_unsignaled(flags) => self.pending = header.as_ptr(),
            Ok(()) => self.pending = ptr::null_mut(),
            Err(reason) => return Err(refuse(header, self.sends, reason)),
        }
        Ok(())
    }

    /// The queue pair number, 24 bits.
    pub fn number(&self) -> u32 {
        self.qp.number()
    }

    /// What events call it.
    pub fn id(&self) -> ObjectId {
        self.qp.id()
    }

    /// The state as far as this process knows.
    pub fn state(&self) -> State {
        self.qp.state()
    }

    /// What a peer needs to connect to it, or to send datagrams to it.
    pub fn endpoint(&self) -> Endpoint {
        self.qp.endpoint()
    }

    /// The address vector that leads to `peer`.
    ///
    /// # Errors
    /// `InvalidInput` where the two cannot talk.
    pub fn address_of(&self, peer: &Endpoint) -> Result<AddressVector> {
        self.qp.address_of(peer)
    }

    /// Asks the device for all attributes.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn query(&self) -> Result<QpInfo> {
        self.qp.query()
    }

    /// Moves to ERR: everything outstanding is flushed, and its slots come back.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn fail(&mut self) -> Result<()> {
        self.qp.fail()
    }

    /// Destroys it, waiting until every event got for it has been acknowledged. Slots that were in flight
    /// go back to their slabs.
    ///
    /// # Errors
    /// As [`QueuePair::destroy`]. It comes back unharmed.
    pub fn destroy(mut self) -> std::result::Result<(), DestroyError<Self>> {
        self.qp.destroy_in_place(Wait::Forever).map_err(|error| DestroyError::new(self, error))
    }
}

impl<T: Connected> SafeQueuePair<T> {
    /// Connects to a peer: see [`QueuePair::connect`].
    ///
    /// # Errors
    /// As there.
    pub fn connect(&mut self, peer: &Endpoint) -> Result<()> {
        self.qp.connect(peer)
    }
}

impl SafeQueuePair<Ud> {
    /// Takes the queue pair to RTS: see [`QueuePair::activate`].
    ///
    /// # Errors
    /// As there.
    pub fn activate(&mut self) -> Result<()> {
        self.qp.activate()
    }
}

impl<T: Kind> Drop for SafeQueuePair<T> {
    fn drop(&mut self) {
        let context = self.qp.context().clone();
        let grave = self.qp.end().then(|| self.grave());
        // SAFETY: `self` is being dropped, so this is the last use of `qp`.
        unsafe { ManuallyDrop::drop(&mut self.qp) };
        if let Some(grave) = grave {
            context.inner().safe.bury(grave);
        }
    }
}

impl<T: Kind> SafeQueuePair<T> {
    /// What is in flight at the end. The queue pair is destroyed and closed, so the device completes nothing
    /// more; a poller may still be taking what had completed before.
    fn grave(&mut self) -> Grave {
        let mut slots = Vec::new();
        let mut note = |wr_id: u64| slots.extend(header_of(wr_id));
        // SAFETY: they are only looked at.
        let (mut send, mut receive) = unsafe { self.qp.queues() };
        let handle = send.as_ref().map(|send| send.handle().clone());
        let handle = handle.or_else(|| receive.as_ref().map(|receive| receive.handle().clone()));
        send.iter_mut().for_each(|send| send.for_each_outstanding(&mut note));
        receive.iter_mut().for_each(|receive| receive.for_each_outstanding(&mut note));
        slots.extend(NonNull::new(self.pending));
        Grave { handle, slots, owner: self.sends.owner }
    }
}

/// Puts a slot into flight; the second result is the id of its request.
#[inline]
fn launch(
    slot: Slot,
    flight: Flight,
    before: *mut Header,
    unsignaled: bool,
) -> (NonNull<Header>, u64) {
    let header = slot.launch(flight);
    // SAFETY: a slot in flight keeps its header.
    let slot = unsafe { header.as_ref() };
    slot.unsignaled.store(unsignaled.into(), Ordering::Relaxed);
    slot.before.store(before, Ordering::Relaxed);
    (header, header.as_ptr().expose_provenance() as u64)
}

/// The slot comes back: no request carries it.
#[cold]
fn refuse(header: NonNull<Header>, flight: Flight, reason: PostError) -> Refused {
    // SAFETY: just launched by this thread, and posted nowhere, so that no completion names it.
    match unsafe { Slot::land(header, flight) } {
        Some(slot) => Refused { slot, reason },
        None => unreachable!("a slot that was just launched is in flight"),
    }
}

/// The header that the id of a request leads to; ids of this module are 0 or a header's address.
pub(super) fn header_of(wr_id: u64) -> Option<NonNull<Header>> {
    NonNull::new(ptr::with_exposed_provenance_mut(wr_id as usize))
}

/// Gives back a slot in flight and everything that was posted unsignaled before it.
///
/// # Safety
/// The slots were launched on one queue pair, whose context is alive, and no other thread lands slots of this flight.
pub(super) unsafe fn release_chain(mut header: *mut Header, flight: Flight) {
    while let Some(current) = NonNull::new(header) {
        // SAFETY: headers live as long as their context, which the caller holds.
        let before = unsafe { current.as_ref() }.before.load(Ordering::Relaxed);
        // SAFETY: the caller's promise.
        let Some(slot) = (unsafe { Slot::land(current, flight) }) else { return };
        drop(slot);
        header = before;
    }
}

/// A queue pair that is gone, and the slots that were in flight on it.
#[derive(Debug)]
struct Grave {
    handle: Option<QueueHandle>,
    slots: Vec<NonNull<Header>>,
    owner: u64,
}

// SAFETY: the pointers lead to slots in flight, which belong to nobody's thread.
unsafe impl Send for Grave {}

/// What a context keeps for safe queue pairs: headers of slots, and slots of queue pairs that are gone until
/// no poller can be taking them any more.
#[derive(Debug, Default)]
pub(crate) struct SafeState {
    pub(super) headers: Headers,
    graves: Mutex<Vec<Grave>>,
}

impl SafeState {
    fn bury(&self, grave: Grave) {
        self.graves.lock().unwrap_or_else(PoisonError::into_inner).push(grave);
        self.reap();
    }

    /// Gives back what can be: the slots of queue pairs whose completion queues have passed everything that was
    /// in them, or are gone themselves.
    pub(crate) fn reap(&self) {
        let mut graves = self.graves.lock().unwrap_or_else(PoisonError::into_inner);
        let (ready, waiting) =
            std::mem::take(&mut *graves).into_iter().partition::<Vec<_>, _>(|grave| {
                grave.handle.as_ref().is_none_or(QueueHandle::has_drained)
            });
        *graves = waiting;
        drop(graves);
        ready.iter().for_each(Grave::open);
    }
}

impl Grave {
    fn open(&self) {
        for header in &self.slots {
            // SAFETY: whoever reaps holds the context, whose headers these are.
            let cq = unsafe { header.as_ref() }.cq();
            let flight = Flight { owner: self.owner, cq };
            // SAFETY: launched on this queue pair, which is destroyed; its completion queues have been polled past
            // it, so no other thread lands them. Those that completed before are not in flight on it any more.
            unsafe { release_chain(header.as_ptr(), flight) };
        }
    }
}
