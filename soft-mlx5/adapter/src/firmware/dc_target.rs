//! DC targets. One command creates a target and makes it ready. Kernel: hw/mlx5/qpc.c.

use super::Firmware;
use super::command::Command;
use super::queue_pair::{NO_USER_INDEX, scatter};
use super::refusal::{Done, Refusal};
use crate::core::{
    AddressPath, Cqn, Mtu, Pdn, QpAttributes, QpInfo, QpParams, QpState, QpType, Qpn,
    ReceiveSource, RemoteRights, Srqn,
};
use crate::firmware::layout::context::dctc;

/// Where the context starts in inputs and outputs, in bits.
const CONTEXT: usize = 0x80;

/// States, `MLX5_DCTC_STATE_*`.
const ACTIVE: u64 = 0;
const DRAINED: u64 = 2;

/// log2 of the READs and atomics that a peer may have outstanding, as in the capabilities.
const LOG_READS: u8 = 4;

/// CREATE_DCT.
pub(super) fn create(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let context = command.structure(CONTEXT);
    let (params, ready) = (params(context)?, ready(context)?);
    firmware.check_uses(command, &params.objects())?;
    let qpn = firmware.core.create_qp(params)?;
    if let Err(refusal) = make_ready(firmware, qpn, &init(context), &ready) {
        firmware.core.destroy_qp(qpn)?;
        return Err(refusal);
    }
    firmware.objects.dc_targets += 1;
    firmware.created(command, qpn.object(), &[]);
    command.reply.set_number(qpn.0);
    Ok(())
}

fn params(context: &[u8]) -> Result<QpParams, Refusal> {
    let (pd, cq) = (Pdn(dctc::PD.get32(context)), Cqn(dctc::CQN.get32(context)));
    let user_index = dctc::USER_INDEX.get32(context);
    Ok(QpParams {
        receive: ReceiveSource::Srq(Srqn(dctc::SRQN_XRQN.get32(context))),
        access_key: dctc::DC_ACCESS_KEY.get(context),
        user_index,
        cqe_version_1: user_index != NO_USER_INDEX,
        scatter_responder: scatter(dctc::CS_RES, context)?,
        ..QpParams::new(QpType::DcTarget, pd, cq, cq)
    })
}

fn init(context: &[u8]) -> QpAttributes {
    let mut rights = RemoteRights::empty();
    rights.set(RemoteRights::READ, dctc::RRE.is_set(context));
    rights.set(RemoteRights::WRITE, dctc::RWE.is_set(context));
    rights.set(RemoteRights::ATOMIC, dctc::RAE.is_set(context));
    QpAttributes {
        remote_rights: Some(rights),
        pkey_index: Some(dctc::PKEY_INDEX.get(context) as u16),
        ..QpAttributes::default()
    }
}

fn ready(context: &[u8]) -> Result<QpAttributes, Refusal> {
    let mtu = dctc::MTU.get(context);
    let path = AddressPath {
        source_gid_index: dctc::MY_ADDR_INDEX.get(context) as u8,
        hop_limit: dctc::HOP_LIMIT.get(context) as u8,
        traffic_class: dctc::TCLASS.get(context) as u8,
        flow_label: dctc::FLOW_LABEL.get32(context),
        service_level: dctc::ETH_PRIO.get(context) as u8,
        port: dctc::PORT.get(context) as u8,
        ..AddressPath::default()
    };
    Ok(QpAttributes {
        path: Some(path),
        mtu: Some(Mtu::from_code(mtu as u8).ok_or_else(|| Refusal::parameter("mtu", mtu))?),
        min_rnr_timer: Some(dctc::MIN_RNR_NAK.get(context) as u8),
        max_destination_read_atomic: Some(1 << LOG_READS),
        ..QpAttributes::default()
    })
}

fn make_ready(
    firmware: &mut Firmware<'_>,
    qpn: Qpn,
    init: &QpAttributes,
    ready: &QpAttributes,
) -> Done {
    firmware.core.modify_qp(qpn, QpState::Init, init)?;
    Ok(firmware.core.modify_qp(qpn, QpState::ReadyToReceive, ready)?)
}

impl Firmware<'_> {
    /// The target that a command names.
    fn dc_target(&self, command: &Command<'_>) -> Result<(Qpn, QpInfo), Refusal> {
        let qpn = Qpn(command.number());
        let found = self.core.query_qp(qpn).ok();
        found
            .filter(|info| info.params.qp_type == QpType::DcTarget)
            .map(|info| (qpn, info))
            .ok_or_else(|| Refusal::no_such("DCT", qpn.0))
    }
}

/// DRAIN_DCT: the target accepts no more packets. The front end reports the event that the driver
/// waits for.
pub(super) fn drain(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let (qpn, _) = firmware.dc_target(command)?;
    Ok(firmware.core.modify_qp(qpn, QpState::Error, &QpAttributes::default())?)
}

/// ARM_DCT_FOR_KEY_VIOLATION: the next packet with a wrong access key raises an event.
pub(super) fn arm(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let (qpn, _) = firmware.dc_target(command)?;
    Ok(firmware.core.arm_dc_target(qpn)?)
}

/// DESTROY_DCT. The driver drains the target first. Whether a ConnectX refuses to destroy a target
/// that is not drained is unconfirmed; this device does not.
pub(super) fn destroy(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let (qpn, _) = firmware.dc_target(command)?;
    firmware.core.destroy_qp(qpn)?;
    firmware.objects.dc_targets -= 1;
    firmware.objects.release(qpn.object());
    Ok(())
}

/// QUERY_DCT.
pub(super) fn query(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let (_, info) = firmware.dc_target(command)?;
    let QpInfo { params, attributes, .. } = &info;
    let rights = attributes.remote_rights.unwrap_or_default();
    let path = attributes.path.unwrap_or_default();
    let srq = if let ReceiveSource::Srq(srq) = params.receive { srq.0 } else { 0 };
    let values = [
        (dctc::STATE, if info.state == QpState::Error { DRAINED } else { ACTIVE }),
        (dctc::USER_INDEX, u64::from(params.user_index)),
        (dctc::CQN, u64::from(params.receive_cq.0)),
        (dctc::RRE, u64::from(rights.contains(RemoteRights::READ))),
        (dctc::RWE, u64::from(rights.contains(RemoteRights::WRITE))),
        (dctc::RAE, u64::from(rights.contains(RemoteRights::ATOMIC))),
        (dctc::MIN_RNR_NAK, attributes.min_rnr_timer.unwrap_or_default().into()),
        (dctc::SRQN_XRQN, u64::from(srq)),
        (dctc::PD, u64::from(params.pd.0)),
        (dctc::TCLASS, path.traffic_class.into()),
        (dctc::FLOW_LABEL, path.flow_label.into()),
        (dctc::DC_ACCESS_KEY, params.access_key),
        (dctc::MTU, attributes.mtu.map_or(0, |mtu| mtu.code().into())),
        (dctc::PORT, path.port.into()),
        (dctc::PKEY_INDEX, attributes.pkey_index.unwrap_or_default().into()),
        (dctc::MY_ADDR_INDEX, path.source_gid_index.into()),
        (dctc::HOP_LIMIT, path.hop_limit.into()),
        (dctc::ETH_PRIO, path.service_level.into()),
    ];
    values.into_iter().for_each(|(field, value)| command.reply.set(field.at(CONTEXT), value));
    Ok(())
}
