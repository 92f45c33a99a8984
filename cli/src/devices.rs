//! `uverbs devices`: the RDMA devices of this machine, and whether they can be used.

use std::path::Path;

use serde::Serialize;
use uverbs::channel::Roots;
use uverbs::{Device, devices_below};

use crate::args;
use crate::diagnosis::{Missing, missing};
use crate::failure::Outcome;
use crate::output::{print, print_pretty_json};

/// One line of the list.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    kind: &'static str,
    node: Option<String>,
    node_guid: Option<String>,
    usable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Missing>,
}

#[derive(Debug, Serialize)]
struct List {
    devices: Vec<Row>,
    missing: Vec<Missing>,
}

/// Runs the command.
pub(crate) fn run(arguments: &args::Devices) -> Outcome {
    let root = arguments.root.as_deref().unwrap_or(Path::new("/"));
    let devices = devices_below(&Roots::below(root))?;
    let mut rows: Vec<Row> = devices.iter().map(kernel_row).collect();
    rows.push(software_row());
    let list = List { devices: rows, missing: missing(root, &devices) };
    if arguments.json { print_pretty_json(&list) } else { print(text(&list)) }
}

fn kernel_row(device: &Device) -> Row {
    let opened = device.open();
    let guid = |context: &uverbs::Context| Some(context.attributes().ok()?.node_guid().to_string());
    Row {
        name: device.name().to_owned(),
        kind: "kernel",
        node: device.node().map(|node| node.display().to_string()),
        node_guid: opened.as_ref().ok().and_then(guid),
        usable: opened.is_ok(),
        problem: opened.err().as_ref().map(Missing::of),
    }
}

/// The software device has a different address and GUID in every process, so none is shown.
fn software_row() -> Row {
    let name = "soft".to_owned();
    Row { name, kind: "software", node: None, node_guid: None, usable: true, problem: None }
}

fn text(list: &List) -> String {
    let mut lines = vec![line("DEVICE", "KIND", "NODE", "NODE GUID", "STATE")];
    lines.extend(list.devices.iter().map(|row| {
        let state = match &row.problem {
            None if row.kind == "software" => "usable, built into this command".into(),
            None => "usable".into(),
            Some(problem) => format!("not usable: {}", problem.what),
        };
        let [node, guid] = [&row.node, &row.node_guid].map(|text| text.as_deref().unwrap_or("-"));
        line(&row.name, row.kind, node, guid, &state)
    }));
    lines.extend(
        list.missing
            .iter()
            .map(|missing| format!("\nmissing: {}\n   cure: {}", missing.what, missing.cure)),
    );
    lines.join("\n")
}

fn line(name: &str, kind: &str, node: &str, guid: &str, state: &str) -> String {
    format!("{name:<12} {kind:<9} {node:<24} {guid:<20} {state}")
}
