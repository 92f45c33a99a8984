//! What the engine tells its user.

use super::CmId;
use crate::mad::{Drep, Dreq, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq};
use uverbs_soft_packet::Addressing;

/// Where a request came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The id that listens to it.
    pub listener: CmId,
    /// Addressing of its packet.
    pub addressing: Addressing,
    /// The attribute modifier of its header: options of enhanced connection establishment.
    pub modifier: u32,
}

/// What happened to an id (`enum ib_cm_event_type`). Messages come whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request arrived, and this new id is for it.
    ReqReceived(Origin, Box<Req>),
    /// REQ was not answered.
    ReqError,
    /// REP arrived; with it its header's attribute modifier.
    RepReceived(u32, Box<Rep>),
    /// REP was not answered.
    RepError,
    /// RTU arrived: the connection is established.
    RtuReceived(Box<Rtu>),
    /// The user said that the connection is established.
    UserEstablished,
    /// The peer disconnects.
    DreqReceived(Box<Dreq>),
    /// DREQ was not answered: the id is in timewait.
    DreqError,
    /// The peer agreed to the end: the id is in timewait.
    DrepReceived(Box<Drep>),
    /// Timewait is over: the queue pair may be used again.
    TimewaitExit,
    /// The peer needs time.
    MraReceived(Box<Mra>),
    /// The peer refuses, or gives up.
    RejReceived(Box<Rej>),
    /// A resolution request arrived, and this new id is for it.
    SidrReqReceived(Origin, Box<SidrReq>),
    /// The resolution request was answered; with it the answer's attribute modifier.
    SidrRepReceived(u32, Box<SidrRep>),
    /// The resolution request was not answered.
    SidrReqError,
}
