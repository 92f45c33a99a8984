//! Where firmware structures hold their fields. Names and positions are those of the kernel's
//! `include/linux/mlx5/mlx5_ifc.h` (6.12), so that the two can be compared by eye.

pub(super) mod capability;
pub(super) mod command;
pub(super) mod context;
pub(super) mod ethernet;
pub(super) mod port;
