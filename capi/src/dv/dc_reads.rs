//! How many READs and atomics of a DC queue pair may be outstanding: fields of
//! `mlx5dv_query_device` that are newer than rdma-core 44.

use super::devx::devx;
use super::{DeviceContext, asks};
use crate::abi::*;
use crate::context::Context;

/// QUERY_HCA_CAP for the current general capabilities.
const QUERY: [u8; 16] = [1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
const ANSWER: usize = 16 + 4096;
/// Bytes of the answer with `log_max_ra_req_dc` and `log_max_ra_res_dc` in their low six bits
/// (`struct mlx5_ifc_cmd_hca_cap_bits`).
const LOGS: [usize; 2] = [16 + 0x128 / 8, 16 + 0x138 / 8];

/// Fills in both fields. libmlx5 reads them in `mlx5_set_context`. They need a firmware command, so
/// a device without DEVX reports none.
///
/// # Safety
/// The caller's context.
pub(super) unsafe fn fill(context: *mut ibv_context, into: &mut DeviceContext) {
    // SAFETY: the caller's context; the command only asks.
    let devx = unsafe {
        if !Context::of(context).library.has_devx() {
            return;
        }
        devx(context)
    };
    let mut answer = vec![0; ANSWER];
    if devx.command(&QUERY, &mut answer).is_ok() {
        let [targets, initiators] = LOGS.map(|at| 1 << (answer[at] & 0x3f));
        (into.max_dc_rd_atom, into.max_dc_init_rd_atom) = (targets, initiators);
        into.comp_mask |= asks::DC_READS;
    }
}
