//! Names of enumerated values in `<infiniband/verbs.h>`.

/// Fields of structs, the value of their first name, and their names in the order of the values. A
/// gap has an empty name.
type Row = (&'static [&'static str], u32, &'static [&'static str]);

const ROWS: [Row; 10] = [
    (
        &["qp_state", "cur_qp_state"],
        0,
        &[
            "IBV_QPS_RESET",
            "IBV_QPS_INIT",
            "IBV_QPS_RTR",
            "IBV_QPS_RTS",
            "IBV_QPS_SQD",
            "IBV_QPS_SQE",
            "IBV_QPS_ERR",
            "IBV_QPS_UNKNOWN",
        ],
    ),
    (
        &["qp_type"],
        2,
        &[
            "IBV_QPT_RC",
            "IBV_QPT_UC",
            "IBV_QPT_UD",
            "",
            "",
            "",
            "IBV_QPT_RAW_PACKET",
            "IBV_QPT_XRC_SEND",
            "IBV_QPT_XRC_RECV",
        ],
    ),
    (&["qp_type"], 0xff, &["IBV_QPT_DRIVER"]),
    (
        &["path_mtu", "max_mtu", "active_mtu"],
        1,
        &["IBV_MTU_256", "IBV_MTU_512", "IBV_MTU_1024", "IBV_MTU_2048", "IBV_MTU_4096"],
    ),
    (&["path_mig_state"], 0, &["IBV_MIG_MIGRATED", "IBV_MIG_REARM", "IBV_MIG_ARMED"]),
    (
        &["wq_state", "curr_wq_state"],
        0,
        &["IBV_WQS_RESET", "IBV_WQS_RDY", "IBV_WQS_ERR", "IBV_WQS_UNKNOWN"],
    ),
    (&["wq_type"], 0, &["IBV_WQT_RQ"]),
    (&["gid_type"], 0, &["IBV_GID_TYPE_IB", "IBV_GID_TYPE_ROCE_V1", "IBV_GID_TYPE_ROCE_V2"]),
    (
        &["state"],
        0,
        &[
            "IBV_PORT_NOP",
            "IBV_PORT_DOWN",
            "IBV_PORT_INIT",
            "IBV_PORT_ARMED",
            "IBV_PORT_ACTIVE",
            "IBV_PORT_ACTIVE_DEFER",
        ],
    ),
    (
        &["event_type"],
        0,
        &[
            "IBV_EVENT_CQ_ERR",
            "IBV_EVENT_QP_FATAL",
            "IBV_EVENT_QP_REQ_ERR",
            "IBV_EVENT_QP_ACCESS_ERR",
            "IBV_EVENT_COMM_EST",
            "IBV_EVENT_SQ_DRAINED",
            "IBV_EVENT_PATH_MIG",
            "IBV_EVENT_PATH_MIG_ERR",
            "IBV_EVENT_DEVICE_FATAL",
            "IBV_EVENT_PORT_ACTIVE",
            "IBV_EVENT_PORT_ERR",
            "IBV_EVENT_LID_CHANGE",
            "IBV_EVENT_PKEY_CHANGE",
            "IBV_EVENT_SM_CHANGE",
            "IBV_EVENT_SRQ_ERR",
            "IBV_EVENT_SRQ_LIMIT_REACHED",
            "IBV_EVENT_QP_LAST_WQE_REACHED",
            "IBV_EVENT_CLIENT_REREGISTER",
            "IBV_EVENT_GID_CHANGE",
            "IBV_EVENT_WQ_FATAL",
        ],
    ),
];

/// The text of a struct, `field: value, …`, with names instead of the numbers that have one.
pub(super) fn named(text: &str) -> String {
    let mut named = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, value)) = rest.split_once(": ") {
        named.push_str(before);
        named.push_str(": ");
        let is_other = |letter: char| letter != '_' && !letter.is_ascii_alphanumeric();
        let field = before.rsplit(is_other).next().unwrap_or_default();
        let after = value.trim_start_matches(|letter: char| letter.is_ascii_digit());
        let name = value[..value.len() - after.len()].parse().ok().and_then(|n| name(field, n));
        named.push_str(name.unwrap_or_default());
        rest = if name.is_some() { after } else { value };
    }
    named + rest
}

fn name(field: &str, value: u32) -> Option<&'static str> {
    let of_field = ROWS.iter().filter(|(fields, ..)| fields.contains(&field));
    let mut found = of_field.filter_map(|(_, first, names)| {
        names.get(usize::try_from(value.checked_sub(*first)?).ok()?).copied()
    });
    found.find(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::abi::tests::agrees_with_the_header;

    #[test]
    fn numbers_of_enumerations_become_names() {
        assert_eq!(
            named("qp_attr { qp_state: 3, cur_qp_state: 9, path_mtu: 3, port_num: 1 }"),
            "qp_attr { qp_state: IBV_QPS_RTS, cur_qp_state: 9, path_mtu: IBV_MTU_1024, port_num: 1 }"
        );
        assert_eq!(
            named("{qp_type: 5, cap: qp_cap { a: 2 }}"),
            "{qp_type: 5, cap: qp_cap { a: 2 }}"
        );
        assert_eq!(named("{state: 4, path_mtu: 0}"), "{state: IBV_PORT_ACTIVE, path_mtu: 0}");
        assert_eq!(named("qp_type: 255"), "qp_type: IBV_QPT_DRIVER");
        assert_eq!(named("[1, 2]"), "[1, 2]");
    }

    #[test]
    fn names_are_those_of_the_installed_header() {
        let mut program = String::from("#include <infiniband/verbs.h>\n");
        for (_, first, names) in ROWS {
            for (value, name) in (first..).zip(names).filter(|(_, name)| !name.is_empty()) {
                let _ = writeln!(program, "_Static_assert({name} == {value}, \"{name}\");");
            }
        }
        agrees_with_the_header("names", &program);
    }
}
