//! Requests that no connection manager sends.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use uverbs::cm::{AcceptOptions, Connector, EventKind, Listener, PortSpace};
use uverbs::qp::{Datagram, PostFlags};
use uverbs::qp_type::Ud;
use uverbs::{Context, op};

use crate::floods::handle_event;
use crate::long::queue_pair;
use crate::{PATIENCE, device_and_address, finished, listener, next};

/// Q_Key of QP 1 (IBTA volume 1, 3.5.3).
const QP1_QKEY: u32 = 0x8001_0000;
/// The top bit of a Q_Key selects the sender's own.
const OWN_QKEY: u32 = 0x8000_0000;
/// The service id of rdma_cm's TCP port space without the port (IBTA annex A11).
const TCP_SERVICE: u64 = 0x0000_0000_0106_0000;

/// The datagram of a request (REQ, IBTA volume 1, 12.6.5) to connect to an IPv4 address.
fn request(from: IpAddr, to: SocketAddr, path_mtu: u8) -> [u8; 256] {
    let gid = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let padded = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.to_ipv6_compatible().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let service = TCP_SERVICE | u64::from(to.port());
    let mut datagram = [0; 256];
    let mut put = |at: usize, bytes: &[u8]| datagram[at..at + bytes.len()].copy_from_slice(bytes);
    // Base version, class of connection management, its version, Send; REQ.
    put(0, &[1, 7, 2, 3]);
    put(16, &[0, 0x10]);
    // Communication id, service, queue pair, P_Key.
    put(24, &[0, 0, 0, 77]);
    put(32, &service.to_be_bytes());
    put(56, &[0, 0, 99, 0]);
    put(72, &[0xff, 0xff]);
    put(74, &[path_mtu << 4]);
    // The path: routed, so without LIDs.
    put(76, &[0xff; 4]);
    put(80, &gid(from));
    put(96, &gid(to.ip()));
    put(117, &[64]);
    // rdma_cm's own header: IPv4, the two addresses.
    put(164, &[0, 4 << 4]);
    put(168, &padded(from));
    put(184, &padded(to.ip()));
    datagram
}

/// Sends a datagram to QP 1 of the device itself.
fn send(context: &Context, datagram: &[u8]) {
    let pd = context.alloc_pd().unwrap();
    let mut cq = context.create_cq(4).build().unwrap();
    let builder = pd.create_qp::<Ud>(cq.handle(), cq.handle());
    let mut qp = builder.path(|path| path.qkey = QP1_QKEY).build().unwrap();
    qp.activate().unwrap();
    let handle = pd.create_ah(&qp.address_of(&qp.endpoint()).unwrap()).unwrap();
    let to = handle.datagram(1, OWN_QKEY);
    let slab = pd.create_slab(1, 256).unwrap();
    let mut slot = slab.take().unwrap();
    slot.write(datagram).unwrap();
    qp.post_send(op::To(Datagram(&to), op::Send), slot, PostFlags::SIGNALED).unwrap();
    finished(&mut cq);
}

/// The queue pair cannot have the request's path MTU, so the request is not accepted. This mistake
/// of the peer must not cause an error of `accept`, and the next peer is served.
#[test]
fn an_impossible_path_mtu_ends_no_call_of_accept() {
    let (context, address) = device_and_address();
    let mut listener = Listener::builder().context(&context).half_open(1).bind(address).unwrap();
    let to = listener.local_address().unwrap();
    for path_mtu in [0, 6, 15] {
        send(&context, &request(address.ip(), to, path_mtu));
        handle_event(&mut listener);
        let context = context.clone();
        let connector = Connector::new().context(&context).timeout(PATIENCE);
        let client = std::thread::spawn(move || connector.connect(to).unwrap());
        let server = listener.accept_until(Instant::now() + PATIENCE).unwrap();
        drop((client.join().unwrap(), server));
    }
}

/// The same datagram with a path MTU that is possible is a request like any other.
#[test]
fn a_handmade_request_is_accepted() {
    let (context, address) = device_and_address();
    let (channel, _listening, to) = listener(&context, address, PortSpace::Tcp);
    send(&context, &request(address.ip(), to, 3));
    let EventKind::ConnectRequest(request) = next(&channel).kind else { panic!() };
    let (mut qp, _cq) = queue_pair(&context);
    request.accept(&mut qp, &AcceptOptions::default()).unwrap();
}
