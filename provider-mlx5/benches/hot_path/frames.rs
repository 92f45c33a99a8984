//! Received frames: poll, read five fields, return the buffer. And the way from a received frame to
//! the order that is sent for it.

use std::hint::black_box;

use uverbs_mlx5::completion_queue::{CompletionQueue, Frame, FrameQueue, Look};
use uverbs_mlx5::recv_queue::RecvQueue;
use uverbs_mlx5::request::{PostError, PostFlags, Sge};
use uverbs_mlx5::send_queue::{
    EthernetFrame, EthernetOffload, Field, RawEthernet, Template, framed,
};
use uverbs_mlx5::user_index::{QueueHandle, UserIndexTable};

use super::fixture::{self, Bench};
use super::grid::{Rig, alone};
use super::producer::Producer;
use super::{OPERATIONS, measured};

const DEPTH: u32 = 1024;
const BUFFER_BYTES: u32 = 2048;

/// A queue of frames and its device.
pub(crate) struct Frames {
    queue: FrameQueue,
    cq: CompletionQueue,
    _receives: RecvQueue,
    handle: QueueHandle,
    device: Producer,
    memory: *mut u8,
    arrived: u32,
}

impl Frames {
    pub(crate) fn new() -> Self {
        let table = UserIndexTable::new();
        let (mut cq, device) = fixture::completion_queue_of(&table, 2 * DEPTH, None);
        let handle = fixture::handle(&table, &[cq.monitor()], [0, DEPTH], None);
        let mut receives = fixture::recv_queue_of(&handle, DEPTH);
        let memory = fixture::leak((DEPTH * BUFFER_BYTES) as usize).as_ptr();
        for i in 0..DEPTH {
            let buffer =
                memory.wrapping_add((i * BUFFER_BYTES) as usize).expose_provenance() as u64;
            // SAFETY: leaked, and used by this queue alone.
            unsafe { receives.build(buffer, &[Sge::new(buffer, BUFFER_BYTES, 0x1000)]) }
                .expect("space");
        }
        receives.publish();
        // SAFETY: the queues are used through the result alone; buffers as just posted.
        let queue =
            unsafe { FrameQueue::new(&mut cq, &mut receives, BUFFER_BYTES) }.expect("they fit");
        Self { queue, cq, _receives: receives, handle, device, memory, arrived: 0 }
    }

    /// Lets the device write a frame for each operation of a case.
    fn arrive(&mut self) {
        for _ in 0..OPERATIONS {
            self.device.receive(self.handle.user_index(), 7, self.arrived);
            self.arrived += 1;
        }
    }

    #[inline(always)]
    fn poll(&mut self, publishes: bool) -> Option<Frame<'_>> {
        let next = match self.queue.look() {
            Look::Frame(next) => next,
            Look::Nothing => {
                self.queue.nothing(&mut self.cq);
                return None;
            }
            Look::Other => self.queue.look_slow(&mut self.cq).ok()?,
        };
        // SAFETY: as just seen.
        Some(unsafe { self.queue.front(next, publishes) })
    }
}

/// Length, first byte, timestamp, flow tag, checksum.
#[inline(always)]
fn read(frame: &Frame<'_>) -> u64 {
    let first = frame.bytes().first().copied().unwrap_or_default();
    let good = frame.checks().l3_l4_ok();
    u64::from(first)
        + frame.length() as u64
        + frame.timestamp()
        + u64::from(frame.flow_tag())
        + u64::from(good)
}

pub(crate) fn one(bench: &mut Bench) -> u64 {
    let frames = &mut bench.frames;
    frames.arrive();
    let mut sum = 0;
    let time = measured(|| {
        for _ in 0..OPERATIONS {
            sum += read(&frames.poll(true).expect("a frame"));
        }
    });
    black_box(sum);
    time
}

pub(crate) fn batch_16(bench: &mut Bench) -> u64 {
    let frames = &mut bench.frames;
    frames.arrive();
    let mut sum = 0;
    let time = measured(|| {
        for _ in 0..OPERATIONS / 16 {
            for _ in 0..16 {
                sum += read(&frames.poll(false).expect("a frame"));
            }
            frames.queue.publish();
        }
    });
    black_box(sum);
    time
}

pub(crate) fn empty(bench: &mut Bench) -> u64 {
    let frames = &mut bench.frames;
    measured(|| {
        for _ in 0..OPERATIONS {
            assert!(frames.poll(true).is_none());
        }
    })
}

const NUMBER: Field<8, 42> = Field;
const PRICE: Field<8, 50> = Field;
const SIZE: Field<4, 58> = Field;

/// A queue of frames, and one for orders whose template takes `BLOCKS` blocks.
pub(crate) struct Trade<const BLOCKS: usize> {
    frames: Frames,
    orders: Rig<RawEthernet>,
    order: Template<EthernetFrame<'static>, BLOCKS>,
}

impl<const BLOCKS: usize> Trade<BLOCKS> {
    pub(crate) fn new(frame: &[u8]) -> Self {
        let mut orders = Rig::<RawEthernet>::new(fixture::register());
        let (operation, data) = framed(EthernetOffload::default(), frame, ());
        let order = orders.queue.long_template(operation, data, PostFlags::empty());
        Self { frames: Frames::new(), orders, order: order.expect("a template") }
    }

    /// From a tick to a trade: poll, read, parse, return the buffer, patch the template, ring.
    pub(crate) fn run(&mut self) -> u64 {
        self.frames.arrive();
        let (frames, order) = (&mut self.frames, &mut self.order);
        alone(&mut self.orders, |queue, i| {
            let Some(frame) = frames.poll(true) else { return Err(PostError::Full) };
            let Some([number, price]) = quote(frame.bytes()) else {
                return Err(PostError::BadHeader);
            };
            let (good, time) = (frame.checks().l3_l4_ok(), frame.timestamp());
            let size = frame.flow_tag() + u32::from(good);
            drop(frame);
            // The last field first, so that one bounds check covers all three.
            let is_set = order.set(SIZE, size.to_be_bytes())
                && order.set(PRICE, (price + 1).to_be_bytes())
                && order.set(NUMBER, (number + time).to_be_bytes());
            if !is_set {
                return Err(PostError::NotATemplate);
            }
            // SAFETY: all of the frame is in the request.
            unsafe { queue.post_template(i as u64, order) }
        })
    }
}

/// What any program has to do from a tick to a trade whose request has `BLOCKS` blocks: read the
/// CQE and the frame, write the receives' doorbell record, the request, its record, two fences, the
/// copy to the register. Nothing is checked, counted or remembered.
pub(crate) fn floor<const BLOCKS: usize>(bench: &mut Bench) -> u64 {
    // Ring, records and register: as much memory as the measured cases touch.
    thread_local!(static MEMORY: *mut u8 = fixture::leak(64 * 1024 + 8192).as_ptr());
    let base = MEMORY.with(|memory| *memory);
    let frames = &mut bench.frames;
    frames.arrive();
    #[cfg(not(target_arch = "x86_64"))]
    let time = 0 * base as u64;
    #[cfg(target_arch = "x86_64")]
    let time = measured(|| {
        use std::arch::x86_64::*;
        for i in 0..OPERATIONS {
            let number = frames.arrived - OPERATIONS as u32 + i as u32;
            let cqe = frames.device.entry(number).cast::<__m128i>();
            let buffer = frames.memory.wrapping_add((number % DEPTH * BUFFER_BYTES) as usize + 32);
            // SAFETY: a CQE, a frame's buffer, and memory that was leaked here.
            unsafe {
                let quote = buffer.cast::<__m128i>().read_volatile();
                let tick = _mm_add_epi32(cqe.add(3).read_volatile(), quote);
                let records = base.add(64 * 1024).cast::<u32>();
                records.write_volatile((i as u32).to_be());
                let value = _mm_add_epi32(tick, _mm_set1_epi32(i as i32));
                let request = base.add(64 * BLOCKS * i % (64 * 1024)).cast::<__m128i>();
                (0..4 * BLOCKS).for_each(|lane| request.add(lane).write_volatile(value));
                records.add(16).write_volatile((i as u32).to_be());
                _mm_sfence();
                let register = base.add(64 * 1024 + 4096 + ((i & 1) << 8)).cast::<__m128i>();
                (0..4 * BLOCKS).for_each(|lane| register.add(lane).write_volatile(value));
                _mm_sfence();
            }
        }
    });
    while frames.poll(true).is_some() {}
    time
}

/// Two numbers after the Ethernet, IPv4 and UDP headers.
#[inline(always)]
fn quote(frame: &[u8]) -> Option<[u64; 2]> {
    let data: &[u8; 16] = frame.get(42..)?.first_chunk()?;
    let (number, price) = data.split_first_chunk::<8>()?;
    Some([u64::from_be_bytes(*number), u64::from_be_bytes(*price.first_chunk()?)])
}
