//! Sends arbitrary packets to the software device's engine, like a hostile or broken peer.

use arbitrary::{Result, Unstructured};
use uverbs_soft::core::{QpState, QpType};
use uverbs_soft::packet::{
    Addressing, DcConnectEth, DcEth, Headers, Opcode, Packet, Psn, Transport,
};

use zerocopy::IntoBytes;

use crate::frame;
use crate::ring_execute::receive;
use crate::world::{ACCESS_KEY, World};

/// The input chooses packets, and the host's actions between them.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let Ok(mut world) = World::new(&mut u, true) else { return };
    for _ in 0..200 {
        if u.is_empty() || turn(&mut u, &mut world).is_err() {
            break;
        }
    }
    world.finish();
}

fn turn(u: &mut Unstructured<'_>, world: &mut World) -> Result<()> {
    let index = u.choose_index(world.qps.len())?;
    match u.int_in_range(0..=15)? {
        0..=8 => {
            let is_frame = world.qps[index].qp_type == QpType::RawPacket;
            let packet = if is_frame { carrier(u, world)? } else { packet(u, world, index)? };
            // The parser must not panic either.
            let _ = packet.view();
            world.core.receive(world.now, packet);
        }
        9 => answer(u, world)?,
        10..=12 => receive(u, world, index)?,
        13 => world.pass(u.int_in_range(0..=100_000)?),
        14 => world.poll(),
        _ => {
            let info = world.core.query_qp(world.qps[index].qpn);
            if info.is_ok_and(|info| info.state != QpState::ReadyToSend) {
                world.revive(index, true);
            }
        }
    }
    Ok(())
}

fn addressing(u: &mut Unstructured<'_>, world: &World) -> Result<Addressing> {
    let mut addressing = Addressing::roce(world.stranger, world.gid);
    if u.ratio(1, 8)? {
        addressing.destination.0 = u.arbitrary()?;
        addressing.destination_lid = u.arbitrary()?;
        addressing.global = u.arbitrary()?;
    }
    Ok(addressing)
}

/// A packet that carries an Ethernet frame.
fn carrier(u: &mut Unstructured<'_>, world: &World) -> Result<Packet> {
    let mut bytes = frame::headers(u)?;
    let length = bytes.len() + u.int_in_range(0..=200)?;
    bytes.resize(length, 0x77);
    bytes.truncate(if u.ratio(1, 8)? { u.int_in_range(0..=length)? } else { length });
    let mut packet = Packet::new();
    packet.start_frame(addressing(u, world)?, &bytes);
    Ok(packet)
}

/// A packet, mostly with the headers of its opcode.
fn packet(u: &mut Unstructured<'_>, world: &World, index: usize) -> Result<Packet> {
    let addressing = addressing(u, world)?;
    if u.ratio(1, 8)? {
        return Ok(Packet::from_bytes(addressing, u.bytes(u.len().min(100))?));
    }
    let qp = &world.qps[index];
    let transport = match qp.qp_type {
        QpType::Uc => Transport::Uc,
        QpType::Ud => Transport::Ud,
        QpType::XrcInitiator | QpType::XrcTarget => Transport::Xrc,
        QpType::DcInitiator | QpType::DcTarget => Transport::Dc,
        QpType::Rc | QpType::RegUmr | QpType::RawPacket => Transport::Rc,
    };
    let opcode = transport.base() | u.int_in_range(0..=0x1f)?;
    let psn = psn(u, world, index)?;
    let mut bytes = vec![opcode, if u.arbitrary()? { 0x40 } else { u.arbitrary::<u8>()? & 0xf0 }];
    bytes.extend([0xff, 0xff, 0]);
    bytes.extend(&qp.qpn.0.to_be_bytes()[1..]);
    bytes.push(if u.arbitrary()? { 0x80 } else { 0 });
    bytes.extend(&psn.to_be_bytes()[1..]);
    extension(u, world, opcode, &mut bytes)?;
    let length = match u.int_in_range(0..=3)? {
        0 => 0,
        1 => 256,
        2 => u.int_in_range(0..=70)? * 4,
        _ => u.int_in_range(0..=300)?,
    };
    let at = bytes.len();
    bytes.resize(at + length, 0x77);
    if u.arbitrary()? {
        let pad = bytes.len().wrapping_neg() & 3;
        bytes.resize(bytes.len() + pad, 0);
        bytes[1] = bytes[1] & 0xcf | (pad as u8) << 4;
    }
    Ok(Packet::from_bytes(addressing, &bytes))
}

/// The PSN that is expected, or one near it, or any.
fn psn(u: &mut Unstructured<'_>, world: &World, index: usize) -> Result<u32> {
    if u.ratio(1, 16)? {
        return u.arbitrary();
    }
    let attributes = match world.core.query_qp(world.qps[index].qpn) {
        Ok(info) => info.attributes,
        Err(_) => return Ok(0),
    };
    let expected = if u.ratio(3, 4)? { attributes.receive_psn } else { attributes.send_psn };
    let near = if u.arbitrary()? { 0 } else { u.int_in_range(0..=8u32)? };
    Ok(Psn::new(expected.unwrap_or(0).wrapping_add(near).wrapping_sub(near / 2 * 2)).get())
}

fn extension(
    u: &mut Unstructured<'_>,
    world: &World,
    opcode: u8,
    bytes: &mut Vec<u8>,
) -> Result<()> {
    let headers = Opcode(opcode).describe().map_or(Headers::RETH, |(.., headers)| headers);
    let key = world.keys[u.choose_index(world.keys.len())?];
    let offset = if u.arbitrary()? { 0 } else { u.int_in_range(0..=key.length)? };
    let address = if u.ratio(1, 16)? { u.arbitrary()? } else { key.address + offset };
    let rkey = if u.ratio(1, 16)? { u.arbitrary()? } else { key.mkey.0 };
    for header in headers.iter() {
        match header {
            Headers::DCETH => {
                let key = if u.ratio(1, 16)? { u.arbitrary()? } else { ACCESS_KEY };
                let session = if u.ratio(1, 8)? { u.arbitrary()? } else { world.session };
                let sender = u.int_in_range(1..=3)?;
                bytes.extend(DcEth::new(key, sender, session).as_bytes());
            }
            Headers::DC_CONNECT => {
                bytes.extend(DcConnectEth::new(u.int_in_range(0..=3)?).as_bytes());
            }
            Headers::XRCETH => {
                let srqn = world.srqs[u.choose_index(world.srqs.len())?].srqn.0;
                bytes.extend(srqn.to_be_bytes());
            }
            Headers::DETH => {
                bytes.extend(if u.ratio(1, 8)? { u.arbitrary()? } else { 0x1111u32 }.to_be_bytes());
                bytes.extend(u.arbitrary::<u32>()?.to_be_bytes());
            }
            Headers::RETH => {
                let length = if u.ratio(1, 8)? { u.arbitrary()? } else { u.int_in_range(0..=600)? };
                bytes.extend(address.to_be_bytes());
                bytes.extend(rkey.to_be_bytes());
                bytes.extend::<[u8; 4]>(u32::to_be_bytes(length));
            }
            Headers::ATOMIC => {
                bytes.extend((address & !7).to_be_bytes());
                bytes.extend(rkey.to_be_bytes());
                bytes.extend(u.arbitrary::<[u8; 16]>()?);
            }
            Headers::MASKED_ATOMIC => {
                bytes.extend((address & !7).to_be_bytes());
                bytes.extend(rkey.to_be_bytes());
                let size: u32 = *u.choose(&[4, 8, 16, 0])?;
                bytes.extend(size.to_be_bytes());
                bytes.extend(u.arbitrary::<[u8; 32]>()?);
            }
            Headers::INVALIDATE => bytes.extend(rkey.to_be_bytes()),
            Headers::ATOMIC_ACK => bytes.extend(u.arbitrary::<[u8; 8]>()?),
            _ => bytes.extend(u.arbitrary::<[u8; 4]>()?),
        }
    }
    Ok(())
}

/// The host sends a request, and is answered with one of its own packets with a few changes.
fn answer(u: &mut Unstructured<'_>, world: &mut World) -> Result<()> {
    crate::ring_execute::post(u, world, 0)?;
    world.pass(0);
    let Some(mut packet) = world.sent.pop() else { return Ok(()) };
    packet.addressing = packet.addressing.reply();
    let qpn = world.qps[0].qpn.0;
    let bytes = packet.bytes_mut();
    bytes[5..8].copy_from_slice(&qpn.to_be_bytes()[1..]);
    bytes[0] = u.int_in_range(0x0d..=0x12)?;
    let at = u.choose_index(bytes.len())?;
    bytes[at] = u.arbitrary()?;
    world.core.receive(world.now, packet);
    Ok(())
}
