//! Send queues of frames: templates and their fields, staged frames, completions.
//!
//! The tests need an Ethernet port, and CAP_NET_RAW on a kernel's device.

mod common;

#[path = "common/frames.rs"]
mod frames;

use std::time::Instant;

use common::{PATIENCE, Setup};
use frames::{Wire, udp_frame};
use uverbs::cq::Status;
use uverbs::ethernet::{
    Clock, Field, FrameError, RxQueue, Sum, Tailed, Template, TxBuilder, TxQueue, blocks,
    blocks_with_tail, fill_checksums,
};
use uverbs::flow::{FiveTuple, Protocol};
use uverbs::qp::{EthChecksum, EthernetOffload, PostError};
use uverbs::{ErrorKind, Flow, PollError};

const SUMS: EthernetOffload =
    EthernetOffload { checksum: EthChecksum::IP_CSUM, vlan: None, metadata: 0 };
const NUMBER: Field<u32, 42> = Field::new();
const SIDE: Field<[u8; 3], 95> = Field::new();
/// Bytes of an order's frame.
const LENGTH: usize = 98;

/// A queue that sends orders, and one that receives them.
struct Desk<C: Clock> {
    tx: TxQueue<C>,
    rx: RxQueue,
    _rule: Flow,
    frame: Vec<u8>,
    _wire: Wire,
}

fn desk<C: Clock>(
    setup: Setup,
    depth: u32,
    change: impl FnOnce(TxBuilder) -> TxBuilder<C>,
) -> Desk<C> {
    let wire = Wire::on(setup, |builder| builder);
    let mut rx = wire.setup.pd.create_rx_queue(256).build().unwrap();
    let orders = FiveTuple {
        protocol: Protocol::Udp,
        source: "10.0.0.1:1234".parse().unwrap(),
        destination: "10.0.0.2:4711".parse().unwrap(),
        tag: None,
    };
    let rule = rx.steer(&orders).unwrap();
    let tx = change(wire.setup.pd.create_tx_queue(depth)).build().unwrap();
    let frame = udp_frame(wire.mac, 4711, &[7; LENGTH - 42]);
    Desk { tx, rx, _rule: rule, frame, _wire: wire }
}

impl<C: Clock> Desk<C> {
    fn order(&mut self) -> Template<{ blocks(LENGTH) }> {
        self.tx.template(&self.frame, SUMS).unwrap()
    }

    /// The bytes of the next order that arrives, and whether its checksums are good.
    fn next(&mut self) -> (Vec<u8>, bool) {
        assert!(self.rx.wait(0, Some(PATIENCE)).unwrap(), "no order came");
        let frame = self.rx.poll().unwrap();
        (frame.bytes().to_vec(), frame.checksums_ok())
    }

    fn pd(&self) -> &uverbs::ProtectionDomain {
        &self._wire.setup.pd
    }

    /// Waits for the completion of the order with this id.
    fn complete_one(&mut self, id: u64) {
        let start = Instant::now();
        loop {
            match self.tx.poll() {
                Ok(sent) => {
                    assert_eq!(sent.id, id);
                    assert_ne!(sent.timestamp.raw(), 0);
                    return;
                }
                Err(PollError::Empty) => assert!(start.elapsed() < PATIENCE, "no completion came"),
                Err(error) => panic!("{error}"),
            }
            std::thread::yield_now();
        }
    }

    /// Polls until `completions` more completions have arrived.
    fn complete(&mut self, completions: u64) {
        let (start, before) = (Instant::now(), self.tx.counters().completed);
        while self.tx.counters().completed < before + completions {
            assert!(start.elapsed() < PATIENCE, "no completion came");
            self.tx.reap();
            std::thread::yield_now();
        }
    }
}

fn setup() -> Option<Setup> {
    frames::setup()
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[42..46].try_into().unwrap())
}

fn are_sent_with_their_fields(setup: Setup) {
    let mut desk = desk(setup, 16, |tx| tx);
    let mut order = desk.order();
    assert_eq!(order.length(), LENGTH);
    for i in 0..40 {
        assert!(order.set(NUMBER, i) && order.set(SIDE, *b"buy"));
        while desk.tx.send(u64::from(i), &order) == Err(PostError::Full) {
            desk.tx.reap();
        }
        let (bytes, good) = desk.next();
        assert!(good, "the device fills in checksums");
        assert_eq!((number(&bytes), &bytes[95..98], bytes.len()), (i, &b"buy"[..], LENGTH));
        assert_eq!((&bytes[..24], &bytes[46..95]), (&desk.frame[..24], &desk.frame[46..95]));
    }
    assert_eq!(desk.tx.counters().sent, 40);
}

#[test]
fn templates_are_sent_with_their_fields_and_the_devices_checksums() {
    if let Some(setup) = setup() {
        are_sent_with_their_fields(setup);
    }
}

#[test]
fn the_same_templates_work_on_a_device_that_requires_inline_headers() {
    if !common::is_soft() || setup().is_none() {
        return;
    }
    let device = common::soft_device(uverbs::soft::DeviceBuilder::inline_headers);
    are_sent_with_their_fields(Setup::on(device.open().unwrap()));
}

#[test]
fn staged_frames_are_sent_only_when_fired() {
    let Some(setup) = setup() else { return };
    let mut desk = desk(setup, 16, |tx| tx.completion_every(1));
    let mut order = desk.order();
    for round in 0..30 {
        // Each way to abort a staged frame.
        assert!(order.set(NUMBER, 1_000_000));
        desk.tx.warm(&order).unwrap();
        desk.tx.stage(9, &order).unwrap().discard();
        let mut two = desk.tx.stage(9, &order).unwrap();
        two.add(9, &order).unwrap();
        drop(two);
        assert!(order.set(NUMBER, 2 * round));
        let mut staged = desk.tx.stage(5, &order).unwrap();
        assert!(order.set(NUMBER, 2 * round + 1));
        staged.add(6, &order).unwrap();
        staged.fire();
        assert_eq!(
            [desk.next(), desk.next()].map(|order| number(&order.0)),
            [2 * round, 2 * round + 1]
        );
        desk.complete(2);
    }
    assert_eq!((desk.tx.counters().sent, desk.tx.counters().completed), (60, 60));
    assert_eq!(desk.rx.poll().map(drop), Err(FrameError::Empty));
}

#[test]
fn every_nth_frame_is_signaled_and_a_full_queue_refuses() {
    let Some(setup) = setup() else { return };
    let mut desk = desk(setup, 16, |tx| tx.completion_every(4));
    let order = desk.order();
    let start = Instant::now();
    // The queue takes as many frames as were granted, which may be more than requested.
    let granted = u64::from(desk.tx.reap());
    assert!(granted >= 16);
    let (mut sent, mut done) = (0, 0);
    for _ in 0..10 {
        while desk.tx.send(sent, &order).is_ok() {
            sent += 1;
        }
        assert_eq!((sent - done, desk.tx.send(0, &order)), (granted, Err(PostError::Full)));
        while done + 4 <= sent {
            match desk.tx.poll() {
                Ok(completion) => {
                    done += 4;
                    assert_eq!(completion.id, done - 1);
                }
                Err(PollError::Empty) => assert!(start.elapsed() < PATIENCE),
                Err(error) => panic!("{error}"),
            }
            std::thread::yield_now();
        }
    }
    assert_eq!(desk.tx.poll().map(drop), Err(PollError::Empty));
    let counters = desk.tx.counters();
    assert_eq!((counters.sent, counters.completed, counters.failed), (sent, sent / 4, 0));
}

#[test]
fn templates_refuse_frames_and_fields_that_do_not_fit() {
    const TOO_FAR: Field<u32, 96> = Field::new();
    let Some(setup) = setup() else { return };
    let mut desk = desk(setup, 16, |tx| tx.frame_bytes(128));
    let mut order = desk.order();
    assert!(!order.set(TOO_FAR, 1), "beyond the frame's end");
    let refused = |tx: &mut TxQueue, frame: &[u8]| tx.template::<2>(frame, SUMS).map(drop);
    assert_eq!(refused(&mut desk.tx, &[0; 99]), Err(PostError::NotATemplate));
    let endless = desk.tx.template::<16>(&[0; 1000], SUMS).map(drop);
    assert_eq!(endless, Err(PostError::InlineTooLong));
    assert_eq!(refused(&mut desk.tx, &[0; 13]), Err(PostError::BadHeader));
    let tagged = EthernetOffload { vlan: Some(1), ..SUMS };
    let tagged = desk.tx.template::<2>(&desk.frame, tagged).map(drop);
    assert_eq!(tagged, Err(PostError::VlanWithHeader));
    for every in [0, 9] {
        let builder = desk._wire.setup.pd.create_tx_queue(16).completion_every(every);
        assert_eq!(builder.build().unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    desk.tx.destroy().unwrap();
}

#[test]
fn a_sent_frame_has_the_time_of_its_queues_clock() {
    if !common::is_soft() || setup().is_none() {
        return;
    }
    let device = common::soft_device(uverbs::soft::DeviceBuilder::real_time_clock);
    let setup = Setup::on(device.open().unwrap());
    let mut desk = desk(setup, 16, |tx| tx.completion_every(1).real_time());
    let order = desk.order();
    desk.tx.send(77, &order).unwrap();
    let start = Instant::now();
    let done = loop {
        match desk.tx.poll() {
            Ok(done) => break done,
            Err(_) => assert!(start.elapsed() < PATIENCE),
        }
        std::thread::yield_now();
    };
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let apart = wall.as_nanos().abs_diff(done.timestamp.nanoseconds().into());
    assert!(done.id == 77 && apart < PATIENCE.as_nanos());
}

const NONE: EthernetOffload =
    EthernetOffload { checksum: EthChecksum::NONE, vlan: None, metadata: 0 };
const IP_LENGTH: Field<u16, 16> = Field::new();
const IP_ID: Field<u16, 18> = Field::new();
const IP_SUM: Sum<24> = Sum::new();
const UDP_LENGTH: Field<u16, 38> = Field::new();
const UDP_SUM: Sum<40> = Sum::udp();

#[test]
fn checksums_updated_in_software_stay_right() {
    let Some(setup) = setup() else { return };
    let mut desk = desk(setup, 16, |tx| tx);
    assert!(fill_checksums(&mut desk.frame));
    let mut order: Template<{ blocks(LENGTH) }> = desk.tx.template(&desk.frame, NONE).unwrap();
    let mut random = 88u64;
    for round in 0..200u32 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        let value = [0, u32::MAX, (random >> 32) as u32][round as usize % 3];
        // Odd and even offsets, and a field that ends with the frame.
        assert!(order.patch(NUMBER, value, UDP_SUM));
        assert!(order.patch(SIDE, random.to_be_bytes()[..3].try_into().unwrap(), UDP_SUM));
        assert!(order.patch(IP_ID, random as u16, IP_SUM));
        assert_eq!(order.get(NUMBER), Some(value));
        desk.tx.send(1, &order).unwrap();
        let (bytes, good) = desk.next();
        assert!(good, "round {round}: {bytes:02x?}");
        let mut again = bytes.clone();
        assert!(fill_checksums(&mut again));
        assert_eq!(again, bytes, "round {round}");
        if round % 8 == 7 {
            desk.tx.reap();
        }
    }
    // A field outside the frame changes nothing, not even the checksum.
    let before = order.get(Field::<u16, 40>::new());
    assert!(!order.patch(Field::<u64, 95>::new(), 1, UDP_SUM));
    assert!(!order.patch(NUMBER, 1, Sum::<98>::new()));
    assert_eq!(order.get(Field::<u16, 40>::new()), before);
    // A datagram without a checksum still has none.
    assert!(order.set(Field::<u16, 40>::new(), 0) && order.patch(NUMBER, 99, UDP_SUM));
    assert_eq!(order.get(Field::<u16, 40>::new()), Some(0));
}

#[test]
fn a_template_becomes_shorter_and_longer_again() {
    for inline_headers in [false, true] {
        if inline_headers && !common::is_soft() {
            return;
        }
        let setup = match inline_headers {
            false => setup(),
            true => {
                let device = common::soft_device(uverbs::soft::DeviceBuilder::inline_headers);
                Some(Setup::on(device.open().unwrap()))
            }
        };
        let Some(setup) = setup else { return };
        let mut desk = desk(setup, 16, |tx| tx);
        let mut order = desk.order();
        for length in (61..=LENGTH).chain((61..LENGTH).rev()) {
            assert!(order.set_length(length));
            assert!(order.set(IP_LENGTH, length as u16 - 14));
            assert!(order.set(UDP_LENGTH, length as u16 - 34));
            assert_eq!(order.set(SIDE, [length as u8; 3]), length == LENGTH);
            while desk.tx.send(1, &order) == Err(PostError::Full) {
                desk.tx.reap();
            }
            let (bytes, good) = desk.next();
            assert!(good && bytes.len() == length, "{length}: {bytes:02x?}");
            assert!(bytes[42..length.min(95)].iter().all(|byte| *byte == 7));
        }
        assert_eq!((order.length(), order.longest()), (61, LENGTH));
        assert!(!order.set_length(LENGTH + 1) && !order.set_length(17));
        assert_eq!(order.length(), 61);
    }
}

#[test]
fn the_end_of_a_long_frame_is_gathered_from_memory() {
    let Some(setup) = setup() else { return };
    let mut desk = desk(setup, 16, |tx| tx);
    let pd = desk.pd().clone();
    let slab = pd.create_slab(4, 1500).unwrap();
    let mut tail = slab.take().unwrap();
    tail.write(&[9; 1400]).unwrap();
    let mut start = desk.frame[..50].to_vec();
    start[16..18].copy_from_slice(&(50u16 + 1400 - 14).to_be_bytes());
    start[38..40].copy_from_slice(&(50u16 + 1400 - 34).to_be_bytes());
    let mut order: Tailed<{ blocks_with_tail(50) }> =
        desk.tx.template_with_tail(&start, tail, SUMS).unwrap();
    assert_eq!((order.length(), slab.free()), (1450, 3));
    for number in 0..40 {
        assert!(order.set(NUMBER, number) && !order.set(SIDE, [0; 3]));
        while desk.tx.send_tailed(1, &order) == Err(PostError::Full) {
            desk.tx.reap();
        }
        let (bytes, good) = desk.next();
        assert!(good && bytes.len() == 1450);
        assert_eq!((&bytes[42..46], &bytes[50..]), (&number.to_be_bytes()[..], &[9; 1400][..]));
    }
    // Another queue does not have this memory, and memory of another PD is refused.
    let mut other = pd.create_tx_queue(16).build().unwrap();
    assert_eq!(other.send_tailed(1, &order), Err(PostError::ForeignMemory));
    let foreign = pd.context().alloc_pd().unwrap().create_slab(1, 64).unwrap();
    let mut tail = foreign.take().unwrap();
    tail.write(&[1]).unwrap();
    let refused = other.template_with_tail::<2>(&start, tail, SUMS).unwrap_err();
    assert_eq!(refused.reason, PostError::ForeignMemory);
    let empty = other.template_with_tail::<2>(&start, slab.take().unwrap(), SUMS).unwrap_err();
    assert_eq!(empty.reason, PostError::NotATemplate);
    drop(empty);
    assert_eq!(slab.free(), 3);
    drop(desk.tx);
    assert_eq!(slab.free(), 4);
}

/// Frames of another queue's templates are larger than this queue's entries.
#[test]
fn a_template_too_long_for_the_queue_is_refused_and_shorter_ones_do_not_block_it() {
    let Some(setup) = setup() else { return };
    let pd = setup.pd.clone();
    let mut roomy = pd.create_tx_queue(16).frame_bytes(900).build().unwrap();
    let long = roomy.template::<{ blocks(900) }>(&[2; 900], SUMS).unwrap();
    let usual = roomy.template::<{ blocks(226) }>(&[2; 226], SUMS).unwrap();
    // The type has space for a long frame, but this frame is short.
    let short = roomy.template::<{ blocks(900) }>(&[2; 60], SUMS).unwrap();
    for (depth, bytes) in [(1, 0), (2, 18), (8, 18), (8, 60), (100, 60), (8, 300)] {
        let mut tx = pd.create_tx_queue(depth).frame_bytes(bytes).build().unwrap();
        assert_eq!(tx.send(1, &long), Err(PostError::InlineTooLong), "{depth} of {bytes}");
        assert_eq!(tx.stage(1, &long).map(drop), Err(PostError::InlineTooLong));
        let start = Instant::now();
        for sent in 0..300 {
            let send = |tx: &mut TxQueue| match sent % 2 {
                0 => tx.send(sent, &usual),
                _ => tx.send(sent, &short),
            };
            while let Err(error) = send(&mut tx) {
                assert_eq!(error, PostError::Full);
                assert!(start.elapsed() < PATIENCE, "{depth} of {bytes} bytes stays full");
                tx.reap();
                setup.context.poll_idle();
            }
        }
    }
    assert_eq!(roomy.send(1, &long), Ok(()));
}

#[test]
fn a_failed_queue_refuses_frames_with_its_error() {
    let Some(setup) = setup() else { return };
    let mut desk = desk(setup, 16, |tx| tx);
    let slab = desk.pd().create_slab(1, 1 << 16).unwrap();
    let mut tail = slab.take().unwrap();
    // No port sends a frame of this length.
    tail.set_len(1 << 16);
    let order = desk.order();
    let start = desk.frame[..42].to_vec();
    let long: Tailed<{ blocks_with_tail(42) }> =
        desk.tx.template_with_tail(&start, tail, SUMS).unwrap();
    desk.tx.send(1, &order).unwrap();
    desk.tx.send_tailed(2, &long).unwrap();
    let start = Instant::now();
    let failed = loop {
        match desk.tx.poll() {
            Ok(sent) => break sent,
            Err(error) => assert_eq!(error, PollError::Empty),
        }
        assert!(start.elapsed() < PATIENCE, "no completion came");
        std::thread::yield_now();
    };
    assert_eq!((failed.id, failed.status == Status::Success), (2, false));
    for _ in 0..3 {
        assert_eq!(desk.tx.send(3, &order), Err(PostError::QueueFailed));
        assert_eq!(desk.tx.send_timed(3, &order), Err(PostError::QueueFailed));
        assert_eq!(desk.tx.send_tailed(3, &long), Err(PostError::QueueFailed));
        assert_eq!(desk.tx.stage(3, &order).map(drop), Err(PostError::QueueFailed));
        assert_eq!(desk.tx.warm(&order), Err(PostError::QueueFailed));
    }
    assert_eq!((desk.tx.counters().sent, desk.tx.counters().failed), (2, 1));
    desk.tx.destroy().unwrap();
}

#[test]
fn a_signaled_order_has_its_own_timestamp() {
    let Some(setup) = setup() else { return };
    let mut desk = desk(setup, 64, |tx| tx.completion_every(32));
    let order = desk.order();
    for id in 0..10 {
        desk.tx.send(id, &order).unwrap();
    }
    desk.tx.send_timed(77, &order).unwrap();
    desk.complete_one(77);
    // After a signaled order the count of unsignaled sends starts again.
    for id in 100..131 {
        desk.tx.send(id, &order).unwrap();
    }
    assert_eq!(desk.tx.poll().map(|sent| sent.id), Err(PollError::Empty));
    desk.tx.send(131, &order).unwrap();
    desk.complete_one(131);
}

#[test]
fn one_thread_has_several_send_queues() {
    let Some(setup) = setup() else { return };
    let mut desk = desk(setup, 16, |tx| tx);
    let mut order = desk.order();
    let more = (0..3).map(|_| desk.pd().create_tx_queue(16).build().unwrap());
    let mut queues: Vec<_> = more.collect();
    // A template belongs to no queue.
    for number in 0..60 {
        assert!(order.set(NUMBER, number));
        queues[number as usize % 3].send(number.into(), &order).unwrap();
        let (bytes, _) = desk.next();
        assert_eq!(bytes[42..46], number.to_be_bytes());
        queues.iter_mut().for_each(|queue| {
            queue.reap();
        });
    }
    assert!(queues.iter().all(|queue| queue.counters().sent == 20));
}

#[test]
fn a_send_queue_has_its_own_rate_and_burst() {
    let Some(setup) = setup() else { return };
    if !common::is_soft() {
        return;
    }
    let mut desk = desk(setup, 16, |tx| tx);
    let limit = uverbs::qp::RateLimit::kbits_per_second(1_000_000);
    desk.tx.modify_rate_limit(limit).unwrap();
    let order = desk.order();
    desk.tx.send(1, &order).unwrap();
    assert!(desk.next().1);
    // The software device limits the rate, but not bursts.
    let refused = |tx: &mut TxQueue, limit| {
        let error = tx.modify_rate_limit(limit).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        error.to_string()
    };
    let burst = uverbs::qp::RateLimit { max_burst: 3000, typical_packet: 1000, ..limit };
    assert!(refused(&mut desk.tx, burst).contains("bounds no bursts"));
    let device = common::soft_device(uverbs::soft::DeviceBuilder::without_packet_pacing);
    let pd = device.open().unwrap().alloc_pd().unwrap();
    refused(&mut pd.create_tx_queue(16).build().unwrap(), limit);
}
