//! The tests of all QP types once more, on an InfiniBand port.
#![allow(
    clippy::duplicate_mod,
    reason = "each of them brings tests/common along, as it does when it runs alone"
)]

#[path = "errors.rs"]
mod errors;
#[path = "rc.rs"]
mod rc;
#[path = "safe/main.rs"]
mod safe;
#[path = "transports.rs"]
mod transports;
