//! Which DEVX methods accept which firmware commands (the lists in hw/mlx5/devx.c).
#![forbid(unsafe_code)]

use std::ops::Range;

use uverbs_soft_adapter::firmware::bits::Field;
use uverbs_soft_adapter::firmware::command::Command;
use uverbs_soft_adapter::firmware::flow_counter::length as flow_counters;
use uverbs_soft_adapter::firmware::layout::command::{
    alloc_q_counter_out, create_cq_in, create_mkey_in, create_qp_in, create_xrc_srq_in,
    general_object, header, object, query_q_counter_in,
};
use uverbs_soft_adapter::firmware::layout::context::{cqc, mkc, qpc, wq, xrc_srqc};
use uverbs_soft_adapter::firmware::layout::ethernet::{
    create_flow_group_in, destroy_flow_group_in, flow_counter, query_flow_counter_in, set_fte_in,
};

/// Commands that create objects and need special handling.
pub(crate) mod opcode {
    pub(crate) const CREATE_MKEY: u16 = 0x200;
    pub(crate) const CREATE_CQ: u16 = 0x400;
    pub(crate) const MODIFY_CQ: u16 = 0x403;
    pub(crate) const CREATE_QP: u16 = 0x500;
    pub(crate) const CREATE_XRC_SRQ: u16 = 0x705;
    pub(crate) const CREATE_DCT: u16 = 0x710;
    pub(crate) const CREATE_XRQ: u16 = 0x717;
    pub(crate) const CREATE_TIR: u16 = 0x900;
    pub(crate) const CREATE_SQ: u16 = 0x904;
    pub(crate) const CREATE_RQ: u16 = 0x908;
    pub(crate) const CREATE_RMP: u16 = 0x90c;
    pub(crate) const CREATE_FLOW_TABLE: u16 = 0x930;
    pub(crate) const CREATE_FLOW_GROUP: u16 = 0x933;
    pub(crate) const SET_FLOW_TABLE_ENTRY: u16 = 0x936;
    pub(crate) const ALLOC_FLOW_COUNTER: u16 = 0x939;
    pub(crate) const CREATE_GENERAL_OBJECT: u16 = 0xa00;
}
use opcode::{
    ALLOC_FLOW_COUNTER, CREATE_CQ, CREATE_DCT, CREATE_FLOW_GROUP, CREATE_FLOW_TABLE,
    CREATE_GENERAL_OBJECT, CREATE_MKEY, CREATE_QP, CREATE_RMP, CREATE_RQ, CREATE_SQ, CREATE_TIR,
    CREATE_XRC_SRQ, CREATE_XRQ, MODIFY_CQ, SET_FLOW_TABLE_ENTRY,
};

/// Bytes of a flow table command with the port, and the table's type and number.
const PLACE: Range<usize> = 8..24;

/// Objects of one kind: the command that creates them, and the commands that refer to them.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) create: u16,
    pub(super) destroy: u16,
    modify: &'static [u16],
    query: &'static [u16],
    /// Order of destruction when the file closes: users before the objects that they use.
    pub(super) rank: u8,
    /// Field of the creation's output with the number, or of its input if `is_chosen`.
    number: Field,
    /// Whether the program chooses the number.
    is_chosen: bool,
    /// Field in which destruction names it.
    destroyed: Field,
    /// Field in which the other commands name it.
    subject: Field,
}

impl Family {
    const fn new(
        rank: u8,
        (create, destroy): (u16, u16),
        modify: &'static [u16],
        query: &'static [u16],
    ) -> Self {
        let [number, destroyed, subject] = [object::NUMBER; 3];
        let is_chosen = false;
        Self { create, destroy, modify, query, rank, number, is_chosen, destroyed, subject }
    }

    /// The number of the object that a command has created (`devx_get_created_obj_id`).
    pub(super) fn created(&self, command: &Command<'_>) -> u32 {
        match self.is_chosen {
            true => command.get32(self.number),
            false => self.number.get32(&command.reply.output),
        }
    }

    /// The command that destroys the object of this number, which `creation` has created
    /// (`devx_obj_build_destroy_cmd`).
    pub(super) fn destruction(&self, creation: &Command<'_>, number: u32) -> Vec<u8> {
        let mut input = vec![0; self.destruction_length()];
        if input.len() > super::HEADER {
            input[PLACE].copy_from_slice(&creation.structure(0)[PLACE]);
        }
        header::OPCODE.set(&mut input, self.destroy.into());
        header::UID.set(&mut input, creation.user_context().into());
        self.destroyed.set(&mut input, number.into());
        if self.create == CREATE_GENERAL_OBJECT {
            general_object::TYPE.set(&mut input, creation.get(general_object::TYPE));
        }
        input
    }

    fn destruction_length(&self) -> usize {
        match self.create {
            CREATE_FLOW_TABLE | CREATE_FLOW_GROUP | SET_FLOW_TABLE_ENTRY => 64,
            _ => super::HEADER,
        }
    }
}

/// Kinds of objects that this firmware has. `firmware/table.rs` has the commands' names.
const FAMILIES: &[Family] = &[
    Family::new(2, (CREATE_MKEY, 0x202), &[], &[0x201]),
    Family::new(4, (CREATE_CQ, 0x401), &[MODIFY_CQ], &[0x402]),
    Family::new(
        1,
        (CREATE_QP, 0x501),
        &[0x502, 0x503, 0x504, 0x505, 0x506, 0x507, 0x50a, 0x50e],
        &[0x50b],
    ),
    Family::new(2, (CREATE_XRC_SRQ, 0x706), &[0x708], &[0x707]),
    Family::new(1, (CREATE_DCT, 0x711), &[0x714], &[0x713]),
    Family::new(2, (CREATE_XRQ, 0x718), &[0x71a], &[0x719]),
    // Counter sets.
    Family {
        number: alloc_q_counter_out::COUNTER_SET_ID,
        destroyed: alloc_q_counter_out::COUNTER_SET_ID,
        subject: query_q_counter_in::COUNTER_SET_ID,
        ..Family::new(5, (0x771, 0x772), &[], &[0x773])
    },
    // Flow counters.
    Family {
        number: flow_counter::ID,
        destroyed: flow_counter::ID,
        subject: query_flow_counter_in::FLOW_COUNTER_ID,
        ..Family::new(5, (ALLOC_FLOW_COUNTER, 0x93a), &[], &[0x93b])
    },
    // Flow tables, their groups and their entries. The firmware does not support the queries.
    Family {
        destroyed: create_flow_group_in::TABLE_ID,
        subject: create_flow_group_in::TABLE_ID,
        ..Family::new(3, (CREATE_FLOW_TABLE, 0x931), &[0x93c], &[0x932])
    },
    Family {
        destroyed: destroy_flow_group_in::GROUP_ID,
        subject: destroy_flow_group_in::GROUP_ID,
        ..Family::new(2, (CREATE_FLOW_GROUP, 0x934), &[], &[0x935])
    },
    Family {
        number: set_fte_in::FLOW_INDEX,
        is_chosen: true,
        destroyed: set_fte_in::FLOW_INDEX,
        subject: set_fte_in::FLOW_INDEX,
        ..Family::new(0, (SET_FLOW_TABLE_ENTRY, 0x938), &[SET_FLOW_TABLE_ENTRY], &[0x937])
    },
    // General objects. The firmware can neither query nor modify them.
    Family {
        number: general_object::ID,
        destroyed: general_object::ID,
        subject: general_object::ID,
        ..Family::new(5, (CREATE_GENERAL_OBJECT, 0xa03), &[0xa01], &[0xa02])
    },
    // PDs, XRC domains, transport domains.
    Family::new(5, (0x800, 0x801), &[], &[]),
    Family::new(4, (0x80e, 0x80f), &[], &[]),
    Family::new(5, (0x816, 0x817), &[], &[]),
    // TIRs.
    Family::new(1, (CREATE_TIR, 0x902), &[0x901], &[0x903]),
    Family::new(3, (CREATE_SQ, 0x906), &[0x905], &[0x907]),
    Family::new(3, (CREATE_RQ, 0x90a), &[0x909], &[0x90b]),
    Family::new(2, (CREATE_RMP, 0x90e), &[0x90d], &[0x90f]),
    // TISs, RQTs.
    Family::new(4, (0x912, 0x914), &[0x913], &[0x915]),
    Family::new(2, (0x916, 0x918), &[0x917], &[0x919]),
];

/// Further creation commands, which this firmware does not support: scheduling elements, PSVs, SRQs
/// of old firmware, multicast memberships, VXLAN ports, entries of the address table, contexts that
/// change packets.
const OTHER_CREATIONS: &[u16] = &[0x600, 0x700, 0x782, 0x806, 0x827, 0x829, 0x93d, 0x940];

/// `devx_is_general_cmd`: queries of the adapter, of ports, of congestion and of LAG, NOP, and the
/// range reserved for general commands.
pub(super) fn is_general(opcode: u16) -> bool {
    const GENERAL: &[u16] = &[
        0x100, 0x101, 0x10a, 0x750, 0x752, 0x754, 0x760, 0x762, 0x76f, 0x770, 0x80a, 0x80d, 0x822,
        0x824, 0x826, 0x842,
    ];
    (0xb00..0xd00).contains(&opcode) || GENERAL.contains(&opcode)
}

/// `devx_is_obj_create_cmd`.
pub(super) fn is_creation(command: &Command<'_>) -> bool {
    let opcode = command.get(header::OPCODE) as u16;
    let is_known = family_of(opcode).is_some() || OTHER_CREATIONS.contains(&opcode);
    is_known && entry_operation(command).is_none_or(|operation| operation == NEW_ENTRY)
}

/// Operations of SET_FLOW_TABLE_ENTRY, which both creates entries and modifies them.
const NEW_ENTRY: u64 = 0;
const MODIFY_ENTRY: u64 = 1;

/// The operation of a command, if it is SET_FLOW_TABLE_ENTRY.
fn entry_operation(command: &Command<'_>) -> Option<u64> {
    let is_entry = command.get(header::OPCODE) as u16 == SET_FLOW_TABLE_ENTRY;
    is_entry.then(|| command.get(header::OP_MOD))
}

/// The kind of objects that a command creates.
pub(super) fn family_of(creation: u16) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.create == creation)
}

/// How many consecutive numbers the object of a creation command has.
pub(super) fn length(command: &Command<'_>) -> u32 {
    match command.get(header::OPCODE) as u16 {
        ALLOC_FLOW_COUNTER => flow_counters(command),
        _ => 1,
    }
}

/// The kind of access that a command makes to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Modify,
    Query,
}

/// The creation command and the number of the object that a command is about, if it is of this kind
/// (`devx_is_obj_modify_cmd`, `devx_is_obj_query_cmd`, `devx_get_obj_id`).
pub(super) fn subject(act: Act, command: &Command<'_>) -> Option<(u16, u32)> {
    if entry_operation(command).is_some_and(|operation| operation != MODIFY_ENTRY) {
        return None;
    }
    let opcode = command.get(header::OPCODE) as u16;
    let opcodes = |family: &Family| match act {
        Act::Modify => family.modify,
        Act::Query => family.query,
    };
    let family = FAMILIES.iter().find(|family| opcodes(family).contains(&opcode))?;
    Some((family.create, command.get32(family.subject)))
}

/// Marks rings, doorbell records and keys as being in umems (`devx_set_umem_valid`,
/// `devx_handle_mkey_create`).
pub(super) fn set_umem_valid(input: &mut [u8]) {
    const CONTEXT: usize = 0x80;
    const QP_CONTEXT: usize = 0xc0;
    /// Offset of the work queue in the contexts of SQs, RQs and RMPs.
    const QUEUE: usize = 0x100 + 0x180;
    /// Offset of the work queue in the context of an XRQ.
    const XRQ_QUEUE: usize = 0x80 + 0x400;
    let valid: &[Field] = match header::OPCODE.get(input) as u16 {
        CREATE_MKEY if !is_indirect(input) => &[create_mkey_in::MKEY_UMEM_VALID],
        CREATE_CQ => &[create_cq_in::CQ_UMEM_VALID, cqc::DBR_UMEM_VALID.at(CONTEXT)],
        MODIFY_CQ => &[create_cq_in::CQ_UMEM_VALID],
        CREATE_QP => &[create_qp_in::WQ_UMEM_VALID, qpc::DBR_UMEM_VALID.at(QP_CONTEXT)],
        CREATE_XRC_SRQ => {
            &[create_xrc_srq_in::XRC_SRQ_UMEM_VALID, xrc_srqc::DBR_UMEM_VALID.at(CONTEXT)]
        }
        CREATE_SQ | CREATE_RQ | CREATE_RMP => {
            &[wq::WQ_UMEM_VALID.at(QUEUE), wq::DBR_UMEM_VALID.at(QUEUE)]
        }
        CREATE_XRQ => &[wq::WQ_UMEM_VALID.at(XRQ_QUEUE), wq::DBR_UMEM_VALID.at(XRQ_QUEUE)],
        _ => &[],
    };
    valid.iter().for_each(|field| field.set(input, 1));
}

/// Whether a key is indirect: a list of other keys.
fn is_indirect(input: &[u8]) -> bool {
    const CONTEXT: usize = 0x80;
    const KLM: u64 = 2;
    const KSM: u64 = 3;
    let high = mkc::ACCESS_MODE_4_2.at(CONTEXT).get(input);
    let mode = high << 2 | mkc::ACCESS_MODE_1_0.at(CONTEXT).get(input);
    mode == KLM || mode == KSM
}
