//! One thread sleeps in `poll` until completions or asynchronous events arrive.
//!
//! `cargo run --features soft --example event_loop [DEVICE]`; the default device is `soft`.

use std::error::Error;
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use uverbs::qp::{Inline, PostFlags};
use uverbs::qp_type::Rc;
use uverbs::{ErrorKind, PollError, op};

const MESSAGES: u64 = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "soft".into());
    let context = uverbs::device(&name)?.open()?;
    let pd = context.alloc_pd()?;
    let channel = context.create_completion_channel()?;
    let mut cq = context.create_raw_cq(256).channel(&channel).build()?;
    let mut a = pd.create_raw_qp::<Rc>(cq.handle(), cq.handle()).build()?;
    let mut b = pd.create_raw_qp::<Rc>(cq.handle(), cq.handle()).build()?;
    let (end_a, end_b) = (a.endpoint(), b.endpoint());
    a.connect(&end_b)?;
    b.connect(&end_a)?;
    for wr_id in 0..MESSAGES {
        // SAFETY: the request accesses no memory.
        unsafe { b.post_receive(wr_id, &[])? };
    }

    let (mut sent, mut arrived, mut sleeps) = (0, 0, 0);
    while arrived < MESSAGES {
        if sent == arrived {
            // SAFETY: inline data is copied by the post.
            unsafe { a.post_send(sent, op::Send, Inline(b""), PostFlags::empty())? };
            sent += 1;
        }
        // Arms, then polls once more before it waits, because completions before arming raise no
        // event.
        cq.arm();
        match cq.poll() {
            Ok(completion) => {
                assert!(completion.is_success(), "{completion:?}");
                arrived += 1;
                continue;
            }
            Err(PollError::Empty) => sleeps += 1,
            Err(error) => return Err(error.into()),
        }
        let mut fds = [
            PollFd::new(channel.as_fd(), PollFlags::POLLIN),
            PollFd::new(context.events_fd(), PollFlags::POLLIN),
        ];
        poll(&mut fds, PollTimeout::NONE)?;
        match channel.try_get_event() {
            Ok(event) => event.acknowledge(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        if let Ok(event) = context.try_get_event() {
            println!("{event:?}");
        }
    }
    println!("{arrived} messages arrived, after {sleeps} sleeps");
    Ok(())
}
