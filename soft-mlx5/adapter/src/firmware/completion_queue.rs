//! Completion queues.

use uverbs_mlx5_format::MiniCqeFormat;

use super::Firmware;
use super::Place;
use super::command::Command;
use super::page_list::{PAGES, QueuePages};
use super::refusal::{Done, Refusal};
use crate::core::{Armed, CqModify, CqParams, CqRing, CqeSize, Cqn, LOG_MAX_CQ, Moderation};
use crate::firmware::layout::command::{create_cq_in, header, modify_cq_in};
use crate::firmware::layout::context::cqc;

/// Offset of the context in inputs and outputs, in bits.
const CONTEXT: usize = 0x80;

/// MODIFY_CQ operations and the fields that they may change, `MLX5_CQ_OPMOD_*`, `MLX5_CQ_MODIFY_*`.
const MODIFY: u64 = 0;
const RESIZE: u64 = 1;
const CHANGE_PERIOD: u64 = 1;
const CHANGE_COUNT: u64 = 2;
const CHANGE_OVERRUN: u64 = 4;

/// `cqe_compression_layout`: title and arrays. Its other value is the enhanced layout.
const BASIC_LAYOUT: u64 = 0;
const FORMATS: [MiniCqeFormat; 3] =
    [MiniCqeFormat::HASH, MiniCqeFormat::CHECKSUM, MiniCqeFormat::CHECKSUM_STRIDE_INDEX];

const STATUS_OVERFLOW: u64 = 0x9;
const STATE_SOLICITED_ARMED: u64 = 0x6;
const STATE_ARMED: u64 = 0x9;
const STATE_FIRED: u64 = 0xa;

/// The fields of the ring, which CREATE_CQ and MODIFY_CQ have at the same offsets.
const RING: Place = Place {
    valid: create_cq_in::CQ_UMEM_VALID,
    id: create_cq_in::CQ_UMEM_ID,
    offset: create_cq_in::CQ_UMEM_OFFSET,
};
/// The fields of the doorbell record in the input.
pub const RECORD: Place =
    Place { valid: cqc::DBR_UMEM_VALID, id: cqc::DBR_UMEM_ID, offset: cqc::DBR_ADDR }.at(CONTEXT);

fn ring(firmware: &Firmware<'_>, command: &Command<'_>) -> Result<CqRing, Refusal> {
    let context = command.structure(CONTEXT);
    let cqe_size = match cqc::CQE_SZ.get(context) {
        0 => CqeSize::B64,
        1 | 2 => CqeSize::B128,
        other => return Err(Refusal::parameter("cqe_sz", other)),
    };
    let log_entries = cqc::LOG_CQ_SIZE.get(context) as u8;
    if log_entries > LOG_MAX_CQ {
        return Err(Refusal::parameter("log_cq_size", u64::from(log_entries)));
    }
    let pages = QueuePages {
        log_page_size: cqc::LOG_PAGE_SIZE.get32(context),
        page_offset: cqc::PAGE_OFFSET.get(context),
        length: cqe_size.bytes() << log_entries,
    };
    let buffer = firmware.ring(command, &RING, pages, PAGES, true)?;
    Ok(CqRing { buffer, log_entries, cqe_size })
}

fn moderation(context: &[u8]) -> Moderation {
    Moderation {
        count: cqc::CQ_MAX_COUNT.get(context) as u16,
        period: cqc::CQ_PERIOD.get(context) as u16,
    }
}

/// How completions are compressed, in the basic layout. `MLX5_CQE_FORMAT_*` are the numbers of the
/// mini-CQE formats.
fn compression(context: &[u8]) -> Result<Option<MiniCqeFormat>, Refusal> {
    if !cqc::CQE_COMP_EN.is_set(context) {
        return Ok(None);
    }
    let layout = cqc::CQE_COMPRESSION_LAYOUT.get(context);
    if layout != BASIC_LAYOUT {
        return Err(Refusal::parameter("cqe_compression_layout", layout));
    }
    match MiniCqeFormat(cqc::MINI_CQE_RES_FORMAT.get(context) as u8) {
        format if FORMATS.contains(&format) => Ok(Some(format)),
        format => Err(Refusal::parameter("mini_cqe_res_format", u64::from(format.0))),
    }
}

/// CREATE_CQ.
pub(super) fn create(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let context = command.structure(CONTEXT);
    let eqn = cqc::C_EQN_OR_APU_ELEMENT.get32(context);
    firmware.front.check_event_queue(eqn)?;
    let compression = compression(context)?;
    firmware.front.check_uar(cqc::UAR_PAGE.get32(context))?;
    let params = CqParams {
        ring: ring(firmware, command)?,
        doorbell_record: firmware.doorbell_record(command, &RECORD)?,
        ignore_overrun: cqc::OI.is_set(context),
        moderation: moderation(context),
    };
    if compression.is_some() && params.ring.cqe_size != CqeSize::B64 {
        return Err(Refusal::parameter("cqe_comp_en with cqe_sz", 1));
    }
    let cqn = firmware.core.create_cq(params)?;
    if let Some(format) = compression {
        firmware.core.compress(cqn, format)?;
    }
    firmware.objects.event_queues.insert(cqn.0, eqn);
    firmware.created(command, cqn.object(), &[&RING, &RECORD]);
    command.reply.set_number(cqn.0);
    Ok(())
}

/// DESTROY_CQ.
pub(super) fn destroy(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    firmware.core.destroy_cq(Cqn(command.number()))?;
    firmware.objects.event_queues.remove(&command.number());
    firmware.objects.release(Cqn(command.number()).object());
    Ok(())
}

/// QUERY_CQ.
pub(super) fn query(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let cqn = command.number();
    let info = firmware.core.query_cq(Cqn(cqn))?;
    let state = match info.armed {
        Some(Armed::Solicited) => STATE_SOLICITED_ARMED,
        Some(Armed::Any) => STATE_ARMED,
        None => STATE_FIRED,
    };
    let eqn = firmware.objects.event_queues.get(&cqn).copied().unwrap_or_default();
    let values = [
        (cqc::STATUS, if info.in_error { STATUS_OVERFLOW } else { 0 }),
        (cqc::CQE_SZ, u64::from(info.ring.cqe_size == CqeSize::B128)),
        (cqc::OI, u64::from(info.ignore_overrun)),
        (cqc::ST, state),
        (cqc::LOG_CQ_SIZE, u64::from(info.ring.log_entries)),
        (cqc::CQ_PERIOD, u64::from(info.moderation.period)),
        (cqc::CQ_MAX_COUNT, u64::from(info.moderation.count)),
        (cqc::C_EQN_OR_APU_ELEMENT, u64::from(eqn)),
        (cqc::CONSUMER_COUNTER, u64::from(info.consumer_index)),
        (cqc::PRODUCER_COUNTER, u64::from(info.producer_index)),
    ];
    values.into_iter().for_each(|(field, value)| command.reply.set(field.at(CONTEXT), value));
    Ok(())
}

/// MODIFY_CQ.
pub(super) fn modify(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let context = command.structure(CONTEXT);
    let cqn = Cqn(command.number());
    let select = command.get(modify_cq_in::MODIFY_FIELD_SELECT_RESIZE_FIELD_SELECT);
    let change = match command.get(header::OP_MOD) {
        MODIFY => changes(firmware.core.query_cq(cqn)?.moderation, select, context)?,
        RESIZE => CqModify { ring: Some(ring(firmware, command)?), ..CqModify::default() },
        other => return Err(Refusal::parameter("MODIFY_CQ operation", other)),
    };
    let resized = change.ring.is_some();
    firmware.core.modify_cq(cqn, change)?;
    if resized {
        firmware.created(command, cqn.object(), &[&RING]);
    }
    Ok(())
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
