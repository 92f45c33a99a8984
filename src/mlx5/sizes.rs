//! The device's limits, as `uverbs_mlx5::size` takes them.

use uverbs_mlx5::size::{DeviceLimits, SizeError};
use uverbs_uapi::mlx5::context::AllocUcontextResp;

use crate::error::Error;

/// The device's limits, from the driver's answer at open and the attributes `max_qp_wr` and
/// `max_cqe`.
pub(crate) fn limits(driver: &AllocUcontextResp, max_qp_wr: u32, max_cqe: u32) -> DeviceLimits {
    DeviceLimits {
        requests: max_qp_wr,
        send_wqe_bytes: driver.max_sq_desc_sz.into(),
        recv_wqe_bytes: driver.max_rq_desc_sz.into(),
        send_wqebbs: driver.max_send_wqebb,
        recv_wqes: driver.max_recv_wr,
        srq_wqes: driver.max_srq_recv_wr,
        // One entry of the ring always stays free; the kernel does not count it.
        cqes: max_cqe.saturating_add(1),
    }
}

/// The error of a verb for a size beyond the limits.
pub(crate) fn refused(verb: &'static str, error: SizeError, asked: String) -> Error {
    Error::invalid(verb, error.to_string()).asked(asked)
}
