//! The interface to the operating system: the character device, commands, event files, pages of
//! memory, and forks. The only mlx5-specific parts are the driver's name and the handles of queues.

pub(crate) mod buffer;
pub mod channel;
pub(crate) mod children;
pub(crate) mod command;
pub(crate) mod events;
pub mod fork;
pub(crate) mod lifetime;
pub(crate) mod manager;
pub(crate) mod privilege;
pub(crate) mod queue_memory;
pub(crate) mod system;
pub(crate) mod until_close;
