//! The syndrome byte of an acknowledgement (specification 9.7.5.1.2, tables "AETH Syndrome
//! Field", "NAK Codes", "RNR NAK Timer" and "End-to-End Flow Control Credit").

/// The meaning of an acknowledgement's syndrome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Received and executed. `credits` is a 5-bit code, see [`Syndrome::credits`].
    Ack {
        /// 0..=31; 31 means no limit.
        credits: u8,
    },
    /// Receiver not ready: no receive request was posted. Try again after this time.
    RnrNak(RnrTimer),
    /// Refused.
    Nak(NakCode),
    /// A reserved encoding, unchanged.
    Reserved(u8),
}

impl Syndrome {
    /// An ACK without flow control credits.
    pub const ACK: Self = Self::Ack { credits: 31 };

    /// The byte on the wire.
    pub const fn encode(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::RnrNak(timer) => 0x20 | timer.code(),
            Self::Nak(code) => 0x60 | code.0 & 0x1f,
            Self::Reserved(byte) => byte,
        }
    }

    /// The syndrome of a byte. [`encode`](Self::encode) returns the same byte, whatever it is.
    pub const fn decode(byte: u8) -> Self {
        match byte >> 5 {
            0 => Self::Ack { credits: byte & 0x1f },
            1 => Self::RnrNak(RnrTimer::new(byte)),
            3 => Self::Nak(NakCode(byte & 0x1f)),
            _ => Self::Reserved(byte),
        }
    }

    /// The number of receive requests that an ACK's credit code represents; `None` if it sets no
    /// limit or the syndrome is not an ACK.
    pub const fn credits(self) -> Option<u32> {
        match self {
            // 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, …: from 4 on, powers of two alternate with 1.5 times
            // their value.
            Self::Ack { credits: code @ 0..=3 } => Some(code as u32),
            Self::Ack { credits: code @ 4..=30 } => {
                let power = 1 << (code / 2);
                Some(if code % 2 == 0 { power } else { power + power / 2 })
            }
            _ => None,
        }
    }
}

/// A reason to refuse a request. Codes without a name are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NakCode(pub u8);

impl NakCode {
    /// A packet is missing; resend from the acknowledgement's sequence number.
    pub const PSN_SEQUENCE_ERROR: Self = Self(0);
    /// The request is malformed, unsupported, or exceeds what the QP allows.
    pub const INVALID_REQUEST: Self = Self(1);
    /// Key, bounds or access rights do not allow it.
    pub const REMOTE_ACCESS_ERROR: Self = Self(2);
    /// An error of the responder itself.
    pub const REMOTE_OPERATIONAL_ERROR: Self = Self(3);
    /// Reliable datagram only.
    pub const INVALID_RD_REQUEST: Self = Self(4);
}

/// How long a requester waits after "receiver not ready": a 5-bit code, the `min_rnr_timer` of
/// the responder's QP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// Units of 10 microseconds by code; code 0 is the longest (`enum ib_rnr_timeout` of
    /// `rdma/ib_verbs.h` lists the same).
    const TENS_OF_MICROSECONDS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];

    /// The low five bits of `code`.
    pub const fn new(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// The code, 0..=31.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The waiting time in nanoseconds: 10 us to 655.36 ms.
    pub const fn nanoseconds(self) -> u64 {
        Self::TENS_OF_MICROSECONDS[(self.0 & 0x1f) as usize] as u64 * 10_000
    }
}
