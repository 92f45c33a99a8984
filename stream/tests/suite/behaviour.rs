//! The behaviour of streams and of TCP, which must be the same.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::network::{Listens, Network, Rdma, Streams};
use crate::random::{Random, pattern};

/// A limit for waits that must end; only a defect reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

crate::both!(
    echo,
    addresses_are_each_other_s,
    large_transfers_in_random_chunks,
    half_close,
    the_end_comes_after_the_data,
    a_slow_reader_holds_the_writer_up,
    many_streams,
    several_threads_accept_peers_that_leave_at_once,
    dropping_ends_the_stream,
    an_abort_is_a_reset,
    a_reset_is_reported_once,
    nothing_is_nothing,
    vectored,
    two_threads_use_the_halves,
    both_write_before_they_read,
    nothing_listens,
    a_port_is_taken_once,
    an_address_elsewhere_is_not_available,
    closing_ends_an_accept,
    a_closed_listener_refuses,
    reads_time_out,
    writes_time_out,
    calls_do_not_block_if_told_so,
    peeking_leaves_the_bytes,
    writing_after_the_end_is_a_broken_pipe,
    writing_to_a_peer_that_is_gone_fails,
    shutting_reading_down_wakes_the_reader,
    one_byte_at_a_time,
);

fn echo<N: Network>() {
    let (mut server, mut client) = N::pair();
    let serving = thread::spawn(move || {
        let mut word = [0; 5];
        server.read_exact(&mut word).unwrap();
        server.write_all(&word).unwrap();
    });
    client.write_all(b"hello").unwrap();
    let mut word = [0; 5];
    client.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"hello");
    serving.join().unwrap();
}

fn addresses_are_each_other_s<N: Network>() {
    let (server, client) = N::pair();
    let [local, peer] = client.addresses();
    assert_eq!(server.addresses(), [peer, local]);
}

fn large_transfers_in_random_chunks<N: Network>() {
    const BYTES: usize = 3_000_000;
    let seed = 0x5eed_0001;
    println!("seed {seed:#x}");
    let (mut server, mut client) = N::pair();
    let writing = thread::spawn(move || {
        let (mut random, mut at) = (Random(seed), 0);
        while at < BYTES {
            let length = random.size(300_000).min(BYTES - at);
            server.write_all(&pattern(at, length)).unwrap();
            at += length;
        }
    });
    let (mut random, mut at) = (Random(!seed), 0);
    loop {
        let mut part = vec![0; random.size(200_000)];
        let length = client.read(&mut part).unwrap();
        if length == 0 {
            break;
        }
        assert!(part[..length] == pattern(at, length), "the bytes from {at} on differ");
        at += length;
    }
    assert_eq!(at, BYTES);
    writing.join().unwrap();
}

fn half_close<N: Network>() {
    let (mut server, mut client) = N::pair();
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut text = String::new();
    server.read_to_string(&mut text).unwrap();
    assert_eq!(text, "question");
    assert_eq!(server.read(&mut [0; 8]).unwrap(), 0, "reads after the end return 0");
    server.write_all(b"answer").unwrap();
    drop(server);
    text.clear();
    client.read_to_string(&mut text).unwrap();
    assert_eq!(text, "answer");
}

fn the_end_comes_after_the_data<N: Network>() {
    let (mut server, mut client) = N::pair();
    server.write_all(&pattern(0, 60_000)).unwrap();
    drop(server);
    let mut found = Vec::new();
    client.read_to_end(&mut found).unwrap();
    assert!(found == pattern(0, 60_000));
}

fn a_slow_reader_holds_the_writer_up<N: Network>() {
    let (mut server, mut client) = N::pair();
    client.set_nonblocking(true);
    let chunk = pattern(0, 65_536);
    let mut written = 0;
    let full = loop {
        match client.write(&chunk[written % 65_536..]) {
            Ok(bytes) => written += bytes,
            Err(error) => break error,
        }
        assert!(written < 64 << 20, "the writer is never held up");
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    client.set_nonblocking(false);
    let reading = thread::spawn(move || {
        let mut found = Vec::new();
        server.read_to_end(&mut found).unwrap();
        found
    });
    client.write_all(b"the rest").unwrap();
    drop(client);
    let found = reading.join().unwrap();
    assert_eq!(found.len(), written + 8);
    assert!(found[..written].chunks(65_536).all(|part| *part == chunk[..part.len()]));
    assert!(found.ends_with(b"the rest"));
}

fn many_streams<N: Network>() {
    const STREAMS: usize = 40;
    let listener = N::listen();
    let address = listener.address();
    let clients: Vec<_> = (0..STREAMS)
        .map(|number| {
            thread::spawn(move || {
                let mut stream = N::connect(address).unwrap();
                stream.write_all(&pattern(number, 5000)).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                let mut found = Vec::new();
                stream.read_to_end(&mut found).unwrap();
                assert!(found == pattern(number, 5000));
            })
        })
        .collect();
    let servers: Vec<_> = (0..STREAMS)
        .map(|_| {
            let mut stream = listener.accept().unwrap();
            thread::spawn(move || {
                let mut found = Vec::new();
                stream.read_to_end(&mut found).unwrap();
                stream.write_all(&found).unwrap();
            })
        })
        .collect();
    clients.into_iter().chain(servers).for_each(|thread| thread.join().unwrap());
}

fn several_threads_accept_peers_that_leave_at_once<N: Network>() {
    const STREAMS: usize = 200;
    let listener = Arc::new(N::listen());
    let address = listener.address();
    let (send, found) = mpsc::channel();
    let accepting = [(); 4].map(|()| {
        let (listener, send) = (listener.clone(), send.clone());
        thread::spawn(move || {
            while let Ok(mut stream) = listener.accept() {
                let mut number = [0; 8];
                stream.read_exact(&mut number).unwrap();
                assert_eq!(stream.read(&mut [0]).unwrap(), 0);
                send.send(usize::from_be_bytes(number)).unwrap();
            }
        })
    });
    let clients = [0, 1, 2, 3].map(|first| {
        thread::spawn(move || {
            for number in (first..STREAMS).step_by(4) {
                N::connect(address).unwrap().write_all(&number.to_be_bytes()).unwrap();
            }
        })
    });
    let found: Vec<_> = (0..STREAMS).map_while(|_| found.recv_timeout(PATIENCE).ok()).collect();
    let found: std::collections::BTreeSet<_> = found.into_iter().collect();
    assert!(found.into_iter().eq(0..STREAMS), "streams were lost");
    listener.close();
    clients.into_iter().chain(accepting).for_each(|thread| thread.join().unwrap());
}

fn dropping_ends_the_stream<N: Network>() {
    let (server, mut client) = N::pair();
    let reading = thread::spawn(move || client.read(&mut [0; 8]).unwrap());
    drop(server);
    assert_eq!(reading.join().unwrap(), 0);
}

fn an_abort_is_a_reset<N: Network>() {
    let (server, mut client) = N::pair();
    let reading = thread::spawn(move || client.read(&mut [0; 8]).unwrap_err());
    server.abort();
    assert_eq!(reading.join().unwrap().kind(), ErrorKind::ConnectionReset);
}

/// After the error, reads return the end of the stream.
fn a_reset_is_reported_once<N: Network>() {
    let (server, mut client) = N::pair();
    server.abort();
    assert_eq!(client.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    // A socket reports it to one side, a stream to both.
    let known = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
    assert!(known.contains(&client.write(b"x").unwrap_err().kind()));
    for _ in 0..3 {
        assert_eq!(client.read(&mut [0; 8]).unwrap(), 0);
        assert_eq!(client.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
}

fn nothing_is_nothing<N: Network>() {
    let (mut server, mut client) = N::pair();
    assert_eq!(client.write(&[]).unwrap(), 0);
    assert_eq!(client.write_vectored(&[]).unwrap(), 0);
    assert_eq!(client.write_vectored(&[IoSlice::new(&[]), IoSlice::new(&[])]).unwrap(), 0);
    client.flush().unwrap();
    client.write_all(b"x").unwrap();
    let mut byte = [0; 1];
    server.peek(&mut byte).unwrap();
    // Without a byte to read, TCP's read would wait.
    assert_eq!(server.read(&mut []).unwrap(), 0);
    server.read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"x", "nothing came before it");
}

fn vectored<N: Network>() {
    let (mut server, mut client) = N::pair();
    let parts = [&b"one "[..], b"", b"two ", b"three"].map(IoSlice::new);
    assert_eq!(client.write_vectored(&parts).unwrap(), 13);
    let mut all = [0; 13];
    while server.peek(&mut all).unwrap() < 13 {
        thread::yield_now();
    }
    let (mut first, mut second) = ([0; 4], [0; 20]);
    let mut into = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
    assert_eq!(server.read_vectored(&mut into).unwrap(), 13);
    assert_eq!((&first, &second[..9]), (b"one ", &b"two three"[..]));
}

fn two_threads_use_the_halves<N: Network>() {
    const BYTES: usize = 1_000_000;
    let (server, client) = N::pair();
    let run = |stream: N::Stream| {
        let (mut read, mut write) = stream.split();
        let writing = thread::spawn(move || write.write_all(&pattern(0, BYTES)).unwrap());
        let reading = thread::spawn(move || {
            let mut found = Vec::new();
            read.read_to_end(&mut found).unwrap();
            assert!(found == pattern(0, BYTES));
        });
        [writing, reading]
    };
    let threads = [run(server), run(client)];
    threads.into_iter().flatten().for_each(|thread| thread.join().unwrap());
}

/// Both sides send small messages at once, more than fit into the window of a direction.
fn both_write_before_they_read<N: Network>() {
    let (mut server, mut client) = N::pair();
    let other = thread::spawn(move || exchange::<N>(&mut server));
    exchange::<N>(&mut client);
    other.join().unwrap();
}

fn exchange<N: Network>(stream: &mut N::Stream) {
    for round in 0..50 {
        (0..100).for_each(|_| stream.write_all(&[round]).unwrap());
        let mut found = [0; 100];
        stream.read_exact(&mut found).unwrap();
        assert_eq!(found, [round; 100]);
    }
}

fn nothing_listens<N: Network>() {
    let listener = N::listen();
    let address = listener.address();
    listener.close();
    drop(listener);
    let error = N::connect(address).err().expect("no stream");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
}

fn a_port_is_taken_once<N: Network>() {
    let first = N::listen();
    let own = first.address();
    let all = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), own.port());
    for address in [own, all] {
        let error = N::listen_at(address).err().expect("no listener");
        assert_eq!(error.kind(), ErrorKind::AddrInUse, "{address}: {error}");
    }
}

fn an_address_elsewhere_is_not_available<N: Network>() {
    let error = N::listen_at("192.0.2.1:0".parse().unwrap()).err().expect("no listener");
    assert_eq!(error.kind(), ErrorKind::AddrNotAvailable, "{error}");
}

/// No device has the broadcast address, for which TCP has another error.
#[test]
fn no_device_has_the_address() {
    let error = Rdma::listen_at("255.255.255.255:1".parse().unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

fn closing_ends_an_accept<N: Network>() {
    let listener = Arc::new(N::listen());
    let (ready, wait) = mpsc::channel();
    let accepting = thread::spawn({
        let listener = listener.clone();
        move || {
            ready.send(()).unwrap();
            listener.accept().err().expect("no stream").kind()
        }
    });
    wait.recv().unwrap();
    listener.close();
    assert_eq!(accepting.join().unwrap(), ErrorKind::InvalidInput);
}

fn a_closed_listener_refuses<N: Network>() {
    let listener = N::listen();
    let address = listener.address();
    listener.close();
    assert_eq!(N::connect(address).err().unwrap().kind(), ErrorKind::ConnectionRefused);
    assert_eq!(listener.accept().err().unwrap().kind(), ErrorKind::InvalidInput);
}

fn reads_time_out<N: Network>() {
    let (_server, mut client) = N::pair();
    let timeout = Duration::from_millis(30);
    client.set_timeouts(Some(timeout)).unwrap();
    let start = Instant::now();
    assert_eq!(client.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(start.elapsed() >= timeout);
    let zero = client.set_timeouts(Some(Duration::ZERO)).unwrap_err();
    assert_eq!(zero.kind(), ErrorKind::InvalidInput);
}

fn writes_time_out<N: Network>() {
    let (_server, mut client) = N::pair();
    client.set_timeouts(Some(Duration::from_millis(30))).unwrap();
    let chunk = [7; 65_536];
    let error = (0..1024).find_map(|_| client.write(&chunk).err()).expect("the window ends");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
}

fn calls_do_not_block_if_told_so<N: Network>() {
    let listener = N::listen();
    listener.set_nonblocking();
    assert_eq!(listener.accept().err().unwrap().kind(), ErrorKind::WouldBlock);
    let (mut server, mut client) = N::pair();
    client.set_nonblocking(true);
    assert_eq!(client.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    server.write_all(b"x").unwrap();
    let start = Instant::now();
    let mut found = [0; 8];
    loop {
        match client.read(&mut found) {
            Ok(length) => break assert_eq!(&found[..length], b"x"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        assert!(start.elapsed() < PATIENCE);
        thread::yield_now();
    }
}

fn peeking_leaves_the_bytes<N: Network>() {
    let (mut server, mut client) = N::pair();
    server.write_all(b"abc").unwrap();
    let mut found = [0; 2];
    assert_eq!(client.peek(&mut found).unwrap(), 2);
    assert_eq!(&found, b"ab");
    let mut all = [0; 3];
    client.read_exact(&mut all).unwrap();
    assert_eq!(&all, b"abc");
}

fn writing_after_the_end_is_a_broken_pipe<N: Network>() {
    let (_server, mut client) = N::pair();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
    client.shutdown(Shutdown::Write).unwrap();
}

fn writing_to_a_peer_that_is_gone_fails<N: Network>() {
    let (server, mut client) = N::pair();
    drop(server);
    assert_eq!(client.read(&mut [0; 8]).unwrap(), 0);
    let start = Instant::now();
    let error = loop {
        match client.write(b"x") {
            Ok(_) => thread::yield_now(),
            Err(error) => break error,
        }
        assert!(start.elapsed() < PATIENCE, "writes to a peer that is gone still succeed");
    };
    let expected = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
    assert!(expected.contains(&error.kind()), "{error:?}");
}

fn shutting_reading_down_wakes_the_reader<N: Network>() {
    let (_server, client) = N::pair();
    let (mut read, write) = client.split();
    let (ready, wait) = mpsc::channel();
    let reading = thread::spawn(move || {
        ready.send(()).unwrap();
        read.read(&mut [0; 8]).unwrap()
    });
    wait.recv().unwrap();
    N::Stream::shut_both(&write);
    assert_eq!(reading.join().unwrap(), 0);
}

fn one_byte_at_a_time<N: Network>() {
    let (mut server, mut client) = N::pair();
    let writing = thread::spawn(move || {
        pattern(0, 3000).iter().for_each(|b| server.write_all(&[*b]).unwrap())
    });
    let mut found = vec![0; 3000];
    found.iter_mut().for_each(|byte| client.read_exact(std::slice::from_mut(byte)).unwrap());
    assert!(found == pattern(0, 3000));
    writing.join().unwrap();
}
