//! Contexts, and queries of device and port.

use uverbs_uapi::mlx5::{self, AllocUcontextFlags, LibCaps, UarAllocType};
use uverbs_uapi::objects::device;
use uverbs_uapi::write::device as queries;
use uverbs_uapi::write::pd;
use zerocopy::IntoBytes;

use crate::node::{Node, Source, context_request};
use crate::recorder::Recorder;

pub(crate) fn record(source: &Source, recorder: &mut Recorder) {
    attributes(source, recorder);
    contexts(source, recorder);
    let node = Node::with_context(source);
    devices(&node, recorder);
    ports(&node, recorder);
    gids(&node, recorder);
    pages(&node, recorder);
}

fn attributes(source: &Source, recorder: &mut Recorder) {
    for name in [
        "node_type",
        "node_guid",
        "sys_image_guid",
        "fw_ver",
        "hca_type",
        "hw_rev",
        "board_id",
        "ports/1/link_layer",
        "ports/1/state",
        "ports/1/phys_state",
        "ports/1/rate",
        "ports/1/lid",
        "ports/1/lid_mask_count",
        "ports/1/sm_lid",
        "ports/1/sm_sl",
        "ports/1/cap_mask",
        "ports/1/pkeys/0",
        "ports/1/pkeys/1",
        "ports/1/gids/0",
        "ports/1/gids/255",
        "ports/1/gids/256",
        "ports/1/gid_attrs/types/0",
        "ports/1/gid_attrs/types/1",
    ] {
        let kind = if name.contains("/gids/") { ".gid" } else { "" };
        let line = format!("sysfs.{}{kind}", name.replace('/', "."));
        recorder.value(&line, &source.attribute(name));
    }
}

/// Opens a node for each request, because a node has at most one context.
fn contexts(source: &Source, recorder: &mut Recorder) {
    let whole = context_request();
    let node = source.open();
    recorder.call("query_device before a context", node.write(&queries::QueryDevice::default()));
    recorder.call("alloc_pd before a context", node.write(&pd::AllocPd::default()));
    recorder.call("async events before a context", node.async_events());
    context(recorder, "get_context", &node, whole.as_bytes());
    recorder.call("get_context again", node.get_context(whole.as_bytes()));
    for length in [0, 4, 8, 12, 16, 24, 31] {
        let step = format!("get_context of {length} bytes");
        context(recorder, &step, &source.open(), &whole.as_bytes()[..length]);
    }
    let mut longer = whole.as_bytes().to_vec();
    longer.resize(40, 0);
    recorder.call("get_context with 8 more zeros", source.open().get_context(&longer));
    longer[39] = 1;
    recorder.call("get_context with 8 more bytes", source.open().get_context(&longer));
    let variants = [
        ("comp_mask", mlx5::AllocUcontextReqV2 { comp_mask: 1, ..whole }),
        (
            "unknown flags",
            mlx5::AllocUcontextReqV2 {
                flags: AllocUcontextFlags::from_bits_retain(1 << 9),
                ..whole
            },
        ),
        (
            "unknown lib_caps",
            mlx5::AllocUcontextReqV2 { lib_caps: LibCaps::from_bits_retain(1 << 40), ..whole },
        ),
        ("no dynamic pages", mlx5::AllocUcontextReqV2 { lib_caps: LibCaps::UAR_4K, ..whole }),
        ("no lib_caps", mlx5::AllocUcontextReqV2 { lib_caps: LibCaps::empty(), ..whole }),
        ("reserved byte", mlx5::AllocUcontextReqV2 { reserved0: 1, ..whole }),
        ("cqe version 0", mlx5::AllocUcontextReqV2 { max_cqe_version: 0, ..whole }),
        ("cqe version 9", mlx5::AllocUcontextReqV2 { max_cqe_version: 9, ..whole }),
        ("no registers", mlx5::AllocUcontextReqV2 { total_num_bfregs: 0, ..whole }),
        ("too many registers", mlx5::AllocUcontextReqV2 { total_num_bfregs: 1 << 20, ..whole }),
        ("only low latency", mlx5::AllocUcontextReqV2 { num_low_latency_bfregs: 16, ..whole }),
    ];
    for (name, request) in variants {
        let step = format!("get_context, {name}");
        context(recorder, &step, &source.open(), request.as_bytes());
    }
}

fn context(recorder: &mut Recorder, step: &str, node: &Node, request: &[u8]) {
    if let Some((vectors, support, answer)) = recorder.call(step, node.get_context(request)) {
        recorder.value(&format!("{step}.num_comp_vectors"), &vectors.to_string());
        recorder.value(&format!("{step}.core_support"), &support.to_string());
        recorder.fields(step, &answer);
    }
}

fn devices(node: &Node, recorder: &mut Recorder) {
    recorder.answer("query_device", node.write(&queries::QueryDevice::default()));
    let plain = queries::ExQueryDevice::default();
    let whole = node.write_with::<_, mlx5::QueryDeviceResp>(&plain, &[]);
    if let Some((core, driver)) = recorder.call("ex_query_device", whole) {
        recorder.fields("ex_query_device", &core);
        recorder.fields("ex_query_device.driver", &driver);
    }
    let masked = queries::ExQueryDevice { comp_mask: 1, ..plain };
    recorder.call("ex_query_device, comp_mask", node.write(&masked));
    let reserved = queries::ExQueryDevice { reserved: 1, ..plain };
    recorder.call("ex_query_device, reserved", node.write(&reserved));
    for length in [4, 8, 16, 32, 100] {
        let mut driver = vec![0; length];
        let step = format!("ex_query_device with {length} bytes for the driver");
        recorder.call(&step, node.write_bytes(&plain, &[], &mut driver));
        // The field follows the mask, so a buffer of 4 bytes has no space for it.
        if let Some(Ok(length)) = driver.get(4..8).map(<[u8; 4]>::try_from) {
            let length = u32::from_ne_bytes(length);
            recorder.value(&format!("{step}.response_length"), &length.to_string());
        }
    }
    recorder
        .call("ex_query_device with driver's input", node.write_bytes(&plain, &[1], &mut [0; 8]));
    let (mut vectors, mut support) = (0u32, 0u64);
    let mut request = Node::request::<device::query_context::Call>();
    request.output(device::query_context::NUM_COMP_VECTORS, &mut vectors);
    request.output(device::query_context::CORE_SUPPORT, &mut support);
    let result = node.run(&mut request);
    recorder.call("query_context", result);
    recorder.value("query_context.num_comp_vectors", &vectors.to_string());
}

fn ports(node: &Node, recorder: &mut Recorder) {
    for port_num in [1, 0, 2] {
        let query = queries::QueryPort { port_num, ..Default::default() };
        recorder.answer(&format!("query_port {port_num}"), node.write(&query));
        let mut answer = queries::QueryPortRespEx::default();
        let mut request = Node::request::<device::query_port::Call>();
        request.constant(device::query_port::PORT_NUM, port_num);
        request.output(device::query_port::RESP, &mut answer);
        let result = node.run(&mut request);
        recorder.answer(&format!("query_port method {port_num}"), result.map(|()| answer));
    }
}

fn gids(node: &Node, recorder: &mut Recorder) {
    let entry = |port: u32, index: u32, flags: u32| {
        let mut answer = queries::GidEntry::default();
        let mut request = Node::request::<device::query_gid_entry::Call>();
        request.constant(device::query_gid_entry::PORT, port);
        request.constant(device::query_gid_entry::GID_INDEX, index);
        request.flags(device::query_gid_entry::FLAGS, flags);
        request.output(device::query_gid_entry::RESP_ENTRY, &mut answer);
        node.run(&mut request).map(|()| answer)
    };
    for (port, index, flags) in
        [(1, 0, 0), (1, 1, 0), (1, 200, 0), (1, 256, 0), (1, 100_000, 0), (2, 0, 0), (1, 0, 1)]
    {
        recorder
            .answer(&format!("query_gid_entry {port} {index} {flags}"), entry(port, index, flags));
    }
    for (entry_size, flags) in [(32u64, 0u32), (16, 0), (33, 0), (40, 0), (32, 1)] {
        let mut entries = [0; 64 * 40];
        let mut count = 0u64;
        let mut request = Node::request::<device::query_gid_table::Call>();
        request.constant(device::query_gid_table::ENTRY_SIZE, entry_size);
        request.flags(device::query_gid_table::FLAGS, flags);
        request.output(device::query_gid_table::RESP_ENTRIES, &mut entries);
        request.output(device::query_gid_table::RESP_NUM_ENTRIES, &mut count);
        let result = node.run(&mut request);
        recorder.call(&format!("query_gid_table {entry_size} {flags}"), result);
    }
}

fn pages(node: &Node, recorder: &mut Recorder) {
    let first = recorder.answer("uar, BlueFlame", node.uar(UarAllocType::BF));
    recorder.answer("uar, not cached", node.uar(UarAllocType::NC));
    recorder.call("uar, unknown kind", node.uar(UarAllocType(7)));
    use uverbs_uapi::mlx5::object::uar::destroy;
    let free = |handle| {
        let mut request = Node::request::<destroy::Call>();
        request.handle(destroy::HANDLE, handle);
        node.run(&mut request)
    };
    if let Some(page) = first {
        recorder.call("free a uar", free(page.handle));
        recorder.call("free a uar again", free(page.handle));
    }
}
