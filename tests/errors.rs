//! Every completion status that a program can cause on a reliable connection.

mod common;

use common::{ALL_ACCESS, Setup};
use uverbs::cq::{Status, WorkCompletion};
use uverbs::mw::{WindowAccess, WindowType};
use uverbs::qp::{AckTimeout, Inline, PostFlags, RnrTimer, State};
use uverbs::qp_type::{QueuePairType, Rc};
use uverbs::{AccessFlags, Buffer, Remote, Sge, op, raw};

const SIGNALED: PostFlags = PostFlags::SIGNALED;

/// Options for a quick RNR failure if no receive is posted. The ACK timeout stays long, because the
/// peer device's thread may have to wait for a processor.
fn impatient<T: QueuePairType>(builder: raw::QpBuilder<T>) -> raw::QpBuilder<T> {
    builder.path(|path| {
        path.timeout = AckTimeout::from_code(16);
        path.rnr_retry = 1;
        path.min_rnr_timer = RnrTimer::from_code(1);
    })
}

struct Pair {
    setup: Setup,
    a: raw::QueuePair<Rc>,
    b: raw::QueuePair<Rc>,
}

impl Pair {
    fn new() -> Self {
        Self::of(impatient)
    }

    fn of(change: impl Fn(raw::QpBuilder<Rc>) -> raw::QpBuilder<Rc>) -> Self {
        let setup = Setup::new();
        let (a, b) = setup.pair(change);
        Self { setup, a, b }
    }

    fn receive(&mut self, wr_id: u64, data: &[Sge]) {
        // SAFETY: the regions behind `data` outlive the test's queue pairs.
        unsafe { self.b.post_receive(wr_id, data).unwrap() };
    }

    /// The completion with this id among the next `count`.
    fn find(&mut self, wr_id: u64, count: usize) -> WorkCompletion {
        let all = self.setup.completions(count);
        *all.iter().find(|completion| completion.wr_id == wr_id).unwrap()
    }
}

#[test]
fn a_message_longer_than_its_receive_fails_at_both_ends() {
    let mut pair = Pair::new();
    let (from, to) = (pair.setup.region(4096), pair.setup.region(4096));
    pair.receive(2, &[to.sge(0, 10).unwrap()]);
    // SAFETY: both regions outlive the request.
    unsafe { pair.a.post_send(1, op::Send, from.sge(0, 100).unwrap(), SIGNALED).unwrap() };
    let all = pair.setup.completions(2);
    assert_eq!(all[0].status, Status::RemoteInvalidRequest);
    assert_eq!(all[1].status, Status::LocalLength);
}

#[test]
fn an_unknown_lkey_is_a_protection_error() {
    let mut pair = Pair::new();
    let to = pair.setup.region(4096);
    // SAFETY: the key is of no memory, so nothing is read.
    unsafe {
        let nowhere = Sge::new(0x1000, 64, 0x00ab_cd00);
        pair.a.post_send(1, op::Write(to.remote(0).unwrap()), nowhere, SIGNALED).unwrap();
    }
    assert_eq!(pair.setup.completion().status, Status::LocalProtection);
}

/// The device's field for the requester's depth is a logarithm, so a depth of 0 becomes 1 and the
/// request is sent. For a responder's depth of 0 the kernel clears the READ right
/// (`set_qpc_atomic_flags`, drivers/infiniband/hw/mlx5/qp.c), so the responder refuses it.
#[test]
fn a_responder_of_read_depth_zero_refuses_reads() {
    let mut setup = Setup::new();
    let (mut a, _b) =
        setup.pair::<Rc>(|builder| builder.path(|path| path.initiator_reads = Some(0)));
    let (mine, theirs) = (setup.region(64), setup.region(64));
    // SAFETY: both regions outlive the request.
    unsafe {
        let read = op::Read(theirs.remote(0).unwrap());
        a.post_send(1, read, mine.sge(0, 8).unwrap(), SIGNALED).unwrap();
    }
    assert_eq!(setup.completion().status, Status::RemoteInvalidRequest);
}

#[test]
fn reading_into_memory_without_local_write_is_refused() {
    let mut pair = Pair::new();
    let theirs = pair.setup.region(4096);
    let read_only =
        pair.setup.pd.register(Buffer::new(4096).unwrap(), AccessFlags::empty()).unwrap();
    // SAFETY: both regions outlive the request.
    unsafe {
        let read = op::Read(theirs.remote(0).unwrap());
        pair.a.post_send(1, read, read_only.sge(0, 64).unwrap(), SIGNALED).unwrap();
    }
    let status = pair.setup.completion().status;
    assert!(matches!(status, Status::LocalProtection | Status::LocalAccess), "{status:?}");
}

#[test]
fn missing_access_rights_are_remote_access_errors() {
    let lacking = |access: AccessFlags, post: fn(&mut raw::QueuePair<Rc>, Remote, Sge)| {
        let mut pair = Pair::new();
        let mine = pair.setup.region(4096);
        let theirs = pair.setup.pd.register(Buffer::new(4096).unwrap(), access).unwrap();
        post(&mut pair.a, theirs.remote(0).unwrap(), mine.sge(0, 8).unwrap());
        assert_eq!(pair.setup.completion().status, Status::RemoteAccess, "{access}");
    };
    lacking(ALL_ACCESS - AccessFlags::REMOTE_WRITE, |qp, remote, sge| {
        // SAFETY: both regions outlive the request.
        unsafe { qp.post_send(1, op::Write(remote), sge, SIGNALED).unwrap() };
    });
    lacking(ALL_ACCESS - AccessFlags::REMOTE_READ, |qp, remote, sge| {
        // SAFETY: as above.
        unsafe { qp.post_send(1, op::Read(remote), sge, SIGNALED).unwrap() };
    });
    lacking(ALL_ACCESS - AccessFlags::REMOTE_ATOMIC, |qp, remote, sge| {
        let result = uverbs::qp::AtomicResult { address: sge.address(), lkey: sge.lkey() };
        // SAFETY: as above.
        unsafe { qp.post_send(1, op::FetchAdd { remote, add: 1 }, result, SIGNALED).unwrap() };
    });
}

#[test]
fn an_operation_that_the_peer_does_not_allow_is_refused() {
    let mut setup = Setup::new();
    let (mut a, _b) = setup.pair::<Rc>(|builder| impatient(builder).access(AccessFlags::empty()));
    let theirs = setup.region(4096);
    // SAFETY: inline data; the region outlives the request.
    unsafe {
        a.post_send(1, op::Write(theirs.remote(0).unwrap()), Inline(b"x"), SIGNALED).unwrap()
    };
    let status = setup.completion().status;
    assert!(matches!(status, Status::RemoteAccess | Status::RemoteInvalidRequest), "{status:?}");
}

#[test]
fn a_write_beyond_the_end_of_a_region_is_a_remote_access_error() {
    let mut pair = Pair::new();
    let theirs = pair.setup.region(4096);
    // SAFETY: inline data, and the write is refused.
    unsafe {
        let remote = theirs.remote(4090).unwrap();
        pair.a.post_send(1, op::Write(remote), Inline(b"too long"), SIGNALED).unwrap();
    }
    assert_eq!(pair.setup.completion().status, Status::RemoteAccess);
    assert_eq!(theirs.view().to_vec()[4090..], [0; 6]);
}

#[test]
fn a_send_without_a_posted_receive_exhausts_the_rnr_retries() {
    let mut pair = Pair::new();
    // SAFETY: inline data.
    unsafe { pair.a.post_send(1, op::Send, Inline(b"hello"), SIGNALED).unwrap() };
    assert_eq!(pair.setup.completion().status, Status::RnrRetryExceeded);
}

#[test]
fn a_destroyed_peer_exhausts_the_retries() {
    let timeout = AckTimeout::from_code(8);
    let mut pair =
        Pair::of(|builder| builder.path(|path| (path.timeout, path.retry_count) = (timeout, 1)));
    let Pair { setup, a, b } = &mut pair;
    let peer = std::mem::replace(b, setup.builder::<Rc>().build().unwrap());
    peer.destroy().unwrap();
    // SAFETY: inline data.
    unsafe { a.post_send(1, op::Send, Inline(b"anybody?"), SIGNALED).unwrap() };
    let failed = setup.completion();
    assert_eq!(failed.status, Status::RetryExceeded);
    // The queue pair is in the error state now, so further requests are flushed.
    // SAFETY: inline data.
    unsafe { a.post_send(2, op::Send, Inline(b"x"), PostFlags::empty()).unwrap() };
    assert_eq!(setup.completion().status, Status::Flushed);
    assert_eq!(a.query().unwrap().state, State::Err);
}

#[test]
fn a_receive_into_a_read_only_buffer_fails_at_both_ends() {
    let mut pair = Pair::new();
    let read_only =
        pair.setup.pd.register(Buffer::new(4096).unwrap(), AccessFlags::empty()).unwrap();
    pair.receive(2, &[read_only.sge(0, 4096).unwrap()]);
    let from = pair.setup.region(4096);
    // Too long for inline scatter: data in the CQE itself needs no right to the buffer.
    // SAFETY: both regions outlive the request.
    unsafe { pair.a.post_send(1, op::Send, from.sge(0, 1000).unwrap(), SIGNALED).unwrap() };
    let all = pair.setup.completions(2);
    assert_eq!(all[0].status, Status::RemoteOperation);
    assert!(matches!(all[1].status, Status::LocalProtection | Status::LocalAccess), "{all:?}");
}

#[test]
fn an_error_flushes_outstanding_requests_in_order() {
    let mut pair = Pair::new();
    for wr_id in 10..14 {
        pair.receive(wr_id, &[]);
    }
    pair.b.to_error().unwrap();
    let order: Vec<_> = (0..4).map(|_| pair.setup.completion()).collect();
    assert!(order.iter().all(|completion| completion.status == Status::Flushed));
    let ids: Vec<_> = order.iter().map(|completion| completion.wr_id).collect();
    assert_eq!(ids, [10, 11, 12, 13]);
}

#[test]
fn a_window_with_more_rights_than_its_region_cannot_be_bound() {
    let mut pair = Pair::new();
    let access = AccessFlags::MW_BIND | AccessFlags::LOCAL_WRITE;
    let region = pair.setup.pd.register(Buffer::new(4096).unwrap(), access).unwrap();
    let foreign = pair.setup.context.alloc_pd().unwrap();
    let mut window = foreign.alloc_mw(WindowType::Type2).unwrap();
    // The library checks the region's rights.
    assert!(window.bind(&region, 0, 100, WindowAccess::REMOTE_WRITE).is_err());
    // Only the device can know that a key does not belong to a window.
    let mut own = pair.setup.pd.alloc_mw(WindowType::Type2).unwrap();
    let mut bind = own.bind(&region, 0, 100, WindowAccess::REMOTE_WRITE).unwrap();
    bind.window = region.rkey();
    bind.new_rkey = region.rkey();
    // SAFETY: no memory is named.
    unsafe { pair.a.post_send(1, bind, (), SIGNALED).unwrap() };
    assert_eq!(pair.setup.completion().status, Status::WindowBind);
}

#[test]
fn a_window_grants_and_an_invalidation_revokes() {
    let mut pair = Pair::new();
    let access = AccessFlags::MW_BIND | AccessFlags::LOCAL_WRITE;
    let region = pair.setup.pd.register(Buffer::new(4096).unwrap(), access).unwrap();
    let mut window = pair.setup.pd.alloc_mw(WindowType::Type2).unwrap();
    let bind = window.bind(&region, 1000, 100, WindowAccess::REMOTE_WRITE).unwrap();
    // SAFETY: no memory is named.
    unsafe { pair.b.post_send(1, bind, (), SIGNALED).unwrap() };
    assert_eq!(pair.setup.completion().status, Status::Success);
    let remote = Remote::new(region.address() + 1000, window.rkey());
    // SAFETY: inline data; the region outlives the window.
    unsafe { pair.a.post_send(2, op::Write(remote), Inline(b"granted"), SIGNALED).unwrap() };
    assert_eq!(pair.setup.completion().status, Status::Success);
    assert_eq!(&region.view().to_vec()[1000..1007], b"granted");
    pair.receive(4, &[]);
    // SAFETY: inline data.
    unsafe { pair.a.post_send(3, op::SendInvalidate(window.rkey()), (), SIGNALED).unwrap() };
    assert_eq!(pair.find(4, 2).status, Status::Success);
    // SAFETY: inline data, and the write is refused.
    unsafe { pair.a.post_send(5, op::Write(remote), Inline(b"revoked"), SIGNALED).unwrap() };
    assert_eq!(pair.setup.completion().status, Status::RemoteAccess);
    assert_eq!(&region.view().to_vec()[1000..1007], b"granted");
}

#[test]
fn after_a_reset_a_queue_pair_works_again() {
    let mut pair = Pair::new();
    let Pair { setup, a, b } = &mut pair;
    // SAFETY: inline data.
    unsafe { a.post_send(1, op::Send, Inline(b"x"), SIGNALED).unwrap() };
    assert_eq!(setup.completion().status, Status::RnrRetryExceeded);
    let (end_a, end_b) = (a.endpoint(), b.endpoint());
    for qp in [&mut *a, &mut *b] {
        qp.modify(&uverbs::qp::QpAttributes::to(State::Reset)).unwrap();
    }
    while setup.cq.poll().is_ok() {}
    a.connect(&end_b).unwrap();
    b.connect(&end_a).unwrap();
    let to = setup.region(4096);
    // SAFETY: inline data; the region outlives the receive.
    unsafe {
        b.post_receive(2, &[to.sge(0, 64).unwrap()]).unwrap();
        a.post_send(1, op::Send, Inline(b"again"), SIGNALED).unwrap();
    }
    let all = setup.completions(2);
    assert!(all.iter().all(|completion| completion.status == Status::Success), "{all:?}");
    assert_eq!(&to.view().to_vec()[..5], b"again");
}
