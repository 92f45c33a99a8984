//! Fields of `mlx5dv_query_device` that only releases newer than rdma-core 44 have. They follow the
//! fields that all releases have.

use super::DeviceContext;
use super::devx::devx;
use crate::abi::*;
use crate::context::Context;

/// `MLX5DV_CONTEXT_MASK_MAX_DC_RD_ATOM`.
const DC_READS: u64 = 1 << 14;

/// `struct mlx5dv_context` of rdma-core 65, as far as fields are filled in.
#[repr(C)]
struct Newer {
    known: DeviceContext,
    max_dc_rd_atom: u64,
    max_dc_init_rd_atom: u64,
}

/// Fills in the fields that `asked` names.
///
/// # Safety
/// The caller's context, and a struct that has the fields that `asked` names.
pub(super) unsafe fn tell(context: *mut ibv_context, into: *mut DeviceContext, asked: u64) {
    if asked & DC_READS == 0 {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        if let Some([targets, initiators]) = dc_reads(context) {
            let into = into.cast::<Newer>();
            (*into).max_dc_rd_atom = targets;
            (*into).max_dc_init_rd_atom = initiators;
            (*into).known.comp_mask |= DC_READS;
        }
    }
}

/// QUERY_HCA_CAP for the current general capabilities.
const QUERY: [u8; 16] = [1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
const ANSWER: usize = 16 + 4096;
/// Bytes of the answer with `log_max_ra_req_dc` and `log_max_ra_res_dc` in their low six bits
/// (`struct mlx5_ifc_cmd_hca_cap_bits`).
const LOGS: [usize; 2] = [16 + 0x128 / 8, 16 + 0x138 / 8];

/// How many READs and atomics of a DC queue pair may be outstanding. libmlx5 reads both fields in
/// `mlx5_set_context`. They need a firmware command, so a device without DEVX reports none.
///
/// # Safety
/// The caller's context.
unsafe fn dc_reads(context: *mut ibv_context) -> Option<[u64; 2]> {
    // SAFETY: the caller's context; the command only asks.
    let devx = unsafe {
        if !Context::of(context).library.has_devx() {
            return None;
        }
        devx(context)
    };
    let mut answer = vec![0; ANSWER];
    devx.command(&QUERY, &mut answer).ok()?;
    Some(LOGS.map(|at| 1 << (answer[at] & 0x3f)))
}
