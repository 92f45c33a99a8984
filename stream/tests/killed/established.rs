//! The peer is killed while the stream is established. Each stage is tried at both ends.

use std::io::{self, ErrorKind};
use std::thread;
use std::time::Instant;

use uverbs_stream::Broken;

use crate::end::End;
use crate::peer::{PATIENCE, pattern};
use crate::process::Peer;
use crate::setup::{Own, serves_the_next};

/// Runs the check with the peer as the client, then as the server.
fn at_both_ends<E: End>(own: &Own, end: &E, stage: &str, check: impl Fn(Peer, E::Stream)) {
    own.keeps_nothing(|| {
        let mut listener = own.listener(end);
        let peer = Peer::connecting(stage, end.address(&listener));
        check(peer, end.accept(&mut listener));
        serves_the_next((own, end), &mut listener, || ());
    });
    own.keeps_nothing(|| {
        let (peer, to) = Peer::serving(stage);
        check(peer, end.connect(&own.config(), to).unwrap());
    });
}

/// Asserts that the connection ended before the peer's data did.
fn is_reset(result: io::Result<impl std::fmt::Debug>) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    let broken = error.get_ref().and_then(|inner| inner.downcast_ref::<Broken>());
    assert!(matches!(broken, Some(Broken::Disconnected)), "{error:?}");
}

/// Writes until it fails: the peer's end is noticed after the first bytes were sent, or before.
fn cannot_write<E: End>(end: &E, stream: &mut E::Stream) -> io::Error {
    loop {
        if let Err(error) = end.write(stream, &[7; 1000]) {
            return error;
        }
    }
}

/// Asserts that dropping the stream does not wait.
fn drops_at_once<S>(stream: S) {
    let start = Instant::now();
    drop(stream);
    assert!(start.elapsed() < PATIENCE / 2, "it takes {:?}", start.elapsed());
}

both!(
    an_idle_peer_is_a_reset,
    a_peer_that_writes_is_a_reset_after_its_bytes,
    what_a_peer_wrote_is_read_before_the_reset,
    a_writer_that_waits_for_the_peer_gets_the_reset,
    a_peer_that_has_the_end_and_sends_none_is_a_reset,
    a_peer_that_ended_its_data_is_an_end,
    a_peer_that_closed_is_an_end,
    closing_does_not_wait_for_a_killed_peer,
);

fn an_idle_peer_is_a_reset(own: &Own, end: &impl End) {
    at_both_ends(own, end, "idle", |mut peer, mut stream| {
        peer.wait_until_ready();
        thread::scope(|scope| {
            let reading = scope.spawn(|| end.read(&mut stream, &mut [0; 8]));
            peer.kill();
            is_reset(reading.join().unwrap());
        });
        is_reset(end.write(&mut stream, b"x"));
        assert_eq!(end.read(&mut stream, &mut [0; 8]).unwrap(), 0, "the reader was told");
        drops_at_once(stream);
    });
}

fn a_peer_that_writes_is_a_reset_after_its_bytes(own: &Own, end: &impl End) {
    at_both_ends(own, end, "writes", |mut peer, mut stream| {
        let (mut first, mut have) = (vec![0; 1 << 20], 0);
        while have < first.len() {
            have += end.read(&mut stream, &mut first[have..]).unwrap();
        }
        peer.kill();
        let (rest, ended) = end.read_all(&mut stream);
        is_reset(ended);
        let all = [first, rest].concat();
        assert!(all == pattern(0, all.len()));
        drops_at_once(stream);
    });
}

fn what_a_peer_wrote_is_read_before_the_reset(own: &Own, end: &impl End) {
    at_both_ends(own, end, "wrote", |mut peer, mut stream| {
        // The peer's device may not have sent all bytes; only those that arrived count.
        let mut first = [0; 1];
        assert_eq!(end.read(&mut stream, &mut first).unwrap(), 1);
        peer.wait_until_ready();
        peer.kill();
        let (rest, ended) = end.read_all(&mut stream);
        is_reset(ended);
        assert_eq!([&first[..], &rest].concat(), pattern(0, 1000));
        drops_at_once(stream);
    });
}

fn a_writer_that_waits_for_the_peer_gets_the_reset(own: &Own, end: &impl End) {
    at_both_ends(own, end, "deaf", |mut peer, mut stream| {
        peer.wait_until_ready();
        // As many bytes as the peer's ring has.
        end.write_all(&mut stream, &[7; 128 << 10]);
        thread::scope(|scope| {
            let writing = scope.spawn(|| end.write(&mut stream, b"x"));
            peer.kill();
            let error = writing.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        });
        let error = end.read(&mut stream, &mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        drops_at_once(stream);
    });
}

fn a_peer_that_has_the_end_and_sends_none_is_a_reset(own: &Own, end: &impl End) {
    at_both_ends(own, end, "heard_the_end", |mut peer, mut stream| {
        end.finish(&mut stream).unwrap();
        peer.wait_until_ready();
        peer.kill();
        is_reset(end.read(&mut stream, &mut [0; 8]));
        let error = end.write(&mut stream, b"x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
        drops_at_once(stream);
    });
}

/// The peer's data and its end arrive before it is killed, so this is an end and not a reset.
fn a_peer_that_ended_its_data_is_an_end(own: &Own, end: &impl End) {
    at_both_ends(own, end, "ended", |mut peer, mut stream| {
        let (text, ended) = end.read_all(&mut stream);
        assert_eq!((text, ended.is_ok()), (pattern(0, 1000), true));
        peer.wait_until_ready();
        peer.kill();
        assert_eq!(end.read(&mut stream, &mut [0; 8]).unwrap(), 0);
        let error = cannot_write(end, &mut stream);
        let known = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
        assert!(known.contains(&error.kind()), "{error}");
        assert_eq!(end.read(&mut stream, &mut [0; 8]).unwrap(), 0, "the end stays");
        drops_at_once(stream);
    });
}

/// Bytes that were not read when the peer closed are read after it is killed.
fn a_peer_that_closed_is_an_end(own: &Own, end: &impl End) {
    at_both_ends(own, end, "closed", |mut peer, mut stream| {
        peer.wait_until_ready();
        peer.kill();
        let (text, ended) = end.read_all(&mut stream);
        assert_eq!((text, ended.is_ok()), (pattern(0, 1000), true));
        let error = cannot_write(end, &mut stream);
        assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
        drops_at_once(stream);
    });
}

/// The peer is stopped, so its device does not confirm the last bytes.
fn closing_does_not_wait_for_a_killed_peer(own: &Own, end: &impl End) {
    at_both_ends(own, end, "idle", |mut peer, mut stream| {
        peer.wait_until_ready();
        peer.stop();
        end.write_all(&mut stream, &[7; 1000]);
        thread::scope(|scope| {
            let closing = scope.spawn(|| drops_at_once(stream));
            peer.kill();
            closing.join().unwrap();
        });
    });
}
