//! Ethernet send and receive queues, as the kernel's network device and raw packet QPs use them.
//!
//! Send queues run: WQEs are consumed and completed, frames are counted and end there, because the port has no Ethernet
//! wire. Receive queues hold what is posted to them and never see a frame.

use std::collections::BTreeMap;

use uverbs_mlx5::format::{ControlSegment, Cqe, CqeOpcode, Opcode};
use zerocopy::FromBytes;

use super::Firmware;
use super::command::{Command, Reply};
use super::flow::FlowTables;
use super::page_list::{PAGES, QueuePages};
use super::record::Records;
use super::refusal::{Refusal, Status};
use crate::core::{Cqn, Qpn};
use crate::memory::{HostMemory, PageMap};
use crate::pci::layout::context::wq;
use crate::pci::layout::ethernet::{modify_rq_in, modify_sq_in, rqc, sqc};

type Done = Result<(), Refusal>;

/// Where CREATE, MODIFY and QUERY have the context, and the work queue in it, in bits.
const CONTEXT: usize = 0x100;
const QUEUE: usize = CONTEXT + 0x180;

/// States of both queues.
const RESET: u8 = 0;
const READY: u8 = 1;
const ERROR: u8 = 3;

/// Least completion mode of a control segment that writes a CQE in any case.
const COMPLETION_MODE_ALWAYS: u8 = 2;

/// Bytes of a send queue's basic block.
const BLOCK: u64 = 64;

#[derive(Debug)]
struct SendQueue {
    context: Vec<u8>,
    state: u8,
    ring: PageMap,
    log_size: u32,
    doorbell_record: u64,
    cqn: u32,
    user_index: u32,
    consumed: u16,
}

#[derive(Debug)]
struct ReceiveQueue {
    context: Vec<u8>,
    state: u8,
}

/// Everything Ethernet.
#[derive(Debug, Default)]
pub(super) struct Ethernet {
    pub(super) tis: Records,
    pub(super) tir: Records,
    pub(super) rqt: Records,
    pub(super) flows: FlowTables,
    send: BTreeMap<u32, SendQueue>,
    receive: BTreeMap<u32, ReceiveQueue>,
    last: u32,
    /// Frames that left.
    pub(super) sent: u64,
}

/// Queue numbers share the QPs' number space on the doorbell; these lie above all QPs.
const FIRST_NUMBER: u32 = 0x80_0000;

impl Ethernet {
    fn number(&mut self) -> u32 {
        self.last += 1;
        FIRST_NUMBER + self.last
    }

    /// Words about objects that still exist.
    pub(super) fn counts(&self) -> [(&'static str, usize); 6] {
        [
            ("TISes", self.tis.len()),
            ("TIRs", self.tir.len()),
            ("RQTs", self.rqt.len()),
            ("flow tables", self.flows.len()),
            ("SQs", self.send.len()),
            ("RQs", self.receive.len()),
        ]
    }
}

/// CREATE_SQ.
pub(super) fn create_send(
    firmware: &mut Firmware,
    command: &Command<'_>,
    reply: &mut Reply,
) -> Done {
    let (context, queue) = (command.structure(CONTEXT), command.structure(QUEUE));
    let cqn = sqc::CQN.get32(context);
    firmware.core.query_cq(Cqn(cqn))?;
    firmware.uars.check(wq::UAR_PAGE.get32(queue))?;
    let tis = sqc::TIS_NUM_0.get32(context);
    if sqc::TIS_LST_SZ.is_set(context) {
        firmware.ethernet.tis.get("TIS", tis)?;
    }
    let (log_size, log_stride) = (wq::LOG_WQ_SZ.get32(queue), wq::LOG_WQ_STRIDE.get32(queue));
    if 1 << log_stride != BLOCK || log_size > 15 {
        return Err(Refusal::parameter("log_wq_stride", u64::from(log_stride)));
    }
    let pages = QueuePages {
        log_page_size: wq::LOG_WQ_PG_SZ.get32(queue),
        page_offset: wq::PAGE_OFFSET.get(queue),
        length: BLOCK << log_size,
    };
    let send = SendQueue {
        ring: pages.read(command, PAGES)?,
        context: first(context),
        state: RESET,
        log_size,
        doorbell_record: wq::DBR_ADDR.get(queue),
        cqn,
        user_index: sqc::USER_INDEX.get32(context),
        consumed: 0,
    };
    let number = firmware.ethernet.number();
    firmware.ethernet.send.insert(number, send);
    reply.set_number(number);
    Ok(())
}

/// The context without its page list.
fn first(context: &[u8]) -> Vec<u8> {
    context[..context.len().min(240)].to_vec()
}

/// MODIFY_SQ: the state, and what belongs to it.
pub(super) fn modify_send(firmware: &mut Firmware, command: &Command<'_>, _: &mut Reply) -> Done {
    let number = command.number();
    let send =
        firmware.ethernet.send.get_mut(&number).ok_or_else(|| Refusal::no_such("SQ", number))?;
    let from = command.get(modify_sq_in::SQ_STATE) as u8;
    let to = sqc::STATE.get(command.structure(CONTEXT)) as u8;
    send.state = next_state(send.state, from, to)?;
    if send.state == RESET {
        send.consumed = 0;
    }
    Ok(())
}

fn next_state(now: u8, from: u8, to: u8) -> Result<u8, Refusal> {
    let legal = from == to || matches!((from, to), (RESET, READY) | (_, RESET | ERROR));
    if legal && from == now {
        Ok(to)
    } else {
        Err(Refusal::new(Status::BadResourceState, 0x50_000a, format!("{now} to {to}")))
    }
}

/// QUERY_SQ.
pub(super) fn query_send(
    firmware: &mut Firmware,
    command: &Command<'_>,
    reply: &mut Reply,
) -> Done {
    let number = command.number();
    let send = firmware.ethernet.send.get(&number).ok_or_else(|| Refusal::no_such("SQ", number))?;
    reply.put(CONTEXT, &send.context);
    reply.set(sqc::STATE.at(CONTEXT), u64::from(send.state));
    Ok(())
}

/// DESTROY_SQ.
pub(super) fn destroy_send(firmware: &mut Firmware, command: &Command<'_>, _: &mut Reply) -> Done {
    let number = command.number();
    firmware.ethernet.send.remove(&number).map(|_| ()).ok_or_else(|| Refusal::no_such("SQ", number))
}

/// CREATE_RQ.
pub(super) fn create_receive(
    firmware: &mut Firmware,
    command: &Command<'_>,
    reply: &mut Reply,
) -> Done {
    let context = command.structure(CONTEXT);
    firmware.core.query_cq(Cqn(rqc::CQN.get32(context)))?;
    let number = firmware.ethernet.number();
    firmware
        .ethernet
        .receive
        .insert(number, ReceiveQueue { context: first(context), state: RESET });
    reply.set_number(number);
    Ok(())
}

/// MODIFY_RQ.
pub(super) fn modify_receive(
    firmware: &mut Firmware,
    command: &Command<'_>,
    _: &mut Reply,
) -> Done {
    let number = command.number();
    let queue =
        firmware.ethernet.receive.get_mut(&number).ok_or_else(|| Refusal::no_such("RQ", number))?;
    let from = command.get(modify_rq_in::RQ_STATE) as u8;
    let to = rqc::STATE.get(command.structure(CONTEXT)) as u8;
    queue.state = next_state(queue.state, from, to)?;
    Ok(())
}

/// QUERY_RQ.
pub(super) fn query_receive(
    firmware: &mut Firmware,
    command: &Command<'_>,
    reply: &mut Reply,
) -> Done {
    let number = command.number();
    let queue =
        firmware.ethernet.receive.get(&number).ok_or_else(|| Refusal::no_such("RQ", number))?;
    reply.put(CONTEXT, &queue.context);
    reply.set(rqc::STATE.at(CONTEXT), u64::from(queue.state));
    Ok(())
}

/// DESTROY_RQ.
pub(super) fn destroy_receive(
    firmware: &mut Firmware,
    command: &Command<'_>,
    _: &mut Reply,
) -> Done {
    let number = command.number();
    firmware
        .ethernet
        .receive
        .remove(&number)
        .map(|_| ())
        .ok_or_else(|| Refusal::no_such("RQ", number))
}

impl Firmware {
    /// Whether the queue number of a doorbell is an Ethernet queue's.
    pub(in crate::pci) fn is_ethernet_queue(number: u32) -> bool {
        number > FIRST_NUMBER
    }

    /// Whether a queue is the kernel's own, whose BlueFlame copies count.
    pub(in crate::pci) fn is_kernels_queue(&self, number: u32) -> bool {
        Self::is_ethernet_queue(number)
            || self.services.get(&number).is_some_and(|service| service.kernels)
    }

    /// Puts a block from a BlueFlame register into the ring, where the queue reads it, if the ring has the same WQE there.
    pub(in crate::pci) fn take_over_block(&mut self, number: u32, block: &[u8; 64]) {
        let Some((ring, log_size)) = self.send_ring(number) else { return };
        let index = u64::from(u16::from_be_bytes([block[1], block[2]]));
        let offset = (index & ((1 << log_size) - 1)) * BLOCK;
        let mut head = [0; 8];
        if ring.read(&self.memory, offset, &mut head).is_ok() && head == block[..8] {
            // A ring that can be read but not written is the guest's mistake; the doorbell reads what is there.
            let _ = ring.write(&self.memory, offset, block);
        }
    }

    fn send_ring(&self, number: u32) -> Option<(PageMap, u32)> {
        if let Some(send) = self.ethernet.send.get(&number) {
            return Some((send.ring.clone(), send.log_size));
        }
        let ring = self.core.query_qp(Qpn(number)).ok()?.params.send_ring?;
        Some((ring.buffer, u32::from(ring.log_blocks)))
    }

    /// A doorbell for send queue `number`: consumes everything up to the counter in the doorbell record.
    pub(in crate::pci) fn ring_ethernet(&mut self, number: u32) {
        let Some(mut send) = self.ethernet.send.remove(&number) else {
            self.warn(format_args!("doorbell for SQ {number:#x}, which does not exist"));
            return;
        };
        if send.state == READY {
            self.run(number, &mut send);
        } else {
            self.warn(format_args!("doorbell for SQ {number:#x} in state {}", send.state));
        }
        self.ethernet.send.insert(number, send);
    }

    fn run(&mut self, number: u32, send: &mut SendQueue) {
        let Ok(posted) = self.memory.load_be32(send.doorbell_record.wrapping_add(4)) else {
            self.warn(format_args!("SQ {number:#x} has no doorbell record"));
            return;
        };
        while send.consumed != posted as u16 {
            let mut bytes = [0; size_of::<ControlSegment>()];
            let at = u64::from(send.consumed) & ((1 << send.log_size) - 1);
            let read = send.ring.read(&self.memory, at * BLOCK, &mut bytes);
            let (Ok(()), Ok(control)) = (read, ControlSegment::read_from_bytes(&bytes)) else {
                self.warn(format_args!("SQ {number:#x}: its ring is not guest memory"));
                send.state = ERROR;
                return;
            };
            self.consume(number, send, &control);
        }
    }

    fn consume(&mut self, number: u32, send: &mut SendQueue, control: &ControlSegment) {
        let opcode = Opcode(control.opmod_index_opcode.get() as u8);
        let segments = (control.qpn_ds.get() & 0x3f) as u16;
        if opcode != Opcode::NOP {
            self.ethernet.sent += 1;
        }
        if control.flags.completion_mode() >= COMPLETION_MODE_ALWAYS {
            let mut cqe = Cqe::default();
            cqe.srqn_user_index.set(send.user_index & 0xff_ffff);
            cqe.opcode_qpn_flow_tag.set(u32::from(opcode.0) << 24 | number & 0xff_ffff);
            cqe.wqe_counter.set(send.consumed);
            self.core.complete(self.now, Cqn(send.cqn), CqeOpcode::REQUESTER, cqe);
        }
        send.consumed = send.consumed.wrapping_add(segments.max(1).div_ceil(4));
    }
}
