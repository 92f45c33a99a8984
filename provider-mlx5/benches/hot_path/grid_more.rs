//! Points of the grid beside typed sends: templates, receives, receives of an SRQ.

use std::hint::black_box;

use uverbs_mlx5::completion_queue::CompletionQueue;
use uverbs_mlx5::recv_queue::{RecvQueue, RecvQueueConfig};
use uverbs_mlx5::request::Sge;
use uverbs_mlx5::send_queue::{
    EthernetOffload, Field, Inline, RawEthernet, Rc, Template, Write, framed,
};
use uverbs_mlx5::shared_recv_queue::SharedRecvQueue;
use uverbs_mlx5::user_index::{QueueHandle, UserIndexTable};

use super::fixture::{
    SRQ_ENTRIES, completion_queue, dma, handle, record, register, shared_recv_queue,
};
use super::grid::{NONE, Point, Rig, alone, batch, remote};
use super::producer::Producer;
use super::{OPERATIONS, measured};

/// A field that each request gets: 8 bytes, not aligned to a lane.
const FIELD: Field<8, 6> = Field;

/// Templates that take all of their blocks, with one field set for each request.
macro_rules! template_points {
    ($points:ident, $service:ty, $name:expr, |$queue:ident| $template:expr) => {{
        let mut rig = Rig::<$service, _>::new(register());
        let $queue = &mut rig.queue;
        let mut template = $template;
        $points.push(Point {
            name: format!("alone template {}", $name),
            run: Box::new(move || {
                alone(&mut rig, |queue, i| {
                    assert!(template.set(FIELD, (i as u64).to_be_bytes()));
                    // SAFETY: no device reads the data.
                    unsafe { queue.post_template(i as u64, &template) }
                })
            }),
        });
        let mut rig = Rig::<$service, _>::new(register());
        let $queue = &mut rig.queue;
        let mut template = $template;
        $points.push(Point {
            name: format!("batch16 template {}", $name),
            run: Box::new(move || {
                batch::<16, _, _>(&mut rig, |batch, i| {
                    assert!(template.set(FIELD, (i as u64).to_be_bytes()));
                    // SAFETY: no device reads the data.
                    unsafe { batch.build_template(i as u64, &template) }
                })
            }),
        });
    }};
}

fn written<const BYTES: usize, const BLOCKS: usize>(points: &mut Vec<Point>) {
    template_points!(points, Rc, format!("write {BYTES}"), |queue| {
        let template: Template<_, BLOCKS> =
            queue.long_template(Write(remote(0)), Inline(&[7; BYTES]), NONE).expect("a template");
        assert_eq!(template.blocks(), BLOCKS);
        template
    });
    let mut rig = Rig::<Rc, _>::new(register());
    let template: Template<_, BLOCKS> =
        rig.queue.long_template(Write(remote(0)), Inline(&[7; BYTES]), NONE).expect("a template");
    points.push(Point {
        name: format!("alone template same {BYTES}"),
        run: Box::new(move || {
            alone(&mut rig, |queue, i| {
                // SAFETY: no device reads the data.
                unsafe { queue.post_template(i as u64, &template) }
            })
        }),
    });
}

fn frame<const BYTES: usize, const BLOCKS: usize>(points: &mut Vec<Point>) {
    template_points!(points, RawEthernet, format!("frame {BYTES}"), |queue| {
        let (operation, data) = framed(EthernetOffload::default(), &[7; BYTES], ());
        let template: Template<_, BLOCKS> =
            queue.long_template(operation, data, NONE).expect("a template");
        assert_eq!(template.blocks(), BLOCKS);
        template
    });
}

fn tailed<const BYTES: usize, const BLOCKS: usize>(points: &mut Vec<Point>) {
    template_points!(points, RawEthernet, format!("frame {BYTES} and sge"), |queue| {
        let sge = Sge::new(0x1000, 64, 7);
        let (operation, data) = framed(EthernetOffload::default(), &[7; BYTES], sge);
        let template: Template<_, BLOCKS> =
            queue.long_template(operation, data, NONE).expect("a template");
        assert_eq!(template.blocks(), BLOCKS);
        template
    });
}

/// All templates.
pub(super) fn templates(points: &mut Vec<Point>) {
    written::<16, 1>(points);
    written::<64, 2>(points);
    written::<128, 3>(points);
    written::<200, 4>(points);
    // In a template with more blocks than it takes, and longer than a register takes.
    frame::<34, 1>(points);
    frame::<60, 2>(points);
    frame::<98, 2>(points);
    frame::<160, 3>(points);
    frame::<220, 4>(points);
    tailed::<60, 2>(points);
    tailed::<160, 4>(points);
}

/// A receive queue or an SRQ, and what completes its receives.
struct Receiver<Q> {
    queue: Q,
    handle: QueueHandle,
    cq: CompletionQueue,
    device: Producer,
    /// Receives that completed, and the counter or index behind which the next one is.
    completed: u32,
    /// Entries that the device names by their index.
    entries: u32,
    sges: &'static [Sge],
}

impl<Q> Receiver<Q> {
    /// Completes one run's receives in their order.
    fn retire(&mut self) {
        for _ in 0..OPERATIONS {
            self.device.receive(self.handle.user_index(), 0x102, self.completed % self.entries);
            self.completed = self.completed.wrapping_add(1);
        }
        let mut batch = self.cq.batch();
        while batch.next().is_ok() {}
    }
}

fn sges(count: usize) -> &'static [Sge] {
    let sges = (0..count as u64).map(|i| Sge::new(0x1000 + 64 * i, 64, 7));
    black_box(sges.collect::<Vec<_>>().leak())
}

fn receiver(count: usize) -> Receiver<RecvQueue> {
    const ENTRIES: u32 = 1024;
    let table = UserIndexTable::new();
    let (cq, device) = completion_queue(&table, ENTRIES);
    let handle = handle(&table, &[cq.monitor()], [0, ENTRIES], None);
    let queue = RecvQueue::new(RecvQueueConfig {
        memory: dma(ENTRIES as usize * 64).0,
        doorbell: record().0,
        handle: handle.clone(),
        stride: 64,
        head_octowords: 0,
        scatter_to_cqe: false,
    });
    let (queue, sges) = (queue.expect("a queue"), sges(count));
    Receiver { queue, handle, cq, device, completed: 0, entries: 1 << 16, sges }
}

fn shared_receiver(count: usize) -> Receiver<SharedRecvQueue> {
    let table = UserIndexTable::new();
    let (cq, device) = completion_queue(&table, 1024);
    let (queue, handle) = shared_recv_queue(&table, &[cq.monitor()]);
    let sges = sges(count);
    Receiver { queue, handle, cq, device, completed: 0, entries: SRQ_ENTRIES, sges }
}

/// Receives, alone and in batches, of so many SGEs.
fn received(points: &mut Vec<Point>, count: usize) {
    let mut rig = receiver(count);
    points.push(Point {
        name: format!("alone receive sges {count}"),
        run: Box::new(move || {
            let time = measured(|| {
                for i in 0..OPERATIONS {
                    // SAFETY: no device writes to it.
                    unsafe { rig.queue.build(i as u64, rig.sges) }.expect("space");
                    rig.queue.publish();
                }
            });
            rig.retire();
            time
        }),
    });
    for length in [4, 16, 32] {
        let mut rig = receiver(count);
        points.push(Point {
            name: format!("batch{length} receive sges {count}"),
            run: Box::new(move || {
                let time = measured(|| {
                    for list in 0..OPERATIONS / length {
                        let mut batch = rig.queue.batch().expect("the state allows it");
                        for i in 0..length {
                            let id = (list * length + i) as u64;
                            // SAFETY: no device writes to it.
                            unsafe { batch.build(id, rig.sges) }.expect("space");
                        }
                        batch.publish();
                    }
                });
                rig.retire();
                time
            }),
        });
    }
}

/// One receive of an SRQ at a time, posted in one call, or built and then published.
fn shared_alone(points: &mut Vec<Point>, count: usize) {
    let mut rig = shared_receiver(count);
    points.push(Point {
        name: format!("alone srq receive sges {count}"),
        run: Box::new(move || {
            let time = measured(|| {
                for i in 0..OPERATIONS {
                    // SAFETY: no device writes to it.
                    unsafe { rig.queue.post(i as u64, rig.sges) }.expect("space");
                }
            });
            rig.retire();
            time
        }),
    });
    let mut rig = shared_receiver(count);
    points.push(Point {
        name: format!("built srq receive sges {count}"),
        run: Box::new(move || {
            let time = measured(|| {
                for i in 0..OPERATIONS {
                    // SAFETY: no device writes to it.
                    unsafe { rig.queue.build(i as u64, rig.sges) }.expect("space");
                    rig.queue.publish();
                }
            });
            rig.retire();
            time
        }),
    });
}

/// Receives of an SRQ in batches of this length.
fn shared_batch(points: &mut Vec<Point>, length: usize, count: usize) {
    let mut rig = shared_receiver(count);
    points.push(Point {
        name: format!("batch{length} srq receive sges {count}"),
        run: Box::new(move || {
            let time = measured(|| {
                for list in 0..OPERATIONS / length {
                    let mut batch = rig.queue.batch();
                    for i in 0..length {
                        let id = (list * length + i) as u64;
                        // SAFETY: no device writes to it.
                        unsafe { batch.build(id, rig.sges) }.expect("space");
                    }
                    batch.publish();
                }
            });
            rig.retire();
            time
        }),
    });
}

/// All receives.
pub(super) fn receives(points: &mut Vec<Point>) {
    [1, 2, 4].into_iter().for_each(|count| received(points, count));
    for count in [1, 3] {
        shared_alone(points, count);
        [4, 16, 32].into_iter().for_each(|length| shared_batch(points, length, count));
    }
}
