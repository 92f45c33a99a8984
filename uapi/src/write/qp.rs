//! Queue pairs.

use crate::enums::{MigState, Mtu, QpState, QpType};
use crate::flags::{AccessFlags, CreateQpMask, QpAttrMask, QpCreateFlags};
use crate::write::ah::AhAttr;

crate::macros::abi_structs! {
    /// Sizes of a queue pair.
    struct QpCap = "struct ib_uverbs_qp_cap", 20 {
        @0 max_send_wr: u32,
        @4 max_recv_wr: u32,
        @8 max_send_sge: u32,
        @12 max_recv_sge: u32,
        @16 max_inline_data: u32,
    }

    /// Address vector of a connected queue pair.
    struct QpDest = "struct ib_uverbs_qp_dest", 32 {
        /// Destination GID.
        @0 dgid: [u8; 16],
        @16 flow_label: u32,
        /// Destination LID, zero for RoCE.
        @20 dlid: u16,
        @22 reserved: u16,
        /// Index into the GID table.
        @24 sgid_index: u8,
        @25 hop_limit: u8,
        @26 traffic_class: u8,
        /// Service level.
        @27 sl: u8,
        /// Low bits of the source LID.
        @28 src_path_bits: u8,
        /// A [`Rate`](crate::enums::Rate) code.
        @29 static_rate: u8,
        /// 1 if there is a GRH.
        @30 is_global: u8,
        @31 port_num: u8,
    }

    /// Creates a queue pair.
    struct CreateQp = "struct ib_uverbs_create_qp", 56 {
        @0 response: u64,
        @8 user_handle: u64,
        @16 pd_handle: u32,
        /// Completion queue of the send queue.
        @20 send_cq_handle: u32,
        /// Completion queue of the receive queue.
        @24 recv_cq_handle: u32,
        @28 srq_handle: u32,
        @32 max_send_wr: u32,
        @36 max_recv_wr: u32,
        @40 max_send_sge: u32,
        @44 max_recv_sge: u32,
        @48 max_inline_data: u32,
        @52 sq_sig_all: u8,
        @53 qp_type: QpType,
        /// 1: receives come from the shared receive queue.
        @54 is_srq: u8,
        @55 reserved: u8,
    }

    /// The queue pair; also the answer to [`OpenQp`].
    struct CreateQpResp = "struct ib_uverbs_create_qp_resp", 32 {
        @0 qp_handle: u32,
        /// Queue pair number.
        @4 qpn: u32,
        @8 max_send_wr: u32,
        @12 max_recv_wr: u32,
        @16 max_send_sge: u32,
        @20 max_recv_sge: u32,
        @24 max_inline_data: u32,
        @28 reserved: u32,
    }

    /// Creates a queue pair, with flags.
    struct ExCreateQp = "struct ib_uverbs_ex_create_qp", 64 {
        @0 user_handle: u64,
        @8 pd_handle: u32,
        /// Completion queue of the send queue.
        @12 send_cq_handle: u32,
        /// Completion queue of the receive queue.
        @16 recv_cq_handle: u32,
        @20 srq_handle: u32,
        @24 max_send_wr: u32,
        @28 max_recv_wr: u32,
        @32 max_send_sge: u32,
        @36 max_recv_sge: u32,
        @40 max_inline_data: u32,
        @44 sq_sig_all: u8,
        @45 qp_type: QpType,
        /// 1: receives come from the shared receive queue.
        @46 is_srq: u8,
        @47 reserved: u8,
        @48 comp_mask: CreateQpMask,
        @52 create_flags: QpCreateFlags,
        /// Handle of the indirection table.
        @56 rwq_ind_tbl_handle: u32,
        /// Queue pair number that packets carry.
        @60 source_qpn: u32,
    }

    /// The queue pair.
    struct ExCreateQpResp = "struct ib_uverbs_ex_create_qp_resp", 40 {
        /// The plain answer.
        @0 base: CreateQpResp,
        @32 comp_mask: u32,
        @36 response_length: u32,
    }

    /// Opens an existing XRC target.
    struct OpenQp = "struct ib_uverbs_open_qp", 32 {
        @0 response: u64,
        @8 user_handle: u64,
        /// Handle of the XRC domain.
        @16 pd_handle: u32,
        /// Queue pair number.
        @20 qpn: u32,
        @24 qp_type: QpType,
        @25 reserved: [u8; 7],
    }

    /// Queries attributes.
    struct QueryQp = "struct ib_uverbs_query_qp", 16 {
        @0 response: u64,
        @8 qp_handle: u32,
        @12 attr_mask: QpAttrMask,
    }

    /// Attributes.
    struct QueryQpResp = "struct ib_uverbs_query_qp_resp", 128 {
        /// Primary path.
        @0 dest: QpDest,
        /// Alternate path.
        @32 alt_dest: QpDest,
        @64 max_send_wr: u32,
        @68 max_recv_wr: u32,
        @72 max_send_sge: u32,
        @76 max_recv_sge: u32,
        @80 max_inline_data: u32,
        @84 qkey: u32,
        @88 rq_psn: u32,
        @92 sq_psn: u32,
        @96 dest_qp_num: u32,
        @100 qp_access_flags: AccessFlags,
        @104 pkey_index: u16,
        @106 alt_pkey_index: u16,
        @108 qp_state: QpState,
        @109 cur_qp_state: QpState,
        @110 path_mtu: Mtu,
        @111 path_mig_state: MigState,
        @112 sq_draining: u8,
        @113 max_rd_atomic: u8,
        @114 max_dest_rd_atomic: u8,
        @115 min_rnr_timer: u8,
        @116 port_num: u8,
        @117 timeout: u8,
        @118 retry_cnt: u8,
        @119 rnr_retry: u8,
        @120 alt_port_num: u8,
        @121 alt_timeout: u8,
        @122 sq_sig_all: u8,
        @123 reserved: [u8; 5],
    }

    /// Changes attributes.
    struct ModifyQp = "struct ib_uverbs_modify_qp", 112 {
        /// Primary path.
        @0 dest: QpDest,
        /// Alternate path.
        @32 alt_dest: QpDest,
        @64 qp_handle: u32,
        @68 attr_mask: QpAttrMask,
        @72 qkey: u32,
        @76 rq_psn: u32,
        @80 sq_psn: u32,
        @84 dest_qp_num: u32,
        @88 qp_access_flags: AccessFlags,
        @92 pkey_index: u16,
        @94 alt_pkey_index: u16,
        @96 qp_state: QpState,
        @97 cur_qp_state: QpState,
        @98 path_mtu: Mtu,
        @99 path_mig_state: MigState,
        @100 en_sqd_async_notify: u8,
        @101 max_rd_atomic: u8,
        @102 max_dest_rd_atomic: u8,
        @103 min_rnr_timer: u8,
        @104 port_num: u8,
        @105 timeout: u8,
        @106 retry_cnt: u8,
        @107 rnr_retry: u8,
        @108 alt_port_num: u8,
        @109 alt_timeout: u8,
        @110 reserved: [u8; 2],
    }

    /// Changes attributes, rate limit included.
    struct ExModifyQp = "struct ib_uverbs_ex_modify_qp", 120 {
        /// The plain request.
        @0 base: ModifyQp,
        /// Kbit/s.
        @112 rate_limit: u32,
        @116 reserved: u32,
    }

    /// The answer.
    struct ExModifyQpResp = "struct ib_uverbs_ex_modify_qp_resp", 8 {
        @0 comp_mask: u32,
        @4 response_length: u32,
    }

    /// Destroys a queue pair.
    struct DestroyQp = "struct ib_uverbs_destroy_qp", 16 {
        @0 response: u64,
        @8 qp_handle: u32,
        @12 reserved: u32,
    }

    /// The events delivered for the queue pair.
    struct DestroyQpResp = "struct ib_uverbs_destroy_qp_resp", 4 {
        /// How many events of the object the kernel delivered.
        @0 events_reported: u32,
    }

    /// Joins a multicast group.
    struct AttachMcast = "struct ib_uverbs_attach_mcast", 24 {
        /// The group.
        @0 gid: [u8; 16],
        @16 qp_handle: u32,
        /// LID of the group.
        @20 mlid: u16,
        @22 reserved: u16,
    }

    /// Leaves a multicast group.
    struct DetachMcast = "struct ib_uverbs_detach_mcast", 24 {
        /// The group.
        @0 gid: [u8; 16],
        @16 qp_handle: u32,
        /// LID of the group.
        @20 mlid: u16,
        @22 reserved: u16,
    }

    /// Attributes in the form of the connection manager (`rdma_ucm`).
    struct QpAttr = "struct ib_uverbs_qp_attr", 144 {
        @0 qp_attr_mask: QpAttrMask,
        @4 qp_state: u32,
        @8 cur_qp_state: u32,
        @12 path_mtu: u32,
        @16 path_mig_state: u32,
        @20 qkey: u32,
        @24 rq_psn: u32,
        @28 sq_psn: u32,
        @32 dest_qp_num: u32,
        @36 qp_access_flags: AccessFlags,
        @40 ah_attr: AhAttr,
        @72 alt_ah_attr: AhAttr,
        @104 max_send_wr: u32,
        @108 max_recv_wr: u32,
        @112 max_send_sge: u32,
        @116 max_recv_sge: u32,
        @120 max_inline_data: u32,
        @124 pkey_index: u16,
        @126 alt_pkey_index: u16,
        @128 en_sqd_async_notify: u8,
        @129 sq_draining: u8,
        @130 max_rd_atomic: u8,
        @131 max_dest_rd_atomic: u8,
        @132 min_rnr_timer: u8,
        @133 port_num: u8,
        @134 timeout: u8,
        @135 retry_cnt: u8,
        @136 rnr_retry: u8,
        @137 alt_port_num: u8,
        @138 alt_timeout: u8,
        @139 reserved: [u8; 5],
    }
}
