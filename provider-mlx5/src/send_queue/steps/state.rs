//! What requests that are built step by step have in common, and where building them is.

use core::mem::replace;
use core::ptr::null_mut;

use super::super::encode::{mode_word, second_word};
use super::super::payload::PREFIX;
use super::super::wide::{Wide, narrow};
use super::super::{SendQueue, Service, Transport};
use super::{LACKS_DESTINATION, LACKS_RESULT, PLACE};
use crate::format::{AddressVector, AtomicSegment, MAX_READ_SGE, Opcode, U32, WQEBB_SIZE};
use crate::mmio::BlueFlame;
use crate::request::{PostError, PostFlags, Remote};

/// Bytes of the shortest request with data behind a destination of so many octowords.
const fn short(destination: usize) -> usize {
    if destination == 3 { 2 * WQEBB_SIZE } else { WQEBB_SIZE }
}

/// Most bytes of inline data for which such a request is sure to have space, whatever header the
/// service's operations have.
const fn max_short(service: Service) -> usize {
    let destination = service.address_octowords();
    let header = 16 * (destination + if service.has_remote_memory() { 2 } else { 1 });
    short(destination) - PREFIX - header
}

/// How much longer inline data is than the shortest with which the request needs a block more.
#[inline(always)]
const fn beyond(header: usize, destination: usize, length: usize) -> usize {
    let shortest = short(destination) + 1 - PREFIX;
    (16 * (header + destination) + length).wrapping_sub(shortest)
}

/// The parts of control segments that all requests of a queue share. Made by [`SendQueue::common`].
#[derive(Debug)]
#[repr(C)]
pub struct Common {
    /// The first half of a control segment, without its first word: for requests of one SGE behind
    /// headers of so many octowords, and the destination.
    pub(in crate::send_queue) halves: [u64; 4],
    /// The same of no length.
    pub(in crate::send_queue) number: u64,
    pub(in crate::send_queue) max_inline: usize,
    /// The least of that and [`max_short()`].
    pub(in crate::send_queue) max_short: usize,
    pub(in crate::send_queue) max_sge: u32,
    /// First in each pair: with how many lengths of inline data, behind headers of so many
    /// octowords, the request has a block more than the shortest. In pairs, because a header's
    /// bytes are the offset then.
    of_longer: [[usize; 2]; 4],
    /// The control segment's second half for each combination of the caller's flags. As long as a
    /// byte can tell, so that no other bits have to be removed.
    modes: [u64; 256],
}

impl Common {
    /// That of no queue.
    pub const NONE: Self = Self {
        halves: [0; 4],
        number: 0,
        max_inline: 0,
        max_short: 0,
        max_sge: 0,
        of_longer: [[0; 2]; 4],
        modes: [0; 256],
    };

    /// Octowords of a request with `length` bytes of inline data, if it then has a block more than
    /// the shortest. The header has `header` octowords, and `destination`, a constant.
    #[inline(always)]
    pub(in crate::send_queue) fn longer(
        &self,
        header: usize,
        destination: usize,
        length: usize,
    ) -> Option<usize> {
        let beyond = beyond(header, destination, length);
        if beyond >= self.of_longer[header & 3][0] {
            return None;
        }
        // The first byte of that block is in an octoword of its own.
        Some(beyond / 16 + short(destination) / 16 + 1)
    }

    /// The first half of the control segment of a request of so many octowords, without its first
    /// word.
    #[inline(always)]
    pub(in crate::send_queue) fn half(&self, octowords: usize) -> u64 {
        self.number | second_word(octowords as u32)
    }

    /// The second half of a request's control segment.
    #[inline(always)]
    pub(in crate::send_queue) fn mode(&self, header: &impl Header) -> u64 {
        self.modes[usize::from(header.mode() as u8)] | mode_word(0, header.immediate().get())
    }
}

/// Whether all requests of a send queue that are being built were built step by step, from
/// [`Steps::NEW`] or [`Steps::end`] on.
#[derive(Debug)]
#[repr(C)]
pub struct Steps {
    /// Whether something was built elsewhere, or is to be: see [`Steps::detour`].
    pub(super) detour: u32,
    pub(super) is_closed: bool,
    /// Whether a batch has built some of the requests.
    pub(super) has_batch: bool,
    /// What the limit was before the steps were closed.
    pub(super) open: usize,
    /// The first block of the request that was named last. It is used only while that request lacks
    /// its destination.
    pub(super) named: *mut Wide,
}

/// The operation of a request: a message, or an access to remote memory. Each part is read where it
/// is stored, so that few of them need a register at a time.
pub trait Header {
    /// Octowords without the destination: 1, 2 with a remote address, or 3 with an atomic's
    /// operands behind that.
    fn octowords(&self) -> usize;
    /// Whether there may be a remote address.
    fn may_have_remote(&self) -> bool {
        true
    }
    /// The device's opcode.
    fn opcode(&self) -> Opcode;
    /// The control segment's last word.
    fn immediate(&self) -> U32;
    /// The remote memory; ignored if the header has one octoword.
    fn remote(&self) -> Remote;
    /// The operands of an atomic; none of other operations.
    #[inline(always)]
    fn operands(&self) -> Option<AtomicSegment> {
        None
    }
    /// Comes back in the completion.
    fn wr_id(&self) -> u64;
    /// An index of the flags that [`SendQueue::common`] was given; the lowest byte counts.
    fn mode(&self) -> u32;
}

/// A request whose operation was set, and which was then removed from the ring.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the parts of a request")]
pub struct Named {
    pub wr_id: u64,
    pub opcode: Opcode,
    pub flags: PostFlags,
    pub immediate: U32,
    pub remote: Remote,
    /// The UD destination or DC target.
    pub address: Option<AddressVector>,
    /// The number of the remote XRC SRQ.
    pub srqn: Option<u32>,
}

impl Steps {
    /// Those of a queue in which nothing is being built.
    pub const NEW: Self =
        Self { detour: 0, is_closed: false, has_batch: false, open: 0, named: null_mut() };

    /// Starts over, once what was built is published or gone.
    pub fn end(&mut self) {
        self.detour = 0;
    }

    /// Whether all requests were built here, so that [`SendQueue::publish_short`] and
    /// [`SendQueue::publish_steps`] know of all.
    #[inline(always)]
    pub fn is_straight(&self) -> bool {
        self.detour == 0
    }

    /// Records that requests are built in another way, too. Returns whether this is the first time
    /// since the beginning.
    #[inline(always)]
    pub fn detour(&mut self) -> bool {
        let is_first = replace(&mut self.detour, 1) == 0;
        if is_first {
            (self.is_closed, self.has_batch) = (false, false);
        }
        is_first
    }

    /// Whether a batch has built some of the requests. Of use once there is a detour.
    pub fn has_batch(&self) -> bool {
        self.has_batch
    }
}

impl<T: Transport> SendQueue<T, BlueFlame> {
    /// The common part of requests that are built step by step. `flags` says which flags the
    /// caller's number for them selects, see [`Header::mode`].
    pub fn common(&self, flags: impl Fn(u8) -> PostFlags) -> Common {
        let [number, _] = narrow(self.base);
        let (max_inline, destination) = (self.limits.max_inline, T::SERVICE.address_octowords());
        Common {
            halves: core::array::from_fn(|header| {
                number | second_word((header + destination + 1) as u32)
            }),
            number,
            max_inline,
            max_short: max_inline.min(const { max_short(T::SERVICE) }),
            max_sge: self.limits.max_sge.min(MAX_READ_SGE),
            of_longer: core::array::from_fn(|header| {
                let space = |bytes: usize| bytes - PREFIX - 16 * (header + destination);
                let longest = space(short(destination) + WQEBB_SIZE).min(max_inline);
                // Headers of three octowords do not exist.
                let shorter = space(short(destination).max(16 * (header + destination) + PREFIX));
                [longest.saturating_sub(shorter), 0]
            }),
            modes: core::array::from_fn(|number| {
                mode_word(flags(number as u8).bits(), 0) | self.mode
            }),
        }
    }

    /// How many blocks were built.
    #[inline(always)]
    pub(super) fn built(&self) -> u32 {
        let built = self.counter_at(self.next.at & PLACE).wrapping_sub(self.head);
        // More blocks than the ring has: two threads of the program use the queue without a lock.
        if built > self.ring.blocks() { 0 } else { built }
    }

    /// Whether nothing was built.
    #[inline(always)]
    pub fn has_no_steps(&self) -> bool {
        self.built() == 0
    }

    /// Ends the request that was named last. Returns whether it had no data yet; it stays without.
    ///
    /// # Errors
    /// [`PostError::BadDestination`] if it lacks its destination, [`PostError::BadAtomic`] if it is
    /// an atomic without a buffer for its result. It counts as built nevertheless; the batch that
    /// has it must be aborted.
    pub fn end_request(&mut self) -> Result<bool, PostError> {
        let was_named = self.end_named();
        if !self.is_incomplete() {
            return Ok(was_named);
        }
        let lacks_result = self.next.at & LACKS_RESULT != 0;
        self.next.at &= PLACE;
        Err(if lacks_result { PostError::BadAtomic } else { PostError::BadDestination })
    }

    /// Whether the request that was named last lacks its destination, or its result's buffer.
    #[inline(always)]
    pub(super) fn is_incomplete(&self) -> bool {
        self.next.at & (LACKS_DESTINATION | LACKS_RESULT) != 0
    }

    /// Closes this path until a batch has said where it ended. A request that was named has no data
    /// then. If it is not complete, [`SendQueue::batch_from`] says so.
    pub fn close_steps(&mut self, steps: &mut Steps) {
        self.end_named();
        if !steps.is_closed {
            steps.open = self.next.limit;
            steps.is_closed = true;
        }
        self.next.limit = 0;
    }
}
