//! Packets from a host that is not the connection's peer; and QP numbers and keys, which it must
//! not be able to guess.

use std::collections::BTreeSet;

use zerocopy::IntoBytes;

use super::harness::*;
use crate::core::*;
use crate::memory::{BufferMemory, PageMap};
use crate::packet::*;

const WRITE_ONLY: Opcode = Opcode::write(Transport::Rc, Position::Only, false);

/// The address of a port that is not the peer of any connection.
fn stranger() -> Addressing {
    let gid = Gid::from_ipv4([127, 0, 0, 99].into());
    Addressing { source_lid: 99, ..Addressing::roce(gid, Gid::default()) }
}

fn transport(qp_type: QpType) -> Transport {
    match qp_type {
        QpType::Uc => Transport::Uc,
        QpType::XrcInitiator => Transport::Xrc,
        _ => Transport::Rc,
    }
}

/// A packet of this opcode for a queue pair, with a valid key.
fn packet(from: Addressing, opcode: Opcode, qpn: Qpn, psn: u32, to: Region) -> Packet {
    let mut packet = Packet::new();
    let mut bth = Bth::new(opcode, 0xffff, qpn.0, Psn::new(psn));
    bth.set_ack_request(true);
    packet.start(from, bth);
    let Some((_, operation, _, headers)) = opcode.describe() else { return packet };
    for header in headers.iter() {
        let refused = Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR);
        let bytes = match header {
            Headers::RETH => Reth::new(to.address, to.key.0, 4).as_bytes().to_vec(),
            Headers::ATOMIC => AtomicEth::new(to.address, to.key.0, 1, 0).as_bytes().to_vec(),
            Headers::AETH => Aeth::new(refused, 0).as_bytes().to_vec(),
            header => vec![0; header.size()],
        };
        packet.bytes_mut().extend(bytes);
    }
    if operation.has_payload() {
        packet.payload(4).copy_from_slice(b"evil");
    }
    packet
}

/// The state that a stranger's packet could change.
fn snapshot(pair: &mut Pair) -> (QpState, QpInfo, Vec<u8>) {
    let qpn = pair.qps[1].qpn;
    let info = pair.host(1).core.query_qp(qpn).unwrap();
    (info.state, info, pair.host(1).bytes(MEMORY_BASE, 1 << 20))
}

/// A pair with outstanding requests in both directions, and a region of side 1.
fn busy(qp_type: QpType, link: LinkLayer) -> (Pair, Region) {
    let mut pair = Pair::linked(qp_type, link);
    let region = pair.host(1).region(64, ALL);
    pair.post_receive(1, region);
    let (there, here) = (pair.host(0).region(64, ALL), pair.host(1).region(64, ALL));
    if qp_type == QpType::Rc {
        pair.post(1, &Wr::read(there.address, there.key).all_of(here));
        pair.post(1, &Wr::fetch_add(there.address, there.key, 1).from(here, 0, 8));
    }
    if qp_type != QpType::XrcInitiator {
        pair.post(1, &Wr::send().inline(b"on its way"));
    }
    // All packets are lost, so no request is answered.
    pair.world.run_until_idle_with(&mut |_| Fate::Drop);
    (pair, region)
}

#[test]
fn packets_of_a_stranger_change_nothing() {
    for qp_type in [QpType::Rc, QpType::Uc, QpType::XrcInitiator] {
        for link in [LinkLayer::Ethernet, LinkLayer::InfiniBand] {
            let (mut pair, region) = busy(qp_type, link);
            let (qpn, before) = (pair.qps[1].qpn, snapshot(&mut pair));
            let dropped = pair.host(1).core.counters().dropped;
            let mut sent = 0;
            // All PSNs near the expected and the sent ones, and samples of all others.
            let psns = (90..120).chain((0..1 << 24).step_by(1 << 18));
            for (psn, low) in psns.flat_map(|psn| (0..0x20).map(move |low| (psn, low))) {
                let opcode = Opcode(transport(qp_type).base() | low);
                let packet = packet(stranger(), opcode, qpn, psn, region);
                pair.host(1).core.receive(0, packet);
                sent += 1;
            }
            // A congestion notification (annex A17.9.3).
            let notification = packet(stranger(), Opcode::CNP, qpn, 100, region);
            pair.host(1).core.receive(0, notification);
            let answers = std::iter::from_fn(|| pair.host(1).core.take_packet()).count();
            assert_eq!(answers, 0, "{qp_type:?} {link:?}");
            assert!(snapshot(&mut pair) == before, "{qp_type:?} {link:?}");
            assert_eq!(pair.host(1).core.counters().dropped, dropped + sent + 1);
            assert_eq!(pair.host(1).async_events(), []);
        }
    }
}

#[test]
fn the_same_packets_from_the_peer_are_executed() {
    let peer = |pair: &Pair| {
        let gid = pair.world.hosts[0].gid;
        Addressing { source_lid: 1, ..Addressing::roce(gid, Gid::default()) }
    };
    for link in [LinkLayer::Ethernet, LinkLayer::InfiniBand] {
        let (mut pair, region) = busy(QpType::Rc, link);
        let qpn = pair.qps[1].qpn;
        let write = packet(peer(&pair), WRITE_ONLY, qpn, 100, region);
        pair.host(1).core.receive(0, write);
        assert_eq!(pair.host(1).bytes(region.address, 4), b"evil");
        let refusal = packet(peer(&pair), Opcode::RC_ACKNOWLEDGE, qpn, 100, region);
        pair.host(1).core.receive(0, refusal);
        assert_eq!(pair.state(1), QpState::Error);
    }
}

#[test]
fn packets_over_the_alternate_path_are_accepted_until_migration_ends() {
    let other = stranger();
    for (migration, accepted) in [
        (MigrationState::Armed, true),
        (MigrationState::Rearm, true),
        (MigrationState::Migrated, false),
    ] {
        let mut pair = Pair::with_attributes(QpType::Rc, |_, attributes| {
            let path = attributes.path.unwrap();
            let gid = other.source;
            attributes.alternate_path = Some(AddressPath { destination_gid: gid, ..path });
            attributes.migration = Some(migration);
        });
        let region = pair.host(1).region(64, ALL);
        let packet = packet(other, WRITE_ONLY, pair.qps[1].qpn, 100, region);
        pair.host(1).core.receive(0, packet);
        let written = pair.host(1).bytes(region.address, 4) == b"evil";
        assert_eq!(written, accepted, "{migration:?}");
    }
}

#[test]
fn another_gid_of_the_peers_port_is_accepted_if_the_wire_hides_gids() {
    let local = |gid: Gid| Gid::link_local([0, 0, gid.0[12], 0xff, 0xfe, 0, 0, gid.0[15]]);
    for hidden in [false, true] {
        let config = CoreConfig {
            gid_on_wire: if hidden { |gid| Gid([gid.0[15]; 16]) } else { |gid| gid },
            ..CoreConfig::default()
        };
        let mut world = World::new(0);
        world.hosts = vec![Host::with(1, config.clone()), Host::with(2, config)];
        let mut cqs = [0, 1].map(|side| world.hosts[side].cq(6));
        let mut qps = [0, 1].map(|side| world.hosts[side].qp(QpType::Rc, &cqs[side]));
        for side in [0, 1] {
            let peer = world.hosts[1 - side].gid;
            let gid = if side == 1 { local(peer) } else { peer };
            let attributes = world.hosts[side].attributes(gid, qps[1 - side].qpn);
            world.hosts[side].make_rts(&qps[side], &attributes);
        }
        world.hosts[0].post(&mut qps[0], &Wr::write(0, Mkey(0)).inline(b""));
        world.run_until_idle_with(&mut |_| Fate::Pass);
        let dropped = world.hosts[1].core.counters().dropped;
        assert_eq!(dropped, u64::from(!hidden));
        world.hosts[0].poll(&mut cqs[0]);
    }
}

/// The QP numbers and keys of 64 queue pairs and regions.
fn numbers(seed: Option<u64>) -> (Vec<u32>, Vec<u32>) {
    let memory = std::sync::Arc::new(BufferMemory::new(MEMORY_BASE, 1 << 16));
    let mut core = Core::new(CoreConfig { seed, ..CoreConfig::default() }, memory);
    let pd = core.create_pd().unwrap();
    let key = |core: &mut Core| {
        let memory = PageMap::linear(MEMORY_BASE);
        let region = MkeyParams::region(pd, MEMORY_BASE, 64, ALL, memory);
        let variant = core.mkey_variant();
        core.create_mkey(MkeyParams { variant, ..region }).unwrap().0
    };
    let keys = (0..64).map(|_| key(&mut core)).collect();
    let ring = CqRing { buffer: PageMap::linear(0), log_entries: 4, cqe_size: CqeSize::B64 };
    let cq = CqParams {
        ring,
        doorbell_record: 0,
        ignore_overrun: false,
        moderation: Moderation::default(),
    };
    let cq = core.create_cq(cq).unwrap();
    let qp = QpParams::new(QpType::Rc, pd, cq, cq);
    let qpns = (0..64).map(|_| core.create_qp(qp.clone()).unwrap().0).collect();
    (qpns, keys)
}

#[test]
fn qp_numbers_and_keys_are_random_and_depend_on_the_seed() {
    assert_eq!(numbers(Some(3)), numbers(Some(3)));
    let mut differences = BTreeSet::new();
    for seed in [None, None, Some(1), Some(2)] {
        let (qpns, keys) = numbers(seed);
        assert!(qpns.iter().all(|qpn| (0x40..0xff_ffff).contains(qpn)));
        let steps = |numbers: &[u32], bits: u32| {
            let steps = numbers.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
            steps.map(|step| step << (32 - bits)).collect::<Vec<_>>()
        };
        differences.extend(steps(&qpns, 24));
        differences.extend(steps(&keys, 32));
        let variants: BTreeSet<_> = keys.iter().map(|key| key & 0xff).collect();
        let indices: BTreeSet<_> = keys.iter().map(|key| key >> 8).collect();
        assert!(variants.len() > 32 && indices.len() == 64, "{keys:x?}");
    }
    // Nearly all of the 504 differences between neighbouring numbers are distinct.
    assert!(differences.len() > 500, "{}", differences.len());
}
