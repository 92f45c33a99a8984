//! Lifetimes of ids: events that were not read, migration between channels, removed devices.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uverbs::cm::{Channel, EventKind, Listener, PortSpace};
use uverbs::qp::AckTimeout;
use uverbs::soft::SoftDevice;
use uverbs::{Device, ErrorKind};

use crate::child::{Outcome, in_child};
use crate::{PATIENCE, address_of, device_and_address, listener, next, resolved};

#[test]
fn destroying_an_id_does_not_wait_for_its_events() {
    let (context, address) = device_and_address();
    let (_incoming, _listening, to) = listener(&context, address, PortSpace::Tcp);
    let channel = Channel::of(&context).unwrap();
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    id.resolve_address(None, to, PATIENCE).unwrap();
    let taken = next(&channel);
    id.resolve_route(PATIENCE).unwrap();
    // The program holds one event, and has not read a second one.
    drop(id);
    assert!(matches!(taken.kind, EventKind::AddressResolved));
    assert_eq!(channel.try_next_event().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_handler_may_destroy_the_id_of_its_event() {
    let (context, address) = device_and_address();
    let (_incoming, listening, to) = listener(&context, address, PortSpace::Tcp);
    let channel = Channel::of(&context).unwrap();
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    id.resolve_address(None, to, PATIENCE).unwrap();
    match next(&channel).kind {
        EventKind::AddressResolved => drop((id, listening)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn keys_are_never_used_twice() {
    let (context, _) = device_and_address();
    let channel = Channel::of(&context).unwrap();
    let keys: HashSet<_> =
        (0..100).map(|_| channel.create_id(PortSpace::Tcp).unwrap().key()).collect();
    assert_eq!(keys.len(), 100);
}

#[test]
fn events_move_with_their_id() {
    let (context, address) = device_and_address();
    let (_incoming, _listening, to) = listener(&context, address, PortSpace::Tcp);
    let (old, new) = (Channel::of(&context).unwrap(), Channel::of(&context).unwrap());
    let id = resolved(&old, to, PortSpace::Tcp);
    let other = old.create_id(PortSpace::Tcp).unwrap();
    other.resolve_address(None, to, PATIENCE).unwrap();
    other.migrate(&new).unwrap();
    let event = next(&new);
    assert_eq!(event.id, other.key());
    other.resolve_route(PATIENCE).unwrap();
    assert_eq!(next(&new).id, other.key());
    assert_eq!(old.try_next_event().unwrap_err().kind(), ErrorKind::WouldBlock);
    // The id that was not moved still works.
    assert!(id.context().is_ok());
    drop(old);
    id.migrate(&new).unwrap();
    assert!(id.local_address().unwrap().is_some());
}

#[test]
fn options_are_checked() {
    let (context, address) = device_and_address();
    let channel = Channel::of(&context).unwrap();
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    id.set_type_of_service(0x20).unwrap();
    id.set_reuse_address(true).unwrap();
    id.set_ipv6_only(true).unwrap();
    id.set_ack_timeout(AckTimeout::from_code(14)).unwrap();
    id.bind(address).unwrap();
    id.set_ipv6_only(false).unwrap();
    id.listen(1).unwrap();
    assert_eq!(id.set_ipv6_only(true).unwrap_err().errno(), 22);
    let datagrams = channel.create_id(PortSpace::Udp).unwrap();
    let error = datagrams.set_ack_timeout(AckTimeout::DEFAULT).unwrap_err();
    assert_eq!((error.errno(), error.verb()), (22, "set_option"));
}

#[test]
fn a_port_is_shared_only_by_ids_with_reuse_address() {
    let (context, address) = device_and_address();
    let channel = Channel::of(&context).unwrap();
    let bound = |address, shared: bool| {
        let id = channel.create_id(PortSpace::Tcp).unwrap();
        id.set_reuse_address(shared).unwrap();
        id.bind(address).map(|()| id)
    };
    let first = bound(address, true).unwrap();
    let taken = first.local_address().unwrap().unwrap();
    drop(bound(taken, true).unwrap());
    assert_eq!(bound(taken, false).unwrap_err().errno(), 98);
    first.listen(0).unwrap();
    let error = bound(taken, true).unwrap().listen(0).unwrap_err();
    assert_eq!(error.errno(), 98);
    assert!(error.cure().contains("choose another port"), "{error}");
}

#[test]
fn calls_in_the_wrong_order_are_refused() {
    let (context, address) = device_and_address();
    let (_incoming, listening, to) = listener(&context, address, PortSpace::Tcp);
    let channel = Channel::of(&context).unwrap();
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    let unbound = id.context().unwrap_err();
    assert_eq!(unbound.kind(), ErrorKind::BadState, "{unbound}");
    assert!(unbound.cure().contains("resolve an address"), "{unbound}");
    assert_eq!(id.resolve_route(PATIENCE).unwrap_err().errno(), 22);
    assert_eq!(id.disconnect().unwrap_err().errno(), 22);
    assert_eq!(listening.resolve_address(None, to, PATIENCE).unwrap_err().errno(), 22);
    let id = resolved(&channel, to, PortSpace::Tcp);
    assert_eq!(id.bind(address).unwrap_err().errno(), 22);
    assert_eq!(id.notify_established().unwrap_err().errno(), 22);
}

#[test]
fn calls_report_a_removed_device() {
    let soft = Arc::new(SoftDevice::builder("soft0").without_wire().build().unwrap());
    let context = Device::from_shared_soft(soft.clone()).open().unwrap();
    let address = crate::address_of(&context);
    let mut listener = Listener::builder().context(&context).bind(address).unwrap();
    soft.remove();
    let deadline = Instant::now() + PATIENCE;
    for _ in 0..2 {
        let error = listener.accept_until(deadline).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeviceGone, "{error}");
    }
    let gone = |error: uverbs::Error| {
        assert_eq!(error.kind(), ErrorKind::DeviceGone, "{error}");
        assert!(error.cure().contains("destroy the id"), "{error}");
    };
    gone(listener.id().listen(1).unwrap_err());
    gone(listener.local_address().unwrap_err());
    gone(listener.id().set_reuse_address(true).unwrap_err());
    gone(listener.id().migrate(&Channel::of(&context).unwrap()).unwrap_err());
    assert_eq!(listener.try_accept().unwrap_err().kind(), ErrorKind::DeviceGone);
}

/// A removed device comes back with the same node GUID, and the channel knows contexts of both.
#[test]
fn ids_use_the_device_that_came_back_and_not_the_removed_one() {
    let device = || SoftDevice::builder("soft0").without_wire().node_guid([7; 8]).build().unwrap();
    let [removed, back] = [device(), device()];
    let [old, new] = [&removed, &back].map(|soft| Device::from_soft(soft.clone()).open().unwrap());
    let (channel, listening, to) = listener(&new, address_of(&new), PortSpace::Tcp);
    channel.use_context(&old).unwrap();
    removed.remove();
    let asking = resolved(&Channel::of(&new).unwrap(), to, PortSpace::Tcp);
    let context = listening.context().unwrap();
    assert!(context.alloc_pd().is_ok());
    assert!(asking.context().is_ok());
}

#[test]
fn a_forked_child_cannot_use_ids() {
    let (context, address) = device_and_address();
    let (incoming, listening, to) = listener(&context, address, PortSpace::Tcp);
    let outcome = in_child(|| {
        assert_eq!(listening.listen(1).unwrap_err().kind(), ErrorKind::ForkedChild);
        assert_eq!(incoming.try_next_event().unwrap_err().kind(), ErrorKind::ForkedChild);
        assert_eq!(Channel::of(&context).unwrap_err().kind(), ErrorKind::ForkedChild);
    });
    assert_eq!(outcome, Outcome::Well);
    // The parent's listener is still there.
    let channel = Channel::of(&context).unwrap();
    let id = resolved(&channel, to, PortSpace::Tcp);
    assert!(id.context().is_ok());
    assert!(listening.local_address().unwrap().is_some());
}

#[test]
fn waiting_for_an_event_times_out() {
    let (context, _) = device_and_address();
    let channel = Channel::of(&context).unwrap();
    let error = channel.next_event_until(Instant::now() + Duration::from_millis(5)).unwrap_err();
    assert_eq!((error.kind(), error.verb()), (ErrorKind::TimedOut, "get_cm_event"));
}
