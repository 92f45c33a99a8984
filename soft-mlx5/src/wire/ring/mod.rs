//! A ring of packets in memory shared by two processes: one writes packets, the other reads them.
//!
//! The ring is an array of cells of 64 bytes. A packet takes as many cells as it needs: a word with
//! its length, type of service and time to live, then its bytes. `head` counts the cells written,
//! `tail` the cells given back; both only grow. Each side keeps its own count privately and
//! publishes it to the other side.
//!
//! # Trust
//! The other process may write anything anywhere in the memory at any time. So all accesses are
//! atomic, a side never reads back its own values, and values of the other side are checked before
//! use: an invalid one ([`Corrupt`]) ends the ring. A packet may be torn or forged, as on a
//! network, so the receiver checks it.
//!
//! # Sleep
//! Before a side sleeps, it sets a flag in memory and then checks for work once more
//! ([`Consumer::prepare_sleep`], [`Producer::prepare_sleep`]). The other side first publishes its
//! work and then checks the flag. Both execute a sequentially consistent fence between their two
//! steps, so at least one of them sees the value that the other has written.

mod connections;
mod incoming;
mod memory;
#[cfg(all(test, loom))]
mod models;
#[cfg(test)]
mod network_tests;
mod outgoing;
mod socket;
mod suspects;
#[cfg(test)]
mod suspects_tests;

pub(super) use connections::Handled;
pub use connections::Rings;
pub(super) use socket::{bind_name, claim, is_own, is_private};

use std::sync::atomic::Ordering;

use crate::packet::MAX_PACKET;

/// The users whose processes may share memory with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::wire) enum Users {
    /// Only the device's own user, whose processes trust each other: the kernel lets them trace
    /// each other.
    Same,
    /// Any user with access to the network namespace.
    Any,
}

/// Words of 8 bytes in a cell. A small packet takes one cell, which is a cache line.
const CELL: usize = 8;

/// A control word of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Control {
    /// Cells written so far. The producer stores it.
    Head,
    /// Cells given back so far. The consumer stores it.
    Tail,
    /// Not zero while the consumer sleeps until there are packets.
    ConsumerSleeps,
    /// Not zero while the producer sleeps until there is space.
    ProducerSleeps,
}

/// The memory that both sides share.
trait Words {
    /// Cells of the ring, a power of two.
    fn cells(&self) -> u64;

    /// Loads a control word.
    fn control(&self, which: Control, order: Ordering) -> u64;

    /// Stores a control word.
    fn set_control(&self, which: Control, value: u64, order: Ordering);

    /// Replaces a control word by 0, and returns its old value.
    fn take_control(&self, which: Control) -> u64;

    /// Loads a word of a cell; `at` counts words from the ring's start and wraps.
    fn word(&self, at: u64) -> u64;

    /// Stores a word of a cell.
    fn set_word(&self, at: u64, value: u64);

    /// Appends `len` bytes of cells from word `at` on.
    fn load(&self, at: u64, len: usize, into: &mut Vec<u8>) {
        let words = (at..).take(len.div_ceil(8)).map(|at| self.word(at).to_ne_bytes());
        into.extend(words.flatten().take(len));
    }

    /// Stores bytes in cells from word `at` on. The unused bytes of their last word are undefined.
    fn store(&self, at: u64, bytes: &[u8]) {
        for (at, chunk) in (at..).zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.set_word(at, u64::from_ne_bytes(word));
        }
    }

    /// A sequentially consistent fence.
    fn fence(&self);
}

/// The other side has published an invalid count or length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Corrupt;

/// The parts of a packet's addressing that are sent with it. The rest follows from the two
/// stations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tag {
    class: u8,
    hop_limit: u8,
}

impl Tag {
    fn with_length(self, len: usize) -> u64 {
        len as u64 | u64::from(self.class) << 16 | u64::from(self.hop_limit) << 24
    }

    fn split(word: u64) -> (Self, usize) {
        let [_, _, class, hop_limit, ..] = word.to_le_bytes();
        (Self { class, hop_limit }, (word & 0xffff) as usize)
    }
}

/// Cells of a packet of `len` bytes.
const fn cells(len: usize) -> u64 {
    (8 + len).div_ceil(8 * CELL) as u64
}

/// Cells that are written and not given back yet.
fn used(words: &impl Words, head: u64, tail: u64) -> Result<u64, Corrupt> {
    let used = head.wrapping_sub(tail);
    if used <= words.cells() { Ok(used) } else { Err(Corrupt) }
}

/// The side that writes packets.
struct Producer<W> {
    words: W,
    head: u64,
    /// The consumer's count when it was last read.
    tail: u64,
}

impl<W: Words> Producer<W> {
    /// The producer of a ring that is still empty.
    fn new(words: W) -> Self {
        Self { words, head: 0, tail: 0 }
    }

    /// Writes and publishes a packet of at most [`MAX_PACKET`] bytes; `false` if there is no space
    /// for it.
    fn push(&mut self, tag: Tag, bytes: &[u8]) -> Result<bool, Corrupt> {
        if !self.has_space(bytes.len())? {
            return Ok(false);
        }
        let at = self.head * CELL as u64;
        self.words.set_word(at, tag.with_length(bytes.len()));
        self.words.store(at + 1, bytes);
        self.head += cells(bytes.len());
        // Release: a thread that sees the count sees the packet.
        self.words.set_control(Control::Head, self.head, Ordering::Release);
        Ok(true)
    }

    fn has_space(&mut self, len: usize) -> Result<bool, Corrupt> {
        Ok(self.fits(len, self.tail)? || {
            self.tail = self.given_back();
            self.fits(len, self.tail)?
        })
    }

    fn given_back(&self) -> u64 {
        // Acquire: the consumer has read the cells that it gives back before they are overwritten.
        self.words.control(Control::Tail, Ordering::Acquire)
    }

    fn fits(&self, len: usize, tail: u64) -> Result<bool, Corrupt> {
        Ok(cells(len) <= self.words.cells() - used(&self.words, self.head, tail)?)
    }

    /// Called after packets were pushed: whether the consumer sleeps and must be woken.
    fn must_wake(&self) -> bool {
        sleeps(&self.words, Control::ConsumerSleeps)
    }

    /// Announces that this side sleeps until there is space for a packet of `len` bytes. Returns
    /// whether there is still none.
    fn prepare_sleep(&self, len: usize) -> Result<bool, Corrupt> {
        self.words.set_control(Control::ProducerSleeps, 1, Ordering::Relaxed);
        self.words.fence();
        Ok(!self.fits(len, self.given_back())?)
    }

    /// Withdraws the announcement of [`Producer::prepare_sleep`].
    fn end_sleep(&self) {
        self.words.set_control(Control::ProducerSleeps, 0, Ordering::Relaxed);
    }

    /// Whether the consumer has ever taken a packet.
    fn has_consumed(&self) -> bool {
        self.words.control(Control::Tail, Ordering::Relaxed) != 0
    }
}

/// The side that reads packets.
struct Consumer<W> {
    words: W,
    /// The producer's count when it was last read.
    head: u64,
    tail: u64,
    /// The value of `tail` that was last published to the producer.
    published: u64,
}

impl<W: Words> Consumer<W> {
    /// The consumer of a ring that was not read yet.
    fn new(words: W) -> Self {
        Self { words, head: 0, tail: 0, published: 0 }
    }

    /// Whether there is a packet.
    fn has_packet(&mut self) -> Result<bool, Corrupt> {
        if self.head == self.tail {
            self.head = self.written()?;
        }
        Ok(self.head != self.tail)
    }

    /// Replaces `bytes` by the next packet, after [`Consumer::has_packet`] returned true.
    /// [`Consumer::give_back`] gives its cells back.
    fn pop(&mut self, bytes: &mut Vec<u8>) -> Result<Tag, Corrupt> {
        let at = self.tail * CELL as u64;
        let (tag, len) = Tag::split(self.words.word(at));
        if len > MAX_PACKET || cells(len) > used(&self.words, self.head, self.tail)? {
            return Err(Corrupt);
        }
        bytes.clear();
        self.words.load(at + 1, len, bytes);
        self.tail += cells(len);
        Ok(tag)
    }

    fn written(&self) -> Result<u64, Corrupt> {
        // Acquire: the contents of the counted packets are visible.
        let head = self.words.control(Control::Head, Ordering::Acquire);
        used(&self.words, head, self.tail).map(|_| head)
    }

    /// Publishes the free cells to the producer. Returns whether the producer must be woken.
    fn give_back(&mut self) -> bool {
        if self.published == self.tail {
            return false;
        }
        self.published = self.tail;
        // Release: the packets were read before their cells may be overwritten.
        self.words.set_control(Control::Tail, self.tail, Ordering::Release);
        sleeps(&self.words, Control::ProducerSleeps)
    }

    /// Announces that this side sleeps until there are packets. Returns whether there are still
    /// none.
    fn prepare_sleep(&self) -> Result<bool, Corrupt> {
        self.words.set_control(Control::ConsumerSleeps, 1, Ordering::Relaxed);
        self.words.fence();
        Ok(self.written()? == self.tail)
    }

    /// Withdraws the announcement of [`Consumer::prepare_sleep`].
    fn end_sleep(&self) {
        self.words.set_control(Control::ConsumerSleeps, 0, Ordering::Relaxed);
    }
}

/// Whether the other side sleeps. Returns true once per sleep.
fn sleeps(words: &impl Words, who: Control) -> bool {
    words.fence();
    words.control(who, Ordering::Relaxed) != 0 && words.take_control(who) != 0
}

#[cfg(test)]
mod tests;
