//! The commands that the firmware knows. Opcodes and names: `MLX5_CMD_OP_*` in `mlx5_ifc.h`.

use super::command::{Command, Reply};
use super::ethernet::{Rq, Sq};
use super::queue_pair::to_ready_to_send;
use super::record::{Rqt, Tir, Tis};
use super::refusal::Done;
use super::{
    Firmware, capability, completion_queue, counters, ethernet, event_queue, flow, hca, mad,
    memory_key, nic_vport, pages, port, queue_pair, record, register, resource, shared_receive,
};
use crate::bits::Field;
use crate::layout::command as layout;
use crate::layout::{context, ethernet as ethernet_layout, port as port_layout};
use uverbs_soft::core::QpState;

/// The state of the firmware from which a command is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Always.
    Disabled,
    /// After ENABLE_HCA.
    Enabled,
    /// After INIT_HCA.
    Initialized,
}

type Handler = fn(&mut Firmware, &Command<'_>, &mut Reply) -> Done;

/// Structures of an input, for the trace: position in bits and fields.
type Structures = &'static [(usize, &'static [(&'static str, Field)])];

/// A command that the firmware knows.
pub(super) struct CommandSpec {
    pub(super) opcode: u16,
    pub(super) name: &'static str,
    pub(super) phase: Phase,
    /// Least bytes of input.
    pub(super) input: usize,
    /// Smallest output in bytes.
    pub(super) output: usize,
    pub(super) fields: Structures,
    pub(super) run: Handler,
}

/// The command of an opcode.
pub(super) fn find(opcode: u16) -> Option<&'static CommandSpec> {
    COMMANDS.binary_search_by_key(&opcode, |spec| spec.opcode).ok().map(|index| &COMMANDS[index])
}

/// A row per command: opcode, name, phase, smallest input and output in bytes, structures, handler.
macro_rules! commands {
    ($($opcode:literal $name:literal $phase:ident ($input:literal, $output:literal)
        $fields:ident $run:expr;)*) => {
        &[$(CommandSpec {
            opcode: $opcode,
            name: $name,
            phase: Phase::$phase,
            input: $input,
            output: $output,
            fields: $fields,
            run: $run,
        },)*]
    };
}

const OBJECT: Structures = &[(0, layout::object::FIELDS)];

const COMMANDS: &[CommandSpec] = commands! {
    0x100 "QUERY_HCA_CAP" Enabled (16, 4112) HCA_CAP capability::query;
    0x101 "QUERY_ADAPTER" Initialized (8, 272) NONE hca::query_adapter;
    0x102 "INIT_HCA" Enabled (8, 8) NONE hca::init;
    0x103 "TEARDOWN_HCA" Enabled (16, 16) TEARDOWN hca::teardown;
    0x104 "ENABLE_HCA" Disabled (16, 8) NONE hca::enable;
    0x105 "DISABLE_HCA" Disabled (16, 8) NONE hca::disable;
    0x107 "QUERY_PAGES" Enabled (16, 16) NONE pages::query;
    0x108 "MANAGE_PAGES" Enabled (16, 16) GIVEN_PAGES pages::manage;
    0x109 "SET_HCA_CAP" Enabled (16, 8) NONE capability::set;
    0x10a "QUERY_ISSI" Enabled (8, 112) NONE hca::query_issi;
    0x10b "SET_ISSI" Enabled (16, 8) ISSI hca::set_issi;
    0x10d "SET_DRIVER_VERSION" Initialized (80, 8) NONE hca::set_driver_version;
    0x200 "CREATE_MKEY" Initialized (272, 16) MKEY memory_key::create;
    0x201 "QUERY_MKEY" Initialized (16, 304) OBJECT memory_key::query;
    0x202 "DESTROY_MKEY" Initialized (16, 8) OBJECT memory_key::destroy;
    0x203 "QUERY_SPECIAL_CONTEXTS" Initialized (8, 32) NONE memory_key::query_special_contexts;
    0x301 "CREATE_EQ" Initialized (272, 16) EQ event_queue::create;
    0x302 "DESTROY_EQ" Initialized (16, 8) EQ_NUMBER event_queue::destroy;
    0x303 "QUERY_EQ" Initialized (16, 272) EQ_NUMBER event_queue::query;
    0x400 "CREATE_CQ" Initialized (272, 16) CQ completion_queue::create;
    0x401 "DESTROY_CQ" Initialized (16, 8) OBJECT completion_queue::destroy;
    0x402 "QUERY_CQ" Initialized (16, 272) OBJECT completion_queue::query;
    0x403 "MODIFY_CQ" Initialized (272, 8) CHANGE_CQ completion_queue::modify;
    0x500 "CREATE_QP" Initialized (272, 16) CREATE_QP queue_pair::create;
    0x501 "DESTROY_QP" Initialized (16, 8) OBJECT queue_pair::destroy;
    0x502 "RST2INIT_QP" Initialized (256, 8) MODIFY_QP queue_pair::reset_to_init;
    0x503 "INIT2RTR_QP" Initialized (256, 8) MODIFY_QP queue_pair::init_to_rtr;
    0x504 "RTR2RTS_QP" Initialized (256, 8) MODIFY_QP queue_pair::rtr_to_rts;
    0x505 "RTS2RTS_QP" Initialized (256, 8) MODIFY_QP
        |firmware, command, _| to_ready_to_send(firmware, command, QpState::ReadyToSend);
    0x506 "SQERR2RTS_QP" Initialized (256, 8) MODIFY_QP
        |firmware, command, _| to_ready_to_send(firmware, command, QpState::SendQueueError);
    0x507 "2ERR_QP" Initialized (16, 8) OBJECT
        |firmware, command, _| queue_pair::stop(firmware, command, QpState::Error);
    0x50a "2RST_QP" Initialized (16, 8) OBJECT
        |firmware, command, _| queue_pair::stop(firmware, command, QpState::Reset);
    0x50b "QUERY_QP" Initialized (16, 272) OBJECT queue_pair::query;
    0x50c "SQD_RTS_QP" Initialized (256, 8) MODIFY_QP
        |firmware, command, _| to_ready_to_send(firmware, command, QpState::SendQueueDrain);
    0x50d "MAD_IFC" Initialized (272, 272) NONE mad::process;
    0x50e "INIT2INIT_QP" Initialized (256, 8) MODIFY_QP queue_pair::init_to_init;
    0x705 "CREATE_XRC_SRQ" Initialized (272, 16) XRC_SRQ shared_receive::create_xrc;
    0x706 "DESTROY_XRC_SRQ" Initialized (16, 8) OBJECT shared_receive::destroy_xrc;
    0x707 "QUERY_XRC_SRQ" Initialized (16, 80) OBJECT shared_receive::query_xrc;
    0x708 "ARM_XRC_SRQ" Initialized (16, 8) ARM_RQ shared_receive::arm_xrc;
    0x750 "QUERY_VPORT_STATE" Initialized (16, 16) NONE port::query_vport_state;
    0x754 "QUERY_NIC_VPORT_CONTEXT" Initialized (16, 272) NIC_VPORT_QUERY nic_vport::query;
    0x755 "MODIFY_NIC_VPORT_CONTEXT" Initialized (512, 8) NIC_VPORT nic_vport::modify;
    0x761 "SET_ROCE_ADDRESS" Initialized (48, 8) ROCE_ADDRESS nic_vport::set_roce_address;
    0x762 "QUERY_HCA_VPORT_CONTEXT" Initialized (16, 528) NONE port::query_hca_vport_context;
    0x763 "MODIFY_HCA_VPORT_CONTEXT" Initialized (528, 8) VPORT port::modify_hca_vport_context;
    0x764 "QUERY_HCA_VPORT_GID" Initialized (16, 32) GID port::query_hca_vport_gid;
    0x765 "QUERY_HCA_VPORT_PKEY" Initialized (16, 20) PKEY port::query_hca_vport_pkey;
    0x770 "QUERY_VPORT_COUNTER" Initialized (32, 528) NONE counters::query_vport;
    0x771 "ALLOC_Q_COUNTER" Initialized (8, 16) NONE counters::allocate;
    0x772 "DEALLOC_Q_COUNTER" Initialized (16, 8) COUNTER counters::free;
    0x773 "QUERY_Q_COUNTER" Initialized (32, 256) NONE counters::query;
    0x800 "ALLOC_PD" Initialized (8, 16) NONE resource::alloc_pd;
    0x801 "DEALLOC_PD" Initialized (16, 8) OBJECT resource::dealloc_pd;
    0x802 "ALLOC_UAR" Initialized (8, 16) NONE resource::alloc_uar;
    0x803 "DEALLOC_UAR" Initialized (16, 8) OBJECT resource::dealloc_uar;
    0x805 "ACCESS_REG" Enabled (16, 16) REGISTER register::access;
    0x806 "ATTACH_TO_MCG" Initialized (32, 8) OBJECT queue_pair::attach;
    0x807 "DETACH_FROM_MCG" Initialized (32, 8) OBJECT queue_pair::detach;
    0x80d "NOP" Disabled (8, 8) NONE hca::nop;
    0x80e "ALLOC_XRCD" Initialized (8, 16) NONE resource::alloc_xrcd;
    0x80f "DEALLOC_XRCD" Initialized (16, 8) OBJECT resource::dealloc_xrcd;
    0x816 "ALLOC_TRANSPORT_DOMAIN" Initialized (8, 16) NONE resource::alloc_transport_domain;
    0x817 "DEALLOC_TRANSPORT_DOMAIN" Initialized (16, 8) OBJECT resource::dealloc_transport_domain;
    0x900 "CREATE_TIR" Initialized (272, 16) TIR record::create::<Tir>;
    0x901 "MODIFY_TIR" Initialized (272, 8) OBJECT record::modify::<Tir>;
    0x902 "DESTROY_TIR" Initialized (16, 8) OBJECT record::destroy::<Tir>;
    0x903 "QUERY_TIR" Initialized (16, 272) OBJECT record::query::<Tir>;
    0x904 "CREATE_SQ" Initialized (272, 16) SQ ethernet::create_send;
    0x905 "MODIFY_SQ" Initialized (272, 8) CHANGE_SQ ethernet::modify_send;
    0x906 "DESTROY_SQ" Initialized (16, 8) OBJECT ethernet::destroy::<Sq>;
    0x907 "QUERY_SQ" Initialized (16, 272) OBJECT ethernet::query::<Sq>;
    0x908 "CREATE_RQ" Initialized (272, 16) RQ ethernet::create_receive;
    0x909 "MODIFY_RQ" Initialized (272, 8) CHANGE_RQ ethernet::modify_receive;
    0x90a "DESTROY_RQ" Initialized (16, 8) OBJECT ethernet::destroy::<Rq>;
    0x90b "QUERY_RQ" Initialized (16, 272) OBJECT ethernet::query::<Rq>;
    0x90c "CREATE_RMP" Initialized (272, 16) RMP shared_receive::create_pool;
    0x90d "MODIFY_RMP" Initialized (272, 8) CHANGE_RMP shared_receive::modify_pool;
    0x90e "DESTROY_RMP" Initialized (16, 8) OBJECT shared_receive::destroy_pool;
    0x90f "QUERY_RMP" Initialized (16, 272) OBJECT shared_receive::query_pool;
    0x912 "CREATE_TIS" Initialized (192, 16) TIS record::create::<Tis>;
    0x913 "MODIFY_TIS" Initialized (192, 8) OBJECT record::modify::<Tis>;
    0x914 "DESTROY_TIS" Initialized (16, 8) OBJECT record::destroy::<Tis>;
    0x915 "QUERY_TIS" Initialized (16, 176) OBJECT record::query::<Tis>;
    0x916 "CREATE_RQT" Initialized (272, 16) RQT record::create::<Rqt>;
    0x917 "MODIFY_RQT" Initialized (272, 8) OBJECT record::modify::<Rqt>;
    0x918 "DESTROY_RQT" Initialized (16, 8) OBJECT record::destroy::<Rqt>;
    0x919 "QUERY_RQT" Initialized (16, 272) OBJECT record::query::<Rqt>;
    0x92f "SET_FLOW_TABLE_ROOT" Initialized (64, 8) FLOW_ROOT flow::set_root;
    0x930 "CREATE_FLOW_TABLE" Initialized (64, 16) FLOW_TABLE flow::create_table;
    0x931 "DESTROY_FLOW_TABLE" Initialized (64, 8) FLOW_ROOT flow::destroy_table;
    0x933 "CREATE_FLOW_GROUP" Initialized (1024, 16) FLOW_GROUP flow::create_group;
    0x934 "DESTROY_FLOW_GROUP" Initialized (64, 8) FLOW_GROUP_GONE flow::destroy_group;
    0x936 "SET_FLOW_TABLE_ENTRY" Initialized (832, 8) FLOW_ENTRY flow::set_entry;
    0x938 "DELETE_FLOW_TABLE_ENTRY" Initialized (64, 8) FLOW_ROOT flow::delete_entry;
    0x93c "MODIFY_FLOW_TABLE" Initialized (64, 8) FLOW_ROOT flow::modify_table;
};

const NONE: Structures = &[];
const HCA_CAP: Structures = &[(0, layout::query_hca_cap_in::FIELDS)];
const TEARDOWN: Structures = &[(0, layout::teardown_hca_in::FIELDS)];
const GIVEN_PAGES: Structures = &[(0, layout::manage_pages_in::FIELDS)];
const ISSI: Structures = &[(0, layout::set_issi_in::FIELDS)];
const EQ: Structures = &[(0x80, context::eqc::FIELDS)];
const EQ_NUMBER: Structures = &[(0, layout::create_eq_out::FIELDS)];
const CQ: Structures = &[(0x80, context::cqc::FIELDS)];
const ARM_RQ: Structures = &[(0, layout::arm_rq_in::FIELDS)];
const REGISTER: Structures = &[(0, layout::access_register_in::FIELDS)];
const TIR: Structures = &[(0x100, ethernet_layout::tirc::FIELDS)];
const CHANGE_SQ: Structures = &[(0, ethernet_layout::modify_sq_in::FIELDS)];
const CHANGE_RQ: Structures = &[(0, ethernet_layout::modify_rq_in::FIELDS)];
const RMP: Structures = &[(0x280, context::wq::FIELDS)];
const TIS: Structures = &[(0x100, context::tisc::FIELDS)];
const RQT: Structures = &[(0x100, ethernet_layout::rqtc::FIELDS)];
const VPORT: Structures = &[(0x80, port_layout::hca_vport_context::FIELDS)];
const NIC_VPORT_QUERY: Structures = &[(0, layout::query_nic_vport_context_in::FIELDS)];
const NIC_VPORT: Structures = &[
    (0, layout::modify_nic_vport_context_in::FIELDS),
    (0x800, port_layout::nic_vport_context::FIELDS),
];
const ROCE_ADDRESS: Structures =
    &[(0, layout::set_roce_address_in::FIELDS), (0x80, layout::roce_addr_layout::FIELDS)];
const COUNTER: Structures = &[(0, layout::alloc_q_counter_out::FIELDS)];
const SQ: Structures = &[(0x100, ethernet_layout::sqc::FIELDS), (0x280, context::wq::FIELDS)];
const RQ: Structures = &[(0x100, ethernet_layout::rqc::FIELDS), (0x280, context::wq::FIELDS)];
const FLOW_ROOT: Structures = &[(0, ethernet_layout::set_flow_table_root_in::FIELDS)];
const FLOW_TABLE: Structures = &[
    (0, ethernet_layout::create_flow_table_in::FIELDS),
    (0xc0, ethernet_layout::flow_table_context::FIELDS),
];
const FLOW_GROUP: Structures = &[(0, ethernet_layout::create_flow_group_in::FIELDS)];
const FLOW_GROUP_GONE: Structures = &[(0, ethernet_layout::destroy_flow_group_in::FIELDS)];
const FLOW_ENTRY: Structures =
    &[(0, ethernet_layout::set_fte_in::FIELDS), (0x200, ethernet_layout::flow_context::FIELDS)];
const GID: Structures = &[(0, layout::query_hca_vport_gid_in::FIELDS)];
const MKEY: Structures = &[(0, layout::create_mkey_in::FIELDS), (0x80, context::mkc::FIELDS)];
const CHANGE_CQ: Structures = &[(0, layout::modify_cq_in::FIELDS), (0x80, context::cqc::FIELDS)];
const CREATE_QP: Structures = &[(0, layout::create_qp_in::FIELDS), (0xc0, context::qpc::FIELDS)];
const MODIFY_QP: Structures = &[
    (0, layout::modify_qp_in::FIELDS),
    (0xc0, context::qpc::FIELDS),
    (0xc0 + 0xc0, context::ads::FIELDS),
];
const XRC_SRQ: Structures = &[(0x80, context::xrc_srqc::FIELDS)];
const CHANGE_RMP: Structures = &[(0, layout::modify_rmp_in::FIELDS), (0x280, context::wq::FIELDS)];
const PKEY: Structures = &[(0, layout::query_hca_vport_pkey_in::FIELDS)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_sorted_and_unique() {
        assert!(COMMANDS.is_sorted_by(|a, b| a.opcode < b.opcode));
    }

    #[test]
    fn every_input_holds_the_fields_that_are_listed_for_it() {
        let fields = COMMANDS.iter().flat_map(|spec| {
            let listed = spec.fields.iter();
            listed.flat_map(move |(bit, fields)| fields.iter().map(move |field| (spec, bit, field)))
        });
        let outside: Vec<_> = fields
            .map(|(spec, bit, (name, field))| (spec, name, field.at(*bit).end()))
            .filter(|(spec, _, end)| *end > spec.input.max(16))
            .map(|(spec, name, end)| format!("{}: {name} ends at byte {end}", spec.name))
            .collect();
        assert!(outside.is_empty(), "{outside:#?}");
    }
}
