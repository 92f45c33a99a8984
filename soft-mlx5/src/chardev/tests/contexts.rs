//! Contexts: request versions, dynamic and fixed UARs, old kernels, mappings, queries.

use nix::errno::Errno;
use uverbs_uapi::enums::{DriverId, LinkLayer, PortState};
use uverbs_uapi::flags::DeviceCapFlags;
use uverbs_uapi::mlx5::object::device::query_context as driver_context;
use uverbs_uapi::mlx5::{AllocUcontextResp, MmapCommand, QueryDeviceResp as DriverCaps};
use uverbs_uapi::objects::device::{query_context, query_gid_entry, query_gid_table, query_port};
use uverbs_uapi::request::Request;
use uverbs_uapi::write::context::GetContext;
use uverbs_uapi::write::device::{
    ExQueryDevice, GidEntry, QueryDevice, QueryPort, QueryPortRespEx,
};
use zerocopy::FromBytes;

use super::super::{Kernel, Model, SoftDevice};
use super::bench::{Client, alone, builder, context_request};
use crate::core::{AsyncKind, EventObject};

fn get(device: &SoftDevice, request: &[u8]) -> Result<AllocUcontextResp, Errno> {
    let mut answer = [0; 72];
    Client::bare(device).get_context(request, &mut answer)?;
    Ok(AllocUcontextResp::read_from_bytes(&answer).unwrap())
}

#[test]
fn every_request_version_gets_its_context() {
    let device = builder().build().unwrap();
    let whole = context_request();
    let dynamic = get(&device, &whole).unwrap();
    assert_eq!((dynamic.tot_bfregs, dynamic.cqe_version, dynamic.response_length), (0, 1, 72));
    let fixed = get(&device, &whole[..24]).unwrap();
    assert_eq!((fixed.tot_bfregs, fixed.num_dyn_bfregs, fixed.cqe_version), (16, 1024, 1));
    assert_eq!(get(&device, &whole[..16]).unwrap().cqe_version, 0);
    assert_eq!(get(&device, &whole[..8]).unwrap().tot_bfregs, 16);
    assert_eq!(get(&device, &whole[..12]).unwrap_err(), Errno::EINVAL);
    assert_eq!(get(&device, &[]).unwrap_err(), Errno::EINVAL);
}

#[test]
fn invalid_context_requests_are_refused() {
    let device = builder().build().unwrap();
    let with = |at: usize, byte: u8| {
        let mut request = context_request();
        request[at] = byte;
        get(&device, &request).map(|answer| answer.tot_bfregs)
    };
    assert_eq!(with(8, 1), Ok(0), "DEVX");
    assert_eq!(with(8, 2), Err(Errno::EOPNOTSUPP), "an unknown flag");
    assert_eq!(with(12, 1), Err(Errno::EOPNOTSUPP), "comp_mask");
    assert_eq!(with(17, 1), Err(Errno::EOPNOTSUPP), "reserved0");
    assert_eq!(with(4, 16), Err(Errno::EINVAL), "no register is left that is not low latency");
    assert_eq!(with(16, 7), Ok(0), "an unknown CQE version");
    let without = builder().kernel(Kernel { devx: false, ..Kernel::CURRENT }).build().unwrap();
    let mut request = context_request();
    request[8] = 1;
    assert_eq!(get(&without, &request).unwrap_err(), Errno::EINVAL, "no firmware with user ids");
}

#[test]
fn one_context_per_open_file() {
    let (device, client) = alone();
    assert_eq!(client.get_context(&context_request(), &mut [0; 72]), Err(Errno::EINVAL));
    let other = Client::bare(&device);
    let made =
        other.write_driver(&GetContext::default(), &context_request(), &mut [0; 72]).unwrap();
    assert_eq!(made.num_comp_vectors, 8);
    assert!(super::bench::read_async(made.async_fd as i32).is_none(), "a pollable descriptor");
    // SAFETY: the descriptor is this test's own.
    unsafe { libc::close(made.async_fd as i32) };
}

#[test]
fn old_kernels_refuse_what_they_do_not_know() {
    let device = builder().kernel(Kernel::SHORT_CONTEXT).build().unwrap();
    let client = Client::bare(&device);
    let native = client.get_context(&context_request(), &mut [0; 72]);
    assert_eq!(native, Err(Errno::EPROTONOSUPPORT));
    let write = |length: usize| {
        let client = Client::bare(&device);
        client.write_driver(&GetContext::default(), &context_request()[..length], &mut [0; 72])
    };
    assert_eq!(write(32).unwrap_err(), Errno::EINVAL);
    assert_eq!(write(24).unwrap_err(), Errno::EINVAL);
    let made = write(16).unwrap();
    // SAFETY: the descriptor is this test's own.
    unsafe { libc::close(made.async_fd as i32) };

    let fixed = builder().kernel(Kernel::STATIC_UAR).build().unwrap();
    assert_eq!(get(&fixed, &context_request()).unwrap().tot_bfregs, 16, "DYN_UAR is not known");
}

#[test]
fn fixed_uars_are_mapped_by_index() {
    let device = builder().build().unwrap();
    let client = Client::bare(&device);
    client.get_context(&context_request()[..24], &mut [0; 72]).unwrap();
    let map = |command: MmapCommand, index, length| {
        let mapped = client.map(command.offset(index, 4096), length, libc::PROT_WRITE);
        mapped.map(|page| {
            // SAFETY: just mapped, with this length.
            unsafe { libc::munmap(page, length) };
        })
    };
    assert_eq!(map(MmapCommand::REGULAR_PAGE, 0, 4096), Ok(()));
    assert_eq!(map(MmapCommand::WC_PAGE, 7, 4096), Ok(()));
    assert_eq!(map(MmapCommand::NC_PAGE, 8, 4096), Err(Errno::EINVAL), "8 pages for 16 registers");
    assert_eq!(map(MmapCommand::REGULAR_PAGE, 0, 8192), Err(Errno::EINVAL));
    assert_eq!(map(MmapCommand::ALLOC_WC, 300, 4096), Ok(()), "allocated by the mapping");
    assert_eq!(map(MmapCommand::ALLOC_WC, 300, 4096), Err(Errno::EINVAL), "once");
    assert_eq!(
        map(MmapCommand::ALLOC_WC, 512, 4096),
        Err(Errno::EINVAL),
        "1024 registers, 512 pages"
    );
    assert_eq!(map(MmapCommand::GET_CONTIGUOUS_PAGES, 0, 4096), Err(Errno::ENOSYS));
    assert_eq!(map(MmapCommand(99), 0, 4096), Err(Errno::EINVAL));
}

#[test]
fn dynamic_uars_are_mapped_at_their_offset() {
    let (_device, client) = alone();
    let (one, two) = (client.uar(), client.uar());
    assert_ne!(one.page_id, two.page_id);
    assert_eq!(client.map(0, 4096, libc::PROT_WRITE).unwrap_err(), Errno::EINVAL, "no fixed ones");
}

#[test]
fn clock_pages_are_read_only() {
    let (_device, client) = alone();
    let counter = MmapCommand::CORE_CLOCK.offset(0, 4096);
    let info = MmapCommand::CLOCK_INFO.offset(0, 4096);
    assert_eq!(counter, 0x50_0000);
    for offset in [counter, info] {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        assert_eq!(client.map(offset, 4096, both).unwrap_err(), Errno::EPERM);
        assert_eq!(client.map(offset, 8192, libc::PROT_READ).unwrap_err(), Errno::EINVAL);
        let page = client.map(offset, 4096, libc::PROT_READ).unwrap();
        // SAFETY: one mapped page.
        let first = unsafe { page.cast::<u64>().read_volatile() };
        assert!(offset == info || u64::from_be(first) != 0, "the counter has begun");
        // SAFETY: just mapped.
        unsafe { libc::munmap(page, 4096) };
    }
    let next = MmapCommand::CLOCK_INFO.offset(1, 4096);
    assert_eq!(client.map(next, 4096, libc::PROT_READ).unwrap_err(), Errno::EOPNOTSUPP);
}

#[test]
fn device_attributes_are_equal_in_both_forms() {
    let device = builder().model(Model::ConnectX7).srq_resize(true).build().unwrap();
    let client = Client::open(&device);
    let plain = client.write(&QueryDevice::default()).unwrap();
    assert_eq!((plain.vendor_id, plain.vendor_part_id, plain.phys_port_cnt), (0x2c9, 0x1021, 1));
    let mut caps = [0xff; 104];
    let extended = client.write_driver(&ExQueryDevice::default(), &[], &mut caps).unwrap();
    assert_eq!(extended.base, plain);
    assert_eq!(extended.response_length, 304);
    assert!(
        extended.device_cap_flags_ex.contains(DeviceCapFlags::XRC | DeviceCapFlags::SRQ_RESIZE)
    );
    let (caps, _) = DriverCaps::read_from_prefix(&[caps.as_slice(), &[0; 8]].concat()).unwrap();
    assert_eq!((caps.comp_mask, caps.response_length), (0, 104));
    let wrong = ExQueryDevice { comp_mask: 1, ..ExQueryDevice::default() };
    assert_eq!(client.write(&wrong).unwrap_err(), Errno::EINVAL);
    let tiny = client.write_driver(&ExQueryDevice::default(), &[], &mut [0; 4]);
    assert_eq!(tiny.unwrap_err(), Errno::EINVAL);
    let asked = client.write_driver(&ExQueryDevice::default(), &[1; 4], &mut [0; 8]);
    assert_eq!(asked.unwrap_err(), Errno::EINVAL, "the driver's request must be zero");
}

fn port(client: &Client, number: u8) -> Result<QueryPortRespEx, Errno> {
    let mut answer = QueryPortRespEx::default();
    let mut request = Request::<query_port::Call>::new(DriverId::MLX5);
    request.constant(query_port::PORT_NUM, number);
    request.output(query_port::RESP, &mut answer);
    client.run(&mut request)?;
    Ok(answer)
}

#[test]
fn port_attributes_of_both_link_layers() {
    let roce = builder().build().unwrap();
    let client = Client::open(&roce);
    let answer = port(&client, 1).unwrap().legacy_resp;
    assert_eq!(answer, client.write(&QueryPort { port_num: 1, ..QueryPort::default() }).unwrap());
    assert_eq!(
        (answer.link_layer, answer.lid, answer.state),
        (LinkLayer::ETHERNET, 0, PortState::ACTIVE)
    );
    assert_eq!(port(&client, 2).unwrap_err(), Errno::EINVAL);
    assert_eq!(port(&client, 0).unwrap_err(), Errno::EINVAL);
    roce.raise(AsyncKind::PortError, EventObject::Port(1)).unwrap();
    assert_eq!(port(&client, 1).unwrap().legacy_resp.state, PortState::DOWN);
    roce.raise(AsyncKind::PortActive, EventObject::Port(1)).unwrap();
    assert_eq!(port(&client, 1).unwrap().legacy_resp.state, PortState::ACTIVE);

    let infiniband = builder().infiniband().build().unwrap();
    let answer = port(&Client::open(&infiniband), 1).unwrap().legacy_resp;
    assert_eq!((answer.link_layer, answer.lid), (LinkLayer::INFINIBAND, infiniband.lid()));
    assert_ne!(answer.lid, 0);
}

fn gid_entry(client: &Client, index: u32) -> Result<GidEntry, Errno> {
    let mut answer = GidEntry::default();
    let mut request = Request::<query_gid_entry::Call>::new(DriverId::MLX5);
    request.constant(query_gid_entry::PORT, 1u32);
    request.constant(query_gid_entry::GID_INDEX, index);
    request.flags(query_gid_entry::FLAGS, 0u32);
    request.output(query_gid_entry::RESP_ENTRY, &mut answer);
    client.run(&mut request)?;
    Ok(answer)
}

#[test]
fn gids_are_queried_singly_and_as_a_table() {
    let (device, client) = alone();
    assert_eq!(gid_entry(&client, 3).unwrap().gid, device.gids()[3].gid.0);
    assert_eq!(gid_entry(&client, 4).unwrap_err(), Errno::ENODATA);
    assert_eq!(gid_entry(&client, 256).unwrap_err(), Errno::EINVAL);
    let table = |space: &mut [u8], size: u64| {
        let mut count = 0u64;
        let mut request = Request::<query_gid_table::Call>::new(DriverId::MLX5);
        request.constant(query_gid_table::ENTRY_SIZE, size);
        request.output_bytes(query_gid_table::RESP_ENTRIES, space).unwrap();
        request.output(query_gid_table::RESP_NUM_ENTRIES, &mut count);
        client.run(&mut request)?;
        Ok(count)
    };
    let mut space = [0xaa; 4 * 40];
    assert_eq!(table(&mut space, 40), Ok(4));
    assert_eq!(space[40..56], device.gids()[1].gid.0);
    assert_eq!(space[32..40], [0; 8], "a longer entry ends with zeros");
    assert_eq!(table(&mut space[..96], 32), Err(Errno::EINVAL), "space for three");
    assert_eq!(table(&mut space, 0), Err(Errno::EINVAL));
    assert_eq!(table(&mut space[..33], 32), Err(Errno::EINVAL));
}

#[test]
fn a_context_query_returns_its_options() {
    let (_device, client) = alone();
    let (mut vectors, mut answer) = (0u32, AllocUcontextResp::default());
    let mut request = Request::<query_context::Call>::new(DriverId::MLX5);
    request.output(query_context::NUM_COMP_VECTORS, &mut vectors);
    request.output(driver_context::RESP_UCTX, &mut answer);
    client.run(&mut request).unwrap();
    assert_eq!((vectors, answer.cqe_version, answer.response_length), (8, 1, 72));
}
