//! Fences: the flag, and the one that a LOCAL_INVALIDATE gives the next request.

use uverbs_mlx5::request::{PostFlags, Remote};
use uverbs_mlx5::send_queue::{Inline, LocalInvalidate, Nop, Rc, Write};

use crate::device::{Cq, Sq, send_queue};

const NONE: PostFlags = PostFlags::empty();

/// The modes in the control segment of the WQE in a block of the ring.
fn mode(sq: &Sq<Rc>, block: u32) -> u8 {
    sq.ring.read(block as usize * 64 + 11, 1)[0]
}

#[test]
fn a_local_invalidate_fences_the_next_request_across_calls() {
    let cq = Cq::new(16, 64);
    let mut sq = send_queue::<Rc>(&cq, 64);
    // SAFETY: there is no data, now and below.
    unsafe {
        sq.queue.post(0, LocalInvalidate(5), (), NONE).expect("space");
        let next = sq.queue.head();
        sq.queue.post(1, Nop, (), NONE).expect("space");
        sq.queue.post(2, Nop, (), NONE).expect("space");
        assert_eq!((mode(&sq, next), mode(&sq, next + 1)), (0x20, 0));

        let mut batch = sq.queue.batch().expect("the state allows it");
        batch.build(3, LocalInvalidate(6), (), NONE).expect("space");
        batch.publish();
        let next = sq.queue.head();
        let mut batch = sq.queue.batch().expect("the state allows it");
        batch.build(4, Nop, (), PostFlags::FENCE).expect("space");
        batch.build(5, Nop, (), NONE).expect("space");
        batch.publish();
        assert_eq!((mode(&sq, next), mode(&sq, next + 1)), (0x80, 0));
    }
}

/// The FENCE flag of a template or of its post replaces the weaker fence after a LOCAL_INVALIDATE.
#[test]
fn a_fence_of_a_template_replaces_the_fence_of_a_local_invalidate() {
    let cq = Cq::new(16, 64);
    let mut sq = send_queue::<Rc>(&cq, 64);
    let remote = Remote::new(0x1000, 7);
    let plain = sq.queue.template(Write(remote), Inline(&[1; 8]), NONE).expect("a request");
    let fenced = plain.with_flags(PostFlags::FENCE);
    for (template, flags, expected) in
        [(&plain, NONE, 0x20), (&plain, PostFlags::FENCE, 0x80), (&fenced, NONE, 0x80)]
    {
        // SAFETY: the data is in the requests, now and below.
        unsafe {
            sq.queue.post(0, LocalInvalidate(5), (), NONE).expect("space");
            sq.queue.post_template_with(1, template, flags).expect("space");
            assert_eq!(mode(&sq, sq.queue.head() - 1), expected);

            let mut batch = sq.queue.batch().expect("the state allows it");
            batch.build(2, LocalInvalidate(6), (), NONE).expect("space");
            batch.build_template_with(3, template, flags).expect("space");
            batch.publish();
            assert_eq!(mode(&sq, sq.queue.head() - 1), expected);
        }
    }
}

/// A forgotten batch neither uses up the fence that is due nor leaves one of its own: the next
/// request has the fence.
#[test]
fn a_forgotten_batch_does_not_use_up_a_fence() {
    let cq = Cq::new(16, 64);
    let mut sq = send_queue::<Rc>(&cq, 64);
    // SAFETY: there is no data, now and below.
    unsafe {
        sq.queue.post(0, LocalInvalidate(5), (), NONE).expect("space");
        let next = sq.queue.head();
        for abort in [false, true] {
            let mut batch = sq.queue.batch().expect("the state allows it");
            batch.build(1, Nop, (), NONE).expect("space");
            batch.build(2, LocalInvalidate(6), (), NONE).expect("space");
            batch.build(3, Nop, (), NONE).expect("space");
            if abort {
                batch.abort()
            } else {
                std::mem::forget(batch)
            }
            assert_eq!((sq.queue.head(), sq.queue.unpublished_blocks()), (next, 0));
        }
        sq.queue.post(4, Nop, (), NONE).expect("space");
        let mut batch = sq.queue.batch().expect("the state allows it");
        batch.build(5, Nop, (), NONE).expect("space");
        batch.publish();
        assert_eq!((mode(&sq, next), mode(&sq, next + 1)), (0x20, 0));
    }
}
