//! A software device with queues of every kind in a plain buffer, which a host may change
//! arbitrarily.
//!
//! The memory of queues and keys is separated by gaps, which the device must not change. The retry
//! timeout is 10 us, so that retries end soon.

use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use uverbs_mlx5::format::{Cqe, CqeOpcode};
use uverbs_soft::core::*;
use uverbs_soft::memory::{BufferMemory, HostMemory, PageMap};
use uverbs_soft::packet::{Gid, Packet};
use zerocopy::{FromBytes, IntoBytes};

use crate::frame;

pub(crate) const BASE: u64 = 0x10_0000;
const LENGTH: usize = 128 << 10;
pub(crate) const LOG_BLOCKS: u8 = 4;
pub(crate) const LOG_RECEIVES: u8 = 3;
pub(crate) const LOG_STRIDE: u8 = 6;
/// Bytes of the gap after each block of memory. Gaps are filled with a mark.
const GAP: u64 = 256;
const MARK: u8 = 0x5a;
const QKEY: u32 = 0x1111;
/// The access key of the DC target.
pub(crate) const ACCESS_KEY: u64 = 0x2222;

pub(crate) struct Qp {
    pub(crate) qpn: Qpn,
    pub(crate) qp_type: QpType,
    pub(crate) send_ring: u64,
    pub(crate) receive_ring: u64,
    pub(crate) record: u64,
    pub(crate) peer: u32,
}

pub(crate) struct Cq {
    pub(crate) cqn: Cqn,
    pub(crate) ring: u64,
    pub(crate) record: u64,
    log: u8,
    size: CqeSize,
    pub(crate) consumed: u32,
}

pub(crate) struct Srq {
    pub(crate) srqn: Srqn,
    pub(crate) ring: u64,
    pub(crate) record: u64,
}

#[derive(Clone, Copy)]
pub(crate) struct Key {
    pub(crate) mkey: Mkey,
    pub(crate) address: u64,
    pub(crate) length: u64,
}

pub(crate) struct World {
    pub(crate) core: Core,
    pub(crate) memory: Arc<BufferMemory>,
    next: u64,
    gaps: Vec<u64>,
    pub(crate) now: u64,
    pub(crate) gid: Gid,
    pub(crate) stranger: Gid,
    pds: [Pdn; 2],
    xrcd: Xrcdn,
    pub(crate) qps: Vec<Qp>,
    pub(crate) cqs: Vec<Cq>,
    pub(crate) srqs: Vec<Srq>,
    pub(crate) keys: Vec<Key>,
    flows: Vec<FlowId>,
    /// Whether there is a privileged QP. It may change every key, so the gaps are not checked then.
    privileged: bool,
    /// Packets that the device has sent.
    pub(crate) sent: Vec<Packet>,
    /// The DC session that was created last.
    pub(crate) session: u32,
}

fn refused<T>(result: std::result::Result<T, CoreError>) -> T {
    result.unwrap_or_else(|error| panic!("the device refuses a valid request: {error}"))
}

impl World {
    /// With `remote` the connected QPs' peers are other hosts.
    pub(crate) fn new(u: &mut Unstructured<'_>, remote: bool) -> Result<Self> {
        let gid = Gid::from_ipv4([127, 0, 0, 1].into());
        let stranger = Gid::from_ipv4([127, 0, 0, 2].into());
        let config = CoreConfig {
            gids: vec![gid],
            log_max_message: 14,
            seed: Some(1),
            link: if u.ratio(1, 8)? { LinkLayer::InfiniBand } else { LinkLayer::Ethernet },
            lid: 1,
            ..CoreConfig::default()
        };
        let memory = Arc::new(BufferMemory::new(BASE, LENGTH));
        let mut core = Core::new(config, memory.clone());
        let pds = [refused(core.create_pd()), refused(core.create_pd())];
        let xrcd = refused(core.create_xrcd());
        let mut world = Self {
            core,
            memory,
            next: BASE,
            gaps: Vec::new(),
            now: 0,
            gid,
            stranger,
            pds,
            xrcd,
            qps: Vec::new(),
            cqs: Vec::new(),
            srqs: Vec::new(),
            keys: Vec::new(),
            flows: Vec::new(),
            privileged: u.ratio(1, 8)?,
            sent: Vec::new(),
            session: 0,
        };
        world.alloc(64);
        world.add_cq(5, CqeSize::B64, u.arbitrary()?);
        world.add_cq(4, CqeSize::B128, u.arbitrary()?);
        world.add_keys();
        world.add_srqs();
        world.add_qps(u.arbitrary()?, remote);
        world.add_flows(u)?;
        Ok(world)
    }

    fn alloc(&mut self, length: u64) -> u64 {
        let at = self.next;
        let gap = (at + length).next_multiple_of(64);
        self.write(gap, &[MARK; GAP as usize]);
        self.gaps.push(gap);
        self.next = gap + GAP;
        at
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        self.memory.write(address, bytes).expect("inside the memory");
    }

    pub(crate) fn read<const N: usize>(&self, address: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.memory.read(address, &mut bytes).expect("inside the memory");
        bytes
    }

    fn add_cq(&mut self, log: u8, size: CqeSize, ignore_overrun: bool) {
        let ring = self.alloc(size.bytes() << log);
        for slot in 0..1u64 << log {
            let cqe = ring + (slot + 1) * size.bytes() - 64;
            self.write(cqe, Cqe::unwritten().as_bytes());
        }
        let record = self.alloc(8);
        let buffer = PageMap::linear(ring);
        let cqn = refused(self.core.create_cq(CqParams {
            ring: CqRing { buffer, log_entries: log, cqe_size: size },
            doorbell_record: record,
            ignore_overrun,
            moderation: Moderation::default(),
        }));
        self.cqs.push(Cq { cqn, ring, record, log, size, consumed: 0 });
    }

    /// Regions with all rights, for local reads, for remote reads; one of another protection
    /// domain; windows of both types; a region on top of two others.
    fn add_keys(&mut self) {
        let all = Access::LOCAL_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_WRITE
            | Access::REMOTE_ATOMIC
            | Access::UMR;
        let regions = [
            (0, 4096, all),
            (0, 512, Access::empty()),
            (0, 512, Access::REMOTE_READ),
            (1, 512, all),
        ];
        for (pd, length, access) in regions {
            let address = self.alloc(length);
            let map = PageMap::linear(address);
            let params = MkeyParams::region(self.pds[pd], address, length, access, map);
            self.add_key(params, address, length);
        }
        let whole = self.keys[0];
        for type_2 in [false, true] {
            let params = MkeyParams::window(self.pds[0], type_2);
            self.add_key(params, whole.address, whole.length);
        }
        let entry = |key: Key| KlmEntry { len: 256, mkey: key.mkey, address: key.address };
        let entries = vec![entry(whole), entry(self.keys[2])];
        let mut params = MkeyParams::region(self.pds[0], 0, 512, all, PageMap::linear(0));
        params.translation = Translation::Klm(entries);
        self.add_key(params, 0, 512);
    }

    fn add_key(&mut self, params: MkeyParams, address: u64, length: u64) {
        let mkey = refused(self.core.create_mkey(params));
        self.keys.push(Key { mkey, address, length });
    }

    fn add_srqs(&mut self) {
        for number in 0..2 {
            let ring = self.alloc(1 << (LOG_RECEIVES + LOG_STRIDE));
            for slot in 0..1u64 << LOG_RECEIVES {
                let next = (slot as u16 + 1) & ((1 << LOG_RECEIVES) - 1);
                self.write(ring + (slot << LOG_STRIDE) + 2, &next.to_be_bytes());
            }
            let record = self.alloc(8);
            let xrc = XrcSrqParams { xrcd: self.xrcd, cq: self.cqs[0].cqn, user_index: 77 };
            let srqn = refused(self.core.create_srq(SrqParams {
                pd: self.pds[0],
                buffer: PageMap::linear(ring),
                log_wqes: LOG_RECEIVES,
                log_stride: LOG_STRIDE,
                order: SrqOrder::Linked,
                doorbell_record: record,
                xrc: (number == 1).then_some(xrc),
                tags: None,
                limit: 2,
            }));
            self.srqs.push(Srq { srqn, ring, record });
        }
    }

    fn add_qps(&mut self, scatter: bool, remote: bool) {
        use QpType as T;
        let connected = [T::Rc, T::Rc, T::Uc, T::Uc];
        let others = [T::Ud, T::Ud, T::XrcInitiator, T::XrcTarget, T::RawPacket, T::RawPacket];
        let types = connected.into_iter().chain(others).chain([T::DcInitiator, T::DcTarget]);
        for (index, qp_type) in types.enumerate() {
            self.add_qp(qp_type, index % 2, index == 1 || index == 5, scatter);
        }
        if self.privileged {
            self.add_qp(T::RegUmr, 0, false, false);
        }
        for index in 0..self.qps.len() {
            let peer = self.qps.get(index ^ 1).map_or(0, |peer| peer.qpn.0);
            self.qps[index].peer = if remote { 0x99 } else { peer };
            let gid = if remote { self.stranger } else { self.gid };
            self.connect(index, gid);
        }
    }

    fn add_qp(&mut self, qp_type: QpType, cq: usize, shared: bool, scatter: bool) {
        let (send_ring, receive_ring) =
            (self.alloc(64 << LOG_BLOCKS), self.alloc(1 << (LOG_RECEIVES + LOG_STRIDE)));
        let record = self.alloc(8);
        let (send_cq, receive_cq) = (self.cqs[cq].cqn, self.cqs[1 - cq].cqn);
        let mut params = QpParams::new(qp_type, self.pds[0], send_cq, receive_cq);
        params.send_ring =
            Some(SendRing { buffer: PageMap::linear(send_ring), log_blocks: LOG_BLOCKS });
        params.receive = match qp_type {
            QpType::XrcInitiator | QpType::XrcTarget | QpType::DcInitiator => ReceiveSource::None,
            QpType::DcTarget => ReceiveSource::Srq(self.srqs[0].srqn),
            QpType::Rc | QpType::Uc | QpType::Ud if shared => ReceiveSource::Srq(self.srqs[0].srqn),
            QpType::Rc | QpType::Uc | QpType::Ud | QpType::RegUmr | QpType::RawPacket => {
                ReceiveSource::Ring(ReceiveRing {
                    buffer: PageMap::linear(receive_ring),
                    log_wqes: LOG_RECEIVES,
                    log_stride: LOG_STRIDE,
                })
            }
        };
        params.xrcd = (qp_type == QpType::XrcTarget).then_some(self.xrcd);
        params.access_key = ACCESS_KEY;
        params.doorbell_record = record;
        params.user_index = self.qps.len() as u32;
        params.reserved_lkey = qp_type == QpType::RegUmr;
        params.strip_vlan = cq == 1;
        params.scatter_check_sequence = scatter;
        if scatter {
            params.scatter_requester = ScatterToCqe::B64;
            params.scatter_responder = ScatterToCqe::B64;
        }
        let qpn = refused(self.core.create_qp(params));
        self.qps.push(Qp { qpn, qp_type, send_ring, receive_ring, record, peer: 0 });
    }

    /// Rules for frames, which match a range of the fields, none or all of them.
    fn add_flows(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let raw = |qp: &&Qp| qp.qp_type == QpType::RawPacket;
        let targets: Vec<Qpn> = self.qps.iter().filter(raw).map(|qp| qp.qpn).collect();
        for number in 0..u.int_in_range(0..=4)? {
            let mut mask = FlowFields::default();
            let start = u.int_in_range(0..=size_of::<FlowFields>())?;
            let end = u.int_in_range(start..=size_of::<FlowFields>())?;
            mask.as_mut_bytes()[start..end].fill(0xff);
            let mut value = FlowFields::of(&frame::headers(u)?);
            let bits = value.as_mut_bytes().iter_mut().zip(mask.as_bytes());
            bits.for_each(|(value, mask)| *value &= mask);
            let target = if u.ratio(1, 8)? { None } else { Some(*u.choose(&targets)?) };
            let priority = u.int_in_range(0..=1)?;
            let flow_tag = u.ratio(3, 4)?.then_some(number);
            let passes_on = u.arbitrary()?;
            let rule = FlowRule { priority, value, mask, target, flow_tag, passes_on };
            // The same match with another tag is refused.
            self.flows.extend(self.core.add_flow(rule));
        }
        Ok(())
    }

    fn connect(&mut self, index: usize, gid: Gid) {
        let qp = &self.qps[index];
        let path = AddressPath {
            global: true,
            destination_gid: gid,
            destination_lid: 1,
            hop_limit: 64,
            port: 1,
            ..AddressPath::default()
        };
        let attributes = QpAttributes {
            qkey: (qp.qp_type == QpType::Ud).then_some(QKEY),
            remote_rights: Some(RemoteRights::all()),
            pkey_index: Some(0),
            path: Some(path),
            mtu: Some(Mtu::M256),
            destination_qpn: Some(qp.peer),
            receive_psn: Some(100),
            send_psn: Some(100),
            max_read_atomic: Some(4),
            max_destination_read_atomic: Some(4),
            min_rnr_timer: Some(1),
            ack_timeout: Some(1),
            retry_count: Some(1),
            rnr_retry: Some(1),
            ..QpAttributes::default()
        };
        let qpn = qp.qpn;
        let none = QpAttributes::default();
        let attributes = if qp.qp_type == QpType::RawPacket { none } else { attributes };
        refused(self.core.modify_qp(qpn, QpState::Init, &none));
        refused(self.core.modify_qp(qpn, QpState::ReadyToReceive, &attributes));
        refused(self.core.modify_qp(qpn, QpState::ReadyToSend, &none));
    }

    /// Resets a QP and connects it again.
    pub(crate) fn revive(&mut self, index: usize, remote: bool) {
        let qp = &self.qps[index];
        let gid = if remote { self.stranger } else { self.gid };
        refused(self.core.modify_qp(qp.qpn, QpState::Reset, &QpAttributes::default()));
        self.write(qp.record, &[0; 8]);
        self.connect(index, gid);
    }

    /// Rings the doorbell up to `counter`.
    pub(crate) fn ring(&mut self, index: usize, counter: u16) {
        let (qpn, record) = (self.qps[index].qpn, self.qps[index].record);
        self.write(record + 4, &u32::from(counter).to_be_bytes());
        refused(self.core.ring_sq(qpn));
    }

    /// Runs the device until it is idle or `nanoseconds` have passed. Time stops while it has work.
    pub(crate) fn pass(&mut self, nanoseconds: u64) {
        let end = self.now + nanoseconds;
        for _ in 0..1000 {
            let next = self.run_until_idle();
            match next.filter(|next| *next <= end) {
                Some(next) => self.now = self.now.max(next),
                None => break,
            }
        }
        self.now = end;
        self.run_until_idle();
    }

    fn run_until_idle(&mut self) -> Option<u64> {
        // Nine rings of 16 messages of 2^14 bytes in packets of 256 bytes are 9216 packets, as many
        // acknowledgements, and a retry of each. Two rings of raw packets can be segmented to a
        // byte each, 60 times 4096, which are looped back.
        for _ in 0..20_000 {
            let step = self.core.step(self.now, 64);
            while let Some(packet) = self.core.take_packet() {
                let is_whole = packet.frame().is_some() || packet.view().is_ok();
                assert!(is_whole, "a malformed packet: {packet:?}");
                if let Some(dceth) = packet.view().ok().and_then(|view| view.dceth) {
                    self.session = dceth.session.get();
                }
                match self.sent.len() < 64 {
                    true => self.sent.push(packet),
                    false => self.core.recycle(packet),
                }
            }
            while self.core.take_event().is_some() {}
            if !step.more {
                return step.next_wake;
            }
        }
        panic!("the device never comes to rest");
    }

    /// Polls all completions, and checks that they are well-formed and as many as the device
    /// reports.
    pub(crate) fn poll(&mut self) {
        for index in 0..self.cqs.len() {
            self.poll_one(index);
        }
    }

    fn poll_one(&mut self, index: usize) {
        let (cqn, record) = (self.cqs[index].cqn, self.cqs[index].record);
        let info = refused(self.core.query_cq(cqn));
        if info.ignore_overrun {
            // Completions that were overwritten cannot be counted.
            self.cqs[index].consumed = info.producer_index;
        }
        let Cq { ring, log, size, .. } = self.cqs[index];
        while self.cqs[index].consumed != info.producer_index {
            let consumed = self.cqs[index].consumed;
            let slot = u64::from(consumed) & ((1 << log) - 1);
            let bytes: [u8; 64] = self.read(ring + (slot + 1) * size.bytes() - 64);
            let cqe = Cqe::read_from_bytes(&bytes).expect("64 bytes");
            assert!(cqe.op_own.is_software(consumed, log.into()), "a CQE that is not there");
            self.check(&cqe);
            self.cqs[index].consumed = consumed.wrapping_add(1) & 0xff_ffff;
        }
        self.write(record, &self.cqs[index].consumed.to_be_bytes());
    }

    fn check(&self, cqe: &Cqe) {
        let opcode = cqe.op_own.opcode();
        let known = opcode.is_requester() || opcode.is_responder();
        assert!(known && opcode != CqeOpcode::INVALID, "{opcode}");
        let received = opcode.is_responder() && !opcode.is_error();
        let is_raw = |qp: &&Qp| qp.qp_type == QpType::RawPacket && received;
        // The completion of a frame has the flow tag in place of the QP number.
        let raw = self.qps.get(cqe.user_index() as usize).filter(is_raw);
        let qp = raw.or_else(|| self.qps.iter().find(|qp| qp.qpn.0 == cqe.qpn()));
        let qp = qp.unwrap_or_else(|| panic!("a completion of QP {:#x}", cqe.qpn()));
        let own = self.core.query_qp(qp.qpn).map_or(0, |info| info.params.user_index);
        assert!(cqe.user_index() == own || cqe.user_index() == 77);
        if received {
            assert!(cqe.byte_count.get() <= (1 << 14) + 40, "more than the largest message");
        }
    }

    /// Destroys all objects, and checks that none is left and that no gap has changed.
    pub(crate) fn finish(mut self) {
        self.pass(100_000);
        self.poll();
        for flow in &self.flows {
            refused(self.core.remove_flow(*flow));
        }
        for qp in &self.qps {
            refused(self.core.destroy_qp(qp.qpn));
        }
        for srq in &self.srqs {
            refused(self.core.destroy_srq(srq.srqn));
        }
        for cq in &self.cqs {
            refused(self.core.destroy_cq(cq.cqn));
        }
        for key in &self.keys {
            refused(self.core.destroy_mkey(key.mkey));
        }
        refused(self.core.destroy_xrcd(self.xrcd));
        for pd in self.pds {
            refused(self.core.destroy_pd(pd));
        }
        assert_eq!(self.core.counts(), Default::default(), "objects are left");
        assert!(!self.core.step(self.now, 64).more);
        if !self.privileged {
            self.check_gaps();
        }
    }

    fn check_gaps(&self) {
        for gap in &self.gaps {
            assert_eq!(self.read(*gap), [MARK; GAP as usize], "no write may reach {gap:#x}");
        }
    }
}
