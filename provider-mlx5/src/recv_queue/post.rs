//! Posting receives, from the call to the doorbell record: writes the entries of receive queues and
//! shared receive queues, and their ids.
//!
//! All unsafe code of both queues is here. Their other files have the slow paths, and keep the
//! invariants that this one relies on: a front is in its ring and before its limit, the free list
//! names only entries of the ring, and only entries that belong to the posting side are written.

#![allow(unsafe_code)]

use super::scatter::terminator;
use super::{Front, RecvBatch, RecvQueue};
use crate::format::SrqNextSegment;
use crate::free_list::FreeList;
use crate::hint::likely;
use crate::request::{Octoword, PostError, Sge};
use crate::send_queue::Promised;
use crate::shared_recv_queue::{self, Places, SharedRecvBatch, SharedRecvQueue};
use crate::sync::Ordering;

// SAFETY: a queue's pointers lead to its ring, which no other value uses (contract of
// `DmaMemory::new`), and to the block that its handle keeps alive, which threads may share.
unsafe impl Send for RecvQueue {}
// SAFETY: as above.
unsafe impl Send for SharedRecvQueue {}
// SAFETY: a batch's own pointers are copies of those of its queue, which it borrows exclusively.
unsafe impl Send for RecvBatch<'_> {}
// SAFETY: as above.
unsafe impl Send for SharedRecvBatch<'_> {}

/// The scatter list of an entry: octowords that only this process writes.
#[derive(Clone, Copy)]
pub(crate) struct Scatter {
    list: *mut Octoword,
    max_sge: u8,
}

impl Scatter {
    /// Stores one of its octowords. Does nothing behind the last one.
    #[inline(always)]
    pub(super) fn put(self, at: usize, octoword: Octoword) {
        if at < usize::from(self.max_sge) {
            // SAFETY: values of this type are made below, for lists of so many octowords in rings.
            unsafe { self.list.add(at).write(octoword) };
        }
    }
}

impl Front {
    /// Writes a receive of one SGE, and moves on by `stride` bytes.
    ///
    /// # Safety
    /// The front is that of a live queue, before its limit.
    #[inline(always)]
    unsafe fn write(&mut self, wr_id: u64, sge: Sge, stride: u32) {
        // SAFETY: entry and id are in the ring and in the table. After the last entry they are not
        // used until the slow path has moved them.
        unsafe {
            self.entry.write(sge.octoword());
            self.enter(wr_id, stride);
        }
    }

    /// Writes a receive of any list, and moves on by `stride` bytes. Returns false if the list is
    /// longer than `max_sge`, or an SGE is empty or too long: then the entry may have been written,
    /// and the front has not moved.
    ///
    /// # Safety
    /// As for [`Front::write`]. The entry is valid for `max_sge` octowords.
    #[inline(always)]
    unsafe fn write_list(&mut self, wr_id: u64, data: &[Sge], max_sge: u8, stride: u32) -> bool {
        // SAFETY: the caller's promise.
        let is_written = unsafe { write_list(self.entry, data, max_sge) };
        if is_written {
            // SAFETY: just written.
            unsafe { self.enter(wr_id, stride) };
        }
        is_written
    }

    /// [`Front::write_list`] of a list in a form of the program's own: `sge` returns the SGE at a
    /// place below `count`.
    ///
    /// # Safety
    /// As for [`Front::write_list`].
    #[inline(always)]
    unsafe fn write_each(
        &mut self,
        wr_id: u64,
        (count, sge): (usize, impl Fn(usize) -> Sge),
        max_sge: u8,
        stride: u32,
    ) -> bool {
        if count > usize::from(max_sge) {
            return false;
        }
        for at in 0..count {
            let sge = sge(at);
            if !sge.is_usual() {
                return false;
            }
            // SAFETY: there are no more SGEs than octowords.
            unsafe { self.entry.add(at).write(sge.octoword()) };
        }
        // SAFETY: there is space for one more; then the entry was written.
        unsafe {
            if count < usize::from(max_sge) {
                self.entry.add(count).write(terminator());
            }
            self.enter(wr_id, stride);
        }
        true
    }

    /// Writes the request id of a receive whose list was written, and moves on by `stride` bytes.
    ///
    /// # Safety
    /// As for [`Front::write`].
    #[inline(always)]
    unsafe fn enter(&mut self, wr_id: u64, stride: u32) {
        // SAFETY: the caller's promise.
        unsafe { (*self.id).store(wr_id, Ordering::Relaxed) };
        self.pass(stride);
    }

    /// Moves on by one entry of `stride` bytes.
    #[inline(always)]
    fn pass(&mut self, stride: u32) {
        self.entry = self.entry.wrapping_byte_add(stride as usize);
        self.id = self.id.wrapping_add(1);
    }
}

impl RecvQueue {
    /// Builds one receive after those built before. It is published with them.
    ///
    /// # Errors
    /// [`PostError::BadState`] in RESET; `TooManySge`, `SgeTooLong`, `Full`. Nothing is posted
    /// then.
    ///
    /// # Safety
    /// The memory that `data` names stays registered and is not read or written by this process
    /// until the receive has completed or the QP has been destroyed.
    #[inline(always)]
    pub unsafe fn build(&mut self, wr_id: u64, data: &[Sge]) -> Result<(), PostError> {
        if likely(self.front.id < self.limit) {
            if let [sge] = data {
                if !sge.is_usual() {
                    // SAFETY: the caller's promise.
                    return self.build_slow(wr_id, unsafe { Promised::new(data) });
                }
                // SAFETY: the front is this queue's, and before the limit.
                unsafe { self.front.write(wr_id, *sge, self.stride) };
                self.head = self.head.wrapping_add(1);
                return Ok(());
            }
        }
        if self.front.id < self.open {
            self.limit = super::WITH_LISTS;
            // SAFETY: the front is this queue's, and before `open`.
            if unsafe { self.front.write_list(wr_id, data, self.max_sge, self.stride) } {
                self.head = self.head.wrapping_add(1);
                return Ok(());
            }
        }
        // SAFETY: the caller's promise.
        self.build_slow(wr_id, unsafe { Promised::new(data) })
    }

    /// Builds a receive of any list in the next entry. Returns false if none is open, the list is
    /// too long, or an SGE is empty or too long.
    #[inline(always)]
    pub(super) fn build_list(&mut self, wr_id: u64, data: Promised<&[Sge]>) -> bool {
        let is_written = self.front.id < self.open
            // SAFETY: the front is this queue's, and before `open`.
            && unsafe { self.front.write_list(wr_id, &data, self.max_sge, self.stride) };
        if is_written {
            self.head = self.head.wrapping_add(1);
        }
        is_written
    }

    /// Builds the receive whose list was written to the next entry.
    pub(super) fn enter(&mut self, wr_id: u64) {
        if self.front.id < self.open {
            // SAFETY: the front is this queue's, and before `open`.
            unsafe { self.front.enter(wr_id, self.stride) };
            self.head = self.head.wrapping_add(1);
        }
    }

    /// Builds one receive and publishes it, with what was built before.
    ///
    /// # Errors
    /// As for [`RecvQueue::build`]; nothing has been published then.
    ///
    /// # Safety
    /// As for [`RecvQueue::build`].
    #[inline(always)]
    pub unsafe fn post(&mut self, wr_id: u64, data: &[Sge]) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.build(wr_id, data) }?;
        self.publish();
        Ok(())
    }

    /// The fast path of [`RecvQueue::post`] of one SGE, which is closed in a state in which no
    /// receives can be posted. Returns `false`, with nothing changed, if the caller has to call
    /// `post` instead. `request` returns the id and the SGE; it is called after the checks, so that
    /// fewer registers are in use at a time.
    ///
    /// # Safety
    /// As for [`RecvQueue::build`]. The SGE is neither empty nor too long.
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn post_fast(&mut self, request: impl FnOnce() -> (u64, Sge)) -> bool {
        // The loads are volatile, so that each change below is one instruction on memory.
        // SAFETY: fields of this queue.
        let id = unsafe { (&raw const self.front.id).read_volatile() };
        if id >= self.limit {
            return false;
        }
        let (wr_id, sge) = request();
        // SAFETY: the front is this queue's, and before the limit.
        unsafe {
            (&raw const self.front.entry).read_volatile().write(sge.octoword());
            (*id).store(wr_id, Ordering::Relaxed);
        }
        self.front.pass(self.stride);
        self.head = self.head.wrapping_add(1);
        // SAFETY: as above.
        self.publish_up_to(unsafe { (&raw const self.head).read_volatile() });
        true
    }

    /// As [`RecvQueue::post_fast`], of a list: `sge` returns the SGE at a place below `count`.
    ///
    /// # Safety
    /// As for [`RecvQueue::build`].
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn post_listed(
        &mut self,
        wr_id: u64,
        count: usize,
        sge: impl Fn(usize) -> Sge,
    ) -> bool {
        if self.front.id >= self.open {
            return false;
        }
        self.limit = super::WITH_LISTS;
        // SAFETY: the front is this queue's, and before `open`.
        if !unsafe { self.front.write_each(wr_id, (count, sge), self.max_sge, self.stride) } {
            return false;
        }
        self.head = self.head.wrapping_add(1);
        self.publish();
        true
    }

    /// Moves an unused queue to where it would be after `head` receives that have all completed.
    /// For tools that encode receives of a queue in the middle of its life.
    ///
    /// # Safety
    /// Nothing was posted to the queue, and no device reads its ring.
    #[doc(hidden)]
    pub unsafe fn continue_at(&mut self, head: u32) {
        self.head = head;
        self.state().continue_receives(head);
        self.move_front();
        self.recheck_state();
    }

    /// The scatter list of entry `index`.
    pub(super) fn scatter(&self, index: u32) -> Scatter {
        Scatter { list: self.scatter_list(index), max_sge: self.max_sge }
    }
}

impl RecvBatch<'_> {
    /// Builds one receive after those built before.
    ///
    /// # Errors
    /// `TooManySge`, `SgeTooLong`, `Full`. Nothing has been stored then.
    ///
    /// # Safety
    /// The memory that `data` names stays registered and is not read or written by this process
    /// until the receive has completed or the QP has been destroyed.
    #[inline(always)]
    pub unsafe fn build(&mut self, wr_id: u64, data: &[Sge]) -> Result<(), PostError> {
        if let Some(sge) = only_sge(data) {
            if self.front.id < self.queue.limit {
                // SAFETY: the front is this queue's, and before the limit.
                unsafe { self.front.write(wr_id, sge, self.stride) };
                return Ok(());
            }
        }
        if self.front.id < self.queue.open {
            self.queue.limit = super::WITH_LISTS;
            // SAFETY: the front is this queue's, and before `open`.
            if unsafe { self.front.write_list(wr_id, data, self.queue.max_sge, self.stride) } {
                return Ok(());
            }
        }
        // SAFETY: the caller's promise.
        self.build_slow(wr_id, unsafe { Promised::new(data) })
    }

    /// The fast path of [`RecvBatch::build`] of one SGE. Returns `false`, with nothing changed, if
    /// the caller has to call `build` instead.
    ///
    /// # Safety
    /// As for [`RecvQueue::build`].
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn build_fast(&mut self, wr_id: u64, sge: Sge) -> bool {
        if self.front.id >= self.queue.limit || !sge.is_usual() {
            return false;
        }
        // SAFETY: the queue's own; before the limit.
        unsafe { self.front.write(wr_id, sge, self.stride) };
        true
    }

    /// As [`RecvBatch::build_fast`], of a list in a form of the program's own: `sge` returns the
    /// SGE at a place below `count`.
    ///
    /// # Safety
    /// As for [`RecvQueue::build`].
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn build_listed(
        &mut self,
        wr_id: u64,
        count: usize,
        sge: impl Fn(usize) -> Sge,
    ) -> bool {
        if self.front.id >= self.queue.open {
            return false;
        }
        self.queue.limit = super::WITH_LISTS;
        let max_sge = self.queue.max_sge;
        // SAFETY: the front is this queue's, and before `open`.
        unsafe { self.front.write_each(wr_id, (count, sge), max_sge, self.stride) }
    }

    /// Tells the device of everything built so far.
    #[inline(always)]
    pub fn publish(mut self) {
        self.write_back();
        core::mem::ManuallyDrop::new(self).queue.publish();
    }
}

impl SharedRecvQueue {
    /// Builds one receive after those built before. It is published with them.
    ///
    /// # Errors
    /// `TooManySge`, `SgeTooLong`, `Full`; `BadState` after an error of the queue was reported;
    /// `ForkedChild`. Nothing has been stored then.
    ///
    /// # Safety
    /// The memory that `data` names stays registered and is not read or written by this process
    /// until the receive has completed or the SRQ has been destroyed. No [`PollBatch`] that found
    /// receives of the SRQ completed is leaked: the next poll would find later ones completed, too.
    ///
    /// [`PollBatch`]: crate::completion_queue::PollBatch
    #[inline(always)]
    pub unsafe fn build(&mut self, wr_id: u64, data: &[Sge]) -> Result<(), PostError> {
        // SAFETY: passed on to the caller.
        if unsafe { self.build_usual(wr_id, data) } {
            return Ok(());
        }
        crate::hint::cold_path();
        // SAFETY: the caller's promise.
        self.build_slow(wr_id, unsafe { Promised::new(data) })
    }

    /// Builds a receive on the fast path. Returns false, with nothing posted, if `build_slow` has
    /// to do it.
    ///
    /// # Safety
    /// As for [`SharedRecvQueue::build`].
    #[inline(always)]
    unsafe fn build_usual(&mut self, wr_id: u64, data: &[Sge]) -> bool {
        // A copy, because the compiler would load each pointer again after every store.
        let places = self.places;
        let Self { front, max_sge, .. } = self;
        // SAFETY: places and front are this queue's, whose entries hold `max_sge` SGEs.
        let built = unsafe { front.write(&places, wr_id, data, || *max_sge) };
        if built {
            self.counter = self.counter.wrapping_add(1);
        }
        built
    }

    /// Builds one receive, and publishes it with those built before.
    ///
    /// # Errors
    /// As for [`SharedRecvQueue::build`]; the receives built before are published all the same.
    ///
    /// # Safety
    /// As for [`SharedRecvQueue::build`].
    #[inline(always)]
    pub unsafe fn post(&mut self, wr_id: u64, data: &[Sge]) -> Result<(), PostError> {
        // SAFETY: passed on to the caller.
        if unsafe { self.build_usual(wr_id, data) } {
            // The fast path is open only while no receive waits to be posted again.
            self.ring();
            return Ok(());
        }
        crate::hint::cold_path();
        // SAFETY: the caller's promise.
        self.post_any(wr_id, unsafe { Promised::new(data) })
    }

    /// The fast path of [`SharedRecvQueue::post`] of one SGE. Returns `false`, with nothing
    /// changed, if the caller has to call `post` instead. `request` is as for
    /// [`RecvQueue::post_fast`].
    ///
    /// # Safety
    /// As for [`SharedRecvQueue::build`]. The SGE is neither empty nor too long.
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn post_fast(&mut self, request: impl FnOnce() -> (u64, Sge)) -> bool {
        // SAFETY: passed on to the caller.
        let built = unsafe { self.build_one(|| in_octowords(request())) };
        if built {
            self.ring();
        }
        built
    }

    /// Builds an empty receive on the fast path. Returns false, with nothing changed, if that is
    /// closed.
    #[inline(always)]
    pub(crate) fn build_empty(&mut self, wr_id: u64) -> bool {
        // SAFETY: it names no memory.
        unsafe { self.build_one(|| (wr_id, terminator())) }
    }

    /// Builds a receive of at most one SGE as `Front::write_one`.
    ///
    /// # Safety
    /// As for [`SharedRecvQueue::build`]. The SGE is neither empty nor too long.
    #[inline(always)]
    unsafe fn build_one(&mut self, request: impl FnOnce() -> (u64, Octoword)) -> bool {
        // Not a copy of the places, because each pointer is used once, and only then in a register.
        let Self { front, places, .. } = &mut *self;
        // SAFETY: places and front are this queue's.
        let built = unsafe { front.write_one(places, request) };
        if built {
            self.counter = self.counter.wrapping_add(1);
        }
        built
    }

    /// Makes every entry end after one SGE and link to no entry. The device knows of no entry yet.
    pub(crate) fn clear_ring(&self) {
        for index in 0..self.handle().state().recv_wqes() {
            // SAFETY: an entry of the ring, which is this queue's alone: the link.
            unsafe { self.places.entry(index).write([0; 2]) };
            self.scatter(index).terminate();
        }
    }

    /// Posts the scatter list of the entry `from`, which belongs to the posting side, in the entry
    /// that is posted next. `next` is the head afterwards.
    pub(crate) fn post_copy(&mut self, from: u32, next: u32) {
        let (from_list, to) = (self.scatter(from).list, self.scatter(self.front.head).list);
        // SAFETY: both lists follow the links of entries of the ring. They overlap only if the
        // device reported a wrong entry, and then they are the same list.
        unsafe { to.copy_from(from_list, self.max_sge as usize) };
        let wr_id = self.state().recv_entry(from).load(Ordering::Relaxed);
        self.finish(next, wr_id);
    }

    /// Posts the head, whose list was written, off the fast path: links it to `next`, which was
    /// taken from the free list and becomes the head.
    pub(crate) fn finish(&mut self, next: u32, wr_id: u64) {
        let head = self.front.head;
        // SAFETY: the head belongs to the posting side.
        unsafe {
            write_link(self.places.entry(head), next);
            self.places.tables.record(head, wr_id);
        }
        self.pass(next);
    }

    /// The entry that an entry of the ring is linked to.
    pub(crate) fn linked(&self, entry: u32) -> u32 {
        // SAFETY: within the entry, whose fields are aligned; only this side writes it.
        let link = unsafe { self.places.entry(entry).cast::<u8>().add(LINK).cast::<u16>().read() };
        u16::from_be(link).into()
    }

    /// Whether posts take the slow path. So it is whenever an entry waits to be posted again.
    #[inline(always)]
    pub(crate) fn is_closed(&self) -> bool {
        // SAFETY: the free list is part of the block that `handle` keeps alive.
        unsafe { self.places.tables.is_closed() }
    }

    /// The scatter list of an entry of the ring.
    pub(crate) fn scatter(&self, index: u32) -> Scatter {
        Scatter { list: self.places.entry(index).wrapping_add(1), max_sge: self.max_sge }
    }

    /// The list of the entries that the device has given back.
    #[inline(always)]
    pub(crate) fn free(&self) -> &FreeList {
        // SAFETY: the list is part of the block that `handle` keeps alive.
        unsafe { &*self.free }
    }
}

impl Places {
    /// The entry with an index of the free list.
    #[inline(always)]
    fn entry(&self, index: u32) -> *mut Octoword {
        self.ring.wrapping_add(index as usize * self.stride).cast()
    }
}

impl shared_recv_queue::Front {
    /// Writes a receive, and moves on to the next entry. Returns false if the slow path has to do
    /// it: then the entry may have been written, but the front has not moved. `max_sge` is how many
    /// SGEs an entry holds.
    ///
    /// # Safety
    /// Places and front are those of a live SRQ.
    #[inline(always)]
    unsafe fn write(
        &mut self,
        places: &Places,
        wr_id: u64,
        data: &[Sge],
        max_sge: impl FnOnce() -> u8,
    ) -> bool {
        if let [one] = data {
            if one.is_usual() {
                // SAFETY: passed on to the caller.
                if let Some(next) = unsafe { self.take_next(places) } {
                    // SAFETY: just taken.
                    unsafe { self.fill(places, next, wr_id, one.octoword()) };
                    return true;
                }
            }
        }
        // Keeps this out of the way of lists of one.
        crate::hint::cold_path();
        // SAFETY: passed on to the caller.
        unsafe { self.write_any(places, wr_id, data, max_sge()) }
    }

    /// Writes a receive of one SGE, which is neither empty nor too long, or of none: a terminator.
    /// `request` returns its id and that octoword. It is called once the entry is taken. Returns
    /// false, with nothing changed, if the slow path has to do it.
    ///
    /// # Safety
    /// As for [`Self::write`].
    #[inline(always)]
    unsafe fn write_one(
        &mut self,
        places: &Places,
        request: impl FnOnce() -> (u64, Octoword),
    ) -> bool {
        // SAFETY: passed on to the caller.
        let Some(next) = (unsafe { self.take_next(places) }) else { return false };
        let (wr_id, one) = request();
        // SAFETY: just taken.
        unsafe { self.fill(places, next, wr_id, one) };
        true
    }

    /// Takes the entry that becomes the head, for [`Self::fill`]. `None`, with nothing changed, if
    /// the slow path has to do it.
    ///
    /// # Safety
    /// As for [`Self::write`].
    #[inline(always)]
    unsafe fn take_next(&mut self, places: &Places) -> Option<u32> {
        // SAFETY: the free list is alive, and the place is its own.
        unsafe { places.tables.take_next(&mut self.next) }
    }

    /// Writes what [`Self::write_one`] does to the head.
    ///
    /// # Safety
    /// As for [`Self::write`]. `next` was taken.
    #[inline(always)]
    unsafe fn fill(&mut self, places: &Places, next: u32, wr_id: u64, one: Octoword) {
        let (head, entry) = self.moved(places, next);
        // SAFETY: the head belongs to the posting side; it has space for the link and an SGE.
        unsafe {
            entry.add(1).write(one);
            write_link(entry, next);
            places.tables.record(head, wr_id);
        }
    }

    /// [`Self::write`] of any list, in a queue whose entries need not have terminators any more.
    ///
    /// # Safety
    /// As for [`Self::write`].
    #[inline(always)]
    unsafe fn write_any(&mut self, places: &Places, wr_id: u64, data: &[Sge], max_sge: u8) -> bool {
        // SAFETY: the free list is alive, and the place is its own.
        let Some(next) = (unsafe { places.tables.next_of_lists(self.next) }) else { return false };
        // SAFETY: the head belongs to the posting side, and has space for `max_sge` SGEs after the
        // link.
        if !unsafe { write_list(places.entry(self.head).add(1), data, max_sge) } {
            return false;
        }
        // SAFETY: as above; the place is not empty.
        unsafe { places.tables.take(&mut self.next) };
        let (head, entry) = self.moved(places, next);
        // SAFETY: as above.
        unsafe {
            places.tables.record(head, wr_id);
            write_link(entry, next);
        }
        true
    }

    /// Makes `next`, which was taken from the free list, the head. Returns the index and the
    /// address of the old one.
    #[inline(always)]
    fn moved(&mut self, places: &Places, next: u32) -> (u32, *mut Octoword) {
        let head = core::mem::replace(&mut self.head, next);
        (head, places.entry(head))
    }
}

impl SharedRecvBatch<'_> {
    /// Builds one receive after those built before.
    ///
    /// # Errors
    /// As for [`SharedRecvQueue::build`]. Nothing has been stored then.
    ///
    /// # Safety
    /// As for [`SharedRecvQueue::build`].
    #[inline(always)]
    pub unsafe fn build(&mut self, wr_id: u64, data: &[Sge]) -> Result<(), PostError> {
        // SAFETY: places and front are the queue's, whose entries hold `max_sge` SGEs.
        if unsafe { self.front.write(&self.places, wr_id, data, || self.queue.max_sge) } {
            return Ok(());
        }
        crate::hint::cold_path();
        self.write_back();
        // SAFETY: the caller's promise.
        let built = self.queue.build_slow(wr_id, unsafe { Promised::new(data) });
        // Field by field, because a copy of the whole struct would go through memory.
        self.front.head = self.queue.front.head;
        self.front.next = self.queue.front.next;
        built
    }

    /// The fast path of [`SharedRecvBatch::build`] of one SGE. Returns `false`, with nothing
    /// changed, if the caller has to call `build` instead. `request` is as for
    /// [`RecvQueue::post_fast`].
    ///
    /// # Safety
    /// As for [`SharedRecvQueue::build`]. The SGE is neither empty nor too long.
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn build_fast(&mut self, request: impl FnOnce() -> (u64, Sge)) -> bool {
        // SAFETY: places and front are the queue's.
        unsafe { self.front.write_one(&self.places, || in_octowords(request())) }
    }

    /// Tells the device of everything built so far.
    #[inline(always)]
    pub fn publish(mut self) {
        self.write_back();
        let batch = core::mem::ManuallyDrop::new(self);
        // SAFETY: `ManuallyDrop` keeps the borrow from being used or dropped again after it was
        // moved out.
        unsafe { core::ptr::read(&batch.queue) }.publish();
    }
}

/// The SGE of a list of one; `None` for other lists, and if it is empty or too long.
#[inline(always)]
fn only_sge(data: &[Sge]) -> Option<Sge> {
    match data {
        [sge] if sge.is_usual() => Some(*sge),
        _ => None,
    }
}

/// Writes a list and its terminator. Returns false if the list does not fit, or an SGE is empty or
/// too long: then SGEs and the terminator may have been written.
///
/// # Safety
/// `entry` is valid for `max_sge` octowords.
#[inline(always)]
unsafe fn write_list(entry: *mut Octoword, data: &[Sge], max_sge: u8) -> bool {
    let space = usize::from(max_sge);
    if data.len() > space {
        return false;
    }
    if data.len() < space {
        // SAFETY: there is space for one more.
        unsafe { entry.add(data.len()).write(terminator()) };
    }
    // Writes an SGE. Otherwise returns whether the list ends here, and all of it was written.
    let ends_at = |at: usize| match data.get(at) {
        None => Some(true),
        Some(sge) if !sge.is_usual() => Some(false),
        Some(sge) => {
            // SAFETY: there are no more SGEs than octowords.
            unsafe { entry.add(at).write(sge.octoword()) };
            None
        }
    };
    // The first ones without a loop: each costs one comparison.
    let end = ends_at(0).or_else(|| ends_at(1)).or_else(|| ends_at(2)).or_else(|| ends_at(3));
    end.or_else(|| (4..=data.len()).find_map(ends_at)).unwrap_or(true)
}

/// An id and an SGE, as they are written.
#[inline(always)]
fn in_octowords((wr_id, sge): (u64, Sge)) -> (u64, Octoword) {
    (wr_id, sge.octoword())
}

/// Where an entry has its link.
const LINK: usize = core::mem::offset_of!(SrqNextSegment, next_wqe_index);

/// Writes the link to the entry that is posted next. The rest of the link's segment has been zero
/// since the ring was cleared.
///
/// # Safety
/// `entry` is valid for writes, and belongs to the posting side.
#[inline(always)]
unsafe fn write_link(entry: *mut Octoword, next: u32) {
    // SAFETY: within the segment, whose fields are aligned.
    unsafe { entry.cast::<u8>().add(LINK).cast::<u16>().write((next as u16).to_be()) };
}
