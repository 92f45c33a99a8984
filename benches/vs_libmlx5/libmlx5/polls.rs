//! Polls of many queue pairs of libmlx5 in random order, in both directions, and of every form: as
//! ours in `hot_path/polls.rs`.

use std::hint::black_box;
use std::ptr::{null, null_mut};

use uverbs_libmlx5_harness::abi::*;

use super::Libmlx5Queues;
use super::cases::{SEND, next_entry};
use super::objects::{QpRequest, RC, STANDARD};
use crate::fixture::SRQ_ENTRIES;
use crate::halted::{self, QpNumbers};
use crate::producer::Producer;
use crate::{OPERATIONS, measured};

const SIGNALED: u32 = 2;
/// With `IBV_WC_EX_WITH_COMPLETION_TIMESTAMP`.
const WITH_TIMESTAMP: u64 = STANDARD | 128;
const BATCH: usize = 16;

/// Queue pairs that complete to one CQ, and as many that receive from an SRQ.
pub(crate) struct Polls {
    context: *mut Context,
    cq: *mut CqEx,
    device: Producer,
    pairs: Vec<Pair>,
    srq: *mut Srq,
    srq_direct: DirectSrq,
    shared: Vec<QpNumbers>,
    /// The buffer of all receives.
    sge: Sge,
    completions: [WorkCompletion; BATCH],
    random: u64,
}

struct Pair {
    qp: *mut Qp,
    numbers: QpNumbers,
    sent: u32,
}

/// The kind of completion that a case polls.
#[derive(Clone, Copy)]
enum What {
    Send,
    Receive,
    Immediate,
    Inline,
    Error,
    Shared,
}

impl Polls {
    /// As many queue pairs, each with so many entries per direction.
    fn new(theirs: &Libmlx5Queues, queues: usize, entries: u32) -> Result<Self, String> {
        let Libmlx5Queues { maker, context, .. } = *theirs;
        let cq = maker.completion_queue(WITH_TIMESTAMP)?;
        let (srq, srq_direct) = maker.shared_queue(SRQ_ENTRIES - 1)?;
        let make = |srq: *mut Srq, [sends, receives]: [u32; 2]| {
            let capacities = [sends, receives, 1, receives.min(1), 0];
            let request = QpRequest { qp_type: RC, cq: cq.cast(), srq, capacities, operations: 0 };
            // SAFETY: the queues that were just made.
            unsafe { maker.queue_pair(request) }
        };
        let pair = |_| {
            let (qp, numbers) = make(null_mut(), [entries; 2])?;
            Ok(Pair { qp, numbers, sent: 0 })
        };
        let pairs = (0..queues).map(pair).collect::<Result<Vec<_>, String>>()?;
        let shared = (0..queues).map(|_| Ok(make(srq, [1, 0])?.1));
        let shared = shared.collect::<Result<Vec<_>, String>>()?;
        let (data, lkey) = maker.region(4096)?;
        Ok(Self {
            context,
            cq,
            device: halted::producer(&maker.libmlx5.device, pairs[0].numbers),
            pairs,
            srq,
            srq_direct,
            shared,
            sge: Sge { address: data as u64, length: 64, lkey },
            completions: Default::default(),
            random: 0x9e37_79b9_7f4a_7c15,
        })
    }

    /// The same sequence as ours.
    fn any(&mut self) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) as usize % self.pairs.len()
    }

    fn post_send(&mut self, at: usize) {
        let Pair { qp, numbers, sent } = &mut self.pairs[at];
        let mut request = SendWr {
            wr_id: 7,
            next: null_mut(),
            sges: null_mut(),
            sge_count: 0,
            opcode: SEND,
            flags: SIGNALED,
            immediate: 0,
            target: [0; 4],
            remote_srqn: 0,
            tail: SendWrTail { tso: TsoWr { header: null(), header_length: 0, mss: 0 } },
        };
        let mut bad = null_mut();
        // SAFETY: a QP of libmlx5, used by this thread alone.
        assert_eq!(unsafe { ((*self.context).post_send)(*qp, &mut request, &mut bad) }, 0);
        self.device.send(numbers.user_index, 10 << 24 | numbers.number, *sent);
        *sent += 1;
    }

    /// Posts a receive; its number in the SRQ's ring, if it is one of that.
    fn post_receive(&mut self, at: usize, shared: bool) -> u32 {
        let sges = &raw mut self.sge;
        let mut request = RecvWr { wr_id: 7, next: null_mut(), sges, sge_count: 1 };
        let mut bad = null_mut();
        // SAFETY: queues of libmlx5, used by this thread alone.
        let posted = unsafe {
            if shared {
                ((*self.context).post_srq_recv)(self.srq, &mut request, &mut bad)
            } else {
                ((*self.context).post_recv)(self.pairs[at].qp, &mut request, &mut bad)
            }
        };
        assert_eq!(posted, 0);
        if shared { next_entry(&mut self.srq_direct) } else { 0 }
    }

    /// Posts a request to the queue pair at `at`, and completes it.
    fn complete(&mut self, at: usize, what: What) {
        if let What::Send = what {
            return self.post_send(at);
        }
        let is_shared = matches!(what, What::Shared);
        let entry = self.post_receive(at, is_shared);
        let numbers = if is_shared { self.shared[at] } else { self.pairs[at].numbers };
        let (index, number) = (numbers.user_index, numbers.number);
        match what {
            What::Immediate => self.device.immediate(index, number, entry),
            What::Inline => self.device.inline(index, number, entry),
            What::Error => self.device.error(index, number, entry),
            _ => self.device.receive(index, number, entry),
        }
    }

    /// Completions of queue pairs in random order, whose forms alternate.
    fn prepare(&mut self, forms: &[What]) {
        for (_, &what) in (0..OPERATIONS).zip(forms.iter().cycle()) {
            let at = self.any();
            self.complete(at, what);
        }
    }

    /// Polls all of them by `ibv_poll_cq`.
    #[inline(always)]
    fn poll(&mut self, read: impl Fn(&WorkCompletion) -> u64) -> u64 {
        let (cq, space) = (self.cq.cast(), self.completions.as_mut_ptr());
        let mut sum = 0;
        let time = measured(|| {
            for _ in 0..OPERATIONS / BATCH {
                // SAFETY: a CQ of libmlx5, polled by this thread alone; space for as many.
                let polled = unsafe { ((*self.context).poll_cq)(cq, BATCH as i32, space) };
                assert_eq!(polled, BATCH as i32);
                for i in 0..BATCH {
                    // SAFETY: just written.
                    let done = unsafe { &*space.add(i) };
                    sum += done.wr_id + u64::from(done.status) + read(done);
                }
            }
        });
        black_box(sum);
        time
    }

    /// Polls all of them by `ibv_start_poll`, so many at a time.
    #[inline(always)]
    fn poll_lazily(&mut self, batch: usize, read: impl Fn(*mut CqEx) -> u64) -> u64 {
        let cq = self.cq;
        let mut sum = 0;
        let time = measured(|| {
            for _ in 0..OPERATIONS / batch {
                // SAFETY: a CQ of libmlx5, polled by this thread alone.
                unsafe {
                    assert_eq!(((*cq).start_poll)(cq, &0), 0);
                    for i in 0..batch {
                        if i != 0 {
                            assert_eq!(((*cq).next_poll)(cq), 0);
                        }
                        sum += (*cq).wr_id + u64::from((*cq).status);
                        sum += read(cq);
                    }
                    ((*cq).end_poll)(cq);
                }
            }
        });
        black_box(sum);
        time
    }
}

/// As many queue pairs, made when they are first needed.
fn of(theirs: &mut Libmlx5Queues, queues: usize) -> &mut Polls {
    if !theirs.polls.contains_key(&queues) {
        let entries = if queues < 1000 { 256 } else { 32 };
        let polls = Polls::new(theirs, queues, entries).expect("queue pairs of libmlx5");
        theirs.polls.insert(queues, polls);
    }
    theirs.polls.get_mut(&queues).expect("just made")
}

fn some(theirs: &mut Libmlx5Queues) -> &mut Polls {
    of(theirs, 64)
}

fn thousand(theirs: &mut Libmlx5Queues) -> &mut Polls {
    of(theirs, 1000)
}

/// Completions of these forms, by `ibv_poll_cq`.
fn run(polls: &mut Polls, forms: &[What]) -> u64 {
    polls.prepare(forms);
    polls.poll(|_| 0)
}

pub(crate) fn sends_16(theirs: &mut Libmlx5Queues) -> u64 {
    run(some(theirs), &[What::Send])
}

pub(crate) fn receives_16(theirs: &mut Libmlx5Queues) -> u64 {
    run(some(theirs), &[What::Receive])
}

pub(crate) fn both_16(theirs: &mut Libmlx5Queues) -> u64 {
    run(some(theirs), &[What::Send, What::Receive])
}

pub(crate) fn both_1(theirs: &mut Libmlx5Queues) -> u64 {
    let polls = some(theirs);
    polls.prepare(&[What::Send, What::Receive]);
    polls.poll_lazily(1, |_| 0)
}

pub(crate) fn immediate_16(theirs: &mut Libmlx5Queues) -> u64 {
    let polls = some(theirs);
    polls.prepare(&[What::Send, What::Immediate]);
    polls.poll(with_immediate)
}

pub(crate) fn timestamp_16(theirs: &mut Libmlx5Queues) -> u64 {
    let polls = some(theirs);
    polls.prepare(&[What::Send, What::Receive]);
    polls.poll_lazily(BATCH, |cq| timestamp(cq) + flags(cq))
}

pub(crate) fn inline_16(theirs: &mut Libmlx5Queues) -> u64 {
    run(some(theirs), &[What::Inline])
}

pub(crate) fn error_16(theirs: &mut Libmlx5Queues) -> u64 {
    run(some(theirs), &errors())
}

pub(crate) fn shared_16(theirs: &mut Libmlx5Queues) -> u64 {
    run(some(theirs), &[What::Shared])
}

pub(crate) fn thousand_sends_16(theirs: &mut Libmlx5Queues) -> u64 {
    run(thousand(theirs), &[What::Send])
}

pub(crate) fn thousand_both_16(theirs: &mut Libmlx5Queues) -> u64 {
    run(thousand(theirs), &[What::Send, What::Receive])
}

pub(crate) fn thousand_immediate_16(theirs: &mut Libmlx5Queues) -> u64 {
    let polls = thousand(theirs);
    polls.prepare(&[What::Send, What::Immediate]);
    polls.poll(with_immediate)
}

/// The immediate data, if the completion has any (`IBV_WC_WITH_IMM`).
fn with_immediate(done: &WorkCompletion) -> u64 {
    if done.wc_flags & 2 != 0 { u32::from_be(done.immediate).into() } else { 0 }
}

/// One error in 16.
fn errors() -> [What; BATCH] {
    let mut forms = [What::Receive; BATCH];
    forms[8] = What::Error;
    forms
}

fn timestamp(cq: *mut CqEx) -> u64 {
    // SAFETY: a CQ of libmlx5 in a poll.
    unsafe { ((*cq).read_completion_ts)(cq) }
}

fn flags(cq: *mut CqEx) -> u64 {
    // SAFETY: as above.
    unsafe { ((*cq).read_wc_flags)(cq) }.into()
}

/// [`with_immediate`] in a poll.
fn immediate(cq: *mut CqEx) -> u64 {
    // SAFETY: as above.
    if flags(cq) & 2 != 0 { u32::from_be(unsafe { ((*cq).read_imm_data)(cq) }).into() } else { 0 }
}

/// A point of the grid: completions of this form, so many at a time, of so many queue pairs.
/// `None` if libmlx5 has none of that form.
pub(crate) fn point(
    theirs: &mut Libmlx5Queues,
    batch: usize,
    form: &str,
    queues: usize,
) -> Option<u64> {
    let errors = errors();
    let forms: &[What] = match form {
        "sends" => &[What::Send],
        "receives" | "grh" => &[What::Receive],
        "both" | "timestamps" => &[What::Send, What::Receive],
        "immediate" => &[What::Send, What::Immediate],
        "inline32" => &[What::Inline],
        "errors" => &errors,
        "srq" => &[What::Shared],
        _ => return None,
    };
    let polls = of(theirs, queues);
    polls.prepare(forms);
    Some(match (form, batch) {
        ("timestamps", _) => polls.poll_lazily(batch, timestamp),
        ("grh", _) => polls.poll_lazily(batch, flags),
        ("immediate", 1) => polls.poll_lazily(1, immediate),
        ("immediate", _) => polls.poll(with_immediate),
        (_, 1) => polls.poll_lazily(1, |_| 0),
        _ => polls.poll(|_| 0),
    })
}
