//! Memory that a device may reach: protection domains, buffers, views, regions, windows, slots.

pub mod device_memory;
pub(crate) mod flight;
mod import;
pub mod mw;
pub(crate) mod pd;
pub(crate) mod posting;
mod region;
mod registration;
pub(crate) mod slab;
pub(crate) mod slot;

pub use crate::host::buffer::{Buffer, MemoryView, PageSize};
pub use crate::host::queue_memory::{QueueMemory, QueueUse};
pub use region::MemoryRegion;
pub use registration::Registration;
pub use uverbs_mlx5::request::{Remote, Sge};
pub use uverbs_uapi::enums::AdviseMrAdvice;
pub use uverbs_uapi::flags::AccessFlags;
