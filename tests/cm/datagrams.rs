//! Lookups of datagram services, and multicast groups.

use std::net::SocketAddr;

use uverbs::cm::{Channel, EventKind, JoinMode, LookupData, LookupReplyData, PortSpace};
use uverbs::qp::{Datagram, PostFlags};
use uverbs::qp_type::Ud;
use uverbs::{CompletionQueue, Context, ErrorKind, ProtectionDomain, QueuePair, op};

use crate::{PATIENCE, device_and_address, finished, listener, next, resolved};

/// Bytes before the payload of a received datagram.
const HEADER: usize = uverbs::ah::GRH_BYTES;

fn queue_pair(context: &Context) -> (ProtectionDomain, CompletionQueue, QueuePair<Ud>) {
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(16).build().unwrap();
    let qp = pd.create_qp::<Ud>(cq.handle(), cq.handle()).build().unwrap();
    (pd, cq, qp)
}

#[test]
fn a_service_is_found_and_reached() {
    let (context, address) = device_and_address();
    let (at, listening, to) = listener(&context, address, PortSpace::Udp);
    let (pd, mut cq, mut service) = queue_pair(&context);
    listening.activate(&mut service).unwrap();
    let slab = pd.create_slab(1, 128).unwrap();
    service.post_receive(slab.take().unwrap()).unwrap();

    let channel = Channel::of(&context).unwrap();
    let id = resolved(&channel, to, PortSpace::Udp);
    id.lookup(&LookupData::of(b"who")).unwrap();
    let event = next(&at);
    assert_eq!(event.id, listening.key());
    let EventKind::ConnectRequest(request) = event.kind else { panic!("{event:?}") };
    assert_eq!((&request.private_data()[..4], request.private_data().len()), (&b"who\0"[..], 180));
    request.answer(&service, &LookupReplyData::of(b"me")).unwrap();

    let event = next(&channel);
    assert_eq!(event.id, id.key());
    let EventKind::Found(peer) = event.kind else { panic!("{event:?}") };
    assert_eq!((peer.qpn, peer.qkey), (service.number(), 0x0123_4567));
    assert_eq!((&peer.private_data[..3], peer.private_data.len()), (&b"me\0"[..], 136));
    let (mine, mut done, mut qp) = queue_pair(&context);
    id.activate(&mut qp).unwrap();
    let (_handle, way) = peer.address_handle(&mine).unwrap();
    let source = mine.create_slab(1, 64).unwrap();
    let mut slot = source.take().unwrap();
    slot.write(b"datagram").unwrap();
    qp.post_send(op::To(Datagram(&way), op::Send), slot, PostFlags::SIGNALED).unwrap();
    finished(&mut done);
    assert_eq!(&finished(&mut cq).unwrap()[HEADER..], b"datagram");
}

#[test]
fn a_refused_lookup_has_a_cause() {
    let (context, mut address) = device_and_address();
    address.set_port(9);
    let channel = Channel::of(&context).unwrap();
    let id = resolved(&channel, address, PortSpace::Udp);
    id.lookup(&LookupData::EMPTY).unwrap();
    let EventKind::Unreachable(error) = next(&channel).kind else { panic!() };
    assert!(error.cause().contains("no program offers"), "{error}");

    let (at, _listening, to) = listener(&context, crate::address_of(&context), PortSpace::Udp);
    let id = resolved(&channel, to, PortSpace::Udp);
    id.lookup(&LookupData::EMPTY).unwrap();
    drop(next(&at));
    let EventKind::Unreachable(error) = next(&channel).kind else { panic!() };
    assert_eq!(error.errno(), 111, "{error}");
    assert!(error.cause().contains("refused"), "{error}");
}

#[test]
fn a_lookup_cannot_be_accepted_like_a_connection() {
    let (context, address) = device_and_address();
    let (at, _listening, to) = listener(&context, address, PortSpace::Udp);
    let channel = Channel::of(&context).unwrap();
    let id = resolved(&channel, to, PortSpace::Udp);
    id.lookup(&LookupData::EMPTY).unwrap();
    let EventKind::ConnectRequest(request) = next(&at).kind else { panic!() };
    let cq = context.create_cq(8).build().unwrap();
    let pd = context.alloc_pd().unwrap();
    let mut qp = pd.create_qp::<uverbs::qp_type::Rc>(cq.handle(), cq.handle()).build().unwrap();
    let error = request.accept(&mut qp, &Default::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    // The failed `accept` has refused the lookup.
    assert!(matches!(next(&channel).kind, EventKind::Unreachable(_)));
}

#[test]
fn a_group_is_joined_and_reached() {
    let (context, address) = device_and_address();
    let group: SocketAddr = "239.1.2.3:7000".parse().unwrap();
    let channel = Channel::of(&context).unwrap();
    let id = channel.create_id(PortSpace::Udp).unwrap();
    id.bind(address).unwrap();
    let membership = id.join(group, JoinMode::FullMember).unwrap();
    let event = next(&channel);
    assert_eq!(event.id, membership.key());
    let EventKind::Joined(joined) = event.kind else { panic!("{event:?}") };
    let (pd, mut cq, mut qp) = queue_pair(&context);
    id.activate(&mut qp).unwrap();
    qp.attach_multicast(joined.gid, joined.lid).unwrap();
    let slab = pd.create_slab(2, 128).unwrap();
    qp.post_receive(slab.take().unwrap()).unwrap();
    let (_handle, way) = joined.address_handle(&pd).unwrap();
    let mut slot = slab.take().unwrap();
    slot.write(b"to all").unwrap();
    qp.post_send(op::To(Datagram(&way), op::Send), slot, PostFlags::SIGNALED).unwrap();
    let texts = [finished(&mut cq), finished(&mut cq)];
    assert!(texts.iter().flatten().any(|slot| slot.ends_with(b"to all") && slot.len() > 6));
    qp.detach_multicast(joined.gid, joined.lid).unwrap();
    drop(membership);
    // The id can join again.
    let again = id.join(group, JoinMode::SendOnly).unwrap();
    assert_eq!(next(&channel).id, again.key());
    // The membership keeps the id: the kernel's id is destroyed with it.
    drop(id);
    drop(again);
}

#[test]
fn a_join_of_an_address_that_is_not_a_group_is_refused() {
    let (context, address) = device_and_address();
    let channel = Channel::of(&context).unwrap();
    let id = channel.create_id(PortSpace::Udp).unwrap();
    id.bind(address).unwrap();
    let error = id.join("127.0.0.1:5".parse().unwrap(), JoinMode::FullMember).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    // ENOTSUPP, which C has no name for (`cma_iboe_join_multicast`).
    let six = channel.create_id(PortSpace::Udp).unwrap();
    six.bind("[::1]:0".parse().unwrap()).unwrap();
    let error = six.join("[ff0e::1]:5".parse().unwrap(), JoinMode::FullMember).unwrap_err();
    assert_eq!((error.errno(), error.kind()), (524, ErrorKind::Unsupported), "{error}");
    assert!(error.to_string().contains("groups have IPv4 addresses"), "{error}");
    let tcp = channel.create_id(PortSpace::Tcp).unwrap();
    tcp.resolve_address(None, listener(&context, address, PortSpace::Tcp).2, PATIENCE).unwrap();
    let group = "239.1.2.3:0".parse().unwrap();
    assert_eq!(tcp.join(group, JoinMode::FullMember).unwrap_err().errno(), 22);
}
