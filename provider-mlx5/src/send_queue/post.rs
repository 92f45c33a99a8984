//! The path of one request, from the call to the doorbell.
//!
//! A request that the queue is open for is composed in registers and stored twice: to the ring and to
//! the register. Every check comes before the first store.

#![allow(unsafe_code)]

use super::encode::{Request, composed, header, short_blocks};
use super::payload::Payload;
use super::wide::{WideBlock, copy_block, narrow, or, store_blocks, store_composed, wide};
use super::{Block, Carries, Operation, RequestId, SendQueue, Takes, Transport};
use crate::doorbell::Plain;
use crate::format::WQEBB_SIZE;
use crate::mmio::{BlueFlame, Register, Ring};
use crate::request::{PostError, PostFlags};
use crate::sync::Ordering;

/// A request's blocks, for a register that takes four blocks, or doorbells only. `COMPOSED` says that
/// they were put together in registers.
struct Copied<'b, const N: usize, const COMPOSED: bool>(&'b [WideBlock; N]);

impl<const N: usize, const COMPOSED: bool> Ring for Copied<'_, N, COMPOSED> {
    #[inline(always)]
    fn ring(self, register: &mut BlueFlame) {
        if !register.takes_copies() {
            crate::hint::seldom();
            return register.doorbell(narrow(self.0[0][0])[0]);
        }
        let half = register.take_half().cast();
        // SAFETY: the half takes four blocks, or the queue would not be open.
        unsafe { if COMPOSED { store_composed(half, self.0) } else { store_blocks(half, self.0) } };
    }
}

impl<T: Transport, R: Register> SendQueue<T, R> {
    /// Builds one request and rings the doorbell for it, and for whatever was built before and not yet published.
    ///
    /// # Errors
    /// Any [`PostError`]; then nothing has been stored and nothing rung.
    ///
    /// # Safety
    /// The memory that `payload` names stays registered, and is not used against the device's reading (or, for reads and
    /// atomics, writing) it, until the request has completed or the QP has been destroyed. Inline data and `()` demand
    /// nothing.
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

    /// [`SendQueue::post`] with an id that is asked for once nothing can fail any more.
    ///
    /// # Errors
    /// As for [`SendQueue::post`]; the id has not been asked for then.
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

    /// [`SendQueue::post_as`] without the promise that the queue's service has the operation.
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
        self.check(operation)?;
        let Some(octowords) = payload.usual(&self.limits, header::<O>()) else {
            crate::hint::seldom();
            // SAFETY: the caller's promise is the same.
            return unsafe { self.post_unusual(wr_id, operation, payload.any(), flags) };
        };
        // Not by `try_direct`: to look at its answer costs two instructions here.
        let request = Request { operation, payload, octowords, flags };
        let is_direct = !O::FENCES_NEXT && !request.reads_too_much();
        if request.is_short() {
            if is_direct && self.next.has(short_blocks::<O>()) {
                // SAFETY: open so far.
                unsafe { self.post_direct(wr_id, request, short_blocks::<O>()) };
                return Ok(());
            }
        } else if is_direct && self.next.has(request.blocks()) {
            // SAFETY: open so far.
            unsafe { self.post_direct(wr_id, request, request.blocks()) };
            return Ok(());
        }
        crate::hint::seldom();
        // SAFETY: the caller's promise is the same.
        unsafe { self.post_general(wr_id, operation, payload.again(), octowords, flags) }
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
        let octowords = payload.usual(&self.limits, header::<O>());
        let (Some(octowords), Ok(())) = (octowords, self.check(operation)) else { return false };
        // SAFETY: the caller's promise is the same.
        unsafe { self.try_direct(wr_id, Request { operation, payload, octowords, flags }) }
    }

    /// Posts a request for which nothing has to be looked up; whether it is one.
    ///
    /// # Safety
    /// As for [`SendQueue::post`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn try_direct<I: RequestId, O: Operation, P: Payload>(
        &mut self,
        wr_id: I,
        request: Request<O, P>,
    ) -> bool {
        let is_direct = !O::FENCES_NEXT && !request.reads_too_much();
        if request.is_short() {
            if is_direct && self.next.has(short_blocks::<O>()) {
                // SAFETY: open so far.
                unsafe { self.post_direct(wr_id, request, short_blocks::<O>()) };
                return true;
            }
        } else if is_direct && self.next.has(request.blocks()) {
            // SAFETY: open so far.
            unsafe { self.post_direct(wr_id, request, request.blocks()) };
            return true;
        }
        false
    }

    /// Builds a request of `blocks` blocks and rings for it. One to four are composed in registers
    /// and stored twice, to the ring and to BlueFlame; more go to the ring alone.
    ///
    /// # Safety
    /// The queue is open so far.
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn post_direct<I, O, P>(&mut self, wr_id: I, request: Request<O, P>, blocks: usize)
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
            composed!(
                wqe,
                blocks,
                to,
                |composed| self.ring_copied::<_, _, true>(wr_id, &composed),
                {
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
    pub(super) unsafe fn ring_copied<I: RequestId, const N: usize, const COMPOSED: bool>(
        &mut self,
        wr_id: I,
        blocks: &[WideBlock; N],
    ) {
        // SAFETY: open so far.
        let head = unsafe { self.enter(wr_id, N) };
        self.doorbell.ring(head, Copied::<N, COMPOSED>(blocks));
        self.pass(N);
    }

    /// Moves on over a request of `blocks` blocks that was rung for. Behind the doorbell's barrier
    /// the compiler makes one instruction on memory of it.
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
        let head = self.head.wrapping_add(blocks as u32);
        self.next.entry = self.next.entry.wrapping_add(blocks);
        // SAFETY: the table has an id for each block of the ring; `handle` keeps it. The request
        // does not straddle the ring's end. Volatile: a load of its own, which lets the change be
        // one instruction on memory.
        unsafe {
            let entry = (&raw const self.next.entry).read_volatile().wrapping_sub(blocks);
            (*entry).store(wr_id.take(), Ordering::Relaxed);
            self.ring.note_inner(entry, blocks, head);
        }
        self.head = head;
        self.state().publish_sends(head);
        head
    }

    /// [`SendQueue::post`] of data that may be empty, have empty SGEs, or be refused.
    ///
    /// # Safety
    /// As for [`SendQueue::post`].
    #[cold]
    #[inline(never)]
    unsafe fn post_unusual<I: RequestId, O: Operation, P: Payload>(
        &mut self,
        wr_id: I,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> Result<(), PostError> {
        let octowords = header::<O>() + payload.octowords(&self.limits)?;
        // SAFETY: the caller's promise is the same.
        unsafe { self.post_general(wr_id, operation, payload, octowords, flags) }
    }

    /// [`SendQueue::post`] of requests that do not go to BlueFlame from registers, and wherever space has to be looked for.
    ///
    /// # Safety
    /// As for [`SendQueue::post`].
    #[inline(never)]
    unsafe fn post_general<I: RequestId, O: Operation, P: Payload>(
        &mut self,
        wr_id: I,
        operation: O,
        payload: P,
        octowords: usize,
        flags: PostFlags,
    ) -> Result<(), PostError> {
        self.end_batch();
        let (start, request) = (self.head, Request { operation, payload, octowords, flags });
        // SAFETY: the caller's promise is the same.
        let next = unsafe { self.build(self.place(), wr_id, request) }?;
        self.move_to(next);
        self.ring_from_ring(start);
        Ok(())
    }

    /// Publishes the request from `start` to the head, which is in the ring: to BlueFlame, unless others wait to be
    /// published or the register does not take so much.
    #[inline(always)]
    pub(super) fn ring_from_ring(&mut self, start: u32) {
        let (ring, head) = (&self.ring, self.head);
        let (blocks, control) = (head.wrapping_sub(start), ring.control_at(start));
        let copies = blocks <= self.direct;
        self.state().publish_sends(head);
        self.doorbell.ring(head, |register: &mut BlueFlame| {
            if !copies {
                return register.doorbell(control);
            }
            let half = register.take_half().cast::<Block>();
            for i in 0..blocks {
                // SAFETY: the half takes `blocks` blocks.
                unsafe { copy_block(half.add(i as usize), ring.block(start.wrapping_add(i))) };
            }
        });
        self.note_published();
        self.settle();
    }
}
