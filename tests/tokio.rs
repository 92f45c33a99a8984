//! Completion queues and asynchronous events in tokio tasks.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::Setup;
use tokio::time::timeout;
use uverbs::cq::Status;
use uverbs::events::EventType;
use uverbs::layer::Raw;
use uverbs::qp::{Inline, PostFlags, State};
use uverbs::qp_type::Rc;
use uverbs::soft::{AsyncKind, EventObject, SoftDevice};
use uverbs::tokio::{AsyncCompletionChannel, AsyncCompletionQueue, AsyncEvents};
use uverbs::{Context, Device, ErrorKind, op, raw};

const SIGNALED: PostFlags = PostFlags::SIGNALED;

/// A queue pair and its completion queue.
type End = (raw::QueuePair<Rc>, AsyncCompletionQueue<Raw>);

fn ends(context: &Context) -> (End, End) {
    let pd = context.alloc_pd().unwrap();
    let [(mut a, cq_a), (mut b, cq_b)] = [(); 2].map(|()| {
        let cq = context.create_raw_cq(256).build_async().unwrap();
        (pd.create_raw_qp::<Rc>(cq.handle(), cq.handle()).build().unwrap(), cq)
    });
    let (end_a, end_b) = (a.endpoint(), b.endpoint());
    a.connect(&end_b).unwrap();
    b.connect(&end_a).unwrap();
    ((a, cq_a), (b, cq_b))
}

fn nop(qp: &mut raw::QueuePair<Rc>, wr_id: u64) {
    // SAFETY: no memory is named.
    unsafe { qp.post_send(wr_id, op::Nop, (), SIGNALED).unwrap() };
}

#[tokio::test]
async fn a_task_waits_for_slots() {
    let context = common::open();
    let pd = context.alloc_pd().unwrap();
    let slab = pd.create_slab(2, 64).unwrap();
    let mut cq = context.create_cq(16).build_async().unwrap();
    let mut qp = pd.create_qp::<Rc>(cq.handle(), cq.handle()).build().unwrap();
    let itself = qp.endpoint();
    qp.connect(&itself).unwrap();
    qp.post_receive(slab.take().unwrap()).unwrap();
    let soon = Duration::from_millis(10);
    assert!(timeout(soon, cq.completion()).await.is_err(), "a wait that is given up takes nothing");
    let mut slot = slab.take().unwrap();
    slot.write(b"hello").unwrap();
    qp.post_send(op::Send, slot, SIGNALED).unwrap();
    for _ in 0..2 {
        let done = timeout(common::PATIENCE, cq.completion()).await.expect("in time");
        let (slot, completion) = done.unwrap();
        assert_eq!((completion.status, &slot.unwrap()[..]), (Status::Success, &b"hello"[..]));
    }
    assert_eq!(slab.free(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_wake_up_is_lost_between_two_tasks() {
    const ROUNDS: u64 = 3000;
    let ((a, cq_a), (b, cq_b)) = ends(&common::open());
    // Each end sleeps until the other's message arrives, so one lost wake-up stops both forever.
    let play = |(mut qp, mut cq): End, serves: bool| async move {
        // SAFETY: no memory is named.
        unsafe { qp.post_receive(0, &[]).unwrap() };
        let send = |qp: &mut raw::QueuePair<Rc>, round| {
            // SAFETY: inline data.
            unsafe { qp.post_send(round, op::Send, Inline(b""), SIGNALED).unwrap() };
        };
        if serves {
            send(&mut qp, 1);
        }
        let (mut sent, mut received) = (0, 0);
        while sent < ROUNDS || received < ROUNDS {
            let wait = timeout(common::PATIENCE, cq.completion());
            let done =
                wait.await.unwrap_or_else(|_| panic!("lost after {sent}/{received}")).unwrap();
            assert_eq!(done.status, Status::Success, "{done:?}");
            if done.wr_id != 0 {
                sent += 1;
                continue;
            }
            received += 1;
            if received < ROUNDS {
                // SAFETY: no memory is named.
                unsafe { qp.post_receive(0, &[]).unwrap() };
            }
            if !serves || received < ROUNDS {
                send(&mut qp, received + 1);
            }
        }
        (qp, cq)
    };
    let one = tokio::spawn(play((a, cq_a), true));
    let other = tokio::spawn(play((b, cq_b), false));
    let ends = (one.await.unwrap(), other.await.unwrap());
    drop(ends);
}

#[tokio::test]
async fn a_cancelled_wait_loses_no_completion() {
    let ((mut a, mut cq), _b) = ends(&common::open());
    for round in 0..300 {
        // Cancelled at its first waiting point, with the queue armed.
        let cancelled = timeout(Duration::ZERO, cq.completion()).await;
        assert!(cancelled.is_err(), "{cancelled:?}");
        nop(&mut a, round);
        let done = timeout(common::PATIENCE, cq.completion()).await.unwrap().unwrap();
        assert_eq!(done.wr_id, round);
    }
}

#[tokio::test]
async fn several_completions_come_together() {
    let ((mut a, mut cq), _b) = ends(&common::open());
    (0..8).for_each(|wr_id| nop(&mut a, wr_id));
    let mut all = Vec::new();
    while all.len() < 8 {
        let before = all.len();
        timeout(common::PATIENCE, cq.completions(&mut all, 5)).await.unwrap().unwrap();
        assert!((1..=5).contains(&(all.len() - before)));
    }
    let ids: Vec<_> = all.iter().map(|done| done.wr_id).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6, 7]);
}

/// Repeats a wait that is always ready. Another task of the same thread must run meanwhile.
async fn leaves_others_their_turn(mut takes: impl AsyncFnMut()) {
    // The first one may have to wait.
    takes().await;
    let other = tokio::spawn(async {});
    for _ in 0..1000 {
        if other.is_finished() {
            return;
        }
        takes().await;
    }
    panic!("the other task never ran");
}

#[tokio::test]
async fn a_queue_that_is_never_empty_leaves_other_tasks_their_turn() {
    let ((mut a, mut sent), (mut b, mut received)) = ends(&common::open());
    leaves_others_their_turn(async || {
        // SAFETY: no memory is named.
        unsafe { b.post_receive(0, &[]).unwrap() };
        // SAFETY: inline data.
        unsafe { a.post_send(0, op::Send, Inline(b""), SIGNALED).unwrap() };
        // The message has arrived once it is acknowledged.
        common::success(sent.queue());
        received.completion().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn events_that_never_end_leave_other_tasks_their_turn() {
    let soft = Arc::new(SoftDevice::builder("soft0").without_wire().build().unwrap());
    let context = Device::from_shared_soft(soft.clone()).open().unwrap();
    let events = AsyncEvents::new(&context).unwrap();
    leaves_others_their_turn(async || {
        soft.raise(AsyncKind::PortActive, EventObject::Port(1)).unwrap();
        events.event().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_channel_serves_many_queues() {
    let setup = Setup::new();
    let channel = setup.context.create_completion_channel().unwrap();
    let channel = AsyncCompletionChannel::new(channel).unwrap();
    let mut ends: Vec<_> = (0..10)
        .map(|_| {
            let cq = setup.context.create_raw_cq(16).channel(channel.channel()).build().unwrap();
            let mut qp = setup.pd.create_raw_qp::<Rc>(cq.handle(), cq.handle()).build().unwrap();
            let own = qp.endpoint();
            qp.connect(&own).unwrap();
            (qp, cq)
        })
        .collect();
    for round in 0..50 {
        for (qp, cq) in &mut ends {
            cq.arm();
            nop(qp, round);
        }
        for _ in 0..ends.len() {
            let event = timeout(common::PATIENCE, channel.event()).await.unwrap().unwrap();
            let (_, cq) = ends.iter_mut().find(|(_, cq)| cq.id() == event.cq()).unwrap();
            assert_eq!(cq.poll().unwrap().wr_id(), round);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_asynchronous_event_wakes_one_task() {
    let soft = Arc::new(SoftDevice::builder("soft0").without_wire().build().unwrap());
    let context = Device::from_shared_soft(soft.clone()).open().unwrap();
    let events = Arc::new(AsyncEvents::new(&context).unwrap());
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let events = events.clone();
            tokio::spawn(async move {
                let mut got = 0;
                while got < 100 {
                    let event = events.event().await.unwrap();
                    assert_eq!(event.kind(), EventType::PORT_ACTIVE);
                    got += 1;
                }
            })
        })
        .collect();
    for _ in 0..400 {
        soft.raise(AsyncKind::PortActive, EventObject::Port(1)).unwrap();
        tokio::task::yield_now().await;
    }
    for task in tasks {
        timeout(common::PATIENCE, task).await.unwrap().unwrap();
    }
}

/// A task that waits for events sees the removal even if another thread got the last event.
#[tokio::test]
async fn a_removal_seen_by_a_thread_wakes_tasks() {
    let soft = Arc::new(SoftDevice::builder("soft0").without_wire().build().unwrap());
    let context = Device::from_shared_soft(soft.clone()).open().unwrap();
    let events = AsyncEvents::new(&context).unwrap();
    let waiting = tokio::spawn(async move { events.event().await.map(|event| event.kind()) });
    tokio::task::yield_now().await;
    soft.remove();
    // This test's runtime has one thread: the task has not seen the event yet.
    assert_eq!(context.get_event().unwrap().kind(), EventType::DEVICE_FATAL);
    let error = timeout(common::PATIENCE, waiting).await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeviceGone);
}

#[tokio::test]
async fn removal_wakes_waiting_tasks() {
    let soft = Arc::new(SoftDevice::builder("soft0").without_wire().build().unwrap());
    let context = Device::from_shared_soft(soft.clone()).open().unwrap();
    let ((a, mut cq), _b) = ends(&context);
    let events = AsyncEvents::new(&context).unwrap();
    let waiting = tokio::spawn(async move {
        let error = cq.completion().await.unwrap_err();
        (cq, error)
    });
    tokio::task::yield_now().await;
    soft.remove();
    let event = timeout(common::PATIENCE, events.event()).await.unwrap().unwrap();
    assert_eq!(event.kind(), EventType::DEVICE_FATAL);
    let error = timeout(common::PATIENCE, events.event()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeviceGone, "nothing comes after the end");
    let (mut cq, error) = timeout(common::PATIENCE, waiting).await.unwrap().unwrap();
    assert!(error.errno() == libc::EIO || error.errno() == libc::ENODEV, "{error}");
    assert!(cq.completion().await.is_err());
    assert_eq!(a.state(), State::Err);
}
