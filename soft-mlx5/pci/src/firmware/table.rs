//! The commands that the firmware knows. Opcodes and names: `MLX5_CMD_OP_*` in `mlx5_ifc.h`.

use super::command::Command;
use super::refusal::Done;
use super::{
    Firmware, capability, event_queue, hca, mad, multicast, nic_vport, pages, port, register, uar,
    vport_counter,
};
use crate::layout::command as layout;
use crate::layout::{context, port as port_layout};
use uverbs_soft_adapter::firmware::table::{Form, Structures};

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

type Handler = fn(&mut Firmware, &mut Command<'_>) -> Done;

/// A command of this front end, as opposed to commands about objects.
pub(super) struct CommandSpec {
    pub(super) form: Form,
    pub(super) phase: Phase,
    pub(super) run: Handler,
}

/// The command of an opcode.
pub(super) fn find(opcode: u16) -> Option<&'static CommandSpec> {
    COMMANDS
        .binary_search_by_key(&opcode, |spec| spec.form.opcode)
        .ok()
        .map(|index| &COMMANDS[index])
}

/// A row per command: opcode, name, phase, smallest input and output in bytes, structures, handler.
macro_rules! commands {
    ($($opcode:literal $name:literal $phase:ident ($input:literal, $output:literal)
        $fields:ident $run:expr;)*) => {
        &[$(CommandSpec {
            form: Form {
                opcode: $opcode,
                name: $name,
                input: $input,
                output: $output,
                fields: $fields,
            },
            phase: Phase::$phase,
            run: $run,
        },)*]
    };
}

const OBJECT: Structures = &[(0, layout::object::FIELDS)];

const COMMANDS: &[CommandSpec] = commands! {
    0x100 "QUERY_HCA_CAP" Enabled (16, 16) HCA_CAP capability::query;
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
    0x301 "CREATE_EQ" Initialized (272, 16) EQ event_queue::create;
    0x302 "DESTROY_EQ" Initialized (16, 8) EQ_NUMBER event_queue::destroy;
    0x303 "QUERY_EQ" Initialized (16, 272) EQ_NUMBER event_queue::query;
    0x50d "MAD_IFC" Initialized (272, 272) NONE mad::process;
    0x750 "QUERY_VPORT_STATE" Initialized (16, 16) NONE port::query_vport_state;
    0x754 "QUERY_NIC_VPORT_CONTEXT" Initialized (16, 272) NIC_VPORT_QUERY nic_vport::query;
    0x755 "MODIFY_NIC_VPORT_CONTEXT" Initialized (512, 8) NIC_VPORT nic_vport::modify;
    0x761 "SET_ROCE_ADDRESS" Initialized (48, 8) ROCE_ADDRESS nic_vport::set_roce_address;
    0x762 "QUERY_HCA_VPORT_CONTEXT" Initialized (16, 528) NONE port::query_hca_vport_context;
    0x763 "MODIFY_HCA_VPORT_CONTEXT" Initialized (528, 8) VPORT port::modify_hca_vport_context;
    0x764 "QUERY_HCA_VPORT_GID" Initialized (16, 32) GID port::query_hca_vport_gid;
    0x765 "QUERY_HCA_VPORT_PKEY" Initialized (16, 20) PKEY port::query_hca_vport_pkey;
    0x770 "QUERY_VPORT_COUNTER" Initialized (32, 528) NONE vport_counter::query;
    0x802 "ALLOC_UAR" Initialized (8, 16) NONE uar::allocate;
    0x803 "DEALLOC_UAR" Initialized (16, 8) OBJECT uar::free;
    0x805 "ACCESS_REG" Enabled (16, 16) REGISTER register::access;
    0x806 "ATTACH_TO_MCG" Initialized (32, 8) OBJECT multicast::attach;
    0x807 "DETACH_FROM_MCG" Initialized (32, 8) OBJECT multicast::detach;
    0x80d "NOP" Disabled (8, 8) NONE hca::nop;
};

const NONE: Structures = &[];
const HCA_CAP: Structures = &[(0, layout::query_hca_cap_in::FIELDS)];
const TEARDOWN: Structures = &[(0, layout::teardown_hca_in::FIELDS)];
const GIVEN_PAGES: Structures = &[(0, layout::manage_pages_in::FIELDS)];
const ISSI: Structures = &[(0, layout::set_issi_in::FIELDS)];
const EQ: Structures = &[(0x80, context::eqc::FIELDS)];
const EQ_NUMBER: Structures = &[(0, layout::create_eq_out::FIELDS)];
const REGISTER: Structures = &[(0, layout::access_register_in::FIELDS)];
const VPORT: Structures = &[(0x80, port_layout::hca_vport_context::FIELDS)];
const NIC_VPORT_QUERY: Structures = &[(0, layout::query_nic_vport_context_in::FIELDS)];
const NIC_VPORT: Structures = &[
    (0, layout::modify_nic_vport_context_in::FIELDS),
    (0x800, port_layout::nic_vport_context::FIELDS),
];
const ROCE_ADDRESS: Structures =
    &[(0, layout::set_roce_address_in::FIELDS), (0x80, layout::roce_addr_layout::FIELDS)];
const GID: Structures = &[(0, layout::query_hca_vport_gid_in::FIELDS)];
const PKEY: Structures = &[(0, layout::query_hca_vport_pkey_in::FIELDS)];

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
