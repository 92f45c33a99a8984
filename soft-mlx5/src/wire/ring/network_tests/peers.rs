//! Attacks of other processes: connections without a ring, corrupt rings, floods, forged datagrams.

use std::io::{self, Read};
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use super::*;
use crate::packet::rocev2::{self, Framing, UDP_PORT};
use crate::wire::ring::memory::Mapped;
use crate::wire::ring::{Control, Words, socket};

/// The socket and the memory of a ring into which the test itself sends.
fn by_hand(to: Station) -> (OwnedFd, Mapped) {
    let stranger = socket::connect(to).unwrap();
    let (ring, file) = Mapped::create().unwrap();
    socket::send_hello(&stranger, Station::candidate(9), &file).unwrap();
    (stranger, ring)
}

#[test]
fn a_connection_with_a_corrupt_ring_is_closed() {
    let (mut left, mut right) = (memory(), memory());
    let (a, b) = (left.station(), right.station());
    let corrupt = [(1, 0xffff), (1, 57), (1 << 40, 1), (u64::MAX, 1)];
    for (round, (head, first)) in corrupt.iter().enumerate() {
        let (stranger, ring) = by_hand(b);
        assert_eq!(received(&mut right), [], "nothing is there yet");
        assert_eq!(count(&right, |c| &c.malformed), round as u64);
        ring.set_word(0, *first);
        ring.set_control(Control::Head, *head, Ordering::Release);
        let sent = vec![packet(a, b, 5, 5)];
        send(&mut left, sent.clone());
        assert_eq!(received(&mut right), sent, "other senders are not affected");
        assert_eq!(count(&right, |c| &c.malformed), round as u64 + 1);
        eventually(|| is_hung_up_on(&stranger));
        assert!(!is_woken(&right));
    }
}

#[test]
fn a_receiver_with_a_corrupt_ring_is_reached_by_udp() {
    let mut left = memory();
    let b = Station::new([127, 19, 0, 2].into()).unwrap();
    let listener = socket::listen(socket::claim(b).unwrap().unwrap()).unwrap();
    let send_one = |left: &mut Network| {
        let sent = vec![packet(left.station(), b, 5, 4096)];
        send(left, sent);
    };
    send_one(&mut left);
    let accepted: OwnedFd = listener.accept().unwrap().0.into();
    let (_, file) = socket::receive_hello(&accepted).unwrap().unwrap();
    let ring = Mapped::adopt(&file).unwrap();
    ring.set_control(Control::Tail, 1 << 30, Ordering::Release);
    // The sender reads the count only when the ring seems full.
    while count(&left, |c| &c.malformed) == 0 {
        send_one(&mut left);
        assert!(count(&left, |c| &c.sent) < 100);
    }
    eventually(|| is_hung_up_on(&accepted));
    let before = udp_sent(&left) + left.udp().counters().refused.load(Ordering::Relaxed);
    send_one(&mut left);
    let after = udp_sent(&left) + left.udp().counters().refused.load(Ordering::Relaxed);
    assert_eq!(after, before + 1);
}

#[test]
fn connections_without_a_valid_ring_are_refused_and_closed() {
    let mut right = memory();
    let b = right.station();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut refused = 0;
    let mut expect_refusal = |right: &mut Network, stranger: OwnedFd| {
        refused += 1;
        assert_eq!(received(right), []);
        assert_eq!(count(right, |c| &c.malformed), refused);
        eventually(|| is_hung_up_on(&stranger));
    };
    // A file that is not a ring.
    let stranger = socket::connect(b).unwrap();
    let writer: OwnedFd = writer.into();
    socket::send_hello(&stranger, Station::candidate(9), &writer).unwrap();
    expect_refusal(&mut right, stranger);
    // No file, and no hello.
    let stranger = socket::connect(b).unwrap();
    socket::wake(&stranger);
    expect_refusal(&mut right, stranger);
    // More files than one.
    let stranger = socket::connect(b).unwrap();
    let fds = [writer.as_raw_fd(); 5];
    let rights = [nix::sys::socket::ControlMessage::ScmRights(&fds)];
    nix::sys::socket::sendmsg::<()>(
        stranger.as_raw_fd(),
        &[io::IoSlice::new(b"uvring\0\x01\x7f\x12\x00\x01")],
        &rights,
        nix::sys::socket::MsgFlags::empty(),
        None,
    )
    .unwrap();
    expect_refusal(&mut right, stranger);
    // A connection that is closed before it has sent a hello.
    drop(socket::connect(b).unwrap());
    assert_eq!((received(&mut right), is_woken(&right)), (vec![], false));
    // All of the files were closed: the pipe has no writer left.
    drop(writer);
    assert_eq!(reader.read(&mut [0; 8]).unwrap(), 0);
}

#[test]
fn more_connections_than_rings_are_refused() {
    let mut right = memory();
    let b = right.station();
    let held: Vec<_> = (0..150).map(|_| by_hand(b)).collect();
    let refused = || held.iter().filter(|(socket, _)| is_hung_up_on(socket)).count();
    eventually(|| {
        assert_eq!(received(&mut right), []);
        refused() == 150 - 128
    });
    drop(held);
    eventually(|| {
        received(&mut right);
        let (socket, _ring) = by_hand(b);
        received(&mut right);
        !is_hung_up_on(&socket)
    });
}

#[test]
fn connections_without_a_hello_time_out() {
    let mut right = memory();
    let b = right.station();
    let held: Vec<_> = (0..128).map(|_| socket::connect(b).unwrap()).collect();
    look_at(0, &mut right);
    let (early, _ring) = by_hand(b);
    look_at(SECOND - 1, &mut right);
    eventually(|| is_hung_up_on(&early));
    let (late, _ring) = by_hand(b);
    look_at(SECOND, &mut right);
    eventually(|| held.iter().all(is_hung_up_on));
    assert!(!is_hung_up_on(&late));
}

/// A receiver whose process has no file descriptor left. The test below runs it in a new process.
#[test]
#[ignore = "the other process of a test"]
fn a_receiver_without_descriptors() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let mut right = memory();
    let (stranger, _ring) = by_hand(right.station());
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    // Fewer than are open, so closing one does not help.
    setrlimit(Resource::RLIMIT_NOFILE, 3, hard).unwrap();
    assert!(is_woken(&right));
    look_at(0, &mut right);
    assert!(!is_woken(&right), "a connection that cannot be accepted must not keep it awake");
    let again = right.next_wake().unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    look_at(again, &mut right);
    assert_eq!(right.next_wake(), None);
    assert!(!is_hung_up_on(&stranger) && !is_woken(&right), "it was accepted");
}

const RECEIVER: &str = "wire::ring::network_tests::peers::a_receiver_without_descriptors";

#[test]
fn without_file_descriptors_a_device_sleeps_and_accepts_later() {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", RECEIVER])
        .stdout(Stdio::null())
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn a_flood_of_wake_ups_does_not_delay_other_packets() {
    let (mut left, mut right) = (memory(), memory());
    let (a, b) = (left.station(), right.station());
    let (stranger, _ring) = by_hand(b);
    (0..10_000).for_each(|_| socket::wake(&stranger));
    let sent = vec![packet(a, b, 1, 1)];
    send(&mut left, sent.clone());
    assert_eq!(received(&mut right), sent);
}

/// Sends a forged datagram of station `from`, from an address that any process may bind.
fn forge(from: Station, to: Station) {
    let socket = UdpSocket::bind((from.address(), 0)).unwrap();
    let source_port = socket.local_addr().unwrap().port();
    let framing = Framing { source_port, ..Framing::default() };
    let packet = packet(from, to, 1, 8);
    let crc = rocev2::icrc_v4(from.address(), to.address(), packet.bytes(), framing);
    let bytes = [packet.bytes(), &crc.to_le_bytes()].concat();
    socket.send_to(&bytes, (to.address(), UDP_PORT)).unwrap();
}

#[test]
fn a_datagram_in_the_name_of_a_station_with_a_ring_is_dropped() {
    let (mut left, mut right) = (memory(), memory());
    let (a, b) = (left.station(), right.station());
    forge(a, b);
    assert_eq!(
        received(&mut right).len(),
        1,
        "accepted: there is no ring yet, so it may be the sender's"
    );
    let sent = vec![packet(a, b, 1, 1)];
    send(&mut left, sent.clone());
    assert_eq!(received(&mut right), sent);
    forge(a, b);
    assert_eq!((received(&mut right), right.forged()), (vec![], 1));
    // Datagrams of other stations arrive as before, and so do the ring's packets.
    let mut third = network(Carrier::Udp);
    let others = vec![packet(third.station(), b, 2, 2)];
    send(&mut third, others.clone());
    send(&mut left, sent.clone());
    assert_eq!(received(&mut right), [others, sent].concat());
    // The ring of another station that opens at the same time makes no difference.
    let mut fourth = memory();
    let first = vec![packet(fourth.station(), b, 3, 3)];
    send(&mut fourth, first.clone());
    forge(a, b);
    assert_eq!((received(&mut right), right.forged()), (first, 2));
    // Once the sender has ended, the next device of its station may use UDP.
    drop(left);
    eventually(|| {
        forge(a, b);
        received(&mut right).len() == 1
    });
}

#[test]
fn a_datagram_in_the_name_of_a_device_of_this_process_is_dropped() {
    let join = || Network::join_any(Link::Ethernet, None, Carrier::Memory).unwrap();
    let (left, mut right) = (join(), join());
    forge(left.station(), right.station());
    forge(right.station(), right.station());
    assert_eq!((received(&mut right), right.forged()), (vec![], 2));
}
