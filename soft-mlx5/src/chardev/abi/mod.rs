//! The system calls' side: ioctl attributes are checked against tables of methods, write commands
//! travel inside one of the methods, and answers go back to the program's memory.

pub(crate) mod call;
pub(crate) mod dispatch;
pub(crate) mod methods;
pub(crate) mod query;
pub(crate) mod query_device;
pub(crate) mod spec;
pub(crate) mod user_memory;
pub(crate) mod write;
