//! Polls of completions that come in no convenient order: of many queues, in both directions, and
//! of every form.

use std::hint::black_box;

use uverbs_mlx5::completion_queue::{Completion, CompletionQueue};
use uverbs_mlx5::recv_queue::RecvQueue;
use uverbs_mlx5::request::PostFlags;
use uverbs_mlx5::send_queue::{Nop, Rc, SendQueue};
use uverbs_mlx5::shared_recv_queue::SharedRecvQueue;
use uverbs_mlx5::user_index::{QueueHandle, UserIndexTable};

use super::fixture::{self, Bench};
use super::producer::Producer;
use super::{OPERATIONS, measured};

/// Queues of the cases, and their entries per direction: enough for all operations of a case to
/// fall to one queue, and of a thousand for those that do.
const SOME: (usize, u32) = (64, 256);
const THOUSAND: (usize, u32) = (1000, 32);

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

/// What a completion of a case is.
#[derive(Clone, Copy)]
enum What {
    Send,
    Receive,
    Immediate,
    Inline,
    /// An error of a receive.
    Error,
    Shared,
}

impl Many {
    fn new((queues, entries): (usize, u32)) -> Self {
        let table = UserIndexTable::new();
        let (cq, device) = fixture::completion_queue(&table, 1024);
        let monitors = [cq.monitor()];
        let pair = |_| {
            let handle = fixture::handle(&table, &monitors, [entries, entries], None);
            let sends = fixture::send_queue_of(&handle, entries);
            let receives = fixture::recv_queue_of(&handle, entries);
            Pair { sends, receives, handle, sent: 0, received: 0 }
        };
        let pairs = (0..queues).map(pair).collect();
        let (srq, handle) = fixture::shared_recv_queue(&table, &monitors);
        let shared = |_| fixture::handle(&table, &monitors, [1, 0], Some(&handle));
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
        if let What::Send = what {
            // SAFETY: there is no data.
            unsafe { pair.sends.post(7, Nop, (), PostFlags::SIGNALED) }.expect("space");
            device.send(index, 0x100, pair.sent);
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
        for (_, &what) in (0..OPERATIONS).zip(forms.iter().cycle()) {
            let at = self.any();
            self.complete(at, what);
        }
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

/// Sends of 64 queue pairs.
pub(crate) fn sends_16(bench: &mut Bench) -> u64 {
    bench.many.prepare(&[What::Send]);
    bench.many.poll(16, |_| 0)
}

pub(crate) fn receives_16(bench: &mut Bench) -> u64 {
    bench.many.prepare(&[What::Receive]);
    bench.many.poll(16, |_| 0)
}

/// Of a thousand queue pairs: hardly any has two completions in a row.
fn thousand(bench: &mut Bench) -> &mut Many {
    bench.thousand.get_or_insert_with(|| Many::new(THOUSAND))
}

pub(crate) fn thousand_sends_16(bench: &mut Bench) -> u64 {
    let many = thousand(bench);
    many.prepare(&[What::Send]);
    many.poll(16, |_| 0)
}

pub(crate) fn thousand_both_16(bench: &mut Bench) -> u64 {
    let many = thousand(bench);
    many.prepare(&[What::Send, What::Receive]);
    many.poll(16, |_| 0)
}

pub(crate) fn thousand_immediate_16(bench: &mut Bench) -> u64 {
    let many = thousand(bench);
    many.prepare(&[What::Send, What::Immediate]);
    many.poll(16, |done| done.immediate().map_or(0, |immediate| immediate.to_u32().into()))
}

/// Alternating directions.
pub(crate) fn both_16(bench: &mut Bench) -> u64 {
    bench.many.prepare(&[What::Send, What::Receive]);
    bench.many.poll(16, |_| 0)
}

/// The same, each by a call of its own.
pub(crate) fn both_1(bench: &mut Bench) -> u64 {
    bench.many.prepare(&[What::Send, What::Receive]);
    let mut sum = 0;
    let time = measured(|| {
        for _ in 0..OPERATIONS {
            sum += bench.many.cq.poll().expect("a completion").wr_id();
        }
    });
    black_box(sum);
    time
}

pub(crate) fn immediate_16(bench: &mut Bench) -> u64 {
    bench.many.prepare(&[What::Send, What::Immediate]);
    bench.many.poll(16, |done| done.immediate().map_or(0, |immediate| immediate.to_u32().into()))
}

pub(crate) fn timestamp_16(bench: &mut Bench) -> u64 {
    bench.many.prepare(&[What::Send, What::Receive]);
    bench.many.poll(16, |done| done.timestamp() + u64::from(done.has_grh()))
}

pub(crate) fn inline_16(bench: &mut Bench) -> u64 {
    bench.many.prepare(&[What::Inline]);
    bench.many.poll(16, |_| 0)
}

/// One error in 16.
pub(crate) fn error_16(bench: &mut Bench) -> u64 {
    let mut forms = [What::Receive; 16];
    forms[8] = What::Error;
    bench.many.prepare(&forms);
    bench.many.poll(16, |done| u64::from(done.is_success()))
}

pub(crate) fn shared_16(bench: &mut Bench) -> u64 {
    bench.many.prepare(&[What::Shared]);
    bench.many.poll(16, |_| 0)
}

/// Sessions of 16 receives each.
pub(crate) fn compressed_16(bench: &mut Bench) -> u64 {
    let many = &mut bench.many;
    for _ in 0..OPERATIONS / 16 {
        let at = many.any();
        let pair = &mut many.pairs[at];
        for _ in 0..16 {
            // SAFETY: no memory is named.
            unsafe { pair.receives.build(7, &[]) }.expect("space");
        }
        pair.receives.publish();
        many.device.session(pair.handle.user_index(), 0x100, pair.received, 16);
        pair.received += 16;
    }
    many.poll(16, |_| 0)
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
