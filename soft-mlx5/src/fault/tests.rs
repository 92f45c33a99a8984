use super::*;
use crate::packet::{Bth, Gid, Psn};

fn packet(psn: u32) -> Packet {
    let gid = |last| Gid::from_ipv4([127, 18, 0, last].into());
    let mut packet = Packet::new();
    let bth = Bth::new(Opcode(4), 0xffff, 1, Psn::new(psn));
    packet.start(Addressing::roce(gid(1), gid(2)), bth);
    packet.payload(8).copy_from_slice(&[7; 8]);
    packet
}

fn run(plan: FaultPlan, count: u32) -> (Vec<Packet>, FaultCounters) {
    let (mut injector, mut out) = (Injector::new(plan), Vec::new());
    let mut pool = PacketPool::default();
    for psn in 0..count {
        injector.inject(u64::from(psn) * 100, packet(psn), &mut out, &mut pool);
        injector.release(u64::from(psn) * 100, &mut out);
    }
    injector.release(u64::MAX, &mut out);
    (out, injector.counters())
}

fn order(packets: &[Packet]) -> Vec<u32> {
    packets.iter().map(|packet| packet.bth().unwrap().psn().get()).collect()
}

fn everything(seed: u64) -> FaultPlan {
    FaultPlan {
        seed,
        drop: 50_000,
        duplicate: 50_000,
        corrupt: 50_000,
        mangle: 50_000,
        reorder: 50_000,
        delay: 50_000,
        delay_range: (50, 1000),
        rules: Vec::new(),
    }
}

#[test]
fn the_same_seed_gives_the_same_faults() {
    let (first, counters) = run(everything(42), 5000);
    assert_eq!((first.clone(), counters), run(everything(42), 5000));
    assert_ne!(first, run(everything(43), 5000).0);
    assert!(counters.dropped > 150 && counters.duplicated > 150 && counters.delayed > 300);
}

#[test]
fn a_rule_affects_the_packet_it_names() {
    let rule = |nth, fault| Rule { opcode: Some(Opcode(4)), nth, fault };
    let other = Rule { opcode: Some(Opcode(5)), nth: 1, fault: PacketFault::Drop };
    let rules = vec![
        other,
        rule(1, PacketFault::Drop),
        rule(2, PacketFault::Reorder),
        rule(4, PacketFault::Duplicate),
        rule(5, PacketFault::Delay(150)),
    ];
    let plan = FaultPlan { delay_range: (250, 250), rules, ..FaultPlan::default() };
    assert_eq!(order(&run(plan, 9).0), [2, 1, 3, 5, 6, 3, 4, 7, 8]);
}

#[test]
fn the_last_packet_does_not_wait_for_ever() {
    let rules = vec![Rule { opcode: None, nth: 1, fault: PacketFault::Reorder }];
    let plan = FaultPlan { delay_range: (0, 500), rules, ..FaultPlan::default() };
    let (mut injector, mut out) = (Injector::new(plan), Vec::new());
    injector.inject(1000, packet(0), &mut out, &mut PacketPool::default());
    assert_eq!((out.len(), injector.next_wake()), (0, Some(1500)));
    injector.release(1500, &mut out);
    assert_eq!((out.len(), injector.next_wake()), (1, None));
}

#[test]
fn all_buffers_return_to_the_pool() {
    let plan = everything(7);
    let (mut injector, mut pool) = (Injector::new(plan), PacketPool::default());
    let (mut out, mut held) = (Vec::new(), 0);
    for psn in 0..10_000 {
        let now = u64::from(psn) * 100;
        let packet = pool.copy(&packet(psn));
        injector.inject(now, packet, &mut out, &mut pool);
        injector.release(now, &mut out);
        out.drain(..).for_each(|packet| pool.give(packet));
        held = held.max(injector.held.len());
    }
    assert!(
        pool.available() <= held + 3,
        "{} in the pool, at most {held} held back",
        pool.available()
    );
}

#[test]
fn corruption_never_reaches_the_transport() {
    let plan = FaultPlan { seed: 1, corrupt: 1_000_000, ..FaultPlan::default() };
    let (out, counters) = run(plan, 2000);
    assert_eq!(counters.corrupted, 2000);
    assert!(out.len() < 400, "{} of 2000 bits are not covered by the CRC", out.len());
    for (arrived, psn) in out.iter().zip(order(&out)) {
        let (mut was, mut is) = (packet(psn).bytes().to_vec(), arrived.bytes().to_vec());
        // The congestion byte is not covered.
        (was[4], is[4]) = (0, 0);
        assert_eq!(was, is);
    }
}

/// A wire that stores the packets that are sent.
#[derive(Debug, Default)]
struct Kept(Vec<Packet>);

impl Wire for Kept {
    fn send(&mut self, _: u64, packets: &mut Vec<Packet>, _: &mut PacketPool) {
        self.0.append(packets);
    }

    fn receive(&mut self, _: u64, _: &mut Vec<Packet>, _: &mut PacketPool) -> usize {
        0
    }
}

#[test]
fn a_control_changes_the_plan_of_a_wire_that_is_in_use() {
    let mut wire = Faulty::new(Kept::default(), FaultPlan::default());
    let (control, mut pool) = (wire.control(), PacketPool::default());
    let rules = vec![Rule { opcode: None, nth: 2, fault: PacketFault::Drop }];
    let second = FaultPlan { rules, ..FaultPlan::default() };
    let plans = [FaultPlan::default(), FaultPlan::cut(), second, FaultPlan::default()];
    for (round, plan) in (0..).zip(plans) {
        control.set_plan(plan);
        wire.send(0, &mut (0..3).map(|i| packet(3 * round + i)).collect(), &mut pool);
    }
    assert_eq!(order(&wire.wire.0), [0, 1, 2, 6, 8, 9, 10, 11]);
    let counters = FaultCounters { seen: 12, dropped: 4, ..FaultCounters::default() };
    assert_eq!((control.counters(), wire.counters()), (counters, counters));
}
