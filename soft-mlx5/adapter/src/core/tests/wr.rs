//! Work requests, encoded independently of the queues that drivers use.

use uverbs_mlx5_format::{
    AddressVector, AtomicSegment, ControlFlags, DataSegment, Fence, InlineHeader, Opcode,
    RemoteAddressSegment, XrcSegment,
};
use zerocopy::IntoBytes;

use super::harness::Region;
use crate::core::Mkey;

/// A work request.
#[derive(Clone, Debug, Default)]
pub(super) struct Wr {
    pub(super) opcode: Opcode,
    pub(super) modifier: u8,
    pub(super) flags: ControlFlags,
    pub(super) immediate: [u8; 4],
    pub(super) xrc: Option<u32>,
    pub(super) address_vector: Option<AddressVector>,
    pub(super) remote: Option<(u64, Mkey)>,
    pub(super) atomic: Option<(u64, u64)>,
    pub(super) raw: Vec<u8>,
    pub(super) sges: Vec<(u64, u32, Mkey)>,
    pub(super) inline: Option<Vec<u8>>,
}

impl Wr {
    pub(super) fn new(opcode: Opcode) -> Self {
        Self { opcode, flags: ControlFlags::COMPLETION, ..Self::default() }
    }

    pub(super) fn send() -> Self {
        Self::new(Opcode::SEND)
    }

    pub(super) fn write(address: u64, key: Mkey) -> Self {
        Self { remote: Some((address, key)), ..Self::new(Opcode::RDMA_WRITE) }
    }

    pub(super) fn read(address: u64, key: Mkey) -> Self {
        Self { remote: Some((address, key)), ..Self::new(Opcode::RDMA_READ) }
    }

    pub(super) fn fetch_add(address: u64, key: Mkey, add: u64) -> Self {
        let wr = Self::new(Opcode::ATOMIC_FETCH_ADD);
        Self { remote: Some((address, key)), atomic: Some((add, 0)), ..wr }
    }

    pub(super) fn compare_swap(address: u64, key: Mkey, compare: u64, swap: u64) -> Self {
        let wr = Self::new(Opcode::ATOMIC_COMPARE_SWAP);
        Self { remote: Some((address, key)), atomic: Some((swap, compare)), ..wr }
    }

    pub(super) fn from(mut self, region: Region, offset: u64, len: u32) -> Self {
        self.sges.push((region.address + offset, len, region.key));
        self
    }

    pub(super) fn to(self, vector: AddressVector) -> Self {
        Self { address_vector: Some(vector), ..self }
    }

    pub(super) fn all_of(self, region: Region) -> Self {
        self.from(region, 0, region.len as u32)
    }

    pub(super) fn inline(self, data: &[u8]) -> Self {
        Self { inline: Some(data.to_vec()), ..self }
    }

    pub(super) fn immediate(self, opcode: Opcode, immediate: u32) -> Self {
        Self { opcode, immediate: immediate.to_be_bytes(), ..self }
    }

    pub(super) fn unsignaled(self) -> Self {
        Self { flags: ControlFlags(self.flags.0 & !ControlFlags::COMPLETION.0), ..self }
    }

    pub(super) fn solicited(self) -> Self {
        Self { flags: self.flags.with(ControlFlags::SOLICITED), ..self }
    }

    pub(super) fn fenced(self) -> Self {
        Self { flags: self.flags.with_fence(Fence::SMALL_AND_FENCE), ..self }
    }

    pub(super) fn segments(&self) -> Vec<u8> {
        let mut bytes = self.raw.clone();
        if let Some(srqn) = self.xrc {
            bytes.extend_from_slice(XrcSegment::new(srqn).as_bytes());
        }
        if let Some(vector) = &self.address_vector {
            bytes.extend_from_slice(vector.as_bytes());
        }
        if let Some((address, key)) = self.remote {
            bytes.extend_from_slice(RemoteAddressSegment::new(address, key.0).as_bytes());
        }
        if let Some((swap_add, compare)) = self.atomic {
            let segment = AtomicSegment { swap_add: swap_add.into(), compare: compare.into() };
            bytes.extend_from_slice(segment.as_bytes());
        }
        for (address, len, key) in &self.sges {
            bytes.extend_from_slice(DataSegment::new(*address, *len, key.0).as_bytes());
        }
        if let Some(data) = &self.inline {
            bytes.extend_from_slice(InlineHeader::new(data.len() as u32).as_bytes());
            bytes.extend_from_slice(data);
            bytes.resize(bytes.len().next_multiple_of(16), 0);
        }
        bytes
    }
}
