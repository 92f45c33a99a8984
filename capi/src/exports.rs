//! The exported symbols. Each is one jump to a function of this crate, under the name and version
//! that `exports.txt` has.
//!
//! rustc gives the linker a list of exported symbols of its own, without versions. Symbols that are
//! defined in assembly are not on it, so the version script of `build.rs` decides alone.

include!(concat!(env!("OUT_DIR"), "/symbols.rs"));

/// The address of an exported function, as `dlvsym` finds it: for a program that has this crate
/// in it and loads no shared object, such as a fuzz target.
pub fn export(name: &str, version: &str) -> Option<*const ()> {
    Some(include!(concat!(env!("OUT_DIR"), "/addresses.rs")))
}
