//! The InfiniBand transport packet and its headers, as sent between two devices.
//!
//! A [`Packet`] is the part of an InfiniBand or RoCE packet that is the same on every link: base
//! transport header, extension headers, payload and pad, without the invariant CRC. It also has the
//! addressing, which each link carries in headers of its own. Wires add and remove the link's
//! headers.
//!
//! Formats follow the InfiniBand Architecture Specification volume 1, chapter 9 ("Transport Layer")
//! and annexes A14 (XRC) and A17 (RoCEv2). Every parser accepts any bytes and returns a
//! [`PacketError`] instead of panicking.

#![forbid(unsafe_code)]

#[macro_use]
mod macros;

mod address;
mod frame;
mod headers;
mod identification;
mod opcode;
pub mod prng;
mod psn;
pub mod rocev2;
mod syndrome;
mod view;

pub use address::{Addressing, Gid};
pub use frame::{ETHERNET_GROUP, LONGEST_FRAME, frame_destination};
pub use headers::{
    Aeth, AtomicAckEth, AtomicEth, Bth, DcConnectEth, DcEth, Deth, Ieth, ImmDt, MaskedAtomicEth,
    Reth, XrcEth,
};
pub use opcode::{Headers, Opcode, Operation, Position, Transport};
pub use psn::Psn;
pub use syndrome::{NakCode, RnrTimer, Syndrome};
pub use view::View;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The largest payload of one packet in bytes (path MTU 4096).
pub const MAX_PAYLOAD: usize = 4096;

/// Upper bound in bytes of the transport headers of a packet with a payload. (A masked atomic over
/// DC has more, but no payload.)
pub const MAX_HEADERS: usize = 64;

/// Upper bound of a packet's transport bytes: headers and a padded payload.
pub const MAX_PACKET: usize = MAX_HEADERS + MAX_PAYLOAD;

/// Why bytes from a wire are not a valid packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// Fewer bytes than the headers need.
    #[error("packet of {have} bytes is too short: {need} bytes needed")]
    TooShort {
        /// Bytes there are.
        have: usize,
        /// Bytes the headers need.
        need: usize,
    },
    /// More bytes than the largest packet has.
    #[error("packet of {0} bytes is larger than any path MTU allows")]
    TooLong(usize),
    /// An opcode that no supported transport defines.
    #[error("unknown transport opcode {0:#04x}")]
    UnknownOpcode(u8),
    /// A transport header version other than 0.
    #[error("unknown transport header version {0}")]
    UnknownVersion(u8),
    /// The pad count exceeds the payload, or payload and pad together are not a multiple of 4
    /// bytes.
    #[error("pad count {pad} does not fit a payload of {len} bytes")]
    BadPad {
        /// Pad count of the base transport header.
        pad: usize,
        /// Bytes after the headers.
        len: usize,
    },
    /// A payload after an opcode that carries none.
    #[error("{0:?} carries {1} bytes of payload, where none may be")]
    UnexpectedPayload(Opcode, usize),
    /// The invariant CRC is wrong: the packet was corrupted on its way.
    #[error("invariant CRC is {found:#010x} instead of {expected:#010x}")]
    BadIcrc {
        /// The CRC of the bytes that arrived.
        expected: u32,
        /// The CRC that the packet carries.
        found: u32,
    },
    /// Not a RoCEv2 frame: wrong Ethernet type, IP version, protocol, port or length.
    #[error("not a RoCEv2 frame: {0}")]
    NotRoceV2(&'static str),
}

/// One packet: addressing and transport bytes. Its buffer has the capacity for the largest packet
/// and keeps it when cleared, so a packet from a [`PacketPool`] is filled without allocation.
#[derive(Debug, PartialEq, Eq)]
pub struct Packet {
    /// Source and destination.
    pub addressing: Addressing,
    bytes: Vec<u8>,
}

impl Packet {
    /// Bytes of a buffer: the largest packet and the CRC that a wire appends.
    const BUFFER_SIZE: usize = MAX_PACKET + rocev2::ICRC_LEN;

    /// An empty packet with the capacity for the largest one.
    pub fn new() -> Self {
        Self { addressing: Addressing::default(), bytes: Vec::with_capacity(Self::BUFFER_SIZE) }
    }

    /// A packet without a buffer, as a placeholder.
    pub fn unallocated() -> Self {
        Self { addressing: Addressing::default(), bytes: Vec::new() }
    }

    /// A packet of these transport bytes, unchecked: [`Packet::view`] checks them.
    pub fn from_bytes(addressing: Addressing, bytes: &[u8]) -> Self {
        let mut packet = Self::new();
        packet.fill(addressing, bytes);
        packet
    }

    /// Replaces addressing and transport bytes, keeping the buffer.
    pub fn fill(&mut self, addressing: Addressing, bytes: &[u8]) {
        self.addressing = addressing;
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
    }

    /// Base transport header to pad, without CRC.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The transport bytes, for a wire that fills or damages them.
    pub fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Replaces the content by this base transport header. Append the extension headers with
    /// [`Packet::push`] in the order of the opcode's [`Headers`], and the payload last.
    pub fn start(&mut self, addressing: Addressing, bth: Bth) -> &mut Self {
        self.addressing = addressing;
        self.bytes.clear();
        self.push(bth)
    }

    /// Appends one extension header.
    pub fn push<H: IntoBytes + Immutable>(&mut self, header: H) -> &mut Self {
        self.bytes.extend_from_slice(header.as_bytes());
        self
    }

    /// Appends `len` zero bytes of payload and its pad, stores the pad count in the base transport
    /// header, and returns the payload to be filled. Call it at most once per packet, after all
    /// headers.
    pub fn payload(&mut self, len: usize) -> &mut [u8] {
        let start = self.bytes.len();
        let pad = len.wrapping_neg() & 3;
        self.bytes.resize(start + len + pad, 0);
        if let Ok((bth, _)) = Bth::mut_from_prefix(&mut self.bytes) {
            bth.set_pad(pad as u8);
        }
        &mut self.bytes[start..start + len]
    }

    /// The base transport header, if there are enough bytes for one.
    pub fn bth(&self) -> Option<&Bth> {
        self.header_at(0)
    }

    /// The base transport header, to be changed (for example by a retransmission that requests an
    /// acknowledgement).
    pub fn bth_mut(&mut self) -> Option<&mut Bth> {
        Bth::mut_from_prefix(&mut self.bytes).ok().map(|(bth, _)| bth)
    }

    /// Checks the headers and returns them with the payload.
    pub fn view(&self) -> Result<View<'_>, PacketError> {
        View::parse(&self.bytes)
    }

    fn header_at<H>(&self, offset: usize) -> Option<&H>
    where
        H: FromBytes + KnownLayout + Immutable + Unaligned,
    {
        H::ref_from_prefix(self.bytes.get(offset..)?).ok().map(|(header, _)| header)
    }
}

impl Default for Packet {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for Packet {
    /// Allocates the capacity for the largest packet. [`PacketPool::copy`] does not allocate.
    fn clone(&self) -> Self {
        Self::from_bytes(self.addressing, &self.bytes)
    }
}

/// Empty packets that keep their buffers, so that taking and returning packets does not allocate.
///
/// For each packet taken, return one to this pool or to the pool of the code that the packet was
/// passed to. Do not return packets from elsewhere: they would only fill the pool.
#[derive(Debug, Default)]
pub struct PacketPool {
    free: Vec<Packet>,
}

impl PacketPool {
    /// Most packets that the pool keeps; more are freed. Twice the number that one step of a device
    /// handles.
    pub const CAPACITY: usize = 128;

    /// Bytes that a full pool keeps.
    pub const MAX_BYTES: usize = Self::CAPACITY * (size_of::<Packet>() + Packet::BUFFER_SIZE);

    /// An empty packet.
    pub fn take(&mut self) -> Packet {
        self.free.pop().unwrap_or_default()
    }

    /// A copy of `packet` in a buffer of the pool.
    pub fn copy(&mut self, packet: &Packet) -> Packet {
        let mut copy = self.take();
        copy.fill(packet.addressing, &packet.bytes);
        copy
    }

    /// Gives a packet's buffer back.
    pub fn give(&mut self, mut packet: Packet) {
        if self.free.len() < Self::CAPACITY && packet.bytes.capacity() != 0 {
            packet.bytes.clear();
            self.free.push(packet);
        }
    }

    /// Moves up to `count` packets to another pool.
    pub fn pass_on(&mut self, count: usize, to: &mut Self) {
        let kept = self.free.len() - count.min(self.free.len());
        self.free.drain(kept..).for_each(|packet| to.give(packet));
    }

    /// How many packets the pool has.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests;
