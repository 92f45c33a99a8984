//! Reads a send WQE: turns bytes of a ring into a checked work request.

use uverbs_mlx5_format::{
    AddressVector, AtomicSegment, ControlFlags, ControlSegment, DataSegment, EthSegment,
    INLINE_FLAG, InlineHeader, MaskedCompareSwap32, MaskedCompareSwap64, MaskedFetchAdd32,
    MaskedFetchAdd64, OCTOWORD, Opcode, RemoteAddressSegment, TagMatchingSegment, WQEBB_SIZE,
    XrcSegment, extended_atomic_size,
};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::atomic::AtomicRequest;
use super::syndrome::Failure;
use super::tag::Offload;
use super::{QpType, SendRing};
use crate::memory::{BusError, HostMemory};
use crate::packet::Psn;

/// A scatter/gather entry: local memory, or bytes of the WQE itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sge {
    /// Address in the space of `lkey`; without an lkey, offset in the WQE's inline data.
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) lkey: Option<u32>,
}

impl Sge {
    /// The entry of a data segment. A byte count of 0 means 2 GiB (unconfirmed by a public source).
    pub(super) fn new(segment: &DataSegment) -> Self {
        let len = match segment.byte_count.get() {
            0 => 1 << 31,
            len => len,
        };
        Self { address: segment.address.get(), len, lkey: Some(segment.lkey.get()) }
    }
}

/// A send WQE that was read from the ring, and the progress of its execution.
///
/// Everything that execution and retransmission need is copied, because the host's program may
/// write to the ring at any time.
#[derive(Debug, Default)]
pub(super) struct SendWqe {
    pub(super) index: u16,
    pub(super) blocks: u16,
    pub(super) opcode: Opcode,
    pub(super) flags: ControlFlags,
    /// The control segment's last word: immediate, rkey to invalidate, or mkey to change.
    pub(super) immediate: [u8; 4],
    pub(super) remote_address: u64,
    pub(super) rkey: u32,
    pub(super) atomic: AtomicRequest,
    pub(super) srqn: u32,
    pub(super) address_vector: AddressVector,
    /// In the order of the WQE.
    pub(super) sges: Vec<Sge>,
    /// The bytes of all inline segments.
    pub(super) inline: Vec<u8>,
    /// Raw packet: the Ethernet segment, and the inline header of the frame or of all segments.
    pub(super) ethernet: EthSegment,
    pub(super) header: Vec<u8>,
    /// The segments of a UMR, as they are in the WQE.
    pub(super) umr: Vec<u8>,
    /// A change of a tag list. The buffer of a new entry is in `sges`.
    pub(super) tag_change: TagMatchingSegment,
    /// Bytes of the message, or of the memory that it reads.
    pub(super) len: u64,

    pub(super) first_psn: Psn,
    /// The number of its PSNs: request packets, or response packets for a READ.
    pub(super) packets: u32,
    /// PSNs from the first one on that are acknowledged, or whose responses arrived in order.
    pub(super) confirmed: u32,
    pub(super) outcome: Option<Result<(), Failure>>,
    /// Whether this is the CONNECT of a DC initiator, which belongs to no WQE of the host.
    pub(super) connects: bool,
    /// Present if the device made this request for a rendezvous.
    pub(super) offload: Option<Offload>,
}

impl SendWqe {
    /// Resets every field; the buffers keep their allocations.
    pub(super) fn clear(&mut self) {
        let Self { mut sges, mut inline, mut umr, mut header, .. } = std::mem::take(self);
        sges.clear();
        inline.clear();
        umr.clear();
        header.clear();
        *self = Self { sges, inline, umr, header, ..Self::default() };
    }

    pub(super) fn is_read_or_atomic(&self) -> bool {
        self.opcode == Opcode::RDMA_READ || self.opcode.is_atomic()
    }

    /// Whether it is executed without a packet.
    pub(super) fn is_local(&self) -> bool {
        matches!(self.opcode, Opcode::NOP | Opcode::UMR | Opcode::TAG_MATCHING)
    }

    /// Reads the WQE at `place`, whose blocks are posted from there on.
    ///
    /// On failure, `index` and `blocks` give the position of the next WQE if it can be determined,
    /// and `opcode` and `flags` hold the values that could be read.
    pub(super) fn read(
        &mut self,
        memory: &dyn HostMemory,
        ring: &SendRing,
        place: Place,
    ) -> Result<(), Failure> {
        self.clear();
        self.index = place.index;
        self.blocks = 1;
        let mut bytes = [0u8; MAX_WQE];
        let (first, rest) = bytes.split_at_mut(WQEBB_SIZE);
        ring.read_block(memory, place.index, first).map_err(|_| Failure::RING)?;
        let control = ControlSegment::read_from_prefix(first).map_err(|_| Failure::SEGMENT)?.0;
        self.opcode = control.opcode();
        self.flags = control.flags;
        self.immediate.copy_from_slice(&first[12..16]);
        self.check_place(&control, place)?;
        for (n, block) in
            rest.chunks_exact_mut(WQEBB_SIZE).enumerate().take(self.blocks as usize - 1)
        {
            let index = place.index.wrapping_add(n as u16 + 1);
            ring.read_block(memory, index, block).map_err(|_| Failure::RING)?;
        }
        let len = usize::from(control.ds()) * OCTOWORD;
        self.parse(&bytes[size_of::<ControlSegment>()..len], control.opcode_modifier(), place)
    }

    /// Checks index, QP number and size, and stores the number of blocks.
    fn check_place(&mut self, control: &ControlSegment, place: Place) -> Result<(), Failure> {
        if control.index() != place.index || control.qpn() != place.qpn {
            return Err(Failure::WQE_PLACE);
        }
        let blocks = u16::from(control.ds()).div_ceil(4);
        if blocks == 0 || blocks > place.posted {
            return Err(Failure::WQE_SIZE);
        }
        self.blocks = blocks;
        Ok(())
    }

    fn parse(&mut self, bytes: &[u8], modifier: u8, place: Place) -> Result<(), Failure> {
        if !is_allowed(self.opcode, place.qp_type) {
            return Err(Failure::OPCODE);
        }
        if self.opcode == Opcode::UMR {
            self.umr.extend_from_slice(bytes);
            return Ok(());
        }
        if self.opcode == Opcode::NOP {
            return Ok(());
        }
        let mut segments = Segments(bytes);
        if self.opcode == Opcode::TAG_MATCHING {
            return self.parse_tag_change(segments);
        }
        match place.qp_type {
            QpType::XrcInitiator => {
                self.srqn = segments.take::<XrcSegment>()?.srqn.get() & 0xff_ffff;
            }
            QpType::Ud | QpType::DcInitiator => self.address_vector = segments.address_vector()?,
            QpType::RawPacket => self.ethernet = segments.ethernet(&mut self.header)?,
            QpType::Rc | QpType::Uc | QpType::XrcTarget | QpType::DcTarget | QpType::RegUmr => {}
        }
        if self.opcode.has_remote_address() {
            let remote = segments.take::<RemoteAddressSegment>()?;
            self.remote_address = remote.address.get();
            self.rkey = remote.rkey.get();
        }
        if self.opcode.is_atomic() {
            self.atomic = segments.atomic(self.opcode, modifier)?;
        }
        self.parse_data(segments)
    }

    fn parse_tag_change(&mut self, mut segments: Segments<'_>) -> Result<(), Failure> {
        self.tag_change = segments.take()?;
        if self.tag_change.operation & 0xf0 != TagMatchingSegment::OPERATION_APPEND {
            return Ok(());
        }
        let buffer = segments.take::<DataSegment>()?;
        if buffer.byte_count.get() & INLINE_FLAG != 0 || !segments.0.is_empty() {
            return Err(Failure::SEGMENT);
        }
        if !buffer.is_terminator() {
            self.sges.push(Sge::new(&buffer));
        }
        Ok(())
    }

    fn parse_data(&mut self, mut segments: Segments<'_>) -> Result<(), Failure> {
        while !segments.0.is_empty() {
            let head = InlineHeader::read_from_prefix(segments.0).map_err(|_| Failure::SEGMENT)?.0;
            if head.byte_count.get() & INLINE_FLAG == 0 {
                let segment = segments.take::<DataSegment>()?;
                self.sges.push(Sge::new(&segment));
                continue;
            }
            // A READ or an atomic cannot store its result in the WQE.
            if self.is_read_or_atomic() {
                return Err(Failure::SEGMENT);
            }
            let (address, len) = (self.inline.len() as u64, head.length());
            self.inline.extend_from_slice(segments.inline(len)?);
            self.sges.push(Sge { address, len, lkey: None });
        }
        self.len = self.sges.iter().map(|sge| u64::from(sge.len)).sum();
        if self.opcode.is_atomic() && self.len != u64::from(self.atomic.size) {
            return Err(Failure::TOO_LONG);
        }
        Ok(())
    }
}

/// The queue and position at which a WQE is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) qpn: u32,
    pub(super) qp_type: QpType,
    pub(super) index: u16,
    /// Blocks posted from `index` on.
    pub(super) posted: u16,
}

/// Most bytes of a send WQE: 63 octowords, rounded up to whole blocks.
const MAX_WQE: usize = 1024;

impl SendRing {
    fn read_block(
        &self,
        memory: &dyn HostMemory,
        index: u16,
        into: &mut [u8],
    ) -> Result<(), BusError> {
        let slot = u64::from(index) & ((1 << self.log_blocks) - 1);
        self.buffer.read(memory, slot * WQEBB_SIZE as u64, into)
    }
}

fn is_allowed(opcode: Opcode, qp_type: QpType) -> bool {
    let local = matches!(opcode, Opcode::NOP | Opcode::UMR);
    let unreliable = matches!(
        opcode,
        Opcode::SEND | Opcode::SEND_IMMEDIATE | Opcode::RDMA_WRITE | Opcode::RDMA_WRITE_IMMEDIATE
    );
    match qp_type {
        QpType::Rc if opcode == Opcode::TAG_MATCHING => true,
        QpType::Rc | QpType::XrcInitiator | QpType::DcInitiator => {
            local || opcode.has_remote_address() || opcode.is_send()
        }
        QpType::Uc => local || unreliable,
        QpType::Ud => matches!(opcode, Opcode::NOP | Opcode::SEND | Opcode::SEND_IMMEDIATE),
        QpType::RegUmr => local,
        QpType::RawPacket => matches!(opcode, Opcode::NOP | Opcode::SEND | Opcode::TSO),
        QpType::XrcTarget | QpType::DcTarget => false,
    }
}

/// The segments of a WQE that have not been parsed.
pub(super) struct Segments<'a>(pub(super) &'a [u8]);

impl<'a> Segments<'a> {
    pub(super) fn take<T>(&mut self) -> Result<T, Failure>
    where
        T: FromBytes + KnownLayout + Immutable + Unaligned + Copy,
    {
        let (segment, rest) = T::read_from_prefix(self.0).map_err(|_| Failure::SEGMENT)?;
        self.0 = rest;
        Ok(segment)
    }

    /// The short form of an address vector has only its first 16 bytes.
    fn address_vector(&mut self) -> Result<AddressVector, Failure> {
        let (base, _) =
            self.0.split_at_checked(AddressVector::BASE_SIZE).ok_or(Failure::SEGMENT)?;
        let mut whole = [0; size_of::<AddressVector>()];
        whole[..base.len()].copy_from_slice(base);
        let short = AddressVector::read_from_bytes(&whole).map_err(|_| Failure::SEGMENT)?;
        if short.is_extended() {
            return self.take();
        }
        self.0 = &self.0[AddressVector::BASE_SIZE..];
        Ok(short)
    }

    fn inline(&mut self, len: u32) -> Result<&'a [u8], Failure> {
        let size = InlineHeader::segment_ds(len) as usize * OCTOWORD;
        let (segment, rest) = self.0.split_at_checked(size).ok_or(Failure::SEGMENT)?;
        self.0 = rest;
        segment.get(4..4 + len as usize).ok_or(Failure::SEGMENT)
    }

    fn atomic(&mut self, opcode: Opcode, modifier: u8) -> Result<AtomicRequest, Failure> {
        match opcode {
            Opcode::ATOMIC_COMPARE_SWAP => {
                let AtomicSegment { swap_add, compare } = self.take()?;
                Ok(AtomicRequest::compare_swap(compare.get(), swap_add.get()))
            }
            Opcode::ATOMIC_FETCH_ADD => {
                let AtomicSegment { swap_add, .. } = self.take()?;
                Ok(AtomicRequest::fetch_add(swap_add.get()))
            }
            _ => self.masked_atomic(opcode, extended_atomic_size(modifier)),
        }
    }

    fn masked_atomic(
        &mut self,
        opcode: Opcode,
        size: Option<usize>,
    ) -> Result<AtomicRequest, Failure> {
        let swaps = opcode == Opcode::ATOMIC_MASKED_COMPARE_SWAP;
        Ok(match (swaps, size) {
            (true, Some(4)) => {
                let s: MaskedCompareSwap32 = self.take()?;
                AtomicRequest {
                    size: 4,
                    swap_add: s.swap.get().into(),
                    compare: s.compare.get().into(),
                    swap_mask: s.swap_mask.get().into(),
                    compare_mask: s.compare_mask.get().into(),
                    ..AtomicRequest::compare_swap(0, 0)
                }
            }
            (true, Some(8) | None) => {
                let s: MaskedCompareSwap64 = self.take()?;
                AtomicRequest {
                    swap_mask: s.swap_mask.get(),
                    compare_mask: s.compare_mask.get(),
                    ..AtomicRequest::compare_swap(s.compare.get(), s.swap.get())
                }
            }
            (false, Some(4)) => {
                let s: MaskedFetchAdd32 = self.take()?;
                AtomicRequest {
                    size: 4,
                    boundary: s.field_boundary.get().into(),
                    ..AtomicRequest::fetch_add(s.add.get().into())
                }
            }
            (false, Some(8) | None) => {
                let s: MaskedFetchAdd64 = self.take()?;
                let boundary = s.field_boundary.get();
                AtomicRequest { boundary, ..AtomicRequest::fetch_add(s.add.get()) }
            }
            _ => return Err(Failure::OPCODE),
        })
    }
}
