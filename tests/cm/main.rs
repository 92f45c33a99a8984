//! Connections by address, end to end on the software device.

#[path = "../../stream/tests/suite/alone.rs"]
mod alone;
#[path = "../common/child.rs"]
mod child;
#[path = "../common/mod.rs"]
mod common;
mod datagrams;
mod floods;
mod handmade;
mod ids;
mod infiniband;
mod killed;
mod long;
mod many;
#[path = "../faults_observed/network.rs"]
mod network;
mod own_wires;
#[path = "../common/peer.rs"]
mod peer;
mod process;
mod short;
mod tasks;
mod unopened;

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

use uverbs::cm::{Channel, Event, EventKind, Id, PortSpace};
use uverbs::{Context, PollError, Slot};

/// Time limit of a wait for an event, which is reached only if there is a defect.
const PATIENCE: Duration = common::PATIENCE;

/// A device whose only peer is itself, and its address with port 0.
fn device_and_address() -> (Context, SocketAddr) {
    let context = common::soft_device(|builder| builder).open().unwrap();
    let address = address_of(&context);
    (context, address)
}

/// The IPv4 address of a device.
fn address_of(context: &Context) -> SocketAddr {
    let gids = context.gid_table(1).unwrap();
    let ipv4 = gids.iter().find_map(|entry| entry.gid.ipv4()).expect("an IPv4 address");
    SocketAddr::new(IpAddr::from(ipv4), 0)
}

/// The link-local IPv6 address of a device.
fn link_local_of(context: &Context) -> SocketAddr {
    let gids = context.gid_table(1).unwrap();
    let found = gids.iter().find(|entry| entry.gid.is_link_local()).expect("a link-local address");
    let address = Ipv6Addr::from(found.gid.0);
    SocketAddrV6::new(address, 0, 0, found.interface).into()
}

/// The next event of a channel.
fn next(channel: &Channel) -> Event {
    channel.next_event_until(Instant::now() + PATIENCE).expect("an event")
}

/// A listening id on its own channel, and its address.
fn listener(context: &Context, address: SocketAddr, space: PortSpace) -> (Channel, Id, SocketAddr) {
    let channel = Channel::of(context).unwrap();
    let id = channel.create_id(space).unwrap();
    id.bind(address).unwrap();
    id.listen(0).unwrap();
    let address = id.local_address().unwrap().expect("an IP address");
    (channel, id, address)
}

/// An id whose address and route to `to` are resolved.
fn resolved(channel: &Channel, to: SocketAddr, space: PortSpace) -> Id {
    let id = channel.create_id(space).unwrap();
    id.resolve_address(None, to, PATIENCE).unwrap();
    assert!(matches!(next(channel).kind, EventKind::AddressResolved));
    id.resolve_route(PATIENCE).unwrap();
    assert!(matches!(next(channel).kind, EventKind::RouteResolved));
    id
}

/// The slot of the next completion, which must be successful.
fn finished(cq: &mut uverbs::CompletionQueue) -> Option<Slot> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match cq.poll() {
            Ok(done) => {
                assert_eq!(done.completion.status(), uverbs::cq::Status::Success);
                return done.slot;
            }
            Err(PollError::Empty) => assert!(Instant::now() < deadline, "no completion came"),
            Err(error) => panic!("{error}"),
        }
        std::thread::yield_now();
    }
}
