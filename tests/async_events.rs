//! Every kind of asynchronous event: raised on the software device, received by the program.

mod common;

use std::sync::Arc;

use common::Setup;
use uverbs::events::{EventSource, EventType};
use uverbs::qp::{PostFlags, State};
use uverbs::qp_type::Rc;
use uverbs::soft::{AsyncKind, Cqn, EventObject, Qpn, SoftDevice, Srqn};
use uverbs::{Device, ErrorKind, PollError, raw};

struct Bench {
    soft: Arc<SoftDevice>,
    setup: Setup,
    qp: raw::QueuePair<Rc>,
    srq: raw::SharedReceiveQueue,
}

impl Bench {
    fn new() -> Self {
        let soft = Arc::new(SoftDevice::builder("soft0").without_wire().build().unwrap());
        let setup = Setup::on(Device::from_shared_soft(soft.clone()).open().unwrap());
        let mut qp = setup.builder::<Rc>().build().unwrap();
        let own = qp.endpoint();
        qp.connect(&own).unwrap();
        let srq = setup.pd.create_raw_srq(16).build().unwrap();
        Self { soft, setup, qp, srq }
    }

    fn object(&self, source: EventSource) -> EventObject {
        match source {
            EventSource::CompletionQueue(_) => EventObject::Cq(Cqn(self.setup.cq.number())),
            EventSource::SharedReceiveQueue(_) => EventObject::Srq(Srqn(self.srq.number())),
            EventSource::Port(port) => EventObject::Port(port),
            EventSource::Device => EventObject::Device,
            _ => EventObject::Qp(Qpn(self.qp.number())),
        }
    }

    /// Raises `kind`, and checks that the program gets exactly one event, `expected` of `source`.
    fn expect(&self, kind: AsyncKind, expected: EventType, source: EventSource) {
        self.soft.raise(kind, self.object(source)).unwrap();
        let event = self.setup.context.get_event().unwrap();
        assert_eq!((event.kind(), event.source()), (expected, source));
        event.acknowledge();
        let none = self.setup.context.try_get_event().unwrap_err();
        let last = kind == AsyncKind::DeviceFatal;
        let after = if last { ErrorKind::DeviceGone } else { ErrorKind::WouldBlock };
        assert_eq!(none.kind(), after, "after {kind:?}");
    }
}

#[test]
fn events_of_ports() {
    let bench = Bench::new();
    let kinds = [
        (AsyncKind::PortActive, EventType::PORT_ACTIVE),
        (AsyncKind::PortError, EventType::PORT_ERR),
        (AsyncKind::LidChange, EventType::LID_CHANGE),
        (AsyncKind::PkeyChange, EventType::PKEY_CHANGE),
        (AsyncKind::GidChange, EventType::GID_CHANGE),
        (AsyncKind::SmChange, EventType::SM_CHANGE),
        (AsyncKind::ClientReregister, EventType::CLIENT_REREGISTER),
    ];
    for (kind, expected) in kinds {
        bench.expect(kind, expected, EventSource::Port(1));
    }
}

#[test]
fn events_of_queue_pairs_that_stay_in_rts() {
    let mut bench = Bench::new();
    let source = EventSource::QueuePair(bench.qp.id());
    let kinds = [
        (AsyncKind::CommunicationEstablished, EventType::COMM_EST),
        (AsyncKind::SqDrained, EventType::SQ_DRAINED),
        (AsyncKind::PathMigrated, EventType::PATH_MIG),
        (AsyncKind::PathMigrationFailed, EventType::PATH_MIG_ERR),
        (AsyncKind::LastWqeReached, EventType::QP_LAST_WQE_REACHED),
    ];
    for (kind, expected) in kinds {
        bench.expect(kind, expected, source);
        assert_eq!(bench.qp.state(), State::Rts, "{kind:?}");
    }
    // The event has the id of the program's object. The device does not check that the id is a work
    // queue's, so the queue pair's id will do.
    bench.expect(AsyncKind::WqFatal, EventType::WQ_FATAL, EventSource::WorkQueue(bench.qp.id()));
    // SAFETY: no memory is named.
    unsafe { bench.qp.post_send(1, uverbs::op::Nop, (), PostFlags::SIGNALED).unwrap() };
    assert_eq!(common::success(&mut bench.setup.cq).wr_id, 1);
}

#[test]
fn events_that_put_a_queue_pair_into_error() {
    let kinds = [
        (AsyncKind::QpFatal, EventType::QP_FATAL),
        (AsyncKind::QpRequestError, EventType::QP_REQ_ERR),
        (AsyncKind::QpAccessError, EventType::QP_ACCESS_ERR),
    ];
    for (kind, expected) in kinds {
        let bench = Bench::new();
        bench.expect(kind, expected, EventSource::QueuePair(bench.qp.id()));
        assert_eq!(bench.qp.state(), State::Err, "{kind:?}");
        assert_eq!(bench.qp.query().unwrap().state, State::Err);
    }
}

#[test]
fn polls_of_a_failed_completion_queue_report_an_overrun() {
    let mut bench = Bench::new();
    let source = EventSource::CompletionQueue(bench.setup.cq.id());
    bench.expect(AsyncKind::CqError, EventType::CQ_ERR, source);
    assert_eq!(bench.setup.cq.poll().unwrap_err(), PollError::Overrun);
}

#[test]
fn a_failed_shared_queue_can_only_be_destroyed() {
    let bench = Bench::new();
    let source = EventSource::SharedReceiveQueue(bench.srq.id());
    bench.expect(AsyncKind::SrqLimitReached, EventType::SRQ_LIMIT_REACHED, source);
    bench.srq.query().unwrap();
    bench.expect(AsyncKind::SrqError, EventType::SRQ_ERR, source);
    assert_eq!(bench.srq.query().unwrap_err().kind(), ErrorKind::BadState);
    assert_eq!(bench.srq.arm_limit(1).unwrap_err().kind(), ErrorKind::BadState);
    bench.srq.destroy().unwrap();
}

#[test]
fn a_fatal_error_of_the_device_stops_everything() {
    let mut bench = Bench::new();
    bench.expect(AsyncKind::DeviceFatal, EventType::DEVICE_FATAL, EventSource::Device);
    assert_eq!(bench.setup.cq.poll().unwrap_err(), PollError::DeviceRemoved);
    assert_eq!(bench.qp.state(), State::Err);
}

#[test]
fn a_thousand_events_arrive_in_order() {
    let bench = Bench::new();
    const COUNT: usize = 1000;
    let kinds = [AsyncKind::PortActive, AsyncKind::PortError];
    for index in 0..COUNT {
        bench.soft.raise(kinds[index % 2], EventObject::Port(1)).unwrap();
    }
    for index in 0..COUNT {
        let event = bench.setup.context.get_event().unwrap();
        let expected = [EventType::PORT_ACTIVE, EventType::PORT_ERR][index % 2];
        assert_eq!(event.kind(), expected, "{index}");
    }
    assert!(bench.setup.context.try_get_event().is_err());
}
