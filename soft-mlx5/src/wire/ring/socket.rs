//! Unix sockets by which two processes find each other, pass the memory of a ring, and wake a
//! sleeping side.
//!
//! A socket's name contains the station and is in the abstract namespace, which belongs to the
//! network namespace, as do the loopback addresses. The device that has the station holds the name
//! even if it does not listen, so no other process can receive its packets. If another user has
//! taken all names, a device has a name that only its own user can take
//! ([`private`]).

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;

use nix::errno::Errno;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    self, AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr,
    UnixCredentials,
};
use nix::unistd::geteuid;

use super::Users;
use crate::passed::{Received, receive};
use crate::wire::{Station, is_shortage, private};

/// The first bytes on a connection: the rest is in the format of this version of the ring.
const MAGIC: [u8; 8] = *b"uvring\0\x01";

/// Length of a hello: the magic number and the sender's address.
const HELLO: usize = 12;

/// The name, including the version of the format.
fn name(station: Station) -> nix::Result<UnixAddr> {
    UnixAddr::new_abstract(format!("uverbs-soft-ring-1/{station}").as_bytes())
}

fn stream() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)
}

/// Takes the station's name, without listening. `None` if such sockets cannot be created (a seccomp
/// filter may forbid them).
///
/// # Errors
/// `AddrInUse` if another process has it; a lack of descriptors or memory.
pub(in crate::wire) fn claim(station: Station) -> io::Result<Option<OwnedFd>> {
    match name(station).and_then(|name| bind_name(&name)).map_err(io::Error::from) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse || is_shortage(&error) => Err(error),
        result => Ok(result.ok()),
    }
}

/// A socket with this name, which does not listen yet.
pub(in crate::wire) fn bind_name(name: &UnixAddr) -> nix::Result<OwnedFd> {
    let socket = stream()?;
    socket::bind(socket.as_raw_fd(), name)?;
    Ok(socket)
}

/// Begins to listen on a name.
pub(super) fn listen(claimed: OwnedFd) -> io::Result<UnixListener> {
    socket::listen(&claimed, Backlog::MAXCONN)?;
    Ok(claimed.into())
}

/// Connects to a station's name. Packets can be sent before the connection is accepted.
///
/// # Errors
/// `ECONNREFUSED` if no device listens, `EAGAIN` if too many wait to be accepted.
pub(super) fn connect(to: Station) -> io::Result<OwnedFd> {
    // Tries a device of this user first, because another user may hold the name that all users
    // share.
    match connect_privately(to) {
        Some(socket) => Ok(socket),
        None => Ok(connect_to(&name(to)?)?),
    }
}

fn connect_privately(to: Station) -> Option<OwnedFd> {
    private::addresses(to).find_map(|address| connect_to(&address).ok())
}

/// Whether a device of this user has the station under a private name.
pub(in crate::wire) fn is_private(station: Station) -> bool {
    connect_privately(station).is_some()
}

fn connect_to(address: &UnixAddr) -> nix::Result<OwnedFd> {
    let socket = stream()?;
    socket::connect(socket.as_raw_fd(), address)?;
    Ok(socket)
}

/// Whether the other end may share memory with this process: both have the same user, or any user
/// may. The kernel recorded the user at connect(2) or listen(2) (`SO_PEERCRED`, unix(7)).
pub(super) fn is_trusted(socket: &OwnedFd, users: Users) -> bool {
    let same = |user: UnixCredentials| user.uid() == geteuid().as_raw();
    users == Users::Any || socket::getsockopt(socket, PeerCredentials).is_ok_and(same)
}

/// The process at the other end, as the kernel recorded it at connect(2) or listen(2), even if it
/// has ended; `None` if that is unknown. 0 means a process of a PID namespace that is not visible
/// here.
pub(super) fn process(socket: &OwnedFd) -> Option<i32> {
    socket::getsockopt(socket, PeerCredentials).ok().map(|user| user.pid())
}

/// Whether the process that had a station has ended: its name is free, or held by another process.
/// A forked child keeps the name.
pub(super) fn has_ended(station: Station, had: Option<i32>) -> bool {
    match connect(station) {
        Ok(socket) => had.zip(process(&socket)).is_some_and(|(had, has)| had != has),
        Err(error) => error.raw_os_error() == Some(libc::ECONNREFUSED),
    }
}

/// Whether a device of this user listens on the station's name.
pub(in crate::wire) fn is_own(station: Station) -> bool {
    let peer = name(station).and_then(|name| connect_to(&name));
    peer.is_ok_and(|peer| is_trusted(&peer, Users::Same))
}

/// Sends the hello: the station's address, and the file of its ring.
pub(super) fn send_hello(socket: &OwnedFd, station: Station, ring: &OwnedFd) -> io::Result<()> {
    let mut hello = [0; HELLO];
    hello[..8].copy_from_slice(&MAGIC);
    hello[8..].copy_from_slice(&station.address().octets());
    let fds = [ring.as_raw_fd()];
    let (bytes, rights) = ([IoSlice::new(&hello)], [ControlMessage::ScmRights(&fds)]);
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let sent = socket::sendmsg::<UnixAddr>(socket.as_raw_fd(), &bytes, &rights, flags, None)?;
    if sent == HELLO { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives the hello: the connecting station and its ring. `None` if it has not arrived yet.
///
/// # Errors
/// `InvalidData` for anything but a hello with one file, including the end of the stream.
pub(super) fn receive_hello(socket: &OwnedFd) -> io::Result<Option<(Station, OwnedFd)>> {
    let mut hello = [0; HELLO];
    let Received { bytes, files, .. } = match receive(socket.as_fd(), &mut hello) {
        Ok(received) => received,
        Err(Errno::EAGAIN) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let [m @ .., a, b, c, d] = hello;
    let station = Station::new([a, b, c, d].into());
    match (<[OwnedFd; 1]>::try_from(files), station) {
        (Ok([file]), Some(station)) if bytes == HELLO && m == MAGIC => Ok(Some((station, file))),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Wakes the other side. If the socket is full of such bytes, or closed, nothing more is needed.
pub(super) fn wake(socket: &OwnedFd) {
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let _ = socket::send(socket.as_raw_fd(), &[0], flags);
}

/// Takes the bytes that wake this side; returns whether the other side is still connected.
pub(super) fn drain(socket: &OwnedFd) -> bool {
    // If there are more bytes, the socket stays readable and is read again.
    let mut bytes = [0; 256];
    match socket::recv(socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
        Ok(count) => count != 0,
        Err(error) => matches!(error, Errno::EAGAIN | Errno::EINTR),
    }
}
