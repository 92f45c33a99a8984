//! Why a work request failed: syndromes of error CQEs.

open_values! {
    /// The syndrome of an error CQE (`MLX5_CQE_SYNDROME_*`).
    pub struct Syndrome {
        /// A message did not fit the receive buffer, or a length was wrong.
        LOCAL_LENGTH = 0x01 => "LOCAL_LENGTH_ERR",
        /// The QP or the WQE itself was inconsistent.
        LOCAL_QP_OPERATION = 0x02 => "LOCAL_QP_OP_ERR",
        /// A local key did not allow the access.
        LOCAL_PROTECTION = 0x04 => "LOCAL_PROT_ERR",
        /// The QP was in the error state: the WQE was not executed, or not completely.
        FLUSHED = 0x05 => "WR_FLUSH_ERR",
        /// A memory window could not be bound.
        MW_BIND = 0x06 => "MW_BIND_ERR",
        /// The responder's answer was unexpected.
        BAD_RESPONSE = 0x10 => "BAD_RESP_ERR",
        /// The responder's own buffer could not be accessed by an incoming RDMA write with
        /// immediate.
        LOCAL_ACCESS = 0x11 => "LOCAL_ACCESS_ERR",
        /// The responder refused the request as invalid.
        REMOTE_INVALID_REQUEST = 0x12 => "REMOTE_INVAL_REQ_ERR",
        /// The responder refused the access to its memory.
        REMOTE_ACCESS = 0x13 => "REMOTE_ACCESS_ERR",
        /// The responder could not carry out the request.
        REMOTE_OPERATION = 0x14 => "REMOTE_OP_ERR",
        /// No acknowledgement after all retries.
        TRANSPORT_RETRY_EXCEEDED = 0x15 => "TRANSPORT_RETRY_EXC_ERR",
        /// The responder had no receive WQE after all retries.
        RNR_RETRY_EXCEEDED = 0x16 => "RNR_RETRY_EXC_ERR",
        /// The responder aborted the operation.
        REMOTE_ABORTED = 0x22 => "REMOTE_ABORTED_ERR",
    }
}

open_values! {
    /// The vendor syndrome of an error CQE: a device-specific detail.
    ///
    /// Only values that public sources define have names; NVIDIA does not publish the list.
    pub struct VendorSyndrome {
        /// A page fault on on-demand paging memory (`MLX5_CQE_VENDOR_SYNDROME_ODP_PFAULT`).
        ODP_PAGE_FAULT = 0x93 => "ODP_PFAULT",
        /// A receive was aborted by a packet sequence error. UCX
        /// (`UCT_IB_MLX5_CQE_VENDOR_SYND_PSN`) then returns the receive WQE to its SRQ, as for a
        /// page fault.
        PSN_ABORT = 0x99 => "PSN",
    }
}
