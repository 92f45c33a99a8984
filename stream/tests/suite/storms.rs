//! Many peers at once, and listeners that do not take them.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::thread::{self, JoinHandle};

use nix::poll::{PollFd, PollFlags, poll};
use uverbs_stream::Stream;

use crate::network::{address, config};

/// Peers that connect at the same time.
fn peers<T: Send + 'static>(
    count: usize,
    to: SocketAddr,
    work: fn(std::io::Result<Stream>) -> T,
) -> Vec<JoinHandle<T>> {
    (0..count).map(|_| thread::spawn(move || work(config().connect(to)))).collect()
}

/// Requests beyond the backlog are dropped, and their senders repeat them.
#[test]
fn a_storm_on_a_short_backlog_is_served() {
    let listener = config().backlog(1).bind(address()).unwrap();
    let all = peers(6, listener.local_addr().unwrap(), |stream| {
        let mut stream = stream.unwrap();
        stream.write_all(b"ping").unwrap();
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).unwrap();
        answer
    });
    for _ in 0..all.len() {
        let (mut stream, _) = listener.accept().unwrap();
        let mut question = [0; 4];
        stream.read_exact(&mut question).unwrap();
        assert_eq!(&question, b"ping");
        stream.write_all(b"pong").unwrap();
        // Dropping it waits for the peer's device, which has it then.
    }
    all.into_iter().for_each(|peer| assert_eq!(&peer.join().unwrap(), b"pong"));
}

/// No thread accepts them, and the listener goes with their requests in its queue.
#[test]
fn peers_that_wait_are_refused_when_the_listener_goes() {
    let listener = config().bind(address()).unwrap();
    let all = peers(8, listener.local_addr().unwrap(), |stream| stream.map(drop));
    // Readable: a request is there. The others come before or after the listener has gone.
    let mut files = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut files, 60_000_u16), Ok(1));
    drop(listener);
    for peer in all {
        assert_eq!(peer.join().unwrap().unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
}

/// Streams that are dropped before they are accepted keep no other peer waiting.
#[test]
fn peers_that_leave_at_once_keep_no_other_waiting() {
    let listener = config().bind(address()).unwrap();
    let to = listener.local_addr().unwrap();
    let accepting = thread::spawn(move || {
        for (mut stream, _) in std::iter::repeat_with(|| listener.accept().unwrap()) {
            let mut text = String::new();
            if stream.read_to_string(&mut text).is_ok() && text == "the last" {
                return;
            }
        }
    });
    peers(6, to, drop).into_iter().for_each(|peer| peer.join().unwrap());
    let mut last = config().connect(to).unwrap();
    last.write_all(b"the last").unwrap();
    drop(last);
    accepting.join().unwrap();
}
