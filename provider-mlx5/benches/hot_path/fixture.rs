//! Queues on plain memory, and completions written by hand.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::ptr::NonNull;

use uverbs_mlx5::completion_queue::{CompletionQueue, CompletionQueueConfig, CqMonitor};
use uverbs_mlx5::doorbell::DoorbellWord;
use uverbs_mlx5::format::{AddressVector, MiniCqeFormat};
use uverbs_mlx5::memory::DmaMemory;
use uverbs_mlx5::mmio::{ArmRegister, BlueFlame, Register, SharedBlueFlame};
use uverbs_mlx5::queue_state::{QpState, Shape};
use uverbs_mlx5::recv_queue::{RecvQueue, RecvQueueConfig};
use uverbs_mlx5::request::Sge;
use uverbs_mlx5::send_queue::{Rc, SendQueue, SendQueueConfig, Template, Transport, Ud, Write};
use uverbs_mlx5::shared_recv_queue::{SharedRecvQueue, SharedRecvQueueConfig};
use uverbs_mlx5::user_index::{QueueHandle, UserIndexTable};

use super::OPERATIONS;
use super::frames::{Frames, Trade};
use super::polls::Many;
use super::producer::Producer;

const ENTRIES: u32 = 1024;
/// As many as in the comparison with libmlx5. Entries come back in order, so posts walk through all
/// of them.
pub(crate) const SRQ_ENTRIES: u32 = 512;

/// Zeroed memory that is never freed.
pub(crate) fn leak(len: usize) -> NonNull<u8> {
    let layout = Layout::from_size_align(len, 4096).expect("a valid layout");
    // SAFETY: the length is not zero.
    let memory = unsafe { alloc_zeroed(layout) };
    NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout))
}

/// Maps each 64 bytes of `data`.
fn leaked<T>(data: &'static [u8], item: impl Fn(&'static [u8]) -> T) -> &'static [T] {
    data.chunks(64).map(item).collect::<Vec<_>>().leak()
}

pub(crate) fn dma(len: usize) -> (DmaMemory, *mut u8) {
    let memory = leak(len);
    // SAFETY: leaked, and used by one queue and by the benchmark's own "device".
    (unsafe { DmaMemory::new(memory, len) }, memory.as_ptr())
}

pub(crate) fn record() -> (DoorbellWord, DoorbellWord) {
    // SAFETY: leaked, 4096 bytes.
    unsafe { DoorbellWord::pair(leak(4096).cast()) }
}

/// Everything the cases need.
pub(crate) struct Bench {
    pub(crate) cq: CompletionQueue,
    device: Producer,
    srq_completed: u32,
    pub(crate) rc: SendQueue<Rc>,
    pub(crate) ud: SendQueue<Ud>,
    /// Rings a register that others may ring too.
    pub(crate) shared: SendQueue<Rc, SharedBlueFlame>,
    pub(crate) rq: RecvQueue,
    pub(crate) srq: SharedRecvQueue,
    pub(crate) many: Many,
    /// Made when it is first needed.
    pub(crate) thousand: Option<Many>,
    pub(crate) frames: Frames,
    /// Orders of 64 bytes and of 128.
    pub(crate) trade_64: Trade<2>,
    pub(crate) trade_128: Trade<3>,
    pub(crate) template: Template<Write>,
    pub(crate) address: AddressVector,
    /// One message per operation, 16 bytes and 64.
    pub(crate) short: &'static [&'static [u8]],
    pub(crate) long: &'static [&'static [u8]],
    pub(crate) fixed: &'static [&'static [u8; 16]],
    pub(crate) fixed_long: &'static [&'static [u8; 64]],
    pub(crate) sges: &'static [[Sge; 1]],
    /// SGEs of the same messages as address, length and key.
    pub(crate) fields: &'static [(u64, u32, u32)],
    rc_handle: QueueHandle,
    ud_handle: QueueHandle,
    shared_handle: QueueHandle,
    rq_handle: QueueHandle,
    srq_handle: QueueHandle,
}

/// A BlueFlame register for one queue.
pub(crate) fn register() -> BlueFlame {
    // SAFETY: leaked memory plays the register.
    unsafe { BlueFlame::new(leak(4096), 256) }
}

fn send_queue<T: Transport, R: Register>(
    table: &UserIndexTable,
    cq: &CqMonitor,
    number: u32,
    register: R,
) -> (SendQueue<T, R>, QueueHandle) {
    let handle = handle(table, std::slice::from_ref(cq), [ENTRIES, 0], None);
    let queue = send_queue_on(&handle, ENTRIES, number, register);
    (queue, handle)
}

/// Registers a queue pair with this many blocks and receives in the table.
pub(crate) fn handle(
    table: &UserIndexTable,
    cqs: &[CqMonitor],
    [send_wqebbs, recv_wqes]: [u32; 2],
    srq: Option<&QueueHandle>,
) -> QueueHandle {
    let shape = Shape { send_wqebbs, recv_wqes, shared_receive: false };
    let handle = table.register(shape, cqs, srq, 7).expect("an index");
    handle.set_state(QpState::Rts);
    handle
}

/// A send queue with a register of its own.
pub(crate) fn send_queue_of(handle: &QueueHandle, entries: u32) -> SendQueue<Rc> {
    send_queue_on(handle, entries, 0x100, register())
}

fn send_queue_on<T: Transport, R: Register>(
    handle: &QueueHandle,
    entries: u32,
    number: u32,
    register: R,
) -> SendQueue<T, R> {
    let queue = SendQueue::new(SendQueueConfig {
        memory: dma(entries as usize * 64).0,
        doorbell: record().1,
        register,
        handle: handle.clone(),
        number,
        max_requests: entries,
        max_sge: 4,
        max_inline: 200,
        signal_all: false,
        min_inline_header: 0,
        scatter_to_cqe: false,
    });
    queue.expect("a queue")
}

pub(crate) fn recv_queue_of(handle: &QueueHandle, entries: u32) -> RecvQueue {
    let queue = RecvQueue::new(RecvQueueConfig {
        memory: dma(entries as usize * 16).0,
        doorbell: record().0,
        handle: handle.clone(),
        stride: 16,
        head_octowords: 0,
        scatter_to_cqe: false,
    });
    queue.expect("a queue")
}

pub(crate) fn shared_recv_queue(
    table: &UserIndexTable,
    cqs: &[CqMonitor],
) -> (SharedRecvQueue, QueueHandle) {
    let shape = Shape { send_wqebbs: 0, recv_wqes: SRQ_ENTRIES, shared_receive: true };
    let handle = table.register(shape, cqs, None, 9).expect("an index");
    let queue = SharedRecvQueue::new(SharedRecvQueueConfig {
        memory: dma(SRQ_ENTRIES as usize * 64).0,
        doorbell: record().0,
        handle: handle.clone(),
        stride: 64,
        scatter_to_cqe: false,
    });
    (queue.expect("a queue"), handle)
}

/// A CQ, and the device's side of it.
pub(crate) fn completion_queue(
    table: &UserIndexTable,
    entries: u32,
) -> (CompletionQueue, Producer) {
    completion_queue_of(table, entries, Some(MiniCqeFormat::HASH))
}

/// As [`completion_queue`]; `mini_format` is `None` where completions are not compressed.
pub(crate) fn completion_queue_of(
    table: &UserIndexTable,
    entries: u32,
    mini_format: Option<MiniCqeFormat>,
) -> (CompletionQueue, Producer) {
    let (memory, ring) = dma(entries as usize * 64);
    let cq = CompletionQueue::new(CompletionQueueConfig {
        memory,
        entries,
        cqe_size: 64,
        doorbell: record(),
        // SAFETY: leaked memory plays the register.
        arm: unsafe { ArmRegister::new(leak(4096).cast()) },
        number: 5,
        table,
        mini_format,
        null_lkey: None,
    });
    // SAFETY: the ring is leaked.
    (cq.expect("a queue"), unsafe { Producer::new(ring, entries) })
}

impl Bench {
    pub(crate) fn new() -> Self {
        let table = UserIndexTable::new();
        let (cq, device) = completion_queue(&table, ENTRIES);
        let monitor = cq.monitor();
        let (mut rc, rc_handle) = send_queue::<Rc, _>(&table, &monitor, 0x100, register());
        let (ud, ud_handle) = send_queue::<Ud, _>(&table, &monitor, 0x101, register());
        let shared = SharedBlueFlame::new(register());
        let (shared, shared_handle) = send_queue::<Rc, _>(&table, &monitor, 0x104, shared);
        let monitors = [monitor];
        let rq_handle = handle(&table, &monitors, [0, ENTRIES], None);
        let rq = recv_queue_of(&rq_handle, ENTRIES);
        let (srq, srq_handle) = shared_recv_queue(&table, &monitors);
        let data: &'static [u8] = Vec::from_iter((0..64 * OPERATIONS).map(|i| i as u8)).leak();
        let template = super::cases::template(&mut rc);
        Self {
            cq,
            device,
            srq_completed: 0,
            rc,
            ud,
            shared,
            rq,
            srq,
            many: Many::some(),
            thousand: None,
            frames: Frames::new(),
            trade_64: Trade::new(&[7; 64]),
            trade_128: Trade::new(&[7; 128]),
            template,
            address: AddressVector::default().for_datagram(1, 2),
            short: leaked(data, |chunk| &chunk[..16]),
            long: leaked(data, |chunk| chunk),
            fixed: leaked(data, |chunk| chunk.first_chunk().expect("64 bytes")),
            fixed_long: leaked(data, |chunk| chunk.first_chunk().expect("64 bytes")),
            fields: leaked(data, |chunk| (chunk.as_ptr() as u64, 64, 0x1000)),
            sges: leaked(data, |chunk| [Sge::new(chunk.as_ptr() as u64, 64, 0x1234)]),
            rc_handle,
            ud_handle,
            shared_handle,
            rq_handle,
            srq_handle,
        }
    }

    /// The completion of an RDMA write on the RC queue.
    pub(crate) fn complete_write(&mut self, wqe_counter: u32) {
        self.device.send(self.rc_handle.user_index(), 8 << 24 | 0x100, wqe_counter);
    }

    pub(crate) fn complete_recv(&mut self, wqe_counter: u32) {
        self.device.receive(self.rq_handle.user_index(), 0x102, wqe_counter);
    }

    fn poll_all(&mut self) {
        let mut batch = self.cq.batch();
        while batch.next().is_ok() {}
    }

    /// Completes all requests of the RC queue since counter `start`, which have the same length.
    pub(crate) fn retire_rc(&mut self, start: u32) {
        let head = self.rc.head();
        let blocks = head.wrapping_sub(start) / OPERATIONS as u32;
        self.complete_write(head.wrapping_sub(blocks));
        self.poll_all();
    }

    pub(crate) fn retire_ud(&mut self, blocks: u32) {
        let last = self.ud.head().wrapping_sub(blocks);
        self.device.send(self.ud_handle.user_index(), 10 << 24 | 0x101, last);
        self.poll_all();
    }

    pub(crate) fn retire_shared(&mut self) {
        let last = self.shared.head().wrapping_sub(1);
        self.device.send(self.shared_handle.user_index(), 8 << 24 | 0x104, last);
        self.poll_all();
    }

    pub(crate) fn retire_recv(&mut self) {
        for back in (1..=OPERATIONS as u32).rev() {
            self.complete_recv(self.rq.head().wrapping_sub(back));
        }
        self.poll_all();
    }

    /// Completes the posted entries in the order in which they were posted. They become free in
    /// that order, too, so the free list keeps the order of the ring.
    pub(crate) fn retire_srq(&mut self) {
        for _ in 0..OPERATIONS {
            self.device.receive(self.srq_handle.user_index(), 0x103, self.srq_completed);
            self.srq_completed = (self.srq_completed + 1) % SRQ_ENTRIES;
        }
        self.poll_all();
    }
}
