//! The built command, as a user runs it.

mod bad_input;
mod by_address;
mod devices;
mod frames;
mod inspect;
mod namespaces;
mod perf;
mod pingpong;
#[path = "../../../capi/tests/library/port.rs"]
mod port;
mod process;
mod run;
mod squatter;
mod transfer;
mod waiting;
mod written;
