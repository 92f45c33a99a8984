//! The port's Ethernet side: flow rules, and frames between raw packet QPs, the wire and a front
//! end.

use std::sync::Arc;

use super::env::Env;
use super::frame;
use super::{
    Core, CoreError, FlowHits, FlowId, FlowRule, ObjectKind, QpType, Qpn, ReceiveSource, Steered,
};
use crate::packet::{Addressing, Gid, LONGEST_FRAME, Packet, frame_destination};

/// Flow tables outside the core, which only the firmware's commands change.
pub trait FrameTables: std::fmt::Debug + Send + Sync {
    /// The receive queues for a frame that a rule with this flow tag sent to a table.
    fn route(&self, table: u32, flow_tag: u32, frame: &[u8]) -> Vec<(Qpn, Steered)>;
}

impl Core {
    /// Sets the flow tables that [`ReceiveSource::FlowTable`] names.
    pub fn set_tables(&mut self, tables: Arc<dyn FrameTables>) {
        self.env.tables = Some(tables);
    }

    /// Adds a flow rule. Frames from the wire and from this port's own QPs go to the QPs whose
    /// rules take them.
    ///
    /// # Errors
    /// [`CoreError::NotFound`] without the QP, [`CoreError::Unsupported`] if it is not a raw packet
    /// QP, [`CoreError::BadParameter`] for a value outside its mask, [`CoreError::FlowConflict`] if
    /// a rule with the same match has another tag, or drops.
    pub fn add_flow(&mut self, rule: FlowRule) -> Result<FlowId, CoreError> {
        if let Some(qpn) = rule.target {
            if self.qp_mut(qpn)?.params.qp_type != QpType::RawPacket {
                return Err(CoreError::Unsupported("flow rules for a QP that is not raw packet"));
            }
        }
        let id = self.env.flows.add(rule)?;
        if let Some(qpn) = rule.target {
            self.qp_mut(qpn)?.flows += 1;
        }
        Ok(id)
    }

    /// Removes a flow rule.
    ///
    /// # Errors
    /// [`CoreError::NotFound`] without such a rule.
    pub fn remove_flow(&mut self, id: FlowId) -> Result<(), CoreError> {
        let rule = self.env.flows.remove(id).ok_or(missing(id))?;
        if let Some(qp) = rule.target.and_then(|qpn| self.qps.get_mut(qpn.0)) {
            qp.flows -= 1;
        }
        Ok(())
    }

    /// Number of frames that a rule matched.
    ///
    /// # Errors
    /// [`CoreError::NotFound`] without such a rule.
    pub fn flow_hits(&self, id: FlowId) -> Result<FlowHits, CoreError> {
        self.env.flows.hits(id).ok_or(missing(id))
    }

    /// The next frame that left a raw packet QP, if
    /// [`CoreConfig::frames_by_front_end`](super::CoreConfig::frames_by_front_end) is set: from the
    /// destination address on, padded, without check sequence.
    pub fn take_frame(&mut self) -> Option<Vec<u8>> {
        self.env.frames.pop_front()
    }

    /// Gives a frame to a raw packet QP, regardless of the rules. Returns `false` if the frame is
    /// lost: the QP does not exist or is not ready, no receive is posted, or the frame does not
    /// fit.
    pub fn deliver_frame(&mut self, now: u64, qpn: Qpn, frame: &[u8], steered: Steered) -> bool {
        self.env.now = now;
        self.give_frame(qpn, frame, steered)
    }

    /// Receives a frame as if it came from the wire. It goes to the raw packet QPs whose rules take
    /// it, with the completion time `at`. A frame that is too long for a port is dropped.
    pub fn receive_frame(&mut self, at: u64, bytes: &[u8]) {
        let now = std::mem::replace(&mut self.env.now, at);
        if bytes.len() > frame::LONGEST {
            self.env.counters.dropped += 1;
        } else {
            self.env.counters.received += 1;
            self.env.counters.received_bytes += bytes.len() as u64;
            self.steer_frame(bytes);
        }
        self.env.now = now;
    }

    /// Sets whether the customer VLAN tag of frames that a raw packet QP receives goes into the CQE
    /// instead of memory. It applies from the next frame on.
    ///
    /// # Errors
    /// [`CoreError::NotFound`] without the QP.
    pub fn strip_vlan(&mut self, qpn: Qpn, strip: bool) -> Result<(), CoreError> {
        self.qp_mut(qpn)?.params.strip_vlan = strip;
        Ok(())
    }

    /// Delivers a frame to the QPs whose rules take it.
    pub(super) fn steer_frame(&mut self, frame: &[u8]) {
        for (target, flow_tag) in self.env.flows.steer(frame) {
            if let Some(table) = self.table_of(target) {
                self.route_frame(table, flow_tag, frame);
            } else if let Some((qpn, hash)) = self.choose_queue(target, frame) {
                self.give_frame(qpn, frame, Steered { flow_tag, hash });
            }
        }
    }

    fn route_frame(&mut self, table: u32, flow_tag: u32, frame: &[u8]) {
        let Some(tables) = self.env.tables.clone() else { return };
        for (qpn, steered) in tables.route(table, flow_tag, frame) {
            self.give_frame(qpn, frame, steered);
        }
    }

    /// Gives a frame to a QP with a receive queue. Returns `false` if it is lost.
    fn give_frame(&mut self, qpn: Qpn, frame: &[u8], steered: Steered) -> bool {
        let qp = self.qps.get_mut(qpn.0);
        qp.is_some_and(|qp| qp.receive_frame(&mut self.env, frame, steered))
    }

    /// The flow table to which `qpn` leads.
    fn table_of(&self, qpn: Qpn) -> Option<u32> {
        match self.qps.get(qpn.0)?.params.receive {
            ReceiveSource::FlowTable(number) => Some(number),
            _ => None,
        }
    }

    /// The QP whose receive queue takes a frame that a rule gives to `qpn`.
    fn choose_queue(&self, qpn: Qpn, frame: &[u8]) -> Option<(Qpn, Option<(u32, u8)>)> {
        match &self.qps.get(qpn.0)?.params.receive {
            ReceiveSource::Spread(spread) => spread.choose(frame),
            _ => Some((qpn, None)),
        }
    }
}

fn missing(id: FlowId) -> CoreError {
    CoreError::NotFound { kind: ObjectKind::Flow, number: id.0 as u32 }
}

impl Env {
    /// Sends a frame of a raw packet QP: to the front end, or like any packet to the wire and back
    /// to this port.
    pub(super) fn send_frame(&mut self, frame: Vec<u8>) {
        if self.config.frames_by_front_end {
            self.counters.sent += 1;
            return self.frames.push_back(frame);
        }
        // The port's MTU: longer frames are dropped (unconfirmed for a real port).
        if frame.len() > LONGEST_FRAME {
            self.counters.dropped += 1;
            return;
        }
        let own = self.config.gids.iter().copied().find(|gid| gid.to_ipv4().is_some());
        let route = Addressing::roce(own.unwrap_or(Gid::default()), frame_destination(&frame));
        let mut packet: Packet = self.pool.take();
        packet.start_frame(route, &frame);
        self.send(packet);
    }
}
