//! Less common objects and attributes: device memory, clock, counters, allocators, moderation,
//! migration; and errors for features that the device does not have, before an object is created.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use common::{ALL_ACCESS, Setup, success};
use uverbs::events::{EventSource, EventType};
use uverbs::memory::{QueueMemory, QueueUse};
use uverbs::qp::{AckTimeout, AlternatePath, Ece, Inline, MigrationState, PostFlags, QpAttributes};
use uverbs::qp_type::Rc;
use uverbs::{AccessFlags, Buffer, ErrorKind, op};

const SIGNALED: PostFlags = PostFlags::SIGNALED;

#[test]
fn device_memory_is_written_by_both_sides() {
    let mut setup = Setup::new();
    let context = setup.context.clone();
    if context.device_memory_bytes().unwrap() == 0 {
        assert_eq!(context.alloc_device_memory(64, 1).unwrap_err().kind(), ErrorKind::Unsupported);
        return;
    }
    let memory = context.alloc_device_memory(4100, 64).unwrap();
    assert_eq!(memory.len(), 4100);
    let data = common::pattern(4100, 3);
    memory.write(0, &data).unwrap();
    let mut back = vec![0; 4096];
    memory.read(4, &mut back).unwrap();
    assert_eq!(back, data[4..]);
    for (offset, length) in [(2, 4), (4, 2), (4096, 8), (usize::MAX - 3, 4)] {
        let error = memory.write(offset, &vec![0; length]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{offset}+{length}");
    }
    let registration = setup.pd.registration().access(ALL_ACCESS);
    assert!(registration.clone().register_device_memory(&memory, 4096, 8).is_err());
    let bind = registration.clone().access(AccessFlags::MW_BIND);
    assert!(bind.register_device_memory(&memory, 0, 64).is_err());
    let region = registration.register_device_memory(&memory, 64, 4000).unwrap();
    assert!(region.view().is_empty());
    let result = setup.region(4096);
    let (mut a, _b) = setup.rc_pair();
    memory.write(64, &7u64.to_ne_bytes()).unwrap();
    // SAFETY: the regions outlive the requests and are looked at after their completion only.
    unsafe {
        a.post_send(1, op::Write(region.remote(8).unwrap()), Inline(b"from far"), SIGNALED)
            .unwrap();
        let add = op::FetchAdd { remote: region.remote(0).unwrap(), add: 5 };
        let into = result.sge(0, 8).unwrap();
        let into = uverbs::qp::AtomicResult { address: into.address(), lkey: into.lkey() };
        a.post_send(2, add, into, SIGNALED).unwrap();
        let read = op::Read(region.remote(0).unwrap());
        a.post_send(3, read, result.sge(8, 16).unwrap(), SIGNALED).unwrap();
    }
    for wr_id in 1..=3 {
        assert_eq!(success(&mut setup.cq).wr_id, wr_id);
    }
    let mut words = [0; 24];
    result.view().read(0, &mut words).unwrap();
    let expected = [&7u64.to_ne_bytes()[..], &12u64.to_ne_bytes(), b"from far"].concat();
    assert_eq!(words[..], expected[..]);
    let busy = memory.free().unwrap_err();
    assert_eq!(busy.error.kind(), ErrorKind::Busy);
    region.deregister().unwrap();
    busy.object.free().unwrap();
}

#[test]
fn device_memory_runs_out_and_comes_back() {
    let context = common::open();
    let most = context.device_memory_bytes().unwrap() as usize;
    if most == 0 {
        return;
    }
    assert_eq!(context.alloc_device_memory(0, 1).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(
        context.alloc_device_memory(most + 1, 1).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    assert_eq!(context.alloc_device_memory(64, 3).unwrap_err().kind(), ErrorKind::InvalidInput);
    for _ in 0..3 {
        let all = context.alloc_device_memory(most, 64).unwrap();
        assert_eq!(context.alloc_device_memory(64, 64).unwrap_err().errno(), libc::ENOMEM);
        assert_eq!(all.len(), most);
    }
}

#[test]
fn timestamps_become_wall_clock_time() {
    let mut setup = Setup::new();
    let clock = match setup.context.clock() {
        Err(error) => return assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
        Ok(clock) => clock,
    };
    let (mut a, _b) = setup.rc_pair();
    let before = SystemTime::now();
    let ticks = clock.ticks().unwrap();
    // SAFETY: no memory is named.
    unsafe { a.post_send(1, op::Nop, (), SIGNALED).unwrap() };
    let raw = loop {
        match setup.cq.poll() {
            Ok(completion) => break completion.timestamp(),
            Err(error) => assert_eq!(error, uverbs::PollError::Empty),
        }
        std::thread::yield_now();
    };
    assert!(raw >= ticks, "{raw} {ticks}");
    let conversion = clock.conversion().unwrap();
    let (at, after) = (conversion.wall_time(raw), SystemTime::now());
    // The kernel's page and this process's clock are read at different moments; steps of the
    // system's clock and the drift between two updates stay far below a minute.
    let slack = Duration::from_secs(60);
    assert!(at > before - slack && at < after + slack, "{before:?} {at:?} {after:?}");
    assert!(clock.khz() > 0);
    let later = conversion.nanoseconds(raw + clock.khz()) - conversion.nanoseconds(raw);
    assert!((990_000..1_010_000).contains(&later), "{} ticks are {later} ns", clock.khz());
}

#[test]
fn the_clock_advances_while_the_context_is_idle() {
    let context = common::open();
    let Ok(clock) = context.clock() else { return };
    let mut last = clock.ticks().unwrap();
    for _ in 0..100 {
        let now = clock.ticks().unwrap();
        assert!(now > last, "{now} after {last}");
        last = now;
    }
}

#[test]
fn reading_counters_without_a_steering_rule_is_an_error() {
    let context = common::open();
    let counters = match context.create_counters() {
        Err(error) => return assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
        Ok(counters) => counters,
    };
    let error = counters.read(&mut [0; 2]).unwrap_err();
    assert!(error.to_string().contains("no steering rule is attached"), "{error}");
    counters.destroy().unwrap();
}

/// An allocator that counts the buffers that are in use.
fn counted(given: &Arc<AtomicUsize>) -> QueueMemory {
    let given = given.clone();
    QueueMemory::new(move |length, purpose| {
        let pages = Buffer::new(length)?;
        let (start, length) = (pages.as_ptr(), pages.len());
        let weight = match purpose {
            QueueUse::Completions => 1,
            QueueUse::DoorbellRecord => 10_000,
            _ => 100,
        };
        given.fetch_add(weight, Ordering::Relaxed);
        let given = given.clone();
        let give_back = move || {
            given.fetch_sub(weight, Ordering::Relaxed);
            drop(pages);
        };
        // SAFETY: the pages live until `give_back` drops them, and nothing else uses them.
        Ok(unsafe { Buffer::from_raw(start, length, give_back) })
    })
}

#[test]
fn an_allocator_of_the_program_provides_the_queues_memory() {
    let given = Arc::new(AtomicUsize::new(0));
    let memory = counted(&given);
    let context = common::open();
    let pd = context.alloc_pd().unwrap();
    let mut cq = context.create_raw_cq(16).queue_memory(&memory).build().unwrap();
    let own = pd.with_queue_memory(&memory);
    assert!(own.is_same(&pd));
    let srq = own.create_raw_srq(8).build().unwrap();
    let builder = own.create_raw_qp::<Rc>(cq.handle(), cq.handle());
    let mut a = builder.build().unwrap();
    assert_eq!(given.load(Ordering::Relaxed), 30_201);
    let end = a.endpoint();
    a.connect(&end).unwrap();
    for round in 0..200 {
        // SAFETY: no memory is named.
        unsafe { a.post_send(round, op::Nop, (), SIGNALED).unwrap() };
        assert_eq!(success(&mut cq).wr_id, round);
    }
    cq.resize(64).unwrap();
    assert_eq!(given.load(Ordering::Relaxed), 30_202);
    drop((a, srq, cq));
    assert_eq!(given.load(Ordering::Relaxed), 0);
}

#[test]
fn an_allocator_that_fails_or_returns_too_little_is_an_error() {
    let context = common::open();
    let none = QueueMemory::new(|_, _| Err(std::io::Error::from_raw_os_error(libc::ENOMEM)));
    let error = context.create_raw_cq(16).queue_memory(&none).build().unwrap_err();
    assert_eq!(error.errno(), libc::ENOMEM);
    let little = QueueMemory::new(|_, _| Buffer::new(64));
    let error = context.create_raw_cq(1000).queue_memory(&little).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let no_records = QueueMemory::new(|length, purpose| match purpose {
        QueueUse::DoorbellRecord => Err(std::io::Error::from_raw_os_error(libc::ENOMEM)),
        _ => Buffer::new(length),
    });
    let error = context.create_raw_cq(16).queue_memory(&no_records).build().unwrap_err();
    assert_eq!(error.errno(), libc::ENOMEM);
    context.create_raw_cq(1000).build().unwrap();
}

#[test]
fn moderated_events_arrive_once() {
    let mut setup = Setup::new();
    let channel = setup.context.create_completion_channel().unwrap();
    setup.cq = setup.context.create_raw_cq(1024).channel(&channel).build().unwrap();
    let (mut a, _b) = setup.rc_pair();
    let error = setup.cq.moderate(1, Duration::from_secs(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    for (count, posted) in [(8, 8), (8, 3), (0, 1)] {
        let period = if count == 0 { Duration::ZERO } else { Duration::from_millis(4) };
        setup.cq.moderate(count, period).unwrap();
        setup.cq.arm();
        for wr_id in 0..posted {
            // SAFETY: no memory is named.
            unsafe { a.post_send(wr_id, op::Nop, (), SIGNALED).unwrap() };
        }
        // Either the count is reached or the period has passed: both cause one event.
        channel.get_event().unwrap().acknowledge();
        for wr_id in 0..posted {
            assert_eq!(success(&mut setup.cq).wr_id, wr_id);
        }
        assert_eq!(channel.try_get_event().unwrap_err().kind(), ErrorKind::WouldBlock);
    }
}

#[test]
fn a_connection_migrates_to_its_alternate_path_and_the_peer_follows() {
    use uverbs_uapi::flags::DeviceCapFlags;
    let context = match common::is_soft() {
        true => common::soft_device(uverbs::soft::DeviceBuilder::infiniband).open().unwrap(),
        false => common::open(),
    };
    let mut setup = Setup::on(context);
    let (mut a, mut b) = setup.rc_pair();
    let (to_a, to_b) = (b.address_of(&a.endpoint()).unwrap(), a.address_of(&b.endpoint()).unwrap());
    let load = |mut address: uverbs::AddressVector| {
        address.service_level = 3;
        let path = AlternatePath { address, pkey_index: 0, timeout: AckTimeout::DEFAULT };
        QpAttributes::default().alternate_path(path).migration_state(MigrationState::Rearm)
    };
    let capabilities = setup.context.attributes().unwrap().capabilities();
    let infiniband = a.link_layer() == uverbs::LinkLayer::InfiniBand;
    if !infiniband || !capabilities.contains(DeviceCapFlags::AUTO_PATH_MIG) {
        assert_eq!(a.modify(&load(to_b)).unwrap_err().kind(), ErrorKind::Unsupported);
        return;
    }
    assert_eq!(a.query().unwrap().alternate_path, None);
    a.modify(&load(to_b)).unwrap();
    b.modify(&load(to_a)).unwrap();
    let loaded = a.query().unwrap();
    assert_eq!(loaded.alternate_path, load(to_b).alternate_path);
    assert_ne!(loaded.migration_state, MigrationState::Migrated);
    let region = setup.region(64);
    let mut ping = |qp: &mut uverbs::raw::QueuePair<Rc>| {
        let write = op::Write(region.remote(0).unwrap());
        // SAFETY: inline data.
        unsafe { qp.post_send(1, write, Inline(b"x"), SIGNALED).unwrap() };
        success(&mut setup.cq);
    };
    ping(&mut a);
    ping(&mut b);
    a.modify(&QpAttributes::default().migration_state(MigrationState::Migrated)).unwrap();
    ping(&mut a);
    let mut migrated: Vec<_> = (0..2)
        .map(|_| {
            let event = setup.context.get_event().unwrap();
            assert_eq!(event.kind(), EventType::PATH_MIG);
            event.source()
        })
        .collect();
    migrated.sort_by_key(|source| *source != EventSource::QueuePair(a.id()));
    assert_eq!(migrated, [a.id(), b.id()].map(EventSource::QueuePair));
    let migrated = b.query().unwrap();
    assert_eq!(migrated.address.service_level, 3);
    assert_eq!(migrated.migration_state, MigrationState::Migrated);
}

#[test]
fn features_that_the_device_lacks_are_named_errors() {
    if !common::is_soft() {
        return;
    }
    let setup = Setup::new();
    let (mut a, _b) = setup.rc_pair();
    let to_itself = a.address_of(&a.endpoint()).unwrap();
    let path = AlternatePath { address: to_itself, pkey_index: 0, timeout: AckTimeout::DEFAULT };
    let error = a.modify(&QpAttributes::default().alternate_path(path)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let error = a.modify(&QpAttributes::default().rate_limit(1000)).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Unsupported, libc::EOPNOTSUPP));
    assert!(error.to_string().contains("no packet pacing for RC"), "{error}");
    assert!(!error.is_from_kernel(), "nothing was sent");
}

#[test]
fn pages_of_an_on_demand_region_are_mapped_on_access_or_prefetch() {
    let mut setup = Setup::new();
    let (mut a, _b) = setup.rc_pair();
    let registration = setup.pd.registration().access(ALL_ACCESS).on_demand();
    let region = match registration.register(Buffer::new(1 << 16).unwrap()) {
        Ok(region) => region,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("no on-demand paging"), "{error}");
            return;
        }
    };
    let pinned = setup.region(4096);
    let error = pinned.prefetch(0, 4096, true, true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    region.prefetch(4096, 8192, true, true).unwrap();
    assert!(region.prefetch(1 << 16, 1, true, true).is_err(), "beyond the end");
    for offset in [5000, 40_000] {
        let remote = region.remote(offset).unwrap();
        // SAFETY: inline data; the region outlives the request.
        unsafe { a.post_send(1, op::Write(remote), Inline(b"paged in"), SIGNALED) }.unwrap();
        success(&mut setup.cq);
        assert_eq!(&region.view().to_vec()[offset..offset + 8], b"paged in");
    }
}

#[test]
fn ece_options_are_requested_and_granted() {
    let plain = Setup::new();
    let mut qp = plain.builder::<Rc>().build().unwrap();
    let error = qp.query_ece().unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Unsupported, 95));
    let foreign = Ece { vendor_id: 0x1234, options: 1 };
    assert_eq!(qp.set_ece(foreign).unwrap_err().kind(), ErrorKind::Unsupported);

    let device = common::soft_device(|builder| builder.connection_options(0x1000_0007));
    let mut setup = Setup::on(device.open().unwrap());
    let (mut a, mut b) =
        (setup.builder::<Rc>().build().unwrap(), setup.builder::<Rc>().build().unwrap());
    let offered = a.query_ece().unwrap();
    assert_eq!(offered, Ece { vendor_id: 0x15b3, options: 0x1000_0007 });
    assert_eq!(b.set_ece(foreign).unwrap_err().kind(), ErrorKind::InvalidInput);
    // The accepting end requests one option more than its device supports.
    b.set_ece(Ece { options: 0x1000_000a, ..offered }).unwrap();
    assert_eq!(b.query_ece().unwrap().options, 0, "nothing is granted yet");
    let (end_a, end_b) = (a.endpoint(), b.endpoint());
    b.connect(&end_a).unwrap();
    let agreed = b.query_ece().unwrap();
    assert_eq!(agreed.options, 0x1000_0002);
    a.set_ece(agreed).unwrap();
    a.connect(&end_b).unwrap();
    assert_eq!(a.query_ece().unwrap(), agreed);
    // SAFETY: no memory is named.
    unsafe { a.post_send(1, op::Nop, (), PostFlags::SIGNALED) }.unwrap();
    common::success(&mut setup.cq);
}
