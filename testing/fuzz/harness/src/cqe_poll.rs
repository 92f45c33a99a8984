//! Arbitrary CQEs for the poller, over many laps of the ring: user indices with and without a
//! queue, inline data, compressed sessions, resizing, queues that close while their CQEs are still
//! in the ring.
//!
//! The device of this module writes arbitrary contents, but only into free entries. So the poller
//! must consume every CQE once, in order. A completion belongs to the queue that had the user index
//! when its CQE was written, or to no queue, and its request was posted and has not completed. The
//! poller must refuse other CQEs.

use std::collections::{HashMap, HashSet};

use arbitrary::{Result, Unstructured};
use uverbs_mlx5::completion_queue::*;
use uverbs_mlx5::doorbell::DoorbellWord;
use uverbs_mlx5::format::{CqeFormat, CqeOpcode, MiniCqeFormat, OpOwn};
use uverbs_mlx5::mmio::{ArmRegister, BlueFlame};
use uverbs_mlx5::queue_state::{QpState, Shape};
use uverbs_mlx5::recv_queue::{RecvQueue, RecvQueueConfig};
use uverbs_mlx5::request::{PostFlags, Remote, Sge};
use uverbs_mlx5::send_queue::{
    AtomicResult, FetchAdd, Inline, Rc, Read, Send, SendQueue, SendQueueConfig,
};
use uverbs_mlx5::shared_recv_queue::{SharedRecvQueue, SharedRecvQueueConfig};
use uverbs_mlx5::user_index::{QueueHandle, UserIndexTable};

use crate::memory::Memory;

/// The input chooses the CQ, then the actions of the device and the program.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let Ok(mut bench) = Bench::new(&mut u) else { return };
    for _ in 0..400 {
        if u.is_empty() || bench.turn(&mut u).is_err() {
            break;
        }
    }
    bench.finish();
}

const SEND_BLOCKS: u32 = 16;
const RECEIVES: u32 = 8;
const STRIDE: u32 = 64;
const DATA: usize = 1024;
const NULL_KEY: u32 = 0x700;
/// A bit that is set in the ids of the SRQ's receives.
const SHARED: u64 = 1 << 63;
/// A queue pair and its memory. Fields drop in order: the queues before their memory.
struct Pair {
    send: SendQueue<Rc>,
    receive: Option<RecvQueue>,
    handle: QueueHandle,
    _memory: [Memory; 4],
}

struct Ring {
    memory: Memory,
    mask: u32,
    size: u32,
}

struct Bench {
    cq: CompletionQueue,
    table: UserIndexTable,
    srq: SharedRecvQueue,
    pairs: Vec<Pair>,
    ring: Ring,
    /// The ring from before a resize, while it is still needed.
    old: Option<Ring>,
    /// Rings of aborted resizes. The poller moves to one if it finds a resize CQE.
    refused: Vec<Ring>,
    record: Memory,
    data: Memory,
    model: Model,
    _memory: [Memory; 3],
}

/// The completions that the poller must return.
#[derive(Default)]
struct Model {
    producer: u32,
    /// Completions written, and those that the poller does not report.
    written: u64,
    silent: u64,
    seen: u64,
    /// The user index of the CQE at a counter, and the queue that had it then.
    owners: HashMap<u32, (u32, Option<u64>)>,
    /// The queue that has an index, or had it last.
    holders: HashMap<u32, u64>,
    next_id: u64,
    /// Unique ids of requests that were posted and have not completed.
    posted: HashSet<u64>,
    failed: Option<PollError>,
    /// Whether the poller knows the null key.
    null_key: bool,
    /// Whether a session announced more completions than were written. The results are then
    /// arbitrary, but accesses must stay inside the memory.
    lied: bool,
}

impl Model {
    /// Checks that a completion belongs to an open queue, and that each request completes once.
    fn check(&mut self, pairs: &[Pair], done: &WorkCompletion) {
        self.seen += 1;
        let id = done.user_context;
        let open = |pair: &Pair| pair.handle.state().user_context() == id;
        assert!(id == 0 || pairs.iter().any(open), "a completion of a closed queue");
        assert!(self.posted.remove(&done.wr_id), "it is not outstanding: {:#x}", done.wr_id);
    }
}

/// Reads all fields of a completion.
fn look(completion: &Completion<'_>) -> WorkCompletion {
    let mut data = [0; 64];
    assert!(completion.copy_inline(&mut data).is_none_or(|length| length <= data.len()));
    let texts = (completion.opcode(), completion.syndrome(), completion.vendor_syndrome());
    assert!(!format!("{texts:?}").is_empty());
    let _ = (completion.immediate(), completion.invalidated_rkey(), completion.remote());
    let _ = (completion.timestamp(), completion.vlan(), completion.receive_hash());
    assert_eq!(completion.to_bytes()[60..62], completion.wqe_index().to_be_bytes());
    completion.to_work_completion()
}

fn ring(u: &mut Unstructured<'_>) -> Result<Ring> {
    let size = *u.choose(&[64, 128])?;
    let entries: u32 = 1 << u.int_in_range(0..=4)?;
    Ok(Ring { memory: Memory::new((entries * size) as usize), mask: entries - 1, size })
}

impl Bench {
    fn new(u: &mut Unstructured<'_>) -> Result<Self> {
        let table = UserIndexTable::new();
        let ring = ring(u)?;
        let (record, arm) = (Memory::new(64), Memory::new(64));
        // SAFETY: the memory belongs to this bench, which drops the queue first; only the bench
        // acts as the device.
        let (memory, doorbell, register) = unsafe {
            (ring.memory.dma(), DoorbellWord::pair(record.start()), ArmRegister::new(arm.start()))
        };
        let null_key = u.arbitrary()?;
        let cq = CompletionQueue::new(CompletionQueueConfig {
            memory,
            entries: ring.mask + 1,
            cqe_size: ring.size,
            doorbell,
            arm: register,
            number: 7,
            table: &table,
            mini_format: Some(MiniCqeFormat(u.int_in_range(0..=3)?)),
            null_lkey: if null_key { Some(NULL_KEY) } else { None },
        })
        .expect("the ring fits");
        let (srq_ring, srq_record) = (Memory::new((RECEIVES * STRIDE) as usize), Memory::new(64));
        let shape = Shape { send_wqebbs: 0, recv_wqes: RECEIVES, shared_receive: true };
        let handle = table.register(shape, &[cq.monitor()], None, 0).expect("an index is left");
        // SAFETY: as above.
        let (memory, doorbell) = unsafe { (srq_ring.dma(), DoorbellWord::new(srq_record.start())) };
        let srq = SharedRecvQueueConfig {
            memory,
            doorbell,
            handle,
            stride: STRIDE,
            scatter_to_cqe: true,
        };
        let srq = SharedRecvQueue::new(srq).expect("the ring fits");
        let mut bench = Self {
            cq,
            table,
            srq,
            pairs: Vec::new(),
            ring,
            old: None,
            refused: Vec::new(),
            record,
            data: Memory::new(DATA),
            model: Model { null_key, ..Model::default() },
            _memory: [arm, srq_ring, srq_record],
        };
        bench.open(false);
        bench.open(true);
        Ok(bench)
    }

    /// Opens a queue pair, whose number is the user context of its completions.
    fn open(&mut self, shared: bool) {
        self.model.next_id += 1;
        let id = self.model.next_id;
        let memory = [
            Memory::new(SEND_BLOCKS as usize * 64),
            Memory::new(if shared { 64 } else { (RECEIVES * STRIDE) as usize }),
            Memory::new(64),
            Memory::new(512),
        ];
        let recv_wqes = if shared { 0 } else { RECEIVES };
        let shape = Shape { send_wqebbs: SEND_BLOCKS, recv_wqes, shared_receive: false };
        let srq = shared.then(|| self.srq.handle());
        let cqs = [self.cq.monitor()];
        let handle = self.table.register(shape, &cqs, srq, id).expect("an index is left");
        handle.set_state(QpState::Rts);
        self.model.holders.insert(handle.user_index(), id);
        // SAFETY: the memory belongs to the pair, which drops the queues first; no device accesses
        // it.
        let (sends, receives, doorbells, register) = unsafe {
            (
                memory[0].dma(),
                memory[1].dma(),
                DoorbellWord::pair(memory[2].start()),
                BlueFlame::new(memory[3].start(), 256),
            )
        };
        let send = SendQueue::new(SendQueueConfig {
            memory: sends,
            doorbell: doorbells.1,
            register,
            handle: handle.clone(),
            number: id as u32,
            max_requests: SEND_BLOCKS,
            max_sge: 4,
            max_inline: 100,
            signal_all: false,
            min_inline_header: 0,
            scatter_to_cqe: true,
        });
        let config = || RecvQueueConfig {
            memory: receives,
            doorbell: doorbells.0,
            handle: handle.clone(),
            stride: STRIDE,
            head_octowords: 0,
            scatter_to_cqe: true,
        };
        let receive = (!shared).then(|| RecvQueue::new(config()).expect("the ring fits"));
        let send = send.expect("the ring fits");
        self.pairs.push(Pair { send, receive, handle, _memory: memory });
    }

    fn turn(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        match u.int_in_range(0..=15)? {
            0..=4 => self.write(u)?,
            5 => self.write_session(u)?,
            6..=7 => self.poll(),
            8 => self.poll_some(u)?,
            9..=10 => self.post(u)?,
            11 => self.post_receives(u)?,
            12 => self.close(u)?,
            13 => self.resize(u)?,
            14 => {
                self.cq.arm(if u.arbitrary()? { Arm::Any } else { Arm::Solicited });
                self.cq.acknowledge_event();
            }
            _ if u.ratio(1, 8)? => {
                self.cq.monitor().set_overrun();
                self.model.failed = Some(PollError::Overrun);
            }
            _ => self.drain(),
        }
        Ok(())
    }

    /// The number of entries that the device may write.
    fn free_entries(&self) -> u32 {
        let consumed = u32::from_be_bytes(self.record.read(0));
        let used = self.model.producer.wrapping_sub(consumed) & 0xff_ffff;
        (self.ring.mask + 1).saturating_sub(used)
    }

    /// Offset of the 64-byte CQE in the entry at `index`.
    fn offset(&self, index: u32) -> usize {
        let entry = (index & self.ring.mask) * self.ring.size;
        (entry + self.ring.size - 64) as usize
    }

    /// A CQE with chosen fields and otherwise arbitrary bytes.
    fn cqe(&self, u: &mut Unstructured<'_>) -> Result<([u8; 64], u32)> {
        let mut cqe = [0; 64];
        if u.arbitrary()? {
            u.fill_buffer(&mut cqe)?;
        }
        let index = match u.int_in_range(0..=7)? {
            0 => self.srq.handle().user_index(),
            // An index that no queue has, or that is allocated only after many others.
            1 => *u.choose(&[0, 0x90, 0xff, 0x100, 0x3ff, 0xff_ffff])?,
            _ => self.pairs[u.choose_index(self.pairs.len())?].handle.user_index(),
        };
        cqe[32..36].copy_from_slice(&index.to_be_bytes());
        if u.ratio(1, 16)? {
            cqe[32] = u.arbitrary()?;
        }
        let length = if u.ratio(1, 8)? { u.arbitrary()? } else { u.int_in_range(0..=70u32)? };
        cqe[44..48].copy_from_slice(&length.to_be_bytes());
        let counter = if u.ratio(1, 8)? { u.arbitrary()? } else { u.int_in_range(0..=31u16)? };
        cqe[60..62].copy_from_slice(&counter.to_be_bytes());
        if u.arbitrary()? {
            // A page fault, which does not complete an SRQ's receive.
            (cqe[54], cqe[55]) = (0x93, 0x22);
        }
        Ok((cqe, index))
    }

    fn put(&mut self, cqe: &[u8; 64], opcode: CqeOpcode, format: CqeFormat) {
        let at = self.offset(self.model.producer);
        let lap = self.model.producer >> self.ring.mask.count_ones() & 1 != 0;
        let mut cqe = *cqe;
        let solicited = cqe[63] & 2 != 0;
        cqe[63] = OpOwn::new(opcode, format, solicited, lap).0;
        self.ring.memory.write(at, &cqe);
        self.model.producer = self.model.producer.wrapping_add(1);
    }

    fn note_owner(&mut self, counter: u32, index: u32) {
        let holder = self.model.holders.get(&index).copied();
        self.model.owners.insert(counter, (index, holder));
    }

    fn write(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        if self.free_entries() == 0 {
            return Ok(());
        }
        let (cqe, index) = self.cqe(u)?;
        let opcode = *u.choose(&[0, 0, 1, 2, 3, 4, 13, 14, 12, 6, 9])?;
        let opcode = CqeOpcode(if u.ratio(1, 16)? { u.int_in_range(0..=14)? } else { opcode });
        let format = CqeFormat(*u.choose(&[0, 0, 1, 2])?);
        if self.ring.size == 128 {
            let mut before = [0; 64];
            u.fill_buffer(&mut before)?;
            self.ring.memory.write(self.offset(self.model.producer) - 64, &before);
        }
        // Only `resize` writes resize CQEs.
        let opcode = if opcode == CqeOpcode::RESIZE { CqeOpcode::REQUESTER } else { opcode };
        self.note_owner(self.model.producer, index);
        self.put(&cqe, opcode, format);
        self.model.written += 1;
        Ok(())
    }

    /// A title, and arrays of mini-CQEs with arbitrary bytes.
    fn write_session(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let free = self.free_entries();
        if free < 2 {
            return Ok(());
        }
        let (mut cqe, index) = self.cqe(u)?;
        let honest = u.ratio(7, 8)?;
        let count = if honest { u.int_in_range(2..=free)? } else { u.arbitrary()? };
        cqe[44..48].copy_from_slice(&count.to_be_bytes());
        let opcode = CqeOpcode(*u.choose(&[0, 2, 2, 1, 3, 13, 9])?);
        let start = self.model.producer;
        for slot in 1..free.min(count.max(1)) {
            let mut array = [0; 64];
            u.fill_buffer(&mut array)?;
            for mini in array.chunks_exact_mut(8).filter(|_| opcode.is_requester()) {
                // A small WQE counter, so that there often is such a WQE.
                mini[0] = 0;
            }
            self.ring.memory.write(self.offset(start.wrapping_add(slot)), &array);
        }
        self.model.lied |= count.min(self.ring.mask + 1) > free;
        self.put(&cqe, opcode, CqeFormat::COMPRESSED);
        let count = count.clamp(1, free);
        (0..count).for_each(|slot| self.note_owner(start.wrapping_add(slot), index));
        self.model.producer = start.wrapping_add(count);
        self.model.written += u64::from(count);
        Ok(())
    }

    /// Polls one completion; true if there was one.
    fn poll_one(&mut self) -> bool {
        let Self { cq, model, pairs, .. } = self;
        let done = match cq.poll() {
            Ok(completion) => look(&completion),
            Err(PollError::NotOutstanding) => return true,
            Err(error) => {
                self.ended(error);
                return false;
            }
        };
        model.check(pairs, &done);
        if !model.lied {
            let counter = cq.consumer_index().wrapping_sub(1);
            let (index, holder) = model.owners.remove(&counter).expect("a CQE was written there");
            // If no queue had the index yet, the completion belongs to the queue that gets it
            // later.
            let owner = holder.or_else(|| model.holders.get(&index).copied());
            assert_eq!(done.user_context, owner.unwrap_or(0), "a completion of another queue");
        }
        true
    }

    fn ended(&mut self, error: PollError) {
        let model = &self.model;
        match (error, model.failed) {
            (PollError::Empty, None) => {}
            (error, failed) => assert_eq!(Some(error), failed),
        }
        if !model.lied {
            assert_eq!(self.cq.consumer_index(), model.producer, "stopped before the end");
            let dropped = self.cq.dropped() + self.cq.refused() + model.silent;
            assert_eq!(model.seen + dropped, model.written, "consumed once; {dropped} dropped");
        }
    }

    fn poll(&mut self) {
        self.poll_one();
        if self.cq.resize_is_finished() {
            self.old = None;
        }
    }

    fn poll_some(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let Self { cq, model, pairs, .. } = self;
        let many: usize = u.int_in_range(1..=12)?;
        let mut done = vec![WorkCompletion::default(); many];
        let mut count = 0;
        if u.arbitrary()? {
            let mut batch = cq.batch();
            while count < many {
                let Ok(completion) = batch.next() else { break };
                done[count] = look(&completion);
                count += 1;
            }
        } else {
            count = cq.poll_into(&mut done).unwrap_or(0);
        }
        done[..count].iter().for_each(|done| model.check(pairs, done));
        Ok(())
    }

    fn drain(&mut self) {
        // A title can announce at most as many completions as the ring has entries, so this many
        // polls suffice.
        for _ in 0..1000 {
            if !self.poll_one() {
                if self.cq.resize_is_finished() {
                    self.old = None;
                }
                return;
            }
        }
        assert!(self.model.lied, "the queue never ends");
    }

    /// A range of the data that completions may write to.
    fn sge(&self, u: &mut Unstructured<'_>) -> Result<Sge> {
        let length = u.int_in_range(0..=64u32)?;
        let offset = u.int_in_range(0..=DATA - 65)?;
        let lkey = if self.model.null_key && u.ratio(1, 8)? { NULL_KEY } else { 5 };
        let address = if lkey == NULL_KEY { 8 } else { self.data.address(offset) };
        Ok(Sge::new(address, length, lkey))
    }

    fn post(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let list = [self.sge(u)?, self.sge(u)?, self.sge(u)?];
        let list = &list[..u.int_in_range(0..=3)?];
        let at = u.choose_index(self.pairs.len())?;
        let (what, _) = (u.int_in_range(0..=3)?, u.arbitrary::<u16>()?);
        self.model.next_id += 1;
        let wr_id = self.model.next_id;
        let result = self.data.address(u.int_in_range(0..=DATA - 8)?);
        let pair = &mut self.pairs[at];
        let (queue, remote, flags) = (&mut pair.send, Remote::new(64, 9), PostFlags::SIGNALED);
        // SAFETY: the ranges are in `data`, which lives as long as the bench and to which no
        // reference exists.
        let posted = unsafe {
            match what {
                0 => queue.post(wr_id, Read(remote), list, flags),
                1 => {
                    let buffer = AtomicResult { address: result, lkey: 5 };
                    queue.post(wr_id, FetchAdd { remote, add: 1 }, buffer, flags)
                }
                2 => queue.post(wr_id, Send, Inline(&[0x11; 90]), flags),
                _ => queue.post(wr_id, Send, list, flags),
            }
        };
        if posted.is_ok() {
            self.model.posted.insert(wr_id);
        }
        Ok(())
    }

    fn post_receives(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let list = [self.sge(u)?, self.sge(u)?];
        let list = &list[..u.int_in_range(0..=2)?];
        self.model.next_id += 1;
        let wr_id = SHARED | self.model.next_id;
        // SAFETY: as in `post`.
        if unsafe { self.srq.build(wr_id, list) }.is_ok() {
            self.model.posted.insert(wr_id);
        }
        self.srq.publish();
        let mut outstanding = HashSet::new();
        self.srq.for_each_outstanding(|wr_id| assert!(outstanding.insert(wr_id)));
        assert!(outstanding.is_subset(&self.model.posted));
        for pair in &mut self.pairs {
            if let Some(receive) = &mut pair.receive {
                self.model.next_id += 1;
                // SAFETY: as in `post`.
                if unsafe { receive.build(self.model.next_id, list) }.is_ok() {
                    self.model.posted.insert(self.model.next_id);
                }
                receive.publish();
            }
        }
        Ok(())
    }

    /// Closes a pair and frees its memory at once, as after the kernel has destroyed it; or opens a
    /// pair.
    fn close(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        if self.pairs.len() > 2 || u.arbitrary()? {
            let at = u.choose_index(self.pairs.len())?;
            let pair = self.pairs.remove(at);
            pair.handle.close();
        }
        if self.pairs.len() < 3 {
            self.open(u.arbitrary()?);
        }
        Ok(())
    }

    /// Moves to a new ring, like the kernel's RESIZE_CQ, or aborts the resize.
    fn resize(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let next = ring(u)?;
        if self.free_entries() == 0 || self.model.lied {
            return Ok(());
        }
        // SAFETY: the old ring is kept until the poller has left it, the new one as long as the
        // queue.
        let memory = unsafe { next.memory.dma() };
        match self.cq.prepare_resize(memory, next.mask + 1, next.size) {
            Ok(()) if u.ratio(1, 4)? => {
                self.cq.cancel_resize();
                self.refused.push(next);
                return Ok(());
            }
            Ok(()) => {}
            Err(_) => {
                assert!(!self.cq.resize_is_finished());
                return Ok(());
            }
        }
        self.put(&[0; 64], CqeOpcode::RESIZE, CqeFormat::NO_INLINE);
        self.model.written += 1;
        self.model.silent += 1;
        self.old = Some(std::mem::replace(&mut self.ring, next));
        Ok(())
    }

    fn finish(mut self) {
        if self.model.failed.is_none() && !self.model.lied {
            self.drain();
        }
        for pair in &mut self.pairs {
            pair.handle.close();
            pair.send.for_each_outstanding(|_| {});
            if let Some(receive) = &mut pair.receive {
                receive.for_each_outstanding(|_| {});
            }
        }
    }
}
