//! The operations of a send queue, one type each: the segments of a WQE between the control segment
//! and the data.
//!
//! An operation returns any octoword of its segments by index. The calls are inlined with constant
//! indices, so a WQE is composed in registers and its constant parts are folded at compile time.

use super::sealed::Sealed;
use crate::format::{self, AddressVector, AtomicSegment, Opcode, U32, XrcSegment};
use crate::queue_state::Kind;
use crate::request::{Immediate, Octoword, PostError, Remote, octoword};

/// An operation that a WQE can describe. The types of this module implement it; it is sealed.
pub trait Operation: Copy + Sealed {
    /// The same operation with nothing borrowed: a template's, which holds a copy of all of it.
    #[doc(hidden)]
    type Held: Operation;
    /// Opcode of the control segment.
    #[doc(hidden)]
    const OPCODE: Opcode;
    /// Octowords between control segment and data.
    #[doc(hidden)]
    const OCTOWORDS: usize = 0;
    /// Where inline data starts in the WQE: behind its length, or where the packet is.
    #[doc(hidden)]
    const DATA_START: usize = 16 * (1 + Self::OCTOWORDS) + 4;
    /// Whether the next request has to wait for this one (a change of memory keys).
    #[doc(hidden)]
    const FENCES_NEXT: bool = false;
    /// Whether the control segment is put together at run time, so that the compiler knows none of
    /// its words.
    #[doc(hidden)]
    const IS_OF_WORDS: bool = false;
    /// Whether octoword `index` is put together from words; otherwise it is copied.
    #[doc(hidden)]
    #[inline(always)]
    fn has_words(_index: usize) -> bool {
        true
    }
    /// Opcode of this request.
    #[doc(hidden)]
    #[inline(always)]
    fn opcode(&self) -> Opcode {
        Self::OPCODE
    }
    /// Opcode modifier.
    #[doc(hidden)]
    #[inline(always)]
    fn modifier(&self) -> u8 {
        0
    }
    /// The control segment's last word, in memory order.
    #[doc(hidden)]
    #[inline(always)]
    fn immediate(&self) -> U32 {
        U32::new(0)
    }
    /// Octoword `index`, below `OCTOWORDS`. `qpn` is the queue's own number.
    #[doc(hidden)]
    fn octoword(&self, index: usize, qpn: u32) -> Octoword;
    /// Why the operation is refused, apart from its data.
    #[doc(hidden)]
    #[inline(always)]
    fn check(&self) -> Result<(), PostError> {
        Ok(())
    }
    #[doc(hidden)]
    #[inline(always)]
    fn kind(&self) -> u8 {
        Kind::Plain as u8
    }
    /// Bytes of a packet's header in the WQE.
    #[doc(hidden)]
    #[inline(always)]
    fn inline_header(&self) -> Option<usize> {
        None
    }
}

/// Two-sided: consumes a receive at the other end.
#[derive(Clone, Copy, Debug)]
pub struct Send;

/// A send that also delivers four bytes in the receiver's completion.
#[derive(Clone, Copy, Debug)]
pub struct SendImmediate(pub Immediate);

/// A send that also invalidates a key at the receiver.
#[derive(Clone, Copy, Debug)]
pub struct SendInvalidate(
    /// The remote key to invalidate.
    pub u32,
);

/// Writes to remote memory.
#[derive(Clone, Copy, Debug)]
pub struct Write(pub Remote);

/// Writes to remote memory, consumes a receive there and delivers four bytes in its completion.
#[derive(Clone, Copy, Debug)]
pub struct WriteImmediate(pub Remote, pub Immediate);

/// Reads remote memory.
#[derive(Clone, Copy, Debug)]
pub struct Read(pub Remote);

/// If the 8 bytes at the remote address equal `compare`, replaces them by `swap`. Delivers what was
/// there.
#[derive(Clone, Copy, Debug)]
pub struct CompareSwap {
    /// Address, a multiple of 8.
    pub remote: Remote,
    /// The value that is expected.
    pub compare: u64,
    /// The value to put in its place.
    pub swap: u64,
}

/// Adds to the 8 bytes at the remote address. Delivers what was there.
#[derive(Clone, Copy, Debug)]
pub struct FetchAdd {
    /// Address, a multiple of 8.
    pub remote: Remote,
    /// The addend.
    pub add: u64,
}

/// A compare-and-swap on chosen bits of 8 bytes.
///
/// The encoding follows UCX and Linux; no device has confirmed it here.
#[derive(Clone, Copy, Debug)]
pub struct MaskedCompareSwap {
    /// Address, a multiple of 8.
    pub remote: Remote,
    /// The value that is expected, in the bits of `compare_mask`.
    pub compare: u64,
    /// Bits to compare.
    pub compare_mask: u64,
    /// The value to put in its place, in the bits of `swap_mask`.
    pub swap: u64,
    /// Bits to replace.
    pub swap_mask: u64,
}

/// A fetch-and-add on fields of 8 bytes: no carry leaves a field.
///
/// The encoding follows UCX and Linux; no device has confirmed it here.
#[derive(Clone, Copy, Debug)]
pub struct MaskedFetchAdd {
    /// Address, a multiple of 8.
    pub remote: Remote,
    /// The addend.
    pub add: u64,
    /// A set bit is the highest bit of a field.
    pub field_boundary: u64,
}

/// Does nothing, and can still complete.
#[derive(Clone, Copy, Debug)]
pub struct Nop;

macro_rules! sealed {
    ($($name:ty),* $(,)?) => {
        $(impl Sealed for $name {})*
    };
}

sealed!(Send, SendImmediate, SendInvalidate, Write, WriteImmediate, Read, CompareSwap, FetchAdd);
sealed!(
    AnySend,
    AnyAccess,
    MaskedCompareSwap,
    MaskedFetchAdd,
    Nop,
    Datagram<'_>,
    DcTarget<'_>,
    XrcTarget
);
impl<D: Destination, O: Operation> Sealed for To<D, O> {}

macro_rules! plain_operation {
    ($name:ident, $opcode:ident $(, |$this:ident| $immediate:expr)?) => {
        impl Operation for $name {
            type Held = Self;
            const OPCODE: Opcode = Opcode::$opcode;
            $(#[inline(always)]
            fn immediate(&self) -> U32 {
                let $this = self;
                $immediate
            })?
            #[inline(always)]
            fn octoword(&self, _: usize, _: u32) -> Octoword {
                [0; 2]
            }
        }
    };
}

plain_operation!(Send, SEND);
plain_operation!(SendImmediate, SEND_IMMEDIATE, |this| U32::from_bytes(this.0.0));
plain_operation!(SendInvalidate, SEND_INVALIDATE, |this| U32::new(this.0));
plain_operation!(Nop, NOP);

macro_rules! rdma_operation {
    ($name:ident, $opcode:ident $(, |$this:ident| $immediate:expr)?) => {
        impl Operation for $name {
            type Held = Self;
            const OPCODE: Opcode = Opcode::$opcode;
            const OCTOWORDS: usize = 1;
            $(#[inline(always)]
            fn immediate(&self) -> U32 {
                let $this = self;
                $immediate
            })?
            #[inline(always)]
            fn octoword(&self, _: usize, _: u32) -> Octoword {
                self.0.octoword()
            }
        }
    };
}

rdma_operation!(Write, RDMA_WRITE);
rdma_operation!(WriteImmediate, RDMA_WRITE_IMMEDIATE, |this| U32::from_bytes(this.1.0));
rdma_operation!(Read, RDMA_READ);

/// What an 8-byte atomic demands of its remote address (IBTA: else the responder refuses it).
#[inline(always)]
fn aligned(remote: Remote) -> Result<(), PostError> {
    if remote.address % 8 == 0 { Ok(()) } else { Err(PostError::BadAtomic) }
}

impl Operation for CompareSwap {
    type Held = Self;
    const OPCODE: Opcode = Opcode::ATOMIC_COMPARE_SWAP;
    const OCTOWORDS: usize = 2;
    #[inline(always)]
    fn octoword(&self, index: usize, _: u32) -> Octoword {
        match index {
            0 => self.remote.octoword(),
            _ => octoword(AtomicSegment::compare_swap(self.compare, self.swap)),
        }
    }
    #[inline(always)]
    fn check(&self) -> Result<(), PostError> {
        aligned(self.remote)
    }
}

impl Operation for FetchAdd {
    type Held = Self;
    const OPCODE: Opcode = Opcode::ATOMIC_FETCH_ADD;
    const OCTOWORDS: usize = 2;
    #[inline(always)]
    fn octoword(&self, index: usize, _: u32) -> Octoword {
        match index {
            0 => self.remote.octoword(),
            _ => octoword(AtomicSegment::fetch_add(self.add)),
        }
    }
    #[inline(always)]
    fn check(&self) -> Result<(), PostError> {
        aligned(self.remote)
    }
}

impl Operation for MaskedCompareSwap {
    type Held = Self;
    const OPCODE: Opcode = Opcode::ATOMIC_MASKED_COMPARE_SWAP;
    const OCTOWORDS: usize = 3;
    #[inline(always)]
    fn modifier(&self) -> u8 {
        format::extended_atomic_modifier(3)
    }
    #[inline(always)]
    fn octoword(&self, index: usize, _: u32) -> Octoword {
        match index {
            0 => self.remote.octoword(),
            1 => [self.swap.to_be(), self.compare.to_be()],
            _ => [self.swap_mask.to_be(), self.compare_mask.to_be()],
        }
    }
    #[inline(always)]
    fn check(&self) -> Result<(), PostError> {
        aligned(self.remote)
    }
}

impl Operation for MaskedFetchAdd {
    type Held = Self;
    const OPCODE: Opcode = Opcode::ATOMIC_MASKED_FETCH_ADD;
    const OCTOWORDS: usize = 2;
    #[inline(always)]
    fn modifier(&self) -> u8 {
        format::extended_atomic_modifier(3)
    }
    #[inline(always)]
    fn octoword(&self, index: usize, _: u32) -> Octoword {
        match index {
            0 => self.remote.octoword(),
            _ => [self.add.to_be(), self.field_boundary.to_be()],
        }
    }
    #[inline(always)]
    fn check(&self) -> Result<(), PostError> {
        aligned(self.remote)
    }
}

/// A send of any kind, known at run time.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct AnySend {
    /// What the device calls it.
    pub opcode: Opcode,
    /// The control segment's last word.
    pub immediate: U32,
}

/// An access to remote memory of any kind, known at run time.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct AnyAccess {
    /// What the device calls it.
    pub opcode: Opcode,
    /// The control segment's last word.
    pub immediate: U32,
    /// The memory.
    pub remote: Remote,
}

impl Operation for AnySend {
    type Held = Self;
    const OPCODE: Opcode = Opcode::SEND;
    const IS_OF_WORDS: bool = true;
    #[inline(always)]
    fn opcode(&self) -> Opcode {
        self.opcode
    }
    #[inline(always)]
    fn immediate(&self) -> U32 {
        self.immediate
    }
    #[inline(always)]
    fn octoword(&self, _: usize, _: u32) -> Octoword {
        [0; 2]
    }
}

impl Operation for AnyAccess {
    type Held = Self;
    const OPCODE: Opcode = Opcode::RDMA_WRITE;
    const OCTOWORDS: usize = 1;
    const IS_OF_WORDS: bool = true;
    #[inline(always)]
    fn opcode(&self) -> Opcode {
        self.opcode
    }
    #[inline(always)]
    fn immediate(&self) -> U32 {
        self.immediate
    }
    #[inline(always)]
    fn octoword(&self, _: usize, _: u32) -> Octoword {
        self.remote.octoword()
    }
}

/// An operation and its destination, for services whose queue pairs have no fixed peer.
#[doc(alias = "ibv_wr_set_ud_addr")]
#[derive(Clone, Copy, Debug)]
pub struct To<D, O>(
    /// The destination.
    pub D,
    /// The operation.
    pub O,
);

/// The destination of a message. The types of this module implement it; it is sealed.
pub trait Destination: Copy + Sealed {
    /// See [`Operation::Held`].
    #[doc(hidden)]
    type Held: Destination;
    #[doc(hidden)]
    const OCTOWORDS: usize;
    #[doc(hidden)]
    fn octoword(&self, index: usize) -> Octoword;
}

/// A UD destination: the address vector with the remote QP number and Q_Key filled in
/// (`AddressVector::for_datagram`). A reference, because it is 48 bytes that rarely change.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a>(pub &'a AddressVector);

/// A DC target: the address vector with the target's number and access key filled in
/// (`AddressVector::for_dc`).
#[derive(Clone, Copy, Debug)]
pub struct DcTarget<'a>(pub &'a AddressVector);

/// The number of the remote XRC SRQ.
#[derive(Clone, Copy, Debug)]
pub struct XrcTarget(pub u32);

#[inline(always)]
fn address_octoword(av: &AddressVector, index: usize) -> Octoword {
    let bytes = zerocopy::IntoBytes::as_bytes(av);
    [crate::request::word(bytes, 16 * index), crate::request::word(bytes, 16 * index + 8)]
}

impl Destination for Datagram<'_> {
    type Held = Datagram<'static>;
    const OCTOWORDS: usize = 3;
    #[inline(always)]
    fn octoword(&self, index: usize) -> Octoword {
        address_octoword(self.0, index)
    }
}

impl Destination for DcTarget<'_> {
    type Held = DcTarget<'static>;
    const OCTOWORDS: usize = 3;
    #[inline(always)]
    fn octoword(&self, index: usize) -> Octoword {
        address_octoword(self.0, index)
    }
}

/// None: the peer that the queue is connected to.
impl Destination for () {
    type Held = Self;
    const OCTOWORDS: usize = 0;
    #[inline(always)]
    fn octoword(&self, _: usize) -> Octoword {
        [0; 2]
    }
}

impl Destination for XrcTarget {
    type Held = Self;
    const OCTOWORDS: usize = 1;
    #[inline(always)]
    fn octoword(&self, _: usize) -> Octoword {
        octoword(XrcSegment::new(self.0))
    }
}

impl<D: Destination, O: Operation> Operation for To<D, O> {
    type Held = To<D::Held, O::Held>;
    const OPCODE: Opcode = O::OPCODE;
    const OCTOWORDS: usize = D::OCTOWORDS + O::OCTOWORDS;
    const FENCES_NEXT: bool = O::FENCES_NEXT;
    const IS_OF_WORDS: bool = O::IS_OF_WORDS;
    #[inline(always)]
    fn opcode(&self) -> Opcode {
        self.1.opcode()
    }
    #[inline(always)]
    fn modifier(&self) -> u8 {
        self.1.modifier()
    }
    #[inline(always)]
    fn immediate(&self) -> U32 {
        self.1.immediate()
    }
    #[inline(always)]
    fn octoword(&self, index: usize, qpn: u32) -> Octoword {
        if index < D::OCTOWORDS {
            self.0.octoword(index)
        } else {
            self.1.octoword(index - D::OCTOWORDS, qpn)
        }
    }
    #[inline(always)]
    fn has_words(index: usize) -> bool {
        index >= D::OCTOWORDS && O::has_words(index - D::OCTOWORDS)
    }
    #[inline(always)]
    fn check(&self) -> Result<(), PostError> {
        self.1.check()
    }
    #[inline(always)]
    fn kind(&self) -> u8 {
        self.1.kind()
    }
    #[inline(always)]
    fn inline_header(&self) -> Option<usize> {
        self.1.inline_header()
    }
}
