//! `sendmmsg` and `recvmmsg` with type of service and time to live per datagram, and the socket
//! options that the standard library lacks. The only module of the wires with unsafe code.

use std::fmt;
use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use super::RECEIVE_BATCH;
use crate::packet::MAX_PACKET;
use crate::packet::rocev2::ICRC_LEN;

/// Datagrams sent by one system call at most.
pub(super) const BATCH: usize = 32;

/// Time to live of a unicast datagram without a control message (`net.ipv4.ip_default_ttl`; sent
/// explicitly if that was changed, which is why only this value skips the message).
const DEFAULT_TTL: u8 = 64;

/// One datagram to be sent.
pub(super) struct Outgoing<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) destination: SocketAddr,
    pub(super) class: u8,
    pub(super) hop_limit: u8,
}

/// What is known of a datagram that has arrived, beside its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub(super) source: SocketAddr,
    pub(super) class: u8,
    pub(super) hop_limit: u8,
    pub(super) truncated: bool,
    len: usize,
}

impl Default for Arrived {
    fn default() -> Self {
        Self {
            source: (Ipv4Addr::UNSPECIFIED, 0).into(),
            class: 0,
            hop_limit: 0,
            truncated: false,
            len: 0,
        }
    }
}

type Datagram = [u8; MAX_PACKET + ICRC_LEN];

/// Where `recvmmsg` puts datagrams, with its headers linked once. All of [`RECEIVE_BATCH`]
/// elements.
pub(super) struct Receiver {
    headers: Box<[libc::mmsghdr]>,
    vectors: Box<[libc::iovec]>,
    names: Box<[Name]>,
    controls: Box<[Control]>,
    datagrams: Box<[Datagram]>,
    /// Headers that the last call changed.
    used: usize,
}

// SAFETY: the raw pointers in headers and vectors point into the other boxes of the same Receiver,
// which nothing else refers to.
unsafe impl Send for Receiver {}
// SAFETY: a shared Receiver gives no access to the pointers; `bytes` reads plain memory that only
// `receive` changes, through a unique borrow.
unsafe impl Sync for Receiver {}

impl Receiver {
    pub(super) fn new() -> Self {
        // SAFETY: all-zero bytes are valid values of these C structs of integers and pointers.
        let (header, vector) = unsafe { (zeroed::<libc::mmsghdr>(), zeroed::<libc::iovec>()) };
        // SAFETY: as before, and every byte of a zeroed union is initialised.
        let name = unsafe { zeroed::<Name>() };
        Self {
            headers: vec![header; RECEIVE_BATCH].into(),
            vectors: vec![vector; RECEIVE_BATCH].into(),
            names: vec![name; RECEIVE_BATCH].into(),
            controls: vec![Control([0; 64]); RECEIVE_BATCH].into(),
            datagrams: vec![[0; MAX_PACKET + ICRC_LEN]; RECEIVE_BATCH].into(),
            used: RECEIVE_BATCH,
        }
    }

    /// The bytes of datagram `index` of the last [`Receiver::receive`].
    pub(super) fn bytes(&self, index: usize, arrived: &Arrived) -> &[u8] {
        &self.datagrams[index][..arrived.len]
    }

    /// Receives what is there, without waiting; says how many datagrams.
    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        arrived: &mut [Arrived; RECEIVE_BATCH],
    ) -> usize {
        (0..self.used).for_each(|i| self.link(i));
        let (socket, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT);
        let (headers, count) = (self.headers.as_mut_ptr(), RECEIVE_BATCH as u32);
        // SAFETY: every header is linked to its own name, control and datagram buffer
        // (by this call or by an earlier one that left it unused), with their lengths. All are
        // borrowed uniquely and do not move while in their boxes. (musl's flags are unsigned.)
        let received =
            unsafe { libc::recvmmsg(socket, headers, count, flags as _, ptr::null_mut()) };
        self.used = usize::try_from(received).unwrap_or(0);
        for (i, arrived) in arrived.iter_mut().take(self.used).enumerate() {
            *arrived = describe(&self.headers[i], &self.names[i]);
        }
        self.used
    }

    /// Points header `i` at its buffers. `recvmmsg` changes lengths, so this is done anew for each
    /// datagram received.
    fn link(&mut self, i: usize) {
        let datagram = &raw mut self.datagrams[i];
        self.vectors[i] = libc::iovec { iov_base: datagram.cast(), iov_len: size_of::<Datagram>() };
        let header = &mut self.headers[i].msg_hdr;
        header.msg_name = (&raw mut self.names[i]).cast();
        header.msg_namelen = size_of::<Name>() as u32;
        header.msg_iov = &raw mut self.vectors[i];
        header.msg_iovlen = 1;
        header.msg_control = (&raw mut self.controls[i]).cast();
        header.msg_controllen = size_of::<Control>() as _;
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

/// Space for two control messages of one `int`, aligned as `cmsghdr` must be.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; 64]);

const _: () = assert!(align_of::<libc::cmsghdr>() <= align_of::<Control>());

/// A socket address of either family. Both begin with the family.
#[derive(Clone, Copy)]
#[repr(C)]
union Name {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Name {
    /// The address and its length in bytes.
    fn of(address: SocketAddr) -> (Self, u32) {
        // SAFETY: all-zero bytes are a valid value of these C structs of integers.
        let mut name = unsafe { zeroed::<Self>() };
        match address {
            SocketAddr::V4(to) => {
                name.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: to.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*to.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                (name, size_of::<libc::sockaddr_in>() as u32)
            }
            SocketAddr::V6(to) => {
                name.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: to.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: to.ip().octets() },
                    sin6_scope_id: to.scope_id(),
                };
                (name, size_of::<libc::sockaddr_in6>() as u32)
            }
        }
    }

    fn address(&self) -> SocketAddr {
        // SAFETY: a Name is zeroed before an address is written, so all of its bytes are
        // initialised; any bytes are valid values of these structs of integers.
        let (v4, v6) = unsafe { (self.v4, self.v6) };
        if i32::from(v4.sin_family) == libc::AF_INET6 {
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            return SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id).into();
        }
        (Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)), u16::from_be(v4.sin_port)).into()
    }
}

/// Sends `count` datagrams, at most [`BATCH`]; says how many went out.
///
/// # Errors
/// What the first datagram met, if none went out.
pub(super) fn send<'a>(
    socket: BorrowedFd<'_>,
    count: usize,
    datagram: impl Fn(usize) -> Outgoing<'a>,
) -> io::Result<usize> {
    let count = count.min(BATCH);
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BATCH];
    let mut slots = [const { MaybeUninit::<SendSlot>::uninit() }; BATCH];
    for i in 0..count {
        let out = datagram(i);
        let (name, length) = Name::of(out.destination);
        let slot = slots[i].write(SendSlot {
            name,
            vector: libc::iovec {
                iov_base: out.bytes.as_ptr().cast_mut().cast(),
                iov_len: out.bytes.len(),
            },
            control: Control([0; 64]),
        });
        // SAFETY: all-zero bytes are a valid value of this C struct of integers and pointers.
        let header = headers[i].write(unsafe { zeroed() });
        header.msg_hdr.msg_name = (&raw mut slot.name).cast();
        header.msg_hdr.msg_namelen = length;
        header.msg_hdr.msg_iov = &raw mut slot.vector;
        header.msg_hdr.msg_iovlen = 1;
        if out.class != 0 || out.hop_limit != DEFAULT_TTL || out.destination.ip().is_multicast() {
            write_control(&mut header.msg_hdr, &mut slot.control, &out);
        }
    }
    // SAFETY: the first `count` headers are initialised and point at slots of this frame and at
    // bytes borrowed for 'a, which outlive the call; sendmmsg only reads them, apart from the
    // headers' msg_len.
    let sent =
        unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr().cast(), count as u32, 0) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// What the header of one datagram points at.
struct SendSlot {
    name: Name,
    vector: libc::iovec,
    control: Control,
}

/// Attaches type of service and time to live, which IPv6 calls traffic class and hop limit.
fn write_control(header: &mut libc::msghdr, control: &mut Control, out: &Outgoing<'_>) {
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = size_of::<Control>() as _;
    let mut used = 0;
    let (level, class, hops) = match out.destination {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT),
    };
    // SAFETY: msg_control points at 64 zeroed, aligned bytes and msg_controllen says so. Two
    // messages of one int take 2 * CMSG_SPACE(4) = 48 bytes, so that both headers and their data
    // are inside.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        for (kind, value) in [(class, out.class), (hops, out.hop_limit)] {
            (*message).cmsg_level = level;
            (*message).cmsg_type = kind;
            (*message).cmsg_len = libc::CMSG_LEN(size_of::<i32>() as u32) as _;
            libc::CMSG_DATA(message).cast::<i32>().write_unaligned(value.into());
            used += libc::CMSG_SPACE(size_of::<i32>() as u32) as usize;
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    header.msg_controllen = used as _;
}

fn describe(message: &libc::mmsghdr, name: &Name) -> Arrived {
    let header = &message.msg_hdr;
    let mut arrived = Arrived {
        source: name.address(),
        truncated: header.msg_flags & libc::MSG_TRUNC != 0,
        len: (message.msg_len as usize).min(MAX_PACKET + ICRC_LEN),
        ..Arrived::default()
    };
    // SAFETY: the kernel filled msg_control and msg_controllen; the CMSG walk stays within them.
    // IP_TOS carries one byte and the others an int (ip(7), ipv6(7)), so a first byte is always
    // there, and cmsg_len is checked before an int is read.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(header);
        while let Some(found) = control.as_ref() {
            let data = libc::CMSG_DATA(control);
            #[allow(clippy::unnecessary_cast, reason = "cmsg_len is shorter with musl")]
            let whole = found.cmsg_len as usize >= libc::CMSG_LEN(size_of::<i32>() as u32) as usize;
            match (found.cmsg_level, found.cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_TOS) => arrived.class = data.read(),
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT)
                    if whole =>
                {
                    arrived.hop_limit = data.cast::<i32>().read_unaligned() as u8;
                }
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) if whole => {
                    arrived.class = data.cast::<i32>().read_unaligned() as u8;
                }
                _ => {}
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
    arrived
}

/// Sets an `int` option of one level.
pub(super) fn set_option(
    socket: BorrowedFd<'_>,
    level: i32,
    option: i32,
    value: i32,
) -> io::Result<()> {
    set(socket.as_raw_fd(), level, option, &value)
}

/// Sends multicast through the interface with this address.
pub(super) fn set_multicast_interface(
    socket: BorrowedFd<'_>,
    interface: Ipv4Addr,
) -> io::Result<()> {
    let address = libc::in_addr { s_addr: u32::from(interface).to_be() };
    set(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &address)
}

fn set<T>(socket: RawFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: the kernel reads size_of::<T>() bytes from a live T.
    let result = unsafe {
        let value = ptr::from_ref(value).cast();
        libc::setsockopt(socket, level, option, value, size_of::<T>() as u32)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A non-blocking UDP socket that shares its address with others (`SO_REUSEADDR`).
pub(super) fn bind_shared(address: SocketAddr) -> io::Result<UdpSocket> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: socket takes three integers.
    let fd = unsafe { libc::socket(family, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fd was just opened and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    set(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1i32)?;
    let (name, length) = Name::of(address);
    // SAFETY: the kernel reads as many bytes of the name as its family has.
    let bound = unsafe { libc::bind(fd, ptr::from_ref(&name).cast(), length) };
    if bound == 0 { Ok(socket.into()) } else { Err(io::Error::last_os_error()) }
}

/// The MTU of an interface of the socket's network namespace, in bytes.
pub(super) fn interface_mtu(socket: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    // SAFETY: all-zero bytes are a valid value of this C struct of integers and a union of them.
    let mut request = unsafe { zeroed::<libc::ifreq>() };
    // The last byte stays zero: names have IFNAMSIZ - 1 bytes at most.
    let room = request.ifr_name.len() - 1;
    for (to, byte) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *to = byte as libc::c_char;
    }
    // SAFETY: SIOCGIFMTU reads the name and writes the MTU of a live ifreq.
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) };
    if asked < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel wrote this member; any bytes are a valid int.
    Ok(unsafe { request.ifr_ifru.ifru_mtu } as u32)
}
