//! Events from the engine to its user.

use super::CmId;
use crate::mad::{Drep, Dreq, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq};
use uverbs_soft_packet::Addressing;

/// The origin of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The id that listens to the service id.
    pub listener: CmId,
    /// Addressing of the request's packet.
    pub addressing: Addressing,
    /// The attribute modifier of the request: options of enhanced connection establishment.
    pub modifier: u32,
}

/// An event of an id (`enum ib_cm_event_type`), with the whole message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request arrived, for which this new id was created.
    ReqReceived(Origin, Box<Req>),
    /// REQ was not answered.
    ReqError,
    /// REP arrived; with the attribute modifier of its header.
    RepReceived(u32, Box<Rep>),
    /// REP was not answered.
    RepError,
    /// RTU arrived: the connection is established.
    RtuReceived(Box<Rtu>),
    /// The user reported that the connection is established.
    UserEstablished,
    /// The peer disconnects.
    DreqReceived(Box<Dreq>),
    /// DREQ was not answered; the id is in timewait.
    DreqError,
    /// The peer accepted the disconnect; the id is in timewait.
    DrepReceived(Box<Drep>),
    /// Timewait is over, and the queue pair may be reused.
    TimewaitExit,
    /// The peer needs more time.
    MraReceived(Box<Mra>),
    /// The peer refuses, or gives up.
    RejReceived(Box<Rej>),
    /// A resolution request arrived, for which this new id was created.
    SidrReqReceived(Origin, Box<SidrReq>),
    /// The resolution request was answered; with the attribute modifier of the answer.
    SidrRepReceived(u32, Box<SidrRep>),
    /// The resolution request was not answered.
    SidrReqError,
}
