//! Why a work request failed: syndrome and vendor syndrome.

use uverbs_mlx5_format::Syndrome;

/// A failure as an error CQE reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) syndrome: Syndrome,
    pub(super) vendor: u8,
}

/// NVIDIA does not publish vendor syndromes. Values from users' logs of real devices are used where
/// known (0x51 and 0x53 with protection errors, 0x81, 0x87, 0x88, 0x89, 0x8a, 0xf9); they are
/// unconfirmed. All others, from 0xa0 up, are this device's own.
impl Failure {
    const fn new(syndrome: Syndrome, vendor: u8) -> Self {
        Self { syndrome, vendor }
    }

    /// The queue was already in error.
    pub(super) const FLUSHED: Self = Self::new(Syndrome::FLUSHED, 0xf9);
    /// The gather list cannot be read.
    pub(super) const GATHER: Self = Self::new(Syndrome::LOCAL_PROTECTION, 0x51);
    /// The scatter list cannot be written.
    pub(super) const SCATTER: Self = Self::new(Syndrome::LOCAL_PROTECTION, 0x53);
    /// No acknowledgement after all retries.
    pub(super) const RETRY: Self = Self::new(Syndrome::TRANSPORT_RETRY_EXCEEDED, 0x81);
    /// Receiver not ready after all retries.
    pub(super) const RNR: Self = Self::new(Syndrome::RNR_RETRY_EXCEEDED, 0x87);
    /// NAK: remote access error.
    pub(super) const REMOTE_ACCESS: Self = Self::new(Syndrome::REMOTE_ACCESS, 0x88);
    /// NAK: remote operational error.
    pub(super) const REMOTE_OPERATION: Self = Self::new(Syndrome::REMOTE_OPERATION, 0x89);
    /// NAK: invalid request.
    pub(super) const REMOTE_INVALID: Self = Self::new(Syndrome::REMOTE_INVALID_REQUEST, 0x8a);
    /// The message is longer than allowed.
    pub(super) const TOO_LONG: Self = Self::new(Syndrome::LOCAL_LENGTH, 0xa0);
    /// The message is longer than the receive buffer.
    pub(super) const BUFFER_TOO_SHORT: Self = Self::new(Syndrome::LOCAL_LENGTH, 0xa1);
    /// The WQE's size is zero, or exceeds the posted blocks.
    pub(super) const WQE_SIZE: Self = Self::new(Syndrome::LOCAL_QP_OPERATION, 0xa8);
    /// The WQE's index or QP number does not match its position.
    pub(super) const WQE_PLACE: Self = Self::new(Syndrome::LOCAL_QP_OPERATION, 0xa9);
    /// The opcode is unknown, or not for this transport.
    pub(super) const OPCODE: Self = Self::new(Syndrome::LOCAL_QP_OPERATION, 0xaa);
    /// A segment is missing or contradicts itself.
    pub(super) const SEGMENT: Self = Self::new(Syndrome::LOCAL_QP_OPERATION, 0xab);
    /// The ring cannot be read.
    pub(super) const RING: Self = Self::new(Syndrome::LOCAL_QP_OPERATION, 0xac);
    /// RDMA READs and atomics are switched off (`max_rd_atomic` 0).
    pub(super) const NO_READS: Self = Self::new(Syndrome::LOCAL_QP_OPERATION, 0xad);
    /// An address vector names a GID that does not exist.
    pub(super) const ADDRESS: Self = Self::new(Syndrome::LOCAL_QP_OPERATION, 0xae);
    /// A change of a tag list is impossible, or cannot be reported.
    pub(super) const TAG_LIST: Self = Self::new(Syndrome::LOCAL_QP_OPERATION, 0xaf);
    /// A response has the wrong length or kind.
    pub(super) const BAD_RESPONSE: Self = Self::new(Syndrome::BAD_RESPONSE, 0xb0);
    /// A window cannot be bound, or a key not changed or invalidated.
    pub(super) const BIND: Self = Self::new(Syndrome::MW_BIND, 0xb8);
}
