//! Completion queues: arming, overrun, resize, moderation, data in the CQE, references.
use super::harness::*;
use crate::core::*;
use crate::memory::PageMap;
use uverbs_mlx5_format::CqeOpcode;

const COMPLETION: fn(&CqHandle) -> Event = |cq| Event::Completion { cqn: cq.cqn };

/// A QP connected to itself that generates a completion per NOP.
struct Source {
    world: World,
    qp: QpHandle,
    cq: CqHandle,
}

impl Source {
    fn new(log: u8, size: CqeSize, moderation: Moderation) -> Self {
        let mut world = World::new(1);
        let host = &mut world.hosts[0];
        let cq = host.cq_with(log, size, moderation);
        let qp = host.qp(QpType::Rc, &cq);
        let attributes = host.attributes(host.gid, qp.qpn);
        host.make_rts(&qp, &attributes);
        Self { world, qp, cq }
    }

    fn complete(&mut self, count: usize) {
        for _ in 0..count {
            self.world.hosts[0].post(&mut self.qp, &Wr::new(uverbs_mlx5_format::Opcode::NOP));
        }
        self.world.run_until_idle();
    }

    fn host(&mut self) -> &mut Host {
        &mut self.world.hosts[0]
    }

    fn arm(&mut self) {
        let cq = self.cq.clone();
        self.host().arm(&cq, false);
    }
}

fn plain() -> Source {
    Source::new(4, CqeSize::B64, Moderation::default())
}

#[test]
fn an_armed_cq_raises_one_event() {
    let mut source = plain();
    source.complete(1);
    assert_eq!(source.host().events(), [], "not armed");
    let cq = source.cq.clone();
    source.cq.consumer = 1;
    source.arm();
    assert_eq!(source.host().events(), []);
    source.complete(2);
    assert_eq!(source.host().events(), [COMPLETION(&cq)]);
    source.complete(1);
    assert_eq!(source.host().events(), [], "armed once");
}

#[test]
fn arming_with_unread_completions_raises_an_event_at_once() {
    let mut source = plain();
    source.complete(1);
    source.arm();
    let cq = source.cq.clone();
    assert_eq!(source.host().events(), [COMPLETION(&cq)]);
    source.arm();
    assert_eq!(
        source.host().events(),
        [],
        "the same sequence number: the event has not been taken"
    );
    source.cq.arm_sequence += 1;
    source.arm();
    assert_eq!(source.host().events(), [], "that completion was announced");
    source.complete(1);
    assert_eq!(source.host().events(), [COMPLETION(&cq)]);
}

/// The program reads the event of `completions` completions, and arms the CQ again before it polls
/// any.
fn armed_before_polling(completions: usize) -> Source {
    let mut source = plain();
    let cq = source.cq.clone();
    source.arm();
    source.complete(completions);
    assert_eq!(source.host().events(), [COMPLETION(&cq)]);
    source.cq.arm_sequence += 1;
    source.arm();
    source
}

#[test]
fn an_event_announces_one_completion_more_at_most() {
    let mut source = armed_before_polling(3);
    let cq = source.cq.clone();
    assert_eq!(source.host().events(), [COMPLETION(&cq)], "a program may poll two");
}

#[test]
fn an_event_announces_a_second_completion_written_before_it_is_taken() {
    let mut source = armed_before_polling(2);
    let cq = source.cq.clone();
    assert_eq!(source.host().events(), [], "armed before both are polled");
    source.complete(1);
    assert_eq!(source.host().events(), [COMPLETION(&cq)]);
}

/// perftest polls at most as many completions for an event as a receive queue has entries, and many
/// queues may complete to the CQ.
#[test]
fn an_event_announces_few_of_many_completions_that_were_unread_when_the_cq_was_armed() {
    let mut source = plain();
    let cq = source.cq.clone();
    source.complete(12);
    for armings in 0..6 {
        source.arm();
        assert_eq!(source.host().events(), [COMPLETION(&cq)], "{armings}");
        source.cq.arm_sequence += 1;
        // The program polls one of the two that are announced.
        source.cq.consumer += 1;
    }
}

#[test]
fn errors_fire_a_cq_armed_for_solicited() {
    let mut source = plain();
    let cq = source.cq.clone();
    source.host().arm(&cq, true);
    source.complete(1);
    assert_eq!(source.host().events(), []);
    let qpn = source.qp.qpn;
    source.host().core.modify_qp(qpn, QpState::Error, &QpAttributes::default()).unwrap();
    source.complete(1);
    assert_eq!(source.host().events(), [COMPLETION(&cq)]);
}

#[test]
fn moderation_holds_events_back_for_count_or_time() {
    let mut source = Source::new(6, CqeSize::B64, Moderation { count: 3, period: 10 });
    let cq = source.cq.clone();
    source.arm();
    source.complete(2);
    assert_eq!(source.host().events(), []);
    source.complete(1);
    assert_eq!(source.host().events(), [COMPLETION(&cq)]);
    source.cq.consumer = 3;
    source.cq.arm_sequence = 1;
    source.arm();
    source.complete(1);
    assert_eq!(source.host().events(), []);
    source.world.pass(9_999, &mut |_| Fate::Pass);
    assert_eq!(source.host().events(), []);
    source.world.pass(1, &mut |_| Fate::Pass);
    assert_eq!(source.host().events(), [COMPLETION(&cq)]);
}

#[test]
fn an_overrun_is_an_error_of_the_cq_and_fatal_for_the_qp() {
    let mut source = plain();
    source.complete(16);
    assert_eq!(source.host().events(), []);
    source.complete(1);
    let (cqn, qpn) = (source.cq.cqn, source.qp.qpn);
    let expected =
        [(AsyncKind::CqError, EventObject::Cq(cqn)), (AsyncKind::QpFatal, EventObject::Qp(qpn))];
    assert_eq!(source.host().async_events(), expected);
    assert!(source.host().core.query_cq(cqn).unwrap().in_error);
    assert_eq!(source.host().core.query_qp(qpn).unwrap().state, QpState::Error);
    let mut cq = source.cq.clone();
    assert_eq!(source.host().poll_all(&mut cq).len(), 16, "earlier CQEs are intact");
}

#[test]
fn an_ignored_overrun_overwrites_unread_cqes() {
    let mut source = plain();
    let change = CqModify { ignore_overrun: Some(true), ..CqModify::default() };
    let cqn = source.cq.cqn;
    source.host().core.modify_cq(cqn, change).unwrap();
    source.complete(40);
    assert_eq!(source.host().async_events(), []);
    assert_eq!(source.host().core.query_cq(cqn).unwrap().producer_index, 40);
}

#[test]
fn the_ring_wraps_around_many_times() {
    for size in [CqeSize::B64, CqeSize::B128] {
        let mut source = Source::new(3, size, Moderation::default());
        for _ in 0..50 {
            source.complete(5);
            let mut cq = source.cq.clone();
            assert_eq!(source.host().poll_all(&mut cq).len(), 5);
            source.cq = cq;
        }
    }
}

#[test]
fn resizing_continues_in_the_new_ring() {
    let mut source = plain();
    source.complete(3);
    let (ring, cqn) = (source.host().new_cq_ring(6, CqeSize::B64), source.cq.cqn);
    let new = CqRing { buffer: PageMap::linear(ring), log_entries: 6, cqe_size: CqeSize::B64 };
    let change = CqModify { ring: Some(new), ..CqModify::default() };
    source.host().core.modify_cq(cqn, change).unwrap();
    source.complete(30);
    let mut old = source.cq.clone();
    let done = source.host().poll_all(&mut old);
    let opcodes: Vec<_> = done.iter().map(|d| d.opcode).collect();
    let good = CqeOpcode::REQUESTER;
    assert_eq!(opcodes, [good, good, good, CqeOpcode::RESIZE]);
    let mut new = CqHandle { ring, log: 6, consumer: 4, ..source.cq.clone() };
    let indices: Vec<u16> = source.host().poll_all(&mut new).iter().map(|d| d.index).collect();
    assert_eq!(indices, (3..33).collect::<Vec<u16>>());
    // A ring too small for the unread CQEs is refused, and nothing changes.
    source.complete(20);
    let ring = source.host().new_cq_ring(4, CqeSize::B64);
    let small = CqRing { buffer: PageMap::linear(ring), log_entries: 4, cqe_size: CqeSize::B64 };
    let change = CqModify { ring: Some(small), ..CqModify::default() };
    assert!(source.host().core.modify_cq(cqn, change).is_err());
    assert_eq!(source.host().poll_all(&mut new).len(), 20);
}

/// The resize CQE would replace one that the host has not read.
#[test]
fn a_full_ring_is_not_resized() {
    let mut source = plain();
    let entries = 1 << source.cq.log;
    source.complete(entries);
    let (ring, cqn) = (source.host().new_cq_ring(6, CqeSize::B64), source.cq.cqn);
    let new = CqRing { buffer: PageMap::linear(ring), log_entries: 6, cqe_size: CqeSize::B64 };
    let change = || CqModify { ring: Some(new.clone()), ..CqModify::default() };
    assert!(source.host().core.modify_cq(cqn, change()).is_err());
    let mut old = source.cq.clone();
    let done = source.host().poll_all(&mut old);
    assert_eq!(done.len(), entries);
    assert!(done.iter().all(|done| done.opcode == CqeOpcode::REQUESTER));
    source.host().core.modify_cq(cqn, change()).unwrap();
}

/// If overruns are ignored, the consumer index need not be up to date.
#[test]
fn a_ring_with_an_ignored_overrun_is_resized_however_many_cqes_seem_unread() {
    let mut source = plain();
    let change = CqModify { ignore_overrun: Some(true), ..CqModify::default() };
    let cqn = source.cq.cqn;
    source.host().core.modify_cq(cqn, change).unwrap();
    source.complete(100);
    for log in [5, 3] {
        let ring = PageMap::linear(source.host().new_cq_ring(log, CqeSize::B64));
        let ring = CqRing { buffer: ring, log_entries: log, cqe_size: CqeSize::B64 };
        let change = CqModify { ring: Some(ring), ..CqModify::default() };
        source.host().core.modify_cq(cqn, change).unwrap();
    }
}

#[test]
fn short_data_is_scattered_to_the_cqe_if_the_qp_requests_it() {
    for (size, mode, fits) in [
        (CqeSize::B64, ScatterToCqe::B32, 32u64),
        (CqeSize::B128, ScatterToCqe::B64, 64),
        (CqeSize::B64, ScatterToCqe::B64, 32),
    ] {
        for len in [1, 8, 31, 32, 33, 63, 64, 65] {
            let mut world = World::new(2);
            let mut cqs =
                [0, 1].map(|side| world.hosts[side].cq_with(4, size, Moderation::default()));
            let mut qps = [0, 1].map(|side| {
                let host = &mut world.hosts[side];
                let mut params = host.qp_params(QpType::Rc, &cqs[side], &cqs[side]);
                params.scatter_requester = mode;
                params.scatter_responder = mode;
                host.create(params)
            });
            world.connect(&qps, |_, _| {});
            let [a, b] = &mut world.hosts[..] else { unreachable!() };
            let (local, inbox) = (a.region(len, ALL), b.region(len, ALL));
            let data = a.fill(local, 5);
            let back = a.region(len, ALL);
            let remote = b.region(len, ALL);
            b.post_receive(&mut qps[1], &[(inbox.address, len as u32, inbox.key)]);
            a.post(&mut qps[0], &Wr::send().all_of(local));
            a.post(&mut qps[0], &Wr::write(remote.address, remote.key).all_of(local));
            a.post(&mut qps[0], &Wr::read(remote.address, remote.key).all_of(back).fenced());
            world.run_until_idle();
            let got = world.hosts[1].poll(&mut cqs[1]).unwrap();
            let read = world.hosts[0].poll_all(&mut cqs[0]).pop().unwrap();
            let inbox = world.hosts[1].bytes(inbox.address, len);
            let back = world.hosts[0].bytes(back.address, len);
            for (done, memory) in [(got, inbox), (read, back)] {
                assert_eq!(u64::from(done.bytes), len);
                if len <= fits {
                    assert_eq!(done.inline, data, "{len} bytes, {size:?}");
                    assert!(memory.iter().all(|byte| *byte == 0));
                } else {
                    assert!(done.inline.is_empty() && memory == data);
                }
            }
        }
    }
}

#[test]
fn objects_in_use_cannot_be_destroyed_and_unused_ones_can() {
    let mut source = plain();
    let (cqn, qpn, pd) = (source.cq.cqn, source.qp.qpn, source.world.hosts[0].pd);
    let region = source.host().region(64, ALL);
    let core = &mut source.host().core;
    assert!(matches!(core.destroy_cq(cqn), Err(CoreError::InUse { users: 2, .. })));
    assert!(matches!(core.destroy_pd(pd), Err(CoreError::InUse { users: 2, .. })));
    core.destroy_qp(qpn).unwrap();
    core.destroy_cq(cqn).unwrap();
    core.destroy_mkey(region.key).unwrap();
    core.destroy_pd(pd).unwrap();
    assert_eq!(core.counts(), Counts::default());
    assert!(matches!(core.destroy_pd(pd), Err(CoreError::NotFound { .. })));
    assert!(core.ring_sq(qpn).is_err());
}

#[test]
fn injected_errors_change_the_object_and_raise_events() {
    let mut source = plain();
    let (cqn, qpn) = (source.cq.cqn, source.qp.qpn);
    let core = &mut source.host().core;
    core.inject_event(AsyncKind::QpFatal, EventObject::Qp(qpn)).unwrap();
    assert_eq!(core.query_qp(qpn).unwrap().state, QpState::Error);
    core.inject_event(AsyncKind::CqError, EventObject::Cq(cqn)).unwrap();
    assert!(core.query_cq(cqn).unwrap().in_error);
    core.inject_event(AsyncKind::PortError, EventObject::Port(1)).unwrap();
    assert!(core.inject_event(AsyncKind::CqError, EventObject::Cq(Cqn(999))).is_err());
    let kinds: Vec<_> = source.host().async_events().into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [AsyncKind::QpFatal, AsyncKind::CqError, AsyncKind::PortError]);
}
