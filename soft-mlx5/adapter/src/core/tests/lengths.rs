//! Messages whose packets have another length than the peer expects, or which are too long.

use uverbs_mlx5_format::{Opcode, Syndrome as Status};

use super::harness::*;
use crate::core::*;
use crate::packet::{self, Addressing, Bth, Headers, NakCode, Packet, Position, Psn, Transport};

/// The pair's queue pairs with different path MTUs.
fn pair(qp_type: QpType, mtus: [Mtu; 2]) -> Pair {
    Pair::with_attributes(qp_type, |side, attributes| {
        attributes.mtu = Some(mtus[side]);
    })
}

const MTUS: [Mtu; 2] = [Mtu::M256, Mtu::M1024];

/// Up to the shorter path MTU, both sides split a message into the same packets.
#[test]
fn queue_pairs_with_different_mtus_exchange_short_messages_only() {
    for (here, there) in [(0, 1), (1, 0)] {
        for (len, fits) in [(1, true), (256, true), (257, false), (2000, false)] {
            for opcode in [Opcode::SEND, Opcode::RDMA_WRITE, Opcode::RDMA_READ] {
                let mut pair = pair(QpType::Rc, [MTUS[here], MTUS[there]]);
                let (from, to) = (pair.host(0).region(4096, ALL), pair.host(1).region(4096, ALL));
                pair.post_receive(1, to);
                let wr = match opcode {
                    Opcode::SEND => Wr::send(),
                    Opcode::RDMA_WRITE => Wr::write(to.address, to.key),
                    _ => Wr::read(to.address, to.key),
                };
                pair.post(0, &wr.from(from, 0, len));
                pair.world.pass(10_000_000_000, &mut |_| Fate::Pass);
                let failure = match opcode {
                    Opcode::RDMA_READ => Status::BAD_RESPONSE,
                    _ => Status::REMOTE_INVALID_REQUEST,
                };
                let what = format!("{opcode:?} of {len} bytes, {:?}", MTUS[here]);
                assert_eq!(pair.one(0).syndrome, (!fits).then_some(failure), "{what}");
            }
        }
    }
}

/// UC reports nothing to the peer: the message is dropped, and the receive remains.
#[test]
fn an_unreliable_message_of_another_mtu_is_dropped() {
    for (here, there) in [(0, 1), (1, 0)] {
        let mut pair = pair(QpType::Uc, [MTUS[here], MTUS[there]]);
        let (from, to) = (pair.host(0).region(4096, ALL), pair.host(1).region(4096, ALL));
        pair.post_receive(1, to);
        for len in [2000, 257, 9] {
            pair.post(0, &Wr::send().from(from, 0, len));
        }
        pair.world.run_until_idle();
        assert_eq!(pair.poll(0).iter().filter(|done| done.syndrome.is_none()).count(), 3);
        let received = pair.one(1);
        assert_eq!((received.bytes, received.syndrome), (9, None));
        assert_eq!(pair.state(1), QpState::ReadyToSend);
    }
}

/// A packet of a SEND to side 1.
fn part_of_send(pair: &Pair, position: Position, psn: u32, len: usize) -> Packet {
    let from = Addressing::roce(pair.world.hosts[0].gid, packet::Gid::default());
    let mut packet = Packet::new();
    let opcode = packet::Opcode::send(Transport::Rc, position, Headers::empty());
    packet.start(from, Bth::new(opcode, 0xffff, pair.qps[1].qpn.0, Psn::new(psn)));
    packet.payload(len);
    packet
}

/// A message may have at most 2^30 bytes, or the device's limit (IBTA volume 1, 9.7.4.1.6),
/// whatever the size of the receive.
#[test]
fn a_send_longer_than_the_longest_message_is_refused() {
    const PACKETS: u32 = 16;
    for extra in [0, 1] {
        let mut world = World::new(2);
        let config = CoreConfig { log_max_message: 12, ..CoreConfig::default() };
        world.hosts[1] = Host::with(2, config);
        let mut pair = Pair::of(
            world,
            QpType::Rc,
            |_, _| {},
            |_, attributes| {
                attributes.mtu = Some(Mtu::M256);
            },
        );
        let inbox = pair.host(1).region(1 << 16, ALL);
        pair.post_receive(1, inbox);
        let last = PACKETS - 1 + extra;
        for number in 0..=last {
            let position = Position::of(number, last + 1);
            let packet = part_of_send(&pair, position, 100 + number, 256);
            pair.host(1).core.receive(0, packet);
        }
        let mut refusals = Vec::new();
        pair.world.run_until_idle_with(&mut |packet| {
            let aeth = packet.view().unwrap().aeth;
            refusals.extend(aeth.map(|aeth| aeth.syndrome()));
            Fate::Drop
        });
        let done = pair.one(1);
        if extra == 0 {
            assert_eq!((done.bytes, done.syndrome), (256 * PACKETS, None));
        } else {
            assert_eq!(done.syndrome, Some(Status::LOCAL_LENGTH));
            assert_eq!(refusals, [packet::Syndrome::Nak(NakCode::INVALID_REQUEST)]);
            assert_eq!(pair.state(1), QpState::Error);
        }
    }
}
