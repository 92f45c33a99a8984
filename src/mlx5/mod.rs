//! The mlx5-specific parts: the driver's number, doorbell registers and records, sizes of queues. A
//! second provider would be a sibling of this folder.

pub(crate) mod queues;
pub(crate) mod records;
pub(crate) mod sizes;
pub(crate) mod uar;

use uverbs_uapi::enums::DriverId;

/// The driver id in every command, by which the kernel checks the driver data.
pub(crate) const DRIVER: DriverId = DriverId::MLX5;

/// Address and size of a ring.
#[derive(Debug, Clone, Copy)]
pub struct RingLayout {
    /// Its first byte.
    pub start: *mut u8,
    /// Entries, a power of two.
    pub entries: u32,
    /// Bytes per entry.
    pub stride: u32,
}
