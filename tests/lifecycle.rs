//! Creating and destroying objects: in any order, many at once, in several contexts.

mod common;

use common::{ALL_ACCESS, Setup, completion, success};
use uverbs::qp::{Inline, PostFlags, QpAttributes, State};
use uverbs::qp_type::{Rc, Uc, Ud, Xrc};
use uverbs::{
    Buffer, CompletionChannel, Context, Device, Error, ErrorKind, MemoryRegion, MemoryWindow,
    ProtectionDomain, op, raw,
};

const SIGNALED: PostFlags = PostFlags::SIGNALED;

#[test]
fn destroying_an_object_before_its_children_returns_it() {
    let setup = Setup::new();
    let (qp, _other) = setup.rc_pair();
    let Setup { context: _context, pd, cq } = setup;
    let failed = pd.destroy().unwrap_err();
    assert_eq!((failed.error.kind(), failed.error.errno()), (ErrorKind::Busy, 16));
    let failed_cq = cq.destroy().unwrap_err();
    assert_eq!(failed_cq.error.kind(), ErrorKind::Busy);
    assert!(failed_cq.to_string().contains("queue pair"), "{failed_cq}");
    drop(_other);
    qp.destroy().unwrap();
    failed_cq.object.destroy().unwrap();
    failed.object.destroy().unwrap();
}

#[test]
fn parents_may_be_dropped_first() {
    let mut setup = Setup::new();
    let (mut a, _b) = setup.rc_pair();
    let theirs = setup.region(4096);
    let remote = theirs.remote(0).unwrap();
    drop(setup.context);
    drop(setup.pd);
    // SAFETY: inline data; the region outlives the request.
    unsafe { a.post_send(1, op::Write(remote), Inline(b"alive"), SIGNALED).unwrap() };
    success(&mut setup.cq);
    assert_eq!(&theirs.view().to_vec()[..5], b"alive");
    drop(setup.cq);
    drop(a);
}

#[test]
fn a_thousand_queue_pairs_work() {
    let context = common::open();
    let pd = context.alloc_pd().unwrap();
    let mut cq = context.create_raw_cq(4096).build().unwrap();
    let region = pd.register(Buffer::new(4096).unwrap(), ALL_ACCESS).unwrap();
    let mut all: Vec<raw::QueuePair<Rc>> = (0..1000)
        .map(|_| {
            let builder = pd.create_raw_qp(cq.handle(), cq.handle()).max_send_wr(4).max_recv_wr(4);
            builder.access(common::REMOTE).build().unwrap()
        })
        .collect();
    for pair in all.chunks_exact_mut(2) {
        let [a, b] = pair else { unreachable!("chunks of two") };
        let (end_a, end_b) = (a.endpoint(), b.endpoint());
        a.connect(&end_b).unwrap();
        b.connect(&end_a).unwrap();
    }
    for (index, qp) in all.iter_mut().enumerate() {
        let remote = region.remote(index * 4).unwrap();
        let data = (index as u32).to_le_bytes();
        // SAFETY: inline data; the region outlives the requests.
        unsafe { qp.post_send(index as u64, op::Write(remote), Inline(&data), SIGNALED).unwrap() };
    }
    let mut seen = vec![false; all.len()];
    for _ in 0..all.len() {
        seen[success(&mut cq).wr_id as usize] = true;
    }
    assert!(seen.iter().all(|seen| *seen));
    let written = region.view().to_vec();
    for index in 0..all.len() {
        assert_eq!(written[index * 4..][..4], (index as u32).to_le_bytes());
    }
    let mut numbers: Vec<_> = all.iter().map(raw::QueuePair::number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), all.len());
}

#[test]
fn two_contexts_exchange_messages_and_not_objects() {
    let device = common::device();
    let mut left = Setup::on(device.open().unwrap());
    let mut right = Setup::on(device.open().unwrap());
    let mut a = left.builder::<Rc>().build().unwrap();
    let mut b = right.builder::<Rc>().build().unwrap();
    let (end_a, end_b) = (a.endpoint(), b.endpoint());
    a.connect(&end_b).unwrap();
    b.connect(&end_a).unwrap();
    let to = right.region(4096);
    // SAFETY: inline data; the region outlives the receive.
    unsafe {
        b.post_receive(2, &[to.sge(0, 64).unwrap()]).unwrap();
        a.post_send(1, op::Send, Inline(b"across"), SIGNALED).unwrap();
    }
    success(&mut left.cq);
    success(&mut right.cq);
    assert_eq!(&to.view().to_vec()[..6], b"across");
    let mixed = left.pd.create_raw_qp::<Rc>(right.cq.handle(), left.cq.handle()).build();
    assert_eq!(mixed.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_connected_queue_pair_refuses_a_datagram_endpoint() {
    let setup = Setup::new();
    let datagrams = setup.builder::<Ud>().build().unwrap().endpoint();
    let mut qp = setup.builder::<Rc>().build().unwrap();
    let error = qp.connect(&datagrams).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.cause().contains("datagram"), "{error}");
    let own = qp.endpoint();
    qp.connect(&own).unwrap();
    let again = qp.connect(&own).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::BadState, "{again}");
    assert!(again.cause().contains("RTS, not RESET or INIT"), "{again}");
}

#[test]
fn missing_attributes_are_named() {
    let setup = Setup::new();
    let mut qp = setup.builder::<Rc>().build_in_reset().unwrap();
    let error = qp.modify(&QpAttributes::to(State::Init).port(1)).unwrap_err();
    assert!(error.to_string().contains("PKEY_INDEX"), "{error}");
    let error = qp.modify(&QpAttributes::to(State::Rts)).unwrap_err();
    assert!(error.to_string().contains("RESET to RTS"), "{error}");
    assert_eq!(qp.query().unwrap().state, State::Reset);
}

#[test]
fn a_query_returns_the_attributes_that_were_set() {
    let setup = Setup::new();
    let (a, b) = setup.rc_pair();
    let info = a.query().unwrap();
    assert_eq!(info.state, State::Rts);
    assert_eq!((info.remote_qpn, info.port, info.retry_count), (b.number(), 1, 7));
    assert_eq!(info.capacities, a.capacities());
    assert_eq!(info.access, common::REMOTE);
}

#[test]
fn invalid_options_are_refused_without_a_command() {
    let setup = Setup::new();
    let deep = setup.builder::<Rc>().max_send_wr(1 << 20).build().unwrap_err();
    assert!(deep.to_string().contains("too deep"), "{deep}");
    let none = setup.context.create_raw_cq(0).build().unwrap_err();
    assert_eq!(none.kind(), ErrorKind::InvalidInput);
    let access = uverbs::AccessFlags::REMOTE_WRITE;
    let rights = setup.pd.register(Buffer::new(4096).unwrap(), access).unwrap_err();
    assert!(rights.to_string().contains("LOCAL_WRITE"), "{rights}");
    assert_eq!(setup.context.query_port(9).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn queries_return_plausible_values() {
    let context = common::open();
    let attributes = context.attributes().unwrap();
    assert!(attributes.max_qp() > 0 && attributes.ports() >= 1);
    let port = context.query_port(1).unwrap();
    assert!(port.active_mtu() <= port.max_mtu());
    let choice = context.choose_gid(1, None).unwrap();
    assert!(!choice.entry.gid.is_zero());
    assert_eq!(context.pkey(1, 0).unwrap() & 0x7fff, 0x7fff);
    assert!(context.pkey(1, 9999).is_err());
}

#[test]
fn reregistration_changes_rights_and_memory() {
    let mut setup = Setup::new();
    let (mut a, _b) = setup.rc_pair();
    let mut region = setup.region(4096);
    let other = Buffer::new(8192).unwrap();
    let old = region.change_buffer(other).unwrap().unwrap();
    assert_eq!((old.len(), region.len()), (4096, 8192));
    // SAFETY: inline data; the region outlives the request.
    unsafe {
        let remote = region.remote(8000).unwrap();
        a.post_send(1, op::Write(remote), Inline(b"moved"), SIGNALED).unwrap();
    }
    success(&mut setup.cq);
    assert_eq!(&region.view().to_vec()[8000..8005], b"moved");
    region.change_access(uverbs::AccessFlags::LOCAL_WRITE).unwrap();
    // SAFETY: inline data, and the write is refused.
    unsafe {
        a.post_send(2, op::Write(region.remote(0).unwrap()), Inline(b"no"), SIGNALED).unwrap();
    }
    assert_eq!(completion(&mut setup.cq).status, uverbs::cq::Status::RemoteAccess);
    assert_eq!(region.deregister().unwrap().unwrap().len(), 8192);
}

#[test]
fn peers_address_a_region_by_its_iova() {
    let mut setup = Setup::new();
    let (mut a, _b) = setup.rc_pair();
    let registration = setup.pd.registration().access(ALL_ACCESS).iova(0x1000_0000);
    let region = registration.register(Buffer::new(4096).unwrap()).unwrap();
    assert_eq!(region.remote(16).unwrap().address, 0x1000_0010);
    // SAFETY: inline data; the region outlives the request.
    unsafe {
        a.post_send(1, op::Write(region.remote(16).unwrap()), Inline(b"here"), SIGNALED).unwrap();
    }
    success(&mut setup.cq);
    assert_eq!(&region.view().to_vec()[16..20], b"here");
}

#[test]
fn queue_pairs_of_a_thread_domain_share_a_doorbell_register() {
    let mut setup = Setup::new();
    let domain = setup.context.alloc_thread_domain().unwrap();
    let mut a = setup.builder::<Rc>().build_in(&domain).unwrap();
    let mut b = setup.builder::<Rc>().build_in(&domain).unwrap();
    let (end_a, end_b) = (a.endpoint(), b.endpoint());
    a.connect(&end_b).unwrap();
    b.connect(&end_a).unwrap();
    let region = setup.region(4096);
    for round in 0..10 {
        for qp in [&mut a, &mut b] {
            let remote = region.remote(round as usize * 8).unwrap();
            // SAFETY: inline data; the region outlives the request.
            unsafe { qp.post_send(round, op::Write(remote), Inline(&[1; 8]), SIGNALED).unwrap() };
        }
        success(&mut setup.cq);
        success(&mut setup.cq);
    }
}

/// A device has about 16,380 doorbell registers. Only memory bounds the queue pairs that share one.
#[test]
fn queue_pairs_can_share_a_register_when_no_other_is_free() {
    let mut setup = Setup::new();
    let mut domains = Vec::new();
    let refused = loop {
        match setup.context.alloc_thread_domain() {
            Ok(domain) => domains.push(domain),
            Err(refused) => break refused,
        }
    };
    let alone = setup.builder::<Rc>().build().unwrap_err();
    for error in [refused, alone] {
        assert_eq!((error.verb(), error.errno()), ("alloc_uar", libc::ENOMEM));
        assert!(error.cure().contains("alloc_thread_domain"), "{error}");
    }
    let domain = domains.first().unwrap();
    let mut all: Vec<_> =
        (0..100).map(|_| setup.builder::<Rc>().build_in(domain).unwrap()).collect();
    let [first, .., last] = all.as_mut_slice() else { unreachable!("there are 100") };
    let (end_first, end_last) = (first.endpoint(), last.endpoint());
    first.connect(&end_last).unwrap();
    last.connect(&end_first).unwrap();
    for qp in [first, last] {
        // SAFETY: a message of no bytes names no memory.
        unsafe { qp.post_send(1, op::Nop, (), SIGNALED).unwrap() };
        success(&mut setup.cq);
    }
}

/// More queue pairs than the device has registers, in two thread domains. A thousand of them, in a
/// scattered order, are replaced.
#[test]
#[ignore = "takes long: .ci/slow/75-scale runs it"]
fn thread_domains_hold_more_queue_pairs_than_the_device_has_registers() {
    const COUNT: usize = 100_000;
    let mut setup = Setup::new();
    let domains = [0, 1].map(|_| setup.context.alloc_thread_domain().unwrap());
    let make = |index: usize| {
        let builder = setup.builder::<Rc>().max_send_wr(4).max_recv_wr(4);
        builder.build_in(&domains[index % 2]).unwrap()
    };
    let mut all: Vec<_> = (0..COUNT).map(make).collect();
    let step = 7919; // a prime: every index occurs once
    for index in (0..1000).map(|turn| turn * step % COUNT) {
        all[index] = make(index);
    }
    let numbers: std::collections::BTreeSet<_> = all.iter().map(|qp| qp.number()).collect();
    assert_eq!(numbers.len(), COUNT);
    for qp in all.iter_mut().step_by(1000) {
        qp.connect(&qp.endpoint()).unwrap();
        // SAFETY: a message of no bytes names no memory.
        unsafe { qp.post_send(1, op::Nop, (), SIGNALED).unwrap() };
        success(&mut setup.cq);
    }
}

#[test]
fn a_null_region_discards_writes_and_reads_as_zeros() {
    let mut setup = Setup::new();
    let (mut a, _b) = setup.rc_pair();
    let null = match setup.pd.null_region() {
        Ok(null) => null,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            return;
        }
    };
    let theirs = setup.region(4096);
    theirs.view().fill(0, 4096, 7).unwrap();
    // SAFETY: the null region has no memory; the other region outlives the requests.
    unsafe {
        let remote = theirs.remote(0).unwrap();
        a.post_send(1, uverbs::op::Read(remote), null.sge(0, 100).unwrap(), SIGNALED).unwrap();
        a.post_send(2, op::Write(remote), null.sge(0, 50).unwrap(), SIGNALED).unwrap();
    }
    success(&mut setup.cq);
    success(&mut setup.cq);
    let left = theirs.view().to_vec();
    assert!(left[..50].iter().all(|byte| *byte == 0) && left[50] == 7);
}

#[test]
fn a_completion_queue_grows_under_load() {
    let mut setup = Setup::new();
    setup.cq = setup.context.create_raw_cq(15).build().unwrap();
    let (mut a, _b) = setup.pair::<Rc>(|builder| builder.max_send_wr(64));
    let region = setup.region(4096);
    let mut next = 0u64;
    let mut done = 0u64;
    for entries in [31, 255, 63, 15] {
        for _ in 0..10 {
            // SAFETY: inline data; the region outlives the request.
            unsafe {
                let remote = region.remote(0).unwrap();
                a.post_send(next, op::Write(remote), Inline(b"x"), SIGNALED).unwrap();
            }
            next += 1;
        }
        setup.cq.resize(entries).unwrap();
        while done < next {
            assert_eq!(success(&mut setup.cq).wr_id, done);
            done += 1;
        }
        assert!(setup.cq.poll().is_err(), "and now the poller has followed to the new ring");
        assert!(setup.cq.capacity() >= entries);
    }
}

/// Earlier requests may still complete, at whatever time: the device's thread may run rarely, and
/// hardware takes time.
#[test]
fn a_completion_queue_does_not_get_too_small_for_its_completions() {
    let mut setup = Setup::new();
    if !common::is_soft() {
        return;
    }
    setup.cq = setup.context.create_raw_cq(15).build().unwrap();
    let (mut a, _b) = setup.rc_pair();
    for _ in 0..20 {
        for wr_id in 0..10 {
            // SAFETY: no memory is named.
            unsafe { a.post_send(wr_id, uverbs::op::Nop, (), SIGNALED).unwrap() };
        }
        assert_eq!(setup.cq.resize(1).unwrap_err().errno(), libc::EINVAL);
        for wr_id in 0..10 {
            assert_eq!(success(&mut setup.cq).wr_id, wr_id);
        }
    }
}

#[test]
fn a_completion_queue_can_be_resized_to_its_present_size() {
    let mut setup = Setup::new();
    setup.cq = setup.context.create_raw_cq(100).build().unwrap();
    let (mut a, _b) = setup.rc_pair();
    for entries in [120, 100, 300, 300, 300, 50, 63] {
        setup.cq.resize(entries).unwrap();
        // SAFETY: no memory is named.
        unsafe { a.post_send(7, uverbs::op::Nop, (), SIGNALED).unwrap() };
        success(&mut setup.cq);
        assert!(setup.cq.poll().is_err());
        assert!(setup.cq.capacity() >= entries);
    }
}

#[test]
fn types_are_send_and_sync_as_documented() {
    fn send<T: std::marker::Send>() {}
    fn sync<T: Sync>() {}
    send::<Device>();
    sync::<Device>();
    send::<Context>();
    sync::<Context>();
    send::<ProtectionDomain>();
    sync::<ProtectionDomain>();
    send::<MemoryRegion>();
    sync::<MemoryRegion>();
    send::<MemoryWindow>();
    send::<Buffer>();
    sync::<Buffer>();
    send::<raw::CompletionQueue>();
    send::<CompletionChannel>();
    sync::<CompletionChannel>();
    send::<raw::QueuePair<Rc>>();
    send::<raw::QueuePair<Uc>>();
    send::<raw::QueuePair<Ud>>();
    send::<raw::QueuePair<Xrc>>();
    send::<raw::SharedReceiveQueue>();
    send::<uverbs::raw::SrqHandle>();
    sync::<uverbs::raw::SrqHandle>();
    send::<uverbs::raw::CqHandle>();
    sync::<uverbs::raw::CqHandle>();
    send::<Error>();
    sync::<Error>();
    send::<uverbs::events::DetachedEvent>();
}
