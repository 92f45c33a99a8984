//! Responses that arrived while the device did not run. They count as in time, although the timeout
//! has passed when the device reads them.

use std::collections::VecDeque;
use std::sync::Arc;

use uverbs_mlx5_format::{
    ControlFlags, ControlSegment, Opcode as WqeOpcode, RemoteAddressSegment, U32,
};
use zerocopy::IntoBytes;

use super::*;
use crate::core::{
    AddressPath, CoreConfig, CqParams, CqRing, CqeSize, Event, Moderation, Mtu, QpAttributes,
    QpParams, QpState, QpType, Qpn, ReceiveRing, ReceiveSource, RemoteRights, SendRing,
};
use crate::memory::{BufferMemory, HostMemory, PageMap};
use crate::packet::{Addressing, Bth, Gid, Opcode, Psn};
use crate::runtime::{Host, Runtime};
use crate::wire::{RECEIVE_BATCH, SOCKET_DATAGRAMS, Waker};

struct IgnoresEvents;

impl Host for IgnoresEvents {
    fn event(&self, _: Event) {}
}

#[derive(Clone, Default)]
struct Inbox(Arc<std::sync::Mutex<Arrived>>);

#[derive(Default)]
struct Arrived {
    /// `None` is a datagram that is not a packet.
    datagrams: VecDeque<Option<Packet>>,
    /// Whether they are found only by reading the files.
    is_in_files: bool,
}

impl Wire for Inbox {
    fn send(&mut self, _: u64, packets: &mut Vec<Packet>, _: &mut PacketPool) {
        packets.clear();
    }

    fn receive(&mut self, _: u64, packets: &mut Vec<Packet>, _: &mut PacketPool) -> usize {
        let mut arrived = lock(&self.0);
        let waiting = if arrived.is_in_files { 0 } else { arrived.datagrams.len() };
        let count = waiting.min(RECEIVE_BATCH);
        packets.extend(arrived.datagrams.drain(..count).flatten());
        count
    }

    fn look_at_files(&mut self) {
        lock(&self.0).is_in_files = false;
    }
}

const BASE: u64 = 0x10_0000;
const PSN: u32 = 100;
/// Local ACK timeout code 14: 67 ms.
const TIMEOUT: u64 = 4096 << 14;

/// The device's own address, and its peer's.
const OWN: [u8; 4] = [127, 0, 0, 1];
const PEER: [u8; 4] = [127, 0, 0, 2];

fn gid(ip: [u8; 4]) -> Gid {
    Gid::from_ipv4(ip.into())
}

/// A device with a QP that has an empty WRITE to send, without retries.
struct Sender {
    runtime: Runtime,
    worker: Worker,
    inbox: Inbox,
    qpn: Qpn,
}

fn attributes(to: Gid, qpn: Qpn) -> QpAttributes {
    let path = AddressPath {
        global: true,
        destination_gid: to,
        hop_limit: 64,
        port: 1,
        ..AddressPath::default()
    };
    QpAttributes {
        remote_rights: Some(RemoteRights::all()),
        pkey_index: Some(0),
        path: Some(path),
        mtu: Some(Mtu::M1024),
        destination_qpn: Some(qpn.0),
        receive_psn: Some(PSN),
        send_psn: Some(PSN),
        max_read_atomic: Some(1),
        max_destination_read_atomic: Some(1),
        min_rnr_timer: Some(1),
        ack_timeout: Some(14),
        retry_count: Some(0),
        rnr_retry: Some(0),
        ..QpAttributes::default()
    }
}

/// A QP that can send, with the request in its ring. Its peer has the same number.
fn with_request(core: &mut Core, memory: &BufferMemory, to: Gid) -> Qpn {
    let pd = core.create_pd().unwrap();
    let linear = |page: u64| PageMap::linear(BASE + 4096 * page);
    let ring = CqRing { buffer: linear(0), log_entries: 4, cqe_size: CqeSize::B64 };
    let cq = core.create_cq(CqParams {
        ring,
        doorbell_record: BASE + 4096,
        ignore_overrun: false,
        moderation: Moderation::default(),
    });
    let cq = cq.unwrap();
    let mut params = QpParams::new(QpType::Rc, pd, cq, cq);
    params.send_ring = Some(SendRing { buffer: linear(2), log_blocks: 4 });
    params.receive =
        ReceiveSource::Ring(ReceiveRing { buffer: linear(3), log_wqes: 4, log_stride: 4 });
    params.doorbell_record = BASE + 4 * 4096;
    let qpn = core.create_qp(params).unwrap();
    core.modify_qp(qpn, QpState::Init, &QpAttributes::default()).unwrap();
    core.modify_qp(qpn, QpState::ReadyToReceive, &attributes(to, qpn)).unwrap();
    core.modify_qp(qpn, QpState::ReadyToSend, &QpAttributes::default()).unwrap();
    let flags = ControlFlags::COMPLETION;
    let wqe = ControlSegment::new(WqeOpcode::RDMA_WRITE, 0, qpn.0, 2, flags, U32::new(0));
    memory.write(BASE + 2 * 4096, wqe.as_bytes()).unwrap();
    let nowhere = RemoteAddressSegment::new(0, 0);
    memory.write(BASE + 2 * 4096 + 16, nowhere.as_bytes()).unwrap();
    memory.write(BASE + 4 * 4096 + 4, &1u32.to_be_bytes()).unwrap();
    qpn
}

impl Sender {
    /// A device that has sent the request at time 0.
    fn new(to: [u8; 4]) -> Self {
        let memory = Arc::new(BufferMemory::new(BASE, 1 << 16));
        let gids = vec![gid(OWN)];
        let mut core = Core::new(CoreConfig { gids, ..CoreConfig::default() }, memory.clone());
        let qpn = with_request(&mut core, &memory, gid(to));
        core.ring_sq(qpn).unwrap();
        core.step(0, 1);
        let inbox = Inbox::default();
        let waker = Arc::new(Waker::new().unwrap());
        let runtime = Runtime::new(core, Box::new(inbox.clone()), waker, Arc::new(IgnoresEvents));
        Self { runtime, worker: Worker::new(), inbox, qpn }
    }

    fn run_at(&mut self, now: u64) {
        self.worker.look(&self.runtime.shared, now, Whose::Polling);
    }

    /// Lets the peer's acknowledgement arrive after other packets, which are for no QP.
    fn answer_after(&self, others: usize, is_in_files: bool) {
        let to = Addressing::roce(gid(PEER), gid(OWN));
        let acknowledgement = |qpn: u32| {
            let mut packet = Packet::new();
            let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, 0xffff, qpn, Psn::new(PSN));
            packet.start(to, bth).push(Aeth::new(Syndrome::ACK, 1));
            packet
        };
        let mut inbox = lock(&self.inbox.0);
        inbox.datagrams.extend((0..others).map(|_| Some(acknowledgement(0x7777))));
        inbox.datagrams.push_back(Some(acknowledgement(self.qpn.0)));
        inbox.is_in_files = is_in_files;
    }

    /// Lets datagrams arrive that are not packets.
    fn receive_garbage(&self, count: usize) {
        lock(&self.inbox.0).datagrams.extend((0..count).map(|_| None));
    }

    /// The number of timeouts, and the QP's state.
    fn outcome(&self) -> (u64, QpState) {
        let core = &lock(&self.runtime.shared.machine).core;
        (core.counters().timeouts, core.query_qp(self.qpn).unwrap().state)
    }
}

const NO_TIMEOUT: (u64, QpState) = (0, QpState::ReadyToSend);

#[test]
fn an_answer_after_many_packets_is_in_time() {
    let mut sender = Sender::new(PEER);
    sender.answer_after(10 * RECEIVE_BATCH, false);
    sender.run_at(100 * TIMEOUT);
    assert_eq!(sender.outcome(), NO_TIMEOUT);
    sender.run_at(200 * TIMEOUT);
    assert_eq!(sender.outcome(), NO_TIMEOUT, "nothing is outstanding");
}

#[test]
fn an_answer_after_a_full_buffer_of_garbage_is_in_time() {
    let mut sender = Sender::new(PEER);
    sender.receive_garbage(SOCKET_DATAGRAMS - 1);
    sender.answer_after(0, false);
    sender.run_at(100 * TIMEOUT);
    assert_eq!(sender.outcome(), NO_TIMEOUT);
}

/// During an endless flood the device still notices the timeout.
#[test]
fn a_request_without_an_answer_fails_in_a_flood() {
    let mut sender = Sender::new(PEER);
    sender.receive_garbage(4 * SOCKET_DATAGRAMS);
    sender.run_at(TIMEOUT);
    assert_eq!(sender.outcome().0, 1);
}

#[test]
fn an_answer_in_files_that_a_look_skipped_is_in_time() {
    let mut sender = Sender::new(PEER);
    sender.answer_after(0, true);
    sender.run_at(100 * TIMEOUT);
    assert_eq!(sender.outcome(), NO_TIMEOUT);
}

/// The device has not handled its own packet yet.
#[test]
fn an_answer_to_itself_is_in_time() {
    let mut sender = Sender::new(OWN);
    assert!(lock(&sender.runtime.shared.machine).core.step(0, 0).more, "the packet is in transit");
    sender.run_at(100 * TIMEOUT);
    assert_eq!(sender.outcome(), NO_TIMEOUT);
    sender.run_at(200 * TIMEOUT);
    assert_eq!(sender.outcome(), NO_TIMEOUT, "nothing is outstanding");
}

/// A command that destroys a queue executes posted requests, without reading the wire.
#[test]
fn a_command_does_not_repeat_requests() {
    let mut sender = Sender::new(PEER);
    sender.answer_after(0, false);
    let qpn = sender.qpn;
    lock(&sender.runtime.shared.machine).catch_up(100 * TIMEOUT, qpn);
    assert_eq!(sender.outcome(), NO_TIMEOUT);
    sender.run_at(100 * TIMEOUT);
    assert_eq!(sender.outcome(), NO_TIMEOUT);
}

#[test]
fn a_request_without_an_answer_fails() {
    let mut sender = Sender::new(PEER);
    sender.run_at(TIMEOUT - 1);
    assert_eq!(sender.outcome(), NO_TIMEOUT);
    sender.run_at(TIMEOUT);
    assert_eq!(sender.outcome().0, 1);
    assert_ne!(sender.outcome().1, QpState::ReadyToSend);
}
