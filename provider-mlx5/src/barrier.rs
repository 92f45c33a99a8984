//! Memory barriers between the CPU and the device, each named after its place in the sequence.
//!
//! A send is four groups of stores. When the device sees one group, it may read the group before
//! it:
//!
//! ```text
//! WQE  --to_device-->  doorbell record  --before_doorbell-->  doorbell register
//!      --flush_doorbell-->  later stores
//! ```
//!
//! A receive is the owner bit, then [`from_device`], then the rest of the CQE.
//!
//! x86-64. Queues and doorbell records are ordinary write-back memory, which the device reads
//! coherently. Stores to it become visible in program order and loads are not reordered with loads
//! (Intel SDM vol. 3A §9.2.2, AMD APM vol. 2 §7.2). So `to_device` and `from_device` are a release
//! and an acquire fence, which emit no instruction here and hold back the compiler. The UAR page is
//! write-combining: its stores are not ordered with anything, and may stay in a buffer until an
//! instruction flushes them. `sfence` orders all earlier stores before all later ones, and empties
//! the write-combining buffers (SDM vol. 3A §12.3.1). No `lfence` is needed: it orders loads from
//! write-combining memory, and the poller makes none.
//!
//! aarch64. Stores are not ordered with each other, so each edge needs a barrier for the outer
//! shareable domain, where a coherent device observes memory: `dmb oshst` between stores to
//! ordinary memory, `dmb oshld` between the owner bit and the CQE (the same that Linux's `dma_wmb`
//! and `dma_rmb` use), and `dsb st` around the doorbell, which waits until the stores have left the
//! core and drains its merging buffers (Linux's `wmb`, rdma-core's `mmio_flush_writes`).

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", all(test, loom))))]
compile_error!("the device barriers of this processor have not been written down; see barrier.rs");

use core::sync::atomic::{Ordering, compiler_fence};

/// Between the stores of a WQE and the doorbell record that announces it.
#[inline(always)]
pub fn to_device() {
    #[cfg(all(target_arch = "aarch64", not(all(test, loom))))]
    crate::mapped::dmb_oshst();
    #[cfg(all(test, loom))]
    loom::sync::atomic::fence(loom::sync::atomic::Ordering::Release);
    #[cfg(all(target_arch = "x86_64", not(all(test, loom))))]
    core::sync::atomic::fence(Ordering::Release);
    compiler_fence(Ordering::SeqCst);
}

/// Between the load of a CQE's owner bit and the loads of its other bytes.
#[inline(always)]
pub fn from_device() {
    #[cfg(all(target_arch = "aarch64", not(all(test, loom))))]
    crate::mapped::dmb_oshld();
    #[cfg(all(test, loom))]
    loom::sync::atomic::fence(loom::sync::atomic::Ordering::Acquire);
    #[cfg(all(target_arch = "x86_64", not(all(test, loom))))]
    core::sync::atomic::fence(Ordering::Acquire);
    compiler_fence(Ordering::SeqCst);
}

/// Between the doorbell record and the store to the doorbell register.
#[inline(always)]
pub fn before_doorbell() {
    push_stores();
}

/// Between the store to the doorbell register and whatever comes next: the store leaves the
/// processor now, and cannot be merged with the next doorbell's.
#[inline(always)]
pub fn flush_doorbell() {
    push_stores();
}

#[inline(always)]
fn push_stores() {
    #[cfg(all(test, loom))]
    loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
    #[cfg(all(target_arch = "aarch64", not(all(test, loom))))]
    crate::mapped::dsb_st();
    #[cfg(all(target_arch = "x86_64", not(all(test, loom))))]
    crate::mapped::sfence();
    compiler_fence(Ordering::SeqCst);
}
