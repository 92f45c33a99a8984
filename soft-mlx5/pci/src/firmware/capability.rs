//! Capabilities: the device's maximum values, and the current ones, which the driver chooses.

use super::Firmware;
use super::command::Command;
use super::refusal::{Done, Refusal};
use crate::bits::{Field, field};
use crate::layout::capability::{atomic, general, roce};
use crate::layout::command::header;
use uverbs_soft::core::LinkLayer;
use uverbs_soft_adapter::firmware::capability::{
    ATOMIC, ATOMIC_VALUES, BLOCK, BLOCK_AT, COMMON_VALUES, DYNAMIC_CONNECTION_VALUES,
    ETHERNET_OFFLOADS, ETHERNET_VALUES, FLOW_TABLE, GENERAL, GENERAL_2, GENERAL_2_VALUES,
    INFINIBAND_VALUES, OFFLOAD_VALUES, ROCE, ROCE_VALUES, block, flow_table_values,
};

const SUPPORTED: u64 = 1;

#[derive(Debug)]
struct Block {
    kind: u64,
    maximum: Vec<u8>,
    current: Vec<u8>,
    /// The fields that the driver may change freely. In other fields it may only clear bits.
    settable: &'static [Field],
}

/// All capability blocks.
#[derive(Debug)]
pub(super) struct Capabilities {
    blocks: Vec<Block>,
}

impl Capabilities {
    pub(super) fn new(link: LinkLayer) -> Self {
        let mut blocks = vec![
            group(GENERAL, &general_values(link), GENERAL_SETTABLE),
            group(GENERAL_2, GENERAL_2_VALUES, &[]),
            group(ATOMIC, ATOMIC_VALUES, &[atomic::ATOMIC_REQ_8B_ENDIANNESS_MODE]),
        ];
        if link == LinkLayer::Ethernet {
            blocks.push(group(ETHERNET_OFFLOADS, OFFLOAD_VALUES, &[]));
            blocks.push(group(FLOW_TABLE, &flow_table_values(), &[]));
            blocks.push(group(
                ROCE,
                ROCE_VALUES,
                &[roce::SW_R_ROCE_SRC_UDP_PORT, roce::QP_OOO_TRANSMIT_DEFAULT],
            ));
        }
        Self { blocks }
    }

    fn find(&mut self, kind: u64) -> Result<&mut Block, Refusal> {
        let found = self.blocks.iter_mut().find(|block| block.kind == kind);
        found.ok_or_else(|| Refusal::parameter("capability type", kind))
    }
}

fn group(kind: u64, values: &[(Field, u64)], settable: &'static [Field]) -> Block {
    let maximum = block(values);
    Block { kind, current: maximum.clone(), maximum, settable }
}

/// The fields that mlx5_core of 6.1 to 7.2 sets.
const GENERAL_SETTABLE: &[Field] = &[
    general::PKEY_TABLE_SIZE,
    general::LOG_MAX_QP,
    general::CMDIF_CHECKSUM,
    general::UAR_4K,
    general::LOG_UAR_PAGE_SZ,
    general::ROCE,
    general::LOG_MAX_CURRENT_UC_LIST,
];

fn general_values(link: LinkLayer) -> Vec<(Field, u64)> {
    let mut values = [COMMON_VALUES, DYNAMIC_CONNECTION_VALUES].concat();
    match link {
        // The driver queries the port through the virtual port's context instead of MADs.
        LinkLayer::InfiniBand => {
            values.extend(INFINIBAND_VALUES);
            values.push((general::IB_VIRT, SUPPORTED));
        }
        LinkLayer::Ethernet => {
            values.extend(ETHERNET_VALUES);
            values.extend([
                (general::ETH_VIRT, SUPPORTED),
                (general::MAX_TC, 8),
                (general::LOG_MAX_VLAN_LIST, 9),
                (general::LOG_MAX_CURRENT_MC_LIST, 7),
                (general::LOG_MAX_CURRENT_UC_LIST, 7),
                (general::DISABLE_LOCAL_LB_UC, SUPPORTED),
                (general::DISABLE_LOCAL_LB_MC, SUPPORTED),
            ]);
        }
    }
    values
}

/// QUERY_HCA_CAP: bit 0 of the operation chooses the current values, the rest the type. perftest
/// 4.5 asks for only a part of the block (16 + 256 bytes). It is answered here; whether a real
/// adapter does so is unconfirmed.
pub(super) fn query(firmware: &mut Firmware, command: &mut Command<'_>) -> Done {
    let operation = command.get(header::OP_MOD);
    let block = firmware.capabilities.find(operation >> 1)?;
    command.reply.put(BLOCK_AT, if operation & 1 == 1 { &block.current } else { &block.maximum });
    Ok(())
}

/// SET_HCA_CAP: the operation is twice the type.
pub(super) fn set(firmware: &mut Firmware, command: &mut Command<'_>) -> Done {
    let kind = command.get(header::OP_MOD) >> 1;
    let wanted = command.structure(BLOCK_AT);
    let block = firmware.capabilities.find(kind)?;
    let mut current = block.current.clone();
    for field in block.settable {
        field.set(&mut current, field.get(wanted));
    }
    let claimed = (0..wanted.len().min(BLOCK) * 8)
        .map(|bit| field(bit, 1))
        .find(|bit| bit.is_set(wanted) && !bit.is_set(&current));
    if let Some(bit) = claimed {
        firmware.warn(format_args!("SET_HCA_CAP of type {kind} sets {bit:?}, which cannot be set"));
        return Err(Refusal::parameter("capability", kind));
    }
    firmware.capabilities.find(kind)?.current = current;
    Ok(())
}
