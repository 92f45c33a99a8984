//! `cqe.jsonl`.

use serde_json::Value;
use uverbs_mlx5_inspect::{Cqe, Polled, poll_cqe};

use crate::{compare, json, same};

/// Cases that differ on purpose, with the reasons.
const DIFFERENCES: &[(&str, &str)] = &[(
    "resp_inline_scatter32_24B_into_8_8_0#629",
    "libmlx5 scatters inline data into the receive WQE's entries and reports a length error if they are too short; the \
     vector does not hold the WQE, so what the CQE says stands",
)];

#[test]
fn work_completions() {
    compare(include_str!("cqe.jsonl"), DIFFERENCES, |vector| {
        let bytes = json::hex(vector["cqe"].as_str().expect("digits"));
        let cqe = Cqe::decode(&bytes).expect("a CQE");
        same("encoded again", cqe.encode(), bytes)?;
        let ours = poll_cqe(&cqe).ok_or("no completion")?;
        agree(&ours, &vector["expect"])
    });
}

/// Members that libmlx5 does not write are missing in the vectors and `None` here.
fn agree(ours: &Polled, expected: &Value) -> Result<(), String> {
    let number = |name: &str| match &expected[name] {
        Value::Null => None,
        value => Some(json::number(value)),
    };
    let text = expected["status_str"].as_str().expect("a text");
    same("status", Some(ours.status as u64), number("status"))?;
    same("status_str", ours.status.text(), text)?;
    same("opcode", ours.opcode.map(u64::from), number("opcode"))?;
    same("byte_len", ours.byte_len.map(u64::from), number("byte_len"))?;
    same("vendor_err", ours.vendor_err.map(u64::from), number("vendor_err"))?;
    same("qp_num", Some(u64::from(ours.qp_num)), number("qp_num"))?;
    same("src_qp", ours.src_qp.map(u64::from), number("src_qp"))?;
    same("wc_flags", Some(u64::from(ours.wc_flags)), number("wc_flags"))?;
    same("slid", ours.slid.map(u64::from), number("slid"))?;
    same("sl", ours.sl.map(u64::from), number("sl"))?;
    same("pkey_index", ours.pkey_index.map(u64::from), number("pkey_index"))?;
    same("dlid_path_bits", ours.dlid_path_bits.map(u64::from), number("dlid_path_bits"))?;
    // The vectors have the union of both as bytes in memory. The key is little-endian, since they
    // were recorded on x86.
    let immediate = ours.immediate.map(|immediate| immediate.0.to_vec());
    let key = ours.invalidated_rkey.map(|key| key.to_le_bytes().to_vec());
    same("imm_be", immediate.or(key), expected["imm_be"].as_str().map(json::hex))
}
