//! Points of the grid for queues that are kept full: each completion that is polled makes space for
//! the receive that is posted next.

use std::hint::black_box;

use uverbs_mlx5::completion_queue::CompletionQueue;
use uverbs_mlx5::queue_state::{QpState, Shape};
use uverbs_mlx5::recv_queue::{RecvQueue, RecvQueueConfig};
use uverbs_mlx5::request::{PostError, Sge};
use uverbs_mlx5::shared_recv_queue::{SharedRecvQueue, SharedRecvQueueConfig};
use uverbs_mlx5::user_index::{QueueHandle, UserIndexTable};

use super::fixture::{completion_queue, dma, handle, record};
use super::grid::Point;
use super::producer::Producer;
use super::{OPERATIONS, measured};

/// Receives of one kind of queue.
trait Receives: 'static {
    fn make(table: &UserIndexTable, cq: &CompletionQueue, entries: u32) -> (Self, QueueHandle)
    where
        Self: Sized;
    /// How many are posted at most, and where the counters of completions wrap.
    fn limits(entries: u32) -> (u32, u32);
    fn post(&mut self, data: &[Sge]) -> Result<(), PostError>;
    fn post_16(&mut self, count: usize, data: &[Sge]) -> Result<(), PostError>;
    fn build(&mut self, data: &[Sge]) -> Result<(), PostError>;
    fn publish(&mut self);
}

impl Receives for RecvQueue {
    fn make(table: &UserIndexTable, cq: &CompletionQueue, entries: u32) -> (Self, QueueHandle) {
        let handle = handle(table, &[cq.monitor()], [0, entries], None);
        let queue = RecvQueue::new(RecvQueueConfig {
            memory: dma(entries as usize * 64).0,
            doorbell: record().0,
            handle: handle.clone(),
            stride: 64,
            head_octowords: 0,
            scatter_to_cqe: false,
        });
        (queue.expect("a queue"), handle)
    }

    fn limits(entries: u32) -> (u32, u32) {
        (entries, 1 << 16)
    }

    #[inline(always)]
    fn post(&mut self, data: &[Sge]) -> Result<(), PostError> {
        // SAFETY: no device writes to it.
        unsafe { self.build(7, data) }?;
        RecvQueue::publish(self);
        Ok(())
    }

    #[inline(always)]
    fn post_16(&mut self, count: usize, data: &[Sge]) -> Result<(), PostError> {
        let mut batch = self.batch()?;
        for _ in 0..count {
            // SAFETY: no device writes to it.
            unsafe { batch.build(7, data) }?;
        }
        batch.publish();
        Ok(())
    }

    #[inline(always)]
    fn build(&mut self, data: &[Sge]) -> Result<(), PostError> {
        // SAFETY: no device writes to it.
        unsafe { RecvQueue::build(self, 7, data) }
    }

    #[inline(always)]
    fn publish(&mut self) {
        RecvQueue::publish(self);
    }
}

impl Receives for SharedRecvQueue {
    fn make(table: &UserIndexTable, cq: &CompletionQueue, entries: u32) -> (Self, QueueHandle) {
        let shape = Shape { send_wqebbs: 0, recv_wqes: entries, shared_receive: true };
        let handle = table.register(shape, &[cq.monitor()], None, 9).expect("an index");
        handle.set_state(QpState::Rts);
        let queue = SharedRecvQueue::new(SharedRecvQueueConfig {
            memory: dma(entries as usize * 64).0,
            doorbell: record().0,
            handle: handle.clone(),
            stride: 64,
            scatter_to_cqe: false,
        });
        (queue.expect("a queue"), handle)
    }

    fn limits(entries: u32) -> (u32, u32) {
        (entries - 1, entries)
    }

    #[inline(always)]
    fn post(&mut self, data: &[Sge]) -> Result<(), PostError> {
        // SAFETY: no device writes to it.
        unsafe { self.post(7, data) }
    }

    #[inline(always)]
    fn post_16(&mut self, count: usize, data: &[Sge]) -> Result<(), PostError> {
        let mut batch = self.batch();
        for _ in 0..count {
            // SAFETY: no device writes to it.
            unsafe { batch.build(7, data) }?;
        }
        batch.publish();
        Ok(())
    }

    #[inline(always)]
    fn build(&mut self, data: &[Sge]) -> Result<(), PostError> {
        // SAFETY: no device writes to it.
        unsafe { SharedRecvQueue::build(self, 7, data) }
    }

    #[inline(always)]
    fn publish(&mut self) {
        SharedRecvQueue::publish(self);
    }
}

/// A queue with receives outstanding, and what completes them.
struct Kept<Q> {
    queue: Q,
    handle: QueueHandle,
    cq: CompletionQueue,
    device: Producer,
    completed: u32,
    wrap: u32,
}

impl<Q: Receives> Kept<Q> {
    fn new(entries: u32, empty: u32) -> Self {
        let table = UserIndexTable::new();
        let (cq, device) = completion_queue(&table, 1024);
        let (mut queue, handle) = Q::make(&table, &cq, entries);
        let (most, wrap) = Q::limits(entries);
        let sges = sges(1);
        (0..most - empty).for_each(|_| queue.post(sges).expect("space"));
        Self { queue, handle, cq, device, completed: 0, wrap }
    }

    /// The poller learns of each receive with its completion.
    fn complete(&mut self) {
        for _ in 0..OPERATIONS {
            self.device.receive(self.handle.user_index(), 0x102, self.completed % self.wrap);
            self.completed = self.completed.wrapping_add(1);
        }
    }

    #[inline(always)]
    fn alone(&mut self, data: &[Sge]) -> u64 {
        self.complete();
        let mut sum = 0;
        let time = measured(|| {
            for _ in 0..OPERATIONS {
                sum += self.cq.poll().expect("a completion").wr_id();
                self.queue.post(data).expect("space");
            }
        });
        black_box(sum);
        time
    }

    #[inline(always)]
    fn batches(&mut self, length: usize, data: &[Sge]) -> u64 {
        self.complete();
        let mut sum = 0;
        let time = measured(|| {
            for _ in 0..OPERATIONS / length {
                let mut batch = self.cq.batch();
                for _ in 0..length {
                    sum += batch.next().expect("a completion").wr_id();
                }
                drop(batch);
                self.queue.post_16(length, data).expect("space");
            }
        });
        black_box(sum);
        time
    }

    #[inline(always)]
    fn built(&mut self, length: usize, data: &[Sge]) -> u64 {
        self.complete();
        let mut sum = 0;
        let time = measured(|| {
            for _ in 0..OPERATIONS / length {
                for _ in 0..length {
                    sum += self.cq.poll().expect("a completion").wr_id();
                    self.queue.build(data).expect("space");
                }
                self.queue.publish();
            }
        });
        black_box(sum);
        time
    }
}

fn sges(count: usize) -> &'static [Sge] {
    let sges = (0..count as u64).map(|i| Sge::new(0x1000 + 64 * i, 64, 7));
    black_box(sges.collect::<Vec<_>>().leak())
}

/// A ring of 256 entries that is full, or a quarter of which is empty, and a full one that is as
/// short as rings get.
fn of_kind<Q: Receives>(points: &mut Vec<Point>, kind: &str) {
    for (fill, entries, empty) in [("full", 256, 0), ("part", 256, 64), ("tiny", 4, 0)] {
        for count in [0, 1, 3] {
            let name = |form| format!("{form} {fill} {kind} sges {count}");
            let data = sges(count);
            let mut rig = Kept::<Q>::new(entries, empty);
            points.push(Point { name: name("alone"), run: Box::new(move || rig.alone(data)) });
            if fill == "tiny" {
                continue;
            }
            let mut rig = Kept::<Q>::new(entries, empty);
            let run = Box::new(move || rig.batches(16, data));
            points.push(Point { name: name("batch16"), run });
            let mut rig = Kept::<Q>::new(entries, empty);
            points
                .push(Point { name: name("built16"), run: Box::new(move || rig.built(16, data)) });
        }
    }
}

/// All of them.
pub(super) fn points(points: &mut Vec<Point>) {
    of_kind::<RecvQueue>(points, "receive");
    of_kind::<SharedRecvQueue>(points, "srq");
}
