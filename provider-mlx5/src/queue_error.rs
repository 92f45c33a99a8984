//! Why a queue cannot be created.

/// Why a queue cannot be created from its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The memory is too small, not aligned to 64 bytes, or the number of entries is not a power of
    /// two.
    #[error(
        "the queue's memory is too small or not aligned to 64 bytes, or its size is not a power of two"
    )]
    BadMemory,
    /// The limits allow requests larger than a WQE or the ring.
    #[error("the limits allow requests larger than a WQE can be, or than the ring")]
    BadLimits,
    /// A queue that changes a list of tags needs an SRQ that matches tags, and its CQ and table.
    #[error("the SRQ matches no tags, or the queue has another completion queue or table")]
    NoTags,
    /// The handle or the memory already belongs to another queue of this kind.
    #[error("such a queue was made of the handle or the memory before: each makes one")]
    InUse,
}
