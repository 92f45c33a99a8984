//! Work requests and completions.

use std::ffi::{c_int, c_uint, c_void};

use super::objects::{ibv_ah, ibv_mr, ibv_mw};

super::c_structs! {
    #[derive(Clone, Copy)]
    struct ibv_sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }

    #[derive(Clone, Copy)]
    struct ibv_data_buf {
        addr: *mut c_void,
        length: usize,
    }

    #[derive(Clone, Copy)]
    struct ibv_mw_bind_info {
        mr: *mut ibv_mr,
        addr: u64,
        length: u64,
        mw_access_flags: c_uint,
    }

    struct ibv_mw_bind {
        wr_id: u64,
        send_flags: c_uint,
        bind_info: ibv_mw_bind_info,
    }

    struct ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: c_uint,
        send_flags: c_uint,
        /// Immediate data in network byte order, or the rkey to invalidate.
        imm_data: u32,
        wr: Wr,
        qp_type: u32,
        bind_mw: Extra,
    }

    struct ibv_recv_wr {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }

    struct ibv_ops_wr {
        wr_id: u64,
        next: *mut ibv_ops_wr,
        opcode: c_uint,
        flags: c_uint,
        tm: OpsTags,
    }
}

impl ibv_sge {
    /// Its address, length and key, in that order. Length and key are read by one load, so that one
    /// more instruction makes the device's word of both.
    ///
    /// # Safety
    /// `sge` is a program's.
    #[inline(always)]
    pub(crate) unsafe fn parts(sge: *const Self) -> (u64, u32, u32) {
        // SAFETY: the caller's promise; two words behind each other.
        let (address, both) =
            unsafe { ((*sge).addr, (&raw const (*sge).length).cast::<u64>().read_unaligned()) };
        // SAFETY: same size, and every value is valid in both.
        let [length, lkey] = unsafe { std::mem::transmute::<u64, [u32; 2]>(both) };
        (address, length, lkey)
    }
}

/// The anonymous union `wr` of `struct ibv_send_wr`. Opcode and queue pair type decide which member
/// is used.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Wr {
    pub(crate) rdma: Rdma,
    pub(crate) atomic: Atomic,
    pub(crate) ud: Ud,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Rdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Atomic {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Ud {
    pub(crate) ah: *mut ibv_ah,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

/// The anonymous struct `tm` of `struct ibv_ops_wr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct OpsTags {
    pub(crate) unexpected_cnt: u32,
    pub(crate) handle: u32,
    pub(crate) add: OpsAdd,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct OpsAdd {
    pub(crate) recv_wr_id: u64,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
    pub(crate) tag: u64,
    pub(crate) mask: u64,
}

/// `enum ibv_ops_wr_opcode`.
pub(crate) mod ops_opcode {
    pub(crate) const TAG_ADD: u32 = 0;
    pub(crate) const TAG_DEL: u32 = 1;
    pub(crate) const TAG_SYNC: u32 = 2;
}

/// `enum ibv_ops_flags`.
pub(crate) mod ops_flags {
    pub(crate) const SIGNALED: u32 = 1;
    pub(crate) const TM_SYNC: u32 = 1 << 1;
}

/// The union at the end of `struct ibv_send_wr`, for `IBV_WR_BIND_MW` and `IBV_WR_TSO`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Extra {
    pub(crate) bind_mw: BindMw,
    pub(crate) tso: Tso,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct BindMw {
    pub(crate) mw: *mut ibv_mw,
    pub(crate) rkey: u32,
    pub(crate) bind_info: ibv_mw_bind_info,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Tso {
    pub(crate) hdr: *mut c_void,
    pub(crate) hdr_sz: u16,
    pub(crate) mss: u16,
}

/// `enum ibv_wr_opcode`.
pub(crate) mod wr_opcode {
    pub(crate) const RDMA_WRITE: u32 = 0;
    pub(crate) const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub(crate) const SEND: u32 = 2;
    pub(crate) const SEND_WITH_IMM: u32 = 3;
    pub(crate) const RDMA_READ: u32 = 4;
    pub(crate) const ATOMIC_CMP_AND_SWP: u32 = 5;
    pub(crate) const ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub(crate) const LOCAL_INV: u32 = 7;
    pub(crate) const BIND_MW: u32 = 8;
    pub(crate) const SEND_WITH_INV: u32 = 9;
    pub(crate) const TSO: u32 = 10;
}

/// `enum ibv_wc_opcode`.
pub(crate) mod wc_opcode {
    pub(crate) const SEND: u32 = 0;
    pub(crate) const RDMA_WRITE: u32 = 1;
    pub(crate) const RDMA_READ: u32 = 2;
    pub(crate) const COMP_SWAP: u32 = 3;
    pub(crate) const FETCH_ADD: u32 = 4;
    pub(crate) const BIND_MW: u32 = 5;
    pub(crate) const LOCAL_INV: u32 = 6;
    pub(crate) const TSO: u32 = 7;
    pub(crate) const RECV: u32 = 1 << 7;
    pub(crate) const RECV_RDMA_WITH_IMM: u32 = RECV + 1;
    pub(crate) const TM_ADD: u32 = RECV + 2;
    pub(crate) const TM_DEL: u32 = RECV + 3;
    pub(crate) const TM_SYNC: u32 = RECV + 4;
    pub(crate) const TM_RECV: u32 = RECV + 5;
    pub(crate) const TM_NO_TAG: u32 = RECV + 6;
    pub(crate) const DRIVER1: u32 = RECV + 7;
    pub(crate) const DRIVER2: u32 = RECV + 8;
}

/// `enum ibv_send_flags`.
pub(crate) mod send_flags {
    pub(crate) const FENCE: u32 = 1;
    pub(crate) const SIGNALED: u32 = 1 << 1;
    pub(crate) const SOLICITED: u32 = 1 << 2;
    pub(crate) const INLINE: u32 = 1 << 3;
    pub(crate) const IP_CSUM: u32 = 1 << 4;
}

/// `enum ibv_wc_flags`.
pub(crate) mod wc_flags {
    pub(crate) const GRH: u32 = 1;
    pub(crate) const WITH_IMM: u32 = 1 << 1;
    pub(crate) const IP_CSUM_OK: u32 = 1 << 2;
    pub(crate) const WITH_INV: u32 = 1 << 3;
    pub(crate) const TM_SYNC_REQ: u32 = 1 << 4;
    pub(crate) const TM_MATCH: u32 = 1 << 5;
    pub(crate) const TM_DATA_VALID: u32 = 1 << 6;
}
