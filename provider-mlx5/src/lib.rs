//! The data path of a ConnectX: work queue and completion queue entries, the queues that hold them,
//! and doorbells.
//!
//! The crate makes no system calls and opens no device file: its caller passes memory, numbers and
//! a register. So it works in the same way with a NIC, a software device or a plain buffer.
//!
//! - [`format`](mod@format) is the crate `uverbs-mlx5-format`: every structure and constant as
//!   bytes, one definition for the queues, the inspector and the software device;
//! - the queues are [`send_queue`], [`recv_queue`], [`shared_recv_queue`] and [`completion_queue`],
//!   on [`memory`] shared with the device, with [`doorbell`] records and [`mmio`] registers,
//!   ordered by [`barrier`]. Posting and polling a queue may be in different threads; they meet in
//!   [`queue_state`], reached from a completion through the [`user_index`].
//!
//! The crate `uverbs-mlx5-inspect` decodes, checks, explains and encodes entries as values.
//!
//! # Sources
//!
//! NVIDIA's reference manual is not public in full. The facts in this crate were taken from the
//! public headers and drivers (`infiniband/mlx5dv.h`, rdma-core's libmlx5, Linux's mlx5 drivers)
//! and checked against them: layouts and constants through a C compiler, encodings against vectors
//! recorded from libmlx5. Facts that no source or test confirms are marked "unconfirmed".

#![deny(unsafe_code)]

pub use uverbs_mlx5_format as format;

pub mod barrier;
pub mod completion_queue;
pub mod doorbell;
mod free_list;
pub mod free_stack;
mod hint;
mod mapped;
pub mod memory;
pub mod mmio;
#[cfg(all(loom, test))]
mod models;
pub mod queue_error;
pub mod queue_state;
pub mod recv_queue;
pub mod request;
pub mod send_queue;
mod sge;
pub mod shared_recv_queue;
mod shown_ring;
pub mod size;
mod sync;
mod tag_list;
pub mod user_index;
