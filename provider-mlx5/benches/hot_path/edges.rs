//! Points of the grid where the fast path ends: requests around the ring's end, and queues that are
//! full.

use uverbs_mlx5::request::{PostError, Sge};
use uverbs_mlx5::send_queue::{Inline, Rc, SendQueue, Write};

use super::fixture::register;
use super::grid::{NONE, Point, Rig, remote};
use super::{OPERATIONS, valgrind};

/// Blocks of a ring that is full.
const FULL: u32 = 16;

/// Only counts: a clock would take more instructions than one request.
fn counted(work: impl FnOnce()) {
    valgrind::toggle_collect();
    work();
    valgrind::toggle_collect();
}

fn post_one(queue: &mut SendQueue<Rc>, i: usize) -> Result<(), PostError> {
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
    let mut rig = full();
    points.push(Point {
        name: "full write one".to_owned(),
        run: Box::new(move || {
            for i in 0..OPERATIONS {
                rig.complete(rig.queue.head().wrapping_sub(FULL));
                counted(|| post_one(&mut rig.queue, i).expect("space"));
            }
            0
        }),
    });
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
    points.push(Point {
        name: "around write const 64".to_owned(),
        run: Box::new(move || {
            for i in 0..OPERATIONS {
                let start = rig.queue.head();
                // SAFETY: inline data is copied, so no memory is shared.
                counted(|| unsafe {
                    rig.queue
                        .post(i as u64, Write(remote(i)), Inline(&[7; 64]), NONE)
                        .expect("space");
                });
                rig.complete(start);
            }
            0
        }),
    });
}
