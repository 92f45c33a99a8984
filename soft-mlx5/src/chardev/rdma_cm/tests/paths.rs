//! Paths that a program queries and sets, and groups, on RoCE.

use nix::errno::Errno;
use uverbs_uapi::cm::address::{AF_IB, Bind, Query, ResolveAddr, SockaddrIb, SockaddrStorage};
use uverbs_uapi::cm::event::EventType;
use uverbs_uapi::cm::id::SetOption;
use uverbs_uapi::cm::multicast::JoinMcast;
use uverbs_uapi::cm::path::{PathFlags, PathRecData, QueryPathResp};
use uverbs_uapi::cm::{Cmd, IbOption, JoinFlags, OptionLevel, PortSpace, QueryOption};
use zerocopy::IntoBytes;

use super::super::CmFile;
use super::rules::{ADDRESS, header};
use super::{Client, host};

/// `ENOTSUPP`, which C's errno does not have.
const NOT_SUPPORTED: i32 = 524;

const HEAD: usize = size_of::<QueryPathResp>();
const PATH: usize = size_of::<PathRecData>();

/// The device's GID of its IPv4 address, with a port of a port space.
fn ib_address(space: PortSpace, port: u16) -> SockaddrStorage {
    let [a, b, c, d] = ADDRESS;
    SockaddrStorage::new(&SockaddrIb {
        family: AF_IB,
        pkey: 0xffff.into(),
        addr: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d],
        sid: (u64::from(space.0) << 16 | u64::from(port)).into(),
        sid_mask: u64::MAX.into(),
        ..SockaddrIb::default()
    })
}

/// An id that has resolved an InfiniBand address of the device.
fn resolve_ib(client: &Client, space: PortSpace) -> u32 {
    let id = client.create(space, 1);
    let dst_addr = ib_address(space, 6001);
    let request = ResolveAddr { id, timeout_ms: 1000, dst_size: 48, ..ResolveAddr::default() };
    client.send(&ResolveAddr { dst_addr, ..request }).unwrap();
    client.expect(EventType::ADDR_RESOLVED);
    id
}

/// The number of paths that a query of this many response bytes reports, and whether one was
/// written.
fn query_path(client: &Client, id: u32, output: usize) -> (u32, bool) {
    let mut answer = [0u8; HEAD + 2 * PATH];
    let response = answer.as_mut_ptr() as u64;
    let body = Query { response, id, option: QueryOption::PATH };
    let head = header(Cmd::QUERY.0, size_of::<Query>() as u16, output as u16);
    client.write(&[head.as_bytes(), body.as_bytes()].concat()).unwrap();
    let paths = u32::from_ne_bytes([0, 1, 2, 3].map(|at| answer[at]));
    (paths, answer[HEAD..].iter().any(|byte| *byte != 0))
}

/// The kernel counts all paths, and writes one only if more than its bytes are left
/// (`ucma_query_path`).
#[test]
fn all_paths_are_counted_whatever_the_response_holds() {
    let (host, _device) = host(ADDRESS);
    let client = Client::open(&host);
    let id = client.create(PortSpace::TCP, 1);
    assert_eq!(query_path(&client, id, HEAD + 2 * PATH), (0, false), "none yet");
    client.ask_for_address(id, ADDRESS, 1).unwrap();
    client.expect(EventType::ADDR_RESOLVED);
    client.ask_for_route(id);
    client.expect(EventType::ROUTE_RESOLVED);
    assert_eq!(query_path(&client, id, HEAD), (1, false));
    assert_eq!(query_path(&client, id, HEAD + PATH), (1, false));
    assert_eq!(query_path(&client, id, HEAD + PATH + 1), (1, true));
}

/// A GID of a RoCE port belongs to an IP address: the kernel binds no InfiniBand address to the
/// port (`cma_validate_port`).
#[test]
fn an_infiniband_address_is_not_bound_on_roce() {
    let (host, _device) = host(ADDRESS);
    let client = Client::open(&host);
    let id = client.create(PortSpace::TCP, 1);
    let addr = ib_address(PortSpace::TCP, 6000);
    let bind = Bind { id, addr_size: 48, reserved: 0, addr };
    assert_eq!(client.send(&bind), Err(Errno::ENODEV));
    let request =
        ResolveAddr { id, timeout_ms: 1000, src_size: 48, dst_size: 48, ..Default::default() };
    let (src_addr, dst_addr) = (addr, ib_address(PortSpace::TCP, 6001));
    assert_eq!(client.send(&ResolveAddr { src_addr, dst_addr, ..request }), Err(Errno::ENODEV));
    assert_eq!(client.bind(id, ADDRESS, 6000), Ok(()), "it is still idle");
}

/// Between InfiniBand addresses the kernel knows no network device, which it needs for a path over
/// Ethernet (`rdma_set_ib_path`).
#[test]
fn a_path_between_infiniband_addresses_is_enodev_on_roce() {
    let (host, _device) = host(ADDRESS);
    let client = Client::open(&host);
    let id = resolve_ib(&client, PortSpace::TCP);
    let path = PathRecData { flags: PathFlags::USABLE, reserved: 0, path_rec: [0; 64] };
    let (optval, optlen) = (path.as_bytes().as_ptr() as u64, PATH as u32);
    let level = OptionLevel::IB;
    let option = SetOption { optval, id, level, optname: IbOption::PATH.0, optlen };
    assert_eq!(client.send(&option), Err(Errno::ENODEV));
    client.set_nonblocking();
    assert_eq!(client.event().err(), Some(Errno::EAGAIN), "no event follows");
}

/// On RoCE v2 only IPv4 groups exist (`cma_iboe_join_multicast`).
#[test]
fn an_infiniband_group_is_not_joined_on_roce() {
    let (host, _device) = host(ADDRESS);
    let client = Client::open(&host);
    let ip = client.create(PortSpace::UDP, 1);
    client.bind(ip, ADDRESS, 0).unwrap();
    let infiniband = resolve_ib(&client, PortSpace::UDP);
    let addr = ib_address(PortSpace::UDP, 0);
    let join = |id| {
        let (addr_size, join_flags) = (48, JoinFlags::FULL_MEMBER);
        client.ask(|response| JoinMcast { response, uid: 1, id, addr_size, join_flags, addr })
    };
    let errno = |result: Result<_, Errno>| result.map(drop).map_err(CmFile::errno_number);
    assert_eq!(errno(join(ip)), Err(NOT_SUPPORTED));
    assert_eq!(errno(join(infiniband)), Err(libc::ENODEV), "no network device is known");
}
