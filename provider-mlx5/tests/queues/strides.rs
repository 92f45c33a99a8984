//! Striding queues: strides of mixed sizes, fillers, laps, and CQEs that name other strides.

use uverbs_mlx5::completion_queue::{
    FrameError, PollError, PostedRing, Status, StrideFrame, StrideQueue, StrideShape,
};
use uverbs_mlx5::format::{
    CqeOpcode, DataSegment, MiniCqe, MiniCqeFormat, StrideByteCount, Syndrome,
};
use uverbs_mlx5::queue_error::QueueError;
use uverbs_mlx5::request::Sge;
use zerocopy::IntoBytes;

use crate::device::{Cq, Cqe, Memory, NEAR_WRAPS, Random, Rq, recv_queue_after};

const DEPTH: u32 = 4;
/// 8 strides of 64 bytes.
const SHAPE: StrideShape = StrideShape { log_bytes: 6, log_strides: 3, two_byte_shift: false };
const REFUSED: Result<StrideFrame, FrameError> = Err(FrameError::Queue(PollError::NotOutstanding));

/// A striding queue, its CQ, and the one buffer of all its receives.
struct Striding {
    strides: StrideQueue,
    cq: Cq,
    rq: Rq,
    buffer: Memory,
}

fn address(buffer: &Memory) -> u64 {
    buffer.ptr().as_ptr().expose_provenance() as u64
}

/// A CQ, a receive queue with all receives posted, and their buffer.
fn queues(entries: u32) -> (Cq, Rq, Memory) {
    queues_on(Cq::new(entries, 64))
}

fn queues_on(cq: Cq) -> (Cq, Rq, Memory) {
    let mut rq = recv_queue_after(&cq, DEPTH, 32, false, 1);
    rq.handle.set_short_receives_fail_alone();
    let buffer = Memory::new(512);
    for _ in 0..DEPTH {
        // SAFETY: leaked memory, to which nothing is written.
        unsafe { rq.queue.build(0, &[Sge::new(address(&buffer), 512, 7)]) }.expect("space");
    }
    rq.queue.publish();
    (cq, rq, buffer)
}

fn ring(rq: &mut Rq) -> PostedRing {
    // SAFETY: both queues are used through it alone; the buffer is leaked.
    unsafe { PostedRing::new(&mut rq.queue) }.expect("all are posted")
}

impl Striding {
    fn new() -> Self {
        Self::of(SHAPE)
    }

    fn of(shape: StrideShape) -> Self {
        Self::on(queues(64), shape)
    }

    /// One whose completions may be compressed.
    fn compressed() -> Self {
        Self::on(queues_on(Cq::with(64, 64, MiniCqeFormat::CHECKSUM_STRIDE_INDEX)), SHAPE)
    }

    fn on((mut cq, mut rq, buffer): (Cq, Rq, Memory), shape: StrideShape) -> Self {
        let strides = StrideQueue::new(&mut cq.queue, ring(&mut rq), shape);
        Self { strides: strides.expect("they fit"), cq, rq, buffer }
    }

    /// A CQE about `strides` strides of WQE `wqe` from `stride` on.
    fn cqe(&self, wqe: u32, stride: u32, strides: u16, bytes: u16, filler: bool) -> Cqe {
        let count = StrideByteCount::new(strides, bytes, filler);
        Cqe::recv(&self.rq.handle, stride).wqe_id(wqe).byte_count(count.word())
    }

    fn arrive(&mut self, wqe: u32, stride: u32, strides: u16, bytes: u16) {
        let cqe = self.cqe(wqe, stride, strides, bytes, false);
        self.cq.produce(cqe);
    }

    fn fill(&mut self, wqe: u32, stride: u32, strides: u16) {
        let cqe = self.cqe(wqe, stride, strides, 0, true);
        self.cq.produce(cqe);
    }

    fn poll(&mut self) -> Result<StrideFrame, FrameError> {
        self.strides.poll(&mut self.cq.queue)
    }

    /// Place, offset and length of the next frame.
    fn next(&mut self) -> (u32, u32, u32) {
        let frame = self.poll().expect("a frame");
        (frame.place, frame.offset, frame.length)
    }

    fn post(&mut self) -> bool {
        if self.strides.free_place().is_none() {
            return false;
        }
        let sge = Sge::new(address(&self.buffer), 512, 7);
        // SAFETY: leaked memory, at a place that is free.
        unsafe { self.strides.receives().post(sge) };
        self.strides.receives().publish();
        true
    }

    /// Receives that the device has been told of, and CQEs that were consumed.
    fn published(&self) -> [u32; 2] {
        [self.rq.record.word(0), self.cq.record.word(0)]
    }
}

/// `ibv_post_wq_recv` of libmlx5 writes the data segment over the link, in bytes 0 to 15
/// (`mlx5_post_wq_recv` of providers/mlx5/qp.c knows nothing of striding; rdma-core#1381).
#[test]
fn unlike_libmlx5_a_striding_receive_has_its_buffer_after_the_link() {
    let queue = Striding::new();
    for wqe in 0..DEPTH as usize {
        let at = queue.rq.ring.read(32 * wqe, 32);
        assert_eq!(at[..16], [0; 16], "WQE {wqe}");
        let expected = DataSegment::new(address(&queue.buffer), 512, 7);
        assert_eq!(at[16..], *expected.as_bytes(), "WQE {wqe}");
    }
}

#[test]
fn frames_are_where_the_strides_before_them_end() {
    let mut queue = Striding::new();
    queue.arrive(0, 0, 1, 60);
    queue.arrive(0, 1, 2, 65);
    queue.fill(0, 3, 5);
    queue.arrive(1, 0, 8, 512);
    assert_eq!(queue.next(), (0, 0, 60));
    assert_eq!(queue.next(), (0, 64, 65));
    assert_eq!((queue.strides.done(), queue.strides.missing()), (0, 0));
    assert_eq!(queue.next(), (1, 0, 512));
    assert_eq!((queue.strides.done(), queue.strides.missing()), (2, 2));
    assert_eq!(queue.poll(), Err(FrameError::Empty));
    assert_eq!(queue.published(), [4, 4]);
    assert!(queue.post() && queue.post() && !queue.post());
    assert_eq!(queue.published(), [6, 4]);
    let counters = queue.strides.counters();
    assert_eq!((counters.frames, counters.bytes, counters.fillers), (3, 637, 1));
    assert_eq!((counters.refused, counters.exhausted), (0, 0));
}

/// A mini-CQE has its frame's first stride and number of strides. Fillers have mini-CQEs, too.
#[test]
fn compressed_sessions_name_the_strides_of_each_frame() {
    let mut queue = Striding::compressed();
    let mini = |stride, strides, bytes, filler| {
        let count = StrideByteCount::new(strides, bytes, filler);
        MiniCqe::with_checksum(7, stride, count.word())
    };
    let minis =
        [mini(0, 1, 60, false), mini(1, 2, 65, false), mini(3, 1, 20, false), mini(4, 4, 0, true)];
    let title = queue.cqe(0, 0, 1, 60, false);
    queue.cq.produce_session(title, &minis);
    queue.arrive(1, 0, 8, 512);
    assert_eq!(queue.strides.backlog(), 5);
    assert_eq!([queue.next(), queue.next(), queue.next()], [(0, 0, 60), (0, 64, 65), (0, 192, 20)]);
    assert_eq!(queue.next(), (1, 0, 512));
    assert_eq!(queue.poll(), Err(FrameError::Empty));
    let counters = queue.strides.counters();
    assert_eq!((counters.frames, counters.fillers, counters.refused), (4, 1, 0));
    assert_eq!(queue.published(), [4, 5]);
}

/// A session on a CQ without compression is refused as a whole.
#[test]
fn a_session_without_compression_is_refused() {
    let mut queue = Striding::new();
    let title = queue.cqe(0, 0, 1, 60, false);
    let count = StrideByteCount::new(1, 60, false);
    queue.cq.produce_session(title, &[MiniCqe::with_checksum(7, 0, count.word()); 3]);
    assert_eq!(queue.poll(), REFUSED);
    assert_eq!(queue.strides.counters().frames, 0);
}

#[test]
fn the_shift_of_two_bytes_is_part_of_the_strides() {
    let mut queue = Striding::of(StrideShape { two_byte_shift: true, ..SHAPE });
    queue.arrive(0, 0, 1, 62);
    queue.arrive(0, 1, 1, 63);
    queue.arrive(0, 1, 2, 63);
    assert_eq!(queue.next(), (0, 2, 62));
    assert_eq!(queue.poll(), REFUSED);
    assert_eq!(queue.next(), (0, 66, 63));
}

/// After the refused CQEs, the queue still accepts the stride that was next.
#[test]
fn strides_that_are_not_next_change_nothing() {
    let mut queue = Striding::new();
    queue.arrive(0, 0, 2, 100);
    queue.next();
    let forged: [(u32, u32, u16, u16); 10] = [
        (0, 0, 1, 60),
        (0, 1, 1, 60),
        (0, 3, 1, 60),
        (0, 8, 1, 60),
        (0, 0xffff, 1, 60),
        (1, 2, 1, 60),
        (0, 2, 0, 0),
        (0, 2, 7, 60),
        (0, 2, 0x7fff, 60),
        (0, 2, 1, 65),
    ];
    for (wqe, stride, strides, bytes) in forged {
        queue.arrive(wqe, stride, strides, bytes);
        assert_eq!(queue.poll(), REFUSED, "{wqe} {stride} {strides} {bytes}");
    }
    for (stride, strides) in [(2, 7), (0, 8), (9, 1)] {
        queue.fill(0, stride, strides);
        assert_eq!(queue.poll(), REFUSED, "a filler of {strides} at {stride}");
    }
    let cqe = Cqe::recv(&queue.rq.handle, 2).wqe_id(0).byte_count(1 << 16);
    queue.cq.produce(cqe.opcode(CqeOpcode::RESPONDER_WRITE_IMMEDIATE));
    assert_eq!(queue.poll(), REFUSED);
    for other in [1, 0x1_0000] {
        let mut cqe = queue.cqe(0, 2, 1, 60, false);
        cqe.user_index ^= other;
        queue.cq.produce(cqe);
        assert_eq!(queue.poll(), REFUSED, "another queue's");
    }
    assert_eq!((queue.strides.counters().refused, queue.strides.missing()), (16, 0));
    assert_eq!(queue.published()[1], 17, "the device may write over them");
    queue.arrive(0, 2, 6, 384);
    assert_eq!(queue.next(), (0, 128, 384));
}

/// The left completion names the same stride of the same WQE as the first frame.
#[test]
fn a_completion_that_an_earlier_queue_left_is_none_of_this_queue() {
    let (mut cq, before, _buffer) = queues(64);
    let cqe = Cqe::recv(&before.handle, 0).wqe_id(0);
    cq.produce(cqe.byte_count(StrideByteCount::new(1, 60, false).word()));
    drop(before);
    let mut queue = Striding::on(queues_on(cq), SHAPE);
    assert_eq!(queue.poll(), Err(FrameError::Empty));
    queue.arrive(0, 0, 1, 60);
    assert_eq!(queue.next(), (0, 0, 60));
    assert_eq!(queue.strides.counters().refused, 0);
}

#[test]
fn a_wqe_that_is_not_posted_completes_nothing() {
    let mut queue = Striding::new();
    for wqe in 0..DEPTH {
        queue.arrive(wqe, 0, 8, 512);
        queue.next();
    }
    assert_eq!(queue.strides.counters().exhausted, 1);
    queue.arrive(DEPTH, 0, 1, 60);
    assert_eq!(queue.poll(), REFUSED);
    assert!(queue.post());
    queue.arrive(DEPTH, 0, 1, 60);
    assert_eq!(queue.next(), (0, 0, 60));
}

#[test]
fn the_end_of_a_wqe_counts_that_the_device_has_no_other() {
    let mut queue = Striding::new();
    for wqe in 0..DEPTH {
        queue.arrive(wqe, 0, 4, 200);
        queue.arrive(wqe, 4, 4, 200);
    }
    assert_eq!(queue.strides.backlog(), 2 * DEPTH);
    assert_eq!([queue.next(), queue.next()], [(0, 0, 200), (0, 256, 200)]);
    assert_eq!(queue.strides.counters().exhausted, 1);
}

#[test]
fn a_frame_too_long_is_skipped_and_another_error_ends_the_queue() {
    let mut queue = Striding::new();
    let fail = |queue: &mut Striding, wqe, stride, strides, syndrome: Syndrome| {
        let count = StrideByteCount::new(strides, 0, false).word();
        let cqe = Cqe::recv(&queue.rq.handle, stride).wqe_id(wqe).byte_count(count);
        queue.cq.produce(cqe.failed(0, syndrome.0));
    };
    queue.arrive(0, 0, 1, 60);
    fail(&mut queue, 0, 1, 7, Syndrome::LOCAL_LENGTH);
    queue.arrive(1, 0, 1, 61);
    assert_eq!(queue.next(), (0, 0, 60));
    assert_eq!(queue.next(), (1, 0, 61));
    assert_eq!(queue.strides.counters().too_long, 1);
    fail(&mut queue, 1, 1, 7, Syndrome::LOCAL_PROTECTION);
    let failed = Status::from(Syndrome::LOCAL_PROTECTION);
    assert_eq!(queue.poll(), Err(FrameError::Failed(failed)));
}

#[test]
fn many_laps_of_mixed_strides() {
    laps_of_mixed_strides(0, 100_000);
    NEAR_WRAPS.into_iter().for_each(|start| laps_of_mixed_strides(start, 500));
}

/// As many frames, on a CQ of which `start` CQEs were consumed.
fn laps_of_mixed_strides(start: u32, frames: u32) {
    let cq = Cq::after(start, 64, 64);
    let (mut queue, mut random) = (Striding::on(queues_on(cq), SHAPE), Random::new(11));
    let (mut wqe, mut stride) = (0u32, 0u32);
    let (mut seen_wqe, mut seen_stride) = (0u32, 0u32);
    let mut fillers = 0;
    for _ in 0..frames {
        let strides = 1 + random.below(5) as u32;
        if stride + strides > 8 {
            queue.fill(wqe & 0xffff, stride, (8 - stride) as u16);
            (wqe, stride, fillers) = (wqe + 1, 0, fillers + 1);
        }
        queue.arrive(wqe & 0xffff, stride, strides as u16, (strides * 64) as u16);
        if seen_stride + strides > 8 {
            (seen_wqe, seen_stride) = (seen_wqe + 1, 0);
        }
        assert_eq!(queue.next(), (seen_wqe % DEPTH, seen_stride * 64, strides * 64));
        seen_stride += strides;
        stride += strides;
        if stride == 8 {
            (wqe, stride) = (wqe + 1, 0);
            (seen_wqe, seen_stride) = (seen_wqe + 1, 0);
        }
        while queue.post() {}
        let [posted, consumed] = queue.published();
        assert_eq!(posted, (wqe + DEPTH) & 0xffff);
        // CQEs are given back with the receives.
        assert!(queue.cq.produced.wrapping_sub(consumed) & 0xff_ffff <= 8);
    }
    assert_eq!(queue.strides.counters().fillers, fillers);
    assert_eq!(queue.strides.counters().refused, 0);
}

#[test]
fn queues_that_do_not_fit_are_refused() {
    let (mut cq, mut rq, _buffer) = queues(32);
    let refused = |cq: &mut Cq, rq: &mut Rq, shape| {
        StrideQueue::new(&mut cq.queue, ring(rq), shape).map(drop)
    };
    assert_eq!(refused(&mut cq, &mut rq, SHAPE), Err(QueueError::BadLimits), "32 strides");
    let fewer = StrideShape { log_strides: 2, ..SHAPE };
    assert_eq!(refused(&mut cq, &mut rq, fewer), Ok(()));
    let huge = StrideShape { log_strides: 17, ..SHAPE };
    assert_eq!(refused(&mut cq, &mut rq, huge), Err(QueueError::BadLimits));
}

/// It would poll completions again that were polled before.
#[test]
fn another_completion_queue_stays_where_it_is() {
    let (mut queue, mut other) = (Striding::new(), Cq::new(64, 64));
    queue.arrive(0, 0, 1, 64);
    queue.next();
    queue.strides.write_back(&mut other.queue);
    assert_eq!(other.queue.consumer_index(), 0);
    queue.strides.write_back(&mut queue.cq.queue);
    assert_eq!(queue.cq.queue.consumer_index(), 1);
}
