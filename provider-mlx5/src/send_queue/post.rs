//! The path of one request from the call to the doorbell.
//!
//! On the fast path a request is composed in registers and stored twice: to the ring and to the
//! register. Every check comes before the first store. The general writer writes all other
//! requests.

#![allow(unsafe_code)]

use core::borrow::Borrow;
use core::marker::PhantomData;
use core::mem::MaybeUninit;

use super::encode::{Promised, Request, composed, short_blocks};
use super::encoded::Encoded;
use super::payload::{Payload, SgeList};
use super::space::{Needed, place_at};
use super::template::control;
use super::wide::{
    self, Wide, WideBlock, copy_block, few_rounds, narrow, or, store_blocks, store_composed, wide,
};
use super::{
    Batch, Block, Carries, Operation, RequestId, SendQueue, SendRequest, TagError, TagRequest,
    Takes, Template, Transport,
};
use crate::barrier;
use crate::doorbell::{Doorbell, DoorbellWord, Plain};
use crate::format::{Fence, WQEBB_SIZE};
use crate::mmio::{BlueFlame, Register, Ring};
use crate::request::{ListError, PostError, PostFlags};
use crate::sync::Ordering;

/// A request's blocks, for a register that takes copies of up to four blocks, or doorbells only.
/// `COMPOSED` says that they were composed in registers.
struct Copied<'b, const N: usize, const COMPOSED: bool>(&'b [WideBlock; N]);

impl<'b, const N: usize> Copied<'b, N, true> {
    #[inline(always)]
    fn composed(blocks: &'b [WideBlock; N]) -> Self {
        Self(blocks)
    }
}

impl<const N: usize, const COMPOSED: bool> Ring for Copied<'_, N, COMPOSED> {
    #[inline(always)]
    fn ring(self, register: &mut BlueFlame) {
        let Some(half) = register.take_half() else {
            crate::hint::cold_path();
            return register.only_doorbell(narrow(self.0[0][0])[0]);
        };
        let half = half.as_ptr().cast();
        // SAFETY: the half takes four blocks, or the queue would not be open.
        unsafe { if COMPOSED { store_composed(half, self.0) } else { store_blocks(half, self.0) } };
    }
}

/// Keeps the compiler from joining the ends of posting an `O` in `N` blocks and of posting another
/// request, because what differs would be in registers there.
#[inline(always)]
fn end_apart<O: Operation, const N: usize>(_: PhantomData<O>, _: &[WideBlock; N]) {
    // SAFETY: no instruction.
    unsafe {
        core::arch::asm!(
            "/* {0} {1} */", const N, const O::OCTOWORDS, options(nostack, preserves_flags),
        );
    }
}

impl<T: Transport, R: Register> SendQueue<T, R> {
    /// Builds one request and rings the doorbell for it, and for all requests that were built
    /// before and are unpublished.
    ///
    /// # Errors
    /// Any [`PostError`]; then nothing has been stored and nothing rung.
    ///
    /// # Safety
    /// Until the request has completed or the QP has been destroyed, the memory that `payload`
    /// names stays registered; no code writes it meanwhile, nor, for reads and atomics, accesses it
    /// at all. Inline data is copied, and `()` is no data.
    #[inline(always)]
    pub unsafe fn post<O, P>(
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
        // SAFETY: the caller's promise is the same.
        unsafe { self.post_as(wr_id, operation, payload, flags) }
    }

    /// [`SendQueue::post`] with an id that is only taken when the request can no longer fail.
    ///
    /// # Errors
    /// As for [`SendQueue::post`]; then the id has not been taken.
    ///
    /// # Safety
    /// As for [`SendQueue::post`].
    #[inline(always)]
    pub unsafe fn post_as<I, O, P>(
        &mut self,
        wr_id: I,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> Result<(), PostError>
    where
        I: RequestId,
        T: Carries<O>,
        O: Takes<P>,
        P: Payload,
    {
        // SAFETY: the caller's promise is the same.
        unsafe { self.post_any(wr_id, operation, payload, flags) }
    }

    /// [`SendQueue::post_as`] without the compile-time check that the queue's service has the
    /// operation.
    ///
    /// # Errors
    /// As for [`SendQueue::post_as`].
    ///
    /// # Safety
    /// As for [`SendQueue::post`].
    #[doc(hidden)]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn post_any<I: RequestId, O: Operation, P: Payload>(
        &mut self,
        wr_id: I,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        self.post_promised(wr_id, operation, unsafe { Promised::new(payload) }, flags)
    }

    /// [`SendQueue::post_any`], as far as it is the fast path. `false`, and nothing has changed, if
    /// that has to be called.
    ///
    /// # Safety
    /// As for [`SendQueue::post`].
    #[doc(hidden)]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn post_fast<I: RequestId, O: Operation, P: Payload>(
        &mut self,
        wr_id: I,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> bool {
        // SAFETY: the caller's promise is the same.
        self.post_promised_fast(wr_id, operation, unsafe { Promised::new(payload) }, flags)
    }

    /// [`SendQueue::post_any`] of data for which the promise was made.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn post_promised<I: RequestId, O: Operation, P: Payload>(
        &mut self,
        wr_id: I,
        operation: O,
        payload: Promised<P>,
        flags: PostFlags,
    ) -> Result<(), PostError> {
        self.check(operation)?;
        let Some(request) = payload.usual(&operation, flags, &self.limits) else {
            crate::hint::cold_path();
            return self.post_general(wr_id, operation, payload.again(), flags);
        };
        // Does not call the function below, because testing its result costs two instructions here.
        let is_direct = request.is_direct();
        if request.is_short() {
            if is_direct && self.is_open_for(short_blocks::<O>()) {
                // SAFETY: open so far.
                unsafe { self.post_direct(wr_id, *request, 4 * short_blocks::<O>()) };
                return Ok(());
            }
        } else if is_direct && self.is_open_to(request.octowords()) {
            // SAFETY: open so far.
            unsafe { self.post_direct(wr_id, *request, request.octowords()) };
            return Ok(());
        }
        crate::hint::cold_path();
        // Reopened in vain if it is a direct request, and not asked for if it is another.
        self.post_slow::<_, _, _, false>(wr_id, operation, payload.again(), flags)
    }

    #[inline(always)]
    fn is_open_for(&mut self, blocks: usize) -> bool {
        if self.next.has(blocks) {
            return true;
        }
        crate::hint::cold_path();
        self.reopen(blocks as u32)
    }

    /// [`SendQueue::is_open_for`] a request of so many octowords.
    #[inline(always)]
    fn is_open_to(&mut self, octowords: usize) -> bool {
        if self.next.has_octowords(octowords) {
            return true;
        }
        crate::hint::cold_path();
        self.reopen(octowords.div_ceil(4) as u32)
    }

    /// [`SendQueue::post_promised`] of any data, and where the fast path may have to be reopened.
    #[inline(always)]
    pub(super) fn post_general<I: RequestId, O: Operation, P: Payload>(
        &mut self,
        wr_id: I,
        operation: O,
        payload: Promised<P>,
        flags: PostFlags,
    ) -> Result<(), PostError> {
        self.post_slow::<_, _, _, true>(wr_id, operation, payload, flags)
    }

    /// [`SendQueue::post_general`], which tries the fast path if `MAY_BE_OPEN`. It measures
    /// the data again, so that the fast path need not keep the size.
    #[cold]
    #[inline(never)]
    fn post_slow<I: RequestId, O: Operation, P: Payload, const MAY_BE_OPEN: bool>(
        &mut self,
        wr_id: I,
        operation: O,
        payload: Promised<P>,
        flags: PostFlags,
    ) -> Result<(), PostError> {
        self.check(operation)?;
        let mut list = SgeList::new();
        let request = payload.request(operation, flags, &self.limits, &mut list)?;
        let blocks = request.blocks();
        if MAY_BE_OPEN && request.is_direct() && self.is_open_for(blocks) {
            // SAFETY: open so far.
            unsafe { self.post_direct(wr_id, *request, request.octowords()) };
            return Ok(());
        }
        let (wr_id, found) = self.find_and_take(wr_id, blocks as u32);
        found?;
        let mut aside = MaybeUninit::uninit();
        let image = request.image(self.number, &mut aside);
        // SAFETY: space for the blocks was found.
        unsafe { self.post_claimed(wr_id, image, PostFlags::empty(), request.fences()) };
        Ok(())
    }

    /// [`SendQueue::post_promised`], as far as it is the fast path. `false`, and nothing has
    /// changed, if that has to be called.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn post_promised_fast<I: RequestId, O: Operation, P: Payload>(
        &mut self,
        wr_id: I,
        operation: O,
        payload: Promised<P>,
        flags: PostFlags,
    ) -> bool {
        let request = payload.usual(&operation, flags, &self.limits);
        let (Some(request), Ok(())) = (request, self.check(operation)) else { return false };
        let is_direct = request.is_direct();
        if request.is_short() {
            if is_direct && self.next.has(short_blocks::<O>()) {
                // SAFETY: open so far.
                unsafe { self.post_direct(wr_id, *request, 4 * short_blocks::<O>()) };
                return true;
            }
        } else if is_direct && self.next.has_octowords(request.octowords()) {
            // SAFETY: open so far.
            unsafe { self.post_direct(wr_id, *request, request.octowords()) };
            return true;
        }
        false
    }

    /// Posts requests in order and rings the doorbell once for all that were posted.
    ///
    /// # Errors
    /// The first request that cannot be posted, with the reason; those before it are posted and
    /// rung.
    ///
    /// # Safety
    /// The memory that the requests' `data` names stays registered, and is not used against the
    /// device's reading (or, for reads and atomics, writing) it, until the request has completed or
    /// the QP has been destroyed. The data of inline requests, and of packets on a queue that wants
    /// headers inline, is readable by this process now.
    #[inline(always)]
    pub unsafe fn post_list<'a>(
        &mut self,
        requests: impl IntoIterator<Item = impl Borrow<SendRequest<'a>>>,
    ) -> Result<(), ListError> {
        // SAFETY: the caller's promise is the same.
        self.post_promised_list(unsafe { Promised::new(requests.into_iter()) })
    }

    /// A list of one request: rung by itself, which copies it to the register if it fits.
    ///
    /// # Errors
    /// Why it cannot be posted. What was built before it is rung.
    ///
    /// # Safety
    /// As for [`SendQueue::post_list`].
    #[inline(always)]
    pub unsafe fn post_request(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        self.post_promised_request(unsafe { Promised::new(request) })
    }

    /// Posts a template's request and rings the doorbell.
    ///
    /// # Errors
    /// [`PostError::BadState`], [`PostError::Full`].
    ///
    /// # Safety
    /// As for [`SendQueue::post`], for the memory that the template names.
    #[inline(always)]
    pub unsafe fn post_template<O: Operation, const BLOCKS: usize>(
        &mut self,
        wr_id: u64,
        template: &Template<O, BLOCKS>,
    ) -> Result<(), PostError>
    where
        T: Carries<O>,
    {
        // SAFETY: the caller's promise is the same.
        unsafe { self.post_template_with(wr_id, template, PostFlags::empty()) }
    }

    /// [`SendQueue::post_template`] with more flags, [`SIGNALED`](PostFlags::SIGNALED) for
    /// instance.
    ///
    /// # Errors
    /// As for [`SendQueue::post_template`].
    ///
    /// # Safety
    /// As for [`SendQueue::post_template`].
    #[inline(always)]
    pub unsafe fn post_template_with<O: Operation, const BLOCKS: usize>(
        &mut self,
        wr_id: u64,
        template: &Template<O, BLOCKS>,
        flags: PostFlags,
    ) -> Result<(), PostError>
    where
        T: Carries<O>,
    {
        // SAFETY: the caller's promise is the same.
        self.post_promised_template(wr_id, unsafe { Promised::new(template) }, flags)
    }

    /// Builds a request of `octowords` octowords, or as many as its blocks have, and rings for it.
    /// One to four blocks are composed in registers and stored twice, to the ring and to BlueFlame;
    /// more go only to the ring. What is not
    /// composed goes to the ring, and is copied from there.
    ///
    /// # Safety
    /// The queue is open so far.
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn post_direct<I, O, P>(&mut self, wr_id: I, request: Request<O, P>, octowords: usize)
    where
        I: RequestId,
        O: Operation,
        P: Payload,
    {
        let control = or(wide(request.control(self.next.place())), self.base);
        let wqe = request.with_control(control, self.number);
        // SAFETY: each block is asked for as what it is; the queue is open so far.
        unsafe {
            let to = self.next.block();
            if !P::IS_COMPOSED {
                let blocks = request.blocks();
                wqe.store(to);
                let head = self.enter(wr_id, blocks);
                self.ring_blocks(head, blocks as u32, |i| to.wrapping_add(i as usize));
                return self.pass(blocks);
            }
            composed!(
                wqe,
                octowords,
                to,
                |composed| {
                    self.ring_copied(wr_id, Copied::composed(&composed));
                    end_apart(PhantomData::<O>, &composed);
                },
                {
                    let blocks = request.blocks();
                    wqe.store_long(to);
                    self.enter(wr_id, blocks);
                    let control = narrow(control)[0];
                    self.doorbell.ring(self.head, Plain(control));
                    self.pass(blocks);
                }
            );
        }
    }

    /// Rings for a request whose blocks are in the ring, at the head: with a copy, if the register
    /// takes any.
    ///
    /// # Safety
    /// The queue is open so far.
    #[inline(always)]
    unsafe fn ring_copied<I: RequestId, const N: usize, const COMPOSED: bool>(
        &mut self,
        wr_id: I,
        blocks: Copied<'_, N, COMPOSED>,
    ) {
        // SAFETY: open so far.
        let head = unsafe { self.enter(wr_id, N) };
        self.doorbell.ring(head, blocks);
        self.pass(N);
    }

    /// Advances past a request of `blocks` blocks whose doorbell was rung. After the doorbell's
    /// barrier the compiler does this by one instruction on memory.
    #[inline(always)]
    fn pass(&mut self, blocks: usize) {
        self.next.at = self.next.at.wrapping_add(blocks * WQEBB_SIZE);
    }

    /// Enters a request of `blocks` blocks that was written at the head, and lets pollers know of
    /// it; returns the new head.
    ///
    /// # Safety
    /// The queue is open so far.
    #[inline(always)]
    unsafe fn enter<I: RequestId>(&mut self, wr_id: I, blocks: usize) -> u32 {
        let wr_id = self.next.take(wr_id);
        self.head = self.head.wrapping_add(blocks as u32);
        self.next.entry = self.next.entry.wrapping_add(blocks);
        // SAFETY: the table has an id for each block of the ring; `handle` keeps it. The request
        // does not straddle the ring's end. Volatile: loads of their own, which let each change be
        // one instruction on memory.
        unsafe {
            let head = (&raw const self.head).read_volatile();
            let entry = (&raw const self.next.entry).read_volatile().wrapping_sub(blocks);
            (*entry).store(wr_id, Ordering::Relaxed);
            self.ring.note_inner(entry, blocks, head);
            self.state().publish_sends(head);
            head
        }
    }

    /// Rings for a request of `blocks` blocks before counter `head`. They are in the ring, each
    /// where `block` says.
    #[inline(always)]
    pub(super) fn ring_blocks(
        &mut self,
        head: u32,
        blocks: u32,
        block: impl Fn(u32) -> *mut Block,
    ) {
        let copies = blocks <= self.direct;
        self.doorbell.ring(head, |register: &mut BlueFlame| {
            // SAFETY: blocks of the ring, which only this queue writes; the half takes so many.
            unsafe {
                let half = if copies { register.take_half() } else { None };
                let Some(half) = half else {
                    return register.doorbell(block(0).cast::<u64>().read());
                };
                let half = half.as_ptr().cast::<Block>();
                for i in 0..blocks {
                    few_rounds();
                    copy_block(half.add(i as usize), block(i));
                }
            }
        });
    }
}

/// A queue whose fast path is open for a template of `N` blocks, and the place, which is
/// [`Next::at`](super::ring::Next::at).
pub(super) struct Open<'q, T: Transport, R: Register, const N: usize>(
    &'q mut SendQueue<T, R>,
    usize,
);

impl<T: Transport, R: Register> SendQueue<T, R> {
    /// The queue, if its fast path is open for such a template.
    #[inline(always)]
    pub(super) fn open_for<const N: usize>(
        &mut self,
        needed: Needed<N>,
    ) -> Option<Open<'_, T, R, N>> {
        let at = self.next.place_for(needed)?;
        Some(Open(self, at))
    }
}

impl<T: Transport, R: Register, const N: usize> Open<'_, T, R, N> {
    /// Posts a template's request.
    #[inline(always)]
    pub(super) fn post(self, wr_id: u64, image: Promised<&[WideBlock; N]>, flags: PostFlags) {
        let Self(queue, at) = self;
        let control = if N == 1 {
            queue.stamp(place_at(at), control(&image[..], flags))
        } else {
            // Before the first octoword is loaded, because that is part of another instruction
            // then. SAFETY: the processor copies pairs.
            let index = unsafe { wide::index(queue) };
            or(control(&image[..], flags), wide::sum(index, queue.base))
        };
        // SAFETY: open so far.
        unsafe {
            if N == 1 {
                queue.post_lanes(wr_id, control, **image);
            } else {
                queue.post_pairs(wr_id, at, control, &image);
            }
        }
    }
}

impl<T: Transport, R: Register> SendQueue<T, R> {
    /// Posts a template's request lane by lane. It takes the lanes by value, so that those that are
    /// in registers stay there.
    ///
    /// # Safety
    /// The queue is open so far.
    #[inline(always)]
    unsafe fn post_lanes<const BLOCKS: usize>(
        &mut self,
        wr_id: u64,
        control: Wide,
        mut image: [WideBlock; BLOCKS],
    ) {
        if let [[first, ..], ..] = &mut image[..] {
            *first = control;
        }
        // SAFETY: open so far.
        unsafe {
            store_blocks(self.next.block(), &image);
            self.ring_copied(wr_id, Copied::<BLOCKS, false>(&image));
        }
    }

    /// Posts a template's request in stores of 32 bytes.
    ///
    /// # Safety
    /// As for [`SendQueue::post_lanes`], at `at`; the processor
    /// [copies pairs](super::wide::copies_pairs).
    #[inline(always)]
    unsafe fn post_pairs<const BLOCKS: usize>(
        &mut self,
        wr_id: u64,
        at: usize,
        control: Wide,
        image: &[WideBlock; BLOCKS],
    ) {
        let end = at + BLOCKS * WQEBB_SIZE;
        let to = (self.next.base, end);
        // SAFETY: open so far.
        let head = unsafe { self.enter(wr_id, BLOCKS) };
        let Doorbell { record, register } = &mut self.doorbell;
        register.with(Copying { control, image, to, record, head });
        self.next.at = end;
    }
}

/// What [`SendQueue::post_pairs`] does once it has the register: it stores the request, the
/// doorbell record and the copy.
struct Copying<'t, const N: usize> {
    control: Wide,
    image: &'t [WideBlock; N],
    /// See [`wide::copy_request`].
    to: (*mut Block, usize),
    record: &'t DoorbellWord,
    head: u32,
}

impl<const N: usize> Ring for Copying<'_, N> {
    #[inline(always)]
    fn ring(self, register: &mut BlueFlame) {
        let Self { control, image, to, record, head } = self;
        let Some(half) = register.take_half() else {
            crate::hint::cold_path();
            // SAFETY: the blocks are free, and the processor copies pairs.
            unsafe { wide::copy_request(control, image, to) };
            barrier::to_device();
            record.store(head & 0xffff);
            barrier::before_doorbell();
            register.only_doorbell(narrow(control)[0]);
            return barrier::flush_doorbell();
        };
        // SAFETY: the same. The half takes four blocks, or the queue would not be open.
        unsafe { wide::copy_and_ring(control, image, to, record, head, half.as_ptr().cast()) };
    }
}

impl<T: Transport, R: Register> Batch<'_, T, R> {
    /// Builds one request after those built before.
    ///
    /// # Errors
    /// Any [`PostError`] but `BadState`. Then nothing has been stored, and the requests built
    /// before remain.
    ///
    /// # Safety
    /// Until the request has completed or the QP has been destroyed, the memory that `payload`
    /// names stays registered; no code writes it meanwhile, nor, for reads and atomics, accesses it
    /// at all. Inline data is copied, and `()` is no data.
    #[inline(always)]
    pub unsafe fn build<O, P>(
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
        // SAFETY: the caller's promise is the same.
        unsafe { self.build_any(wr_id, operation, payload, flags) }
    }

    /// [`Batch::build`] without the compile-time check that the queue's service has the operation.
    ///
    /// # Safety
    /// As for [`Batch::build`].
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn build_any<O: Operation, P: Payload>(
        &mut self,
        wr_id: u64,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        self.build_promised(wr_id, operation, unsafe { Promised::new(payload) }, flags)
    }

    /// The fast path of [`Batch::build_any`]. Returns `false`, with nothing changed, if the caller
    /// has to call `build_any` instead.
    ///
    /// # Safety
    /// As for [`Batch::build`].
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn build_fast<O: Operation, P: Payload>(
        &mut self,
        wr_id: u64,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> bool {
        // SAFETY: the caller's promise is the same.
        self.build_promised_fast(wr_id, operation, unsafe { Promised::new(payload) }, flags)
    }

    /// Builds one request after those built before.
    ///
    /// # Errors
    /// Any [`PostError`] but `BadState`. Nothing has been stored then.
    ///
    /// # Safety
    /// As for `post_list`.
    #[inline]
    pub unsafe fn build_request(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        self.build_promised_request(unsafe { Promised::new(request) })
    }

    /// Builds a template's request behind those built before.
    ///
    /// # Errors
    /// [`PostError::Full`].
    ///
    /// # Safety
    /// As for [`Batch::build`], for the memory that the template names.
    #[inline(always)]
    pub unsafe fn build_template<O: Operation, const BLOCKS: usize>(
        &mut self,
        wr_id: u64,
        template: &Template<O, BLOCKS>,
    ) -> Result<(), PostError>
    where
        T: Carries<O>,
    {
        // SAFETY: the caller's promise is the same.
        unsafe { self.build_template_with(wr_id, template, PostFlags::empty()) }
    }

    /// [`Batch::build_template`] with more flags.
    ///
    /// # Errors
    /// [`PostError::Full`].
    ///
    /// # Safety
    /// As for [`Batch::build_template`].
    #[inline(always)]
    pub unsafe fn build_template_with<O: Operation, const BLOCKS: usize>(
        &mut self,
        wr_id: u64,
        template: &Template<O, BLOCKS>,
        flags: PostFlags,
    ) -> Result<(), PostError>
    where
        T: Carries<O>,
    {
        // SAFETY: the caller's promise is the same.
        self.build_promised_template(wr_id, unsafe { Promised::new(template) }, flags)
    }

    /// Builds a request that the program has encoded itself, behind those built before. Its index
    /// and the queue's number are entered into the control segment.
    ///
    /// # Errors
    /// [`PostError::BadOpcode`] unless there are as many bytes as the control segment says;
    /// [`PostError::Full`].
    ///
    /// # Safety
    /// As for [`Batch::build`], for all memory that the request names, and whatever it does is what
    /// the program may do with the queue pair.
    #[cold]
    #[inline(never)]
    pub unsafe fn build_encoded(&mut self, wr_id: u64, wqe: &[u8]) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        let encoded = unsafe { Promised::new(Encoded::of(wqe)?) };
        self.enter_encoded::<true>(wr_id, encoded.by_ref(), 0)
    }

    /// [`Batch::build_encoded`] of a change of a memory key, which the next request waits for.
    ///
    /// # Errors
    /// As for [`Batch::build_encoded`].
    ///
    /// # Safety
    /// As for [`Batch::build_encoded`].
    #[cold]
    #[inline(never)]
    pub unsafe fn build_key_change(&mut self, wr_id: u64, wqe: &[u8]) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        let encoded = unsafe { Promised::new(Encoded::of(wqe)?) };
        self.enter_encoded::<false>(wr_id, encoded.by_ref(), Fence::SMALL.0)
    }

    /// Builds a change of the list of tags of the SRQ that the QP receives through, behind the
    /// requests built before. Returns the handle of an entry that is added.
    ///
    /// # Errors
    /// [`TagError`].
    ///
    /// # Safety
    /// The buffer of an entry that is added stays registered, and is not read or written by this
    /// process until a message has completed the entry, the entry was removed, or the SRQ was
    /// destroyed. A removal that makes no completion does not say when it is done: a later change's
    /// completion does. Until that was polled, no entry is added: it may get the handle of the
    /// entry that was removed, and a message that this one took before would complete it.
    #[cold]
    #[inline(never)]
    pub unsafe fn build_tags(&mut self, request: &TagRequest) -> Result<Option<u16>, TagError> {
        self.enter_tags(request, |batch, wqe| {
            // SAFETY: the caller's promise for the only buffer that the request names.
            unsafe { batch.build_encoded(request.wr_id, wqe) }
        })
    }
}
