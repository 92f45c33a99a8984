//! MODIFY_QP and QUERY_QP: attribute masks, values, and attributes that the driver stores.

use nix::errno::Errno;
use uverbs_uapi::enums::{Mtu, QpState, QpType};
use uverbs_uapi::flags::{AccessFlags, QpAttrMask};
use uverbs_uapi::write::qp::{ExModifyQp, ModifyQp, QueryQp, QueryQpResp};

use super::super::SoftDevice;
use super::bench::{Client, Memory, Qp, QpRequest, Uar, builder};
use super::traffic::connect;
use crate::core::{AsyncKind, EventObject, Qpn};

struct Bench {
    client: Client,
    qp: Qp,
    _uar: Uar,
    _memory: [Memory; 2],
}

fn bench(device: &SoftDevice, qp_type: QpType) -> Bench {
    let client = Client::open(device);
    let (uar, memory) = (client.uar(), [Memory::pages(1), Memory::pages(2)]);
    let pd = client.alloc_pd();
    let cq = client.create_cq(&memory[1], &uar, None, 0).unwrap().handle;
    let qp = client
        .create_qp(&QpRequest { qp_type, ..QpRequest::rc(&memory[0], &uar, pd, cq) })
        .unwrap();
    Bench { client, qp, _uar: uar, _memory: memory }
}

impl Bench {
    fn modify(&self, change: ModifyQp) -> Result<(), Errno> {
        self.client.write(&ModifyQp { qp_handle: self.qp.handle, ..change })
    }

    fn to(&self, qp_state: QpState) -> Result<(), Errno> {
        self.modify(ModifyQp { attr_mask: QpAttrMask::STATE, qp_state, ..ModifyQp::default() })
    }

    fn query(&self) -> QueryQpResp {
        self.client.write(&QueryQp { qp_handle: self.qp.handle, ..QueryQp::default() }).unwrap()
    }

    fn state(&self) -> QpState {
        self.query().qp_state
    }
}

fn init() -> ModifyQp {
    ModifyQp {
        attr_mask: QpAttrMask::STATE
            | QpAttrMask::PKEY_INDEX
            | QpAttrMask::PORT
            | QpAttrMask::ACCESS_FLAGS,
        qp_state: QpState::INIT,
        port_num: 1,
        qp_access_flags: AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_ATOMIC,
        ..ModifyQp::default()
    }
}

#[test]
fn init_needs_exactly_its_attributes() {
    let device = builder().build().unwrap();
    let bench = bench(&device, QpType::RC);
    let good = init();
    let with = |change: ModifyQp| bench.modify(change);
    assert_eq!(
        with(ModifyQp { attr_mask: good.attr_mask & !QpAttrMask::PORT, ..good }),
        Err(Errno::EINVAL)
    );
    assert_eq!(
        with(ModifyQp { attr_mask: good.attr_mask | QpAttrMask::QKEY, ..good }),
        Err(Errno::EINVAL)
    );
    assert_eq!(with(ModifyQp { port_num: 2, ..good }), Err(Errno::EINVAL));
    assert_eq!(with(ModifyQp { pkey_index: 1, ..good }), Err(Errno::EINVAL));
    assert_eq!(with(ModifyQp { qp_state: QpState(9), ..good }), Err(Errno::EINVAL));
    let attr_mask = good.attr_mask | QpAttrMask::from_bits_retain(1 << 21);
    assert_eq!(with(ModifyQp { attr_mask, ..good }), Err(Errno::EOPNOTSUPP));
    assert_eq!(bench.state(), QpState::RESET, "nothing has happened");
    assert_eq!(with(good), Ok(()));
    assert_eq!(bench.state(), QpState::INIT);
    let answer = bench.query();
    assert_eq!(answer.qp_access_flags, AccessFlags::REMOTE_WRITE, "no responder depth, no reads");
    assert_eq!((answer.port_num, answer.max_recv_wr, answer.max_send_wr), (1, 4, 0));
}

#[test]
fn a_query_of_a_connected_queue_pair_has_its_path() {
    let device = builder().build().unwrap();
    let bench = bench(&device, QpType::RC);
    connect(&device, &bench.client, bench.qp, 0x77).unwrap();
    let answer = bench.query();
    assert_eq!((answer.qp_state, answer.cur_qp_state), (QpState::RTS, QpState::RTS));
    assert_eq!((answer.dest_qp_num, answer.rq_psn, answer.sq_psn), (0x77, 5, 5));
    assert_eq!((answer.path_mtu, answer.timeout, answer.retry_cnt), (Mtu(3), 14, 7));
    assert_eq!((answer.max_rd_atomic, answer.max_dest_rd_atomic, answer.min_rnr_timer), (1, 1, 12));
    assert_eq!(answer.qp_access_flags, AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE);
    assert_eq!((answer.dest.is_global, answer.dest.sgid_index, answer.dest.port_num), (1, 3, 1));
    assert_eq!(answer.dest.dgid, device.gids()[3].gid.0);
}

#[test]
fn rtr_checks_its_path() {
    let device = builder().build().unwrap();
    let bench = bench(&device, QpType::RC);
    bench.modify(init()).unwrap();
    let mut rtr = ModifyQp {
        attr_mask: QpAttrMask::STATE
            | QpAttrMask::AV
            | QpAttrMask::PATH_MTU
            | QpAttrMask::DEST_QPN
            | QpAttrMask::RQ_PSN
            | QpAttrMask::MAX_DEST_RD_ATOMIC
            | QpAttrMask::MIN_RNR_TIMER,
        qp_state: QpState::RTR,
        path_mtu: Mtu(5),
        max_dest_rd_atomic: 16,
        ..ModifyQp::default()
    };
    rtr.dest.port_num = 1;
    let with = |change: &dyn Fn(&mut ModifyQp)| {
        let mut request = rtr;
        request.dest.is_global = 1;
        request.dest.sgid_index = 1;
        request.dest.dgid = device.gids()[1].gid.0;
        change(&mut request);
        bench.modify(request)
    };
    assert_eq!(with(&|request| request.dest.is_global = 0), Err(Errno::EINVAL));
    assert_eq!(with(&|request| request.dest.sgid_index = 9), Err(Errno::ENODATA));
    assert_eq!(with(&|request| request.dest.port_num = 2), Err(Errno::EINVAL));
    assert_eq!(with(&|request| request.dest.static_rate = 1), Err(Errno::EINVAL));
    assert_eq!(with(&|request| request.path_mtu = Mtu(6)), Err(Errno::EINVAL));
    assert_eq!(with(&|request| request.max_dest_rd_atomic = 17), Err(Errno::EINVAL));
    assert_eq!(bench.state(), QpState::INIT);
    assert_eq!(with(&|_| {}), Ok(()));
    let rights = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    assert_eq!(bench.query().qp_access_flags, rights, "the rights of INIT count from here");
}

#[test]
fn draining_is_an_option() {
    let plain = builder().build().unwrap();
    let refusing = bench(&plain, QpType::RC);
    connect(&plain, &refusing.client, refusing.qp, 0x77).unwrap();
    assert_eq!(refusing.to(QpState::SQD), Err(Errno::EINVAL), "as mlx5_ib");
    let device = builder().send_queue_drain(true).build().unwrap();
    let bench = bench(&device, QpType::RC);
    connect(&device, &bench.client, bench.qp, 0x77).unwrap();
    assert_eq!(bench.to(QpState::SQD), Ok(()));
    assert_eq!(bench.state(), QpState::SQD);
    assert_eq!(bench.to(QpState::RTS), Ok(()));
}

#[test]
fn every_state_can_end_in_error_and_reset() {
    let device = builder().build().unwrap();
    let bench = bench(&device, QpType::UD);
    assert_eq!(bench.to(QpState::ERR), Err(Errno::EINVAL), "not from RESET");
    assert_eq!(bench.to(QpState::RESET), Ok(()));
    let attr_mask =
        QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY;
    bench.modify(ModifyQp { attr_mask, qkey: 0x1111, ..init() }).unwrap();
    assert_eq!(bench.query().qkey, 0x1111);
    assert_eq!(bench.to(QpState::RTR), Ok(()));
    assert_eq!(bench.to(QpState::ERR), Ok(()));
    assert_eq!(bench.to(QpState::RTS), Err(Errno::EINVAL));
    assert_eq!(bench.to(QpState::RESET), Ok(()));
    assert_eq!(bench.state(), QpState::RESET);
}

#[test]
fn a_query_reports_the_error_state() {
    let device = builder().build().unwrap();
    let bench = bench(&device, QpType::RC);
    connect(&device, &bench.client, bench.qp, 0x77).unwrap();
    device.raise(AsyncKind::QpFatal, EventObject::Qp(Qpn(bench.qp.qpn))).unwrap();
    assert_eq!(bench.state(), QpState::ERR);
    assert_eq!(bench.to(QpState::RTS), Err(Errno::EINVAL));
    assert_eq!(bench.to(QpState::RESET), Ok(()));
}

#[test]
fn the_extended_form_returns_its_response_length() {
    let device = builder().build().unwrap();
    let bench = bench(&device, QpType::RC);
    let base = ModifyQp { qp_handle: bench.qp.handle, ..init() };
    let extended = ExModifyQp { base, ..ExModifyQp::default() };
    assert_eq!(bench.client.write(&extended).unwrap().response_length, 8);
    let attr_mask = QpAttrMask::STATE | QpAttrMask::RATE_LIMIT;
    let limited = ExModifyQp { base: ModifyQp { attr_mask, ..base }, ..extended };
    assert_eq!(bench.client.write(&limited).unwrap_err(), Errno::EINVAL);
    let mut options = [0u8; 16];
    let mut answer = [0; 16];
    bench.client.write_driver(&extended, &options, &mut answer).unwrap();
    assert_eq!(answer[..4], 16u32.to_ne_bytes());
    options[0] = 1;
    let refused = bench.client.write_driver(&extended, &options, &mut [0; 16]);
    assert_eq!(refused.unwrap_err(), Errno::EOPNOTSUPP);
    let refused = bench.client.write_driver(&extended, &options[..8], &mut [0; 16]);
    assert_eq!(refused.unwrap_err(), Errno::EINVAL);
}
