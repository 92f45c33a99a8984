//! Membership in multicast groups, on RoCE (`cma_iboe_join_multicast`).

use std::net::SocketAddr;

use uverbs_uapi::cm::JoinFlags;
use uverbs_uapi::cm::event::{EventType, UdParam};

use super::connect::UDP_QKEY;
use super::{Address, Cma, CmaError, CmaEvent, CmaId, CmaState, Payload};
use crate::ib_cm::Path;
use uverbs_soft_packet::{Addressing, Gid};

/// Identifies a membership of one [`Cma`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MembershipId(pub u64);

/// A group that an id has joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Membership {
    id: MembershipId,
    group: Gid,
}

/// Queue pair number of a group.
const MULTICAST_QPN: u32 = 0xff_ffff;

impl Cma {
    /// Whether an id can join a group with these flags.
    pub fn can_join_with(flags: JoinFlags) -> bool {
        [JoinFlags::FULL_MEMBER, JoinFlags::SEND_ONLY_FULL_MEMBER].contains(&flags)
    }

    /// Joins a group; MULTICAST_JOIN follows, with the address vector.
    ///
    /// # Errors
    /// EINVAL unless the id is UD, has a device and is bound or resolved, and for a zero address;
    /// ENOTSUPP (524) for an IPv6 group. On RoCE, also ENOTSUPP for an InfiniBand group, and ENODEV
    /// for an id with an InfiniBand address.
    pub fn join(
        &mut self,
        id: CmaId,
        group: Address,
        flags: JoinFlags,
    ) -> Result<MembershipId, CmaError> {
        let is_known = Self::can_join_with(flags);
        let record = self.id(id)?;
        let is_ready = matches!(record.state, CmaState::AddrBound | CmaState::AddrResolved);
        let at = record
            .at
            .filter(|_| is_known && is_ready && record.is_ud())
            .ok_or(CmaError::INVALID)?;
        let gid = self.group_gid(id, &group)?;
        let membership = MembershipId(self.next_membership);
        self.next_membership += 1;
        let record = self.id_mut(id)?;
        record.choose_qkey(0)?;
        record.memberships.push(Membership { id: membership, group: gid });
        let tclass = record.settings.tos.unwrap_or(0);
        let addressing = Addressing { traffic_class: tclass, ..Addressing::roce(at.gid, gid) };
        let path = Path { addressing, ..Path::default() };
        let ud = UdParam {
            qp_num: MULTICAST_QPN,
            qkey: UDP_QKEY,
            ah_attr: self.device_of(id)?.ah_attr(&path),
            ..UdParam::default()
        };
        let event = CmaEvent::new(id, EventType::MULTICAST_JOIN);
        let payload = Payload::Ud(Box::new(ud));
        self.events.push_back(CmaEvent { membership: Some(membership), payload, ..event });
        Ok(membership)
    }

    /// The MGID of a group. On RoCE v2 only IPv4 groups exist, and joining one needs a network
    /// device, which an InfiniBand address does not identify (`cma_iboe_join_multicast`).
    fn group_gid(&self, id: CmaId, group: &Address) -> Result<Gid, CmaError> {
        let infiniband = self.device_of(id)?.info.infiniband;
        match group {
            Address::Ip(ip) if ip.ip().is_unspecified() => Err(CmaError::INVALID),
            Address::Ib(ib) if ib.addr == [0; 16] => Err(CmaError::INVALID),
            _ if self.lacks_net_device(id)? => Err(CmaError::NO_DEVICE),
            Address::Ip(SocketAddr::V4(v4)) => Ok(Gid::from_ipv4(*v4.ip())),
            Address::Ib(ib) if infiniband => Ok(Gid(ib.addr)),
            Address::Ip(SocketAddr::V6(_)) | Address::Ib(_) => Err(CmaError::NOT_SUPPORTED),
        }
    }

    /// Leaves a group. Pending events of the membership are dropped.
    pub fn leave(&mut self, id: CmaId, membership: MembershipId) {
        if let Ok(entry) = self.id_mut(id) {
            entry.memberships.retain(|member| member.id != membership);
        }
        self.events.retain(|event| event.membership != Some(membership));
    }

    /// Groups that an id is a member of.
    pub fn groups(&self, id: CmaId) -> Vec<Gid> {
        let members = self.ids.get(&id).map(|id| id.memberships.as_slice()).unwrap_or_default();
        members.iter().map(|member| member.group).collect()
    }
}
