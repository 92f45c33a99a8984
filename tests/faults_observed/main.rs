//! What a program observes when things go wrong: one test for each row of `docs/faults.md`.
//!
//! Chance comes from one seed per test, which failing tests print; `UVERBS_FAULT_SEED` sets it.

#[path = "../common/child.rs"]
mod child;
#[path = "../common/mod.rs"]
mod common;
mod events;
mod fork;
mod limits;
mod network;
mod process;
mod removal;
mod table;
mod wire;
