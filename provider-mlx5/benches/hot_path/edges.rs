//! Points of the grid where the fast path ends: requests around the ring's end, and queues that are
//! full.

use std::hint::black_box;

use uverbs_mlx5::request::{PostError, Sge};
use uverbs_mlx5::send_queue::{
    Inline, Payload, Rc, RunTimeDestination, RunTimeOperation, SendQueue, SendRequest, Takes,
    Template, Write,
};

use super::fixture::register;
use super::grid::{NONE, Point, Rig, remote};
use super::{OPERATIONS, valgrind};

/// Blocks of a ring that is full.
const FULL: u32 = 16;

type Posted = Result<(), PostError>;

/// Only counts: a clock would take more instructions than one request.
fn counted(work: impl FnOnce()) {
    valgrind::toggle_collect();
    work();
    valgrind::toggle_collect();
}

fn post_one(queue: &mut SendQueue<Rc>, i: usize) -> Posted {
    // SAFETY: no device reads the data.
    unsafe { queue.post(i as u64, Write(remote(i)), Sge::new(0x1000, 64, 7), NONE) }
}

/// A queue whose ring is full of requests of one block.
fn full() -> Rig<Rc> {
    let mut rig = Rig::of(register(), FULL, FULL);
    (0..FULL as usize).for_each(|i| post_one(&mut rig.queue, i).expect("space"));
    rig
}

pub(super) fn points(points: &mut Vec<Point>) {
    around(points);
    kept_full(points);
    let mut rig = full();
    points.push(Point {
        name: "refused write one".to_owned(),
        run: Box::new(move || {
            let mut refused = |i| post_one(&mut rig.queue, i) == Err(PostError::Full);
            counted(|| assert!((0..OPERATIONS).all(&mut refused)));
            0
        }),
    });
}

/// Requests of two blocks in a ring of two, each of which begins in the second block.
fn around(points: &mut Vec<Point>) {
    let mut rig = Rig::<Rc>::of(register(), 2, 2);
    post_one(&mut rig.queue, 0).expect("space");
    rig.complete(0);
    points.push(one_by_one("around write const 64", rig, 1, write_64));
}

/// The queue with as many requests outstanding as it may have, but one.
fn nearly_full(depth: u32, post: impl Fn(&mut SendQueue<Rc>, usize) -> Posted) -> Rig<Rc> {
    let mut rig = Rig::of(register(), 64, depth);
    (1..depth).for_each(|i| post(&mut rig.queue, i as usize).expect("space"));
    rig
}

/// Queues that are kept full: each request is posted when the oldest has completed.
fn kept_full(points: &mut Vec<Point>) {
    let mut add = |name: &str, post: fn(&mut SendQueue<Rc>, usize) -> Posted| {
        for depth in [1, 16] {
            let rig = nearly_full(depth, post);
            points.push(one_by_one(&format!("full {depth} write {name}"), rig, 0, post));
        }
    };
    add("const 64", write_64);
    add("run time 64", |queue, i| {
        let data = black_box(&[7; 64][..]);
        // SAFETY: inline data is copied, so no memory is shared.
        unsafe { queue.post(i as u64, Write(remote(i)), Inline(data), NONE) }
    });
    add("1", post_one);
    add("2", |queue, i| {
        let sges = [Sge::new(0x1000, 64, 7), Sge::new(0x2000, 64, 7)];
        // SAFETY: no device reads the data.
        unsafe { queue.post(i as u64, Write(remote(i)), &sges[..], NONE) }
    });
    add("at run time", |queue, i| {
        let request = SendRequest {
            wr_id: i as u64,
            operation: black_box(RunTimeOperation::Write(remote(i))),
            destination: RunTimeDestination::Connected,
            flags: NONE,
            inline: false,
            data: &[Sge::new(0x1000, 64, 7)],
        };
        // SAFETY: no device reads the data.
        unsafe { queue.post_request(&request) }
    });
    batches(points);
    template::<1, _>(points, Sge::new(0x1000, 64, 7));
    template::<2, _>(points, Inline(&[7; 64]));
}

/// Batches of 16 requests, of two blocks each, in a queue that is kept full of them.
fn batches(points: &mut Vec<Point>) {
    const EACH: usize = 16;
    let mut rig = nearly_full(EACH as u32, write_64);
    write_64(&mut rig.queue, 0).expect("space");
    points.push(Point {
        name: format!("full {EACH} batch{EACH} write const 64"),
        run: Box::new(move || {
            for _ in 0..OPERATIONS / EACH {
                rig.complete(rig.queue.head().wrapping_sub(2));
                counted(|| {
                    let mut batch = rig.queue.batch().expect("the state allows it");
                    for i in 0..EACH {
                        let (to, data) = (Write(remote(i)), Inline(&[7; 64]));
                        // SAFETY: inline data is copied, so no memory is shared.
                        unsafe { batch.build(i as u64, to, data, NONE) }.expect("space");
                    }
                    batch.publish();
                });
            }
            0
        }),
    });
}

/// A template of so many blocks in a queue that is kept full.
fn template<const BLOCKS: usize, P: Payload>(points: &mut Vec<Point>, data: P)
where
    Write: Takes<P>,
{
    let mut queue = Rig::<Rc>::of(register(), 64, 1).queue;
    let template = queue.long_template(Write(remote(0)), data, NONE).expect("a template");
    let post = move |queue: &mut SendQueue<Rc>, i| {
        let template: &Template<_, BLOCKS> = &template;
        // SAFETY: no device reads the data.
        unsafe { queue.post_template(i as u64, template) }
    };
    let rig = nearly_full(16, post);
    points.push(one_by_one(&format!("full 16 template of {BLOCKS}"), rig, 0, post));
}

fn write_64(queue: &mut SendQueue<Rc>, i: usize) -> Posted {
    // SAFETY: inline data is copied, so no memory is shared.
    unsafe { queue.post(i as u64, Write(remote(i)), Inline(&[7; 64]), NONE) }
}

/// Each request is posted when the oldest has completed; all have the same length.
fn one_by_one(
    name: &str,
    mut rig: Rig<Rc>,
    mut oldest: u32,
    post: impl Fn(&mut SendQueue<Rc>, usize) -> Posted + 'static,
) -> Point {
    Point {
        name: name.to_owned(),
        run: Box::new(move || {
            for i in 0..OPERATIONS {
                let start = rig.queue.head();
                counted(|| post(&mut rig.queue, i).expect("space"));
                rig.complete(oldest);
                oldest += rig.queue.head() - start;
            }
            0
        }),
    }
}
