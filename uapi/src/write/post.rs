//! Posting through the kernel, for drivers without user queues; mlx5 has no use for it.

use crate::enums::WrOpcode;
use crate::flags::SendFlags;

crate::macros::abi_structs! {
    /// A scatter or gather entry; also what [`advise`](crate::objects::mr::advise) takes.
    struct Sge = "struct ib_uverbs_sge", 16 {
        /// Address.
        @0 addr: u64,
        /// Bytes.
        @8 length: u32,
        /// Local key.
        @12 lkey: u32,
    }

    /// A send request.
    struct SendWr = "struct ib_uverbs_send_wr", 56 {
        /// The user's own value.
        @0 wr_id: u64,
        @8 num_sge: u32,
        @12 opcode: WrOpcode,
        @16 send_flags: SendFlags,
        /// Immediate data (network order) or the rkey to invalidate.
        @20 ex: [u8; 4],
        /// What the opcode needs: `{remote_addr, rkey}`, `{remote_addr, compare_add, swap, rkey}`
        /// or `{ah, remote_qpn, remote_qkey}`.
        @24 wr: [u8; 32],
    }

    /// Head of a send; requests and their entries follow.
    struct PostSend = "struct ib_uverbs_post_send", 24 {
        /// Where `write(2)` would put the answer; zero through the ioctl.
        @0 response: u64,
        /// Handle of the queue pair.
        @8 qp_handle: u32,
        /// How many requests follow.
        @12 wr_count: u32,
        /// How many scatter or gather entries follow them.
        @16 sge_count: u32,
        /// Bytes per request.
        @20 wqe_size: u32,
    }

    /// The first failure.
    struct PostSendResp = "struct ib_uverbs_post_send_resp", 4 {
        /// Index, from 1, of the request that failed.
        @0 bad_wr: u32,
    }

    /// A receive request.
    struct RecvWr = "struct ib_uverbs_recv_wr", 16 {
        /// The user's own value.
        @0 wr_id: u64,
        @8 num_sge: u32,
        /// Zero.
        @12 reserved: u32,
    }

    /// Head of a receive; requests and their entries follow.
    struct PostRecv = "struct ib_uverbs_post_recv", 24 {
        /// Where `write(2)` would put the answer; zero through the ioctl.
        @0 response: u64,
        /// Handle of the queue pair.
        @8 qp_handle: u32,
        /// How many requests follow.
        @12 wr_count: u32,
        /// How many scatter or gather entries follow them.
        @16 sge_count: u32,
        /// Bytes per request.
        @20 wqe_size: u32,
    }

    /// The first failure.
    struct PostRecvResp = "struct ib_uverbs_post_recv_resp", 4 {
        /// Index, from 1, of the request that failed.
        @0 bad_wr: u32,
    }

    /// Head of a receive on a shared queue; requests and their entries follow.
    struct PostSrqRecv = "struct ib_uverbs_post_srq_recv", 24 {
        /// Where `write(2)` would put the answer; zero through the ioctl.
        @0 response: u64,
        /// Handle of the shared receive queue.
        @8 srq_handle: u32,
        /// How many requests follow.
        @12 wr_count: u32,
        /// How many scatter or gather entries follow them.
        @16 sge_count: u32,
        /// Bytes per request.
        @20 wqe_size: u32,
    }

    /// The first failure.
    struct PostSrqRecvResp = "struct ib_uverbs_post_srq_recv_resp", 4 {
        /// Index, from 1, of the request that failed.
        @0 bad_wr: u32,
    }
}
