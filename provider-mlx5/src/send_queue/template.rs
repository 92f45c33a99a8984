//! A request built once and posted again and again, with new data or a new address.

use core::marker::PhantomData;

use super::encode::{Slot, header, is_quick, mode_word, own_control, room};
use super::payload::Payload;
use super::wide::{WideBlock, narrow, or, store_block, wide};
use super::{Batch, Carries, Operation, Read, SendQueue, Takes, Transport, Write, WriteImmediate};
use crate::format::{Fence, INLINE_FLAG};
use crate::mmio::Register;
use crate::request::{Octoword, PostError, PostFlags, Remote, Sge};

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
    /// one block, or has less than 8 bytes of inline data.
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
            return Err(PostError::NotATemplate);
        }
        let control = own_control(operation, size, flags);
        let qpn = self.slot(0).qpn();
        // SAFETY: just asked.
        let data = unsafe { payload.quick(room::<O>()) };
        let octoword = |i: usize| match i.checked_sub(header) {
            None => operation.octoword(i - 1, qpn),
            Some(i) => data[i],
        };
        let own_fence = flags.contains(PostFlags::FENCE);
        Ok(Template {
            block: [wide(control), wide(octoword(1)), wide(octoword(2)), wide(octoword(3))],
            size,
            inline: inline_length(data[0]),
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
        // SAFETY: open so far.
        let block = unsafe { write(&self.slot(self.head), wr_id, &template.block) };
        self.ring_at_once(&[block]);
        Ok(())
    }

    /// [`SendQueue::submit_template`], where a thought is needed.
    #[cold]
    #[inline(never)]
    fn submit_block(
        &mut self,
        wr_id: u64,
        mut block: WideBlock,
        fence_mask: u64,
    ) -> Result<(), PostError> {
        let (room, mode) = self.reserve(self.head, self.room, 1)?;
        self.room = room;
        block[0] = or(block[0], wide([0, mode & fence_mask]));
        // SAFETY: reserved.
        let [control, ..] = unsafe { write(&self.slot(self.head), wr_id, &block) };
        self.ring_from_ring(self.head.wrapping_add(1), narrow(control)[0]);
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
        let control = or(control, wide([0, mode & template.fence_mask]));
        // SAFETY: reserved.
        unsafe { write(&self.slot(), wr_id, &[control, rest[0], rest[1], rest[2]]) };
        self.moved(1);
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
        // SAFETY: data of this length was quick when the template was made.
        let new = unsafe { super::Inline(data).quick_wide(room::<O>()) };
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
            Some(place) if self.inline == NOT_INLINE && self.size == 1 && sge.is_quick(0) => {
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

/// Writes a template's request; returns it with its index in it.
///
/// # Safety
/// A block is reserved there.
#[inline(always)]
unsafe fn write(slot: &Slot, wr_id: u64, block: &WideBlock) -> WideBlock {
    let [control, rest @ ..] = *block;
    let block = [slot.stamp(or(control, slot.base)), rest[0], rest[1], rest[2]];
    slot.record(wr_id);
    // SAFETY: passed on to the caller.
    unsafe { store_block(slot.first, &block) };
    block
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
