//! A request that is built once and posted again and again, with new data or a new address.
//!
//! A template is the WQE as the device reads it, but for its index and the queue's number. Posting
//! copies it to the ring and to the register: one block in lanes of 16 bytes, more blocks in stores
//! of 32 bytes. Loads are of 16 bytes in both, and a setter also stores whole lanes, so that the
//! copy need not wait until narrower stores have reached the cache.
//!
//! Some x86-64 processors lack stores of 32 bytes. There templates of several blocks never fit the
//! fast path ([`Template::needed`]), so posting needs no branch for the question.

#![allow(unsafe_code)]

mod fields;

use core::marker::PhantomData;

pub use fields::Field;

use super::encode::{Request, fenced_once, first_word, header, mode_word, short, short_blocks};
use super::payload::{Payload, segment_octowords};
use super::post::{Copied, Next};
use super::space::Place;
use super::wide::{
    self, Wide, WideBlock, copies_pairs, narrow, or, store_block, store_blocks, wide,
};
use super::{
    Batch, Block, Carries, Inline, Operation, Read, SendQueue, Takes, Transport, Write,
    WriteImmediate, place,
};
use crate::barrier;
use crate::doorbell::{Doorbell, DoorbellWord};
use crate::format::WQEBB_SIZE;
use crate::mmio::{BlueFlame, Register, Ring};
use crate::request::{Octoword, PostError, PostFlags, Remote, Sge};
use crate::sync::Ordering;

/// A request of up to `BLOCKS` blocks (64 bytes each), complete but for its index and the queue's
/// number.
///
/// Any queue posts it whose service has the operation. A raw packet's can be made by one device's
/// queues alone: what they want inline is part of it. Posting is fastest if the request takes all
/// `BLOCKS` blocks and these are at most four, the most that a BlueFlame register takes;
/// [`template_blocks`] says how many a request takes.
#[derive(Clone, Copy, Debug)]
pub struct Template<O: Operation, const BLOCKS: usize = 1> {
    image: [WideBlock; BLOCKS],
    /// Blocks that the request takes, at least one.
    blocks: u32,
    /// Bytes of the ring that the fast path needs: more than any ring has where it is not for this
    /// request.
    needed: usize,
    /// The same when the request takes all `BLOCKS` blocks.
    full: usize,
    /// Bytes that are copied into the WQE, from [`Operation::DATA_START`] on.
    copied: usize,
    /// The octoword of the only SGE; 0 if there is none, or if there are several.
    sge: usize,
    operation: PhantomData<O>,
}

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

/// Blocks that go to a BlueFlame register at most.
const MOST_DIRECT: usize = 4;

/// More bytes than any ring has, and no sum with these overflows.
const NEVER: usize = 1 << 24;

/// [`Template::full`].
fn full<const BLOCKS: usize>() -> usize {
    if BLOCKS <= MOST_DIRECT && copies_pairs() { BLOCKS * WQEBB_SIZE } else { NEVER }
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
        let octowords = header::<O>() + payload.octowords(&self.limits)?;
        let request = Request { operation, payload, octowords, flags };
        if request.is_too_long() {
            return Err(PostError::TooManySge);
        }
        let blocks = request.blocks();
        if O::FENCES_NEXT || payload.usual(&self.limits, header::<O>()).is_none() || blocks > BLOCKS
        {
            return Err(PostError::NotATemplate);
        }
        let wqe = request.with_control(wide(request.control(0)), self.number);
        let mut image = [[wide([0; 2]); 4]; BLOCKS];
        // SAFETY: it is of no more blocks, as just asked.
        unsafe { wqe.store(image.as_mut_ptr().cast::<Block>()) };
        let full = full::<BLOCKS>();
        Ok(Template {
            image,
            blocks: blocks as u32,
            needed: if blocks == BLOCKS { full } else { NEVER },
            full,
            copied: payload.copied(),
            sge: payload.only_sge().map_or(0, |index| header::<O>() + index),
            operation: PhantomData,
        })
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
        if BLOCKS > MOST_DIRECT || !template.fits(&self.next) {
            crate::hint::cold_path();
            let own = template.control(flags);
            if BLOCKS == 1 {
                return self.post_closed(wr_id, own, template.image);
            }
            return self.post_image(wr_id, own, template.image());
        }
        let control = self.stamp(self.next.place(), template.control(flags));
        // SAFETY: open so far.
        unsafe {
            if BLOCKS == 1 {
                self.post_lanes(wr_id, control, template.image);
            } else {
                self.post_pairs(wr_id, control, &template.image);
            }
        }
        Ok(())
    }

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
            self.ring_copied(wr_id, Copied::stored(&image));
        }
    }

    /// Posts a template's request in stores of 32 bytes.
    ///
    /// # Safety
    /// As for [`SendQueue::post_lanes`]; the processor [`copies_pairs`].
    #[inline(always)]
    unsafe fn post_pairs<const BLOCKS: usize>(
        &mut self,
        wr_id: u64,
        control: Wide,
        image: &[WideBlock; BLOCKS],
    ) {
        let to = (self.next.base, self.next.at);
        // SAFETY: open so far.
        let head = unsafe { self.enter(wr_id, BLOCKS) };
        let Doorbell { record, register } = &mut self.doorbell;
        register.with(Copying { control, image, to, record, head });
        self.pass(BLOCKS);
    }

    /// [`SendQueue::post_image`] of lanes that may be in registers.
    #[inline(never)]
    fn post_closed<const BLOCKS: usize>(
        &mut self,
        wr_id: u64,
        own: Wide,
        image: [WideBlock; BLOCKS],
    ) -> Result<(), PostError> {
        self.post_image(wr_id, own, &image)
    }

    /// A control segment that says `own` of its request, for one whose counter is at `place` in it.
    #[inline(always)]
    fn stamp(&self, place: u32, own: Wide) -> Wide {
        // What is added shares no bits. The compiler would reorder three ors, and then need a copy.
        or(own, wide::sum(wide([first_word(place), 0]), self.base))
    }

    /// [`SendQueue::post_template`] of any length, and wherever space has to be looked for. `own`
    /// is the first lane, without index and number: while the fast path is closed, [`Next::place`]
    /// may be another one than the head's.
    #[inline(never)]
    fn post_image(&mut self, wr_id: u64, own: Wide, image: &[WideBlock]) -> Result<(), PostError> {
        self.end_batch();
        let start = self.head;
        let next = self.build_image(self.place(), wr_id, own, image)?;
        self.move_to(next);
        self.ring_from_ring(start);
        Ok(())
    }

    /// Builds a template's request at `at`, around the ring's end if need be; returns what follows
    /// it. As after [`SendQueue::build`] the queue itself stays where it is.
    #[inline(always)]
    pub(super) fn build_image(
        &mut self,
        at: Place,
        wr_id: u64,
        own: Wide,
        image: &[WideBlock],
    ) -> Result<Place, PostError> {
        let [[_, rest @ ..], others @ ..] = image else {
            return Err(PostError::NotATemplate);
        };
        let blocks = image.len() as u32;
        let mode = fenced_once(narrow(own), self.claim(at, blocks)?);
        let control = or(self.stamp(place(at.head), own), wide([0, mode]));
        // SAFETY: the blocks are free.
        unsafe {
            store_block(self.ring.block(at.head), &[control, rest[0], rest[1], rest[2]]);
            for (counter, block) in (1..).map(|i| at.head.wrapping_add(i)).zip(others) {
                store_block(self.ring.block(counter), block);
            }
        }
        self.state().send_entry(at.head).store(wr_id, Ordering::Relaxed);
        self.note_blocks(at.head, blocks);
        Ok(Place { head: at.head.wrapping_add(blocks), fence: 0 })
    }
}

impl<T: Transport, R: Register> Batch<'_, T, R> {
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
        if !template.fits(self.next()) {
            crate::hint::cold_path();
            let own = template.control(flags);
            return self.build_image(wr_id, own, template.image());
        }
        let control = self.stamp(template.control(flags));
        // SAFETY: the blocks are free, and behind each other.
        unsafe { self.store(wr_id, control, &template.image) };
        Ok(())
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

impl<O: Operation, const BLOCKS: usize> Template<O, BLOCKS> {
    /// Blocks of 64 bytes that the request takes.
    #[inline(always)]
    pub fn blocks(&self) -> usize {
        // One, which the compiler then knows.
        if BLOCKS == 1 { 1 } else { self.blocks as usize }
    }

    /// Whether the fast path takes the request, from `next` on. Of one block the compiler knows how
    /// many bytes are needed, and the image is not copied where the fast path is for none.
    #[inline(always)]
    fn fits(&self, next: &Next) -> bool {
        match BLOCKS {
            1 => next.has(1),
            2..=MOST_DIRECT => next.has_bytes(self.needed),
            _ => false,
        }
    }

    /// The first octoword, with more flags.
    #[inline(always)]
    fn control(&self, flags: PostFlags) -> Wide {
        let first = self.image.as_flattened().first().copied().unwrap_or(wide([0; 2]));
        or(first, wide([0, mode_word(flags.bits(), 0)]))
    }

    /// The blocks that the request takes.
    #[inline(always)]
    fn image(&self) -> &[WideBlock] {
        self.image.get(..self.blocks()).unwrap_or(&self.image)
    }

    /// The same request with more flags, [`SIGNALED`](PostFlags::SIGNALED) for instance.
    #[inline(always)]
    pub fn with_flags(&self, flags: PostFlags) -> Self {
        let (control, mut template) = (self.control(flags), *self);
        if let [[first, ..], ..] = &mut template.image[..] {
            *first = control;
        }
        template
    }

    /// Puts other inline data into the template. False, and nothing changed, unless it has inline
    /// data of the same length. (A packet's bytes are [set](Template::set) one field at a time.)
    #[inline(always)]
    pub fn set_inline(&mut self, data: &[u8]) -> bool {
        let is_segment = O::DATA_START == 16 * header::<O>() + 4;
        if !is_segment || data.len() != self.copied || data.is_empty() {
            return false;
        }
        let (size, data) = (segment_octowords(data.len()), Inline(data));
        let lanes = self.image.as_flattened_mut();
        if BLOCKS == short_blocks::<O>() {
            // SAFETY: data of this length ended in the block in which it starts when the template
            // was made.
            let new = unsafe { short::<O, _>(data, size, None) };
            lanes.iter_mut().skip(header::<O>()).zip(new).for_each(|(lane, new)| *lane = new);
            return true;
        }
        let Some(lanes) = lanes.get_mut(header::<O>()..header::<O>() + size) else { return false };
        let Some((last, full)) = lanes.split_last_mut() else { return false };
        // SAFETY: data of this length had so many octowords when the template was made.
        unsafe {
            *last = data.last(full.len());
            for (index, lane) in full.iter_mut().enumerate() {
                *lane = data.full(index);
            }
        }
        true
    }

    /// Puts another SGE into the template. False, and nothing changed, unless it was made with
    /// exactly one, or if the new one is empty or too long.
    #[inline(always)]
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
