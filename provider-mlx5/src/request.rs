//! The parts of requests (SGEs, remote addresses, flags) and the errors of posting.

#[cfg(test)]
use crate::format::RemoteAddressSegment;
pub use crate::sge::{MAX_SGE_LENGTH, Sge};

/// Sixteen bytes of a WQE as they are in memory: the unit in which segments are composed and
/// stored.
pub(crate) type Octoword = [u64; 2];

/// The bytes of a 16-byte segment as machine words, to be composed in registers and stored whole.
#[inline(always)]
pub(crate) fn octoword<S: zerocopy::IntoBytes + zerocopy::Immutable>(segment: S) -> Octoword {
    const { assert!(core::mem::size_of::<S>() == 16) };
    let bytes = segment.as_bytes();
    [word(bytes, 0), word(bytes, 8)]
}

/// The eight bytes at `offset`; 0 beyond the end (no caller passes such an offset).
#[inline(always)]
pub(crate) fn word(bytes: &[u8], offset: usize) -> u64 {
    match bytes.get(offset..).and_then(|rest| rest.first_chunk()) {
        Some(chunk) => u64::from_ne_bytes(*chunk),
        None => 0,
    }
}

/// A remote address and its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// Address in the remote region's address space.
    pub address: u64,
    /// Remote key.
    pub rkey: u32,
}

impl Remote {
    /// `address` under `rkey`.
    pub const fn new(address: u64, rkey: u32) -> Self {
        Self { address, rkey }
    }

    #[inline(always)]
    pub(crate) fn octoword(self) -> Octoword {
        // The same bytes as `RemoteAddressSegment::new`.
        [self.address.to_be(), u64::from(self.rkey.to_be()).to_le()]
    }
}

/// Immediate data: four bytes, sent unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Immediate(pub [u8; 4]);

impl Immediate {
    /// A number, sent most significant byte first.
    pub const fn from_u32(value: u32) -> Self {
        Self(value.to_be_bytes())
    }

    /// The four bytes as a number, most significant byte first.
    pub const fn to_u32(self) -> u32 {
        u32::from_be_bytes(self.0)
    }
}

bitflags::bitflags! {
    /// How a send request completes and is ordered. The values are the control segment's own.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct PostFlags: u8 {
        /// The receiver raises a solicited event (`IBV_SEND_SOLICITED`).
        const SOLICITED = 0x02;
        /// A successful request generates a completion (`IBV_SEND_SIGNALED`); a failed one always
        /// does.
        const SIGNALED = 0x08;
        /// Starts only after all earlier RDMA reads and atomics of this queue (`IBV_SEND_FENCE`).
        const FENCE = 0x80;
    }
}

/// Why a request was not posted. The queue has not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// No space: the requests posted so far fill the ring.
    #[error(
        "the queue is full: poll its CQ (unsignaled sends are retired by the next signaled one), or ask for a deeper queue"
    )]
    Full,
    /// More scatter/gather entries than the queue was created for, than an RDMA read can have (30),
    /// or than fit into a WQE together with the header of a packet to be segmented.
    #[error(
        "more scatter/gather entries than the queue was created for, or than such a request can have"
    )]
    TooManySge,
    /// More inline data than the queue was created for.
    #[error("more inline data than the queue was created for: set max_inline_data of its builder")]
    InlineTooLong,
    /// The QP is in a state in which this cannot be posted (sends: before RTS; receives: RESET).
    #[error(
        "the QP's state does not allow posting: sends need RTS or later, receives INIT or later"
    )]
    BadState,
    /// This process is a forked child of the one that created the queue.
    #[error("this process is a forked child of the one that opened the device: open it again")]
    ForkedChild,
    /// The QP's service does not have the operation.
    #[error("QPs of this type do not have the operation")]
    BadOpcode,
    /// A scatter/gather entry of 2 GiB or more.
    #[error("a scatter/gather entry of 2 GiB or more: a WQE has 31 bits for a length; split it")]
    SgeTooLong,
    /// Inline data with an operation that cannot carry it.
    #[error("only sends and RDMA writes can carry inline data")]
    InlineNotAllowed,
    /// A remote address or a result buffer of an atomic is not aligned, or the buffer does not have
    /// the operand's size.
    #[error(
        "atomics work on naturally aligned remote addresses and on a result buffer of exactly the operand's size"
    )]
    BadAtomic,
    /// The device needs the first 18 bytes of each packet inside the WQE, and the request does not
    /// have them there: it is not an `EthernetSendHeader`, or the packet is shorter.
    #[error(
        "the device requires a packet's first 18 bytes inline: send it by EthernetSendHeader; shorter packets cannot be sent"
    )]
    BadHeader,
    /// A VLAN tag to be inserted into a packet that has an inline header: the WQE has one field for
    /// both.
    #[error(
        "the device inserts no VLAN tag into a packet with an inline header: put the tag into the header"
    )]
    VlanWithHeader,
    /// A packet to be segmented (TSO) whose header is shorter than 14 bytes or longer than the
    /// queue's inline limit, or that has an MSS of 0.
    #[error(
        "a packet to be segmented needs an MSS of 1 or more and a header of 14 bytes up to the size that the queue was created for"
    )]
    BadSegmentation,
    /// A request that a template cannot hold: it takes more blocks of 64 bytes than the template
    /// has, has no data (or an empty SGE) where the template has data, or changes memory keys.
    #[error(
        "the request takes more blocks of 64 bytes than the template has (one holds up to 44 bytes of inline data, 28 behind a remote address), has no data or an empty SGE, or changes memory keys: make a template of more blocks, or post the request itself"
    )]
    NotATemplate,
    /// A memory window of more than 2 GiB.
    #[error("one translation entry covers at most 2 GiB of a memory window")]
    WindowTooLong,
    /// The request lacks a destination that its service needs, or has one that it cannot use.
    #[error("the request's destination is not of the kind that this QP type needs")]
    BadDestination,
    /// The memory belongs to another protection domain than the queue, or the frame's tail to
    /// another queue.
    #[error(
        "the memory belongs to another protection domain than the queue pair, or a frame's tail to \
         another queue"
    )]
    ForeignMemory,
    /// The queue pair was created without such a queue: without sends, without receives, or with a
    /// shared receive queue.
    #[error(
        "the queue pair has no such queue: it was made without one, or receives through a shared one"
    )]
    NoQueue,
    /// An earlier request failed, and the queue sends nothing more.
    #[error("an earlier request failed, and the queue sends nothing more: create another queue")]
    QueueFailed,
}

/// Which request of a list was refused, and why. All before it have been posted, none after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request {index} of the list: {reason}")]
pub struct ListError {
    /// Index of the refused request.
    pub index: usize,
    /// Why it was refused.
    pub reason: PostError,
}

impl ListError {
    /// The first request of the list was refused.
    pub(crate) fn first(reason: PostError) -> Self {
        Self { index: 0, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_octoword_is_the_formats_segment() {
        let remote = Remote::new(0x0102_0304_0506_0708, 0x5566_7788);
        let segment = RemoteAddressSegment::new(remote.address, remote.rkey);
        assert_eq!(remote.octoword(), octoword(segment));
    }
}
