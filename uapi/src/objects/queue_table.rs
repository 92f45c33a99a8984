//! Queues, indirection tables, address handles and XRC domains.

use super::macros::objects;

objects! {
    /// Completion queue.
    cq = 3 UVERBS_OBJECT_CQ {
        /// Creates a completion queue.
        create = 0 UVERBS_METHOD_CQ_CREATE {
            HANDLE: required NewHandle = 0 UVERBS_ATTR_CREATE_CQ_HANDLE,
            CQE: required In = 1 UVERBS_ATTR_CREATE_CQ_CQE,
            USER_HANDLE: required In = 2 UVERBS_ATTR_CREATE_CQ_USER_HANDLE,
            COMP_CHANNEL: optional Fd = 3 UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL,
            COMP_VECTOR: required In = 4 UVERBS_ATTR_CREATE_CQ_COMP_VECTOR,
            FLAGS: optional Flags = 5 UVERBS_ATTR_CREATE_CQ_FLAGS,
            RESP_CQE: required Out = 6 UVERBS_ATTR_CREATE_CQ_RESP_CQE,
            EVENT_FD: optional Fd = 7 UVERBS_ATTR_CREATE_CQ_EVENT_FD,
            BUFFER_VA: optional In = 8 UVERBS_ATTR_CREATE_CQ_BUFFER_VA,
            BUFFER_LENGTH: optional In = 9 UVERBS_ATTR_CREATE_CQ_BUFFER_LENGTH,
            BUFFER_FD: optional RawFd = 10 UVERBS_ATTR_CREATE_CQ_BUFFER_FD,
            BUFFER_OFFSET: optional In = 11 UVERBS_ATTR_CREATE_CQ_BUFFER_OFFSET,
            BUF_UMEM: optional In = 12 UVERBS_ATTR_CREATE_CQ_BUF_UMEM,
            UHW_IN: optional In = 0x1000 UVERBS_ATTR_UHW_IN,
            UHW_OUT: optional Out = 0x1001 UVERBS_ATTR_UHW_OUT,
        }
        /// Destroys a completion queue and returns how many of its events were reported.
        destroy = 1 UVERBS_METHOD_CQ_DESTROY {
            HANDLE: required Handle = 0 UVERBS_ATTR_DESTROY_CQ_HANDLE,
            RESP: required Out = 1 UVERBS_ATTR_DESTROY_CQ_RESP,
        }
    }

    /// Queue pair.
    qp = 4 UVERBS_OBJECT_QP {
        /// Creates a queue pair.
        create = 0 UVERBS_METHOD_QP_CREATE {
            HANDLE: required NewHandle = 0 UVERBS_ATTR_CREATE_QP_HANDLE,
            XRCD_HANDLE: optional Handle = 1 UVERBS_ATTR_CREATE_QP_XRCD_HANDLE,
            PD_HANDLE: optional Handle = 2 UVERBS_ATTR_CREATE_QP_PD_HANDLE,
            SRQ_HANDLE: optional Handle = 3 UVERBS_ATTR_CREATE_QP_SRQ_HANDLE,
            SEND_CQ_HANDLE: optional Handle = 4 UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE,
            RECV_CQ_HANDLE: optional Handle = 5 UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE,
            IND_TABLE_HANDLE: optional Handle = 6 UVERBS_ATTR_CREATE_QP_IND_TABLE_HANDLE,
            USER_HANDLE: required In = 7 UVERBS_ATTR_CREATE_QP_USER_HANDLE,
            CAP: required In = 8 UVERBS_ATTR_CREATE_QP_CAP,
            TYPE: required Const = 9 UVERBS_ATTR_CREATE_QP_TYPE,
            FLAGS: optional Flags = 10 UVERBS_ATTR_CREATE_QP_FLAGS,
            SOURCE_QPN: optional In = 11 UVERBS_ATTR_CREATE_QP_SOURCE_QPN,
            EVENT_FD: optional Fd = 12 UVERBS_ATTR_CREATE_QP_EVENT_FD,
            RESP_CAP: required Out = 13 UVERBS_ATTR_CREATE_QP_RESP_CAP,
            RESP_QP_NUM: required Out = 14 UVERBS_ATTR_CREATE_QP_RESP_QP_NUM,
            BUF_UMEM: optional In = 15 UVERBS_ATTR_CREATE_QP_BUF_UMEM,
            RQ_BUF_UMEM: optional In = 16 UVERBS_ATTR_CREATE_QP_RQ_BUF_UMEM,
            SQ_BUF_UMEM: optional In = 17 UVERBS_ATTR_CREATE_QP_SQ_BUF_UMEM,
            UHW_IN: optional In = 0x1000 UVERBS_ATTR_UHW_IN,
            UHW_OUT: optional Out = 0x1001 UVERBS_ATTR_UHW_OUT,
        }
        /// Destroys a queue pair and returns how many of its events were reported.
        destroy = 1 UVERBS_METHOD_QP_DESTROY {
            HANDLE: required Handle = 0 UVERBS_ATTR_DESTROY_QP_HANDLE,
            RESP: required Out = 1 UVERBS_ATTR_DESTROY_QP_RESP,
        }
        /// Attaches a completion counter to a queue pair.
        attach_comp_cntr = 2 UVERBS_METHOD_QP_ATTACH_COMP_CNTR {
            HANDLE: required Handle = 0 UVERBS_ATTR_QP_ATTACH_COMP_CNTR_HANDLE,
            CNTR_HANDLE: required Handle = 1 UVERBS_ATTR_QP_ATTACH_COMP_CNTR_CNTR_HANDLE,
            OP_MASK: required Flags = 2 UVERBS_ATTR_QP_ATTACH_COMP_CNTR_OP_MASK,
        }
    }

    /// Shared receive queue.
    srq = 5 UVERBS_OBJECT_SRQ {
        /// Creates a shared receive queue.
        create = 0 UVERBS_METHOD_SRQ_CREATE {
            HANDLE: required NewHandle = 0 UVERBS_ATTR_CREATE_SRQ_HANDLE,
            PD_HANDLE: required Handle = 1 UVERBS_ATTR_CREATE_SRQ_PD_HANDLE,
            XRCD_HANDLE: optional Handle = 2 UVERBS_ATTR_CREATE_SRQ_XRCD_HANDLE,
            CQ_HANDLE: optional Handle = 3 UVERBS_ATTR_CREATE_SRQ_CQ_HANDLE,
            USER_HANDLE: required In = 4 UVERBS_ATTR_CREATE_SRQ_USER_HANDLE,
            MAX_WR: required In = 5 UVERBS_ATTR_CREATE_SRQ_MAX_WR,
            MAX_SGE: required In = 6 UVERBS_ATTR_CREATE_SRQ_MAX_SGE,
            LIMIT: required In = 7 UVERBS_ATTR_CREATE_SRQ_LIMIT,
            MAX_NUM_TAGS: optional In = 8 UVERBS_ATTR_CREATE_SRQ_MAX_NUM_TAGS,
            TYPE: required Const = 9 UVERBS_ATTR_CREATE_SRQ_TYPE,
            EVENT_FD: optional Fd = 10 UVERBS_ATTR_CREATE_SRQ_EVENT_FD,
            RESP_MAX_WR: required Out = 11 UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR,
            RESP_MAX_SGE: required Out = 12 UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE,
            RESP_SRQ_NUM: optional Out = 13 UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM,
            UHW_IN: optional In = 0x1000 UVERBS_ATTR_UHW_IN,
            UHW_OUT: optional Out = 0x1001 UVERBS_ATTR_UHW_OUT,
        }
        /// Destroys a shared receive queue and returns how many of its events were reported.
        destroy = 1 UVERBS_METHOD_SRQ_DESTROY {
            HANDLE: required Handle = 0 UVERBS_ATTR_DESTROY_SRQ_HANDLE,
            RESP: required Out = 1 UVERBS_ATTR_DESTROY_SRQ_RESP,
        }
    }

    /// Receive work queue.
    wq = 12 UVERBS_OBJECT_WQ {
        /// Creates a receive work queue.
        create = 0 UVERBS_METHOD_WQ_CREATE {
            HANDLE: required NewHandle = 0 UVERBS_ATTR_CREATE_WQ_HANDLE,
            PD_HANDLE: required Handle = 1 UVERBS_ATTR_CREATE_WQ_PD_HANDLE,
            CQ_HANDLE: optional Handle = 2 UVERBS_ATTR_CREATE_WQ_CQ_HANDLE,
            USER_HANDLE: required In = 3 UVERBS_ATTR_CREATE_WQ_USER_HANDLE,
            TYPE: required Const = 4 UVERBS_ATTR_CREATE_WQ_TYPE,
            EVENT_FD: optional Fd = 5 UVERBS_ATTR_CREATE_WQ_EVENT_FD,
            MAX_WR: required In = 6 UVERBS_ATTR_CREATE_WQ_MAX_WR,
            MAX_SGE: required In = 7 UVERBS_ATTR_CREATE_WQ_MAX_SGE,
            FLAGS: required Flags = 8 UVERBS_ATTR_CREATE_WQ_FLAGS,
            RESP_MAX_WR: required Out = 9 UVERBS_ATTR_CREATE_WQ_RESP_MAX_WR,
            RESP_MAX_SGE: required Out = 10 UVERBS_ATTR_CREATE_WQ_RESP_MAX_SGE,
            RESP_WQ_NUM: optional Out = 11 UVERBS_ATTR_CREATE_WQ_RESP_WQ_NUM,
            UHW_IN: optional In = 0x1000 UVERBS_ATTR_UHW_IN,
            UHW_OUT: optional Out = 0x1001 UVERBS_ATTR_UHW_OUT,
        }
        /// Destroys a receive work queue and returns how many of its events were reported.
        destroy = 1 UVERBS_METHOD_WQ_DESTROY {
            HANDLE: required Handle = 0 UVERBS_ATTR_DESTROY_WQ_HANDLE,
            RESP: required Out = 1 UVERBS_ATTR_DESTROY_WQ_RESP,
        }
    }

    /// Indirection table of receive work queues.
    rwq_ind_tbl = 11 UVERBS_OBJECT_RWQ_IND_TBL {
        /// Destroys an indirection table.
        destroy = 0 UVERBS_METHOD_RWQ_IND_TBL_DESTROY {
            HANDLE: required Handle = 0 UVERBS_ATTR_DESTROY_RWQ_IND_TBL_HANDLE,
        }
    }

    /// Address handle; created by a write command.
    ah = 6 UVERBS_OBJECT_AH {
        /// Destroys an address handle.
        destroy = 0 UVERBS_METHOD_AH_DESTROY {
            HANDLE: required Handle = 0 UVERBS_ATTR_DESTROY_AH_HANDLE,
        }
    }

    /// XRC domain; opened by a write command.
    xrcd = 10 UVERBS_OBJECT_XRCD {
        /// Closes an XRC domain.
        destroy = 0 UVERBS_METHOD_XRCD_DESTROY {
            HANDLE: required Handle = 0 UVERBS_ATTR_DESTROY_XRCD_HANDLE,
        }
    }
}
