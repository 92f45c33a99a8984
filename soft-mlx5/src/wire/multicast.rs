//! Multicast groups on the loopback network.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use super::mmsg;
use super::udp::enlarge;
use crate::packet::Gid;
use crate::packet::rocev2::UDP_PORT;

/// The IPv4 group that carries a multicast GID: the mapped address itself, else 239.0.0.0/8 with
/// the GID's last three bytes. Two GIDs may share a group, see [`Groups`].
pub(super) fn group_address(group: Gid) -> Ipv4Addr {
    let [.., b, c, d] = group.0;
    group.to_ipv4().unwrap_or(Ipv4Addr::new(239, b, c, d))
}

/// The groups that a device has joined, each with its own socket: several processes may bind the
/// same group, and the socket tells which group a packet was for.
///
/// If a device joins two GIDs that share an IPv4 group, packets of either reach both.
#[derive(Debug, Default)]
pub struct Groups {
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    group: Gid,
    socket: UdpSocket,
    count: usize,
}

impl Groups {
    /// Joins a group on the loopback interface; more joins of the same one are counted.
    ///
    /// # Errors
    /// What socket, bind or `IP_ADD_MEMBERSHIP` say (`ENOBUFS`: more than
    /// `net.ipv4.igmp_max_memberships` groups).
    pub fn join(&mut self, group: Gid) -> io::Result<()> {
        if let Some(member) = self.members.iter_mut().find(|member| member.group == group) {
            member.count += 1;
            return Ok(());
        }
        let address = group_address(group);
        let socket = mmsg::bind_shared(address, UDP_PORT)?;
        socket.join_multicast_v4(&address, &Ipv4Addr::LOCALHOST)?;
        mmsg::set_option(socket.as_fd(), libc::IP_RECVTOS, 1)?;
        mmsg::set_option(socket.as_fd(), libc::IP_RECVTTL, 1)?;
        enlarge(&socket);
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
