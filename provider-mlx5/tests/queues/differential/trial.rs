//! A send queue with its model, and what is compared after each operation.

use std::collections::VecDeque;
use std::fmt::{self, Display, Formatter};

use uverbs_mlx5::queue_state::{QpState, Shape};
use uverbs_mlx5::send_queue::Transport;

use super::builds::Encode;
use super::model::{Draft, Expected, Model, QUEUE_NUMBER};
use super::requests::{RandomRequest, RequestOf, Tried};
use crate::device::{Cq, Random, Sq, send_queue_of};

/// Operations that a failure shows.
const LOGGED: usize = 12;

/// What differs between the queues that are tried.
#[derive(Clone, Copy)]
pub(super) struct Setting {
    /// Blocks of the ring.
    pub(super) blocks: u32,
    pub(super) max_requests: u32,
    /// Bytes of each half of the register that copies of requests are written to; 0 for a register
    /// that takes no copies.
    pub(super) half: u32,
    /// Where the queue's counter begins.
    pub(super) head: u32,
}

impl Display for Setting {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { blocks, max_requests, half, head } = self;
        write!(f, "{blocks} blocks, {max_requests} requests, halves of {half} from {head:#x}")
    }
}

/// How often something happened that few rounds might miss.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    /// Requests that got into the queue.
    pub(super) posted: usize,
    /// Requests that found it full.
    pub(super) full: usize,
    /// Ids whose taking panicked.
    pub(super) panicked: usize,
    /// Requests that were built in steps without a batch.
    pub(super) in_steps: usize,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Self) {
        self.posted += other.posted;
        self.full += other.full;
        self.panicked += other.panicked;
        self.in_steps += other.in_steps;
    }
}

/// A send queue, its model and the random sequence that both follow.
pub(super) struct Trial<T: Tried> {
    pub(super) cq: Cq,
    pub(super) sq: Sq<T>,
    /// A queue on which requests are encoded and templates are made.
    pub(super) scratch: Sq<T>,
    pub(super) half: u32,
    pub(super) model: Model,
    pub(super) random: Random,
    pub(super) counts: Counts,
    last_id: u64,
    log: VecDeque<String>,
}

impl<T: Tried> Trial<T> {
    pub(super) fn new(setting: Setting, seed: u64) -> Self {
        let Setting { blocks, max_requests, half, head } = setting;
        let cq = Cq::new(64, 64);
        let mut sq = ready_queue(&cq, [blocks, max_requests], half);
        // SAFETY: nothing was posted.
        unsafe { sq.queue.continue_at(head, false) };
        Self {
            sq,
            scratch: ready_queue(&cq, [64, 64], 256),
            cq,
            half,
            model: Model::new(blocks, max_requests as usize, head),
            random: Random::new(seed.wrapping_mul(0x9e37_79b9).wrapping_add(1)),
            counts: Counts::default(),
            last_id: 1,
            log: VecDeque::new(),
        }
    }

    /// Notes an operation, for a failure to show.
    pub(super) fn note(&mut self, operation: String) {
        self.log.push_back(operation);
        if self.log.len() > LOGGED {
            self.log.pop_front();
        }
    }

    /// Whether something happens that does once in `times`.
    pub(super) fn happens_once_in(&mut self, times: usize) -> bool {
        self.random.below(times) == 0
    }

    pub(super) fn draw(&mut self) -> RequestOf<T> {
        RandomRequest::draw(T::KINDS, &mut self.random, &mut self.last_id)
    }

    /// The request behind the draft, and whether there is space for it, so that it is in the draft
    /// now.
    pub(super) fn add(&mut self, draft: &mut Draft, request: &RequestOf<T>) -> (Expected, bool) {
        let encode = Encode { scratch: &mut self.scratch, flags: request.flags };
        let (bytes, fences) = T::visit(request, encode);
        let expected = Expected::at(draft.next, request.wr_id, bytes, fences);
        let fits = self.model.add(draft, &expected);
        (expected, fits)
    }

    /// The draft's requests are in the queue.
    pub(super) fn take(&mut self, draft: Draft) {
        self.counts.posted += draft.requests.len();
        self.model.take(draft);
    }

    /// The draft's requests are in the queue, and the device was told of all that are.
    pub(super) fn take_published(&mut self, draft: Draft) {
        let rings = !draft.requests.is_empty() || self.model.has_unpublished();
        self.take(draft);
        self.model.publish();
        if rings {
            self.check_register(false);
        }
    }

    /// All bytes of the ring.
    pub(super) fn ring(&self) -> Vec<u8> {
        self.sq.ring.read(0, self.model.blocks as usize * 64)
    }

    /// Compares the queue with the model; what costs time, not each time.
    pub(super) fn check(&mut self) {
        let (queue, model) = (&self.sq.queue, &self.model);
        assert_eq!(queue.head(), model.next.head);
        assert_eq!(queue.unpublished_blocks(), model.unpublished_blocks());
        assert_eq!(self.sq.record.word(4), model.record());
        self.check_ring();
        assert!(self.sq.ring.ends_intact());
        if self.happens_once_in(50) {
            self.check_outstanding();
        }
        if self.happens_once_in(50) {
            let free = self.model.blocks - self.model.used_blocks();
            assert_eq!(self.sq.queue.free_blocks(), free);
        }
        if self.happens_once_in(50) {
            let free = self.model.max_requests - self.model.in_flight.len();
            assert_eq!(self.sq.queue.free_requests() as usize, free);
        }
    }

    /// All requests that are not complete are in the ring as they were built.
    fn check_ring(&self) {
        let ring = self.ring();
        // Two laps, so that no request ends behind them.
        let laps = ring.repeat(2);
        for request in &self.model.in_flight {
            let at = (request.start as usize * 64) % ring.len();
            let found = &laps[at..at + request.bytes.len()];
            assert_eq!(found, request.bytes, "{request:?}");
        }
    }

    fn check_outstanding(&mut self) {
        let mut ids = Vec::new();
        self.sq.queue.for_each_outstanding(|id| ids.push(id));
        let wanted: Vec<u64> = self.model.in_flight.iter().map(|request| request.wr_id).collect();
        assert_eq!(ids, wanted);
    }

    /// One of the register's halves begins with the last request: with all of it if it was
    /// published alone and fits in, and with its first bytes otherwise. A register that takes no
    /// copies has one half only.
    pub(super) fn check_register(&self, is_alone: bool) {
        let last = self.model.in_flight.back().expect("a published request");
        let is_copied = is_alone && last.blocks * 64 <= self.half;
        let wanted = if is_copied { last.bytes.as_slice() } else { &last.bytes[..8] };
        let holds = |half| self.sq.register.read(half, wanted.len()) == wanted;
        assert!(holds(0) || holds(self.half as usize), "copied {is_copied}: {last:?}");
    }
}

/// A failure shows what led to it.
impl<T: Tried> Drop for Trial<T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the last operations: {:#?}", self.log);
            println!("in flight: {:?}", self.model.in_flight);
        }
    }
}

/// A queue of a QP that may send.
fn ready_queue<T: Transport>(cq: &Cq, blocks_and_requests: [u32; 2], half: u32) -> Sq<T> {
    let [blocks, _] = blocks_and_requests;
    let shape = Shape { send_wqebbs: blocks, recv_wqes: 0, shared_receive: false };
    let handle = cq.table.register(shape, &cq.monitors(), None, 0xc0ffee).expect("an index");
    handle.set_number(QUEUE_NUMBER);
    handle.set_state(QpState::Rts);
    send_queue_of(handle, blocks_and_requests, half, false)
}
