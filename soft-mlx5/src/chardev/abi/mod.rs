//! The ioctl interface: checks attributes against tables of methods, runs write commands (which one
//! of the methods carries), and copies answers to the program's memory.

pub(crate) mod call;
pub(crate) mod dispatch;
pub(crate) mod methods;
pub(crate) mod query;
pub(crate) mod query_device;
pub(crate) mod spec;
pub(crate) mod user_memory;
pub(crate) mod write;
