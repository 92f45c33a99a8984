//! The one driver that this library speaks to: mlx5_ib. What else is mlx5's own, and where, ARCHITECTURE.md lists
//! under "a second provider".

#![forbid(unsafe_code)]

use uverbs_uapi::enums::DriverId;

use crate::channel::{Driver, Entry};
use crate::error::{Error, ErrorKind, Result};

/// What every command names, so that the kernel can tell whose driver data it carries.
pub(crate) const ID: DriverId = DriverId::MLX5;

/// Fails unless the device of `entry` is driven by it.
pub(crate) fn require(verb: &'static str, entry: &Entry) -> Result<()> {
    let cause = match &entry.driver {
        Driver::Mlx5 => return Ok(()),
        Driver::Other(name) => {
            format!("{} is driven by {name}, and this library speaks mlx5 only", entry.name)
        }
        Driver::Unknown => {
            format!("nothing in sysfs says that the driver of {} is mlx5", entry.name)
        }
    };
    Err(Error::new(verb, ErrorKind::NotMlx5, cause))
}
