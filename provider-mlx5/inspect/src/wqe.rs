//! Send WQEs.

use zerocopy::IntoBytes;

use super::Segment;
use uverbs_mlx5::format::{ControlFlags, ControlSegment, OCTOWORD, Opcode, U32, WQEBB_SIZE};

/// There are too few bytes for an entry of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{got} bytes are too few: {needed} are needed at least")]
pub struct TooShort {
    /// Bytes needed at least.
    pub needed: usize,
    /// Bytes given.
    pub got: usize,
}

/// A send WQE: the control segment and the segments after it.
///
/// Its constructors check nothing, so that a fuzzer can make illegal WQEs; [`Wqe::findings`]
/// checks. [`Wqe::sealed`] sets the size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wqe {
    /// The control segment. Its `ds` may be wrong.
    pub control: ControlSegment,
    /// The segments, in order.
    pub segments: Vec<Segment>,
}

impl Wqe {
    /// A WQE of only a control segment.
    pub fn new(opcode: Opcode, index: u16, qpn: u32) -> Self {
        let control = ControlSegment::new(opcode, index, qpn, 1, ControlFlags::NONE, U32::new(0));
        Self { control, segments: Vec::new() }
    }

    /// Sets the flags in the control segment.
    #[must_use]
    pub fn flags(mut self, flags: ControlFlags) -> Self {
        self.control.flags = flags;
        self
    }

    /// Sets the immediate field: immediate data as a big-endian number, an rkey to invalidate, or
    /// the key that a UMR changes.
    #[must_use]
    pub fn immediate(mut self, immediate: u32) -> Self {
        self.control.immediate = U32::new(immediate);
        self
    }

    /// Sets the opcode modifier.
    #[must_use]
    pub fn modifier(mut self, modifier: u8) -> Self {
        let first =
            ControlSegment::first_word(modifier, self.control.index(), self.control.opcode());
        self.control.opmod_index_opcode = U32::new(first);
        self
    }

    /// Appends a segment.
    #[must_use]
    pub fn with(mut self, segment: impl Into<Segment>) -> Self {
        self.segments.push(segment.into());
        self
    }

    /// Sets the control segment's `ds` to the size of the WQE, truncated to 6 bits.
    #[must_use]
    pub fn sealed(mut self) -> Self {
        let ds = self.octowords() as u8;
        self.control.qpn_ds = U32::new(ControlSegment::second_word(self.control.qpn(), ds));
        self
    }

    /// Size of the control segment and the segments in units of 16 bytes, independent of `ds`.
    pub fn octowords(&self) -> usize {
        1 + self.segments.iter().map(Segment::octowords).sum::<usize>()
    }

    /// Size in blocks of 64 bytes.
    pub fn blocks(&self) -> usize {
        (self.octowords() * OCTOWORD).div_ceil(WQEBB_SIZE)
    }

    /// The bytes, a multiple of 16.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.control.as_bytes().to_vec();
        for segment in &self.segments {
            segment.encode(&mut bytes);
        }
        bytes
    }

    /// The bytes, padded with zeros to whole blocks of 64.
    pub fn encode_blocks(&self) -> Vec<u8> {
        let mut bytes = self.encode();
        bytes.resize(self.blocks() * WQEBB_SIZE, 0);
        bytes
    }

    /// Writes the bytes into a ring at the position given by the WQE's index, wrapping at its end.
    ///
    /// Writes nothing and returns `false` if the ring is not a power of two of 64-byte blocks, or
    /// too small.
    pub fn encode_into_ring(&self, ring: &mut [u8]) -> bool {
        let blocks = ring.len() / WQEBB_SIZE;
        let whole = ring.len() % WQEBB_SIZE == 0 && blocks.is_power_of_two();
        if !whole || blocks < self.blocks() {
            return false;
        }
        let start = usize::from(self.control.index()) % blocks * WQEBB_SIZE;
        let bytes = self.encode_blocks();
        let first = bytes.len().min(ring.len() - start);
        ring[start..start + first].copy_from_slice(&bytes[..first]);
        ring[..bytes.len() - first].copy_from_slice(&bytes[first..]);
        true
    }

    /// The scatter/gather entries.
    pub fn data(&self) -> impl Iterator<Item = &uverbs_mlx5::format::DataSegment> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Data(data) => Some(data),
            _ => None,
        })
    }

    /// The segments with their byte offsets.
    pub fn offsets(&self) -> impl Iterator<Item = (usize, &Segment)> {
        let mut offset = OCTOWORD;
        self.segments.iter().map(move |segment| {
            let here = offset;
            offset += segment.octowords() * OCTOWORD;
            (here, segment)
        })
    }
}
