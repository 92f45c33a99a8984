//! The execution engine of a software ConnectX: objects, WQE execution and transports as a state
//! machine.
//!
//! A [`Core`] does no I/O, has no threads and no clock. A front end creates objects with it and
//! tells it when a doorbell rang; a runtime calls [`Core::step`] with a monotonic time in
//! nanoseconds, carries packets between [`Core::take_packet`] and [`Core::receive`], and passes on
//! the events from [`Core::take_event`].
//!
//! ```
//! use std::sync::Arc;
//! use uverbs_soft_adapter::core::{Core, CoreConfig, CqParams, CqRing, CqeSize, Moderation};
//! use uverbs_soft_adapter::memory::{BufferMemory, PageMap};
//!
//! let memory = Arc::new(BufferMemory::new(0x10_0000, 1 << 16));
//! let mut core = Core::new(CoreConfig::default(), memory);
//! let pd = core.create_pd()?;
//! let cq = core.create_cq(CqParams {
//!     ring: CqRing { buffer: PageMap::linear(0x10_0000), log_entries: 4, cqe_size: CqeSize::B64 },
//!     doorbell_record: 0x10_8000,
//!     ignore_overrun: false,
//!     moderation: Moderation::default(),
//! })?;
//! assert!(!core.step(0, 64).did_work);
//! core.destroy_cq(cq)?;
//! core.destroy_pd(pd)?;
//! # Ok::<(), uverbs_soft_adapter::core::CoreError>(())
//! ```
//!
//! Everything that the host writes (rings, doorbell records) and everything that arrives from a
//! wire is untrusted: it may cause error completions, events or dropped packets, but not a panic.

#![forbid(unsafe_code)]

mod compression;
mod config;
mod cq;
mod engine;
mod env;
mod error;
mod ethernet;
mod event;
mod flow;
mod flow_table;
mod frame;
mod ids;
mod management;
mod mkey;
mod multicast;
mod objects;
mod qp;
mod rss;
mod srq;
mod table;
mod tags;
mod timer;

#[cfg(test)]
mod tests;

pub use compression::MAX_COMPRESSED;
pub use config::{CoreConfig, Limits, LinkLayer, MAX_TSO, Mtu};
pub use cq::{Armed, CqInfo, CqModify, CqParams, CqRing, CqeSize, LOG_MAX_CQ, Moderation, Stamps};
pub use error::CoreError;
pub use ethernet::FrameTables;
pub use event::{AsyncKind, Event, EventObject};
pub use flow::{FlowFields, FlowHits, FlowId, FlowRule};
pub use frame::Layout as FrameLayout;
pub use ids::{Cqn, Mkey, ObjectId, ObjectKind, Pdn, Qpn, Srqn, Xrcdn};
pub use management::{DATAGRAM_LEN, Datagram};
pub use mkey::{ANY_QP, Access, KlmEntry, MkeyParams, StridedEntry, Translation};
pub use qp::{
    AddressPath, MAX_RENDEZVOUS, MigrationState, QpAttributes, QpInfo, QpParams, QpState, QpType,
    ReceiveRing, ReceiveSource, RemoteRights, ScatterToCqe, SendRing, Steered, Striding,
};
pub(crate) use rss::place;
pub use rss::{RSS_KEY, RssHash, Spread};
pub use srq::{SrqInfo, SrqOrder, SrqParams, XrcSrqParams};
pub use tags::{TagCounts, TagParams};

use std::ops::Range;
use std::sync::Arc;

use crate::memory::HostMemory;
use crate::packet::{Gid, Packet};
use crate::prng::RandomSource;
use env::Env;
use qp::{MULTICAST_QPN, Qp};
use table::RandomTable;

/// What a step did, and when the next one is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The step executed, sent or delivered something.
    pub did_work: bool,
    /// The budget ran out, so work is left.
    pub more: bool,
    /// The earliest deadline, in the time of [`Core::step`]. A step at that time may find nothing
    /// to do, because deadlines move.
    pub next_wake: Option<u64>,
}

/// What [`Core::run_due`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Something was due.
    pub did_work: bool,
    /// The answer to a request is late. The request has not been retransmitted yet.
    pub is_answer_late: bool,
}

/// How many objects of each kind there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Protection domains.
    pub pds: usize,
    /// XRC domains.
    pub xrcds: usize,
    /// Memory keys.
    pub mkeys: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Queue pairs.
    pub qps: usize,
    /// Shared receive queues.
    pub srqs: usize,
    /// Ranges of QP numbers that are reserved.
    pub reserved: usize,
}

/// Transport statistics since the device was created. The counters wrap around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets sent, including those to this port.
    pub sent: u64,
    /// Packets that arrived, including those from this port.
    pub received: u64,
    /// Bytes of the packets sent, without the link's headers.
    pub sent_bytes: u64,
    /// Bytes of the packets that arrived, without the link's headers.
    pub received_bytes: u64,
    /// Packets that were malformed or that no QP accepted.
    pub dropped: u64,
    /// Times that the acknowledgement timer expired.
    pub timeouts: u64,
    /// Requests and responses after a gap in the PSNs, because an earlier one was lost.
    pub out_of_sequence: u64,
    /// Requests that the responder had executed before.
    pub duplicates: u64,
    /// RNR NAKs sent.
    pub rnr_naks: u64,
    /// Messages, datagrams and frames for which no receive was posted (`out_of_buffer`).
    pub out_of_buffer: u64,
    /// Datagrams dropped: no receive was posted, or the Q_Key was wrong.
    pub datagrams_lost: u64,
    /// Datagrams with a wrong Q_Key.
    pub qkey_violations: u64,
    /// Messages and frames that were longer than their receive (`resp_local_length_error`).
    pub receives_too_short: u64,
}

/// The engine.
#[derive(Debug)]
pub struct Core {
    qps: RandomTable<Box<Qp>>,
    /// The QPs that serve as QP 0 and QP 1 of the port.
    special: [Option<Qpn>; 2],
    env: Env,
}

impl Core {
    /// A device without objects.
    pub fn new(config: CoreConfig, memory: Arc<dyn HostMemory>) -> Self {
        let config = config.within_bounds();
        let mut random = RandomSource::new(config.seed);
        let qps = RandomTable::new(Self::QPNS, config.limits.qps, random.split());
        Self { qps, special: [None; 2], env: Env::new(config, memory, random) }
    }

    /// InfiniBand reserves 0 and 1. The other small numbers are left out, because a program that
    /// uses one of them most likely has a defect. The number after the range is for multicast.
    const QPNS: Range<u32> = 0x40..MULTICAST_QPN;

    /// The device's properties.
    pub fn config(&self) -> &CoreConfig {
        &self.env.config
    }

    /// How many objects there are.
    pub fn counts(&self) -> Counts {
        Counts {
            pds: self.env.pds.len(),
            xrcds: self.env.xrcds.len(),
            mkeys: self.env.mkeys.len(),
            cqs: self.env.cqs.len(),
            qps: self.qps.len(),
            srqs: self.env.srqs.len(),
            reserved: self.qps.reserved(),
        }
    }

    /// Transport statistics.
    pub fn counters(&self) -> Counters {
        self.env.counters
    }

    /// Sets an entry of the GID table, growing it; a zero GID makes it unused. Raises no event.
    pub fn set_gid(&mut self, index: u8, gid: Gid) {
        let gids = &mut self.env.config.gids;
        if gids.len() <= index as usize {
            gids.resize(index as usize + 1, Gid::default());
        }
        gids[index as usize] = gid;
    }

    /// The next packet for the wire. Give its buffer back with [`Core::recycle`].
    pub fn take_packet(&mut self) -> Option<Packet> {
        self.env.outgoing.pop_front()
    }

    /// An empty packet from the core's pool, for a wire to fill.
    pub fn empty_packet(&mut self) -> Packet {
        self.env.pool.take()
    }

    /// Gives a packet's buffer back.
    pub fn recycle(&mut self, packet: Packet) {
        self.env.pool.give(packet);
    }

    /// The next event for the host.
    pub fn take_event(&mut self) -> Option<Event> {
        let event = self.env.events.pop_front()?;
        if let Event::Completion { cqn } = event {
            let _ = self.cq_mut(cqn).map(cq::Cq::announce);
        }
        Some(event)
    }

    /// Raises an asynchronous event as if its cause had occurred. An event that means an error
    /// state (of a CQ, an SRQ or a QP) also puts the object into that state.
    pub fn inject_event(&mut self, kind: AsyncKind, object: EventObject) -> Result<(), CoreError> {
        match (kind, object) {
            (AsyncKind::CqError, EventObject::Cq(cqn)) => {
                self.cq_mut(cqn)?.set_error();
            }
            (AsyncKind::SrqError, EventObject::Srq(srqn)) => self.srq_mut(srqn)?.in_error = true,
            (
                AsyncKind::QpFatal | AsyncKind::QpRequestError | AsyncKind::QpAccessError,
                EventObject::Qp(qpn),
            ) => {
                self.modify_qp(qpn, QpState::Error, &QpAttributes::default())?;
            }
            _ => {}
        }
        self.env.raise(kind, object);
        Ok(())
    }
}
