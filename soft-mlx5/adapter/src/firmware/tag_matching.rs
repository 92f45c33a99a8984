//! Tag matching SRQs: extended receive queues (XRQs) with the topology "tag matching". Kernel:
//! hw/mlx5/srq_cmd.c.

use super::command::Command;
use super::page_list::QueuePages;
use super::refusal::{Done, Refusal};
use super::shared_receive::{Kind, order, queue_values};
use super::{Firmware, Place};
use crate::core::{Cqn, LinkLayer, Pdn, SrqInfo, SrqParams, TagParams};
use crate::firmware::bits::Field;
use crate::firmware::layout::command::{arm_rq_in, header};
use crate::firmware::layout::context::{tag_matching_topology as topology, wq, xrqc};

/// log2 of the longest list.
pub const LOG_TAGS: u32 = 7;

/// Offsets in CREATE_XRQ and QUERY_XRQ of the context, its part about tag matching, its work queue,
/// and the queue's page list, in bits.
const CONTEXT: usize = 0x80;
const TAGS: usize = CONTEXT + 0x100;
const QUEUE: usize = CONTEXT + 0x400;
const PAGES: usize = QUEUE + 0x600;

const RING: Place = Place::RING.at(QUEUE);
const RECORD: Place = Place::RECORD.at(QUEUE);

/// `MLX5_XRQC_STATE_*`, `MLX5_XRQC_TOPOLOGY_TAG_MATCHING`, `MLX5_XRQC_OFFLOAD_RNDV`.
const GOOD: u64 = 0;
const ERROR: u64 = 1;
const TAG_MATCHING: u64 = 1;
const RENDEZVOUS: u64 = 1;
/// `MLX5_ARM_RQ_IN_OP_MOD_XRQ`.
const ARM_EXTENDED: u64 = 2;

/// The required values of fields of an XRQ context. Not modelled: other topologies, queues without
/// rendezvous offload, queues for DC.
const ONLY: &[(&str, Field, u64)] = &[
    ("state", xrqc::STATE.at(CONTEXT), GOOD),
    ("rlkey", xrqc::RLKEY.at(CONTEXT), 0),
    ("topology", xrqc::TOPOLOGY.at(CONTEXT), TAG_MATCHING),
    ("offload", xrqc::OFFLOAD.at(CONTEXT), RENDEZVOUS),
    ("dc", xrqc::DC.at(CONTEXT), 0),
];

/// CREATE_XRQ.
pub(super) fn create(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    if firmware.core.config().link != LinkLayer::InfiniBand {
        return Err(Refusal::parameter("topology", TAG_MATCHING));
    }
    check(command)?;
    let params = params(firmware, command)?;
    firmware.check_uses(command, &params.objects())?;
    let number = firmware.core.create_srq(params)?;
    firmware.created(command, number.object(), &[&RING, &RECORD]);
    command.reply.set_number(number.0);
    Ok(())
}

fn check(command: &Command<'_>) -> Done {
    let other = ONLY.iter().find(|(_, field, value)| command.get(*field) != *value);
    other.map_or(Ok(()), |(name, field, _)| Err(Refusal::parameter(name, command.get(*field))))
}

fn params(firmware: &Firmware<'_>, command: &Command<'_>) -> Result<SrqParams, Refusal> {
    let queue = command.structure(QUEUE);
    let (log_wqes, log_stride) = (wq::LOG_WQ_SZ.get32(queue), wq::LOG_WQ_STRIDE.get32(queue));
    let pages = QueuePages::of_work_queue(queue, 1 << (log_wqes + log_stride));
    Ok(SrqParams {
        pd: Pdn(wq::PD.get32(queue)),
        buffer: firmware.ring(command, &RING, pages, PAGES, false)?,
        order: order(queue)?,
        log_wqes: log_wqes as u8,
        log_stride: log_stride as u8,
        doorbell_record: firmware.doorbell_record(command, &RECORD)?,
        xrc: None,
        tags: Some(tag_params(command)?),
        limit: wq::LWM.get(queue) as u16,
    })
}

fn tag_params(command: &Command<'_>) -> Result<TagParams, Refusal> {
    let log_entries = command.get32(topology::LOG_MATCHING_LIST_SZ.at(TAGS));
    if log_entries > LOG_TAGS {
        return Err(Refusal::parameter("log_matching_list_sz", log_entries.into()));
    }
    Ok(TagParams {
        cq: Cqn(command.get32(xrqc::CQN.at(CONTEXT))),
        user_index: command.get32(xrqc::USER_INDEX.at(CONTEXT)),
        log_entries: log_entries as u8,
    })
}

/// QUERY_XRQ.
pub(super) fn query(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let info = firmware.query_shared_receive(command, Kind::Tags)?;
    let tags = info.params.tags.map_or_else(Vec::new, |tags| tag_values(&tags, &info));
    let state = (xrqc::STATE.at(CONTEXT), if info.in_error { ERROR } else { GOOD });
    let values = queue_values(&info, QUEUE).into_iter().chain([state]).chain(tags);
    values.for_each(|(field, value)| command.reply.set(field, value));
    Ok(())
}

fn tag_values(tags: &TagParams, info: &SrqInfo) -> Vec<(Field, u64)> {
    let counts = info.tags.unwrap_or_default();
    vec![
        (xrqc::TOPOLOGY.at(CONTEXT), TAG_MATCHING),
        (xrqc::OFFLOAD.at(CONTEXT), RENDEZVOUS),
        (xrqc::USER_INDEX.at(CONTEXT), tags.user_index.into()),
        (xrqc::CQN.at(CONTEXT), tags.cq.0.into()),
        (topology::LOG_MATCHING_LIST_SZ.at(TAGS), tags.log_entries.into()),
        (topology::APPEND_NEXT_INDEX.at(TAGS), counts.next.into()),
        (topology::SW_PHASE_CNT.at(TAGS), counts.handled.into()),
        (topology::HW_PHASE_CNT.at(TAGS), counts.arrived.into()),
    ]
}

/// ARM_XRQ.
pub(super) fn arm(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let limit = command.get(arm_rq_in::LWM) as u16;
    let number = firmware.shared_receive(command, Kind::Tags)?;
    Ok(firmware.core.arm_srq(number, limit)?)
}

/// ARM_RQ: for XRQs, and for SRQs of old firmware, which this one does not have.
pub(super) fn arm_rq(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    match command.get(header::OP_MOD) {
        ARM_EXTENDED => arm(firmware, command),
        other => Err(Refusal::parameter("op_mod", other)),
    }
}

/// DESTROY_XRQ.
pub(super) fn destroy(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let number = firmware.shared_receive(command, Kind::Tags)?;
    firmware.core.destroy_srq(number)?;
    firmware.objects.release(number.object());
    Ok(())
}
