//! A queue accepts exactly as many requests as it granted, of any kind and size.

mod common;

use common::{ALL_ACCESS, Setup};
use uverbs::mw::{WindowAccess, WindowType};
use uverbs::op::{Carries, Operation, Takes};
use uverbs::qp::{
    AtomicResult, Datagram, Immediate, Inline, Operations, Payload, PostError, PostFlags, XrcTarget,
};
use uverbs::qp_type::{QueuePairType, Rc, Uc, Ud, Xrc};
use uverbs::{Remote, Sge, op, raw};

const REMOTE: Remote = Remote { address: 0x1000, rkey: 1 };
const RESULT: AtomicResult = AtomicResult { address: 0x1000, lkey: 1 };

fn bind() -> op::BindWindow {
    op::BindWindow {
        window: 0x100,
        window_type: WindowType::Type2,
        new_rkey: 0x101,
        lkey: 1,
        address: 0x1000,
        length: 64,
        access: WindowAccess::REMOTE_READ,
        zero_based: false,
    }
}

fn masked_swap() -> op::MaskedCompareSwap {
    op::MaskedCompareSwap { remote: REMOTE, compare: 1, compare_mask: 1, swap: 2, swap_mask: 3 }
}

/// Fills the queue with requests of one operation. They are aborted, so the device does not get
/// them.
fn holds<T, O, P>(qp: &mut raw::QueuePair<T>, operation: O, payload: P)
where
    T: QueuePairType + Carries<O>,
    O: Operation + Takes<P>,
    P: Payload,
{
    let granted = qp.capacities().max_send_wr;
    let mut batch: raw::Batch<'_, T, _> = qp.batch().unwrap();
    for i in 0..granted {
        // SAFETY: it is aborted before the device hears of it.
        let posted = unsafe { batch.build(u64::from(i), operation, payload, PostFlags::SIGNALED) };
        let name = std::any::type_name::<O>();
        assert_eq!(posted, Ok(()), "{name} number {i} of {granted}");
    }
    batch.abort();
}

/// Fills the queue with requests of the most SGEs, then of the most inline data, that it grants.
fn holds_data<T, O>(qp: &mut raw::QueuePair<T>, operation: O)
where
    T: QueuePairType + Carries<O>,
    O: Operation + for<'a> Takes<&'a [Sge]> + for<'a> Takes<Inline<'a>>,
{
    let granted = qp.capacities();
    let sges = vec![Sge::new(0x1000, 64, 1); granted.max_send_sge as usize];
    holds(qp, operation, sges.as_slice());
    holds(qp, operation, Inline(&vec![7; granted.max_inline_data as usize]));
}

fn connected<T: uverbs::qp_type::Connected>(
    sends: u32,
    sge: u32,
    inline: u32,
) -> raw::QueuePair<T> {
    let setup = Setup::new();
    setup
        .pair::<T>(|builder| builder.max_send_wr(sends).max_send_sge(sge).max_inline_data(inline))
        .0
}

#[test]
fn queues_larger_than_the_device_reports_are_refused() {
    let setup = Setup::new();
    let attributes = setup.context.attributes().unwrap();
    let (most, shared) = (attributes.max_qp_wr(), attributes.max_srq_wr());
    let receives = |receives| setup.builder::<Rc>().max_recv_wr(receives).build();
    assert_eq!(receives(most + 1).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(receives(most).unwrap().capacities().max_recv_wr, most);
    // With requests of one block each, the ring would have space for four times as many.
    let small = || setup.builder::<Ud>().operations(Operations::empty());
    assert_eq!(small().max_send_wr(most + 1).build().unwrap_err().errno(), libc::EINVAL);
    assert_eq!(small().max_send_wr(most).build().unwrap().capacities().max_send_wr, most);
    let srq = |receives| setup.pd.create_raw_srq(receives).build();
    assert_eq!(srq(shared + 1).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(srq(shared).unwrap().capacity(), shared);
    // The safe layer has the same limits.
    let cq = setup.context.create_cq(16).build().unwrap();
    let safe = || setup.pd.create_qp::<Ud>(cq.handle(), cq.handle());
    assert_eq!(safe().max_send_wr(most + 1).build().unwrap_err().errno(), libc::EINVAL);
    assert_eq!(safe().max_recv_wr(most + 1).build().unwrap_err().errno(), libc::EINVAL);
    assert_eq!(setup.pd.create_srq(shared + 1).build().unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn reliable_connections_hold_every_operation() {
    for (sends, sge, inline) in [(64, 1, 0), (5, 4, 44), (1, 1, 60), (33, 13, 300)] {
        let qp = &mut connected::<Rc>(sends, sge, inline);
        assert!(qp.capacities().max_send_wr >= sends);
        holds(qp, op::Nop, ());
        holds_data(qp, op::Send);
        holds_data(qp, op::Write(REMOTE));
        holds_data(qp, op::WriteImmediate(REMOTE, Immediate([0; 4])));
        holds(qp, op::Read(REMOTE), Sge::new(0x1000, 64, 1));
        holds(qp, op::CompareSwap { remote: REMOTE, compare: 1, swap: 2 }, RESULT);
        holds(qp, op::FetchAdd { remote: REMOTE, add: 1 }, RESULT);
        holds(qp, masked_swap(), RESULT);
        holds(qp, op::MaskedFetchAdd { remote: REMOTE, add: 1, field_boundary: 1 }, RESULT);
        holds(qp, bind(), ());
        holds(qp, op::LocalInvalidate(1), ());
        let (window, new_rkey) = (0x100, 0x101);
        holds(qp, op::UnbindWindow { window, window_type: WindowType::Type1, new_rkey }, ());
    }
}

#[test]
fn the_other_qp_types_hold_every_operation() {
    let qp = &mut connected::<Uc>(64, 1, 0);
    holds_data(qp, op::Write(REMOTE));
    holds(qp, bind(), ());
    let qp = &mut connected::<Xrc>(64, 1, 0);
    let to = XrcTarget(5);
    holds_data(qp, op::To(to, op::WriteImmediate(REMOTE, Immediate([0; 4]))));
    holds(qp, op::To(to, op::FetchAdd { remote: REMOTE, add: 1 }), RESULT);
    holds(qp, op::To(to, masked_swap()), RESULT);
    holds(qp, bind(), ());
    let setup = Setup::new();
    let mut qp = setup.builder::<Ud>().max_send_wr(64).max_inline_data(0).build().unwrap();
    qp.activate().unwrap();
    let there = setup.pd.create_ah(&qp.address_of(&qp.endpoint()).unwrap()).unwrap();
    let address = there.datagram_to(&qp.endpoint());
    holds_data(&mut qp, op::To(Datagram(&address), op::SendImmediate(Immediate([0; 4]))));
}

#[test]
fn a_program_says_which_operations_it_needs_space_for() {
    let setup = Setup::new();
    let small = |operations| {
        let builder =
            setup.builder::<Rc>().max_send_wr(64).max_inline_data(44).operations(operations);
        let mut qp = builder.build().unwrap();
        let peer = qp.endpoint();
        qp.connect(&peer).unwrap();
        qp
    };
    let mut sends = small(Operations::empty());
    holds_data(&mut sends, op::Send);
    // One block holds a control segment and 44 bytes of inline data, and the queue has 64 blocks.
    assert_eq!(sends.capacities().max_send_wr, 64);
    let mut batch = sends.batch().unwrap();
    let masked = masked_swap();
    // SAFETY: it is aborted before the device hears of it.
    let posted = (0..64).map(|i| unsafe { batch.build(i, masked, RESULT, PostFlags::SIGNALED) });
    assert_eq!(posted.filter(|posted| *posted == Err(PostError::Full)).count(), 32);
    batch.abort();
    let mut atomics = small(Operations::RDMA | Operations::ATOMIC);
    holds(&mut atomics, masked, RESULT);
}

#[test]
fn receive_queues_hold_what_they_grant() {
    let setup = Setup::new();
    let region = setup.region(4096);
    for (receives, sge) in [(1, 1), (100, 3), (7, 32)] {
        let mut qp = setup.builder::<Rc>().max_recv_wr(receives).max_recv_sge(sge).build().unwrap();
        let granted = qp.capacities();
        assert!(granted.max_recv_wr >= receives && granted.max_recv_sge >= sge);
        let sges = vec![region.sge(0, 8).unwrap(); granted.max_recv_sge as usize];
        for i in 0..granted.max_recv_wr {
            // SAFETY: the region outlives the queue pair.
            unsafe { qp.post_receive(i.into(), &sges).unwrap() };
        }
        // SAFETY: as above.
        assert_eq!(unsafe { qp.post_receive(0, &sges) }, Err(PostError::Full));
        let mut srq = setup.pd.create_raw_srq(receives).max_sge(sge.min(31)).build().unwrap();
        let sges = vec![region.sge(0, 8).unwrap(); srq.max_sge() as usize];
        for i in 0..srq.capacity() {
            // SAFETY: the region outlives the queue.
            unsafe { srq.post(i.into(), &sges).unwrap() };
        }
        // SAFETY: as above.
        assert_eq!(unsafe { srq.post(0, &sges) }, Err(PostError::Full));
    }
    assert!(region.access().contains(ALL_ACCESS));
}

/// Their slots do not overlap, and the device may read and write all of them.
#[test]
fn several_slabs_share_a_registration() {
    let setup = Setup::new();
    let slabs = setup.pd.create_slabs([(3, 100), (2, 64), (1, 5000)]).unwrap();
    assert_eq!(
        slabs.each_ref().map(|slab| (slab.free(), slab.slot_bytes())),
        [(3, 100), (2, 64), (1, 5000)]
    );
    let mut slots: Vec<_> =
        slabs.iter().flat_map(|slab| std::iter::from_fn(|| slab.take())).collect();
    for (number, slot) in slots.iter_mut().enumerate() {
        slot.set_len(slot.capacity());
        slot.fill(number as u8);
    }
    for (number, slot) in slots.iter().enumerate() {
        assert!(
            slot.iter().all(|byte| usize::from(*byte) == number)
                && slot.as_ptr() as usize % 64 == 0
        );
    }
    drop(slabs);
    drop(slots);
    for sizes in [[(1, 64), (0, 64)], [(1, 0), (1, 64)]] {
        let error = setup.pd.create_slabs(sizes).unwrap_err();
        assert_eq!(error.kind(), uverbs::ErrorKind::InvalidInput, "{error}");
    }
}

#[test]
fn slabs_take_memory_of_the_programs_choice() {
    let setup = Setup::new();
    let slab = setup.pd.create_slab_with(uverbs::Buffer::new(8192).unwrap(), 100).unwrap();
    assert_eq!((slab.free(), slab.slot_bytes()), (8192 / 128, 100));
    let mut slots: Vec<_> = std::iter::from_fn(|| slab.take()).collect();
    assert_eq!(slots.len(), 64);
    for (index, slot) in slots.iter_mut().enumerate() {
        slot.write(&[index as u8; 100]).unwrap();
    }
    assert!(slots.iter().enumerate().all(|(index, slot)| **slot == [index as u8; 100]));
    drop(slots);
    assert_eq!(slab.free(), 64);
    let too_small = setup.pd.create_slab_with(uverbs::Buffer::new(64).unwrap(), 4097);
    assert!(too_small.unwrap_err().to_string().contains("at least one slot"));
    assert!(setup.pd.create_slab(0, 1).is_err() && setup.pd.create_slab(1, 0).is_err());
}
