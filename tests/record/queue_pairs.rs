//! Queue pairs of every type: creation, states, attributes, the order of destruction.

use nix::errno::Errno;
use uverbs_uapi::enums::{Mtu, QpState, QpType};
use uverbs_uapi::flags::{AccessFlags, QpAttrMask, QpCreateFlags};
use uverbs_uapi::mlx5::{self, QpFlags};
use uverbs_uapi::objects::qp;
use uverbs_uapi::write::pd;
use uverbs_uapi::write::qp::{
    AttachMcast, DestroyQpResp, DetachMcast, ModifyQp, OpenQp, QpCap, QpDest, QueryQp, QueryQpResp,
};
use uverbs_uapi::write::xrcd::{CloseXrcd, OpenXrcd};
use zerocopy::IntoBytes;

use crate::memory::{NOTHING, own_gid};
use crate::node::{Node, Source};
use crate::queues::Bench;
use crate::recorder::Recorder;

/// The options of a queue pair.
#[derive(Clone, Copy)]
pub(crate) struct QpRequest {
    pub(crate) driver: mlx5::CreateQp,
    pub(crate) cap: QpCap,
    pub(crate) kind: QpType,
    pub(crate) flags: QpCreateFlags,
    pub(crate) pd: Option<u32>,
    pub(crate) send_cq: Option<u32>,
    pub(crate) recv_cq: Option<u32>,
    pub(crate) srq: Option<u32>,
    pub(crate) xrcd: Option<u32>,
    pub(crate) driver_length: usize,
}

#[derive(Debug)]
#[allow(dead_code, reason = "printed")]
pub(crate) struct MadeQp {
    pub(crate) qp_handle: u32,
    pub(crate) qpn: u32,
    cap: QpCap,
    bfreg_index: u32,
    comp_mask: u32,
}

impl Bench {
    pub(crate) fn qp_request(&self, area: usize, cq: u32) -> QpRequest {
        QpRequest {
            driver: mlx5::CreateQp {
                buf_addr: self.area(area),
                db_addr: self.record(area),
                sq_wqe_count: 64,
                rq_wqe_count: 4,
                rq_wqe_shift: 4,
                flags: QpFlags::UAR_PAGE_INDEX,
                uidx: 3,
                bfreg_index: self.uar.page_id,
                ..Default::default()
            },
            cap: QpCap {
                max_send_wr: 8,
                max_recv_wr: 4,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            kind: QpType::RC,
            flags: QpCreateFlags::empty(),
            pd: Some(self.pd),
            send_cq: Some(cq),
            recv_cq: Some(cq),
            srq: None,
            xrcd: None,
            driver_length: size_of::<mlx5::CreateQp>(),
        }
    }

    pub(crate) fn create_qp(&self, asked: &QpRequest) -> Result<MadeQp, Errno> {
        let (mut cap, mut qpn, mut driver) =
            (QpCap::default(), 0u32, mlx5::CreateQpResp::default());
        let mut request = Node::request::<qp::create::Call>();
        request.new_handle(qp::create::HANDLE);
        for (attribute, handle) in [
            (qp::create::PD_HANDLE, asked.pd),
            (qp::create::SEND_CQ_HANDLE, asked.send_cq),
            (qp::create::RECV_CQ_HANDLE, asked.recv_cq),
            (qp::create::SRQ_HANDLE, asked.srq),
            (qp::create::XRCD_HANDLE, asked.xrcd),
        ] {
            if let Some(handle) = handle {
                request.handle(attribute, handle);
            }
        }
        request.value(qp::create::USER_HANDLE, 0x90u64);
        request.input(qp::create::CAP, &asked.cap);
        request.constant(qp::create::TYPE, asked.kind.0);
        if !asked.flags.is_empty() {
            request.flags(qp::create::FLAGS, asked.flags.bits());
        }
        request.output(qp::create::RESP_CAP, &mut cap);
        request.output(qp::create::RESP_QP_NUM, &mut qpn);
        let input = &asked.driver.as_bytes()[..asked.driver_length];
        request.driver_data(input, driver.as_mut_bytes()).expect("short");
        self.node.run(&mut request)?;
        let qp_handle = request.created(qp::create::HANDLE).expect("a handle");
        let (bfreg_index, comp_mask) = (driver.bfreg_index, driver.comp_mask.bits());
        Ok(MadeQp { qp_handle, qpn, cap, bfreg_index, comp_mask })
    }

    pub(crate) fn destroy_qp(&self, handle: u32) -> Result<DestroyQpResp, Errno> {
        let mut response = DestroyQpResp::default();
        let mut request = Node::request::<qp::destroy::Call>();
        request.handle(qp::destroy::HANDLE, handle);
        request.output(qp::destroy::RESP, &mut response);
        self.node.run(&mut request)?;
        Ok(response)
    }

    pub(crate) fn query_qp(&self, qp_handle: u32) -> Result<QueryQpResp, Errno> {
        let attr_mask = QpAttrMask::from_bits_retain(0x1f_ffff);
        self.node.write(&QueryQp { response: 0, qp_handle, attr_mask })
    }

    pub(crate) fn modify(&self, step: &Step) -> Result<(), Errno> {
        self.node.write(step)
    }
}

type Step = ModifyQp;

pub(crate) fn record(source: &Source, recorder: &mut Recorder) {
    let bench = Bench::new(source);
    let Ok(cq) = bench.create_cq(&bench.cq_request(0)) else { return };
    creation(&bench, cq.cq_handle, recorder);
    every_type(&bench, cq.cq_handle, recorder);
    wrong_changes(&bench, cq.cq_handle, recorder);
    orders(&bench, cq.cq_handle, recorder);
    groups(&bench, cq.cq_handle, recorder);
}

fn creation(bench: &Bench, cq: u32, recorder: &mut Recorder) {
    let good = bench.qp_request(1, cq);
    let (driver, cap) = (good.driver, good.cap);
    let with = |driver| QpRequest { driver, ..good };
    let sized = |cap| QpRequest { cap, ..good };
    let flags = |more| with(mlx5::CreateQp { flags: driver.flags | more, ..driver });
    let variants = [
        ("plain", good),
        ("no domain", QpRequest { pd: Some(NOTHING), ..good }),
        ("domain left out", QpRequest { pd: None, ..good }),
        ("no send queue's CQ", QpRequest { send_cq: None, ..good }),
        ("no receive queue's CQ", QpRequest { recv_cq: None, ..good }),
        ("a wrong CQ", QpRequest { recv_cq: Some(NOTHING), ..good }),
        ("a wrong shared queue", QpRequest { srq: Some(NOTHING), ..good }),
        (
            "no receive queue",
            QpRequest {
                driver: mlx5::CreateQp { rq_wqe_count: 0, rq_wqe_shift: 0, ..driver },
                cap: QpCap { max_recv_wr: 0, max_recv_sge: 0, ..cap },
                ..good
            },
        ),
        (
            "no send queue",
            QpRequest {
                driver: mlx5::CreateQp { sq_wqe_count: 0, ..driver },
                cap: QpCap { max_send_wr: 0, max_send_sge: 0, ..cap },
                ..good
            },
        ),
        ("too many sends", sized(QpCap { max_send_wr: 1 << 20, ..cap })),
        ("too many receives", sized(QpCap { max_recv_wr: 1 << 20, ..cap })),
        ("too many SGEs to send", sized(QpCap { max_send_sge: 1 << 10, ..cap })),
        ("too many SGEs to receive", sized(QpCap { max_recv_sge: 1 << 10, ..cap })),
        ("inline data", sized(QpCap { max_inline_data: 200, ..cap })),
        ("too much inline data", sized(QpCap { max_inline_data: 1 << 20, ..cap })),
        ("odd send ring", with(mlx5::CreateQp { sq_wqe_count: 63, ..driver })),
        ("too long a send ring", with(mlx5::CreateQp { sq_wqe_count: 1 << 16, ..driver })),
        ("odd receive ring", with(mlx5::CreateQp { rq_wqe_count: 5, ..driver })),
        ("unmapped rings", with(mlx5::CreateQp { buf_addr: 0x1000, ..driver })),
        ("an odd record", with(mlx5::CreateQp { db_addr: driver.db_addr + 1, ..driver })),
        ("an unmapped record", with(mlx5::CreateQp { db_addr: 0x1ff8, ..driver })),
        ("a long user index", with(mlx5::CreateQp { uidx: 1 << 24, ..driver })),
        ("an unknown driver's flag", flags(QpFlags::from_bits_retain(1 << 20))),
        ("data in completions", flags(QpFlags::SCATTER_CQE)),
        ("data in requester's completions", flags(QpFlags::ALLOW_SCATTER_CQE)),
        ("signatures", flags(QpFlags::SIGNATURE)),
        ("packet based credits", flags(QpFlags::PACKET_BASED_CREDIT_MODE)),
        ("tunnel offloads", flags(QpFlags::TUNNEL_OFFLOADS)),
        ("a register and a page", flags(QpFlags::BFREG_INDEX)),
        (
            "neither register nor page",
            with(mlx5::CreateQp { flags: QpFlags::empty(), bfreg_index: 0, ..driver }),
        ),
        ("a wrong page", with(mlx5::CreateQp { bfreg_index: 0xffff, ..driver })),
        ("ece", with(mlx5::CreateQp { ece_options: 1, ..driver })),
        ("40 bytes for the driver", QpRequest { driver_length: 40, ..good }),
        ("48 bytes for the driver", QpRequest { driver_length: 48, ..good }),
        ("32 bytes for the driver", QpRequest { driver_length: 32, ..good }),
        ("everything signaled", QpRequest { flags: QpCreateFlags::SQ_SIG_ALL, ..good }),
        ("loopback blocked", QpRequest { flags: QpCreateFlags::BLOCK_MULTICAST_LOOPBACK, ..good }),
        ("checksums scattered", QpRequest { flags: QpCreateFlags::SCATTER_FCS, ..good }),
        ("an unknown flag", QpRequest { flags: QpCreateFlags::from_bits_retain(1 << 28), ..good }),
        ("an unknown type", QpRequest { kind: QpType(77), ..good }),
        ("a kernel's type", QpRequest { kind: QpType(0), ..good }),
        ("the driver's own type", QpRequest { kind: QpType::DRIVER, ..good }),
    ];
    for (name, request) in variants {
        let step = format!("create_qp, {name}");
        if let Some(made) = recorder.answer(&step, bench.create_qp(&request)) {
            recorder.answer(&format!("{step}, destroy"), bench.destroy_qp(made.qp_handle));
        }
    }
    recorder.call("destroy_qp of nothing", bench.destroy_qp(NOTHING));
    recorder.call("destroy_qp of a CQ", bench.destroy_qp(cq));
}

const REMOTE: AccessFlags =
    AccessFlags::REMOTE_WRITE.union(AccessFlags::REMOTE_READ).union(AccessFlags::REMOTE_ATOMIC);

/// The steps of a queue pair of this type from RESET to RTS, connected to itself.
pub(crate) fn steps(bench: &Bench, kind: QpType, made: &MadeQp) -> Vec<(&'static str, Step)> {
    use QpAttrMask as M;
    let is_connected = kind != QpType::UD;
    let is_reliable = is_connected && kind != QpType::UC;
    let dest = QpDest {
        dgid: own_gid(&bench.node),
        dlid: 1,
        is_global: 1,
        hop_limit: 64,
        port_num: 1,
        ..Default::default()
    };
    let all = Step {
        qp_handle: made.qp_handle,
        dest,
        qkey: 0x1111,
        rq_psn: 0x123,
        sq_psn: 0x123,
        dest_qp_num: made.qpn,
        qp_access_flags: REMOTE,
        path_mtu: Mtu::MTU_1024,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 12,
        port_num: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 6,
        ..Default::default()
    };
    let mut init = M::STATE | M::PKEY_INDEX | M::PORT;
    init |= if is_connected { M::ACCESS_FLAGS } else { M::QKEY };
    let mut rtr = M::STATE;
    if is_connected {
        rtr |= M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    }
    if is_reliable && kind != QpType::XRC_INI {
        rtr |= M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    }
    let mut rts = M::STATE | M::SQ_PSN;
    if is_reliable {
        rts |= M::TIMEOUT;
    }
    if is_reliable && kind != QpType::XRC_TGT {
        rts |= M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    }
    let to = |qp_state, attr_mask| Step { qp_state, attr_mask, ..all };
    vec![
        ("init", to(QpState::INIT, init)),
        ("rtr", to(QpState::RTR, rtr)),
        ("rts", to(QpState::RTS, rts)),
    ]
}

fn every_type(bench: &Bench, cq: u32, recorder: &mut Recorder) {
    let open = OpenXrcd { response: 0, fd: u32::MAX, oflags: 0o100 };
    let xrcd = bench.node.write(&open).map(|made| made.xrcd_handle).ok();
    let srq = bench.create_srq(&bench.srq_request(2)).map(|made| made.srq_handle).ok();
    let good = bench.qp_request(1, cq);
    let no_receives = mlx5::CreateQp { rq_wqe_count: 0, rq_wqe_shift: 0, ..good.driver };
    let only_sends = QpRequest {
        driver: no_receives,
        cap: QpCap { max_recv_wr: 0, max_recv_sge: 0, ..good.cap },
        ..good
    };
    let types = [
        ("rc", good),
        ("uc", QpRequest { kind: QpType::UC, ..good }),
        ("ud", QpRequest { kind: QpType::UD, ..good }),
        ("rc with a shared queue", QpRequest { srq, ..only_sends }),
        ("ud with a shared queue", QpRequest { srq, kind: QpType::UD, ..only_sends }),
        ("xrc initiator", QpRequest { kind: QpType::XRC_INI, recv_cq: None, ..only_sends }),
        ("xrc initiator with receives", QpRequest { kind: QpType::XRC_INI, ..good }),
        (
            "xrc target",
            QpRequest {
                kind: QpType::XRC_TGT,
                xrcd,
                pd: None,
                send_cq: None,
                recv_cq: None,
                cap: QpCap::default(),
                ..only_sends
            },
        ),
    ];
    for (name, request) in types {
        life(bench, name, &request, recorder);
    }
}

/// The states of a queue pair from its creation to its destruction.
fn life(bench: &Bench, name: &str, request: &QpRequest, recorder: &mut Recorder) {
    let Some(made) = recorder.answer(&format!("{name}, create"), bench.create_qp(request)) else {
        return;
    };
    recorder.answer(&format!("{name}, query in reset"), bench.query_qp(made.qp_handle));
    for (state, step) in steps(bench, request.kind, &made) {
        recorder.call(&format!("{name}, to {state}"), bench.modify(&step));
        recorder.answer(&format!("{name}, query in {state}"), bench.query_qp(made.qp_handle));
    }
    for (state, qp_state) in [
        ("sqd", QpState::SQD),
        ("rts again", QpState::RTS),
        ("err", QpState::ERR),
        ("reset", QpState::RESET),
    ] {
        let step = Step {
            qp_handle: made.qp_handle,
            qp_state,
            attr_mask: QpAttrMask::STATE,
            ..Default::default()
        };
        recorder.call(&format!("{name}, to {state}"), bench.modify(&step));
        let now = bench.query_qp(made.qp_handle).map(|answer| answer.qp_state);
        recorder.answer(&format!("{name}, state after {state}"), now);
    }
    if let (QpType::XRC_TGT, Some(xrcd)) = (request.kind, request.xrcd) {
        open_again(bench, xrcd, &made, recorder);
    }
    recorder.answer(&format!("{name}, destroy"), bench.destroy_qp(made.qp_handle));
}

fn open_again(bench: &Bench, pd_handle: u32, made: &MadeQp, recorder: &mut Recorder) {
    let open = OpenQp {
        pd_handle,
        qpn: made.qpn,
        qp_type: QpType::XRC_TGT,
        user_handle: 0x91,
        ..Default::default()
    };
    if let Some(second) = recorder.answer("open_qp", bench.node.write(&open)) {
        recorder.answer("open_qp, destroy", bench.destroy_qp(second.qp_handle));
    }
    let missing = OpenQp { qpn: 0xff_fff0, ..open };
    recorder.call("open_qp of nothing", bench.node.write(&missing));
    recorder.call(
        "close_xrcd with a queue pair",
        bench.node.write(&CloseXrcd { xrcd_handle: pd_handle }),
    );
}

fn wrong_changes(bench: &Bench, cq: u32, recorder: &mut Recorder) {
    use QpAttrMask as M;
    let Ok(made) = bench.create_qp(&bench.qp_request(1, cq)) else { return };
    let steps = steps(bench, QpType::RC, &made);
    let [(_, init), (_, rtr), (_, rts)] = steps[..] else { return };
    recorder.call("modify_qp, reset to rtr", bench.modify(&rtr));
    recorder.call("modify_qp, reset to rts", bench.modify(&rts));
    recorder.call("modify_qp of nothing", bench.modify(&Step { qp_handle: NOTHING, ..init }));
    let without = |step: Step, mask: M| Step { attr_mask: step.attr_mask - mask, ..step };
    let with = |step: Step, mask: M| Step { attr_mask: step.attr_mask | mask, ..step };
    recorder.call("modify_qp, init without a port", bench.modify(&without(init, M::PORT)));
    recorder.call("modify_qp, init with a timeout", bench.modify(&with(init, M::TIMEOUT)));
    recorder.call("modify_qp, init on port 0", bench.modify(&Step { port_num: 0, ..init }));
    recorder.call("modify_qp, init on port 2", bench.modify(&Step { port_num: 2, ..init }));
    recorder
        .call("modify_qp, init with pkey 4000", bench.modify(&Step { pkey_index: 4000, ..init }));
    recorder.call(
        "modify_qp, unknown attribute",
        bench.modify(&with(init, M::from_bits_retain(1 << 30))),
    );
    recorder.call(
        "modify_qp, wrong current state",
        bench.modify(&Step { cur_qp_state: QpState::RTS, ..with(init, M::CUR_STATE) }),
    );
    recorder.call("modify_qp, unknown state", bench.modify(&Step { qp_state: QpState(9), ..init }));
    recorder.call("modify_qp, init at last", bench.modify(&init));
    recorder.call("modify_qp, init to init", bench.modify(&init));
    recorder.call("modify_qp, rtr without address", bench.modify(&without(rtr, M::AV)));
    recorder.call("modify_qp, rtr, MTU 9", bench.modify(&Step { path_mtu: Mtu(9), ..rtr }));
    recorder.call("modify_qp, rtr, MTU 0", bench.modify(&Step { path_mtu: Mtu(0), ..rtr }));
    recorder
        .call("modify_qp, rtr, 17 reads", bench.modify(&Step { max_dest_rd_atomic: 17, ..rtr }));
    let dest = rtr.dest;
    recorder.call(
        "modify_qp, rtr, port 2",
        bench.modify(&Step { dest: QpDest { port_num: 2, ..dest }, ..rtr }),
    );
    recorder.call(
        "modify_qp, rtr, empty GID",
        bench.modify(&Step { dest: QpDest { sgid_index: 200, ..dest }, ..rtr }),
    );
    recorder.call(
        "modify_qp, rtr, no global route",
        bench.modify(&Step { dest: QpDest { is_global: 0, ..dest }, ..rtr }),
    );
    recorder.call("modify_qp, rtr at last", bench.modify(&rtr));
    recorder.call("modify_qp, rts without psn", bench.modify(&without(rts, M::SQ_PSN)));
    recorder.call("modify_qp, rts, 17 reads", bench.modify(&Step { max_rd_atomic: 17, ..rts }));
    recorder.call("modify_qp, rts, timeout 32", bench.modify(&Step { timeout: 32, ..rts }));
    recorder.call("modify_qp, rts, retry 9", bench.modify(&Step { retry_cnt: 9, ..rts }));
    recorder.answer("modify_qp, the queue pair in the end", bench.query_qp(made.qp_handle));
    recorder.call("query_qp of nothing", bench.query_qp(NOTHING));
    recorder.call("modify_qp, destroy", bench.destroy_qp(made.qp_handle));
}

/// Objects in use cannot be destroyed.
fn orders(bench: &Bench, cq: u32, recorder: &mut Recorder) {
    let Ok(srq) = bench.create_srq(&bench.srq_request(3)) else { return };
    let request = QpRequest { srq: Some(srq.srq_handle), ..bench.qp_request(1, cq) };
    let driver = mlx5::CreateQp { rq_wqe_count: 0, rq_wqe_shift: 0, ..request.driver };
    let Ok(made) = bench.create_qp(&QpRequest { driver, ..request }) else { return };
    let pd = pd::DeallocPd { pd_handle: bench.pd };
    recorder.call("orders, dealloc_pd with a queue pair", bench.node.write(&pd));
    recorder.call("orders, destroy_cq with a queue pair", bench.destroy_cq(cq));
    recorder.call("orders, destroy_srq with a queue pair", bench.destroy_srq(srq.srq_handle));
    recorder.call("orders, destroy_qp", bench.destroy_qp(made.qp_handle));
    recorder.call("orders, destroy_qp again", bench.destroy_qp(made.qp_handle));
    recorder.call("orders, destroy_srq", bench.destroy_srq(srq.srq_handle));
}

fn groups(bench: &Bench, cq: u32, recorder: &mut Recorder) {
    let request = QpRequest { kind: QpType::UD, ..bench.qp_request(1, cq) };
    let Ok(made) = bench.create_qp(&request) else { return };
    let gid = "ff12::77".parse::<uverbs::Gid>().expect("a GID").0;
    let qp_handle = made.qp_handle;
    let attach = |gid, qp_handle| {
        bench.node.write(&AttachMcast { gid, qp_handle, mlid: 0xc001, reserved: 0 })
    };
    let detach = |gid, qp_handle| {
        bench.node.write(&DetachMcast { gid, qp_handle, mlid: 0xc001, reserved: 0 })
    };
    recorder.call("attach_mcast", attach(gid, qp_handle));
    recorder.call("attach_mcast again", attach(gid, qp_handle));
    recorder.call("attach_mcast of no group", attach([0; 16], qp_handle));
    recorder.call("attach_mcast of nothing", attach(gid, NOTHING));
    recorder.call("destroy_qp of a member", bench.destroy_qp(qp_handle));
    recorder.call("detach_mcast", detach(gid, qp_handle));
    recorder.call("detach_mcast again", detach(gid, qp_handle));
    recorder.call("destroy_qp of no member", bench.destroy_qp(qp_handle));
    let Ok(connected) = bench.create_qp(&bench.qp_request(1, cq)) else { return };
    recorder.call("attach_mcast of a connection", attach(gid, connected.qp_handle));
    recorder.call("destroy_qp of a connection", bench.destroy_qp(connected.qp_handle));
}
