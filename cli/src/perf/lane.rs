//! One queue pair of a measurement and its memory: a message to send, and after it space for one
//! to receive.

use std::sync::atomic::{Ordering, fence};

use uverbs::qp::Immediate;
use uverbs::{Remote, op};
use uverbs_mlx5::completion_queue::WorkCompletion;
use uverbs_mlx5::send_queue::RunTimeOperation;

use super::plan::{End, Plan};
use crate::args::Op;
use crate::device::Chosen;
use crate::failure::Outcome;
use crate::link::{Link, Piece, Shape, is_receive};
use crate::rendezvous::Rendezvous;

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) link: Link,
    op: Op,
    /// Where the space for incoming messages begins.
    half: usize,
    size: usize,
    inline: bool,
    there: Remote,
    /// Receives that are still to be posted for messages of this size: none may be left over for
    /// the next one.
    receives: u64,
    /// Sends, or batches of them, whose completion has not been taken.
    unsettled: u64,
}

impl Lane {
    pub(super) fn new(chosen: &Chosen, plan: &Plan) -> Outcome<Self> {
        let half = (plan.largest() as usize).next_multiple_of(64);
        let shape = Shape {
            bytes: 2 * half,
            sends: plan.depth,
            // While the last ones are handled, as many again may be under way.
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
            unsettled: 0,
        })
    }

    pub(super) fn end(&self) -> Outcome<End> {
        let remote = self.link.remote()?;
        Ok(End { endpoint: self.link.endpoint(), address: remote.address, rkey: remote.rkey })
    }

    pub(super) fn connect(&mut self, peer: &End) -> Outcome {
        self.there = Remote::new(peer.address, peer.rkey);
        self.link.connect(&peer.endpoint).map(drop)
    }

    /// Messages have `size` bytes from now on, and as many come as go, where any come.
    pub(super) fn set_size(&mut self, size: u32, plan: &Plan) -> Outcome {
        self.size = size as usize;
        self.receives = plan.messages(size);
        let carries_data = !matches!(self.op, Op::Read | Op::Atomic);
        self.inline = carries_data && size <= plan.inline && self.size <= self.link.inline_bytes();
        // Bytes of the last size are no message of this one.
        Ok(self.link.memory().write(self.half + self.size - 1, &[0])?)
    }

    /// Posts receives for the next `count` messages, where the operation has receives and so many
    /// are still to come.
    pub(super) fn receive(&mut self, count: u32) -> Outcome {
        let count = self.receives.min(count.into());
        self.receives -= count;
        let piece = match self.op {
            Op::Send => Some(Piece { offset: self.half, length: self.size }),
            Op::WriteImm => None,
            Op::Write | Op::Read | Op::Atomic => return Ok(()),
        };
        (0..count).try_for_each(|_| self.link.receive(piece))
    }

    /// Posts `count` messages with one doorbell; the last makes a completion.
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
        // What is read comes where messages come.
        let offset = if matches!(self.op, Op::Read | Op::Atomic) { self.half } else { 0 };
        self.unsettled += 1;
        self.link.post_many(operation, Piece { offset, length: self.size }, self.inline, count)
    }

    /// Latency: sends message `number`, which a write has to carry to be seen.
    pub(super) fn send_one(&mut self, number: u64, peer: &mut Rendezvous) -> Outcome {
        if self.op == Op::Write {
            // Nothing else takes their completions if the answer always is there first.
            while self.unsettled > 2 {
                self.next(peer)?;
            }
            self.link.memory().write(self.size - 1, &[flag(number)])?;
        }
        self.send(1)
    }

    /// Latency: waits for message `number` of the peer's, and takes the completion of the own one
    /// along.
    pub(super) fn arrival(&mut self, number: u64, peer: &mut Rendezvous) -> Outcome {
        if self.op != Op::Write {
            while !self.next(peer)? {}
            return self.receive(1);
        }
        let mut last = [0];
        loop {
            self.link.memory().read(self.half + self.size - 1, &mut last)?;
            if last[0] == flag(number) {
                fence(Ordering::Acquire);
                self.link.made_progress();
                return Ok(());
            }
            if self.poll()?.is_none() {
                self.link.pause(peer)?;
            }
        }
    }

    /// Latency: waits until every message that was sent has its completion, so that the next size
    /// begins afresh.
    pub(super) fn settle(&mut self, peer: &mut Rendezvous) -> Outcome {
        while self.unsettled > 0 {
            self.next(peer)?;
        }
        Ok(())
    }

    /// Waits for one completion, and says whether it is of a receive.
    pub(super) fn next(&mut self, peer: &mut Rendezvous) -> Outcome<bool> {
        let completion = self.link.next(peer)?;
        Ok(self.account(&completion))
    }

    /// Takes one completion if there is one, and says whether it is of a receive.
    pub(super) fn poll(&mut self) -> Outcome<Option<bool>> {
        let completion = self.link.try_next()?;
        Ok(completion.map(|completion| self.account(&completion)))
    }

    fn account(&mut self, completion: &WorkCompletion) -> bool {
        let is_receive = is_receive(completion);
        self.unsettled -= u64::from(!is_receive);
        is_receive
    }
}

/// Never what the message before had there, and never 0.
fn flag(number: u64) -> u8 {
    (number % 255) as u8 + 1
}
