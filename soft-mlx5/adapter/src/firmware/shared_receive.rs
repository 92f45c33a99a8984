//! Shared receive queues: basic ones, which are receive memory pools, and XRC SRQs.

use super::Firmware;
use super::Place;
use super::command::Command;
use super::page_list::{PAGES, QueuePages};
use super::refusal::{Done, Refusal};
use crate::core::{Cqn, Pdn, SrqInfo, SrqOrder, SrqParams, Srqn, XrcSrqParams, Xrcdn};
use crate::firmware::bits::Field;
use crate::firmware::layout::command::{arm_rq_in, create_xrc_srq_in, modify_rmp_in, rmp_bitmask};
use crate::firmware::layout::context::{rmpc, wq, xrc_srqc};

/// Offsets in CREATE_RMP, QUERY_RMP and MODIFY_RMP of the context, its work queue, and the queue's
/// page list, in bits.
const POOL: usize = 0x100;
const POOL_QUEUE: usize = POOL + 0x180;
const POOL_PAGES: usize = POOL_QUEUE + 0x600;
/// Offset of the change mask in MODIFY_RMP.
const POOL_BITMASK: usize = 0x80;
/// Offset of the context in the XRC SRQ commands.
const XRC: usize = 0x80;

/// Ring and doorbell record of a pool.
const POOL_RING: Place = Place::RING.at(POOL_QUEUE);
const POOL_RECORD: Place = Place::RECORD.at(POOL_QUEUE);

/// Pool states.
const POOL_READY: u64 = 1;
const POOL_ERROR: u64 = 3;

/// `MLX5_WQ_TYPE_LINKED_LIST` and `MLX5_WQ_TYPE_CYCLIC`.
const LINKED_LIST: u64 = 0;
const CYCLIC: u64 = 1;

/// XRC SRQ states.
const XRC_GOOD: u64 = 0;
const XRC_ERROR: u64 = 1;

/// The kinds of shared receive queues, each with its own commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Pool,
    Xrc,
    Tags,
}

impl Kind {
    fn of(params: &SrqParams) -> Self {
        match params {
            SrqParams { tags: Some(_), .. } => Self::Tags,
            SrqParams { xrc: Some(_), .. } => Self::Xrc,
            _ => Self::Pool,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Pool => "RMP",
            Self::Xrc => "XRC SRQ",
            Self::Tags => "XRQ",
        }
    }
}

impl Firmware<'_> {
    /// The shared receive queue that a command names, of the kind that the command is for.
    pub(super) fn shared_receive(
        &self,
        command: &Command<'_>,
        kind: Kind,
    ) -> Result<Srqn, Refusal> {
        let number = Srqn(command.number());
        if Kind::of(self.core.srq_params(number)?) != kind {
            return Err(Refusal::no_such(kind.name(), number.0));
        }
        Ok(number)
    }

    /// The state of that queue.
    pub(super) fn query_shared_receive(
        &mut self,
        command: &Command<'_>,
        kind: Kind,
    ) -> Result<SrqInfo, Refusal> {
        let number = self.shared_receive(command, kind)?;
        Ok(self.core.query_srq(number)?)
    }
}

/// The order for a work queue's type. Striding queues are not modelled.
pub(super) fn order(queue: &[u8]) -> Result<SrqOrder, Refusal> {
    match wq::WQ_TYPE.get(queue) {
        LINKED_LIST => Ok(SrqOrder::Linked),
        CYCLIC => Ok(SrqOrder::Cyclic),
        other => Err(Refusal::parameter("wq_type", other)),
    }
}

/// The order of a pool. Only a cyclic one may lack links.
fn pool_order(pool: &[u8], queue: &[u8]) -> Result<SrqOrder, Refusal> {
    match (order(queue)?, rmpc::BASIC_CYCLIC_RCV_WQE.get(pool)) {
        (order, 0) => Ok(order),
        (SrqOrder::Cyclic, _) => Ok(SrqOrder::BasicCyclic),
        _ => Err(Refusal::parameter("basic_cyclic_rcv_wqe", 1)),
    }
}

/// CREATE_RMP.
pub(super) fn create_pool(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let state = rmpc::STATE.get(command.structure(POOL));
    if state != POOL_READY {
        return Err(Refusal::parameter("state", state));
    }
    let queue = command.structure(POOL_QUEUE);
    let (log_wqes, log_stride) = (wq::LOG_WQ_SZ.get32(queue), wq::LOG_WQ_STRIDE.get32(queue));
    let pages = QueuePages::of_work_queue(queue, 1 << (log_wqes + log_stride));
    let params = SrqParams {
        pd: Pdn(wq::PD.get32(queue)),
        buffer: firmware.ring(command, &POOL_RING, pages, POOL_PAGES, false)?,
        order: pool_order(command.structure(POOL), queue)?,
        log_wqes: log_wqes as u8,
        log_stride: log_stride as u8,
        doorbell_record: firmware.doorbell_record(command, &POOL_RECORD)?,
        xrc: None,
        tags: None,
        limit: wq::LWM.get(queue) as u16,
    };
    firmware.check_uses(command, &[params.pd.object()])?;
    let number = firmware.core.create_srq(params)?;
    firmware.created(command, number.object(), &[&POOL_RING, &POOL_RECORD]);
    command.reply.set_number(number.0);
    Ok(())
}

/// MODIFY_RMP: arms the limit.
pub(super) fn modify_pool(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let state = command.get(modify_rmp_in::RMP_STATE);
    if state != POOL_READY {
        return Err(Refusal::parameter("rmp_state", state));
    }
    if command.is_set(rmp_bitmask::LWM.at(POOL_BITMASK)) {
        let limit = command.get(wq::LWM.at(POOL_QUEUE)) as u16;
        let number = firmware.shared_receive(command, Kind::Pool)?;
        firmware.core.arm_srq(number, limit)?;
    }
    Ok(())
}

/// QUERY_RMP.
pub(super) fn query_pool(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let info = firmware.query_shared_receive(command, Kind::Pool)?;
    let state = (rmpc::STATE.at(POOL), if info.in_error { POOL_ERROR } else { POOL_READY });
    let is_basic = info.params.order == SrqOrder::BasicCyclic;
    let basic = (rmpc::BASIC_CYCLIC_RCV_WQE.at(POOL), is_basic.into());
    let values = queue_values(&info, POOL_QUEUE).into_iter().chain([state, basic]);
    values.for_each(|(field, value)| command.reply.set(field, value));
    Ok(())
}

/// The fields of a query about a work queue, whose description is at bit `queue`.
pub(super) fn queue_values(info: &SrqInfo, queue: usize) -> [(Field, u64); 6] {
    let params = &info.params;
    let is_list = params.order == SrqOrder::Linked;
    [
        (wq::WQ_TYPE.at(queue), if is_list { LINKED_LIST } else { CYCLIC }),
        (wq::LWM.at(queue), info.limit.into()),
        (wq::PD.at(queue), params.pd.0.into()),
        (wq::DBR_ADDR.at(queue), params.doorbell_record),
        (wq::LOG_WQ_STRIDE.at(queue), params.log_stride.into()),
        (wq::LOG_WQ_SZ.at(queue), params.log_wqes.into()),
    ]
}

/// CREATE_XRC_SRQ.
pub(super) fn create_xrc(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    // The field with the number of the umem is not public.
    if command.is_set(create_xrc_srq_in::XRC_SRQ_UMEM_VALID) {
        return Err(Refusal::parameter("xrc_srq_umem_valid", 1));
    }
    let context = command.structure(XRC);
    let log_wqes = xrc_srqc::LOG_XRC_SRQ_SIZE.get32(context);
    let log_stride = xrc_srqc::LOG_RQ_STRIDE.get32(context) + 4;
    let pages = QueuePages {
        log_page_size: xrc_srqc::LOG_PAGE_SIZE.get32(context),
        page_offset: xrc_srqc::PAGE_OFFSET.get(context),
        length: 1 << (log_wqes + log_stride),
    };
    let xrc = XrcSrqParams {
        xrcd: Xrcdn(xrc_srqc::XRCD.get32(context)),
        cq: Cqn(xrc_srqc::CQN.get32(context)),
        user_index: xrc_srqc::USER_INDEX.get32(context),
    };
    let params = SrqParams {
        pd: Pdn(xrc_srqc::PD.get32(context)),
        buffer: pages.read(command, PAGES)?,
        order: SrqOrder::Linked,
        log_wqes: log_wqes as u8,
        log_stride: log_stride as u8,
        doorbell_record: xrc_doorbell_record(context),
        xrc: Some(xrc),
        tags: None,
        limit: xrc_srqc::LWM.get(context) as u16,
    };
    firmware.check_uses(command, &params.objects())?;
    let number = firmware.core.create_srq(params)?;
    firmware.created(command, number.object(), &[]);
    command.reply.set_number(number.0);
    Ok(())
}

/// The address is split: its high half, and bits 31:2 of its low half.
fn xrc_doorbell_record(context: &[u8]) -> u64 {
    xrc_srqc::DB_RECORD_ADDR_H.get(context) << 32 | xrc_srqc::DB_RECORD_ADDR_L.get(context) << 2
}

/// QUERY_XRC_SRQ.
pub(super) fn query_xrc(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let info = firmware.query_shared_receive(command, Kind::Xrc)?;
    for (field, value) in xrc_values(&info) {
        command.reply.set(field.at(XRC), value);
    }
    Ok(())
}

fn xrc_values(info: &SrqInfo) -> [(crate::firmware::bits::Field, u64); 7] {
    let params = &info.params;
    let xrcd = params.xrc.map_or(0, |xrc| xrc.xrcd.0);
    let cqn = params.xrc.map_or(0, |xrc| xrc.cq.0);
    [
        (xrc_srqc::STATE, if info.in_error { XRC_ERROR } else { XRC_GOOD }),
        (xrc_srqc::LOG_XRC_SRQ_SIZE, u64::from(params.log_wqes)),
        (xrc_srqc::LOG_RQ_STRIDE, u64::from(params.log_stride) - 4),
        (xrc_srqc::XRCD, u64::from(xrcd)),
        (xrc_srqc::CQN, u64::from(cqn)),
        (xrc_srqc::PD, u64::from(params.pd.0)),
        (xrc_srqc::LWM, u64::from(info.limit)),
    ]
}

/// ARM_XRC_SRQ.
pub(super) fn arm_xrc(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let limit = command.get(arm_rq_in::LWM) as u16;
    let number = firmware.shared_receive(command, Kind::Xrc)?;
    Ok(firmware.core.arm_srq(number, limit)?)
}

/// DESTROY_RMP.
pub(super) fn destroy_pool(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let number = firmware.shared_receive(command, Kind::Pool)?;
    firmware.core.destroy_srq(number)?;
    firmware.objects.release(number.object());
    Ok(())
}

/// DESTROY_XRC_SRQ.
pub(super) fn destroy_xrc(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let number = firmware.shared_receive(command, Kind::Xrc)?;
    firmware.core.destroy_srq(number)?;
    firmware.objects.release(number.object());
    Ok(())
}
