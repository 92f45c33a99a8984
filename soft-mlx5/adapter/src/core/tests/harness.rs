//! A host for the engine: memory, queues with a driver's layout, and wires between devices.

use std::sync::Arc;

use uverbs_mlx5_format::{
    ControlSegment, Cqe, CqeFormat, CqeOpcode, DataSegment, ErrorCqe, Opcode, Syndrome, U32,
    WQEBB_SIZE,
};
use zerocopy::{FromBytes, IntoBytes};

pub(super) use super::wr::Wr;
use crate::core::*;
use crate::memory::{BufferMemory, HostMemory, PageMap};
use crate::packet::{Gid, Packet};

pub(super) const MEMORY_BASE: u64 = 0x10_0000;

/// A device and its host's memory.
pub(super) struct Host {
    pub(super) core: Core,
    pub(super) memory: Arc<BufferMemory>,
    next: u64,
    pub(super) pd: Pdn,
    pub(super) gid: Gid,
}

#[derive(Clone, Debug)]
pub(super) struct CqHandle {
    pub(super) cqn: Cqn,
    pub(super) ring: u64,
    pub(super) record: u64,
    pub(super) log: u8,
    pub(super) size: CqeSize,
    pub(super) consumer: u32,
    pub(super) arm_sequence: u8,
}

#[derive(Clone, Debug)]
pub(super) struct QpHandle {
    pub(super) qpn: Qpn,
    pub(super) send_ring: u64,
    pub(super) log_blocks: u8,
    pub(super) receive_ring: u64,
    pub(super) record: u64,
    pub(super) sent: u16,
    pub(super) received: u16,
}

#[derive(Clone, Debug)]
pub(super) struct SrqHandle {
    pub(super) order: SrqOrder,
    pub(super) srqn: Srqn,
    pub(super) ring: u64,
    pub(super) record: u64,
    pub(super) posted: u16,
    pub(super) log: u8,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    pub(super) address: u64,
    pub(super) len: u64,
    pub(super) key: Mkey,
}

/// A completion that the host has polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) opcode: CqeOpcode,
    pub(super) syndrome: Option<Syndrome>,
    pub(super) qpn: u32,
    pub(super) user_index: u32,
    pub(super) index: u16,
    pub(super) bytes: u32,
    pub(super) immediate: u32,
    pub(super) remote_qpn: u32,
    pub(super) wqe_opcode: Opcode,
    pub(super) grh: bool,
    pub(super) solicited: bool,
    pub(super) inline: Vec<u8>,
}

pub(super) const LOG_STRIDE: u8 = 6;
pub(super) const LOG_RECEIVES: u8 = 6;
pub(super) const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC);

impl Host {
    pub(super) fn new(number: u8) -> Self {
        Self::with(number, CoreConfig::default())
    }

    pub(super) fn with(number: u8, mut config: CoreConfig) -> Self {
        let gid = Gid::from_ipv4([127, 0, 0, number].into());
        config.gids = vec![gid];
        config.lid = u16::from(number);
        config.seed.get_or_insert(number.into());
        let memory = Arc::new(BufferMemory::new(MEMORY_BASE, 16 << 20));
        let mut core = Core::new(config, memory.clone());
        let pd = core.create_pd().unwrap();
        Self { core, memory, next: MEMORY_BASE, pd, gid }
    }

    pub(super) fn alloc(&mut self, len: u64) -> u64 {
        let at = self.next;
        self.next += len.next_multiple_of(4096);
        at
    }

    pub(super) fn region(&mut self, len: u64, access: Access) -> Region {
        let address = self.alloc(len);
        self.region_at(address, len, access)
    }

    pub(super) fn region_at(&mut self, address: u64, len: u64, access: Access) -> Region {
        let map = PageMap::linear(address);
        let params = MkeyParams::region(self.pd, address, len, access | Access::UMR, map);
        Region { address, len, key: self.core.create_mkey(params).unwrap() }
    }

    pub(super) fn memory_write(&self, address: u64, bytes: &[u8]) {
        self.memory.write(address, bytes).unwrap();
    }

    pub(super) fn fill(&self, region: Region, seed: u8) -> Vec<u8> {
        let data: Vec<u8> = (0..region.len).map(|i| (i as u8).wrapping_mul(31) ^ seed).collect();
        self.memory.write(region.address, &data).unwrap();
        data
    }

    pub(super) fn bytes(&self, address: u64, len: u64) -> Vec<u8> {
        let mut data = vec![0; len as usize];
        self.memory.read(address, &mut data).unwrap();
        data
    }

    pub(super) fn cq(&mut self, log: u8) -> CqHandle {
        self.cq_with(log, CqeSize::B64, Moderation::default())
    }

    pub(super) fn cq_with(&mut self, log: u8, size: CqeSize, moderation: Moderation) -> CqHandle {
        let ring = self.new_cq_ring(log, size);
        let record = self.alloc(8);
        let params = CqParams {
            ring: CqRing { buffer: PageMap::linear(ring), log_entries: log, cqe_size: size },
            doorbell_record: record,
            ignore_overrun: false,
            moderation,
        };
        let cqn = self.core.create_cq(params).unwrap();
        CqHandle { cqn, ring, record, log, size, consumer: 0, arm_sequence: 0 }
    }

    pub(super) fn new_cq_ring(&mut self, log: u8, size: CqeSize) -> u64 {
        let ring = self.alloc(size.bytes() << log);
        for slot in 0..1u64 << log {
            let last = ring + (slot + 1) * size.bytes() - 64;
            self.memory.write(last, Cqe::unwritten().as_bytes()).unwrap();
        }
        ring
    }

    /// Allocates the rings of a QP. The caller fills in the other parameters.
    pub(super) fn qp_params(
        &mut self,
        qp_type: QpType,
        send: &CqHandle,
        receive: &CqHandle,
    ) -> QpParams {
        let mut params = QpParams::new(qp_type, self.pd, send.cqn, receive.cqn);
        let ring = self.alloc(64 << 8);
        params.send_ring = Some(SendRing { buffer: PageMap::linear(ring), log_blocks: 8 });
        let ring = self.alloc(1 << (LOG_RECEIVES + LOG_STRIDE));
        params.receive = ReceiveSource::Ring(ReceiveRing {
            buffer: PageMap::linear(ring),
            log_wqes: LOG_RECEIVES,
            log_stride: LOG_STRIDE,
        });
        params.doorbell_record = self.alloc(8);
        params.user_index = 0x1234;
        params
    }

    pub(super) fn create(&mut self, params: QpParams) -> QpHandle {
        let base = |map: &PageMap| map.locate(0, 1).unwrap().0;
        let send = params.send_ring.clone();
        let receive_ring = match &params.receive {
            ReceiveSource::Ring(ring) => base(&ring.buffer),
            _ => 0,
        };
        let record = params.doorbell_record;
        let send_ring = send.as_ref().map_or(0, |send| base(&send.buffer));
        let qpn = self.core.create_qp(params).unwrap();
        let log_blocks = send.map_or(0, |send| send.log_blocks);
        QpHandle { qpn, send_ring, log_blocks, receive_ring, record, sent: 0, received: 0 }
    }

    pub(super) fn qp(&mut self, qp_type: QpType, cq: &CqHandle) -> QpHandle {
        let params = self.qp_params(qp_type, cq, cq);
        self.create(params)
    }

    pub(super) fn srq(&mut self, log: u8, xrc: Option<XrcSrqParams>) -> SrqHandle {
        self.srq_with(log, |params| params.xrc = xrc)
    }

    pub(super) fn tag_srq(&mut self, log: u8, tags: TagParams) -> SrqHandle {
        self.srq_with(log, |params| params.tags = Some(tags))
    }

    pub(super) fn ordered_srq(&mut self, log: u8, order: SrqOrder) -> SrqHandle {
        self.srq_with(log, |params| params.order = order)
    }

    fn srq_with(&mut self, log: u8, change: impl FnOnce(&mut SrqParams)) -> SrqHandle {
        let ring = self.alloc(1 << (log + LOG_STRIDE));
        for slot in 0..1u64 << log {
            let next = (slot as u16 + 1) & ((1 << log) - 1);
            self.memory.write(ring + (slot << LOG_STRIDE) + 2, &next.to_be_bytes()).unwrap();
        }
        let record = self.alloc(4);
        let mut params = SrqParams {
            pd: self.pd,
            buffer: PageMap::linear(ring),
            order: SrqOrder::Linked,
            log_wqes: log,
            log_stride: LOG_STRIDE,
            doorbell_record: record,
            xrc: None,
            tags: None,
            limit: 0,
        };
        change(&mut params);
        let order = params.order;
        let srqn = self.core.create_srq(params).unwrap();
        SrqHandle { srqn, ring, record, posted: 0, log, order }
    }

    /// The attributes of a connected pair unless a test changes them.
    pub(super) fn attributes(&self, peer: Gid, peer_qpn: Qpn) -> QpAttributes {
        QpAttributes {
            remote_rights: Some(RemoteRights::all()),
            pkey_index: Some(0),
            path: Some(AddressPath {
                global: true,
                destination_gid: peer,
                hop_limit: 64,
                port: 1,
                ..AddressPath::default()
            }),
            mtu: Some(Mtu::M1024),
            destination_qpn: Some(peer_qpn.0),
            receive_psn: Some(100),
            send_psn: Some(100),
            max_read_atomic: Some(4),
            max_destination_read_atomic: Some(4),
            min_rnr_timer: Some(1),
            ack_timeout: Some(14),
            retry_count: Some(7),
            rnr_retry: Some(7),
            ..QpAttributes::default()
        }
    }

    pub(super) fn make_rts(&mut self, qp: &QpHandle, attributes: &QpAttributes) {
        self.make_rtr(qp, attributes);
        self.core.modify_qp(qp.qpn, QpState::ReadyToSend, &QpAttributes::default()).unwrap();
    }

    pub(super) fn make_rtr(&mut self, qp: &QpHandle, attributes: &QpAttributes) {
        self.core.modify_qp(qp.qpn, QpState::Init, &QpAttributes::default()).unwrap();
        self.core.modify_qp(qp.qpn, QpState::ReadyToReceive, attributes).unwrap();
    }

    pub(super) fn state(&self, qp: &QpHandle) -> QpState {
        self.core.query_qp(qp.qpn).unwrap().state
    }

    /// Writes a send WQE of these segments, without the doorbell.
    pub(super) fn write_send(&mut self, qp: &mut QpHandle, wr: &Wr) -> u16 {
        let index = qp.sent;
        let segments = wr.segments();
        let ds = (segments.len().div_ceil(16) + 1) as u8;
        let control = ControlSegment::new(
            wr.opcode,
            index,
            qp.qpn.0,
            ds,
            wr.flags,
            U32::from_bytes(wr.immediate),
        );
        let mut bytes = control.as_bytes().to_vec();
        bytes[0] = wr.modifier;
        bytes.extend_from_slice(&segments);
        bytes.resize(bytes.len().next_multiple_of(WQEBB_SIZE), 0);
        for block in bytes.chunks(WQEBB_SIZE) {
            let slot = u64::from(qp.sent) & ((1 << qp.log_blocks) - 1);
            self.memory.write(qp.send_ring + slot * WQEBB_SIZE as u64, block).unwrap();
            qp.sent = qp.sent.wrapping_add(1);
        }
        index
    }

    pub(super) fn ring(&mut self, qp: &QpHandle) {
        self.memory.write(qp.record + 4, &u32::from(qp.sent).to_be_bytes()).unwrap();
        self.core.ring_sq(qp.qpn).unwrap();
    }

    pub(super) fn post(&mut self, qp: &mut QpHandle, wr: &Wr) -> u16 {
        let index = self.write_send(qp, wr);
        self.ring(qp);
        index
    }

    pub(super) fn post_receive(&mut self, qp: &mut QpHandle, sges: &[(u64, u32, Mkey)]) {
        let slot = u64::from(qp.received) & ((1 << LOG_RECEIVES) - 1);
        let bytes = scatter_list(sges, 1 << LOG_STRIDE);
        self.memory.write(qp.receive_ring + (slot << LOG_STRIDE), &bytes).unwrap();
        qp.received = qp.received.wrapping_add(1);
        self.memory.write(qp.record, &u32::from(qp.received).to_be_bytes()).unwrap();
    }

    pub(super) fn post_srq(&mut self, srq: &mut SrqHandle, sges: &[(u64, u32, Mkey)]) {
        let slot = u64::from(srq.posted) & ((1 << srq.log) - 1);
        let link = if srq.order == SrqOrder::BasicCyclic { 0 } else { 16 };
        let bytes = scatter_list(sges, (1 << LOG_STRIDE) - link);
        self.memory.write(srq.ring + (slot << LOG_STRIDE) + link as u64, &bytes).unwrap();
        srq.posted = srq.posted.wrapping_add(1);
        self.memory.write(srq.record, &u32::from(srq.posted).to_be_bytes()).unwrap();
    }

    /// The next completion, if there is one.
    pub(super) fn poll(&mut self, cq: &mut CqHandle) -> Option<Done> {
        let slot = u64::from(cq.consumer & ((1 << cq.log) - 1));
        let end = cq.ring + (slot + 1) * cq.size.bytes();
        let cqe = self.poll_cqe(cq)?;
        let raw = cqe.as_bytes();
        let opcode = cqe.op_own.opcode();
        let error = ErrorCqe::read_from_bytes(raw).unwrap();
        let len = cqe.byte_count.get() as usize;
        let inline = match cqe.op_own.format() {
            CqeFormat::INLINE_32 => raw[..len].to_vec(),
            CqeFormat::INLINE_64 => self.bytes(end - 128, len as u64),
            _ => Vec::new(),
        };
        Some(Done {
            opcode,
            syndrome: opcode.is_error().then_some(error.syndrome),
            qpn: cqe.qpn(),
            user_index: cqe.user_index(),
            index: cqe.wqe_counter.get(),
            bytes: cqe.byte_count.get(),
            immediate: cqe.immediate.get(),
            remote_qpn: cqe.flags_remote_qpn.remote_qpn(),
            wqe_opcode: cqe.wqe_opcode(),
            grh: cqe.flags_remote_qpn.grh() != 0,
            solicited: cqe.op_own.is_solicited(),
            inline,
        })
    }

    /// The next CQE, if there is one.
    pub(super) fn poll_cqe(&mut self, cq: &mut CqHandle) -> Option<Cqe> {
        let slot = u64::from(cq.consumer & ((1 << cq.log) - 1));
        let end = cq.ring + (slot + 1) * cq.size.bytes();
        let cqe = Cqe::read_from_bytes(&self.bytes(end - 64, 64)).unwrap();
        if !cqe.op_own.is_software(cq.consumer, cq.log.into()) {
            return None;
        }
        cq.consumer = (cq.consumer + 1) & 0xff_ffff;
        self.memory.write(cq.record, &cq.consumer.to_be_bytes()).unwrap();
        Some(cqe)
    }

    pub(super) fn poll_all(&mut self, cq: &mut CqHandle) -> Vec<Done> {
        std::iter::from_fn(|| self.poll(cq)).collect()
    }

    pub(super) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.core.take_event()).collect()
    }

    pub(super) fn async_events(&mut self) -> Vec<(AsyncKind, EventObject)> {
        let events = self.events().into_iter();
        events
            .filter_map(|event| match event {
                Event::Async { kind, object } => Some((kind, object)),
                Event::Completion { .. } | Event::AccessKeyViolation { .. } => None,
            })
            .collect()
    }

    pub(super) fn arm(&mut self, cq: &CqHandle, solicited_only: bool) {
        let arm = uverbs_mlx5_format::CqArm {
            sequence: cq.arm_sequence,
            solicited_only,
            consumer_index: cq.consumer,
        };
        self.memory.write(cq.record + 4, &arm.word().to_be_bytes()).unwrap();
        self.core.arm_cq(0, cq.cqn).unwrap();
    }
}

fn scatter_list(sges: &[(u64, u32, Mkey)], wqe_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (address, len, key) in sges {
        bytes.extend_from_slice(DataSegment::new(*address, *len, key.0).as_bytes());
    }
    if bytes.len() < wqe_bytes {
        bytes.extend_from_slice(DataSegment::TERMINATOR.as_bytes());
    }
    bytes
}

/// What the wire does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Pass,
    Drop,
    Twice,
    /// Delivered after the next packet.
    Late,
}

/// Devices and the wire between them.
pub(super) struct World {
    pub(super) hosts: Vec<Host>,
    pub(super) now: u64,
    /// Number of packets delivered over the wire.
    pub(super) crossed: u64,
}

impl World {
    pub(super) fn new(hosts: usize) -> Self {
        let hosts = (1..=hosts).map(|number| Host::new(number as u8)).collect();
        Self { hosts, now: 0, crossed: 0 }
    }

    /// Connects the queue pairs of the first two hosts to each other.
    pub(super) fn connect(
        &mut self,
        qps: &[QpHandle; 2],
        mut attributes: impl FnMut(usize, &mut QpAttributes),
    ) {
        for side in [0, 1] {
            let gid = self.hosts[1 - side].gid;
            let mut wanted = self.hosts[side].attributes(gid, qps[1 - side].qpn);
            attributes(side, &mut wanted);
            self.hosts[side].make_rts(&qps[side], &wanted);
        }
    }

    /// Steps the devices until they have no work. Time does not pass.
    pub(super) fn run_until_idle(&mut self) {
        self.run_until_idle_with(&mut |_| Fate::Pass);
    }

    pub(super) fn run_until_idle_with(&mut self, fate: &mut dyn FnMut(&Packet) -> Fate) {
        let mut late: Option<Packet> = None;
        for _ in 0..1_000_000 {
            let mut busy = false;
            for from in 0..self.hosts.len() {
                let step = self.hosts[from].core.step(self.now, 64);
                busy |= step.more;
                while let Some(packet) = self.hosts[from].core.take_packet() {
                    busy = true;
                    self.crossed += 1;
                    let what = fate(&packet);
                    match what {
                        Fate::Drop => continue,
                        Fate::Twice => self.carry(from, packet.clone()),
                        Fate::Late if late.is_none() => {
                            late = Some(packet);
                            continue;
                        }
                        _ => {}
                    }
                    self.carry(from, packet);
                    if let Some(packet) = late.take() {
                        self.carry(from, packet);
                    }
                }
            }
            if !busy {
                match late.take() {
                    Some(packet) => {
                        let source = packet.addressing.source;
                        let from = self.hosts.iter().position(|host| host.gid == source);
                        self.carry(from.unwrap_or(0), packet);
                    }
                    None => return,
                }
            }
        }
        panic!("the devices never come to rest");
    }

    fn carry(&mut self, from: usize, packet: Packet) {
        let to = packet.addressing;
        for (number, host) in self.hosts.iter_mut().enumerate() {
            let wanted = host.gid == to.destination
                || to.destination.is_multicast()
                || (to.destination_lid != 0
                    && (to.destination_lid == host.core.config().lid
                        || to.destination_lid >= 0xc000));
            if number != from && wanted {
                host.core.receive(self.now, packet.clone());
            }
        }
    }

    /// Advances the clock from deadline to deadline, by at most `nanoseconds`, until no deadline is
    /// left.
    pub(super) fn pass(&mut self, nanoseconds: u64, fate: &mut dyn FnMut(&Packet) -> Fate) {
        let end = self.now + nanoseconds;
        self.run_until_idle_with(fate);
        while let Some(next) = self.next_wake().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.run_until_idle_with(fate);
        }
        self.now = end;
        self.run_until_idle_with(fate);
    }

    pub(super) fn next_wake(&mut self) -> Option<u64> {
        let now = self.now;
        self.hosts.iter_mut().filter_map(|host| host.core.step(now, 0).next_wake).min()
    }
}

/// Two connected QPs of devices 0 and 1, each with one CQ for both directions.
pub(super) struct Pair {
    pub(super) world: World,
    pub(super) qps: [QpHandle; 2],
    pub(super) cqs: [CqHandle; 2],
}

impl Pair {
    pub(super) fn new(qp_type: QpType) -> Self {
        Self::with(qp_type, |_, _| {}, |_, _| {})
    }

    /// As `new`, with this link layer.
    pub(super) fn linked(qp_type: QpType, link: LinkLayer) -> Self {
        let mut world = World::new(0);
        let config = CoreConfig { link, ..CoreConfig::default() };
        world.hosts = vec![Host::with(1, config.clone()), Host::with(2, config)];
        Self::of(
            world,
            qp_type,
            |_, _| {},
            |side, attributes| {
                let path = attributes.path.unwrap_or_default();
                let destination_lid = 2 - side as u16;
                attributes.path = Some(AddressPath { destination_lid, ..path });
            },
        )
    }

    /// As `new`; the closures change the parameters and attributes of each side.
    pub(super) fn with(
        qp_type: QpType,
        params: impl FnMut(usize, &mut QpParams),
        attributes: impl FnMut(usize, &mut QpAttributes),
    ) -> Self {
        Self::of(World::new(2), qp_type, params, attributes)
    }

    pub(super) fn with_attributes(
        qp_type: QpType,
        attributes: impl FnMut(usize, &mut QpAttributes),
    ) -> Self {
        Self::with(qp_type, |_, _| {}, attributes)
    }

    pub(super) fn of(
        mut world: World,
        qp_type: QpType,
        mut params: impl FnMut(usize, &mut QpParams),
        attributes: impl FnMut(usize, &mut QpAttributes),
    ) -> Self {
        let cqs = [0, 1].map(|side| world.hosts[side].cq(8));
        let qps = [0, 1].map(|side| {
            let host = &mut world.hosts[side];
            let mut wanted = host.qp_params(qp_type, &cqs[side], &cqs[side]);
            params(side, &mut wanted);
            host.create(wanted)
        });
        world.connect(&qps, attributes);
        Self { world, qps, cqs }
    }

    pub(super) fn host(&mut self, side: usize) -> &mut Host {
        &mut self.world.hosts[side]
    }

    pub(super) fn post(&mut self, side: usize, wr: &Wr) -> u16 {
        self.world.hosts[side].post(&mut self.qps[side], wr)
    }

    pub(super) fn post_receive(&mut self, side: usize, region: Region) {
        let sge = (region.address, region.len as u32, region.key);
        self.world.hosts[side].post_receive(&mut self.qps[side], &[sge]);
    }

    pub(super) fn poll(&mut self, side: usize) -> Vec<Done> {
        self.world.hosts[side].poll_all(&mut self.cqs[side])
    }

    /// The only completion of a side.
    pub(super) fn one(&mut self, side: usize) -> Done {
        let mut done = self.poll(side);
        assert_eq!(done.len(), 1, "completions of side {side}: {done:?}");
        done.remove(0)
    }

    pub(super) fn state(&self, side: usize) -> QpState {
        self.world.hosts[side].state(&self.qps[side])
    }
}
