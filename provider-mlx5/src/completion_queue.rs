//! The completion queue: entries that the device writes and one thread polls.
//!
//! The last byte of an entry (CQE) holds its opcode and an owner bit that changes with each lap, so that byte alone tells
//! whether the entry is ours and what to do with it. The two common cases, a send and a receive that went well, are
//! handled in line; everything else (errors, inline data, compression, resizing, queues that were closed) takes
//! the slow path in `slow.rs`. Fields are read out of the CQE when asked for.
//!
//! A CQE may be overwritten once the consumer index is published. [`CompletionQueue::poll`] publishes what
//! was consumed before the completion that it lends; a [`PollBatch`] publishes when it ends. So the ring has to have at least one entry
//! more than the completions that may be outstanding, see [`crate::size`].

mod completion;
mod cqe_view;
mod monitor;
mod past;
mod position;
mod resize;
mod scatter;
mod session;
mod slow;

use core::mem::offset_of;
use core::sync::atomic::AtomicU8;

pub use completion::{Completion, CompletionOpcode, Status, WorkCompletion};
pub use monitor::CqMonitor;
use past::Place;
pub(crate) use past::is_before;
pub use position::PollBatch;
pub use resize::ResizeError;

use crate::doorbell::DoorbellWord;
use crate::format::{CQE_SIZE, CqArm, Cqe, CqeOpcode, MiniCqeFormat};
use crate::memory::DmaMemory;
use crate::mmio::ArmRegister;
use crate::queue_error::QueueError;
use crate::queue_state::QueueState;
use crate::user_index::{TableView, UserIndexTable, open_queue};
use position::Run;
use session::Session;

/// Bit of `op_own` with the owner.
const OWNER: u8 = 1;

/// What a CQ is made of.
#[derive(Debug)]
pub struct CompletionQueueConfig<'t> {
    /// The ring: `entries * cqe_size` bytes.
    pub memory: DmaMemory,
    /// Entries, a power of two up to 2^24.
    pub entries: u32,
    /// Bytes per entry, 64 or 128.
    pub cqe_size: u32,
    /// The consumer index word and the arm word of the doorbell record.
    pub doorbell: (DoorbellWord, DoorbellWord),
    /// The register that arms CQs.
    pub arm: ArmRegister,
    /// The CQ's number.
    pub number: u32,
    /// The context's table.
    pub table: &'t UserIndexTable,
    /// What mini-CQEs of receives carry, if compression was asked for.
    pub mini_format: MiniCqeFormat,
    /// The key of the null region (`dump_fill_mkey`), if the device has one: inline data for it goes nowhere.
    pub null_lkey: Option<u32>,
}

/// Which completions raise an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// Any.
    Any,
    /// Receives that the sender marked as solicited, and errors.
    Solicited,
}

/// Why there is no completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PollError {
    /// Nothing there now.
    #[error("no completion")]
    Empty,
    /// The device completed a request that is not outstanding: one that was never posted, or whose completion was polled
    /// before; or it wrote the completion into a CQ that the queue does not complete to. Nothing has changed, and the next
    /// call goes on behind it; see [`CompletionQueue::refused`]. The device is broken, or something else writes to its
    /// memory or to the CQ's.
    #[error(
        "a completion names a request that is not outstanding: the device is broken, or something else writes to the queue"
    )]
    NotOutstanding,
    /// The CQ overran: the device dropped completions. Its queues are in error.
    #[error(
        "the completion queue overran: it was made for fewer completions than were outstanding"
    )]
    Overrun,
    /// The device is gone.
    #[error("the device is gone")]
    DeviceRemoved,
}

/// Where the entries are.
#[derive(Clone, Copy, Debug)]
struct Ring {
    base: *mut u8,
    /// Entries minus one.
    mask: u32,
    /// log2 of the bytes per entry.
    shift: u32,
}

impl Ring {
    /// The CQE proper of the entry at `index`: in an entry of 128 bytes the second half.
    fn cqe(&self, index: u32) -> *const u8 {
        let inside = (1 << self.shift) - CQE_SIZE;
        let offset = ((index & self.mask) as usize) << self.shift;
        // SAFETY: the masked entry lies within the ring.
        unsafe { self.base.add(offset + inside) }
    }

    /// The owner bit that entry `index` has once it is ours.
    fn lap(&self, index: u32) -> u8 {
        (index >> self.mask.count_ones()) as u8 & OWNER
    }

    /// One past the last entry, in the measure of [`Ring::cqe`].
    fn end(&self) -> *const u8 {
        // SAFETY: the address after the last entry's CQE is at most the ring's end, plus the inside offset of an entry that
        // does not exist; it is computed without claiming that it lies in the ring.
        self.cqe(0).wrapping_add((self.mask as usize + 1) << self.shift)
    }
}

/// A completion queue. One thread polls it at a time: polling takes `&mut self`.
#[derive(Debug)]
#[repr(align(128))]
pub struct CompletionQueue {
    /// Where to look next: the CQE at `consumed`, or during a compressed session an entry that leads to the slow path.
    next: *const u8,
    end: *const u8,
    stride: usize,
    /// CQEs consumed; wraps. Everything about the position follows from it.
    consumed: u32,
    /// The owner bit that makes the CQE at `next` ours.
    owner: u8,
    /// The run that the last completion belonged to.
    run: Run,
    view: TableView,
    /// The drain request that was seen last.
    attended: u64,
    monitor: CqMonitor,
    consumer_index: DoorbellWord,
    ring: Ring,
    table: UserIndexTable,
    arm_word: DoorbellWord,
    arm_register: ArmRegister,
    number: u32,
    arm_sequence: u8,
    /// The drain request that had been made when the present lap began.
    lap_request: u64,
    session: Box<Session>,
    mini_format: MiniCqeFormat,
    null_lkey: Option<u32>,
    dropped: u64,
    refused: u64,
    /// Of them, those that a call had to leave to the next one, because it has completions to return.
    kept: u32,
    resize: Option<resize::Pending>,
}

// SAFETY: the ring is this queue's own memory (contract of `DmaMemory::new`); the session is boxed and owned.
unsafe impl Send for CompletionQueue {}

impl CompletionQueue {
    /// A CQ on a ring that the device has not been told of yet: every entry is marked as not written.
    ///
    /// # Errors
    /// [`QueueError`] if memory, entries and entry size do not fit together.
    pub fn new(config: CompletionQueueConfig<'_>) -> Result<Self, QueueError> {
        let ring = make_ring(&config.memory, config.entries, config.cqe_size)?;
        let view = config.table.current();
        config.doorbell.0.store(0);
        config.doorbell.1.store(0);
        let place = Place { rings: [Some(ring), None], consumed: config.doorbell.0.as_ptr() };
        Ok(Self {
            next: ring.cqe(0),
            end: ring.end(),
            stride: 1 << ring.shift,
            consumed: 0,
            owner: 0,
            run: Run::none(view),
            view,
            attended: 0,
            monitor: CqMonitor::new(place),
            consumer_index: config.doorbell.0,
            ring,
            table: config.table.clone(),
            arm_word: config.doorbell.1,
            arm_register: config.arm,
            number: config.number,
            arm_sequence: 0,
            lap_request: 0,
            session: Box::default(),
            mini_format: config.mini_format,
            null_lkey: config.null_lkey,
            dropped: 0,
            refused: 0,
            kept: 0,
            resize: None,
        })
    }

    /// The next completion, lent until the next call.
    ///
    /// # Errors
    /// [`PollError::Empty`] if there is none now; [`PollError::NotOutstanding`] for one that is of no request; the other
    /// errors when there will not be any more.
    #[inline(always)]
    pub fn poll(&mut self) -> Result<Completion<'_>, PollError> {
        self.take_and_publish().map(Completion::new)
    }

    /// Starts polling several completions, whose places are given back to the device together.
    #[inline(always)]
    pub fn batch(&mut self) -> PollBatch<'_> {
        PollBatch::new(self)
    }

    /// Copies as many completions as there are, up to the length of `out`; returns how many.
    ///
    /// # Errors
    /// As for [`CompletionQueue::poll`], if there was not a single one; for an empty CQ that is `Ok(0)`.
    pub fn poll_into(&mut self, out: &mut [WorkCompletion]) -> Result<usize, PollError> {
        let mut batch = self.batch();
        for (count, place) in out.iter_mut().enumerate() {
            match batch.next() {
                Ok(completion) => *place = completion.to_work_completion(),
                Err(PollError::Empty) => return Ok(count),
                Err(error) if count == 0 => return Err(error),
                Err(error) => {
                    batch.keep(error);
                    return Ok(count);
                }
            }
        }
        Ok(out.len())
    }

    /// Gives the places of all completions polled so far back to the device.
    #[inline(always)]
    pub fn publish(&mut self) {
        self.publish_up_to(self.consumed);
    }

    /// Says that all before CQE `index` has been consumed.
    #[inline(always)]
    fn publish_up_to(&mut self, index: u32) {
        self.consumer_index.store_release(index & 0xff_ffff);
    }

    /// Asks for an event at the next completion that is not in the queue yet.
    ///
    /// Poll once more after arming: what came just before raises no event.
    pub fn arm(&mut self, which: Arm) {
        self.publish();
        let arm = CqArm {
            sequence: self.arm_sequence,
            solicited_only: which == Arm::Solicited,
            consumer_index: self.consumed,
        };
        crate::barrier::to_device();
        self.arm_word.store(arm.word());
        crate::barrier::before_doorbell();
        self.arm_register.arm(arm.doorbell(self.number));
        crate::barrier::flush_doorbell();
    }

    /// Notes that an event of this CQ was read from its completion channel. The device takes an arm request only with the
    /// number of events that it has sent, so this comes before the next [`CompletionQueue::arm`].
    pub fn acknowledge_event(&mut self) {
        self.arm_sequence = self.arm_sequence.wrapping_add(1) & 3;
    }

    /// A handle for other threads.
    pub fn monitor(&self) -> CqMonitor {
        self.monitor.clone()
    }

    /// The CQ's number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Records the number that the kernel gave.
    pub fn set_number(&mut self, number: u32) {
        self.number = number;
    }

    /// Entries of the ring.
    pub fn entries(&self) -> u32 {
        self.ring.mask + 1
    }

    /// CQEs consumed so far, modulo 2^32.
    pub fn consumer_index(&self) -> u32 {
        self.consumed
    }

    /// CQEs that belonged to no open queue, or made no sense, and were dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// CQEs that named no outstanding request: [`PollError::NotOutstanding`] was returned for each, or will be by the next
    /// call.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Leaves an error to the next call. All but one last in any case.
    fn keep(&mut self, error: PollError) {
        if error == PollError::NotOutstanding {
            self.kept += 1;
            self.settle();
        }
    }

    /// Nothing to poll: the moment to see whether somebody waits for that.
    #[inline(always)]
    fn nothing(&mut self) -> PollError {
        if self.monitor.requested() == self.attended {
            return PollError::Empty;
        }
        self.attend()
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.monitor.set_place(|place| *place = None);
        self.monitor.set_drained(u64::MAX);
    }
}

fn make_ring(memory: &DmaMemory, entries: u32, cqe_size: u32) -> Result<Ring, QueueError> {
    if !matches!(cqe_size, 64 | 128) || entries > 1 << 24 {
        return Err(QueueError::BadLimits);
    }
    if !memory.holds(entries, cqe_size as usize) {
        return Err(QueueError::BadMemory);
    }
    let ring = Ring { base: memory.as_ptr(), mask: entries - 1, shift: cqe_size.trailing_zeros() };
    for index in 0..entries {
        mark_unwritten(&ring, index);
    }
    Ok(ring)
}

/// Makes entry `index` one that the device has not written in this lap.
///
/// The owner bit alone says so, so that polling need not look at the opcode.
fn mark_unwritten(ring: &Ring, index: u32) {
    let not_ours = ring.lap(index) ^ OWNER;
    set_op_own(ring, index, CqeOpcode::INVALID.0 << 4 | not_ours);
}

fn set_op_own(ring: &Ring, index: u32, value: u8) {
    // SAFETY: the last byte of a CQE within the ring.
    let byte = unsafe { ring.cqe(index).add(offset_of!(Cqe, op_own)) };
    // SAFETY: valid; atomics may be shared with the device.
    unsafe { AtomicU8::from_ptr(byte.cast_mut()) }
        .store(value, core::sync::atomic::Ordering::Relaxed);
}

impl CompletionQueue {
    /// The open queue that a user index leads to, if the view has it. The byte above the index counts segments of large
    /// receive offload; CQEs in which it is not 0 find their queue on the slow path.
    fn open_index(&self, index: u32) -> Option<&'static QueueState> {
        // SAFETY: `self` keeps the table alive. The reference is used within this call and by the completion lent from
        // it, and `self` outlives both.
        unsafe { self.view.entry(index) }.and_then(open_queue)
    }
}
