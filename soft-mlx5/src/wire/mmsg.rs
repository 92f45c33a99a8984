//! `sendmmsg` and `recvmmsg` with type of service and time to live for each datagram; segmentation
//! and reassembly by the kernel (`UDP_SEGMENT`, `UDP_GRO`); and the socket options that the
//! standard library lacks.

#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use super::RECEIVE_BATCH;
use crate::packet::rocev2::ICRC_LEN;
use crate::packet::{MAX_PACKET, Packet};

/// Most packets that one system call sends.
pub(super) const BATCH: usize = 64;

/// Time to live of a unicast datagram without a control message (`net.ipv4.ip_default_ttl`). If
/// that setting was changed, the value is sent explicitly, so only this value needs no control
/// message.
const DEFAULT_TTL: u8 = 64;

/// Packets that are sent as one message. If there are several, the kernel cuts the message into
/// datagrams, all as long as the first one; only the last one may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) packets: usize,
    pub(super) destination: SocketAddr,
    pub(super) class: u8,
    pub(super) hop_limit: u8,
}

/// The properties of a received message, without its bytes.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    source: SocketAddr,
    class: u8,
    hop_limit: u8,
    truncated: bool,
    len: usize,
    /// Length of each of its datagrams but the last. The kernel joins datagrams of one sender.
    segment: usize,
}

impl Default for Arrived {
    fn default() -> Self {
        Self {
            source: (Ipv4Addr::UNSPECIFIED, 0).into(),
            class: 0,
            hop_limit: 0,
            truncated: false,
            len: 0,
            segment: 0,
        }
    }
}

/// A received datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Datagram<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) source: SocketAddr,
    pub(super) class: u8,
    pub(super) hop_limit: u8,
    /// Whether it was longer than any packet.
    pub(super) truncated: bool,
    /// The number of datagrams of the same message before it.
    pub(super) index: usize,
}

/// Bytes of the longest packet with its CRC.
const LONGEST: usize = MAX_PACKET + ICRC_LEN;

/// The buffers of `recvmmsg`, with headers that are linked once, and the datagrams of the last call
/// that were not taken yet.
pub(super) struct Receiver {
    headers: Box<[libc::mmsghdr]>,
    vectors: Box<[libc::iovec]>,
    names: Box<[Name]>,
    controls: Box<[Control]>,
    arrived: Box<[Arrived]>,
    /// Contiguous buffers of `size` bytes each.
    buffers: Box<[u8]>,
    size: usize,
    /// The number of headers that the last call changed.
    used: usize,
    /// The message of the next datagram, and how many of its bytes were taken.
    next: usize,
    offset: usize,
    index: usize,
    #[cfg(test)]
    pub(super) calls: usize,
}

// SAFETY: the raw pointers in headers and vectors point into the other boxes of the same Receiver,
// which nothing else refers to.
unsafe impl Send for Receiver {}
// SAFETY: a shared Receiver gives no access to the pointers; its methods need a unique borrow.
unsafe impl Sync for Receiver {}

impl Receiver {
    /// Most messages that one call receives if the kernel joins datagrams.
    const JOINED: usize = 8;
    /// Bytes of a buffer for joined datagrams. Not a multiple of a page, so that the beginnings of
    /// the buffers do not compete for the same cache lines.
    const JOINED_SIZE: usize = (1 << 16) + 192;

    /// For sockets on which each message is one datagram. One call receives up to
    /// [`RECEIVE_BATCH`].
    pub(super) fn new() -> Self {
        Self::of(RECEIVE_BATCH, LONGEST)
    }

    /// For sockets on which the kernel may join datagrams, see [`join_datagrams`].
    pub(super) fn of_joined() -> Self {
        Self::of(Self::JOINED, Self::JOINED_SIZE)
    }

    fn of(messages: usize, size: usize) -> Self {
        // SAFETY: all-zero bytes are valid values of these C structs of integers and pointers.
        let (header, vector) = unsafe { (zeroed::<libc::mmsghdr>(), zeroed::<libc::iovec>()) };
        // SAFETY: as before, and every byte of a zeroed union is initialised.
        let name = unsafe { zeroed::<Name>() };
        let mut receiver = Self {
            headers: vec![header; messages].into(),
            vectors: vec![vector; messages].into(),
            names: vec![name; messages].into(),
            controls: vec![Control([0; CONTROL]); messages].into(),
            arrived: vec![Arrived::default(); messages].into(),
            buffers: vec![0; messages * size].into(),
            size,
            used: 0,
            next: 0,
            offset: 0,
            index: 0,
            #[cfg(test)]
            calls: 0,
        };
        (0..messages).for_each(|i| receiver.link(i));
        receiver
    }

    /// Whether all datagrams were taken.
    pub(super) fn is_empty(&self) -> bool {
        self.next == self.used
    }

    /// Receives waiting messages, without blocking. Datagrams not taken yet are lost.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) {
        #[cfg(test)]
        {
            self.calls += 1;
        }
        (0..self.used).for_each(|i| self.link(i));
        let (socket, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT);
        let (headers, count) = (self.headers.as_mut_ptr(), self.headers.len() as u32);
        // SAFETY: every header is linked to its own name, control and buffer (by this call or by an
        // earlier one that left it unused), with their lengths. All are borrowed uniquely and do
        // not move while in their boxes. (musl's flags are unsigned.)
        let received =
            unsafe { libc::recvmmsg(socket, headers, count, flags as _, ptr::null_mut()) };
        self.used = usize::try_from(received).unwrap_or(0);
        for i in 0..self.used {
            self.arrived[i] = describe(&self.headers[i], &self.names[i], self.size);
        }
        (self.next, self.offset, self.index) = (0, 0, 0);
    }

    /// Takes the next datagram of those that the last call received.
    pub(super) fn take(&mut self) -> Option<Datagram<'_>> {
        if self.is_empty() {
            return None;
        }
        let (message, begin, index) = (self.next, self.offset, self.index);
        let arrived = self.arrived[message];
        let end = arrived.len.min(begin + arrived.segment);
        (self.offset, self.index) = (end, index + 1);
        if end == arrived.len {
            (self.next, self.offset, self.index) = (message + 1, 0, 0);
        }
        let bytes = &self.buffers[message * self.size..][begin..end];
        let Arrived { source, class, hop_limit, .. } = arrived;
        let truncated = arrived.truncated || bytes.len() > LONGEST;
        Some(Datagram { bytes, source, class, hop_limit, truncated, index })
    }

    /// Links header `i` to its buffers. `recvmmsg` changes the lengths, so this is repeated for
    /// each received message.
    fn link(&mut self, i: usize) {
        let buffer = &mut self.buffers[i * self.size..][..self.size];
        self.vectors[i] = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: self.size };
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

/// Bytes of three control messages of at most one `int`.
const CONTROL: usize = 96;

/// Space for control messages, aligned as `cmsghdr` must be.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL]);

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

/// Sends the packets of `runs`, at most [`BATCH`] packets; returns the number of runs sent. A run
/// has at most that many packets.
///
/// # Errors
///
/// The error of the first run, if none was sent.
pub(super) fn send(socket: BorrowedFd<'_>, packets: &[Packet], runs: &[Run]) -> io::Result<usize> {
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BATCH];
    let mut slots = [const { MaybeUninit::<SendSlot>::uninit() }; BATCH];
    let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; BATCH];
    let (mut count, mut rest, mut free) = (0, packets, &mut vectors[..]);
    for (run, (header, slot)) in runs.iter().zip(headers.iter_mut().zip(&mut slots)) {
        if run.packets > free.len() || run.packets > rest.len() {
            break;
        }
        let (own, others) = rest.split_at(run.packets);
        let (vectors, left) = std::mem::take(&mut free).split_at_mut(run.packets);
        (rest, free) = (others, left);
        for (vector, packet) in vectors.iter_mut().zip(own) {
            let bytes = packet.bytes();
            let iov_base = bytes.as_ptr().cast_mut().cast();
            vector.write(libc::iovec { iov_base, iov_len: bytes.len() });
        }
        let (name, length) = Name::of(run.destination);
        let slot = slot.write(SendSlot { name, control: Control([0; CONTROL]) });
        // SAFETY: all-zero bytes are a valid value of this C struct of integers and pointers.
        let header = header.write(unsafe { zeroed() });
        header.msg_hdr.msg_name = (&raw mut slot.name).cast();
        header.msg_hdr.msg_namelen = length;
        header.msg_hdr.msg_iov = vectors.as_mut_ptr().cast();
        header.msg_hdr.msg_iovlen = vectors.len() as _;
        let segment = own.first().filter(|_| own.len() > 1).map(|packet| packet.bytes().len());
        write_control(&mut header.msg_hdr, &mut slot.control, run, segment);
        count += 1;
    }
    // SAFETY: the first `count` headers are initialised and point at slots and vectors of this
    // frame and at bytes of `packets`, which outlive the call; sendmmsg only reads them, apart from
    // the headers' msg_len.
    let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr().cast(), count, 0) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// The memory that the header of one message points at.
struct SendSlot {
    name: Name,
    control: Control,
}

/// Attaches type of service and time to live (IPv6: traffic class and hop limit) if they are not
/// the defaults, and the segment length.
fn write_control(
    header: &mut libc::msghdr,
    control: &mut Control,
    run: &Run,
    segment: Option<usize>,
) {
    let is_plain =
        run.class == 0 && run.hop_limit == DEFAULT_TTL && !run.destination.ip().is_multicast();
    let (level, class, hops) = match run.destination {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT),
    };
    let both = [(class, run.class), (hops, run.hop_limit)].map(|(kind, value)| {
        let value = i32::from(value).to_ne_bytes();
        (level, kind, value, value.len())
    });
    // The kernel reads two bytes (`__udp_cmsg_send` in net/ipv4/udp.c).
    let segment = segment.map(|len| {
        let [low, high] = (len as u16).to_ne_bytes();
        (libc::SOL_UDP, libc::UDP_SEGMENT, [low, high, 0, 0], 2)
    });
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = size_of::<Control>() as _;
    let mut used = 0;
    // SAFETY: msg_control points at 96 zeroed, aligned bytes and msg_controllen says so. Three
    // messages of four bytes at most take 3 * CMSG_SPACE(4) = 72 bytes, so that all headers and
    // their data are inside.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        let both = both.into_iter().filter(|_| !is_plain);
        for (level, kind, value, len) in both.chain(segment) {
            (*message).cmsg_level = level;
            (*message).cmsg_type = kind;
            (*message).cmsg_len = libc::CMSG_LEN(len as u32) as _;
            ptr::copy_nonoverlapping(value.as_ptr(), libc::CMSG_DATA(message), len);
            used += libc::CMSG_SPACE(len as u32) as usize;
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    header.msg_controllen = used as _;
    if used == 0 {
        header.msg_control = ptr::null_mut();
    }
}

/// The kernel's description of a message in a buffer of `size` bytes.
fn describe(message: &libc::mmsghdr, name: &Name, size: usize) -> Arrived {
    let header = &message.msg_hdr;
    let len = (message.msg_len as usize).min(size);
    let mut arrived = Arrived {
        source: name.address(),
        truncated: header.msg_flags & libc::MSG_TRUNC != 0,
        len,
        segment: len,
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
                (libc::SOL_UDP, libc::UDP_GRO) if whole => {
                    let segment = data.cast::<i32>().read_unaligned();
                    arrived.segment = usize::try_from(segment).unwrap_or(0).max(1);
                }
                _ => {}
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
    arrived
}

/// Lets the kernel join datagrams of one sender on this socket, if it can (Linux 5.0). Otherwise
/// each datagram is a separate message.
pub(super) fn join_datagrams(socket: BorrowedFd<'_>) {
    let _ = set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1);
}

/// Whether the kernel can segment messages (Linux 4.18).
pub(super) fn can_cut(socket: BorrowedFd<'_>) -> bool {
    // Length 0 leaves messages without a length of their own unsegmented.
    set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
}

/// Whether an error means that the kernel cannot segment messages on this path, or not to this
/// length: the interface computes no checksums (EIO), or its MTU is smaller (EINVAL, EMSGSIZE;
/// `udp_send_skb` in net/ipv4/udp.c).
pub(super) fn refuses_to_cut(error: &io::Error) -> bool {
    let refusals = [libc::EIO, libc::EINVAL, libc::EMSGSIZE, libc::EOPNOTSUPP];
    error.raw_os_error().is_some_and(|errno| refusals.contains(&errno))
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
    let size = request.ifr_name.len() - 1;
    for (to, byte) in request.ifr_name[..size].iter_mut().zip(name.bytes()) {
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

#[cfg(test)]
mod tests;
