//! A small driver. Its queues are in plain memory and use only the format structs, so that these
//! tests share no code with the queues that programs use.

pub(crate) mod model;

use std::sync::Arc;

use uverbs_mlx5_format::{
    AtomicSegment, ControlFlags, ControlSegment, Cqe, CqeOpcode, DataSegment, Fence, InlineHeader,
    Opcode, RemoteAddressSegment, U32, WQEBB_SIZE,
};
use uverbs_soft::core::{
    Access, AddressPath, CqParams, CqRing, CqeSize, Cqn, Mkey, MkeyParams, Moderation, Mtu, Pdn,
    QpAttributes, QpParams, QpState, QpType, Qpn, ReceiveRing, ReceiveSource, RemoteRights,
    SendRing,
};
use uverbs_soft::memory::{BufferMemory, HostMemory, PageMap};
use uverbs_soft::packet::Gid;
use uverbs_soft::sim::World;
use zerocopy::{FromBytes, IntoBytes};

const BASE: u64 = 0x10_0000;
const LOG_SEND_BLOCKS: u8 = 8;
const LOG_RECEIVES: u8 = 6;
const LOG_CQES: u8 = 12;

/// The host of one simulated device.
pub(crate) struct Host {
    pub(crate) node: usize,
    pub(crate) memory: Arc<BufferMemory>,
    pd: Pdn,
    next: u64,
}

/// Registered memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) address: u64,
    pub(crate) key: Mkey,
}

/// A CQ and its consumer index.
pub(crate) struct Cq {
    cqn: Cqn,
    ring: u64,
    record: u64,
    consumer: u32,
}

/// A QP and its producer indices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Qp {
    pub(crate) qpn: Qpn,
    send_ring: u64,
    receive_ring: u64,
    record: u64,
    sent: u16,
    received: u16,
}

/// The fields of a CQE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) qpn: Qpn,
    pub(crate) opcode: CqeOpcode,
    pub(crate) index: u16,
    pub(crate) bytes: u32,
    pub(crate) immediate: u32,
    /// Syndrome and vendor syndrome of an error.
    pub(crate) syndrome: [u8; 2],
}

/// The data of a work request.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    Gather(Vec<(u64, u32, Mkey)>),
    Inline(Vec<u8>),
}

/// A work request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) opcode: Opcode,
    pub(crate) signaled: bool,
    pub(crate) fence: bool,
    pub(crate) immediate: u32,
    pub(crate) remote: Option<(u64, Mkey)>,
    /// Swap or add, and compare.
    pub(crate) atomic: Option<(u64, u64)>,
    pub(crate) data: Data,
}

impl Request {
    fn encode(&self, qpn: Qpn, index: u16) -> Vec<u8> {
        let mut segments = Vec::new();
        if let Some((address, key)) = self.remote {
            segments.extend_from_slice(RemoteAddressSegment::new(address, key.0).as_bytes());
        }
        if let Some((swap_add, compare)) = self.atomic {
            let atomic = AtomicSegment { swap_add: swap_add.into(), compare: compare.into() };
            segments.extend_from_slice(atomic.as_bytes());
        }
        match &self.data {
            Data::Gather(sges) => sges.iter().for_each(|(address, len, key)| {
                segments.extend_from_slice(DataSegment::new(*address, *len, key.0).as_bytes());
            }),
            Data::Inline(bytes) => {
                segments.extend_from_slice(InlineHeader::new(bytes.len() as u32).as_bytes());
                segments.extend_from_slice(bytes);
            }
        }
        let ds = (segments.len().div_ceil(16) + 1) as u8;
        let mut wqe = self.control(qpn, index, ds).as_bytes().to_vec();
        wqe.extend_from_slice(&segments);
        wqe.resize(wqe.len().next_multiple_of(WQEBB_SIZE), 0);
        wqe
    }

    fn control(&self, qpn: Qpn, index: u16, ds: u8) -> ControlSegment {
        let signaled = if self.signaled { ControlFlags::COMPLETION } else { ControlFlags::NONE };
        let flags = if self.fence { signaled.with_fence(Fence::FENCE) } else { signaled };
        ControlSegment::new(self.opcode, index, qpn.0, ds, flags, U32::new(self.immediate))
    }

    /// Its length in blocks of the send ring.
    pub(crate) fn blocks(&self) -> u16 {
        (self.encode(Qpn(0), 0).len() / WQEBB_SIZE) as u16
    }
}

impl Host {
    /// Blocks of a send ring.
    pub(crate) const SEND_BLOCKS: u16 = 1 << LOG_SEND_BLOCKS;

    /// Receives that can be posted at once.
    pub(crate) const RECEIVES: usize = 1 << LOG_RECEIVES;

    pub(crate) fn new(world: &mut World, node: usize, memory: Arc<BufferMemory>) -> Self {
        let pd = world.core(node).create_pd().unwrap();
        Self { node, memory, pd, next: BASE }
    }

    /// Memory for a host, at the bus address that it expects.
    pub(crate) fn memory(len: usize) -> Arc<BufferMemory> {
        Arc::new(BufferMemory::new(BASE, len))
    }

    pub(crate) fn alloc(&mut self, len: u64) -> u64 {
        let address = self.next;
        self.next += len.next_multiple_of(64);
        address
    }

    pub(crate) fn region(&mut self, world: &mut World, len: u64) -> Region {
        let address = self.alloc(len);
        let all = Access::LOCAL_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_WRITE
            | Access::REMOTE_ATOMIC;
        let params = MkeyParams::region(self.pd, address, len, all, PageMap::linear(address));
        Region { address, key: world.core(self.node).create_mkey(params).unwrap() }
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        self.memory.write(address, bytes).unwrap();
    }

    pub(crate) fn read(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(address, &mut bytes).unwrap();
        bytes
    }

    pub(crate) fn cq(&mut self, world: &mut World) -> Cq {
        let ring = self.alloc(64 << LOG_CQES);
        for slot in 0..1 << LOG_CQES {
            self.write(ring + slot * 64, Cqe::unwritten().as_bytes());
        }
        let record = self.alloc(8);
        let buffer = PageMap::linear(ring);
        let params = CqParams {
            ring: CqRing { buffer, log_entries: LOG_CQES, cqe_size: CqeSize::B64 },
            doorbell_record: record,
            ignore_overrun: false,
            moderation: Moderation::default(),
        };
        let cqn = world.core(self.node).create_cq(params).unwrap();
        Cq { cqn, ring, record, consumer: 0 }
    }

    pub(crate) fn qp(&mut self, world: &mut World, cq: &Cq) -> Qp {
        let send_ring = self.alloc(64 << LOG_SEND_BLOCKS);
        let receive_ring = self.alloc(16 << LOG_RECEIVES);
        let record = self.alloc(8);
        let mut params = QpParams::new(QpType::Rc, self.pd, cq.cqn, cq.cqn);
        let buffer = PageMap::linear(send_ring);
        params.send_ring = Some(SendRing { buffer, log_blocks: LOG_SEND_BLOCKS });
        params.receive = ReceiveSource::Ring(ReceiveRing {
            buffer: PageMap::linear(receive_ring),
            log_wqes: LOG_RECEIVES,
            log_stride: 4,
        });
        params.doorbell_record = record;
        let qpn = world.core(self.node).create_qp(params).unwrap();
        Qp { qpn, send_ring, receive_ring, record, sent: 0, received: 0 }
    }

    pub(crate) fn connect(&self, world: &mut World, qp: &Qp, peer: (Gid, Qpn), mtu: Mtu) {
        let path = AddressPath {
            global: true,
            destination_gid: peer.0,
            hop_limit: 64,
            port: 1,
            ..AddressPath::default()
        };
        let attributes = QpAttributes {
            remote_rights: Some(RemoteRights::all()),
            pkey_index: Some(0),
            path: Some(path),
            mtu: Some(mtu),
            destination_qpn: Some(peer.1.0),
            // Near the largest PSN, so that PSNs wrap in every run.
            receive_psn: Some(0xff_fff0),
            send_psn: Some(0xff_fff0),
            max_read_atomic: Some(4),
            max_destination_read_atomic: Some(4),
            min_rnr_timer: Some(1),
            // 16.8 ms, far longer than any simulated network needs for an answer.
            ack_timeout: Some(12),
            retry_count: Some(7),
            rnr_retry: Some(7),
            ..QpAttributes::default()
        };
        let core = world.core(self.node);
        core.modify_qp(qp.qpn, QpState::Init, &QpAttributes::default()).unwrap();
        core.modify_qp(qp.qpn, QpState::ReadyToReceive, &attributes).unwrap();
        core.modify_qp(qp.qpn, QpState::ReadyToSend, &QpAttributes::default()).unwrap();
    }

    /// Posts without a doorbell; returns the index that the completion will have.
    pub(crate) fn post(&self, qp: &mut Qp, request: &Request) -> u16 {
        let index = qp.sent;
        for block in request.encode(qp.qpn, index).chunks(WQEBB_SIZE) {
            let slot = u64::from(qp.sent % Self::SEND_BLOCKS);
            self.write(qp.send_ring + slot * WQEBB_SIZE as u64, block);
            qp.sent = qp.sent.wrapping_add(1);
        }
        index
    }

    pub(crate) fn ring(&self, world: &mut World, qp: &Qp) {
        self.write(qp.record + 4, &u32::from(qp.sent).to_be_bytes());
        world.core(self.node).ring_sq(qp.qpn).unwrap();
    }

    pub(crate) fn post_receive(&self, qp: &mut Qp, address: u64, len: u32, key: Mkey) {
        let slot = u64::from(qp.received) % Self::RECEIVES as u64;
        let segment = DataSegment::new(address, len, key.0);
        self.write(qp.receive_ring + slot * 16, segment.as_bytes());
        qp.received = qp.received.wrapping_add(1);
        self.write(qp.record, &u32::from(qp.received).to_be_bytes());
    }

    pub(crate) fn poll(&self, cq: &mut Cq) -> Option<Done> {
        let slot = u64::from(cq.consumer % (1 << LOG_CQES));
        let raw = self.read(cq.ring + slot * 64, 64);
        let cqe = Cqe::read_from_bytes(&raw).unwrap();
        if !cqe.op_own.is_software(cq.consumer, LOG_CQES.into()) {
            return None;
        }
        cq.consumer = (cq.consumer + 1) & 0xff_ffff;
        self.write(cq.record, &cq.consumer.to_be_bytes());
        Some(Done {
            qpn: Qpn(cqe.qpn()),
            opcode: cqe.op_own.opcode(),
            index: cqe.wqe_counter.get(),
            bytes: cqe.byte_count.get(),
            immediate: cqe.immediate.get(),
            syndrome: [raw[55], raw[54]],
        })
    }
}
