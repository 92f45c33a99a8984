//! A request that is built once and posted again and again, with new data or a new address.
//!
//! A template is the WQE as the device reads it, but for its index and the queue's number. Posting
//! copies it to the ring and to the register: one block in lanes of 16 bytes, more blocks in stores
//! of 32 bytes. Loads are of 16 bytes in both, and a setter also stores whole lanes, so that the
//! copy need not wait until narrower stores have reached the cache.
//!
//! Some x86-64 processors lack stores of 32 bytes. There templates of several blocks never fit the
//! fast path ([`Template::needed`]), so posting needs no branch for the question.

mod fields;

pub use fields::Field;

use super::encode::{CopiedBytes, Image, Promised, Request, first_word, header, with_flags};
use super::payload::{Payload, SgeList};
use super::space::Needed;
use super::wide::{self, Wide, WideBlock, narrow, or, wide};
use super::{Batch, Carries, Operation, Read, SendQueue, Takes, Transport, Write, WriteImmediate};
use crate::mmio::Register;
use crate::request::{Octoword, PostError, PostFlags, Remote, Sge};

/// A request of up to `BLOCKS` blocks (64 bytes each), complete but for its index and the queue's
/// number.
///
/// Any queue posts it whose service has the operation. For raw packets, the queue must be of the
/// same device: the inline header that the device requires is part of it. Posting is fastest if the
/// request takes all `BLOCKS` blocks and these are at most four, the most that a BlueFlame register
/// takes; [`template_blocks`] says how many a request takes.
#[derive(Clone, Copy, Debug)]
pub struct Template<O: Operation, const BLOCKS: usize = 1> {
    image: [WideBlock; BLOCKS],
    /// Blocks that the request takes, at least one.
    blocks: u32,
    /// Bytes of the ring that the fast path needs: more than any ring has where it is not for this
    /// request.
    needed: Needed<BLOCKS>,
    /// The same when the request takes all `BLOCKS` blocks.
    full: Needed<BLOCKS>,
    /// Bytes that are copied into the WQE, from [`Operation::DATA_START`] on.
    copied: CopiedBytes<O, BLOCKS>,
    /// The octoword of the only SGE; 0 if there is none, [`SEVERAL`] if there are more.
    sge: usize,
}

/// No octoword of any template.
const SEVERAL: usize = usize::MAX;

/// Blocks of a request that carries `bytes` bytes of inline data, or a packet's first `bytes` bytes
/// (an [`EthernetFrame`](super::EthernetFrame)); each SGE behind these takes 16 bytes more.
///
/// ```
/// use uverbs_mlx5::send_queue::{EthernetFrame, Write, template_blocks};
///
/// assert_eq!(template_blocks::<Write>(28), 1);
/// assert_eq!(template_blocks::<Write>(92), 2);
/// assert_eq!(template_blocks::<EthernetFrame<'_>>(98), 2);
/// ```
pub const fn template_blocks<O: Operation>(bytes: usize) -> usize {
    (O::DATA_START + bytes).div_ceil(64)
}

impl<T: Transport, R: Register> SendQueue<T, R> {
    /// Builds a request of one block for reuse, without posting it.
    ///
    /// # Errors
    /// As for [`SendQueue::long_template`].
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

    /// Builds a request of up to `BLOCKS` blocks for reuse, without posting it.
    ///
    /// # Errors
    /// What [`Batch::build`] would say but `Full` and `BadState`; [`PostError::NotATemplate`] if
    /// the request takes more blocks, has empty data or an empty SGE, or changes memory keys.
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
        self.check(operation)?;
        let mut list = SgeList::new();
        let request = Request::new(operation, payload, flags, &self.limits, &mut list)?;
        let Some(octowords) = payload.usual(&self.limits, header::<O>()) else {
            return Err(PostError::NotATemplate);
        };
        if O::FENCES_NEXT {
            return Err(PostError::NotATemplate);
        }
        let copied = O::DATA_START + payload.copied();
        let has_several = 16 * octowords > copied.next_multiple_of(16);
        let wqe = request.with_control(wide(request.control(0)), self.number);
        let image = wqe.image().ok_or(PostError::NotATemplate)?;
        let (blocks, full) = (request.blocks(), Needed::all());
        Ok(Template {
            image,
            blocks: blocks as u32,
            needed: full.of(blocks),
            full,
            copied: CopiedBytes::new(payload.copied()),
            sge: match payload.only_sge() {
                Some(index) => header::<O>() + index,
                None if has_several => SEVERAL,
                None => 0,
            },
        })
    }

    /// [`SendQueue::post_template_with`] of a template for which the promise was made.
    #[inline(always)]
    pub(super) fn post_promised_template<O: Operation, const BLOCKS: usize>(
        &mut self,
        wr_id: u64,
        template: Promised<&Template<O, BLOCKS>>,
        flags: PostFlags,
    ) -> Result<(), PostError> {
        if let Some(open) = self.open_for(template.needed()) {
            open.post(wr_id, template.lanes(), flags);
            return Ok(());
        }
        crate::hint::cold_path();
        if BLOCKS == 1 {
            // A copy, so that lanes that are in registers stay there.
            let copy = template.lanes().copied();
            return self.post_closed(wr_id, copy.by_ref(), 1, template.full, flags);
        }
        self.post_closed(wr_id, template.lanes(), template.blocks(), template.full, flags)
    }

    /// Posts a template's request where space has to be looked for: a program that keeps its queue
    /// full posts each request so.
    #[cold]
    #[inline(never)]
    fn post_closed<const BLOCKS: usize>(
        &mut self,
        wr_id: u64,
        image: Promised<&[WideBlock; BLOCKS]>,
        blocks: usize,
        full: Needed<BLOCKS>,
        flags: PostFlags,
    ) -> Result<(), PostError> {
        let needed = full.of(blocks);
        // Reopened for a request of exactly so many blocks, which follows.
        if needed.is_ever() && self.reopen(BLOCKS as u32) {
            if let Some(open) = self.open_for(needed) {
                open.post(wr_id, image, flags);
                return Ok(());
            }
        }
        self.post_image(wr_id, image.first(blocks), flags)
    }

    /// A control segment that says `own` of its request, for one whose counter is at `place` in it.
    #[inline(always)]
    pub(super) fn stamp(&self, place: u32, own: Wide) -> Wide {
        // What is added shares no bits. The compiler would reorder three ors, and then need a copy.
        or(own, wide::sum(wide([first_word(place), 0]), self.base))
    }
}

impl<T: Transport, R: Register> Batch<'_, T, R> {
    /// [`Batch::build_template_with`] of a template for which the promise was made.
    #[inline(always)]
    pub(super) fn build_promised_template<O: Operation, const BLOCKS: usize>(
        &mut self,
        wr_id: u64,
        template: Promised<&Template<O, BLOCKS>>,
        flags: PostFlags,
    ) -> Result<(), PostError> {
        if self.put_template(wr_id, template, flags) {
            return Ok(());
        }
        crate::hint::cold_path();
        self.build_image(wr_id, template.image(), flags)
    }
}

impl<O: Operation, const BLOCKS: usize> Image for Template<O, BLOCKS> {
    /// The blocks that the request takes.
    #[inline(always)]
    fn image(&self) -> &[WideBlock] {
        self.image.get(..self.blocks()).unwrap_or(&self.image)
    }
}

impl<O: Operation, const BLOCKS: usize> Template<O, BLOCKS> {
    /// Blocks of 64 bytes that the request takes.
    #[inline(always)]
    pub fn blocks(&self) -> usize {
        // One, which the compiler then knows.
        if BLOCKS == 1 { 1 } else { self.blocks as usize }
    }

    /// See [`Needed`].
    #[inline(always)]
    pub(super) fn needed(&self) -> Needed<BLOCKS> {
        self.needed
    }

    /// All blocks.
    #[inline(always)]
    pub(super) fn lanes(&self) -> &[WideBlock; BLOCKS] {
        &self.image
    }

    /// The same request with more flags, [`SIGNALED`](PostFlags::SIGNALED) for instance.
    #[inline(always)]
    pub fn with_flags(&self, flags: PostFlags) -> Self {
        let (control, mut template) = (control(&self.image, flags), *self);
        if let [[first, ..], ..] = &mut template.image[..] {
            *first = control;
        }
        template
    }

    /// Puts other inline data into the template. False, and nothing changed, unless it has inline
    /// data of the same length. (A packet's bytes are [set](Template::set) one field at a time.)
    #[inline(always)]
    #[must_use]
    pub fn set_inline(&mut self, data: &[u8]) -> bool {
        self.copied.replace(data, &mut self.image)
    }

    /// Puts another SGE into the template. False, and nothing changed, unless it was made with
    /// exactly one, or if the new one is empty or too long.
    #[inline(always)]
    #[must_use]
    pub fn set_sge(&mut self, sge: Sge) -> bool {
        match self.image.as_flattened_mut().get_mut(self.sge) {
            Some(lane) if self.sge != 0 && sge.is_usual() => {
                *lane = wide(sge.octoword());
                true
            }
            _ => false,
        }
    }

    /// The request's bytes as they will be in the ring, but for index and queue number.
    pub fn octowords(&self) -> impl Iterator<Item = Octoword> {
        self.image().as_flattened().iter().copied().map(narrow)
    }
}

/// The first octoword, with more flags.
#[inline(always)]
pub(super) fn control(image: &[WideBlock], flags: PostFlags) -> Wide {
    let first = image.as_flattened().first().copied().unwrap_or(wide([0; 2]));
    with_flags(first, flags)
}

macro_rules! remote_templates {
    ($($operation:ident),*) => {$(
        impl<const BLOCKS: usize> Template<$operation, BLOCKS> {
            /// Puts another remote address into the template, and its key.
            #[inline(always)]
            pub fn set_remote(&mut self, remote: Remote) {
                if let [[_, place, ..], ..] = &mut self.image[..] {
                    *place = wide(remote.octoword());
                }
            }
        }
    )*};
}

remote_templates!(Write, WriteImmediate, Read);
