use super::super::flight::SERIAL_SHIFT;
use super::*;
use crate::Slab;

/// The flights that completions of sends and of receives carry.
fn completed(queue: Serial, cq: u32) -> [Flight; 2] {
    queue.side_contexts([CqBits::of(cq); 2]).map(Flight::of_completion)
}

fn slab(slots: u32) -> Slab {
    let device = uverbs_soft::chardev::SoftDevice::builder("soft0").without_wire().build();
    let context = crate::Device::from_soft(device.unwrap()).open().unwrap();
    context.alloc_pd().unwrap().create_slab(slots, 8).unwrap()
}

fn launch(slab: &Slab, flight: Flight) -> NonNull<Header> {
    let slot = std::mem::ManuallyDrop::new(slab.take().unwrap());
    let launch = Launch::new(&slot, flight);
    assert_eq!(launch.take(), launch.id());
    header_of(launch.id()).unwrap()
}

#[test]
fn what_does_not_fit_is_not_cut() {
    let mut slot = slab(1).take().unwrap();
    slot.write(b"eight by").unwrap();
    let error = slot.write(b"nine byte").unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("9 bytes do not fit into 8"), "{error}");
    assert_eq!(&slot[..], b"eight by", "nothing has changed");
}

#[test]
fn numbers_of_queues_are_never_used_again() {
    let last = (1 << (64 - SERIAL_SHIFT)) - 1;
    assert_eq!(Serial::of_object("test", last).unwrap().get() >> SERIAL_SHIFT, last);
    let error = Serial::of_object("test", last + 1).unwrap_err();
    assert!(error.cause().contains("no number is left"), "{error}");
    assert!(Serial::of_object("test", u64::MAX).is_err());
}

#[test]
fn a_slot_lands_once_and_where_it_was_going() {
    let slab = slab(1);
    let (queue, other) = (Serial::new("test").unwrap(), Serial::new("test").unwrap());
    let flight = queue.sends(CqBits::of(3));
    let header = launch(&slab, flight);
    assert_eq!(slab.free(), 0);
    let id = header.as_ptr() as u64;
    // Made-up completions: of another queue pair, of another completion queue, of another kind of
    // request.
    for [sent, _] in [completed(other, 3), completed(queue, 4)] {
        // SAFETY: launched above, its context alive, and one thread.
        assert!(unsafe { land_id(id, sent) }.is_none(), "{sent:?}");
    }
    for kind in [Kind::Receive, Kind::Unsignaled, Kind::Chained, Kind::SharedReceive] {
        // SAFETY: as above.
        assert!(unsafe { land(header, flight.of(kind)) }.is_none(), "{kind:?}");
    }
    let [sent, received] = completed(queue, 3);
    // SAFETY: as above.
    assert!(unsafe { land_id(id, received) }.is_none());
    // SAFETY: as above.
    let (landed, again) = unsafe { (land_id(id, sent), land_id(id, sent)) };
    assert!(landed.is_some() && again.is_none(), "{landed:?} {again:?}");
    // SAFETY: as above.
    assert!(unsafe { land_id(0, sent) }.is_none(), "no request's id");
    drop(landed);
    assert_eq!(slab.free(), 1);
}

#[test]
fn each_kind_of_request_lands_its_own_way() {
    let slab = slab(1);
    let queue = Serial::new("test").unwrap();
    let land = |flight: Flight, id_offset| {
        let id = launch(&slab, flight).as_ptr() as u64 + id_offset;
        let [sent, received] = completed(queue, 0);
        // SAFETY: launched just now, its context alive, and one thread.
        assert!(unsafe { land_id(id, sent) }.is_none(), "an old completion of a send");
        // SAFETY: as above.
        let landed = unsafe { land_id(id, received) };
        // SAFETY: as above.
        let other = unsafe { land_other(id, queue, CqBits::of(0)) };
        let what = (landed.is_some(), other.is_some());
        drop((landed, other));
        let free = slab.free();
        // SAFETY: as above.
        unsafe { release_all(header_of(id).unwrap(), queue) };
        assert_eq!(slab.free(), 1, "{flight:?}");
        (what, free)
    };
    assert_eq!(land(queue.receives(CqBits::of(0)), 0), ((true, false), 1));
    assert_eq!(land(queue.sends(CqBits::of(0)).of(Kind::Chained), 0), ((false, true), 1));
    // The signaled send that was to release it still does.
    assert_eq!(land(queue.sends(CqBits::of(0)).of(Kind::Unsignaled), 0), ((false, false), 0));
    assert_eq!(
        land(queue.sends(CqBits::of(0)).of(Kind::Unsignaled), RELEASES),
        ((false, false), 1)
    );
    // Of a shared queue, also where the completion queue's number is 0: several pollers might meet.
    assert_eq!(land(queue.shared_receives(), 0), ((false, false), 0));
}

#[test]
fn of_several_threads_that_land_a_shared_receive_one_gets_it() {
    const ROUNDS: usize = 200;
    let slab = slab(1);
    let flight = Serial::new("test").unwrap().shared_receives();
    let wins = std::sync::atomic::AtomicUsize::new(0);
    for _ in 0..ROUNDS {
        let id = launch(&slab, flight).as_ptr().expose_provenance() as u64;
        let start = std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    start.wait();
                    // SAFETY: launched above, and its context is alive.
                    let landed = unsafe { land_shared(header_of(id).unwrap(), flight) };
                    wins.fetch_add(landed.iter().count(), Ordering::Relaxed);
                });
            }
        });
        assert_eq!(slab.free(), 1);
    }
    assert_eq!(wins.into_inner(), ROUNDS);
}

#[test]
fn what_is_left_of_a_queue_goes_back_and_nothing_else() {
    let slab = slab(2);
    let (queue, other) = (Serial::new("test").unwrap(), Serial::new("test").unwrap());
    let headers = [
        launch(&slab, queue.receives(CqBits::of(9))),
        launch(&slab, other.receives(CqBits::of(9))),
    ];
    // SAFETY: launched above, their context alive, and one thread.
    headers.iter().for_each(|header| unsafe { release_all(*header, queue) });
    assert_eq!(slab.free(), 1);
}

/// Slots of one slab go back in one step, also where slots of another slab are between them.
#[test]
fn a_chain_goes_back_to_the_slab_of_each_slot() {
    let slabs = [slab(3), slab(2)];
    let queue = Serial::new("test").unwrap();
    let sends = queue.sends(CqBits::of(0));
    let mut chain = Chain::EMPTY;
    for of in [0, 0, 1, 0, 1] {
        let slot = std::mem::ManuallyDrop::new(slabs[of].take().unwrap());
        Launch::new(&slot, sends).following(chain, Kind::Unsignaled).start();
        chain = Chain::ending_in(&slot);
    }
    assert_eq!(slabs.each_ref().map(Slab::free), [0, 0]);
    // SAFETY: launched above, their contexts alive, and one thread.
    assert!(unsafe { land_other(chain.releasing_id(), queue, CqBits::of(0)) }.is_none());
    assert_eq!(slabs.each_ref().map(Slab::free), [3, 2]);
    let taken =
        slabs.each_ref().map(|slab| std::iter::from_fn(|| slab.take()).collect::<Vec<_>>().len());
    assert_eq!(taken, [3, 2], "each slot once");
}
