//! The port's management datagrams, for a front end that has no queue pair for QP1.
//!
//! With a kernel driver, the driver makes a queue pair that serves as QP1 and receives the
//! datagrams. Without one, the front end opens the QP1 in this module ([`Core::open_management`]).
//! A queue pair that serves as QP1 takes precedence.

use std::collections::VecDeque;

use super::Core;
use super::env::Env;
use super::qp::pkeys_match;
use crate::packet::{Addressing, Bth, Deth, Opcode, Psn, View};

/// The Q_Key of every QP1 (specification 10.2.5).
pub(super) const QP1_QKEY: u32 = 0x8001_0000;
/// Number of the queue pair for management datagrams.
const QP1: u32 = 1;
/// Most datagrams that wait: as many as the receives that the kernel posts to its QP1
/// (`IB_MAD_QP_RECV_SIZE` of drivers/infiniband/core/mad_priv.h). More are lost.
const MAX_WAITING: usize = 512;
/// Bytes of a management datagram.
pub const DATAGRAM_LEN: usize = 256;
/// The default P_Key.
const PKEY: u16 = 0xffff;

/// A management datagram that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Source and destination of its packet.
    pub addressing: Addressing,
    /// Its bytes.
    pub bytes: Box<[u8; DATAGRAM_LEN]>,
}

/// The state of this QP1.
#[derive(Debug, Default)]
pub(super) struct Management {
    /// `None` while it is closed.
    arrived: Option<VecDeque<Datagram>>,
    psn: Psn,
}

impl Core {
    /// Makes QP1 accept datagrams from now on.
    pub fn open_management(&mut self) {
        self.env.management.arrived.get_or_insert_default();
    }

    /// The next datagram that arrived.
    pub fn take_datagram(&mut self) -> Option<Datagram> {
        self.env.management.arrived.as_mut()?.pop_front()
    }

    /// Sends a datagram from QP1 to another QP1.
    pub fn send_datagram(&mut self, addressing: Addressing, bytes: &[u8; DATAGRAM_LEN]) {
        let env = &mut self.env;
        let psn = env.management.psn;
        env.management.psn = psn.next();
        let mut packet = env.pool.take();
        packet.start(addressing, Bth::new(Opcode::UD_SEND_ONLY, PKEY, QP1, psn));
        packet.push(Deth::new(QP1_QKEY, QP1));
        packet.payload(DATAGRAM_LEN).copy_from_slice(bytes);
        env.send(packet);
    }
}

impl Env {
    /// Handles a packet for QP1 when no queue pair serves as QP1.
    pub(super) fn receive_datagram(&mut self, from: &Addressing, view: &View<'_>) {
        if view.bth.destination() != QP1 || !self.take_datagram(from, view) {
            self.counters.dropped += 1;
        }
    }

    fn take_datagram(&mut self, from: &Addressing, view: &View<'_>) -> bool {
        let (Some(arrived), Some(deth)) = (&mut self.management.arrived, view.deth) else {
            return false;
        };
        let is_partner = self.config.pkeys.iter().any(|own| pkeys_match(*own, view.bth.pkey()));
        let bytes = <[u8; DATAGRAM_LEN]>::try_from(view.payload);
        let (Ok(bytes), true) = (bytes, view.opcode() == Opcode::UD_SEND_ONLY && is_partner) else {
            return false;
        };
        if deth.qkey.get() != QP1_QKEY {
            self.counters.qkey_violations += 1;
            return false;
        }
        if arrived.len() == MAX_WAITING {
            self.counters.datagrams_lost += 1;
            return true;
        }
        arrived.push_back(Datagram { addressing: *from, bytes: Box::new(bytes) });
        true
    }
}
