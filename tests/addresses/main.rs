//! Software devices at addresses of interfaces, in network namespaces that each test makes itself.
//!
//! A test runs itself again in a user and network namespace (`unshare`), where it may make
//! interfaces. Where that is forbidden it says so and is skipped; if `CI` is set it fails.

#[path = "../common/mod.rs"]
mod common;
mod connections;
mod errors;
mod namespace;
mod strangers;
mod traffic;
