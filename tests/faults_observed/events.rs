//! Floods of events, events of failed objects, and waits that a signal ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use uverbs::events::{EventSource, EventType};
use uverbs::qp::{PostError, PostFlags, State};
use uverbs::qp_type::Rc;
use uverbs::soft::{AsyncKind, Cqn, EventObject, Qpn, SoftDevice, Srqn};
use uverbs::{CompletionChannel, Context, ErrorKind, PollError, op, raw};

use crate::common::{Setup, completion, success};
use crate::network::open;

const SIGNALED: PostFlags = PostFlags::SIGNALED;
/// Many more events than fit into a pipe.
const STORM: usize = 3000;

fn device() -> (Arc<SoftDevice>, Setup) {
    let soft = Arc::new(SoftDevice::builder("soft0").without_wire().build().unwrap());
    let setup = Setup::on(open(&soft));
    (soft, setup)
}

fn port_event(index: usize) -> (AsyncKind, EventType) {
    match index % 3 {
        0 => (AsyncKind::PortError, EventType::PORT_ERR),
        1 => (AsyncKind::PortActive, EventType::PORT_ACTIVE),
        _ => (AsyncKind::GidChange, EventType::GID_CHANGE),
    }
}

#[test]
fn thousands_of_asynchronous_events_arrive_in_order() {
    let (soft, setup) = device();
    thread::scope(|scope| {
        scope.spawn(|| {
            for index in 0..STORM {
                soft.raise(port_event(index).0, EventObject::Port(1)).unwrap();
            }
        });
        for index in 0..STORM {
            let event = setup.context.get_event().unwrap();
            assert_eq!(event.kind(), port_event(index).1, "event {index}");
            assert_eq!(event.source(), EventSource::Port(1));
        }
    });
    assert_eq!(setup.context.try_get_event().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn unread_events_of_a_destroyed_queue_pair_are_removed() {
    let (soft, setup) = device();
    let (doomed, other) = setup.rc_pair();
    let survivor = other.id();
    for _ in 0..STORM {
        let raise = |qp: &raw::QueuePair<Rc>| {
            let object = EventObject::Qp(Qpn(qp.number()));
            soft.raise(AsyncKind::CommunicationEstablished, object).unwrap();
        };
        raise(&doomed);
        raise(&other);
    }
    doomed.destroy().unwrap();
    for _ in 0..STORM {
        let event = setup.context.get_event().unwrap();
        assert_eq!(event.source(), EventSource::QueuePair(survivor));
    }
    assert_eq!(setup.context.try_get_event().unwrap_err().kind(), ErrorKind::WouldBlock);
    other.destroy().unwrap();
}

fn nop(qp: &mut raw::QueuePair<Rc>) {
    // SAFETY: no memory is named.
    unsafe { qp.post_send(1, op::Nop, (), SIGNALED).unwrap() };
}

struct Ringer {
    cq: raw::CompletionQueue,
    qp: raw::QueuePair<Rc>,
}

impl Ringer {
    fn new(setup: &Setup, channel: &CompletionChannel) -> Self {
        let cq = setup.context.create_raw_cq(64).channel(channel).build().unwrap();
        let mut qp = setup.pd.create_raw_qp::<Rc>(cq.handle(), cq.handle()).build().unwrap();
        let own = qp.endpoint();
        qp.connect(&own).unwrap();
        Self { cq, qp }
    }

    /// Makes one completion event, which stays unread.
    fn ring(&mut self) {
        self.cq.arm();
        nop(&mut self.qp);
        success(&mut self.cq);
    }
}

#[test]
fn completion_events_of_live_queues_arrive_and_of_destroyed_queues_do_not() {
    let (_soft, setup) = device();
    let channel = setup.context.create_completion_channel().unwrap();
    let mut ringers: Vec<_> = (0..100).map(|_| Ringer::new(&setup, &channel)).collect();
    ringers.iter_mut().for_each(Ringer::ring);
    let dead: Vec<_> = ringers.drain(..50).collect();
    for Ringer { cq, qp } in dead {
        qp.destroy().unwrap();
        cq.destroy().unwrap();
    }
    let mut counts: HashMap<_, u32> = HashMap::new();
    for _ in 0..ringers.len() {
        *counts.entry(channel.get_event().unwrap().cq()).or_default() += 1;
    }
    assert!(ringers.iter().all(|ringer| counts.get(&ringer.cq.id()) == Some(&1)), "{counts:?}");
    assert_eq!(channel.try_get_event().unwrap_err().kind(), ErrorKind::WouldBlock);
    for round in 0..STORM {
        let ringer = &mut ringers[round % 50];
        ringer.ring();
        assert_eq!(channel.get_event().unwrap().cq(), ringer.cq.id());
    }
}

fn next_event(context: &Context, kind: EventType) -> EventSource {
    loop {
        let event = context.get_event().unwrap();
        if event.kind() == kind {
            return event.source();
        }
    }
}

#[test]
fn a_fatal_error_of_a_queue_pair_leaves_other_queue_pairs_working() {
    let (soft, mut setup) = device();
    let (mut a, mut b) = setup.rc_pair();
    soft.raise(AsyncKind::QpFatal, EventObject::Qp(Qpn(a.number()))).unwrap();
    assert_eq!(next_event(&setup.context, EventType::QP_FATAL), EventSource::QueuePair(a.id()));
    assert_eq!((a.state(), a.query().unwrap().state), (State::Err, State::Err));
    nop(&mut a);
    assert_eq!(completion(&mut setup.cq).status, uverbs::cq::Status::Flushed);
    nop(&mut b);
    success(&mut setup.cq);
    a.destroy().unwrap();
}

#[test]
fn a_failed_shared_receive_queue_can_only_be_destroyed() {
    let (soft, setup) = device();
    let mut srq = setup.pd.create_raw_srq(8).build().unwrap();
    let region = setup.region(64);
    let sge = [region.sge(0, 64).unwrap()];
    // SAFETY: the region lives to the end.
    unsafe { srq.post(1, &sge).unwrap() };
    soft.raise(AsyncKind::SrqError, EventObject::Srq(Srqn(srq.number()))).unwrap();
    let source = next_event(&setup.context, EventType::SRQ_ERR);
    assert_eq!(source, EventSource::SharedReceiveQueue(srq.id()));
    assert_eq!(srq.query().unwrap_err().kind(), ErrorKind::BadState);
    assert_eq!(srq.arm_limit(1).unwrap_err().kind(), ErrorKind::BadState);
    // SAFETY: as above.
    unsafe {
        assert_eq!(srq.post(2, &sge), Err(PostError::BadState));
        assert_eq!(srq.batch().build(3, &sge), Err(PostError::BadState));
    }
    assert_eq!(srq.outstanding_receives(), 1, "that of before");
    srq.destroy().unwrap();
}

#[test]
fn a_failed_shared_receive_queue_returns_its_slots() {
    let (soft, setup) = device();
    let mut srq = setup.pd.create_srq(8).build().unwrap();
    let slab = setup.pd.create_slab(4, 64).unwrap();
    srq.post(slab.take().unwrap()).unwrap();
    soft.raise(AsyncKind::SrqError, EventObject::Srq(Srqn(srq.number()))).unwrap();
    let slot = || slab.take().unwrap();
    let mut batch = srq.batch();
    batch.build(slot()).unwrap();
    next_event(&setup.context, EventType::SRQ_ERR);
    assert_eq!(batch.build(slot()).unwrap_err().reason, PostError::BadState);
    drop(batch);
    assert_eq!(srq.post(slot()).unwrap_err().reason, PostError::BadState);
    assert_eq!((slab.free(), srq.outstanding_receives()), (2, 2));
    srq.destroy().unwrap();
    assert_eq!(slab.free(), 4);
}

/// A completion queue for 3 entries, and a queue pair that completed 32 requests to it.
fn overrun(setup: &Setup) -> (raw::CompletionQueue, raw::QueuePair<Rc>) {
    let cq = setup.context.create_raw_cq(3).build().unwrap();
    let mut qp = setup.pd.create_raw_qp::<Rc>(cq.handle(), cq.handle()).build().unwrap();
    let own = qp.endpoint();
    qp.connect(&own).unwrap();
    (0..32).for_each(|_| nop(&mut qp));
    (cq, qp)
}

#[test]
fn an_overrun_completion_queue_reports_it_and_can_be_destroyed() {
    let (_soft, setup) = device();
    let (mut cq, qp) = overrun(&setup);
    assert_eq!(
        next_event(&setup.context, EventType::CQ_ERR),
        EventSource::CompletionQueue(cq.id())
    );
    let error = loop {
        match cq.poll() {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error, PollError::Overrun);
    qp.destroy().unwrap();
    cq.destroy().unwrap();
}

/// Waits for an event without reading it.
fn wait_for_event(context: &Context) {
    let mut fds = [PollFd::new(context.events_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut fds, PollTimeout::NONE), Ok(1));
}

/// Polls until an error other than `Empty`, and returns it with the number of empty polls before.
fn end_of<T>(mut poll: impl FnMut() -> Result<T, PollError>) -> (PollError, u32) {
    let mut empty = 0;
    loop {
        match poll() {
            Ok(_) => {}
            Err(PollError::Empty) if empty < 10_000 => empty += 1,
            Err(error) => return (error, empty),
        }
    }
}

#[test]
fn an_overrun_shows_in_polls_although_no_event_is_read() {
    let (_soft, setup) = device();
    let (mut cq, qp) = overrun(&setup);
    wait_for_event(&setup.context);
    assert_eq!(end_of(|| cq.poll().map(drop)).0, PollError::Overrun);
    assert_eq!(end_of(|| cq.batch().next().map(drop)), (PollError::Overrun, 0));
    assert_eq!(cq.poll_up_to(4, |_| panic!("none is left")), Err(PollError::Overrun));
    // The event is still there for the program to read: the descriptor is readable.
    wait_for_event(&setup.context);
    assert_eq!(
        next_event(&setup.context, EventType::CQ_ERR),
        EventSource::CompletionQueue(cq.id())
    );
    qp.destroy().unwrap();
    cq.destroy().unwrap();
}

#[test]
fn an_overrun_shows_in_safe_polls_although_no_event_is_read() {
    let (_soft, setup) = device();
    let mut cq = setup.context.create_cq(3).build().unwrap();
    let mut qp = setup.pd.create_qp::<Rc>(cq.handle(), cq.handle()).build().unwrap();
    let own = qp.endpoint();
    qp.connect(&own).unwrap();
    let slab = setup.pd.create_slab(16, 64).unwrap();
    (0..16).for_each(|_| qp.post_receive(slab.take().unwrap()).unwrap());
    (0..16).for_each(|_| qp.post_inline(op::Send, b"data", SIGNALED).unwrap());
    wait_for_event(&setup.context);
    assert_eq!(end_of(|| cq.poll().map(drop)).0, PollError::Overrun);
    assert_eq!(cq.poll_up_to(4, |_| panic!("none is left")), Err(PollError::Overrun));
    qp.destroy().unwrap();
    cq.destroy().unwrap();
    assert_eq!(slab.free(), 16);
}

/// A thread waits for events while polls in another thread check for them, too.
#[test]
fn a_thread_that_waits_for_events_gets_events_that_polls_have_seen() {
    let (soft, setup) = device();
    let mut cq = setup.context.create_raw_cq(3).build().unwrap();
    let qp = setup.pd.create_raw_qp::<Rc>(cq.handle(), cq.handle()).build().unwrap();
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            (0..STORM).map(|_| setup.context.get_event().unwrap().kind()).collect::<Vec<_>>()
        });
        for index in 0..STORM {
            soft.raise(port_event(index).0, EventObject::Port(1)).unwrap();
            assert_eq!(cq.poll().map(drop), Err(PollError::Empty));
        }
        while !reader.is_finished() {
            assert_eq!(cq.poll().map(drop), Err(PollError::Empty));
        }
        let kinds = reader.join().unwrap();
        assert!((0..STORM).map(|index| port_event(index).1).eq(kinds));
    });
    qp.destroy().unwrap();
}

/// Polls of a CQ with space for every outstanding request do not look for overrun events.
#[test]
fn polls_of_a_queue_that_cannot_overrun_read_no_events() {
    let (soft, setup) = device();
    let mut cq = setup.context.create_raw_cq(16).build().unwrap();
    let builder = setup.pd.create_raw_qp::<Rc>(cq.handle(), cq.handle());
    let qp = builder.max_send_wr(8).max_recv_wr(8).build().unwrap();
    soft.raise(AsyncKind::CqError, EventObject::Cq(Cqn(cq.number()))).unwrap();
    assert_eq!(end_of(|| cq.poll().map(drop)).0, PollError::Empty);
    next_event(&setup.context, EventType::CQ_ERR);
    assert_eq!(end_of(|| cq.poll().map(drop)), (PollError::Overrun, 0));
    qp.destroy().unwrap();
}

extern "C" fn nothing(_: libc::c_int) {}

#[test]
fn a_signal_ends_a_wait_and_loses_no_event() {
    let (soft, setup) = device();
    // SAFETY: a handler that does nothing, without SA_RESTART.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
    }
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        // SAFETY: the calling thread's own handle.
        let waiter = unsafe { libc::pthread_self() };
        let ended = &ended;
        scope.spawn(move || {
            // The first signals may come before the wait has begun.
            while !ended.load(Ordering::Relaxed) {
                // SAFETY: that thread waits for this one to end.
                unsafe { libc::pthread_kill(waiter, libc::SIGUSR1) };
                thread::yield_now();
            }
        });
        assert_eq!(setup.context.get_event().unwrap_err().kind(), ErrorKind::Interrupted);
        ended.store(true, Ordering::Relaxed);
    });
    soft.raise(AsyncKind::GidChange, EventObject::Port(1)).unwrap();
    assert_eq!(setup.context.get_event().unwrap().kind(), EventType::GID_CHANGE);
}
