//! Striding receive queues: frames of mixed sizes that share buffers, kept frames and lost frames.
//!
//! The tests need an Ethernet port, and CAP_NET_RAW on a kernel's device.

mod common;

#[path = "common/frames.rs"]
mod frames;

use std::time::{Duration, Instant};

use common::PATIENCE;
use frames::{Wire, udp_frame};
use uverbs::ethernet::{
    Clock, FrameError, FreeRunning, StrideBytes, StridedFrame, StridesPerWqe, Striding,
    StridingBuilder, StridingQueue,
};
use uverbs::flow::{Ethernet, Port, Protocol};
use uverbs::qp::{EthernetOffload, PostFlags, RunTimeDestination, RunTimeOperation, SendRequest};
use uverbs::{ErrorKind, ProtectionDomain};

/// 8 strides of 64 bytes.
const SMALL: Striding = Striding::new(StrideBytes::B64, StridesPerWqe::N8);

struct Line<C: Clock = FreeRunning> {
    rx: StridingQueue<C>,
    _rule: uverbs::Flow,
    wire: Wire,
    sent: u8,
}

fn listen(
    depth: u32,
    striding: Striding,
    change: impl FnOnce(StridingBuilder) -> StridingBuilder,
) -> Option<Line> {
    listen_by(|pd| change(pd.create_rx_queue(depth).striding(striding)))
}

fn listen_by<C: Clock>(
    make: impl FnOnce(&ProtectionDomain) -> StridingBuilder<C>,
) -> Option<Line<C>> {
    let wire = Wire::new(|builder| builder)?;
    let mut rx = match make(&wire.setup.pd).build() {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            eprintln!("skipped: {error}");
            return None;
        }
        made => made.unwrap(),
    };
    let port = Port { protocol: Protocol::Udp, port: 5, tag: Some(9) };
    let rule = rx.steer(&port);
    Some(Line { rx, _rule: rule.unwrap(), wire, sent: 0 })
}

impl<C: Clock> Line<C> {
    /// Sends a frame of `length` bytes, whose payload repeats one number.
    fn send(&mut self, length: usize) -> Vec<u8> {
        self.sent += 1;
        let frame = udp_frame(self.wire.mac, 5, &vec![self.sent; length - 42]);
        self.send_frame(&frame);
        frame
    }

    /// Sends a frame and waits for its completion.
    fn send_frame(&mut self, frame: &[u8]) {
        self.send_frames(&[frame]);
    }

    /// Sends up to 16 frames with one doorbell, and waits for their completion.
    fn send_frames(&mut self, frames: &[&[u8]]) {
        let Wire { memory, from, setup, .. } = &mut self.wire;
        let sges = frames.iter().enumerate().map(|(i, frame)| {
            memory.view().write(2048 * i, frame).unwrap();
            [memory.sge(2048 * i, frame.len()).unwrap()]
        });
        let sges: Vec<_> = sges.collect();
        let requests = sges.iter().map(|data| SendRequest {
            wr_id: 1,
            operation: RunTimeOperation::Packet(EthernetOffload::default()),
            destination: RunTimeDestination::Connected,
            data,
            inline: false,
            flags: PostFlags::SIGNALED,
        });
        // SAFETY: the region outlives the requests, and is written again only afterwards.
        unsafe { from.post_list(requests).unwrap() };
        for _ in frames {
            common::success(&mut setup.cq);
        }
    }

    fn next(&mut self) -> StridedFrame<C> {
        let start = Instant::now();
        loop {
            match self.rx.poll() {
                Ok(frame) => return frame,
                Err(FrameError::Empty) => assert!(start.elapsed() < PATIENCE, "no frame came"),
                Err(error) => panic!("{error}"),
            }
            std::thread::yield_now();
        }
    }

    /// Sends a frame to another queue and waits for it: then all earlier frames have been handled.
    fn catch_up(&mut self) {
        let address = self.wire.mac;
        self.wire.receive();
        let to = Ethernet { destination: address.into(), ..Ethernet::default() };
        let rule = self.wire.to.create_flow().ethernet(to).build().unwrap();
        self.send_frame(&udp_frame(address, 1, &[0; 40]));
        self.wire.arrived();
        rule.destroy().unwrap();
    }
}

#[test]
fn frames_of_mixed_sizes_share_buffers() {
    let Some(mut line) = listen(4, SMALL, |queue| queue) else { return };
    let (mut bytes, mut random) = (0, 77u32);
    for _ in 0..200 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let length = 60 + (random >> 16) as usize % 450;
        let sent = line.send(length);
        let frame = line.next();
        assert_eq!(frame.bytes()[14 + 20 + 8..], sent[42..], "{length}");
        assert_eq!((frame.bytes().len(), frame.offset() % 64, frame.flow_tag()), (length, 0, 9));
        assert!(frame.timestamp().raw() != 0);
        bytes += length as u64;
    }
    let counters = line.rx.counters();
    assert_eq!((counters.frames, counters.bytes), (200, bytes));
    assert_eq!((counters.refused, counters.too_long, counters.exhausted), (0, 0, 0));
    assert!(counters.fillers > 0);
}

#[test]
fn a_buffer_with_kept_frames_is_not_posted_again() {
    let Some(mut line) = listen(2, SMALL, |queue| queue.spares(0)) else { return };
    let sent = line.send(200);
    let kept = line.next();
    let other = std::thread::spawn(move || kept).join().unwrap();
    for _ in 0..30 {
        line.send(512);
        drop(line.next());
        assert_eq!(other.bytes()[42..], sent[42..]);
        // The device's only remaining buffer is posted again.
        assert_eq!(line.rx.poll().map(drop), Err(FrameError::Empty));
    }
    assert_eq!(line.rx.counters().posted, 1);
    drop(other);
    assert_eq!(line.rx.poll().map(drop), Err(FrameError::Empty));
    assert_eq!((line.rx.counters().posted, line.rx.buffers()), (2, 2));
}

#[test]
fn a_spare_buffer_replaces_one_with_kept_frames() {
    let Some(mut line) = listen(2, SMALL, |queue| queue.spares(2)) else { return };
    let mut kept = Vec::new();
    for _ in 0..2 {
        line.send(512);
        kept.push(line.next());
        assert_eq!(line.rx.counters().posted, 2);
    }
    for frame in &kept {
        assert_eq!(frame.bytes().len(), 512);
    }
    assert_ne!(kept[0].bytes().as_ptr(), kept[1].bytes().as_ptr());
}

#[test]
fn frames_without_a_buffer_are_lost_and_counted_as_exhaustion() {
    let Some(mut line) = listen(2, SMALL, |queue| queue.spares(0)) else { return };
    (0..4).for_each(|_| drop(line.send(512)));
    line.catch_up();
    assert_eq!(line.next().bytes()[42], 1);
    assert_eq!(line.next().bytes()[42], 2);
    assert_eq!(line.rx.poll().map(drop), Err(FrameError::Empty));
    assert_ne!(line.rx.counters().exhausted, 0);
    line.send(100);
    assert_eq!(line.next().bytes().len(), 100);
}

#[test]
fn a_frame_longer_than_a_buffer_is_skipped() {
    let Some(mut line) = listen(2, SMALL, |queue| queue) else { return };
    line.send(100);
    line.send(513);
    line.send(101);
    assert_eq!([line.next(), line.next()].map(|frame| frame.bytes().len()), [100, 101]);
    assert_eq!(line.rx.counters().too_long, 1);
    assert_eq!(SMALL.two_byte_shift().longest_frame(), 510);
}

#[test]
fn the_two_byte_shift_aligns_the_ip_header() {
    let shifted = SMALL.two_byte_shift();
    let Some(mut line) = listen(2, shifted, |queue| queue) else { return };
    for length in [62, 63, 510] {
        let sent = line.send(length);
        let frame = line.next();
        assert_eq!((frame.offset() % 64, frame.bytes().len()), (2, length));
        assert_eq!((frame.bytes().as_ptr().addr() + 14) % 4, 0);
        assert_eq!(frame.bytes()[42..], sent[42..]);
    }
}

#[test]
fn waiting_finds_a_frame_and_frames_outlive_their_queue() {
    let Some(mut line) = listen(2, SMALL, |queue| queue) else { return };
    assert!(!line.rx.wait(3, Some(Duration::ZERO)).unwrap());
    let sent = line.send(300);
    assert!(line.rx.wait(0, Some(PATIENCE)).unwrap());
    let frame = line.rx.poll().unwrap();
    let Line { rx, _rule, wire, .. } = line;
    drop((_rule, rx));
    assert_eq!(frame.bytes()[42..], sent[42..]);
    drop((frame, wire));
}

#[test]
fn strides_that_the_device_lacks_are_named_errors() {
    let Some(line) = listen(2, SMALL, |queue| queue) else { return };
    let pd = &line.wire.setup.pd;
    // The kernel reports up to 2^16 strides for every device.
    if common::is_soft() {
        let many = Striding::new(StrideBytes::B64, StridesPerWqe::N65536);
        let error = pd.create_rx_queue(2).striding(many).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("strides in a work request"), "{error}");
    }
    let slab = pd.create_slab(8, 500).unwrap();
    let error = pd.create_rx_queue(2).buffers(&slab).striding(SMALL).build().unwrap_err();
    assert!(error.to_string().contains("the slab's slots have 500 bytes"), "{error}");
    let large = Striding::new(StrideBytes::B64, StridesPerWqe::N16384);
    let error = pd.create_rx_queue(32768).striding(large).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

#[test]
fn a_full_queue_counts_the_frames_it_lost() {
    let made =
        |pd: &ProtectionDomain| pd.create_rx_queue(2).count_matches().striding(SMALL).spares(0);
    let Some(mut line) = listen_by(made) else { return };
    // Each frame fills all strides of a buffer.
    (0..5).for_each(|_| drop(line.send(500)));
    line.catch_up();
    let kept = [line.next(), line.next()];
    assert_eq!(line.rx.poll().unwrap_err(), FrameError::Empty);
    assert_eq!((line.rx.matched().unwrap(), line.rx.lost().unwrap()), (5, 3));
    drop(kept);
    let Line { rx, _rule, .. } = line;
    rx.destroy().unwrap();
}

/// The queue's rule is destroyed with it, and a kept frame outlives it.
#[test]
fn a_queue_is_destroyed_with_its_target() {
    let Some(mut line) = listen(2, SMALL, |queue| queue) else { return };
    let sent = line.send(200);
    let frame = line.next();
    let Line { rx, _rule, wire, .. } = line;
    let number = rx.number();
    rx.destroy().unwrap();
    assert_eq!(frame.bytes()[42..], sent[42..]);
    let mut again = wire.setup.pd.create_rx_queue(2).striding(SMALL).build().unwrap();
    assert_ne!(number, 0);
    assert!(again.poll().is_err());
    let spread = wire.setup.pd.create_rx_queue(2).spread().striding(SMALL).build().unwrap();
    let table =
        wire.setup.context.create_indirection_table(&[spread.work_queue().unwrap()]).unwrap();
    let refused = spread.destroy().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Busy);
    table.destroy().unwrap();
    refused.object.destroy().unwrap();
}

/// The device may compress CQEs of frames that arrive close together, CQEs of fillers among them.
#[test]
fn compressed_completions_are_the_same_frames() {
    let made = |pd: &ProtectionDomain| pd.create_rx_queue(64).compressed().striding(SMALL);
    let Some(mut line) = listen_by(made) else { return };
    let mut random = 5u32;
    for _ in 0..60 {
        let mut burst = Vec::new();
        for _ in 0..12 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            burst.push(udp_frame(
                line.wire.mac,
                5,
                &vec![(random >> 8) as u8; 18 + (random >> 16) as usize % 400],
            ));
        }
        line.send_frames(&burst.iter().map(Vec::as_slice).collect::<Vec<_>>());
        for sent in &burst {
            let frame = line.next();
            assert_eq!(frame.bytes()[42..], sent[42..]);
            assert_eq!((frame.bytes().len(), frame.flow_tag()), (sent.len(), 9));
        }
    }
    let counters = line.rx.counters();
    assert_eq!((counters.frames, counters.refused, counters.exhausted), (720, 0, 0));
    assert!(counters.fillers > 0);
}
