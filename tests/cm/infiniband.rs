//! Connections by GID and service id, without IP addresses.

use std::time::Instant;

use uverbs::cm::{
    AcceptOptions, Channel, ConnectOptions, Connector, EventKind, IbAddress, Id, Listener,
    LookupData, LookupReplyData, PortSpace, QpOptions, RequestData,
};
use uverbs::qp::State;
use uverbs::{Context, ErrorKind, Gid};

use crate::long::queue_pair;
use crate::{PATIENCE, common, next};

fn infiniband() -> (Context, Gid) {
    let context = common::soft_device(|builder| builder.infiniband()).open().unwrap();
    let gid = context.gid_table(1).unwrap()[0].gid;
    (context, gid)
}

/// A listener at all GIDs of the device, and the address to connect to.
fn listener(context: &Context, gid: Gid, space: PortSpace) -> (Channel, Id, IbAddress) {
    let channel = Channel::of(context).unwrap();
    let id = channel.create_id(space).unwrap();
    id.bind_ib(IbAddress::new(Gid::ZERO, space, 0)).unwrap();
    id.listen(0).unwrap();
    let own = id.local_ib_address().unwrap().expect("an InfiniBand address");
    assert_eq!((own.gid, id.local_address().unwrap()), (Gid::ZERO, None));
    assert_ne!(own.port(), 0);
    (channel, id, IbAddress::new(gid, space, own.port()))
}

fn resolved(channel: &Channel, to: IbAddress, space: PortSpace) -> Id {
    let id = channel.create_id(space).unwrap();
    id.resolve_ib_address(to, PATIENCE).unwrap();
    assert!(matches!(next(channel).kind, EventKind::AddressResolved));
    id.resolve_route(PATIENCE).unwrap();
    assert!(matches!(next(channel).kind, EventKind::RouteResolved));
    id
}

#[test]
fn two_ends_connect_by_gid() {
    let (context, gid) = infiniband();
    let (at, _listening, to) = listener(&context, gid, PortSpace::Tcp);
    let channel = Channel::of(&context).unwrap();
    let id = resolved(&channel, to, PortSpace::Tcp);
    assert_eq!(id.peer_ib_address().unwrap(), Some(to));
    assert_eq!(id.local_ib_address().unwrap().unwrap().gid, gid);
    let (mut mine, _) = queue_pair(&context);
    let private_data = RequestData::of(b"by gid");
    id.connect(&mine, &ConnectOptions { private_data, ..Default::default() }).unwrap();

    let EventKind::ConnectRequest(request) = next(&at).kind else { panic!("no request") };
    // All 92 bytes: there is no header with IP addresses.
    assert_eq!((&request.private_data()[..6], request.private_data().len()), (&b"by gid"[..], 92));
    let (mut its, _) = queue_pair(&context);
    let accepted = request.accept(&mut its, &AcceptOptions::default()).unwrap();
    assert_eq!(accepted.peer_ib_address().unwrap().unwrap().gid, gid);
    assert!(matches!(next(&channel).kind, EventKind::ConnectResponse(_)));
    id.establish(&mut mine, &QpOptions::default()).unwrap();
    assert!(matches!(next(&at).kind, EventKind::Established));
    assert_eq!([mine.state(), its.state()], [State::Rts; 2]);
    id.disconnect().unwrap();
    assert!(matches!(next(&at).kind, EventKind::Disconnected(_)));
}

#[test]
fn listeners_and_connectors_connect_by_gid() {
    let (context, gid) = infiniband();
    let builder = Listener::builder().context(&context);
    let mut listener = builder.bind_ib(IbAddress::new(gid, PortSpace::Tcp, 0)).unwrap();
    let to = listener.id().local_ib_address().unwrap().expect("an InfiniBand address");
    assert_eq!(listener.local_address().unwrap_err().kind(), ErrorKind::InvalidInput);
    let connector = Connector::new().context(&context).timeout(PATIENCE);
    let client = std::thread::spawn(move || connector.connect_ib(to).unwrap());
    let server = listener.accept_until(Instant::now() + PATIENCE).unwrap();
    let client = client.join().unwrap();
    assert_eq!(client.link.id().peer_ib_address().unwrap(), Some(to));
    assert_eq!(server.link.id().peer_ib_address().unwrap().unwrap().gid, gid);
    assert_eq!([client.qp.state(), server.qp.state()], [State::Rts; 2]);
}

#[test]
fn a_datagram_service_is_found_by_gid() {
    let (context, gid) = infiniband();
    let (at, _listening, to) = listener(&context, gid, PortSpace::Udp);
    let cq = context.create_cq(8).build().unwrap();
    let pd = context.alloc_pd().unwrap();
    let qp = pd.create_qp::<uverbs::qp_type::Ud>(cq.handle(), cq.handle()).build().unwrap();
    let channel = Channel::of(&context).unwrap();
    let id = resolved(&channel, to, PortSpace::Udp);
    id.lookup(&LookupData::of(b"who")).unwrap();
    let EventKind::ConnectRequest(request) = next(&at).kind else { panic!("no request") };
    assert_eq!(request.private_data().len(), 216);
    request.answer(&qp, &LookupReplyData::of(b"me")).unwrap();
    let EventKind::Found(peer) = next(&channel).kind else { panic!("not found") };
    assert_eq!(peer.qpn, qp.number());
}

/// The kernel needs a network device for the path, and a GID alone names none.
#[test]
fn over_ethernet_a_gid_has_no_path() {
    let context = common::soft_device(|builder| builder).open().unwrap();
    let gid = context.gid_table(1).unwrap()[0].gid;
    let (_at, _listening, to) = listener(&context, gid, PortSpace::Tcp);
    let channel = Channel::of(&context).unwrap();
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    id.resolve_ib_address(to, PATIENCE).unwrap();
    assert!(matches!(next(&channel).kind, EventKind::AddressResolved));
    assert_eq!(id.resolve_route(PATIENCE).unwrap_err().errno(), 19);
    let error = Connector::new().context(&context).connect_ib(to).unwrap_err();
    assert_eq!(error.errno(), 19, "{error}");
}

#[test]
fn other_partitions_and_port_spaces_are_refused() {
    let (context, gid) = infiniband();
    let channel = Channel::of(&context).unwrap();
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    let mut to = IbAddress::new(gid, PortSpace::Tcp, 9);
    to.pkey = 0x8001;
    assert_eq!(id.resolve_ib_address(to, PATIENCE).unwrap_err().errno(), 19);
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    let udp = IbAddress::new(gid, PortSpace::Udp, 9);
    assert_eq!(id.bind_ib(udp).unwrap_err().errno(), 93);
}
