//! Arbitrary bytes in rings and doorbell records for the software device's engine. Checks that
//! nothing panics, that every call ends, that only memory of a key is written, and that every CQE
//! is well-formed.

use arbitrary::{Result, Unstructured};
use uverbs_mlx5::format::*;
use uverbs_soft::core::{QpAttributes, QpState, QpType};
use zerocopy::IntoBytes;

use crate::generate::OPCODES;
use crate::world::{ACCESS_KEY, Key, LOG_BLOCKS, LOG_RECEIVES, LOG_STRIDE, World};

/// The input chooses what the host does, step by step.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let remote = u.ratio(1, 8).unwrap_or(false);
    let Ok(mut world) = World::new(&mut u, remote) else { return };
    for _ in 0..200 {
        if u.is_empty() || turn(&mut u, &mut world, remote).is_err() {
            break;
        }
    }
    world.finish();
}

fn turn(u: &mut Unstructured<'_>, world: &mut World, remote: bool) -> Result<()> {
    let index = u.choose_index(world.qps.len())?;
    match u.int_in_range(0..=15)? {
        0..=5 => post(u, world, index)?,
        6 => {
            let mut bytes = [0; 64];
            u.fill_buffer(&mut bytes)?;
            let slot = u.int_in_range(0..=(1u64 << LOG_BLOCKS) - 1)?;
            world.write(world.qps[index].send_ring + slot * 64, &bytes);
        }
        7..=8 => receive(u, world, index)?,
        9 => {
            let posted = u32::from_be_bytes(world.read(world.qps[index].record + 4)) as u16;
            // Rarely an arbitrary counter, since one far beyond the ring means up to 2^16 blocks of
            // work.
            let more = if u.ratio(1, 64)? { u.arbitrary()? } else { u.int_in_range(0..=40)? };
            world.ring(index, posted.wrapping_add(more));
        }
        10 => world.pass(u.int_in_range(0..=100_000)?),
        11 => world.poll(),
        12 => change(u, world, index, remote)?,
        13 => {
            let cq = &world.cqs[u.choose_index(world.cqs.len())?];
            let (cqn, record) = (cq.cqn, cq.record);
            world.write(record + 4, &u.arbitrary::<u32>()?.to_be_bytes());
            let _ = world.core.arm_cq(world.now, cqn);
        }
        14 => corrupt(u, world)?,
        _ => world.pass(10_000),
    }
    Ok(())
}

/// Writes an almost valid WQE at the next position in the ring, and rings the doorbell.
pub(crate) fn post(u: &mut Unstructured<'_>, world: &mut World, index: usize) -> Result<()> {
    let qp = &world.qps[index];
    let head = u32::from_be_bytes(world.read(qp.record + 4)) as u16;
    let mut bytes = wqe(u, world, index, head)?;
    if u.ratio(1, 8)? {
        let at = u.choose_index(bytes.len())?;
        bytes[at] = u.arbitrary()?;
    }
    bytes.resize(bytes.len().next_multiple_of(64), 0);
    let mut next = head;
    for block in bytes.chunks(64) {
        let slot = u64::from(next) & ((1 << LOG_BLOCKS) - 1);
        world.write(qp.send_ring + slot * 64, block);
        next = next.wrapping_add(1);
    }
    match u.ratio(3, 4)? {
        true => world.ring(index, next),
        false => world.write(qp.record + 4, &u32::from(next).to_be_bytes()),
    }
    Ok(())
}

fn opcode(u: &mut Unstructured<'_>, qp_type: QpType) -> Result<Opcode> {
    if u.ratio(1, 16)? {
        return Ok(Opcode(u.arbitrary()?));
    }
    match qp_type {
        QpType::RawPacket => u.choose(&[Opcode::SEND, Opcode::TSO]).copied(),
        _ => u.choose(&OPCODES).copied(),
    }
}

fn wqe(u: &mut Unstructured<'_>, world: &World, index: usize, head: u16) -> Result<Vec<u8>> {
    let qp = &world.qps[index];
    let opcode = opcode(u, qp.qp_type)?;
    let mut body = Vec::new();
    match qp.qp_type {
        QpType::Ud => {
            let av = AddressVector { remote_gid: world.gid.0, hop_limit: 1, ..Default::default() };
            let av = AddressVector { remote_lid_udp_port: U16::new(1), ..av };
            let qkey = if u.ratio(1, 8)? { u.arbitrary()? } else { 0x1111 };
            body.extend(av.for_datagram(qp.peer, qkey).as_bytes());
        }
        QpType::XrcInitiator => {
            let srqn = world.srqs[u.choose_index(world.srqs.len())?].srqn;
            body.extend(XrcSegment::new(srqn.0).as_bytes());
        }
        QpType::RawPacket => ethernet(u, &mut body)?,
        QpType::DcInitiator => {
            let av = AddressVector { remote_gid: world.gid.0, hop_limit: 1, ..Default::default() };
            let key = if u.ratio(1, 8)? { u.arbitrary()? } else { ACCESS_KEY };
            body.extend(av.for_dc(qp.peer, key).as_bytes());
        }
        QpType::Rc | QpType::Uc | QpType::XrcTarget | QpType::DcTarget | QpType::RegUmr => {}
    }
    let key = key(u, world)?;
    if opcode.has_remote_address() {
        body.extend(RemoteAddressSegment::new(inside(u, key)?, key.mkey.0).as_bytes());
    }
    let modifier = operands(u, opcode, &mut body)?;
    if opcode == Opcode::UMR {
        umr(u, world, &mut body)?;
    } else {
        data(u, world, &mut body)?;
    }
    let ds = (1 + body.len() / 16).min(63) as u8;
    let flags = ControlFlags(u.arbitrary()?);
    let immediate = if u.arbitrary()? { key.mkey.0 } else { u.arbitrary()? };
    let control = ControlSegment::new(opcode, head, qp.qpn.0, ds, flags, U32::new(immediate));
    let mut bytes = control.as_bytes().to_vec();
    bytes[0] = modifier;
    bytes.extend(body);
    Ok(bytes)
}

/// The Ethernet segment, which contains the headers or is followed by inline data that begins with
/// them.
fn ethernet(u: &mut Unstructured<'_>, body: &mut Vec<u8>) -> Result<()> {
    let headers = crate::frame::headers(u)?;
    let mut segment = EthSegment {
        checksum_flags: EthChecksum(u.arbitrary()?),
        mss: U16::new(u.int_in_range(0..=1500)?),
        inline_header_size: U16::new(headers.len() as u16),
        inline_header_start: [headers[0], headers[1]],
        ..EthSegment::default()
    };
    if u.ratio(3, 4)? {
        body.extend(segment.as_bytes());
        body.extend(&headers[ETH_INLINE_START..]);
    } else {
        segment.inline_header_size = U16::new(if u.arbitrary()? { 0 } else { u.arbitrary()? });
        body.extend(segment.as_bytes());
        body.extend(InlineHeader::new(headers.len() as u32).as_bytes());
        body.extend(headers);
    }
    body.resize(body.len().next_multiple_of(OCTOWORD), 0);
    Ok(())
}

fn key(u: &mut Unstructured<'_>, world: &World) -> Result<Key> {
    let mut key = world.keys[u.choose_index(world.keys.len())?];
    if u.ratio(1, 16)? {
        key.mkey.0 = u.arbitrary()?;
    }
    Ok(key)
}

/// An address inside a key's range, mostly.
fn inside(u: &mut Unstructured<'_>, key: Key) -> Result<u64> {
    if u.ratio(1, 16)? {
        return u.arbitrary();
    }
    let offset = u.int_in_range(0..=key.length)?;
    Ok(key.address + if u.arbitrary()? { offset & !7 } else { 0 })
}

fn operands(u: &mut Unstructured<'_>, opcode: Opcode, body: &mut Vec<u8>) -> Result<u8> {
    let units = match opcode {
        Opcode::ATOMIC_MASKED_COMPARE_SWAP => 2,
        _ if opcode.is_atomic() => 1,
        _ => return Ok(0),
    };
    let operands: [u64; 4] = u.arbitrary()?;
    body.extend(&operands.as_bytes()[..16 * units]);
    Ok(if u.arbitrary()? { u.int_in_range(8..=12)? } else { 0 })
}

fn data(u: &mut Unstructured<'_>, world: &World, body: &mut Vec<u8>) -> Result<()> {
    if u.ratio(1, 4)? {
        let length = u.int_in_range(0..=200usize)?;
        body.extend(InlineHeader::new(length as u32).as_bytes());
        body.resize(body.len() + length, 7);
        body.resize(body.len().next_multiple_of(16), 0);
        return Ok(());
    }
    for _ in 0..u.int_in_range(0..=3)? {
        body.extend(entry(u, world)?.as_bytes());
    }
    Ok(())
}

fn entry(u: &mut Unstructured<'_>, world: &World) -> Result<DataSegment> {
    let key = key(u, world)?;
    let length = match u.int_in_range(0..=3)? {
        0 => 8,
        1 => u.int_in_range(0..=512)?,
        2 => u.int_in_range(0..=8192)?,
        _ => u.arbitrary()?,
    };
    let length = U32::new(length);
    let address = U64::new(inside(u, key)?);
    Ok(DataSegment { byte_count: length, lkey: U32::new(key.mkey.0), address })
}

fn umr(u: &mut Unstructured<'_>, world: &World, body: &mut Vec<u8>) -> Result<()> {
    let control = UmrControlSegment {
        flags: u.arbitrary()?,
        klm_octowords: U16::new(if u.arbitrary()? { 4 } else { u.arbitrary()? }),
        translation_offset: U16::new(if u.arbitrary()? { 0 } else { u.arbitrary()? }),
        mkey_mask: U64::new(if u.arbitrary()? { 0x203c_6041 } else { u.arbitrary()? }),
        ..UmrControlSegment::default()
    };
    let key = key(u, world)?;
    let context = MkeyContextSegment {
        free: u.arbitrary::<u8>()? & MkeyContextSegment::FREE,
        access_flags: u.arbitrary()?,
        qpn_mkey: U32::new(u.arbitrary()?),
        start_address: U64::new(inside(u, key)?),
        length: U64::new(u.int_in_range(0..=8192)?),
        translation_octowords: U32::new(u.int_in_range(0..=8)?),
        log_page_size: u.arbitrary()?,
        ..MkeyContextSegment::default()
    };
    body.extend(control.as_bytes());
    body.extend(context.as_bytes());
    for _ in 0..u.int_in_range(0..=4)? {
        body.extend(entry(u, world)?.as_bytes());
    }
    Ok(())
}

/// Posts a receive to the QP's ring or to an SRQ.
pub(crate) fn receive(u: &mut Unstructured<'_>, world: &mut World, index: usize) -> Result<()> {
    let (ring, record, link) = match u.int_in_range(0..=2)? {
        0 => (world.qps[index].receive_ring, world.qps[index].record, 0),
        srq => (world.srqs[srq - 1].ring, world.srqs[srq - 1].record, 16),
    };
    let posted = u32::from_be_bytes(world.read(record)) as u16;
    let mut list = Vec::new();
    for _ in 0..u.int_in_range(0..=3)? {
        list.extend(entry(u, world)?.as_bytes());
    }
    list.extend(DataSegment::TERMINATOR.as_bytes());
    list.truncate((1 << LOG_STRIDE) - link);
    let slot = u64::from(posted) & ((1 << LOG_RECEIVES) - 1);
    world.write(ring + (slot << LOG_STRIDE) + link as u64, &list);
    world.write(record, &u32::from(posted.wrapping_add(1)).to_be_bytes());
    Ok(())
}

fn change(u: &mut Unstructured<'_>, world: &mut World, index: usize, remote: bool) -> Result<()> {
    if u.arbitrary()? {
        world.revive(index, remote);
        return Ok(());
    }
    let states = [QpState::Error, QpState::SendQueueDrain, QpState::ReadyToSend];
    let qpn = world.qps[index].qpn;
    // Refused if there is no such transition.
    let _ = world.core.modify_qp(qpn, *u.choose(&states)?, &QpAttributes::default());
    Ok(())
}

/// Writes arbitrary bytes to memory that the device reads: a record, a receive ring, an SRQ's
/// links.
fn corrupt(u: &mut Unstructured<'_>, world: &mut World) -> Result<()> {
    let qp = &world.qps[u.choose_index(world.qps.len())?];
    let srq = &world.srqs[u.choose_index(world.srqs.len())?];
    let ring = u.int_in_range(0..=(1u64 << (LOG_RECEIVES + LOG_STRIDE)) - 8)?;
    let place = match u.int_in_range(0..=3)? {
        0 => qp.record,
        1 => qp.receive_ring + ring,
        2 => srq.ring + ring,
        _ => srq.record,
    };
    world.write(place, &u.arbitrary::<[u8; 8]>()?);
    Ok(())
}
