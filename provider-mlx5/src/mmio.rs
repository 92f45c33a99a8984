//! Doorbell registers in a user access region (UAR), the page of the NIC that a program maps.
//!
//! Two registers doing two jobs: the BlueFlame register of a send queue takes either an 8-byte doorbell or a copy of
//! the whole WQE; the arm register takes a CQ's request for an event.

#![allow(unsafe_code)]

use core::ptr::NonNull;

use crate::sync::{Arc, AtomicU32, Ordering, spin};

pub(crate) mod sealed {
    /// Nobody outside can name it: who got hold of the register inside could exchange it with another queue's.
    pub trait Sealed {
        /// Runs `ring` with the register in hand.
        fn with(&mut self, ring: impl FnOnce(&mut super::BlueFlame));
    }
}

/// What rings a send queue's doorbell: a register of its own ([`BlueFlame`]) or one shared under a lock
/// ([`SharedBlueFlame`]). Only a send queue can do it:
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
/// The register has two halves and a WQE goes to them by turns, so that a copy that still sits in the processor's
/// write-combining buffer is never mixed with the next one.
#[derive(Debug)]
pub struct BlueFlame {
    /// The half whose turn it was.
    last: *mut u64,
    /// Bytes per half, or 0.
    half: usize,
}

// SAFETY: the register is written through this value alone (contract of `new`).
unsafe impl Send for BlueFlame {}

impl BlueFlame {
    /// The register at `register`, with halves of `half` bytes (256 on every device so far); `half` 0 means that it
    /// takes 8-byte doorbells only, as the non-cached UAR pages do.
    ///
    /// # Safety
    /// - Until the queue that takes this value has been dropped, `register` is valid for writes of `2 * half` bytes
    ///   (at least 8) and aligned to `2 * half` bytes (at least 8);
    /// - no other queue writes to this register meanwhile: two queues that share one corrupt each other's WQEs, which is
    ///   what [`SharedBlueFlame`] is for.
    ///
    /// A mapping that the kernel replaced because the device went away is still valid in this sense.
    pub unsafe fn new(register: NonNull<u8>, half: u32) -> Self {
        debug_assert!(register.addr().get() % (2 * half as usize).max(8) == 0);
        // The first one to be written is the lower half.
        let last = register.as_ptr().wrapping_add(half as usize).cast();
        Self { last, half: half as usize }
    }

    /// Stores one 8-byte doorbell: the first half of the last control segment, as it lies in memory.
    #[inline(always)]
    pub(crate) fn doorbell(&mut self, control: u64) {
        let target = self.take_half();
        // SAFETY: the first 8 bytes of a half, aligned.
        unsafe { target.write_volatile(control) };
    }

    /// Whether it takes more than doorbells.
    #[inline(always)]
    pub(crate) fn takes_copies(&self) -> bool {
        self.half != 0
    }

    /// The half whose turn it is now.
    #[inline(always)]
    pub(crate) fn take_half(&mut self) -> *mut u64 {
        self.take_half_of(self.half)
    }

    /// [`BlueFlame::take_half`] of a register whose halves have so many bytes.
    #[inline(always)]
    pub(crate) fn take_half_of(&mut self, half: usize) -> *mut u64 {
        // The register is aligned to its own size, so one bit of the address tells the halves apart.
        let turn = self.last.map_addr(|address| address ^ half);
        // Volatile: stored whole. Of a change of one bit the compiler makes a store of one byte, and
        // a load of the address then waits until that has left the store buffer.
        // SAFETY: a field of this value.
        unsafe { (&raw mut self.last).write_volatile(turn) };
        turn
    }
}

impl Register for BlueFlame {
    #[inline(always)]
    fn copy_limit(&self) -> u32 {
        self.half as u32
    }
}

impl sealed::Sealed for BlueFlame {
    #[inline(always)]
    fn with(&mut self, ring: impl FnOnce(&mut BlueFlame)) {
        ring(self);
    }
}

/// One BlueFlame register shared by several send queues, under a spin lock held for one doorbell at a time.
///
/// The price is an atomic exchange per doorbell, and the wait where queues meet. Prefer a register per queue; share
/// where a process has more queues than the device has registers.
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
    fn with(&mut self, ring: impl FnOnce(&mut BlueFlame)) {
        while self.0.held.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            spin();
        }
        // SAFETY: the lock is held, so this is the only access.
        ring(unsafe { &mut *self.0.register.get() });
        self.0.held.store(0, Ordering::Release);
    }
}

/// The register that arms completion queues, at [`CQ_ARM_OFFSET`](crate::format::CQ_ARM_OFFSET) of a UAR page.
///
/// One page serves any number of CQs: each store is 8 bytes, complete in itself and never combined with another,
/// since the page that serves this is not write-combining or is flushed after each store.
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
    /// Until every CQ that takes this value has been dropped, `register` is valid for 8-byte writes, aligned to 8.
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
