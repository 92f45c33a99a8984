//! The commands that the firmware knows. Opcodes and names: `MLX5_CMD_OP_*` in `mlx5_ifc.h`.

use super::command::{Command, Reply};
use super::record::{Rqt, Tir, Tis};
use super::refusal::Refusal;
use super::{
    Firmware, capability, completion_queue, counters, ethernet, event_queue, flow, hca, mad,
    memory_key, nic_vport, pages, port, queue_pair, record, register, resource, shared_receive,
};
use crate::bits::Field;
use crate::layout::command as layout;
use crate::layout::{context, ethernet as ethernet_layout, port as port_layout};

/// From when on a command may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Always.
    Disabled,
    /// After ENABLE_HCA.
    Enabled,
    /// After INIT_HCA.
    Initialized,
}

type Handler = fn(&mut Firmware, &Command<'_>, &mut Reply) -> Result<(), Refusal>;

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

const fn spec(
    opcode: u16,
    name: &'static str,
    phase: Phase,
    (input, output): (usize, usize),
    fields: Structures,
    run: Handler,
) -> CommandSpec {
    CommandSpec { opcode, name, phase, input, output, fields, run }
}

use Phase::{Disabled, Enabled, Initialized};

const OBJECT: Structures = &[(0, layout::object::FIELDS)];

const COMMANDS: &[CommandSpec] = &[
    spec(
        0x100,
        "QUERY_HCA_CAP",
        Enabled,
        (16, 4112),
        &[(0, layout::query_hca_cap_in::FIELDS)],
        capability::query,
    ),
    spec(0x101, "QUERY_ADAPTER", Initialized, (8, 272), &[], hca::query_adapter),
    spec(0x102, "INIT_HCA", Enabled, (8, 8), &[], hca::init),
    spec(
        0x103,
        "TEARDOWN_HCA",
        Enabled,
        (16, 16),
        &[(0, layout::teardown_hca_in::FIELDS)],
        hca::teardown,
    ),
    spec(0x104, "ENABLE_HCA", Disabled, (16, 8), &[], hca::enable),
    spec(0x105, "DISABLE_HCA", Disabled, (16, 8), &[], hca::disable),
    spec(0x107, "QUERY_PAGES", Enabled, (16, 16), &[], pages::query),
    spec(
        0x108,
        "MANAGE_PAGES",
        Enabled,
        (16, 16),
        &[(0, layout::manage_pages_in::FIELDS)],
        pages::manage,
    ),
    spec(0x109, "SET_HCA_CAP", Enabled, (16, 8), &[], capability::set),
    spec(0x10a, "QUERY_ISSI", Enabled, (8, 112), &[], hca::query_issi),
    spec(0x10b, "SET_ISSI", Enabled, (16, 8), &[(0, layout::set_issi_in::FIELDS)], hca::set_issi),
    spec(0x10d, "SET_DRIVER_VERSION", Initialized, (80, 8), &[], hca::set_driver_version),
    spec(0x200, "CREATE_MKEY", Initialized, (272, 16), MKEY, memory_key::create),
    spec(0x201, "QUERY_MKEY", Initialized, (16, 304), OBJECT, memory_key::query),
    spec(0x202, "DESTROY_MKEY", Initialized, (16, 8), OBJECT, memory_key::destroy),
    spec(
        0x203,
        "QUERY_SPECIAL_CONTEXTS",
        Initialized,
        (8, 32),
        &[],
        memory_key::query_special_contexts,
    ),
    spec(
        0x301,
        "CREATE_EQ",
        Initialized,
        (272, 16),
        &[(0x80, context::eqc::FIELDS)],
        event_queue::create,
    ),
    spec(
        0x302,
        "DESTROY_EQ",
        Initialized,
        (16, 8),
        &[(0, layout::create_eq_out::FIELDS)],
        event_queue::destroy,
    ),
    spec(
        0x303,
        "QUERY_EQ",
        Initialized,
        (16, 272),
        &[(0, layout::create_eq_out::FIELDS)],
        event_queue::query,
    ),
    spec(
        0x400,
        "CREATE_CQ",
        Initialized,
        (272, 16),
        &[(0x80, context::cqc::FIELDS)],
        completion_queue::create,
    ),
    spec(0x401, "DESTROY_CQ", Initialized, (16, 8), OBJECT, completion_queue::destroy),
    spec(0x402, "QUERY_CQ", Initialized, (16, 272), OBJECT, completion_queue::query),
    spec(0x403, "MODIFY_CQ", Initialized, (272, 8), CHANGE_CQ, completion_queue::modify),
    spec(0x500, "CREATE_QP", Initialized, (272, 16), CREATE_QP, queue_pair::create),
    spec(0x501, "DESTROY_QP", Initialized, (16, 8), OBJECT, queue_pair::destroy),
    spec(0x502, "RST2INIT_QP", Initialized, (256, 8), MODIFY_QP, queue_pair::reset_to_init),
    spec(0x503, "INIT2RTR_QP", Initialized, (256, 8), MODIFY_QP, queue_pair::init_to_rtr),
    spec(0x504, "RTR2RTS_QP", Initialized, (256, 8), MODIFY_QP, queue_pair::rtr_to_rts),
    spec(0x505, "RTS2RTS_QP", Initialized, (256, 8), MODIFY_QP, queue_pair::rts_to_rts),
    spec(0x506, "SQERR2RTS_QP", Initialized, (256, 8), MODIFY_QP, queue_pair::sq_error_to_rts),
    spec(0x507, "2ERR_QP", Initialized, (16, 8), OBJECT, queue_pair::to_error),
    spec(0x50a, "2RST_QP", Initialized, (16, 8), OBJECT, queue_pair::to_reset),
    spec(0x50b, "QUERY_QP", Initialized, (16, 272), OBJECT, queue_pair::query),
    spec(0x50c, "SQD_RTS_QP", Initialized, (256, 8), MODIFY_QP, queue_pair::sq_drained_to_rts),
    spec(0x50d, "MAD_IFC", Initialized, (272, 272), &[], mad::process),
    spec(0x50e, "INIT2INIT_QP", Initialized, (256, 8), MODIFY_QP, queue_pair::init_to_init),
    spec(0x705, "CREATE_XRC_SRQ", Initialized, (272, 16), XRC_SRQ, shared_receive::create_xrc),
    spec(0x706, "DESTROY_XRC_SRQ", Initialized, (16, 8), OBJECT, shared_receive::destroy_xrc),
    spec(0x707, "QUERY_XRC_SRQ", Initialized, (16, 80), OBJECT, shared_receive::query_xrc),
    spec(
        0x708,
        "ARM_XRC_SRQ",
        Initialized,
        (16, 8),
        &[(0, layout::arm_rq_in::FIELDS)],
        shared_receive::arm_xrc,
    ),
    spec(0x750, "QUERY_VPORT_STATE", Initialized, (16, 16), &[], port::query_vport_state),
    spec(
        0x754,
        "QUERY_NIC_VPORT_CONTEXT",
        Initialized,
        (16, 272),
        NIC_VPORT_QUERY,
        nic_vport::query,
    ),
    spec(0x755, "MODIFY_NIC_VPORT_CONTEXT", Initialized, (512, 8), NIC_VPORT, nic_vport::modify),
    spec(
        0x761,
        "SET_ROCE_ADDRESS",
        Initialized,
        (48, 8),
        ROCE_ADDRESS,
        nic_vport::set_roce_address,
    ),
    spec(
        0x762,
        "QUERY_HCA_VPORT_CONTEXT",
        Initialized,
        (16, 528),
        &[],
        port::query_hca_vport_context,
    ),
    spec(
        0x763,
        "MODIFY_HCA_VPORT_CONTEXT",
        Initialized,
        (528, 8),
        VPORT,
        port::modify_hca_vport_context,
    ),
    spec(0x764, "QUERY_HCA_VPORT_GID", Initialized, (16, 32), GID, port::query_hca_vport_gid),
    spec(0x765, "QUERY_HCA_VPORT_PKEY", Initialized, (16, 20), PKEY, port::query_hca_vport_pkey),
    spec(0x770, "QUERY_VPORT_COUNTER", Initialized, (32, 528), &[], counters::query_vport),
    spec(0x771, "ALLOC_Q_COUNTER", Initialized, (8, 16), &[], counters::allocate),
    spec(0x772, "DEALLOC_Q_COUNTER", Initialized, (16, 8), COUNTER, counters::free),
    spec(0x773, "QUERY_Q_COUNTER", Initialized, (32, 256), &[], counters::query),
    spec(0x800, "ALLOC_PD", Initialized, (8, 16), &[], resource::alloc_pd),
    spec(0x801, "DEALLOC_PD", Initialized, (16, 8), OBJECT, resource::dealloc_pd),
    spec(0x802, "ALLOC_UAR", Initialized, (8, 16), &[], resource::alloc_uar),
    spec(0x803, "DEALLOC_UAR", Initialized, (16, 8), OBJECT, resource::dealloc_uar),
    spec(
        0x805,
        "ACCESS_REG",
        Enabled,
        (16, 16),
        &[(0, layout::access_register_in::FIELDS)],
        register::access,
    ),
    spec(0x806, "ATTACH_TO_MCG", Initialized, (32, 8), OBJECT, queue_pair::attach),
    spec(0x807, "DETACH_FROM_MCG", Initialized, (32, 8), OBJECT, queue_pair::detach),
    spec(0x80d, "NOP", Disabled, (8, 8), &[], hca::nop),
    spec(0x80e, "ALLOC_XRCD", Initialized, (8, 16), &[], resource::alloc_xrcd),
    spec(0x80f, "DEALLOC_XRCD", Initialized, (16, 8), OBJECT, resource::dealloc_xrcd),
    spec(
        0x816,
        "ALLOC_TRANSPORT_DOMAIN",
        Initialized,
        (8, 16),
        &[],
        resource::alloc_transport_domain,
    ),
    spec(
        0x817,
        "DEALLOC_TRANSPORT_DOMAIN",
        Initialized,
        (16, 8),
        OBJECT,
        resource::dealloc_transport_domain,
    ),
    spec(
        0x900,
        "CREATE_TIR",
        Initialized,
        (272, 16),
        &[(0x100, ethernet_layout::tirc::FIELDS)],
        record::create::<Tir>,
    ),
    spec(0x901, "MODIFY_TIR", Initialized, (272, 8), OBJECT, record::modify::<Tir>),
    spec(0x902, "DESTROY_TIR", Initialized, (16, 8), OBJECT, record::destroy::<Tir>),
    spec(0x903, "QUERY_TIR", Initialized, (16, 272), OBJECT, record::query::<Tir>),
    spec(0x904, "CREATE_SQ", Initialized, (272, 16), SQ, ethernet::create_send),
    spec(
        0x905,
        "MODIFY_SQ",
        Initialized,
        (272, 8),
        &[(0, ethernet_layout::modify_sq_in::FIELDS)],
        ethernet::modify_send,
    ),
    spec(0x906, "DESTROY_SQ", Initialized, (16, 8), OBJECT, ethernet::destroy_send),
    spec(0x907, "QUERY_SQ", Initialized, (16, 272), OBJECT, ethernet::query_send),
    spec(0x908, "CREATE_RQ", Initialized, (272, 16), RQ, ethernet::create_receive),
    spec(
        0x909,
        "MODIFY_RQ",
        Initialized,
        (272, 8),
        &[(0, ethernet_layout::modify_rq_in::FIELDS)],
        ethernet::modify_receive,
    ),
    spec(0x90a, "DESTROY_RQ", Initialized, (16, 8), OBJECT, ethernet::destroy_receive),
    spec(0x90b, "QUERY_RQ", Initialized, (16, 272), OBJECT, ethernet::query_receive),
    spec(
        0x90c,
        "CREATE_RMP",
        Initialized,
        (272, 16),
        &[(0x280, context::wq::FIELDS)],
        shared_receive::create_pool,
    ),
    spec(0x90d, "MODIFY_RMP", Initialized, (272, 8), CHANGE_RMP, shared_receive::modify_pool),
    spec(0x90e, "DESTROY_RMP", Initialized, (16, 8), OBJECT, shared_receive::destroy_pool),
    spec(0x90f, "QUERY_RMP", Initialized, (16, 272), OBJECT, shared_receive::query_pool),
    spec(
        0x912,
        "CREATE_TIS",
        Initialized,
        (192, 16),
        &[(0x100, context::tisc::FIELDS)],
        record::create::<Tis>,
    ),
    spec(0x913, "MODIFY_TIS", Initialized, (192, 8), OBJECT, record::modify::<Tis>),
    spec(0x914, "DESTROY_TIS", Initialized, (16, 8), OBJECT, record::destroy::<Tis>),
    spec(0x915, "QUERY_TIS", Initialized, (16, 176), OBJECT, record::query::<Tis>),
    spec(
        0x916,
        "CREATE_RQT",
        Initialized,
        (272, 16),
        &[(0x100, ethernet_layout::rqtc::FIELDS)],
        record::create::<Rqt>,
    ),
    spec(0x917, "MODIFY_RQT", Initialized, (272, 8), OBJECT, record::modify::<Rqt>),
    spec(0x918, "DESTROY_RQT", Initialized, (16, 8), OBJECT, record::destroy::<Rqt>),
    spec(0x919, "QUERY_RQT", Initialized, (16, 272), OBJECT, record::query::<Rqt>),
    spec(0x92f, "SET_FLOW_TABLE_ROOT", Initialized, (64, 8), FLOW_ROOT, flow::set_root),
    spec(0x930, "CREATE_FLOW_TABLE", Initialized, (64, 16), FLOW_TABLE, flow::create_table),
    spec(0x931, "DESTROY_FLOW_TABLE", Initialized, (64, 8), FLOW_ROOT, flow::destroy_table),
    spec(0x933, "CREATE_FLOW_GROUP", Initialized, (1024, 16), FLOW_GROUP, flow::create_group),
    spec(0x934, "DESTROY_FLOW_GROUP", Initialized, (64, 8), FLOW_GROUP_GONE, flow::destroy_group),
    spec(0x936, "SET_FLOW_TABLE_ENTRY", Initialized, (832, 8), FLOW_ENTRY, flow::set_entry),
    spec(0x938, "DELETE_FLOW_TABLE_ENTRY", Initialized, (64, 8), FLOW_ROOT, flow::delete_entry),
    spec(0x93c, "MODIFY_FLOW_TABLE", Initialized, (64, 8), FLOW_ROOT, flow::modify_table),
];

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
