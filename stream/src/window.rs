//! The flow control of a ring: how much its writer may still send, and how much its reader has.

use uverbs::{MemoryView, Remote};

use crate::broken::Broken;
use crate::config::RESERVED;
use crate::handshake::Offer;

/// What a reader reports to the writer of its ring: totals since the connection began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Report {
    /// Bytes that the program has read from the ring.
    pub(crate) consumed: u64,
    /// Data messages whose receives have been posted again.
    pub(crate) messages: u64,
    /// Whether the sender of the report will send no more data.
    pub(crate) finished: bool,
}

impl Report {
    pub(crate) const BYTES: usize = 24;

    pub(crate) fn encode(self) -> [u8; Self::BYTES] {
        let mut message = [0; Self::BYTES];
        message[..8].copy_from_slice(&self.consumed.to_be_bytes());
        message[8..16].copy_from_slice(&self.messages.to_be_bytes());
        message[23] = self.finished.into();
        message
    }

    pub(crate) fn decode(message: &[u8]) -> Result<Self, Broken> {
        let message: &[u8; Self::BYTES] =
            message.try_into().map_err(|_| Broken::Protocol("a report of another length"))?;
        let number =
            |at: usize| u64::from_be_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| message[at + i]));
        match number(16) {
            flags @ (0 | 1) => {
                Ok(Self { consumed: number(0), messages: number(8), finished: flags == 1 })
            }
            _ => Err(Broken::Protocol("a report with unknown flags")),
        }
    }
}

/// The writer's end of the peer's ring.
#[derive(Debug)]
pub(crate) struct Outgoing {
    ring: Remote,
    bytes: u64,
    /// The most data messages that may be in flight.
    messages: u64,
    sent: u64,
    sent_messages: u64,
    /// The totals that the peer last reported.
    consumed: u64,
    taken_messages: u64,
}

impl Outgoing {
    pub(crate) fn new(offer: &Offer) -> Self {
        let messages = u64::from(u32::from(offer.receives) - RESERVED);
        let (ring, bytes) = (offer.ring, u64::from(offer.bytes));
        let (sent, sent_messages, consumed, taken_messages) = (0, 0, 0, 0);
        Self { ring, bytes, messages, sent, sent_messages, consumed, taken_messages }
    }

    /// Bytes that the next message may carry; none if the peer has to read first.
    pub(crate) fn space(&self) -> usize {
        if self.sent_messages - self.taken_messages >= self.messages {
            return 0;
        }
        let free = self.bytes - (self.sent - self.consumed);
        free.min(self.bytes - self.sent % self.bytes) as usize
    }

    /// Where the next message goes.
    pub(crate) fn target(&self) -> Remote {
        Remote::new(self.ring.address + self.sent % self.bytes, self.ring.rkey)
    }

    /// Notes that a message of `length` bytes, at most the space, was sent.
    pub(crate) fn advance(&mut self, length: usize) {
        self.sent += length as u64;
        self.sent_messages += 1;
    }

    /// Processes a report of the peer, which can only free what was sent.
    pub(crate) fn credit(&mut self, report: &Report) -> Result<(), Broken> {
        let bytes = self.consumed..=self.sent;
        let messages = self.taken_messages..=self.sent_messages;
        if !bytes.contains(&report.consumed) || !messages.contains(&report.messages) {
            return Err(Broken::Protocol("a report of data that was never sent"));
        }
        (self.consumed, self.taken_messages) = (report.consumed, report.messages);
        Ok(())
    }
}

/// The reader's end of its own ring.
#[derive(Debug)]
pub(crate) struct Incoming {
    bytes: u64,
    messages: u64,
    received: u64,
    received_messages: u64,
    consumed: u64,
    reported: u64,
    reported_messages: u64,
    /// The peer will send no more data.
    pub(crate) finished: bool,
}

impl Incoming {
    pub(crate) fn new(offer: &Offer) -> Self {
        let messages = u64::from(u32::from(offer.receives) - RESERVED);
        Self {
            bytes: offer.bytes.into(),
            messages,
            received: 0,
            received_messages: 0,
            consumed: 0,
            reported: 0,
            reported_messages: 0,
            finished: false,
        }
    }

    /// Notes that the peer wrote `length` bytes, which follow the earlier ones in the ring.
    pub(crate) fn arrived(&mut self, length: u32) -> Result<(), Broken> {
        let length = u64::from(length);
        if self.finished || length == 0 || length > self.bytes - (self.received - self.consumed) {
            return Err(Broken::Protocol("more data than there was space for"));
        }
        self.received += length;
        self.received_messages += 1;
        Ok(())
    }

    /// The number of bytes that can be read.
    pub(crate) fn available(&self) -> usize {
        (self.received - self.consumed) as usize
    }

    /// The offset and length of their parts: a first one, and a second one if they wrap around to
    /// the ring's start.
    pub(crate) fn parts(&self) -> [(usize, usize); 2] {
        let start = self.consumed % self.bytes;
        let first = (self.bytes - start).min(self.received - self.consumed);
        [(start as usize, first as usize), (0, self.available() - first as usize)]
    }

    /// Copies as many bytes as there are and fit, and leaves them in the ring.
    pub(crate) fn copy(&self, ring: MemoryView<'_>, into: &mut [u8]) -> uverbs::Result<usize> {
        let mut done = 0;
        for (start, length) in self.parts() {
            let length = length.min(into.len() - done);
            ring.read(start, &mut into[done..done + length])?;
            done += length;
        }
        Ok(done)
    }

    /// Notes that the program has taken `length` bytes, at most those that are available.
    pub(crate) fn consume(&mut self, length: usize) {
        self.consumed += (length as u64).min(self.received - self.consumed);
    }

    /// Whether a report is due: since the last one, a quarter of the ring has been read, or a
    /// quarter of the permitted messages has arrived.
    pub(crate) fn is_report_due(&self) -> bool {
        (self.consumed - self.reported) * 4 >= self.bytes
            || (self.received_messages - self.reported_messages) * 4 >= self.messages
    }

    /// What to report.
    pub(crate) fn report(&self, finished: bool) -> Report {
        Report { consumed: self.consumed, messages: self.received_messages, finished }
    }

    pub(crate) fn reported(&mut self, report: &Report) {
        (self.reported, self.reported_messages) = (report.consumed, report.messages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(bytes: u32, messages: u16) -> Offer {
        Offer { ring: Remote::new(4096, 1), bytes, receives: messages + RESERVED as u16 }
    }

    #[test]
    fn a_decoded_report_equals_the_encoded_one() {
        for finished in [false, true] {
            let report = Report { consumed: 1 << 40, messages: 7, finished };
            assert_eq!(Report::decode(&report.encode()).unwrap(), report);
        }
        assert!(Report::decode(&[0; 23]).is_err());
        assert!(Report::decode(&[9; 24]).is_err());
    }

    #[test]
    fn a_message_ends_where_the_ring_does() {
        let mut out = Outgoing::new(&offer(100, 8));
        assert_eq!((out.space(), out.target().address), (100, 4096));
        out.advance(60);
        assert_eq!((out.space(), out.target().address), (40, 4156));
        out.credit(&Report { consumed: 60, messages: 1, finished: false }).unwrap();
        assert_eq!(out.space(), 40);
        out.advance(40);
        assert_eq!((out.space(), out.target().address), (60, 4096));
    }

    #[test]
    fn messages_are_counted_too() {
        let mut out = Outgoing::new(&offer(100, 2));
        out.advance(1);
        out.advance(1);
        assert_eq!(out.space(), 0);
        out.credit(&Report { consumed: 0, messages: 1, finished: false }).unwrap();
        assert_eq!(out.space(), 98);
    }

    #[test]
    fn a_peer_cannot_report_what_was_never_sent() {
        let mut out = Outgoing::new(&offer(100, 8));
        out.advance(10);
        let report = |consumed, messages| Report { consumed, messages, finished: false };
        assert!(out.credit(&report(11, 1)).is_err());
        assert!(out.credit(&report(10, 2)).is_err());
        out.credit(&report(10, 1)).unwrap();
        assert!(out.credit(&report(9, 1)).is_err(), "a report takes nothing back");
    }

    #[test]
    fn a_peer_cannot_write_more_than_fits() {
        let mut ring = Incoming::new(&offer(100, 8));
        ring.arrived(90).unwrap();
        assert!(ring.arrived(11).is_err() && ring.arrived(0).is_err());
        ring.consume(95);
        assert_eq!(ring.available(), 0);
        ring.arrived(30).unwrap();
        assert_eq!(ring.parts(), [(90, 10), (0, 20)]);
        ring.finished = true;
        assert!(ring.arrived(1).is_err());
    }

    #[test]
    fn a_writer_is_never_left_without_space() {
        let mut ring = Incoming::new(&offer(100, 8));
        ring.arrived(24).unwrap();
        ring.consume(24);
        assert!(!ring.is_report_due());
        ring.arrived(1).unwrap();
        assert!(ring.is_report_due(), "a quarter of the messages");
        let report = ring.report(false);
        ring.reported(&report);
        assert!(!ring.is_report_due());
        ring.consume(1);
        ring.arrived(50).unwrap();
        ring.consume(25);
        assert!(ring.is_report_due(), "a quarter of the bytes");
    }
}
