//! Queues over plain memory, and the device's side of them.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::ptr::NonNull;

use uverbs_mlx5::completion_queue::{CompletionQueue, CompletionQueueConfig, CqMonitor};
use uverbs_mlx5::doorbell::DoorbellWord;
use uverbs_mlx5::format::{
    CqeFormat, CqeOpcode, MiniCqe, MiniCqeFormat, OpOwn, Opcode, Syndrome, VendorSyndrome,
};
use uverbs_mlx5::memory::DmaMemory;
use uverbs_mlx5::mmio::{ArmRegister, BlueFlame, Register};
use uverbs_mlx5::queue_error::QueueError;
use uverbs_mlx5::queue_state::{QpState, Shape};
use uverbs_mlx5::recv_queue::{RecvQueue, RecvQueueConfig};
use uverbs_mlx5::request::PostFlags;
use uverbs_mlx5::send_queue::{Nop, Rc, SendQueue, SendQueueConfig, Transport};
use uverbs_mlx5::shared_recv_queue::{SharedRecvQueue, SharedRecvQueueConfig};
use uverbs_mlx5::user_index::{QueueHandle, UserIndexTable, WasReset};
use zerocopy::IntoBytes;

/// Bytes after each memory that nothing may write.
const GUARD: usize = 64;

/// Leaked memory, zeroed.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a test hands it to one thread at a time.
unsafe impl Send for Memory {}

impl Memory {
    pub(crate) fn new(len: usize) -> Self {
        let layout = Layout::from_size_align((len + GUARD).max(4096), 4096).expect("a layout");
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) });
        Self { base: base.unwrap_or_else(|| handle_alloc_error(layout)), len }
    }

    pub(crate) fn dma(&self) -> DmaMemory {
        // SAFETY: leaked; used by one queue, and by the test between the queue's calls.
        unsafe { DmaMemory::new(self.base, self.len) }
    }

    pub(crate) fn ptr(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        // SAFETY: within the memory; copied byte by byte, no reference is made.
        (0..len).map(|i| unsafe { self.base.as_ptr().add(at + i).read() }).collect()
    }

    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: as above.
            unsafe { self.base.as_ptr().add(at + i).write(*byte) };
        }
    }

    /// Whether nothing was written after the memory.
    pub(crate) fn ends_intact(&self) -> bool {
        // SAFETY: as above; `new` allocated them.
        (0..GUARD).all(|i| unsafe { self.base.as_ptr().add(self.len + i).read() } == 0)
    }

    pub(crate) fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.read(at, 4).try_into().expect("four bytes"))
    }
}

/// Resets a queue.
pub(crate) fn renew(handle: &QueueHandle) -> QueueHandle {
    // SAFETY: the device is the test, which accesses no memory that requests name.
    handle.renew(unsafe { WasReset::new() })
}

/// A CQ and the device's side of it.
pub(crate) struct Cq {
    pub(crate) queue: CompletionQueue,
    pub(crate) ring: Memory,
    pub(crate) record: Memory,
    pub(crate) arm: Memory,
    pub(crate) entries: u32,
    pub(crate) cqe_size: usize,
    pub(crate) produced: u32,
    pub(crate) table: UserIndexTable,
}

impl Cq {
    pub(crate) fn new(entries: u32, cqe_size: usize) -> Self {
        Self::made(&UserIndexTable::new(), entries, cqe_size, None)
    }

    /// A CQ whose completions may be compressed.
    pub(crate) fn with(entries: u32, cqe_size: usize, mini_format: MiniCqeFormat) -> Self {
        Self::made(&UserIndexTable::new(), entries, cqe_size, Some(mini_format))
    }

    /// Another CQ of the same context.
    pub(crate) fn on(table: &UserIndexTable, entries: u32, cqe_size: usize) -> Self {
        Self::made(table, entries, cqe_size, None)
    }

    fn made(
        table: &UserIndexTable,
        entries: u32,
        cqe_size: usize,
        mini_format: Option<MiniCqeFormat>,
    ) -> Self {
        let ring = Memory::new(entries as usize * cqe_size);
        let (record, arm) = (Memory::new(8), Memory::new(8));
        let queue = CompletionQueue::new(CompletionQueueConfig {
            memory: ring.dma(),
            entries,
            cqe_size: cqe_size as u32,
            // SAFETY: leaked.
            doorbell: unsafe { DoorbellWord::pair(record.ptr().cast()) },
            // SAFETY: leaked.
            arm: unsafe { ArmRegister::new(arm.ptr().cast()) },
            number: 0x77,
            table,
            mini_format,
            null_lkey: Some(0xdead),
        });
        let queue = queue.expect("a queue");
        let table = table.clone();
        Self { queue, ring, record, arm, entries, cqe_size, produced: 0, table }
    }

    /// A CQ of which `start` CQEs were consumed.
    pub(crate) fn after(start: u32, entries: u32, cqe_size: usize) -> Self {
        Self::new(entries, cqe_size).moved_to(start)
    }

    /// Moves a CQ that was not used to where it would be after `start` CQEs: as if the program had
    /// polled the ring itself.
    pub(crate) fn moved_to(mut self, start: u32) -> Self {
        // The record has 24 bits, of which a half can be ahead.
        while self.queue.consumer_index() != start {
            let at = self.queue.consumer_index();
            let next = at + (start - at).min(0x7f_ffff);
            self.record.write(0, &(next & 0xff_ffff).to_be_bytes());
            self.queue.follow_record();
            assert_eq!(self.queue.consumer_index(), next);
        }
        self.produced = start;
        self
    }

    pub(crate) fn monitors(&self) -> [CqMonitor; 1] {
        [self.queue.monitor()]
    }

    /// Replaces the CQ by one of the context that has `table`; returns its monitors.
    pub(crate) fn adopt(&mut self, table: &UserIndexTable) -> [CqMonitor; 1] {
        let other = Self::on(table, self.entries, self.cqe_size);
        *self = other;
        self.monitors()
    }

    /// The offset of entry `index`'s last 64 bytes, which are the CQE itself.
    pub(crate) fn place(&self, index: u32) -> usize {
        (index % self.entries) as usize * self.cqe_size + self.cqe_size - 64
    }

    /// Writes a compressed session: the title at the next entry, arrays after it.
    pub(crate) fn produce_session(&mut self, title: Cqe, minis: &[MiniCqe]) {
        let start = self.produced;
        for (i, array) in minis.chunks(8).enumerate() {
            let ahead = if i == 0 { 1 } else { 8 * i as u32 };
            let at = self.place(start.wrapping_add(ahead));
            for (place, mini) in array.iter().enumerate() {
                self.ring.write(at + 8 * place, mini.as_bytes());
            }
        }
        let count = minis.len() as u32;
        self.produce(Cqe { format: CqeFormat::COMPRESSED, byte_count: count, ..title });
        self.produced = start.wrapping_add(count);
    }

    /// Writes a CQE as the device does, the last byte last.
    pub(crate) fn produce(&mut self, cqe: Cqe) {
        let at = self.place(self.produced);
        let lap = self.produced & self.entries != 0;
        let op_own = OpOwn::new(cqe.opcode, cqe.format, false, lap);
        if cqe.format == CqeFormat::INLINE_64 {
            self.ring.write(at - 64, &cqe.data);
        }
        self.ring.write(at, &cqe.bytes());
        self.ring.write(at + 63, &[op_own.0]);
        self.produced = self.produced.wrapping_add(1);
    }
}

/// Counters with a wrap after them: none, that of 24 bits in a CQ's doorbell record, and that of a
/// CQ's own counter.
pub(crate) const NEAR_WRAPS: [u32; 3] = [0, (1 << 24) - 24, 0u32.wrapping_sub(24)];

/// The fields of a CQE.
#[derive(Clone)]
pub(crate) struct Cqe {
    pub(crate) opcode: CqeOpcode,
    pub(crate) format: CqeFormat,
    pub(crate) user_index: u32,
    pub(crate) wqe_counter: u16,
    pub(crate) qpn: u32,
    /// Requester: the WQE's opcode.
    pub(crate) wqe_opcode: u8,
    pub(crate) byte_count: u32,
    pub(crate) immediate: u32,
    /// Inline data.
    pub(crate) data: Vec<u8>,
    /// Error: vendor syndrome and syndrome.
    pub(crate) error: [u8; 2],
    pub(crate) wqe_id: u16,
    /// Tag matching: the message's header or the report of a change, and `app` to `app_info`.
    pub(crate) tagged: Option<([u8; 16], [u8; 4])>,
}

impl Cqe {
    pub(crate) fn send(handle: &QueueHandle, wqe_counter: u32) -> Self {
        Self {
            opcode: CqeOpcode::REQUESTER,
            format: CqeFormat::NO_INLINE,
            user_index: handle.user_index(),
            wqe_counter: wqe_counter as u16,
            qpn: handle.state().number(),
            wqe_opcode: Opcode::SEND.0,
            byte_count: 0,
            immediate: 0,
            data: Vec::new(),
            error: [0; 2],
            wqe_id: 0,
            tagged: None,
        }
    }

    pub(crate) fn recv(handle: &QueueHandle, wqe_counter: u32) -> Self {
        Self {
            opcode: CqeOpcode::RESPONDER_SEND,
            byte_count: 64,
            ..Self::send(handle, wqe_counter)
        }
    }

    /// Striding queues: the WQE's number.
    pub(crate) fn wqe_id(self, wqe: u32) -> Self {
        Self { wqe_id: wqe as u16, ..self }
    }

    pub(crate) fn byte_count(self, byte_count: u32) -> Self {
        Self { byte_count, ..self }
    }

    pub(crate) fn opcode(self, opcode: CqeOpcode) -> Self {
        Self { opcode, ..self }
    }

    pub(crate) fn inline(self, format: CqeFormat, data: &[u8]) -> Self {
        Self { format, byte_count: data.len() as u32, data: data.to_vec(), ..self }
    }

    pub(crate) fn failed(self, vendor: u8, syndrome: u8) -> Self {
        let requester = self.opcode == CqeOpcode::REQUESTER;
        let opcode =
            if requester { CqeOpcode::REQUESTER_ERROR } else { CqeOpcode::RESPONDER_ERROR };
        Self { opcode, error: [vendor, syndrome], ..self }
    }

    /// The receive hit a page fault of on-demand paging.
    pub(crate) fn page_fault(self) -> Self {
        self.failed(VendorSyndrome::ODP_PAGE_FAULT.0, Syndrome::REMOTE_ABORTED.0)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 63];
        if self.format == CqeFormat::INLINE_32 {
            bytes[..self.data.len()].copy_from_slice(&self.data);
        }
        if self.wqe_id != 0 {
            bytes[2..4].copy_from_slice(&self.wqe_id.to_be_bytes());
        }
        if let Some((head, app)) = self.tagged {
            bytes[..16].copy_from_slice(&head);
            bytes[40..44].copy_from_slice(&app);
        }
        bytes[32..36].copy_from_slice(&self.user_index.to_be_bytes());
        bytes[36..40].copy_from_slice(&self.immediate.to_be_bytes());
        bytes[44..48].copy_from_slice(&self.byte_count.to_be_bytes());
        if self.opcode.is_error() {
            bytes[54..56].copy_from_slice(&self.error);
        }
        let word = u32::from(self.wqe_opcode) << 24 | self.qpn;
        bytes[56..60].copy_from_slice(&word.to_be_bytes());
        bytes[60..62].copy_from_slice(&self.wqe_counter.to_be_bytes());
        bytes
    }
}

/// A send queue and the device's side of it.
pub(crate) struct Sq<T: Transport> {
    pub(crate) queue: SendQueue<T>,
    pub(crate) handle: QueueHandle,
    pub(crate) ring: Memory,
    pub(crate) record: Memory,
    pub(crate) register: Memory,
}

pub(crate) fn send_queue<T: Transport>(cq: &Cq, blocks: u32) -> Sq<T> {
    send_queue_with(cq, blocks, 256, false)
}

/// A send queue with requests of one block outstanding.
pub(crate) fn busy_send_queue(cq: &Cq, blocks: u32, requests: u32) -> Sq<Rc> {
    let mut sq = send_queue(cq, blocks);
    sq.post_nops(requests);
    sq
}

impl Sq<Rc> {
    /// Posts signaled requests of one block, without data.
    pub(crate) fn post_nops(&mut self, requests: u32) {
        for _ in 0..requests {
            let wr_id = u64::from(self.queue.head());
            // SAFETY: there is no data.
            unsafe { self.queue.post(wr_id, Nop, (), PostFlags::SIGNALED) }.expect("space");
        }
    }
}

pub(crate) fn send_queue_with<T: Transport>(
    cq: &Cq,
    blocks: u32,
    half: u32,
    scatter_to_cqe: bool,
) -> Sq<T> {
    let shape = Shape { send_wqebbs: blocks, recv_wqes: 0, shared_receive: false };
    let handle = cq.table.register(shape, &cq.monitors(), None, 0xc0ffee).expect("an index");
    handle.set_number(0x100 + handle.user_index());
    handle.set_state(QpState::Rts);
    send_queue_of(handle, [blocks, blocks], half, scatter_to_cqe)
}

/// A send queue that accepts fewer requests than it has blocks.
pub(crate) fn send_queue_for<T: Transport>(cq: &Cq, blocks: u32, requests: u32) -> Sq<T> {
    let shape = Shape { send_wqebbs: blocks, recv_wqes: 0, shared_receive: false };
    let handle = cq.table.register(shape, &cq.monitors(), None, 0xc0ffee).expect("an index");
    handle.set_state(QpState::Rts);
    send_queue_of(handle, [blocks, requests], 256, false)
}

/// The send queue of a handle, with the given number of blocks and requests.
pub(crate) fn send_queue_of<T: Transport>(
    handle: QueueHandle,
    blocks_and_requests: [u32; 2],
    half: u32,
    scatter_to_cqe: bool,
) -> Sq<T> {
    try_send_queue_of(handle, blocks_and_requests, half, scatter_to_cqe).expect("a queue")
}

/// [`send_queue_of`] with as many requests as blocks; an error if the handle has a queue already.
pub(crate) fn try_send_queue<T: Transport>(
    handle: QueueHandle,
    blocks: u32,
) -> Result<Sq<T>, QueueError> {
    try_send_queue_of(handle, [blocks, blocks], 256, false)
}

fn try_send_queue_of<T: Transport>(
    handle: QueueHandle,
    [blocks, max_requests]: [u32; 2],
    half: u32,
    scatter_to_cqe: bool,
) -> Result<Sq<T>, QueueError> {
    let (ring, record) = (Memory::new(blocks as usize * 64), Memory::new(8));
    let register = Memory::new(512);
    let queue = SendQueue::new(SendQueueConfig {
        memory: ring.dma(),
        // SAFETY: leaked.
        doorbell: unsafe { DoorbellWord::pair(record.ptr().cast()) }.1,
        // SAFETY: leaked, and used by this queue only.
        register: unsafe { BlueFlame::new(register.ptr(), half) },
        handle: handle.clone(),
        number: handle.state().number(),
        max_requests,
        max_sge: 8,
        max_inline: 200,
        signal_all: false,
        min_inline_header: 0,
        scatter_to_cqe,
    });
    queue.map(|queue| Sq { queue, handle, ring, record, register })
}

/// A send queue on the caller's register.
pub(crate) fn send_queue_on<R: Register>(
    cq: &Cq,
    blocks: u32,
    register: R,
) -> (SendQueue<Rc, R>, Memory) {
    let shape = Shape { send_wqebbs: blocks, recv_wqes: 0, shared_receive: false };
    let handle = cq.table.register(shape, &cq.monitors(), None, 0).expect("an index");
    handle.set_state(QpState::Rts);
    let (ring, record) = (Memory::new(blocks as usize * 64), Memory::new(8));
    let queue = SendQueue::new(SendQueueConfig {
        memory: ring.dma(),
        // SAFETY: leaked.
        doorbell: unsafe { DoorbellWord::pair(record.ptr().cast()) }.1,
        register,
        handle,
        number: 0x300,
        max_requests: blocks,
        max_sge: 1,
        max_inline: 16,
        signal_all: false,
        min_inline_header: 0,
        scatter_to_cqe: false,
    });
    (queue.expect("a queue"), ring)
}

/// A receive queue and the device's side of it.
pub(crate) struct Rq {
    pub(crate) queue: RecvQueue,
    pub(crate) handle: QueueHandle,
    pub(crate) ring: Memory,
    pub(crate) record: Memory,
}

pub(crate) fn recv_queue(cq: &Cq, entries: u32, stride: u32, scatter_to_cqe: bool) -> Rq {
    recv_queue_after(cq, entries, stride, scatter_to_cqe, 0)
}

/// A receive queue whose scatter lists begin after `head_octowords`.
pub(crate) fn recv_queue_after(
    cq: &Cq,
    entries: u32,
    stride: u32,
    scatter_to_cqe: bool,
    head_octowords: u32,
) -> Rq {
    let shape = Shape { send_wqebbs: 0, recv_wqes: entries, shared_receive: false };
    let handle = cq.table.register(shape, &cq.monitors(), None, 0xbeef).expect("an index");
    handle.set_state(QpState::Init);
    let (ring, record) = (Memory::new((entries * stride) as usize), Memory::new(8));
    let queue = RecvQueue::new(RecvQueueConfig {
        memory: ring.dma(),
        // SAFETY: leaked.
        doorbell: unsafe { DoorbellWord::pair(record.ptr().cast()) }.0,
        handle: handle.clone(),
        stride,
        head_octowords,
        scatter_to_cqe,
    });
    Rq { queue: queue.expect("a queue"), handle, ring, record }
}

/// A shared receive queue, a QP that consumes it, and the device's side of them.
pub(crate) struct Srq {
    pub(crate) queue: SharedRecvQueue,
    pub(crate) handle: QueueHandle,
    pub(crate) qp: QueueHandle,
    pub(crate) ring: Memory,
    pub(crate) record: Memory,
    pub(crate) stride: u32,
}

pub(crate) fn shared_recv_queue(cq: &Cq, entries: u32, stride: u32, scatter_to_cqe: bool) -> Srq {
    let shape = Shape { send_wqebbs: 0, recv_wqes: entries, shared_receive: true };
    let handle = cq.table.register(shape, &cq.monitors(), None, 1).expect("an index");
    let qp_shape = Shape { send_wqebbs: 1, recv_wqes: 0, shared_receive: false };
    let qp = cq.table.register(qp_shape, &cq.monitors(), Some(&handle), 2).expect("an index");
    let (ring, record) = (Memory::new((entries * stride) as usize), Memory::new(8));
    let queue = SharedRecvQueue::new(SharedRecvQueueConfig {
        memory: ring.dma(),
        // SAFETY: leaked.
        doorbell: unsafe { DoorbellWord::new(record.ptr().cast()) },
        handle: handle.clone(),
        stride,
        scatter_to_cqe,
    });
    Srq { queue: queue.expect("a queue"), handle, qp, ring, record, stride }
}

impl Srq {
    /// The entry that follows `index` in the device's list.
    pub(crate) fn next(&self, index: u32) -> u32 {
        let link = self.ring.read((index * self.stride) as usize + 2, 2);
        u32::from(u16::from_be_bytes([link[0], link[1]]))
    }
}

/// A deterministic random sequence (xorshift), which prints its seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        println!("seed {seed}");
        Self(seed)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit
    }
}
