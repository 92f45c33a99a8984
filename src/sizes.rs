//! The sizes of queues: what `uverbs_mlx5::size` makes of the device's limits.

#![forbid(unsafe_code)]

use uverbs_mlx5::size::{DeviceLimits, SizeError};

use crate::context::Context;
use crate::error::{Error, Result};

/// What the device can do, from what it told this context.
pub(crate) fn limits(context: &Context) -> Result<DeviceLimits> {
    let driver = context.driver_limits();
    Ok(DeviceLimits {
        send_wqe_bytes: driver.max_sq_desc_sz.into(),
        recv_wqe_bytes: driver.max_rq_desc_sz.into(),
        send_wqebbs: driver.max_send_wqebb,
        recv_wqes: driver.max_recv_wr,
        srq_wqes: driver.max_srq_recv_wr,
        // One entry of the ring always stays free, and is not counted by the kernel.
        cqes: context.attributes()?.max_cqe().saturating_add(1),
    })
}

/// The error of a verb that asked for too much.
pub(crate) fn refused(verb: &'static str, error: SizeError, asked: String) -> Error {
    Error::invalid(verb, error.to_string()).asked(asked)
}
