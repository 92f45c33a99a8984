//! Dynamic connections: initiators and targets, on both layers.

#![allow(unsafe_code)]
#![cfg(feature = "soft")]

mod common;

use std::time::Instant;

use common::{REMOTE, Setup, completion, pattern, success};
use uverbs::cq::{CompletionOpcode, Status};
use uverbs::qp::{
    AtomicResult, DcTarget, Immediate, Inline, PathOptions, PostError, PostFlags,
    RunTimeDestination, RunTimeOperation, SendRequest, State,
};
use uverbs::qp_type::Dci;
use uverbs::{
    AccessFlags, DcAddress, DcEndpoint, DcReceiver, ErrorKind, PollError, QueuePair, op, raw,
};

const KEY: u64 = 0x7a3f_91c2_0be4_d865;
const SIGNALED: PostFlags = PostFlags::SIGNALED;

/// A target with its queues, on the raw layer.
struct Server {
    target: DcReceiver,
    srq: raw::SharedReceiveQueue,
    cq: raw::CompletionQueue,
}

fn options(access: AccessFlags) -> PathOptions {
    PathOptions { access, ..PathOptions::default() }
}

impl Server {
    fn new(setup: &Setup, access: AccessFlags) -> Self {
        let cq = setup.context.create_raw_cq(64).build().unwrap();
        let srq = setup.pd.create_raw_srq(32).build().unwrap();
        let made = setup.pd.create_dc_receiver(cq.handle(), srq.handle(), KEY, options(access));
        Self { target: made.unwrap(), srq, cq }
    }
}

fn initiator(setup: &Setup) -> raw::QueuePair<Dci> {
    // Retries that run out soon.
    let quick = |path: &mut PathOptions| {
        (path.retry_count, path.rnr_retry) = (1, 7);
        path.timeout = uverbs::qp::AckTimeout::from_code(12);
    };
    let mut made = setup.builder::<Dci>().path(quick).build().unwrap();
    made.activate().unwrap();
    made
}

/// An address handle and the address of a target, made from its bytes as in another process.
fn address(
    setup: &Setup,
    initiator: &raw::QueuePair<Dci>,
    bytes: &[u8; DcEndpoint::BYTES],
) -> (uverbs::AddressHandle, DcAddress) {
    let peer = DcEndpoint::from_bytes(bytes).unwrap();
    let ah = setup.pd.create_ah(&initiator.address_of(&peer.endpoint).unwrap()).unwrap();
    let address = ah.dc_target_at(&peer);
    (ah, address)
}

#[test]
fn every_operation_reaches_a_target() {
    let mut setup = Setup::new();
    let (theirs, ours) = (setup.region(4096), setup.region(4096));
    let mut server = Server::new(&setup, REMOTE);
    let mut qp = initiator(&setup);
    let (_ah, to) = address(&setup, &qp, &server.target.endpoint().to_bytes());
    let to = DcTarget(&to);
    // SAFETY: the regions outlive the queues, and are accessed through views between requests.
    unsafe {
        for wr_id in 0..3 {
            server.srq.post(wr_id, &[theirs.sge(1024 * wr_id as usize, 1024).unwrap()]).unwrap();
        }
        let text = ours.sge(0, 200).unwrap();
        ours.view().write(0, &pattern(200, 3)).unwrap();
        qp.post_send(1, op::To(to, op::Send), text, SIGNALED).unwrap();
        success(&mut setup.cq);
        let got = success(&mut server.cq);
        assert_eq!(
            (got.byte_len(), got.remote().remote_qpn(), got.qp_num()),
            (200, qp.number(), server.target.number())
        );
        assert_eq!(theirs.view().to_vec()[..200], pattern(200, 3));

        let number = Immediate::from_u32(0x1234_5678);
        qp.post_send(2, op::To(to, op::SendImmediate(number)), Inline(b"short"), SIGNALED).unwrap();
        success(&mut setup.cq);
        let got = success(&mut server.cq);
        assert_eq!((got.wr_id, got.byte_len(), got.immediate()), (1, 5, Some(number)));

        let remote = theirs.remote(3072).unwrap();
        qp.post_send(3, op::To(to, op::Write(remote)), text, SIGNALED).unwrap();
        success(&mut setup.cq);
        assert_eq!(theirs.view().to_vec()[3072..3272], pattern(200, 3));
        qp.post_send(4, op::To(to, op::WriteImmediate(remote, number)), text, SIGNALED).unwrap();
        success(&mut setup.cq);
        assert_eq!(success(&mut server.cq).opcode(), CompletionOpcode::RecvWriteImmediate);
        let back = ours.sge(512, 200).unwrap();
        qp.post_send(5, op::To(to, op::Read(remote)), back, SIGNALED).unwrap();
        success(&mut setup.cq);
        assert_eq!(ours.view().to_vec()[512..712], pattern(200, 3));

        theirs.view().write(3072, &7u64.to_ne_bytes()).unwrap();
        let result = ours.sge(1024, 8).unwrap();
        let result = AtomicResult { address: result.address(), lkey: result.lkey() };
        let add = op::FetchAdd { remote, add: 5 };
        qp.post_send(6, op::To(to, add), result, SIGNALED).unwrap();
        success(&mut setup.cq);
        let swap = op::CompareSwap { remote, compare: 12, swap: 99 };
        qp.post_send(7, op::To(to, swap), result, SIGNALED).unwrap();
        success(&mut setup.cq);
        assert_eq!(ours.view().to_vec()[1024..1032], 12u64.to_ne_bytes());
        assert_eq!(theirs.view().to_vec()[3072..3080], 99u64.to_ne_bytes());
        qp.post_send(8, op::Nop, (), SIGNALED).unwrap();
        success(&mut setup.cq);
    }
}

#[test]
fn the_targets_access_rights_decide() {
    let mut setup = Setup::new();
    let (theirs, ours) = (setup.region(64), setup.region(64));
    let rights = [AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_READ, AccessFlags::REMOTE_ATOMIC];
    for granted in (0..8usize).map(|bits| {
        let chosen = rights.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1);
        chosen.fold(AccessFlags::empty(), |all, (_, right)| all | *right)
    }) {
        let server = Server::new(&setup, granted);
        let mut qp = initiator(&setup);
        let (_ah, to) = address(&setup, &qp, &server.target.endpoint().to_bytes());
        let to = DcTarget(&to);
        for (at, right) in rights.into_iter().enumerate() {
            let remote = theirs.remote(0).unwrap();
            let sge = ours.sge(0, 8).unwrap();
            let result = AtomicResult { address: sge.address(), lkey: sge.lkey() };
            // SAFETY: the regions outlive the queues, and are not looked at.
            unsafe {
                match at {
                    0 => qp.post_send(1, op::To(to, op::Write(remote)), sge, SIGNALED),
                    1 => qp.post_send(1, op::To(to, op::Read(remote)), sge, SIGNALED),
                    _ => {
                        let add = op::To(to, op::FetchAdd { remote, add: 1 });
                        qp.post_send(1, add, result, SIGNALED)
                    }
                }
            }
            .unwrap();
            let status = completion(&mut setup.cq).status;
            if granted.contains(right) {
                assert_eq!(status, Status::Success);
                continue;
            }
            assert_eq!(status, Status::RemoteInvalidRequest, "{right:?} of {granted:?}");
            assert_eq!(qp.state(), State::Err);
            qp.reset().unwrap();
            qp.activate().unwrap();
        }
        assert_eq!(server.target.query().unwrap().state, State::Rtr);
        assert_eq!(server.target.query().unwrap().access, granted);
    }
}

#[test]
fn requests_with_a_wrong_access_key_or_number_fail() {
    let mut setup = Setup::new();
    let server = Server::new(&setup, REMOTE);
    let theirs = setup.region(64);
    let mut qp = initiator(&setup);
    let good = server.target.endpoint();
    let mut wrong_key = good;
    wrong_key.access_key ^= 1;
    let mut wrong_number = good;
    wrong_number.endpoint.qpn ^= 0x40_0000;
    for (wrong, expected) in [
        (wrong_key, Status::RetryExceeded),
        (wrong_number, Status::RetryExceeded),
        (good, Status::Success),
    ] {
        let (_ah, to) = address(&setup, &qp, &wrong.to_bytes());
        let write = op::To(DcTarget(&to), op::Write(theirs.remote(0).unwrap()));
        // SAFETY: inline data.
        unsafe { qp.post_send(1, write, Inline(b"x"), SIGNALED) }.unwrap();
        assert_eq!(completion(&mut setup.cq).status, expected);
        if expected == Status::Success {
            break;
        }
        assert_eq!(theirs.view().to_vec()[0], 0);
        // SAFETY: as above.
        unsafe { qp.post_send(2, write, Inline(b"x"), SIGNALED) }.unwrap();
        assert_eq!(completion(&mut setup.cq).status, Status::Flushed);
        qp.reset().unwrap();
        qp.activate().unwrap();
    }
    assert_eq!(theirs.view().to_vec()[0], b'x');
}

#[test]
fn each_initiator_reaches_each_target() {
    let mut setup = Setup::new();
    let mut servers = [(); 3].map(|()| Server::new(&setup, REMOTE));
    let mut initiators = [(); 3].map(|()| initiator(&setup));
    let theirs = setup.region(4096);
    let ends = servers.each_ref().map(|server| server.target.endpoint().to_bytes());
    let addresses = ends.map(|bytes| address(&setup, &initiators[0], &bytes));
    let mut expected = [[0usize; 3]; 3];
    for round in 0..90usize {
        let (from, to) = (round % 3, round * 5 / 2 % 3);
        let server = &mut servers[to];
        // SAFETY: the region outlives the queues; the data is inline.
        unsafe {
            server.srq.post(round as u64, &[theirs.sge(to * 64, 64).unwrap()]).unwrap();
            let send = op::To(DcTarget(&addresses[to].1), op::Send);
            initiators[from].post_send(round as u64, send, Inline(&[round as u8; 9]), SIGNALED)
        }
        .unwrap();
        expected[to][from] += 1;
        // Several requests of an initiator are outstanding, to different targets.
        if round % 9 == 8 {
            (0..9).for_each(|_| _ = success(&mut setup.cq));
        }
    }
    for (server, expected) in servers.iter_mut().zip(expected) {
        let mut got = [0; 3];
        for _ in 0..expected.iter().sum() {
            let done = success(&mut server.cq);
            let from =
                initiators.iter().position(|qp| qp.number() == done.remote().remote_qpn()).unwrap();
            got[from] += 1;
        }
        assert_eq!(got, expected);
    }
}

#[test]
fn batches_lists_templates_and_run_time_operations_address_targets() {
    let mut setup = Setup::new();
    let mut server = Server::new(&setup, REMOTE);
    let (theirs, ours) = (setup.region(4096), setup.region(4096));
    let mut qp = initiator(&setup);
    let (_ah, to) = address(&setup, &qp, &server.target.endpoint().to_bytes());
    // SAFETY: the regions outlive the queues.
    unsafe {
        for wr_id in 0..8 {
            server.srq.post(wr_id, &[theirs.sge(wr_id as usize * 64, 64).unwrap()]).unwrap();
        }
        let mut batch = qp.batch().unwrap();
        for wr_id in 0..2 {
            let send = op::To(DcTarget(&to), op::Send);
            batch.build(wr_id, send, ours.sge(0, 10).unwrap(), SIGNALED).unwrap();
        }
        batch.publish();
        let data = [ours.sge(0, 11).unwrap()];
        let request = |wr_id| SendRequest {
            wr_id,
            operation: RunTimeOperation::Send,
            destination: RunTimeDestination::Dc(&to),
            flags: SIGNALED,
            inline: false,
            data: &data,
        };
        qp.post_list([request(2), request(3)]).unwrap();
        let nowhere = SendRequest { destination: RunTimeDestination::Connected, ..request(9) };
        assert_eq!(qp.post_list([nowhere]).unwrap_err().reason, PostError::BadDestination);
        let send = op::To(DcTarget(&to), op::Send);
        let mut template =
            qp.long_template::<2, _, _>(send, Inline(b"twelve bytes"), SIGNALED).unwrap();
        assert!(template.set_inline(b"other twelve"));
        qp.post_template(4, &template).unwrap();
    }
    for wr_id in 0..5 {
        assert_eq!(success(&mut setup.cq).wr_id, wr_id);
    }
    let lengths: Vec<u32> = (0..5).map(|_| success(&mut server.cq).byte_len()).collect();
    assert_eq!(lengths, [10, 10, 11, 11, 12]);
    assert_eq!(&theirs.view().to_vec()[256..268], b"other twelve");
}

#[test]
fn safe_initiators_send_slots_to_targets() {
    let context = common::open();
    let pd = context.alloc_pd().unwrap();
    let mut cq = context.create_cq(64).build().unwrap();
    let mut their_cq = context.create_cq(64).build().unwrap();
    let mut srq = pd.create_srq(8).build().unwrap();
    let slab = pd.create_slab(16, 1024).unwrap();
    let target =
        pd.create_dc_receiver(their_cq.handle(), srq.handle(), KEY, options(REMOTE)).unwrap();
    let mut qp: QueuePair<Dci> = pd.create_qp(cq.handle(), cq.handle()).build().unwrap();
    qp.activate().unwrap();
    let peer = target.endpoint();
    let ah = pd.create_ah(&qp.address_of(&peer.endpoint).unwrap()).unwrap();
    let to = ah.dc_target_at(&peer);
    let next = |cq: &mut uverbs::CompletionQueue| {
        let start = Instant::now();
        loop {
            match cq.poll() {
                Ok(done) => {
                    assert_eq!(done.completion.status(), Status::Success);
                    break done.slot;
                }
                Err(PollError::Empty) => assert!(start.elapsed() < common::PATIENCE),
                Err(error) => panic!("{error}"),
            }
            context.poll_idle();
        }
    };
    for round in 0..50u8 {
        srq.post(slab.take().unwrap()).unwrap();
        let mut slot = slab.take().unwrap();
        let text = pattern(usize::from(round) * 20, round);
        slot.write(&text).unwrap();
        qp.post_send(op::To(DcTarget(&to), op::Send), slot, SIGNALED).unwrap();
        assert_eq!(next(&mut their_cq).unwrap()[..], text);
        assert_eq!(next(&mut cq).unwrap()[..], text);
        assert_eq!(slab.free(), 16);
    }
}

#[test]
fn a_target_goes_to_init_and_rtr_only() {
    let setup = Setup::new();
    let srq = setup.pd.create_raw_srq(4).build().unwrap();
    let mut target =
        setup.pd.create_dc_receiver_in_reset(setup.cq.handle(), srq.handle(), KEY).unwrap();
    assert_eq!((target.number(), target.state()), (0, State::Reset));
    assert!(target.query().is_err(), "only in RTR");
    let wrong = uverbs::qp::QpAttributes::to(State::Rtr);
    assert_eq!(target.modify(&wrong).unwrap_err().kind(), ErrorKind::InvalidInput);
    let init = uverbs::qp::QpAttributes::to(State::Init);
    let error = target.modify(&init.port(1).pkey_index(0)).unwrap_err();
    assert!(error.to_string().contains("ACCESS_FLAGS"), "{error}");
    target.modify(&init.port(1).pkey_index(0).access(REMOTE)).unwrap();
    assert!(target.query().is_err());
    assert_eq!(target.number(), 0);
    drop(target);

    let server = Server::new(&setup, REMOTE);
    assert_ne!(server.target.number(), 0);
    let mut target = server.target;
    for state in [State::Reset, State::Init, State::Rtr, State::Rts, State::Err] {
        let change = uverbs::qp::QpAttributes::to(state);
        assert_eq!(target.modify(&change).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert_eq!(target.query().unwrap().state, State::Rtr);
}

#[test]
fn targets_and_their_queues_are_destroyed_in_any_order() {
    let mut setup = Setup::new();
    let Server { target, srq, cq } = Server::new(&setup, REMOTE);
    let mut qp = initiator(&setup);
    let (ah, to) = address(&setup, &qp, &target.endpoint().to_bytes());
    assert_eq!(
        srq.destroy().map_err(|busy| (busy.error.kind(), drop(busy.object))).err(),
        Some((ErrorKind::Busy, ()))
    );
    drop(cq);
    // SAFETY: a message without data.
    unsafe { qp.post_send(1, op::To(DcTarget(&to), op::Send), (), SIGNALED) }.unwrap();
    drop(target);
    assert_eq!(completion(&mut setup.cq).status, Status::RetryExceeded);
    drop(ah);
    qp.destroy().unwrap();
}

#[test]
fn a_device_without_dynamic_connections_is_an_error() {
    let device = common::soft_device(|builder| builder.dynamically_connected(false));
    let setup = Setup::on(device.open().unwrap());
    let srq = setup.pd.create_raw_srq(4).build().unwrap();
    let target =
        setup.pd.create_dc_receiver(setup.cq.handle(), srq.handle(), KEY, PathOptions::default());
    for error in [setup.builder::<Dci>().build().unwrap_err(), target.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("dynamically connected"), "{error}");
    }
    let setup = Setup::new();
    let srq = setup.pd.create_raw_srq(4).build().unwrap();
    let error = setup.builder::<Dci>().shared_receive_queue(srq.handle()).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn a_target_refuses_the_shared_receive_queue_of_an_xrc_domain() {
    let setup = Setup::new();
    let (domain, cq) = (setup.context.open_xrcd().unwrap(), setup.cq.handle());
    let srq = setup.pd.create_raw_srq(4).xrc(&domain, cq).build().unwrap();
    let made = setup.pd.create_dc_receiver(cq, srq.handle(), KEY, PathOptions::default());
    assert_eq!(made.unwrap_err().kind(), ErrorKind::InvalidInput);
    let made = setup.pd.create_dc_receiver_in_reset(cq, srq.handle(), KEY);
    assert_eq!(made.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn endpoints_survive_encoding() {
    let setup = Setup::new();
    let server = Server::new(&setup, REMOTE);
    let endpoint = server.target.endpoint();
    let bytes = endpoint.to_bytes();
    assert_eq!(DcEndpoint::from_bytes(&bytes).unwrap(), endpoint);
    assert_eq!(bytes[48..], KEY.to_be_bytes());
    for at in 0..6 {
        let mut bad = bytes;
        bad[at] ^= 0x80;
        assert!(DcEndpoint::from_bytes(&bad).is_err(), "byte {at}");
    }
}
