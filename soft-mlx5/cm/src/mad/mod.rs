//! Management datagrams of the communication management class (IBTA volume 1, 12.6 and 12.11).
//!
//! A datagram has 256 bytes: a [`MadHeader`] and a body of 232 bytes, whose layout the attribute id
//! determines. Everything is big endian. It is sent as a UD SEND between two QP1s, with
//! [`GSI_QKEY`].
//!
//! Every type here accepts arbitrary bytes: fields narrower than their word are masked, and a
//! length in a datagram is limited to the field that it describes.

mod bits;
mod disconnect;
mod lap;
mod private;
mod reject;
mod reply;
mod request;
mod sidr;

pub use disconnect::{Drep, Dreq};
pub use lap::{Apr, Lap, LapPath};
pub use private::{CmaHdr, IpVersion};
pub use reject::{Mra, Rej, RejReason, Rejected};
pub use reply::{Rep, Rtu};
pub use request::{Req, ReqPath, TransportService};
pub use sidr::{SidrRep, SidrReq, SidrStatus};

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a datagram.
pub const MAD_LEN: usize = 256;

/// Bytes after the header.
pub const BODY_LEN: usize = MAD_LEN - size_of::<MadHeader>();

/// Q_Key of QP1 (IBTA volume 1, 3.5.3).
pub const GSI_QKEY: u32 = 0x8001_0000;

/// A communication id, or the request id of SIDR: one side's number for a connection. 0 means that
/// it is not known yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommId(pub u32);

impl CommId {
    /// The id of a peer that is not known yet.
    pub const UNKNOWN: Self = Self(0);
}

/// The type of a datagram's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum Attribute {
    /// Request for communication.
    Req = 0x10,
    /// Message receipt acknowledgement.
    Mra = 0x11,
    /// Reject.
    Rej = 0x12,
    /// Reply to a request.
    Rep = 0x13,
    /// Ready to use.
    Rtu = 0x14,
    /// Request for disconnection.
    Dreq = 0x15,
    /// Reply to a request for disconnection.
    Drep = 0x16,
    /// Service id resolution request.
    SidrReq = 0x17,
    /// Service id resolution reply.
    SidrRep = 0x18,
    /// Load alternate path.
    Lap = 0x19,
    /// Alternate path reply.
    Apr = 0x1a,
}

impl Attribute {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::Req,
        Self::Mra,
        Self::Rej,
        Self::Rep,
        Self::Rtu,
        Self::Dreq,
        Self::Drep,
        Self::SidrReq,
        Self::SidrRep,
        Self::Lap,
        Self::Apr,
    ];

    fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|attribute| *attribute as u16 == number)
    }
}

uverbs_soft_packet::wire_struct! {
    /// The header that all management classes share (IBTA volume 1, 13.4.3).
    pub struct MadHeader {
        /// 1.
        pub base_version: u8,
        /// 7 for communication management.
        pub class: u8,
        /// 2.
        pub class_version: u8,
        /// 3 (Send), also for answers.
        pub method: u8,
        /// 0.
        pub status: U16,
        /// 0.
        pub class_specific: U16,
        /// Transaction id. All messages of an exchange repeat the request's.
        pub tid: U64,
        attribute: U16,
        reserved: U16,
        /// Options of enhanced connection establishment in REQ, REP and SIDR_REP, else 0.
        pub modifier: U32,
    }
}

impl MadHeader {
    const BASE_VERSION: u8 = 1;
    const CLASS: u8 = 7;
    const CLASS_VERSION: u8 = 2;
    const SEND: u8 = 3;

    /// A header as the kernel sends it.
    pub fn new(attribute: Attribute, tid: u64, modifier: u32) -> Self {
        Self {
            base_version: Self::BASE_VERSION,
            class: Self::CLASS,
            class_version: Self::CLASS_VERSION,
            method: Self::SEND,
            tid: tid.into(),
            attribute: (attribute as u16).into(),
            modifier: modifier.into(),
            ..Self::default()
        }
    }

    /// The attribute id as it is on the wire.
    pub fn attribute_number(&self) -> u16 {
        self.attribute.get()
    }
}

/// Why bytes are not a datagram of this class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MadError {
    /// Not 256 bytes.
    #[error("a management datagram has 256 bytes, not {0}")]
    Length(usize),
    /// Another base version, class, class version or method.
    #[error(
        "not a communication management datagram: base version {base_version}, class {class:#x}, \
         class version {class_version}, method {method:#x}"
    )]
    NotCm {
        /// Base version, 1 expected.
        base_version: u8,
        /// Management class, 7 expected.
        class: u8,
        /// Class version, 2 expected.
        class_version: u8,
        /// Method, 3 expected.
        method: u8,
    },
    /// Not an attribute of this class.
    #[error("communication management has no attribute {0:#x}")]
    UnknownAttribute(u16),
}

/// The layout of a body.
pub trait Body: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned + Copy {
    /// Its attribute id.
    const ATTRIBUTE: Attribute;
}

/// A datagram's bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Mad {
    /// Header.
    pub header: MadHeader,
    body: [u8; BODY_LEN],
}

impl Mad {
    /// A datagram of this body.
    pub fn new<B: Body>(tid: u64, modifier: u32, body: B) -> Self {
        let mut mad =
            Self { header: MadHeader::new(B::ATTRIBUTE, tid, modifier), body: [0; BODY_LEN] };
        body.write_to(&mut mad.body).expect("every body has this length: asserted beside each");
        mad
    }

    /// Checks length, versions, class, method and attribute.
    pub fn parse(bytes: &[u8]) -> Result<&Self, MadError> {
        let mad = Self::ref_from_bytes(bytes).map_err(|_| MadError::Length(bytes.len()))?;
        let MadHeader { base_version, class, class_version, method, .. } = mad.header;
        let wanted = MadHeader::new(Attribute::Req, 0, 0);
        if [base_version, class, class_version, method] != wanted.as_bytes()[..4] {
            return Err(MadError::NotCm { base_version, class, class_version, method });
        }
        mad.attribute().map(|_| mad)
    }

    /// The type of the body.
    pub fn attribute(&self) -> Result<Attribute, MadError> {
        let number = self.header.attribute_number();
        Attribute::from_number(number).ok_or(MadError::UnknownAttribute(number))
    }

    /// The body, if it is of this type.
    pub fn body<B: Body>(&self) -> Option<&B> {
        if self.header.attribute_number() != B::ATTRIBUTE as u16 {
            return None;
        }
        B::ref_from_bytes(&self.body).ok()
    }

    /// The first two words of the body. In every body but those of SIDR they are the sender's
    /// communication id and, except in REQ, the receiver's. The kernel reads them like this from
    /// any body when it rejects a message that matches no id (`cm_issue_rej`).
    pub fn first_words(&self) -> (CommId, CommId) {
        let word = |at: usize| {
            let (word, _) = U32::read_from_prefix(&self.body[at..]).unwrap_or_default();
            CommId(word.get())
        };
        (word(0), word(4))
    }
}

#[cfg(test)]
mod tests;
