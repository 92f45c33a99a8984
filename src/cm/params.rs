//! The parameters that two ends exchange when they connect.

use uverbs_uapi::cm::connect::{ConnParam, Ece as KernelEce};

use super::private_data::{LookupReplyData, PrivateData, ReplyData, RequestData};
use crate::device::context::Context;
use crate::error::Result;
use crate::qp::{AccessFlags, AckTimeout, Ece, RnrTimer};

/// Options of a connected queue pair that the two ends do not negotiate.
///
/// librdmacm sets the RNR timer to 655 ms and lets peers write; here the caller chooses both.
#[derive(Debug, Clone, Copy)]
pub struct QpOptions {
    /// What peers may do; nothing by default.
    pub access: AccessFlags,
    /// How long the peer waits when no receive is posted here; 0.64 ms by default.
    pub min_rnr_timer: RnrTimer,
    /// Local ACK timeout; the connection manager's by default, which is 1.07 s on RoCE.
    pub timeout: Option<AckTimeout>,
}

impl Default for QpOptions {
    fn default() -> Self {
        let access = AccessFlags::empty();
        Self { access, min_rnr_timer: RnrTimer::DEFAULT, timeout: None }
    }
}

/// Parameters of a connection request.
#[derive(Debug, Clone, Copy)]
pub struct ConnectOptions {
    /// Private data for the peer.
    pub private_data: RequestData,
    /// Outstanding READs and atomics of the peer; by default as many as the device allows.
    pub responder_reads: Option<u8>,
    /// Outstanding READs and atomics of this end; by default as many as the device allows.
    pub initiator_reads: Option<u8>,
    /// Retries after a timeout, 0 to 7, for both ends; 7 by default.
    pub retry_count: u8,
    /// Retries of the peer after a receiver-not-ready NAK, 0 to 7; 7 means for ever, the default.
    pub rnr_retry: u8,
    /// Passed to the peer, without effect.
    pub flow_control: bool,
    /// Tells the peer whether the queue pair has a shared receive queue.
    pub srq: bool,
    /// ECE options, from [`QueuePair::query_ece`](crate::QueuePair::query_ece).
    pub ece: Option<Ece>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            private_data: RequestData::EMPTY,
            responder_reads: None,
            initiator_reads: None,
            retry_count: 7,
            rnr_retry: 7,
            flow_control: true,
            srq: false,
            ece: None,
        }
    }
}

/// Parameters of accepting a connection.
#[derive(Debug, Clone, Copy)]
pub struct AcceptOptions {
    /// Private data for the peer.
    pub private_data: ReplyData,
    /// Limit of the peer's outstanding READs and atomics; by default its request.
    pub responder_reads: Option<u8>,
    /// Limit of this end's outstanding READs and atomics; by default the peer's offer.
    pub initiator_reads: Option<u8>,
    /// Retries of the peer after a receiver-not-ready NAK, 0 to 7; 7 means for ever, the default.
    pub rnr_retry: u8,
    /// Passed to the peer, without effect.
    pub flow_control: bool,
    /// Tells the peer whether the queue pair has a shared receive queue.
    pub srq: bool,
    /// ECE options that this end chose.
    pub ece: Option<Ece>,
    /// Options of the queue pair.
    pub qp: QpOptions,
}

impl Default for AcceptOptions {
    fn default() -> Self {
        Self {
            private_data: ReplyData::EMPTY,
            responder_reads: None,
            initiator_reads: None,
            rnr_retry: 7,
            flow_control: true,
            srq: false,
            ece: None,
            qp: QpOptions::default(),
        }
    }
}

/// Limits of outstanding READs and atomics, as responder and as initiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reads {
    pub(super) responder: u8,
    pub(super) initiator: u8,
}

impl Reads {
    fn of(context: &Context) -> Result<Self> {
        let device = context.attributes()?;
        let (responder, initiator) = (device.max_responder_reads(), device.max_initiator_reads());
        Ok(Self { responder, initiator })
    }

    fn at_most(self, responder: u8, initiator: u8) -> Self {
        let (responder, initiator) = (self.responder.min(responder), self.initiator.min(initiator));
        Self { responder, initiator }
    }
}

impl ConnectOptions {
    pub(super) fn param(&self, qpn: u32, context: &Context) -> Result<ConnParam> {
        let (responder, initiator) = (self.responder_reads, self.initiator_reads);
        let reads =
            Reads::of(context)?.at_most(responder.unwrap_or(u8::MAX), initiator.unwrap_or(u8::MAX));
        Ok(ConnParam {
            responder_resources: reads.responder,
            initiator_depth: reads.initiator,
            flow_control: self.flow_control.into(),
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry,
            srq: self.srq.into(),
            ..with_data(qpn, &self.private_data)
        })
    }
}

impl AcceptOptions {
    /// The peer's request, within the limits of this device and of these options.
    pub(super) fn reads(&self, asked: Reads, context: &Context) -> Result<Reads> {
        let (responder, initiator) = (self.responder_reads, self.initiator_reads);
        Ok(Reads::of(context)?
            .at_most(asked.responder, asked.initiator)
            .at_most(responder.unwrap_or(u8::MAX), initiator.unwrap_or(u8::MAX)))
    }

    pub(super) fn param(&self, qpn: u32, reads: Reads) -> ConnParam {
        ConnParam {
            responder_resources: reads.responder,
            initiator_depth: reads.initiator,
            flow_control: self.flow_control.into(),
            rnr_retry_count: self.rnr_retry,
            srq: self.srq.into(),
            ..with_data(qpn, &self.private_data)
        }
    }
}

/// The parameters of an answer to a lookup.
pub(super) fn lookup_reply(qpn: u32, data: &LookupReplyData) -> ConnParam {
    with_data(qpn, data)
}

pub(super) fn with_data<const N: usize>(qp_num: u32, data: &PrivateData<N>) -> ConnParam {
    let (private_data, private_data_len) = data.field();
    ConnParam { qp_num, private_data, private_data_len, valid: 1, ..ConnParam::default() }
}

pub(super) fn kernel_ece(ece: Option<Ece>) -> KernelEce {
    ece.map_or(KernelEce::default(), |ece| KernelEce {
        vendor_id: ece.vendor_id,
        attr_mod: ece.options,
    })
}
