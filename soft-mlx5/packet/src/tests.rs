use super::*;

fn gid(last: u8) -> Gid {
    Gid::from_ipv4([127, 1, 2, last].into())
}

fn route() -> Addressing {
    Addressing::roce(gid(3), gid(4))
}

#[test]
fn every_defined_opcode_round_trips() {
    let mut defined = 0;
    for byte in 0..=255u8 {
        let Some((transport, operation, position, headers)) = Opcode(byte).describe() else {
            continue;
        };
        defined += 1;
        let mut packet = Packet::new();
        packet.start(route(), Bth::new(Opcode(byte), 0xffff, 0x123456, Psn::new(7)));
        packet.bytes_mut().resize(headers.size(), 0);
        if operation.has_payload() {
            packet.payload(5).copy_from_slice(b"hello");
        }
        let view = packet.view().unwrap();
        assert_eq!(
            (view.transport, view.operation, view.position),
            (transport, operation, position)
        );
        assert_eq!(view.xrceth.is_some(), headers.contains(Headers::XRCETH));
        assert_eq!(view.deth.is_some(), headers.contains(Headers::DETH));
        assert_eq!(view.dceth.is_some(), transport == Transport::Dc);
        assert_eq!(view.dc_connect.is_some(), headers.contains(Headers::DC_CONNECT));
        assert_eq!(view.invalidate.is_some(), headers.contains(Headers::INVALIDATE));
        assert_eq!(view.payload, if operation.has_payload() { b"hello" } else { &b""[..] });
        assert_eq!(view.bth.pad(), if operation.has_payload() { 3 } else { 0 });
        let (prefix, _) = packet.bytes().split_at(headers.size() - 1);
        assert!(matches!(View::parse(prefix), Err(PacketError::TooShort { .. })));
    }
    // RC and XRC have 25 each (two of them the software device's own), UC 12, UD 2, and DC 27, all
    // the software device's own.
    assert_eq!(defined, 91);
}

#[test]
fn constructed_opcodes_match_the_specification_table() {
    use Position::*;
    let none = Headers::empty();
    assert_eq!(Opcode::send(Transport::Rc, Only, Headers::INVALIDATE), Opcode(0x17));
    assert_eq!(Opcode::send(Transport::Xrc, Last, Headers::IMMEDIATE), Opcode(0xa3));
    assert_eq!(Opcode::send(Transport::Uc, First, none), Opcode(0x20));
    assert_eq!(Opcode::send(Transport::Ud, Only, none), Opcode::UD_SEND_ONLY);
    assert_eq!(Opcode::write(Transport::Rc, Only, true), Opcode(0x0b));
    assert_eq!(Opcode::write(Transport::Uc, Last, false), Opcode(0x28));
    assert_eq!(Opcode::read_response(Transport::Xrc, Middle), Opcode(0xae));
    assert_eq!(Opcode(0x15).describe(), None);
    assert_eq!(Opcode(0x2c).describe(), None, "UC has no READ");
    assert_eq!(Position::of(0, 0), Only);
    assert_eq!(Position::of(2, 3), Last);
}

#[test]
fn sequence_numbers_compare_on_the_circle() {
    let end = Psn::new(0xff_ffff);
    assert_eq!(end.next(), Psn::new(0));
    assert_eq!(Psn::new(0).prev(), end);
    assert!(end.precedes(Psn::new(5)));
    assert!(!Psn::new(5).precedes(end));
    assert_eq!(Psn::new(2).distance(end), 3);
    assert_eq!(end.distance(Psn::new(2)), -3);
    assert_eq!((end + 3) - 3, end);
}

#[test]
fn every_syndrome_byte_round_trips() {
    for byte in 0..=255u8 {
        assert_eq!(Syndrome::decode(byte).encode(), byte);
    }
    assert_eq!(Syndrome::decode(0x62), Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR));
    assert_eq!(Syndrome::decode(0x1e).credits(), Some(32768));
    assert_eq!(Syndrome::decode(0x05).credits(), Some(6));
    assert_eq!(Syndrome::ACK.credits(), None);
    assert_eq!(RnrTimer::new(0).nanoseconds(), 655_360_000);
    assert_eq!(RnrTimer::new(1).nanoseconds(), 10_000);
    assert_eq!(RnrTimer::new(12).nanoseconds(), 640_000);
    assert_eq!(RnrTimer::new(31).nanoseconds(), 491_520_000);
}

#[test]
fn base_header_fields_have_the_offsets_of_the_specification() {
    let mut bth = Bth::new(Opcode(4), 0xffff, 0x01_0203, Psn::new(0x0a_0b0c));
    bth.set_solicited(true);
    bth.set_ack_request(true);
    bth.set_pad(2);
    let expected = [4, 0xe0, 0xff, 0xff, 0, 1, 2, 3, 0x80, 0x0a, 0x0b, 0x0c];
    assert_eq!(bth.as_bytes(), expected);
    bth.set_psn(Psn::new(1));
    assert!(bth.ack_request() && bth.solicited() && bth.migrated());
    assert_eq!(bth.psn(), Psn::new(1));
}

fn sample(addressing: Addressing) -> Packet {
    let mut packet = Packet::new();
    let bth = Bth::new(Opcode::write(Transport::Rc, Position::Only, true), 0xffff, 9, Psn::new(1));
    packet.start(addressing, bth).push(Reth::new(0x1000, 0x42, 6)).push(ImmDt([1, 2, 3, 4]));
    packet.payload(6).copy_from_slice(b"frames");
    packet
}

#[test]
fn frames_round_trip_over_both_ip_versions() {
    let v6 = Addressing::roce(Gid::link_local([1; 8]), Gid::link_local([2; 8]));
    for mut addressing in [route(), v6] {
        addressing.traffic_class = 0x12;
        let packet = sample(addressing);
        let mut frame = Vec::new();
        write_frame(&packet, &mut frame);
        assert_eq!(rocev2::read_ethernet(&frame).unwrap(), packet);
        frame.extend_from_slice(&[0; 6]);
        assert_eq!(rocev2::read_ethernet(&frame).unwrap(), packet, "Ethernet padding");
    }
}

fn write_frame(packet: &Packet, frame: &mut Vec<u8>) {
    rocev2::write_ethernet(packet, [[2; 6], [4; 6]], rocev2::Framing::default(), frame);
}

#[test]
fn the_crc_covers_every_byte_but_the_masked_ones() {
    let mut frame = Vec::new();
    write_frame(&sample(route()), &mut frame);
    // Masked: Ethernet addresses, type of service, TTL, IP and UDP checksums, BTH congestion byte.
    let masked = [(0, 12), (15, 16), (22, 23), (24, 26), (40, 42), (46, 47)];
    for index in 0..frame.len() {
        let mut damaged = frame.clone();
        damaged[index] ^= 0x01;
        let expected = masked.iter().any(|&(start, end)| (start..end).contains(&index));
        assert_eq!(rocev2::read_ethernet(&damaged).is_ok(), expected, "byte {index}");
    }
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    digits.chunks_exact(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

/// A congestion notification packet as a ConnectX-4 Lx sent it, and a UC SEND with the CRC that
/// another implementation computes (both from scapy, `test/contrib/roce.uts`).
#[test]
fn the_crc_equals_that_of_other_implementations() {
    let cnp = hex(
        "e41d2dab2bc2 7cfe90643b32 0800 45c2003c718c4000401191610a0011010a001201 0000 12b7 0028
         0000 8100ffff 40000118 00000000 00000000000000000000000000000000 82fd002a",
    );
    assert_eq!(rocev2::read_ethernet(&cnp).unwrap().bth().unwrap().opcode(), Opcode::CNP);
    let uc_send = hex(
        "248a07a8fa22 248a07a8fa22 0800 4501004004784000 4011b4d5c0a80007c0a80007 c00012b7 002c
         aca2 2460ffff000000d3 00cf1710 4630818be28935d90e9a95505401be885e500000 78f353f3",
    );
    let packet = rocev2::read_ethernet(&uc_send).unwrap();
    let view = packet.view().unwrap();
    assert_eq!((view.bth.destination(), view.bth.psn()), (211, Psn::new(13_571_856)));
    assert_eq!(view.payload.len(), 18);
}

#[test]
fn any_bytes_give_an_error_or_a_view() {
    let mut state = 0x1234_5678_9abc_def0u64;
    let mut frame = Vec::new();
    write_frame(&sample(route()), &mut frame);
    for round in 0..20_000usize {
        let mut bytes = frame[..round % (frame.len() + 1)].to_vec();
        for byte in &mut bytes {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *byte ^= (state >> 56) as u8 & (state >> 48) as u8 & (state >> 40) as u8;
        }
        let _ = rocev2::read_ethernet(&bytes);
        let _ = rocev2::read_ip(&bytes);
        let _ = View::parse(&bytes);
        let _ = View::parse(bytes.get(42..).unwrap_or_default());
    }
}
