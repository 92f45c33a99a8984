//! Which commands the node accepts and refuses, and when its descriptor is readable.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::poll::{PollFlags, PollTimeout};
use uverbs_uapi::cm::address::{
    AF_INET, AF_INET6, Bind, Query, ResolveAddr, ResolveRoute, SockaddrIn, SockaddrIn6,
    SockaddrStorage,
};
use uverbs_uapi::cm::connect::{
    Accept, ConnParam, Connect, Disconnect, InitQpAttr, Listen, Reject,
};
use uverbs_uapi::cm::event::EventType;
use uverbs_uapi::cm::id::{CreateId, DestroyId, MigrateId, SetOption};
use uverbs_uapi::cm::multicast::{JoinMcast, LeaveMcast};
use uverbs_uapi::cm::{Cmd, CmdHdr, JoinFlags, OptionLevel, PortSpace, QueryOption};
use zerocopy::IntoBytes;

use super::{Client, host, host_on_network};
use crate::chardev::{RdmaCm, SoftDevice};
use crate::wire::{Carrier, Link, Network, NoWire, Station, Waker};

pub(super) const ADDRESS: [u8; 4] = [127, 20, 0, 1];

pub(super) fn sockaddr(address: [u8; 4], port: u16) -> SockaddrStorage {
    SockaddrStorage::new(&SockaddrIn {
        family: AF_INET,
        port: port.into(),
        addr: address,
        ..SockaddrIn::default()
    })
}

impl Client {
    pub(super) fn create(&self, ps: PortSpace, uid: u64) -> u32 {
        let create = |response| CreateId { uid, response, ps, ..CreateId::default() };
        self.ask(create).unwrap().id
    }

    pub(super) fn destroy(&self, id: u32) -> Result<u32, Errno> {
        let destroy = |response| DestroyId { response, id, reserved: 0 };
        self.ask(destroy).map(|answer| answer.events_reported)
    }

    pub(super) fn bind(&self, id: u32, address: [u8; 4], port: u16) -> Result<(), Errno> {
        self.send(&Bind { id, addr_size: 16, reserved: 0, addr: sockaddr(address, port) })
    }

    fn listen(&self, id: u32, backlog: u32) {
        self.send(&Listen { id, backlog }).unwrap();
    }

    fn resolve(&self, id: u32, port: u16) {
        self.resolve_at(id, ADDRESS, port);
    }

    fn resolve_at(&self, id: u32, address: [u8; 4], port: u16) {
        self.ask_for_address(id, address, port).unwrap();
        self.expect(EventType::ADDR_RESOLVED);
        self.ask_for_route(id);
        self.expect(EventType::ROUTE_RESOLVED);
    }

    pub(super) fn ask_for_address(
        &self,
        id: u32,
        address: [u8; 4],
        port: u16,
    ) -> Result<(), Errno> {
        let dst_addr = sockaddr(address, port);
        let request = ResolveAddr { id, timeout_ms: 1000, dst_size: 16, ..ResolveAddr::default() };
        self.send(&ResolveAddr { dst_addr, ..request })
    }

    pub(super) fn ask_for_route(&self, id: u32) {
        self.send(&ResolveRoute { id, timeout_ms: 1000 }).unwrap();
    }

    pub(super) fn connect(&self, id: u32, qp_num: u32, private_data_len: u8) -> Result<(), Errno> {
        let conn_param = ConnParam { qp_num, private_data_len, valid: 1, ..ConnParam::default() };
        self.send(&Connect { conn_param, id, ..Connect::default() })
    }

    pub(super) fn accept(&self, id: u32, uid: u64, qp_num: u32, len: u8) -> Result<(), Errno> {
        let valid = (uid != 0).into();
        let conn_param = ConnParam { qp_num, private_data_len: len, valid, ..ConnParam::default() };
        self.send(&Accept { uid, conn_param, id, ..Accept::default() })
    }

    pub(super) fn listener(&self, port: u16, backlog: u32) -> u32 {
        let id = self.create(PortSpace::TCP, 77);
        self.bind(id, ADDRESS, port).unwrap();
        self.listen(id, backlog);
        id
    }

    pub(super) fn connecting(&self, port: u16, qpn: u32) -> u32 {
        let id = self.create(PortSpace::TCP, 88);
        self.resolve(id, port);
        self.connect(id, qpn, 0).unwrap();
        id
    }
}

/// Accepts a request, and confirms the acceptance at the client.
pub(super) fn establish(server: &Client, request: u32, client: &Client, id: u32) {
    server.accept(request, 9, 2, 0).unwrap();
    client.expect(EventType::CONNECT_RESPONSE);
    client.accept(id, 0, 0, 0).unwrap();
    server.expect(EventType::ESTABLISHED);
}

pub(super) fn header(cmd: u32, input: u16, output: u16) -> CmdHdr {
    CmdHdr { cmd: Cmd(cmd), input, output }
}

#[test]
fn headers_are_checked_in_the_kernels_order() {
    let (host, _device) = host(ADDRESS);
    let client = Client::open(&host);
    let padded = |header: CmdHdr| [header.as_bytes(), &[0; 400]].concat();
    assert_eq!(client.write(&[0; 7]), Err(Errno::EINVAL));
    assert_eq!(client.write(&padded(header(23, 0, 0))), Err(Errno::EINVAL), "unknown to 6.12");
    let long = header(0, 25, 4);
    assert_eq!(client.write(&padded(long)[..32]), Err(Errno::EINVAL), "longer than written");
    assert_eq!(client.write(&padded(header(13, 0, 0))), Err(Errno::ENOSYS), "no handler");
    assert_eq!(client.write(&padded(header(0, 24, 3))), Err(Errno::ENOSPC), "before anything else");
    assert_eq!(client.write(&padded(header(12, 8, 323))), Err(Errno::ENOSPC));
    assert_eq!(client.write(&padded(header(6, 279, 0))), Err(Errno::EINVAL), "too short");
    assert_eq!(client.write(&padded(header(8, 287, 0))), Err(Errno::EINVAL), "too short");
    // Only CONNECT and ACCEPT check the length of the body.
    assert_eq!(client.write(&padded(header(10, 0, 0))), Err(Errno::ENOENT), "read all the same");
}

#[test]
fn bad_addresses_are_efault_and_change_nothing() {
    let (host, _device) = host(ADDRESS);
    let client = Client::open(&host);
    let create = CreateId { response: 8, ps: PortSpace::TCP, ..CreateId::default() };
    assert_eq!(client.send(&create), Err(Errno::EFAULT));
    assert_eq!(client.create(PortSpace::TCP, 1), 0, "the number was freed");
    // SAFETY: nothing is mapped at this address, so nothing is read.
    let far = unsafe { client.file.write(client.fd.as_fd(), 16 as *const u8, 400) };
    assert_eq!(far, Err(Errno::EFAULT));
}

#[test]
fn ids_are_the_lowest_free_and_each_file_has_its_own() {
    let (host, _device) = host(ADDRESS);
    let (one, two) = (Client::open(&host), Client::open(&host));
    assert_eq!(one.create(PortSpace::TCP, 1), 0);
    assert_eq!(two.create(PortSpace::UDP, 1), 1);
    assert_eq!(one.create(PortSpace::IB, 1), 2);
    assert_eq!(two.destroy(0), Err(Errno::EINVAL), "another file's");
    assert_eq!(one.destroy(7), Err(Errno::ENOENT));
    assert_eq!(one.destroy(0), Ok(0));
    assert_eq!(two.create(PortSpace::TCP, 1), 0);
    let unknown = |response| CreateId { response, ps: PortSpace(1), ..CreateId::default() };
    assert_eq!(one.ask(unknown).map(|answer| answer.id), Err(Errno::EINVAL));
}

#[test]
fn commands_in_the_wrong_state_are_einval() {
    let (host, _device) = host(ADDRESS);
    let client = Client::open(&host);
    let id = client.create(PortSpace::TCP, 1);
    let attributes =
        |state: u32| client.ask(|response| InitQpAttr { response, id, qp_state: state });
    assert_eq!(client.connect(id, 1, 0), Err(Errno::EINVAL), "no device");
    assert_eq!(client.accept(id, 1, 1, 0), Err(Errno::EINVAL));
    assert_eq!(client.send(&Disconnect { id }), Err(Errno::EINVAL));
    assert_eq!(attributes(1).err(), Some(Errno::EINVAL));
    assert_eq!(client.bind(id, ADDRESS, 4000), Ok(()));
    assert_eq!(client.bind(id, ADDRESS, 4000), Err(Errno::EINVAL), "bound already");
    assert_eq!(client.connect(id, 1, 0), Err(Errno::EINVAL), "no route");
    assert_eq!(client.send(&ResolveRoute { id, timeout_ms: 1 }), Err(Errno::EINVAL));
    let early = attributes(2).unwrap();
    assert_eq!((early.qp_attr_mask.bits(), early.qp_state), (0x39, 2), "RTR too early");
    let size = Bind { id, addr_size: 28, reserved: 0, addr: sockaddr(ADDRESS, 1) };
    assert_eq!(client.send(&size), Err(Errno::EINVAL), "another family's size");
    let query = |response| Query { response, id, option: QueryOption(9) };
    assert_eq!(client.ask(query).err(), Some(Errno::ENOSYS));
}

#[test]
fn the_descriptor_is_readable_exactly_while_an_event_waits() {
    let (host, _device) = host(ADDRESS);
    let client = Client::open(&host);
    client.set_nonblocking();
    assert_eq!(client.event().err(), Some(Errno::EAGAIN));
    assert_eq!(client.poll(PollTimeout::ZERO), PollFlags::empty(), "never writable");
    let id = client.create(PortSpace::TCP, 5);
    client.ask_for_address(id, ADDRESS, 9).unwrap();
    assert_eq!(client.poll(PollTimeout::NONE), PollFlags::POLLIN);
    assert_eq!(client.poll(PollTimeout::ZERO), PollFlags::POLLIN, "level triggered");
    assert_eq!(client.expect(EventType::ADDR_RESOLVED).uid, 5);
    assert_eq!(client.poll(PollTimeout::ZERO), PollFlags::empty());
    client.send(&ResolveRoute { id, timeout_ms: 1000 }).unwrap();
    assert_eq!(client.poll(PollTimeout::NONE), PollFlags::POLLIN);
    assert_eq!(client.destroy(id), Ok(1), "one event was fetched");
    assert_eq!(client.poll(PollTimeout::ZERO), PollFlags::empty(), "dropped with its id");
}

#[test]
fn a_connection_begins_and_ends() {
    let (host, _device) = host(ADDRESS);
    let (server, client) = (Client::open(&host), Client::open(&host));
    let listener = server.listener(4100, 8);
    let id = client.connecting(4100, 0x1111);
    let request = server.expect(EventType::CONNECT_REQUEST);
    assert_eq!((request.uid, request.conn().qp_num), (77, 0x1111));
    assert_eq!(request.conn().private_data_len, 56, "the message's field");
    server.accept(request.id, 99, 0x2222, 0).unwrap();
    let response = client.expect(EventType::CONNECT_RESPONSE);
    assert_eq!((response.conn().qp_num, response.conn().private_data_len), (0x2222, 196));
    client.accept(id, 0, 0, 0).unwrap();
    assert_eq!(server.expect(EventType::ESTABLISHED).uid, 99);
    client.send(&Disconnect { id }).unwrap();
    server.expect(EventType::DISCONNECTED);
    server.send(&Disconnect { id: request.id }).unwrap();
    assert_eq!(client.expect(EventType::DISCONNECTED).status(), 0);
    server.expect(EventType::TIMEWAIT_EXIT);
    client.expect(EventType::TIMEWAIT_EXIT);
    assert_eq!(client.connect(id, 1, 0), Err(Errno::EINVAL), "an id connects once");
    assert_eq!(server.destroy(request.id), Ok(3));
    assert_eq!(server.destroy(listener), Ok(1), "the request counts for it");
}

#[test]
fn refusals_carry_reason_and_private_data() {
    let (host, _device) = host(ADDRESS);
    let (server, client) = (Client::open(&host), Client::open(&host));
    client.connecting(4200, 1);
    assert_eq!(client.expect(EventType::REJECTED).status(), 8, "no listener");
    server.listener(4200, 8);
    client.connecting(4200, 2);
    let request = server.expect(EventType::CONNECT_REQUEST);
    let mut reject = Reject { id: request.id, private_data_len: 148, ..Reject::default() };
    reject.private_data[147] = 7;
    let other = Reject { reason: uverbs_uapi::cm::RejectReason(10), ..reject };
    assert_eq!(server.send(&other), Err(Errno::EINVAL), "a reason of the kernel's own");
    server.send(&reject).unwrap();
    let rejected = client.expect(EventType::REJECTED);
    assert_eq!((rejected.status(), rejected.conn().private_data[147]), (28, 7));
}

#[test]
fn private_data_has_the_messages_limits() {
    let (host, _device) = host(ADDRESS);
    let (server, client) = (Client::open(&host), Client::open(&host));
    server.listener(4300, 8);
    let id = client.create(PortSpace::TCP, 1);
    client.resolve(id, 4300);
    assert_eq!(client.connect(id, 1, 57), Err(Errno::EINVAL));
    assert_eq!(client.connect(id, 1, 56), Ok(()), "the id is as before");
    let request = server.expect(EventType::CONNECT_REQUEST);
    assert_eq!(server.accept(request.id, 9, 2, 197), Err(Errno::EINVAL));
    assert_eq!(client.expect(EventType::REJECTED).status(), 28, "and the peer is refused");
    assert_eq!(server.accept(request.id, 9, 2, 0), Err(Errno::EINVAL), "the id is spent");
}

#[test]
fn events_of_a_request_wait_for_its_uid() {
    let (host, _device) = host(ADDRESS);
    let (server, client) = (Client::open(&host), Client::open(&host));
    server.set_nonblocking();
    server.listener(4400, 8);
    let id = client.connecting(4400, 1);
    assert_eq!(server.poll(PollTimeout::NONE), PollFlags::POLLIN);
    let request = server.expect(EventType::CONNECT_REQUEST);
    // The client gives up. The server does not report the REJ to its program.
    client.destroy(id).unwrap();
    let probe = client.connecting(4400, 2);
    assert_eq!(server.poll(PollTimeout::NONE), PollFlags::POLLIN);
    server.expect(EventType::CONNECT_REQUEST);
    assert_eq!(server.accept(request.id, 9, 2, 0), Err(Errno::EINVAL));
    client.destroy(probe).unwrap();
}

#[test]
fn closing_a_listener_refuses_unfetched_requests() {
    let (host, _device) = host(ADDRESS);
    let (server, client) = (Client::open(&host), Client::open(&host));
    let listener = server.listener(4500, 8);
    client.connecting(4500, 1);
    assert_eq!(server.poll(PollTimeout::NONE), PollFlags::POLLIN);
    assert_eq!(server.destroy(listener), Ok(0));
    assert_eq!(client.expect(EventType::REJECTED).status(), 28);
    let fd = server.poll(PollTimeout::ZERO);
    assert_eq!(fd, PollFlags::empty());
}

#[test]
fn closing_the_file_disconnects() {
    let (host, _device) = host(ADDRESS);
    let (server, client) = (Client::open(&host), Client::open(&host));
    server.listener(4600, 8);
    let id = client.connecting(4600, 1);
    let request = server.expect(EventType::CONNECT_REQUEST);
    establish(&server, request.id, &client, id);
    drop(client);
    server.expect(EventType::DISCONNECTED);
}

#[test]
fn addresses_collide_as_in_the_kernel() {
    let (host, _device) = host(ADDRESS);
    let client = Client::open(&host);
    let id = || client.create(PortSpace::TCP, 1);
    assert_eq!(client.bind(id(), ADDRESS, 4700), Ok(()));
    assert_eq!(client.bind(id(), ADDRESS, 4700), Err(Errno::EADDRINUSE));
    assert_eq!(client.bind(id(), [0; 4], 4700), Err(Errno::EADDRNOTAVAIL));
    let udp = client.create(PortSpace::UDP, 1);
    assert_eq!(client.bind(udp, ADDRESS, 4700), Ok(()), "a space of its own");
    assert_eq!(client.bind(id(), [192, 0, 2, 9], 4800), Err(Errno::EADDRNOTAVAIL), "not ours");
    assert_eq!(client.ask_for_address(id(), [192, 0, 2, 9], 1), Err(Errno::ENETUNREACH));
}

/// To the kernel it is an IPv6 address, see `is_mapped` of the stack.
#[test]
fn an_ipv4_mapped_address_is_not_the_ipv4_address() {
    let (host, _device) = host(ADDRESS);
    let client = Client::open(&host);
    for v4 in [ADDRESS, [127, 0, 0, 1], [192, 0, 2, 9], [0; 4], [239, 1, 1, 1]] {
        let ip = std::net::Ipv4Addr::from(v4).to_ipv6_mapped();
        let addr = SockaddrStorage::new(&SockaddrIn6 {
            family: AF_INET6,
            port: 4700.into(),
            addr: ip.octets(),
            ..SockaddrIn6::default()
        });
        let id = client.create(PortSpace::TCP, 1);
        let bind = Bind { id, addr_size: 28, reserved: 0, addr };
        assert_eq!(client.send(&bind), Err(Errno::EADDRNOTAVAIL), "{ip}");
        let request = ResolveAddr { id, timeout_ms: 30, dst_size: 28, ..ResolveAddr::default() };
        let resolve = ResolveAddr { dst_addr: addr, ..request };
        assert_eq!(client.send(&resolve), Err(Errno::ENETUNREACH), "{ip}");
    }
}

#[test]
fn a_missing_neighbour_is_reported_by_an_event() {
    let (host, _device) = host_on_network(ADDRESS);
    let client = Client::open(&host);
    let id = client.create(PortSpace::TCP, 1);
    let request = ResolveAddr {
        id,
        timeout_ms: 30,
        dst_size: 16,
        dst_addr: sockaddr([127, 20, 77, 99], 1),
        ..ResolveAddr::default()
    };
    client.send(&request).unwrap();
    assert_eq!(client.expect(EventType::ADDR_ERROR).status(), -libc::ETIMEDOUT);
    client.resolve(id, 4900);
}

#[test]
fn options_have_levels_and_lengths() {
    let (host, _device) = host(ADDRESS);
    let client = Client::open(&host);
    let (tcp, udp) = (client.create(PortSpace::TCP, 1), client.create(PortSpace::UDP, 1));
    let value = [18u8; 8];
    let set = |id, level, optname, optlen| {
        let optval = value.as_ptr() as u64;
        client.send(&SetOption { optval, id, level: OptionLevel(level), optname, optlen })
    };
    assert_eq!(set(tcp, 0, 0, 1), Ok(()));
    assert_eq!(set(tcp, 0, 0, 4), Err(Errno::EINVAL));
    assert_eq!(set(tcp, 0, 3, 1), Ok(()));
    assert_eq!(set(udp, 0, 3, 1), Err(Errno::EINVAL), "RC and XRC only");
    assert_eq!(set(tcp, 0, 9, 1), Err(Errno::ENOSYS));
    assert_eq!(set(tcp, 7, 0, 1), Err(Errno::ENOSYS));
    assert_eq!(set(9, 7, 0, 1), Err(Errno::ENOENT), "the id comes first");
    assert_eq!(set(tcp, 1, 1, 7), Err(Errno::EINVAL));
}

#[test]
fn an_id_moves_with_its_events() {
    let (host, _device) = host(ADDRESS);
    let (one, two) = (Client::open(&host), Client::open(&host));
    let id = one.create(PortSpace::TCP, 3);
    one.resolve(id, 5000);
    one.connect(id, 1, 0).unwrap();
    assert_eq!(one.poll(PollTimeout::NONE), PollFlags::POLLIN, "refused");
    let migrate = |response| MigrateId { response, id, fd: one.descriptor() };
    assert_eq!(two.ask(migrate).unwrap().events_reported, 2);
    assert_eq!(one.poll(PollTimeout::ZERO), PollFlags::empty());
    two.expect(EventType::REJECTED);
    assert_eq!(one.destroy(id), Err(Errno::EINVAL));
    assert_eq!(two.destroy(id), Ok(3));
}

/// `ucma_process_join` checks address and flags before it looks the id up.
#[test]
fn flags_of_a_join_are_checked_before_its_id() {
    let (host, _device) = host(ADDRESS);
    let client = Client::open(&host);
    let addr = sockaddr([239, 1, 2, 3], 0);
    let join = |addr_size, join_flags| {
        client.ask(|response| JoinMcast { response, uid: 1, id: 9, addr_size, join_flags, addr })
    };
    assert_eq!(join(16, JoinFlags(2)).err(), Some(Errno::EINVAL));
    assert_eq!(join(15, JoinFlags::FULL_MEMBER).err(), Some(Errno::EINVAL));
    let known = [JoinFlags::FULL_MEMBER, JoinFlags::SEND_ONLY_FULL_MEMBER];
    assert_eq!(known.map(|flags| join(16, flags).err()), [Some(Errno::ENOENT); 2]);
}

#[test]
fn groups_are_joined_and_left() {
    let (host, _device) = host(ADDRESS);
    let client = Client::open(&host);
    let id = client.create(PortSpace::UDP, 1);
    client.bind(id, ADDRESS, 0).unwrap();
    let join = |join_flags| {
        client.ask(|response| JoinMcast {
            response,
            uid: 44,
            id,
            addr_size: 16,
            join_flags,
            addr: sockaddr([239, 1, 2, 3], 0),
        })
    };
    assert_eq!(join(JoinFlags(2)).err(), Some(Errno::EINVAL));
    let member = join(JoinFlags::FULL_MEMBER).unwrap().id;
    assert_eq!(member, 0, "groups have their own numbers");
    let joined = client.expect(EventType::MULTICAST_JOIN);
    assert_eq!((joined.uid, joined.id), (44, member));
    assert_eq!(joined.ud().ah_attr.grh.dgid[10..], [0xff, 0xff, 239, 1, 2, 3]);
    let leave = |response| LeaveMcast { response, id: member, reserved: 0 };
    assert_eq!(client.ask(leave).unwrap().events_reported, 1);
    assert_eq!(client.ask(leave).err(), Some(Errno::ENOENT));
    assert_eq!(client.destroy(id), Ok(1));
}

#[test]
fn a_removed_device_ends_its_ids() {
    let (host, device) = host(ADDRESS);
    let client = Client::open(&host);
    let id = client.create(PortSpace::TCP, 1);
    client.bind(id, ADDRESS, 5100).unwrap();
    device.remove();
    client.expect(EventType::DEVICE_REMOVAL);
    assert_eq!(client.send(&Listen { id, backlog: 1 }), Err(Errno::ENXIO));
    assert_eq!(client.destroy(id), Ok(1));
    let id = client.create(PortSpace::TCP, 1);
    assert_eq!(client.ask_for_address(id, ADDRESS, 1), Err(Errno::ENODEV));
}

#[test]
fn a_full_backlog_drops_requests() {
    let (host, _device) = host(ADDRESS);
    let (server, client) = (Client::open(&host), Client::open(&host));
    server.set_nonblocking();
    server.listener(5200, 1);
    client.connecting(5200, 1);
    assert_eq!(server.poll(PollTimeout::NONE), PollFlags::POLLIN);
    let second = client.connecting(5200, 2);
    // A third request, refused at once, shows that the second was handled.
    client.connecting(5201, 3);
    client.expect(EventType::REJECTED);
    assert_eq!(server.expect(EventType::CONNECT_REQUEST).conn().qp_num, 1);
    assert_eq!(server.event().err(), Some(Errno::EAGAIN), "and its sender gets no answer");
    client.destroy(second).unwrap();
}

/// Two hosts, each with a device on the machine's network of software devices, as in two processes;
/// and the devices' addresses.
fn two_hosts() -> [(RdmaCm, [u8; 4]); 2] {
    ["near", "far"].map(|name| {
        let device = SoftDevice::builder(name).build().unwrap();
        let address = device.gids().iter().find_map(|entry| entry.gid.to_ipv4()).unwrap();
        (RdmaCm::new(&[device]).unwrap(), address.octets())
    })
}

#[test]
fn two_devices_of_a_network_connect() {
    let [(near, own), (far, other)] = two_hosts();
    let (server, client) = (Client::open(&near), Client::open(&far));
    let listener = server.create(PortSpace::TCP, 77);
    // Ports at the wildcard address belong to the machine, and other tests may use them too.
    let port = 30_000 + std::process::id() as u16 % 2_000;
    server.bind(listener, [0; 4], port).unwrap();
    server.listen(listener, 8);
    let id = client.create(PortSpace::TCP, 88);
    client.resolve_at(id, own, port);
    client.connect(id, 1, 0).unwrap();
    let request = server.expect(EventType::CONNECT_REQUEST);
    let query = |response| Query { response, id: request.id, option: QueryOption::ADDR };
    let addresses = server.ask(query).unwrap();
    let peer: SockaddrIn = addresses.dst_addr.get().unwrap();
    assert_eq!(peer.addr, other);
    establish(&server, request.id, &client, id);
}

#[test]
fn link_local_addresses_connect_over_wires_that_show_ipv4_ones() {
    let hosts = ["near", "far"].map(|name| {
        let network = Network::join_apart(Link::Ethernet, Carrier::Memory).unwrap();
        let (station, waker) = (network.station(), Waker::new().unwrap());
        let builder = SoftDevice::builder(name).wire(Box::new(network), waker.into(), station);
        (RdmaCm::new(&[builder.build().unwrap()]).unwrap(), station.link_local_gid().0)
    });
    let [(near, own), (far, _)] = hosts;
    let (server, client) = (Client::open(&near), Client::open(&far));
    let address = SockaddrIn6 {
        family: AF_INET6,
        port: 5400.into(),
        addr: own,
        scope_id: 1,
        ..SockaddrIn6::default()
    };
    let (addr, size) = (SockaddrStorage::new(&address), size_of::<SockaddrIn6>() as u16);
    let listener = server.create(PortSpace::TCP, 77);
    server.send(&Bind { id: listener, addr_size: size, reserved: 0, addr }).unwrap();
    server.listen(listener, 8);
    let id = client.create(PortSpace::TCP, 88);
    let request = ResolveAddr {
        id,
        timeout_ms: 1000,
        dst_size: size,
        dst_addr: addr,
        ..ResolveAddr::default()
    };
    client.send(&request).unwrap();
    client.expect(EventType::ADDR_RESOLVED);
    client.send(&ResolveRoute { id, timeout_ms: 1000 }).unwrap();
    client.expect(EventType::ROUTE_RESOLVED);
    client.connect(id, 1, 0).unwrap();
    let request = server.expect(EventType::CONNECT_REQUEST);
    establish(&server, request.id, &client, id);
}

#[test]
fn the_loopback_address_leads_to_the_listener_of_the_port() {
    let [(near, _), (far, _)] = two_hosts();
    let (server, client) = (Client::open(&near), Client::open(&far));
    let port = 20_000 + std::process::id() as u16 % 10_000;
    for own in [[0; 4], [127, 0, 0, 1]] {
        // As in pyverbs' tests, the listener may be created after the address is resolved.
        let id = client.create(PortSpace::TCP, 88);
        client.resolve_at(id, [127, 0, 0, 1], port);
        let listener = server.create(PortSpace::TCP, 77);
        server.bind(listener, own, port).unwrap();
        server.listen(listener, 8);
        client.connect(id, 1, 0).unwrap();
        server.expect(EventType::CONNECT_REQUEST);
        client.destroy(id).unwrap();
        server.destroy(listener).unwrap();
    }
}

/// The process's first device is on a private wire of the program, and the second one on the
/// network.
#[test]
fn the_loopback_address_is_that_of_the_device_on_the_network() {
    let station = Station::new(ADDRESS.into()).unwrap();
    let on_switch = SoftDevice::builder("own")
        .wire(Box::new(NoWire), Waker::new().unwrap().into(), station)
        .build()
        .unwrap();
    let [(other, others), (_, _)] = two_hosts();
    let on_network = SoftDevice::builder("network").build().unwrap();
    let own = on_network.gids().iter().find_map(|entry| entry.gid.to_ipv4()).unwrap().octets();
    let mixed = RdmaCm::new(&[on_switch, on_network]).unwrap();
    let (mixed, other) = (Client::open(&mixed), Client::open(&other));
    let (any, loopback) = ([0; 4], [127, 0, 0, 1]);
    let port = 40_000 + std::process::id() as u16 % 10_000;
    for (server, client, station) in [(&other, &mixed, others), (&mixed, &other, own)] {
        for (at, from, to) in
            [(any, None, loopback), (loopback, Some(loopback), loopback), (any, None, station)]
        {
            let listener = server.create(PortSpace::TCP, 77);
            server.bind(listener, at, port).unwrap();
            server.listen(listener, 8);
            let id = client.create(PortSpace::TCP, 88);
            from.into_iter().for_each(|from| client.bind(id, from, 0).unwrap());
            client.resolve_at(id, to, port);
            client.connect(id, 1, 0).unwrap();
            let request = server.expect(EventType::CONNECT_REQUEST);
            establish(server, request.id, client, id);
            client.destroy(id).unwrap();
            server.expect(EventType::DISCONNECTED);
            server.destroy(request.id).unwrap();
            server.destroy(listener).unwrap();
        }
    }
}

/// A device on a private wire of the program may have the station of another process's listener.
#[test]
fn a_station_of_another_wire_hides_no_listener_of_the_network() {
    let [(other, others), (_, _)] = two_hosts();
    let on_switch = SoftDevice::builder("own")
        .wire(Box::new(NoWire), Waker::new().unwrap().into(), Station::new(others.into()).unwrap())
        .build()
        .unwrap();
    let on_network = SoftDevice::builder("network").build().unwrap();
    let mixed = RdmaCm::new(&[on_switch, on_network]).unwrap();
    let (mixed, other) = (Client::open(&mixed), Client::open(&other));
    let port = 30_000 + std::process::id() as u16 % 10_000;
    let listener = other.create(PortSpace::TCP, 77);
    other.bind(listener, [0; 4], port).unwrap();
    other.listen(listener, 8);
    let id = mixed.create(PortSpace::TCP, 88);
    mixed.resolve_at(id, [127, 0, 0, 1], port);
    mixed.connect(id, 1, 0).unwrap();
    let request = other.expect(EventType::CONNECT_REQUEST);
    establish(&other, request.id, &mixed, id);
}

/// On a private wire, no listener of the machine's network is at this address.
#[test]
fn the_loopback_address_is_the_device_itself_on_an_own_wire() {
    let [(network, _), _] = two_hosts();
    let (own, _device) = host(ADDRESS);
    let (stranger, client) = (Client::open(&network), Client::open(&own));
    let port = 10_000 + std::process::id() as u16 % 10_000;
    for client in [&stranger, &client] {
        let listener = client.create(PortSpace::TCP, 77);
        client.bind(listener, [127, 0, 0, 1], port).unwrap();
        client.listen(listener, 8);
    }
    let id = client.create(PortSpace::TCP, 88);
    client.resolve_at(id, [127, 0, 0, 1], port);
    client.connect(id, 1, 0).unwrap();
    client.expect(EventType::CONNECT_REQUEST);
}

#[test]
fn messages_of_every_length_and_type_are_survived() {
    let (host, _device) = host(ADDRESS);
    let client = Client::open(&host);
    client.set_nonblocking();
    let id = client.create(PortSpace::UDP, 1);
    for command in 0..40 {
        for fill in [0u8, 1, 0xff] {
            let bytes = [header(command, 328, 400).as_bytes(), &[fill; 328]].concat();
            if command != Cmd::CREATE_ID.0 || fill != 0 {
                let _ = client.write(&bytes);
            }
        }
    }
    assert_eq!(client.create(PortSpace::TCP, 1), id, "the zeros destroyed it");
}

/// Some programs try to fetch an event for each message, although there is none.
#[test]
fn a_command_without_a_timer_does_not_wake_the_thread() {
    let (host, _device) = host(ADDRESS);
    let client = Client::open(&host);
    client.set_nonblocking();
    assert_eq!(client.event().unwrap_err(), Errno::EAGAIN);
    assert!(!host.shared.lock().has_earlier_deadline());
}
