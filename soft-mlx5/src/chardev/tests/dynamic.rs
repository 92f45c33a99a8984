//! Dynamically connected queue pairs: creation, the masks of each change of state, queries.

use nix::errno::Errno;
use uverbs_uapi::enums::{DriverId, Mtu, QpState, QpType};
use uverbs_uapi::flags::{AccessFlags, QpAttrMask};
use uverbs_uapi::mlx5::{self, QpFlags};
use uverbs_uapi::objects::qp;
use uverbs_uapi::request::Request;
use uverbs_uapi::write::qp::{ExModifyQp, ModifyQp, QpCap, QpDest, QueryQp, QueryQpResp};
use zerocopy::{FromBytes, IntoBytes};

use super::super::SoftDevice;
use super::bench::{Client, Memory, Qp, Uar, builder};

const RTR: QpAttrMask = QpAttrMask::MIN_RNR_TIMER.union(QpAttrMask::AV).union(QpAttrMask::PATH_MTU);

struct Bench {
    client: Client,
    uar: Uar,
    pd: u32,
    cq: u32,
    srq: u32,
    memory: [Memory; 3],
}

/// The options of a queue pair.
#[derive(Clone, Copy)]
struct Wanted {
    flags: QpFlags,
    has_srq: bool,
    max_recv_wr: u32,
    sends: u32,
}

const INITIATOR: Wanted =
    Wanted { flags: QpFlags::TYPE_DCI, has_srq: false, max_recv_wr: 0, sends: 16 };
const TARGET: Wanted = Wanted { flags: QpFlags::TYPE_DCT, has_srq: true, max_recv_wr: 0, sends: 0 };

impl Bench {
    fn new(device: &SoftDevice) -> Self {
        let client = Client::open(device);
        let memory = [Memory::pages(1), Memory::pages(2), Memory::pages(1)];
        let (uar, pd) = (client.uar(), client.alloc_pd());
        let cq = client.create_cq(&memory[1], &uar, None, 0).unwrap().handle;
        let srq = client.create_srq(&memory[2], pd).unwrap();
        Self { client, uar, pd, cq, srq, memory }
    }

    fn create(&self, wanted: Wanted) -> Result<Qp, Errno> {
        let is_initiator = wanted.flags.contains(QpFlags::TYPE_DCI);
        let own = if is_initiator { QpFlags::UAR_PAGE_INDEX } else { QpFlags::empty() };
        let driver = mlx5::CreateQp {
            buf_addr: if is_initiator { self.memory[0].at(0) } else { 0 },
            db_addr: if is_initiator { self.memory[0].at(4088) } else { 0 },
            sq_buf_addr: 0x1122_3344,
            sq_wqe_count: wanted.sends,
            flags: wanted.flags | own,
            uidx: 1,
            bfreg_index: if is_initiator { self.uar.page_id } else { 0 },
            ..mlx5::CreateQp::default()
        };
        let cap = QpCap { max_recv_wr: wanted.max_recv_wr, ..QpCap::default() };
        let (mut granted, mut qpn, mut answer) = (QpCap::default(), 99u32, [9; 40]);
        let mut request = Request::<qp::create::Call>::new(DriverId::MLX5);
        request.new_handle(qp::create::HANDLE);
        request.handle(qp::create::PD_HANDLE, self.pd);
        request.handle(qp::create::SEND_CQ_HANDLE, self.cq);
        request.handle(qp::create::RECV_CQ_HANDLE, self.cq);
        if wanted.has_srq {
            request.handle(qp::create::SRQ_HANDLE, self.srq);
        }
        request.value(qp::create::USER_HANDLE, 0x9090u64);
        request.input(qp::create::CAP, &cap);
        request.constant(qp::create::TYPE, QpType::DRIVER.0);
        request.output(qp::create::RESP_CAP, &mut granted);
        request.output(qp::create::RESP_QP_NUM, &mut qpn);
        request.driver_data(driver.as_bytes(), &mut answer).unwrap();
        self.client.run(&mut request)?;
        let handle = request.created(qp::create::HANDLE).unwrap();
        Ok(Qp { handle, qpn })
    }

    fn modify(&self, qp: Qp, change: ModifyQp) -> Result<(), Errno> {
        self.client.write(&ModifyQp { qp_handle: qp.handle, ..change })
    }

    /// Modifies a target as libmlx5 does, with a driver response of this size.
    fn modify_extended(
        &self,
        qp: Qp,
        change: ModifyQp,
        room: usize,
    ) -> Result<mlx5::ModifyQpResp, Errno> {
        let base = ModifyQp { qp_handle: qp.handle, ..change };
        let command = ExModifyQp { base, ..ExModifyQp::default() };
        let (input, mut answer) = (mlx5::ModifyQp::default(), [0; 16]);
        self.client.write_driver(&command, input.as_bytes(), &mut answer[..room])?;
        Ok(mlx5::ModifyQpResp::read_from_bytes(&answer).unwrap())
    }

    fn query(&self, qp: Qp, attr_mask: QpAttrMask) -> Result<QueryQpResp, Errno> {
        self.client.write(&QueryQp { qp_handle: qp.handle, attr_mask, ..QueryQp::default() })
    }
}

fn to(qp_state: QpState, mask: QpAttrMask) -> ModifyQp {
    let dest = QpDest {
        is_global: 1,
        port_num: 1,
        dgid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1],
        traffic_class: 7,
        hop_limit: 9,
        flow_label: 0x1234,
        ..QpDest::default()
    };
    ModifyQp {
        attr_mask: QpAttrMask::STATE | mask,
        qp_state,
        port_num: 1,
        path_mtu: Mtu(3),
        min_rnr_timer: 12,
        timeout: 14,
        max_rd_atomic: 4,
        qp_access_flags: AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC,
        dest,
        ..ModifyQp::default()
    }
}

/// Checks that masks with one attribute less or more than `good` are refused, and `good` is not.
fn only_exactly(
    state: QpState,
    good: QpAttrMask,
    optional: QpAttrMask,
    mut attempt: impl FnMut(ModifyQp) -> Result<(), Errno>,
) {
    for bit in QpAttrMask::all().iter().filter(|bit| *bit != QpAttrMask::RATE_LIMIT) {
        if good.contains(bit) {
            assert_eq!(attempt(to(state, good - bit)), Err(Errno::EINVAL), "without {bit:?}");
        } else if !optional.contains(bit) && bit != QpAttrMask::STATE {
            assert!(attempt(to(state, good | bit)).is_err(), "with {bit:?}");
        }
    }
    assert_eq!(attempt(to(state, good)), Ok(()));
}

#[test]
fn creation_is_checked_as_the_driver_checks_it() {
    let bench = Bench::new(&builder().build().unwrap());
    let both = QpFlags::TYPE_DCI | QpFlags::TYPE_DCT;
    for refused in [
        Wanted { flags: both, ..INITIATOR },
        Wanted { flags: QpFlags::empty(), ..INITIATOR },
        Wanted { max_recv_wr: 1, ..INITIATOR },
        Wanted { flags: QpFlags::TYPE_DCI | QpFlags::DCI_STREAM, ..INITIATOR },
        Wanted { has_srq: false, ..TARGET },
        Wanted { flags: QpFlags::TYPE_DCT | QpFlags::TUNNEL_OFFLOADS, ..TARGET },
    ] {
        assert_eq!(bench.create(refused).map(|_| ()), Err(Errno::EINVAL));
    }
    let lacking = Bench::new(&builder().dynamically_connected(false).build().unwrap());
    for wanted in [INITIATOR, TARGET] {
        assert_eq!(lacking.create(wanted).map(|_| ()), Err(Errno::EOPNOTSUPP));
    }
}

#[test]
fn a_target_gets_its_number_in_the_transition_to_rtr() {
    let bench = Bench::new(&builder().build().unwrap());
    let target = bench.create(TARGET).unwrap();
    assert_eq!(target.qpn, 0, "no number yet");
    let init = QpAttrMask::ACCESS_FLAGS | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT;
    assert_eq!(bench.modify(target, to(QpState::RTR, RTR)), Err(Errno::EINVAL));
    assert_eq!(bench.query(target, QpAttrMask::STATE).map(|_| ()), Err(Errno::EINVAL));
    only_exactly(QpState::INIT, init, QpAttrMask::empty(), |change| bench.modify(target, change));
    // There is no transition from INIT to INIT, and the one to RTR needs space for the number.
    assert_eq!(bench.modify(target, to(QpState::INIT, init)), Err(Errno::EINVAL));
    assert_eq!(bench.modify(target, to(QpState::RTR, RTR)), Err(Errno::EINVAL));
    assert_eq!(bench.query(target, QpAttrMask::STATE).map(|_| ()), Err(Errno::EINVAL));
    let mut answer = mlx5::ModifyQpResp::default();
    only_exactly(QpState::RTR, RTR, QpAttrMask::empty(), |change| {
        answer = bench.modify_extended(target, change, 16)?;
        Ok(())
    });
    assert_eq!(answer.response_length, 16);
    assert!(answer.dctn != 0 && answer.dctn < 1 << 24);
    for state in [QpState::RESET, QpState::INIT, QpState::RTR, QpState::RTS, QpState::ERR] {
        for mask in [QpAttrMask::empty(), init, RTR] {
            assert_eq!(bench.modify(target, to(state, mask)), Err(Errno::EINVAL));
        }
    }
    bench.client.destroy_qp(target.handle).unwrap();
}

#[test]
fn a_short_response_has_the_number_too() {
    let bench = Bench::new(&builder().build().unwrap());
    let target = bench.create(TARGET).unwrap();
    let init = QpAttrMask::ACCESS_FLAGS | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT;
    bench.modify(target, to(QpState::INIT, init)).unwrap();
    let short = bench.modify_extended(target, to(QpState::RTR, RTR), 4);
    assert_eq!(short.map(|_| ()), Err(Errno::EINVAL));
    let answer = bench.modify_extended(target, to(QpState::RTR, RTR), 8).unwrap();
    assert_eq!(answer.response_length, 8);
    assert_ne!(answer.dctn, 0);
}

#[test]
fn a_target_is_queried_only_for_attributes_that_it_has() {
    let bench = Bench::new(&builder().build().unwrap());
    let target = bench.create(TARGET).unwrap();
    let init = QpAttrMask::ACCESS_FLAGS | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT;
    bench.modify(target, to(QpState::INIT, init)).unwrap();
    bench.modify_extended(target, to(QpState::RTR, RTR), 16).unwrap();
    let known = QpAttrMask::STATE | init | RTR;
    for bit in QpAttrMask::all() {
        assert_eq!(bench.query(target, bit).is_ok(), known.contains(bit), "{bit:?}");
    }
    let told = bench.query(target, known).unwrap();
    assert_eq!((told.qp_state, told.port_num, told.pkey_index), (QpState::RTR, 1, 0));
    assert_eq!((told.path_mtu, told.min_rnr_timer), (Mtu(3), 12));
    assert_eq!(told.qp_access_flags, AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC);
    let dest = told.dest;
    assert_eq!((dest.traffic_class, dest.hop_limit, dest.flow_label), (7, 9, 0x1234));
    assert_eq!(dest.dgid, [0; 16], "a target has no peer");
    let one = bench.query(target, QpAttrMask::PORT).unwrap();
    assert_eq!((one.port_num, one.min_rnr_timer), (1, 0), "only the requested attributes");
}

#[test]
fn an_initiator_has_its_own_masks() {
    let bench = Bench::new(&builder().build().unwrap());
    let initiator = bench.create(INITIATOR).unwrap();
    assert_ne!(initiator.qpn, 0);
    let attempt = |change| bench.modify(initiator, change);
    let init = QpAttrMask::PKEY_INDEX | QpAttrMask::PORT;
    only_exactly(QpState::INIT, init, QpAttrMask::empty(), attempt);
    assert_eq!(attempt(to(QpState::INIT, QpAttrMask::PORT)), Ok(()));
    let path = QpAttrMask::PKEY_INDEX | QpAttrMask::AV;
    only_exactly(QpState::RTR, QpAttrMask::PATH_MTU, path, attempt);
    let rts = QpAttrMask::TIMEOUT
        | QpAttrMask::RETRY_CNT
        | QpAttrMask::RNR_RETRY
        | QpAttrMask::MAX_QP_RD_ATOMIC
        | QpAttrMask::SQ_PSN;
    only_exactly(QpState::RTS, rts, QpAttrMask::MIN_RNR_TIMER, attempt);
    assert_eq!(bench.query(initiator, QpAttrMask::STATE).unwrap().qp_state, QpState::RTS);
    assert_eq!(attempt(to(QpState::RTS, QpAttrMask::MIN_RNR_TIMER)), Ok(()));
    assert_eq!(attempt(to(QpState::RTS, QpAttrMask::ACCESS_FLAGS)), Err(Errno::EINVAL));
    assert_eq!(attempt(to(QpState::SQD, QpAttrMask::empty())), Err(Errno::EINVAL));
    for state in [QpState::ERR, QpState::RESET, QpState::RESET] {
        assert_eq!(attempt(to(state, QpAttrMask::empty())), Ok(()));
        assert_eq!(bench.query(initiator, QpAttrMask::STATE).unwrap().qp_state, state);
    }
    assert_eq!(attempt(to(QpState::ERR, QpAttrMask::empty())), Err(Errno::EINVAL));
    bench.client.destroy_qp(initiator.handle).unwrap();
}
