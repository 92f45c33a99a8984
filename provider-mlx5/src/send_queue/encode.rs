//! How a request becomes blocks in the ring.
//!
//! Most requests are *quick*: what they carry fits into the block in which their header ends. Then all of it is
//! composed in registers, and stored to the ring and to BlueFlame from there. The rest goes the general way: octoword
//! by octoword into the ring, and from the ring to BlueFlame.

use super::operation::Operation;
use super::payload::{Cursor, Payload};
use super::wide::{self, Wide, WideBlock};
use super::{Block, SendQueue, Transport};
use crate::format::{ControlSegment, Fence, MAX_DS, MAX_READ_SGE, Opcode, WQEBB_SIZE};
use crate::mmio::Register;
use crate::request::{Octoword, PostError, PostFlags};
use crate::sync::{AtomicU64, Ordering};

/// The header of an operation: control segment and whatever stands before the data.
pub(super) const fn header<O: Operation>() -> usize {
    1 + O::OCTOWORDS
}

/// Blocks that the header fills, before the one in which the data starts.
pub(super) const fn full_blocks<O: Operation>() -> usize {
    header::<O>() / 4
}

/// Octowords for data in the block in which the header ends.
pub(super) const fn room<O: Operation>() -> usize {
    4 - header::<O>() % 4
}

/// The second word of a control segment, as stored: mode byte and immediate.
#[inline(always)]
pub(super) const fn mode_word(mode: u8, immediate: u32) -> u64 {
    ((mode as u64) << 32 | immediate as u64).to_be()
}

/// Where the id of a request comes from.
pub trait RequestId: Copy {
    /// The id. Asked for once, when nothing can keep the request from being posted any more and before the device
    /// can see it: what has to be so from the moment of posting on can be made so here.
    fn take(self) -> u64;
}

impl RequestId for u64 {
    #[inline(always)]
    fn take(self) -> u64 {
        self
    }
}

/// What the caller asks for beside operation and data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish<I = u64> {
    pub(super) wr_id: I,
    pub(super) flags: PostFlags,
}

/// How far the ring may be filled without a thought, and what the request behind that gets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    /// The counter; never before the head.
    pub(super) limit: u32,
    /// Mode bits for the request at `limit`, which comes by the slow path.
    pub(super) fence: u8,
    /// Blocks so far that are not the first of their request; wraps. So blocks less these are requests.
    pub(super) extra: u32,
}

impl Room {
    /// None for the request at `head`, which gets a fence: the one before it changed memory keys.
    pub(super) fn fenced(self, head: u32) -> Self {
        Self { limit: head, fence: Fence::SMALL.0, extra: self.extra }
    }
}

/// What follows a request that was built.
#[derive(Clone, Copy, Debug)]
pub(super) struct Built {
    pub(super) head: u32,
    pub(super) room: Room,
    /// The first eight bytes of the request.
    pub(super) control: u64,
}

/// Whether a request can go the quick way.
#[inline(always)]
pub(super) fn is_quick<O: Operation, P: Payload>(payload: P, quick_inline: &[u32; 5]) -> bool {
    const { assert!(!O::FENCES_NEXT || full_blocks::<O>() >= 2, "the quick way leaves no fence behind") }
    full_blocks::<O>() < 2 && payload.is_quick(quick_inline[room::<O>()])
}

/// What one block adds to [`Slot::place`].
pub(super) const NEXT_PLACE: u32 = 1 << 8;

/// Where one request goes: its first block, and what it is entered as.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) first: *mut Block,
    pub(super) entry: *const AtomicU64,
    /// The counter's 16 bits, where the control segment's first word has them.
    pub(super) place: u32,
    /// What every control segment of the queue has: the queue's number, the mode of all requests.
    pub(super) base: Wide,
    /// The queue's number.
    pub(super) number: u64,
}

/// A control segment's first eight bytes with nothing but their first word, as they lie in memory.
#[inline(always)]
pub(super) const fn first_word(word: u32) -> u64 {
    if cfg!(target_endian = "little") { word.to_be() as u64 } else { (word as u64) << 32 }
}

/// What the request itself says in a control segment: all but counter, number and the mode of all requests.
#[inline(always)]
pub(super) fn own_control<O: Operation>(operation: O, size: u32, flags: PostFlags) -> Octoword {
    let ds = header::<O>() as u32 + size;
    let first = ControlSegment::first_word(operation.modifier(), 0, O::OPCODE);
    let fixed = (u64::from(first) << 32 | u64::from(ds & 0x3f)).to_be();
    [fixed, mode_word(flags.bits(), operation.immediate().get())]
}

/// What stands before the data.
struct Header<O> {
    control: Wide,
    operation: O,
    qpn: u32,
}

impl<O: Operation> Header<O> {
    /// Block `index`, with the data behind the header, if it ends in there.
    #[inline(always)]
    fn block(&self, index: usize, data: &WideBlock) -> WideBlock {
        let at = 4 * index;
        [
            self.octoword(at, data),
            self.octoword(at + 1, data),
            self.octoword(at + 2, data),
            self.octoword(at + 3, data),
        ]
    }

    #[inline(always)]
    fn octoword(&self, index: usize, data: &WideBlock) -> Wide {
        let header = header::<O>();
        match index {
            0 => self.control,
            _ if index < header => wide::wide(self.operation.octoword(index - 1, self.qpn)),
            _ => data[index % 4 - header % 4],
        }
    }
}

impl Slot {
    /// Writes a quick request: [`full_blocks`] and one more, behind each other. Returns them, for the caller to store them
    /// again, to the register: so they are put together in vector registers.
    ///
    /// # Safety
    /// The blocks are reserved, and the request is quick.
    #[inline(always)]
    pub(super) unsafe fn write_twice<O: Operation, P: Payload, I: RequestId>(
        &self,
        operation: O,
        payload: P,
        wish: Wish<I>,
    ) -> [WideBlock; 2] {
        let control = self.control_of(operation, payload.quick_octowords(), wish.flags);
        // SAFETY: the caller asked whether it is quick.
        let data = unsafe { payload.quick_wide(room::<O>()) };
        let header = Header { control, operation, qpn: self.qpn() };
        let first = header.block(0, &data);
        self.record(wish.wr_id.take());
        // SAFETY: the caller reserved the blocks.
        unsafe { wide::store_block(self.first, &first) };
        let mut blocks = [first, first];
        if full_blocks::<O>() == 1 {
            blocks[1] = header.block(1, &data);
            // SAFETY: as above.
            unsafe { wide::store_block(self.first.wrapping_add(1), &blocks[1]) };
        }
        blocks
    }

    /// Writes a quick request that stays in the ring. Vector registers do not pay then, but for what is the same in all
    /// requests of a kind: the control segment but for its first word.
    ///
    /// # Safety
    /// As for [`Slot::write_twice`].
    #[inline(always)]
    pub(super) unsafe fn write_once<O: Operation, P: Payload>(
        &self,
        operation: O,
        payload: P,
        wish: Wish,
    ) {
        let header = header::<O>();
        let own = own_control(operation, payload.quick_octowords(), wish.flags);
        // SAFETY: the caller asked whether it is quick.
        let data = unsafe { payload.quick(room::<O>()) };
        let first = self.first.cast::<Octoword>();
        let word = ControlSegment::first_word(operation.modifier(), 0, O::OPCODE);
        // SAFETY: the caller reserved the blocks. Volatile: the narrower store comes second.
        unsafe {
            first.cast::<Wide>().write_volatile(wide::or(wide::wide(own), self.base));
            first.cast::<u32>().write_volatile(self.place.wrapping_add(word).to_be());
        }
        for i in 1..4 * (full_blocks::<O>() + 1) {
            let octoword = match i {
                _ if i < header => operation.octoword(i - 1, self.qpn()),
                _ => data[i % 4 - header % 4],
            };
            // SAFETY: as above.
            unsafe { first.add(i).write(octoword) };
        }
        self.record(wish.wr_id);
    }

    /// Writes a request whose header ends in the first block and whose data ends in the second. Returns them.
    ///
    /// # Safety
    /// Two blocks are reserved, and the data is double.
    #[inline(always)]
    pub(super) unsafe fn write_double<O: Operation, P: Payload, I: RequestId>(
        &self,
        operation: O,
        payload: P,
        wish: Wish<I>,
    ) -> [WideBlock; 2] {
        let control = self.control_of(operation, payload.quick_octowords(), wish.flags);
        // SAFETY: the caller asked whether it is double.
        let [data, next] = unsafe { payload.double(room::<O>()) };
        let first = Header { control, operation, qpn: self.qpn() }.block(0, &data);
        // SAFETY: the caller reserved the blocks.
        unsafe {
            wide::store_block(self.first, &first);
            wide::store_block(self.first.wrapping_add(1), &next);
        }
        self.record(wish.wr_id.take());
        [first, next]
    }

    /// The control segment of a request that waits for none.
    #[inline(always)]
    fn control_of<O: Operation>(&self, operation: O, size: u32, flags: PostFlags) -> Wide {
        self.stamp(wide::or(wide::wide(own_control(operation, size, flags)), self.base))
    }

    /// A control segment with the counter put in.
    #[inline(always)]
    pub(super) fn stamp(&self, control: Wide) -> Wide {
        wide::or(wide::wide([first_word(self.place), 0]), control)
    }

    /// The control segment of any request; `mode` is what it gets in any case.
    #[inline(always)]
    pub(super) fn control<O: Operation>(
        &self,
        mode: u64,
        operation: O,
        size: u32,
        flags: PostFlags,
    ) -> Octoword {
        let [first, asked] = own_control(operation, size, flags);
        // A fence that was asked for is the stronger one and stands alone.
        let asks = flags.contains(PostFlags::FENCE);
        let mode = if asks { mode & !mode_word(Fence::MASK, 0) } else { mode };
        // No bit is set in two of them.
        [first | self.number.to_be() | first_word(self.place), asked | mode]
    }

    #[inline(always)]
    pub(super) fn qpn(&self) -> u32 {
        (self.number >> 8) as u32 & 0xff_ffff
    }

    /// Notes the request's work request id.
    #[inline(always)]
    pub(super) fn record(&self, wr_id: u64) {
        // SAFETY: an entry of the table, which the queue's handle keeps alive.
        unsafe { &*self.entry }.store(wr_id, Ordering::Relaxed);
    }
}

impl<T: Transport, R: Register> SendQueue<T, R> {
    /// What can be wrong with an operation, other than its data.
    #[inline(always)]
    pub(super) fn check<O: Operation>(&self, operation: O) -> Result<(), PostError> {
        operation.check()?;
        match operation.inline_header() {
            Some(header) if header < usize::from(self.min_inline_header) => {
                Err(PostError::BadHeader)
            }
            _ => Ok(()),
        }
    }

    /// Where a request at counter `index` goes.
    #[inline(always)]
    pub(super) fn slot(&self, index: u32) -> Slot {
        // SAFETY: the table has as many entries as the ring has blocks, and the index is masked.
        let entry = unsafe { self.entries.add((index & self.mask) as usize) };
        let place = u32::from(index as u16) * NEXT_PLACE;
        Slot { first: self.block(index), entry, place, base: self.base, number: self.number }
    }

    /// The block at counter `index`.
    #[inline(always)]
    pub(super) fn block(&self, index: u32) -> *mut Block {
        // SAFETY: the masked index lies within the ring.
        unsafe { self.ring.cast::<Block>().add((index & self.mask) as usize) }
    }

    /// Builds any request at counter `head`, with `room` left there. Returns what follows it. The queue itself stays where
    /// it is: nothing of this counts before the caller moves it there.
    ///
    /// # Safety
    /// As for [`super::Batch::post`].
    #[inline(always)]
    pub(super) unsafe fn build<O: Operation, P: Payload, I: RequestId>(
        &mut self,
        head: u32,
        room: Room,
        operation: O,
        payload: P,
        wish: Wish<I>,
    ) -> Result<Built, PostError> {
        let size = payload.octowords(&self.limits)?;
        let octowords = header::<O>() as u32 + size;
        // A queue's limits keep any one kind of data within a WQE; a header to segment by and pieces may exceed it together.
        if octowords > u32::from(MAX_DS) || O::OPCODE == Opcode::RDMA_READ && size > MAX_READ_SGE {
            return Err(PostError::TooManySge);
        }
        let blocks = octowords.div_ceil(4);
        let (mut room, mode) = self.reserve(head, room, blocks)?;
        // SAFETY: reserved; the rest is passed on to the caller.
        let control = unsafe { self.write_general(head, mode, operation, payload, size, wish) };
        let end = head.wrapping_add(blocks);
        room.extra = self.note_blocks(head, blocks, room.extra);
        if O::FENCES_NEXT {
            room = room.fenced(end);
            self.state().set_send_kind(head, operation.kind());
        }
        Ok(Built { head: end, room, control })
    }

    /// Writes any request of `size` octowords of data at counter `index`; returns the control segment's first word.
    ///
    /// # Safety
    /// All blocks of the request are reserved.
    #[inline(always)]
    unsafe fn write_general<O: Operation, P: Payload, I: RequestId>(
        &self,
        index: u32,
        mode: u64,
        operation: O,
        payload: P,
        size: u32,
        wish: Wish<I>,
    ) -> u64 {
        let bytes = (self.mask as usize + 1) * WQEBB_SIZE;
        let start = (index & self.mask) as usize * WQEBB_SIZE;
        let slot = self.slot(index);
        let control = slot.control(mode, operation, size, wish.flags);
        let mut cursor = Cursor::new(self.ring, bytes - 1, start);
        // SAFETY: all octowords lie in the reserved blocks.
        unsafe {
            cursor.put(control);
            for i in 0..O::OCTOWORDS {
                cursor.put(operation.octoword(i, slot.qpn()));
            }
            payload.write(&mut cursor);
            cursor.pad();
        }
        slot.record(wish.wr_id.take());
        control[0]
    }

    /// Makes sure of `blocks` blocks at `head`; returns what room is left then, and the mode word that the request gets in
    /// any case.
    #[inline(always)]
    pub(super) fn reserve(
        &mut self,
        head: u32,
        room: Room,
        blocks: u32,
    ) -> Result<(Room, u64), PostError> {
        if room.limit.wrapping_sub(head) >= blocks {
            return Ok((room, self.mode));
        }
        self.attend(head, room, blocks)
    }
}
