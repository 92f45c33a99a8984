//! `uverbs info`: what a device is and can do, which GID it would use, and what this machine lacks.

mod text;

use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value};
use uverbs::channel::Roots;
use uverbs::gid::GidEntry;
use uverbs::{Context, Device, DeviceAttributes, DeviceKind, PortAttributes, devices_below};

use crate::args;
use crate::diagnosis::{Missing, missing};
use crate::failure::{Failure, Outcome};
use crate::output::{print, print_pretty_json};

/// Everything that is shown.
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
    let kernel = devices_below(&Roots::below(root));
    let wanted = wanted(arguments.device.as_deref(), &kernel)?;
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

fn wanted(name: Option<&str>, kernel: &[Device]) -> Outcome<Vec<Device>> {
    match name {
        None if kernel.is_empty() => Ok(vec![uverbs::device("soft")?]),
        None => Ok(kernel.to_vec()),
        Some(name) => match kernel.iter().find(|device| device.name() == name) {
            Some(device) => Ok(vec![device.clone()]),
            None => Ok(vec![uverbs::device(name)?]),
        },
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
        attributes: limits(context, attributes),
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

/// What `ibv_devinfo -v` shows, by the same names.
fn limits(context: &Context, attributes: &DeviceAttributes) -> Map<String, Value> {
    let mut map = Map::new();
    base(&mut map, attributes);
    extended(&mut map, attributes);
    mlx5(&mut map, context, attributes);
    map
}

macro_rules! put {
    ($map:ident, $from:expr, $($field:ident),* $(,)?) => {
        $($map.insert(stringify!($field).to_owned(), Value::from($from.$field));)*
    };
}

fn base(map: &mut Map<String, Value>, attributes: &DeviceAttributes) {
    let kernel = &attributes.kernel.base;
    put!(
        map,
        kernel,
        max_mr_size,
        page_size_cap,
        max_qp,
        max_qp_wr,
        max_sge,
        max_sge_rd,
        max_cq,
        max_cqe,
        max_mr,
        max_pd,
        max_qp_rd_atom,
        max_res_rd_atom,
        max_qp_init_rd_atom
    );
    map.insert("atomic_cap".into(), attributes.atomics().to_string().into());
    put!(
        map,
        kernel,
        max_mw,
        max_raw_ipv6_qp,
        max_raw_ethy_qp,
        max_mcast_grp,
        max_mcast_qp_attach,
        max_total_mcast_qp_attach,
        max_ah,
        max_srq,
        max_srq_wr,
        max_srq_sge,
        max_pkeys,
        local_ca_ack_delay
    );
}

fn extended(map: &mut Map<String, Value>, attributes: &DeviceAttributes) {
    let kernel = &attributes.kernel;
    let odp = &kernel.odp_caps;
    let mut flags = |name: &str, text: String| map.insert(name.to_owned(), words(&text).into());
    flags("odp_general_caps", odp.general_caps.to_string());
    flags("rc_odp_caps", odp.rc_odp_caps.to_string());
    flags("uc_odp_caps", odp.uc_odp_caps.to_string());
    flags("ud_odp_caps", odp.ud_odp_caps.to_string());
    flags("xrc_odp_caps", kernel.xrc_odp_caps.to_string());
    flags("raw_packet_caps", kernel.raw_packet_caps.to_string());
    map.insert(
        "completion_timestamp_mask".into(),
        format!("{:#018x}", kernel.timestamp_mask).into(),
    );
    map.insert("hca_core_clock_khz".into(), attributes.clock_khz().into());
    put!(map, kernel, max_wq_type_rq, max_dm_size);
    put!(map, kernel.rss_caps, max_rwq_indirection_tables, max_rwq_indirection_table_size);
    put!(map, kernel.tm_caps, max_num_tags, max_ops);
    put!(map, kernel.cq_moderation_caps, max_cq_moderation_count, max_cq_moderation_period);
}

fn mlx5(map: &mut Map<String, Value>, context: &Context, attributes: &DeviceAttributes) {
    let mlx5 = &attributes.mlx5;
    put!(map, mlx5.tso_caps, max_tso);
    map.insert("max_cqe_compression".into(), mlx5.cqe_comp_caps.max_num.into());
    put!(map, mlx5.packet_pacing_caps, qp_rate_limit_min, qp_rate_limit_max);
    put!(
        map,
        mlx5.striding_rq_caps,
        min_single_stride_log_num_of_bytes,
        max_single_stride_log_num_of_bytes,
        min_single_wqe_log_num_of_strides,
        max_single_wqe_log_num_of_strides
    );
    put!(map, mlx5.dci_streams_caps, max_log_num_concurent, max_log_num_errored);
    let limits = context.driver_limits();
    put!(map, limits, max_sq_desc_sz, max_rq_desc_sz, max_send_wqebb, max_recv_wr, cqe_version);
}
