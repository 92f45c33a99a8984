//! The send queue: requests are built into the ring, then published with one doorbell.
//!
//! ```text
//! batch() -> post() post() ... -> publish()  many requests, one doorbell
//! post()       one request, built in registers, stored to the ring and to BlueFlame
//! post_list()  requests whose opcode is known at run time
//! ```
//!
//! A request that is posted alone is composed in registers, block by block (64 bytes, a WQEBB), and
//! each block is stored whole, so that the copy to the BlueFlame register need not wait for
//! narrower stores. A request of a batch is stored straight to the ring. Every check comes before
//! the first store. Everything that is constant for an operation is folded at compile time. The
//! same code, `encode.rs`, writes all requests to consecutive blocks. A request that would straddle
//! the ring's end is written to a buffer first.
//!
//! The fast path compares with one limit, `Next::limit`. Up to that limit the QP's state allows
//! posting, the ring has space and does not wrap, no built request is unpublished, and the register
//! accepts copies. `space.rs` recomputes the limit when one of these changes.

mod batch;
mod encode;
mod encoded;
pub(crate) mod ethernet;
mod key_change;
mod operation;
mod payload;
mod post;
mod publish;
mod ring;
mod run_time;
mod service;
mod space;
mod steps;
mod tags;
mod template;
mod transport;
mod wide;
mod window;

use core::marker::PhantomData;

/// Only this module can implement operations, data and destinations, because unsafe code relies on
/// their sizes.
mod sealed {
    pub trait Sealed {}
}

pub use batch::Batch;
use batch::BatchStart;
pub use ethernet::{
    EthernetFrame, EthernetOffload, EthernetSend, EthernetSendHeader, EthernetTso, Segmented,
    framed, segmented,
};
#[doc(hidden)]
pub use key_change::KeyChange;
pub use operation::*;
pub use payload::{AtomicResult, Inline, Payload};
pub use run_time::{RunTimeDestination, RunTimeOperation, SendRequest};
#[doc(hidden)]
pub use steps::{Common, Entries, Header, Named, Steps};
pub use tags::{TagChange, TagError, TagRequest};
pub use template::{Field, Template, template_blocks};
pub use transport::*;
pub use window::{BindWindow, LocalInvalidate, UnbindWindow, WindowAccess, WindowType};

use crate::doorbell::{Doorbell, DoorbellWord};
use crate::format::{ControlSegment, MAX_DS, OCTOWORD, WQEBB_SIZE};
use crate::memory::DmaMemory;
use crate::mmio::{BlueFlame, Register};
pub use crate::queue_error::QueueError;
use crate::queue_state::{NO_START, QueueState};
use crate::request::{Octoword, PostError, PostFlags};
use crate::shown_ring::Ring;
use crate::sync::Ordering;
use crate::user_index::{QueueHandle, SENDS};
pub(crate) use encode::Promised;
pub use encode::RequestId;
use encode::mode_word;
use payload::Limits;
use ring::{Next, SendRing};
use space::{Counted, Place};
use wide::{Wide, wide};

/// One WQEBB, as it is stored.
type Block = [Octoword; 4];

/// Configuration of a send queue.
#[derive(Debug)]
pub struct SendQueueConfig<R = BlueFlame> {
    /// The ring: a power of two of 64-byte blocks, as many as the handle was registered with.
    pub memory: DmaMemory,
    /// The send word of the QP's doorbell record.
    pub doorbell: DoorbellWord,
    /// The doorbell register.
    pub register: R,
    /// The queue's entry in the user index table.
    pub handle: QueueHandle,
    /// The QP's number (raw Ethernet: the send queue's).
    pub number: u32,
    /// Most requests that can be outstanding at a time (`max_send_wr`), however small they are: at
    /// least 1.
    pub max_requests: u32,
    /// Most scatter/gather entries per request, at least 1.
    pub max_sge: u32,
    /// Most bytes of inline data per request.
    pub max_inline: u32,
    /// Whether every request makes a completion (`sq_sig_all`).
    pub signal_all: bool,
    /// Raw Ethernet: header bytes that the device wants in the WQE, 0 or 18.
    pub min_inline_header: u8,
    /// Whether the QP was created to deliver short results of reads and atomics inside the CQE. The
    /// poller then copies them to the request's buffers, so the buffers' addresses must be valid in
    /// this process.
    pub scatter_to_cqe: bool,
}

/// A send queue of service `T` that rings register `R`.
///
/// One thread posts at a time: posting takes `&mut self`, which is all the locking there is.
#[derive(Debug)]
#[repr(align(128))]
pub struct SendQueue<T: Transport, R: Register = BlueFlame> {
    ring: SendRing,
    /// See [`Place`].
    head: u32,
    /// The fast path from the head on.
    next: Next,
    /// The constant part of all control segments: the queue's number and `mode`.
    base: Wide,
    limits: Limits,
    doorbell: Doorbell<R>,
    /// The largest request, in blocks, that is copied to BlueFlame: 0 while other requests are
    /// unpublished.
    direct: u32,
    /// Blocks filled and not published.
    unpublished: u32,
    /// See [`Place`].
    fence: u8,
    /// Whether the next request has to check the QP's state.
    stale: bool,
    min_inline_header: u8,
    /// What the poller sees of the ring, if inline data of CQEs may have to be copied to buffers.
    shown: Option<Ring>,
    /// The queue's number.
    number: u32,
    /// Completion mode of every request: bytes 8 to 15 of the control segment, as stored.
    mode: u64,
    /// The first eight bytes of the request built last: what a plain doorbell stores.
    last_control: u64,
    /// Where the batch began, see [`batch::BatchStart`].
    batch_start: BatchStart,
    /// Blocks known to be completed.
    tail: u32,
    /// Most requests that can be outstanding now: 0 until the queue first looks for space.
    max_requests: u32,
    /// Most requests that were granted at creation.
    granted: u32,
    /// The counter up to which requests can be posted without counting the outstanding ones. Each
    /// has at least one block, so up to here there cannot be more than `max_requests`.
    bound: u32,
    counted: Counted,
    /// The index that had completed last when `tail` was computed.
    seen: u16,
    transport: PhantomData<fn() -> T>,
}

impl<T: Transport, R: Register> SendQueue<T, R> {
    /// A send queue on an empty ring.
    ///
    /// # Errors
    /// [`QueueError`] if memory, handle and limits do not fit together.
    pub fn new(config: SendQueueConfig<R>) -> Result<Self, QueueError> {
        let ring = SendRing::new(&config.memory, config.handle)?;
        let max_inline = config.max_inline as usize;
        let limits = Limits { max_sge: config.max_sge, max_inline };
        check_limits(T::SERVICE, limits)?;
        if config.max_requests == 0 {
            return Err(QueueError::BadLimits);
        }
        ring.handle().claim(SENDS)?;
        let signaled = PostFlags::SIGNALED.bits();
        let number = u64::from(ControlSegment::second_word(config.number, 0));
        let mode = if config.signal_all { mode_word(signaled, 0) } else { 0 };
        let head = (OCTOWORD * T::SERVICE.address_octowords()) as u32;
        let shown = Ring::on(config.memory, ring.blocks(), WQEBB_SIZE as u32, head);
        let queue = Self {
            next: ring.next(0, 0),
            ring,
            head: 0,
            base: wide([number.to_be(), mode]),
            limits,
            direct: config.register.copy_limit() / WQEBB_SIZE as u32,
            doorbell: Doorbell { record: config.doorbell, register: config.register },
            unpublished: 0,
            fence: 0,
            stale: true,
            min_inline_header: config.min_inline_header,
            shown: shown.filter(|_| config.scatter_to_cqe),
            number: config.number & 0xff_ffff,
            mode,
            last_control: 0,
            batch_start: BatchStart::default(),
            tail: 0,
            max_requests: 0,
            granted: config.max_requests,
            bound: 0,
            counted: Counted::default(),
            seen: u16::MAX,
            transport: PhantomData,
        };
        queue.show_ring();
        Ok(queue)
    }

    /// Starts building requests that are published together.
    ///
    /// # Errors
    /// [`PostError::BadState`] before RTS. In ERR and SQE requests are accepted, and the device
    /// flushes them.
    #[inline(always)]
    pub fn batch(&mut self) -> Result<Batch<'_, T, R>, PostError> {
        self.look_at_state()?;
        Ok(Batch::new(self))
    }

    /// Moves the queue to the end of a batch or a request.
    #[inline(always)]
    fn move_to(&mut self, next: Place) {
        self.head = next.head;
        self.fence = next.fence;
    }

    /// Where the next request goes.
    #[inline(always)]
    fn place(&self) -> Place {
        Place { head: self.head, fence: self.fence }
    }

    /// Checks an operation, apart from its data.
    #[inline(always)]
    fn check<O: Operation>(&self, operation: O) -> Result<(), PostError> {
        operation.check()?;
        match operation.inline_header() {
            Some(header) if header < usize::from(self.min_inline_header) => {
                Err(PostError::BadHeader)
            }
            _ => Ok(()),
        }
    }

    /// Free blocks (64 bytes), as far as completions have been polled.
    pub fn free_blocks(&mut self) -> u32 {
        self.retire();
        self.ring.blocks() - self.head.wrapping_sub(self.tail)
    }

    /// Requests that can be posted now, as far as completions have been polled and if the free
    /// blocks suffice.
    pub fn free_requests(&mut self) -> u32 {
        self.retire();
        self.follow_grant();
        self.requests_left(self.head)
    }

    /// Most requests that can be outstanding at a time.
    #[allow(clippy::misnamed_getters, reason = "the field says how many now")]
    pub fn max_requests(&self) -> u32 {
        self.granted
    }

    /// Blocks that were built and not published.
    pub fn unpublished_blocks(&self) -> u32 {
        self.unpublished
    }

    /// Visits the ids of requests that are not known to be completed, oldest first: those whose
    /// completion was not polled, and unsignaled ones after the last polled one. For cleaning up
    /// after [`QueueHandle::close`].
    pub fn for_each_outstanding(&mut self, mut visit: impl FnMut(u64)) {
        self.retire();
        let mut index = self.tail;
        while (self.head.wrapping_sub(index) as i32) > 0 {
            let id = self.state().send_entry(index).load(Ordering::Relaxed);
            let encoded = if id == NO_START { self.state().encoded_at(index) } else { None };
            visit(encoded.unwrap_or(id));
            // A request built here has at least one block. A request that another writer put into
            // the ring may say that it has none.
            index = index.wrapping_add(self.ring.blocks_at(index).max(1));
        }
    }

    /// Address of the ring, and its blocks of 64 bytes: for programs that write requests
    /// themselves.
    pub fn ring(&self) -> (*mut u8, u32) {
        (self.ring.base(), self.ring.blocks())
    }

    /// Most bytes of inline data per request.
    pub fn max_inline(&self) -> u32 {
        self.limits.max_inline as u32
    }

    /// Most scatter/gather entries per request.
    pub fn max_sge(&self) -> u32 {
        self.limits.max_sge
    }

    /// The queue's counter: blocks filled so far, modulo 2^32.
    pub fn head(&self) -> u32 {
        self.head
    }

    /// The handle that the queue was made with.
    pub fn handle(&self) -> &QueueHandle {
        self.ring.handle()
    }

    /// Starts over after a reset of the QP. `handle` is the one that [`QueueHandle::renew`]
    /// returned. Requests that were not published are lost.
    ///
    /// # Panics
    ///
    /// If the handle is another queue's.
    pub fn reset(&mut self, handle: QueueHandle) {
        self.ring.renew(handle);
        self.head = 0;
        self.tail = 0;
        self.counted = Counted::default();
        self.bound = 0;
        self.fence = 0;
        self.stale = true;
        self.max_requests = 0;
        self.batch_start.is_open = false;
        self.seen = u16::MAX;
        self.note_published();
        self.recompute_fast_limit();
        self.doorbell.record.store(0);
        self.show_ring();
    }

    /// Makes the next post check the QP's state. Call it when the state goes back to one in which
    /// nothing can be posted, unless [`SendQueue::reset`] comes before the next post. Otherwise
    /// posts may notice the change only after the ring has wrapped.
    pub fn recheck_state(&mut self) {
        self.stale = true;
        self.recompute_fast_limit();
    }

    /// Lets the poller read the ring.
    fn show_ring(&self) {
        self.state().set_send_ring(self.shown.as_ref());
    }

    #[inline(always)]
    fn state(&self) -> &QueueState {
        self.ring.state()
    }
}

/// The counter's 16 bits, shifted to their position in the control segment's first word.
#[inline(always)]
fn place(index: u32) -> u32 {
    u32::from(index as u16) << 8
}

impl<T: Transport, R: Register> Drop for SendQueue<T, R> {
    fn drop(&mut self) {
        // The ring's memory is about to be freed, so no poller may read it any more.
        self.state().set_send_ring(None);
    }
}

fn check_limits(service: Service, limits: Limits) -> Result<(), QueueError> {
    let inline = (limits.max_inline + 4).div_ceil(16);
    let data = inline.max(limits.max_sge as usize);
    let octowords = 1 + service.data_overhead() + data;
    let inline_fits = limits.max_inline <= crate::format::INLINE_LENGTH_MASK as usize;
    let fits = octowords <= MAX_DS as usize;
    if limits.max_sge >= 1 && inline_fits && fits { Ok(()) } else { Err(QueueError::BadLimits) }
}
