//! Raw Ethernet packets: checksum offload, VLAN insertion, segmentation offload (TSO).
//!
//! Some devices want the first 18 bytes of each packet inside the WQE (`eth_min_inline`, see the
//! kernel's `mlx5_ib_create_qp_resp` and rdma-core's `MLX5_ETH_L2_INLINE_HEADER_SIZE`): then a
//! plain [`EthernetSend`] is refused and [`EthernetSendHeader`] carries them.

use super::operation::Operation;
use super::payload::{Limits, Payload};
use super::sealed::Sealed;
use super::wide::{Wide, partial, wide};
use crate::format::{
    ETH_INLINE_L2, ETH_INLINE_START, ETH_MIN_HEADER, EthChecksum, EthSegment, MAX_DS, Opcode, U16,
    U32,
};
use crate::request::{Octoword, PostError, Sge, octoword, word};

/// The offloads that the device applies to a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EthernetOffload {
    /// Checksums to compute.
    pub checksum: EthChecksum,
    /// Tag control information of a VLAN tag to insert; only in packets without inline header.
    pub vlan: Option<u16>,
    /// Metadata that egress steering rules can match.
    pub metadata: u32,
}

impl EthernetOffload {
    #[inline(always)]
    fn segment(&self) -> EthSegment {
        EthSegment {
            checksum_flags: self.checksum,
            flow_table_metadata: U32::new(self.metadata),
            ..EthSegment::default()
        }
    }
}

/// Sends one packet, all of it in the data.
#[derive(Clone, Copy, Debug, Default)]
pub struct EthernetSend(pub EthernetOffload);

impl Operation for EthernetSend {
    type Held = Self;
    const OPCODE: Opcode = Opcode::SEND;
    const OCTOWORDS: usize = 1;

    #[inline(always)]
    fn octoword(&self, _: usize, _: u32) -> Octoword {
        let mut segment = self.0.segment();
        if let Some(tci) = self.0.vlan {
            segment.inline_header_size = U16::new(EthSegment::INSERT_VLAN);
            segment.inline_header_start = tci.to_be_bytes();
        }
        octoword(segment)
    }

    #[inline(always)]
    fn inline_header(&self) -> Option<usize> {
        Some(0)
    }
}

/// Sends one packet whose first 18 bytes stand in the WQE; the data is what follows them.
#[derive(Clone, Copy, Debug)]
pub struct EthernetSendHeader<'a>(pub EthernetOffload, pub &'a [u8; ETH_INLINE_L2]);

impl Operation for EthernetSendHeader<'_> {
    type Held = EthernetSendHeader<'static>;
    const OPCODE: Opcode = Opcode::SEND;
    const OCTOWORDS: usize = 2;

    #[inline(always)]
    fn octoword(&self, index: usize, _: u32) -> Octoword {
        let [first, second, rest @ ..] = self.1;
        if index > 0 {
            return [word(rest, 0), word(rest, 8)];
        }
        octoword(EthSegment {
            inline_header_size: U16::new(ETH_INLINE_L2 as u16),
            inline_header_start: [*first, *second],
            ..self.0.segment()
        })
    }

    #[inline(always)]
    fn check(&self) -> Result<(), PostError> {
        // The field that requests a tag also holds the header's size.
        if self.0.vlan.is_some() { Err(PostError::VlanWithHeader) } else { Ok(()) }
    }

    #[inline(always)]
    fn inline_header(&self) -> Option<usize> {
        Some(ETH_INLINE_L2)
    }
}

/// Sends one large packet that the device cuts into segments. Made by [`segmented`].
#[derive(Clone, Copy, Debug)]
pub struct EthernetTso<'a> {
    offload: EthernetOffload,
    mss: u16,
    header: &'a [u8],
}

/// The data of a packet whose start is in the Ethernet segment: the rest of that, and other data.
/// Made by [`segmented`] and [`framed`].
#[derive(Clone, Copy, Debug)]
pub struct Segmented<'a, D = &'a [Sge]> {
    pub(super) header: &'a [u8],
    pub(super) data: D,
    /// The error for a header that is longer than the queue's inline limit.
    pub(super) too_long: PostError,
}

/// Where a packet starts in a WQE whose Ethernet segment has all of it: at the segment's end.
const PACKET_START: usize = 32 - ETH_INLINE_START;

/// Sends one packet whose first bytes, or all of it, are in the WQE's Ethernet segment. Made by
/// [`framed`].
#[derive(Clone, Copy, Debug)]
pub struct EthernetFrame<'a>(EthernetTso<'a>);

/// A packet that starts with the bytes `start`, which are copied into the WQE, and goes on with
/// `data`: nothing, an SGE, or a list of them.
///
/// Every device takes such packets, those too that want headers inline. `start` has at least 14
/// bytes (18 on a device that wants those inline), and two more than the queue's inline limit at
/// most. This is the layout of DPDK's mlx5 driver (`mlx5_tx_eseg_data`).
#[inline(always)]
pub fn framed<D: Payload>(
    offload: EthernetOffload,
    start: &[u8],
    data: D,
) -> (EthernetFrame<'_>, Segmented<'_, D>) {
    let header = start.get(ETH_INLINE_START..).unwrap_or(&[]);
    let packet = EthernetTso { offload, mss: 0, header: start };
    (EthernetFrame(packet), Segmented { header, data, too_long: PostError::InlineTooLong })
}

impl Operation for EthernetFrame<'_> {
    type Held = EthernetFrame<'static>;
    const OPCODE: Opcode = Opcode::SEND;
    const OCTOWORDS: usize = 1;
    const DATA_START: usize = PACKET_START;

    #[inline(always)]
    fn octoword(&self, index: usize, qpn: u32) -> Octoword {
        self.0.octoword(index, qpn)
    }

    #[inline(always)]
    fn check(&self) -> Result<(), PostError> {
        if self.0.header.len() < ETH_MIN_HEADER {
            return Err(PostError::BadHeader);
        }
        if self.0.offload.vlan.is_some() { Err(PostError::VlanWithHeader) } else { Ok(()) }
    }

    fn inline_header(&self) -> Option<usize> {
        self.0.inline_header()
    }
}

/// A packet of `header` (which each segment gets a copy of) and `data`, cut so that each segment
/// carries `mss` bytes of data. The header has at least 14 bytes, and as many as the queue's inline
/// limit at most.
#[inline(always)]
pub fn segmented<'a>(
    offload: EthernetOffload,
    mss: u16,
    header: &'a [u8],
    data: &'a [Sge],
) -> (EthernetTso<'a>, Segmented<'a>) {
    let rest = header.get(ETH_INLINE_START..).unwrap_or(&[]);
    (
        EthernetTso { offload, mss, header },
        Segmented { header: rest, data, too_long: PostError::BadSegmentation },
    )
}

impl Operation for EthernetTso<'_> {
    type Held = EthernetTso<'static>;
    const OPCODE: Opcode = Opcode::TSO;
    const OCTOWORDS: usize = 1;
    const DATA_START: usize = PACKET_START;

    #[inline(always)]
    fn octoword(&self, _: usize, _: u32) -> Octoword {
        octoword(EthSegment {
            mss: U16::new(self.mss),
            inline_header_size: U16::new(self.header.len() as u16),
            inline_header_start: *self.header.first_chunk().unwrap_or(&[0; 2]),
            ..self.offload.segment()
        })
    }

    #[inline(always)]
    fn check(&self) -> Result<(), PostError> {
        if self.header.len() < ETH_MIN_HEADER || self.mss == 0 {
            return Err(PostError::BadSegmentation);
        }
        if self.offload.vlan.is_some() { Err(PostError::VlanWithHeader) } else { Ok(()) }
    }

    fn inline_header(&self) -> Option<usize> {
        Some(self.header.len())
    }
}

impl Sealed for EthernetSend {}
impl Sealed for EthernetSendHeader<'_> {}
impl Sealed for EthernetTso<'_> {}
impl Sealed for EthernetFrame<'_> {}
impl<D> Sealed for Segmented<'_, D> {}

impl<D: Payload> Segmented<'_, D> {
    /// Octowords of the header in the WQE.
    #[inline(always)]
    pub(super) fn header_octowords(&self) -> usize {
        self.header.len().div_ceil(16)
    }

    /// Whether the header keeps to its limit.
    #[inline(always)]
    pub(super) fn fits(&self, limits: &Limits) -> bool {
        self.header.len() <= limits.max_inline
    }

    /// Header and data each keep to their limit, but a WQE may be too short for both: behind the
    /// control segment and the Ethernet segment.
    #[inline(always)]
    pub(super) fn fits_wqe(size: usize) -> bool {
        size <= usize::from(MAX_DS) - 2
    }
}

/// The bytes of a header from `start`, which is within it, zeros behind them.
#[inline(always)]
pub(super) fn header_octoword(header: &[u8], start: usize) -> Wide {
    if header.len() >= 8 {
        return partial(header.get(..start + 16).unwrap_or(header), start);
    }
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(header) {
        *to = *from;
    }
    wide([word(&bytes, 0), word(&bytes, 8)])
}
