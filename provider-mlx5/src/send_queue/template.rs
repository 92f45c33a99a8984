//! A request built once and posted again and again, with new data or a new address.

use core::marker::PhantomData;

use super::encode::{Request, first_word, header, mode_word, short};
use super::payload::{Payload, segment_octowords};
use super::space::Place;
use super::wide::{Wide, WideBlock, narrow, or, store_block, wide};
use super::{
    Batch, Carries, Inline, Operation, Read, SendQueue, Takes, Transport, Write, WriteImmediate,
    place,
};
use crate::format::{Fence, INLINE_FLAG};
use crate::mmio::Register;
use crate::request::{Octoword, PostError, PostFlags, Remote, Sge};
use crate::sync::Ordering;

/// A request of one block (64 bytes), complete but for its index and the queue's number.
///
/// Any queue posts it whose service has the operation. A raw packet's can be made by one device's queues alone: what they
/// want inline is part of it.
#[derive(Clone, Copy, Debug)]
pub struct Template<O: Operation> {
    block: WideBlock,
    /// Octowords of data.
    size: u32,
    /// Length of inline data, or what no data has: [`NOT_INLINE`].
    inline: usize,
    /// What of the queue's mode applies: all, unless the request has a fence of its own.
    fence_mask: u64,
    operation: PhantomData<O>,
}

impl<T: Transport, R: Register> SendQueue<T, R> {
    /// Builds a request for reuse, without posting it.
    ///
    /// # Errors
    /// What [`Batch::post`] would say but `Full` and `BadState`; [`PostError::NotATemplate`] if the request takes more than
    /// one block.
    pub fn template<O, P>(
        &mut self,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> Result<Template<O>, PostError>
    where
        T: Carries<O>,
        O: Takes<P>,
        P: Payload,
    {
        self.check(operation)?;
        let size = payload.octowords(&self.limits)?;
        let request = Request { operation, payload, size, flags };
        if O::FENCES_NEXT || payload.usual(&self.limits).is_none() || request.blocks() > 1 {
            return Err(PostError::NotATemplate);
        }
        let wqe = request.with_control(wide(request.control(0)), self.number);
        // SAFETY: it is of one block, as just asked.
        let block = unsafe { wqe.end(0) };
        let own_fence = flags.contains(PostFlags::FENCE);
        Ok(Template {
            block,
            size: size as u32,
            inline: inline_length(narrow(block[header::<O>()])),
            fence_mask: if own_fence { !mode_word(Fence::MASK, 0) } else { !0 },
            operation: PhantomData,
        })
    }

    /// Posts a template's request and rings the doorbell.
    ///
    /// # Errors
    /// [`PostError::BadState`], [`PostError::Full`].
    ///
    /// # Safety
    /// As for [`SendQueue::submit`], for the memory that the template names.
    #[inline(always)]
    pub unsafe fn submit_template<O: Operation>(
        &mut self,
        wr_id: u64,
        template: &Template<O>,
    ) -> Result<(), PostError>
    where
        T: Carries<O>,
    {
        if !self.is_open(1) {
            return self.submit_block(wr_id, template.block, template.fence_mask);
        }
        let [control, rest @ ..] = template.block;
        let control = self.stamp(self.head, control);
        // SAFETY: open so far.
        unsafe { self.ring_at_once(wr_id, [[control, rest[0], rest[1], rest[2]]]) };
        Ok(())
    }

    /// A control segment that says `own` of its request, for one at counter `index`.
    #[inline(always)]
    fn stamp(&self, index: u32, own: Wide) -> Wide {
        or(or(own, wide([first_word(place(index)), 0])), self.base)
    }

    /// [`SendQueue::submit_template`], where space has to be looked for.
    #[cold]
    #[inline(never)]
    fn submit_block(
        &mut self,
        wr_id: u64,
        block: WideBlock,
        fence_mask: u64,
    ) -> Result<(), PostError> {
        let (start, at) = (self.head, self.place());
        let mode = self.claim(at, 1)?;
        let [control, rest @ ..] = block;
        let control = or(self.stamp(start, control), wide([0, mode & fence_mask]));
        // SAFETY: the block is free.
        unsafe { store_block(self.block(start), &[control, rest[0], rest[1], rest[2]]) };
        self.state().send_entry(start).store(wr_id, Ordering::Relaxed);
        self.move_to(Place { head: start.wrapping_add(1), fence: 0, ..at });
        self.ring_from_ring(start);
        Ok(())
    }
}

impl<T: Transport, R: Register> Batch<'_, T, R> {
    /// Builds a template's request behind those built before.
    ///
    /// # Errors
    /// [`PostError::Full`].
    ///
    /// # Safety
    /// As for [`Batch::post`], for the memory that the template names.
    #[inline(always)]
    pub unsafe fn post_template<O: Operation>(
        &mut self,
        wr_id: u64,
        template: &Template<O>,
    ) -> Result<(), PostError>
    where
        T: Carries<O>,
    {
        let mode = self.claim_block()?;
        let [control, rest @ ..] = template.block;
        let control = or(self.stamp(control), wide([0, mode & template.fence_mask]));
        let block = [control, rest[0], rest[1], rest[2]];
        // SAFETY: the block is free.
        unsafe { store_block(self.block(), &block) };
        self.moved(wr_id, 1);
        Ok(())
    }
}

impl<O: Operation> Template<O> {
    /// Puts other inline data into the template. False, and nothing changed, unless it has the length of what
    /// the template was made with.
    #[inline(always)]
    pub fn set_inline(&mut self, data: &[u8]) -> bool {
        if data.len() != self.inline {
            return false;
        }
        // SAFETY: data of this length ended in the block in which it starts when the template was made.
        let new = unsafe { short::<O, _>(Inline(data), segment_octowords(data.len())) };
        for (place, new) in self.block.iter_mut().skip(header::<O>()).zip(new) {
            *place = new;
        }
        true
    }

    /// Puts another piece of memory into the template. False, and nothing changed, unless it was made with one piece, or
    /// if the new one is empty or too long.
    #[inline(always)]
    pub fn set_sge(&mut self, sge: Sge) -> bool {
        match self.block.get_mut(header::<O>()) {
            Some(place) if self.inline == NOT_INLINE && self.size == 1 && sge.is_usual() => {
                *place = wide(sge.octoword());
                true
            }
            _ => false,
        }
    }

    /// The request's bytes as they will stand in the ring, but for index and queue number.
    pub fn octowords(&self) -> [Octoword; 4] {
        self.block.map(narrow)
    }
}

macro_rules! remote_templates {
    ($($operation:ident),*) => {$(
        impl Template<$operation> {
            /// Puts another remote address into the template, and its key.
            #[inline(always)]
            pub fn set_remote(&mut self, remote: Remote) {
                self.block[1] = wide(remote.octoword());
            }
        }
    )*};
}

remote_templates!(Write, WriteImmediate, Read);

/// Longer than any slice.
const NOT_INLINE: usize = usize::MAX;

/// The length in an inline segment's header; [`NOT_INLINE`] if it is something else.
fn inline_length(first: Octoword) -> usize {
    let header = (first[0].to_be() >> 32) as u32;
    if header & INLINE_FLAG == 0 { NOT_INLINE } else { (header & !INLINE_FLAG) as usize }
}
