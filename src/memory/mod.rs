//! Memory that a device may reach: domains, buffers, views, regions, windows, slots.

pub mod device_memory;
mod grave;
pub(crate) mod header;
mod import;
pub mod mw;
pub(crate) mod pd;
pub(crate) mod posting;
mod region;
pub(crate) mod slab;

pub use crate::host::pages::{Buffer, PageSize};
pub use crate::host::queue_memory::{QueueMemory, QueueUse};
pub use crate::host::view::MemoryView;
pub(crate) use grave::Grave;
pub use region::{MemoryRegion, Registration};
pub use uverbs_mlx5::request::{Remote, Sge};
pub use uverbs_uapi::enums::AdviseMrAdvice;
pub use uverbs_uapi::flags::AccessFlags;
