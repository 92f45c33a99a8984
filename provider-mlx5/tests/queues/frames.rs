//! Queues of frames: many laps, invalid completions, wrong lengths, replaced buffers.

use uverbs_mlx5::completion_queue::{FrameError, FrameQueue, Look, Next, PollError, Status};
use uverbs_mlx5::format::{MiniCqe, MiniCqeFormat};
use uverbs_mlx5::queue_error::QueueError;
use uverbs_mlx5::request::Sge;

use crate::device::{Cq, Cqe, Memory, NEAR_WRAPS, Random, Rq, recv_queue};

const DEPTH: u32 = 8;
const BYTES: u32 = 128;

struct Bench {
    frames: FrameQueue,
    cq: Cq,
    rq: Rq,
    buffers: Vec<Memory>,
    arrived: u32,
}

fn address(buffer: &Memory) -> u64 {
    buffer.ptr().as_ptr().expose_provenance() as u64
}

fn post(rq: &mut Rq, buffer: &Memory) {
    let sge = Sge::new(address(buffer), BYTES, 7);
    // SAFETY: leaked memory, which only the tests' device writes.
    unsafe { rq.queue.build(address(buffer), &[sge]) }.expect("space");
}

impl Bench {
    fn new() -> Self {
        Self::deep(DEPTH)
    }

    fn deep(depth: u32) -> Self {
        Self::on(Cq::new(2 * depth, 64), depth)
    }

    /// A queue whose completions may be compressed.
    fn compressed(depth: u32, format: MiniCqeFormat) -> Self {
        Self::on(Cq::with(2 * depth, 64, format), depth)
    }

    /// The `start`th frame arrives next.
    fn after(start: u32) -> Self {
        Self::on(Cq::after(start, 2 * DEPTH, 64), DEPTH)
    }

    fn on(mut cq: Cq, depth: u32) -> Self {
        let mut rq = recv_queue(&cq, depth, 16, false);
        let arrived = cq.queue.consumer_index();
        // SAFETY: nothing was posted.
        unsafe { rq.queue.continue_at(arrived) };
        rq.handle.set_short_receives_fail_alone();
        let buffers: Vec<_> = (0..depth).map(|_| Memory::new(BYTES as usize)).collect();
        buffers.iter().for_each(|buffer| post(&mut rq, buffer));
        rq.queue.publish();
        // SAFETY: both queues are used only through `frames`; the buffers are leaked.
        let frames = unsafe { FrameQueue::new(&mut cq.queue, &mut rq.queue, BYTES) };
        Self { frames: frames.expect("they fit"), cq, rq, buffers, arrived }
    }

    fn arrive(&mut self) {
        let buffer = &self.buffers[self.arrived as usize % self.buffers.len()];
        buffer.write(0, &self.arrived.to_be_bytes());
        self.cq.produce(Cqe::recv(&self.rq.handle, self.arrived));
        self.arrived = self.arrived.wrapping_add(1);
    }

    /// One frame arrives for each hash, all in one compressed session.
    fn arrive_compressed(&mut self, hashes: &[u32]) {
        let title = Cqe::recv(&self.rq.handle, self.arrived);
        for i in self.arrived..self.arrived + hashes.len() as u32 {
            self.buffers[i as usize % self.buffers.len()].write(0, &i.to_be_bytes());
        }
        let minis: Vec<_> = hashes.iter().map(|hash| MiniCqe::with_hash(*hash, 64)).collect();
        self.cq.produce_session(title, &minis);
        self.arrived += hashes.len() as u32;
    }

    fn look(&mut self) -> Result<Next, FrameError> {
        match self.frames.look() {
            Look::Frame(next) => Ok(next),
            Look::Nothing => Err(self.frames.nothing(&mut self.cq.queue)),
            Look::Other => self.frames.look_slow(&mut self.cq.queue),
        }
    }

    /// The number in the next frame.
    fn poll(&mut self, publishes: bool) -> Result<u32, FrameError> {
        let next = self.look()?;
        // SAFETY: it was just found.
        let frame = unsafe { self.frames.front(next, publishes) };
        Ok(frame.bytes().first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes)))
    }

    /// Both doorbell records: receives that the device has, and CQEs that were consumed.
    fn published(&self) -> [u32; 2] {
        [self.rq.record.word(0), self.cq.record.word(0)]
    }
}

#[test]
fn frames_over_many_laps_are_polled_singly_and_in_batches() {
    frames_over_many_laps(0, 200_000);
    NEAR_WRAPS.into_iter().for_each(|start| frames_over_many_laps(start, 500));
}

/// As many frames after the first `start`.
fn frames_over_many_laps(start: u32, frames: u32) {
    let mut bench = Bench::after(start);
    let mut random = Random::new(6);
    let mut polled = start;
    while polled.wrapping_sub(start) < frames {
        while bench.arrived.wrapping_sub(polled) < DEPTH && random.below(4) != 0 {
            bench.arrive();
        }
        assert_eq!(bench.frames.backlog(), bench.arrived.wrapping_sub(polled));
        let alone = random.below(2) == 0;
        for _ in 0..random.below(6) {
            let expected =
                if polled != bench.arrived { Ok(polled) } else { Err(FrameError::Empty) };
            assert_eq!(bench.poll(alone), expected);
            polled = polled.wrapping_add(u32::from(expected.is_ok()));
        }
        bench.frames.publish();
        let posted = polled.wrapping_add(DEPTH);
        assert_eq!(bench.published(), [posted & 0xffff, polled & 0xff_ffff]);
    }
    let counters = bench.frames.counters();
    let frames = u64::from(polled.wrapping_sub(start));
    assert_eq!((counters.frames, counters.bytes), (frames, frames * 64));
    assert_eq!((counters.refused, counters.too_long), (0, 0));
}

/// The left completion names the same receive as the first frame.
#[test]
fn a_completion_that_an_earlier_queue_left_is_no_frame() {
    let mut cq = Cq::new(2 * DEPTH, 64);
    let mut before = recv_queue(&cq, DEPTH, 16, false);
    post(&mut before, &Memory::new(BYTES as usize));
    before.queue.publish();
    cq.produce(Cqe::recv(&before.handle, 0));
    drop(before);
    let mut bench = Bench::on(cq, DEPTH);
    assert_eq!(bench.poll(true), Err(FrameError::Empty));
    bench.arrive();
    assert_eq!(bench.poll(true), Ok(0));
    assert_eq!(bench.frames.counters().refused, 0);
}

/// The published consumer index lags by an eighth of the queue at most, so the CQ cannot overrun
/// even if the device completes every posted receive.
#[test]
fn the_consumer_index_is_published_before_the_queue_can_overrun() {
    for depth in [1, 2, 64, 256] {
        let (mut bench, mut random, mut polled) =
            (Bench::deep(depth), Random::new(depth.into()), 0);
        for _ in 0..2000 {
            let [receives, consumed] = bench.published();
            let space = (receives as u16).wrapping_sub(bench.arrived as u16);
            (0..random.below(usize::from(space) + 1)).for_each(|_| bench.arrive());
            let kept = bench.arrived - consumed;
            assert!(kept <= 2 * depth, "{depth}: {kept} CQEs that are not known to be polled");
            for _ in 0..random.below((bench.arrived - polled) as usize + 1) {
                assert_eq!(bench.poll(random.below(2) == 0), Ok(polled));
                polled += 1;
            }
            bench.frames.publish();
            let [receives, consumed] = bench.published();
            assert_eq!(receives, (polled + depth) & 0xffff);
            assert!(polled - consumed < (depth / 8).max(1), "{depth} {consumed} {polled}");
        }
        assert!(polled > 4 * depth);
    }
}

#[test]
fn the_deepest_queue_works_beyond_sixteen_bits() {
    let depth = 1 << 15;
    let mut bench = Bench::deep(depth);
    for polled in 0..5 * depth {
        bench.arrive();
        assert_eq!(bench.poll(true), Ok(polled));
        assert_eq!(bench.published()[0], (polled + 1 + depth) & 0xffff);
    }
    assert_eq!(bench.frames.counters().frames, u64::from(5 * depth));
}

#[test]
fn a_completion_of_no_receive_is_refused_and_the_next_frame_follows() {
    let mut bench = Bench::new();
    for lap in 0..40 {
        let wrong = bench.arrived.wrapping_add(1 + lap % 5);
        bench.cq.produce(Cqe::recv(&bench.rq.handle, wrong));
        bench.arrive();
        let refused = FrameError::Queue(PollError::NotOutstanding);
        assert_eq!([bench.poll(true), bench.poll(true)], [Err(refused), Ok(lap)]);
        // A send's completion is not one of a receive either.
        bench.cq.produce(Cqe::send(&bench.rq.handle, bench.arrived));
        assert_eq!(bench.poll(true), Err(refused));
        assert_eq!(bench.published(), [lap + 1 + DEPTH, 3 * (lap + 1)]);
    }
    assert_eq!((bench.frames.counters().refused, bench.frames.counters().frames), (80, 40));
}

/// Compressed sessions of all lengths over many laps, mixed with frames of ordinary CQEs.
#[test]
fn compressed_sessions_are_frames_with_their_own_hash() {
    let (mut bench, mut random) = (Bench::compressed(32, MiniCqeFormat::HASH), Random::new(12));
    let (mut polled, mut hashes) = (0, Vec::new());
    while polled < 100_000 {
        let space = 32 - (bench.arrived - polled) as usize;
        let count = random.below(space + 1);
        let new: Vec<u32> = (0..count).map(|_| random.below(1 << 30) as u32).collect();
        match count {
            0 => {}
            1 => bench.arrive(),
            _ => bench.arrive_compressed(&new),
        }
        hashes.extend(new.iter().map(|hash| (count > 1).then_some(*hash)));
        assert_eq!(bench.frames.backlog(), bench.arrived - polled);
        for _ in 0..random.below(40) {
            if polled == bench.arrived {
                assert_eq!(bench.poll(true), Err(FrameError::Empty));
                break;
            }
            let next = bench.look().expect("a frame");
            // SAFETY: it was just found.
            let frame = unsafe { bench.frames.front(next, true) };
            assert_eq!(frame.bytes()[..4], polled.to_be_bytes());
            if let Some(hash) = hashes[polled as usize] {
                assert_eq!(frame.hash().0, hash);
            }
            polled += 1;
        }
    }
    let counters = bench.frames.counters();
    assert_eq!((counters.frames, counters.bytes), (polled.into(), u64::from(polled) * 64));
    assert_eq!(counters.refused, 0);
}

/// A title CQE that claims too many completions yields no more than the ring has entries. A queue
/// without compression accepts no session.
#[test]
fn forged_sessions_end_with_the_ring() {
    let known = [FrameError::Queue(PollError::NotOutstanding), FrameError::Empty];
    for count in [0, 1, 7, 9, 64, u32::MAX] {
        for compresses in [false, true] {
            let mut bench = match compresses {
                true => Bench::compressed(DEPTH, MiniCqeFormat::CHECKSUM),
                false => Bench::new(),
            };
            bench.arrive_compressed(&[1, 2, 3]);
            bench.cq.ring.write(44, &u32::to_be_bytes(count));
            let polled: Vec<_> = (0..100).map(|_| bench.poll(false)).collect();
            let frames = polled.iter().filter(|result| result.is_ok()).count();
            let most = if compresses { 2 * DEPTH as usize } else { 0 };
            assert!(frames <= most, "{count}: {frames} frames");
            assert!(
                polled.iter().all(
                    |result| result.is_ok() || known.iter().any(|error| *result == Err(*error))
                )
            );
        }
    }
}

#[test]
fn a_length_beyond_the_buffer_is_refused_and_the_buffer_posted_again() {
    let mut bench = Bench::new();
    for length in [BYTES + 1, u32::MAX] {
        let cqe = Cqe::recv(&bench.rq.handle, bench.arrived);
        bench.cq.produce(Cqe { byte_count: length, ..cqe });
        bench.arrived += 1;
        assert_eq!(bench.poll(true), Err(FrameError::Queue(PollError::NotOutstanding)));
    }
    assert_eq!(bench.published()[0], DEPTH + 2);
    bench.arrive();
    assert_eq!(bench.poll(true), Ok(2));
    let counters = bench.frames.counters();
    assert_eq!((counters.frames, counters.refused, counters.too_long), (1, 2, 0));
}

#[test]
fn a_frame_that_is_too_long_is_skipped_and_a_flush_is_reported() {
    let mut bench = Bench::new();
    for round in 0..20 {
        bench.cq.produce(Cqe::recv(&bench.rq.handle, 2 * round).failed(0, 1));
        bench.arrived += 1;
        bench.arrive();
        assert_eq!(bench.poll(true), Ok(2 * round + 1));
    }
    bench.cq.produce(Cqe::recv(&bench.rq.handle, bench.arrived).failed(0, 5));
    assert_eq!(bench.poll(true), Err(FrameError::Failed(Status::Flushed)));
    assert_eq!(bench.poll(true), Err(FrameError::Empty));
    let counters = bench.frames.counters();
    assert_eq!((counters.too_long, counters.frames, counters.refused), (20, 20, 0));
}

#[test]
fn replace_posts_the_spare_buffer_and_keeps_the_frames() {
    let mut bench = Bench::new();
    for i in 0..3 * DEPTH {
        bench.arrive();
        let next = bench.look().expect("a frame");
        let spare = Memory::new(BYTES as usize);
        // SAFETY: it was just found; the spare is leaked memory.
        unsafe {
            let frame = bench.frames.front(next, true);
            assert_eq!((frame.place() as u32, frame.bytes()[3]), (i % DEPTH, i as u8));
            frame.replace(Sge::new(address(&spare), BYTES, 9));
        }
        let entry = bench.rq.ring.read((i % DEPTH) as usize * 16, 16);
        assert_eq!(entry[..8], [BYTES.to_be_bytes(), 9u32.to_be_bytes()].concat());
        assert_eq!(entry[8..], address(&spare).to_be_bytes());
        let old = std::mem::replace(&mut bench.buffers[(i % DEPTH) as usize], spare);
        assert_eq!(old.read(0, 4), i.to_be_bytes());
    }
}

#[test]
fn queues_that_do_not_fit_are_refused() {
    let fit = |mut cq: Cq, posted: u32| {
        let mut rq = recv_queue(&cq, DEPTH, 16, false);
        let buffer = Memory::new(BYTES as usize);
        (0..posted).for_each(|_| post(&mut rq, &buffer));
        // SAFETY: as in `Bench::new`; nothing is received.
        unsafe { FrameQueue::new(&mut cq.queue, &mut rq.queue, BYTES) }.map(drop)
    };
    assert_eq!(fit(Cq::new(2 * DEPTH, 64), DEPTH), Ok(()));
    assert_eq!(fit(Cq::new(2 * DEPTH, 64), DEPTH - 1), Err(QueueError::BadLimits));
    assert_eq!(fit(Cq::new(DEPTH, 64), DEPTH), Err(QueueError::BadLimits));
    assert_eq!(fit(Cq::new(2 * DEPTH, 128), DEPTH), Err(QueueError::BadLimits));
}

/// It would poll completions again that were polled before.
#[test]
fn another_completion_queue_stays_where_it_is() {
    let (mut bench, mut other) = (Bench::new(), Cq::new(16, 64));
    for number in 0..3 {
        bench.arrive();
        assert_eq!(bench.poll(true), Ok(number));
    }
    bench.frames.write_back(&mut other.queue);
    assert_eq!(other.queue.consumer_index(), 0);
    bench.frames.write_back(&mut bench.cq.queue);
    assert_eq!(bench.cq.queue.consumer_index(), 3);
}
