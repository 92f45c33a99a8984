//! Memory regions, windows, device memory.

use std::os::fd::AsRawFd;

use nix::errno::Errno;
use uverbs_uapi::enums::{DriverId, MwType};
use uverbs_uapi::flags::{AccessFlags, ReregMrFlags};
use uverbs_uapi::mlx5::MmapCommand;
use uverbs_uapi::mlx5::object::dm::{alloc as driver_alloc, query as driver_query};
use uverbs_uapi::objects::{dm, mr};
use uverbs_uapi::request::Request;
use uverbs_uapi::write::mr::{DeregMr, RegMr, ReregMr};
use uverbs_uapi::write::mw::{AllocMw, DeallocMw};
use uverbs_uapi::write::pd::DeallocPd;

use super::bench::{Client, Memory, alone, builder};
use crate::core::{Access, Mkey};

#[test]
fn registration_checks_access_domain_and_memory() {
    let (_device, client) = alone();
    let pd_handle = client.alloc_pd();
    let memory = Memory::pages(2);
    let base = RegMr {
        start: memory.at(0),
        hca_va: memory.at(0),
        length: 8192,
        pd_handle,
        ..RegMr::default()
    };
    let with = |access_flags| client.write(&RegMr { access_flags, ..base }).map(drop);
    assert_eq!(with(AccessFlags::empty()), Ok(()));
    assert_eq!(with(AccessFlags::LOCAL_WRITE | AccessFlags::RELAXED_ORDERING), Ok(()));
    assert_eq!(with(AccessFlags::REMOTE_WRITE), Err(Errno::EINVAL), "without local write");
    assert_eq!(with(AccessFlags::REMOTE_ATOMIC), Err(Errno::EINVAL));
    assert_eq!(with(AccessFlags::FLUSH_GLOBAL), Err(Errno::EOPNOTSUPP));
    assert_eq!(with(AccessFlags::from_bits_retain(1 << 10)), Err(Errno::EINVAL));
    let register = |change: RegMr| client.write(&change).map(drop);
    assert_eq!(register(RegMr { pd_handle: 99, ..base }), Err(Errno::ENOENT));
    assert_eq!(register(RegMr { length: 0, ..base }), Err(Errno::EINVAL));
    assert_eq!(register(RegMr { hca_va: base.start + 1, ..base }), Err(Errno::EINVAL));
    assert_eq!(register(RegMr { start: 4096, hca_va: 0, ..base }), Err(Errno::EFAULT));
    assert_eq!(
        register(RegMr { hca_va: 0x7000_0000_0000, ..base }),
        Ok(()),
        "any iova with the same offset in its page"
    );
}

#[test]
fn a_pd_with_a_region_cannot_be_freed() {
    let (_device, client) = alone();
    let pd_handle = client.alloc_pd();
    let memory = Memory::pages(1);
    let made = client.reg_mr(pd_handle, memory.at(0), 4096).unwrap();
    assert_eq!(client.write(&DeallocPd { pd_handle }), Err(Errno::EBUSY));
    assert_eq!(client.write(&DeregMr { mr_handle: made.mr_handle }), Ok(()));
    assert_eq!(client.write(&DeregMr { mr_handle: made.mr_handle }), Err(Errno::ENOENT));
    assert_eq!(client.write(&DeallocPd { pd_handle }), Ok(()));
}

#[test]
fn reregistration_changes_only_what_its_flags_request() {
    let (device, client) = alone();
    let (first, second) = (client.alloc_pd(), client.alloc_pd());
    let memory = Memory::pages(2);
    let made = client.reg_mr(first, memory.at(0), 4096).unwrap();
    let base = ReregMr { mr_handle: made.mr_handle, ..ReregMr::default() };
    assert_eq!(client.write(&base).unwrap_err(), Errno::EINVAL, "no flag is set");
    let unknown = ReregMrFlags::from_bits_retain(1 << 3);
    assert_eq!(client.write(&ReregMr { flags: unknown, ..base }).unwrap_err(), Errno::EOPNOTSUPP);
    let flags = ReregMrFlags::CHANGE_PD;
    client.write(&ReregMr { flags, pd_handle: second, ..base }).unwrap();
    assert_eq!(client.write(&DeallocPd { pd_handle: first }), Ok(()), "the region has moved on");
    assert_eq!(client.write(&DeallocPd { pd_handle: second }), Err(Errno::EBUSY));
    let flags = ReregMrFlags::CHANGE_TRANSLATION | ReregMrFlags::CHANGE_ACCESS;
    let moved = ReregMr {
        flags,
        start: memory.at(4096),
        hca_va: 0x10_0000,
        length: 512,
        access_flags: AccessFlags::LOCAL_WRITE,
        ..base
    };
    let keys = client.write(&moved).unwrap();
    let params = device.inspect(|core| core.query_mkey(Mkey(keys.lkey)).cloned()).unwrap().unwrap();
    assert_eq!((params.start, params.length), (0x10_0000, 512));
    assert_eq!(params.access, Access::LOCAL_READ | Access::LOCAL_WRITE);
    let bad = ReregMr { start: 4096, hca_va: 0, ..moved };
    assert_eq!(client.write(&bad).unwrap_err(), Errno::EFAULT);
    let after = device.inspect(|core| core.query_mkey(Mkey(keys.lkey)).cloned()).unwrap().unwrap();
    assert_eq!(after, params, "a failed change has changed nothing");
}

#[test]
fn pinned_memory_can_be_limited() {
    let device = builder().locked_memory(3 * 4096).build().unwrap();
    let client = Client::open(&device);
    let pd = client.alloc_pd();
    let memory = Memory::pages(4);
    let two = client.reg_mr(pd, memory.at(0), 8192).unwrap();
    assert_eq!(client.reg_mr(pd, memory.at(8192), 8192).unwrap_err(), Errno::ENOMEM);
    client.reg_mr(pd, memory.at(8192), 100).unwrap();
    client.write(&DeregMr { mr_handle: two.mr_handle }).unwrap();
    assert!(client.reg_mr(pd, memory.at(0), 8192).is_ok());
}

#[test]
fn windows_of_both_types_are_allocated_and_freed() {
    let (_device, client) = alone();
    let pd_handle = client.alloc_pd();
    let alloc =
        |mw_type, pd_handle| client.write(&AllocMw { mw_type, pd_handle, ..AllocMw::default() });
    let one = alloc(MwType::TYPE_1, pd_handle).unwrap();
    let two = alloc(MwType::TYPE_2, pd_handle).unwrap();
    assert_ne!(one.rkey, two.rkey);
    assert_eq!(alloc(MwType(3), pd_handle).unwrap_err(), Errno::EINVAL);
    assert_eq!(alloc(MwType::TYPE_1, 99).unwrap_err(), Errno::ENOENT);
    assert_eq!(client.write(&DeallocPd { pd_handle }), Err(Errno::EBUSY));
    for mw_handle in [one.mw_handle, two.mw_handle] {
        assert_eq!(client.write(&DeallocMw { mw_handle }), Ok(()));
    }
    assert_eq!(client.write(&DeallocPd { pd_handle }), Ok(()));
}

#[test]
fn regions_answer_queries_and_refuse_advice() {
    let (_device, client) = alone();
    let pd = client.alloc_pd();
    let memory = Memory::pages(1);
    let made = client.reg_mr(pd, memory.at(0), 100).unwrap();
    let (mut lkey, mut rkey, mut length, mut iova) = (0u32, 0u32, 0u64, 0u64);
    let mut request = Request::<mr::query::Call>::new(DriverId::MLX5);
    request.handle(mr::query::HANDLE, made.mr_handle);
    request.output(mr::query::RESP_LKEY, &mut lkey);
    request.output(mr::query::RESP_RKEY, &mut rkey);
    request.output(mr::query::RESP_LENGTH, &mut length);
    request.output(mr::query::RESP_IOVA, &mut iova);
    client.run(&mut request).unwrap();
    assert_eq!((lkey, rkey, length, iova), (made.lkey, made.rkey, 100, memory.at(0)));
    let advise = |advice: u32| {
        let list = [0u8; 16];
        let mut request = Request::<mr::advise::Call>::new(DriverId::MLX5);
        request.handle(mr::advise::PD_HANDLE, pd);
        request.constant(mr::advise::ADVICE, advice);
        request.flags(mr::advise::FLAGS, 1u32);
        request.input_bytes(mr::advise::SGE_LIST, &list).unwrap();
        client.run(&mut request)
    };
    assert_eq!(advise(0), Err(Errno::ENOENT), "not an on-demand region");
    assert_eq!(advise(9), Err(Errno::EOPNOTSUPP));
}

#[test]
fn a_memfd_can_replace_a_dma_buf_if_the_option_is_set() {
    let device = builder().memfds_as_dma_bufs().build().unwrap();
    let client = Client::open(&device);
    let pd = client.alloc_pd();
    let fd =
        nix::sys::memfd::memfd_create(c"buffer", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap();
    nix::unistd::ftruncate(&fd, 8192).unwrap();
    let register_on = |client: &Client, pd, fd: i32, offset: u64, length: u64, iova: u64| {
        let (mut lkey, mut rkey) = (0u32, 0u32);
        let mut request = Request::<mr::reg_dmabuf::Call>::new(DriverId::MLX5);
        request.new_handle(mr::reg_dmabuf::HANDLE);
        request.handle(mr::reg_dmabuf::PD_HANDLE, pd);
        request.value(mr::reg_dmabuf::OFFSET, offset);
        request.value(mr::reg_dmabuf::LENGTH, length);
        request.value(mr::reg_dmabuf::IOVA, iova);
        request.value(mr::reg_dmabuf::FD, fd as u32);
        request.flags(mr::reg_dmabuf::ACCESS_FLAGS, 1u32);
        request.output(mr::reg_dmabuf::RESP_LKEY, &mut lkey);
        request.output(mr::reg_dmabuf::RESP_RKEY, &mut rkey);
        client.run(&mut request)
    };
    let fd = fd.as_raw_fd();
    let plain = builder().build().unwrap();
    let other = Client::open(&plain);
    assert_eq!(register_on(&other, other.alloc_pd(), fd, 0, 8192, 0), Err(Errno::EINVAL));
    let register = |fd, offset, length, iova| register_on(&client, pd, fd, offset, length, iova);
    assert_eq!(register(fd, 0, 8192, 0), Ok(()));
    assert_eq!(register(fd, 100, 100, 4096 + 100), Ok(()));
    assert_eq!(register(fd, 100, 100, 4096), Err(Errno::EINVAL), "offsets in the page differ");
    assert_eq!(register(fd, 4096, 8192, 0), Err(Errno::EINVAL), "beyond the end");
    assert_eq!(register(-1, 0, 4096, 0), Err(Errno::EBADF));
    assert_eq!(register(client.comp_channel(), 0, 4096, 0), Err(Errno::EINVAL), "not a buffer");
}

#[test]
fn on_device_memory_is_mapped_and_registered() {
    let (_device, client) = alone();
    let pd = client.alloc_pd();
    let alloc = |length: u64, alignment: u32| {
        let (mut start, mut page) = (u64::MAX, u16::MAX);
        let mut request = Request::<dm::alloc::Call>::new(DriverId::MLX5);
        request.new_handle(dm::alloc::HANDLE);
        request.value(dm::alloc::LENGTH, length);
        request.value(dm::alloc::ALIGNMENT, alignment);
        request.output(driver_alloc::RESP_START_OFFSET, &mut start);
        request.output(driver_alloc::RESP_PAGE_INDEX, &mut page);
        client.run(&mut request)?;
        let handle = request.created(dm::alloc::HANDLE).unwrap();
        Ok::<_, Errno>((handle, start, page))
    };
    assert_eq!(alloc(0, 0).unwrap_err(), Errno::EINVAL);
    assert_eq!(alloc(1 << 30, 0).unwrap_err(), Errno::ENOMEM);
    assert_eq!(alloc(64, 30).unwrap_err(), Errno::EINVAL);
    let (handle, start, page) = alloc(5000, 6).unwrap();
    assert_eq!(query(&client, handle), (start, page, 5000));
    let offset = MmapCommand::DEVICE_MEM.offset(page, 4096);
    let both = libc::PROT_READ | libc::PROT_WRITE;
    assert_eq!(client.map(offset, 4096, both).unwrap_err(), Errno::EINVAL, "whole or not at all");
    let mapped = client.map(offset, 8192, both).unwrap();
    // SAFETY: just mapped, two pages.
    unsafe { mapped.cast::<u8>().add(start as usize).write_volatile(7) };
    let register = |offset: u64, length: u64, access: u32| {
        let (mut lkey, mut rkey) = (0u32, 0u32);
        let mut request = Request::<mr::reg_dm::Call>::new(DriverId::MLX5);
        request.new_handle(mr::reg_dm::HANDLE);
        request.value(mr::reg_dm::OFFSET, offset);
        request.value(mr::reg_dm::LENGTH, length);
        request.handle(mr::reg_dm::PD_HANDLE, pd);
        request.flags(mr::reg_dm::ACCESS_FLAGS, access);
        request.handle(mr::reg_dm::DM_HANDLE, handle);
        request.output(mr::reg_dm::RESP_LKEY, &mut lkey);
        request.output(mr::reg_dm::RESP_RKEY, &mut rkey);
        client.run(&mut request).map(|()| request.created(mr::reg_dm::HANDLE).unwrap())
    };
    let zero_based = AccessFlags::ZERO_BASED.bits();
    assert_eq!(register(0, 64, 1), Err(Errno::EINVAL), "must be zero based");
    assert_eq!(register(4990, 11, zero_based), Err(Errno::EINVAL), "beyond the end");
    assert_eq!(register(0, 64, zero_based | AccessFlags::MW_BIND.bits()), Err(Errno::EINVAL));
    let mr_handle = register(0, 5000, zero_based | 1).unwrap();
    let free = || {
        let mut request = Request::<dm::free::Call>::new(DriverId::MLX5);
        request.handle(dm::free::HANDLE, handle);
        client.run(&mut request)
    };
    assert_eq!(free(), Err(Errno::EBUSY));
    client.write(&DeregMr { mr_handle }).unwrap();
    assert_eq!(free(), Ok(()));
    // SAFETY: mapped above.
    unsafe { libc::munmap(mapped, 8192) };
}

fn query(client: &Client, handle: u32) -> (u64, u16, u64) {
    let (mut start, mut page, mut length) = (u64::MAX, u16::MAX, 0u64);
    let mut request = Request::<driver_query::Call>::new(DriverId::MLX5);
    request.handle(driver_query::REQ_HANDLE, handle);
    request.output(driver_query::RESP_START_OFFSET, &mut start);
    request.output(driver_query::RESP_PAGE_INDEX, &mut page);
    request.output(driver_query::RESP_LENGTH, &mut length);
    client.run(&mut request).unwrap();
    (start, page, length)
}
