//! A checked view of a packet's headers and payload.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::opcode::Layout;
use super::{
    Aeth, AtomicAckEth, AtomicEth, Bth, DcConnectEth, DcEth, Deth, Headers, Ieth, ImmDt,
    MAX_PAYLOAD, MaskedAtomicEth, Opcode, Operation, PacketError, Position, Reth, Transport,
    XrcEth,
};

/// The headers of one packet, which its opcode determines, and its payload without pad.
///
/// A header is `Some` exactly if the opcode's [`Headers`] say so.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Transport service.
    pub transport: Transport,
    /// What the packet does.
    pub operation: Operation,
    /// The packet's place in its message.
    pub position: Position,
    /// Base transport header.
    pub bth: &'a Bth,
    /// DC extended transport header.
    pub dceth: Option<&'a DcEth>,
    /// Extended transport header of a DC CONNECT.
    pub dc_connect: Option<&'a DcConnectEth>,
    /// XRC extended transport header.
    pub xrceth: Option<&'a XrcEth>,
    /// Datagram extended transport header.
    pub deth: Option<&'a Deth>,
    /// RDMA extended transport header.
    pub reth: Option<&'a Reth>,
    /// Atomic extended transport header.
    pub atomic: Option<&'a AtomicEth>,
    /// Extended transport header of masked atomics.
    pub masked_atomic: Option<&'a MaskedAtomicEth>,
    /// ACK extended transport header.
    pub aeth: Option<&'a Aeth>,
    /// Atomic ACK extended transport header.
    pub atomic_ack: Option<&'a AtomicAckEth>,
    /// Immediate data.
    pub immediate: Option<&'a ImmDt>,
    /// Invalidate extended transport header.
    pub invalidate: Option<&'a Ieth>,
    /// Payload without pad, at most [`MAX_PAYLOAD`] bytes.
    pub payload: &'a [u8],
}

impl<'a> View<'a> {
    /// Checks transport bytes: opcode, version, length, pad, and that only opcodes that carry a
    /// payload have one.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PacketError> {
        let short = |need| PacketError::TooShort { have: bytes.len(), need };
        let (bth, _) = Bth::ref_from_prefix(bytes).map_err(|_| short(size_of::<Bth>()))?;
        let layout = layout_of(bth)?;
        let (_, rest) = bytes.split_at_checked(layout.len).ok_or_else(|| short(layout.len))?;
        let payload = unpad(bth, rest)?;
        if !payload.is_empty() && !layout.operation.has_payload() {
            return Err(PacketError::UnexpectedPayload(bth.opcode(), payload.len()));
        }
        let mut cursor = Cursor { bytes: &bytes[size_of::<Bth>()..], headers: layout.headers };
        Ok(Self {
            transport: layout.transport,
            operation: layout.operation,
            position: layout.position,
            bth,
            dceth: cursor.take(Headers::DCETH),
            dc_connect: cursor.take(Headers::DC_CONNECT),
            xrceth: cursor.take(Headers::XRCETH),
            deth: cursor.take(Headers::DETH),
            reth: cursor.take(Headers::RETH),
            atomic: cursor.take(Headers::ATOMIC),
            aeth: cursor.take(Headers::AETH),
            atomic_ack: cursor.take(Headers::ATOMIC_ACK),
            immediate: cursor.take(Headers::IMMEDIATE),
            invalidate: cursor.take(Headers::INVALIDATE),
            masked_atomic: cursor.take(Headers::MASKED_ATOMIC),
            payload,
        })
    }

    /// The opcode of the base transport header.
    pub fn opcode(&self) -> Opcode {
        self.bth.opcode()
    }
}

fn layout_of(bth: &Bth) -> Result<Layout, PacketError> {
    if bth.version() != 0 {
        return Err(PacketError::UnknownVersion(bth.version()));
    }
    let opcode = bth.opcode();
    opcode.layout().ok_or(PacketError::UnknownOpcode(opcode.0))
}

fn unpad<'a>(bth: &Bth, rest: &'a [u8]) -> Result<&'a [u8], PacketError> {
    let (pad, len) = (bth.pad(), rest.len());
    if len > MAX_PAYLOAD {
        return Err(PacketError::TooLong(len));
    }
    if len % 4 != 0 || pad > len {
        return Err(PacketError::BadPad { pad, len });
    }
    Ok(&rest[..len - pad])
}

/// Takes the headers that the opcode has, one after the other.
struct Cursor<'a> {
    bytes: &'a [u8],
    headers: Headers,
}

impl<'a> Cursor<'a> {
    fn take<H>(&mut self, which: Headers) -> Option<&'a H>
    where
        H: FromBytes + KnownLayout + Immutable + Unaligned,
    {
        if !self.headers.contains(which) {
            return None;
        }
        let (header, rest) = H::ref_from_prefix(self.bytes).ok()?;
        self.bytes = rest;
        Some(header)
    }
}
