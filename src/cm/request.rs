//! A peer's request for a connection, or its lookup of a datagram service.

use std::net::{IpAddr, SocketAddr};

use uverbs_mlx5::mmio::Register;
use uverbs_uapi::cm::RejectReason as Kernel;
use uverbs_uapi::cm::event::EventResp;

use super::channel::Channel;
use super::event::ece;
use super::half_open::Source;
use super::id::{Handle, Id, IdKey};
use super::params::{AcceptOptions, Reads, lookup_reply};
use super::private_data::{LookupReplyData, RejectData, received};
use super::refusal::perhaps_ended;
use crate::device::context::Context;
use crate::device::layer::Layer;
use crate::error::{Error, Result};
use crate::qp::qp_type::Ud;
use crate::qp::{Connected, Ece, QueuePair};

/// A peer's request to connect, or its lookup of a datagram service.
///
/// Dropping it refuses the peer.
#[derive(Debug)]
#[must_use = "dropping it refuses the peer"]
pub struct ConnectionRequest {
    id: Id,
    listener: IdKey,
    private_data: Vec<u8>,
    peer: Peer,
    ece: Option<Ece>,
}

/// The parameters of the peer's end. Those of a lookup are all zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peer {
    /// Its queue pair number.
    pub qpn: u32,
    /// Outstanding READs and atomics that it requests to have here.
    pub responder_reads: u8,
    /// Outstanding READs and atomics that it accepts.
    pub initiator_reads: u8,
    /// Retries after a timeout, for both ends.
    pub retry_count: u8,
    /// Retries of this end after a receiver-not-ready NAK.
    pub rnr_retry: u8,
    /// Whether it has a shared receive queue.
    pub srq: bool,
}

impl ConnectionRequest {
    pub(super) fn new(channel: &Channel, listener: IdKey, event: &EventResp) -> Self {
        let key = IdKey::new(listener.is_datagram());
        let id = Id::of(Handle::new(channel, event.id, key));
        let (private_data, peer) = if listener.is_datagram() {
            let ud = event.ud();
            (received(&ud.private_data, ud.private_data_len), Peer::default())
        } else {
            let conn = event.conn();
            let peer = Peer {
                qpn: conn.qp_num,
                responder_reads: conn.responder_resources,
                initiator_reads: conn.initiator_depth,
                retry_count: conn.retry_count,
                rnr_retry: conn.rnr_retry_count,
                srq: conn.srq != 0,
            };
            (received(&conn.private_data, conn.private_data_len), peer)
        };
        Self { id, listener, private_data, peer, ece: ece(event.ece) }
    }

    /// The id of the future connection, bound to the device that received the request.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// The listener that received it.
    pub fn listener(&self) -> IdKey {
        self.listener
    }

    /// The device that received it.
    ///
    /// # Errors
    /// As [`Id::context`].
    pub fn context(&self) -> Result<Context> {
        self.id.context()
    }

    /// The peer's address.
    ///
    /// # Errors
    /// As [`Id::peer_address`].
    pub fn peer_address(&self) -> Result<Option<SocketAddr>> {
        self.id.peer_address()
    }

    /// The peer's IP address or GID, by which a listener counts requests.
    #[doc(hidden)]
    pub fn source(&self) -> Source {
        let address = self.peer_address().ok()?;
        let ib = || self.id.peer_ib_address().ok()?.map(|address| IpAddr::from(address.gid.0));
        address.map(|address| address.ip()).or_else(ib)
    }

    /// The peer's private data, padded with zeros to 56 bytes for a connection, 180 for a lookup.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The parameters of the peer's end.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// ECE options that the peer proposes, for [`QueuePair::set_ece`].
    pub fn ece(&self) -> Option<Ece> {
        self.ece
    }

    /// Accepts the request: moves `qp` from RESET or INIT to RTS and sends the reply.
    /// [`Established`](super::EventKind::Established) follows when the peer has confirmed. The
    /// device may have to retransmit sends that are posted before that.
    ///
    /// # Errors
    /// As [`Id::qp_attributes`] and [`QueuePair::modify`]; `InvalidInput` for a lookup, and for a
    /// queue pair of another device; EINVAL or ETIMEDOUT if the peer has given up or ended. On an
    /// error the peer is refused, and the state of the queue pair is unspecified.
    #[doc(alias = "rdma_accept")]
    pub fn accept<T: Connected, L: Layer, R: Register>(
        self,
        qp: &mut QueuePair<T, L, R>,
        options: &AcceptOptions,
    ) -> Result<Id> {
        self.require(false)?;
        self.id.require_own("accept", qp.context())?;
        let asked =
            Reads { responder: self.peer.responder_reads, initiator: self.peer.initiator_reads };
        let reads = options.reads(asked, qp.context())?;
        let ready = self.id.to_rts(qp, &options.qp, Some(reads));
        let param = options.param(qp.number(), reads);
        ready.and_then(|()| self.id.accept(param, options.ece)).map_err(perhaps_ended)?;
        Ok(self.id)
    }

    /// Answers a lookup: the peer gets the queue pair's number, its Q_Key and its address. The
    /// caller may drop the returned id.
    ///
    /// # Errors
    /// `InvalidInput` for a connection request, and for a queue pair of another device; EINVAL if
    /// the peer has given up.
    #[doc(alias = "rdma_accept")]
    pub fn answer<L: Layer, R: Register>(
        self,
        qp: &QueuePair<Ud, L, R>,
        data: &LookupReplyData,
    ) -> Result<Id> {
        self.require(true)?;
        self.id.require_own("accept", qp.context())?;
        self.id.accept(lookup_reply(qp.number(), data), None)?;
        Ok(self.id)
    }

    fn require(&self, lookup: bool) -> Result<()> {
        match (lookup, self.listener.is_datagram()) {
            (true, false) => {
                Err(Error::invalid("accept", "this is a connection").cure_with("accept it"))
            }
            (false, true) => {
                Err(Error::invalid("accept", "this is a lookup").cure_with("answer it"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses the request, and sends `data` to the peer.
    ///
    /// # Errors
    /// EINVAL if the peer has given up.
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, data: &RejectData) -> Result<()> {
        self.id.reject(Kernel::CONSUMER_DEFINED, data)
    }

    /// Refuses the request because of the peer's [ECE options](ConnectionRequest::ece)
    /// ([`RejectReason::VENDOR_OPTION`](super::RejectReason::VENDOR_OPTION)).
    ///
    /// # Errors
    /// EINVAL if the peer has given up.
    #[doc(alias = "rdma_reject_ece")]
    pub fn reject_ece(self, data: &RejectData) -> Result<()> {
        self.id.reject(Kernel::VENDOR_OPTION_NOT_SUPPORTED, data)
    }

    /// The id, for a caller that changes the queue pair's states itself ([`Id::qp_attributes`]).
    /// Dropping the id refuses the peer.
    pub fn into_id(self) -> Id {
        self.id
    }
}
