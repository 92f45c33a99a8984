//! Memory that this process and the device both access: queues, doorbell records, and the doorbell
//! registers of a user access region (UAR), the page of the NIC that a program maps. Also the
//! instructions that order these accesses.
//!
//! Users find it as [`memory`](crate::memory), [`doorbell`](crate::doorbell), [`mmio`](crate::mmio)
//! and [`barrier`](crate::barrier).

#![allow(unsafe_code)]

use core::mem::offset_of;
use core::ptr::NonNull;
use core::sync::atomic::{self, AtomicU8, AtomicU16, AtomicU64};

use crate::format::{CQE_SIZE, Cqe, MINI_CQES_PER_SLOT, MiniCqe};
use crate::mmio::{Register, Ring, sealed};
#[cfg(not(target_arch = "x86_64"))]
use crate::request::Octoword;
use crate::sync::{Arc, AtomicU32, Ordering, spin};

/// A span of memory shared with the device: the bytes of one queue.
///
/// It allows access but does not own the memory: dropping it frees nothing. No Rust reference ever
/// points into it, because the device is a second writer; everything here goes through raw pointers
/// and atomics.
#[derive(Debug)]
pub struct DmaMemory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the only access to the span goes through this value (contract of `new`), so it may move
// between threads.
unsafe impl Send for DmaMemory {}

impl DmaMemory {
    /// Takes the `len` bytes at `base` for a queue.
    ///
    /// # Safety
    /// From now until the queue that uses this span has been dropped:
    /// - `base..base + len` is valid for reads and writes, and `base` is aligned to at least 64
    ///   bytes;
    /// - nothing in this process reads or writes it but that queue (and, through the CQ, the poller
    ///   of its completions), and no reference points into it.
    ///
    /// If a device has the queue, its [handle](crate::user_index::QueueHandle) is closed, or its
    /// last clone dropped, only after the device has given the queue up, or has reset it. Otherwise
    /// another queue can get the user index. Then completions of this queue would complete requests
    /// of the other one, while the device still accesses their memory.
    ///
    /// Initialized bytes are not required: the queues write what they later read.
    pub const unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len }
    }

    /// Zeroed memory that is never freed.
    #[cfg(test)]
    pub(crate) fn leaked(len: usize) -> Self {
        let bytes = vec![0u8; len + 63].leak();
        let start = bytes.as_ptr().align_offset(64);
        // SAFETY: leaked, aligned, and only the queue has it.
        unsafe { Self::new(NonNull::from(&mut bytes[start..start + len]).cast(), len) }
    }

    /// Cuts the span in two; the second part starts at byte `at`. `None` if `at` is outside.
    ///
    /// A QP's receive and send queue usually share one buffer, the receive queue first.
    pub fn split_at(self, at: usize) -> Option<(Self, Self)> {
        let rest = self.len.checked_sub(at)?;
        // SAFETY: `at` is at most `len`, so the result stays within the span or at its end.
        let second = unsafe { self.base.add(at) };
        Some((Self { base: self.base, len: at }, Self { base: second, len: rest }))
    }

    /// Address of the first byte.
    pub const fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }
}

/// Sixteen bytes in a vector register.
#[cfg(target_arch = "x86_64")]
pub(crate) type Wide = core::arch::x86_64::__m128i;
#[cfg(not(target_arch = "x86_64"))]
pub(crate) type Wide = Octoword;

/// A CQE in registers, to be stored in many entries. It has no last byte.
#[derive(Clone, Copy)]
pub(crate) struct CqePattern {
    first: Wide,
    second: Wide,
    /// The two words that threads other than the poller load too, of which the second is the
    /// [`LENGTH_WORD`].
    shared: [u64; 2],
    /// They have one byte in common. The second has the WQE counter.
    last: [u64; 2],
}

/// Where the parts of a [`CqePattern`] are.
const SECOND: usize = size_of::<Wide>();
const SHARED: usize = 2 * SECOND;
const LAST: [usize; 2] = [SHARED + 16, offset_of!(Cqe, op_own) - 8];
const _: () = {
    assert!(is_shared(SHARED) && is_shared(SHARED + 8) && 8 * LENGTH_WORD == SHARED + 8);
    assert!(!is_shared(SHARED - 1) && !is_shared(LAST[0]) && LAST[1] == LAST[0] + 7);
};

/// The word of eight bytes whose second half is the byte count.
pub(crate) const LENGTH_WORD: usize = offset_of!(Cqe, byte_count) / 8;
const _: () = assert!(offset_of!(Cqe, byte_count) % 8 == 4);

impl CqePattern {
    /// The [`LENGTH_WORD`].
    #[inline(always)]
    pub(crate) fn length_word(&self) -> [u8; 8] {
        self.shared[1].to_ne_bytes()
    }

    /// The last word, with this WQE counter.
    #[inline(always)]
    pub(crate) fn last_word(&self, counter: u16) -> LastWord {
        const AT: usize = offset_of!(Cqe, wqe_counter) - LAST[1];
        let mut bytes = self.last[1].to_ne_bytes();
        [bytes[AT], bytes[AT + 1]] = counter.to_be_bytes();
        LastWord(u64::from_le_bytes(bytes))
    }
}

/// The last word of a [`CqePattern`], as a little-endian number.
#[derive(Clone, Copy)]
pub(crate) struct LastWord(u64);

impl LastWord {
    /// The word with the WQE counter before, if the counter's lower byte is not 0.
    #[inline(always)]
    pub(crate) fn before(self) -> Self {
        const LOWER_BYTE: usize = offset_of!(Cqe, wqe_counter) + 1 - LAST[1];
        Self(self.0.wrapping_sub(1 << (8 * LOWER_BYTE)))
    }
}

/// 64 bytes of a CQ's ring that the poller may write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct CqEntry(*mut u8);

impl CqEntry {
    /// The 64 bytes so many bytes before.
    #[inline(always)]
    pub(crate) fn before(self, bytes: usize) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }

    /// Stores all of a pattern but its [`LENGTH_WORD`].
    #[inline(always)]
    pub(crate) fn store_pattern(self, pattern: &CqePattern, LastWord(last_word): LastWord) {
        let CqePattern { first, second, shared, last } = *pattern;
        // SAFETY: inside the 64 bytes, which the CQ's ring has in its memory. Only the poller
        // accesses these ones.
        unsafe {
            self.0.cast::<Wide>().write_unaligned(first);
            self.0.add(SECOND).cast::<Wide>().write_unaligned(second);
            self.0.add(LAST[0]).cast::<u64>().write_unaligned(last[0]);
            self.0.add(LAST[1]).cast::<u64>().write_unaligned(last_word.to_le());
        }
        self.store(SHARED, shared[0].to_ne_bytes(), Ordering::Relaxed);
    }

    /// Stores one, two, four or eight bytes at `offset` of a CQE.
    #[inline(always)]
    pub(crate) fn store<const N: usize>(self, offset: usize, bytes: [u8; N], ordering: Ordering) {
        assert!(is_size_of_loads(offset, N));
        self.store_unshared(offset, bytes, ordering);
    }

    /// [`CqEntry::store`] of bytes that only the poller loads: of the first half of an entry.
    #[inline(always)]
    pub(crate) fn store_unshared<const N: usize>(
        self,
        offset: usize,
        bytes: [u8; N],
        ordering: Ordering,
    ) {
        const { assert!(matches!(N, 1 | 2 | 4 | 8)) };
        assert!(offset % N == 0 && offset + N <= CQE_SIZE);
        let at = self.0.wrapping_add(offset);
        let mut word = [0; 8];
        for (to, from) in word.iter_mut().zip(bytes) {
            *to = from;
        }
        let word = u64::from_le_bytes(word);
        // SAFETY: inside the 64 bytes, which the CQ's ring has in its memory, and aligned. Atomic
        // as all accesses to them.
        unsafe {
            match N {
                1 => AtomicU8::from_ptr(at).store(word as u8, ordering),
                2 => AtomicU16::from_ptr(at.cast()).store((word as u16).to_le(), ordering),
                4 => atomic::AtomicU32::from_ptr(at.cast()).store((word as u32).to_le(), ordering),
                _ => AtomicU64::from_ptr(at.cast()).store(word.to_le(), ordering),
            }
        }
    }
}

/// Whether a store of `size` bytes at `offset` of a CQE has the size of other threads' loads there:
/// the byte with the owner bit is loaded by itself, what [`CqeView::shared_u32`] reads by words of
/// eight bytes, and the rest by no other thread.
const fn is_size_of_loads(offset: usize, size: usize) -> bool {
    let has_owner = offset + size > offset_of!(Cqe, op_own);
    if has_owner { size == 1 } else { size == 8 || !is_shared(offset) }
}

/// Whether the field at `offset` is in a word of eight bytes that threads other than the poller
/// load.
const fn is_shared(offset: usize) -> bool {
    let (index, length) = (offset_of!(Cqe, srqn_user_index), offset_of!(Cqe, byte_count));
    offset / 8 == index / 8 || offset / 8 == length / 8
}

/// The position of a CQE in a ring: 64 bytes that software owns.
///
/// No Rust reference to the bytes is ever made, because the device wrote them and will write them
/// again. The byte with the owner bit is loaded atomically, since the device may write it at the
/// same time. That load orders the device's earlier writes, so all other fields are volatile loads.
/// The compiler does not repeat volatile loads, and unlike atomic loads they can be an operand of
/// another instruction.
///
/// Positions come from a `Ring` of `completion_queue`. The files there move them by its stride, and
/// compare them with its end before they read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CqeView(*const u8);

// SAFETY: only the CQ and its monitor use the ring's memory (contract of `DmaMemory::new`). Both
// access it atomically, or as described above.
unsafe impl Send for CqeView {}

macro_rules! field {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[inline(always)]
        pub(crate) fn $name(self, offset: usize) -> $name {
            // Of a constant, which the compiler answers.
            assert!(offset % size_of::<$name>() == 0 && offset < CQE_SIZE);
            // SAFETY: the CQE is valid for reads of 64 bytes and aligned to 64 (see the type), so
            // the field is inside it and aligned. The CQE belongs to the poller until it is given
            // back, so no other thread writes the field.
            $name::from_be(unsafe { self.0.add(offset).cast::<$name>().read_volatile() })
        }
    };
}

impl CqeView {
    field!(
        /// The byte at `offset`.
        u8
    );
    field!(
        /// The big-endian number at `offset`.
        u16
    );
    field!(
        /// The big-endian number at `offset`.
        u32
    );
    field!(
        /// The big-endian number at `offset`.
        u64
    );

    /// The big-endian 16-bit number at `offset`, in the upper half of a word. This takes fewer
    /// instructions than shifting the number.
    #[inline(always)]
    pub(crate) fn u16_on_top(self, offset: usize) -> u32 {
        assert!(offset % 2 == 0 && offset < CQE_SIZE);
        // SAFETY: as for the fields above.
        let in_memory = u32::from(unsafe { self.0.add(offset).cast::<u16>().read_volatile() });
        if cfg!(target_endian = "little") { in_memory.swap_bytes() } else { in_memory << 16 }
    }

    /// Opcode, format and owner.
    #[inline(always)]
    pub(crate) fn op_own(self) -> u8 {
        // SAFETY: as for the fields above, except that the device may write the byte: so the load
        // is atomic.
        let byte = unsafe { AtomicU8::from_ptr(self.0.add(offset_of!(Cqe, op_own)).cast_mut()) };
        byte.load(Ordering::Relaxed)
    }

    /// The big-endian number at `offset`, for threads other than the poller. The poller may be
    /// writing it (see [`CqEntry::store`]), and so may a device that is part of this program. Both
    /// write the whole word of eight bytes.
    pub(crate) fn shared_u32(self, offset: usize) -> u32 {
        assert!(offset % 4 == 0 && is_shared(offset));
        // SAFETY: as for the fields above.
        let word = unsafe { AtomicU64::from_ptr(self.0.add(offset & !7).cast_mut().cast()) };
        let bytes = word.load(Ordering::Acquire).to_ne_bytes();
        u32::from_be_bytes(core::array::from_fn(|at| bytes[offset % 8 + at]))
    }

    /// The CQE of the first entry of a ring at the start of `memory`: the last 64 of its bytes.
    pub(crate) fn first(memory: &DmaMemory, stride: usize) -> Self {
        Self(memory.as_ptr()).after(stride - CQE_SIZE)
    }

    /// Bytes from the start of memory.
    #[inline(always)]
    pub(crate) fn address(self) -> usize {
        self.0.addr()
    }

    /// The 64 bytes, to be written by the poller.
    #[inline(always)]
    pub(crate) fn entry(self) -> CqEntry {
        CqEntry(self.0.cast_mut())
    }

    /// The 64 bytes so many bytes before.
    #[inline(always)]
    pub(crate) fn before(self, bytes: usize) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }

    /// The CQE of the next entry, `stride` bytes later; it may be the end of the ring.
    #[inline(always)]
    pub(crate) fn after(self, stride: usize) -> Self {
        Self(self.0.wrapping_add(stride))
    }

    /// The CQE as a pattern.
    #[inline(always)]
    pub(crate) fn pattern(self) -> CqePattern {
        // SAFETY: as for the fields above.
        unsafe {
            let word = |offset| self.0.add(offset).cast::<u64>().read_unaligned();
            CqePattern {
                first: self.0.cast::<Wide>().read_unaligned(),
                second: self.0.add(SECOND).cast::<Wide>().read_unaligned(),
                shared: [SHARED, SHARED + 8].map(word),
                last: LAST.map(word),
            }
        }
    }

    /// A mini-CQE of the array in this entry.
    #[inline(always)]
    pub(crate) fn mini(self, index: u32) -> MiniView {
        MiniView(self.0.wrapping_add(index as usize % MINI_CQES_PER_SLOT * size_of::<MiniCqe>()))
    }

    /// The 64 bytes before the CQE, in an entry of 128 bytes.
    ///
    /// # Safety
    /// The ring has such entries.
    pub(crate) unsafe fn first_half(self) -> Self {
        // SAFETY: the caller guarantees that the bytes before the CQE are valid, and they are
        // aligned like it.
        Self(unsafe { self.0.sub(CQE_SIZE) })
    }

    /// The position of a CQE that is in no ring, and that nothing writes.
    pub(crate) const fn of_static(cqe: &'static AlignedCqe) -> Self {
        Self(cqe.0.as_ptr())
    }

    /// Shuffles the sixteen bytes from `OFFSET` on: each byte of the result is the one at the index
    /// in `order`, or 0 if that is 128 or more. Then clears the bits that are not in `mask`.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn shuffled<const OFFSET: usize>(
        self,
        _: Ssse3,
        order: [[u8; 4]; 4],
        mask: [u32; 4],
    ) -> [u32; 4] {
        use core::arch::x86_64::{__m128i, _mm_and_si128, _mm_loadu_si128, _mm_shuffle_epi8};
        const { assert!(OFFSET + 16 <= CQE_SIZE) };
        // SAFETY: as for the fields above, and the processor has the instructions. All values of
        // both types are valid, and they have one size.
        unsafe {
            let bytes = _mm_loadu_si128(self.0.add(OFFSET).cast());
            let order = core::mem::transmute::<[[u8; 4]; 4], __m128i>(order);
            let mask = core::mem::transmute::<[u32; 4], __m128i>(mask);
            let ordered = _mm_and_si128(_mm_shuffle_epi8(bytes, order), mask);
            core::mem::transmute::<__m128i, [u32; 4]>(ordered)
        }
    }
}

/// The position of a mini-CQE in the array of an entry that software owns.
///
/// Positions come from a [`CqeView`]. `compressed.rs` moves them back, and reads none before the
/// array's first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct MiniView(*const u8);

impl MiniView {
    /// The mini-CQE before this one.
    #[inline(always)]
    pub(crate) fn before(self) -> Self {
        Self(self.0.wrapping_sub(size_of::<MiniCqe>()))
    }

    #[inline(always)]
    pub(crate) fn bytes(self) -> [u8; size_of::<MiniCqe>()] {
        // SAFETY: the bytes are in an array (see the type), which has the size of a CQE.
        unsafe { self.0.cast::<[u8; size_of::<MiniCqe>()]>().read() }
    }
}

/// The bytes of a CQE that is in no ring.
#[repr(C, align(64))]
pub(crate) struct AlignedCqe(pub(crate) [u8; CQE_SIZE]);

/// Proof that the processor has SSSE3.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub struct Ssse3(());

#[cfg(target_arch = "x86_64")]
impl Ssse3 {
    /// # Safety
    /// The processor has SSSE3.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        Self(())
    }
}

/// Proof that the caller checks for the end of the ring, for polls that do not, such as
/// [`take_sent`](crate::completion_queue::CompletionQueue::take_sent).
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct ByLap(());

impl ByLap {
    /// # Safety
    /// The caller begins the next lap of a CQ, or gives its entries back, before all other calls,
    /// if [`is_lap_over`] says so after it took a completion, or finishing a [`GoodBatch`] returns
    /// `Err`. It takes nothing from a batch that `is_over`.
    ///
    /// [`is_lap_over`]: crate::completion_queue::CompletionQueue::is_lap_over
    /// [`GoodBatch`]: crate::completion_queue::GoodBatch
    #[inline(always)]
    pub const unsafe fn new() -> Self {
        Self(())
    }
}

/// One word of a doorbell record, written by software and read by the device, in big-endian order.
///
/// A QP's record is two words, the receive counter first; a CQ's the consumer index and the arm
/// word; an SRQ's one word (`MLX5_RCV_DBR`, `MLX5_SND_DBR`, `MLX5_CQ_SET_CI`, `MLX5_CQ_ARM_DB` in
/// mlx5dv.h).
#[derive(Debug)]
pub struct DoorbellWord(NonNull<AtomicU32>);

// SAFETY: the word is only ever accessed atomically.
unsafe impl Send for DoorbellWord {}

impl DoorbellWord {
    /// The word at `word`.
    ///
    /// # Safety
    /// Until the queue that takes this value has been dropped, `word` is valid for reads and writes
    /// and aligned to 4 bytes, and nothing else in this process writes it.
    pub const unsafe fn new(word: NonNull<u32>) -> Self {
        Self(word.cast())
    }

    /// Both words of an 8-byte record, in order.
    ///
    /// # Safety
    /// As for [`DoorbellWord::new`], for both words; `record` is aligned to 8 bytes, as the device
    /// demands.
    pub const unsafe fn pair(record: NonNull<u32>) -> (Self, Self) {
        // SAFETY: the caller vouches for two words.
        unsafe { (Self::new(record), Self::new(record.add(1))) }
    }

    /// A word that is never freed.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn leaked() -> Self {
        Self(NonNull::from(Box::leak(Box::new(AtomicU32::new(0)))))
    }

    /// The same word for another part of the queue that took this value. That part is dropped
    /// before the queue.
    pub(crate) fn again(&self) -> Self {
        Self(self.0)
    }

    /// The word, for code that stores it together with other words.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn as_ptr(&self) -> *mut u32 {
        self.0.as_ptr().cast()
    }

    #[inline(always)]
    pub(crate) fn word(&self) -> &AtomicU32 {
        // SAFETY: valid and aligned by the contract of `new`; an atomic may be shared with the
        // device.
        unsafe { self.0.as_ref() }
    }
}

/// A BlueFlame register that belongs to one send queue.
///
/// The register has two halves and WQEs go to them alternating, so that a copy that is still in the
/// processor's write-combining buffer is never mixed with the next one.
#[derive(Debug)]
pub struct BlueFlame {
    /// Address of the half that was written last.
    last: usize,
    /// The sum of both halves' addresses, so that subtracting one half's address gives the other's.
    /// The register's only address if it takes doorbells only; the subtraction then gives null.
    both: *mut u64,
    /// Bytes per half, or 0.
    half: u32,
}

// SAFETY: the register is written only through this value (contract of `new`).
unsafe impl Send for BlueFlame {}

impl BlueFlame {
    /// The register at `register`, with halves of `half` bytes (256 on every device so far); `half`
    /// 0 means that it takes 8-byte doorbells only, as the non-cached UAR pages do.
    ///
    /// # Safety
    /// - Until the queue that takes this value has been dropped, `register` is valid for writes of
    ///   `2 * half` bytes (at least 8) and aligned to `2 * half` bytes (at least 8);
    /// - no other queue writes to this register meanwhile: two queues that share one corrupt each
    ///   other's WQEs, which is what [`SharedBlueFlame`] is for.
    ///
    /// A mapping that the kernel replaced because the device went away is still valid in this
    /// sense.
    pub unsafe fn new(register: NonNull<u8>, half: u32) -> Self {
        debug_assert!(register.addr().get() % (2 * half as usize).max(8) == 0);
        // The lower half is written first.
        let last = register.addr().get().wrapping_add(half as usize);
        let both = register.as_ptr().wrapping_add(if half == 0 { 0 } else { last });
        Self { last, both: both.cast(), half }
    }

    /// Stores one 8-byte doorbell: the first half of the last control segment, as it is in
    /// memory.
    #[inline(always)]
    pub(crate) fn doorbell(&mut self, control: u64) {
        match self.take_half() {
            // SAFETY: the first 8 bytes of a half, aligned.
            Some(half) => unsafe { half.as_ptr().write_volatile(control) },
            None => self.only_doorbell(control),
        }
    }

    /// [`BlueFlame::doorbell`] for a register that takes doorbells only.
    #[inline(always)]
    pub(crate) fn only_doorbell(&self, control: u64) {
        // A volatile load is not merged with others, so copies of WQEs need no second register.
        // SAFETY: a field of this value; 8 bytes, aligned.
        unsafe { (&raw const self.both).read_volatile().write_volatile(control) };
    }

    /// The half that is to be written now; `None` if the register takes doorbells only.
    #[inline(always)]
    pub(crate) fn take_half(&mut self) -> Option<NonNull<u64>> {
        let Some(half) = NonNull::new(self.both.wrapping_byte_sub(self.last)) else {
            crate::hint::cold_path();
            return None;
        };
        // Volatile, so that the whole word is stored. The compiler turns a change of one bit into a
        // store of one byte, and the next load of the word would wait for the store buffer. SAFETY:
        // a field of this value.
        unsafe { (&raw mut self.last).write_volatile(half.addr().get()) };
        Some(half)
    }
}

impl Register for BlueFlame {
    #[inline(always)]
    fn copy_limit(&self) -> u32 {
        self.half
    }
}

impl sealed::Sealed for BlueFlame {
    #[inline(always)]
    fn with(&mut self, ring: impl Ring) {
        ring.ring(self);
    }
}

/// One BlueFlame register shared by several send queues, under a spin lock held for one doorbell at
/// a time.
///
/// Each doorbell costs an atomic exchange, and a wait if another queue holds the lock. Prefer a
/// register per queue; share one if a process has more queues than the device has registers.
#[derive(Clone, Debug)]
pub struct SharedBlueFlame(Arc<Locked>);

#[derive(Debug)]
struct Locked {
    held: AtomicU32,
    register: core::cell::UnsafeCell<BlueFlame>,
    copy_limit: u32,
}

// SAFETY: `register` is touched only while `held` is 1, which one thread at a time achieves.
unsafe impl Sync for Locked {}
// SAFETY: as above; `BlueFlame` itself may move between threads.
unsafe impl Send for Locked {}

impl SharedBlueFlame {
    /// Shares `register`; clones of the result go to the queues.
    pub fn new(register: BlueFlame) -> Self {
        let copy_limit = register.copy_limit();
        Self(Arc::new(Locked { held: AtomicU32::new(0), register: register.into(), copy_limit }))
    }

    /// Called in a forked child before `fork` returns: if a thread of the parent held the lock, it
    /// never unlocks it in the child.
    pub fn disown(&self, _: InChild) {
        self.0.held.store(0, Ordering::Relaxed);
    }
}

impl Register for SharedBlueFlame {
    #[inline(always)]
    fn copy_limit(&self) -> u32 {
        self.0.copy_limit
    }
}

impl sealed::Sealed for SharedBlueFlame {
    #[inline(always)]
    fn with(&mut self, ring: impl Ring) {
        while self.0.held.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            spin();
        }
        // SAFETY: the lock is held, so this is the only access.
        ring.ring(unsafe { &mut *self.0.register.get() });
        self.0.held.store(0, Ordering::Release);
    }
}

/// Proof that this is a forked child in which `fork` has not returned yet. With other threads the
/// calls that take it would be wrong: the threads may hold locks that are released, and poll queues
/// that are given up.
///
/// ```compile_fail,E0133
/// fn twice(register: &uverbs_mlx5::mmio::SharedBlueFlame) {
///     register.disown(uverbs_mlx5::mmio::InChild::new());
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct InChild(());

impl InChild {
    /// # Safety
    /// The process is a forked child of the one that made the objects to which the value is passed,
    /// and has no other thread. The child frees none of the objects' memory.
    pub const unsafe fn new() -> Self {
        Self(())
    }

    /// The value, as if the test were in a child.
    #[cfg(all(test, not(loom)))]
    pub(crate) const fn pretended() -> Self {
        Self(())
    }
}

/// Proof that a queue has just been reset, by the kernel or by a command of the program. Renewing
/// the handle of a queue that was not reset would be wrong: the device would complete old requests
/// as if they were new ones, while it may still access the new ones' memory.
///
/// ```compile_fail,E0133
/// fn renewed(handle: &uverbs_mlx5::user_index::QueueHandle) {
///     let _ = handle.renew(uverbs_mlx5::user_index::WasReset::new());
/// }
/// ```
#[derive(Debug)]
pub struct WasReset(());

impl WasReset {
    /// # Safety
    /// The handle to which the value is passed is that of a queue whose reset was reported as done
    /// since the handle was registered or renewed: the device completes no more requests that were
    /// posted with it.
    pub const unsafe fn new() -> Self {
        Self(())
    }
}

/// The register that arms completion queues, at [`CQ_ARM_OFFSET`](crate::format::CQ_ARM_OFFSET) of
/// a UAR page.
///
/// One page serves any number of CQs: each store is 8 bytes and is not combined with another,
/// because the page is not write-combining or is flushed after each store.
#[derive(Clone, Copy, Debug)]
pub struct ArmRegister(NonNull<u64>);

// SAFETY: the register is only written, with single 8-byte stores.
unsafe impl Send for ArmRegister {}
// SAFETY: as above.
unsafe impl Sync for ArmRegister {}

impl ArmRegister {
    /// The register at `register`, which is the UAR page's address plus `CQ_ARM_OFFSET`.
    ///
    /// # Safety
    /// Until every CQ that takes this value has been dropped, `register` is valid for 8-byte
    /// writes, aligned to 8.
    pub const unsafe fn new(register: NonNull<u64>) -> Self {
        Self(register)
    }

    /// A register in memory that is never freed.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn leaked() -> Self {
        Self(NonNull::from(Box::leak(Box::new(0))))
    }

    /// Stores `{arm word, cqn}`, passed as one number, in big-endian order.
    #[inline]
    pub(crate) fn arm(&self, doorbell: u64) {
        // SAFETY: valid and aligned by the contract of `new`.
        unsafe { self.0.as_ptr().write_volatile(doorbell.to_be()) };
    }
}

/// Orders all earlier stores before all later ones, and empties the write-combining buffers.
#[cfg(all(target_arch = "x86_64", not(all(test, loom))))]
#[inline(always)]
pub(crate) fn sfence() {
    // SAFETY: part of SSE, which every x86-64 processor has; it reads and writes nothing.
    unsafe { core::arch::x86_64::_mm_sfence() }
}

macro_rules! aarch64_barriers {
    ($($name:ident = $instruction:literal;)*) => {$(
        #[cfg(all(target_arch = "aarch64", not(all(test, loom))))]
        #[inline(always)]
        pub(crate) fn $name() {
            // SAFETY: a barrier reads and writes nothing, and leaves stack and flags alone.
            unsafe { core::arch::asm!($instruction, options(nostack, preserves_flags)) }
        }
    )*};
}

aarch64_barriers! {
    dmb_oshst = "dmb oshst";
    dmb_oshld = "dmb oshld";
    dsb_st = "dsb st";
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::sealed::Sealed as _;
    use super::*;

    #[test]
    fn a_forked_child_rings_a_register_that_a_thread_of_the_parent_held() {
        let page = NonNull::from(Box::leak(Box::new([0u64; 64]))).cast();
        // SAFETY: as many bytes as a register of doorbells has, aligned and never freed.
        let mut register = SharedBlueFlame::new(unsafe { BlueFlame::new(page, 0) });
        // In the child the thread is gone, and the lock is still held.
        register.0.held.store(1, Ordering::Relaxed);
        register.disown(InChild::pretended());
        let mut rings = 0;
        (0..2).for_each(|_| register.with(|_: &mut BlueFlame| rings += 1));
        assert_eq!(rings, 2);
    }
}
