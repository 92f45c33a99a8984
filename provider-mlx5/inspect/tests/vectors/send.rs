//! `send.jsonl`.

use serde_json::Value;
use uverbs_mlx5_inspect::{Finding, Posted, Service, Severity, Work, Wqe, post_sends, send_errno};

use crate::request::{Request, queue};
use crate::{compare, json, same, same_bytes};

/// Cases that differ on purpose, with the reasons.
const DIFFERENCES: &[(&str, &str)] = &[(
    "rc/RDMA_WRITE_1sge_len_2G#52",
    "libmlx5 writes a length of 2 GiB as it is, which the device reads as empty inline data; we refuse the request",
)];

#[test]
fn send_queue() {
    compare(include_str!("send.jsonl"), DIFFERENCES, |vector| {
        let posted = post(vector);
        let expected = &vector["expect"];
        let (errno, index) = match &posted.refused {
            Some(refused) => (send_errno(refused.reason), refused.index as i64),
            None => (0, -1),
        };
        same("errno", i64::from(errno), expected["errno"].as_i64().expect("a number"))?;
        same("bad_index", index, expected["bad_index"].as_i64().expect("a number"))?;
        match expected["wqes"].as_array() {
            Some(wqes) => ring(&posted, wqes, expected),
            None => same("WQEs", posted.wqes.len(), 0),
        }
    });
}

fn post(vector: &Value) -> Posted {
    let spec = queue(vector);
    let list = vector["wrs"].as_array().expect("a list");
    let requests: Vec<Request> = list.iter().map(Request::of).collect();
    let pieces: Vec<_> = requests.iter().map(Request::buffers).collect();
    let works: Vec<Work<'_>> = requests
        .iter()
        .zip(&pieces)
        .map(|(request, pieces)| request.work(spec.service, pieces))
        .collect();
    post_sends(&spec, &works).expect("the queue can be made")
}

fn ring(posted: &Posted, wqes: &[Value], expected: &Value) -> Result<(), String> {
    same("WQEs", posted.wqes.len(), wqes.len())?;
    for (wqe, expected) in posted.wqes.iter().zip(wqes) {
        same("slot", wqe.slot, json::word(&expected["slot"]))?;
        let ds = json::word(&expected["ds"]);
        same("ds", u32::from(wqe.bytes[7] & 0x3f), ds)?;
        let hex = expected["hex"].as_str().expect("digits");
        same("blocks", wqe.bytes.len(), hex.len() / 2)?;
        let length = ds as usize * 16;
        same_bytes("WQE", &wqe.bytes[..length], &hex[..2 * length])?;
        let rest = &wqe.bytes[length..];
        same("bytes behind the WQE", rest, &vec![0; rest.len()])?;
    }
    // The vectors have it modulo 2^16, as in the doorbell record.
    same("end", posted.end & 0xffff, json::word(&expected["end"]))?;
    let record = expected["sq_doorbell_record"].as_str().expect("digits");
    same_bytes("doorbell record", &posted.doorbell_record, record)?;
    register(posted, expected["mmio"].as_array().expect("a list"))
}

/// Checks the one store to the register. It may be a doorbell here and BlueFlame in the vector or
/// the reverse, but the bytes must be the same.
fn register(posted: &Posted, expected: &[Value]) -> Result<(), String> {
    same("stores to the register", posted.mmio.len(), expected.len())?;
    for (ours, expected) in posted.mmio.iter().zip(expected) {
        let expected = expected["hex"].as_str().expect("digits");
        let both = ours.len().min(expected.len() / 2);
        same_bytes("register", &ours[..both], &expected[..2 * both])?;
        let last = &posted.wqes.last().expect("something was posted").bytes;
        same("what was copied", &ours[..], &last[..ours.len().min(last.len())])?;
        let whole = ours.len() == 8 || ours.len() == last.len();
        same("a doorbell or a whole WQE", whole, true)?;
    }
    Ok(())
}

#[test]
fn decoded_and_encoded_again() {
    let known = [(DIFFERENCES[0].0, "illegal, and found to be")];
    compare(include_str!("send.jsonl"), &known, |vector| {
        for expected in vector["expect"]["wqes"].as_array().unwrap_or(&Vec::new()) {
            let mut bytes = json::hex(expected["hex"].as_str().expect("digits"));
            // Bytes that libmlx5 did not write. In inline data this also changes data bytes, which
            // does not matter here.
            bytes.iter_mut().filter(|byte| **byte == 0xcc).for_each(|byte| *byte = 0);
            let service = queue(vector).service;
            let wqe = Wqe::decode(&bytes, service).expect("a WQE");
            let encoded = wqe.encode();
            same("encoded again", &encoded[..], &bytes[..encoded.len()])?;
            same("illegal", illegal(&wqe, service), vec![])?;
            let (guessed, service) = Wqe::guess(&bytes).expect("a WQE");
            same("illegal as guessed", illegal(&guessed, service), vec![])?;
        }
        Ok(())
    });
}

/// The illegal findings. (One vector has only a suspicious one: a solicited write.)
fn illegal(wqe: &Wqe, service: Service) -> Vec<Finding> {
    let findings = wqe.findings(service).into_iter();
    findings.filter(|finding| finding.severity == Severity::Illegal).collect()
}
