//! Attributes for a queue pair's transitions (`rdma_init_qp_attr`).

use uverbs_uapi::flags::{AccessFlags, QpAttrMask as Mask};
use uverbs_uapi::write::ah::{AhAttr, GlobalRoute};
use uverbs_uapi::write::qp::QpAttr;

use super::connect::UDP_QKEY;
use super::{Cma, CmaError, CmaId, Device};
use crate::ib_cm::{CmId, Path};
use uverbs_soft_packet::Gid;

const INIT: u32 = 1;
const RTR: u32 = 2;
const RTS: u32 = 3;
/// The device's only port.
pub(super) const PORT: u8 = 1;

impl Cma {
    /// The attributes that a queue pair needs to reach `state` (1 INIT, 2 RTR, 3 RTS). Without a
    /// connection request, and for UD, these are always the attributes for INIT.
    ///
    /// # Errors
    /// EINVAL if the id has no device, if its connection does not allow `state`, or if it listens
    /// on one device.
    pub fn init_qp_attr(&self, id: CmaId, state: u32) -> Result<QpAttr, CmaError> {
        let entry = self.id(id)?;
        let device = self.device_of(id)?;
        let mut attr = QpAttr { qp_state: state, ..QpAttr::default() };
        attr.qp_attr_mask |= Mask::STATE;
        if entry.is_device_listener() && !entry.is_ud() {
            return Err(CmaError::INVALID);
        }
        match entry.cm.filter(|_| !entry.is_ud()) {
            None => add_port(&mut attr, entry.is_ud().then_some(entry.qkey)),
            Some(cm) => device.connected_attr(cm, &mut attr)?,
        }
        if state == RTR {
            attr.rq_psn = entry.psn;
        }
        if attr.qp_attr_mask.contains(Mask::TIMEOUT) {
            attr.timeout = entry.settings.ack_timeout.unwrap_or(attr.timeout);
        }
        Ok(attr)
    }

    /// The address vector to an id's peer.
    pub(super) fn ah_attr_of(&self, id: CmaId) -> Option<AhAttr> {
        let path = self.id(id).ok()?.path?;
        Some(self.device_of(id).ok()?.ah_attr(&path))
    }
}

/// Attributes for INIT without a connection (`cma_ib_init_qp_attr`).
fn add_port(attr: &mut QpAttr, ud_qkey: Option<u32>) {
    (attr.pkey_index, attr.port_num) = (0, PORT);
    attr.qp_attr_mask |= Mask::PKEY_INDEX | Mask::PORT;
    match ud_qkey {
        Some(qkey) => {
            attr.qkey = if qkey == 0 { UDP_QKEY } else { qkey };
            attr.qp_attr_mask |= Mask::QKEY;
        }
        None => attr.qp_attr_mask |= Mask::ACCESS_FLAGS,
    }
}

impl Device {
    /// `ib_cm_init_qp_attr`.
    fn connected_attr(&self, cm: CmId, attr: &mut QpAttr) -> Result<(), CmaError> {
        match attr.qp_state {
            INIT => self.init_attr(cm, attr),
            RTR => self.rtr_attr(cm, attr),
            RTS => self.rts_attr(cm, attr),
            _ => Err(CmaError::INVALID),
        }
    }

    fn init_attr(&self, cm: CmId, attr: &mut QpAttr) -> Result<(), CmaError> {
        let init = self.engine.init_attr(cm)?;
        (attr.pkey_index, attr.port_num) = (0, PORT);
        let mut access = AccessFlags::REMOTE_WRITE;
        if init.remote_read_and_atomic {
            access |= AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
        }
        attr.qp_access_flags = access;
        attr.qp_attr_mask |= Mask::ACCESS_FLAGS | Mask::PKEY_INDEX | Mask::PORT;
        Ok(())
    }

    fn rtr_attr(&self, cm: CmId, attr: &mut QpAttr) -> Result<(), CmaError> {
        let rtr = self.engine.rtr_attr(cm)?;
        attr.ah_attr = self.ah_attr(&rtr.path);
        attr.path_mtu = rtr.path.mtu.into();
        (attr.dest_qp_num, attr.rq_psn) = (rtr.dest_qpn, rtr.rq_psn);
        attr.qp_attr_mask |= Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN | Mask::RQ_PSN;
        if let Some(resources) = rtr.max_dest_rd_atomic {
            attr.max_dest_rd_atomic = resources;
            attr.qp_attr_mask |= Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER;
        }
        Ok(())
    }

    fn rts_attr(&self, cm: CmId, attr: &mut QpAttr) -> Result<(), CmaError> {
        let rts = self.engine.rts_attr(cm)?;
        attr.sq_psn = rts.sq_psn;
        attr.qp_attr_mask |= Mask::SQ_PSN;
        if let Some(requester) = rts.requester {
            (attr.retry_cnt, attr.rnr_retry) = (requester.retry_count, requester.rnr_retry_count);
            attr.max_rd_atomic = requester.max_rd_atomic;
            attr.qp_attr_mask |= Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::MAX_QP_RD_ATOMIC;
        }
        if let Some(timeout) = rts.timeout {
            attr.timeout = timeout;
            attr.qp_attr_mask |= Mask::TIMEOUT;
        }
        Ok(())
    }

    /// Address vector of a path.
    pub(super) fn ah_attr(&self, path: &Path) -> AhAttr {
        let to = &path.addressing;
        let global = !self.info.infiniband || to.hop_limit > 0;
        let mut attr = AhAttr {
            dlid: to.destination_lid,
            sl: to.service_level,
            static_rate: path.rate,
            is_global: global.into(),
            port_num: PORT,
            ..AhAttr::default()
        };
        if global {
            attr.grh = GlobalRoute {
                dgid: to.destination.0,
                flow_label: to.flow_label,
                sgid_index: self.gid_index(to.source),
                hop_limit: to.hop_limit,
                traffic_class: to.traffic_class,
                ..GlobalRoute::default()
            };
        }
        attr
    }

    /// The index of a GID in the table; prefers the entry of the port's default type.
    pub(super) fn gid_index(&self, gid: Gid) -> u8 {
        let slots = || self.info.gids.iter().enumerate().filter(|(_, slot)| slot.gid == gid);
        let best = slots().find(|(_, slot)| slot.is_default_type).or_else(|| slots().next());
        best.map_or(0, |(index, _)| index as u8)
    }
}
