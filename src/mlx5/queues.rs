//! The provider's queues on memory of this process. Each queue is kept together with its memory,
//! which is freed after it.
//!
//! No other code makes [`DmaMemory`], [`DoorbellWord`]s or registers, so the proofs that the memory
//! outlives its queue, and that only one queue uses it, are in this file.

#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uverbs_mlx5::completion_queue::{CompletionQueue, CompletionQueueConfig, ResizeError};
use uverbs_mlx5::doorbell::DoorbellWord;
use uverbs_mlx5::format::MiniCqeFormat;
use uverbs_mlx5::memory::DmaMemory;
use uverbs_mlx5::mmio::{ArmRegister, BlueFlame, SharedBlueFlame};
use uverbs_mlx5::queue_error::QueueError;
use uverbs_mlx5::user_index::UserIndexTable;

use super::records::Record;
use super::uar::{Register, Uars};
use crate::error::{Error, Result};
use crate::host::buffer::Buffer;

/// A queue with its memory. The queue is never swapped with another one: only this crate has `&mut`
/// to it, and the functions of the raw layer that return a `&mut` are `unsafe` for that reason.
#[derive(Debug)]
pub(crate) struct Anchored<Q, M> {
    // Declared before `memory`, so that it is dropped first.
    pub(crate) queue: Q,
    memory: M,
}

impl<Q, M> Deref for Anchored<Q, M> {
    type Target = Q;
    #[inline(always)]
    fn deref(&self) -> &Q {
        &self.queue
    }
}

impl<Q, M> DerefMut for Anchored<Q, M> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Q {
        &mut self.queue
    }
}

/// The words of a doorbell record, in order.
pub(crate) type Words = (DoorbellWord, DoorbellWord);

/// The rings of a queue pair or of a shared receive queue, and its doorbell record.
#[derive(Debug)]
pub(crate) struct RingMemory {
    rings: Buffer,
    record: Record,
    has_queues: AtomicBool,
}

impl RingMemory {
    pub(crate) fn new(rings: Buffer, record: Record) -> Arc<Self> {
        Arc::new(Self { rings, record, has_queues: AtomicBool::new(false) })
    }

    /// Address of the rings, for the kernel.
    pub(crate) fn address(&self) -> u64 {
        self.rings.address()
    }

    /// Address of the doorbell record, for the kernel.
    pub(crate) fn record_address(&self) -> u64 {
        self.record.address()
    }

    /// Bytes of the rings.
    pub(crate) fn len(&self) -> usize {
        self.rings.len()
    }

    /// Creates the queues of these rings with `make`. The result keeps the rings and `also`.
    ///
    /// # Errors
    /// Those of `make`; `InvalidInput` if the rings already have queues.
    pub(crate) fn queues<Q, M>(
        self: &Arc<Self>,
        verb: &'static str,
        also: M,
        make: impl FnOnce(DmaMemory, Words) -> Result<Q>,
    ) -> Result<Anchored<Q, (Arc<Self>, M)>> {
        if self.has_queues.swap(true, Ordering::Relaxed) {
            return Err(Error::invalid(verb, "the rings have queues already"));
        }
        // SAFETY: whole pages or a span that the program gave to the library, and a record of two
        // words (64 bytes). Both live as long as this value, which is kept with the queues. This is
        // the only time that they are given out, and this type does not access them. Owners close
        // and drop handles only after the kernel has destroyed the object (`keep` of `qp/core.rs`,
        // `srq/mod.rs`).
        let (memory, words) = unsafe {
            let start = NonNull::new_unchecked(self.rings.as_ptr());
            let record = NonNull::new_unchecked(self.record.as_ptr());
            (DmaMemory::new(start, self.rings.len()), DoorbellWord::pair(record))
        };
        Ok(Anchored { queue: make(memory, words)?, memory: (self.clone(), also) })
    }
}

/// The ring of a completion queue.
#[derive(Debug)]
pub(crate) struct CqRing {
    pub(crate) memory: Buffer,
    pub(crate) entries: u32,
    pub(crate) entry_bytes: u32,
}

impl CqRing {
    /// # Safety
    /// The ring outlives the queue that is made of the result, and no other queue uses it.
    unsafe fn dma(&self) -> DmaMemory {
        // SAFETY: whole pages that this value owns; the rest is the caller's promise.
        unsafe { DmaMemory::new(NonNull::new_unchecked(self.memory.as_ptr()), self.memory.len()) }
    }
}

/// The memory of a completion queue: the device writes it as long as the kernel's object lives.
#[derive(Debug)]
pub(crate) struct CqMemory {
    rings: Mutex<CqRings>,
    record: Record,
}

#[derive(Debug)]
struct CqRings {
    /// The ring in use is the last one. Rings before it were left by a resize and may still be
    /// polled.
    used: Vec<CqRing>,
    /// Rings of failed resizes, to which the device may still move.
    failed: Vec<CqRing>,
    has_poller: bool,
}

impl CqMemory {
    pub(crate) fn new(ring: CqRing, record: Record) -> Arc<Self> {
        let rings = CqRings { used: vec![ring], failed: Vec::new(), has_poller: false };
        Arc::new(Self { rings: Mutex::new(rings), record })
    }

    pub(crate) fn record_address(&self) -> u64 {
        self.record.address()
    }

    /// Calls `look` with the ring that the device uses.
    pub(crate) fn ring<A>(&self, look: impl FnOnce(&CqRing) -> A) -> Option<A> {
        self.rings().used.last().map(look)
    }

    fn rings(&self) -> MutexGuard<'_, CqRings> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The provider's completion queue, with its memory.
pub(crate) type Poller = Anchored<CompletionQueue, (Arc<CqMemory>, Arc<Uars>)>;

impl Poller {
    /// Makes the poller of a ring. `table` has the queues that complete here.
    pub(crate) fn new(
        memory: Arc<CqMemory>,
        uars: &Arc<Uars>,
        table: &UserIndexTable,
        null_lkey: Option<u32>,
        mini_format: Option<MiniCqeFormat>,
    ) -> std::result::Result<Self, QueueError> {
        let mut rings = memory.rings();
        if std::mem::replace(&mut rings.has_poller, true) {
            return Err(QueueError::InUse);
        }
        let Some(ring) = rings.used.last() else { return Err(QueueError::BadMemory) };
        // SAFETY: ring, record and the arm register's page are kept with the queue. This is the
        // only time that they are given out, and this type does not access them.
        let (dma, doorbell, arm) = unsafe {
            let record = NonNull::new_unchecked(memory.record.as_ptr());
            let arm = NonNull::new_unchecked(uars.arm_address());
            (ring.dma(), DoorbellWord::pair(record), ArmRegister::new(arm))
        };
        let config = CompletionQueueConfig {
            memory: dma,
            entries: ring.entries,
            cqe_size: ring.entry_bytes,
            doorbell,
            arm,
            number: 0,
            table,
            mini_format,
            null_lkey,
        };
        let queue = CompletionQueue::new(config)?;
        drop(rings);
        Ok(Self { queue, memory: (memory, uars.clone()) })
    }

    pub(crate) fn memory(&self) -> &Arc<CqMemory> {
        &self.memory.0
    }

    /// Prepares to follow the device to `ring`.
    pub(crate) fn prepare_resize(&mut self, ring: CqRing) -> std::result::Result<(), ResizeError> {
        let mut rings = self.memory.0.rings();
        if self.queue.resize_is_finished() {
            let old = rings.used.len().saturating_sub(1);
            rings.used.drain(..old);
        }
        // SAFETY: the ring goes into `rings`, where it stays as long as the poller may look at it.
        let memory = unsafe { ring.dma() };
        self.queue.prepare_resize(memory, ring.entries, ring.entry_bytes)?;
        rings.used.push(ring);
        Ok(())
    }

    /// Cancels the last preparation. The memory of that ring is kept.
    pub(crate) fn cancel_resize(&mut self) {
        self.queue.cancel_resize();
        let mut rings = self.memory.0.rings();
        let failed = rings.used.pop();
        rings.failed.extend(failed);
    }
}

/// A doorbell register for a send queue, with the page that it is on.
#[derive(Debug, Clone)]
pub(crate) struct Doorbell<R> {
    pub(crate) register: R,
    pub(crate) page: Arc<Register>,
}

impl Doorbell<BlueFlame> {
    /// The register for one send queue. Several queues may share a register for 8-byte doorbells
    /// only.
    ///
    /// # Errors
    /// `InvalidInput` if another queue has the register.
    pub(crate) fn of(verb: &'static str, page: Arc<Register>) -> Result<Self> {
        let (address, half) = page.claim().ok_or_else(|| {
            Error::invalid(verb, "another queue pair has the doorbell register already")
        })?;
        // SAFETY: the register is in its page, aligned to its size (`check_registers`), and the
        // page is mapped as long as `page`, which is kept with the queue. `claim` returns a
        // register with BlueFlame halves only once.
        let register = unsafe { BlueFlame::new(NonNull::new_unchecked(address), half) };
        Ok(Self { register, page })
    }

    /// The register for several queues, under a lock.
    pub(crate) fn shared(self) -> Doorbell<SharedBlueFlame> {
        let register = SharedBlueFlame::new(self.register);
        self.page.disown_in_children(&register);
        Doorbell { register, page: self.page }
    }
}
