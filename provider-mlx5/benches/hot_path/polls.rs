//! Polls of completions that come in no convenient order: of many queues, in both directions, and
//! of every form.

use std::cell::RefCell;
use std::hint::black_box;

use uverbs_mlx5::completion_queue::{Completion, CompletionQueue};
use uverbs_mlx5::recv_queue::RecvQueue;
use uverbs_mlx5::request::PostFlags;
use uverbs_mlx5::send_queue::{Nop, Rc, SendQueue};
use uverbs_mlx5::shared_recv_queue::SharedRecvQueue;
use uverbs_mlx5::user_index::{QueueHandle, UserIndexTable};

use super::fixture::{self, Bench};
use super::grid::Point;
use super::producer::Producer;
use super::{OPERATIONS, measured};

/// Queues of the cases, and their entries per direction: enough for all operations of a case to
/// fall to one queue, and of a thousand for those that do.
const ONE: (usize, u32) = (1, 256);
const SOME: (usize, u32) = (64, 256);
const THOUSAND: (usize, u32) = (1000, 32);

/// As many queues as the table of user indices has places.
const PLACES: usize = 1 << 16;

/// Queue pairs that complete to one CQ, half of whose receives are an SRQ's.
pub(crate) struct Many {
    cq: CompletionQueue,
    device: Producer,
    pairs: Vec<Pair>,
    srq: SharedRecvQueue,
    /// Entries of the SRQ that were posted, in the order in which they are completed.
    shared: Vec<QueueHandle>,
    srq_posted: u32,
    random: u64,
}

struct Pair {
    sends: SendQueue<Rc>,
    receives: RecvQueue,
    handle: QueueHandle,
    sent: u32,
    received: u32,
}

/// The kind of completion that a case polls.
#[derive(Clone, Copy, PartialEq)]
enum What {
    Send,
    Receive,
    Immediate,
    Inline,
    /// An error of a receive.
    Error,
    /// An error of a send.
    SendError,
    Shared,
    /// One of 16 receives of a queue pair in a session.
    Compressed,
}

const SENDS: &[What] = &[What::Send];
const RECEIVES: &[What] = &[What::Receive];
const BOTH: &[What] = &[What::Send, What::Receive];
const IMMEDIATE: &[What] = &[What::Send, What::Immediate];
const INLINE: &[What] = &[What::Inline];
const SHARED: &[What] = &[What::Shared];
const COMPRESSED: &[What] = &[What::Compressed];
const KINDS: &[What] = &[What::Receive, What::Shared, What::Send];
const FLUSHED: &[What] = &[What::SendError, What::Error];
/// One error in 16.
const ERRORS: &[What] = &{
    let mut forms = [What::Receive; 16];
    forms[8] = What::Error;
    forms
};

impl Many {
    fn new(size: (usize, u32)) -> Self {
        Self::in_table(&UserIndexTable::new(), size)
    }

    /// In a table with so many queues that each of these shares its place with another one.
    fn crowded() -> Self {
        let table = UserIndexTable::new();
        let before = Self::in_table(&table, SOME);
        let filler = || fixture::handle(&table, &[], [0, 0], None);
        let fillers: Vec<_> = (0..PLACES).map(|_| filler()).collect();
        // Their indices stay in use.
        std::mem::forget((before, fillers));
        Self::in_table(&table, SOME)
    }

    fn in_table(table: &UserIndexTable, (queues, entries): (usize, u32)) -> Self {
        let (cq, device) = fixture::completion_queue(table, 1024);
        let monitors = [cq.monitor()];
        let pair = |_| {
            let handle = fixture::handle(table, &monitors, [entries, entries], None);
            let sends = fixture::send_queue_of(&handle, entries);
            let receives = fixture::recv_queue_of(&handle, entries);
            Pair { sends, receives, handle, sent: 0, received: 0 }
        };
        let pairs = (0..queues).map(pair).collect();
        let (srq, handle) = fixture::shared_recv_queue(table, &monitors);
        let shared = |_| fixture::handle(table, &monitors, [1, 0], Some(&handle));
        let shared = (0..queues).map(shared).collect();
        Self { cq, device, pairs, srq, shared, srq_posted: 0, random: 0x9e37_79b9_7f4a_7c15 }
    }

    pub(crate) fn some() -> Self {
        Self::new(SOME)
    }

    /// The same sequence in each run.
    fn any(&mut self) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) as usize % self.pairs.len()
    }

    /// Posts a request to the queue pair at `at`, and completes it.
    fn complete(&mut self, at: usize, what: What) {
        if let What::Shared = what {
            return self.complete_shared(at);
        }
        let Self { pairs, device, .. } = self;
        let pair = &mut pairs[at];
        let index = pair.handle.user_index();
        if let What::Send | What::SendError = what {
            // SAFETY: there is no data.
            unsafe { pair.sends.post(7, Nop, (), PostFlags::SIGNALED) }.expect("space");
            match what {
                What::Send => device.send(index, 0x100, pair.sent),
                _ => device.send_error(index, 0x100, pair.sent),
            }
            pair.sent += 1;
            return;
        }
        // SAFETY: no memory is named.
        unsafe { pair.receives.build(7, &[]) }.expect("space");
        pair.receives.publish();
        let counter = pair.received;
        match what {
            What::Immediate => device.immediate(index, 0x100, counter),
            What::Inline => device.inline(index, 0x100, counter),
            What::Error => device.error(index, 0x100, counter),
            _ => device.receive(index, 0x100, counter),
        }
        pair.received += 1;
    }

    fn complete_shared(&mut self, at: usize) {
        // SAFETY: no memory is named.
        unsafe { self.srq.post(7, &[]) }.expect("space");
        let entry = self.srq_posted % fixture::SRQ_ENTRIES;
        self.device.receive(self.shared[at].user_index(), 0x103, entry);
        self.srq_posted += 1;
    }

    /// Completions of queue pairs in random order, whose forms alternate.
    fn prepare(&mut self, forms: &[What]) {
        if forms == COMPRESSED {
            return self.prepare_sessions();
        }
        for (_, &what) in (0..OPERATIONS).zip(forms.iter().cycle()) {
            let at = self.any();
            self.complete(at, what);
        }
    }

    /// Sessions of queue pairs that follow each other, so that none has more than it has receives.
    fn prepare_sessions(&mut self) {
        let first = self.any();
        for session in 0..OPERATIONS / 16 {
            let at = (first + session) % self.pairs.len();
            let pair = &mut self.pairs[at];
            for _ in 0..16 {
                // SAFETY: no memory is named.
                unsafe { pair.receives.build(7, &[]) }.expect("space");
            }
            pair.receives.publish();
            self.device.session(pair.handle.user_index(), 0x100, pair.received, 16);
            pair.received += 16;
        }
    }

    /// Polls all of them, each by a call of its own.
    #[inline(always)]
    fn poll_alone(&mut self, read: impl Fn(&Completion<'_>) -> u64) -> u64 {
        let mut sum = 0;
        let time = measured(|| {
            for _ in 0..OPERATIONS {
                let completion = self.cq.poll().expect("a completion");
                sum += completion.wr_id() + read(&completion);
            }
        });
        black_box(sum);
        time
    }

    /// Polls all of them, `batch` at a time.
    #[inline(always)]
    fn poll(&mut self, batch: usize, read: impl Fn(&Completion<'_>) -> u64) -> u64 {
        let mut sum = 0;
        let time = measured(|| {
            for _ in 0..OPERATIONS / batch {
                let mut batch_of = self.cq.batch();
                for _ in 0..batch {
                    let completion = batch_of.next().expect("a completion");
                    sum += completion.wr_id() + read(&completion);
                }
            }
        });
        black_box(sum);
        time
    }
}

#[inline(always)]
fn immediate(done: &Completion<'_>) -> u64 {
    done.immediate().map_or(0, |immediate| immediate.to_u32().into())
}

/// Sends of 64 queue pairs.
pub(crate) fn sends_16(bench: &mut Bench) -> u64 {
    bench.many.prepare(SENDS);
    bench.many.poll(16, |_| 0)
}

pub(crate) fn receives_16(bench: &mut Bench) -> u64 {
    bench.many.prepare(RECEIVES);
    bench.many.poll(16, |_| 0)
}

/// Of a thousand queue pairs: hardly any has two completions in a row.
fn thousand(bench: &mut Bench) -> &mut Many {
    bench.thousand.get_or_insert_with(|| Many::new(THOUSAND))
}

pub(crate) fn thousand_sends_16(bench: &mut Bench) -> u64 {
    let many = thousand(bench);
    many.prepare(SENDS);
    many.poll(16, |_| 0)
}

pub(crate) fn thousand_both_16(bench: &mut Bench) -> u64 {
    let many = thousand(bench);
    many.prepare(BOTH);
    many.poll(16, |_| 0)
}

pub(crate) fn thousand_immediate_16(bench: &mut Bench) -> u64 {
    let many = thousand(bench);
    many.prepare(IMMEDIATE);
    many.poll(16, immediate)
}

/// Alternating directions.
pub(crate) fn both_16(bench: &mut Bench) -> u64 {
    bench.many.prepare(BOTH);
    bench.many.poll(16, |_| 0)
}

/// The same, each by a call of its own.
pub(crate) fn both_1(bench: &mut Bench) -> u64 {
    bench.many.prepare(BOTH);
    bench.many.poll_alone(|_| 0)
}

pub(crate) fn immediate_16(bench: &mut Bench) -> u64 {
    bench.many.prepare(IMMEDIATE);
    bench.many.poll(16, immediate)
}

pub(crate) fn timestamp_16(bench: &mut Bench) -> u64 {
    bench.many.prepare(BOTH);
    bench.many.poll(16, |done| done.timestamp() + u64::from(done.has_grh()))
}

pub(crate) fn inline_16(bench: &mut Bench) -> u64 {
    bench.many.prepare(INLINE);
    bench.many.poll(16, |_| 0)
}

pub(crate) fn error_16(bench: &mut Bench) -> u64 {
    bench.many.prepare(ERRORS);
    bench.many.poll(16, |done| u64::from(done.is_success()))
}

pub(crate) fn shared_16(bench: &mut Bench) -> u64 {
    bench.many.prepare(SHARED);
    bench.many.poll(16, |_| 0)
}

pub(crate) fn compressed_16(bench: &mut Bench) -> u64 {
    bench.many.prepare(COMPRESSED);
    bench.many.poll(16, |_| 0)
}

/// Queue pairs that are made when they are first needed, and used by several points.
type Lazy = RefCell<Option<Many>>;

/// Queue pairs by name, and how they are made.
type Queues = (&'static str, fn() -> Many, &'static Lazy);

/// Points of the grid: each form of completions, of one queue pair, 64 and 1,000 in random order.
pub(crate) fn points(points: &mut Vec<Point>) {
    let lazy = || -> &'static Lazy { Box::leak(Box::default()) };
    let sizes: [Queues; 3] = [
        ("1", || Many::new(ONE), lazy()),
        ("64", Many::some, lazy()),
        ("1000", || Many::new(THOUSAND), lazy()),
    ];
    of_form(points, &sizes, "sends", SENDS, |_| 0);
    of_form(points, &sizes, "receives", RECEIVES, |_| 0);
    of_form(points, &sizes, "both", BOTH, |_| 0);
    of_form(points, &sizes, "immediate", IMMEDIATE, immediate);
    of_form(points, &sizes, "inline32", INLINE, |_| 0);
    of_form(points, &sizes, "timestamps", BOTH, |done| done.timestamp());
    of_form(points, &sizes, "grh", RECEIVES, |done| done.has_grh().into());
    of_form(points, &sizes, "errors", ERRORS, |done| done.is_success().into());
    of_form(points, &sizes, "srq", SHARED, |_| 0);
    of_form(points, &sizes, "kinds", KINDS, |_| 0);
    of_form(points, &sizes, "flushed", FLUSHED, |done| done.is_success().into());
    of_form(points, &sizes, "copied", BOTH, |done| done.to_work_completion().wr_id);
    of_form(points, &sizes, "compressed", COMPRESSED, |_| 0);
    let crowded: [Queues; 1] = [("crowded", Many::crowded, lazy())];
    of_form(points, &crowded, "both", BOTH, |_| 0);
    of_form(points, &crowded, "srq", SHARED, |_| 0);
}

/// Completions of one form, polled alone and in batches of 16.
fn of_form(
    points: &mut Vec<Point>,
    sizes: &[Queues],
    name: &str,
    forms: &'static [What],
    read: impl Fn(&Completion<'_>) -> u64 + Copy + 'static,
) {
    let run = move |(_, make, many): Queues, poll: fn(&mut Many, _) -> u64| {
        Box::new(move || {
            let mut many = many.borrow_mut();
            let many = many.get_or_insert_with(make);
            many.prepare(forms);
            poll(many, read)
        })
    };
    for &queues in sizes {
        let name = |form| format!("{form} poll {name} {}", queues.0);
        points.push(Point {
            name: name("alone"),
            run: run(queues, |many, read| many.poll_alone(read)),
        });
        points.push(Point {
            name: name("batch16"),
            run: run(queues, |many, read| many.poll(16, read)),
        });
    }
}

/// A post and its completion alternating: the poller learns of each request with its completion.
pub(crate) fn post_poll_1(bench: &mut Bench) -> u64 {
    let Many { cq, device, pairs, .. } = &mut bench.many;
    let Pair { sends, handle, sent, .. } = &mut pairs[0];
    let index = handle.user_index();
    for i in 0..OPERATIONS as u32 {
        device.send(index, 0x100, sent.wrapping_add(i));
    }
    *sent += OPERATIONS as u32;
    let mut sum = 0;
    let time = measured(|| {
        for _ in 0..OPERATIONS {
            // SAFETY: there is no data.
            unsafe { sends.post(7, Nop, (), PostFlags::SIGNALED) }.expect("space");
            sum += cq.poll().expect("a completion").wr_id();
        }
    });
    black_box(sum);
    time
}
