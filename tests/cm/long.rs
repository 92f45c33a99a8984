//! Connections by ids and events, one call per step.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use uverbs::cm::{
    AcceptOptions, Channel, ConnectOptions, ConnectionRequest, EventKind, Id, PortSpace, QpOptions,
    RejectData, RejectReason, RequestData,
};
use uverbs::qp::{Ece, QpAttrMask, State};
use uverbs::qp_type::{Rc, Uc};
use uverbs::soft::{Errno, Fault, Moment, SoftDevice};
use uverbs::{Context, Device, ErrorKind, QueuePair};
use uverbs_uapi::objects::device as uapi;

use crate::network::{Medium, ends_of};
use crate::{PATIENCE, address_of, device_and_address, listener, next, resolved};

/// A queue pair with a CQ and a PD of its own.
pub(crate) fn queue_pair(context: &Context) -> (QueuePair<Rc>, uverbs::CompletionQueue) {
    let cq = context.create_cq(8).build().unwrap();
    let pd = context.alloc_pd().unwrap();
    (pd.create_qp::<Rc>(cq.handle(), cq.handle()).build().unwrap(), cq)
}

fn request(channel: &Channel) -> ConnectionRequest {
    match next(channel).kind {
        EventKind::ConnectRequest(request) => request,
        other => panic!("{other:?}"),
    }
}

/// A client that has asked for a connection.
fn asking_client(context: &Context, to: SocketAddr) -> (Channel, Id, QueuePair<Rc>) {
    let channel = Channel::of(context).unwrap();
    let id = resolved(&channel, to, PortSpace::Tcp);
    let (qp, _) = queue_pair(context);
    id.connect(&qp, &ConnectOptions::default()).unwrap();
    (channel, id, qp)
}

#[test]
fn each_step_of_a_connection_has_an_event() {
    let (context, address) = device_and_address();
    let (at, listening, to) = listener(&context, address, PortSpace::Tcp);
    let channel = Channel::of(&context).unwrap();
    let id = resolved(&channel, to, PortSpace::Tcp);
    assert!(id.context().unwrap().is_same(&context));
    assert_eq!((id.device_port().unwrap(), id.peer_address().unwrap()), (1, Some(to)));
    let (mut mine, _) = queue_pair(&context);
    let options = ConnectOptions {
        private_data: RequestData::of(b"steps"),
        responder_reads: Some(3),
        initiator_reads: Some(2),
        retry_count: 5,
        rnr_retry: 4,
        srq: true,
        ece: Some(Ece { vendor_id: 0x15b3, options: 0x1000_0007 }),
        ..ConnectOptions::default()
    };
    id.connect(&mine, &options).unwrap();

    let event = next(&at);
    assert_eq!(event.id, listening.key());
    let EventKind::ConnectRequest(request) = event.kind else { panic!("{event:?}") };
    let peer = request.peer();
    assert_eq!((peer.qpn, peer.retry_count, peer.rnr_retry, peer.srq), (mine.number(), 5, 4, true));
    assert_eq!((peer.responder_reads, peer.initiator_reads), (2, 3), "mirrored");
    assert_eq!(&request.private_data()[..5], b"steps");
    assert_eq!(request.ece(), options.ece);
    assert_eq!(request.listener(), listening.key());
    assert_eq!(request.peer_address().unwrap(), id.local_address().unwrap());
    let (mut theirs, _) = queue_pair(&context);
    let accepted = request
        .accept(&mut theirs, &AcceptOptions { initiator_reads: Some(1), ..Default::default() })
        .unwrap();

    let event = next(&channel);
    assert_eq!(event.id, id.key());
    let EventKind::ConnectResponse(reply) = event.kind else { panic!("{event:?}") };
    assert_eq!(reply.remote_qpn, theirs.number());
    id.establish(&mut mine, &QpOptions::default()).unwrap();
    let event = next(&at);
    assert_eq!(event.id, accepted.key());
    assert!(matches!(event.kind, EventKind::Established), "{event:?}");

    let (here, there) = (mine.query().unwrap(), theirs.query().unwrap());
    assert_eq!((here.state, there.state), (State::Rts, State::Rts));
    assert_eq!((here.remote_qpn, there.remote_qpn), (theirs.number(), mine.number()));
    assert_eq!((there.max_responder_reads, there.max_initiator_reads), (2, 1));
    assert_eq!((here.max_responder_reads, here.max_initiator_reads), (1, 2));
    assert_eq!((there.retry_count, there.rnr_retry), (5, 4));

    id.disconnect().unwrap();
    assert!(matches!(next(&at).kind, EventKind::Disconnected(Ok(()))));
    accepted.disconnect().unwrap();
    assert!(matches!(next(&channel).kind, EventKind::Disconnected(Ok(()))));
    assert!(matches!(next(&channel).kind, EventKind::TimewaitExit));
}

#[test]
fn a_rejection_has_its_reason_and_private_data() {
    let (context, address) = device_and_address();
    let (at, _listening, to) = listener(&context, address, PortSpace::Tcp);
    let (channel, id, _qp) = asking_client(&context, to);
    request(&at).reject(&RejectData::of(&[0xab; 148])).unwrap();
    let event = next(&channel);
    assert_eq!(event.id, id.key());
    let EventKind::Rejected(rejection) = event.kind else { panic!("{event:?}") };
    assert_eq!(rejection.reason, RejectReason::BY_PROGRAM);
    assert_eq!(rejection.private_data, [0xab; 148]);

    let (channel, _id, _qp) = asking_client(&context, to);
    request(&at).reject_ece(&RejectData::EMPTY).unwrap();
    let EventKind::Rejected(rejection) = next(&channel).kind else { panic!() };
    assert_eq!(rejection.reason, RejectReason::VENDOR_OPTION);
}

#[test]
fn dropping_a_request_refuses_it() {
    let (context, address) = device_and_address();
    let (at, _listening, to) = listener(&context, address, PortSpace::Tcp);
    let (channel, _id, _qp) = asking_client(&context, to);
    drop(next(&at));
    let EventKind::Rejected(rejection) = next(&channel).kind else { panic!() };
    assert_eq!(rejection.reason, RejectReason::BY_PROGRAM);
}

#[test]
fn destroying_a_listener_refuses_unread_requests() {
    let (context, address) = device_and_address();
    let (at, listening, to) = listener(&context, address, PortSpace::Tcp);
    let (channel, _id, _qp) = asking_client(&context, to);
    // The request arrives, and the program does not read it.
    wait_readable(&at);
    drop(listening);
    assert!(matches!(next(&channel).kind, EventKind::Rejected(_)));
    assert_eq!(at.try_next_event().unwrap_err().kind(), ErrorKind::WouldBlock);
}

fn wait_readable(channel: &Channel) {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut fds, PollTimeout::NONE), Ok(1));
}

#[test]
fn a_withdrawn_request_cannot_be_accepted() {
    let (context, address) = device_and_address();
    let (at, _listening, to) = listener(&context, address, PortSpace::Tcp);
    let (_channel, id, _qp) = asking_client(&context, to);
    let request = request(&at);
    drop(id);
    let (mut qp, _) = queue_pair(&context);
    let deadline = Instant::now() + PATIENCE;
    // The withdrawal arrives later: the listener learns of it only when it accepts the request.
    let error = loop {
        match request.id().qp_attributes(State::Rtr) {
            Ok(_) => assert!(Instant::now() < deadline, "the withdrawal did not arrive"),
            Err(_) => break request.accept(&mut qp, &AcceptOptions::default()).unwrap_err(),
        }
        std::thread::yield_now();
    };
    assert_eq!(error.errno(), 22, "{error}");
}

#[test]
fn requests_beyond_the_backlog_succeed_when_repeated() {
    let (context, address) = device_and_address();
    let channel = Channel::of(&context).unwrap();
    let listening = channel.create_id(PortSpace::Tcp).unwrap();
    listening.bind(address).unwrap();
    listening.listen(1).unwrap();
    let to = listening.local_address().unwrap().unwrap();
    let (first, _first_id, first_qp) = asking_client(&context, to);
    wait_readable(&channel);
    let asked = Instant::now();
    let (second, _second_id, _second_qp) = asking_client(&context, to);
    // Requests are handled in order: once the third arrives elsewhere, the second was handled.
    let (elsewhere, _elsewhere_id, to) = listener(&context, address, PortSpace::Tcp);
    let (_third, _third_id, _third_qp) = asking_client(&context, to);
    wait_readable(&elsewhere);
    // The first request is read. The second was dropped, so there is no other event yet.
    let request = request(&channel);
    assert_eq!(request.peer().qpn, first_qp.number());
    let other = channel.try_next_event();
    // On a slow machine the repetition may already have arrived: then there is nothing to check.
    if asked.elapsed() < Duration::from_secs(4) {
        assert_eq!(other.unwrap_err().kind(), ErrorKind::WouldBlock);
    }
    drop(request);
    assert!(matches!(next(&first).kind, EventKind::Rejected(_)));
    // The client repeats the request after 4.6 seconds.
    drop(crate::long::request(&channel));
    assert!(matches!(next(&second).kind, EventKind::Rejected(_)));
}

#[test]
fn the_connection_manager_gives_attributes_for_each_state() {
    let (context, address) = device_and_address();
    let (at, _listening, to) = listener(&context, address, PortSpace::Tcp);
    let channel = Channel::of(&context).unwrap();
    let id = resolved(&channel, to, PortSpace::Tcp);
    let init = id.qp_attributes(State::Init).unwrap();
    let wanted = QpAttrMask::ACCESS_FLAGS | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT;
    assert_eq!(init.mask(), wanted | QpAttrMask::STATE);
    let early = id.qp_attributes(State::Rtr).unwrap_err();
    assert_eq!(early.kind(), ErrorKind::BadState, "{early}");
    assert!(early.to_string().contains("not connected"), "{early}");
    let (qp, _) = queue_pair(&context);
    id.connect(&qp, &ConnectOptions::default()).unwrap();
    let request = request(&at);
    let rtr = request.id().qp_attributes(State::Rtr).unwrap();
    assert_eq!(rtr.remote_qpn, Some(qp.number()));
    assert_eq!(rtr.mask().bits(), 0x12_9181);
    let rts = request.id().qp_attributes(State::Rts).unwrap();
    assert_eq!(rts.mask().bits(), 0x1_2e01);
}

/// The connection manager knows the path, so the port is not queried. Here a query would fail.
#[test]
fn a_queue_pair_of_an_id_connects_without_querying_the_port() {
    let soft = Arc::new(SoftDevice::builder("soft0").without_wire().build().unwrap());
    let context = Device::from_shared_soft(soft.clone()).open().unwrap();
    let to_device = address_of(&context);
    let (at, _listening, to) = listener(&context, to_device, PortSpace::Tcp);
    let channel = Channel::of(&context).unwrap();
    let id = resolved(&channel, to, PortSpace::Tcp);
    let (cq, pd) = (context.create_cq(8).build().unwrap(), context.alloc_pd().unwrap());
    let make = |id: &Id| id.create_qp::<Rc, _>(&pd, cq.handle(), cq.handle()).unwrap().build();
    let fault =
        |method| Fault { moment: Moment::Method(uapi::OBJECT, method, 0), errno: Errno::EIO };
    soft.inject(fault(uapi::query_port::METHOD));
    soft.inject(fault(uapi::query_gid_table::METHOD));
    let mut mine = make(&id).unwrap();
    id.connect(&mine, &ConnectOptions::default()).unwrap();
    let request = request(&at);
    let mut theirs = make(request.id()).unwrap();
    let _accepted = request.accept(&mut theirs, &AcceptOptions::default()).unwrap();
    assert!(matches!(next(&channel).kind, EventKind::ConnectResponse(_)));
    id.establish(&mut mine, &QpOptions::default()).unwrap();
    assert_eq!((mine.state(), theirs.state()), (State::Rts, State::Rts));
    assert_eq!(soft.clear_faults(), 2, "neither was called");
    // Connecting by endpoint queries the port, and returns its error.
    let peer = queue_pair(&context).0.endpoint();
    let mut by_hand = make(&id).unwrap();
    soft.inject(fault(uapi::query_port::METHOD));
    let refused = by_hand.connect(&peer).unwrap_err();
    assert_eq!((refused.verb(), refused.errno()), ("query_port", Errno::EIO as i32), "{refused}");
    by_hand.connect(&peer).unwrap();
    assert_eq!(by_hand.endpoint().gid, peer.gid);
}

#[test]
fn uc_queue_pairs_connect_in_the_ib_port_space() {
    let (context, address) = device_and_address();
    let space = PortSpace::Ib(uverbs::qp_type::QpType::Uc);
    let (at, _listening, to) = listener(&context, address, space);
    let channel = Channel::of(&context).unwrap();
    let id = resolved(&channel, to, space);
    let cq = context.create_cq(8).build().unwrap();
    let pd = context.alloc_pd().unwrap();
    let build = || pd.create_qp::<Uc>(cq.handle(), cq.handle()).build().unwrap();
    let (mut mine, mut theirs) = (build(), build());
    id.connect(&mine, &ConnectOptions::default()).unwrap();
    let accepted = request(&at).accept(&mut theirs, &AcceptOptions::default()).unwrap();
    assert!(matches!(next(&channel).kind, EventKind::ConnectResponse(_)));
    id.establish(&mut mine, &QpOptions::default()).unwrap();
    assert!(matches!(next(&at).kind, EventKind::Established));
    assert_eq!((mine.state(), theirs.state()), (State::Rts, State::Rts));
    drop(accepted);
}

#[test]
fn a_request_over_a_cut_link_arrives_when_repeated() {
    let [one, two] = ends_of(Medium::Memory, &Default::default());
    let (here, there) = (&one.setup.context, &two.setup.context);
    let (_at, _listening, to) = listener(there, address_of(there), PortSpace::Tcp);
    let channel = Channel::of(here).unwrap();
    let id = resolved(&channel, to, PortSpace::Tcp);
    one.cut.store(true, Ordering::Relaxed);
    let (qp, _) = queue_pair(here);
    id.connect(&qp, &ConnectOptions::default()).unwrap();
    let soon = Instant::now() + Duration::from_millis(20);
    assert_eq!(channel.next_event_until(soon).unwrap_err().kind(), ErrorKind::TimedOut);
    // Once the link works again, the repeated request arrives.
    one.cut.store(false, Ordering::Relaxed);
    drop(_listening);
    assert!(matches!(next(&channel).kind, EventKind::Rejected(_)));
}
