//! Memory that a device may reach: buffers, views, regions.

mod pages;
mod queue_memory;
mod region;
mod view;

pub(crate) use pages::page_size;
pub use pages::{Buffer, PageSize};
pub(crate) use queue_memory::allocate;
pub use queue_memory::{QueueMemory, QueueUse};
pub use region::{MemoryRegion, Registration};
pub use uverbs_mlx5::request::{Remote, Sge};
pub use uverbs_uapi::flags::AccessFlags;
pub use view::MemoryView;
