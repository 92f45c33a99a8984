//! The multicast groups that a device has joined.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use super::mmsg;
use super::udp::enlarge;
use crate::packet::Gid;
use crate::packet::rocev2::UDP_PORT;

/// The IPv4 group that carries a multicast GID: the mapped address itself, otherwise an address of
/// 239.0.0.0/8 with the GID's last three bytes. Two GIDs may share a group, see [`Groups`].
pub(super) fn group_address(group: Gid) -> Ipv4Addr {
    let [.., b, c, d] = group.0;
    group.to_ipv4().unwrap_or(Ipv4Addr::new(239, b, c, d))
}

/// The interface on which groups are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupInterface {
    /// The interface with this IPv4 address. Groups are IPv4 groups, see [`group_address`].
    V4(Ipv4Addr),
    /// The interface with this index. Groups are IPv6 groups.
    V6(u32),
}

impl GroupInterface {
    /// The address to which packets for a group are sent; `None` for an IPv4 group on an IPv6
    /// interface.
    pub(super) fn group(self, group: Gid) -> Option<SocketAddr> {
        match self {
            Self::V4(_) => Some((group_address(group), UDP_PORT).into()),
            Self::V6(_) if group.to_ipv4().is_some() => None,
            Self::V6(index) => {
                Some(SocketAddrV6::new(Ipv6Addr::from(group.0), UDP_PORT, 0, index).into())
            }
        }
    }

    /// A socket that receives a group only on this interface.
    fn join(self, group: Gid) -> io::Result<UdpSocket> {
        let address = self.group(group).ok_or(io::ErrorKind::InvalidInput)?;
        let socket = mmsg::bind_shared(address)?;
        let set = |level, option, value| mmsg::set_option(socket.as_fd(), level, option, value);
        match (self, address.ip()) {
            (Self::V4(own), IpAddr::V4(group)) => {
                set(libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0)?;
                socket.join_multicast_v4(&group, &own)?;
            }
            (Self::V6(index), IpAddr::V6(group)) => {
                socket.join_multicast_v6(&group, index)?;
            }
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        }
        receive_headers(&socket)?;
        enlarge(&socket);
        Ok(socket)
    }
}

/// Makes a socket report type of service and time to live of received datagrams.
pub(super) fn receive_headers(socket: &UdpSocket) -> io::Result<()> {
    let set = |level, option| mmsg::set_option(socket.as_fd(), level, option, 1);
    if socket.local_addr()?.is_ipv4() {
        set(libc::IPPROTO_IP, libc::IP_RECVTOS)?;
        return set(libc::IPPROTO_IP, libc::IP_RECVTTL);
    }
    // RoCE v2 over IPv6 usually has no UDP checksum; its CRC covers the same bytes.
    set(libc::SOL_UDP, UDP_NO_CHECK6_RX)?;
    set(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS)?;
    set(libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT)
}

/// `UDP_NO_CHECK6_RX` of linux/udp.h.
const UDP_NO_CHECK6_RX: i32 = 102;

/// The groups that a device has joined, each with its own socket. Several processes may bind the
/// same group, and the socket identifies the group of a packet.
///
/// If a device joins two GIDs that share an IPv4 group, it receives packets of one for both.
#[derive(Debug)]
pub struct Groups {
    interface: GroupInterface,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    group: Gid,
    socket: UdpSocket,
    count: usize,
}

impl Groups {
    /// No groups yet.
    pub(super) fn on(interface: GroupInterface) -> Self {
        Self { interface, members: Vec::new() }
    }

    /// Joins a group. Joins of the same group are counted.
    ///
    /// # Errors
    /// Errors of socket, bind or `IP_ADD_MEMBERSHIP` (`ENOBUFS`: more than
    /// `net.ipv4.igmp_max_memberships` groups); `InvalidInput` for an IPv4 group of a device with
    /// an IPv6 address.
    pub fn join(&mut self, group: Gid) -> io::Result<()> {
        if let Some(member) = self.members.iter_mut().find(|member| member.group == group) {
            member.count += 1;
            return Ok(());
        }
        let socket = self.interface.join(group)?;
        self.members.push(Member { group, socket, count: 1 });
        Ok(())
    }

    /// Undoes one join.
    pub fn leave(&mut self, group: Gid) {
        let Some(at) = self.members.iter().position(|member| member.group == group) else {
            return;
        };
        self.members[at].count -= 1;
        if self.members[at].count == 0 {
            self.members.swap_remove(at);
        }
    }

    /// How many groups there are.
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// Socket and GID of one of them.
    pub(super) fn get(&self, index: usize) -> (BorrowedFd<'_>, Gid) {
        let member = &self.members[index];
        (member.socket.as_fd(), member.group)
    }
}
