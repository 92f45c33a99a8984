//! The memory of one end: slots for messages to send and slots for received messages, used
//! alternately, and the messages in them.
//!
//! A message is a pattern that both ends can compute ([`pattern`]). The last byte of an RDMA WRITE
//! is a number instead, never 0 and different each time, so that the other end detects its arrival.

use std::time::{Duration, Instant};

use uverbs::op;
use uverbs::qp::{Immediate, PostFlags};

use super::Plan;
use super::protocol::Memory;
use crate::args::Op;
use crate::device::Chosen;
use crate::failure::{Failure, Outcome};
use crate::link::{Link, LocalRange, Shape, USUAL_INLINE};
use crate::pattern;
use crate::rendezvous::Rendezvous;

/// One send in this many, a quarter of the queue, requests a completion, which also retires the
/// sends before it.
const SIGNAL_EVERY: u64 = 16;
const SENDS: u32 = 64;
/// Slots of each kind: while one message is verified, the next may arrive.
const SLOTS: u64 = 2;
/// How long a difference must persist to count, because the bytes of a packet may become visible in
/// any order.
const LASTING: Duration = Duration::from_secs(1);

/// One end of a pingpong.
#[derive(Debug)]
pub(super) struct End {
    pub(super) link: Link,
    pub(super) peer: Rendezvous,
    pub(super) plan: Plan,
    scratch: Vec<u8>,
    verified: u64,
}

impl End {
    /// Creates the link and posts its receives.
    pub(super) fn new(
        chosen: &Chosen,
        peer: Rendezvous,
        plan: Plan,
        sleeps: bool,
    ) -> Outcome<Self> {
        if u64::from(plan.size) > u64::from(chosen.attributes.max_message()) {
            let most = chosen.attributes.max_message();
            return Err(Failure::usage(format!("the device's messages have at most {most} bytes")));
        }
        let bytes = stride(plan) * 2 * SLOTS as usize;
        let (sends, receives) = (SENDS, SLOTS as u32 * 2);
        let shape = Shape { bytes, sends, receives, sleeps, inline_bytes: USUAL_INLINE };
        let link = Link::new(chosen, shape)?;
        let mut end = Self { link, peer, plan, scratch: vec![0; plan.size as usize], verified: 0 };
        (0..SLOTS).try_for_each(|message| end.receive(message))?;
        Ok(end)
    }

    /// Posts the receive for message `message`, if the operation uses receives.
    fn receive(&mut self, message: u64) -> Outcome {
        match self.plan.op {
            Op::Send => self.link.receive(Some(self.incoming(message))),
            Op::WriteImm => self.link.receive(None),
            Op::Write | Op::Read | Op::Atomic => Ok(()),
        }
    }

    /// The range in which message `message` is prepared.
    pub(super) fn outgoing(&self, message: u64) -> LocalRange {
        let offset = (message % SLOTS) as usize * stride(self.plan);
        LocalRange { offset, length: self.plan.size as usize }
    }

    /// The range in which the peer's message `message` arrives.
    pub(super) fn incoming(&self, message: u64) -> LocalRange {
        let offset = (SLOTS + message % SLOTS) as usize * stride(self.plan);
        LocalRange { offset, length: self.plan.size as usize }
    }

    /// Prepares message `message` with the pattern `number`.
    pub(super) fn prepare(&mut self, message: u64, number: u64) -> Outcome {
        compose(self.plan.op, &mut self.scratch, message, number);
        let at = self.outgoing(message).offset;
        Ok(self.link.memory().write(at, &self.scratch)?)
    }

    /// Sends message `message` to `there`, the peer's memory.
    pub(super) fn send(&mut self, message: u64, there: Memory) -> Outcome {
        let flags = if message.is_multiple_of(SIGNAL_EVERY) {
            PostFlags::SIGNALED
        } else {
            PostFlags::empty()
        };
        let range = self.outgoing(message);
        let remote = there.at(self.incoming(message).offset);
        match self.plan.op {
            Op::Write => self.link.post(op::Write(remote), range, flags),
            Op::WriteImm => self.link.post(
                op::WriteImmediate(remote, Immediate::from_u32(message as u32)),
                range,
                flags,
            ),
            Op::Send | Op::Read | Op::Atomic => self.link.post(op::Send, range, flags),
        }
    }

    /// Waits until message `message` has arrived.
    pub(super) fn arrival(&mut self, message: u64) -> Outcome {
        if self.plan.op == Op::Write {
            let range = self.incoming(message);
            let (last, expected) = (range.offset + range.length - 1, pattern::last_byte(message));
            return self.link.next_write(&mut self.peer, last, expected, |_| {});
        }
        let completion = self.link.next_receive(&mut self.peer)?;
        if self.plan.op == Op::Send && completion.byte_len() != self.plan.size {
            return Err(Failure::failed(format!(
                "message {message} has {} bytes instead of {}",
                completion.byte_len(),
                self.plan.size
            )));
        }
        match completion.immediate() {
            Some(immediate) if immediate.to_u32() != message as u32 => {
                Err(Failure::failed(format!(
                    "message {message} carries the immediate data of another: {}",
                    immediate.to_u32()
                )))
            }
            _ => Ok(()),
        }
    }

    /// Verifies message `message`, which must have the pattern `number`, and frees its slot for the
    /// message after the next.
    pub(super) fn verify(&mut self, message: u64, number: u64) -> Outcome {
        let range = self.incoming(message);
        let op = self.plan.op;
        self.verify_at(range, message, |scratch| difference(op, scratch, message, number))?;
        self.receive(message)
    }

    /// Verifies the contents of a range of memory.
    pub(super) fn verify_at(
        &mut self,
        range: LocalRange,
        message: u64,
        difference: impl Fn(&[u8]) -> Option<usize>,
    ) -> Outcome {
        let began = Instant::now();
        loop {
            self.link.memory().read(range.offset, &mut self.scratch)?;
            let Some(at) = difference(&self.scratch) else {
                self.verified += range.length as u64;
                return Ok(());
            };
            if began.elapsed() > LASTING {
                return Err(Failure::failed(format!(
                    "message {message} arrived with wrong contents from byte {at} on"
                )));
            }
            self.link.poll_idle();
        }
    }

    /// Counts bytes that were verified elsewhere.
    pub(super) fn count(&mut self, bytes: u64) {
        self.verified += bytes;
    }

    /// Bytes verified so far.
    pub(super) fn verified(&self) -> u64 {
        self.verified
    }
}

/// Slots start at cache lines.
fn stride(plan: Plan) -> usize {
    (plan.size as usize).next_multiple_of(64)
}

fn compose(op: Op, buffer: &mut [u8], message: u64, number: u64) {
    pattern::fill(buffer, number);
    if let (Op::Write, Some(last)) = (op, buffer.last_mut()) {
        *last = pattern::last_byte(message);
    }
}

fn difference(op: Op, buffer: &[u8], message: u64, number: u64) -> Option<usize> {
    match (op, buffer.split_last()) {
        (Op::Write, Some((last, rest))) => {
            let at = (*last != pattern::last_byte(message)).then_some(rest.len());
            pattern::first_difference(rest, number).or(at)
        }
        _ => pattern::first_difference(buffer, number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_composed_message_verifies_and_no_other_does() {
        for op in [Op::Send, Op::Write] {
            for size in [1, 7, 8, 9, 64] {
                let mut buffer = vec![0; size];
                compose(op, &mut buffer, 3, 9);
                assert_eq!(difference(op, &buffer, 3, 9), None, "{op:?} {size}");
                buffer[size - 1] ^= 1;
                assert_eq!(difference(op, &buffer, 3, 9), Some(size - 1), "{op:?} {size}");
            }
        }
    }

    #[test]
    fn a_slot_never_holds_the_same_last_byte_twice_in_a_row() {
        assert!(
            (0..1000)
                .all(|message| pattern::last_byte(message) != pattern::last_byte(message + SLOTS)
                    && pattern::last_byte(message) != 0)
        );
    }
}
