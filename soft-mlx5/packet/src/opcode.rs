//! Transport opcodes and the headers that follow each (specification 9.2.1, table "OpCode field",
//! and annex A14.3.1 for XRC). The opcodes of DC are the software device's own, from the range that
//! the specification leaves to manufacturers.

use std::fmt;

use bitflags::bitflags;

bitflags! {
    /// The extension headers of a packet. The order in the packet is the order here.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Headers: u16 {
        /// [`DcEth`](super::DcEth)
        const DCETH = 0x01;
        /// [`DcConnectEth`](super::DcConnectEth)
        const DC_CONNECT = 0x02;
        /// [`XrcEth`](super::XrcEth)
        const XRCETH = 0x04;
        /// [`Deth`](super::Deth)
        const DETH = 0x08;
        /// [`Reth`](super::Reth)
        const RETH = 0x10;
        /// [`AtomicEth`](super::AtomicEth)
        const ATOMIC = 0x20;
        /// [`Aeth`](super::Aeth)
        const AETH = 0x40;
        /// [`AtomicAckEth`](super::AtomicAckEth)
        const ATOMIC_ACK = 0x80;
        /// [`ImmDt`](super::ImmDt)
        const IMMEDIATE = 0x100;
        /// [`Ieth`](super::Ieth)
        const INVALIDATE = 0x200;
        /// [`MaskedAtomicEth`](super::MaskedAtomicEth)
        const MASKED_ATOMIC = 0x400;
    }
}

impl Headers {
    /// Bytes of base transport header and these extension headers together.
    pub const fn size(self) -> usize {
        const SIZES: [(Headers, usize); 11] = [
            (Headers::DCETH, 16),
            (Headers::DC_CONNECT, 8),
            (Headers::XRCETH, 4),
            (Headers::DETH, 8),
            (Headers::RETH, 16),
            (Headers::ATOMIC, 28),
            (Headers::AETH, 4),
            (Headers::ATOMIC_ACK, 8),
            (Headers::IMMEDIATE, 4),
            (Headers::INVALIDATE, 4),
            (Headers::MASKED_ATOMIC, 48),
        ];
        let mut len = 12;
        let mut i = 0;
        while i < SIZES.len() {
            if self.contains(SIZES[i].0) {
                len += SIZES[i].1;
            }
            i += 1;
        }
        len
    }
}

/// The transport service of an opcode: its upper three bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
    /// Dynamically connected. NVIDIA's packet format is not public; this one is the software
    /// device's own (see [`DcEth`](super::DcEth)).
    Dc,
}

impl Transport {
    /// The upper bits of its opcodes.
    pub const fn base(self) -> u8 {
        match self {
            Self::Rc => 0x00,
            Self::Uc => 0x20,
            Self::Ud => 0x60,
            Self::Xrc => 0xa0,
            Self::Dc => 0xe0,
        }
    }

    const fn of(opcode: u8) -> Option<Self> {
        match opcode & 0xe0 {
            0x00 => Some(Self::Rc),
            0x20 => Some(Self::Uc),
            0x60 => Some(Self::Ud),
            0xa0 => Some(Self::Xrc),
            0xe0 => Some(Self::Dc),
            _ => None,
        }
    }
}

/// What a packet does, apart from its place in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response.
    ReadResponse,
    /// Acknowledgement.
    Acknowledge,
    /// Atomic acknowledgement.
    AtomicAcknowledge,
    /// Compare-and-swap request.
    CompareSwap,
    /// Fetch-and-add request.
    FetchAdd,
    /// Masked compare-and-swap request.
    MaskedCompareSwap,
    /// Masked fetch-and-add request.
    MaskedFetchAdd,
    /// DC: an initiator opens a session with a target.
    Connect,
    /// DC: an initiator ends its session with a target.
    Disconnect,
}

impl Operation {
    /// Whether a responder sends it.
    pub const fn is_response(self) -> bool {
        matches!(self, Self::ReadResponse | Self::Acknowledge | Self::AtomicAcknowledge)
    }

    /// Whether a payload may follow the headers.
    pub const fn has_payload(self) -> bool {
        matches!(self, Self::Send | Self::Write | Self::ReadResponse)
    }
}

/// A packet's place in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// First of several.
    First,
    /// Neither first nor last.
    Middle,
    /// Last of several.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// Whether a message begins with it.
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether a message ends with it.
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }

    /// The place of packet `index` (from 0) of `count` packets.
    pub const fn of(index: u32, count: u32) -> Self {
        match (index == 0, index + 1 >= count) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, true) => Self::Last,
            (false, false) => Self::Middle,
        }
    }
}

/// A transport opcode: transport in the upper three bits, operation below.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(pub u8);

/// The low five bits: operation, position, immediate or invalidate.
type Kind = (Operation, Position, Headers);

const KINDS: [Option<Kind>; 32] = kinds();

const fn kinds() -> [Option<Kind>; 32] {
    use Operation::*;
    use Position::*;
    const NONE: Headers = Headers::empty();
    let mut kinds = [None; 32];
    kinds[0x00] = Some((Send, First, NONE));
    kinds[0x01] = Some((Send, Middle, NONE));
    kinds[0x02] = Some((Send, Last, NONE));
    kinds[0x03] = Some((Send, Last, Headers::IMMEDIATE));
    kinds[0x04] = Some((Send, Only, NONE));
    kinds[0x05] = Some((Send, Only, Headers::IMMEDIATE));
    kinds[0x06] = Some((Write, First, Headers::RETH));
    kinds[0x07] = Some((Write, Middle, NONE));
    kinds[0x08] = Some((Write, Last, NONE));
    kinds[0x09] = Some((Write, Last, Headers::IMMEDIATE));
    kinds[0x0a] = Some((Write, Only, Headers::RETH));
    kinds[0x0b] = Some((Write, Only, Headers::RETH.union(Headers::IMMEDIATE)));
    kinds[0x0c] = Some((ReadRequest, Only, Headers::RETH));
    kinds[0x0d] = Some((ReadResponse, First, Headers::AETH));
    kinds[0x0e] = Some((ReadResponse, Middle, NONE));
    kinds[0x0f] = Some((ReadResponse, Last, Headers::AETH));
    kinds[0x10] = Some((ReadResponse, Only, Headers::AETH));
    kinds[0x11] = Some((Acknowledge, Only, Headers::AETH));
    kinds[0x12] = Some((AtomicAcknowledge, Only, Headers::AETH.union(Headers::ATOMIC_ACK)));
    kinds[0x13] = Some((CompareSwap, Only, Headers::ATOMIC));
    kinds[0x14] = Some((FetchAdd, Only, Headers::ATOMIC));
    kinds[0x16] = Some((Send, Last, Headers::INVALIDATE));
    kinds[0x17] = Some((Send, Only, Headers::INVALIDATE));
    // The packet format of extended atomics is not public. These opcodes are reserved in the
    // specification, and the header is the software device's own.
    kinds[0x18] = Some((MaskedCompareSwap, Only, Headers::MASKED_ATOMIC));
    kinds[0x19] = Some((MaskedFetchAdd, Only, Headers::MASKED_ATOMIC));
    // For DC only.
    kinds[0x1a] = Some((Connect, Only, Headers::DC_CONNECT));
    kinds[0x1b] = Some((Disconnect, Only, NONE));
    kinds
}

/// The layout of each of the 256 opcodes, computed at compile time; `None` where undefined.
const LAYOUTS: [Option<Layout>; 256] = layouts();

#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) transport: Transport,
    pub(super) operation: Operation,
    pub(super) position: Position,
    pub(super) headers: Headers,
    pub(super) len: usize,
}

const fn layouts() -> [Option<Layout>; 256] {
    let mut layouts = [None; 256];
    let mut opcode = 0;
    while opcode < 256 {
        layouts[opcode] = layout(opcode as u8);
        opcode += 1;
    }
    layouts
}

const fn layout(opcode: u8) -> Option<Layout> {
    let Some(transport) = Transport::of(opcode) else { return None };
    let Some((operation, position, headers)) = KINDS[(opcode & 0x1f) as usize] else {
        return None;
    };
    let extra = match transport {
        Transport::Dc => Headers::DCETH,
        _ if matches!(operation, Operation::Connect | Operation::Disconnect) => return None,
        Transport::Rc => Headers::empty(),
        Transport::Uc if opcode & 0x1f <= 0x0b => Headers::empty(),
        Transport::Ud if opcode & 0x1f == 4 || opcode & 0x1f == 5 => Headers::DETH,
        Transport::Xrc if operation.is_response() => Headers::empty(),
        Transport::Xrc => Headers::XRCETH,
        _ => return None,
    };
    let headers = headers.union(extra);
    Some(Layout { transport, operation, position, headers, len: headers.size() })
}

impl Opcode {
    /// RC acknowledgement.
    pub const RC_ACKNOWLEDGE: Self = Self(0x11);
    /// RC atomic acknowledgement.
    pub const RC_ATOMIC_ACKNOWLEDGE: Self = Self(0x12);
    /// RC RDMA READ request.
    pub const RC_READ_REQUEST: Self = Self(0x0c);
    /// RC compare-and-swap.
    pub const RC_COMPARE_SWAP: Self = Self(0x13);
    /// RC fetch-and-add.
    pub const RC_FETCH_ADD: Self = Self(0x14);
    /// DC: an initiator opens a session with a target.
    pub const DC_CONNECT: Self = Self(0xfa);
    /// DC acknowledgement.
    pub const DC_ACKNOWLEDGE: Self = Self(0xf1);
    /// DC: an initiator ends its session with a target.
    pub const DC_DISCONNECT: Self = Self(0xfb);
    /// RC masked compare-and-swap (the software device's own, see
    /// [`MaskedAtomicEth`](super::MaskedAtomicEth)).
    pub const RC_MASKED_COMPARE_SWAP: Self = Self(0x18);
    /// RC masked fetch-and-add (the software device's own).
    pub const RC_MASKED_FETCH_ADD: Self = Self(0x19);
    /// UD SEND.
    pub const UD_SEND_ONLY: Self = Self(0x64);
    /// UD SEND with immediate data.
    pub const UD_SEND_ONLY_IMMEDIATE: Self = Self(0x65);
    /// Congestion notification packet (annex A17.9.3), which belongs to none of these transports.
    pub const CNP: Self = Self(0x81);

    /// The same kind of packet on another transport, where the opcode may be undefined.
    pub const fn on(self, transport: Transport) -> Self {
        Self(self.0 & 0x1f | transport.base())
    }

    /// SEND: `modifier` is empty, [`Headers::IMMEDIATE`] or [`Headers::INVALIDATE`]; ignored unless
    /// the message ends with the packet.
    pub const fn send(transport: Transport, position: Position, modifier: Headers) -> Self {
        let low = match position {
            Position::First => 0x00,
            Position::Middle => 0x01,
            Position::Last if modifier.contains(Headers::IMMEDIATE) => 0x03,
            Position::Last if modifier.contains(Headers::INVALIDATE) => 0x16,
            Position::Last => 0x02,
            Position::Only if modifier.contains(Headers::IMMEDIATE) => 0x05,
            Position::Only if modifier.contains(Headers::INVALIDATE) => 0x17,
            Position::Only => 0x04,
        };
        Self(low | transport.base())
    }

    /// RDMA WRITE; `immediate` is ignored unless the message ends with the packet.
    pub const fn write(transport: Transport, position: Position, immediate: bool) -> Self {
        let low = match position {
            Position::First => 0x06,
            Position::Middle => 0x07,
            Position::Last => 0x08 + immediate as u8,
            Position::Only => 0x0a + immediate as u8,
        };
        Self(low | transport.base())
    }

    /// RDMA READ response.
    pub const fn read_response(transport: Transport, position: Position) -> Self {
        let low = match position {
            Position::First => 0x0d,
            Position::Middle => 0x0e,
            Position::Last => 0x0f,
            Position::Only => 0x10,
        };
        Self(low | transport.base())
    }

    pub(super) const fn layout(self) -> Option<Layout> {
        LAYOUTS[self.0 as usize]
    }

    /// The transport, operation, position and headers; `None` if no supported transport defines
    /// the opcode.
    pub const fn describe(self) -> Option<(Transport, Operation, Position, Headers)> {
        match self.layout() {
            Some(l) => Some((l.transport, l.operation, l.position, l.headers)),
            None => None,
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(l) = self.layout() else { return write!(f, "Opcode({:#04x})", self.0) };
        write!(f, "{:?} {:?} {:?}", l.transport, l.operation, l.position)?;
        for (flag, name) in [(Headers::IMMEDIATE, "immediate"), (Headers::INVALIDATE, "invalidate")]
        {
            if l.headers.contains(flag) {
                write!(f, " with {name}")?;
            }
        }
        Ok(())
    }
}
