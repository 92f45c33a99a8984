//! The device without its QPs: the state that a running QP uses.

use std::collections::VecDeque;
use std::sync::Arc;

use super::cq::{Completion, Cq, Posted};
use super::flow::Flows;
use super::ids::ObjectId;
use super::management::Management;
use super::mkey::Mkeys;
use super::multicast::Groups;
use super::srq::Srq;
use super::table::Table;
use super::timer::{Owner, Timers};
use super::{
    AsyncKind, CoreConfig, CoreError, Counters, Cqn, Event, EventObject, FrameTables, LinkLayer,
    ObjectKind, Qpn,
};
use crate::memory::HostMemory;
use crate::packet::{Addressing, Gid, Packet, PacketPool};
use crate::prng::RandomSource;

/// An object that only counts its users.
#[derive(Debug, Default)]
pub(super) struct Counted {
    pub(super) users: u32,
}

/// The device without its QPs.
#[derive(Debug)]
pub(super) struct Env {
    pub(super) config: CoreConfig,
    pub(super) memory: Arc<dyn HostMemory>,
    pub(super) mkeys: Mkeys,
    pub(super) pds: Table<Counted>,
    pub(super) xrcds: Table<Counted>,
    pub(super) cqs: Table<Cq>,
    /// CQs that hold completions back to compress them.
    pub(super) holding: Vec<Cqn>,
    pub(super) srqs: Table<Srq>,
    pub(super) groups: Groups,
    pub(super) flows: Flows,
    /// The flow tables to which rules can lead.
    pub(super) tables: Option<Arc<dyn FrameTables>>,
    pub(super) timers: Timers,
    pub(super) pool: PacketPool,
    pub(super) outgoing: VecDeque<Packet>,
    pub(super) loopback: VecDeque<Packet>,
    /// Frames that wait for the front end.
    pub(super) frames: VecDeque<Vec<u8>>,
    pub(super) events: VecDeque<Event>,
    /// QPs with something to do, each at most once.
    pub(super) ready: VecDeque<Qpn>,
    /// QPs in error, in which receives may be posted without a doorbell.
    pub(super) errored: Vec<Qpn>,
    /// The delay until the next check of QPs in error, in nanoseconds; `None` while none is due.
    pub(super) error_watch: Option<u64>,
    pub(super) counters: Counters,
    /// The source of DC session numbers, which other hosts cannot guess.
    pub(super) connections: RandomSource,
    /// The port for management datagrams, when no queue pair serves as QP1.
    pub(super) management: Management,
    /// The time of the call that is running.
    pub(super) now: u64,
}

impl Env {
    pub(super) fn new(
        config: CoreConfig,
        memory: Arc<dyn HostMemory>,
        random: RandomSource,
    ) -> Self {
        let limits = config.limits;
        // A seed different from that of the other numbers.
        let connections = config.seed.map(|seed| !seed);
        Self {
            mkeys: Mkeys::new(limits.mkeys, random),
            pds: Table::new(1, limits.pds),
            xrcds: Table::new(1, limits.xrcds),
            cqs: Table::new(1, limits.cqs),
            holding: Vec::new(),
            srqs: Table::new(1, limits.srqs),
            groups: Groups::new(limits.multicast_members),
            flows: Flows::default(),
            tables: None,
            config,
            memory,
            timers: Timers::default(),
            pool: PacketPool::default(),
            outgoing: VecDeque::new(),
            loopback: VecDeque::new(),
            frames: VecDeque::new(),
            events: VecDeque::new(),
            ready: VecDeque::new(),
            errored: Vec::new(),
            error_watch: None,
            counters: Counters::default(),
            connections: RandomSource::new(connections),
            management: Management::default(),
            now: 0,
        }
    }

    pub(super) fn raise(&mut self, kind: AsyncKind, object: EventObject) {
        self.events.push_back(Event::Async { kind, object });
    }

    /// Writes a CQE; `false` if the CQ is in error, so that the completion is lost.
    pub(super) fn complete(&mut self, cqn: Cqn, done: Completion<'_>) -> bool {
        let Some(cq) = self.cqs.get_mut(cqn.0) else { return false };
        let posted = cq.post(&*self.memory, self.now, done);
        if cq.is_holding() && self.holding.last() != Some(&cqn) {
            self.holding.push(cqn);
        }
        self.follow_up(cqn, posted)
    }

    /// Writes the completions that CQs hold back.
    pub(super) fn flush_completions(&mut self) {
        while let Some(cqn) = self.holding.pop() {
            if let Some(cq) = self.cqs.get_mut(cqn.0) {
                let posted = cq.flush(&*self.memory, self.now);
                self.follow_up(cqn, posted);
            }
        }
    }

    /// Raises the events and sets the timers that follow from a change of a CQ. Returns `false` if
    /// the CQ is in error.
    pub(super) fn follow_up(&mut self, cqn: Cqn, posted: Posted) -> bool {
        let Some(cq) = self.cqs.get(cqn.0) else { return false };
        match posted {
            Posted::NoEvent => {}
            Posted::Event => self.events.push_back(cq.completion_event()),
            Posted::Later => {
                if let Some(at) = cq.deadline {
                    self.timers.add(at, Owner::Cq(cqn));
                }
            }
            Posted::Failed => self.events.push_back(cq.error_event()),
            Posted::Lost => {}
        }
        !matches!(posted, Posted::Failed | Posted::Lost)
    }

    /// Nanoseconds between two checks for receives posted to QPs in error: at first, and after a
    /// long time without any. Posting a receive rings no doorbell, so the device must check.
    pub(super) const ERROR_WATCH: std::ops::RangeInclusive<u64> = 50_000..=20_000_000;

    /// Starts the checks of a QP in error.
    pub(super) fn watch_errored(&mut self, qpn: Qpn) {
        self.errored.push(qpn);
        self.check_errored_after(*Self::ERROR_WATCH.start());
    }

    /// Checks the QPs in error after `delay`, unless a check is due sooner.
    pub(super) fn check_errored_after(&mut self, delay: u64) {
        if self.error_watch.is_none_or(|pending| pending > delay) {
            self.error_watch = Some(delay);
            self.timers.add(self.now.saturating_add(delay), Owner::ErrorWatch);
        }
    }

    /// Sends a packet to the wire, or loops it back to this port.
    pub(super) fn send(&mut self, packet: Packet) {
        self.counters.sent += 1;
        self.counters.sent_bytes += packet.bytes().len() as u64;
        let addressing = packet.addressing;
        if self.is_multicast(&addressing) {
            self.loopback.push_back(self.pool.copy(&packet));
            self.outgoing.push_back(packet);
        } else if self.is_own(&addressing) {
            self.loopback.push_back(packet);
        } else {
            self.outgoing.push_back(packet);
        }
    }

    /// Whether a packet goes to several receivers.
    pub(super) fn is_multicast(&self, to: &Addressing) -> bool {
        match self.config.link {
            LinkLayer::Ethernet => to.destination.is_multicast(),
            LinkLayer::InfiniBand => (0xc000..0xffff).contains(&to.destination_lid),
        }
    }

    /// Whether a packet's destination is this port.
    pub(super) fn is_own(&self, to: &Addressing) -> bool {
        match self.config.link {
            LinkLayer::Ethernet => {
                !to.destination.is_zero() && self.config.gids.contains(&to.destination)
            }
            LinkLayer::InfiniBand => {
                to.destination_lid >> self.config.lmc == self.config.lid >> self.config.lmc
            }
        }
    }

    /// Whether two GIDs are the same port's, as far as the wire can tell.
    pub(super) fn is_same_port(&self, a: Gid, b: Gid) -> bool {
        let on_wire = self.config.gid_on_wire;
        a == b || on_wire(a) == on_wire(b)
    }

    /// The number of objects that use this one.
    fn users(&mut self, object: ObjectId) -> Result<&mut u32, CoreError> {
        let (kind, number) = object;
        let users = match kind {
            ObjectKind::Pd => self.pds.get_mut(number).map(|pd| &mut pd.users),
            ObjectKind::Xrcd => self.xrcds.get_mut(number).map(|xrcd| &mut xrcd.users),
            ObjectKind::Cq => self.cqs.get_mut(number).map(|cq| &mut cq.users),
            ObjectKind::Srq => self.srqs.get_mut(number).map(|srq| &mut srq.users),
            _ => None,
        };
        users.ok_or(CoreError::missing(object))
    }

    /// Counts one more user of each object, or of none of them if one does not exist.
    pub(super) fn hold(&mut self, objects: &[ObjectId]) -> Result<(), CoreError> {
        for &object in objects {
            self.users(object)?;
        }
        for &object in objects {
            *self.users(object)? += 1;
        }
        Ok(())
    }

    /// Counts one user less of each object.
    pub(super) fn release(&mut self, objects: &[ObjectId]) {
        for &object in objects {
            if let Ok(users) = self.users(object) {
                *users -= 1;
            }
        }
    }

    /// [`CoreError::InUse`] while another object uses this one.
    pub(super) fn check_unused(&mut self, object: ObjectId) -> Result<(), CoreError> {
        let users = *self.users(object)?;
        unused(object, users)
    }
}

pub(super) fn unused((kind, number): ObjectId, users: u32) -> Result<(), CoreError> {
    if users == 0 { Ok(()) } else { Err(CoreError::InUse { kind, number, users }) }
}
