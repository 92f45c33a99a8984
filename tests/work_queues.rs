//! Receive work queues, indirection tables and receive side scaling.

mod common;

#[path = "common/frames.rs"]
mod frames;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::Setup;
use frames::{Wire, udp_frame};
use nix::errno::Errno;
use uverbs::cq::Status;
use uverbs::ethernet::{FrameError, RxQueue};
use uverbs::flow::{Ethernet, Port, Ports, Protocol, Traffic, UdpMulticast};
use uverbs::qp::rss::{RssFields, RssOptions, RssTarget, RssTraffic};
use uverbs::qp::{EthChecksum, EthernetOffload, PostError};
use uverbs::soft::{Fault, Kernel, Moment, SoftDevice};
use uverbs::{
    CompletionQueue, Context, Device, Error, ErrorKind, PollError, WorkQueue, WqState, raw,
};

const PLAIN: EthernetOffload =
    EthernetOffload { checksum: EthChecksum::NONE, vlan: None, metadata: 0 };
/// Source, destination, their ports, and the RSS hashes without and with the ports, from
/// Microsoft's "Verifying the RSS Hash Calculation".
type Vector = ([u8; 4], [u8; 4], [u16; 2], [u32; 2]);
const PUBLISHED: [Vector; 5] = [
    ([66, 9, 149, 187], [161, 142, 100, 80], [2794, 1766], [0x323e_8fc2, 0x51cc_c178]),
    ([199, 92, 111, 2], [65, 69, 140, 83], [14230, 4739], [0xd718_262a, 0xc626_b0ea]),
    ([24, 19, 198, 95], [12, 22, 207, 184], [12898, 38024], [0xd2d0_a5de, 0x5c2b_394a]),
    ([38, 27, 205, 30], [209, 142, 163, 6], [48228, 2217], [0x8298_9176, 0xafc7_327f]),
    ([153, 39, 163, 191], [202, 188, 127, 2], [44251, 1303], [0x5d18_09c5, 0x10e8_28a2]),
];

fn udp(mac: [u8; 6], vector: &Vector) -> Vec<u8> {
    let mut frame = frames::udp_frame(mac, vector.2[1], &[7; 40]);
    frame[26..30].copy_from_slice(&Ipv4Addr::from(vector.0).octets());
    frame[30..34].copy_from_slice(&Ipv4Addr::from(vector.1).octets());
    frame[34..36].copy_from_slice(&vector.2[0].to_be_bytes());
    frame
}

/// A completion queue and a work queue of the safe layer with `receives` slots posted.
fn lane(wire: &Wire, receives: u32) -> (CompletionQueue, WorkQueue) {
    let cq = wire.setup.context.create_cq(64).build().unwrap();
    let mut wq = wire.setup.pd.create_wq(cq.handle(), 16).build().unwrap();
    let slab = wire.setup.pd.create_slab(receives.max(1), 2048).unwrap();
    for _ in 0..receives {
        wq.post_receive(slab.take().unwrap()).unwrap();
    }
    (cq, wq)
}

fn all_to(mac: [u8; 6]) -> Ethernet {
    Ethernet { destination: mac.into(), ..Ethernet::default() }
}

/// The next frame of `cq`: its bytes and hash.
fn arrived(context: &Context, cq: &mut CompletionQueue) -> (Vec<u8>, u32) {
    let start = std::time::Instant::now();
    loop {
        match cq.poll() {
            Ok(done) => {
                assert_eq!(done.completion.status(), Status::Success);
                let hash = done.completion.receive_hash().0;
                return (done.slot.unwrap().to_vec(), hash);
            }
            Err(PollError::Empty) => context.poll_idle(),
            Err(error) => panic!("{error}"),
        }
        assert!(start.elapsed() < common::PATIENCE, "nothing arrived");
    }
}

fn spread(traffic: RssTraffic, which: usize) {
    let Some(wire) = Wire::new(|builder| builder) else { return };
    spread_on(wire, traffic, which);
}

fn spread_on(mut wire: Wire, traffic: RssTraffic, which: usize) {
    let (mut zero, mut one) = (lane(&wire, 8), lane(&wire, 8));
    let queues = [one.1.handle(), zero.1.handle(), zero.1.handle(), one.1.handle()];
    let table = wire.setup.context.create_indirection_table(&queues).unwrap();
    let options = RssOptions::new(traffic);
    let mut target = wire.setup.pd.create_rss_target(&table, &options).unwrap();
    let _rule = target.create_flow().ethernet(all_to(wire.mac)).tag(5).build().unwrap();
    for vector in &PUBLISHED {
        let frame = udp(wire.mac, vector);
        wire.send(PLAIN, &frame);
        let hash = vector.3[which];
        let lane = if [true, false, false, true][hash as usize % 4] { &mut one } else { &mut zero };
        assert_eq!(arrived(&wire.setup.context, &mut lane.0), (frame, hash));
    }
    assert!(zero.0.poll().is_err() && one.0.poll().is_err());
}

#[test]
fn published_hashes_of_addresses_choose_the_queue() {
    spread(RssTraffic::Ipv4, 0);
}

#[test]
fn published_hashes_of_addresses_and_ports_choose_the_queue() {
    spread(RssTraffic::Ipv4Udp, 1);
}

#[test]
fn work_queues_work_with_the_write_commands_of_older_kernels() {
    let soft =
        SoftDevice::builder("soft0").without_wire().kernel(Kernel::WRITE_COMMANDS).build().unwrap();
    let context = Device::from_shared_soft(Arc::new(soft)).open().unwrap();
    spread_on(Wire::on(Setup::on(context), |builder| builder), RssTraffic::Ipv4Udp, 1);
}

#[test]
fn a_work_queue_that_cannot_be_destroyed_keeps_its_slots() {
    use uverbs_uapi::objects::wq;
    let soft = Arc::new(SoftDevice::builder("soft0").without_wire().build().unwrap());
    let setup = Setup::on(Device::from_shared_soft(soft.clone()).open().unwrap());
    let mut cq = setup.context.create_cq(64).build().unwrap();
    let mut wq = setup.pd.create_wq(cq.handle(), 16).build().unwrap();
    let slab = setup.pd.create_slab(2, 2048).unwrap();
    wq.post_receive(slab.take().unwrap()).unwrap();
    let moment = Moment::Method(wq::OBJECT, wq::destroy::METHOD, 0);
    soft.inject(Fault { moment, errno: Errno::EIO });
    let refused = wq.destroy().unwrap_err();
    soft.inject(Fault { moment, errno: Errno::EIO });
    drop(refused.object);
    assert_eq!(soft.clear_faults(), 0, "both were asked of the kernel");
    assert!(cq.poll().is_err());
    drop(cq);
    assert_eq!(slab.free(), 1, "the device may still write the slot");
}

#[test]
fn completions_of_raw_work_queues_have_wr_id_and_user_context() {
    let Some(mut wire) = Wire::new(|builder| builder) else { return };
    let mut cq = wire.setup.context.create_raw_cq(64).build().unwrap();
    let builder = wire.setup.pd.create_raw_wq(cq.handle(), 16).max_sge(2).user_context(99);
    let mut wq: raw::WorkQueue = builder.build().unwrap();
    assert!(wq.capacity() >= 16 && wq.max_sge() >= 2);
    let memory = wire.setup.region(4096);
    let sges = [memory.sge(0, 20).unwrap(), memory.sge(2048, 2000).unwrap()];
    // SAFETY: the region outlives the work queue, and is read after the completion only.
    unsafe { wq.post_receive(42, &sges).unwrap() };
    let table = wire.setup.context.create_indirection_table(&[wq.handle()]).unwrap();
    let options = RssOptions::with_fields(RssFields::empty());
    let mut target = wire.setup.pd.create_rss_target(&table, &options).unwrap();
    let _rule = target.create_flow().ethernet(all_to(wire.mac)).build().unwrap();
    let frame = udp(wire.mac, &PUBLISHED[0]);
    wire.send(PLAIN, &frame);
    let done = common::success(&mut cq);
    assert_eq!((done.wr_id, done.byte_len() as usize), (42, frame.len()));
    let (mut head, mut tail) = (vec![0; 20], vec![0; frame.len() - 20]);
    memory.view().read(0, &mut head).unwrap();
    memory.view().read(2048, &mut tail).unwrap();
    assert_eq!([head, tail].concat(), frame);
    assert_eq!(wq.outstanding_receives(), 0);
}

/// A target for UDP over IPv4 whose table has only this queue.
fn target(wire: &Wire, queue: &WorkQueue) -> RssTarget {
    let table = wire.setup.context.create_indirection_table(&[queue.handle()]).unwrap();
    let options = RssOptions::new(RssTraffic::Ipv4Udp);
    wire.setup.pd.create_rss_target(&table, &options).unwrap()
}

#[test]
fn new_rules_move_frames_to_a_new_table_without_a_gap() {
    let Some(mut wire) = Wire::new(|builder| builder) else { return };
    let (mut old, mut new) = (lane(&wire, 4), lane(&wire, 4));
    let context = wire.setup.context.clone();
    let (mut first, mut second) = (target(&wire, &old.1), target(&wire, &new.1));
    let port = Ports { destination: 1766.into(), ..Ports::default() };
    let rule = first.create_flow().ethernet(all_to(wire.mac)).udp(port).priority(2);
    let rule = rule.build().unwrap();
    let frame = udp(wire.mac, &PUBLISHED[0]);
    wire.send(PLAIN, &frame);
    assert_eq!(arrived(&context, &mut old.0).0, frame);
    let moved = second.create_flow().ethernet(all_to(wire.mac)).udp(port).priority(1);
    let _moved = moved.build().unwrap();
    wire.send(PLAIN, &frame);
    assert_eq!(arrived(&context, &mut new.0).0, frame);
    rule.destroy().unwrap();
    first.destroy().unwrap();
    wire.send(PLAIN, &frame);
    assert_eq!(arrived(&context, &mut new.0).0, frame);
    // Dropping the target dropped only its own handle of the table.
    old.1.destroy().unwrap();
}

/// Multicast rules have no priorities, so each of two rules delivers the frame.
#[test]
fn a_multicast_group_moves_to_a_new_table_with_copies_in_between() {
    let Some(mut wire) = Wire::new(|builder| builder) else { return };
    let (mut old, mut new) = (lane(&wire, 4), lane(&wire, 4));
    let context = wire.setup.context.clone();
    let (mut first, mut second) = (target(&wire, &old.1), target(&wire, &new.1));
    let line = UdpMulticast::new([239, 1, 2, 3].into(), 14310).tag(5);
    let mut frame = udp_frame(line.mac(), line.port, &[1; 60]);
    frame[30..34].copy_from_slice(&line.group.octets());
    let rule = first.steer(&line).unwrap();
    wire.send(PLAIN, &frame);
    assert_eq!(arrived(&context, &mut old.0).0, frame);
    let _moved = second.steer(&line).unwrap();
    wire.send(PLAIN, &frame);
    assert_eq!(arrived(&context, &mut old.0).0, frame);
    assert_eq!(arrived(&context, &mut new.0).0, frame);
    rule.destroy().unwrap();
    wire.send(PLAIN, &frame);
    assert_eq!(arrived(&context, &mut new.0).0, frame);
    assert!(old.0.poll().is_err());
    let error = second.steer(&UdpMulticast::new([10, 0, 0, 1].into(), 1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

/// The number of arrivals of each frame, by frame number.
type Seen = Vec<u32>;

/// Counts the frames of the queues by the numbers in their payload.
fn count(queues: &mut [RxQueue], seen: &mut Seen) {
    for queue in queues {
        loop {
            match queue.poll() {
                Ok(frame) => {
                    let number = frame.bytes()[42..46].try_into().unwrap();
                    seen[u32::from_be_bytes(number) as usize] += 1;
                }
                Err(FrameError::Empty) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Another thread sends frames to the group, or to the port's own address, while the entries of two
/// queues in the table change repeatedly. Returns how often each frame arrived.
fn rebalance_under_load(
    rule: impl Traffic + Send + Sync + Copy + 'static,
    group: Option<[u8; 6]>,
) -> Option<Seen> {
    const ROUNDS: u32 = 20;
    const FRAMES: u32 = 60;
    let wire = Wire::new(|builder| builder)?;
    let to = group.unwrap_or(wire.mac);
    let (pd, context) = (wire.setup.pd.clone(), wire.setup.context.clone());
    let mut tx = pd.create_tx_queue(256).build().unwrap();
    let queue = || pd.create_rx_queue(4096).without_events().spread().build().unwrap();
    let mut queues = [queue(), queue()];
    let [one, two] = [0, 1].map(|at| queues[at].work_queue().unwrap().clone());
    let options = RssOptions::new(RssTraffic::Ipv4Udp);
    let mut spread = pd.create_spread(&[&one, &two], &options).unwrap();
    spread.steer(rule).unwrap();
    let (mut seen, begun) = (vec![0; (ROUNDS * FRAMES) as usize], AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..ROUNDS * FRAMES {
                while begun.load(Ordering::Acquire) <= number / FRAMES {
                    std::thread::yield_now();
                }
                let mut frame = udp_frame(to, 14310, &number.to_be_bytes());
                frame[30..34].copy_from_slice(&[239, 1, 2, 3]);
                frame[34..36].copy_from_slice(&(number as u16).to_be_bytes());
                let frame = tx.template::<2>(&frame, PLAIN).unwrap();
                while tx.send(1, &frame).is_err() {
                    tx.reap();
                    tx.context().poll_idle();
                }
            }
        });
        for round in 0..ROUNDS {
            begun.fetch_add(1, Ordering::Release);
            let places = [[&one, &two, &two, &two], [&two, &one, &one, &one]];
            spread.rebalance(&places[round as usize % 2]).unwrap();
            assert_eq!(spread.places().len(), 4);
            count(&mut queues, &mut seen);
        }
    });
    let start = std::time::Instant::now();
    while seen.contains(&0) {
        assert!(start.elapsed() < common::PATIENCE, "frames were lost");
        context.poll_idle();
        count(&mut queues, &mut seen);
    }
    Some(seen)
}

#[test]
fn rebalancing_under_load_delivers_each_frame_once() {
    let rule = Port { protocol: Protocol::Udp, port: 14310, tag: Some(3) };
    let Some(seen) = rebalance_under_load(rule, None) else { return };
    assert!(seen.iter().all(|count| *count == 1), "{seen:?}");
}

#[test]
fn rebalancing_a_multicast_group_under_load_loses_no_frame() {
    let line = UdpMulticast::new([239, 1, 2, 3].into(), 14310).tag(3);
    let Some(seen) = rebalance_under_load(line, Some(line.mac())) else { return };
    // While both rules exist, both targets get the frame.
    assert!(seen.iter().all(|count| (1..=2).contains(count)), "{seen:?}");
}

#[test]
fn a_refused_rebalance_leaves_the_old_places() {
    let Some(mut wire) = Wire::new(|builder| builder) else { return };
    let (pd, context) = (wire.setup.pd.clone(), wire.setup.context.clone());
    let mut queue = pd.create_rx_queue(8).without_events().spread().build().unwrap();
    let place = queue.work_queue().unwrap().clone();
    let options = RssOptions::new(RssTraffic::Ipv4Udp);
    let mut spread = pd.create_spread(&[&place], &options).unwrap();
    spread.steer(Port { protocol: Protocol::Udp, port: 5, tag: None }).unwrap();
    let refused = spread.steer(Port { protocol: Protocol::Udp, port: 0, tag: None });
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
    invalid(spread.rebalance(&[&place, &place, &place]), "power of two");
    wire.send(PLAIN, &udp_frame(wire.mac, 5, &[1; 30]));
    assert_eq!(frame_of(&context, &mut queue).0.len(), 72);
    // The table keeps the queue until `spread` is dropped.
    let refused = queue.destroy().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Busy, "{}", refused.error);
    drop((spread, place));
    refused.object.destroy().unwrap();
}

#[test]
fn a_rebalance_that_leaves_an_old_rule_says_why_the_rule_stays() {
    use uverbs_uapi::objects::flow;
    let soft = Arc::new(SoftDevice::builder("soft0").without_wire().build().unwrap());
    let pd = Device::from_shared_soft(soft.clone()).open().unwrap().alloc_pd().unwrap();
    let queue = pd.create_rx_queue(8).without_events().spread().build().unwrap();
    let place = queue.work_queue().unwrap().clone();
    let options = RssOptions::new(RssTraffic::Ipv4Udp);
    let mut spread = pd.create_spread(&[&place], &options).unwrap();
    spread.steer(Port { protocol: Protocol::Udp, port: 5, tag: None }).unwrap();
    // The second time, its drop tries.
    for call in 0..2 {
        let moment = Moment::Method(flow::OBJECT, flow::destroy::METHOD, call);
        soft.inject(Fault { moment, errno: Errno::EACCES });
    }
    let error = spread.rebalance(&[&place, &place]).unwrap_err();
    assert_eq!((error.verb(), error.errno()), ("destroy_flow", libc::EACCES), "{error}");
    assert_eq!(spread.places().len(), 2, "the new places are in force");
}

#[test]
fn a_work_queue_in_error_flushes_and_starts_over_after_a_reset() {
    let Some(wire) = Wire::new(|builder| builder) else { return };
    let (mut cq, mut wq) = lane(&wire, 3);
    let slab = wire.setup.pd.create_slab(4, 2048).unwrap();
    assert_eq!(wq.state(), WqState::Rdy);
    wq.modify(WqState::Err).unwrap();
    let mut flushed = 0;
    while flushed < 3 {
        match cq.poll() {
            Ok(done) => {
                assert_eq!(done.completion.status(), Status::Flushed);
                assert!(done.slot.is_some());
                flushed += 1;
            }
            Err(_) => wire.setup.context.poll_idle(),
        }
    }
    let error = wq.modify(WqState::Rdy).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadState);
    assert!(error.to_string().contains("RESET"), "{error}");
    wq.modify(WqState::Reset).unwrap();
    let refused = wq.post_receive(slab.take().unwrap()).unwrap_err();
    assert_eq!(refused.reason, PostError::BadState);
    drop(refused);
    wq.modify(WqState::Rdy).unwrap();
    for _ in 0..2 {
        wq.post_receive(slab.take().unwrap()).unwrap();
    }
    assert_eq!((wq.outstanding_receives(), slab.free()), (2, 2));
    wq.modify(WqState::Reset).unwrap();
    assert!(cq.poll().is_err(), "what was posted before the reset completes nothing");
    drop((wq, cq));
    assert_eq!(slab.free(), 4, "a reset gives the slots back");
}

#[test]
fn flags_change_while_a_work_queue_takes_frames() {
    const STRIPS_VLAN: u32 = 1;
    let Some(mut wire) = Wire::new(|builder| builder) else { return };
    if wire.from.inline_header() != 0 {
        return;
    }
    let (mut cq, mut wq) = lane(&wire, 4);
    let mut target = target(&wire, &wq);
    let _rule = target.create_flow().ethernet(all_to(wire.mac)).build().unwrap();
    let frame = udp(wire.mac, &PUBLISHED[0]);
    for (flags, mask, tag) in [(0, 0, 4), (1, STRIPS_VLAN, 0), (0, 0, 0), (0, STRIPS_VLAN, 4)] {
        wq.modify_flags(None, flags, mask).unwrap();
        wire.send(EthernetOffload { vlan: Some(0x2123), ..PLAIN }, &frame);
        assert_eq!(arrived(&wire.setup.context, &mut cq).0.len(), frame.len() + tag);
    }
    assert_eq!(wq.state(), WqState::Rdy);
}

#[test]
fn tables_keep_their_work_queues_and_targets_their_tables() {
    let Some(mut wire) = Wire::new(|builder| builder) else { return };
    let context = wire.setup.context.clone();
    let mut cq = context.create_cq(64).build().unwrap();
    let mut wq = wire.setup.pd.create_wq(cq.handle(), 16).build().unwrap();
    let slab = wire.setup.pd.create_slab(2, 2048).unwrap();
    wq.post_receive(slab.take().unwrap()).unwrap();
    wq.post_receive(slab.take().unwrap()).unwrap();
    let table = context.create_indirection_table(&[wq.handle(), wq.handle()]).unwrap();
    let busy = wq.destroy().unwrap_err();
    assert_eq!(busy.error.kind(), ErrorKind::Busy);
    assert!(busy.error.to_string().contains("indirection table"), "{}", busy.error);
    let wq = busy.object;
    let options = RssOptions::new(RssTraffic::Ipv4Udp);
    let mut target = wire.setup.pd.create_rss_target(&table, &options).unwrap();
    let busy = table.destroy().unwrap_err();
    assert_eq!(busy.error.kind(), ErrorKind::Busy);
    drop(busy);
    let rule = target.create_flow().ethernet(all_to(wire.mac)).build().unwrap();
    // Frames arrive as long as the target exists, although the queue's handle was dropped.
    drop(wq);
    let frame = udp(wire.mac, &PUBLISHED[0]);
    wire.send(PLAIN, &frame);
    assert_eq!(arrived(&context, &mut cq).0, frame);
    let busy = target.destroy().unwrap_err();
    assert_eq!(busy.error.kind(), ErrorKind::Busy);
    assert_eq!(slab.free(), 1, "the other slot is in flight");
    drop(busy.object);
    assert!(!rule.is_live(), "a target takes its rules along");
    assert!(cq.poll().is_err());
    drop(cq);
    assert_eq!(slab.free(), 2, "the last table destroys the queue, which gives its slots back");
}

fn invalid<T: std::fmt::Debug>(made: Result<T, Error>, words: &str) {
    let error = made.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

#[test]
fn impossible_tables_and_targets_are_named_errors() {
    let Some(wire) = Wire::new(|builder| builder) else { return };
    let (context, pd) = (&wire.setup.context, &wire.setup.pd);
    let (_cq, wq) = lane(&wire, 0);
    let queue = wq.handle();
    invalid(context.create_indirection_table(&[]), "at least one place");
    invalid(context.create_indirection_table(&[queue, queue, queue]), "power of two");
    let most = context.attributes().unwrap().kernel.rss_caps.max_rwq_indirection_table_size;
    let many = vec![queue; 2 * most as usize];
    invalid(context.create_indirection_table(&many), "at most");
    let stranger = context.device().open().unwrap();
    invalid(stranger.create_indirection_table(&[queue]), "another context");
    let table = context.create_indirection_table(&[queue, queue]).unwrap();
    let target = |fields| pd.create_rss_target(&table, &RssOptions::with_fields(fields));
    invalid(target(RssFields::SRC_IPV4 | RssFields::DST_IPV6), "one IP version");
    invalid(target(RssFields::SRC_PORT_TCP | RssFields::SRC_PORT_UDP), "one protocol");
    invalid(target(RssFields::empty()), "without fields");
    target(RssFields::DST_IPV4 | RssFields::DST_PORT_TCP).unwrap();
    let foreign = stranger.alloc_pd().unwrap();
    let options = RssOptions::new(RssTraffic::Ipv6Tcp);
    invalid(foreign.create_rss_target(&table, &options), "another context");
    invalid(pd.create_wq(_cq.handle(), 0).build(), "at least one receive");
}

/// The next frame of a queue: its bytes, and the device's hash.
fn frame_of(context: &Context, queue: &mut RxQueue) -> (Vec<u8>, u32) {
    let start = std::time::Instant::now();
    while start.elapsed() < common::PATIENCE {
        match queue.poll() {
            Ok(frame) => return (frame.bytes().to_vec(), frame.hash().0),
            Err(FrameError::Empty) => context.poll_idle(),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("nothing arrived");
}

#[test]
fn frames_are_spread_over_receive_queues() {
    let Some(mut wire) = Wire::new(|builder| builder) else { return };
    let (pd, context) = (wire.setup.pd.clone(), wire.setup.context.clone());
    let queue = || pd.create_rx_queue(8).without_events().spread().build().unwrap();
    let (mut zero, mut one) = (queue(), queue());
    let places = [&one, &zero, &zero, &one].map(|queue| queue.work_queue().unwrap());
    let table = context.create_indirection_table(&places).unwrap();
    let mut target = pd.create_rss_target(&table, &RssOptions::new(RssTraffic::Ipv4Udp)).unwrap();
    let _rule = target.create_flow().ethernet(all_to(wire.mac)).build().unwrap();
    // More frames than the queues have receives: dropping a frame posts its buffer again.
    for round in 0..40 {
        let vector = &PUBLISHED[round % PUBLISHED.len()];
        let frame = udp(wire.mac, vector);
        wire.send(PLAIN, &frame);
        let hash = vector.3[1];
        let is_one = [true, false, false, true][hash as usize % 4];
        let queue = if is_one { &mut one } else { &mut zero };
        assert_eq!(frame_of(&context, queue), (frame, hash), "round {round}");
    }
    let (zero, one) = (zero.counters(), one.counters());
    assert_eq!(zero.frames + one.frames, 40);
    assert!(zero.frames > 0 && one.frames > 0, "{zero:?} {one:?}");
}

/// libmlx5 never sets the checksum flag for frames of a work queue (`handle_responder` and
/// `handle_good_req` of providers/mlx5/cq.c do it only for queue pairs).
#[test]
fn unlike_libmlx5_work_queues_report_good_checksums() {
    let Some(mut wire) = Wire::new(|builder| builder) else { return };
    let (pd, context) = (wire.setup.pd.clone(), wire.setup.context.clone());
    let mut queue = pd.create_rx_queue(8).without_events().spread().build().unwrap();
    let table = context.create_indirection_table(&[queue.work_queue().unwrap()]).unwrap();
    let mut target = pd.create_rss_target(&table, &RssOptions::new(RssTraffic::Ipv4Udp)).unwrap();
    let _rule = target.create_flow().ethernet(all_to(wire.mac)).build().unwrap();
    let sums = EthernetOffload { checksum: EthChecksum::IP_CSUM, ..PLAIN };
    wire.send(sums, &frames::udp_frame(wire.mac, 5, &[1; 30]));
    let start = std::time::Instant::now();
    while queue.backlog() == 0 {
        assert!(start.elapsed() < common::PATIENCE, "nothing arrived");
        context.poll_idle();
    }
    assert!(queue.poll().unwrap().checksums_ok());
}

#[test]
fn rules_of_a_spread_queue_are_made_on_its_rss_target() {
    let Some(wire) = Wire::new(|builder| builder) else { return };
    let builder = wire.setup.pd.create_rx_queue(8).without_events();
    let mut alone = builder.clone().build().unwrap();
    assert!(alone.work_queue().is_none());
    alone.steer(&UdpMulticast::new(Ipv4Addr::new(239, 1, 1, 1), 5000)).unwrap();
    let mut spread = builder.clone().spread().build().unwrap();
    let rule = UdpMulticast::new(Ipv4Addr::new(239, 1, 1, 1), 5000);
    let refused = spread.steer(&rule).unwrap_err().to_string();
    assert!(refused.contains("RssTarget"), "{refused}");
    let refused = spread.lost().unwrap_err().to_string();
    assert!(refused.contains("FlowBuilder::count"), "{refused}");
    let refused = builder.spread().count_matches().build().unwrap_err().to_string();
    assert!(refused.contains("target"), "{refused}");
}

#[test]
fn buffers_of_a_dropped_queue_are_free_when_its_table_is() {
    let Some(wire) = Wire::new(|builder| builder) else { return };
    let slab = wire.setup.pd.create_slab(8, 2048).unwrap();
    let builder = wire.setup.pd.create_rx_queue(8).without_events().buffers(&slab).spread();
    let queue = builder.build().unwrap();
    assert_eq!(slab.free(), 0);
    let place = queue.work_queue().unwrap().clone();
    let table = wire.setup.context.create_indirection_table(&[&place]).unwrap();
    let refused = queue.destroy().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Busy, "{}", refused.error);
    drop((refused.object, place));
    assert_eq!(slab.free(), 0, "the table leads to it");
    drop(table);
    assert_eq!(slab.free(), 8);
}

#[test]
fn a_forged_completion_of_a_work_queue_changes_nothing() {
    let Some(mut wire) = Wire::new(|builder| builder) else { return };
    let mut cq = wire.setup.context.create_raw_cq(64).build().unwrap();
    let mut wq = wire.setup.pd.create_raw_wq(cq.handle(), 16).build().unwrap();
    let memory = wire.setup.region(4096);
    for (wr_id, at) in [(1, 0), (2, 2048)] {
        let place = [memory.sge(at, 2048).unwrap()];
        // SAFETY: the region outlives the work queue.
        unsafe { wq.post_receive(wr_id, &place).unwrap() };
    }
    let table = wire.setup.context.create_indirection_table(&[wq.handle()]).unwrap();
    let options = RssOptions::with_fields(RssFields::empty());
    let mut target = wire.setup.pd.create_rss_target(&table, &options).unwrap();
    let _rule = target.create_flow().ethernet(all_to(wire.mac)).build().unwrap();
    wire.send(PLAIN, &udp(wire.mac, &PUBLISHED[0]));
    assert_eq!(common::success(&mut cq).wr_id, 1);
    let ring = cq.layout().unwrap().ring;
    let (stride, entry) = (ring.stride as usize, ring.stride as usize - 64);
    // A repeated completion, then completions of requests that were never posted. Offset 60 is
    // wqe_counter.
    for (place, counter) in [(1, 0u16), (2, 2), (3, 0x8001)] {
        // SAFETY: the device writes these entries only for later completions, of which there are
        // none; no other thread accesses the ring.
        unsafe {
            let from = ring.start.add(entry);
            let to = ring.start.add(place * stride + entry);
            std::ptr::copy_nonoverlapping(from, to, 64);
            to.add(60).cast::<[u8; 2]>().write(counter.to_be_bytes());
        }
        assert_eq!(cq.poll().map(|_| ()), Err(PollError::NotOutstanding), "counter {counter:#x}");
        assert_eq!(wq.outstanding_receives(), 1);
    }
    assert_eq!(cq.poll().map(|_| ()), Err(PollError::Empty));
}
