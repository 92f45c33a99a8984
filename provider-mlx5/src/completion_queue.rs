//! The completion queue: entries that the device writes and one thread polls.
//!
//! The last byte of an entry (CQE) holds its opcode and an owner bit that changes with each lap.
//! That byte alone says whether software owns the entry, and what the entry reports. The two common
//! cases, a send and a receive that succeeded, are handled in line. Everything else (errors, inline
//! data, compression, resizing, closed queues) takes the slow path in `slow.rs`. Fields are read
//! out of the CQE when the program asks for them.
//!
//! The device may overwrite a CQE once the consumer index is published. [`CompletionQueue::poll`]
//! publishes the CQEs before the one that it returns; a [`PollBatch`] publishes when it ends. So
//! the ring must have at least one entry more than the completions that may be outstanding, see
//! [`crate::size`].

mod buffers;
mod clean;
mod completion;
mod compressed;
mod frames;
mod monitor;
mod past;
mod poll;
mod resize;
mod ring;
mod slow;
mod status;
mod strides;
mod tags;
mod take;

#[doc(hidden)]
pub use crate::mapped::ByLap;
#[cfg(target_arch = "x86_64")]
#[doc(hidden)]
pub use crate::mapped::Ssse3;
pub use buffers::PostedRing;
pub use completion::{Completion, ENCODED, LentCqe, WorkCompletion};
pub use frames::{Frame, FrameCounters, FrameError, FrameQueue, Look, Next};
pub use monitor::CqMonitor;
use past::Place;
pub(crate) use past::is_before;
pub use poll::PollBatch;
pub use resize::ResizeError;
pub use status::{CompletionOpcode, Status};
pub use strides::{StrideCounters, StrideFrame, StrideQueue, StrideShape};
pub use take::{Good, GoodBatch, Requested};

use crate::doorbell::DoorbellWord;
use crate::format::{CqArm, MiniCqeFormat};
use crate::memory::DmaMemory;
use crate::mmio::ArmRegister;
use crate::queue_error::QueueError;
use crate::queue_state::PolledQueues;
use crate::user_index::UserIndexTable;

pub(crate) use ring::CqeView;
use ring::Ring;

/// Configuration of a CQ.
#[derive(Debug)]
pub struct CompletionQueueConfig<'t> {
    /// The ring: `entries * cqe_size` bytes.
    pub memory: DmaMemory,
    /// Entries, a power of two up to 2^23.
    pub entries: u32,
    /// Bytes per entry, 64 or 128.
    pub cqe_size: u32,
    /// The consumer index word and the arm word of the doorbell record.
    pub doorbell: (DoorbellWord, DoorbellWord),
    /// The register that arms CQs.
    pub arm: ArmRegister,
    /// The CQ's number.
    pub number: u32,
    /// The context's user index table.
    pub table: &'t UserIndexTable,
    /// What mini-CQEs of receives carry, if the CQ was created for compressed completions.
    pub mini_format: Option<MiniCqeFormat>,
    /// The key of the null region (`dump_fill_mkey`), if the device has one. Inline data for that
    /// region is discarded.
    pub null_lkey: Option<u32>,
}

/// Which completions raise an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// Any completion.
    Any,
    /// Receives that the sender marked as solicited, and errors.
    Solicited,
}

/// Why a poll returns no completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PollError {
    /// The CQ is empty.
    #[error("no completion")]
    Empty,
    /// The device completed a request that is not outstanding. The request was never posted, or its
    /// completion was polled before, or its queue does not complete to this CQ. No queue has
    /// changed, and the next call continues after that CQE; see `CompletionQueue::refused`. The
    /// device is broken, or something else writes to its memory or to the CQ's.
    #[error(
        "a completion names a request that is not outstanding: the device is broken, or something \
         else writes to the queue"
    )]
    NotOutstanding,
    /// The CQ overran: the device dropped completions. Its queues are in error.
    #[error(
        "the completion queue overran: it was made for fewer completions than were outstanding"
    )]
    Overrun,
    /// The device was removed. Polls return this once the program has read the asynchronous event
    /// DEVICE_FATAL (`Context::get_event`). Until then they return `Empty`, so a program that reads
    /// no events may poll forever.
    #[error("the device is gone")]
    DeviceRemoved,
}

/// A completion queue. One thread polls it at a time: polling takes `&mut self`.
#[derive(Debug)]
#[repr(align(128))]
pub struct CompletionQueue {
    /// The CQE that the next poll reads: the one at `consumed`, or one that leads to the slow path.
    next: CqeView,
    end: CqeView,
    stride: usize,
    consumer_index: DoorbellWord,
    /// CQEs consumed; wraps. The position in the ring follows from it.
    consumed: u32,
    /// The owner bit with which software owns the CQE at `next`.
    owner: u8,
    /// The latest drain request that an empty poll has seen.
    answered: u64,
    monitor: CqMonitor,
    ring: Ring,
    arm_word: DoorbellWord,
    arm_register: ArmRegister,
    number: u32,
    arm_sequence: u8,
    /// The latest drain request at the start of the current lap.
    lap_request: u64,
    mini_format: Option<MiniCqeFormat>,
    null_lkey: Option<u32>,
    dropped: u64,
    refused: u64,
    /// How many of `refused` the next call must report, because the call that found them returned
    /// completions.
    kept: u32,
    /// The most completions that a batch has held at a time. Their entries stay occupied until the
    /// batch ends, so the ring has fewer for others.
    lent: u32,
    /// New rings of resizes, in the order of their commands.
    pending: Vec<resize::Pending>,
    events: Option<slow::EventSource>,
    queues: PolledQueues,
}

impl CompletionQueue {
    /// A CQ on a ring that the device does not know yet. Marks every entry as not written.
    ///
    /// # Errors
    /// [`QueueError`] if memory, entries and entry size do not fit together.
    pub fn new(config: CompletionQueueConfig<'_>) -> Result<Self, QueueError> {
        let ring = Ring::new(&config.memory, config.entries, config.cqe_size)?;
        config.doorbell.0.store(0);
        config.doorbell.1.store(0);
        let place = Place { rings: vec![ring], consumed: config.doorbell.0.again() };
        let monitor = CqMonitor::new(place);
        // `poll` holds one completion at a time.
        let lent = 1;
        monitor.change_capacity(lent, ring.entries());
        Ok(Self {
            next: ring.cqe(0),
            end: ring.end(),
            stride: ring.stride(),
            consumer_index: config.doorbell.0,
            consumed: 0,
            owner: 0,
            answered: 0,
            queues: PolledQueues::new(config.table, monitor.identity()),
            monitor,
            ring,
            arm_word: config.doorbell.1,
            arm_register: config.arm,
            number: config.number,
            arm_sequence: 0,
            lap_request: 0,
            mini_format: config.mini_format,
            null_lkey: config.null_lkey,
            dropped: 0,
            refused: 0,
            kept: 0,
            lent,
            pending: Vec::new(),
            events: None,
        })
    }

    /// Asks for an event at the next completion that is not in the queue yet.
    ///
    /// Poll once more after arming: a completion that arrived just before raises no event.
    pub fn arm(&mut self, which: Arm) {
        self.follow_marks();
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

    /// Moves to the consumer index in the doorbell record, for a program that polls the ring itself
    /// and uses this queue only to arm it. Completions before that index count as polled. An index
    /// behind `consumed` is ignored: this queue wrote it, and has consumed more CQEs since.
    pub fn follow_record(&mut self) {
        let published = self.consumer_index.load() & past::INDEX;
        let ahead = published.wrapping_sub(self.consumed) & past::INDEX;
        if ahead > past::INDEX / 2 {
            return;
        }
        let end = self.consumed.wrapping_add(ahead);
        let lap = end & !(self.ring.entries() - 1);
        if is_before(self.consumed, lap) {
            let earlier = self.lap_request;
            self.consumed = lap;
            self.next_lap();
            // The device may have written into the next lap before a newer request was made.
            if end != lap {
                self.lap_request = earlier;
            }
        }
        self.consumed = end;
        self.update_next();
    }

    /// Notes that the program read an event of this CQ from its completion channel. The device
    /// accepts an arm request only with the number of events that it has sent, so call this before
    /// the next [`CompletionQueue::arm`].
    pub fn acknowledge_event(&mut self) {
        self.arm_sequence = self.arm_sequence.wrapping_add(1) & 3;
    }

    /// Calls `look` on every 1024th poll that finds the CQ empty, as long as more completions can
    /// be outstanding than the ring holds (see [`QueueHandle::set_capacity`]). `look` must read the
    /// pending events without waiting, and call [`CqMonitor::set_overrun`] if this CQ's error is
    /// among them. The next poll then reports the overrun.
    ///
    /// [`QueueHandle::set_capacity`]: crate::user_index::QueueHandle::set_capacity
    pub fn watch_events(&mut self, look: impl FnMut() + Send + 'static) {
        self.events = Some(slow::EventSource::new(look));
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
        self.ring.entries()
    }

    /// CQEs consumed so far, modulo 2^32.
    pub fn consumer_index(&self) -> u32 {
        self.consumed
    }

    /// CQEs that were dropped, because they named no open queue or were malformed.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// CQEs that named no outstanding request. A poll has returned [`PollError::NotOutstanding`]
    /// for each, or the next one will.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Saves an error for the next call. Only `NotOutstanding` must be saved: the next poll finds
    /// the other errors again.
    fn keep(&mut self, error: PollError) {
        if error == PollError::NotOutstanding {
            self.kept += 1;
            self.update_next();
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.monitor.set_place(self.queues.table().is_inherited(), |place| *place = None);
        self.monitor.set_drained(u64::MAX);
    }
}
