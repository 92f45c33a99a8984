//! Temporary remote access: the owner binds a memory window to part of a region, the borrower
//! writes with the window's key, then the owner invalidates the key.
//!
//! `cargo run --features soft --example memory_window [DEVICE]`; the default device is `soft`.

use std::error::Error;

use uverbs::cq::{Status, WorkCompletion};
use uverbs::mw::{WindowAccess, WindowType};
use uverbs::qp::{Inline, PostFlags};
use uverbs::qp_type::Rc;
use uverbs::{AccessFlags, Buffer, PollError, Remote, op, raw};

const SIGNALED: PostFlags = PostFlags::SIGNALED;

fn next(cq: &mut raw::CompletionQueue) -> uverbs::Result<WorkCompletion> {
    loop {
        match cq.poll() {
            Ok(done) => return Ok(done.to_work_completion()),
            Err(PollError::Empty) => cq.context().poll_idle(),
            Err(error) => return Err(error.into()),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "soft".into());
    let context = uverbs::device(&name)?.open()?;
    let pd = context.alloc_pd()?;
    let mut cq = context.create_raw_cq(64).build()?;
    let access = AccessFlags::REMOTE_WRITE;
    let mut owner = pd.create_raw_qp::<Rc>(cq.handle(), cq.handle()).access(access).build()?;
    let mut borrower = pd.create_raw_qp::<Rc>(cq.handle(), cq.handle()).build()?;
    let (end_owner, end_borrower) = (owner.endpoint(), borrower.endpoint());
    owner.connect(&end_borrower)?;
    borrower.connect(&end_owner)?;

    // Without remote access rights of its own, so peers need a window.
    let region =
        pd.register(Buffer::new(4096)?, AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND)?;
    let mut window = pd.alloc_mw(WindowType::Type2)?;
    let grant = window.bind(&region, 1024, 100, WindowAccess::REMOTE_WRITE)?;
    // SAFETY: the region outlives the window's binding.
    unsafe { owner.post_send(1, grant, (), SIGNALED)? };
    assert_eq!(next(&mut cq)?.status, Status::Success);
    let lent = Remote::new(region.address() + 1024, window.rkey());

    // SAFETY: inline data is copied by the post.
    unsafe { borrower.post_send(2, op::Write(lent), Inline(b"borrowed"), SIGNALED)? };
    assert_eq!(next(&mut cq)?.status, Status::Success);
    let mut words = [0; 8];
    region.view().read(1024, &mut words)?;
    println!("written through the window: {}", String::from_utf8_lossy(&words));

    // SAFETY: the request accesses no memory.
    unsafe { owner.post_send(3, op::LocalInvalidate(window.rkey()), (), SIGNALED)? };
    assert_eq!(next(&mut cq)?.status, Status::Success);
    // SAFETY: inline data is copied by the post.
    unsafe { borrower.post_send(4, op::Write(lent), Inline(b"too late"), SIGNALED)? };
    let refused = next(&mut cq)?;
    assert_eq!(refused.status, Status::RemoteAccess);
    region.view().read(1024, &mut words)?;
    assert_eq!(&words, b"borrowed");
    println!("after it was taken back: {:?}", refused.status);
    Ok(())
}
