//! The InfiniBand port, as in the context of its virtual port.

use super::Firmware;
use super::command::Command;
use super::refusal::{Done, Refusal};
use crate::bits::field;
use crate::layout::command::{
    query_hca_vport_gid_in, query_hca_vport_gid_out, query_hca_vport_pkey_in, query_vport_state_out,
};
use crate::layout::port::hca_vport_context;

/// Offset in bits of the payload in outputs.
const PAYLOAD: usize = 0x80;

/// Index that selects the whole table.
const WHOLE_TABLE: u64 = 0xffff;

/// Port states as InfiniBand numbers them.
const ACTIVE: u64 = 4;
const LINK_UP: u64 = 5;
/// Virtual port states.
const VPORT_DOWN: u64 = 0;
const VPORT_UP: u64 = 1;

/// Entries of the GID and P_Key tables. The capabilities encode each of these sizes by 0.
pub(super) const GIDS: usize = 8;
pub(super) const PKEYS: usize = 128;

/// Port capability mask bits for a connection manager and for vendor classes (InfiniBand
/// Architecture Specification 14.2.5.6). The driver may change only the first.
const CONNECTION_MANAGEMENT: u32 = 1 << 16;
pub(super) const CAPABILITY_MASK: u32 = 1 << 25;

pub(super) fn query_vport_state(firmware: &mut Firmware, command: &mut Command<'_>) -> Done {
    let state = if firmware.port.is_up() { VPORT_UP } else { VPORT_DOWN };
    command.reply.set(query_vport_state_out::STATE, state);
    command.reply.set(query_vport_state_out::ADMIN_STATE, VPORT_UP);
    Ok(())
}

pub(super) fn query_hca_vport_context(firmware: &mut Firmware, command: &mut Command<'_>) -> Done {
    let port = &firmware.port;
    let values = [
        (hca_vport_context::PORT_PHYSICAL_STATE, LINK_UP),
        (hca_vport_context::PORT_STATE, ACTIVE),
        (hca_vport_context::VPORT_STATE, ACTIVE),
        (hca_vport_context::SYSTEM_IMAGE_GUID, port.node_guid),
        (hca_vport_context::PORT_GUID, port.port_guid),
        (hca_vport_context::NODE_GUID, port.node_guid),
        (hca_vport_context::CAP_MASK1, u64::from(port.capability_mask)),
        (hca_vport_context::CAP_MASK1_FIELD_SELECT, u64::from(CONNECTION_MANAGEMENT)),
        (hca_vport_context::LID, u64::from(port.lid)),
        (hca_vport_context::SM_LID, u64::from(port.lid)),
        (hca_vport_context::SUBNET_TIMEOUT, 18),
    ];
    for (field, value) in values {
        command.reply.set(field.at(PAYLOAD), value);
    }
    Ok(())
}

/// MODIFY_HCA_VPORT_CONTEXT: changes the capability mask.
pub(super) fn modify_hca_vport_context(firmware: &mut Firmware, command: &mut Command<'_>) -> Done {
    let fields = command.get(hca_vport_context::FIELD_SELECT.at(PAYLOAD));
    if fields != 0 {
        return Err(Refusal::parameter("field_select", fields));
    }
    let change = command.get32(hca_vport_context::CAP_MASK1_FIELD_SELECT.at(PAYLOAD));
    if change & !CONNECTION_MANAGEMENT != 0 {
        return Err(Refusal::parameter("cap_mask1_field_select", u64::from(change)));
    }
    let wanted = command.get32(hca_vport_context::CAP_MASK1.at(PAYLOAD));
    let mask = &mut firmware.port.capability_mask;
    *mask = *mask & !change | wanted & change;
    Ok(())
}

pub(super) fn query_hca_vport_gid(firmware: &mut Firmware, command: &mut Command<'_>) -> Done {
    let wanted = entries(command.get(query_hca_vport_gid_in::GID_INDEX), GIDS, "GID index")?;
    command.reply.need(PAYLOAD / 8 + 16 * wanted.len())?;
    command.reply.set(query_hca_vport_gid_out::GIDS_NUM, wanted.len() as u64);
    for (position, index) in wanted.enumerate() {
        command.reply.put(PAYLOAD + 128 * position, &firmware.port.gid(index));
    }
    Ok(())
}

pub(super) fn query_hca_vport_pkey(_: &mut Firmware, command: &mut Command<'_>) -> Done {
    let wanted = entries(command.get(query_hca_vport_pkey_in::PKEY_INDEX), PKEYS, "P_Key index")?;
    command.reply.need(PAYLOAD / 8 + 4 * wanted.len())?;
    for (position, index) in wanted.enumerate() {
        let pkey = if index == 0 { 0xffff } else { 0 };
        command.reply.set(field(PAYLOAD + 16, 16).element(position, 32), pkey);
    }
    Ok(())
}

/// The entries that a query asks for: one, or the whole table.
fn entries(index: u64, size: usize, what: &str) -> Result<std::ops::Range<usize>, Refusal> {
    match index {
        WHOLE_TABLE => Ok(0..size),
        _ if (index as usize) < size => Ok(index as usize..index as usize + 1),
        _ => Err(Refusal::parameter(what, index)),
    }
}
