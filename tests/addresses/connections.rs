//! Connections by address between two network namespaces, over UDP.

use std::net::{SocketAddr, SocketAddrV6};
use std::thread;
use std::time::Instant;

use uverbs::cm::{Channel, Connection, Connector, EventKind, Id, Listener, LookupData, PortSpace};
use uverbs::cq::Status;
use uverbs::qp::PostFlags;
use uverbs::{CompletionQueue, Context, PollError, Slot, op};

use crate::common::{PATIENCE, pattern};
use crate::namespace::{End, Ends, Far, inside};

fn far(ends: &Ends) -> &Far {
    ends.far.as_ref().unwrap()
}

fn context(end: &End) -> Context {
    end.setup.context.clone()
}

/// This address; if it is link-local, with the index of `interface` as its scope.
fn scoped(address: &str, interface: &str) -> SocketAddr {
    match address.parse().unwrap() {
        std::net::IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            let index = nix::net::if_::if_nametoindex(interface).unwrap();
            SocketAddrV6::new(v6, 0, 0, index).into()
        }
        ip => SocketAddr::new(ip, 0),
    }
}

/// A listener at the far end, and its port.
fn listen(ends: &Ends, address: String) -> (Listener, u16) {
    let context = context(&ends.there);
    far(ends).run(move || {
        let builder = Listener::builder().context(&context);
        let listener = builder.bind(scoped(&address, "far")).unwrap();
        let port = listener.local_address().unwrap().port();
        (listener, port)
    })
}

/// Connects to the far end, and returns the connection there and the one here.
fn connect(ends: &Ends, to: &str) -> (Connection, Connection) {
    let (mut listener, port) = listen(ends, to.to_owned());
    let (context, mut to) = (context(&ends.near), scoped(to, "near"));
    to.set_port(port);
    let connector = Connector::new().context(&context).timeout(PATIENCE);
    let client = thread::spawn(move || connector.connect(to).unwrap());
    let server = far(ends).run(move || listener.accept_until(Instant::now() + PATIENCE).unwrap());
    (server, client.join().unwrap())
}

fn finished(cq: &mut CompletionQueue) -> Option<Slot> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match cq.poll() {
            Ok(done) => {
                assert_eq!(done.completion.status(), Status::Success);
                return done.slot;
            }
            Err(PollError::Empty) => assert!(Instant::now() < deadline, "no completion came"),
            Err(error) => panic!("{error}"),
        }
        thread::yield_now();
    }
}

/// Sends a message of several packets from one end to the other.
fn transfer(from: &mut Connection, to: &mut Connection) {
    let data = pattern(5000, 3);
    let slab = to.resources.pd.create_slab(1, 8192).unwrap();
    to.qp.post_receive(slab.take().unwrap()).unwrap();
    let source = from.resources.pd.create_slab(1, 8192).unwrap();
    let mut slot = source.take().unwrap();
    slot.write(&data).unwrap();
    from.qp.post_send(op::Send, slot, PostFlags::SIGNALED).unwrap();
    assert_eq!(finished(&mut to.resources.cq).unwrap()[..], data);
    finished(&mut from.resources.cq);
}

fn connections_cross(name: &str, near: &'static str, there: &'static str) {
    inside(name, || {
        let ends = Ends::across([1500, 1500], near, there);
        let (mut server, mut client) = connect(&ends, there);
        let peer = server.link.peer_address().unwrap().unwrap();
        assert_eq!(peer.ip().to_string(), near);
        transfer(&mut client, &mut server);
        transfer(&mut server, &mut client);
        client.disconnect().unwrap();
        server.wait_disconnected(Some(PATIENCE)).unwrap();
        client.wait_disconnected(Some(PATIENCE)).unwrap();
    });
}

#[test]
fn connections_by_ipv4_cross_namespaces() {
    connections_cross("connections::connections_by_ipv4_cross_namespaces", "10.9.0.1", "10.9.0.2");
}

#[test]
fn connections_by_ipv6_cross_namespaces() {
    connections_cross("connections::connections_by_ipv6_cross_namespaces", "fd09::1", "fd09::2");
}

#[test]
fn connections_by_link_local_addresses_cross_namespaces() {
    let name = "connections::connections_by_link_local_addresses_cross_namespaces";
    connections_cross(name, "fe80::1", "fe80::2");
}

/// As with a kernel. libfabric's listeners first bind to 127.0.0.1, and require that no device is
/// found for this address.
#[test]
fn the_loopback_address_is_a_wildcard_where_no_device_is_at_one() {
    let name = "connections::the_loopback_address_is_a_wildcard_where_no_device_is_at_one";
    inside(name, || {
        let ends = Ends::across([1500, 1500], "10.9.0.1", "10.9.0.2");
        let (mut listener, port) = listen(&ends, "127.0.0.1".to_owned());
        listener.id().context().unwrap_err();
        let connector = Connector::new().context(&context(&ends.near)).timeout(PATIENCE);
        let client = thread::spawn(move || connector.connect(("10.9.0.2", port)).unwrap());
        let accept = move || listener.accept_until(Instant::now() + PATIENCE).unwrap();
        let mut server = far(&ends).run(accept);
        transfer(&mut client.join().unwrap(), &mut server);
    });
}

#[test]
fn a_request_without_a_listener_is_refused_at_once() {
    inside("connections::a_request_without_a_listener_is_refused_at_once", || {
        let ends = Ends::across([1500, 1500], "10.9.0.1", "10.9.0.2");
        // The port has no listener any more. The other end's connection manager refuses.
        let (listener, port) = listen(&ends, "10.9.0.2".to_owned());
        far(&ends).run(move || drop(listener));
        let context = context(&ends.near);
        let connector = Connector::new().context(&context).timeout(PATIENCE);
        let error = connector.connect(("10.9.0.2", port)).unwrap_err();
        assert_eq!(error.errno(), 111, "{error}");
    });
}

/// A client looks up a datagram service in the other namespace, and the service refuses.
#[test]
fn lookups_cross_namespaces() {
    inside("connections::lookups_cross_namespaces", || {
        let ends = Ends::across([1500, 1500], "10.9.0.1", "10.9.0.2");
        let there = context(&ends.there);
        let (at, listening, to) = far(&ends).run(move || {
            let channel = Channel::of(&there).unwrap();
            let id = channel.create_id(PortSpace::Udp).unwrap();
            id.bind(SocketAddr::new("10.9.0.2".parse().unwrap(), 0)).unwrap();
            id.listen(0).unwrap();
            let address = id.local_address().unwrap().unwrap();
            (channel, id, address)
        });
        let channel = Channel::of(&context(&ends.near)).unwrap();
        let id: Id = channel.create_id(PortSpace::Udp).unwrap();
        id.resolve_address(None, to, PATIENCE).unwrap();
        assert!(matches!(next(&channel), EventKind::AddressResolved));
        id.resolve_route(PATIENCE).unwrap();
        assert!(matches!(next(&channel), EventKind::RouteResolved));
        id.lookup(&LookupData::of(b"who")).unwrap();
        let EventKind::ConnectRequest(request) = next(&at) else { panic!("no request") };
        assert_eq!(&request.private_data()[..3], b"who");
        drop((request, listening));
        assert!(matches!(next(&channel), EventKind::Unreachable(_)));
    });
}

fn next(channel: &Channel) -> EventKind {
    channel.next_event_until(Instant::now() + PATIENCE).expect("an event").kind
}
