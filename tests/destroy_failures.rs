//! For each kind of object, the kernel refuses to destroy it. The object must still work, none of
//! its memory may be released, and the next attempt must succeed.

mod common;

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use common::REMOTE;
use uverbs::devx::{Umem, UmemOptions};
use uverbs::ethernet::{FrameError, RxQueue, TxQueue};
use uverbs::flow::{FlowFlags, FlowTableType, Matcher, MatcherOptions, Port, Protocol};
use uverbs::memory::device_memory::DeviceMemory;
use uverbs::qp::rss::{IndirectionTable, RssOptions, RssTarget, RssTraffic};
use uverbs::qp::{DcReceiver, EthernetOffload, PathOptions, PostFlags, State};
use uverbs::qp_type::Rc;
use uverbs::soft::{Errno, Fault, Moment, SoftDevice};
use uverbs::{
    AccessFlags, Buffer, CompletionQueue, Context, DestroyError, Device, PollError,
    ProtectionDomain, QueuePair, SharedReceiveQueue, Slab, WorkQueue, op,
};

/// The object is in use, the firmware fails, the device may be gone.
const ERRNOS: [Errno; 5] =
    [Errno::EBUSY, Errno::EIO, Errno::ENXIO, Errno::ENODEV, Errno::ETIMEDOUT];

struct Bench {
    soft: Arc<SoftDevice>,
    context: Context,
    pd: ProtectionDomain,
}

impl Bench {
    fn new() -> Self {
        let soft = Arc::new(SoftDevice::builder("soft0").without_wire().build().unwrap());
        let context = Device::from_shared_soft(soft.clone()).open().unwrap();
        let pd = context.alloc_pd().unwrap();
        Self { soft, context, pd }
    }

    fn cq(&self) -> CompletionQueue {
        self.context.create_cq(64).build().unwrap()
    }

    /// Makes every command fail that `run` sends, and checks that it sends one.
    fn while_commands_fail<R>(&self, errno: Errno, run: impl FnOnce() -> R) -> R {
        (0..50).for_each(|_| self.soft.inject(Fault { moment: Moment::Call(0), errno }));
        let result = run();
        assert!(self.soft.clear_faults() < 50, "a command was sent");
        result
    }
}

/// An object, and the objects that it needs.
type With<T> = (T, Box<dyn Any>);

fn with<T>(object: T, needs: impl Any) -> With<T> {
    (object, Box::new(needs))
}

/// The kernel refuses to destroy the object twice. It works after each refusal. The third attempt
/// destroys it.
fn survives_refusals<T>(
    make: impl Fn(&Bench) -> With<T>,
    works: impl Fn(&Bench, &mut T),
    destroy: impl Fn(T) -> Result<(), DestroyError<T>>,
) {
    let what = std::any::type_name::<T>();
    for errno in ERRNOS {
        let bench = Bench::new();
        let (mut object, needs) = make(&bench);
        works(&bench, &mut object);
        let handles = bench.soft.handle_count();
        for _ in 0..2 {
            let failed = bench.while_commands_fail(errno, || destroy(object)).unwrap_err();
            assert_eq!(failed.error.errno(), errno as i32, "{what}");
            assert_eq!(bench.soft.handle_count(), handles, "{what}");
            object = *failed.object;
            works(&bench, &mut object);
        }
        destroy(object).unwrap_or_else(|failed| panic!("{what} after {errno:?}: {failed}"));
        assert!(bench.soft.handle_count() < handles, "{what}");
        drop(needs);
        drop((bench.pd, bench.context));
        assert_eq!(bench.soft.handle_count(), 0, "{what}: nothing was left behind");
    }
}

/// An object that is dropped while the kernel refuses to destroy it exists until the close.
fn stays_until_the_close<T>(make: impl Fn(&Bench) -> With<T>) {
    let what = std::any::type_name::<T>();
    for errno in ERRNOS {
        let bench = Bench::new();
        let (object, needs) = make(&bench);
        let handles = bench.soft.handle_count();
        bench.while_commands_fail(errno, || drop(object));
        assert_eq!(bench.soft.handle_count(), handles, "{what} with {errno:?}");
        drop(needs);
        drop((bench.pd, bench.context));
        assert_eq!(bench.soft.handle_count(), 0, "{what} with {errno:?}: after the close");
    }
}

type Connected = (QueuePair<Rc>, (CompletionQueue, Slab));

/// A queue pair that is its own peer, with two slots to receive into.
fn queue_pair(bench: &Bench) -> With<Connected> {
    let (cq, slab) = (bench.cq(), bench.pd.create_slab(4, 64).unwrap());
    let mut qp: QueuePair<Rc> =
        bench.pd.create_qp(cq.handle(), cq.handle()).access(REMOTE).build().unwrap();
    let peer = qp.endpoint();
    qp.connect(&peer).unwrap();
    for _ in 0..2 {
        qp.post_receive(slab.take().unwrap()).unwrap();
    }
    with((qp, (cq, slab)), ())
}

/// The slots of the next two completions.
fn two_slots(bench: &Bench, cq: &mut CompletionQueue) -> Vec<uverbs::Slot> {
    let start = std::time::Instant::now();
    let mut slots = Vec::new();
    while slots.len() < 2 {
        match cq.poll() {
            Ok(done) => slots.push(done.slot.unwrap()),
            Err(PollError::Empty) => bench.context.poll_idle(),
            Err(error) => panic!("{error}"),
        }
        assert!(start.elapsed() < common::PATIENCE);
    }
    slots
}

/// Adds the objects that are used with the destroyed one to the result.
fn with_others<A, B>(
    destroyed: Result<(), DestroyError<A>>,
    others: B,
) -> Result<(), DestroyError<(A, B)>> {
    destroyed.map_err(|DestroyError { object, error, .. }| DestroyError {
        object: Box::new((*object, others)),
        error,
    })
}

#[test]
fn queue_pairs_still_send_and_keep_their_slots() {
    let works = |bench: &Bench, (qp, (cq, slab)): &mut Connected| {
        assert_eq!(slab.free(), 2);
        let mut slot = slab.take().unwrap();
        slot.write(b"still here").unwrap();
        qp.post_send(op::Send, slot, PostFlags::SIGNALED).unwrap();
        let slots = two_slots(bench, cq);
        assert!(slots.iter().all(|slot| slot.starts_with(b"still here")));
        slots.into_iter().take(1).for_each(|slot| qp.post_receive(slot).unwrap());
    };
    survives_refusals(queue_pair, works, |(qp, others)| with_others(qp.destroy(), others));
}

/// The device may still write to these slots, so they keep the slab, which keeps the device open.
#[test]
fn slots_of_queues_that_cannot_be_destroyed_are_not_released() {
    for errno in ERRNOS {
        let bench = Bench::new();
        let ((qp, (cq, slab)), _) = queue_pair(&bench);
        let mut srq = bench.pd.create_srq(4).build().unwrap();
        srq.post(slab.take().unwrap()).unwrap();
        bench.while_commands_fail(errno, || drop((qp, srq)));
        bench.while_commands_fail(errno, || drop(cq));
        assert_eq!(slab.free(), 1, "{errno:?}: the device may write to the other three");
        let handles = bench.soft.handle_count();
        drop((slab, bench.pd, bench.context));
        assert_eq!(bench.soft.handle_count(), handles, "{errno:?}: still open");
    }
}

#[test]
fn shared_receive_queues_still_take_slots() {
    type Shared = (SharedReceiveQueue, Slab);
    let make = |bench: &Bench| {
        let slab = bench.pd.create_slab(64, 64).unwrap();
        with((bench.pd.create_srq(16).build().unwrap(), slab), ())
    };
    let works = |_: &Bench, (srq, slab): &mut Shared| {
        let free = slab.free();
        srq.post(slab.take().unwrap()).unwrap();
        assert_eq!(slab.free(), free - 1);
        srq.query().unwrap();
    };
    survives_refusals(make, works, |(srq, slab)| with_others(srq.destroy(), slab));
    stays_until_the_close(make);
}

#[test]
fn completion_queues_can_still_be_polled() {
    let make = |bench: &Bench| with(bench.cq(), ());
    let works = |bench: &Bench, cq: &mut CompletionQueue| {
        assert_eq!(cq.poll().unwrap_err(), PollError::Empty);
        let qp = bench.pd.create_qp::<Rc>(cq.handle(), cq.handle()).build().unwrap();
        qp.destroy().unwrap();
    };
    survives_refusals(make, works, CompletionQueue::destroy);
    stays_until_the_close(make);
}

fn work_queue(bench: &Bench) -> With<(WorkQueue, Slab)> {
    let (cq, slab) = (bench.cq(), bench.pd.create_slab(64, 64).unwrap());
    let wq = bench.pd.create_wq(cq.handle(), 16).build().unwrap();
    with((wq, slab), cq)
}

#[test]
fn work_queues_still_take_slots() {
    let works = |_: &Bench, (wq, slab): &mut (WorkQueue, Slab)| {
        wq.post_receive(slab.take().unwrap()).unwrap();
        assert_eq!(wq.state(), uverbs::WqState::Rdy);
    };
    survives_refusals(work_queue, works, |(wq, slab)| with_others(wq.destroy(), slab));
    stays_until_the_close(work_queue);
}

fn table(bench: &Bench) -> With<IndirectionTable> {
    let (wq, needs) = work_queue(bench);
    let table = bench.context.create_indirection_table(&[wq.0.handle()]).unwrap();
    with(table, (wq, needs))
}

fn target(bench: &Bench) -> With<RssTarget> {
    let (table, needs) = table(bench);
    let options = RssOptions::new(RssTraffic::Ipv4Udp);
    with(bench.pd.create_rss_target(&table, &options).unwrap(), (table, needs))
}

#[test]
fn rss_tables_and_targets_still_work() {
    let works = |bench: &Bench, table: &mut IndirectionTable| {
        let options = RssOptions::new(RssTraffic::Ipv4);
        bench.pd.create_rss_target(table, &options).unwrap().destroy().unwrap();
    };
    survives_refusals(table, works, IndirectionTable::destroy);
    stays_until_the_close(table);
    let takes_rules = |_: &Bench, target: &mut RssTarget| {
        let rule = target.create_flow().ethernet(Default::default()).build().unwrap();
        rule.destroy().unwrap();
    };
    survives_refusals(target, takes_rules, RssTarget::destroy);
    stays_until_the_close(target);
}

#[test]
fn device_memory_still_works_and_umems_survive() {
    let memory = |bench: &Bench| with(bench.context.alloc_device_memory(64, 64).unwrap(), ());
    let works = |_: &Bench, memory: &mut DeviceMemory| {
        let mut bytes = [0; 8];
        memory.write(8, b"unharmed").unwrap();
        memory.read(8, &mut bytes).unwrap();
        assert_eq!(&bytes, b"unharmed");
    };
    survives_refusals(memory, works, DeviceMemory::free);
    stays_until_the_close(memory);
    let umem = |bench: &Bench| {
        let buffer = Buffer::new(4096).unwrap();
        let (start, length, access) =
            (buffer.as_ptr() as u64, buffer.len(), AccessFlags::LOCAL_WRITE);
        let options = UmemOptions { start, length, access, page_sizes: None, dma_buf: None };
        // SAFETY: no command names memory of this process but the buffer.
        let devx = unsafe { bench.context.devx() };
        with(devx.register_umem(&options).unwrap(), buffer)
    };
    survives_refusals(umem, |_, _| {}, Umem::destroy);
    stays_until_the_close(umem);
}

#[test]
fn dc_targets_can_still_be_queried() {
    let make = |bench: &Bench| {
        let cq = bench.context.create_raw_cq(16).build().unwrap();
        let srq = bench.pd.create_raw_srq(16).build().unwrap();
        let target =
            bench.pd.create_dc_receiver(cq.handle(), srq.handle(), 7, PathOptions::default());
        with(target.unwrap(), (srq, cq))
    };
    survives_refusals(
        make,
        |_, target| assert_eq!(target.query().unwrap().state, State::Rtr),
        DcReceiver::destroy,
    );
    stays_until_the_close(make);
}

#[test]
fn flow_matchers_survive() {
    let make = |bench: &Bench| {
        let options = MatcherOptions {
            mask: &[0; 64],
            criteria: 0,
            priority: 0,
            table: Some(FlowTableType::NIC_RX),
            port: None,
            flags: FlowFlags::empty(),
        };
        with(bench.context.create_flow_matcher(&options).unwrap(), ())
    };
    survives_refusals(make, |_, matcher| drop(matcher.clone()), Matcher::destroy);
    stays_until_the_close(make);
}

#[test]
fn frame_queues_still_work() {
    let sends =
        |bench: &Bench| with(bench.pd.create_tx_queue(16).completion_every(1).build().unwrap(), ());
    let sends_a_frame = |bench: &Bench, queue: &mut TxQueue| {
        let frame = queue.template::<2>(&[0; 60], EthernetOffload::default()).unwrap();
        queue.send(1, &frame).unwrap();
        let (completed, began) = (queue.counters().completed, Instant::now());
        while queue.counters().completed == completed {
            queue.reap();
            bench.context.poll_idle();
            assert!(began.elapsed() < common::PATIENCE);
        }
        assert_eq!(queue.counters().failed, 0);
    };
    survives_refusals(sends, sends_a_frame, TxQueue::destroy);
    stays_until_the_close(sends);
    let receives = |bench: &Bench| with(bench.pd.create_rx_queue(16).build().unwrap(), ());
    let takes_rules = |_: &Bench, queue: &mut RxQueue| {
        queue
            .steer(&Port { protocol: Protocol::Udp, port: 4000, tag: None })
            .unwrap()
            .destroy()
            .unwrap();
        assert_eq!(queue.poll().unwrap_err(), FrameError::Empty);
    };
    survives_refusals(receives, takes_rules, RxQueue::destroy);
}

/// The device may still read the ends of frames, and write to the receives.
#[test]
fn slots_of_frame_queues_that_cannot_be_destroyed_are_not_released() {
    for errno in ERRNOS {
        let bench = Bench::new();
        let slab = bench.pd.create_slab(4, 64).unwrap();
        let mut sends = bench.pd.create_tx_queue(16).build().unwrap();
        let mut tail = slab.take().unwrap();
        tail.write(&[7; 64]).unwrap();
        sends.template_with_tail::<2>(&[0; 14], tail, EthernetOffload::default()).unwrap();
        bench.while_commands_fail(errno, || drop(sends));
        assert_eq!(slab.free(), 3, "{errno:?}: the end of a frame");

        let receives = bench.pd.create_rx_queue(16).build().unwrap();
        let received = receives.slab().clone();
        let free = received.free();
        bench.while_commands_fail(errno, || drop(receives));
        assert_eq!(received.free(), free, "{errno:?}: the receives");
    }
}
