//! The model: what the ring has to hold, and whether another request has space.

use std::collections::VecDeque;

use uverbs_mlx5::request::PostFlags;

/// Offsets in a request's control segment.
const COUNTER: std::ops::Range<usize> = 1..3;
const NUMBER: std::ops::Range<usize> = 4..7;
const FLAGS: usize = 11;

/// The bits of [`FLAGS`] that say what a request waits for, and the fence that the queue itself
/// sets on a request that follows the change of a key.
const FENCES: u8 = 0xe0;
const SMALL_FENCE: u8 = 0x20;

/// The number of all queues of these tests.
pub(super) const QUEUE_NUMBER: u32 = 0x1a2b3c;

/// A request as the ring has to hold it.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    /// The counter of its first block.
    pub(super) start: u32,
    pub(super) blocks: u32,
    pub(super) wr_id: u64,
    /// Without the padding behind it.
    pub(super) bytes: Vec<u8>,
    /// Whether the request behind it waits for it: it changes a key.
    pub(super) fences: bool,
}

impl Expected {
    /// The request of which `encoded` holds the bytes for another place and queue.
    pub(super) fn at(place: Place, wr_id: u64, encoded: Vec<u8>, fences: bool) -> Self {
        let mut bytes = encoded;
        bytes[COUNTER].copy_from_slice(&(place.head as u16).to_be_bytes());
        bytes[NUMBER].copy_from_slice(&QUEUE_NUMBER.to_be_bytes()[1..]);
        if place.is_fenced && bytes[FLAGS] & FENCES == 0 {
            bytes[FLAGS] |= SMALL_FENCE;
        }
        let blocks = bytes.len().div_ceil(64) as u32;
        Self { start: place.head, blocks, wr_id, bytes, fences }
    }

    /// The bytes as a program encodes them, which neither knows the counter and the number nor the
    /// fence that the queue is to set.
    pub(super) fn encoded_by_program(&self, flags: PostFlags) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        if flags.bits() & FENCES == 0 {
            bytes[FLAGS] &= !SMALL_FENCE;
        }
        bytes[COUNTER].fill(0xee);
        bytes[NUMBER].fill(0xee);
        bytes
    }

    fn next_place(&self) -> Place {
        Place { head: self.start.wrapping_add(self.blocks), is_fenced: self.fences }
    }
}

/// Where the next request goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The counter of its first block.
    pub(super) head: u32,
    /// Whether the request before it changes a key.
    pub(super) is_fenced: bool,
}

/// Requests that are built together behind those in the ring, but not yet part of them.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) next: Place,
    pub(super) requests: Vec<Expected>,
}

impl Draft {
    fn push(&mut self, request: Expected) {
        self.next = request.next_place();
        self.requests.push(request);
    }
}

/// What a send queue has to hold.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) blocks: u32,
    pub(super) max_requests: usize,
    pub(super) next: Place,
    /// The counter behind the last published request.
    pub(super) published: u32,
    /// The doorbell record stays zero until the first doorbell, wherever the counter began.
    has_rung: bool,
    /// The requests that are not complete, oldest first.
    pub(super) in_flight: VecDeque<Expected>,
}

impl Model {
    pub(super) fn new(blocks: u32, max_requests: usize, head: u32) -> Self {
        let next = Place { head, is_fenced: false };
        let in_flight = VecDeque::new();
        Self { blocks, max_requests, next, published: head, has_rung: false, in_flight }
    }

    pub(super) fn draft(&self) -> Draft {
        Draft { next: self.next, requests: Vec::new() }
    }

    /// Adds a request to a draft if it has space behind it; returns whether it has.
    pub(super) fn add(&self, draft: &mut Draft, request: &Expected) -> bool {
        let drafted: u32 = draft.requests.iter().map(|request| request.blocks).sum();
        let count = self.in_flight.len() + draft.requests.len();
        let used = self.used_blocks() + drafted + request.blocks;
        let fits = used <= self.blocks && count < self.max_requests;
        if fits {
            draft.push(request.clone());
        }
        fits
    }

    /// The draft's requests are in the queue now.
    pub(super) fn take(&mut self, draft: Draft) {
        self.next = draft.next;
        self.in_flight.extend(draft.requests);
    }

    pub(super) fn publish(&mut self) {
        self.has_rung |= self.has_unpublished();
        self.published = self.next.head;
    }

    /// The counter, and with it the record, begins at zero again.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.blocks, self.max_requests, 0);
    }

    pub(super) fn has_unpublished(&self) -> bool {
        self.unpublished_blocks() > 0
    }

    pub(super) fn unpublished_blocks(&self) -> u32 {
        self.next.head.wrapping_sub(self.published)
    }

    pub(super) fn used_blocks(&self) -> u32 {
        self.in_flight.iter().map(|request| request.blocks).sum()
    }

    /// The send half of the doorbell record.
    pub(super) fn record(&self) -> u32 {
        if self.has_rung { self.published & 0xffff } else { 0 }
    }

    /// How many requests the device has seen: only those complete.
    pub(super) fn published_requests(&self) -> usize {
        let is_published =
            |request: &&Expected| (self.published.wrapping_sub(request.start) as i32) > 0;
        self.in_flight.iter().take_while(is_published).count()
    }
}
