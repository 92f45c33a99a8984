//! Arbitrary CQEs for queues of frames, with a buffer for each frame or buffers of many strides.
//!
//! The device of this module writes arbitrary CQEs, but only into free entries: lengths beyond the
//! buffer, other receives, strides and stride counts, fillers, errors, compressed sessions. So the
//! poller must consume every CQE once: as a frame, in one of its counters, or as an error. The
//! bytes of a frame must be inside the buffer of its receive, and in a buffer of strides after the
//! bytes of earlier frames. A buffer is freed as soon as the queue has replaced it.

use std::mem::offset_of;

use arbitrary::{Result, Unstructured};
use uverbs_mlx5::completion_queue::*;
use uverbs_mlx5::doorbell::DoorbellWord;
use uverbs_mlx5::format::{
    Cqe, CqeFormat, CqeOpcode, ErrorCqe, MiniCqeFormat, OpOwn, StrideByteCount,
};
use uverbs_mlx5::mmio::ArmRegister;
use uverbs_mlx5::queue_state::{QpState, Shape};
use uverbs_mlx5::recv_queue::{RecvQueue, RecvQueueConfig};
use uverbs_mlx5::request::Sge;
use uverbs_mlx5::user_index::UserIndexTable;

use crate::memory::Memory;

const DEPTH: u32 = 4;
const ENTRIES: u32 = 64;
/// Bytes of a frame's buffer.
const BYTES: u32 = 100;
/// 8 strides of 64 bytes.
const SHAPE: StrideShape = StrideShape { log_bytes: 6, log_strides: 3, two_byte_shift: false };
const KEY: u32 = 7;

/// The input chooses the kind of queue, then the actions of the device and the program.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let _ = if u.arbitrary().unwrap_or_default() { strides(&mut u) } else { buffers(&mut u) };
}

/// Calls `turn` until the input ends, at most 400 times.
fn take_turns<'a>(
    u: &mut Unstructured<'a>,
    mut turn: impl FnMut(&mut Unstructured<'a>) -> Result<()>,
) {
    for _ in 0..400 {
        if u.is_empty() || turn(u).is_err() {
            break;
        }
    }
}

/// The device's side of the completion queue.
struct Device {
    ring: Memory,
    record: Memory,
    producer: u32,
    /// CQEs that the poller must account for.
    written: u64,
    /// A compressed session announced more completions than were written. The poller's results are
    /// arbitrary then, and only accesses outside its memory are defects.
    lied: bool,
}

/// All parts of a queue except its poller. Fields drop in order.
struct Bench {
    cq: CompletionQueue,
    receives: RecvQueue,
    device: Device,
    compresses: bool,
    _table: UserIndexTable,
    _memory: [Memory; 3],
}

impl Bench {
    /// Without posted receives. Their WQEs have 16 bytes after `head` octowords.
    fn new(head: u32, mini_format: Option<MiniCqeFormat>) -> Self {
        let table = UserIndexTable::new();
        let stride = 16 * (1 + head);
        let (ring, record) = (Memory::new(ENTRIES as usize * 64), Memory::new(64));
        let memory = [Memory::new(64), Memory::new((DEPTH * stride) as usize), Memory::new(64)];
        let [arm, receives, receives_record] = &memory;
        // SAFETY: the memory belongs to this bench, which drops the queues first; only the bench
        // acts as the device.
        let (cq_memory, doorbell, register, rq_memory, rq_doorbell) = unsafe {
            (
                ring.dma(),
                DoorbellWord::pair(record.start()),
                ArmRegister::new(arm.start()),
                receives.dma(),
                DoorbellWord::pair(receives_record.start()).0,
            )
        };
        let cq = CompletionQueue::new(CompletionQueueConfig {
            memory: cq_memory,
            entries: ENTRIES,
            cqe_size: 64,
            doorbell,
            arm: register,
            number: 7,
            table: &table,
            mini_format,
            null_lkey: None,
        })
        .expect("the ring fits");
        let shape = Shape { send_wqebbs: 0, recv_wqes: DEPTH, shared_receive: false };
        let handle = table.register(shape, &[cq.monitor()], None, 1).expect("an index is left");
        handle.set_state(QpState::Rtr);
        handle.set_short_receives_fail_alone();
        let receives = RecvQueue::new(RecvQueueConfig {
            memory: rq_memory,
            doorbell: rq_doorbell,
            handle,
            stride,
            head_octowords: head,
            scatter_to_cqe: false,
        })
        .expect("the ring fits");
        let device = Device { ring, record, producer: 0, written: 0, lied: false };
        let compresses = mini_format.is_some();
        Self { cq, receives, device, compresses, _table: table, _memory: memory }
    }

    /// Posts a receive of `buffer` with its address as the id.
    fn post(&mut self, buffer: &Memory, bytes: u32) {
        let address = buffer.address(0);
        // SAFETY: the buffer is kept until the queue has replaced it; no device accesses it.
        unsafe { self.receives.build(address, &[Sge::new(address, bytes, KEY)]) }.expect("space");
    }
}

impl Device {
    /// Entries that may be written.
    fn free(&self) -> u32 {
        let consumed = u32::from_be_bytes(self.record.read(0));
        ENTRIES.saturating_sub(self.producer.wrapping_sub(consumed) & 0xff_ffff)
    }

    fn at(&self, counter: u32) -> usize {
        (counter % ENTRIES) as usize * 64
    }

    /// Writes a CQE into the next entry.
    fn put(&mut self, mut cqe: [u8; 64], opcode: CqeOpcode, format: CqeFormat) {
        let lap = self.producer / ENTRIES % 2 != 0;
        cqe[offset_of!(Cqe, op_own)] = OpOwn::new(opcode, format, false, lap).0;
        self.ring.write(self.at(self.producer), &cqe);
        self.producer = self.producer.wrapping_add(1);
        self.written += 1;
    }

    /// Writes a CQE of any kind, mostly that of a frame.
    fn write(&mut self, u: &mut Unstructured<'_>, cqe: [u8; 64]) -> Result<()> {
        if self.free() == 0 {
            return Ok(());
        }
        let usual = *u.choose(&[2, 2, 2, 2, 14])?;
        let opcode = CqeOpcode(if u.ratio(1, 16)? { u.int_in_range(0..=14)? } else { usual });
        let format = CqeFormat(if u.ratio(1, 16)? { u.int_in_range(1..=2)? } else { 0 });
        self.put(cqe, opcode, format);
        Ok(())
    }

    /// Writes a title CQE and, after it, arrays of arbitrary mini CQEs.
    fn write_session(&mut self, u: &mut Unstructured<'_>, mut title: [u8; 64]) -> Result<()> {
        let free = self.free();
        if free < 2 {
            return Ok(());
        }
        let is_honest = u.ratio(7, 8)?;
        let count = if is_honest { u.int_in_range(2..=free)? } else { u.arbitrary()? };
        put(&mut title, offset_of!(Cqe, byte_count), count.to_be_bytes());
        let start = self.producer;
        for slot in 1..free.min(count.max(1)) {
            let mut array = [0; 64];
            u.fill_buffer(&mut array)?;
            // Make lengths and strides valid more often.
            array.chunks_exact_mut(8).for_each(|mini| (mini[4], mini[5]) = (0, mini[5] & 3));
            self.ring.write(self.at(start.wrapping_add(slot)), &array);
        }
        self.lied |= count.min(ENTRIES) > free;
        self.put(title, CqeOpcode::RESPONDER_SEND, CqeFormat::COMPRESSED);
        let count = count.clamp(1, free);
        self.producer = start.wrapping_add(count);
        self.written += u64::from(count) - 1;
        Ok(())
    }
}

fn put<const N: usize>(cqe: &mut [u8; 64], at: usize, bytes: [u8; N]) {
    cqe[at..at + N].copy_from_slice(&bytes);
}

/// A CQE of arbitrary bytes or zeros, with one of a few syndromes.
fn any_cqe(u: &mut Unstructured<'_>) -> Result<[u8; 64]> {
    let mut cqe = [0; 64];
    if u.arbitrary()? {
        u.fill_buffer(&mut cqe)?;
    }
    cqe[offset_of!(ErrorCqe, syndrome)] = *u.choose(&[1, 1, 5, 4, 0])?;
    Ok(cqe)
}

/// Reads all bytes, so that an address sanitizer checks the accesses.
fn touch(bytes: &[u8]) {
    std::hint::black_box(bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>());
}

/// Counts of what a poller returned.
#[derive(Default)]
struct Found {
    frames: u64,
    failed: u64,
    refused: u64,
}

impl Found {
    /// Counts an error. Returns false if the queue was empty.
    fn note(&mut self, error: FrameError) -> bool {
        match error {
            FrameError::Empty => return false,
            FrameError::Failed(_) => self.failed += 1,
            FrameError::Queue(PollError::NotOutstanding) => self.refused += 1,
            error => panic!("{error}"),
        }
        true
    }
}

/// A queue with one buffer for each frame. Fields drop in order: the queues before the buffers.
struct Buffers {
    bench: Bench,
    queue: FrameQueue,
    buffers: Vec<Memory>,
    found: Found,
}

fn buffers(u: &mut Unstructured<'_>) -> Result<()> {
    let format = if u.arbitrary()? { Some(MiniCqeFormat::HASH) } else { None };
    let mut bench = Bench::new(0, format);
    let buffers: Vec<_> = (0..DEPTH).map(|_| Memory::new(BYTES as usize)).collect();
    buffers.iter().for_each(|buffer| bench.post(buffer, BYTES));
    bench.receives.publish();
    // SAFETY: both queues are used only through it; ids are addresses of buffers of `BYTES` bytes,
    // which are kept until the queue has replaced them.
    let queue = unsafe { FrameQueue::new(&mut bench.cq, &mut bench.receives, BYTES) };
    let queue = queue.expect("they fit");
    let mut test = Buffers { bench, queue, buffers, found: Found::default() };
    take_turns(u, |u| test.turn(u));
    test.finish();
    Ok(())
}

impl Buffers {
    fn turn(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        match u.int_in_range(0..=11)? {
            0..=4 => {
                let cqe = self.cqe(u)?;
                self.bench.device.write(u, cqe)?;
            }
            5 if self.bench.compresses => {
                let cqe = self.cqe(u)?;
                self.bench.device.write_session(u, cqe)?;
            }
            6..=8 => drop(self.poll(u.arbitrary()?, false)),
            9 => drop(self.poll(true, true)),
            10 => self.queue.publish(),
            _ => {
                self.queue.write_back(&mut self.bench.cq);
                self.bench.cq.arm(Arm::Any);
                assert!(self.queue.backlog() <= DEPTH);
            }
        }
        Ok(())
    }

    /// A CQE, often for the next receive.
    fn cqe(&self, u: &mut Unstructured<'_>) -> Result<[u8; 64]> {
        let mut cqe = any_cqe(u)?;
        let next = self.bench.device.written as u16;
        let counter = if u.ratio(1, 8)? { u.arbitrary()? } else { next };
        // A refused CQE does not complete a receive.
        let counter = counter.wrapping_sub(self.queue.counters().refused as u16);
        put(&mut cqe, offset_of!(Cqe, wqe_counter), counter.to_be_bytes());
        let near = u.int_in_range(0..=BYTES + 2)?;
        let length: u32 = if u.ratio(1, 8)? { u.arbitrary()? } else { near };
        put(&mut cqe, offset_of!(Cqe, byte_count), length.to_be_bytes());
        Ok(cqe)
    }

    /// Polls one frame, and replaces its buffer if `takes`. Returns false if there was none.
    fn poll(&mut self, publishes: bool, takes: bool) -> bool {
        let next = match self.queue.look() {
            Look::Frame(next) => Ok(next),
            Look::Nothing => Err(self.queue.nothing(&mut self.bench.cq)),
            Look::Other => self.queue.look_slow(&mut self.bench.cq),
        };
        let next = match next {
            Ok(next) => next,
            Err(error) => return self.found.note(error),
        };
        // SAFETY: it was just found.
        let frame = unsafe { self.queue.front(next, publishes) };
        assert!(frame.length() <= BYTES as usize);
        touch(frame.bytes());
        let fields = (frame.timestamp(), frame.flow_tag(), frame.vlan(), frame.hash());
        std::hint::black_box((fields, frame.checks(), frame.header_types()));
        self.found.frames += 1;
        if takes {
            let (place, spare) = (frame.place(), Memory::new(BYTES as usize));
            // SAFETY: a buffer of the same length, which is kept from now on instead of the old
            // one.
            unsafe { frame.replace(Sge::new(spare.address(0), BYTES, KEY)) };
            self.buffers[place] = spare;
        }
        true
    }

    fn finish(mut self) {
        while self.poll(true, false) {}
        let (counters, Found { frames, failed, refused }) = (self.queue.counters(), self.found);
        assert_eq!((counters.frames, counters.refused), (frames, refused));
        if !self.bench.device.lied {
            let all = frames + failed + refused + counters.too_long;
            assert_eq!(all, self.bench.device.written, "{counters:?}");
        }
    }
}

/// A queue whose buffers have many strides.
struct Strides {
    bench: Bench,
    queue: StrideQueue,
    /// The buffer at each position, and the end of its bytes that were returned as frames.
    buffers: Vec<(Memory, u32)>,
    /// The WQE, and the stride in it, that a correct device fills next.
    next: (u32, u32),
    found: Found,
}

fn strides(u: &mut Unstructured<'_>) -> Result<()> {
    let format = if u.arbitrary()? { Some(MiniCqeFormat::CHECKSUM_STRIDE_INDEX) } else { None };
    let mut bench = Bench::new(1, format);
    let shape = StrideShape { two_byte_shift: u.arbitrary()?, ..SHAPE };
    let buffer = || (Memory::new(SHAPE.wqe_bytes() as usize), 0);
    let buffers: Vec<_> = (0..DEPTH).map(|_| buffer()).collect();
    buffers.iter().for_each(|(buffer, _)| bench.post(buffer, SHAPE.wqe_bytes()));
    bench.receives.publish();
    // SAFETY: both queues are used only through it; buffers are kept until they are replaced.
    let ring = unsafe { PostedRing::new(&mut bench.receives) }.expect("all are posted");
    let queue = StrideQueue::new(&mut bench.cq, ring, shape).expect("they fit");
    let mut test = Strides { bench, queue, buffers, next: (0, 0), found: Found::default() };
    take_turns(u, |u| test.turn(u));
    test.finish();
    Ok(())
}

impl Strides {
    fn turn(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        match u.int_in_range(0..=11)? {
            0..=4 => {
                let cqe = self.cqe(u)?;
                self.bench.device.write(u, cqe)?;
            }
            5 if self.bench.compresses => {
                let cqe = self.cqe(u)?;
                self.bench.device.write_session(u, cqe)?;
            }
            6..=8 => drop(self.poll()),
            9..=10 => self.post(),
            _ => {
                self.queue.write_back(&mut self.bench.cq);
                self.bench.cq.arm(Arm::Any);
                assert!(self.queue.backlog() <= ENTRIES);
            }
        }
        Ok(())
    }

    /// A CQE, often the one that a correct device would write next.
    fn cqe(&mut self, u: &mut Unstructured<'_>) -> Result<[u8; 64]> {
        let mut cqe = any_cqe(u)?;
        let (wqe, stride) = self.next;
        let most = SHAPE.strides() - stride;
        let count = u.int_in_range(1..=most)?;
        let bytes = u.int_in_range(0..=count << SHAPE.log_bytes)?;
        let mut fields = [wqe as u16, stride as u16, count as u16, bytes as u16];
        if u.ratio(1, 8)? {
            fields[u.choose_index(4)?] = u.arbitrary()?;
        } else {
            let end = stride + count;
            self.next = (wqe + end / SHAPE.strides(), end % SHAPE.strides());
        }
        let word = StrideByteCount::new(fields[2], fields[3], u.ratio(1, 6)?).word();
        put(&mut cqe, offset_of!(Cqe, wqe_id), fields[0].to_be_bytes());
        put(&mut cqe, offset_of!(Cqe, wqe_counter), fields[1].to_be_bytes());
        put(&mut cqe, offset_of!(Cqe, byte_count), word.to_be_bytes());
        Ok(cqe)
    }

    /// Polls one frame. Returns false if there was none.
    fn poll(&mut self) -> bool {
        let frame = match self.queue.poll(&mut self.bench.cq) {
            Ok(frame) => frame,
            Err(error) => return self.found.note(error),
        };
        let (buffer, end) = &mut self.buffers[frame.place as usize];
        assert!(*end <= frame.offset, "these bytes were returned before");
        *end = (frame.offset + frame.length).next_multiple_of(1 << SHAPE.log_bytes).max(*end);
        assert!(frame.offset + frame.length <= SHAPE.wqe_bytes());
        for at in frame.offset..frame.offset + frame.length {
            touch(&buffer.read::<1>(at as usize));
        }
        self.found.frames += 1;
        true
    }

    /// Posts a new buffer instead of one that is used up.
    fn post(&mut self) {
        let Some(place) = self.queue.free_place() else { return };
        let buffer = Memory::new(SHAPE.wqe_bytes() as usize);
        let sge = Sge::new(buffer.address(0), SHAPE.wqe_bytes(), KEY);
        // SAFETY: the position is free; the buffer is kept.
        unsafe { self.queue.receives().post(sge) };
        self.queue.receives().publish();
        self.buffers[place as usize] = (buffer, 0);
    }

    fn finish(mut self) {
        while self.poll() {}
        let (counters, Found { frames, failed, refused }) = (self.queue.counters(), self.found);
        assert_eq!((counters.frames, counters.refused), (frames, refused));
        if !self.bench.device.lied {
            let all = frames + failed + refused + counters.too_long + counters.fillers;
            assert_eq!(all, self.bench.device.written, "{counters:?}");
        }
    }
}
