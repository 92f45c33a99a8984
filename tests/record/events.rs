//! Asynchronous events: their order, and the number that a destruction reports.

use std::time::{Duration, Instant};

use uverbs_uapi::enums::{QpState, QpType};
use uverbs_uapi::event::AsyncEventDesc;
use uverbs_uapi::flags::{QpAttrMask, SrqAttrMask};
use uverbs_uapi::mlx5;
use uverbs_uapi::write::qp::ModifyQp;
use uverbs_uapi::write::srq::{ModifySrq, QuerySrq};
use zerocopy::FromBytes;

use crate::node::{Source, read_event};
use crate::queue_pairs::{QpRequest, steps};
use crate::queues::Bench;
use crate::recorder::Recorder;

/// Far longer than an event takes.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn record(source: &Source, recorder: &mut Recorder) {
    let bench = Bench::new(source);
    let Some(fd) = recorder.call("async events", bench.node.async_events()) else { return };
    limits(&bench, fd, recorder);
    last_receive(&bench, fd, recorder);
}

/// The next event: its type, and the user's value for its object.
fn next(fd: i32) -> String {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if let Some(record) = read_event::<16>(fd) {
            let event = AsyncEventDesc::read_from_bytes(&record).expect("16 bytes");
            return format!("{} of {:#x}", event.event_type, event.element);
        }
        std::thread::yield_now();
    }
    "none".to_owned()
}

/// An SRQ limit above the number of posted receives fires at once, and only once.
fn limits(bench: &Bench, fd: i32, recorder: &mut Recorder) {
    let Ok(made) = bench.create_srq(&bench.srq_request(0)) else { return };
    let srq_handle = made.srq_handle;
    let arm =
        |srq_limit| ModifySrq { srq_handle, attr_mask: SrqAttrMask::LIMIT, max_wr: 0, srq_limit };
    recorder.call("events, arm a limit", bench.node.write(&arm(3)));
    recorder.value("events, after the limit", &next(fd));
    let query = QuerySrq { srq_handle, ..Default::default() };
    recorder.answer("events, limit afterwards", bench.node.write(&query));
    recorder.call("events, disarm", bench.node.write(&arm(0)));
    recorder.call("events, arm again", bench.node.write(&arm(2)));
    recorder.value("events, after the second limit", &next(fd));
    recorder.answer("events, destroy_srq", bench.destroy_srq(srq_handle));
}

/// A queue pair in the error state reports that it has used its last receive of the SRQ.
fn last_receive(bench: &Bench, fd: i32, recorder: &mut Recorder) {
    let Ok(cq) = bench.create_cq(&bench.cq_request(0)) else { return };
    let Ok(srq) = bench.create_srq(&bench.srq_request(1)) else { return };
    let own = bench.qp_request(2, cq.cq_handle);
    let driver = mlx5::CreateQp { rq_wqe_count: 0, rq_wqe_shift: 0, ..own.driver };
    let Ok(made) = bench.create_qp(&QpRequest { srq: Some(srq.srq_handle), driver, ..own }) else {
        return;
    };
    for (name, step) in steps(bench, QpType::RC, &made) {
        recorder.call(&format!("events, to {name}"), bench.modify(&step));
    }
    let fail = ModifyQp {
        qp_handle: made.qp_handle,
        qp_state: QpState::ERR,
        attr_mask: QpAttrMask::STATE,
        ..Default::default()
    };
    recorder.call("events, to err", bench.modify(&fail));
    recorder.value("events, after the error", &next(fd));
    recorder.answer("events, destroy_qp", bench.destroy_qp(made.qp_handle));
    recorder.answer("events, destroy_srq of the queue pair", bench.destroy_srq(srq.srq_handle));
    recorder.answer("events, destroy_cq", bench.destroy_cq(cq.cq_handle));
}
