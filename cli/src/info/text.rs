//! The report as text.

use std::fmt::Write;

use serde_json::Value;

use super::address::{AddressReport, AddressState};
use super::{DeviceReport, DeviceState, GidReport, OpenDevice, PortReport, Report};
use crate::diagnosis::Missing;

/// The whole report.
pub(super) fn of(report: &Report) -> String {
    let mut parts: Vec<String> = report.devices.iter().map(device).collect();
    parts.extend(
        report
            .missing
            .iter()
            .map(|missing| format!("missing: {}\n   cure: {}", missing.what, missing.cure)),
    );
    parts.join("\n\n")
}

/// The report about an address.
pub(super) fn of_address(report: &AddressReport) -> String {
    match &report.state {
        AddressState::Resolved { device, port, source } => {
            format!("{} is reached by {device}, port {port}, from {source}", report.address)
        }
        AddressState::Unresolved { problem } => {
            let Missing { what, cure } = problem;
            format!("{} cannot be resolved: {what}\n   cure: {cure}", report.address)
        }
    }
}

fn device(device: &DeviceReport) -> String {
    let node = device.node.as_ref().map_or(String::new(), |node| format!(", {node}"));
    let head = format!("{} ({} device{node})", device.name, device.kind);
    match &device.state {
        DeviceState::Closed { problem } => {
            format!("{head}\n  cannot be opened: {}\n  cure: {}", problem.what, problem.cure)
        }
        DeviceState::Open(open) => format!("{head}\n{}", opened(open)),
    }
}

fn opened(device: &OpenDevice) -> String {
    let mut text = String::new();
    for (name, value) in [
        ("firmware", device.firmware.clone()),
        ("node GUID", device.node_guid.clone()),
        ("system image GUID", device.system_image_guid.clone()),
        ("vendor, part", format!("{}, {}", device.vendor_id, device.vendor_part_id)),
        ("hardware version", device.hardware_version.to_string()),
        ("completion vectors", device.completion_vectors.to_string()),
        ("capabilities", wrapped(&device.capabilities)),
    ] {
        row(&mut text, 2, name, &value);
    }
    for (name, value) in &device.attributes {
        row(&mut text, 2, name, &plain(value));
    }
    let ports: Vec<String> = device.ports.iter().map(port).collect();
    text + &ports.join("\n")
}

/// Writing to a string cannot fail.
fn row(text: &mut String, indent: usize, name: &str, value: &str) {
    let _ = writeln!(text, "{:indent$}{name:<36} {value}", "");
}

fn wrapped(words: &[String]) -> String {
    if words.is_empty() {
        return "none".to_owned();
    }
    let lines: Vec<String> = words.chunks(3).map(|words| words.join(", ")).collect();
    lines.join(&format!(",\n{:39}", ""))
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(words) if words.is_empty() => "none".to_owned(),
        Value::Array(words) => words.iter().map(plain).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

fn port(port: &PortReport) -> String {
    let mut text = format!("\n  port {}\n", port.port);
    let speed =
        port.gigabits.map_or_else(|| "unknown".to_owned(), |speed| format!("{speed} Gbit/s"));
    for (name, value) in [
        ("state", format!("{} ({})", port.state, port.physical_state)),
        ("link", format!("{}, {speed}", port.link_layer)),
        ("MTU", format!("{} (largest {})", port.active_mtu, port.max_mtu)),
        ("LID, subnet manager's", format!("{}, {}", port.lid, port.sm_lid)),
        ("largest message", format!("{} bytes", port.max_message)),
        (
            "GID table, P_Key table",
            format!("{} entries, {}", port.gid_table_length, port.pkey_table_length),
        ),
    ] {
        row(&mut text, 4, name, &value);
    }
    let _ = writeln!(text, "\n    {:>7}  {:<9} {:<40} interface", "GID", "type", "address");
    let chosen = port.chosen_gid.as_ref();
    for entry in &port.gids {
        let _ = writeln!(
            text,
            "{}",
            gid(entry, chosen.is_some_and(|chosen| chosen.index == entry.index))
        );
    }
    let _ = match (chosen, &port.no_gid) {
        (Some(chosen), _) => write!(text, "    would use GID {}: {}", chosen.index, chosen.reason),
        (None, Some(reason)) => write!(text, "    would use none: {reason}"),
        (None, None) => Ok(()),
    };
    text
}

fn gid(entry: &GidReport, is_chosen: bool) -> String {
    let mark = if is_chosen { "->" } else { "" };
    let interface = entry.interface.as_deref().unwrap_or("-");
    format!("    {mark:<3} {:>3}  {:<9} {:<40} {interface}", entry.index, entry.kind, entry.gid)
}
