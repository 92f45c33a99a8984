#[path = "../../../tests/common/child.rs"]
mod child;

use super::*;
use child::{Outcome, in_child, in_child_without_system_calls};

fn reply(kind: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut message = request().to_vec();
    message[4..6].copy_from_slice(&kind.to_ne_bytes());
    for (id, value) in attributes {
        message.extend((4 + value.len() as u16).to_ne_bytes());
        message.extend(id.to_ne_bytes());
        message.extend(*value);
        message.resize(message.len().next_multiple_of(4), 0);
    }
    message
}

#[test]
fn the_answer_is_found_among_other_attributes() {
    assert_eq!(copy_on_fork(&reply(SYS_GET, &[(66, &[1]), (COPY_ON_FORK, &[1])])), Some(true));
    assert_eq!(copy_on_fork(&reply(SYS_GET, &[(66, &[1])])), Some(false));
    assert_eq!(copy_on_fork(&reply(2, &[(COPY_ON_FORK, &[1])])), None);
}

#[test]
fn truncated_answers_end() {
    let whole = reply(SYS_GET, &[(66, &[1, 2, 3]), (COPY_ON_FORK, &[1])]);
    for length in 0..whole.len() {
        let _ = copy_on_fork(&whole[..length]);
    }
}

#[test]
fn versions_compare_by_number() {
    assert!(release_at_least(2, 6));
    assert!(!release_at_least(1000, 0));
}

#[test]
fn a_child_gives_up_on_a_lock_that_was_held_and_takes_a_free_one() {
    let (held, free) = (Lock::new(1), Lock::new(2));
    let guard = held.lock().unwrap();
    let outcome = in_child(|| {
        assert!(held.lock().is_none());
        assert_eq!(free.lock().map(|value| *value), Some(2));
    });
    assert_eq!(outcome, Outcome::Well);
    drop(guard);
    assert!(held.lock().is_some() && !held.is_inherited());
}

#[test]
fn a_process_asks_for_its_id_once() {
    let prepare = || Lock::new(());
    let run = |lock: &Lock<()>| assert!(!lock.is_inherited());
    assert_eq!(in_child_without_system_calls(prepare, run), Outcome::Well);
}

/// A child of a bare `clone`, for which no handlers run, sees that it is one.
#[test]
fn a_child_that_runs_no_handlers_has_an_id_of_its_own() {
    let own = system::process_id();
    assert_eq!(own, std::process::id());
    // SAFETY: as fork(2), without the C library's handlers: the child compares numbers and ends.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    if child == 0 {
        let differs = system::process_id() != own;
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!differs)) };
    }
    let child = nix::unistd::Pid::from_raw(child.try_into().unwrap());
    let status = nix::sys::wait::waitpid(child, None).unwrap();
    assert_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0));
}

#[cfg(feature = "soft")]
fn open() -> crate::Context {
    let device = uverbs_soft::chardev::SoftDevice::builder("soft0").without_wire().build();
    crate::Device::from_soft(device.unwrap()).open().unwrap()
}

#[cfg(feature = "soft")]
#[test]
fn verbs_and_drops_in_a_child_wait_for_no_lock_of_the_parents() {
    use crate::qp::qp_type::Rc;

    let context = open();
    let pd = context.alloc_pd().unwrap();
    let channel = context.create_completion_channel().unwrap();
    let cq = context.create_raw_cq(16).channel(&channel).build().unwrap();
    let qp = pd.create_raw_qp::<Rc>(cq.handle(), cq.handle()).build().unwrap();
    let srq = pd.create_srq(16).build().unwrap();
    let region = pd.register(crate::Buffer::new(64).unwrap(), Default::default()).unwrap();
    let mut objects = Some((qp, srq, region, cq.handle().clone()));
    // The locks that the threads of a context share.
    let inner = context.inner();
    let locks = (inner.records.hold(), inner.events.registry().hold(), channel.registry().hold());
    let outcome = in_child(|| {
        let kinds = [
            context.create_raw_cq(4).build().unwrap_err().kind(),
            pd.create_raw_qp::<Rc>(cq.handle(), cq.handle()).build().unwrap_err().kind(),
            pd.create_srq(4).build().unwrap_err().kind(),
            context.try_get_event().unwrap_err().kind(),
            channel.get_event().unwrap_err().kind(),
            context.create_completion_channel().unwrap_err().kind(),
        ];
        assert_eq!(kinds, [ErrorKind::ForkedChild; 6]);
        let (qp, srq, ..) = objects.take().unwrap();
        assert_eq!(qp.destroy().unwrap_err().error.kind(), ErrorKind::ForkedChild);
        drop(srq);
        crate::device("soft").unwrap().open().unwrap().create_raw_cq(4).build().unwrap();
    });
    drop(locks);
    assert_eq!(outcome, Outcome::Well);
}

#[cfg(feature = "soft")]
#[test]
fn rules_and_counters_in_a_child_wait_for_no_lock_of_the_parents() {
    use crate::qp::qp_type::RawPacket;
    use crate::{counters::CounterPoint::Packets, flow::Ethernet};

    let context = open();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_raw_cq(16).build().unwrap();
    let mut qp = match pd.create_raw_qp::<RawPacket>(cq.handle(), cq.handle()).build() {
        Err(error) if error.errno() == libc::EPERM => {
            return eprintln!("skipped: {error}");
        }
        qp => qp.unwrap(),
    };
    let counters = context.create_counters().unwrap();
    counters.attach(Packets, 0).unwrap();
    let rule = qp.create_flow().ethernet(Ethernet::default()).count(&counters).build().unwrap();
    let mut objects = Some(qp);
    let locks = (rule.hold(), counters.hold());
    let outcome = in_child(|| {
        assert_eq!(counters.attach(Packets, 1).unwrap_err().kind(), ErrorKind::ForkedChild);
        assert!(!rule.is_live());
        let qp = objects.take().unwrap();
        assert_eq!(qp.destroy().unwrap_err().error.kind(), ErrorKind::ForkedChild);
    });
    drop(locks);
    assert_eq!(outcome, Outcome::Well);
    assert!(rule.is_live());
}

#[cfg(feature = "soft")]
#[test]
fn slots_and_safe_queues_dropped_in_a_child_wait_for_no_lock_of_the_parents() {
    use crate::qp::qp_type::Rc;

    let context = open();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(16).build().unwrap();
    let mut qp = pd.create_qp::<Rc>(cq.handle(), cq.handle()).build().unwrap();
    let own = qp.endpoint();
    qp.connect(&own).unwrap();
    let srq = pd.create_srq(4).build().unwrap();
    let slab = pd.create_slab(4, 64).unwrap();
    qp.post_receive(slab.take().unwrap()).unwrap();
    let slot = slab.take().unwrap();
    let mut objects = Some((slot, qp, srq, cq));
    let locks = context.inner().kept.hold();
    let outcome = in_child(|| {
        let (slot, qp, srq, cq) = objects.take().unwrap();
        assert_eq!(slab.free(), 2);
        drop(slot);
        assert_eq!(slab.free(), 3);
        assert!(slab.take().is_some());
        assert_eq!(pd.create_slab(4, 64).unwrap_err().kind(), ErrorKind::ForkedChild);
        drop((qp, srq, cq));
    });
    drop(locks);
    assert_eq!(outcome, Outcome::Well);
    drop(objects);
    assert_eq!(slab.free(), 4);
}
