//! Access registers (ACCESS_REG) of the port and the node.

use super::Firmware;
use super::command::{Command, Reply};
use super::refusal::{Done, Refusal};
use crate::layout::command::{access_register_in, header};
use crate::layout::port::{paos_reg, pmtu_reg, ptys_reg, pvlc_reg};
use uverbs_soft::core::LinkLayer;

/// Offset in bits of the register in input and output.
const REGISTER: usize = 0x80;

/// Register ids, `MLX5_REG_*` in the kernel's `driver.h`.
const PMTU: u64 = 0x5003;
const PTYS: u64 = 0x5004;
const PAOS: u64 = 0x5006;
const PFCC: u64 = 0x5007;
const PPCNT: u64 = 0x5008;
const PVLC: u64 = 0x500f;
const NODE_DESCRIPTION: u64 = 0x6001;
const HOST_ENDIANNESS: u64 = 0x7004;

/// Bytes of a node description.
pub(super) const DESCRIPTION: usize = 64;

/// ACCESS_REG: operation 0 writes, 1 reads.
pub(super) fn access(firmware: &mut Firmware, command: &mut Command<'_>) -> Done {
    let register = command.get(access_register_in::REGISTER_ID);
    match (register, command.get(header::OP_MOD)) {
        (PMTU, 1) => port_mtu(firmware, &mut command.reply),
        (PTYS, 1) => port_type_and_speed(firmware, &mut command.reply),
        (PMTU, 0) => set_port_mtu(firmware, command),
        (PAOS, 0) => set_port_status(firmware, command),
        (PAOS, 1) => port_status(firmware, &mut command.reply),
        (PFCC, 0) => command.structure(REGISTER).clone_into(&mut firmware.port.flow_control),
        (PFCC, 1) => command.reply.put(REGISTER, &firmware.port.flow_control),
        // All physical counters are zero, because there is no physical wire.
        (PPCNT, 1) => {}
        (PVLC, 1) => virtual_lanes(&mut command.reply),
        (NODE_DESCRIPTION, 1) => command.reply.put(REGISTER, &firmware.port.description),
        (NODE_DESCRIPTION, 0) => set_description(firmware, command)?,
        (HOST_ENDIANNESS, 0) => host_endianness(command)?,
        (_, 0 | 1) => return Err(Refusal::parameter("register", register)),
        (_, operation) => return Err(Refusal::parameter("ACCESS_REG operation", operation)),
    }
    Ok(())
}

fn set_port_mtu(firmware: &mut Firmware, command: &Command<'_>) {
    firmware.port.mtu_bytes = command.get32(pmtu_reg::ADMIN_MTU.at(REGISTER));
}

/// Changes the link state at once and sends an event to the driver.
fn set_port_status(firmware: &mut Firmware, command: &Command<'_>) {
    let status = command.get(paos_reg::ADMIN_STATUS.at(REGISTER)) as u8;
    if std::mem::replace(&mut firmware.port.admin_status, status) != status {
        firmware.announce_port();
    }
}

/// The operational status is the administrative one: 1 is up, 2 is down.
fn port_status(firmware: &Firmware, reply: &mut Reply) {
    let status = u64::from(firmware.port.admin_status);
    reply.set(paos_reg::ADMIN_STATUS.at(REGISTER), status);
    reply.set(paos_reg::OPER_STATUS.at(REGISTER), status);
}

fn port_mtu(firmware: &Firmware, reply: &mut Reply) {
    let bytes = u64::from(firmware.port.mtu_bytes);
    reply.set(pmtu_reg::MAX_MTU.at(REGISTER), u64::from(firmware.port.max_mtu_bytes));
    reply.set(pmtu_reg::ADMIN_MTU.at(REGISTER), bytes);
    reply.set(pmtu_reg::OPER_MTU.at(REGISTER), bytes);
}

/// InfiniBand: four lanes (bit 1 of the width) of EDR (bit 5 of the speeds). Ethernet: 100GBASE-CR4
/// (bit 20).
fn port_type_and_speed(firmware: &Firmware, reply: &mut Reply) {
    let set = |reply: &mut Reply, fields: [crate::bits::Field; 3], value| {
        fields.into_iter().for_each(|field| reply.set(field.at(REGISTER), value));
    };
    if firmware.port.link == LinkLayer::InfiniBand {
        let width = [
            ptys_reg::IB_LINK_WIDTH_CAPABILITY,
            ptys_reg::IB_LINK_WIDTH_ADMIN,
            ptys_reg::IB_LINK_WIDTH_OPER,
        ];
        let speed =
            [ptys_reg::IB_PROTO_CAPABILITY, ptys_reg::IB_PROTO_ADMIN, ptys_reg::IB_PROTO_OPER];
        set(reply, width, 1 << 1);
        set(reply, speed, 1 << 5);
    } else {
        let speed =
            [ptys_reg::ETH_PROTO_CAPABILITY, ptys_reg::ETH_PROTO_ADMIN, ptys_reg::ETH_PROTO_OPER];
        set(reply, speed, 1 << 20);
    }
}

/// One data lane.
fn virtual_lanes(reply: &mut Reply) {
    for field in [pvlc_reg::VL_HW_CAP, pvlc_reg::VL_ADMIN, pvlc_reg::VL_OPERATIONAL] {
        reply.set(field.at(REGISTER), 1);
    }
}

fn set_description(firmware: &mut Firmware, command: &Command<'_>) -> Done {
    command.need(REGISTER / 8 + DESCRIPTION)?;
    let text = command.structure(REGISTER);
    firmware.port.description.copy_from_slice(&text[..DESCRIPTION]);
    Ok(())
}

/// The first byte is 0 for a little-endian host, and 0x80 for a big-endian one.
fn host_endianness(command: &Command<'_>) -> Done {
    match command.structure(REGISTER).first() {
        Some(0) => Ok(()),
        other => {
            Err(Refusal::parameter("host endianness", u64::from(other.copied().unwrap_or(0xff))))
        }
    }
}
