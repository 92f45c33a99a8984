//! The commands about objects. Opcodes and names: `MLX5_CMD_OP_*` in `mlx5_ifc.h`.

use super::bits::Field;
use super::command::Command;
use super::ethernet::{Rq, Sq};
use super::layout::{command as layout, context, ethernet as ethernet_layout};
use super::queue_pair::to_ready_to_send;
use super::record::{Rqt, Tir, Tis};
use super::refusal::Done;
use super::{
    Firmware, completion_queue, counters, dc_target, ethernet, flow_counter, flow_table,
    general_object, memory_key, queue_pair, record, resource, shared_receive, tag_matching, umem,
    user_context,
};
use crate::core::{ObjectKind, QpState};

type Handler = fn(&mut Firmware<'_>, &mut Command<'_>) -> Done;

/// Structures of an input, for the trace: position in bits and fields.
pub type Structures = &'static [(usize, &'static [(&'static str, Field)])];

/// The format of a command.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// The opcode.
    pub opcode: u16,
    /// Its name, without `MLX5_CMD_OP_`.
    pub name: &'static str,
    /// Smallest input in bytes.
    pub input: usize,
    /// Smallest output in bytes.
    pub output: usize,
    /// The fields of the input that the trace shows.
    pub fields: Structures,
}

impl Form {
    /// Listed fields that are after the end of the smallest input.
    pub fn outside(&self) -> Vec<String> {
        let listed = self.fields.iter();
        let fields = listed.flat_map(|(bit, all)| all.iter().map(move |field| (bit, field)));
        let ends = fields.map(|(bit, (name, field))| (name, field.at(*bit).end()));
        let outside = ends.filter(|(_, end)| *end > self.input.max(16));
        outside.map(|(name, end)| format!("{}: {name} ends at byte {end}", self.name)).collect()
    }
}

/// A command about objects.
#[derive(Debug)]
pub struct CommandSpec {
    /// Its format.
    pub form: Form,
    pub(super) run: Handler,
    /// The kind of object that it names by [`object::NUMBER`](layout::object::NUMBER), if it
    /// changes, queries or destroys one.
    pub(super) subject: Option<ObjectKind>,
}

/// The command of an opcode, if it is about objects.
pub fn find(opcode: u16) -> Option<&'static CommandSpec> {
    let index = COMMANDS.binary_search_by_key(&opcode, |spec| spec.form.opcode).ok()?;
    Some(&COMMANDS[index])
}

/// A row per command: opcode, name, smallest input and output in bytes, structures, handler, and
/// the kind of the object that it is about.
macro_rules! commands {
    ($($opcode:literal $name:literal ($input:literal, $output:literal) $fields:ident
        $run:expr $(, $subject:ident)?;)*) => {
        &[$(CommandSpec {
            form: Form {
                opcode: $opcode,
                name: $name,
                input: $input,
                output: $output,
                fields: $fields,
            },
            run: $run,
            subject: [$(ObjectKind::$subject)?].first().copied(),
        },)*]
    };
}

const COMMANDS: &[CommandSpec] = commands! {
    0x200 "CREATE_MKEY" (272, 16) MKEY memory_key::create;
    0x201 "QUERY_MKEY" (16, 304) OBJECT memory_key::query, Mkey;
    0x202 "DESTROY_MKEY" (16, 8) OBJECT memory_key::destroy, Mkey;
    0x203 "QUERY_SPECIAL_CONTEXTS" (8, 32) NONE memory_key::query_special_contexts;
    0x400 "CREATE_CQ" (272, 16) CQ completion_queue::create;
    0x401 "DESTROY_CQ" (16, 8) OBJECT completion_queue::destroy, Cq;
    0x402 "QUERY_CQ" (16, 272) OBJECT completion_queue::query, Cq;
    0x403 "MODIFY_CQ" (272, 8) CHANGE_CQ completion_queue::modify, Cq;
    0x500 "CREATE_QP" (272, 16) CREATE_QP queue_pair::create;
    0x501 "DESTROY_QP" (16, 8) OBJECT queue_pair::destroy, Qp;
    0x502 "RST2INIT_QP" (256, 8) MODIFY_QP queue_pair::reset_to_init, Qp;
    0x503 "INIT2RTR_QP" (256, 8) MODIFY_QP queue_pair::init_to_rtr, Qp;
    0x504 "RTR2RTS_QP" (256, 8) MODIFY_QP queue_pair::rtr_to_rts, Qp;
    0x505 "RTS2RTS_QP" (256, 8) MODIFY_QP
        |firmware, command| to_ready_to_send(firmware, command, QpState::ReadyToSend), Qp;
    0x506 "SQERR2RTS_QP" (256, 8) MODIFY_QP
        |firmware, command| to_ready_to_send(firmware, command, QpState::SendQueueError), Qp;
    0x507 "2ERR_QP" (16, 8) OBJECT
        |firmware, command| queue_pair::stop(firmware, command, QpState::Error), Qp;
    0x50a "2RST_QP" (16, 8) OBJECT
        |firmware, command| queue_pair::stop(firmware, command, QpState::Reset), Qp;
    0x50b "QUERY_QP" (16, 272) OBJECT queue_pair::query, Qp;
    0x50c "SQD_RTS_QP" (256, 8) MODIFY_QP
        |firmware, command| to_ready_to_send(firmware, command, QpState::SendQueueDrain), Qp;
    0x50e "INIT2INIT_QP" (256, 8) MODIFY_QP queue_pair::init_to_init, Qp;
    0x703 "ARM_RQ" (16, 8) ARM_RQ tag_matching::arm_rq, Srq;
    0x705 "CREATE_XRC_SRQ" (272, 16) XRC_SRQ shared_receive::create_xrc;
    0x706 "DESTROY_XRC_SRQ" (16, 8) OBJECT shared_receive::destroy_xrc, Srq;
    0x707 "QUERY_XRC_SRQ" (16, 80) OBJECT shared_receive::query_xrc, Srq;
    0x708 "ARM_XRC_SRQ" (16, 8) ARM_RQ shared_receive::arm_xrc, Srq;
    0x710 "CREATE_DCT" (128, 16) DCT dc_target::create;
    0x711 "DESTROY_DCT" (16, 8) OBJECT dc_target::destroy, Qp;
    0x712 "DRAIN_DCT" (16, 8) OBJECT dc_target::drain, Qp;
    0x713 "QUERY_DCT" (16, 128) OBJECT dc_target::query, Qp;
    0x714 "ARM_DCT_FOR_KEY_VIOLATION" (16, 8) OBJECT dc_target::arm, Qp;
    0x717 "CREATE_XRQ" (336, 16) XRQ tag_matching::create;
    0x718 "DESTROY_XRQ" (16, 8) OBJECT tag_matching::destroy, Srq;
    0x719 "QUERY_XRQ" (16, 336) OBJECT tag_matching::query, Srq;
    0x71a "ARM_XRQ" (16, 8) ARM_RQ tag_matching::arm, Srq;
    0x771 "ALLOC_Q_COUNTER" (8, 16) NONE counters::allocate;
    0x772 "DEALLOC_Q_COUNTER" (16, 8) COUNTER counters::free;
    0x773 "QUERY_Q_COUNTER" (32, 256) NONE counters::query;
    0x800 "ALLOC_PD" (8, 16) NONE resource::alloc_pd;
    0x801 "DEALLOC_PD" (16, 8) OBJECT resource::dealloc_pd, Pd;
    0x80e "ALLOC_XRCD" (8, 16) NONE resource::alloc_xrcd;
    0x80f "DEALLOC_XRCD" (16, 8) OBJECT resource::dealloc_xrcd, Xrcd;
    0x816 "ALLOC_TRANSPORT_DOMAIN" (8, 16) NONE resource::alloc_transport_domain;
    0x817 "DEALLOC_TRANSPORT_DOMAIN" (16, 8) OBJECT
        resource::dealloc_transport_domain, TransportDomain;
    0x900 "CREATE_TIR" (272, 16) TIR record::create::<Tir>;
    0x901 "MODIFY_TIR" (272, 8) OBJECT record::modify::<Tir>, Tir;
    0x902 "DESTROY_TIR" (16, 8) OBJECT record::destroy::<Tir>, Tir;
    0x903 "QUERY_TIR" (16, 272) OBJECT record::query::<Tir>, Tir;
    0x904 "CREATE_SQ" (272, 16) SQ ethernet::create_send;
    0x905 "MODIFY_SQ" (272, 8) CHANGE_SQ ethernet::modify_send, Qp;
    0x906 "DESTROY_SQ" (16, 8) OBJECT ethernet::destroy::<Sq>, Qp;
    0x907 "QUERY_SQ" (16, 272) OBJECT ethernet::query::<Sq>, Qp;
    0x908 "CREATE_RQ" (272, 16) RQ ethernet::create_receive;
    0x909 "MODIFY_RQ" (272, 8) CHANGE_RQ ethernet::modify_receive, Qp;
    0x90a "DESTROY_RQ" (16, 8) OBJECT ethernet::destroy::<Rq>, Qp;
    0x90b "QUERY_RQ" (16, 272) OBJECT ethernet::query::<Rq>, Qp;
    0x90c "CREATE_RMP" (272, 16) RMP shared_receive::create_pool;
    0x90d "MODIFY_RMP" (272, 8) CHANGE_RMP shared_receive::modify_pool, Srq;
    0x90e "DESTROY_RMP" (16, 8) OBJECT shared_receive::destroy_pool, Srq;
    0x90f "QUERY_RMP" (16, 272) OBJECT shared_receive::query_pool, Srq;
    0x912 "CREATE_TIS" (192, 16) TIS record::create::<Tis>;
    0x913 "MODIFY_TIS" (192, 8) OBJECT record::modify::<Tis>, Tis;
    0x914 "DESTROY_TIS" (16, 8) OBJECT record::destroy::<Tis>, Tis;
    0x915 "QUERY_TIS" (16, 176) OBJECT record::query::<Tis>, Tis;
    0x916 "CREATE_RQT" (272, 16) RQT record::create::<Rqt>;
    0x917 "MODIFY_RQT" (272, 8) OBJECT record::modify::<Rqt>, Rqt;
    0x918 "DESTROY_RQT" (16, 8) OBJECT record::destroy::<Rqt>, Rqt;
    0x919 "QUERY_RQT" (16, 272) OBJECT record::query::<Rqt>, Rqt;
    0x92f "SET_FLOW_TABLE_ROOT" (64, 8) FLOW_ROOT flow_table::set_root;
    0x930 "CREATE_FLOW_TABLE" (64, 16) FLOW_TABLE flow_table::create_table;
    0x931 "DESTROY_FLOW_TABLE" (64, 8) FLOW_ROOT flow_table::destroy_table;
    0x933 "CREATE_FLOW_GROUP" (1024, 16) FLOW_GROUP flow_table::create_group;
    0x934 "DESTROY_FLOW_GROUP" (64, 8) DESTROYED_FLOW_GROUP flow_table::destroy_group;
    0x936 "SET_FLOW_TABLE_ENTRY" (832, 8) FLOW_ENTRY flow_table::set_entry;
    0x938 "DELETE_FLOW_TABLE_ENTRY" (64, 8) FLOW_ROOT flow_table::delete_entry;
    0x939 "ALLOC_FLOW_COUNTER" (16, 16) FLOW_COUNTER flow_counter::allocate;
    0x93a "DEALLOC_FLOW_COUNTER" (16, 8) FLOW_COUNTER flow_counter::free;
    0x93b "QUERY_FLOW_COUNTER" (32, 32) FLOW_COUNTS flow_counter::query;
    0x93c "MODIFY_FLOW_TABLE" (64, 8) FLOW_ROOT flow_table::modify_table;
    0xa00 "CREATE_GENERAL_OBJECT" (16, 16) GENERAL general_object::create;
    0xa03 "DESTROY_GENERAL_OBJECT" (16, 8) GENERAL general_object::destroy;
    0xa04 "CREATE_UCTX" (64, 16) NONE user_context::create;
    0xa06 "DESTROY_UCTX" (16, 8) NONE user_context::destroy;
    0xa08 "CREATE_UMEM" (48, 16) NONE umem::create;
    0xa0a "DESTROY_UMEM" (16, 8) OBJECT umem::destroy;
};

const NONE: Structures = &[];
const OBJECT: Structures = &[(0, layout::object::FIELDS)];
const CQ: Structures = &[(0x80, context::cqc::FIELDS)];
const SQ: Structures = &[(0x100, ethernet_layout::sqc::FIELDS), (0x280, context::wq::FIELDS)];
const RQ: Structures = &[(0x100, ethernet_layout::rqc::FIELDS), (0x280, context::wq::FIELDS)];
const CHANGE_SQ: Structures = &[(0, ethernet_layout::modify_sq_in::FIELDS)];
const CHANGE_RQ: Structures = &[(0, ethernet_layout::modify_rq_in::FIELDS)];
const FLOW_ROOT: Structures = &[(0, ethernet_layout::set_flow_table_root_in::FIELDS)];
const FLOW_TABLE: Structures = &[
    (0, ethernet_layout::create_flow_table_in::FIELDS),
    (0xc0, ethernet_layout::flow_table_context::FIELDS),
];
const FLOW_GROUP: Structures = &[(0, ethernet_layout::create_flow_group_in::FIELDS)];
const DESTROYED_FLOW_GROUP: Structures = &[(0, ethernet_layout::destroy_flow_group_in::FIELDS)];
const FLOW_ENTRY: Structures =
    &[(0, ethernet_layout::set_fte_in::FIELDS), (0x200, ethernet_layout::flow_context::FIELDS)];
const GENERAL: Structures = &[(0, layout::general_object::FIELDS)];
const FLOW_COUNTER: Structures = &[(0, ethernet_layout::flow_counter::FIELDS)];
const FLOW_COUNTS: Structures = &[(0, ethernet_layout::query_flow_counter_in::FIELDS)];
const ARM_RQ: Structures = &[(0, layout::arm_rq_in::FIELDS)];
const TIR: Structures = &[(0x100, ethernet_layout::tirc::FIELDS)];
const DCT: Structures = &[(0x80, context::dctc::FIELDS)];
const RMP: Structures = &[(0x280, context::wq::FIELDS)];
const TIS: Structures = &[(0x100, context::tisc::FIELDS)];
const RQT: Structures = &[(0x100, ethernet_layout::rqtc::FIELDS)];
const COUNTER: Structures = &[(0, layout::alloc_q_counter_out::FIELDS)];
const MKEY: Structures = &[(0, layout::create_mkey_in::FIELDS), (0x80, context::mkc::FIELDS)];
const CHANGE_CQ: Structures = &[(0, layout::modify_cq_in::FIELDS), (0x80, context::cqc::FIELDS)];
const CREATE_QP: Structures = &[(0, layout::create_qp_in::FIELDS), (0xc0, context::qpc::FIELDS)];
const MODIFY_QP: Structures = &[
    (0, layout::modify_qp_in::FIELDS),
    (0xc0, context::qpc::FIELDS),
    (0xc0 + 0xc0, context::ads::FIELDS),
];
const XRC_SRQ: Structures = &[(0x80, context::xrc_srqc::FIELDS)];
const XRQ: Structures = &[
    (0x80, context::xrqc::FIELDS),
    (0x180, context::tag_matching_topology::FIELDS),
    (0x480, context::wq::FIELDS),
];
const CHANGE_RMP: Structures = &[(0, layout::modify_rmp_in::FIELDS), (0x280, context::wq::FIELDS)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_sorted_and_unique() {
        assert!(COMMANDS.is_sorted_by(|a, b| a.form.opcode < b.form.opcode));
    }

    #[test]
    fn every_input_holds_the_fields_that_are_listed_for_it() {
        let outside: Vec<_> = COMMANDS.iter().flat_map(|spec| spec.form.outside()).collect();
        assert!(outside.is_empty(), "{outside:#?}");
    }
}
