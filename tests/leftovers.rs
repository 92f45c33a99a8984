//! A queue pair that the kernel refuses to destroy.

mod common;

use common::{Setup, success};
use uverbs::qp::{Datagram, Inline, PostFlags};
use uverbs::qp_type::Ud;
use uverbs::{Gid, PollError, op};

/// A member of a multicast group cannot be destroyed (EBUSY), so the queue pair still receives. Its
/// completions must not be mistaken for those of a new queue pair.
#[test]
fn completions_of_an_undestroyed_queue_pair_are_not_a_new_queue_pairs() {
    const ZOMBIE: u64 = 1;
    let mut setup = Setup::new();
    let mut sender = setup.builder::<Ud>().build().unwrap();
    let mut member = setup.builder::<Ud>().user_context(ZOMBIE).build().unwrap();
    sender.activate().unwrap();
    member.activate().unwrap();
    let group: Gid = "ff0e::77".parse().unwrap();
    let to = setup.region(4096);
    // SAFETY: the region outlives everything here and is not touched.
    unsafe { member.post_receive(10, &[to.sge(0, 4096).unwrap()]).unwrap() };
    let mut path = sender.address_of(&member.endpoint()).unwrap();
    if path.global.is_none() {
        eprintln!("skipped: InfiniBand groups are the subnet manager's");
        return;
    }
    path.global = path.global.map(|route| uverbs::GlobalRoute { destination: group, ..route });
    member.attach_multicast(group, 0).unwrap();
    drop(member);
    assert!(matches!(setup.cq.poll(), Err(PollError::Empty)), "no completion yet");
    // If the user index had been freed, one of these queue pairs would get it.
    let others: Vec<_> =
        (0..4).map(|_| setup.builder::<Ud>().user_context(2).build().unwrap()).collect();
    let group = setup.pd.create_ah(&path).unwrap();
    let address = group.datagram(0xff_ffff, 0x1111_1111);
    // SAFETY: inline data.
    unsafe {
        let to = op::To(Datagram(&address), op::Send);
        sender.post_send(1, to, Inline(b"still there?"), PostFlags::SIGNALED).unwrap();
    }
    let done = [success(&mut setup.cq), success(&mut setup.cq)];
    let received = done.iter().find(|done| done.user_context == ZOMBIE);
    assert_eq!(received.expect("the message was delivered").wr_id, 10);
    drop(others);
}
