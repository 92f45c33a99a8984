//! One queue pair of a measurement and its memory: a message to send, followed by space for a
//! message to receive.

use uverbs::qp::Immediate;
use uverbs::{Remote, op};
use uverbs_mlx5::completion_queue::WorkCompletion;
use uverbs_mlx5::send_queue::RunTimeOperation;

use super::plan::{End, Plan};
use crate::args::Op;
use crate::device::Chosen;
use crate::failure::Outcome;
use crate::link::{Link, LocalRange, Shape};
use crate::pattern;
use crate::rendezvous::Rendezvous;

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) link: Link,
    op: Op,
    /// Offset of the space for received messages.
    half: usize,
    size: usize,
    inline: bool,
    there: Remote,
    /// The number of receives still to be posted for messages of this size, so that none are left
    /// for the next size.
    receives: u64,
    /// Sends, or batches of them, whose completion has not been polled.
    uncompleted: u64,
}

impl Lane {
    pub(super) fn new(chosen: &Chosen, plan: &Plan) -> Outcome<Self> {
        let half = (plan.largest() as usize).next_multiple_of(64);
        let shape = Shape {
            bytes: 2 * half,
            sends: plan.depth,
            // While `depth` messages are handled, as many again may be outstanding.
            receives: 2 * plan.depth,
            sleeps: plan.events,
            inline_bytes: plan.inline,
        };
        let link = Link::new(chosen, shape)?;
        let there = Remote::new(0, 0);
        Ok(Self {
            link,
            op: plan.op,
            half,
            size: 0,
            inline: false,
            there,
            receives: 0,
            uncompleted: 0,
        })
    }

    pub(super) fn end(&self) -> Outcome<End> {
        let remote = self.link.remote()?;
        Ok(End { endpoint: self.link.endpoint()?, address: remote.address, rkey: remote.rkey })
    }

    pub(super) fn connect(&mut self, end: &End, peer: &mut Rendezvous) -> Outcome {
        self.there = Remote::new(end.address, end.rkey);
        self.link.connect(&end.endpoint, peer)
    }

    /// Sets the size of the next messages. The peer sends as many messages as this end, if any.
    pub(super) fn set_size(&mut self, size: u32, plan: &Plan) -> Outcome {
        self.size = size as usize;
        self.receives = plan.messages(size);
        let carries_data = !matches!(self.op, Op::Read | Op::Atomic);
        self.inline = carries_data && size <= plan.inline && self.size <= self.link.inline_bytes();
        // A message of the previous size must not be mistaken for one of this size.
        Ok(self.link.memory().write(self.half + self.size - 1, &[0])?)
    }

    /// Posts receives for the next `count` messages, or for fewer if fewer are expected; none if
    /// the operation uses no receives.
    pub(super) fn receive(&mut self, count: u32) -> Outcome {
        let count = self.receives.min(count.into());
        self.receives -= count;
        let range = match self.op {
            Op::Send => Some(LocalRange { offset: self.half, length: self.size }),
            Op::WriteImm => None,
            Op::Write | Op::Read | Op::Atomic => return Ok(()),
        };
        (0..count).try_for_each(|_| self.link.receive(range))
    }

    /// Posts `count` messages with one doorbell; the last generates a completion.
    pub(super) fn send(&mut self, count: u32) -> Outcome {
        use RunTimeOperation as O;
        let at = |offset: usize| {
            Remote::new(self.there.address.wrapping_add(offset as u64), self.there.rkey)
        };
        let operation = match self.op {
            Op::Send => O::Send,
            Op::Write => O::Write(at(self.half)),
            Op::WriteImm => O::WriteImmediate(at(self.half), Immediate::from_u32(0)),
            Op::Read => O::Read(at(0)),
            Op::Atomic => O::FetchAdd(op::FetchAdd { remote: at(0), add: 1 }),
        };
        // The result of a READ or an atomic goes to the space for received messages.
        let offset = if matches!(self.op, Op::Read | Op::Atomic) { self.half } else { 0 };
        self.uncompleted += 1;
        self.link.post_many(operation, LocalRange { offset, length: self.size }, self.inline, count)
    }

    /// For latency: sends message `number`, which a write must contain so that the peer can detect
    /// it.
    pub(super) fn send_one(&mut self, number: u64, peer: &mut Rendezvous) -> Outcome {
        if self.op == Op::Write {
            // Otherwise no code would poll the completions if the answer always arrived first.
            while self.uncompleted > 2 {
                self.next(peer)?;
            }
            self.link.memory().write(self.size - 1, &[pattern::last_byte(number)])?;
        }
        self.send(1)
    }

    /// For latency: waits for the peer's message `number`, and polls the completions of this end's
    /// messages.
    pub(super) fn arrival(&mut self, number: u64, peer: &mut Rendezvous) -> Outcome {
        if self.op != Op::Write {
            while !self.next(peer)? {}
            return self.receive(1);
        }
        let Self { link, uncompleted, .. } = self;
        let last = self.half + self.size - 1;
        link.next_write(peer, last, pattern::last_byte(number), |_| *uncompleted -= 1)
    }

    /// For latency: waits until every message has completed, so that none is left for the next
    /// size.
    pub(super) fn drain(&mut self, peer: &mut Rendezvous) -> Outcome {
        while self.uncompleted > 0 {
            self.next(peer)?;
        }
        Ok(())
    }

    /// Waits for one completion; returns whether it is of a receive.
    pub(super) fn next(&mut self, peer: &mut Rendezvous) -> Outcome<bool> {
        let completion = self.link.next(peer)?;
        Ok(self.account(&completion))
    }

    /// Polls one completion if there is one; returns whether it is of a receive.
    pub(super) fn poll(&mut self) -> Outcome<Option<bool>> {
        let completion = self.link.try_next()?;
        Ok(completion.map(|completion| self.account(&completion)))
    }

    fn account(&mut self, completion: &WorkCompletion) -> bool {
        self.uncompleted -= u64::from(completion.is_send());
        !completion.is_send()
    }
}
