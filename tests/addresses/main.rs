//! Software devices at addresses of interfaces, in network namespaces that each test creates.
//!
//! A test runs itself again in a user and network namespace (`unshare`), where it may create
//! interfaces. If that is forbidden it prints so and is skipped; with `CI` set it fails.

#[path = "../common/mod.rs"]
mod common;
mod connections;
mod errors;
mod namespace;
mod strangers;
mod traffic;
