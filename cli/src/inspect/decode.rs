//! `uverbs wqe decode`: describes work-queue bytes, as text or as JSON.

use serde::Deserialize;
use serde_json::{Value, json};
use uverbs_mlx5::format::{OCTOWORD, WQEBB_SIZE};
use uverbs_mlx5_inspect::{Finding, LONGEST_WQE, ReceiveWqe, RingWalk, Service, Wqe, decode_ring};

use super::bytes::{Dump, READ_FIRST};
use super::encode::unknown_queue_pair_type;
use super::fields::Hex;
use super::{Answer, bytes as input, members, work_request};
use crate::args::{DecodeWqe, Queue};
use crate::failure::{Failure, Outcome};
use crate::output::print;

/// A line of JSON: one WQE in `hex`, or several in `wqes` (the output of `wqe encode`) or below
/// `expect`.
#[derive(Debug, Deserialize)]
struct Line {
    qp: Option<QueuePair>,
    #[serde(rename = "type")]
    service: Option<String>,
    hex: Option<Hex>,
    wqes: Option<Vec<Entry>>,
    expect: Option<Expect>,
    stride: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct QueuePair {
    #[serde(rename = "type")]
    service: String,
}

#[derive(Debug, Deserialize)]
struct Expect {
    #[serde(default)]
    wqes: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    hex: Hex,
}

/// Runs the command.
pub(crate) fn run(arguments: &DecodeWqe) -> Outcome {
    let Some(dump) = input::read(&arguments.hex, decode_line)? else { return Ok(()) };
    match arguments.queue {
        Queue::Send if arguments.ring => ring(dump, arguments),
        Queue::Send => sends(dump, arguments),
        Queue::Recv => receives(dump, arguments, false),
        Queue::Srq => receives(dump, arguments, true),
    }
}

fn decode_line(line: &Value) -> Answer {
    let line = Line::deserialize(line).map_err(|error| error.to_string())?;
    let service = line.service()?;
    let one = line.hex.iter();
    let several =
        line.wqes.iter().flatten().chain(line.expect.iter().flat_map(|expect| &expect.wqes));
    let wqes = one.chain(several.map(|entry| &entry.hex)).map(|hex| {
        if line.stride.is_some() { receive_json(&hex.0) } else { send_json(&hex.0, service) }
    });
    let wqes = wqes.collect::<Result<Vec<_>, _>>()?;
    if wqes.is_empty() {
        Err("there is neither hex nor wqes".to_owned())
    } else {
        Ok(members(json!({ "wqes": wqes })))
    }
}

impl Line {
    fn service(&self) -> Result<Option<Service>, String> {
        let name = self.service.as_ref().or(self.qp.as_ref().map(|qp| &qp.service));
        let find =
            |name: &String| Service::from_name(name).ok_or_else(|| unknown_queue_pair_type(name));
        name.map(find).transpose()
    }
}

fn decoded(bytes: &[u8], service: Option<Service>) -> Result<(Wqe, Service), String> {
    let decoded = match service {
        Some(service) => Wqe::decode(bytes, service).map(|wqe| (wqe, service)),
        None => Wqe::guess(bytes),
    };
    decoded.map_err(|error| error.to_string())
}

fn send_json(bytes: &[u8], service: Option<Service>) -> Result<Value, String> {
    let (wqe, service) = decoded(bytes, service)?;
    Ok(json!({
        "type": service.name(),
        "qpn": wqe.control.qpn(),
        "index": wqe.control.index(),
        "ds": wqe.control.ds(),
        "wr": work_request::of_wqe(&wqe),
        "text": wqe.to_string(),
        "explain": wqe.explain(service),
        "findings": findings_json(&wqe.findings(service)),
    }))
}

fn receive_json(bytes: &[u8]) -> Result<Value, String> {
    let wqe = ReceiveWqe::decode(bytes, false).map_err(|error| error.to_string())?;
    let entries = wqe.list().iter().map(|data| {
        json!({"addr": format!("{:#x}", data.address.get()), "len": data.byte_count.get(), "lkey": format!("{:#x}", data.lkey.get())})
    });
    let entries: Vec<_> = entries.collect();
    Ok(
        json!({"wr": {"sge": entries}, "text": wqe.to_string(), "explain": wqe.explain(), "findings": findings_json(&wqe.findings())}),
    )
}

fn findings_json(findings: &[Finding]) -> Vec<String> {
    findings.iter().map(ToString::to_string).collect()
}

/// The blocks of the largest send queue: a WQE's index has 16 bits.
const MAX_BLOCKS: usize = 1 << 16;

/// The service to decode as: that of `--type`, else the one that fits the first WQE best.
fn service(dump: &mut Dump, arguments: &DecodeWqe) -> Outcome<Service> {
    let requested = arguments.service()?;
    let first = decoded(dump.peek(LONGEST_WQE)?, requested);
    let (_, service) =
        first.map_err(|error| Failure::usage(format!("this is not a WQE: {error}")))?;
    if requested.is_none() {
        print(format_args!("taken for a {service} queue's (--type says otherwise)"))?;
    }
    Ok(service)
}

/// Decodes consecutive WQEs: each starts at the block after the previous one.
fn sends(mut dump: Dump, arguments: &DecodeWqe) -> Outcome {
    let service = service(&mut dump, arguments)?;
    let mut walk = RingWalk::new(None, service);
    while let Some(entry) = walk.entry(dump.peek(LONGEST_WQE)?) {
        let bytes = entry.wqe.blocks() * WQEBB_SIZE;
        let is_only = entry.slot == 0 && dump.peek(bytes + 1)?.len() <= bytes;
        dump.take(bytes);
        let words = in_words(&entry.wqe, service, &entry.findings, arguments.explain);
        if is_only {
            return print(words);
        }
        print(format_args!("block {}\n{words}", entry.slot))?;
    }
    Ok(())
}

/// A whole send queue.
fn ring(mut dump: Dump, arguments: &DecodeWqe) -> Outcome {
    let most = MAX_BLOCKS * WQEBB_SIZE;
    let length = dump.peek(most + 1)?.len();
    let blocks = length / WQEBB_SIZE;
    if length > most || !blocks.is_power_of_two() || blocks * WQEBB_SIZE != length {
        let length = if length > most { format!("more than {most}") } else { length.to_string() };
        let text = format!(
            "{length} bytes are not a whole send queue: its size is 64 bytes times a power of two"
        );
        return Err(Failure::usage(text));
    }
    let service = service(&mut dump, arguments)?;
    for entry in decode_ring(dump.peek(length)?, Some(blocks), service) {
        let words = in_words(&entry.wqe, service, &entry.findings, arguments.explain);
        print(format_args!("block {}\n{words}", entry.slot))?;
    }
    Ok(())
}

impl DecodeWqe {
    fn service(&self) -> Outcome<Option<Service>> {
        let unknown = |name: &String| {
            let names: Vec<_> = Service::ALL.iter().map(|service| service.name()).collect();
            Failure::usage(format!("there is no queue type {name}; there are {}", names.join(", ")))
        };
        let find = |name: &String| Service::from_name(name).ok_or_else(|| unknown(name));
        self.service.as_ref().map(find).transpose()
    }
}

fn in_words(wqe: &Wqe, service: Service, findings: &[Finding], explain: bool) -> String {
    let mut lines = vec![wqe.to_string()];
    lines.extend(findings.iter().map(ToString::to_string));
    if explain {
        lines.push(wqe.explain(service));
    }
    lines.join("\n")
}

fn receives(mut dump: Dump, arguments: &DecodeWqe, is_shared: bool) -> Outcome {
    if let Some(stride) = arguments.stride.filter(|stride| !is_stride(*stride)) {
        let text = format!("an entry has 16 bytes, 32, 64 and so on up to {READ_FIRST}");
        return Err(Failure::usage(format!("--stride {stride}: {text}")));
    }
    // Without a stride, all bytes are one entry.
    let stride = arguments.stride.or(dump.length()).ok_or_else(|| {
        let text =
            format!("more than {READ_FIRST} bytes are too long for an entry of a receive queue");
        Failure::usage(format!("{text}: --stride tells how long they are"))
    })?;
    dump.length().map_or(Ok(()), |length| require_entries(length, stride, arguments))?;
    for index in 0.. {
        let chunk = dump.peek(stride)?;
        if chunk.len() < stride {
            break;
        }
        let wqe = ReceiveWqe::decode(chunk, is_shared).map_err(|error| {
            Failure::usage(format!("entry {index} is not a receive WQE: {error}"))
        })?;
        dump.take(stride);
        let mut lines = vec![format!("entry {index}"), wqe.to_string()];
        lines.extend(wqe.findings().iter().map(ToString::to_string));
        lines.extend(arguments.explain.then(|| wqe.explain()));
        print(lines.join("\n"))?;
    }
    dump.length().map_or(Ok(()), |length| require_entries(length, stride, arguments))
}

fn is_stride(stride: usize) -> bool {
    stride.is_power_of_two() && (OCTOWORD..=READ_FIRST).contains(&stride)
}

fn require_entries(length: usize, stride: usize, arguments: &DecodeWqe) -> Outcome {
    if length.is_multiple_of(stride) && stride.is_multiple_of(OCTOWORD) {
        return Ok(());
    }
    let text = if arguments.stride.is_some() { "of that stride" } else { "of 16-byte units" };
    Err(Failure::usage(format!("{length} bytes are not whole entries {text}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_bytes_is_an_error() {
        assert!(decode_line(&json!({"case": "a"})).is_err());
        assert!(decode_line(&json!({"case": "a", "hex": "00"})).is_err());
    }
}
