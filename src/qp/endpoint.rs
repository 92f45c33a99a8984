//! The data that two ends exchange before they connect, in a fixed byte encoding.

use crate::device::address::{Gid, GidKind, LinkLayer, Mtu};
use crate::error::{Error, Result};

const VERB: &str = "decode_endpoint";
const MAGIC: [u8; 4] = *b"uvrb";
const VERSION: u8 = 1;

/// Everything that a peer has to know about a queue pair to connect to it.
///
/// # Byte encoding
/// [`Endpoint::to_bytes`] gives 48 bytes, big endian, that never change within a version:
///
/// | offset | bytes | content |
/// |---|---|---|
/// | 0 | 4 | the letters `uvrb` |
/// | 4 | 1 | version, 1 |
/// | 5 | 1 | link layer: 0 unspecified, 1 InfiniBand, 2 Ethernet |
/// | 6 | 2 | LID, 0 on Ethernet |
/// | 8 | 4 | queue pair number, 24 bits |
/// | 12 | 4 | first PSN that this end sends, 24 bits |
/// | 16 | 16 | GID, all zero if none is used |
/// | 32 | 1 | kind of GID: 0 InfiniBand, 1 RoCE v1, 2 RoCE v2 |
/// | 33 | 1 | code of the largest path MTU of this end: 1 (256 bytes) to 5 (4096 bytes) |
/// | 34 | 1 | outstanding READs and atomics that this end accepts |
/// | 35 | 1 | outstanding READs and atomics that this end starts |
/// | 36 | 4 | Q_Key (datagrams), else 0 |
/// | 40 | 4 | shared receive queue number (XRC), else 0 |
/// | 44 | 4 | zero |
///
/// ```no_run
/// use std::io::{Read, Write};
/// # use uverbs::{Endpoint, QueuePair, qp_type::Rc};
/// # fn meet(qp: &mut QueuePair<Rc>, peer: &mut std::net::TcpStream)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// peer.write_all(&qp.endpoint().to_bytes())?;
/// let mut bytes = [0; Endpoint::BYTES];
/// peer.read_exact(&mut bytes)?;
/// qp.connect(&Endpoint::from_bytes(&bytes)?)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// Link layer of the port.
    pub link_layer: LinkLayer,
    /// The port's LID; 0 on Ethernet.
    pub lid: u16,
    /// The port's GID, if one is used (always on Ethernet).
    pub gid: Option<Gid>,
    /// The kind of that GID, which decides the packet headers; both ends must agree.
    pub gid_kind: GidKind,
    /// Queue pair number, 24 bits.
    pub qpn: u32,
    /// First PSN that this end sends, 24 bits.
    pub psn: u32,
    /// Largest path MTU of this end.
    pub mtu: Mtu,
    /// Outstanding READs and atomics that this end accepts.
    pub responder_reads: u8,
    /// Outstanding READs and atomics that this end starts.
    pub initiator_reads: u8,
    /// Q_Key of a datagram queue pair, else 0.
    pub qkey: u32,
    /// Number of the shared receive queue that XRC messages go to, else 0.
    pub srqn: u32,
}

impl Endpoint {
    /// Length of the encoding in bytes.
    pub const BYTES: usize = 48;

    /// The fixed encoding described at [`Endpoint`].
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = match self.link_layer {
            LinkLayer::Unspecified => 0,
            LinkLayer::InfiniBand => 1,
            LinkLayer::Ethernet => 2,
        };
        bytes[6..8].copy_from_slice(&self.lid.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.qpn.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.psn.to_be_bytes());
        bytes[16..32].copy_from_slice(&self.gid.unwrap_or_default().0);
        bytes[32] = self.gid_kind as u8;
        bytes[33] = self.mtu as u8;
        bytes[34] = self.responder_reads;
        bytes[35] = self.initiator_reads;
        bytes[36..40].copy_from_slice(&self.qkey.to_be_bytes());
        bytes[40..44].copy_from_slice(&self.srqn.to_be_bytes());
        bytes
    }

    /// Decodes the fixed encoding. The bytes come from a peer, so every field is checked.
    ///
    /// # Errors
    /// `InvalidInput` with the invalid field.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self> {
        if bytes[..4] != MAGIC {
            return Err(bad("these are not the bytes of an endpoint"));
        }
        if bytes[4] != VERSION {
            return Err(bad(format!("endpoint version {} is not known", bytes[4])));
        }
        let gid = Gid(field(bytes, 16));
        Ok(Self {
            link_layer: link_layer(bytes[5])?,
            lid: u16::from_be_bytes(field(bytes, 6)),
            qpn: number24(bytes, 8, "queue pair number")?,
            psn: number24(bytes, 12, "PSN")?,
            gid: (!gid.is_zero()).then_some(gid),
            gid_kind: gid_kind(bytes[32])?,
            mtu: Mtu::from_code(bytes[33])
                .ok_or_else(|| bad(format!("{} is not an MTU code", bytes[33])))?,
            responder_reads: bytes[34],
            initiator_reads: bytes[35],
            qkey: u32::from_be_bytes(field(bytes, 36)),
            srqn: number24(bytes, 40, "shared receive queue number")?,
        })
    }
}

fn bad(cause: impl Into<String>) -> Error {
    Error::invalid(VERB, cause)
}

fn field<const N: usize>(bytes: &[u8; Endpoint::BYTES], offset: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[offset + i])
}

fn number24(bytes: &[u8; Endpoint::BYTES], offset: usize, what: &str) -> Result<u32> {
    let number = u32::from_be_bytes(field(bytes, offset));
    if number >> 24 != 0 {
        return Err(bad(format!("{what} {number:#x} has more than 24 bits")));
    }
    Ok(number)
}

fn link_layer(code: u8) -> Result<LinkLayer> {
    match code {
        0 => Ok(LinkLayer::Unspecified),
        1 => Ok(LinkLayer::InfiniBand),
        2 => Ok(LinkLayer::Ethernet),
        _ => Err(bad(format!("{code} is not a link layer"))),
    }
}

fn gid_kind(code: u8) -> Result<GidKind> {
    match code {
        0 => Ok(GidKind::InfiniBand),
        1 => Ok(GidKind::RoceV1),
        2 => Ok(GidKind::RoceV2),
        _ => Err(bad(format!("{code} is not a kind of GID"))),
    }
}

#[cfg(test)]
mod tests;
