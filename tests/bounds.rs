//! Requests without bytes for every operation and form of data, requests that are too long, and
//! queues of the smallest and largest sizes.

mod common;

use common::{ALL_ACCESS, Setup, completion, success};
use uverbs::cq::Status;
use uverbs::op::{Carries, Operation, Takes};
use uverbs::qp::{Datagram, Immediate, Inline, Payload, PostError, PostFlags};
use uverbs::qp_type::{QueuePairType, Rc, Uc, Ud};
use uverbs::{Buffer, ErrorKind, Remote, Sge, op, raw};

const SIGNALED: PostFlags = PostFlags::SIGNALED;
/// No region has this key. For a request without bytes it is not checked (specification C9-88).
const NOWHERE: Remote = Remote { address: 0, rkey: 0 };
const DATA: Immediate = Immediate([1, 2, 3, 4]);

/// Posts an operation without bytes. `receives` is whether it takes a receive of the peer.
fn empty<T, O, P>(
    setup: &mut Setup,
    [a, b]: [&mut raw::QueuePair<T>; 2],
    (operation, receives): (O, bool),
    payload: P,
) where
    T: QueuePairType + Carries<O>,
    O: Operation + Takes<P>,
    P: Payload,
{
    let what = format!("{} with {}", std::any::type_name::<O>(), std::any::type_name::<P>());
    if receives {
        // SAFETY: no memory is named.
        unsafe { b.post_receive(2, &[]).unwrap() };
    }
    // SAFETY: no memory is read or written.
    unsafe { a.post_send(1, operation, payload, SIGNALED) }.expect(&what);
    for done in setup.completions(1 + usize::from(receives)) {
        assert_eq!(done.status, Status::Success, "{what}: {done:?}");
        assert!(done.wr_id == 1 || done.byte_len() == 0, "{what}: {done:?}");
    }
}

/// Posts an operation without bytes in each form of data.
fn empty_in_all_forms<T, O>(
    setup: &mut Setup,
    [a, b]: [&mut raw::QueuePair<T>; 2],
    operation: (O, bool),
) where
    T: QueuePairType + Carries<O>,
    O: Operation + Takes<Sge> + for<'a> Takes<&'a [Sge]> + for<'a> Takes<Inline<'a>> + Takes<()>,
{
    let none = Sge::new(0, 0, 0);
    empty(setup, [a, b], operation, ());
    empty(setup, [a, b], operation, none);
    empty(setup, [a, b], operation, &[] as &[Sge]);
    empty(setup, [a, b], operation, &[none, none][..]);
    empty(setup, [a, b], operation, Inline(b""));
}

#[test]
fn reliable_connections_carry_requests_without_bytes() {
    let mut setup = Setup::new();
    let (mut a, mut b) = setup.pair::<Rc>(|builder| builder.access(ALL_ACCESS));
    let ends = [&mut a, &mut b];
    let [a, b] = ends;
    empty_in_all_forms(&mut setup, [a, b], (op::Send, true));
    empty_in_all_forms(&mut setup, [a, b], (op::SendImmediate(DATA), true));
    empty_in_all_forms(&mut setup, [a, b], (op::Write(NOWHERE), false));
    empty_in_all_forms(&mut setup, [a, b], (op::WriteImmediate(NOWHERE, DATA), true));
    let none = Sge::new(0, 0, 0);
    empty(&mut setup, [a, b], (op::Read(NOWHERE), false), none);
    empty(&mut setup, [a, b], (op::Read(NOWHERE), false), &[] as &[Sge]);
    empty(&mut setup, [a, b], (op::Read(NOWHERE), false), &[none, none][..]);
}

#[test]
fn unreliable_services_carry_requests_without_bytes() {
    let mut setup = Setup::new();
    let (mut a, mut b) = setup.pair::<Uc>(|builder| builder.access(ALL_ACCESS));
    let [a, b] = [&mut a, &mut b];
    empty_in_all_forms(&mut setup, [a, b], (op::Send, true));
    empty_in_all_forms(&mut setup, [a, b], (op::Write(NOWHERE), false));
    empty_in_all_forms(&mut setup, [a, b], (op::WriteImmediate(NOWHERE, DATA), true));
    let mut ud = [(), ()].map(|()| {
        let mut qp = setup.builder::<Ud>().build().unwrap();
        qp.activate().unwrap();
        qp
    });
    let there = setup.pd.create_ah(&ud[0].address_of(&ud[1].endpoint()).unwrap()).unwrap();
    let address = there.datagram_to(&ud[1].endpoint());
    let memory = setup.region(64);
    let [a, b] = &mut ud;
    for payload in [Sge::new(0, 0, 0), Sge::new(0, 0, 7)] {
        // The header of 40 bytes goes to the receive.
        // SAFETY: the region outlives the queue pairs.
        unsafe { b.post_receive(3, &[memory.sge(0, 64).unwrap()]).unwrap() };
        let to = op::To(Datagram(&address), op::Send);
        // SAFETY: no bytes.
        unsafe { a.post_send(1, to, payload, SIGNALED).unwrap() };
        let done = setup.completions(2);
        assert!(done.iter().all(|done| done.status == Status::Success), "{done:?}");
    }
}

#[test]
fn requests_of_too_many_bytes_are_refused_here_or_by_the_device() {
    let mut setup = Setup::new();
    for length in [1 << 31, (1 << 31) + 1, u32::MAX] {
        let (mut a, _b) = setup.rc_pair();
        let sge = Sge::new(0x1000, length, 1);
        // SAFETY: nothing is posted.
        let refused = unsafe {
            [
                a.post_send(1, op::Send, sge, SIGNALED),
                a.post_send(1, op::SendImmediate(DATA), &[sge][..], SIGNALED),
                a.post_send(1, op::Write(NOWHERE), sge, SIGNALED),
                a.post_send(1, op::WriteImmediate(NOWHERE, DATA), sge, SIGNALED),
                a.post_send(1, op::Read(NOWHERE), sge, SIGNALED),
                a.post_receive(1, &[sge]),
            ]
        };
        assert_eq!(refused, [Err(PostError::SgeTooLong); 6], "{length:#x}");
    }
    // Its pages are never touched.
    let most = setup.context.query_port(1).unwrap().max_message() as usize;
    let region = setup.pd.register(Buffer::new(most).unwrap(), ALL_ACCESS).unwrap();
    for (first, second) in [(most, 1), (most, most), (most - 1, 2), (1, most)] {
        let mut qp = setup.builder::<Rc>().max_send_sge(2).build().unwrap();
        let peer = qp.endpoint();
        qp.connect(&peer).unwrap();
        let sges = [region.sge(0, first).unwrap(), region.sge(0, second).unwrap()];
        // SAFETY: the region outlives the queue pair, and is not used.
        unsafe { qp.post_send(1, op::Write(NOWHERE), &sges[..], SIGNALED).unwrap() };
        assert_eq!(completion(&mut setup.cq).status, Status::LocalLength, "{first} {second}");
    }
}

#[test]
fn queues_have_at_least_one_entry_and_take_all_that_they_grant() {
    let mut setup = Setup::new();
    let attributes = setup.context.attributes().unwrap();
    let most = attributes.max_cqe();
    for entries in [0, most + 1, u32::MAX] {
        let refused = setup.context.create_raw_cq(entries).build().map(drop).unwrap_err();
        assert_eq!((refused.kind(), refused.errno()), (ErrorKind::InvalidInput, libc::EINVAL));
        assert_eq!(setup.cq.resize(entries).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    for entries in [1, 2, 3, 4, 5, 63, 64, 65] {
        setup.cq = setup.context.create_raw_cq(entries).build().unwrap();
        let granted = setup.cq.capacity();
        assert!(granted >= entries);
        let (mut qp, _peer) = setup.pair::<Rc>(|builder| builder.max_send_wr(entries));
        let fits = granted.min(qp.capacities().max_send_wr);
        for wr_id in 0..fits.into() {
            // SAFETY: no memory is named.
            unsafe { qp.post_send(wr_id, op::Nop, (), SIGNALED).unwrap() };
        }
        for wr_id in 0..fits.into() {
            assert_eq!(success(&mut setup.cq).wr_id, wr_id, "of {entries}");
        }
    }
    assert!(setup.pd.create_raw_srq(0).build().is_err());
    let none = setup.builder::<Rc>().max_send_wr(0).max_recv_wr(0).build().unwrap();
    assert_eq!((none.capacities().max_send_wr, none.capacities().max_recv_wr), (0, 0));
}
