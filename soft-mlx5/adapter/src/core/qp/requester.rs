//! The requester: takes WQEs from the send queue and sends their packets.
//!
//! WQEs that have begun stay in `begun`, in order, until they complete. A cursor names the WQE and
//! the packet to send next. Retransmission moves the cursor back (go-back-N), so the same code
//! sends first transmissions and retransmissions.
//!
//! WQEs are boxed because they are too large to copy between the fields of [`Requester`].

#![allow(clippy::vec_box)]

use std::collections::VecDeque;

use uverbs_mlx5_format::{CqeOpcode, Fence, Opcode};

use super::super::env::Env;
use super::syndrome::Failure;
use super::wqe::{Place, SendWqe};
use super::{Qp, QpState};
use crate::packet::{
    AtomicEth, Headers, Ieth, ImmDt, Opcode as Wire, Packet, Position, Psn, Reth, Transport, XrcEth,
};

/// State of the send queue.
#[derive(Debug, Default)]
pub(super) struct Requester {
    /// Counter of the next block to read from the ring.
    next: u16,
    /// Counter of blocks posted, as last read from the doorbell record.
    posted: u16,
    /// Whether the doorbell rang after the record was last read.
    rung: bool,
    /// WQEs that have begun and are not completed, oldest first.
    pub(super) begun: VecDeque<Box<SendWqe>>,
    /// A WQE that was read but must wait: for a fence, or until fewer READs are outstanding.
    waiting: Option<Box<SendWqe>>,
    /// Requests that the device itself makes, on a QP without a send ring.
    offloads: VecDeque<Box<SendWqe>>,
    /// Completed WQEs whose allocations are reused.
    spare: Vec<Box<SendWqe>>,
    /// Index in `begun` of the WQE whose packet is next.
    pub(super) cursor: usize,
    /// Index in that WQE of its next packet.
    pub(super) packet: u32,
    /// PSN of the next WQE's first packet.
    next_psn: Psn,
    /// The PSN after the highest one that was ever sent.
    pub(super) sent_psn: Psn,
    /// READs and atomics that have begun and are not completed.
    pub(super) reads: u8,
    pub(super) retries_left: u8,
    pub(super) rnr_retries_left: u8,
    /// Whether the requester waits for the RNR timer before it sends anything.
    pub(super) rnr_wait: bool,
    /// The PSN of the last RNR NAK, until a sequence error for the same PSN arrives.
    pub(super) not_ready: Option<Psn>,
    /// The PSN of the missing response that was requested again. Each is requested again only once.
    pub(super) missed: Option<Psn>,
    draining: bool,
    /// Time before which the rate limit allows no frame, in nanoseconds.
    pub(super) paced_until: u64,
}

impl Requester {
    pub(super) fn rung(&mut self) {
        self.rung = true;
    }

    pub(super) fn start_at(&mut self, psn: Psn) {
        self.next_psn = psn;
        self.sent_psn = psn;
    }

    pub(super) fn set_retries(&mut self, retries: u8, rnr_retries: u8) {
        self.retries_left = retries;
        self.rnr_retries_left = rnr_retries;
    }

    pub(super) fn next_psn(&self) -> Psn {
        self.next_psn
    }

    pub(super) fn counter(&self) -> u16 {
        self.waiting.as_ref().map_or(self.next, |wqe| wqe.index)
    }

    /// Inserts the CONNECT request of an initiator before the WQE that waits for the connection.
    pub(super) fn begin_connecting(&mut self, index: u16) {
        let mut wqe = self.spare.pop().unwrap_or_default();
        wqe.connect(index, self.next_psn);
        self.next_psn += wqe.packets;
        self.begun.push_back(wqe);
    }

    pub(super) fn begin_drain(&mut self) {
        self.draining = true;
    }

    /// Whether every WQE that has begun is complete.
    pub(super) fn is_drained(&self) -> bool {
        self.begun.is_empty()
    }

    /// The oldest PSN that is not acknowledged.
    pub(super) fn oldest_psn(&self) -> Psn {
        self.begun.front().map_or(self.next_psn, |wqe| wqe.first_psn + wqe.confirmed)
    }

    /// Moves the cursor to packet `packet` of WQE `at`.
    pub(super) fn go_back(&mut self, at: usize, packet: u32) {
        self.cursor = at;
        self.packet = packet;
    }

    /// Whether the packet with this PSN is the next one.
    pub(super) fn is_at(&self, psn: Psn) -> bool {
        let wqe = self.begun.get(self.cursor);
        wqe.is_some_and(|wqe| wqe.first_psn + self.packet == psn)
    }

    /// Whether packets were sent that are not acknowledged.
    pub(super) fn is_outstanding(&self) -> bool {
        self.oldest_psn().precedes(self.sent_psn)
    }

    /// Takes the WQE that was read but not begun.
    pub(super) fn take_waiting(&mut self) -> Option<Box<SendWqe>> {
        self.waiting.take()
    }

    /// Removes all unfinished WQEs that were read from the ring, oldest first.
    pub(super) fn abandon(&mut self) -> Vec<Box<SendWqe>> {
        self.cursor = 0;
        self.packet = 0;
        self.reads = 0;
        self.rnr_wait = false;
        self.missed = None;
        self.not_ready = None;
        self.sent_psn = self.next_psn;
        let begun = self.begun.drain(..).filter(|wqe| !wqe.connects);
        begun.chain(self.waiting.take()).chain(self.offloads.drain(..)).collect()
    }

    /// Adds a request of the device itself. `build` fills in its fields.
    pub(super) fn offload(&mut self, build: impl FnOnce(&mut SendWqe)) {
        let mut wqe = self.spare.pop().unwrap_or_default();
        wqe.clear();
        build(&mut wqe);
        self.offloads.push_back(wqe);
    }

    /// Moves the next request of the device to `waiting`.
    fn next_offload(&mut self) -> bool {
        self.waiting = self.offloads.pop_front();
        self.waiting.is_some()
    }

    /// Removes the oldest WQE, which has completed.
    pub(super) fn pop(&mut self) -> Option<Box<SendWqe>> {
        let wqe = self.begun.pop_front()?;
        if self.cursor > 0 {
            self.cursor -= 1;
        } else {
            self.packet = 0;
        }
        Some(wqe)
    }

    pub(super) fn give_back(&mut self, wqe: Box<SendWqe>) {
        if self.spare.len() < 32 {
            self.spare.push(wqe);
        }
    }
}

impl Qp {
    /// Sends at most `budget` packets.
    pub(super) fn run_requester(&mut self, env: &mut Env, budget: u32) -> u32 {
        if matches!(self.state, QpState::Error | QpState::SendQueueError) {
            self.flush_send_queue(env);
            return 0;
        }
        if !matches!(self.state, QpState::ReadyToSend | QpState::SendQueueDrain) {
            return 0;
        }
        // Local WQEs count against the budget too, so that a ring of NOPs cannot occupy the device.
        let mut turns = budget;
        while turns > 0 && self.may_send(env) && self.next_turn(env) {
            turns -= 1;
        }
        self.retire(env);
        budget - turns
    }

    fn may_send(&self, env: &Env) -> bool {
        if self.requester.rnr_wait || self.state == QpState::Error {
            return false;
        }
        let Some(wqe) = self.requester.begun.get(self.requester.cursor) else { return true };
        let psn = wqe.first_psn + self.requester.packet;
        let outstanding = psn.distance(self.requester.oldest_psn());
        outstanding < env.config.window as i32 || !self.is_reliable()
    }

    /// Sends one packet, or begins one WQE. Returns `false` if there is nothing to do now.
    fn next_turn(&mut self, env: &mut Env) -> bool {
        let cursor = self.requester.cursor;
        match self.requester.begun.get(cursor).map(|wqe| wqe.outcome) {
            None => self.begin_next(env),
            // A WQE that failed locally ends the queue as soon as everything before it is complete.
            Some(Some(Err(_))) => false,
            Some(Some(Ok(()))) => {
                self.requester.go_back(cursor + 1, 0);
                true
            }
            Some(None) if self.is_held_back(env) => false,
            Some(None) => {
                self.send_next(env);
                true
            }
        }
    }

    fn begin_next(&mut self, env: &mut Env) -> bool {
        if self.state != QpState::ReadyToSend {
            return false;
        }
        if self.requester.waiting.is_none() && !self.read_next(env) {
            return false;
        }
        let Some(mut wqe) = self.requester.waiting.take() else { return false };
        if self.must_wait(&wqe) {
            self.requester.waiting = Some(wqe);
            return false;
        }
        if self.needs_connection(env, &wqe) {
            let idle = self.requester.is_drained();
            match if idle { self.connect(env, &wqe) } else { Ok(()) } {
                Err(failure) => wqe.outcome = Some(Err(failure)),
                Ok(()) => {
                    self.requester.waiting = Some(wqe);
                    return idle;
                }
            }
        }
        self.begin(env, wqe);
        true
    }

    /// Reads the next WQE from the ring into `waiting`. On a QP without a ring, takes the next
    /// request of the device.
    pub(super) fn read_next(&mut self, env: &Env) -> bool {
        let Some(ring) = &self.params.send_ring else { return self.requester.next_offload() };
        let requester = &mut self.requester;
        if requester.posted == requester.next {
            // Reads the record again even without a doorbell, as hardware may do, so that no posted
            // WQE is missed.
            let record = env.memory.load_be32(self.params.doorbell_record.wrapping_add(4));
            requester.rung = false;
            requester.posted = record.map_or(requester.next, |counter| counter as u16);
        }
        let posted = requester.posted.wrapping_sub(requester.next);
        if posted == 0 {
            return false;
        }
        let mut wqe = requester.spare.pop().unwrap_or_default();
        let place = Place {
            qpn: self.number.0,
            qp_type: self.params.qp_type,
            index: requester.next,
            posted: posted.min(1 << ring.log_blocks),
        };
        if let Err(failure) = wqe.read(&*env.memory, ring, place) {
            wqe.outcome = Some(Err(failure));
        }
        requester.next = requester.next.wrapping_add(wqe.blocks);
        requester.waiting = Some(wqe);
        true
    }

    /// Whether a WQE must wait for a fence, or for the limit of outstanding READs and atomics.
    fn must_wait(&self, wqe: &SendWqe) -> bool {
        if wqe.outcome.is_some() {
            return false;
        }
        let fenced = match wqe.flags.fence() {
            Fence::FENCE | Fence::SMALL_AND_FENCE => self.requester.reads > 0,
            Fence::STRONG_ORDERING => !self.requester.begun.is_empty(),
            // Local operations are executed in order, so there is no earlier one to wait for.
            _ => false,
        };
        let crowded = wqe.is_read_or_atomic()
            && self.settings.max_read_atomic > 0
            && self.requester.reads >= self.settings.max_read_atomic;
        fenced || crowded
    }

    fn begin(&mut self, env: &mut Env, mut wqe: Box<SendWqe>) {
        wqe.first_psn = self.requester.next_psn;
        if wqe.outcome.is_none() {
            wqe.outcome = self.prepare(env, &mut wqe).err().map(Err);
        }
        if wqe.outcome.is_none() && wqe.is_local() {
            wqe.outcome = Some(self.execute_local(env, &wqe));
        }
        if wqe.outcome.is_none() && wqe.is_read_or_atomic() {
            self.requester.reads += 1;
        }
        self.requester.next_psn += wqe.packets;
        self.requester.begun.push_back(wqe);
    }

    /// Checks the WQE's length, and determines its number of PSNs.
    fn prepare(&self, env: &Env, wqe: &mut SendWqe) -> Result<(), Failure> {
        if wqe.is_local() {
            return Ok(());
        }
        if self.is_raw() {
            wqe.packets = wqe.count_frames()?;
            return Ok(());
        }
        let mtu = u64::from(self.mtu(env));
        let limit = match self.transport() {
            Transport::Ud => u64::from(env.config.active_mtu.bytes()),
            _ => 1 << env.config.log_max_message,
        };
        if wqe.len > limit {
            return Err(Failure::TOO_LONG);
        }
        if wqe.is_read_or_atomic() && self.settings.max_read_atomic == 0 {
            return Err(Failure::NO_READS);
        }
        let one_packet = wqe.opcode.is_atomic() || self.transport() == Transport::Ud;
        wqe.packets = if one_packet { 1 } else { wqe.len.div_ceil(mtu).max(1) as u32 };
        Ok(())
    }

    fn execute_local(&mut self, env: &mut Env, wqe: &SendWqe) -> Result<(), Failure> {
        match wqe.opcode {
            Opcode::UMR => self.execute_umr(env, wqe),
            Opcode::TAG_MATCHING => self.change_tags(env, wqe),
            _ => Ok(()),
        }
    }

    /// Sends the packet at the cursor and advances the cursor.
    fn send_next(&mut self, env: &mut Env) {
        let Some(wqe) = self.requester.begun.get(self.requester.cursor) else { return };
        if self.is_raw() {
            return match self.build_frame(env, wqe, self.requester.packet) {
                Ok(frame) => {
                    self.pace(env, frame.len());
                    env.send_frame(frame);
                    self.sent(env);
                }
                Err(failure) => self.fail(self.requester.cursor, failure),
            };
        }
        let mut packet = env.pool.take();
        let built = match self.transport() {
            Transport::Dc if wqe.connects => {
                self.build_connect(env, wqe, &mut packet);
                Ok(())
            }
            Transport::Ud => self.build_datagram(env, wqe, &mut packet),
            _ => self.build_packet(env, wqe, self.requester.packet, &mut packet),
        };
        match built {
            Ok(()) => {
                env.send(packet);
                self.sent(env);
            }
            Err(failure) => {
                env.pool.give(packet);
                self.fail(self.requester.cursor, failure);
            }
        }
    }

    /// Advances the cursor after its packet was sent.
    fn sent(&mut self, env: &mut Env) {
        let reliable = self.is_reliable();
        let requester = &mut self.requester;
        let Some(wqe) = requester.begun.get_mut(requester.cursor) else { return };
        // A READ or atomic is one request packet that takes the PSNs of all its responses.
        let next = if wqe.is_read_or_atomic() { wqe.packets } else { requester.packet + 1 };
        let psn = wqe.first_psn + next;
        if requester.sent_psn.precedes(psn) {
            requester.sent_psn = psn;
        }
        let all = next >= wqe.packets;
        if all && !reliable {
            wqe.outcome = Some(Ok(()));
        }
        if all {
            requester.go_back(requester.cursor + 1, 0);
        } else {
            requester.packet = next;
        }
        if reliable {
            self.start_ack_timer(env);
        }
    }

    /// Marks the WQE at index `at` of `begun` as failed. It completes after the WQEs before it.
    pub(super) fn fail(&mut self, at: usize, failure: Failure) {
        if let Some(wqe) = self.requester.begun.get_mut(at) {
            wqe.outcome = Some(Err(failure));
        }
    }

    fn build_packet(
        &self,
        env: &Env,
        wqe: &SendWqe,
        index: u32,
        packet: &mut Packet,
    ) -> Result<(), Failure> {
        let transport = self.transport();
        if wqe.is_read_or_atomic() {
            self.build_request(env, wqe, packet);
            return Ok(());
        }
        let position = Position::of(index, wqe.packets);
        let opcode = match wqe.opcode {
            Opcode::RDMA_WRITE | Opcode::RDMA_WRITE_IMMEDIATE => {
                Wire::write(transport, position, wqe.opcode.has_immediate())
            }
            Opcode::SEND_IMMEDIATE => Wire::send(transport, position, Headers::IMMEDIATE),
            Opcode::SEND_INVALIDATE => Wire::send(transport, position, Headers::INVALIDATE),
            _ => Wire::send(transport, position, Headers::empty()),
        };
        let mut bth = self.bth(env, opcode, wqe.first_psn + index);
        bth.set_solicited(position.ends() && wqe.flags.is_solicited());
        // Four acknowledgement requests per window keep the sender going without one for each
        // packet.
        let every = (env.config.window / 4).max(1);
        bth.set_ack_request(position.ends() || index % every == every - 1);
        packet.start(self.route(env), bth);
        self.push_headers(wqe, opcode, packet);
        let mtu = self.mtu(env);
        let offset = u64::from(index) * u64::from(mtu);
        let len = (wqe.len - offset).min(u64::from(mtu)) as usize;
        self.fill(env, wqe, offset, packet.payload(len))
    }

    fn push_headers(&self, wqe: &SendWqe, opcode: Wire, packet: &mut Packet) {
        let headers = opcode.describe().map_or(Headers::empty(), |(_, _, _, headers)| headers);
        if headers.contains(Headers::DCETH) {
            self.request_header().into_iter().for_each(|header| _ = packet.push(header));
        }
        if headers.contains(Headers::XRCETH) {
            packet.push(XrcEth::new(wqe.srqn));
        }
        if headers.contains(Headers::RETH) {
            packet.push(Reth::new(wqe.remote_address, wqe.rkey, wqe.len as u32));
        }
        if headers.contains(Headers::IMMEDIATE) {
            packet.push(ImmDt(wqe.immediate));
        }
        if headers.contains(Headers::INVALIDATE) {
            packet.push(Ieth { rkey: u32::from_be_bytes(wqe.immediate).into() });
        }
    }

    /// Builds a READ request, starting at the first missing response; or an atomic request.
    fn build_request(&self, env: &Env, wqe: &SendWqe, packet: &mut Packet) {
        let plain = wqe.atomic.is_plain();
        let opcode = match (wqe.opcode, wqe.atomic.swaps) {
            (Opcode::RDMA_READ, _) => Wire::RC_READ_REQUEST,
            (_, true) if plain => Wire::RC_COMPARE_SWAP,
            (_, false) if plain => Wire::RC_FETCH_ADD,
            (_, true) => Wire::RC_MASKED_COMPARE_SWAP,
            (_, false) => Wire::RC_MASKED_FETCH_ADD,
        };
        let opcode = opcode.on(self.transport());
        let mut bth = self.bth(env, opcode, wqe.first_psn + wqe.confirmed);
        bth.set_ack_request(true);
        packet.start(self.route(env), bth);
        match self.transport() {
            Transport::Xrc => _ = packet.push(XrcEth::new(wqe.srqn)),
            Transport::Dc => {
                self.request_header().into_iter().for_each(|header| _ = packet.push(header));
            }
            _ => {}
        }
        if wqe.opcode == Opcode::RDMA_READ {
            let done = u64::from(wqe.confirmed) * u64::from(self.mtu(env));
            let address = wqe.remote_address.wrapping_add(done);
            packet.push(Reth::new(address, wqe.rkey, (wqe.len - done) as u32));
        } else if !plain {
            packet.push(wqe.atomic.header(wqe.remote_address, wqe.rkey));
        } else {
            let (add, compare) = (wqe.atomic.swap_add, wqe.atomic.compare);
            packet.push(AtomicEth::new(wqe.remote_address, wqe.rkey, add, compare));
        }
    }

    /// Copies message bytes from `offset` on into a packet's payload.
    pub(super) fn fill(
        &self,
        env: &Env,
        wqe: &SendWqe,
        offset: u64,
        payload: &mut [u8],
    ) -> Result<(), Failure> {
        let data = (wqe.sges.as_slice(), wqe.inline.as_slice());
        env.gather(self.accessor(), data, offset, payload).map_err(|_| Failure::GATHER)
    }

    /// Completes the finished WQEs at the head of the queue.
    pub(super) fn retire(&mut self, env: &mut Env) {
        while let Some(outcome) = self.requester.begun.front().and_then(|wqe| wqe.outcome) {
            match outcome {
                Ok(()) => self.retire_first(env),
                Err(failure) => return self.fail_first(env, failure),
            }
            if self.state == QpState::Error {
                return;
            }
        }
        if self.requester.begun.is_empty() {
            self.deadline.clear();
            // A late RNR NAK for an answered request must not keep the queue waiting.
            if std::mem::replace(&mut self.requester.rnr_wait, false) {
                self.schedule(env);
            }
            self.report_drained(env);
        }
    }

    fn retire_first(&mut self, env: &mut Env) {
        let Some(wqe) = self.requester.pop() else { return };
        if wqe.is_read_or_atomic() {
            self.requester.reads -= 1;
        }
        if self.requester.waiting.is_some() {
            self.schedule(env);
        }
        let completed = match wqe.offload {
            Some(offload) => self.complete_offload(env, &wqe, offload),
            None => !wqe.flags.is_signaled() || self.complete_send(env, &wqe, CqeOpcode::REQUESTER),
        };
        self.requester.give_back(wqe);
        if !completed {
            self.fail_fatally(env);
        }
    }

    fn report_drained(&mut self, env: &mut Env) {
        let drained = self.state == QpState::SendQueueDrain
            && std::mem::replace(&mut self.requester.draining, false);
        if drained && self.settings.drained_event {
            let object = super::EventObject::Qp(self.number);
            env.raise(super::AsyncKind::SqDrained, object);
        }
    }
}
