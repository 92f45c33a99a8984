//! Completion queues.

use super::Firmware;
use super::command::{Command, Reply};
use super::page_list::{PAGES, QueuePages};
use super::refusal::{Done, Refusal};
use crate::layout::command::{header, modify_cq_in};
use crate::layout::context::cqc;
use uverbs_soft::core::{Armed, CqModify, CqParams, CqRing, CqeSize, Cqn, Moderation};

/// Where inputs and outputs have the context, in bits.
const CONTEXT: usize = 0x80;

/// MODIFY_CQ operations and the fields that they may change, `MLX5_CQ_OPMOD_*`, `MLX5_CQ_MODIFY_*`.
const MODIFY: u64 = 0;
const RESIZE: u64 = 1;
const CHANGE_PERIOD: u64 = 1;
const CHANGE_COUNT: u64 = 2;
const CHANGE_OVERRUN: u64 = 4;

const STATUS_OVERFLOW: u64 = 0x9;
const STATE_SOLICITED_ARMED: u64 = 0x6;
const STATE_ARMED: u64 = 0x9;
const STATE_FIRED: u64 = 0xa;

fn ring(command: &Command<'_>, context: &[u8]) -> Result<CqRing, Refusal> {
    let cqe_size = match cqc::CQE_SZ.get(context) {
        0 => CqeSize::B64,
        1 | 2 => CqeSize::B128,
        other => return Err(Refusal::parameter("cqe_sz", other)),
    };
    let log_entries = cqc::LOG_CQ_SIZE.get(context) as u8;
    if log_entries > 24 {
        return Err(Refusal::parameter("log_cq_size", u64::from(log_entries)));
    }
    let pages = QueuePages {
        log_page_size: cqc::LOG_PAGE_SIZE.get32(context),
        page_offset: cqc::PAGE_OFFSET.get(context),
        length: cqe_size.bytes() << log_entries,
    };
    Ok(CqRing { buffer: pages.read(command, PAGES)?, log_entries, cqe_size })
}

fn moderation(context: &[u8]) -> Moderation {
    Moderation {
        count: cqc::CQ_MAX_COUNT.get(context) as u16,
        period: cqc::CQ_PERIOD.get(context) as u16,
    }
}

/// CREATE_CQ.
pub(super) fn create(firmware: &mut Firmware, command: &Command<'_>, reply: &mut Reply) -> Done {
    let context = command.structure(CONTEXT);
    let vector = cqc::C_EQN_OR_APU_ELEMENT.get32(context);
    if !firmware.event_queues.exists(vector) {
        return Err(Refusal::no_such("event queue", vector));
    }
    if cqc::CQE_COMP_EN.is_set(context) {
        return Err(Refusal::parameter("cqe_comp_en", 1));
    }
    firmware.uars.check(cqc::UAR_PAGE.get32(context))?;
    let params = CqParams {
        ring: ring(command, context)?,
        doorbell_record: cqc::DBR_ADDR.get(context),
        ignore_overrun: cqc::OI.is_set(context),
        moderation: moderation(context),
    };
    let cqn = firmware.core.create_cq(params)?;
    firmware.completion_vectors.insert(cqn.0, vector);
    reply.set_number(cqn.0);
    Ok(())
}

/// DESTROY_CQ.
pub(super) fn destroy(firmware: &mut Firmware, command: &Command<'_>, _: &mut Reply) -> Done {
    firmware.core.destroy_cq(Cqn(command.number()))?;
    firmware.completion_vectors.remove(&command.number());
    Ok(())
}

/// QUERY_CQ.
pub(super) fn query(firmware: &mut Firmware, command: &Command<'_>, reply: &mut Reply) -> Done {
    let cqn = command.number();
    let info = firmware.core.query_cq(Cqn(cqn))?;
    let state = match info.armed {
        Some(Armed::Solicited) => STATE_SOLICITED_ARMED,
        Some(Armed::Any) => STATE_ARMED,
        None => STATE_FIRED,
    };
    let vector = firmware.completion_vectors.get(&cqn).copied().unwrap_or_default();
    let values = [
        (cqc::STATUS, if info.in_error { STATUS_OVERFLOW } else { 0 }),
        (cqc::CQE_SZ, u64::from(info.ring.cqe_size == CqeSize::B128)),
        (cqc::OI, u64::from(info.ignore_overrun)),
        (cqc::ST, state),
        (cqc::LOG_CQ_SIZE, u64::from(info.ring.log_entries)),
        (cqc::CQ_PERIOD, u64::from(info.moderation.period)),
        (cqc::CQ_MAX_COUNT, u64::from(info.moderation.count)),
        (cqc::C_EQN_OR_APU_ELEMENT, u64::from(vector)),
        (cqc::CONSUMER_COUNTER, u64::from(info.consumer_index)),
        (cqc::PRODUCER_COUNTER, u64::from(info.producer_index)),
    ];
    values.into_iter().for_each(|(field, value)| reply.set(field.at(CONTEXT), value));
    Ok(())
}

/// MODIFY_CQ.
pub(super) fn modify(firmware: &mut Firmware, command: &Command<'_>, _: &mut Reply) -> Done {
    let context = command.structure(CONTEXT);
    let cqn = Cqn(command.number());
    let select = command.get(modify_cq_in::MODIFY_FIELD_SELECT_RESIZE_FIELD_SELECT);
    let change = match command.get(header::OP_MOD) {
        MODIFY => changes(firmware.core.query_cq(cqn)?.moderation, select, context)?,
        RESIZE => CqModify { ring: Some(ring(command, context)?), ..CqModify::default() },
        other => return Err(Refusal::parameter("MODIFY_CQ operation", other)),
    };
    Ok(firmware.core.modify_cq(cqn, change)?)
}

fn changes(current: Moderation, select: u64, context: &[u8]) -> Result<CqModify, Refusal> {
    if select & !(CHANGE_PERIOD | CHANGE_COUNT | CHANGE_OVERRUN) != 0 {
        return Err(Refusal::parameter("modify_field_select", select));
    }
    let wanted = moderation(context);
    let moderation = Moderation {
        count: if select & CHANGE_COUNT != 0 { wanted.count } else { current.count },
        period: if select & CHANGE_PERIOD != 0 { wanted.period } else { current.period },
    };
    let ignore_overrun = (select & CHANGE_OVERRUN != 0).then_some(cqc::OI.is_set(context));
    Ok(CqModify { ring: None, moderation: Some(moderation), ignore_overrun })
}
