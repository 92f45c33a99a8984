//! Peers that violate the protocol.

use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use uverbs::cm::{Connection, Connector, RequestData};
use uverbs::cq::Immediate;
use uverbs::qp::PostFlags;
use uverbs::{Remote, op};
use uverbs_stream::{Broken, Stream};

use crate::network::{Listens, Network, Rdma, context};

/// A peer that can write anything into the ring of a stream.
pub(crate) struct Peer {
    pub(crate) connection: Connection,
    ring: Remote,
    bytes: u32,
}

impl Peer {
    /// Connects, and offers an invalid ring. It has no receives.
    pub(crate) fn pair() -> (Stream, Self) {
        let listener = Rdma::listen();
        let to = listener.address();
        let accepting = thread::spawn(move || listener.accept().unwrap().0);
        let offer = [&b"uvst"[..], &[0, 1, 0, 128, 0, 1, 0, 0], &[0; 12]].concat();
        let connector = Connector::new().context(&context());
        let connector = connector.private_data(RequestData::new(&offer).unwrap());
        let connection = connector.connect(to).unwrap();
        let reported = connection.private_data();
        let word = |at: usize| u32::from_be_bytes(reported[at..at + 4].try_into().unwrap());
        let address = u64::from(word(16)) << 32 | u64::from(word(20));
        let (ring, bytes) = (Remote::new(address, word(12)), word(8));
        (accepting.join().unwrap(), Self { connection, ring, bytes })
    }

    /// Writes `bytes` bytes to the start of the ring, and reports `reported` bytes.
    pub(crate) fn write(&mut self, bytes: usize, reported: u32) {
        let write = op::WriteImmediate(self.ring, Immediate::from_u32(reported));
        let data = vec![7; bytes];
        self.connection.qp.post_inline(write, &data, PostFlags::SIGNALED).unwrap();
    }

    fn send(&mut self, message: &[u8]) {
        self.connection.qp.post_inline(op::Send, message, PostFlags::SIGNALED).unwrap();
    }

    /// Sends some empty reports, and takes their completions.
    fn flood(&mut self) {
        let mut left = 64;
        (0..left).for_each(|_| self.report(0, 0, 0));
        while left > 0 {
            match self.connection.resources.cq.poll() {
                Ok(_) => left -= 1,
                Err(_) => thread::yield_now(),
            }
        }
    }

    fn report(&mut self, consumed: u64, messages: u64, flags: u64) {
        self.send(&[consumed, messages, flags].map(u64::to_be_bytes).concat());
    }
}

/// Checks that the stream reports a protocol error to readers and writers, and is dropped at once.
fn assert_broken_by(what: &str, peer_does: impl FnOnce(&mut Peer)) {
    let (mut stream, mut peer) = Peer::pair();
    peer_does(&mut peer);
    let mut into = [0; 64];
    let error = loop {
        match stream.read(&mut into) {
            Ok(0) => panic!("{what}: the stream ended in order"),
            Ok(bytes) => assert!(into[..bytes].iter().all(|byte| *byte == 7), "{what}"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{what}: {error}");
    let broken = error.get_ref().and_then(|inner| inner.downcast_ref::<Broken>());
    assert!(matches!(broken, Some(Broken::Protocol(_))), "{what}: {error}");
    assert_eq!(stream.write(b"x").unwrap_err().kind(), ErrorKind::InvalidData, "{what}");
}

#[test]
fn a_length_that_is_not_the_data_breaks_the_stream() {
    assert_broken_by("nothing written", |peer| peer.write(0, 100));
    assert_broken_by("less written", |peer| peer.write(9, 10));
    assert_broken_by("more written", |peer| peer.write(10, 9));
    assert_broken_by("nothing reported", |peer| peer.write(0, 0));
    assert_broken_by("beyond the ring", |peer| peer.write(1, peer.bytes + 1));
    assert_broken_by("the highest length", |peer| peer.write(0, u32::MAX));
    assert_broken_by("after good data", |peer| {
        peer.write(8, 8);
        peer.write(0, peer.bytes);
    });
}

#[test]
fn an_impossible_report_breaks_the_stream() {
    assert_broken_by("bytes that were never sent", |peer| peer.report(1, 0, 0));
    assert_broken_by("messages that were never sent", |peer| peer.report(0, 1, 0));
    assert_broken_by("the highest numbers", |peer| peer.report(u64::MAX, u64::MAX, 0));
    assert_broken_by("unknown flags", |peer| peer.report(0, 0, 2));
    assert_broken_by("a short report", |peer| peer.send(&[0; 23]));
    assert_broken_by("an empty report", |peer| peer.send(&[]));
}

#[test]
fn data_after_the_end_breaks_the_stream() {
    let (mut stream, mut peer) = Peer::pair();
    peer.report(0, 0, 1);
    assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);
    peer.write(1, 1);
    // A reader that has seen the end gets no error.
    let error = loop {
        match stream.take_error().unwrap() {
            None => thread::yield_now(),
            Some(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
}

/// The peer sends more reports than needed: each uses a receive, which is posted again.
#[test]
fn a_flood_of_reports_does_not_stop_the_stream() {
    let (mut stream, mut peer) = Peer::pair();
    for _ in 0..100 {
        peer.report(0, 0, 0);
    }
    peer.write(8, 8);
    assert_eq!(stream.read(&mut [0; 64]).unwrap(), 8);
}

/// While a peer sends reports without end, a reader still times out, and gets data.
#[test]
fn an_endless_flood_of_reports_keeps_no_reader() {
    let (mut stream, mut peer) = Peer::pair();
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                peer.flood();
            }
            peer.write(8, 8);
        });
        let mut read = || stream.read(&mut [0; 64]).map_err(|error| error.kind());
        let all: Vec<_> = (0..20).map(|_| read()).collect();
        // Set before an assertion can end this thread, because the scope waits for the other one.
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(all, [Err(ErrorKind::WouldBlock); 20]);
        stream.set_read_timeout(None).unwrap();
        assert_eq!(stream.read(&mut [0; 64]).unwrap(), 8);
    });
}
