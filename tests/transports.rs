//! Datagrams, unreliable connections, extended reliable connections, shared receive queues.

mod common;

use common::{Setup, pattern, success};
use uverbs::ah::GRH_BYTES;
use uverbs::qp::{Datagram, Immediate, Inline, PostFlags};
use uverbs::qp_type::{Rc, Uc, Ud};
use uverbs::{Gid, PollError, op, raw};

const SIGNALED: PostFlags = PostFlags::SIGNALED;

fn datagram_pair(setup: &Setup) -> (raw::QueuePair<Ud>, raw::QueuePair<Ud>) {
    let mut a = setup.builder::<Ud>().build().unwrap();
    let mut b = setup.builder::<Ud>().build().unwrap();
    a.activate().unwrap();
    b.activate().unwrap();
    (a, b)
}

#[test]
fn datagrams_have_a_grh_and_can_be_answered() {
    let mut setup = Setup::new();
    let (mut a, mut b) = datagram_pair(&setup);
    let to = setup.region(8192);
    let there = setup.pd.create_ah(&a.address_of(&b.endpoint()).unwrap()).unwrap();
    let address = there.datagram_to(&b.endpoint());
    // SAFETY: the region outlives the receives and is not touched meanwhile.
    unsafe {
        b.post_receive(2, &[to.sge(0, 4096).unwrap()]).unwrap();
        a.post_receive(4, &[to.sge(4096, 4096).unwrap()]).unwrap();
        let operation = op::To(Datagram(&address), op::SendImmediate(Immediate([9; 4])));
        a.post_send(1, operation, Inline(b"knock"), SIGNALED).unwrap();
    }
    assert_eq!(success(&mut setup.cq).wr_id, 1);
    let (back, length) = loop {
        match setup.cq.poll() {
            Err(PollError::Empty) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
            Ok(completion) => {
                assert_eq!(
                    (completion.wr_id(), completion.immediate()),
                    (2, Some(Immediate([9; 4])))
                );
                assert_eq!(completion.remote().remote_qpn(), a.number());
                let mut grh = [0; GRH_BYTES];
                to.view().read(0, &mut grh).unwrap();
                let back = setup.pd.create_ah_from_completion(&completion, &grh, 1).unwrap();
                break (back, completion.byte_len());
            }
        }
    };
    assert_eq!(length as usize, GRH_BYTES + 5);
    assert_eq!(&to.view().to_vec()[GRH_BYTES..GRH_BYTES + 5], b"knock");
    let address = back.datagram(a.number(), 0x1111_1111);
    // SAFETY: inline data.
    unsafe {
        b.post_send(3, op::To(Datagram(&address), op::Send), Inline(b"come in"), SIGNALED).unwrap()
    };
    let done = setup.completions(2);
    assert_eq!((done[0].wr_id, done[1].wr_id), (3, 4));
    assert_eq!(&to.view().to_vec()[4096 + GRH_BYTES..][..7], b"come in");
    there.destroy().unwrap();
    back.destroy().unwrap();
}

#[test]
fn a_wrong_q_key_is_dropped_and_the_top_bit_selects_the_senders_q_key() {
    let mut setup = Setup::new();
    let violations = setup.context.query_port(1).unwrap().q_key_violations();
    let (mut a, mut b) = datagram_pair(&setup);
    let to = setup.region(4096);
    let there = setup.pd.create_ah(&a.address_of(&b.endpoint()).unwrap()).unwrap();
    // SAFETY: the region outlives the receive and is not touched meanwhile.
    unsafe {
        b.post_receive(9, &[to.sge(0, 4096).unwrap()]).unwrap();
    }
    for (wr_id, qkey) in [(1, 0x2222_2222), (2, 0x8000_0000)] {
        let address = there.datagram(b.number(), qkey);
        // SAFETY: inline data.
        unsafe {
            a.post_send(
                wr_id,
                op::To(Datagram(&address), op::Send),
                Inline(&[wr_id as u8]),
                SIGNALED,
            )
            .unwrap();
        }
        assert_eq!(success(&mut setup.cq).wr_id, wr_id);
    }
    assert_eq!(success(&mut setup.cq).wr_id, 9);
    assert_eq!(to.view().to_vec()[GRH_BYTES], 2);
    let counted = setup.context.query_port(1).unwrap().q_key_violations();
    assert!(!common::is_soft() || counted == violations + 1, "{violations} {counted}");
}

#[test]
fn a_multicast_reaches_every_member() {
    let mut setup = Setup::new();
    let (mut a, mut b) = datagram_pair(&setup);
    let to = setup.region(8192);
    let group: Gid = "ff0e::1234".parse().unwrap();
    let infiniband = a.link_layer() == uverbs::LinkLayer::InfiniBand;
    let lid = if infiniband { 0xc001 } else { 0 };
    assert!(b.attach_multicast("::1".parse().unwrap(), lid).is_err());
    assert_eq!(b.attach_multicast(group, 0xbfff).is_err(), infiniband);
    for (wr_id, qp) in [(10, &mut a), (11, &mut b)] {
        qp.attach_multicast(group, lid).unwrap();
        let offset = (wr_id as usize - 10) * 4096;
        // SAFETY: the region outlives the receives and is not touched meanwhile.
        unsafe { qp.post_receive(wr_id, &[to.sge(offset, 4096).unwrap()]).unwrap() };
    }
    let mut path = a.address_of(&b.endpoint()).unwrap();
    path.lid = lid;
    // On RoCE the path is as for unicast. On InfiniBand a group needs a GID in the path too.
    path.global =
        Some(uverbs::GlobalRoute { destination: group, ..path.global.unwrap_or_default() });
    let there = setup.pd.create_ah(&path).unwrap();
    let address = there.datagram(0xff_ffff, 0x1111_1111);
    // SAFETY: inline data.
    unsafe {
        b.post_send(1, op::To(Datagram(&address), op::Send), Inline(b"all"), SIGNALED).unwrap()
    };
    let done = setup.completions(3);
    assert_eq!(done.iter().map(|done| done.wr_id).collect::<Vec<_>>(), [1, 10, 11]);
    b.detach_multicast(group, lid).unwrap();
}

#[test]
fn an_unreliable_connection_sends_and_writes() {
    let mut setup = Setup::new();
    let (mut a, mut b) = setup.pair::<Uc>(|builder| builder);
    let (from, to) = (setup.region(1 << 14), setup.region(1 << 14));
    let data = pattern(10_000, 5);
    from.view().write(0, &data).unwrap();
    // SAFETY: both regions outlive the requests and are not touched meanwhile.
    unsafe {
        b.post_receive(2, &[]).unwrap();
        let remote = to.remote(0).unwrap();
        a.post_send(1, op::Write(remote), from.sge(0, 10_000).unwrap(), SIGNALED).unwrap();
        a.post_send(3, op::Send, (), SIGNALED).unwrap();
    }
    let done = setup.completions(3);
    assert_eq!(done.iter().map(|done| done.wr_id).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(to.view().to_vec()[..10_000], data);
}

#[test]
fn one_shared_queue_serves_many_clients() {
    let mut setup = Setup::new();
    let mut srq = setup.pd.create_raw_srq(64).build().unwrap();
    let to = setup.region(64 * 64);
    for wr_id in 0..60 {
        // SAFETY: the region outlives the receives and is not touched meanwhile.
        unsafe { srq.post(wr_id, &[to.sge(wr_id as usize * 64, 64).unwrap()]).unwrap() };
    }
    let mut send_cq = setup.context.create_raw_cq(64).build().unwrap();
    let mut pairs: Vec<_> = (0..10)
        .map(|_| {
            let client =
                setup.pd.create_raw_qp::<uverbs::qp_type::Rc>(send_cq.handle(), send_cq.handle());
            let mut client = client.build().unwrap();
            let server = setup.builder().shared_receive_queue(srq.handle());
            let mut server: raw::QueuePair<uverbs::qp_type::Rc> = server.build().unwrap();
            let (end_client, end_server) = (client.endpoint(), server.endpoint());
            client.connect(&end_server).unwrap();
            server.connect(&end_client).unwrap();
            (client, server)
        })
        .collect();
    for round in 0..6u8 {
        for (index, (client, server)) in pairs.iter_mut().enumerate() {
            // SAFETY: inline data.
            unsafe {
                client.post_send(1, op::Send, Inline(&[round, index as u8]), SIGNALED).unwrap()
            };
            success(&mut send_cq);
            let done = success(&mut setup.cq);
            assert_eq!((done.byte_len(), done.qp_num()), (2, server.number()));
            let mut text = [0; 2];
            to.view().read(done.wr_id as usize * 64, &mut text).unwrap();
            assert_eq!(text, [round, index as u8]);
        }
    }
    let busy = srq.destroy().unwrap_err();
    drop(pairs);
    busy.object.destroy().unwrap();
}

#[test]
fn an_extended_connection_delivers_to_the_queue_that_each_message_names() {
    use uverbs::qp::{PathOptions, XrcTarget};
    use uverbs::qp_type::Xrc;
    let mut setup = Setup::new();
    let domain = match setup.context.open_xrcd() {
        Ok(domain) => domain,
        Err(error) => {
            assert_eq!(error.kind(), uverbs::ErrorKind::Unsupported);
            return;
        }
    };
    let mut cqs = [(); 2].map(|()| setup.context.create_raw_cq(16).build().unwrap());
    let to = setup.region(4096);
    let srqs = cqs.each_ref().map(|cq| {
        let mut srq = setup.pd.create_raw_srq(8).xrc(&domain, cq.handle()).build().unwrap();
        for wr_id in 0..4 {
            let offset = (cq.number() as usize & 1) * 2048 + wr_id as usize * 64;
            let sge = to.sge(offset, 64).unwrap();
            // SAFETY: the region outlives the receives and is not read before they complete.
            unsafe { srq.post(wr_id, &[sge]).unwrap() };
        }
        srq
    });
    let mut target = domain
        .create_receiver(PathOptions { access: common::REMOTE, ..PathOptions::default() })
        .unwrap();
    let mut initiator: raw::QueuePair<Xrc> = setup.builder().build().unwrap();
    target.connect(&initiator.endpoint()).unwrap();
    initiator.connect(&target.endpoint(srqs[0].handle())).unwrap();
    for (index, which) in [0usize, 1, 1, 0].into_iter().enumerate() {
        let number = srqs[which].number();
        // SAFETY: inline data.
        unsafe {
            let operation = op::To(XrcTarget(number), op::Send);
            initiator.post_send(10, operation, Inline(&[index as u8; 3]), SIGNALED).unwrap();
        }
        assert_eq!(success(&mut setup.cq).wr_id, 10);
        assert_eq!(success(&mut cqs[which]).byte_len(), 3);
    }
    drop(initiator);
    target.destroy().unwrap();
    let busy = domain.close().unwrap_err();
    drop(srqs);
    busy.object.close().unwrap();
}

#[test]
fn short_messages_reach_the_buffers_of_a_dropped_shared_queue() {
    let mut setup = Setup::new();
    let mut srq = setup.pd.create_raw_srq(4).build().unwrap();
    let (mut client, _server) =
        setup.pair::<Rc>(|builder| builder.shared_receive_queue(srq.handle()));
    let region = setup.region(4096);
    // SAFETY: the region outlives the queue pairs, and is read only through its view.
    unsafe { srq.post(7, &[region.sge(64, 64).unwrap()]) }.unwrap();
    drop(srq);
    // SAFETY: inline data.
    unsafe { client.post_send(1, op::Send, Inline(b"twelve bytes"), PostFlags::SIGNALED) }.unwrap();
    let done = setup.completions(2);
    assert_eq!((done[0].wr_id, done[1].wr_id, done[1].byte_len()), (1, 7, 12));
    assert_eq!(&region.view().to_vec()[64..76], b"twelve bytes");
}
