//! The exported symbols. Each is one jump to a function of this crate, with the name and version in
//! `exports.txt`.
//!
//! rustc gives the linker its own list of exported symbols, without versions. Symbols that are
//! defined in assembly are not on it, so only the version script of `build.rs` applies to them.

include!(concat!(env!("OUT_DIR"), "/symbols.rs"));

/// The address of an exported function, as `dlvsym` finds it: for a program that contains this
/// crate instead of loading the shared object, such as a fuzz target.
pub fn export(name: &str, version: &str) -> Option<*const ()> {
    Some(include!(concat!(env!("OUT_DIR"), "/addresses.rs")))
}
