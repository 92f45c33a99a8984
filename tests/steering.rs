//! Steering rules: the frames that they match, the receivers, and the lifetimes of both.

mod common;

#[path = "common/frames.rs"]
mod frames;

use std::net::{Ipv4Addr, Ipv6Addr};

use frames::{Wire, setup, tcp_header, udp_frame};
use uverbs::counters::CounterPoint;
use uverbs::flow::{Ethernet, FlowKind, Ipv4, Ipv6, Masked, Ports};
use uverbs::qp::EthernetOffload;
use uverbs::qp_type::RawPacket;
use uverbs::{Error, ErrorKind};

const ONE: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 9];
const PLAIN: EthernetOffload =
    EthernetOffload { checksum: uverbs::qp::EthChecksum::NONE, vlan: None, metadata: 0 };

fn to(address: [u8; 6]) -> Ethernet {
    Ethernet { destination: address.into(), ..Ethernet::default() }
}

fn port(number: u16) -> Ports {
    Ports { destination: number.into(), ..Ports::default() }
}

/// An Ethernet, IPv6 and UDP header without payload.
fn ipv6_frame(to: [u8; 6], destination: Ipv6Addr) -> Vec<u8> {
    let mut frame = [&to[..], &[2, 0, 0, 0, 0, 2], &[0x86, 0xdd]].concat();
    frame.extend_from_slice(&[0x60, 0, 0, 0, 0, 8, 17, 64]);
    frame.extend_from_slice(&Ipv6Addr::LOCALHOST.octets());
    frame.extend_from_slice(&destination.octets());
    frame.extend_from_slice(&[0, 1, 0, 2, 0, 8, 0, 0]);
    frame
}

#[test]
fn a_rule_delivers_frames_until_it_is_destroyed() {
    let Some(mut wire) = Wire::new(|builder| builder) else { return };
    let mac = wire.mac;
    let rule = wire.to.create_flow().ethernet(to(mac)).udp(port(1)).tag(1).build().unwrap();
    let _other = wire.to.create_flow().ethernet(to(mac)).udp(port(2)).tag(2).build().unwrap();
    wire.receive();
    wire.receive();
    wire.send(PLAIN, &udp_frame(mac, 1, &[1; 40]));
    assert_eq!(wire.arrived().0.flow_tag(), 1);
    assert!(rule.is_live());
    rule.destroy().unwrap();
    // No rule matches the first of these frames any more.
    wire.send(PLAIN, &udp_frame(mac, 1, &[2; 40]));
    wire.send(PLAIN, &udp_frame(mac, 2, &[3; 40]));
    let (done, bytes) = wire.arrived();
    assert_eq!((done.flow_tag(), bytes), (2, udp_frame(mac, 2, &[3; 40])));
    assert!(wire.setup.cq.poll().is_err());
}

#[test]
fn rules_match_fields_of_each_header() {
    let Some(mut wire) = Wire::new(|builder| builder) else { return };
    let mac = wire.mac;
    let (four, six) = (Ipv4Addr::new(10, 0, 0, 2), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 7));
    let rule = |wire: &mut Wire, which: u32| {
        let flow = wire.to.create_flow().ethernet(to(mac)).tag(10 + which).priority(1);
        let flow = match which {
            0 => flow.udp(port(7)),
            1 => flow.ipv4(Ipv4 { destination: four.into(), ..Ipv4::default() }).tcp(port(80)),
            2 => flow.ipv6(Ipv6 { destination: six.into(), ..Ipv6::default() }),
            _ => {
                flow.udp(Ports { destination: Masked::under(0x4000, 0xff00), source: 1234.into() })
            }
        };
        flow.build()
    };
    let _rules: Vec<_> = (0..3).map(|which| rule(&mut wire, which).unwrap()).collect();
    // Not every device can match a part of a field.
    let partly = rule(&mut wire, 3);
    let mut tcp = tcp_header(mac, 1);
    tcp.extend_from_slice(&[0; 20]);
    let frames = [udp_frame(mac, 7, &[0; 40]), tcp, ipv6_frame(mac, six)];
    for (index, frame) in frames.iter().enumerate() {
        wire.receive();
        // A frame that differs in one field matches no rule.
        wire.send(PLAIN, &udp_frame(mac, 8, &[0; 40]));
        wire.send(PLAIN, &ipv6_frame(mac, Ipv6Addr::LOCALHOST));
        wire.send(PLAIN, frame);
        let (done, bytes) = wire.arrived();
        assert_eq!((done.flow_tag(), &bytes), (10 + index as u32, frame));
    }
    if partly.is_ok() {
        wire.receive();
        wire.send(PLAIN, &udp_frame(mac, 0x40aa, &[0; 40]));
        assert_eq!(wire.arrived().0.flow_tag(), 13);
    }
}

#[test]
fn the_lowest_priority_number_wins_and_rules_can_drop_or_copy() {
    let Some(mut wire) = Wire::new(|builder| builder) else { return };
    let mac = wire.mac;
    let mut second = wire.another();
    let _all = wire.to.create_flow().ethernet(to(mac)).tag(1).priority(5).build().unwrap();
    let special = second.create_flow().ethernet(to(mac)).udp(port(9)).tag(2).priority(2);
    let special = special.build().unwrap();
    let mut nowhere = wire.another();
    let dropped = nowhere.create_flow().ethernet(to(mac)).udp(port(10)).drop_frames().priority(2);
    let _dropped = dropped.build().unwrap();
    wire.receive();
    wire.receive();
    wire.receive_by(&mut second);
    wire.send(PLAIN, &udp_frame(mac, 9, &[0; 40]));
    assert_eq!(wire.arrived().0.flow_tag(), 2, "the other one has the smaller number");
    wire.send(PLAIN, &udp_frame(mac, 10, &[0; 40]));
    wire.send(PLAIN, &udp_frame(mac, 11, &[0; 40]));
    assert_eq!(wire.arrived().1, udp_frame(mac, 11, &[0; 40]), "the first is dropped");
    special.destroy().unwrap();
    let copy = second.create_flow().ethernet(to(mac)).udp(port(9)).tag(3).priority(2);
    // Not every device can deliver a copy and match further rules.
    let Ok(_copy) = copy.pass_on().build() else { return };
    wire.receive_by(&mut second);
    wire.send(PLAIN, &udp_frame(mac, 9, &[0; 40]));
    let mut tags = [wire.arrived(), wire.arrived()].map(|(done, _)| done.flow_tag());
    tags.sort_unstable();
    assert_eq!(tags, [1, 3]);
}

#[test]
fn default_rules_match_frames_that_no_other_rule_matches() {
    // Elsewhere a port receives what it sends to its own address only.
    if !common::is_soft() {
        return;
    }
    let Some(mut wire) = Wire::new(|builder| builder) else { return };
    let mut second = wire.another();
    let _rule = second.create_flow().ethernet(to(ONE)).build().unwrap();
    let multicast = wire.to.create_flow().kind(FlowKind::MulticastDefault).build().unwrap();
    wire.receive();
    wire.receive();
    wire.receive_by(&mut second);
    let group = [1, 0, 0x5e, 1, 2, 3];
    wire.send(PLAIN, &udp_frame(OTHER, 1, &[0; 40]));
    wire.send(PLAIN, &udp_frame(group, 2, &[0; 40]));
    assert_eq!(wire.arrived().1, udp_frame(group, 2, &[0; 40]));
    multicast.destroy().unwrap();
    let _all = wire.to.create_flow().kind(FlowKind::AllDefault).build().unwrap();
    wire.send(PLAIN, &udp_frame(OTHER, 3, &[0; 40]));
    assert_eq!(wire.arrived().1, udp_frame(OTHER, 3, &[0; 40]));
    wire.send(PLAIN, &udp_frame(ONE, 4, &[0; 40]));
    assert_eq!(wire.arrived().1, udp_frame(ONE, 4, &[0; 40]));
}

#[test]
fn rules_with_the_same_match_have_the_same_tag_and_each_gets_the_frames() {
    let Some(mut wire) = Wire::new(|builder| builder) else { return };
    let mac = wire.mac;
    let mut second = wire.another();
    let first = wire.to.create_flow().ethernet(to(mac)).udp(port(5)).tag(1).build().unwrap();
    for other in [2, 0] {
        let flow = second.create_flow().ethernet(to(mac)).udp(port(5)).tag(other);
        let error = flow.build().unwrap_err();
        assert_eq!(error.errno(), libc::EEXIST, "{error}");
        assert!(error.cause().contains("same match"), "{error}");
    }
    let dropping = second.create_flow().ethernet(to(mac)).udp(port(5)).drop_frames().build();
    assert_eq!(dropping.unwrap_err().errno(), libc::EEXIST);
    // The priority belongs to the match.
    let later = second.create_flow().ethernet(to(mac)).udp(port(5)).tag(2).priority(1).build();
    let _later = later.unwrap();
    let untagged = second.create_flow().ethernet(to(mac)).udp(port(5)).build().unwrap();
    // A second rule to the same queue pair delivers no second copy.
    let _again = second.create_flow().ethernet(to(mac)).udp(port(5)).tag(1).build().unwrap();
    wire.receive();
    wire.receive_by(&mut second);
    wire.receive_by(&mut second);
    wire.send(PLAIN, &udp_frame(mac, 5, &[0; 40]));
    let tags = [wire.arrived(), wire.arrived()].map(|(done, _)| done.flow_tag());
    assert_eq!(tags, [1, 1]);
    first.destroy().unwrap();
    untagged.destroy().unwrap();
    wire.send(PLAIN, &udp_frame(mac, 5, &[0; 40]));
    assert_eq!(wire.arrived().0.flow_tag(), 1);
    assert!(wire.setup.cq.poll().is_err());
}

#[test]
fn a_sniffer_gets_copies_and_other_rules_still_match() {
    // Hardware also delivers the port's other frames.
    if !common::is_soft() {
        return;
    }
    let Some(mut wire) = Wire::new(|builder| builder) else { return };
    let (mac, mut second) = (wire.mac, wire.another());
    let _rule = wire.to.create_flow().ethernet(to(mac)).tag(1).priority(0).build().unwrap();
    let sniffer = second.create_flow().kind(FlowKind::Sniffer).build().unwrap();
    (0..3).for_each(|_| wire.receive());
    wire.receive_by(&mut second);
    wire.receive_by(&mut second);
    wire.send(PLAIN, &udp_frame(mac, 5, &[0; 40]));
    let mut tags = [wire.arrived(), wire.arrived()].map(|(done, _)| done.flow_tag());
    tags.sort_unstable();
    assert_eq!(tags, [0, 1]);
    // No other rule matches this frame.
    wire.send(PLAIN, &udp_frame(OTHER, 6, &[0; 40]));
    assert_eq!(wire.arrived().1, udp_frame(OTHER, 6, &[0; 40]));
    sniffer.destroy().unwrap();
    wire.send(PLAIN, &udp_frame(mac, 7, &[0; 40]));
    assert_eq!(wire.arrived().0.flow_tag(), 1);
    assert!(wire.setup.cq.poll().is_err());
}

#[test]
fn multicast_rules_come_last_whatever_their_priority() {
    // Elsewhere a port receives what it sends to its own address only.
    if !common::is_soft() {
        return;
    }
    let Some(mut wire) = Wire::new(|builder| builder) else { return };
    let group = [1, 0, 0x5e, 1, 2, 3];
    let address = Ipv4Addr::new(10, 0, 0, 2);
    let mut second = wire.another();
    // Priority 0 would be first, but the Ethernet group in the first header makes a multicast rule.
    let first = wire.to.create_flow().ethernet(to(group)).udp(port(5)).tag(1).build().unwrap();
    let ordinary = second.create_flow().udp(port(5)).tag(2).priority(15).build().unwrap();
    let mut tag_of = |wire: &mut Wire| {
        wire.receive();
        wire.receive_by(&mut second);
        wire.send(PLAIN, &udp_frame(group, 5, &[0; 40]));
        wire.arrived().0.flow_tag()
    };
    assert_eq!(tag_of(&mut wire), 2);
    ordinary.destroy().unwrap();
    assert_eq!(tag_of(&mut wire), 1);
    // With the same headers in another order it is an ordinary rule.
    let ipv4 = Ipv4 { destination: address.into(), ..Ipv4::default() };
    let flow = wire.to.create_flow().ipv4(ipv4).ethernet(to(group)).udp(port(5)).tag(3);
    let _ordinary = flow.priority(15).build().unwrap();
    assert_eq!(tag_of(&mut wire), 3);
    drop(first);
}

#[test]
fn an_ipv4_group_in_the_first_header_makes_a_multicast_rule() {
    if !common::is_soft() {
        return;
    }
    let Some(mut wire) = Wire::new(|builder| builder) else { return };
    let group = Ipv4Addr::new(239, 1, 2, 3);
    let ipv4 = Ipv4 { destination: group.into(), ..Ipv4::default() };
    // Both have priority 0 and differ only in the order of their headers. They are in different
    // tables, so they do not conflict.
    let _multicast = wire.to.create_flow().ipv4(ipv4).udp(port(5)).tag(1).build().unwrap();
    let ordinary = wire.to.create_flow().udp(port(5)).ipv4(ipv4).tag(2).build().unwrap();
    let mut frame = udp_frame(OTHER, 5, &[0; 40]);
    frame[30..34].copy_from_slice(&group.octets());
    wire.receive();
    wire.receive();
    wire.send(PLAIN, &frame);
    assert_eq!(wire.arrived().0.flow_tag(), 2);
    drop(ordinary);
    wire.send(PLAIN, &frame);
    assert_eq!(wire.arrived().0.flow_tag(), 1);
}

#[test]
fn counters_count_the_frames_of_their_rules() {
    let Some(mut wire) = Wire::new(|builder| builder) else { return };
    let (context, mac) = (wire.setup.context.clone(), wire.mac);
    let Ok(counters) = context.create_counters() else { return };
    let counted = wire.to.create_flow().ethernet(to(mac)).udp(port(1)).count(&counters).build();
    assert_eq!(counted.unwrap_err().kind(), ErrorKind::InvalidInput, "nothing is attached");
    counters.attach(CounterPoint::Packets, 0).unwrap();
    counters.attach(CounterPoint::Bytes, 2).unwrap();
    let rule = match wire.to.create_flow().ethernet(to(mac)).udp(port(1)).count(&counters).build() {
        Err(error) if error.kind() == ErrorKind::Unsupported => return,
        rule => rule.unwrap(),
    };
    let late = counters.attach(CounterPoint::Packets, 3).unwrap_err();
    assert_eq!((late.kind(), late.is_from_kernel()), (ErrorKind::Busy, false));
    let mut values = [9; 3];
    counters.read(&mut values).unwrap();
    assert_eq!(values, [0; 3]);
    let short = counters.read(&mut values[..2]).unwrap_err();
    assert_eq!(short.errno(), libc::EINVAL, "{short}");
    // A second rule counts into the same set.
    let flow = wire.to.create_flow().ethernet(to(mac)).udp(port(2)).count(&counters);
    let second = flow.build().unwrap();
    let lengths = [1, 2, 1].map(|number| {
        wire.receive();
        let frame = udp_frame(mac, number, &[0; 40]);
        wire.send(PLAIN, &frame);
        wire.arrived().1.len() as u64
    });
    counters.read(&mut values).unwrap();
    assert_eq!(values, [3, 0, lengths.iter().sum()]);
    let counters = counters.destroy().unwrap_err();
    assert_eq!(counters.error.kind(), ErrorKind::Busy);
    let counters = counters.object;
    rule.destroy().unwrap();
    counters.read(&mut values).unwrap();
    assert_eq!(values[0], 3, "what a rule counted stays");
    second.destroy().unwrap();
    assert_eq!(counters.read(&mut values).unwrap_err().errno(), libc::EINVAL);
    // Without a rule, another counter can be attached.
    counters.attach(CounterPoint::Packets, 1).unwrap();
    counters.destroy().unwrap();
}

#[test]
fn rules_keep_their_queue_pair_and_are_destroyed_with_it() {
    let Some(wire) = Wire::new(|builder| builder) else { return };
    let Wire { from, to: mut receiver, .. } = wire;
    let rules =
        [ONE, OTHER].map(|address| receiver.create_flow().ethernet(to(address)).build().unwrap());
    let held = receiver.destroy().unwrap_err();
    assert_eq!((held.error.kind(), held.error.is_from_kernel()), (ErrorKind::Busy, false));
    assert!(held.error.cause().contains("2 steering rule(s)"), "{}", held.error);
    let receiver = held.object;
    let [first, second] = rules;
    drop(first);
    drop(receiver);
    assert!(!second.is_live());
    second.destroy().unwrap();
    // A leaked rule is destroyed with its queue pair too.
    let mut from = from;
    std::mem::forget(from.create_flow().ethernet(to(ONE)).build().unwrap());
    drop(from);
    wire.setup.cq.destroy().unwrap();
    wire.memory.deregister().unwrap();
    wire.setup.pd.destroy().unwrap();
}

#[test]
fn impossible_rules_are_named_errors() {
    let Some(setup) = setup() else { return };
    let mut qp = setup.builder::<RawPacket>().build().unwrap();
    let own = |error: Error| {
        assert!(!error.is_from_kernel(), "{error}");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    };
    own(qp.create_flow().tag(1 << 24).build().unwrap_err());
    own(qp.create_flow().kind(FlowKind::AllDefault).pass_on().build().unwrap_err());
    let many = (0..11).fold(qp.create_flow(), |flow, _| flow.ethernet(to(ONE)));
    own(many.build().unwrap_err());
    if common::is_soft() {
        let error = qp.create_flow().ethernet(to(ONE)).egress().build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.cause().contains("that leave"), "{error}");
    }
    let error = qp.create_flow().ethernet(to(ONE)).priority(16).build().unwrap_err();
    assert!(error.cause().contains("priorities 0 to 15"), "{error}");
    let error = qp.create_flow().ethernet(to(ONE)).port(9).build().unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL, "{error}");
    let both = qp.create_flow().ethernet(to(ONE)).tcp(port(1)).udp(port(1)).build().unwrap_err();
    assert!(both.cause().contains("two protocols"), "{both}");
    // The value has bits outside the mask.
    let beyond = Ports { destination: Masked::under(0x1234, 0xff00), ..Ports::default() };
    let error = qp.create_flow().ethernet(to(ONE)).udp(beyond).build().unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL, "{error}");
    assert!(error.cause().contains("outside its mask"), "{error}");
    for (value, mask) in [(0x86dd, 0xffff), (0x800, 0xff00)] {
        let kind = Masked::under(value, mask);
        let ethernet = Ethernet { ether_type: kind, ..to(ONE) };
        let error = qp.create_flow().ethernet(ethernet).ipv4(Ipv4::default()).build().unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL, "{error}");
    }
    let other = common::open();
    if let Ok(counters) = other.create_counters() {
        own(qp.create_flow().ethernet(to(ONE)).count(&counters).build().unwrap_err());
    }
    // None of the refused rules left a resource behind.
    qp.destroy().unwrap();
}
