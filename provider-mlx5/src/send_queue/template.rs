//! A request built once and posted again and again, with new data or a new address.

use core::marker::PhantomData;

use super::encode::{Slot, header, is_quick, mode_word, room};
use super::payload::Payload;
use super::wide::{Wide, narrow, store_block, wide};
use super::{
    Batch, Block, Carries, Operation, Read, SendQueue, Takes, Transport, Write, WriteImmediate,
};
use crate::format::{Fence, INLINE_FLAG};
use crate::mmio::Register;
use crate::request::{Octoword, PostError, PostFlags, Remote, Sge};

/// A request of one block (64 bytes), complete but for its index.
///
/// It belongs to the queue that made it: the queue's number is part of it.
#[derive(Clone, Copy, Debug)]
pub struct Template<O: Operation> {
    block: [Wide; 4],
    control: Octoword,
    /// The number of the queue that made it, where a control segment has it.
    number: u64,
    /// Octowords of data.
    size: u32,
    /// Length of inline data, or 0.
    inline: usize,
    /// What of the queue's mode applies: all, unless the request has a fence of its own.
    fence_mask: u64,
    operation: PhantomData<O>,
}

impl<T: Transport, R: Register> SendQueue<T, R> {
    /// Builds a request for reuse, without posting it.
    ///
    /// # Errors
    /// What [`Batch::post`] would say but `Full` and `BadState`; and [`PostError::InlineTooLong`] or
    /// [`PostError::TooManySge`] if the request takes more than one block, or its inline data less than 8 bytes.
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
        let header = header::<O>();
        if header > 3 || !is_quick::<O, P>(payload, &self.quick_inline) {
            return Err(PostError::InlineTooLong);
        }
        let slot = self.slot(0);
        let control = slot.control(self.mode, operation, size, flags);
        // SAFETY: just asked.
        let data = unsafe { payload.quick(room::<O>()) };
        let octoword = |i: usize| match i.checked_sub(header) {
            None => operation.octoword(i - 1, slot.qpn()),
            Some(i) => data[i],
        };
        let own_fence = flags.contains(PostFlags::FENCE);
        Ok(Template {
            block: [wide(control), wide(octoword(1)), wide(octoword(2)), wide(octoword(3))],
            control,
            number: self.number,
            size,
            inline: inline_length(data[0]),
            fence_mask: if own_fence { !mode_word(Fence::MASK, 0) } else { !0 },
            operation: PhantomData,
        })
    }

    /// Posts a template's request and rings the doorbell.
    ///
    /// # Errors
    /// [`PostError::BadState`], [`PostError::Full`], [`PostError::ForeignTemplate`].
    ///
    /// # Safety
    /// As for [`SendQueue::submit`], for the memory that the template names.
    #[inline(always)]
    pub unsafe fn submit_template<O: Operation>(
        &mut self,
        wr_id: u64,
        template: &Template<O>,
    ) -> Result<(), PostError> {
        if !self.state().can_send() {
            return Err(PostError::BadState);
        }
        template.check(self.number)?;
        let head = self.head;
        let mode = self.claim(1)?;
        // SAFETY: reserved.
        let block = unsafe { template.write(&self.slot(head), mode, wr_id) };
        self.ring_for(head, &[block]);
        Ok(())
    }
}

impl<T: Transport, R: Register> Batch<'_, T, R> {
    /// Builds a template's request behind those built before.
    ///
    /// # Errors
    /// [`PostError::Full`], [`PostError::ForeignTemplate`].
    ///
    /// # Safety
    /// As for [`Batch::post`], for the memory that the template names.
    #[inline(always)]
    pub unsafe fn post_template<O: Operation>(
        &mut self,
        wr_id: u64,
        template: &Template<O>,
    ) -> Result<(), PostError> {
        template.check(self.number())?;
        let (left, mode) = self.claim_block()?;
        // SAFETY: reserved.
        let block = unsafe { template.write(&self.slot(), mode, wr_id) };
        self.moved(1, left, block[0][0]);
        Ok(())
    }
}

impl<O: Operation> Template<O> {
    /// Whether the queue whose number is `number`, where a control segment has it, made it.
    #[inline(always)]
    fn check(&self, number: u64) -> Result<(), PostError> {
        if self.number == number { Ok(()) } else { Err(PostError::ForeignTemplate) }
    }

    /// Writes the request.
    ///
    /// # Safety
    /// A block is reserved there.
    #[inline(always)]
    unsafe fn write(&self, slot: &Slot, mode: u64, wr_id: u64) -> Block {
        // The index stands in bytes 1 and 2, the mode in byte 11; the number is there already.
        let first = self.control[0] | slot.word.to_be();
        let control = [first, self.control[1] | mode & self.fence_mask];
        let [_, rest @ ..] = self.block.map(narrow);
        let block = [control, rest[0], rest[1], rest[2]];
        // SAFETY: passed on to the caller.
        unsafe { store_block(slot.first, &block) };
        slot.record(wr_id);
        block
    }

    /// Puts other inline data into the template. False, and nothing changed, unless it has the length of what
    /// the template was made with.
    #[inline(always)]
    pub fn set_inline(&mut self, data: &[u8]) -> bool {
        if data.len() != self.inline || data.is_empty() {
            return false;
        }
        // SAFETY: data of this length was quick when the template was made.
        let new = unsafe { super::Inline(data).quick(room::<O>()) };
        for (place, new) in self.block.iter_mut().skip(header::<O>()).zip(new) {
            *place = wide(new);
        }
        true
    }

    /// Puts another piece of memory into the template. False, and nothing changed, unless it was made with one piece, or
    /// if the new one is empty or too long.
    #[inline(always)]
    pub fn set_sge(&mut self, sge: Sge) -> bool {
        match self.block.get_mut(header::<O>()) {
            Some(place) if self.inline == 0 && self.size == 1 && sge.is_quick(0) => {
                *place = wide(sge.octoword());
                true
            }
            _ => false,
        }
    }

    /// The request's bytes as they will stand in the ring, but for the index.
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

/// The length in an inline segment's header; 0 if it is something else.
fn inline_length(first: Octoword) -> usize {
    let header = (first[0].to_be() >> 32) as u32;
    if header & INLINE_FLAG == 0 { 0 } else { (header & !INLINE_FLAG) as usize }
}
