//! What is mlx5's own: the driver's number, doorbell registers and records, sizes of queues. A
//! second provider would be a sibling of this folder.

pub(crate) mod queues;
pub(crate) mod records;
pub(crate) mod sizes;
pub(crate) mod uar;

use uverbs_uapi::enums::DriverId;

/// What every command names, so that the kernel can tell whose driver data it carries.
pub(crate) const DRIVER: DriverId = DriverId::MLX5;

/// Where a ring is.
#[derive(Debug, Clone, Copy)]
pub struct RingLayout {
    /// Its first byte.
    pub start: *mut u8,
    /// Entries, a power of two.
    pub entries: u32,
    /// Bytes per entry.
    pub stride: u32,
}
