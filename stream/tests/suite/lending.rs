//! Registered memory that streams lend to callers, and waiting with `poll(2)`.

use std::io::{BufRead, ErrorKind, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use uverbs_stream::Stream;

use crate::network::{Network, Rdma, address, config};
use crate::random::pattern;

const BYTES: usize = 500_000;

/// Sends bytes through lent buffers.
fn send_lent(stream: &mut Stream, bytes: usize) {
    let mut at = 0;
    while at < bytes {
        let mut buffer = stream.reserve().unwrap();
        assert!(!buffer.is_empty() && buffer.len() <= 16 << 10);
        let length = buffer.len().min(bytes - at);
        buffer[..length].copy_from_slice(&pattern(at, length));
        buffer.commit(length).unwrap();
        at += length;
    }
}

#[test]
fn lent_memory_carries_a_stream() {
    let (mut server, mut client) = Rdma::pair();
    let writing = thread::spawn(move || send_lent(&mut server, BYTES));
    let mut at = 0;
    loop {
        let lent = client.lend().unwrap();
        if lent.is_empty() {
            break;
        }
        let found: Vec<u8> = lent.parts().iter().flat_map(|part| part.to_vec()).collect();
        assert_eq!(found.len(), lent.len());
        assert!(found == pattern(at, found.len()), "bytes from {at} on differ");
        // Only a part is consumed, so the rest is lent again.
        let taken = found.len().div_ceil(2);
        lent.consume(taken);
        at += taken;
    }
    assert_eq!(at, BYTES);
    writing.join().unwrap();
}

#[test]
fn lines_are_read_without_another_buffer() {
    let (mut server, mut client) = Rdma::pair();
    let writing = thread::spawn(move || {
        (0..20_000).for_each(|number| writeln!(server, "line {number}").unwrap());
    });
    let mut line = String::new();
    for number in 0..20_000 {
        line.clear();
        client.read_line(&mut line).unwrap();
        assert_eq!(line, format!("line {number}\n"));
    }
    assert!(client.fill_buf().unwrap().is_empty());
    writing.join().unwrap();
}

#[test]
fn peeks_reads_and_lent_memory_see_one_stream() {
    let (mut server, mut client) = Rdma::pair();
    server.write_all(&pattern(0, 100)).unwrap();
    while client.peek(&mut [0; 100]).unwrap() < 100 {
        thread::yield_now();
    }
    assert_eq!(client.fill_buf().unwrap(), pattern(0, 100));
    assert_eq!(client.lend().unwrap_err().kind(), ErrorKind::InvalidInput);
    client.consume(10);
    let mut part = [0; 30];
    assert_eq!(client.peek(&mut part).unwrap(), 30);
    assert_eq!(client.read(&mut part).unwrap(), 30);
    assert_eq!(part[..], pattern(10, 30));
    client.consume(1000);
    server.write_all(&pattern(100, 10)).unwrap();
    let lent = client.lend().unwrap();
    assert_eq!(lent.parts()[0].to_vec(), pattern(100, lent.len()));
}

#[test]
fn a_buffer_without_committed_bytes_sends_nothing() {
    let (mut server, mut client) = Rdma::pair();
    for _ in 0..100 {
        drop(server.reserve().unwrap());
        server.reserve().unwrap().commit(0).unwrap();
    }
    server.reserve().unwrap().commit(usize::MAX).unwrap();
    drop(server);
    let mut found = Vec::new();
    client.read_to_end(&mut found).unwrap();
    assert_eq!(found.len(), 16 << 10);
}

#[test]
fn rings_and_buffers_of_all_sizes_carry_a_stream() {
    for (ring, buffers, bytes) in [(1, 4, 1), (4096, 5, 1000), (1 << 20, 16, 70_001)] {
        let config = config().receive_ring(ring).send_buffers(buffers, bytes);
        let listener = config.bind(address()).unwrap();
        let to = listener.local_addr().unwrap();
        let writing = thread::spawn(move || {
            let (mut server, _) = listener.accept().unwrap();
            server.write_all(&pattern(0, 200_000)).unwrap();
        });
        let mut found = Vec::new();
        config.connect(to).unwrap().read_to_end(&mut found).unwrap();
        assert!(found == pattern(0, 200_000));
        writing.join().unwrap();
    }
}

#[test]
fn sizes_out_of_range_are_refused() {
    let refused = |config: uverbs_stream::Config| config.bind(address()).unwrap_err().kind();
    assert_eq!(refused(config().receive_ring(0)), ErrorKind::InvalidInput);
    assert_eq!(refused(config().receive_ring(u32::MAX)), ErrorKind::InvalidInput);
    assert_eq!(refused(config().send_buffers(3, 10)), ErrorKind::InvalidInput);
    assert_eq!(refused(config().send_buffers(8, 0)), ErrorKind::InvalidInput);
}

#[test]
fn a_program_can_wait_with_poll() {
    let (mut server, mut client) = Rdma::pair();
    client.set_nonblocking(true).unwrap();
    assert_eq!(client.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    let mut found: Vec<u8> = Vec::new();
    for round in 0..20u8 {
        server.write_all(&[round; 3]).unwrap();
        while found.len() < 3 * (usize::from(round) + 1) {
            let mut part = [0; 8];
            match client.read(&mut part) {
                Ok(length) => found.extend(&part[..length]),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    assert!(becomes_ready(&client));
                }
            }
        }
    }
    drop(server);
    let start = Instant::now();
    while client.read(&mut [0; 8]).is_err() {
        becomes_ready(&client);
        assert!(start.elapsed() < Duration::from_secs(60));
    }
}

/// Whether a stream's file is readable now.
fn is_ready(stream: &Stream) -> bool {
    is_ready_within(stream, PollTimeout::ZERO)
}

/// Waits until a stream's file is readable. Returns false after a minute.
fn becomes_ready(stream: &Stream) -> bool {
    is_ready_within(stream, PollTimeout::from(60_000u16))
}

fn is_ready_within(stream: &Stream, timeout: PollTimeout) -> bool {
    let mut files = [PollFd::new(stream.readiness().unwrap(), PollFlags::POLLIN)];
    poll(&mut files, timeout).unwrap() == 1
}

/// Writes until the peer's ring, of 128 KiB, is full.
fn fill_up(stream: &mut Stream) {
    let mut left = 128 << 10;
    while left > 0 {
        match stream.write(&pattern(0, left.min(10_000))) {
            Ok(bytes) => left -= bytes,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                assert!(becomes_ready(stream));
            }
        }
    }
    // The buffers of sent data are still returned.
    while stream.write(&[0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        && is_ready(stream)
    {}
}

/// A read without data consumes the event of new space. The writer's file still becomes ready.
#[test]
fn a_read_without_data_does_not_hide_new_space_from_the_writer() {
    for _ in 0..5 {
        let (mut server, mut client) = Rdma::pair();
        client.set_nonblocking(true).unwrap();
        fill_up(&mut client);
        server.read_exact(&mut vec![0; 128 << 10]).unwrap();
        let start = Instant::now();
        // Repeats until the report of new space has arrived. The waiting writer does not poll.
        loop {
            assert!(start.elapsed() < Duration::from_secs(60), "the writer is not notified");
            assert!(becomes_ready(&client));
            assert_eq!(client.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
            if is_ready(&client) {
                break;
            }
        }
        assert_eq!(client.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(is_ready(&client), "until it has tried");
    }
}

/// A completion of the stream's own write would wake a reader unnecessarily, so most writes are
/// unsignaled.
#[test]
fn a_reader_is_not_woken_for_its_own_small_writes() {
    // Writes of the second size do not fit into the work request.
    for (bytes, writes) in [(5, 20), (200, 12)] {
        let (mut server, mut client) = Rdma::pair();
        client.set_nonblocking(true).unwrap();
        assert_eq!(client.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
        for _ in 0..writes {
            client.write_all(&vec![1; bytes]).unwrap();
        }
        server.read_exact(&mut vec![0; bytes * writes]).unwrap();
        thread::sleep(Duration::from_millis(50));
        assert!(!is_ready(&client), "nothing has arrived after writes of {bytes}");
    }
}

/// Data that arrived between a read and the first use of the stream's file make it readable.
#[test]
fn the_file_is_readable_if_data_arrived_before_its_first_use() {
    for tries_first in [false, true] {
        let (mut server, mut client) = Rdma::pair();
        client.set_nonblocking(true).unwrap();
        if tries_first {
            assert_eq!(client.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
        }
        server.write_all(b"x").unwrap();
        server.set_linger(Duration::from_secs(60)).unwrap();
        server.shutdown(std::net::Shutdown::Write).unwrap();
        // When this returns, the client's device has received the data and the end.
        drop(server);
        assert!(becomes_ready(&client), "{tries_first}");
        assert_eq!(client.read(&mut [0; 8]).unwrap(), 1);
    }
}

#[test]
fn a_spinning_stream_carries_messages() {
    let config = config().spin(Duration::from_millis(5));
    let listener = config.bind(address()).unwrap();
    let to = listener.local_addr().unwrap();
    let serving = thread::spawn(move || {
        let (mut server, _) = listener.accept().unwrap();
        let mut byte = [0; 1];
        while server.read(&mut byte).unwrap() == 1 {
            server.write_all(&byte).unwrap();
        }
    });
    let mut client = config.connect(to).unwrap();
    for number in 0..200u8 {
        client.write_all(&[number]).unwrap();
        let mut byte = [0; 1];
        client.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [number]);
    }
    drop(client);
    serving.join().unwrap();
}

/// Polling counts as waiting.
#[test]
fn a_spinning_stream_times_out() {
    const LONG: Duration = Duration::from_secs(600);
    let config = config().spin(LONG);
    let listener = config.bind(address()).unwrap();
    let to = listener.local_addr().unwrap();
    let accepting = thread::spawn(move || listener.accept().unwrap());
    let mut client = config.connect(to).unwrap();
    client.set_read_timeout(Some(Duration::from_millis(30))).unwrap();
    let start = Instant::now();
    assert_eq!(client.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(start.elapsed() < LONG, "it polled for {:?}", start.elapsed());
    drop(accepting.join().unwrap());
}
