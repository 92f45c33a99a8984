//! Protection domains, address handles, XRC domains, counters, UARs: lifetimes and refusals.

use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::time::Instant;

use nix::errno::Errno;
use uverbs_uapi::enums::{DriverId, MwType};
use uverbs_uapi::mlx5::{CreateAhResp, object::pd as driver_pd, object::uar};
use uverbs_uapi::objects::device::info_handles;
use uverbs_uapi::objects::{ObjectId, counters};
use uverbs_uapi::request::Request;
use uverbs_uapi::write::ah::{AhAttr, CreateAh, DestroyAh, GlobalRoute};
use uverbs_uapi::write::mw::AllocMw;
use uverbs_uapi::write::pd::{AllocPd, DeallocPd};
use uverbs_uapi::write::xrcd::{CloseXrcd, OpenXrcd};
use zerocopy::FromBytes;

use super::super::{Fault, Moment, SoftDevice};
use super::bench::{Client, Memory, PATIENCE, QpRequest, alone, builder, read_async, wait_for};
use crate::packet::{Addressing, Bth, Gid, Opcode, Packet, PacketPool, Psn};
use crate::wire::{Network, Station, Wire};

#[test]
fn pds_have_numbers() {
    let (_device, client) = alone();
    let (one, two) = (client.alloc_pd(), client.alloc_pd());
    let pdn = |handle| {
        let mut pdn = 0u32;
        let mut request = Request::<driver_pd::query::Call>::new(DriverId::MLX5);
        request.handle(driver_pd::query::HANDLE, handle);
        request.output(driver_pd::query::RESP_PDN, &mut pdn);
        client.run(&mut request).unwrap();
        pdn
    };
    assert_ne!(pdn(one), pdn(two));
    let no_room = client.write_driver(&AllocPd::default(), &[], &mut []);
    assert_eq!(
        no_room.unwrap_err(),
        Errno::EFAULT,
        "the driver answers whether there is room or not"
    );
    assert_eq!(handles(&client, 1), [two, one], "the failed one has left nothing");
}

fn handles(client: &Client, object: u16) -> Vec<u32> {
    let (mut total, mut list) = (0u32, [0xff; 64]);
    let mut request = Request::<info_handles::Call>::new(DriverId::MLX5);
    request.constant(info_handles::OBJECT_ID, ObjectId(object).0);
    request.output(info_handles::TOTAL_HANDLES, &mut total);
    request.output_bytes(info_handles::HANDLES_LIST, &mut list).unwrap();
    client.run(&mut request).unwrap();
    let words = list.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap()));
    words.take(total as usize).collect()
}

fn create_ah(client: &Client, pd_handle: u32, attr: AhAttr) -> Result<(u32, [u8; 6]), Errno> {
    let mut answer = [0; 16];
    let command = CreateAh { pd_handle, attr, ..CreateAh::default() };
    let made = client.write_driver(&command, &[], &mut answer)?;
    Ok((made.ah_handle, CreateAhResp::read_from_bytes(&answer).unwrap().dmac))
}

fn route(device: &SoftDevice, index: u8) -> AhAttr {
    let grh =
        GlobalRoute { dgid: device.gids()[3].gid.0, sgid_index: index, ..GlobalRoute::default() };
    AhAttr { grh, is_global: 1, port_num: 1, ..AhAttr::default() }
}

#[test]
fn address_handles_report_the_mac_on_roce() {
    let (device, client) = alone();
    let pd = client.alloc_pd();
    let good = route(&device, 3);
    let (ah_handle, mac) = create_ah(&client, pd, good).unwrap();
    assert_eq!(mac[0], 2, "locally administered");
    let group =
        |dgid| create_ah(&client, pd, AhAttr { grh: GlobalRoute { dgid, ..good.grh }, ..good });
    let v4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 129, 2, 3];
    assert_eq!(group(v4).unwrap().1, [0x01, 0x00, 0x5e, 0x01, 2, 3]);
    let v6 = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4];
    assert_eq!(group(v6).unwrap().1, [0x33, 0x33, 1, 2, 3, 4]);
    let refused = |attr| create_ah(&client, pd, attr).map(drop);
    assert_eq!(refused(AhAttr { port_num: 2, ..good }), Err(Errno::EINVAL));
    assert_eq!(
        refused(AhAttr { is_global: 0, ..good }),
        Err(Errno::EINVAL),
        "RoCE has always a route"
    );
    assert_eq!(refused(route(&device, 200)), Err(Errno::ENODATA), "an unused GID");
    assert_eq!(refused(AhAttr { static_rate: 1, ..good }), Err(Errno::EINVAL));
    assert_eq!(create_ah(&client, 99, good).map(drop), Err(Errno::ENOENT));
    let command = CreateAh { pd_handle: pd, attr: good, ..CreateAh::default() };
    assert_eq!(client.write(&command).unwrap_err(), Errno::EINVAL, "no space for the MAC");
    assert_eq!(client.write(&DeallocPd { pd_handle: pd }), Err(Errno::EBUSY));
    assert_eq!(client.write(&DestroyAh { ah_handle }), Ok(()));
    assert_eq!(client.write(&DestroyAh { ah_handle }), Err(Errno::ENOENT));
}

#[test]
fn a_command_that_waits_for_a_neighbour_does_not_block_other_commands() {
    let device = SoftDevice::builder("soft0").neighbour_wait(PATIENCE).build().unwrap();
    let client = Client::open(&device);
    let pd = client.alloc_pd();
    let address = Ipv4Addr::new(127, 77, 2, 9);
    let mut attr = route(&device, 3);
    attr.grh.dgid = address.to_ipv6_mapped().octets();
    let before = device.ioctl_count();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| create_ah(&client, pd, attr));
        wait_for("command that waits", || (device.ioctl_count() > before).then_some(()));
        for _ in 0..100 {
            client.write(&DeallocPd { pd_handle: client.alloc_pd() }).unwrap();
        }
        // The command would time out if the earlier ones had blocked it.
        let _neighbour = std::net::UdpSocket::bind((address, 4791)).unwrap();
        waiting.join().unwrap().unwrap();
    });
}

/// The device learns of the process's end because it has received a packet from it.
#[test]
fn a_command_does_not_wait_for_a_neighbour_whose_process_has_ended() {
    let device = SoftDevice::builder("soft0").neighbour_wait(PATIENCE).build().unwrap();
    let client = Client::open(&device);
    let pd = client.alloc_pd();
    let station = Station::new(Ipv4Addr::new(127, 77, 2, 8)).unwrap();
    let mut peer = Network::join_apart_as(station).unwrap();
    let mut attr = route(&device, 3);
    let to = Gid(attr.grh.dgid);
    attr.grh.dgid = peer.station().gid().0;
    let mut packet = Packet::new();
    packet.start(
        Addressing::roce(peer.station().gid(), to),
        Bth::new(Opcode(4), 0xffff, 0x11, Psn::new(0)),
    );
    peer.send(0, &mut vec![packet], &mut PacketPool::default());
    drop(peer);
    let start = Instant::now();
    assert_eq!(create_ah(&client, pd, attr).map(drop), Err(Errno::ETIMEDOUT));
    assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
}

#[test]
fn xrc_domains_are_shared_by_inode() {
    let device = builder().build().unwrap();
    let (one, two) = (Client::open(&device), Client::open(&device));
    let file = tempfile();
    let other = file.try_clone().unwrap();
    let open = |client: &Client, fd: i32, oflags: i32| {
        let made =
            client.write(&OpenXrcd { fd: fd as u32, oflags: oflags as u32, ..OpenXrcd::default() });
        made.map(|made| made.xrcd_handle)
    };
    assert_eq!(open(&one, 9999, 0), Err(Errno::EBADF));
    assert_eq!(open(&one, file.as_raw_fd(), 0), Err(Errno::EAGAIN), "the domain does not exist");
    let first = open(&one, file.as_raw_fd(), libc::O_CREAT).unwrap();
    let second = open(&two, other.as_raw_fd(), 0).unwrap();
    let exclusive = libc::O_CREAT | libc::O_EXCL;
    assert_eq!(open(&two, file.as_raw_fd(), exclusive), Err(Errno::EINVAL));
    let private = open(&one, -1, libc::O_CREAT).unwrap();
    assert_eq!(one.write(&CloseXrcd { xrcd_handle: first }), Ok(()));
    assert!(open(&one, file.as_raw_fd(), 0).is_ok(), "the other context keeps it");
    assert_eq!(one.write(&CloseXrcd { xrcd_handle: private }), Ok(()));
    assert_eq!(two.write(&CloseXrcd { xrcd_handle: second }), Ok(()));
    drop((one, two));
    assert_eq!(open(&Client::open(&device), file.as_raw_fd(), 0), Err(Errno::EAGAIN));
}

fn tempfile() -> std::fs::File {
    let fd = nix::sys::memfd::memfd_create(c"xrcd", nix::sys::memfd::MFdFlags::MFD_CLOEXEC);
    std::fs::File::from(fd.unwrap())
}

#[test]
fn a_uar_can_be_freed_before_its_queues() {
    let (_device, client) = alone();
    let uar = client.uar();
    let memory = Memory::pages(2);
    let cq = client.create_cq(&memory, &uar, None, 0).unwrap();
    let mut request = Request::<uar::destroy::Call>::new(DriverId::MLX5);
    request.handle(uar::destroy::HANDLE, uar.handle);
    assert_eq!(client.run(&mut request), Ok(()));
    uar.ring(0x20, [1; 8]);
    assert_eq!(client.destroy_cq(cq.handle), Ok((0, 0)));
}

#[test]
fn counters_without_a_rule_are_an_error() {
    let (_device, client) = alone();
    let mut request = Request::<counters::create::Call>::new(DriverId::MLX5);
    request.new_handle(counters::create::HANDLE);
    client.run(&mut request).unwrap();
    let handle = request.created(counters::create::HANDLE).unwrap();
    let mut values = [0; 16];
    let mut request = Request::<counters::read::Call>::new(DriverId::MLX5);
    request.handle(counters::read::HANDLE, handle);
    request.output_bytes(counters::read::BUFF, &mut values).unwrap();
    assert_eq!(client.run(&mut request), Err(Errno::EINVAL), "nothing is attached");
}

#[test]
fn injected_faults_leave_no_objects() {
    let (device, client) = alone();
    let pd_handle = client.alloc_pd();
    device.inject(Fault { moment: Moment::Call(0), errno: Errno::EINTR });
    let alloc = AllocMw { pd_handle, mw_type: MwType::TYPE_1, ..AllocMw::default() };
    assert_eq!(client.write(&alloc).unwrap_err(), Errno::EINTR);
    assert_eq!(client.write(&DeallocPd { pd_handle }), Ok(()), "no window holds it");
}

#[test]
fn closing_a_file_frees_everything() {
    let device = builder().build().unwrap();
    let objects = || device.inspect(|core| core.counts()).unwrap();
    let before = objects();
    let memory = Memory::pages(1);
    let client = Client::open(&device);
    let pd = client.alloc_pd();
    client.reg_mr(pd, memory.at(0), 4096).unwrap();
    assert_ne!(objects(), before);
    drop(client);
    assert_eq!(objects(), before);
}

#[test]
fn several_threads_and_contexts_create_a_thousand_queue_pairs() {
    let device = builder().build().unwrap();
    let objects = || device.inspect(|core| core.counts()).unwrap();
    let before = objects();
    std::thread::scope(|scope| {
        for first in 0..4 {
            let device = &device;
            scope.spawn(move || {
                let client = Client::open(device);
                let (uar, ring, cq_memory) = (client.uar(), Memory::pages(1), Memory::pages(2));
                let pd = client.alloc_pd();
                let cq = client.create_cq(&cq_memory, &uar, None, 0).unwrap().handle;
                let create =
                    || client.create_qp(&QpRequest::rc(&ring, &uar, pd, cq)).unwrap().handle;
                let made: Vec<_> = (0..250).map(|_| create()).collect();
                // Some are destroyed, the others are freed with the file.
                for handle in made.into_iter().skip(first).step_by(2) {
                    client.destroy_qp(handle).unwrap();
                }
                drop(client);
            });
        }
    });
    assert_eq!(objects(), before);
}

#[test]
fn a_child_process_cannot_use_the_device() {
    let (device, client) = alone();
    let events = client.async_events();
    device.raise(crate::core::AsyncKind::LidChange, crate::core::EventObject::Port(1)).unwrap();
    // SAFETY: the child makes only system calls and calls that the device refuses, and exits at
    // once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = client.write(&AllocPd::default()).unwrap_err() == Errno::EIO;
        drop(client);
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = -1;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    assert_eq!(read_async(events), Some((1, 11)), "the child has not taken it");
    client.alloc_pd();
    // SAFETY: the descriptor is this test's own.
    unsafe { libc::close(events) };
}
