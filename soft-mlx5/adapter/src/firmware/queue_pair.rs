//! Queue pairs: creation, the state machine's commands, queries.

use super::address_path;
use super::command::Command;
use super::page_list::{PAGES, QueuePages};
use super::refusal::{Done, Refusal, Status};
use super::umem::only_driver;
use super::{Firmware, Place, Service};
use crate::core::{
    Cqn, MigrationState, Mtu, Pdn, QpAttributes, QpParams, QpState, QpType, Qpn, ReceiveRing,
    ReceiveSource, RemoteRights, ScatterToCqe, SendRing, Srqn, Xrcdn,
};
use crate::firmware::bits::Field;
use crate::firmware::layout::command::{create_qp_in, modify_qp_in};
use crate::firmware::layout::context::{ads, qpc};

/// Offset of the QP context in inputs and outputs, in bits.
const CONTEXT: usize = 0xc0;
/// Offsets of the two address paths in the context, in bits.
const PRIMARY_PATH: usize = 0xc0;
const ALTERNATE_PATH: usize = 0x220;

/// Service types, `MLX5_QP_ST_*`.
const SERVICE_RC: u64 = 0;
const SERVICE_UC: u64 = 1;
const SERVICE_UD: u64 = 2;
const SERVICE_XRC: u64 = 3;
const SERVICE_DCI: u64 = 5;
const SERVICE_QP0: u64 = 7;
const SERVICE_QP1: u64 = 8;
const SERVICE_REG_UMR: u64 = 0xc;

/// Receive queue types.
const OWN_RING: u64 = 0;
const SHARED_RING: u64 = 1;
const NO_RING: u64 = 3;

/// `MLX5_QPC_OFFLOAD_TYPE_RNDV`.
const OFFLOAD_RENDEZVOUS: u64 = 1;

/// Optional parameters, `MLX5_QP_OPTPAR_*`.
mod optional {
    pub(super) const ALTERNATE_PATH: u32 = 1 << 0;
    pub(super) const REMOTE_READ: u32 = 1 << 1;
    pub(super) const REMOTE_ATOMIC: u32 = 1 << 2;
    pub(super) const REMOTE_WRITE: u32 = 1 << 3;
    pub(super) const PKEY_INDEX: u32 = 1 << 4;
    pub(super) const QKEY: u32 = 1 << 5;
    pub(super) const RNR_TIMEOUT: u32 = 1 << 6;
    pub(super) const MIGRATION: u32 = 1 << 10;
}

/// User index of queues with CQEs of version 0, such as the kernel's own.
pub(super) const NO_USER_INDEX: u32 = 0xff_ffff;

/// CREATE_QP.
pub(super) fn create(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let context = command.structure(CONTEXT);
    if !qpc::NO_SQ.is_set(context) {
        firmware.front.check_uar(qpc::UAR_PAGE.get32(context))?;
    }
    if qpc::RLKY.is_set(context) || special(context).is_some() || reg_umr(context) {
        only_driver(command, "reserved lkey or service type")?;
    }
    let mut params = params(firmware, command, context)?;
    firmware.check_uses(command, &params.objects())?;
    if params.qp_type == QpType::RegUmr && params.pd == Pdn(0) {
        params.pd = firmware.objects.privileged_pd;
    }
    let qpn = firmware.core.create_qp(params)?;
    let kernels = qpc::RLKY.is_set(context);
    let service = Service { code: qpc::ST.get(context), kernels, port: 0 };
    firmware.objects.services.insert(qpn.0, service);
    firmware.created(command, qpn.object(), &[&RINGS, &RECORD]);
    command.reply.set_number(qpn.0);
    Ok(())
}

/// Both rings, and the doorbell record.
const RINGS: Place = Place {
    valid: create_qp_in::WQ_UMEM_VALID,
    id: create_qp_in::WQ_UMEM_ID,
    offset: create_qp_in::WQ_UMEM_OFFSET,
};
const RECORD: Place =
    Place { valid: qpc::DBR_UMEM_VALID, id: qpc::DBR_UMEM_ID, offset: qpc::DBR_ADDR }.at(CONTEXT);

/// Whether it is a queue that changes memory keys, which only the driver has.
fn reg_umr(context: &[u8]) -> bool {
    qpc::ST.get(context) == SERVICE_REG_UMR
}

fn params(
    firmware: &Firmware<'_>,
    command: &Command<'_>,
    context: &[u8],
) -> Result<QpParams, Refusal> {
    let qp_type = qp_type(context)?;
    let (send_ring, receive) = rings(firmware, command, context)?;
    let user_index = qpc::USER_INDEX.get32(context);
    Ok(QpParams {
        qp_type,
        pd: Pdn(qpc::PD.get32(context)),
        send_cq: Cqn(qpc::CQN_SND.get32(context)),
        receive_cq: Cqn(qpc::CQN_RCV.get32(context)),
        send_ring,
        receive,
        xrcd: (qp_type == QpType::XrcTarget).then(|| Xrcdn(qpc::XRCD.get32(context))),
        doorbell_record: firmware.doorbell_record(command, &RECORD)?,
        user_index,
        // An XRC target has no user index; its CQEs have those of the SRQs.
        cqe_version_1: user_index != NO_USER_INDEX || qp_type == QpType::XrcTarget,
        scatter_requester: scatter(qpc::CS_REQ, context)?,
        scatter_responder: scatter(qpc::CS_RES, context)?,
        signatures: qpc::WQ_SIGNATURE.is_set(context),
        reserved_lkey: qpc::RLKY.is_set(context),
        special: special(context),
        block_multicast_loopback: qpc::BLOCK_LB_MC.is_set(context),
        rendezvous: qp_type == QpType::Rc && reads_rendezvous(context)?,
        ..QpParams::new(qp_type, Pdn(0), Cqn(0), Cqn(0))
    })
}

fn qp_type(context: &[u8]) -> Result<QpType, Refusal> {
    match qpc::ST.get(context) {
        SERVICE_RC => Ok(QpType::Rc),
        SERVICE_UC => Ok(QpType::Uc),
        SERVICE_UD | SERVICE_QP0 | SERVICE_QP1 => Ok(QpType::Ud),
        SERVICE_XRC if qpc::NO_SQ.is_set(context) => Ok(QpType::XrcTarget),
        SERVICE_XRC => Ok(QpType::XrcInitiator),
        SERVICE_DCI if !qpc::NO_SQ.is_set(context) => Ok(QpType::DcInitiator),
        SERVICE_REG_UMR => Ok(QpType::RegUmr),
        other => Err(Refusal::parameter("st", other)),
    }
}

/// Whether the device reads the data of rendezvous messages. The kernel requests this for every QP
/// that uses a tag matching SRQ and has no send queue (hw/mlx5/qp.c).
fn reads_rendezvous(context: &[u8]) -> Result<bool, Refusal> {
    match qpc::OFFLOAD_TYPE.get(context) {
        0 => Ok(false),
        OFFLOAD_RENDEZVOUS => Ok(true),
        other => Err(Refusal::parameter("offload_type", other)),
    }
}

/// The InfiniBand QP number that a management QP answers to.
fn special(context: &[u8]) -> Option<u8> {
    match qpc::ST.get(context) {
        SERVICE_QP0 => Some(0),
        SERVICE_QP1 => Some(1),
        _ => None,
    }
}

/// `0x11`/`0x22` at the requester, `1`/`2` at the responder: results of up to 32 or 64 bytes in the
/// CQE.
pub(super) fn scatter(field: Field, context: &[u8]) -> Result<ScatterToCqe, Refusal> {
    match field.get(context) {
        0 => Ok(ScatterToCqe::Off),
        0x1 | 0x11 => Ok(ScatterToCqe::B32),
        0x2 | 0x22 => Ok(ScatterToCqe::B64),
        other => Err(Refusal::parameter("scatter to CQE", other)),
    }
}

/// One buffer holds the receive ring and, after it, the send ring.
fn rings(
    firmware: &Firmware<'_>,
    command: &Command<'_>,
    context: &[u8],
) -> Result<(Option<SendRing>, ReceiveSource), Refusal> {
    let rq_type = qpc::RQ_TYPE.get(context);
    let (log_wqes, log_stride) =
        (qpc::LOG_RQ_SIZE.get32(context), qpc::LOG_RQ_STRIDE.get32(context) + 4);
    let receive_bytes = if rq_type == OWN_RING { 1u64 << (log_wqes + log_stride) } else { 0 };
    let has_send = !qpc::NO_SQ.is_set(context);
    let log_blocks = qpc::LOG_SQ_SIZE.get32(context);
    let send_bytes = if has_send { 64u64 << log_blocks } else { 0 };
    let pages = QueuePages {
        log_page_size: qpc::LOG_PAGE_SIZE.get32(context),
        page_offset: qpc::PAGE_OFFSET.get(context),
        length: receive_bytes + send_bytes,
    };
    let buffer = firmware.ring(command, &RINGS, pages, PAGES, false)?;
    let send = has_send
        .then(|| SendRing { buffer: buffer.skip(receive_bytes), log_blocks: log_blocks as u8 });
    let receive = match rq_type {
        OWN_RING => {
            let (log_wqes, log_stride) = (log_wqes as u8, log_stride as u8);
            ReceiveSource::Ring(ReceiveRing { buffer, log_wqes, log_stride })
        }
        SHARED_RING if [SERVICE_XRC, SERVICE_DCI].contains(&qpc::ST.get(context)) => {
            ReceiveSource::None
        }
        SHARED_RING => ReceiveSource::Srq(Srqn(qpc::SRQN_RMPN_XRQN.get32(context))),
        NO_RING => ReceiveSource::None,
        other => return Err(Refusal::parameter("rq_type", other)),
    };
    Ok((send, receive))
}

/// DESTROY_QP.
pub(super) fn destroy(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let qpn = firmware.qp(command)?;
    firmware.core.destroy_qp(qpn)?;
    firmware.objects.services.remove(&command.number());
    firmware.objects.release(qpn.object());
    Ok(())
}

/// A command that changes a queue pair's state, with the attributes in its context.
struct Transition<'a> {
    qpn: Qpn,
    context: &'a [u8],
    optional: u32,
    datagram: bool,
    connected: bool,
    reliable: bool,
    rights: RemoteRights,
}

impl<'a> Transition<'a> {
    fn new(
        firmware: &mut Firmware<'_>,
        command: &Command<'a>,
        from: &[QpState],
    ) -> Result<Self, Refusal> {
        let qpn = firmware.qp(command)?;
        let info = firmware.core.query_qp(qpn)?;
        if !from.contains(&info.state) {
            let detail = format!("QP {qpn} is in {:?}", info.state);
            return Err(Refusal::new(Status::BadQpState, 0x50_0009, detail));
        }
        let qp_type = info.params.qp_type;
        Ok(Self {
            qpn,
            context: command.structure(CONTEXT),
            optional: command.get32(modify_qp_in::OPT_PARAM_MASK),
            datagram: qp_type == QpType::Ud,
            connected: qp_type.is_connected(),
            reliable: qp_type.is_reliable(),
            rights: info.attributes.remote_rights.unwrap_or_default(),
        })
    }

    fn has(&self, optional: u32) -> bool {
        self.optional & optional != 0
    }

    fn get(&self, field: Field) -> u8 {
        field.get(self.context) as u8
    }

    fn primary(&self) -> &'a [u8] {
        self.context.get(PRIMARY_PATH / 8..).unwrap_or_default()
    }

    /// The remote rights that the context asks for: all of them, or only those that the mask of
    /// optional parameters selects. The others stay as they are.
    fn rights(&self, all: bool) -> RemoteRights {
        let mut rights = self.rights;
        for (bit, field, right) in [
            (optional::REMOTE_READ, qpc::RRE, RemoteRights::READ),
            (optional::REMOTE_WRITE, qpc::RWE, RemoteRights::WRITE),
            (optional::REMOTE_ATOMIC, qpc::RAE, RemoteRights::ATOMIC),
        ] {
            if all || self.has(bit) {
                rights.set(right, field.is_set(self.context));
            }
        }
        rights
    }

    /// The optional attributes of every transition.
    fn optional_attributes(&self) -> QpAttributes {
        let migration =
            self.has(optional::MIGRATION).then(|| migration(qpc::PM_STATE.get(self.context)));
        let alternate = self.context.get(ALTERNATE_PATH / 8..).unwrap_or_default();
        QpAttributes {
            qkey: self.has(optional::QKEY).then(|| qpc::Q_KEY.get32(self.context)),
            remote_rights: self.connected.then(|| self.rights(false)),
            pkey_index: self
                .has(optional::PKEY_INDEX)
                .then(|| address_path::pkey_index(self.primary())),
            min_rnr_timer: self.has(optional::RNR_TIMEOUT).then(|| self.get(qpc::MIN_RNR_NAK)),
            alternate_path: self
                .has(optional::ALTERNATE_PATH)
                .then(|| address_path::read(alternate)),
            migration,
            ..QpAttributes::default()
        }
    }

    fn apply(&self, firmware: &mut Firmware<'_>, to: QpState, attributes: &QpAttributes) -> Done {
        Ok(firmware.core.modify_qp(self.qpn, to, attributes)?)
    }
}

fn migration(code: u64) -> MigrationState {
    match code {
        0 => MigrationState::Armed,
        1 => MigrationState::Rearm,
        _ => MigrationState::Migrated,
    }
}

/// RST2INIT_QP.
pub(super) fn reset_to_init(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let step = Transition::new(firmware, command, &[QpState::Reset])?;
    let attributes = QpAttributes {
        pkey_index: Some(address_path::pkey_index(step.primary())),
        qkey: step.datagram.then(|| qpc::Q_KEY.get32(step.context)),
        remote_rights: step.connected.then(|| step.rights(true)),
        ..QpAttributes::default()
    };
    step.apply(firmware, QpState::Init, &attributes)?;
    if let Some(service) = firmware.objects.services.get_mut(&step.qpn.0) {
        service.port = ads::VHCA_PORT_NUM.get(step.primary()) as u8;
    }
    Ok(())
}

/// INIT2INIT_QP.
pub(super) fn init_to_init(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let step = Transition::new(firmware, command, &[QpState::Init])?;
    step.apply(firmware, QpState::Init, &step.optional_attributes())
}

/// INIT2RTR_QP.
pub(super) fn init_to_rtr(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let step = Transition::new(firmware, command, &[QpState::Init])?;
    let mut attributes = step.optional_attributes();
    if step.connected || step.reliable {
        let mtu = step.get(qpc::MTU);
        attributes.mtu =
            Some(Mtu::from_code(mtu).ok_or_else(|| Refusal::parameter("mtu", u64::from(mtu)))?);
    }
    if step.connected {
        attributes.path = Some(address_path::read(step.primary()));
        attributes.destination_qpn = Some(qpc::REMOTE_QPN.get32(step.context));
        attributes.receive_psn = Some(qpc::NEXT_RCV_PSN.get32(step.context));
    }
    if step.reliable {
        attributes.max_destination_read_atomic = Some(1 << step.get(qpc::LOG_RRA_MAX));
        attributes.min_rnr_timer = Some(step.get(qpc::MIN_RNR_NAK));
    }
    step.apply(firmware, QpState::ReadyToReceive, &attributes)
}

/// RTR2RTS_QP.
pub(super) fn rtr_to_rts(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let step = Transition::new(firmware, command, &[QpState::ReadyToReceive])?;
    let mut attributes = step.optional_attributes();
    if step.connected || step.datagram || step.reliable {
        attributes.send_psn = Some(qpc::NEXT_SEND_PSN.get32(step.context));
    }
    if step.reliable {
        attributes.max_read_atomic = Some(1 << step.get(qpc::LOG_SRA_MAX));
        attributes.ack_timeout = Some(address_path::ack_timeout(step.primary()));
        attributes.retry_count = Some(step.get(qpc::RETRY_COUNT));
        attributes.rnr_retry = Some(step.get(qpc::RNR_RETRY));
    }
    step.apply(firmware, QpState::ReadyToSend, &attributes)
}

/// RTS2RTS_QP, SQERR2RTS_QP, SQD_RTS_QP: from one of these states to RTS.
pub(super) fn to_ready_to_send(
    firmware: &mut Firmware<'_>,
    command: &Command<'_>,
    from: QpState,
) -> Done {
    let step = Transition::new(firmware, command, &[from])?;
    step.apply(firmware, QpState::ReadyToSend, &step.optional_attributes())
}

/// 2ERR_QP, 2RST_QP: from any state.
pub(super) fn stop(firmware: &mut Firmware<'_>, command: &Command<'_>, to: QpState) -> Done {
    let qpn = firmware.qp(command)?;
    Ok(firmware.core.modify_qp(qpn, to, &QpAttributes::default())?)
}

impl Firmware<'_> {
    /// The QP that a command names. Ethernet queues share the numbers, but have commands of their
    /// own.
    fn qp(&self, command: &Command<'_>) -> Result<Qpn, Refusal> {
        let number = command.number();
        let known = self.service(number).is_some();
        known.then_some(Qpn(number)).ok_or_else(|| Refusal::no_such("QP", number))
    }
}

fn state_code(state: QpState, draining: bool) -> u64 {
    match state {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::ReadyToReceive => 2,
        QpState::ReadyToSend => 3,
        QpState::SendQueueError => 4,
        QpState::SendQueueDrain if draining => 7,
        QpState::SendQueueDrain => 5,
        QpState::Error => 6,
    }
}

/// QUERY_QP.
pub(super) fn query(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let qpn = firmware.qp(command)?;
    let info = firmware.core.query_qp(qpn)?;
    let attributes = &info.attributes;
    let rights = attributes.remote_rights.unwrap_or_default();
    let log = |count: Option<u8>| u64::from(count.unwrap_or(1).max(1).ilog2());
    let code = |value: Option<u8>| u64::from(value.unwrap_or_default());
    let number = |value: Option<u32>| u64::from(value.unwrap_or_default());
    let migration = match attributes.migration.unwrap_or_default() {
        MigrationState::Armed => 0,
        MigrationState::Rearm => 1,
        MigrationState::Migrated => 3,
    };
    let values = [
        (qpc::STATE, state_code(info.state, info.draining)),
        (qpc::ST, firmware.service(qpn.0).map_or(0, |service| service.code)),
        (qpc::PM_STATE, migration),
        (qpc::OFFLOAD_TYPE, if info.params.rendezvous { OFFLOAD_RENDEZVOUS } else { 0 }),
        (qpc::PD, u64::from(info.params.pd.0)),
        (qpc::MTU, attributes.mtu.map_or(0, |mtu| u64::from(mtu.code()))),
        (qpc::USER_INDEX, u64::from(info.params.user_index)),
        (qpc::REMOTE_QPN, number(attributes.destination_qpn)),
        (qpc::RETRY_COUNT, code(attributes.retry_count)),
        (qpc::RNR_RETRY, code(attributes.rnr_retry)),
        (qpc::LOG_SRA_MAX, log(attributes.max_read_atomic)),
        (qpc::LOG_RRA_MAX, log(attributes.max_destination_read_atomic)),
        (qpc::NEXT_SEND_PSN, number(attributes.send_psn)),
        (qpc::NEXT_RCV_PSN, number(attributes.receive_psn)),
        (qpc::RRE, u64::from(rights.contains(RemoteRights::READ))),
        (qpc::RWE, u64::from(rights.contains(RemoteRights::WRITE))),
        (qpc::RAE, u64::from(rights.contains(RemoteRights::ATOMIC))),
        (qpc::MIN_RNR_NAK, code(attributes.min_rnr_timer)),
        (qpc::Q_KEY, number(attributes.qkey)),
        (qpc::CQN_SND, u64::from(info.params.send_cq.0)),
        (qpc::CQN_RCV, u64::from(info.params.receive_cq.0)),
        (qpc::DBR_ADDR, info.params.doorbell_record),
        (qpc::HW_SQ_WQEBB_COUNTER, u64::from(info.send_counter)),
        (qpc::HW_RQ_COUNTER, u64::from(info.receive_counter)),
    ];
    values.into_iter().for_each(|(field, value)| command.reply.set(field.at(CONTEXT), value));
    for (path, bit) in
        [(attributes.path, PRIMARY_PATH), (attributes.alternate_path, ALTERNATE_PATH)]
    {
        let mut path = path.unwrap_or_default();
        if bit == PRIMARY_PATH && path.port == 0 {
            // RST2INIT_QP sets the port, INIT2RTR_QP the rest of the path.
            path.port = firmware.service(qpn.0).map_or(0, |service| service.port);
        }
        address_path::write(&path, command.reply.structure_mut(CONTEXT + bit));
    }
    Ok(())
}
