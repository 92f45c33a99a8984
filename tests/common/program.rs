//! A small program that uses every kind of object.

use crate::common;
use uverbs::qp::{Inline, PostFlags};
use uverbs::qp_type::Rc;
use uverbs::{Buffer, Context, Result, op};

/// Runs the whole program once.
pub(crate) fn run(context: Context) -> Result<()> {
    let pd = context.alloc_pd()?;
    let channel = context.create_completion_channel()?;
    let mut cq = context.create_raw_cq(64).channel(&channel).build()?;
    let srq = pd.create_raw_srq(8).build()?;
    let buffer = Buffer::new(4096).expect("a page of memory");
    let region = pd.register(buffer, common::ALL_ACCESS)?;
    let builder = pd.create_raw_qp::<Rc>(cq.handle(), cq.handle()).access(common::REMOTE);
    let mut a = builder.clone().build()?;
    let mut b = builder.shared_receive_queue(srq.handle()).build()?;
    let (end_a, end_b) = (a.endpoint(), b.endpoint());
    a.connect(&end_b)?;
    b.connect(&end_a)?;
    cq.arm();
    // SAFETY: inline data; the region outlives the request.
    unsafe { a.post_send(1, op::Write(region.remote(0)?), Inline(b"works"), PostFlags::SIGNALED)? };
    channel.get_event()?.acknowledge();
    common::success(&mut cq);
    assert_eq!(&region.view().to_vec()[..5], b"works");
    let window = pd.alloc_mw(uverbs::mw::WindowType::Type2)?;
    let there = pd.create_ah(&a.address_of(&end_b)?)?;
    a.query()?;
    cq.resize(128)?;
    there.destroy()?;
    window.dealloc()?;
    a.destroy()?;
    b.destroy()?;
    srq.destroy()?;
    region.deregister()?;
    cq.destroy()?;
    pd.destroy()?;
    Ok(())
}
