//! Offsets and widths of the fields of firmware structures. Names and positions are those of the
//! kernel's `include/linux/mlx5/mlx5_ifc.h` (6.12), so that the two can be compared by eye. The
//! numbers and offsets of umems, which the kernel does not fill in, are those of rdma-core's
//! `mlx5_ifc.h` and of its tests' `mlx5_prm_structs.py`.

pub mod capability;
pub mod command;
pub mod context;
pub mod ethernet;
pub mod port;
