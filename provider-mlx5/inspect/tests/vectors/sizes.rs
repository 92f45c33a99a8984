//! `sizes.jsonl`: this crate grants at least what libmlx5 grants, with no more memory.

use serde_json::Value;
use uverbs_mlx5::send_queue::Service;
use uverbs_mlx5::size::{self, DeviceLimits, Operations, SendWanted};

use crate::{json, same};

/// The device of the recording.
const LIMITS: DeviceLimits = DeviceLimits {
    requests: 1 << 15,
    send_wqe_bytes: 1024,
    recv_wqe_bytes: 512,
    send_wqebbs: 1 << 15,
    recv_wqes: 1 << 15,
    srq_wqes: 1 << 15,
    cqes: 1 << 22,
};

/// `enum ibv_qp_type`.
fn service(kind: u64) -> Service {
    match kind {
        2 => Service::Rc,
        3 => Service::Uc,
        4 => Service::Ud,
        9 => Service::Xrc,
        _ => panic!("no type {kind} was recorded"),
    }
}

/// `send_ops_flags` (`enum ibv_qp_create_send_ops_flags`); 0 if the program did not set them.
fn operations(flags: u64) -> Operations {
    let mut operations = Operations::empty();
    operations.set(Operations::RDMA, flags & 0b1_0011 != 0);
    operations.set(Operations::ATOMIC, flags & 0b110_0000 != 0);
    if flags == 0 { Operations::VERBS } else { operations }
}

fn send_queue(vector: &Value) -> Result<(), String> {
    let service = service(json::number(&vector["type"]));
    let wanted = SendWanted {
        requests: json::word(&vector["swr"]),
        sge: json::word(&vector["ssge"]),
        inline: json::word(&vector["inl"]),
        tso_header: 0,
        operations: operations(json::number(&vector["ops"])),
    };
    // libmlx5 grants 63 octowords of data after a control segment, although `ds` cannot exceed 63.
    let too_long = wanted.sge.max((wanted.inline + 4).div_ceil(16)) >= 63;
    if refused(vector) || wanted.requests == 0 || too_long {
        return Ok(());
    }
    let ours = size::send_queue(service, wanted, &LIMITS).map_err(|error| error.to_string())?;
    let (blocks, requests) = (json::word(&vector["sq_wqe_count"]), json::word(&vector["got_swr"]));
    let enough =
        ours.requests >= wanted.requests && ours.sge >= wanted.sge && ours.inline >= wanted.inline;
    // If no data is requested, this crate's WQEs still have space for an SGE.
    let small = ours.wqebbs <= blocks || wanted.sge.max(wanted.inline) == 0;
    if !enough || !small {
        return Err(format!("ours {ours:?}; libmlx5 {requests} requests in {blocks} blocks"));
    }
    Ok(())
}

fn recv_queue(vector: &Value) -> Result<(), String> {
    // With signatures, which this crate does not support, an octoword precedes the entries.
    let head = json::word(&vector["sig"]);
    let (requests, sge) = (json::word(&vector["rwr"]), json::word(&vector["rsge"]));
    let ours = size::recv_queue(requests, sge, head, &LIMITS);
    same("refused", ours.is_err(), refused(vector) || head + sge > 32 && requests > 0)?;
    let Ok(ours) = ours else { return Ok(()) };
    same("entries", ours.entries, json::word(&vector["rq_wqe_count"]))?;
    if requests > 0 {
        same("stride", ours.stride, 1 << json::word(&vector["rq_wqe_shift"]))?;
        // A WQE of 512 bytes has space for 31 entries after a signature, and libmlx5 reports so.
        same("entries", ours.sge, json::word(&vector["got_rsge"]))?;
    }
    same("requests", ours.requests, json::word(&vector["got_rwr"]))
}

fn shared_recv_queue(vector: &Value) -> Result<(), String> {
    let (requests, sge) = (json::word(&vector["max_wr"]), json::word(&vector["max_sge"]));
    let ours = size::shared_recv_queue(requests, sge, &LIMITS);
    same("refused", ours.is_err(), refused(vector))?;
    let Ok(ours) = ours else { return Ok(()) };
    same("stride", ours.stride, json::word(&vector["stride"]))?;
    same("entries", ours.sge, json::word(&vector["got_sge"]))?;
    // A queue for no requests has space for one here, because a ring has at least two entries.
    same("requests", ours.requests, json::word(&vector["got_wr"]).max(1))
}

fn completion_queue(vector: &Value) -> Result<(), String> {
    let Some(wanted) = vector["cqe"].as_u64() else {
        return same("refused", refused(vector), true);
    };
    let entries = size::completion_queue(wanted as u32, &LIMITS).map_err(|error| error.to_string());
    same("capacity", entries? - 1, json::word(&vector["got"]))
}

fn refused(vector: &Value) -> bool {
    vector.get("errno").is_some()
}

#[test]
fn sizes() {
    let mut counts = std::collections::BTreeMap::new();
    let mut wrong = Vec::new();
    for line in include_str!("sizes.jsonl").lines() {
        let vector: Value = serde_json::from_str(line).expect("a line is an object");
        let kind = vector["kind"].as_str().expect("a kind").to_owned();
        let result = match kind.as_str() {
            "sq_size" => send_queue(&vector),
            "rq_size" => recv_queue(&vector),
            "srq_size" => shared_recv_queue(&vector),
            "cq_size" => completion_queue(&vector),
            other => panic!("{other}: a kind that this test does not know"),
        };
        wrong.extend(result.err().map(|difference| format!("{line}\n  {difference}")));
        *counts.entry(kind).or_insert(0) += 1;
    }
    assert_eq!(counts.len(), 4, "{counts:?}");
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
}
