//! Completion channels and asynchronous events: arming, getting, acknowledging, destroying.

mod common;

use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use common::{Setup, success};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use uverbs::cq::Status;
use uverbs::events::{EventSource, EventType};
use uverbs::qp::{Inline, PostFlags, State};
use uverbs::qp_type::Rc;
use uverbs::srq::{SrqAttrMask, SrqAttributes};
use uverbs::{CompletionChannel, ErrorKind, PollError, op};

const SIGNALED: PostFlags = PostFlags::SIGNALED;

fn with_channel() -> (Setup, CompletionChannel) {
    let mut setup = Setup::new();
    let channel = setup.context.create_completion_channel().unwrap();
    setup.cq = setup.context.create_raw_cq(1024).channel(&channel).build().unwrap();
    (setup, channel)
}

fn readable(fd: impl AsFd, patience: Duration) -> bool {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::try_from(patience).unwrap()).unwrap() == 1
}

fn nop(qp: &mut uverbs::raw::QueuePair<Rc>, wr_id: u64) {
    // SAFETY: no memory is named.
    unsafe { qp.post_send(wr_id, uverbs::op::Nop, (), SIGNALED).unwrap() };
}

#[test]
fn an_armed_queue_raises_one_event() {
    let (mut setup, channel) = with_channel();
    let (mut a, _b) = setup.rc_pair();
    assert_eq!(channel.try_get_event().unwrap_err().kind(), ErrorKind::WouldBlock);
    for round in 0..10 {
        setup.cq.arm();
        nop(&mut a, round);
        let event = channel.get_event().unwrap();
        assert_eq!(event.cq(), setup.cq.id());
        assert_eq!(success(&mut setup.cq).wr_id, round);
    }
    nop(&mut a, 99);
    success(&mut setup.cq);
    assert_eq!(channel.try_get_event().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn arming_for_solicited_completions_ignores_others() {
    let (mut setup, channel) = with_channel();
    let (mut a, mut b) = setup.rc_pair();
    for wr_id in 0..2 {
        // SAFETY: no memory is named.
        unsafe { b.post_receive(wr_id, &[]).unwrap() };
    }
    setup.cq.arm_solicited();
    // SAFETY: no data.
    unsafe { a.post_send(10, op::Send, (), PostFlags::empty()).unwrap() };
    assert_eq!(success(&mut setup.cq).wr_id, 0);
    assert_eq!(channel.try_get_event().unwrap_err().kind(), ErrorKind::WouldBlock);
    // SAFETY: no data.
    unsafe { a.post_send(11, op::Send, (), PostFlags::SOLICITED).unwrap() };
    drop(channel.get_event().unwrap());
    assert_eq!(success(&mut setup.cq).wr_id, 1);
}

#[test]
fn poll_waits_for_the_descriptor_of_a_channel() {
    let (mut setup, channel) = with_channel();
    let (mut a, _b) = setup.rc_pair();
    setup.cq.arm();
    assert!(!readable(&channel, Duration::ZERO));
    nop(&mut a, 1);
    assert!(readable(&channel, common::PATIENCE));
    channel.try_get_event().unwrap().acknowledge();
    success(&mut setup.cq);
}

#[test]
fn polling_after_arming_loses_no_completion() {
    let (mut setup, channel) = with_channel();
    let (mut a, _b) = setup.rc_pair();
    const COUNT: u64 = 2000;
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let start = std::time::Instant::now();
            for wr_id in 0..COUNT {
                // SAFETY: no memory is named.
                while unsafe { a.post_send(wr_id, uverbs::op::Nop, (), SIGNALED) }.is_err() {
                    assert!(start.elapsed() < 2 * common::PATIENCE, "no thread polls");
                    thread::yield_now();
                }
            }
        });
        let mut next = 0;
        while next < COUNT {
            setup.cq.arm();
            let mut found = false;
            while let Ok(completion) = setup.cq.poll() {
                assert_eq!(completion.wr_id(), next);
                next += 1;
                found = true;
            }
            if !found {
                assert!(readable(&channel, common::PATIENCE), "a wake-up was lost at {next}");
                drop(channel.get_event().unwrap());
            }
        }
        sender.join().unwrap();
    });
}

#[test]
fn events_name_their_queue_and_are_acknowledged_together() {
    let (setup, channel) = with_channel();
    let mut other = setup.context.create_raw_cq(64).channel(&channel).build().unwrap();
    let mut one = setup.cq;
    let pd = &setup.pd;
    let mut a = pd.create_raw_qp::<Rc>(one.handle(), one.handle()).build().unwrap();
    let mut b = pd.create_raw_qp::<Rc>(other.handle(), other.handle()).build().unwrap();
    let (end_a, end_b) = (a.endpoint(), b.endpoint());
    a.connect(&end_b).unwrap();
    b.connect(&end_a).unwrap();
    one.arm();
    other.arm();
    nop(&mut a, 1);
    nop(&mut b, 2);
    let mut events = [channel.get_event().unwrap(), channel.get_event().unwrap()];
    let mut ids = events.each_ref().map(uverbs::completion_channel::CqEvent::cq);
    ids.sort_by_key(|id| *id != one.id());
    assert_eq!(ids, [one.id(), other.id()]);
    success(&mut one);
    success(&mut other);
    if events[0].cq() != one.id() {
        events.swap(0, 1);
    }
    let [mut first, second] = events;
    one.arm();
    nop(&mut a, 3);
    first.merge(channel.get_event().unwrap()).unwrap();
    assert_eq!(first.count(), 2);
    let second = first.merge(second).unwrap_err();
    success(&mut one);
    drop(a);
    let failed = one.try_destroy().unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::Deadlock, "{failed}");
    first.acknowledge();
    failed.object.destroy().unwrap();
    drop(second);
}

#[test]
fn destroying_waits_for_the_event_of_another_thread() {
    let (mut setup, channel) = with_channel();
    let (mut a, b) = setup.rc_pair();
    setup.cq.arm();
    nop(&mut a, 1);
    let event = channel.get_event().unwrap().detach();
    success(&mut setup.cq);
    drop((a, b));
    let busy = setup.cq.try_destroy().unwrap_err();
    assert_eq!(busy.error.kind(), ErrorKind::Busy);
    assert!(busy.to_string().contains("1 event(s) of CQ"), "{busy}");
    let late = busy.object.destroy_within(Duration::from_millis(1)).unwrap_err();
    assert_eq!(late.error.kind(), ErrorKind::TimedOut);
    let (go, wait) = mpsc::channel::<()>();
    let holder = thread::spawn(move || {
        wait.recv().unwrap();
        drop(event);
    });
    go.send(()).unwrap();
    late.object.destroy().unwrap();
    holder.join().unwrap();
}

#[test]
fn a_limit_fires_once_and_disarms_itself() {
    let mut setup = Setup::new();
    let mut srq = setup.pd.create_raw_srq(32).build().unwrap();
    let granted = srq.capacity();
    for wr_id in 0..8 {
        // SAFETY: no memory is named.
        unsafe { srq.post(wr_id, &[]).unwrap() };
    }
    assert_eq!(
        srq.query().unwrap(),
        SrqAttributes { max_wr: granted, max_sge: srq.max_sge(), limit: 0 }
    );
    assert!(srq.arm_limit(granted + 1).unwrap_err().to_string().contains("at most"));
    srq.arm_limit(6).unwrap();
    assert_eq!(srq.query().unwrap().limit, 6);
    let mut a = setup.builder::<Rc>().build().unwrap();
    let mut b = setup.builder::<Rc>().shared_receive_queue(srq.handle()).build().unwrap();
    let (end_a, end_b) = (a.endpoint(), b.endpoint());
    a.connect(&end_b).unwrap();
    b.connect(&end_a).unwrap();
    for wr_id in 0..4u32 {
        let operation = op::SendImmediate(uverbs::qp::Immediate::from_u32(wr_id));
        // SAFETY: no data.
        unsafe { a.post_send(100, operation, (), PostFlags::empty()).unwrap() };
        assert_eq!(
            success(&mut setup.cq).immediate(),
            Some(uverbs::qp::Immediate::from_u32(wr_id))
        );
    }
    let limit = loop {
        let event = setup.context.get_event().unwrap();
        if event.kind() == EventType::SRQ_LIMIT_REACHED {
            break event;
        }
    };
    assert_eq!(limit.source(), EventSource::SharedReceiveQueue(srq.id()));
    drop(limit);
    assert_eq!(srq.query().unwrap().limit, 0);
    assert_eq!(setup.context.try_get_event().unwrap_err().kind(), ErrorKind::WouldBlock);
}

/// Receives are posted and consumed and the limit is armed again, all at the same time. No event
/// may be lost, and none may occur without a limit.
#[test]
fn a_limit_races_with_posts_and_changes() {
    const LIMIT: u32 = 6;
    let mut setup = Setup::new();
    let mut srq = setup.pd.create_raw_srq(64).build().unwrap();
    let mut a = setup.builder::<Rc>().build().unwrap();
    let mut b = setup.builder::<Rc>().shared_receive_queue(srq.handle()).build().unwrap();
    let (end_a, end_b) = (a.endpoint(), b.endpoint());
    a.connect(&end_b).unwrap();
    b.connect(&end_a).unwrap();
    let handle = srq.handle().clone();
    let (mut posted, mut received) = (0, 0);
    for round in 0..300 {
        let (more, again) = (round % 5, round % 3);
        for wr_id in 0..8 {
            // SAFETY: no memory is named.
            unsafe { srq.post(wr_id, &[]).unwrap() };
        }
        handle.arm_limit(LIMIT).unwrap();
        let consumed = 8 - round % 2;
        thread::scope(|scope| {
            scope.spawn(|| {
                for wr_id in 0..consumed {
                    // SAFETY: no data.
                    unsafe { a.post_send(wr_id, op::Send, (), SIGNALED).unwrap() };
                }
            });
            scope.spawn(|| (0..again).for_each(|_| handle.arm_limit(LIMIT).unwrap()));
            for wr_id in 0..more {
                // SAFETY: no memory is named.
                unsafe { srq.post(wr_id, &[]).unwrap() };
            }
            // Of both ends.
            for _ in 0..2 * consumed {
                success(&mut setup.cq);
            }
        });
        (posted, received) = (posted + 8 + more, received + consumed);
        let (left, limit) = (posted - received, srq.query().unwrap().limit);
        let mut events = 0;
        while let Ok(event) = setup.context.try_get_event() {
            if event.kind() == EventType::SRQ_LIMIT_REACHED {
                assert_eq!(event.source(), EventSource::SharedReceiveQueue(srq.id()));
                events += 1;
            }
        }
        assert!(events <= 1 + again, "{events} events in round {round}");
        assert!(events > 0 || limit == LIMIT, "round {round}: an event was lost");
        assert!(limit == 0 || left >= u64::from(LIMIT), "round {round}: {left} left");
        // All remaining receives are consumed before the next round.
        handle.arm_limit(0).unwrap();
        for wr_id in 0..left {
            // SAFETY: no data.
            unsafe { a.post_send(wr_id, op::Send, (), SIGNALED).unwrap() };
            success(&mut setup.cq);
            success(&mut setup.cq);
        }
        received += left;
        while setup.context.try_get_event().is_ok() {}
    }
}

#[test]
fn refused_changes_of_a_shared_queue_change_nothing() {
    let setup = Setup::new();
    let mut srq = setup.pd.create_raw_srq(32).build().unwrap();
    for wr_id in 0..8 {
        // SAFETY: no memory is named.
        unsafe { srq.post(wr_id, &[]).unwrap() };
    }
    srq.arm_limit(3).unwrap();
    let wanted = SrqAttributes { max_wr: 16, limit: 2, ..SrqAttributes::default() };
    let unknown = SrqAttrMask::from_bits_retain(1 << 7) | SrqAttrMask::LIMIT;
    assert_eq!(srq.modify(unknown, wanted).unwrap_err().kind(), ErrorKind::InvalidInput);
    let resize = srq.modify(SrqAttrMask::MAX_WR | SrqAttrMask::LIMIT, wanted).unwrap_err();
    assert_eq!(resize.kind(), ErrorKind::Unsupported, "{resize}");
    assert_eq!(srq.query().unwrap().limit, 3);
    srq.arm_limit(0).unwrap();
    assert_eq!(srq.query().unwrap().limit, 0);
}

#[test]
fn the_devices_size_of_a_resized_shared_queue_counts() {
    if !common::is_soft() {
        return;
    }
    let setup = Setup::on(common::soft_device(|builder| builder.srq_resize(true)).open().unwrap());
    let srq = setup.pd.create_raw_srq(32).build().unwrap();
    let wanted = SrqAttributes { max_wr: 16, limit: 0, ..SrqAttributes::default() };
    srq.modify(SrqAttrMask::MAX_WR, wanted).unwrap();
    assert_eq!(srq.query().unwrap().max_wr, 16);
    assert!(srq.arm_limit(17).is_err());
    srq.arm_limit(16).unwrap();
}

#[test]
fn several_threads_share_events_and_each_event_arrives_once() {
    if !common::is_soft() {
        return;
    }
    use uverbs::soft::SoftDevice;
    let soft = SoftDevice::builder("soft0").without_wire().build().unwrap();
    let context = uverbs::Device::from_soft(soft).open().unwrap();
    let setup = Setup::on(context.clone());
    let queues: Vec<_> = (0..4).map(|_| setup.pd.create_raw_srq(8).build().unwrap()).collect();
    let (got, all) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..4 {
            let (context, got) = (&context, got.clone());
            scope.spawn(move || {
                let event = context.get_event().unwrap();
                got.send((event.kind(), event.source())).unwrap();
            });
        }
        // Fewer receives are posted than the limit, so the event comes at once.
        queues.iter().for_each(|srq| srq.arm_limit(1).unwrap());
        let mut sources: Vec<_> = (0..4)
            .map(|_| all.recv_timeout(common::PATIENCE).unwrap())
            .map(|(kind, source)| {
                assert_eq!(kind, EventType::SRQ_LIMIT_REACHED);
                source
            })
            .collect();
        for srq in &queues {
            let wanted = EventSource::SharedReceiveQueue(srq.id());
            let at = sources.iter().position(|source| *source == wanted).unwrap();
            sources.swap_remove(at);
        }
    });
}

#[test]
fn removal_ends_polls_posts_and_waits_and_objects_can_be_destroyed() {
    if !common::is_soft() {
        return;
    }
    use std::sync::Arc;
    let soft = uverbs::soft::SoftDevice::builder("soft0").without_wire().build().unwrap();
    let remover = Arc::new(soft);
    let device = uverbs::Device::from_shared_soft(remover.clone());
    let mut setup = Setup::on(device.open().unwrap());
    let (mut a, _b) = setup.rc_pair();
    let region = setup.region(4096);
    remover.remove();
    let event = setup.context.get_event().unwrap();
    assert_eq!((event.kind(), event.source()), (EventType::DEVICE_FATAL, EventSource::Device));
    drop(event);
    assert!(setup.context.get_event().is_err());
    // Posting is harmless, because the queue pair is in the error state. SAFETY: inline data.
    let _ = unsafe { a.post_send(1, op::Send, Inline(b"x"), SIGNALED) };
    assert_eq!(a.state(), State::Err);
    assert_eq!(setup.cq.poll().unwrap_err(), PollError::DeviceRemoved);
    assert!(setup.context.alloc_pd().is_err());
    assert_eq!(a.query().unwrap_err().errno(), 5);
    a.destroy().unwrap();
    region.deregister().unwrap();
}

#[test]
fn a_queue_in_error_gives_flushed_completions_and_events_end_with_it() {
    let mut setup = Setup::new();
    let (mut a, _b) = setup.rc_pair();
    a.to_error().unwrap();
    // SAFETY: no memory is named.
    unsafe { a.post_send(1, uverbs::op::Nop, (), PostFlags::empty()).unwrap() };
    assert_eq!(setup.completion().status, Status::Flushed);
    a.try_destroy().unwrap();
}
