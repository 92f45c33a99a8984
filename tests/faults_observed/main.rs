//! A program's view of faults: one test for each row of `docs/faults.md`.
//!
//! Each test has a random seed, which it prints when it fails; `UVERBS_FAULT_SEED` sets it.

#[path = "../common/child.rs"]
mod child;
#[path = "../common/mod.rs"]
mod common;
mod events;
mod fork;
mod limits;
mod network;
#[path = "../common/peer.rs"]
mod peer;
mod process;
mod removal;
mod table;
mod wire;
