//! The Ethernet port: context of its virtual port, RoCE addresses.

use super::Firmware;
use super::command::Command;
use super::refusal::{Done, Refusal};
use crate::bits::{Field, field};
use crate::cable::Mac;
use crate::layout::command::{
    modify_nic_vport_context_in, query_nic_vport_context_in, roce_addr_layout, set_roce_address_in,
};
use crate::layout::port::nic_vport_context as layout;
use uverbs_soft::packet::Gid;

/// Offsets in bits: of the context in QUERY's output and in MODIFY's input.
const QUERY: usize = 0x80;
const MODIFY: usize = 0x800;
/// Of the address list in the context.
const LIST: usize = 0x800;
/// Of the address in the input of SET_ROCE_ADDRESS.
const ADDRESS: usize = 0x80;

/// The properties that MODIFY_NIC_VPORT_CONTEXT may change: bits of its field selection, with the
/// fields of each.
const SETTABLE: &[(u32, &[Field])] = &[
    (1 << 1, &[layout::ROCE_EN]),
    (1 << 3, &[layout::PERMANENT_ADDRESS]),
    (1 << 4, &[layout::PROMISC_UC, layout::PROMISC_MC, layout::PROMISC_ALL]),
    (
        1 << 5,
        &[
            layout::ARM_CHANGE_EVENT,
            layout::EVENT_ON_MTU,
            layout::EVENT_ON_PROMISC_CHANGE,
            layout::EVENT_ON_VLAN_CHANGE,
            layout::EVENT_ON_MC_ADDRESS_CHANGE,
            layout::EVENT_ON_UC_ADDRESS_CHANGE,
        ],
    ),
    (1 << 6, &[layout::MTU]),
    (1 << 7, &[layout::MIN_WQE_INLINE_MODE]),
    (1 << 9, &[layout::NODE_GUID]),
    (1 << 10, &[layout::DISABLE_MC_LOCAL_LB]),
    (1 << 11, &[layout::DISABLE_UC_LOCAL_LB]),
];
/// The bit of the field selection that replaces an address list.
const LISTS: u32 = 1 << 2;

/// The virtual port: its context, and lists of unicast addresses, multicast addresses and VLANs.
#[derive(Debug)]
pub(super) struct NicVport {
    context: Vec<u8>,
    lists: [Vec<u64>; 3],
}

impl NicVport {
    pub(super) fn new(guid: u64, mtu: u16) -> Self {
        let mut context = vec![0; 256];
        layout::MTU.set(&mut context, u64::from(mtu));
        for field in [layout::SYSTEM_IMAGE_GUID, layout::PORT_GUID, layout::NODE_GUID] {
            field.set(&mut context, guid);
        }
        layout::PERMANENT_ADDRESS.set(&mut context, mac(guid));
        Self { context, lists: Default::default() }
    }

    /// Whether a field of the context is set.
    pub(super) fn has(&self, field: Field) -> bool {
        field.is_set(&self.context)
    }

    /// The port's MAC address.
    pub(super) fn mac(&self) -> Mac {
        let [.., a, b, c, d, e, f] = layout::PERMANENT_ADDRESS.get(&self.context).to_be_bytes();
        [a, b, c, d, e, f]
    }
}

/// The MAC address from which the GUID was made, if it is an EUI-64; else a locally administered
/// one with the last bytes of the GUID.
fn mac(guid: u64) -> u64 {
    let address = match guid.to_be_bytes() {
        [a, b, c, 0xff, 0xfe, d, e, f] => [0, 0, a ^ 2, b, c, d, e, f],
        [.., b, c, d, e, f] => [0, 0, 2, b, c, d, e, f],
    };
    u64::from_be_bytes(address)
}

/// QUERY_NIC_VPORT_CONTEXT.
pub(super) fn query(firmware: &mut Firmware, command: &mut Command<'_>) -> Done {
    let kind = command.get(query_nic_vport_context_in::ALLOWED_LIST_TYPE);
    let vport = &firmware.nic_vport;
    let list = vport
        .lists
        .get(kind as usize)
        .ok_or_else(|| Refusal::parameter("allowed_list_type", kind))?;
    command.reply.put(QUERY, &vport.context);
    let violations = firmware.core.counters().qkey_violations.min(u16::MAX.into());
    command.reply.set(layout::QKEY_VIOLATION_COUNTER.at(QUERY), violations);
    command.reply.set(layout::ALLOWED_LIST_TYPE.at(QUERY), kind);
    command.reply.set(layout::ALLOWED_LIST_SIZE.at(QUERY), list.len() as u64);
    for (index, entry) in list.iter().enumerate() {
        command.reply.set(field(QUERY + LIST, 64).element(index, 64), *entry);
    }
    Ok(())
}

/// MODIFY_NIC_VPORT_CONTEXT.
pub(super) fn modify(firmware: &mut Firmware, command: &mut Command<'_>) -> Done {
    let select = command.get32(modify_nic_vport_context_in::FIELD_SELECT);
    let known = SETTABLE.iter().fold(LISTS, |known, (bit, _)| known | bit);
    if select & !known != 0 {
        return Err(Refusal::parameter("field_select", u64::from(select)));
    }
    let wanted = command.structure(MODIFY);
    if select & LISTS != 0 {
        set_list(&mut firmware.nic_vport, command, wanted)?;
    }
    for (_, fields) in SETTABLE.iter().filter(|(bit, _)| select & bit != 0) {
        fields
            .iter()
            .for_each(|field| field.set(&mut firmware.nic_vport.context, field.get(wanted)));
    }
    Ok(())
}

fn set_list(vport: &mut NicVport, command: &Command<'_>, wanted: &[u8]) -> Done {
    let kind = layout::ALLOWED_LIST_TYPE.get(wanted);
    let size = layout::ALLOWED_LIST_SIZE.get(wanted) as usize;
    command.need((MODIFY + LIST) / 8 + 8 * size)?;
    let list = vport
        .lists
        .get_mut(kind as usize)
        .ok_or_else(|| Refusal::parameter("allowed_list_type", kind))?;
    *list = (0..size).map(|index| field(LIST, 64).element(index, 64).get(wanted)).collect();
    Ok(())
}

/// SET_ROCE_ADDRESS: an entry of the GID table, unused if it is all zero.
pub(super) fn set_roce_address(firmware: &mut Firmware, command: &mut Command<'_>) -> Done {
    let index = command.get(set_roce_address_in::ROCE_ADDRESS_INDEX);
    let entry = u8::try_from(index).map_err(|_| Refusal::parameter("roce_address_index", index))?;
    let address = command.structure(ADDRESS);
    let version = roce_addr_layout::ROCE_VERSION.get(address);
    let mut gid = Gid::default();
    gid.0.iter_mut().zip(address).for_each(|(to, from)| *to = *from);
    if version != ROCE_V2 && !gid.is_zero() {
        return Err(Refusal::parameter("roce_version", version));
    }
    firmware.core.set_gid(entry, gid);
    Ok(())
}

/// RoCE version 2 in an address.
const ROCE_V2: u64 = 2;
