//! The objects of an open file, one module for each kind. Each module creates, modifies, queries
//! and destroys its objects, and maps invalid input to the kernel's errno.

pub(crate) mod address_handle;
pub(crate) mod counters;
pub(crate) mod cq;
pub(crate) mod devx;
pub(crate) mod dm;
pub(crate) mod flow;
pub(crate) mod handles;
pub(crate) mod indirection_table;
pub(crate) mod matcher;
pub(crate) mod memory_region;
pub(crate) mod memory_window;
pub(crate) mod object;
pub(crate) mod pacing;
pub(crate) mod prefetch;
pub(crate) mod protection_domain;
pub(crate) mod qp;
pub(crate) mod srq;
pub(crate) mod uar;
pub(crate) mod work_queue;
pub(crate) mod xrcd;
