//! QUERY_HCA_CAP. The driver of this device changes no capability, so the maximum values are the
//! current ones.
#![forbid(unsafe_code)]

use uverbs_soft_adapter::firmware::bits::Field;
use uverbs_soft_adapter::firmware::capability::{
    ATOMIC, ATOMIC_VALUES, BLOCK_AT, COMMON_VALUES, DYNAMIC_CONNECTION_VALUES, ETHERNET_OFFLOADS,
    ETHERNET_VALUES, FLOW_TABLE, GENERAL, GENERAL_2, GENERAL_2_VALUES, INFINIBAND_VALUES,
    OFFLOAD_VALUES, QOS, ROCE, ROCE_VALUES, block, flow_table_values,
};
use uverbs_soft_adapter::firmware::command::Command;
use uverbs_soft_adapter::firmware::layout::capability::{general, qos};
use uverbs_soft_adapter::firmware::layout::command::header;
use uverbs_soft_adapter::firmware::refusal::{Done, Refusal};

use crate::chardev::device::options::Options;
use crate::chardev::objects::pacing;

/// `MLX5_CAP_DEV_MEM`.
const DEVICE_MEMORY: u64 = 0xf;

const SUPPORTED: u64 = 1;

/// Answers a query of one group of capabilities.
pub(super) fn query(options: &Options, command: &mut Command<'_>) -> Done {
    let values = match command.get(header::OP_MOD) >> 1 {
        GENERAL => general_values(options),
        GENERAL_2 => GENERAL_2_VALUES.to_vec(),
        ATOMIC => ATOMIC_VALUES.to_vec(),
        ETHERNET_OFFLOADS if options.is_roce() => OFFLOAD_VALUES.to_vec(),
        ROCE if options.is_roce() => ROCE_VALUES.to_vec(),
        FLOW_TABLE if options.is_roce() => flow_table_values(),
        // Neither operations nor encapsulations in device memory are supported.
        DEVICE_MEMORY => Vec::new(),
        QOS if options.rates().is_some() => qos_values(options),
        kind => return Err(Refusal::parameter("capability type", kind)),
    };
    command.reply.put(BLOCK_AT, &block(&values));
    Ok(())
}

fn general_values(options: &Options) -> Vec<(Field, u64)> {
    let mut values = COMMON_VALUES.to_vec();
    values.push((general::PG, SUPPORTED));
    if options.dynamically_connected {
        values.extend(DYNAMIC_CONNECTION_VALUES);
    }
    if options.is_roce() {
        values.extend(ETHERNET_VALUES);
        values.push((general::QOS, u64::from(options.rates().is_some())));
    } else {
        values.extend(INFINIBAND_VALUES);
    }
    values
}

fn qos_values(options: &Options) -> Vec<(Field, u64)> {
    let Some(rates) = options.rates() else { return Vec::new() };
    vec![
        (qos::PACKET_PACING, SUPPORTED),
        (qos::PACKET_PACING_UID, SUPPORTED),
        (qos::PACKET_PACING_BURST_BOUND, SUPPORTED),
        (qos::PACKET_PACING_TYPICAL_SIZE, SUPPORTED),
        (qos::PACKET_PACING_MIN_RATE, (*rates.start()).into()),
        (qos::PACKET_PACING_MAX_RATE, (*rates.end()).into()),
        (qos::PACKET_PACING_RATE_TABLE_SIZE, pacing::ENTRIES as u64),
    ]
}
