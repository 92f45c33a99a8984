//! What this process and the device both access: the bytes of queues, doorbell records, and the
//! doorbell registers of a user access region (UAR), the page of the NIC that a program maps. Also
//! the instructions that order these accesses.
//!
//! Users find it as [`memory`](crate::memory), [`doorbell`](crate::doorbell), [`mmio`](crate::mmio)
//! and [`barrier`](crate::barrier).

#![allow(unsafe_code)]

use core::ptr::NonNull;

use crate::sync::{Arc, AtomicU32, Ordering, spin};

/// A span of memory shared with the device: the bytes of one queue.
///
/// It is a right to access, not an owner: dropping it frees nothing. No Rust reference ever points
/// into it, because the device is a second writer; everything here goes through raw pointers and
/// atomics.
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
    /// From now until the queue that is made of this span has been dropped:
    /// - `base..base + len` is valid for reads and writes, and `base` is aligned to at least 64
    ///   bytes;
    /// - nothing in this process reads or writes it but that queue (and, through the CQ, the poller
    ///   of its completions), and no reference points into it.
    ///
    /// Initialized bytes are not required: the queues write what they later read.
    pub const unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len }
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

    /// Whether there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a ring of `entries` (a power of two) of `stride` bytes fits and is aligned to 64
    /// bytes.
    pub(crate) fn holds(&self, entries: u32, stride: usize) -> bool {
        let needed = (entries as usize).checked_mul(stride);
        entries.is_power_of_two()
            && needed.is_some_and(|n| n <= self.len)
            && self.base.as_ptr().addr() % 64 == 0
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

    /// Stores a counter. Relaxed: the named barriers around the call make the order.
    #[inline(always)]
    pub(crate) fn store(&self, value: u32) {
        self.word().store(value.to_be(), Ordering::Relaxed);
    }

    /// Stores a counter after everything that was read before it: the device may overwrite that
    /// from now on.
    #[inline(always)]
    pub(crate) fn store_release(&self, value: u32) {
        self.word().store(value.to_be(), Ordering::Release);
    }

    /// The same word for another part of the queue that took this value; that part is gone before
    /// the queue is.
    pub(crate) fn again(&self) -> Self {
        Self(self.0)
    }

    /// What was stored last. Acquire: what was stored before it is seen from here on.
    pub fn load(&self) -> u32 {
        u32::from_be(self.word().load(Ordering::Acquire))
    }

    /// The word, for [`DoorbellWord::store`] as part of a longer run of stores.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn as_ptr(&self) -> *mut u32 {
        self.0.as_ptr().cast()
    }

    #[inline(always)]
    fn word(&self) -> &AtomicU32 {
        // SAFETY: valid and aligned by the contract of `new`; an atomic may be shared with the
        // device.
        unsafe { self.0.as_ref() }
    }
}

pub(crate) use sealed::Ring;

pub(crate) mod sealed {
    /// Sealed: access to the inner register would let callers swap it with another queue's.
    pub trait Sealed {
        /// Runs `ring` with exclusive access to the register.
        fn with(&mut self, ring: impl Ring);
    }

    /// What is stored to a register. The hot path has types for it: closures that are not always
    /// inlined would keep a request in memory.
    pub trait Ring {
        fn ring(self, register: &mut super::BlueFlame);
    }

    impl<F: FnOnce(&mut super::BlueFlame)> Ring for F {
        #[inline(always)]
        fn ring(self, register: &mut super::BlueFlame) {
            self(register);
        }
    }
}

/// What rings a send queue's doorbell: a register of its own ([`BlueFlame`]) or one shared under a
/// lock ([`SharedBlueFlame`]). Only a send queue can do it:
///
/// ```compile_fail
/// fn ring(register: &mut uverbs_mlx5::mmio::SharedBlueFlame) {
///     register.with(|_register| ());
/// }
/// ```
pub trait Register: sealed::Sealed + Send + 'static {
    /// Largest WQE, in bytes, that can be copied to the register; 0 if it takes doorbells only.
    fn copy_limit(&self) -> u32;
}

/// A BlueFlame register that belongs to one send queue alone.
///
/// The register has two halves and WQEs go to them alternating, so that a copy that is still in the
/// processor's write-combining buffer is never mixed with the next one.
#[derive(Debug)]
pub struct BlueFlame {
    /// Address of the half that was written last.
    last: usize,
    /// At the sum of both halves' addresses, so that the other half is as far below as the address
    /// of one. At the register's only address if it takes doorbells only: null is below.
    both: *mut u64,
    /// Bytes per half, or 0.
    half: u32,
}

// SAFETY: the register is written through this value alone (contract of `new`).
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
        // The first one to be written is the lower half.
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

    /// [`BlueFlame::doorbell`] of a register that takes nothing else.
    #[inline(always)]
    pub(crate) fn only_doorbell(&self, control: u64) {
        // A volatile load is one of its own, so that copies need no second register. SAFETY: a
        // field of this value; 8 bytes, aligned.
        unsafe { (&raw const self.both).read_volatile().write_volatile(control) };
    }

    /// The half that is to be written now; `None` if the register takes doorbells only.
    #[inline(always)]
    pub(crate) fn take_half(&mut self) -> Option<NonNull<u64>> {
        let Some(half) = NonNull::new(self.both.wrapping_byte_sub(self.last)) else {
            crate::hint::cold_path();
            return None;
        };
        // Volatile: stored whole. Of a change of one bit the compiler makes a store of one byte,
        // and a load of the address then waits until that has left the store buffer. SAFETY: a
        // field of this value.
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
/// The price is an atomic exchange per doorbell, and the wait where queues meet. Prefer a register
/// per queue; share where a process has more queues than the device has registers.
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

/// The register that arms completion queues, at [`CQ_ARM_OFFSET`](crate::format::CQ_ARM_OFFSET) of
/// a UAR page.
///
/// One page serves any number of CQs: each store is 8 bytes, complete in itself and never combined
/// with another, since the page that serves this is not write-combining or is flushed after each
/// store.
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

    /// Stores `{arm word, cqn}`, given as one big-endian number's value.
    #[inline]
    pub(crate) fn arm(&self, doorbell: u64) {
        // SAFETY: valid and aligned by the contract of `new`.
        unsafe { self.0.as_ptr().write_volatile(doorbell.to_be()) };
    }
}

/// Orders all earlier stores before all later ones, and empties the write-combining buffers.
#[cfg(all(target_arch = "x86_64", not(loom)))]
#[inline(always)]
pub(crate) fn sfence() {
    // SAFETY: part of SSE, which every x86-64 processor has; it reads and writes nothing.
    unsafe { core::arch::x86_64::_mm_sfence() }
}

macro_rules! aarch64_barriers {
    ($($name:ident = $instruction:literal;)*) => {$(
        #[cfg(all(target_arch = "aarch64", not(loom)))]
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
