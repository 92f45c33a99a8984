//! `uverbs info`: a device's properties, the GID that would be used, and what is missing on this
//! machine.

mod address;
mod text;

use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value};
use uverbs::channel::Roots;
use uverbs::gid::GidEntry;
use uverbs::{Context, Device, DeviceKind, ErrorKind, Limit, PortAttributes, devices_below};

use self::address::AddressState;
use crate::args;
use crate::diagnosis::{Missing, missing};
use crate::failure::{Failure, Outcome};
use crate::output::{print, print_pretty_json};

/// The whole report.
#[derive(Debug, Serialize)]
struct Report {
    devices: Vec<DeviceReport>,
    missing: Vec<Missing>,
}

#[derive(Debug, Serialize)]
struct DeviceReport {
    name: String,
    kind: String,
    node: Option<String>,
    #[serde(flatten)]
    state: DeviceState,
}

/// A device that opened, or why it did not.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum DeviceState {
    Open(Box<OpenDevice>),
    Closed { problem: Missing },
}

#[derive(Debug, Serialize)]
struct OpenDevice {
    firmware: String,
    node_guid: String,
    system_image_guid: String,
    vendor_id: String,
    vendor_part_id: u32,
    hardware_version: u32,
    completion_vectors: u32,
    capabilities: Vec<String>,
    /// Names as in `struct ibv_device_attr(_ex)` and `struct mlx5dv_context`.
    attributes: Map<String, Value>,
    ports: Vec<PortReport>,
}

#[derive(Debug, Serialize)]
struct PortReport {
    port: u8,
    state: String,
    physical_state: String,
    link_layer: String,
    gigabits: Option<f64>,
    active_mtu: usize,
    max_mtu: usize,
    lid: u16,
    sm_lid: u16,
    max_message: u32,
    gid_table_length: u32,
    pkey_table_length: u16,
    gids: Vec<GidReport>,
    chosen_gid: Option<ChosenGid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    no_gid: Option<String>,
}

#[derive(Debug, Serialize)]
struct GidReport {
    index: u32,
    gid: String,
    #[serde(rename = "type")]
    kind: String,
    interface: Option<String>,
}

#[derive(Debug, Serialize)]
struct ChosenGid {
    index: u32,
    reason: String,
}

/// Runs the command.
pub(crate) fn run(arguments: &args::Info) -> Outcome {
    let root = arguments.root.as_deref().unwrap_or(Path::new("/"));
    let kernel = devices_below(&Roots::below(root))?;
    let wanted = wanted(arguments.device.as_deref(), &kernel)?;
    if let Some(to) = &arguments.to {
        return way(to, &wanted, arguments.json);
    }
    let devices = wanted.iter().map(report).collect::<Outcome<Vec<_>>>()?;
    let report = Report { devices, missing: missing(root, &kernel) };
    if arguments.json {
        print_pretty_json(&report)?
    } else {
        print(text::of(&report))?
    }
    let closed = report.devices.iter().find_map(DeviceReport::problem);
    match (arguments.device.as_deref(), closed) {
        (Some(name), Some(problem)) => {
            Err(Failure::failed(format!("{name} cannot be opened: {}", problem.what)))
        }
        _ => Ok(()),
    }
}

/// Shows which of the devices reaches an address.
fn way(to: &str, devices: &[Device], json: bool) -> Outcome {
    let contexts: Vec<_> = devices.iter().filter_map(|device| device.open().ok()).collect();
    let report = address::report(to, &contexts)?;
    if json {
        print_pretty_json(&report)?;
    } else {
        print(text::of_address(&report))?;
    }
    match report.state {
        AddressState::Resolved { .. } => Ok(()),
        AddressState::Unresolved { problem } => {
            Err(Failure::failed(format!("{to} cannot be resolved: {}", problem.what)))
        }
    }
}

fn wanted(name: Option<&str>, kernel: &[Device]) -> Outcome<Vec<Device>> {
    match name {
        None if kernel.is_empty() => Ok(vec![uverbs::device("soft")?]),
        None => Ok(kernel.to_vec()),
        Some(name) => match kernel.iter().find(|device| device.name() == name) {
            Some(device) => Ok(vec![device.clone()]),
            None => Ok(vec![uverbs::device(name).map_err(|error| unknown(name, error))?]),
        },
    }
}

/// Suggests `--to` if the name of a device is an address.
fn unknown(name: &str, error: uverbs::Error) -> Failure {
    let is_address = error.kind() == ErrorKind::NotFound && name.contains(['.', ':']);
    match is_address {
        true => {
            let to = format!("uverbs info --to {name} says which device leads to an address");
            Failure::usage(format!("{}; {to}", error.cause()))
        }
        false => error.into(),
    }
}

fn report(device: &Device) -> Outcome<DeviceReport> {
    let state = match device.open() {
        Ok(context) => DeviceState::Open(Box::new(open_device(&context)?)),
        Err(error) => DeviceState::Closed { problem: Missing::of(&error) },
    };
    let kind = match device.kind() {
        DeviceKind::Kernel => "kernel",
        DeviceKind::Software => "software",
    };
    let node = device.node().map(|node| node.display().to_string());
    Ok(DeviceReport { name: device.name().to_owned(), kind: kind.to_owned(), node, state })
}

impl DeviceReport {
    fn problem(&self) -> Option<&Missing> {
        match &self.state {
            DeviceState::Closed { problem } => Some(problem),
            DeviceState::Open(_) => None,
        }
    }
}

fn open_device(context: &Context) -> Outcome<OpenDevice> {
    let attributes = context.attributes()?;
    let (major, minor, sub) = attributes.firmware();
    Ok(OpenDevice {
        firmware: format!("{major}.{minor}.{sub:04}"),
        node_guid: attributes.node_guid().to_string(),
        system_image_guid: attributes.system_image_guid().to_string(),
        vendor_id: format!("{:#06x}", attributes.vendor_id()),
        vendor_part_id: attributes.vendor_part_id(),
        hardware_version: attributes.hardware_version(),
        completion_vectors: attributes.completion_vectors,
        capabilities: words(&attributes.capabilities().to_string()),
        attributes: limits(context)?,
        ports: (1..=attributes.ports())
            .map(|port| port_report(context, port))
            .collect::<Outcome<_>>()?,
    })
}

fn words(flags: &str) -> Vec<String> {
    flags.split(" | ").filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn port_report(context: &Context, port: u8) -> Outcome<PortReport> {
    let attributes: PortAttributes = context.query_port(port)?;
    let gids = context.gid_table(port)?.iter().map(gid_report).collect();
    let choice = context.choose_gid(port, None);
    Ok(PortReport {
        port,
        state: attributes.state().to_string(),
        physical_state: attributes.physical_state().to_string(),
        link_layer: attributes.link_layer().to_string(),
        gigabits: attributes.gigabits(),
        active_mtu: attributes.active_mtu().bytes(),
        max_mtu: attributes.max_mtu().bytes(),
        lid: attributes.lid(),
        sm_lid: attributes.sm_lid(),
        max_message: attributes.max_message(),
        gid_table_length: attributes.gid_table_length(),
        pkey_table_length: attributes.pkey_table_length(),
        gids,
        no_gid: choice.as_ref().err().map(ToString::to_string),
        chosen_gid: choice.ok().map(|choice| ChosenGid {
            index: choice.entry.index,
            reason: choice.reason.to_string(),
        }),
    })
}

fn gid_report(entry: &GidEntry) -> GidReport {
    GidReport {
        index: entry.index,
        gid: entry.gid.to_string(),
        kind: entry.kind.to_string(),
        interface: interface_name(entry.interface),
    }
}

fn interface_name(index: u32) -> Option<String> {
    if index == 0 {
        return None;
    }
    let name = nix::net::if_::if_indextoname(index).ok();
    Some(name.map_or_else(|| format!("index {index}"), |name| name.to_string_lossy().into_owned()))
}

/// The attributes that `ibv_devinfo -v` shows, with the same names.
fn limits(context: &Context) -> Outcome<Map<String, Value>> {
    let value = |limit| match limit {
        Limit::Number(number) => Value::from(number),
        Limit::Flags(names) => Value::from(names),
        Limit::Text(text) => Value::from(text),
        other => Value::from(format!("{other:?}")),
    };
    let limits = context.limits()?.into_iter();
    Ok(limits.map(|(name, limit)| (name.to_owned(), value(limit))).collect())
}
