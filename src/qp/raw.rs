//! The raw layer: posting by address and key, and the program's own firmware commands.

#![allow(unsafe_code)]

use std::borrow::Borrow;

use uverbs_mlx5::mmio::{BlueFlame, Register};
use uverbs_mlx5::recv_queue::{RecvBatch, RecvQueue};
use uverbs_mlx5::request::{ListError, PostError, PostFlags, Sge};
use uverbs_mlx5::send_queue::{
    Batch, Carries, Operation, Payload, SendQueue, SendRequest, TagError, TagRequest, Takes,
    Template,
};
use uverbs_mlx5::user_index::{QueueHandle, WasReset};

use super::attributes::QpAttributes;
use super::dc_receiver::DcReceiver;
use super::modify::QpInfo;
use super::qp_type::Rc;
use super::queue_pair::{QueuePair, Queues};
use super::rss::RssTarget;
use super::safe::Slots;
use super::tags::TagQueue;
use super::work_queue::{WorkQueue, WqState};
use super::xrc_target::XrcReceiver;
use super::{QueuePairType, State};
use crate::device::context::Context;
use crate::device::layer::{Layer, Raw};
use crate::devx::Devx;
use crate::error::Error;
use crate::host::events::{Observer, Registered};
use crate::host::lifetime::{Destroy, destroy_in_place_method};
use crate::memory::flight::Serial;
use crate::mlx5::RingLayout;

/// The addresses of a queue pair's parts, for programs that write requests themselves, as with
/// mlx5dv_init_obj(3). This library does not track such requests, so the program has to poll their
/// completions itself.
#[derive(Debug, Clone, Copy)]
pub struct QpLayout {
    /// The send queue's ring, in blocks of 64 bytes.
    pub send: Option<RingLayout>,
    /// The receive queue's ring.
    pub receive: Option<RingLayout>,
    /// The doorbell record: two words, of the receives and of the sends.
    pub record: *mut u8,
    /// The doorbell register.
    pub register: *mut u8,
    /// Bytes of one half of the register; 0 if it takes only doorbells of 8 bytes.
    pub register_bytes: u32,
}

impl Context {
    /// Access to the firmware, for the program's own commands.
    ///
    /// # Safety
    /// The commands make the device access no memory except that of [`Umem`](crate::devx::Umem)s.
    /// Until a `Umem` is released, its memory stays mapped, and this process does not access it in
    /// conflict with the device. No command changes rings, keys, numbers or states of this
    /// library's objects unless the library is told.
    pub unsafe fn devx(&self) -> Devx {
        Devx::of(self)
    }
}

/// The new serial number of a queue, if the change of state resets it. It is allocated before the
/// change, because a reset queue cannot go on without one.
fn serial_after(is_reset: bool) -> Result<Option<Serial>, Error> {
    is_reset.then(|| Serial::new("modify_qp")).transpose()
}

impl<T: QueuePairType, L: Layer, R: Register> QueuePair<T, L, R> {
    /// [`QueuePair::modify`].
    pub(super) fn modify_or_reset(&mut self, attributes: &QpAttributes) -> Result<(), Error> {
        let serial = serial_after(attributes.state == Some(State::Reset))?;
        self.core.modify(attributes)?;
        if let Some(serial) = serial {
            // SAFETY: the kernel has reset it.
            self.start_over(serial, unsafe { WasReset::new() });
        }
        Ok(())
    }

    fn start_over(&mut self, serial: Serial, was_reset: WasReset) {
        let Self { queues, core, slots } = self;
        let Some(old) = &core.queue else { return };
        let of = (&core.context, &*core.events);
        let new = queues.start_over(old, was_reset, serial, L::get(slots), of);
        core.queue = Some(new);
    }
}

impl<L: Layer> WorkQueue<L> {
    /// [`WorkQueue::modify_flags`].
    pub(super) fn modify_or_reset(
        &mut self,
        state: Option<WqState>,
        flags: u32,
        mask: u32,
    ) -> Result<(), Error> {
        let shared = &self.handle.0;
        let serial = serial_after(state == Some(WqState::Reset))?;
        shared.modify(state, flags, mask)?;
        if let Some(serial) = serial {
            let old = shared.current().user.clone();
            let of = (&shared.context, &*shared.events);
            // SAFETY: the kernel has reset it.
            let was_reset = unsafe { WasReset::new() };
            let new = self.queue.start_over(&old, was_reset, serial, L::get(&mut self.slots), of);
            shared.current().user = new;
        }
        Ok(())
    }
}

impl<T: QueuePairType, R: Register> Queues<T, R> {
    /// Starts over after the reset of the queue that had the handle `old`, with `serial`. Returns
    /// its new handle.
    fn start_over(
        &mut self,
        old: &QueueHandle,
        was_reset: WasReset,
        serial: Serial,
        slots: Option<&mut Slots>,
        (context, events): (&Context, &Registered),
    ) -> QueueHandle {
        let new = old.renew(was_reset);
        events.set_observer(Observer::Queue(new.clone()));
        if let Some(slots) = slots {
            context.inner().kept.defer(slots.start_over(serial, [old, &new], self));
        }
        self.send.iter_mut().for_each(|send| send.reset(new.clone()));
        self.receive.iter_mut().for_each(|receive| receive.reset(new.clone()));
        new
    }
}

impl<T: QueuePairType, R: Register> QueuePair<T, Raw, R> {
    /// The addresses of the queue pair's parts, valid until it is destroyed.
    pub fn layout(&self) -> QpLayout {
        let send = self.queues.send.as_ref().map(|queue| {
            let (start, entries) = queue.ring();
            RingLayout { start, entries, stride: 64 }
        });
        let receive = self.queues.receive.as_ref().map(receive_layout);
        let record = self.core.memory.as_ref().map_or(0, |memory| memory.record_address());
        let register = self.core.register.as_ref().map(|register| register.address());
        let (register, register_bytes) = register.unwrap_or((std::ptr::null_mut(), 0));
        let record = std::ptr::with_exposed_provenance_mut(record as usize);
        QpLayout { send, receive, record, register, register_bytes }
    }

    /// Both queues: to use them in two threads, or for operations that this type does not offer.
    ///
    /// # Safety
    /// The caller exchanges neither with another queue pair's (by `mem::swap`, for instance): each
    /// posts to memory that its own queue pair frees when it is dropped.
    pub unsafe fn queues(&mut self) -> (Option<&mut SendQueue<T, R>>, Option<&mut RecvQueue>) {
        let Queues { send, receive } = &mut *self.queues;
        (send.as_mut(), receive.as_mut())
    }

    /// Pointers to both queues, for two threads that hold no reference to the queue pair meanwhile.
    ///
    /// # Safety
    /// `this` points to a queue pair. The rule of [`QueuePair::queues`] holds for what the pointers
    /// point to. No thread uses a pointer while a method of the queue pair runs.
    pub unsafe fn sides(this: *mut Self) -> (*mut Option<SendQueue<T, R>>, *mut Option<RecvQueue>) {
        // SAFETY: the caller's promise; no reference is made.
        unsafe { (&raw mut (*this).queues.queue.send, &raw mut (*this).queues.queue.receive) }
    }

    destroy_in_place_method! { "`Busy` while steering rules lead to it; errors of the kernel." }

    /// [`QueuePair::query`] while other threads may use the queues.
    ///
    /// # Errors
    /// Errors of the kernel.
    ///
    /// # Safety
    /// `this` points to a queue pair, and no method of it that takes `&mut self` runs meanwhile.
    pub unsafe fn query_beside(this: *const Self) -> Result<QpInfo, Error> {
        // SAFETY: the caller's promise; the posting sides are not part of it.
        unsafe { &(*this).core }.query()
    }

    /// [`QueuePair::modify`] while other threads may use the queues. Only a change to RESET
    /// accesses the queues; during that access it holds the guard that `exclude` returns.
    ///
    /// # Errors
    /// As [`QueuePair::modify`].
    ///
    /// # Safety
    /// `this` points to a queue pair, and no other method of it runs meanwhile. No thread uses the
    /// queues while that guard is held.
    pub unsafe fn modify_beside<G>(
        this: *mut Self,
        attributes: &QpAttributes,
        exclude: impl FnOnce() -> G,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise; the posting sides are not part of it.
        let core = unsafe { &mut (*this).core };
        let serial = serial_after(attributes.state == Some(State::Reset))?;
        core.modify(attributes)?;
        if let Some(serial) = serial {
            let _excluded = exclude();
            // SAFETY: the caller's promise: no thread uses any part of it now. The kernel has reset
            // it.
            unsafe { (*this).start_over(serial, WasReset::new()) };
        }
        Ok(())
    }

    /// Records that the program's own command ([`Devx::modify`]) has changed the queue pair's state
    /// to `state`. RESET empties the queues.
    ///
    /// # Errors
    /// As [`QueuePair::modify`] to RESET.
    ///
    /// # Safety
    /// The device has the queue pair in that state.
    pub unsafe fn changed_to(&mut self, state: State) -> Result<(), Error> {
        let serial = serial_after(state == State::Reset)?;
        self.core.note_state(state);
        if let Some(serial) = serial {
            // SAFETY: the caller's promise.
            self.start_over(serial, unsafe { WasReset::new() });
        }
        Ok(())
    }

    /// Starts building sends, to be published together.
    ///
    /// # Errors
    /// [`PostError::BadState`] before RTS; `NoQueue` if it was made without a send queue.
    #[inline(always)]
    #[doc(alias = "ibv_wr_start")]
    pub fn batch(&mut self) -> Result<Batch<'_, T, R>, PostError> {
        match &mut self.queues.send {
            Some(send) => send.batch(),
            None => Err(PostError::NoQueue),
        }
    }

    /// Builds one send and rings the doorbell for it and for what was built before and not yet
    /// published. See `docs/ordering.md` for its ordering.
    ///
    /// # Errors
    /// Any [`PostError`]; then nothing has been stored and nothing rung.
    ///
    /// # Safety
    /// Until the request has completed or the queue pair has been destroyed, the memory that
    /// `payload` names stays registered, and no code writes it (for READs and atomics: accesses
    /// it). Inline data is copied, and `()` is no data. The addresses of READs and atomics are this
    /// process's own (not those of a registration with another `iova`) if the queue pair was made
    /// with [`QpBuilder::scatter_reads_to_cqe`](crate::QpBuilder::scatter_reads_to_cqe): the poller
    /// may write the result.
    #[inline(always)]
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_wr_complete")]
    pub unsafe fn post_send<O, P>(
        &mut self,
        wr_id: u64,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> Result<(), PostError>
    where
        T: Carries<O>,
        O: Takes<P>,
        P: Payload,
    {
        match &mut self.queues.send {
            // SAFETY: the caller's promise is the same.
            Some(send) => unsafe { send.post_as(wr_id, operation, payload, flags) },
            None => Err(PostError::NoQueue),
        }
    }

    /// Posts requests whose operations are known only at run time, in order, and rings the doorbell
    /// once for all of them (`ibv_post_send` with a list).
    ///
    /// # Errors
    /// The first request that cannot be posted, with the reason; those before it are posted and
    /// rung.
    ///
    /// # Safety
    /// As for [`QueuePair::post_send`], for each of them.
    #[doc(alias = "ibv_post_send")]
    pub unsafe fn post_list<'a>(
        &mut self,
        requests: impl IntoIterator<Item = impl Borrow<SendRequest<'a>>>,
    ) -> Result<(), ListError> {
        match &mut self.queues.send {
            // SAFETY: the caller's promise is the same.
            Some(send) => unsafe { send.post_list(requests) },
            None => Err(ListError { index: 0, reason: PostError::NoQueue }),
        }
    }

    /// Builds a request of one block (64 bytes) to post many times, with other data or another
    /// address ([`Template`]), on this queue pair or others of its type.
    ///
    /// # Errors
    /// Those of posting the request, except `Full` and `BadState`; `NotATemplate` if it takes more
    /// than one block (more than 44 bytes of inline data or three SGEs; with a remote address 28
    /// bytes or two SGEs).
    pub fn template<O, P>(
        &mut self,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> Result<Template<O::Held>, PostError>
    where
        T: Carries<O>,
        O: Takes<P>,
        P: Payload,
    {
        self.long_template(operation, payload, flags)
    }

    /// [`QueuePair::template`] of a request of up to `BLOCKS` blocks.
    ///
    /// # Errors
    /// As for [`QueuePair::template`]; `NotATemplate` if the request takes more blocks.
    pub fn long_template<const BLOCKS: usize, O, P>(
        &mut self,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> Result<Template<O::Held, BLOCKS>, PostError>
    where
        T: Carries<O>,
        O: Takes<P>,
        P: Payload,
    {
        let send = self.queues.send.as_mut().ok_or(PostError::NoQueue)?;
        send.long_template(operation, payload, flags)
    }

    /// Posts a template's request and rings the doorbell. In a batch several share one doorbell:
    /// [`Batch::build_template`].
    ///
    /// # Errors
    /// `BadState` before RTS, `Full`, `NoQueue`.
    ///
    /// # Safety
    /// As for [`QueuePair::post_send`], for the memory that the template names.
    #[inline(always)]
    pub unsafe fn post_template<O: Operation, const BLOCKS: usize>(
        &mut self,
        wr_id: u64,
        template: &Template<O, BLOCKS>,
    ) -> Result<(), PostError>
    where
        T: Carries<O>,
    {
        match &mut self.queues.send {
            // SAFETY: the caller's promise is the same.
            Some(send) => unsafe { send.post_template(wr_id, template) },
            None => Err(PostError::NoQueue),
        }
    }

    /// Posts one receive: the device may use it from now on, as it may what was built before and
    /// not yet published.
    ///
    /// # Errors
    /// Any [`PostError`]; then nothing has been stored. `BadState` in RESET, `NoQueue` if the queue
    /// pair was made without a receive queue of its own.
    ///
    /// # Safety
    /// The memory that `data` names stays registered and is not read or written by this process
    /// until the receive has completed or the queue pair has been destroyed. Addresses as for
    /// [`QueuePair::post_send`]: the poller may write a short message.
    #[inline(always)]
    #[doc(alias = "ibv_post_recv")]
    pub unsafe fn post_receive(&mut self, wr_id: u64, data: &[Sge]) -> Result<(), PostError> {
        let receive = self.queues.receive.as_mut().ok_or(PostError::NoQueue)?;
        // SAFETY: the caller's promise is the same.
        unsafe { receive.post(wr_id, data) }
    }

    /// Starts building receives, to be published together.
    ///
    /// # Errors
    /// `BadState` in RESET, `NoQueue` if it was made without a receive queue of its own.
    #[inline(always)]
    pub fn receive_batch(&mut self) -> Result<RecvBatch<'_>, PostError> {
        match &mut self.queues.receive {
            Some(receive) => receive.batch(),
            None => Err(PostError::NoQueue),
        }
    }
}

fn receive_layout(queue: &RecvQueue) -> RingLayout {
    let (start, entries, stride) = queue.ring();
    RingLayout { start, entries, stride }
}

impl WorkQueue<Raw> {
    /// Posts one receive: the device may use it from now on, as it may what was built before and
    /// not yet published.
    ///
    /// # Errors
    /// Any [`PostError`]; then nothing has been stored. `BadState` in RESET.
    ///
    /// # Safety
    /// The memory that `data` names stays registered and is not read or written by this process
    /// until the receive has completed or the work queue has been destroyed. The work queue is not
    /// destroyed before each table that names it.
    #[inline(always)]
    #[doc(alias = "ibv_post_wq_recv")]
    pub unsafe fn post_receive(&mut self, wr_id: u64, data: &[Sge]) -> Result<(), PostError> {
        let receive = self.queue.receive.as_mut().ok_or(PostError::NoQueue)?;
        // SAFETY: the caller's promise is the same.
        unsafe { receive.post(wr_id, data) }
    }

    /// Starts building receives, to be published together.
    ///
    /// # Errors
    /// `BadState` in RESET.
    #[inline(always)]
    pub fn receive_batch(&mut self) -> Result<RecvBatch<'_>, PostError> {
        match &mut self.queue.receive {
            Some(receive) => receive.batch(),
            None => Err(PostError::NoQueue),
        }
    }

    /// Its ring and the address of its doorbell record, for programs that write receives
    /// themselves.
    pub fn layout(&self) -> (Option<RingLayout>, *mut u8) {
        let ring = self.queue.receive.as_ref().map(receive_layout);
        let record = self.handle.record_address();
        (ring, std::ptr::with_exposed_provenance_mut(record as usize))
    }

    destroy_in_place_method! {
        "`Busy` while tables or other handles hold it; errors of the kernel."
    }
}

/// Changes of a tag list that are built and published together. Dropping the batch leaves them
/// unpublished; the next published batch publishes them too.
#[derive(Debug)]
#[must_use = "changes reach the device when they are published"]
pub struct TagBatch<'q>(Batch<'q, Rc, BlueFlame>);

impl TagQueue {
    /// Starts building changes.
    ///
    /// # Errors
    /// [`PostError::BadState`] after an error.
    #[doc(alias = "ibv_post_srq_ops")]
    pub fn batch(&mut self) -> Result<TagBatch<'_>, PostError> {
        self.qp.batch().map(TagBatch)
    }

    destroy_in_place_method! { "errors of the kernel." }
}

impl TagBatch<'_> {
    /// Builds a change. Returns the handle of the added entry, if it adds one.
    ///
    /// # Errors
    /// Any [`TagError`]; nothing has been stored then.
    ///
    /// # Safety
    /// The buffer of an added entry stays registered and is not read or written by this process
    /// until a message has completed the entry, the entry was removed, or the shared receive queue
    /// was destroyed.
    pub unsafe fn build(&mut self, request: &TagRequest) -> Result<Option<u16>, TagError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.0.build_tags(request) }
    }

    /// Publishes everything built so far.
    pub fn publish(self) {
        self.0.publish();
    }
}

impl RssTarget {
    destroy_in_place_method! { "`Busy` while steering rules lead to it; errors of the kernel." }
}

impl DcReceiver {
    destroy_in_place_method! { "errors of the kernel." }
}

impl XrcReceiver {
    destroy_in_place_method! { "errors of the kernel." }
}
