//! Checks that every method of the ABI crate's tables and every write command is supported, or
//! listed here with the reason.

use std::collections::BTreeSet;

use uverbs_uapi::enums::DriverId;
use uverbs_uapi::objects;
use uverbs_uapi::write::WriteCmd;

use crate::chardev::abi::{methods, write};
use crate::chardev::device::options::Options;

/// Names that belong together, and why they are not modelled.
type Group = (&'static [&'static str], &'static str);

/// Methods that are answered as by a kernel without them.
const METHODS: &[Group] = &[
    (
        &[
            "UVERBS_METHOD_COMP_CNTR_CREATE",
            "UVERBS_METHOD_COMP_CNTR_DESTROY",
            "UVERBS_METHOD_COMP_CNTR_MODIFY",
            "UVERBS_METHOD_COMP_CNTR_READ",
            "UVERBS_METHOD_DMABUF_ALLOC",
            "UVERBS_METHOD_DMAH_ALLOC",
            "UVERBS_METHOD_DMAH_FREE",
            "UVERBS_METHOD_QP_ATTACH_COMP_CNTR",
            "UVERBS_METHOD_QUERY_COMP_CNTR_CAPS",
            "UVERBS_METHOD_QUERY_PORT_SPEED",
            "UVERBS_METHOD_REG_MR",
        ],
        "newer than the kernel that this device answers like (Linux 6.12)",
    ),
    (
        &[
            "MLX5_IB_METHOD_FLOW_ACTION_CREATE_MODIFY_HEADER",
            "MLX5_IB_METHOD_FLOW_ACTION_CREATE_PACKET_REFORMAT",
            "MLX5_IB_METHOD_STEERING_ANCHOR_CREATE",
            "MLX5_IB_METHOD_STEERING_ANCHOR_DESTROY",
            "UVERBS_METHOD_FLOW_ACTION_DESTROY",
            "UVERBS_METHOD_FLOW_ACTION_ESP_CREATE",
            "UVERBS_METHOD_FLOW_ACTION_ESP_MODIFY",
        ],
        "actions on packets, and tables that programs steer to by their firmware commands",
    ),
    (
        &[
            "MLX5_IB_METHOD_GET_DATA_DIRECT_SYSFS_PATH",
            "MLX5_IB_METHOD_QUERY_PORT",
            "MLX5_IB_METHOD_VAR_OBJ_ALLOC",
            "MLX5_IB_METHOD_VAR_OBJ_DESTROY",
        ],
        "features of only some adapters: virtio doorbells, data direct, switch representors",
    ),
];

/// Write commands that are answered with EOPNOTSUPP.
const COMMANDS: &[Group] = &[
    (
        &["POLL_CQ", "POST_RECV", "POST_SEND", "POST_SRQ_RECV", "REQ_NOTIFY_CQ"],
        "mlx5 programs post and poll without the kernel, which disables these for mlx5 (`uverbs_cmd_mask`)",
    ),
    (
        &["BIND_MW", "MODIFY_AH", "PEEK_CQ", "QUERY_AH", "QUERY_MR", "REG_SMR"],
        "the kernel's core declares no handler (`uverbs_def_write_intf` in core/uverbs_cmd.c)",
    ),
];

fn names(groups: &[Group]) -> BTreeSet<&'static str> {
    groups.iter().flat_map(|(names, _)| *names).copied().collect()
}

#[test]
fn every_method_runs_or_is_listed() {
    let options = Options::default();
    let absent: BTreeSet<&str> = objects::all(DriverId::MLX5)
        .flat_map(|object| object.methods.iter().map(move |method| (object.id, method)))
        .filter(|(object, method)| methods::find(*object, method.id, &options).is_none())
        .map(|(_, method)| method.c_name)
        .collect();
    assert_eq!(absent, names(METHODS));
}

#[test]
fn every_write_command_runs_or_is_listed() {
    let numbers = (0..256).chain((0..256).map(|number| number | write::FLAG_EXTENDED));
    let absent: BTreeSet<&str> = numbers
        .map(WriteCmd)
        .filter(|command| write::find(*command).is_none())
        .filter_map(WriteCmd::name)
        .collect();
    assert_eq!(absent, names(COMMANDS));
}
