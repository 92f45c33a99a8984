//! PDs, registered memory, windows, address handles, XRC domains, and the order in which they can
//! be destroyed.

use uverbs::Buffer;
use uverbs_uapi::enums::MwType;
use uverbs_uapi::flags::{AccessFlags, ReregMrFlags};
use uverbs_uapi::mlx5;
use uverbs_uapi::objects::{counters, dm, mr as mr_object, pd as pd_object};
use uverbs_uapi::write::{ah, mr, mw, pd, xrcd};

use crate::node::{Node, Source};
use crate::recorder::Recorder;

/// A handle that no object has.
pub(crate) const NOTHING: u32 = 0x1234;

pub(crate) fn record(source: &Source, recorder: &mut Recorder) {
    let node = Node::with_context(source);
    domains(&node, recorder);
    regions(&node, recorder);
    windows(&node, recorder);
    addresses(&node, recorder);
    shared_domains(&node, recorder);
    others(&node, recorder);
}

fn dealloc_pd(node: &Node, pd_handle: u32) -> Result<(), nix::errno::Errno> {
    node.write(&pd::DeallocPd { pd_handle })
}

fn domains(node: &Node, recorder: &mut Recorder) {
    let result = node.write_with::<_, mlx5::AllocPdResp>(&pd::AllocPd::default(), &[]);
    if let Some((core, driver)) = recorder.call("alloc_pd", result) {
        recorder.fields("alloc_pd", &core);
        recorder.fields("alloc_pd.driver", &driver);
        recorder.call("dealloc_pd", dealloc_pd(node, core.pd_handle));
        recorder.call("dealloc_pd again", dealloc_pd(node, core.pd_handle));
    }
    recorder.call("dealloc_pd of nothing", dealloc_pd(node, NOTHING));
    let answer = node.write_bytes(&pd::AllocPd::default(), &[0; 8], &mut [0; 4]);
    recorder.call("alloc_pd with driver's zeros", answer);
    let answer = node.write_bytes(&pd::AllocPd::default(), &[1; 8], &mut [0; 4]);
    recorder.call("alloc_pd with driver's input", answer);
    recorder.call(
        "alloc_pd with 2 bytes for the driver",
        node.write_bytes(&pd::AllocPd::default(), &[], &mut [0; 2]),
    );
    recorder.call("alloc_pd without driver's answer", node.write(&pd::AllocPd::default()));
    recorder.call("destroy pd method of nothing", {
        let mut request = Node::request::<pd_object::destroy::Call>();
        request.handle(pd_object::destroy::HANDLE, NOTHING);
        node.run(&mut request)
    });
}

const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

fn regions(node: &Node, recorder: &mut Recorder) {
    let memory = Buffer::new(1 << 16).expect("memory");
    let start = memory.as_ptr() as u64;
    let pd_handle = node.pd();
    let good = mr::RegMr {
        start,
        length: 1 << 16,
        hca_va: start,
        pd_handle,
        access_flags: ALL,
        ..Default::default()
    };
    let region = recorder.answer("reg_mr", node.write(&good));
    let variants = [
        ("one byte", mr::RegMr { length: 1, ..good }),
        ("other address for the peer", mr::RegMr { hca_va: 0x1000, ..good }),
        ("other offset for the peer", mr::RegMr { hca_va: 0x1008, ..good }),
        ("no length", mr::RegMr { length: 0, ..good }),
        ("wraps around", mr::RegMr { length: u64::MAX, ..good }),
        ("unmapped", mr::RegMr { start: 0x1000, hca_va: 0x1000, ..good }),
        ("no domain", mr::RegMr { pd_handle: NOTHING, ..good }),
        ("no access", mr::RegMr { access_flags: AccessFlags::empty(), ..good }),
        ("window binding", mr::RegMr { access_flags: ALL | AccessFlags::MW_BIND, ..good }),
        (
            "relaxed ordering",
            mr::RegMr { access_flags: ALL | AccessFlags::RELAXED_ORDERING, ..good },
        ),
        ("zero based", mr::RegMr { access_flags: ALL | AccessFlags::ZERO_BASED, ..good }),
        ("on demand", mr::RegMr { access_flags: ALL | AccessFlags::ON_DEMAND, ..good }),
        ("huge pages", mr::RegMr { access_flags: ALL | AccessFlags::HUGETLB, ..good }),
        ("flush", mr::RegMr { access_flags: ALL | AccessFlags::FLUSH_GLOBAL, ..good }),
        ("remote write alone", mr::RegMr { access_flags: AccessFlags::REMOTE_WRITE, ..good }),
        ("remote atomic alone", mr::RegMr { access_flags: AccessFlags::REMOTE_ATOMIC, ..good }),
        (
            "an unknown right",
            mr::RegMr { access_flags: AccessFlags::from_bits_retain(1 << 15), ..good },
        ),
        (
            "an optional right",
            mr::RegMr { access_flags: ALL | AccessFlags::from_bits_retain(1 << 29), ..good },
        ),
        (
            "an impossible right",
            mr::RegMr { access_flags: AccessFlags::from_bits_retain(1 << 31), ..good },
        ),
    ];
    let deregister = |mr_handle| node.write(&mr::DeregMr { mr_handle });
    for (name, request) in variants {
        if let Some(made) = recorder.call(&format!("reg_mr, {name}"), node.write(&request)) {
            recorder.call(&format!("dereg_mr, {name}"), deregister(made.mr_handle));
        }
    }
    let Some(region) = region else { return };
    query_region(node, recorder, region.mr_handle);
    reregister(node, recorder, region.mr_handle, &good);
    recorder.call("dealloc_pd with a region", dealloc_pd(node, pd_handle));
    recorder.call("dereg_mr", deregister(region.mr_handle));
    recorder.call("dereg_mr again", deregister(region.mr_handle));
    recorder.call("dereg_mr of a domain", deregister(pd_handle));
    recorder.call("dealloc_pd after its region", dealloc_pd(node, pd_handle));
}

fn query_region(node: &Node, recorder: &mut Recorder, handle: u32) {
    let (mut lkey, mut rkey, mut length, mut iova) = (0u32, 0u32, 0u64, 0u64);
    use mr_object::query;
    let mut request = Node::request::<query::Call>();
    request.handle(query::HANDLE, handle);
    request.output(query::RESP_LKEY, &mut lkey);
    request.output(query::RESP_RKEY, &mut rkey);
    request.output(query::RESP_LENGTH, &mut length);
    request.output(query::RESP_IOVA, &mut iova);
    let result = node.run(&mut request);
    if recorder.call("query_mr", result).is_some() {
        recorder.value("query_mr.lkey", &lkey.to_string());
        recorder.value("query_mr.rkey", &rkey.to_string());
        recorder.value("query_mr.length", &length.to_string());
    }
}

fn reregister(node: &Node, recorder: &mut Recorder, mr_handle: u32, good: &mr::RegMr) {
    let (start, length, pd_handle) = (good.start, good.length, good.pd_handle);
    let same = mr::ReregMr {
        mr_handle,
        start,
        length,
        hca_va: start,
        pd_handle,
        access_flags: ALL,
        ..Default::default()
    };
    let access = mr::ReregMr { flags: ReregMrFlags::CHANGE_ACCESS, ..same };
    let variants = [
        ("nothing", same),
        ("access", access),
        ("no access at all", mr::ReregMr { access_flags: AccessFlags::empty(), ..access }),
        ("remote write alone", mr::ReregMr { access_flags: AccessFlags::REMOTE_WRITE, ..access }),
        ("domain", mr::ReregMr { flags: ReregMrFlags::CHANGE_PD, ..same }),
        ("no domain", mr::ReregMr { flags: ReregMrFlags::CHANGE_PD, pd_handle: NOTHING, ..same }),
        (
            "translation",
            mr::ReregMr { flags: ReregMrFlags::CHANGE_TRANSLATION, length: 4096, ..same },
        ),
        (
            "unmapped",
            mr::ReregMr {
                flags: ReregMrFlags::CHANGE_TRANSLATION,
                start: 0x1000,
                hca_va: 0x1000,
                ..same
            },
        ),
        ("unknown flag", mr::ReregMr { flags: ReregMrFlags::from_bits_retain(1 << 5), ..same }),
        ("no region", mr::ReregMr { mr_handle: NOTHING, ..access }),
    ];
    for (name, request) in variants {
        recorder.answer(&format!("rereg_mr, {name}"), node.write(&request));
    }
}

fn windows(node: &Node, recorder: &mut Recorder) {
    let pd_handle = node.pd();
    for mw_type in [MwType::TYPE_1, MwType::TYPE_2, MwType(0), MwType(3)] {
        let step = format!("alloc_mw, type {}", mw_type.0);
        let alloc = mw::AllocMw { pd_handle, mw_type, ..Default::default() };
        let made = recorder.answer(&step, node.write(&alloc));
        let driver = node.write_bytes(&alloc, &[0; 8], &mut []);
        let driver = recorder.call(&format!("{step}, driver's zeros"), driver);
        let Some(made) = made else { continue };
        recorder.call(&format!("{step}, domain in use"), dealloc_pd(node, pd_handle));
        for mw_handle in
            [Some(made.mw_handle), driver.map(|made| made.mw_handle)].into_iter().flatten()
        {
            recorder.call(
                &format!("{step}, dealloc of {mw_handle}"),
                node.write(&mw::DeallocMw { mw_handle }),
            );
        }
    }
    let masked = node.write_bytes(
        &mw::AllocMw { pd_handle, mw_type: MwType::TYPE_2, ..Default::default() },
        &[1, 0, 0, 0, 0, 0, 0, 0],
        &mut [],
    );
    recorder.call("alloc_mw, driver's comp_mask", masked);
    let nowhere = mw::AllocMw { pd_handle: NOTHING, mw_type: MwType::TYPE_2, ..Default::default() };
    recorder.call("alloc_mw without a domain", node.write(&nowhere));
    recorder.call("dealloc_mw of nothing", node.write(&mw::DeallocMw { mw_handle: NOTHING }));
}

fn addresses(node: &Node, recorder: &mut Recorder) {
    let pd_handle = node.pd();
    // An address on every kind of port: its own first GID, or the LID on InfiniBand.
    let grh = ah::GlobalRoute { dgid: own_gid(node), hop_limit: 64, ..Default::default() };
    let attr = ah::AhAttr { grh, dlid: 1, is_global: 1, port_num: 1, ..Default::default() };
    let good = ah::CreateAh { pd_handle, attr, user_handle: 7, ..Default::default() };
    let variants = [
        ("global", good),
        ("local", ah::CreateAh { attr: ah::AhAttr { is_global: 0, ..attr }, ..good }),
        ("port 0", ah::CreateAh { attr: ah::AhAttr { port_num: 0, ..attr }, ..good }),
        ("port 2", ah::CreateAh { attr: ah::AhAttr { port_num: 2, ..attr }, ..good }),
        ("no domain", ah::CreateAh { pd_handle: NOTHING, ..good }),
        (
            "empty source GID",
            ah::CreateAh {
                attr: ah::AhAttr { grh: ah::GlobalRoute { sgid_index: 200, ..grh }, ..attr },
                ..good
            },
        ),
        ("service level 15", ah::CreateAh { attr: ah::AhAttr { sl: 15, ..attr }, ..good }),
        ("static rate 99", ah::CreateAh { attr: ah::AhAttr { static_rate: 99, ..attr }, ..good }),
        ("no response for the driver", good),
    ];
    for (name, request) in variants {
        let step = format!("create_ah, {name}");
        let mut driver = [0; 16];
        let output =
            if name.starts_with("no response") { &mut driver[..0] } else { &mut driver[..] };
        let made = recorder.call(&step, node.write_bytes(&request, &[], output));
        if let Some(made) = made {
            let destroy = ah::DestroyAh { ah_handle: made.ah_handle };
            recorder.call(&format!("{step}, destroy"), node.write(&destroy));
        }
    }
    recorder.call("destroy_ah of nothing", node.write(&ah::DestroyAh { ah_handle: NOTHING }));
    recorder.call("dealloc_pd after address handles", dealloc_pd(node, pd_handle));
}

/// The first entry of the GID table.
pub(crate) fn own_gid(node: &Node) -> [u8; 16] {
    use uverbs_uapi::objects::device::query_gid_entry as query;
    let mut entry = uverbs_uapi::write::device::GidEntry::default();
    let mut request = Node::request::<query::Call>();
    request.constant(query::PORT, 1u32);
    request.constant(query::GID_INDEX, 0u32);
    request.flags(query::FLAGS, 0u32);
    request.output(query::RESP_ENTRY, &mut entry);
    node.run(&mut request).expect("a port has a GID");
    entry.gid
}

const CREATE: u32 = 0o100;

fn shared_domains(node: &Node, recorder: &mut Recorder) {
    let no_file = u32::MAX;
    let close = |xrcd_handle| node.write(&xrcd::CloseXrcd { xrcd_handle });
    let open = |fd, oflags| node.write(&xrcd::OpenXrcd { response: 0, fd, oflags });
    if let Some(made) = recorder.answer("open_xrcd", open(no_file, CREATE)) {
        recorder.call("close_xrcd", close(made.xrcd_handle));
        recorder.call("close_xrcd again", close(made.xrcd_handle));
    }
    recorder.call("open_xrcd without creating", open(no_file, 0));
    recorder.call("open_xrcd with unknown flags", open(no_file, CREATE | 1 << 20));
    recorder.call("open_xrcd of a closed file", open(9999, CREATE));
}

fn others(node: &Node, recorder: &mut Recorder) {
    let mut request = Node::request::<counters::create::Call>();
    request.new_handle(counters::create::HANDLE);
    let result = node.run(&mut request);
    recorder.call("create counters", result);
    let mut request = Node::request::<dm::alloc::Call>();
    request.new_handle(dm::alloc::HANDLE);
    request.value(dm::alloc::LENGTH, 64u64);
    request.value(dm::alloc::ALIGNMENT, 0u32);
    let result = node.run(&mut request);
    recorder.call("alloc dm without driver's attributes", result);
}
