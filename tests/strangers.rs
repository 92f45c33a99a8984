//! A hostile program in the network namespace of a software device sends well-formed RoCEv2
//! datagrams to another program's connections, with the right queue pair numbers and keys.

mod common;

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;

use common::{Setup, success};
use uverbs::qp::{Inline, PostFlags, State};
use uverbs::soft::SoftDevice;
use uverbs::soft::packet::rocev2::{Framing, UDP_PORT, icrc_v4};
use uverbs::soft::packet::{
    Addressing, Aeth, Bth, NakCode, Opcode, Packet, Position, Psn, Reth, Syndrome, Transport,
};
use uverbs::soft::wire::Carrier;
use uverbs::{Device, op};

const WRITE_ONLY: Opcode = Opcode::write(Transport::Rc, Position::Only, false);
const WRITE_LAST: Opcode = Opcode::write(Transport::Rc, Position::Last, false);

/// Datagrams between two waits: fewer than the device's socket buffer holds.
const BATCH: u32 = 64;

struct Attacker {
    device: Arc<SoftDevice>,
    socket: UdpSocket,
    victim: Ipv4Addr,
    sent: u64,
}

impl Attacker {
    /// An attacker with its own address, at a port that the kernel chooses.
    fn new(device: Arc<SoftDevice>) -> Self {
        let victim = device.gids().iter().find_map(|entry| entry.gid.to_ipv4()).unwrap();
        let socket = UdpSocket::bind((Ipv4Addr::new(127, 19, 77, 7), 0)).unwrap();
        Self { device, socket, victim, sent: 0 }
    }

    fn send(&mut self, packet: &Packet) {
        let std::net::SocketAddr::V4(own) = self.socket.local_addr().unwrap() else {
            panic!("IPv4")
        };
        let framing = Framing { source_port: own.port(), ..Framing::default() };
        let crc = icrc_v4(*own.ip(), self.victim, packet.bytes(), framing);
        let datagram = [packet.bytes(), &crc.to_le_bytes()].concat();
        self.socket.send_to(&datagram, (self.victim, UDP_PORT)).unwrap();
        self.sent += 1;
        if self.sent % u64::from(BATCH) == 0 {
            self.wait();
        }
    }

    /// Waits until the device has handled all datagrams; no other packets reach it meanwhile.
    fn wait(&self) {
        while self.device.inspect(|core| core.counters().received).unwrap() < self.sent {
            std::thread::yield_now();
        }
    }
}

fn packet(opcode: Opcode, qpn: u32, psn: u32) -> Packet {
    let mut packet = Packet::new();
    let mut bth = Bth::new(opcode, 0xffff, qpn, Psn::new(psn));
    bth.set_ack_request(true);
    packet.start(Addressing::default(), bth);
    packet
}

/// An RDMA WRITE of four bytes.
fn write(qpn: u32, psn: u32, address: u64, rkey: u32) -> Packet {
    let mut packet = packet(WRITE_ONLY, qpn, psn);
    packet.push(Reth::new(address, rkey, 4));
    packet.payload(4).copy_from_slice(b"evil");
    packet
}

/// A NAK, which moves a requester to the error state.
fn refusal(qpn: u32, psn: u32) -> Packet {
    let mut packet = packet(Opcode::RC_ACKNOWLEDGE, qpn, psn);
    packet.push(Aeth::new(Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR), 0));
    packet
}

#[test]
fn packets_of_every_psn_from_another_address_do_not_affect_a_connection() {
    let device = SoftDevice::builder("soft0").carrier(Carrier::Udp).build().unwrap();
    let device = Arc::new(device);
    let mut setup = Setup::on(Device::from_shared_soft(device.clone()).open().unwrap());
    let (mut a, b) = setup.rc_pair();
    let region = setup.region(64);
    let mut attacker = Attacker::new(device);
    let remote = region.remote(0).unwrap();
    let info = b.query().unwrap();
    // Every PSN near the expected ones, and samples of the whole range.
    let near = |psn: u32| (0..128).map(move |n| psn.wrapping_add(n).wrapping_sub(64) & 0xff_ffff);
    let psns: Vec<u32> = near(info.receive_psn)
        .chain(near(info.send_psn))
        .chain((0..1 << 24).step_by(1 << 14))
        .collect();
    for psn in psns {
        attacker.send(&write(b.number(), psn, remote.address, remote.rkey));
        attacker.send(&refusal(b.number(), psn));
        // A WRITE of a wrong length would move the responder to the error state.
        attacker.send(&packet(WRITE_LAST, b.number(), psn));
    }
    attacker.wait();
    assert!(region.view().to_vec().iter().all(|byte| *byte == 0));
    assert_eq!(
        (b.query().unwrap().state, b.query().unwrap().receive_psn),
        (State::Rts, info.receive_psn)
    );
    // The connection still works. SAFETY: the region outlives the request and is not touched
    // meanwhile.
    unsafe { a.post_send(1, op::Write(remote), Inline(b"good"), PostFlags::SIGNALED).unwrap() };
    assert_eq!(success(&mut setup.cq).wr_id, 1);
    assert_eq!(region.view().to_vec()[..4], *b"good");
}

#[test]
fn queue_pair_numbers_and_keys_depend_on_the_seed_only() {
    let numbers = |seed: Option<u64>| {
        let builder = SoftDevice::builder("soft0").without_wire();
        let builder = seed.into_iter().fold(builder, |builder, seed| builder.seed(seed));
        let setup = Setup::on(Device::from_soft(builder.build().unwrap()).open().unwrap());
        let (a, b) = setup.rc_pair();
        let regions = [setup.region(64), setup.region(64)];
        let keys = regions.each_ref().map(|region| region.rkey());
        assert_ne!(a.query().unwrap().send_psn, b.query().unwrap().send_psn);
        ([a.number(), b.number()], keys)
    };
    assert_eq!(numbers(Some(1)), numbers(Some(1)));
    assert_ne!(numbers(Some(1)), numbers(Some(2)));
    let (qpns, keys) = numbers(None);
    let (others, other_keys) = numbers(None);
    assert!(qpns != others && keys != other_keys);
}
