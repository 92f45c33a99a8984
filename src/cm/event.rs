//! Events of ids.

use uverbs_uapi::cm::connect::{ConnParam, Ece as KernelEce};
use uverbs_uapi::cm::event::{EventResp, EventType, UdParam};

use super::address::address_vector;
use super::channel::Channel;
use super::id::IdKey;
use super::private_data::received;
use super::refusal::{RejectReason, Rejection, failed};
use super::request::ConnectionRequest;
use crate::device::address::{AddressVector, Gid};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::pd::ProtectionDomain;
use crate::qp::Ece;
use crate::qp::ah::{AddressHandle, DatagramAddress};

/// An event of an id. It owns its data, so it needs no acknowledgement.
#[derive(Debug)]
#[must_use = "a connection request that is dropped rejects"]
pub struct Event {
    /// The id or [`Membership`](super::Membership) of the event; for a connection request, the
    /// listener.
    pub id: IdKey,
    /// What happened.
    pub kind: EventKind,
}

/// What happened (`enum rdma_cm_event_type`).
#[derive(Debug)]
#[non_exhaustive]
pub enum EventKind {
    /// [`Id::resolve_address`](super::Id::resolve_address) succeeded.
    AddressResolved,
    /// [`Id::resolve_address`](super::Id::resolve_address) failed.
    AddressError(Error),
    /// [`Id::resolve_route`](super::Id::resolve_route) succeeded.
    RouteResolved,
    /// [`Id::resolve_route`](super::Id::resolve_route) failed.
    RouteError(Error),
    /// A peer requests a connection, or looks up a datagram service.
    ConnectRequest(ConnectionRequest),
    /// The peer accepted: [`Id::establish`](super::Id::establish) is next.
    ConnectResponse(Reply),
    /// The connection could not be established.
    ConnectError(Error),
    /// The peer does not answer, or has refused a lookup.
    Unreachable(Error),
    /// The peer refused.
    Rejected(Rejection),
    /// The connection is established; on the accepting side only. On the connecting side it is
    /// established when [`Id::establish`](super::Id::establish) returns.
    Established,
    /// A datagram service was found.
    Found(DatagramPeer),
    /// The peer has disconnected, or has answered a disconnect. `Err` if it did not answer.
    Disconnected(Result<()>),
    /// The device is being removed: drop the id and all objects on the device.
    DeviceRemoval,
    /// A multicast group was joined.
    Joined(Group),
    /// A multicast group could not be joined, or its membership is lost.
    MulticastError(Error),
    /// The local interface's hardware address changed: connect again.
    AddressChange,
    /// The time-wait is over: the queue pair may be used for another connection.
    TimewaitExit,
    /// An event that this library does not know.
    Unknown(u32),
}

/// A peer's acceptance.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reply {
    /// The peer's queue pair number.
    pub remote_qpn: u32,
    /// Outstanding READs and atomics that the peer may have here.
    pub responder_reads: u8,
    /// Outstanding READs and atomics that this side may have at the peer.
    pub initiator_reads: u8,
    /// Whether the peer has a shared receive queue.
    pub srq: bool,
    /// The peer's private data, padded with zeros to 196 bytes.
    pub private_data: Vec<u8>,
    /// ECE options that the peer chose, for [`QueuePair::set_ece`](crate::QueuePair::set_ece).
    pub ece: Option<Ece>,
}

/// A datagram service that was looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatagramPeer {
    /// Its queue pair number.
    pub qpn: u32,
    /// Its Q_Key.
    pub qkey: u32,
    /// Its address.
    pub address: AddressVector,
    /// Its private data, padded with zeros to 136 bytes.
    pub private_data: Vec<u8>,
}

/// A multicast group that was joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Group {
    /// Its GID.
    pub gid: Gid,
    /// Its LID on InfiniBand; 0 on RoCE.
    pub lid: u16,
    /// Q_Key of its datagrams.
    pub qkey: u32,
    /// Its address.
    pub address: AddressVector,
}

/// The destination queue pair number of datagrams to a group.
const GROUP_QPN: u32 = 0xff_ffff;

impl DatagramPeer {
    /// Makes an address handle for it, and the address for sends.
    ///
    /// # Errors
    /// As [`ProtectionDomain::create_ah`].
    pub fn address_handle(
        &self,
        pd: &ProtectionDomain,
    ) -> Result<(AddressHandle, DatagramAddress)> {
        let handle = pd.create_ah(&self.address)?;
        let address = handle.datagram(self.qpn, self.qkey);
        Ok((handle, address))
    }
}

impl Group {
    /// Makes an address handle for it, and the address for sends.
    ///
    /// # Errors
    /// As [`ProtectionDomain::create_ah`].
    pub fn address_handle(
        &self,
        pd: &ProtectionDomain,
    ) -> Result<(AddressHandle, DatagramAddress)> {
        let handle = pd.create_ah(&self.address)?;
        let address = handle.datagram(GROUP_QPN, self.qkey);
        Ok((handle, address))
    }
}

impl Event {
    pub(super) fn new(channel: &Channel, event: &EventResp) -> Self {
        let id = IdKey::of_event(event.uid);
        Self { id, kind: EventKind::new(channel, id, event) }
    }
}

impl EventKind {
    fn new(channel: &Channel, id: IdKey, event: &EventResp) -> Self {
        let status = event.status();
        match event.event {
            EventType::ADDR_RESOLVED => Self::AddressResolved,
            EventType::ADDR_ERROR => Self::AddressError(failed("resolve_addr", status)),
            EventType::ROUTE_RESOLVED => Self::RouteResolved,
            EventType::ROUTE_ERROR => Self::RouteError(failed("resolve_route", status)),
            EventType::CONNECT_REQUEST => {
                Self::ConnectRequest(ConnectionRequest::new(channel, id, event))
            }
            EventType::CONNECT_RESPONSE => Self::ConnectResponse(reply(event)),
            EventType::CONNECT_ERROR => Self::ConnectError(failed("connect", status)),
            EventType::UNREACHABLE if status > 0 => Self::Unreachable(not_found(status)),
            EventType::UNREACHABLE => Self::Unreachable(failed("connect", status)),
            EventType::REJECTED => Self::Rejected(rejection(event)),
            EventType::ESTABLISHED if id.is_datagram() => Self::Found(datagram_peer(&event.ud())),
            EventType::ESTABLISHED => Self::Established,
            EventType::DISCONNECTED if status == 0 => Self::Disconnected(Ok(())),
            EventType::DISCONNECTED => Self::Disconnected(Err(failed("disconnect", status))),
            EventType::DEVICE_REMOVAL => Self::DeviceRemoval,
            EventType::MULTICAST_JOIN => Self::Joined(group(&event.ud())),
            EventType::MULTICAST_ERROR => Self::MulticastError(failed("join_multicast", status)),
            EventType::ADDR_CHANGE => Self::AddressChange,
            EventType::TIMEWAIT_EXIT => Self::TimewaitExit,
            other => Self::Unknown(other.0),
        }
    }

    /// The error, if the event reports a failed step or the end of the connection.
    pub fn into_failure(self) -> Option<Error> {
        match self {
            Self::AddressError(error)
            | Self::RouteError(error)
            | Self::ConnectError(error)
            | Self::MulticastError(error)
            | Self::Unreachable(error) => Some(error),
            Self::Rejected(rejection) => Some(rejection.into()),
            Self::Disconnected(result) => Some(result.err().unwrap_or_else(|| {
                let cause = "the peer disconnected before the connection was established";
                Error::new("connect", ErrorKind::Refused, cause)
                    .cure_with("see what the peer's program says, and connect again")
            })),
            Self::DeviceRemoval => {
                let cause = "the device was removed";
                Some(Error::new("connect", ErrorKind::DeviceGone, cause))
            }
            Self::AddressChange => {
                let cause = "the hardware address of the own interface changed";
                Some(Error::new("connect", ErrorKind::Refused, cause).cure_with("connect again"))
            }
            _ => None,
        }
    }
}

/// The error of a lookup's status (IBTA volume 1, table 122).
fn not_found(status: i32) -> Error {
    let cause = match status {
        1 => "no program offers the datagram service at the port",
        2 => "the program refused the lookup",
        3 => "the service has no queue pair",
        _ => "the lookup was refused",
    };
    Error::os("lookup", nix::errno::Errno::ECONNREFUSED).because(cause)
}

fn rejection(event: &EventResp) -> Rejection {
    let conn = event.conn();
    Rejection {
        reason: RejectReason(event.raw_status as u16),
        private_data: received(&conn.private_data, conn.private_data_len),
    }
}

fn reply(event: &EventResp) -> Reply {
    let ConnParam { qp_num, responder_resources, initiator_depth, srq, .. } = event.conn();
    let conn = event.conn();
    Reply {
        remote_qpn: qp_num,
        responder_reads: responder_resources,
        initiator_reads: initiator_depth,
        srq: srq != 0,
        private_data: received(&conn.private_data, conn.private_data_len),
        ece: ece(event.ece),
    }
}

fn datagram_peer(ud: &UdParam) -> DatagramPeer {
    DatagramPeer {
        qpn: ud.qp_num,
        qkey: ud.qkey,
        address: address_vector(&ud.ah_attr),
        private_data: received(&ud.private_data, ud.private_data_len),
    }
}

fn group(ud: &UdParam) -> Group {
    Group {
        gid: Gid(ud.ah_attr.grh.dgid),
        lid: ud.ah_attr.dlid,
        qkey: ud.qkey,
        address: address_vector(&ud.ah_attr),
    }
}

/// The ECE options, if the message has any.
pub(super) fn ece(ece: KernelEce) -> Option<Ece> {
    let KernelEce { vendor_id, attr_mod } = ece;
    (vendor_id != 0).then_some(Ece { vendor_id, options: attr_mod })
}
