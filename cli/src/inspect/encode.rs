//! `uverbs wqe encode`: converts work requests to the bytes that the library's queues write for
//! them.

use serde::Deserialize;
use serde_json::{Value, json};
use uverbs_mlx5::request::{PostError, Sge};
use uverbs_mlx5_inspect::{
    Posted, PostedWqe, RecvQueueSpec, SendQueueSpec, Service, post_receives, post_sends,
    receive_errno, send_errno,
};

use super::fields::Number;
use super::work_request::{Entry, Request};
use super::{Answer, answer_lines, hexadecimal, members};
use crate::failure::Outcome;

/// Work requests for a send queue.
#[derive(Debug, Deserialize)]
struct Sends {
    qp: Queue,
    #[serde(default)]
    start: Number<u32>,
    #[serde(default)]
    pending_small_fence: bool,
    wrs: Vec<Request>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Queue {
    #[serde(rename = "type")]
    service: String,
    qpn: Number<u32>,
    sq_wqebbs: Number<u32>,
    #[serde(default)]
    sq_sig_all: bool,
    max_send_sge: Number<u32>,
    max_inline_data: Number<u32>,
    /// Raw Ethernet: header bytes that the device requires in the WQE.
    #[serde(default)]
    min_inline_header: Number<u8>,
}

/// Work requests for a receive queue.
#[derive(Debug, Deserialize)]
struct Receives {
    stride: Number<u32>,
    #[serde(default)]
    start: Number<u32>,
    wrs: Vec<Receive>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Receive {
    /// Not in the WQE.
    #[serde(default, rename = "wr_id")]
    _id: Value,
    sge: Vec<Entry>,
}

/// Runs the command.
pub(crate) fn run() -> Outcome {
    answer_lines(encode)
}

fn encode(line: &Value) -> Answer {
    let is_receive = line.get("stride").is_some() && line.get("qp").is_none();
    if is_receive { receives(Receives::deserialize(line)) } else { sends(Sends::deserialize(line)) }
}

fn sends(parsed: serde_json::Result<Sends>) -> Answer {
    let sends = parsed.map_err(|error| error.to_string())?;
    let name = &sends.qp.service;
    let service = Service::from_name(name).ok_or_else(|| unknown_queue_pair_type(name))?;
    let requests =
        sends.wrs.iter().map(|request| request.prepare(service)).collect::<Result<Vec<_>, _>>()?;
    let works: Vec<_> = requests.iter().map(|request| request.work(service)).collect();
    let posted = post_sends(&sends.queue(service), &works).map_err(|error| error.to_string())?;
    let mut answer = refusal(&posted, send_errno);
    let is_rung = !posted.wqes.is_empty() || posted.refused.is_none();
    if is_rung {
        answer.extend(members(json!({
            "wqes": posted.wqes.iter().map(send_wqe).collect::<Vec<_>>(),
            // The 16 bits that the hardware uses.
            "end": posted.end & 0xffff,
            "sq_doorbell_record": hexadecimal(&posted.doorbell_record),
            "mmio": posted.mmio.iter().map(|store| json!({"len": store.len(), "hex": hexadecimal(store)})).collect::<Vec<_>>(),
        })));
    }
    Ok(answer)
}

pub(super) fn unknown_queue_pair_type(name: &str) -> String {
    let names = Service::ALL.map(Service::name).join(", ");
    format!("there is no queue pair type {name} (there are {names})")
}

impl Sends {
    fn queue(&self, service: Service) -> SendQueueSpec {
        SendQueueSpec {
            service,
            number: self.qp.qpn.0,
            blocks: self.qp.sq_wqebbs.0,
            start: self.start.0,
            small_fence: self.pending_small_fence,
            signal_all: self.qp.sq_sig_all,
            max_sge: self.qp.max_send_sge.0,
            max_inline: self.qp.max_inline_data.0,
            min_inline_header: self.qp.min_inline_header.0,
        }
    }
}

fn send_wqe(wqe: &PostedWqe) -> Value {
    // The low six bits of the control segment's eighth byte: its size in units of 16 bytes.
    let ds = wqe.bytes.get(7).map_or(0, |byte| byte & 0x3f);
    json!({"slot": wqe.slot, "ds": ds, "hex": hexadecimal(&wqe.bytes)})
}

fn receives(parsed: serde_json::Result<Receives>) -> Answer {
    let receives = parsed.map_err(|error| error.to_string())?;
    let lists: Vec<Vec<Sge>> =
        receives.wrs.iter().map(|receive| receive.sge.iter().map(Entry::sge).collect()).collect();
    let lists: Vec<&[Sge]> = lists.iter().map(Vec::as_slice).collect();
    let entries = (lists.len().max(16) as u32).next_power_of_two();
    let (stride, start) = (receives.stride.0, receives.start.0);
    let spec = RecvQueueSpec { entries, stride, start, striding: false };
    let posted = post_receives(&spec, &lists).map_err(|error| error.to_string())?;
    let mut answer = refusal(&posted, receive_errno);
    let wqes =
        posted.wqes.iter().map(|wqe| json!({"idx": wqe.slot, "hex": hexadecimal(&wqe.bytes)}));
    answer.extend(members(json!({
        "wqes": wqes.collect::<Vec<_>>(),
        "rq_doorbell_record": hexadecimal(&posted.doorbell_record),
    })));
    Ok(answer)
}

/// Errno, index and reason of the refused request; errno 0 and index -1 if all were accepted.
fn refusal(posted: &Posted, errno: impl Fn(PostError) -> i32) -> serde_json::Map<String, Value> {
    members(match posted.refused {
        None => json!({"errno": 0, "bad_index": -1}),
        Some(refused) => json!({
            "errno": errno(refused.reason), "bad_index": refused.index, "reason": refused.reason.to_string(),
        }),
    })
}
