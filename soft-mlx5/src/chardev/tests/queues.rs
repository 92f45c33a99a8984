//! Creation and destruction of CQs, QPs and SRQs in every form, and refused requests.

use nix::errno::Errno;
use uverbs_uapi::enums::{QpType, SrqType};
use uverbs_uapi::flags::{CqAttrMask, QpCreateFlags, SrqAttrMask};
use uverbs_uapi::mlx5::{self, CqFlags, QpFlags};
use uverbs_uapi::write::cq::{CqModeration, CreateCq, ExCreateCq, ExModifyCq, ResizeCq};
use uverbs_uapi::write::device::ExQueryDevice;
use uverbs_uapi::write::pd::DeallocPd;
use uverbs_uapi::write::qp::{AttachMcast, CreateQp, DetachMcast, ExCreateQp, OpenQp};
use uverbs_uapi::write::srq::{CreateSrq, CreateXsrq, DestroySrq, ModifySrq, QuerySrq};
use uverbs_uapi::write::xrcd::OpenXrcd;
use zerocopy::IntoBytes;

use super::super::Kernel;
use super::bench::{Client, Memory, QpRequest, alone, builder, context_request};

fn cq_request(memory: &Memory, page: u32) -> mlx5::CreateCq {
    mlx5::CreateCq {
        buf_addr: memory.at(0),
        db_addr: memory.at(8184),
        cqe_size: 64,
        flags: CqFlags::UAR_PAGE_INDEX,
        uar_page_index: page as u16,
        ..mlx5::CreateCq::default()
    }
}

#[test]
fn completion_queues_in_write_form() {
    let (_device, client) = alone();
    let (uar, memory) = (client.uar(), Memory::pages(2));
    let good = cq_request(&memory, uar.page_id);
    let base = CreateCq { cqe: 15, comp_channel: -1, ..CreateCq::default() };
    let create = |command: CreateCq, driver: mlx5::CreateCq| {
        client.write_driver(&command, driver.as_bytes(), &mut [0; 8]).map(|made| made.cqe)
    };
    assert_eq!(create(base, good), Ok(15));
    assert_eq!(create(CreateCq { cqe: 16, ..base }, good), Ok(31), "a power of two less one");
    assert_eq!(create(CreateCq { cqe: 1 << 23, ..base }, good), Err(Errno::EINVAL));
    assert_eq!(create(CreateCq { comp_vector: 8, ..base }, good), Err(Errno::EINVAL));
    assert_eq!(
        create(CreateCq { comp_channel: 0, ..base }, good),
        Err(Errno::EBADF),
        "not a channel"
    );
    let with = |change: mlx5::CreateCq| create(base, change);
    assert_eq!(with(mlx5::CreateCq { cqe_size: 32, ..good }), Err(Errno::EINVAL));
    assert_eq!(with(mlx5::CreateCq { reserved1: 1, ..good }), Err(Errno::EINVAL));
    assert_eq!(with(mlx5::CreateCq { buf_addr: 4096, ..good }), Err(Errno::EFAULT));
    assert_eq!(with(mlx5::CreateCq { db_addr: 4096, ..good }), Err(Errno::EFAULT));
    assert_eq!(with(mlx5::CreateCq { uar_page_index: 999, ..good }), Err(Errno::EINVAL));
    assert_eq!(
        with(mlx5::CreateCq { flags: CqFlags::empty(), ..good }),
        Err(Errno::EINVAL),
        "no default UAR"
    );
    let compressed = |cqe_comp_res_format, cqe_size| {
        with(mlx5::CreateCq { cqe_comp_en: 1, cqe_comp_res_format, cqe_size, ..good })
    };
    assert_eq!(compressed(0, 64), Err(Errno::EINVAL), "no format");
    assert_eq!(compressed(3, 64), Err(Errno::EINVAL), "two formats");
    assert_eq!(compressed(1, 128), Err(Errno::EOPNOTSUPP));
    for format in [1, 2, 4] {
        assert!(compressed(format, 64).is_ok());
    }
    let short = client.write_driver(&base, &good.as_bytes()[..20], &mut [0; 8]);
    assert_eq!(short.unwrap_err(), Errno::EINVAL);
    let extended = ExCreateCq { cqe: 15, comp_channel: -1, ..ExCreateCq::default() };
    let made = client.write_driver(&extended, good.as_bytes(), &mut [0; 8]).unwrap();
    assert_eq!((made.base.cqe, made.response_length), (15, 16));
    let wrong = ExCreateCq { comp_mask: 1, ..extended };
    assert_eq!(
        client.write_driver(&wrong, good.as_bytes(), &mut [0; 8]).unwrap_err(),
        Errno::EINVAL
    );
}

#[test]
fn completion_queues_are_resized_and_moderated() {
    let (_device, client) = alone();
    let (uar, memory, larger) = (client.uar(), Memory::pages(2), Memory::pages(1));
    let cq = client.create_cq(&memory, &uar, None, 0).unwrap();
    let driver =
        mlx5::ResizeCq { buf_addr: larger.at(0), cqe_size: 64, ..mlx5::ResizeCq::default() };
    let resize = |cq_handle: u32, cqe: u32| {
        let command = ResizeCq { cq_handle, cqe, ..ResizeCq::default() };
        client.write_driver(&command, driver.as_bytes(), &mut []).map(|answer| answer.cqe)
    };
    assert_eq!(resize(cq.handle, 40), Ok(63));
    assert_eq!(resize(cq.handle, 63), Ok(63), "the size that it has");
    assert_eq!(resize(cq.handle, 0), Err(Errno::EINVAL));
    assert_eq!(resize(99, 40), Err(Errno::ENOENT));
    let moderate = |mask: u32, cq_period: u16| {
        client.write(&ExModifyCq {
            cq_handle: cq.handle,
            attr_mask: CqAttrMask::from_bits_retain(mask),
            attr: CqModeration { cq_count: 4, cq_period },
            ..ExModifyCq::default()
        })
    };
    assert_eq!(moderate(1, 100), Ok(()));
    assert_eq!(moderate(0, 100), Err(Errno::EINVAL));
    assert_eq!(moderate(2, 100), Err(Errno::EOPNOTSUPP));
    assert_eq!(moderate(1, 5000), Err(Errno::EINVAL));
}

#[test]
fn objects_used_by_a_queue_pair_cannot_be_destroyed() {
    let (_device, client) = alone();
    let (uar, ring, cq_memory) = (client.uar(), Memory::pages(1), Memory::pages(2));
    let pd = client.alloc_pd();
    let cq = client.create_cq(&cq_memory, &uar, None, 0).unwrap();
    let qp = client.create_qp(&QpRequest::rc(&ring, &uar, pd, cq.handle)).unwrap();
    assert_eq!(client.destroy_cq(cq.handle), Err(Errno::EBUSY));
    assert_eq!(client.write(&DeallocPd { pd_handle: pd }), Err(Errno::EBUSY));
    assert_eq!(client.destroy_qp(qp.handle), Ok(0));
    assert_eq!(client.destroy_cq(cq.handle), Ok((0, 0)));
    assert_eq!(client.write(&DeallocPd { pd_handle: pd }), Ok(()));
}

#[test]
fn invalid_queue_pairs_are_refused() {
    let (_device, client) = alone();
    let (uar, ring, cq_memory) = (client.uar(), Memory::pages(1), Memory::pages(2));
    let pd = client.alloc_pd();
    let cq = client.create_cq(&cq_memory, &uar, None, 0).unwrap().handle;
    let good = || QpRequest::rc(&ring, &uar, pd, cq);
    let create = |request: QpRequest<'_>| client.create_qp(&request).map(drop);
    assert_eq!(create(QpRequest { pd: 99, ..good() }), Err(Errno::ENOENT));
    assert_eq!(create(QpRequest { cq: pd, ..good() }), Err(Errno::EINVAL), "a PD is not a CQ");
    assert_eq!(create(QpRequest { qp_type: QpType(7), ..good() }), Err(Errno::EINVAL));
    let driver = QpRequest { qp_type: QpType::DRIVER, ..good() };
    assert_eq!(create(driver), Err(Errno::EINVAL), "neither DCI nor DCT");
    assert_eq!(
        create(QpRequest { uidx: 0xff_ffff, ..good() }),
        Err(Errno::EINVAL),
        "no user index"
    );
    assert_eq!(create(QpRequest { uidx: 1 << 24, ..good() }), Err(Errno::EINVAL));
    let flags = QpFlags::UAR_PAGE_INDEX | QpFlags::BFREG_INDEX;
    assert_eq!(create(QpRequest { flags, ..good() }), Err(Errno::EINVAL), "page and register");
    assert_eq!(
        create(QpRequest { flags: QpFlags::empty(), ..good() }),
        Err(Errno::EINVAL),
        "no fixed ones"
    );
    let flags = QpFlags::UAR_PAGE_INDEX | QpFlags::TYPE_DCI;
    assert_eq!(create(QpRequest { flags, ..good() }), Err(Errno::EINVAL));
    for qp_type in [QpType::RC, QpType::UC, QpType::UD] {
        assert_eq!(create(QpRequest { qp_type, ..good() }), Ok(()));
    }
}

#[test]
fn queue_pairs_in_write_form() {
    let (_device, client) = alone();
    let (uar, ring, cq_memory) = (client.uar(), Memory::pages(1), Memory::pages(2));
    let pd_handle = client.alloc_pd();
    let cq = client.create_cq(&cq_memory, &uar, None, 0).unwrap().handle;
    let driver = mlx5::CreateQp {
        buf_addr: ring.at(0),
        db_addr: ring.at(4088),
        sq_wqe_count: 16,
        rq_wqe_count: 4,
        rq_wqe_shift: 4,
        flags: QpFlags::UAR_PAGE_INDEX,
        bfreg_index: uar.page_id,
        ..mlx5::CreateQp::default()
    };
    let base = CreateQp {
        pd_handle,
        send_cq_handle: cq,
        recv_cq_handle: cq,
        max_send_wr: 16,
        max_recv_wr: 4,
        max_recv_sge: 1,
        qp_type: QpType::UD,
        ..CreateQp::default()
    };
    let create = |command: CreateQp, driver: mlx5::CreateQp| {
        client.write_driver(&command, driver.as_bytes(), &mut [0; 40])
    };
    let made = create(base, driver).unwrap();
    assert_eq!((made.max_send_wr, made.max_recv_wr, made.max_recv_sge), (16, 4, 1));
    assert_eq!(client.destroy_qp(made.qp_handle), Ok(0));
    let refused = |command, driver| create(command, driver).unwrap_err();
    assert_eq!(refused(CreateQp { recv_cq_handle: 77, ..base }, driver), Errno::ENOENT);
    assert_eq!(refused(CreateQp { max_recv_wr: 1 << 16, ..base }, driver), Errno::EINVAL);
    assert_eq!(
        refused(CreateQp { max_recv_wr: 0, ..base }, driver),
        Errno::EINVAL,
        "a ring not asked for"
    );
    assert_eq!(refused(base, mlx5::CreateQp { sq_wqe_count: 24, ..driver }), Errno::EINVAL);
    assert_eq!(refused(base, mlx5::CreateQp { buf_addr: 4096, ..driver }), Errno::EFAULT);
    assert_eq!(refused(base, mlx5::CreateQp { buf_addr: ring.at(8), ..driver }), Errno::EINVAL);
    assert_eq!(refused(base, mlx5::CreateQp { rq_wqe_shift: 40, ..driver }), Errno::EINVAL);
    assert_eq!(refused(base, mlx5::CreateQp { reserved: 1, ..driver }), Errno::EINVAL);
    let extended = ExCreateQp {
        pd_handle,
        send_cq_handle: cq,
        recv_cq_handle: cq,
        max_recv_wr: 4,
        qp_type: QpType::UD,
        create_flags: QpCreateFlags::BLOCK_MULTICAST_LOOPBACK,
        ..ExCreateQp::default()
    };
    let create =
        |command: &ExCreateQp| client.write_driver(command, driver.as_bytes(), &mut [0; 40]);
    assert_eq!(create(&extended).unwrap().response_length, 40);
    let create_flags = QpCreateFlags::SOURCE_QPN;
    assert_eq!(create(&ExCreateQp { create_flags, ..extended }).unwrap_err(), Errno::EOPNOTSUPP);
    let create_flags = QpCreateFlags::from_bits_retain(1);
    assert_eq!(create(&ExCreateQp { create_flags, ..extended }).unwrap_err(), Errno::EINVAL);
}

#[test]
fn fixed_registers_are_allocated_and_freed() {
    let device = builder().kernel(Kernel::STATIC_UAR).build().unwrap();
    let client = Client::bare(&device);
    client.get_context(&context_request(), &mut [0; 72]).unwrap();
    let (ring, cq_memory) = (Memory::pages(1), Memory::pages(2));
    let pd_handle = client.alloc_pd();
    let mut cq = cq_request(&cq_memory, 0);
    cq.flags = CqFlags::empty();
    let command = CreateCq { cqe: 15, comp_channel: -1, ..CreateCq::default() };
    let cq = client.write_driver(&command, cq.as_bytes(), &mut [0; 8]).unwrap().cq_handle;
    let driver = mlx5::CreateQp {
        buf_addr: ring.at(0),
        db_addr: ring.at(4088),
        sq_wqe_count: 16,
        ..mlx5::CreateQp::default()
    };
    let create = || {
        let mut answer = [0; 40];
        let command = CreateQp {
            pd_handle,
            send_cq_handle: cq,
            recv_cq_handle: cq,
            qp_type: QpType::RC,
            ..CreateQp::default()
        };
        let made = client.write_driver(&command, driver.as_bytes(), &mut answer).unwrap();
        (made.qp_handle, u32::from_ne_bytes(answer[..4].try_into().unwrap()))
    };
    let made: Vec<_> = (0..6).map(|_| create()).collect();
    let registers: Vec<_> = made.iter().map(|(_, register)| *register).collect();
    // Registers 12 to 15 are exclusive, 1 to 11 shared; each UAR counts four, of which two are the
    // kernel's.
    assert_eq!(registers, [24, 25, 28, 29, 1, 4]);
    client.destroy_qp(made[1].0).unwrap();
    assert_eq!(create().1, 25);
}

#[test]
fn shared_receive_queues() {
    let (_device, client) = alone();
    let (uar, ring, qp_ring, cq_memory) =
        (client.uar(), Memory::pages(1), Memory::pages(1), Memory::pages(2));
    let pd = client.alloc_pd();
    let cq = client.create_cq(&cq_memory, &uar, None, 0).unwrap().handle;
    let srq = client.create_srq(&ring, pd).unwrap();
    let request = QpRequest { srq: Some(srq), ..QpRequest::rc(&qp_ring, &uar, pd, cq) };
    let qp = client.create_qp(&request).unwrap();
    let destroy = || client.write(&DestroySrq { srq_handle: srq, ..DestroySrq::default() });
    assert_eq!(destroy().unwrap_err(), Errno::EBUSY);
    client.destroy_qp(qp.handle).unwrap();
    let query = || client.write(&QuerySrq { srq_handle: srq, ..QuerySrq::default() }).unwrap();
    assert_eq!((query().max_wr, query().max_sge, query().srq_limit), (7, 1, 0));
    let modify = |mask: u32, max_wr: u32, srq_limit: u32| {
        let attr_mask = SrqAttrMask::from_bits_retain(mask);
        client.write(&ModifySrq { srq_handle: srq, attr_mask, max_wr, srq_limit })
    };
    assert_eq!(modify(1, 5, 0), Err(Errno::EINVAL), "no mlx5 resizes");
    assert_eq!(modify(3, 5, 2), Err(Errno::EINVAL), "and nothing is changed");
    assert_eq!(modify(2, 0, 8), Err(Errno::EINVAL), "beyond the ring");
    assert_eq!(modify(4, 0, 0), Ok(()), "unknown bits pass");
    assert_eq!(destroy().unwrap().events_reported, 0);

    let resizable = builder().srq_resize(true).build().unwrap();
    let client = Client::open(&resizable);
    let pd = client.alloc_pd();
    let srq_handle = client.create_srq(&ring, pd).unwrap();
    let resize = |max_wr| {
        let attr_mask = SrqAttrMask::from_bits_retain(1);
        client.write(&ModifySrq { srq_handle, attr_mask, max_wr, srq_limit: 0 })
    };
    assert_eq!(resize(5), Ok(()));
    assert_eq!(resize(8), Err(Errno::EINVAL));
    let max_wr = client.write(&QuerySrq { srq_handle, ..QuerySrq::default() }).unwrap().max_wr;
    assert_eq!(max_wr, 5);
}

#[test]
fn shared_receive_queues_in_write_form() {
    let (_device, client) = alone();
    let (uar, ring, cq_memory) = (client.uar(), Memory::pages(1), Memory::pages(2));
    let pd_handle = client.alloc_pd();
    let cq_handle = client.create_cq(&cq_memory, &uar, None, 0).unwrap().handle;
    let driver = mlx5::CreateSrq {
        buf_addr: ring.at(0),
        db_addr: ring.at(4088),
        uidx: 5,
        ..mlx5::CreateSrq::default()
    };
    let base = CreateSrq { pd_handle, max_wr: 10, max_sge: 1, ..CreateSrq::default() };
    let create = |command| client.write_driver(&command, driver.as_bytes(), &mut [0; 8]);
    let made = create(base).unwrap();
    assert_eq!((made.max_wr, made.max_sge, made.srqn), (15, 1, 0));
    assert_eq!(create(CreateSrq { max_wr: 1 << 15, ..base }).unwrap_err(), Errno::EINVAL);
    assert_eq!(create(CreateSrq { max_sge: 33, ..base }).unwrap_err(), Errno::EINVAL);
    assert_eq!(create(CreateSrq { pd_handle: 99, ..base }).unwrap_err(), Errno::ENOENT);
    let open = OpenXrcd { fd: u32::MAX, oflags: libc::O_CREAT as u32, ..OpenXrcd::default() };
    let xrcd_handle = client.write(&open).unwrap().xrcd_handle;
    let xrc = CreateXsrq {
        pd_handle,
        max_wr: 3,
        max_sge: 1,
        srq_type: SrqType::XRC,
        xrcd_handle,
        cq_handle,
        ..CreateXsrq::default()
    };
    let create = |command| client.write_driver(&command, driver.as_bytes(), &mut [0; 8]);
    assert_ne!(create(xrc).unwrap().srqn, 0);
    assert_eq!(create(CreateXsrq { xrcd_handle: 99, ..xrc }).unwrap_err(), Errno::EINVAL);
    assert_eq!(create(CreateXsrq { cq_handle: 99, ..xrc }).unwrap_err(), Errno::ENOENT);
    assert_eq!(create(CreateXsrq { srq_type: SrqType(9), ..xrc }).unwrap_err(), Errno::EOPNOTSUPP);
    assert_eq!(client.destroy_cq(cq_handle), Err(Errno::EBUSY));
    let close = uverbs_uapi::write::xrcd::CloseXrcd { xrcd_handle };
    assert_eq!(client.write(&close), Err(Errno::EBUSY));
}

#[test]
fn tag_matching_queues_are_on_infiniband_ports() {
    for is_infiniband in [false, true] {
        let port = if is_infiniband { builder().infiniband() } else { builder() };
        let device = port.build().unwrap();
        let client = Client::open(&device);
        let (uar, ring, cq_memory) = (client.uar(), Memory::pages(1), Memory::pages(2));
        let caps = client.write(&ExQueryDevice::default()).unwrap().tm_caps;
        let max_num_tags = if is_infiniband { 127 } else { 0 };
        assert_eq!((caps.max_num_tags, caps.flags), (max_num_tags, u32::from(is_infiniband)));
        let pd_handle = client.alloc_pd();
        let cq_handle = client.create_cq(&cq_memory, &uar, None, 0).unwrap().handle;
        let driver = mlx5::CreateSrq {
            buf_addr: ring.at(0),
            db_addr: ring.at(4088),
            uidx: 5,
            ..mlx5::CreateSrq::default()
        };
        let base = CreateXsrq {
            pd_handle,
            max_wr: 3,
            max_sge: 1,
            srq_type: SrqType::TM,
            cq_handle,
            max_num_tags: 127,
            ..CreateXsrq::default()
        };
        let create = |command: CreateXsrq| {
            let made = client.write_driver(&command, driver.as_bytes(), &mut [0; 8]);
            made.map(|made| made.srq_handle)
        };
        assert_eq!(create(CreateXsrq { max_num_tags: 128, ..base }), Err(Errno::EINVAL));
        assert_eq!(create(CreateXsrq { cq_handle: 99, ..base }), Err(Errno::ENOENT));
        if !is_infiniband {
            assert_eq!(create(base), Err(Errno::EINVAL));
            assert_eq!(create(CreateXsrq { max_num_tags: 0, ..base }), Err(Errno::EINVAL));
            continue;
        }
        create(CreateXsrq { max_num_tags: 0, ..base }).unwrap();
        let srq_handle = create(base).unwrap();
        let info = client.write(&QuerySrq { srq_handle, ..QuerySrq::default() }).unwrap();
        assert_eq!((info.max_wr, info.max_sge), (3, 1));
        let limit = ModifySrq {
            srq_handle,
            attr_mask: SrqAttrMask::LIMIT,
            srq_limit: 2,
            ..ModifySrq::default()
        };
        assert_eq!(client.write(&limit), Ok(()));
        let queue =
            QpRequest { srq: Some(srq_handle), ..QpRequest::rc(&ring, &uar, pd_handle, cq_handle) };
        let qp = client.create_qp(&queue).unwrap();
        let datagrams = QpRequest { qp_type: QpType::UD, ..queue };
        assert_eq!(client.create_qp(&datagrams).map(|qp| qp.handle), Err(Errno::EINVAL));
        assert_eq!(client.destroy_cq(cq_handle), Err(Errno::EBUSY));
        let destroy = || client.write(&DestroySrq { srq_handle, ..DestroySrq::default() });
        assert_eq!(destroy().map(|_| ()), Err(Errno::EBUSY));
        client.destroy_qp(qp.handle).unwrap();
        destroy().unwrap();
    }
}

#[test]
fn xrc_targets_are_shared() {
    let device = builder().build().unwrap();
    let (one, two) = (Client::open(&device), Client::open(&device));
    let fd =
        nix::sys::memfd::memfd_create(c"xrcd", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap();
    let open = |client: &Client| {
        let fd = std::os::fd::AsRawFd::as_raw_fd(&fd) as u32;
        client
            .write(&OpenXrcd { fd, oflags: libc::O_CREAT as u32, ..OpenXrcd::default() })
            .unwrap()
            .xrcd_handle
    };
    let (first, second) = (open(&one), open(&two));
    let target = CreateQp { pd_handle: first, qp_type: QpType::XRC_TGT, ..CreateQp::default() };
    let made = one.write(&target).unwrap();
    let opened =
        |qpn, qp_type| two.write(&OpenQp { pd_handle: second, qpn, qp_type, ..OpenQp::default() });
    assert_eq!(opened(made.qpn, QpType::RC).unwrap_err(), Errno::EINVAL);
    assert_eq!(opened(made.qpn + 1, QpType::XRC_TGT).unwrap_err(), Errno::EINVAL);
    let other = opened(made.qpn, QpType::XRC_TGT).unwrap();
    assert_eq!(other.qpn, made.qpn);
    let exists =
        || device.inspect(|core| core.query_qp(crate::core::Qpn(made.qpn)).is_ok()).unwrap();
    assert_eq!(one.destroy_qp(made.qp_handle), Ok(0));
    assert!(exists(), "one context still has it open");
    assert_eq!(two.destroy_qp(other.qp_handle), Ok(0));
    assert!(!exists());
}

#[test]
fn a_member_of_a_multicast_group_cannot_be_destroyed() {
    let (device, client) = alone();
    let (uar, ring, cq_memory) = (client.uar(), Memory::pages(1), Memory::pages(2));
    let pd = client.alloc_pd();
    let cq = client.create_cq(&cq_memory, &uar, None, 0).unwrap().handle;
    let qp = |qp_type| {
        client
            .create_qp(&QpRequest { qp_type, ..QpRequest::rc(&ring, &uar, pd, cq) })
            .unwrap()
            .handle
    };
    let (ud, rc) = (qp(QpType::UD), qp(QpType::RC));
    let gid = [0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let attach =
        |qp_handle, gid| client.write(&AttachMcast { gid, qp_handle, ..AttachMcast::default() });
    assert_eq!(attach(rc, gid), Err(Errno::EINVAL));
    assert_eq!(attach(ud, device.gids()[0].gid.0), Err(Errno::EINVAL), "not a group");
    assert_eq!(attach(ud, gid), Ok(()));
    assert_eq!(attach(ud, gid), Ok(()), "twice is once");
    assert_eq!(client.destroy_qp(ud), Err(Errno::EBUSY));
    let detach = || client.write(&DetachMcast { gid, qp_handle: ud, ..DetachMcast::default() });
    assert_eq!(detach(), Ok(()));
    assert_eq!(detach(), Err(Errno::EINVAL));
    assert_eq!(attach(ud, gid), Ok(()));
    drop(client);
    // A queue pair that is still a member cannot be destroyed.
    assert_eq!(device.inspect(|core| core.counts().qps), Ok(0), "closing detaches");
}
