//! Reliable connections without loss or errors.

use uverbs_mlx5_format::{CqeOpcode, Opcode};
use zerocopy::IntoBytes;

use super::harness::*;
use crate::core::*;

#[test]
fn inline_segments_and_pointers_are_gathered_in_the_order_of_the_wqe() {
    use uverbs_mlx5_format::{DataSegment, InlineHeader};

    let inline = |data: &[u8]| {
        let mut bytes = InlineHeader::new(data.len() as u32).as_bytes().to_vec();
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        bytes
    };
    let mut pair = Pair::new(QpType::Rc);
    let from = pair.host(0).region(4096, ALL);
    let to = pair.host(1).region(8192, ALL);
    let text = pair.host(0).fill(from, 5);
    let pointer = |offset: u64, len: u32| {
        DataSegment::new(from.address + offset, len, from.key.0).as_bytes().to_vec()
    };
    /// Segments, and the bytes to which they refer.
    type Order<'a> = (Vec<Vec<u8>>, Vec<&'a [u8]>);
    // The first one is longer than the MTU, so that a packet begins inside a segment.
    let orders: [Order<'_>; 3] = [
        (vec![inline(b"header"), pointer(7, 3000)], vec![b"header", &text[7..3007]]),
        (
            vec![pointer(1, 2), inline(b"middle"), pointer(0, 9)],
            vec![&text[1..3], b"middle", &text[..9]],
        ),
        (
            vec![inline(b"a"), inline(b"bc"), pointer(4, 1), inline(b"d")],
            vec![b"a", b"bc", &text[4..5], b"d"],
        ),
    ];
    for (segments, parts) in orders {
        pair.post_receive(1, to);
        pair.post(0, &Wr { raw: segments.concat(), ..Wr::send() });
        pair.world.run_until_idle();
        let whole = parts.concat();
        assert_eq!(pair.one(0).syndrome, None);
        assert_eq!(u64::from(pair.one(1).bytes), whole.len() as u64);
        assert_eq!(pair.host(1).bytes(to.address, whole.len() as u64), whole);
    }
}

#[test]
fn a_send_arrives_with_its_data() {
    let mut pair = Pair::new(QpType::Rc);
    let from = pair.host(0).region(5000, Access::empty());
    let data = pair.host(0).fill(from, 3);
    let to = pair.host(1).region(8192, Access::LOCAL_WRITE);
    pair.post_receive(1, to);
    pair.post(0, &Wr::send().all_of(from));
    pair.world.run_until_idle();
    let sent = pair.one(0);
    assert_eq!((sent.opcode, sent.wqe_opcode), (CqeOpcode::REQUESTER, Opcode::SEND));
    assert_eq!((sent.user_index, sent.index), (0x1234, 0));
    let got = pair.one(1);
    assert_eq!((got.opcode, got.bytes, got.index), (CqeOpcode::RESPONDER_SEND, 5000, 0));
    assert_eq!(got.qpn, pair.qps[1].qpn.0);
    assert!(pair.host(1).bytes(to.address, 5000) == data);
}

#[test]
fn send_write_read_and_atomic_between_two_qps_of_one_device() {
    let mut world = World::new(1);
    let host = &mut world.hosts[0];
    let mut cq = host.cq(8);
    let mut a = host.qp(QpType::Rc, &cq);
    let mut b = host.qp(QpType::Rc, &cq);
    let gid = host.gid;
    let (to_a, to_b) = (host.attributes(gid, a.qpn), host.attributes(gid, b.qpn));
    host.make_rts(&a, &to_b);
    host.make_rts(&b, &to_a);
    let (local, remote) = (host.region(4096, ALL), host.region(4096, ALL));
    let data = host.fill(local, 9);
    host.post_receive(&mut b, &[(remote.address, 100, remote.key)]);
    host.post_receive(&mut b, &[(remote.address + 100, 100, remote.key)]);
    host.post(&mut a, &Wr::send().immediate(Opcode::SEND_IMMEDIATE, 0xabcd).from(local, 0, 100));
    let write = Wr::write(remote.address + 1024, remote.key).from(local, 0, 3000);
    host.post(&mut a, &write.clone().immediate(Opcode::RDMA_WRITE_IMMEDIATE, 7));
    host.post(&mut a, &Wr::read(remote.address + 1024, remote.key).from(local, 1000, 2000));
    host.post(
        &mut a,
        &Wr::fetch_add(remote.address + 1024, remote.key, 5).from(local, 0, 8).fenced(),
    );
    world.run_until_idle();
    let host = &mut world.hosts[0];
    let done = host.poll_all(&mut cq);
    let sends: Vec<Opcode> =
        done.iter().filter(|d| d.qpn == a.qpn.0).map(|d| d.wqe_opcode).collect();
    let expected = [
        Opcode::SEND_IMMEDIATE,
        Opcode::RDMA_WRITE_IMMEDIATE,
        Opcode::RDMA_READ,
        Opcode::ATOMIC_FETCH_ADD,
    ];
    assert_eq!(sends, expected);
    let receives: Vec<_> = done
        .iter()
        .filter(|d| d.qpn == b.qpn.0)
        .map(|d| (d.opcode, d.bytes, d.immediate))
        .collect();
    let expected = [
        (CqeOpcode::RESPONDER_SEND_IMMEDIATE, 100, 0xabcd),
        (CqeOpcode::RESPONDER_WRITE_IMMEDIATE, 3000, 7),
    ];
    assert_eq!(receives, expected);
    assert_eq!(host.bytes(remote.address, 100), data[..100]);
    assert!(host.bytes(local.address + 1000, 2000) == data[..2000], "read back");
    let before = u64::from_ne_bytes(data[..8].try_into().unwrap());
    assert_eq!(host.bytes(local.address, 8), before.to_ne_bytes());
    assert_eq!(host.bytes(remote.address + 1024, 8), (before + 5).to_ne_bytes());
    assert!(world.crossed == 0, "loopback packets stay inside the device");
}

#[test]
fn masked_atomics_of_4_and_8_bytes() {
    let mut pair = Pair::new(QpType::Rc);
    let (local, remote) = (pair.host(0).region(8, ALL), pair.host(1).region(8, ALL));
    let start = 0x1111_2222_3333_4444u64;
    pair.host(1).memory_write(remote.address, &start.to_ne_bytes());
    let operands = |values: &[&[u8]]| -> Vec<u8> {
        let mut raw = uverbs_mlx5_format::RemoteAddressSegment::new(remote.address, remote.key.0)
            .as_bytes()
            .to_vec();
        values.iter().for_each(|value| raw.extend_from_slice(value));
        raw
    };
    let wr =
        |opcode, modifier, raw, len| Wr { modifier, raw, ..Wr::new(opcode) }.from(local, 0, len);
    // Swap the low half where the top byte is 0x11.
    let raw = operands(&[
        &0xaaaa_bbbbu64.to_be_bytes(),
        &0x11u64.rotate_right(8).to_be_bytes(),
        &0xffff_ffffu64.to_be_bytes(),
        &0xffu64.rotate_right(8).to_be_bytes(),
    ]);
    pair.post(0, &wr(Opcode::ATOMIC_MASKED_COMPARE_SWAP, 9, raw, 8));
    pair.world.run_until_idle();
    assert_eq!(pair.one(0).syndrome, None);
    assert_eq!(pair.host(0).bytes(local.address, 8), start.to_ne_bytes());
    let swapped = 0x1111_2222_aaaa_bbbbu64;
    assert_eq!(pair.host(1).bytes(remote.address, 8), swapped.to_ne_bytes());
    // Add to 4 bytes as two fields of 16 bits.
    let before = u32::from_ne_bytes(swapped.to_ne_bytes()[..4].try_into().unwrap());
    let add = 0x0001_5555u32;
    let raw = operands(&[&add.to_be_bytes(), &0x0000_8000u32.to_be_bytes(), &[0; 8]]);
    pair.post(0, &wr(Opcode::ATOMIC_MASKED_FETCH_ADD, 8, raw, 4));
    pair.world.run_until_idle();
    assert_eq!(pair.one(0).syndrome, None);
    assert_eq!(pair.host(0).bytes(local.address, 4), before.to_ne_bytes());
    let fields = |value: u32| ((value >> 16) as u16, value as u16);
    let ((a, b), (c, d)) = (fields(before), fields(add));
    let sum = u32::from(a.wrapping_add(c)) << 16 | u32::from(b.wrapping_add(d));
    assert_eq!(pair.host(1).bytes(remote.address, 4), sum.to_ne_bytes());
}

#[test]
fn compare_and_swap_swaps_only_if_the_value_matches() {
    let mut pair = Pair::new(QpType::Rc);
    let (local, remote) = (pair.host(0).region(8, ALL), pair.host(1).region(8, ALL));
    pair.host(1).memory_write(remote.address, &5u64.to_ne_bytes());
    for (compare, swap, before, after) in [(4, 9, 5u64, 5u64), (5, 9, 5, 9), (5, 6, 9, 9)] {
        let wr = Wr::compare_swap(remote.address, remote.key, compare, swap);
        pair.post(0, &wr.all_of(local));
        pair.world.run_until_idle();
        assert_eq!(pair.one(0).bytes, 8);
        assert_eq!(pair.host(0).bytes(local.address, 8), before.to_ne_bytes());
        assert_eq!(pair.host(1).bytes(remote.address, 8), after.to_ne_bytes());
    }
}
