//! Segments of WQEs.

use zerocopy::IntoBytes;

use uverbs_mlx5::format::{
    AddressVector, AtomicSegment, DataSegment, ETH_INLINE_START, EthSegment, INLINE_FLAG,
    InlineHeader, Klm, MaskedCompareSwap32, MaskedCompareSwap64, MaskedFetchAdd32,
    MaskedFetchAdd64, MkeyContextSegment, OCTOWORD, RemoteAddressSegment, RepeatBlock, RepeatEntry,
    SetPsvSegment, SignatureSegment, TagMatchingSegment, U16, UmrControlSegment, XrcSegment,
};

/// One segment of a WQE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Remote shared receive queue.
    Xrc(XrcSegment),
    /// Address vector, 48 bytes.
    Address(AddressVector),
    /// The first 16 bytes of an address vector, without the extended bit.
    ShortAddress([u8; AddressVector::BASE_SIZE]),
    /// Remote address and key.
    RemoteAddress(RemoteAddressSegment),
    /// Operands of a plain atomic.
    Atomic(AtomicSegment),
    /// Operands of a masked 4-byte compare and swap.
    MaskedCompareSwap32(MaskedCompareSwap32),
    /// Operands of a masked 8-byte compare and swap.
    MaskedCompareSwap64(MaskedCompareSwap64),
    /// Operands of a masked 4-byte fetch and add.
    MaskedFetchAdd32(MaskedFetchAdd32),
    /// Operands of a masked 8-byte fetch and add.
    MaskedFetchAdd64(MaskedFetchAdd64),
    /// UMR control.
    UmrControl(UmrControlSegment),
    /// Memory key context.
    MkeyContext(MkeyContextSegment),
    /// Translation entry.
    Klm(Klm),
    /// Head of an interleaved translation.
    Repeat(RepeatBlock),
    /// Entry of an interleaved translation.
    RepeatEntry(RepeatEntry),
    /// Signature structure of a UMR.
    Signature(SignatureSegment),
    /// New value of a protected signature variable.
    SetPsv(SetPsvSegment),
    /// Change of a tag list.
    TagMatching(TagMatchingSegment),
    /// Ethernet segment with its inline header.
    Eth(EthData),
    /// Scatter/gather entry.
    Data(DataSegment),
    /// Inline data.
    Inline(InlineData),
    /// 16 bytes of unknown meaning.
    Raw([u8; OCTOWORD]),
}

/// An inline data segment with its padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlineData {
    /// Its first word.
    pub header: InlineHeader,
    /// Data and padding: 12 bytes plus a multiple of 16.
    pub bytes: Vec<u8>,
}

impl InlineData {
    /// The segment for this data, padded with zero.
    ///
    /// Data of more than 1023 bytes is complete, but its length in the header is truncated to 10
    /// bits.
    pub fn new(data: &[u8]) -> Self {
        let mut bytes = data.to_vec();
        bytes.resize((data.len() + 4).next_multiple_of(OCTOWORD) - 4, 0);
        Self { header: InlineHeader::new(data.len() as u32), bytes }
    }

    /// The data, with the length in the header, but not beyond the segment.
    pub fn data(&self) -> &[u8] {
        &self.bytes[..self.bytes.len().min(self.header.length() as usize)]
    }

    /// The padding after the data.
    pub fn padding(&self) -> &[u8] {
        &self.bytes[self.data().len()..]
    }
}

/// An Ethernet segment, with the rest of its inline header in whole units of 16 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EthData {
    /// The first 16 bytes.
    pub segment: EthSegment,
    /// The inline header from its third byte on, and padding: a multiple of 16.
    pub rest: Vec<u8>,
}

impl EthData {
    /// The segment with this inline header, padded with zero.
    pub fn new(mut segment: EthSegment, header: &[u8]) -> Self {
        let mut rest = header.get(ETH_INLINE_START..).unwrap_or_default().to_vec();
        rest.resize(rest.len().next_multiple_of(OCTOWORD), 0);
        for (place, byte) in segment.inline_header_start.iter_mut().zip(header) {
            *place = *byte;
        }
        segment.inline_header_size = U16::new(header.len() as u16);
        Self { segment, rest }
    }

    /// The inline header, with the length in the segment, but not beyond `rest`.
    pub fn header(&self) -> Vec<u8> {
        let mut header = self.segment.inline_header_start.to_vec();
        header.extend_from_slice(&self.rest);
        header.truncate(self.segment.inline_length());
        header
    }
}

impl Segment {
    /// Inline data.
    pub fn inline(data: &[u8]) -> Self {
        Self::Inline(InlineData::new(data))
    }

    /// Size in units of 16 bytes.
    pub fn octowords(&self) -> usize {
        match self {
            Self::Address(_) | Self::UmrControl(_) => 3,
            Self::MkeyContext(_) | Self::Signature(_) => 4,
            Self::MaskedCompareSwap64(_) | Self::TagMatching(_) => 2,
            Self::Inline(inline) => (inline.bytes.len() + 4).div_ceil(OCTOWORD),
            Self::Eth(eth) => 1 + eth.rest.len().div_ceil(OCTOWORD),
            _ => 1,
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let end = out.len() + self.octowords() * OCTOWORD;
        match self {
            Self::Xrc(segment) => out.extend(segment.as_bytes()),
            Self::Address(segment) => out.extend(segment.as_bytes()),
            Self::ShortAddress(bytes) => out.extend(bytes),
            Self::RemoteAddress(segment) => out.extend(segment.as_bytes()),
            Self::Atomic(segment) => out.extend(segment.as_bytes()),
            Self::MaskedCompareSwap32(segment) => out.extend(segment.as_bytes()),
            Self::MaskedCompareSwap64(segment) => out.extend(segment.as_bytes()),
            Self::MaskedFetchAdd32(segment) => out.extend(segment.as_bytes()),
            Self::MaskedFetchAdd64(segment) => out.extend(segment.as_bytes()),
            Self::UmrControl(segment) => out.extend(segment.as_bytes()),
            Self::MkeyContext(segment) => out.extend(segment.as_bytes()),
            Self::Klm(segment) => out.extend(segment.as_bytes()),
            Self::Repeat(segment) => out.extend(segment.as_bytes()),
            Self::RepeatEntry(segment) => out.extend(segment.as_bytes()),
            Self::Signature(segment) => out.extend(segment.as_bytes()),
            Self::SetPsv(segment) => out.extend(segment.as_bytes()),
            Self::TagMatching(segment) => out.extend(segment.as_bytes()),
            Self::Data(segment) => out.extend(segment.as_bytes()),
            Self::Raw(bytes) => out.extend(bytes),
            Self::Eth(eth) => {
                out.extend(eth.segment.as_bytes());
                out.extend(&eth.rest);
            }
            Self::Inline(inline) => {
                out.extend(inline.header.as_bytes());
                out.extend(&inline.bytes);
            }
        }
        // Fill the last unit, which inline or Ethernet data not made by `new` may leave incomplete.
        out.resize(end, 0);
    }

    /// Whether the first word has the flag of inline data.
    pub(super) fn starts_inline(first_word: u32) -> bool {
        first_word & INLINE_FLAG != 0
    }
}

macro_rules! from_format {
    ($($type:ident => $variant:ident,)*) => {
        $(impl From<$type> for Segment {
            fn from(segment: $type) -> Self {
                Self::$variant(segment)
            }
        })*
    };
}

from_format! {
    XrcSegment => Xrc,
    AddressVector => Address,
    RemoteAddressSegment => RemoteAddress,
    AtomicSegment => Atomic,
    MaskedCompareSwap32 => MaskedCompareSwap32,
    MaskedCompareSwap64 => MaskedCompareSwap64,
    MaskedFetchAdd32 => MaskedFetchAdd32,
    MaskedFetchAdd64 => MaskedFetchAdd64,
    UmrControlSegment => UmrControl,
    MkeyContextSegment => MkeyContext,
    Klm => Klm,
    RepeatBlock => Repeat,
    RepeatEntry => RepeatEntry,
    SignatureSegment => Signature,
    SetPsvSegment => SetPsv,
    TagMatchingSegment => TagMatching,
    EthData => Eth,
    DataSegment => Data,
    InlineData => Inline,
}
