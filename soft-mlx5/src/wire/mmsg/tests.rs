use std::os::fd::AsFd;

use super::*;
use crate::packet::Addressing;

/// Two sockets of loopback addresses; the second one receives.
fn sockets() -> [UdpSocket; 2] {
    [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap())
}

fn packets(lengths: &[usize]) -> Vec<Packet> {
    let bytes = |(n, len): (usize, &usize)| vec![n as u8; *len];
    let all = lengths.iter().enumerate().map(bytes);
    all.map(|bytes| Packet::from_bytes(Addressing::default(), &bytes)).collect()
}

fn run(packets: usize, to: &UdpSocket) -> Run {
    Run { packets, destination: to.local_addr().unwrap(), class: 8, hop_limit: 9 }
}

/// Length, first byte and index of `count` datagrams. They have arrived, because loopback delivers
/// in the sender's call.
fn receive(receiver: &mut Receiver, socket: &UdpSocket, count: usize) -> Vec<[usize; 3]> {
    let mut all = Vec::new();
    while all.len() < count {
        if receiver.is_empty() {
            receiver.receive(socket.as_fd());
            assert!(!receiver.is_empty(), "{count} datagrams, after {all:?}");
        }
        let datagram = receiver.take().unwrap();
        assert!(!datagram.truncated);
        all.push([datagram.bytes.len(), datagram.bytes[0].into(), datagram.index]);
    }
    all
}

#[test]
fn the_kernel_segments_a_run_into_its_packets() {
    let [from, to] = sockets();
    if !can_cut(from.as_fd()) {
        eprintln!("skipped: this kernel cuts no messages");
        return;
    }
    let packets = packets(&[80, 80, 60, 33]);
    let sent = send(from.as_fd(), &packets, &[run(3, &to), run(1, &to)]).unwrap();
    assert_eq!(sent, 2);
    let got = receive(&mut Receiver::new(), &to, 4);
    assert_eq!(got, [[80, 0, 0], [80, 1, 0], [60, 2, 0], [33, 3, 0]]);
}

#[test]
fn coalesced_datagrams_are_separated() {
    let [from, to] = sockets();
    if !can_cut(from.as_fd()) {
        eprintln!("skipped: this kernel cuts no messages");
        return;
    }
    join_datagrams(to.as_fd());
    let packets = packets(&[80, 80, 60, 33]);
    send(from.as_fd(), &packets, &[run(3, &to), run(1, &to)]).unwrap();
    let got = receive(&mut Receiver::of_joined(), &to, 4);
    // If the kernel coalesces none of them, each has the index 0.
    let lengths: Vec<_> = got.iter().map(|[len, first, _]| [*len, *first]).collect();
    assert_eq!(lengths, [[80, 0], [80, 1], [60, 2], [33, 3]]);
    assert_eq!(got[3][2], 0);
    assert!([0, 2].contains(&got[2][2]), "{got:?}");
}

#[test]
fn empty_and_too_long_messages_do_not_hide_the_next() {
    let [from, to] = sockets();
    join_datagrams(to.as_fd());
    let long = vec![1; LONGEST + 1];
    for bytes in [&[][..], &long, &[2; 20]] {
        from.send_to(bytes, to.local_addr().unwrap()).unwrap();
    }
    let mut receiver = Receiver::of_joined();
    receiver.receive(to.as_fd());
    let all = std::iter::from_fn(|| receiver.take().map(|one| (one.bytes.len(), one.truncated)));
    assert_eq!(all.collect::<Vec<_>>(), [(0, false), (LONGEST + 1, true), (20, false)]);
    assert!(receiver.is_empty());
}

#[test]
fn class_and_hop_limit_reach_a_segmented_message() {
    let [from, to] = sockets();
    super::super::multicast::receive_headers(&to).unwrap();
    let runs = if can_cut(from.as_fd()) { vec![run(2, &to)] } else { vec![run(1, &to); 2] };
    send(from.as_fd(), &packets(&[40, 40]), &runs).unwrap();
    let mut receiver = Receiver::new();
    receiver.receive(to.as_fd());
    let headers = std::iter::from_fn(|| receiver.take().map(|one| (one.class, one.hop_limit)));
    assert_eq!(headers.collect::<Vec<_>>(), [(8, 9), (8, 9)]);
}
