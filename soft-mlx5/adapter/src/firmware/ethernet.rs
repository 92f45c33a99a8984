//! Ethernet send and receive queues, as used by the kernel's network device and raw packet QPs:
//! each is a raw packet QP of the core with only one queue.

use std::collections::BTreeMap;

use super::command::Command;
use super::event::{QUEUE_QP, QUEUE_RQ, QUEUE_SQ};
use super::page_list::{PAGES, QueuePages};
use super::refusal::{Done, Refusal, Status};
use super::umem::only_driver;
use super::{Firmware, Objects, Place};
use crate::core::{
    Cqn, ObjectId, ObjectKind, Pdn, QpAttributes, QpParams, QpState, QpType, Qpn, ReceiveRing,
    ReceiveSource, SendRing, Srqn, Striding,
};
use crate::firmware::layout::context::wq;
use crate::firmware::layout::ethernet::{modify_rq_in, modify_sq_in, rqc, sqc};
use crate::memory::PageMap;

/// Offset in bits of the context in CREATE, MODIFY and QUERY, and of the work queue in the context.
const CONTEXT: usize = 0x100;
const QUEUE: usize = CONTEXT + 0x180;
/// Bytes of a context with its work queue, without the page list.
const CONTEXT_BYTES: usize = 240;

/// States of both queues.
const RESET: u8 = 0;
const READY: u8 = 1;
const ERROR: u8 = 3;

/// `MLX5_WQ_TYPE_CYCLIC`.
const CYCLIC: u64 = 1;
/// `MLX5_WQ_TYPE_CYCLIC_STRIDING_RQ`.
const CYCLIC_STRIDING: u64 = 3;
/// Where an RQ has its WQEs, `MLX5_RQC_MEM_RQ_TYPE_MEMORY_RQ_*`.
const INLINE: u64 = 0;
const POOL: u64 = 1;
/// log2 of a send queue's basic block.
const LOG_BLOCK: u32 = 6;

/// log2 of the most queues of each kind.
pub(super) const LOG_QUEUES: u32 = 16;

/// The properties that MODIFY_RQ may change besides the state,
/// `MLX5_MODIFY_RQ_IN_MODIFY_BITMASK_*`.
const CHANGE_VLAN_STRIPPING: u64 = 1 << 1;
const CHANGE_COUNTER_SET: u64 = 1 << 3;

/// The contexts of queues of one kind, by number.
type Queues = BTreeMap<u32, Vec<u8>>;

/// The queues of both kinds.
#[derive(Debug, Default)]
pub(super) struct Ethernet {
    pub(super) send: Queues,
    pub(super) receive: Queues,
}

impl Objects {
    /// Whether a queue is an Ethernet send queue.
    pub fn is_send_queue(&self, number: u32) -> bool {
        self.ethernet.send.contains_key(&number)
    }

    /// Whether a queue is an Ethernet receive queue.
    pub fn is_receive_queue(&self, number: u32) -> bool {
        self.ethernet.receive.contains_key(&number)
    }

    /// How events name the type of a queue.
    pub fn queue_type(&self, number: u32) -> u8 {
        match number {
            _ if self.is_send_queue(number) => QUEUE_SQ,
            _ if self.is_receive_queue(number) => QUEUE_RQ,
            _ => QUEUE_QP,
        }
    }
}

fn context(command: &Command<'_>) -> Vec<u8> {
    let context = command.structure(CONTEXT);
    context[..context.len().min(CONTEXT_BYTES)].to_vec()
}

/// Ring and doorbell record.
const RING: Place = Place::RING.at(QUEUE);
const RECORD: Place = Place::RECORD.at(QUEUE);

/// Refuses all work queues except cyclic ones, in which each WQE is one send or receive.
fn check_cyclic(queue: &[u8]) -> Done {
    match wq::WQ_TYPE.get(queue) {
        CYCLIC => Ok(()),
        kind => Err(Refusal::parameter("wq_type", kind)),
    }
}

/// The strides of a receive queue's WQEs, if it has them. The field counts powers of two from 512
/// strides on and wraps at 16: 10 to 15 are 8 to 256 (`create_rq` of
/// drivers/infiniband/hw/mlx5/qp.c).
fn striding(queue: &[u8]) -> Result<Option<Striding>, Refusal> {
    if wq::WQ_TYPE.get(queue) != CYCLIC_STRIDING {
        return check_cyclic(queue).map(|()| None);
    }
    let log_strides = match wq::LOG_WQE_NUM_OF_STRIDES.get(queue) as u8 {
        few @ 10.. => few - 7,
        many => many + 9,
    };
    // A CQE cannot report more than 2^14 consumed strides.
    if log_strides > 14 {
        return Err(Refusal::parameter("log_wqe_num_of_strides", u64::from(log_strides) - 9));
    }
    Ok(Some(Striding {
        log_bytes: wq::LOG_WQE_STRIDE_SIZE.get(queue) as u8 + 6,
        log_strides,
        two_byte_shift: wq::TWO_BYTE_SHIFT_EN.is_set(queue),
    }))
}

/// The ring of a work queue whose entries take `1 << log_stride` bytes.
fn ring(
    firmware: &Firmware<'_>,
    command: &Command<'_>,
    log_size: u32,
    log_stride: u32,
) -> Result<PageMap, Refusal> {
    let queue = command.structure(QUEUE);
    if log_size > 15 {
        return Err(Refusal::parameter("log_wq_sz", u64::from(log_size)));
    }
    let pages = QueuePages::of_work_queue(queue, 1 << (log_size + log_stride));
    firmware.ring(command, &RING, pages, PAGES, false)
}

impl Firmware<'_> {
    /// A raw packet QP without queues.
    fn raw_params(
        &self,
        command: &Command<'_>,
        cqn: u32,
        user_index: u32,
    ) -> Result<QpParams, Refusal> {
        let queue = command.structure(QUEUE);
        // The driver's own test queues have no protection domain.
        let pd = match wq::PD.get32(queue) {
            0 if command.user_context() == 0 => self.objects.privileged_pd,
            pd => Pdn(pd),
        };
        Ok(QpParams {
            doorbell_record: self.doorbell_record(command, &RECORD)?,
            user_index,
            ..QpParams::new(QpType::RawPacket, pd, Cqn(cqn), Cqn(cqn))
        })
    }

    fn queue_state(&self, number: u32) -> Result<u8, Refusal> {
        Ok(match self.core.query_qp(Qpn(number))?.state {
            QpState::Reset | QpState::Init => RESET,
            QpState::Error | QpState::SendQueueError => ERROR,
            _ => READY,
        })
    }

    fn change_state(&mut self, number: u32, from: u8, to: u8) -> Done {
        let now = self.queue_state(number)?;
        let legal = from == to || matches!((from, to), (RESET, READY) | (_, RESET | ERROR));
        if !legal || from != now {
            let detail = format!("queue {number:#x} in {now}: {from} to {to}");
            return Err(Refusal::new(Status::BadResourceState, 0x50_000a, detail));
        }
        let steps: &[QpState] = match to {
            _ if to == now => &[],
            READY => &[QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend],
            RESET => &[QpState::Reset],
            _ => &[QpState::Error],
        };
        let attributes = QpAttributes::default();
        for step in steps {
            self.core.modify_qp(Qpn(number), *step, &attributes)?;
        }
        Ok(())
    }
}

/// One of the two kinds of queues.
pub(super) trait Kind {
    /// Its name in refusals.
    const NAME: &'static str;
    /// The contexts of its queues.
    fn queues(ethernet: &mut Ethernet) -> &mut Queues;
    /// The object that a context refers to, if the core does not know of it.
    fn uses(context: &[u8]) -> Option<ObjectId>;
}

/// Send queues.
pub(super) struct Sq;

impl Kind for Sq {
    const NAME: &'static str = "SQ";
    fn queues(ethernet: &mut Ethernet) -> &mut Queues {
        &mut ethernet.send
    }
    fn uses(context: &[u8]) -> Option<ObjectId> {
        sqc::TIS_LST_SZ.is_set(context).then(|| (ObjectKind::Tis, sqc::TIS_NUM_0.get32(context)))
    }
}

/// Receive queues.
pub(super) struct Rq;

impl Kind for Rq {
    const NAME: &'static str = "RQ";
    fn queues(ethernet: &mut Ethernet) -> &mut Queues {
        &mut ethernet.receive
    }
    fn uses(_: &[u8]) -> Option<ObjectId> {
        None
    }
}

/// Number and context of the queue that a command names.
fn find<'a, K: Kind>(
    firmware: &'a mut Firmware<'_>,
    command: &Command<'_>,
) -> Result<(u32, &'a [u8]), Refusal> {
    let number = command.number();
    let context = K::queues(&mut firmware.objects.ethernet).get(&number);
    context.map(|context| (number, &**context)).ok_or_else(|| Refusal::no_such(K::NAME, number))
}

/// QUERY_SQ, QUERY_RQ.
pub(super) fn query<K: Kind>(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let (number, context) = find::<K>(firmware, command)?;
    command.reply.put(CONTEXT, context);
    // Both kinds of context have the state at the same offset.
    command.reply.set(sqc::STATE.at(CONTEXT), u64::from(firmware.queue_state(number)?));
    Ok(())
}

/// DESTROY_SQ, DESTROY_RQ.
pub(super) fn destroy<K: Kind>(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let (number, context) = find::<K>(firmware, command)?;
    let used = K::uses(context);
    firmware.objects.references.check_unused(Qpn(number).object())?;
    firmware.core.destroy_qp(Qpn(number))?;
    K::queues(&mut firmware.objects.ethernet).remove(&number);
    firmware.objects.references.remove(used);
    firmware.objects.release(Qpn(number).object());
    Ok(())
}

/// Creates the queue of a command.
fn create<K: Kind>(
    firmware: &mut Firmware<'_>,
    command: &mut Command<'_>,
    params: QpParams,
    places: &[&Place],
) -> Done {
    let context = context(command);
    let used: Vec<_> = K::uses(&context).into_iter().collect();
    firmware.check_references(command, &used)?;
    firmware.check_uses(command, &params.objects())?;
    if K::queues(&mut firmware.objects.ethernet).len() >> LOG_QUEUES != 0 {
        return Err(Refusal::limit(K::NAME));
    }
    let number = firmware.core.create_qp(params)?.0;
    K::queues(&mut firmware.objects.ethernet).insert(number, context);
    firmware.objects.references.add(used);
    firmware.created(command, Qpn(number).object(), places);
    command.reply.set_number(number);
    Ok(())
}

/// The reserved lkey names all memory of the driver.
fn check_rights(reserved_lkey: bool, command: &Command<'_>) -> Done {
    if reserved_lkey { only_driver(command, "reserved lkey") } else { Ok(()) }
}

/// CREATE_SQ.
pub(super) fn create_send(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let (sq, queue) = (command.structure(CONTEXT), command.structure(QUEUE));
    firmware.front.check_uar(wq::UAR_PAGE.get32(queue))?;
    check_rights(sqc::RLKY.is_set(sq), command)?;
    let log_stride = wq::LOG_WQ_STRIDE.get32(queue);
    if log_stride != LOG_BLOCK {
        return Err(Refusal::parameter("log_wq_stride", u64::from(log_stride)));
    }
    check_cyclic(queue)?;
    let log_blocks = wq::LOG_WQ_SZ.get32(queue);
    let buffer = ring(firmware, command, log_blocks, LOG_BLOCK)?;
    let params = QpParams {
        send_ring: Some(SendRing { buffer, log_blocks: log_blocks as u8 }),
        reserved_lkey: sqc::RLKY.is_set(sq),
        ..firmware.raw_params(command, sqc::CQN.get32(sq), sqc::USER_INDEX.get32(sq))?
    };
    create::<Sq>(firmware, command, params, &[&RING, &RECORD])
}

/// MODIFY_SQ: the state.
pub(super) fn modify_send(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let (number, _) = find::<Sq>(firmware, command)?;
    let from = command.get(modify_sq_in::SQ_STATE) as u8;
    firmware.change_state(number, from, sqc::STATE.get(command.structure(CONTEXT)) as u8)
}

/// CREATE_RQ.
pub(super) fn create_receive(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let rq = command.structure(CONTEXT);
    check_rights(rqc::RLKY.is_set(rq), command)?;
    let (source, places): (_, &[&Place]) = match rqc::MEM_RQ_TYPE.get(rq) {
        INLINE => (own_ring(firmware, command)?, &[&RING, &RECORD]),
        POOL => (pool(firmware, command)?, &[]),
        other => return Err(Refusal::parameter("mem_rq_type", other)),
    };
    let params = QpParams {
        strip_vlan: !rqc::VSD.is_set(rq),
        scatter_check_sequence: rqc::SCATTER_FCS.is_set(rq),
        reserved_lkey: rqc::RLKY.is_set(rq),
        ..source
    };
    create::<Rq>(firmware, command, params, places)
}

/// A receive queue with a ring of its own.
fn own_ring(firmware: &Firmware<'_>, command: &Command<'_>) -> Result<QpParams, Refusal> {
    let (rq, queue) = (command.structure(CONTEXT), command.structure(QUEUE));
    let (log_wqes, log_stride) = (wq::LOG_WQ_SZ.get32(queue), wq::LOG_WQ_STRIDE.get32(queue));
    let buffer = ring(firmware, command, log_wqes, log_stride)?;
    Ok(QpParams {
        receive: ReceiveSource::Ring(ReceiveRing {
            buffer,
            log_wqes: log_wqes as u8,
            log_stride: log_stride as u8,
        }),
        striding: striding(queue)?,
        ..firmware.raw_params(command, rqc::CQN.get32(rq), rqc::USER_INDEX.get32(rq))?
    })
}

/// A receive queue that takes its receives, and their protection domain, from a receive memory pool
/// (RMP). The command's work queue is ignored then. The completions have the user index of the
/// receive queue, like those of QPs with an SRQ; this is unconfirmed.
fn pool(firmware: &Firmware<'_>, command: &Command<'_>) -> Result<QpParams, Refusal> {
    let rq = command.structure(CONTEXT);
    let (pool, cq) = (Srqn(rqc::RMPN.get32(rq)), Cqn(rqc::CQN.get32(rq)));
    let params = firmware.core.srq_params(pool)?;
    if params.xrc.is_some() || params.tags.is_some() {
        return Err(Refusal::no_such("RMP", pool.0));
    }
    Ok(QpParams {
        receive: ReceiveSource::Srq(pool),
        user_index: rqc::USER_INDEX.get32(rq),
        ..QpParams::new(QpType::RawPacket, params.pd, cq, cq)
    })
}

/// MODIFY_RQ: the state, and whether VLAN tags are stripped.
pub(super) fn modify_receive(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let (number, _) = find::<Rq>(firmware, command)?;
    let mask = command.get(modify_rq_in::MODIFY_BITMASK);
    if mask & !(CHANGE_VLAN_STRIPPING | CHANGE_COUNTER_SET) != 0 {
        return Err(Refusal::parameter("modify_bitmask", mask));
    }
    let wanted = command.structure(CONTEXT);
    let from = command.get(modify_rq_in::RQ_STATE) as u8;
    firmware.change_state(number, from, rqc::STATE.get(wanted) as u8)?;
    if mask & CHANGE_VLAN_STRIPPING != 0 {
        firmware.core.strip_vlan(Qpn(number), !rqc::VSD.is_set(wanted))?;
    }
    Ok(())
}
