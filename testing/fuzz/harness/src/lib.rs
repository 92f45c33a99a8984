//! The fuzz targets: a module per target, each with a function `run(bytes)`.
//!
//! Bytes are decoded to decisions and values ([`arbitrary`]), so any bytes are a test case. A short
//! input continues with zeros. A target reports a defect by a panic or by an error of the address
//! sanitizer. All targets are deterministic except [`ioctl`] and [`capi`], in which the device has
//! a thread of its own. [`libmlx5`] needs the library of that name.
//!
//! The programs in `testing/fuzz/fuzz_targets` only call these functions under libFuzzer. The test
//! `tests/replay.rs` calls them with the committed corpora, on a stable toolchain.

pub mod capi;
pub mod corpus;
pub mod cqe_poll;
pub mod frames;
pub mod ioctl;
pub mod libmlx5;
pub mod packet;
pub mod post;
pub mod ring_decode;
pub mod ring_execute;
pub mod wqe;

#[path = "../../../../capi/src/abi/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the drop-in needs all of it")]
mod abi;
mod arena;
mod frame;
#[path = "../../../../provider-mlx5/inspect/tests/inspect/generate.rs"]
mod generate;
mod memory;
mod requests;
mod work;
mod world;
