//! Finds the verb of a request, and the struct of each of its payloads.
//!
//! The kernel names its structs after the verbs, so nearly all of them are found by name.

use uverbs_uapi::layout::{Struct, structs};
use uverbs_uapi::objects::device;
use uverbs_uapi::view::{AttrView, IoctlView};

/// The verb's name: a write command's (`REG_MR`), or object and method of a native one
/// (`CQ.CREATE`).
pub(super) fn verb(view: &IoctlView<'_>) -> String {
    if view.object() == device::OBJECT {
        if let Some(command) = view.write_command() {
            return command.to_string();
        }
    }
    let object = view.object().to_string().to_ascii_uppercase();
    match view.method_name() {
        Some(name) => format!("{object}.{}", name.to_ascii_uppercase()),
        None => format!("{object}.{}", view.method()),
    }
}

/// `(verb, attribute, struct)` of attributes whose struct [`candidates`] does not find.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("DEVICE.GET_CONTEXT", "UHW_IN", "mlx5_ib_alloc_ucontext_req_v2"),
    ("DEVICE.GET_CONTEXT", "UHW_OUT", "mlx5_ib_alloc_ucontext_resp"),
    ("GET_CONTEXT", "UHW_IN", "mlx5_ib_alloc_ucontext_req_v2"),
    ("GET_CONTEXT", "UHW_OUT", "mlx5_ib_alloc_ucontext_resp"),
    ("DEVICE.QUERY_PORT", "RESP", "ib_uverbs_query_port_resp_ex"),
    ("DEVICE.QUERY_GID_ENTRY", "RESP_ENTRY", "ib_uverbs_gid_entry"),
    ("QP.CREATE", "CAP", "ib_uverbs_qp_cap"),
    ("QP.CREATE", "RESP_CAP", "ib_uverbs_qp_cap"),
    ("OPEN_QP", "CORE_OUT", "ib_uverbs_create_qp_resp"),
    ("CREATE_XSRQ", "CORE_OUT", "ib_uverbs_create_srq_resp"),
    ("CREATE_XSRQ", "UHW_IN", "mlx5_ib_create_srq"),
    ("CREATE_XSRQ", "UHW_OUT", "mlx5_ib_create_srq_resp"),
    ("EX_CREATE_RWQ_IND_TBL", "CORE_IN", "ib_uverbs_ex_create_rwq_ind_table"),
    ("EX_CREATE_RWQ_IND_TBL", "CORE_OUT", "ib_uverbs_ex_create_rwq_ind_table_resp"),
    ("EX_DESTROY_RWQ_IND_TBL", "CORE_IN", "ib_uverbs_ex_destroy_rwq_ind_table"),
];

/// The struct of an attribute's payload, if it has one.
pub(super) fn structure(verb: &str, attribute: &AttrView, len: usize) -> Option<&'static Struct> {
    let attribute = attribute.info()?.name;
    let exception = EXCEPTIONS.iter().find(|(v, a, _)| (*v, *a) == (verb, attribute));
    let names = match exception {
        Some((_, _, name)) => vec![(*name).to_owned()],
        None => candidates(verb, attribute),
    };
    let found = names.iter().find_map(|name| by_c_name(name))?;
    // A struct of one field must have the attribute's size. Otherwise the attribute is a plain
    // number.
    (found.fields.len() > 1 || found.size == len).then_some(found)
}

fn candidates(verb: &str, attribute: &str) -> Vec<String> {
    let verb = match verb.split_once('.') {
        Some((object, method)) => format!("{method}_{object}"),
        None => verb.to_owned(),
    };
    let verb = verb.to_ascii_lowercase();
    let plain = verb.strip_prefix("ex_").unwrap_or(&verb);
    let both = |suffix: &str| {
        vec![format!("ib_uverbs_{verb}{suffix}"), format!("ib_uverbs_{plain}{suffix}")]
    };
    match attribute {
        "CORE_IN" => both(""),
        "CORE_OUT" | "RESP" => both("_resp"),
        "UHW_IN" => vec![format!("mlx5_ib_{plain}")],
        "UHW_OUT" => vec![format!("mlx5_ib_{plain}_resp")],
        _ => Vec::new(),
    }
}

/// A struct by its name in the kernel's headers.
pub(super) fn by_c_name(name: &str) -> Option<&'static Struct> {
    structs().find(|known| known.c_name.strip_prefix("struct ") == Some(name))
}

/// The struct of a nested field, if the trace shows its fields.
pub(super) fn nested(field: &str, size: usize) -> Option<&'static Struct> {
    let found = by_c_name(match field {
        "base" => "ib_uverbs_query_device_resp",
        "legacy_resp" => "ib_uverbs_query_port_resp",
        "dest" | "alt_dest" => "ib_uverbs_qp_dest",
        "attr" => "ib_uverbs_ah_attr",
        "grh" => "ib_uverbs_global_route",
        "odp_caps" => "ib_uverbs_odp_caps",
        "rss_caps" => "ib_uverbs_rss_caps",
        "tm_caps" => "ib_uverbs_tm_caps",
        "cq_moderation_caps" => "ib_uverbs_cq_moderation_caps",
        "moderation" => "ib_uverbs_cq_moderation",
        _ => return None,
    });
    found.filter(|found| found.size == size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_name_structs_that_exist() {
        for (_, _, name) in EXCEPTIONS {
            assert!(by_c_name(name).is_some(), "{name}");
        }
    }

    #[test]
    fn structs_are_found_by_the_verbs_name() {
        let found = |verb, attribute| {
            candidates(verb, attribute).iter().find_map(|name| by_c_name(name)).map(|s| s.c_name)
        };
        assert_eq!(found("REG_MR", "CORE_IN"), Some("struct ib_uverbs_reg_mr"));
        assert_eq!(
            found("EX_QUERY_DEVICE", "CORE_OUT"),
            Some("struct ib_uverbs_ex_query_device_resp")
        );
        assert_eq!(found("EX_QUERY_DEVICE", "UHW_OUT"), Some("struct mlx5_ib_query_device_resp"));
        assert_eq!(found("EX_CREATE_FLOW", "CORE_IN"), Some("struct ib_uverbs_create_flow"));
        assert_eq!(found("CQ.CREATE", "UHW_IN"), Some("struct mlx5_ib_create_cq"));
        assert_eq!(found("QP.DESTROY", "RESP"), Some("struct ib_uverbs_destroy_qp_resp"));
    }
}
