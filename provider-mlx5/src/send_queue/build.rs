//! The general writer: any request, wherever it has to go.

#![allow(unsafe_code)]

use core::mem::MaybeUninit;

use super::encode::{Request, Wqe, mode_word};
use super::payload::Payload;
use super::space::Place;
use super::wide::{copy_block, or, wide};
use super::{Block, Operation, RequestId, SendQueue, Transport, place};
use crate::format::Fence;
use crate::mmio::Register;
use crate::request::{PostError, PostFlags};
use crate::sync::Ordering;

/// The longest WQE.
#[repr(align(64))]
struct Aside(#[allow(dead_code, reason = "only its size is used")] [Block; 16]);

impl<T: Transport, R: Register> SendQueue<T, R> {
    /// Builds any request at `at`, and returns what follows it. The queue itself stays where it is: nothing of this counts
    /// before the caller moves it there.
    ///
    /// # Safety
    /// As for [`SendQueue::post`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) unsafe fn build<I: RequestId, O: Operation, P: Payload>(
        &mut self,
        at: Place,
        wr_id: I,
        request: Request<O, P>,
    ) -> Result<Place, PostError> {
        if request.is_too_long() {
            return Err(PostError::TooManySge);
        }
        let blocks = request.blocks() as u32;
        let mode = self.claim(at, blocks)?;
        // A fence that was asked for is the stronger one, and is the only one.
        let asks = request.flags.contains(PostFlags::FENCE);
        let mode = if asks { mode & !mode_word(Fence::MASK, 0) } else { mode };
        let control = or(wide(request.control(place(at.head))), or(self.base, wide([0, mode])));
        let wqe = request.with_control(control, self.number);
        // SAFETY: the blocks are free.
        unsafe { self.store(at.head, &wqe, blocks) };
        self.state().send_entry(at.head).store(wr_id.take(), Ordering::Relaxed);
        self.note_blocks(at.head, blocks);
        if O::FENCES_NEXT {
            self.state().set_send_kind(at.head, request.operation.kind());
        }
        let fence = if O::FENCES_NEXT { Fence::SMALL.0 } else { 0 };
        Ok(Place { head: at.head.wrapping_add(blocks), fence })
    }

    /// Stores a request of `blocks` blocks at counter `start`, around the ring's end if need be.
    ///
    /// # Safety
    /// The blocks are free.
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn store<O: Operation, P: Payload>(&self, start: u32, wqe: &Wqe<O, P>, blocks: u32) {
        if blocks <= self.before_end(start) {
            // SAFETY: the blocks are free, and behind each other.
            return unsafe { wqe.store(self.block(start), blocks as usize) };
        }
        let mut aside = MaybeUninit::<Aside>::uninit();
        let from = aside.as_mut_ptr().cast::<Block>();
        // SAFETY: as many blocks as a WQE has at most; then as many as were written.
        unsafe {
            wqe.store(from, blocks as usize);
            for i in 0..blocks {
                copy_block(self.block(start.wrapping_add(i)), from.add(i as usize));
            }
        }
    }
}
