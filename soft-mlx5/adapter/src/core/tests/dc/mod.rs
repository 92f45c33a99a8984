//! Dynamically connected transport: initiators, targets, and the sessions between them.

mod sessions;
mod traffic;

use std::collections::BTreeMap;

use uverbs_mlx5_format::{AddressVector, CqeOpcode, Opcode, Syndrome};

use super::harness::*;
use crate::core::*;
use crate::packet::{
    Addressing, Aeth, Bth, DcConnectEth, DcEth, Opcode as Wire, Packet, Psn, Reth, Transport,
};
use crate::packet::{Operation, Syndrome as Answer};
use crate::prng::Prng;

const KEY: u64 = 0x1234_5678_9abc_def0;

/// A target with its queues.
struct Target {
    qpn: Qpn,
    cq: CqHandle,
    srq: SrqHandle,
}

/// Devices of which some have initiators and some have targets.
struct Net {
    world: World,
    initiators: Vec<(usize, QpHandle, CqHandle)>,
    targets: Vec<(usize, Target)>,
}

impl Net {
    /// One initiator on each of the first hosts, one target on each of the others.
    fn new(initiators: usize, targets: usize) -> Self {
        Self::with(initiators, targets, |_| {})
    }

    fn with(initiators: usize, targets: usize, change: impl Fn(&mut QpAttributes)) -> Self {
        let mut net = Self {
            world: World::new(initiators + targets),
            initiators: Vec::new(),
            targets: Vec::new(),
        };
        for host in 0..initiators {
            net.initiator(host, &change);
        }
        for host in initiators..initiators + targets {
            net.target(host, KEY, RemoteRights::all());
        }
        net
    }

    fn initiator(&mut self, at: usize, change: &dyn Fn(&mut QpAttributes)) -> usize {
        let host = &mut self.world.hosts[at];
        let cq = host.cq(8);
        let mut params = host.qp_params(QpType::DcInitiator, &cq, &cq);
        params.receive = ReceiveSource::None;
        let qp = host.create(params);
        let mut attributes = QpAttributes { path: None, ..host.attributes(host.gid, qp.qpn) };
        change(&mut attributes);
        host.make_rts(&qp, &attributes);
        self.initiators.push((at, qp, cq));
        self.initiators.len() - 1
    }

    fn target(&mut self, at: usize, key: u64, rights: RemoteRights) -> usize {
        let host = &mut self.world.hosts[at];
        let (cq, srq) = (host.cq(8), host.srq(6, None));
        let mut params = QpParams::new(QpType::DcTarget, host.pd, cq.cqn, cq.cqn);
        params.receive = ReceiveSource::Srq(srq.srqn);
        (params.access_key, params.user_index) = (key, 0x777);
        let qpn = host.core.create_qp(params).unwrap();
        let attributes = host.attributes(host.gid, qpn);
        let attributes = QpAttributes { remote_rights: Some(rights), ..attributes };
        host.core.modify_qp(qpn, QpState::Init, &QpAttributes::default()).unwrap();
        host.core.modify_qp(qpn, QpState::ReadyToReceive, &attributes).unwrap();
        self.targets.push((at, Target { qpn, cq, srq }));
        self.targets.len() - 1
    }

    fn vector(&self, target: usize, key: u64) -> AddressVector {
        let (at, target) = &self.targets[target];
        let remote_gid = self.world.hosts[*at].gid.0;
        let vector = AddressVector { remote_gid, hop_limit: 64, ..AddressVector::default() };
        vector.for_dc(target.qpn.0, key)
    }

    fn post(&mut self, initiator: usize, target: usize, wr: Wr) -> u16 {
        self.post_to(initiator, self.vector(target, KEY), wr)
    }

    fn post_to(&mut self, initiator: usize, vector: AddressVector, wr: Wr) -> u16 {
        let (at, qp, _) = &mut self.initiators[initiator];
        self.world.hosts[*at].post(qp, &wr.to(vector))
    }

    fn post_receive(&mut self, target: usize, region: Region) {
        let (at, target) = &mut self.targets[target];
        let sge = (region.address, region.len as u32, region.key);
        self.world.hosts[*at].post_srq(&mut target.srq, &[sge]);
    }

    fn region(&mut self, host: usize, len: u64) -> Region {
        self.world.hosts[host].region(len, ALL)
    }

    fn sent(&mut self, initiator: usize) -> Vec<Done> {
        let (at, _, cq) = &mut self.initiators[initiator];
        self.world.hosts[*at].poll_all(cq)
    }

    fn received(&mut self, target: usize) -> Vec<Done> {
        let (at, target) = &mut self.targets[target];
        self.world.hosts[*at].poll_all(&mut target.cq)
    }

    fn state(&self, initiator: usize) -> QpState {
        let (at, qp, _) = &self.initiators[initiator];
        self.world.hosts[*at].state(qp)
    }

    /// From ERR through RESET to RTS.
    fn revive(&mut self, initiator: usize) {
        let (at, qp, _) = &mut self.initiators[initiator];
        let host = &mut self.world.hosts[*at];
        let attributes = QpAttributes { path: None, ..host.attributes(host.gid, qp.qpn) };
        host.core.modify_qp(qp.qpn, QpState::Reset, &QpAttributes::default()).unwrap();
        host.memory_write(qp.record, &[0; 8]);
        (qp.sent, qp.received) = (0, 0);
        host.make_rts(qp, &attributes);
    }
}

fn one_retry(attributes: &mut QpAttributes) {
    (attributes.rnr_retry, attributes.retry_count) = (Some(1), Some(1));
}

fn net_gid(host: u8) -> crate::packet::Gid {
    crate::packet::Gid::from_ipv4([127, 0, 0, host + 1].into())
}
