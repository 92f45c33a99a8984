//! The exported symbols. Each is one jump to a function of this crate, under the name and version
//! that `exports.txt` has.
//!
//! rustc gives the linker a list of exported symbols of its own, without versions. Symbols that are
//! defined in assembly are not on it, so the version script of `build.rs` decides alone.

include!(concat!(env!("OUT_DIR"), "/symbols.rs"));
