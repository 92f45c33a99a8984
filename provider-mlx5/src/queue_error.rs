//! Why a queue cannot be made.

/// Why a queue cannot be made of what was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The memory is too small, not aligned to 64 bytes, or the number of entries is not a power of
    /// two.
    #[error(
        "the queue's memory is too small or not aligned to 64 bytes, or its size is not a power of two"
    )]
    BadMemory,
    /// The limits ask for requests larger than a WQE, or than the ring.
    #[error("the limits allow requests larger than a WQE can be, or than the ring")]
    BadLimits,
    /// A queue that changes a list of tags needs an SRQ that matches tags, and its CQ and table.
    #[error("the SRQ matches no tags, or the queue has another completion queue or table")]
    NoTags,
    /// Another queue of this kind was made with this handle, or of this memory.
    #[error("such a queue was made of the handle or the memory before: each makes one")]
    InUse,
}
