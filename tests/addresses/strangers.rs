//! Datagrams of a host that is not the connection's peer.

use std::net::UdpSocket;
use std::sync::atomic::Ordering;

use uverbs::op;
use uverbs::qp::{Inline, PostFlags, State};
use uverbs::qp_type::Rc;
use uverbs::soft::packet::rocev2::{Framing, UDP_PORT, icrc_v4};
use uverbs::soft::packet::{Addressing, Bth, Opcode, Packet, Position, Psn, Reth, Transport};

use crate::common::success;
use crate::namespace::{Ends, inside, run};

/// An RDMA WRITE of four bytes from the third host to the device, with a valid ICRC.
fn write(qpn: u32, psn: u32, address: u64, rkey: u32, port: u16) -> Vec<u8> {
    let opcode = Opcode::write(Transport::Rc, Position::Only, false);
    let mut packet = Packet::new();
    packet.start(Addressing::default(), Bth::new(opcode, 0xffff, qpn, Psn::new(psn)));
    packet.push(Reth::new(address, rkey, 4));
    packet.payload(4).copy_from_slice(b"evil");
    let framing = Framing { source_port: port, ..Framing::default() };
    let crc = icrc_v4([10, 9, 0, 3].into(), [10, 9, 0, 1].into(), packet.bytes(), framing);
    [packet.bytes(), &crc.to_le_bytes()].concat()
}

#[test]
fn packets_of_a_third_host_are_ignored() {
    inside("strangers::packets_of_a_third_host_are_ignored", || {
        let mut ends = Ends::across([1500, 1500], "10.9.0.1", "10.9.0.2");
        let (a, mut b) = ends.pair::<Rc>();
        let region = ends.near.setup.region(4096);
        let far = ends.far.as_ref().unwrap();
        let (qpn, rkey, target) = (a.number(), region.rkey(), region.address());
        let before = ends.near.soft.inspect(|core| core.counters().received).unwrap();
        let sent = far.run(move || {
            run("ip address add 10.9.0.3/24 dev far");
            let socket = UdpSocket::bind("10.9.0.3:0").unwrap();
            let port = socket.local_addr().unwrap().port();
            for psn in 0..64 {
                let packet = write(qpn, psn, target, rkey, port);
                socket.send_to(&packet, ("10.9.0.1", UDP_PORT)).unwrap();
            }
            64
        });
        let received = || ends.near.soft.inspect(|core| core.counters().received).unwrap();
        while received() < before + sent {
            std::thread::yield_now();
        }
        assert_eq!(region.view().atomic_u64(0).unwrap().load(Ordering::Relaxed), 0);
        assert_eq!(a.query().unwrap().state, State::Rts);
        // SAFETY: inline data; the region outlives the request.
        unsafe {
            let remote = region.remote(0).unwrap();
            b.post_send(1, op::Write(remote), Inline(b"good"), PostFlags::SIGNALED).unwrap();
        }
        success(&mut ends.there.setup.cq);
        assert_eq!(region.view().to_vec()[..4], *b"good");
    });
}

/// Invalid datagrams sent before each message of the connection.
const GARBAGE: usize = 64;

#[test]
fn a_flood_of_garbage_does_not_stop_a_connection() {
    inside("strangers::a_flood_of_garbage_does_not_stop_a_connection", || {
        let mut ends = Ends::across([1500, 1500], "10.9.0.1", "10.9.0.2");
        let (mut a, _b) = ends.pair::<Rc>();
        let region = ends.there.setup.region(4096);
        let far = ends.far.as_ref().unwrap();
        for round in 0..50u8 {
            far.run(move || {
                let socket = UdpSocket::bind("10.9.0.2:0").unwrap();
                for n in 0..GARBAGE {
                    let garbage = vec![round ^ n as u8; n * 20];
                    socket.send_to(&garbage, ("10.9.0.1", UDP_PORT)).unwrap();
                }
            });
            // SAFETY: inline data; the region outlives the request.
            unsafe {
                let remote = region.remote(0).unwrap();
                a.post_send(1, op::Write(remote), Inline(&[round; 8]), PostFlags::SIGNALED)
                    .unwrap();
            }
            success(&mut ends.near.setup.cq);
            assert_eq!(region.view().to_vec()[..8], [round; 8]);
        }
        // No ACK timeout: the garbage displaced no packet of the connection.
        assert_eq!(ends.near.soft.inspect(|core| core.counters().timeouts).unwrap(), 0);
    });
}
