//! The declarations of this crate as data: every struct with its fields, every constant with its
//! value.
//!
//! The layout test compares these tables with the kernel's headers, and a tracer can use them to
//! print a command's fields by name.

/// One field of a [`Struct`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name in Rust.
    pub name: &'static str,
    /// Path of the C field (`ex.imm_data`), empty for padding that C leaves implicit.
    pub c_path: &'static str,
    /// Offset in bytes.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}

/// A struct of the ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Struct {
    /// Name in Rust.
    pub name: &'static str,
    /// C type, with its `struct` keyword.
    pub c_name: &'static str,
    /// Size in bytes.
    pub size: usize,
    /// Fields in order, without gaps.
    pub fields: &'static [Field],
}

/// A struct that knows its own layout.
pub trait Described {
    /// The layout.
    const LAYOUT: Struct;
}

/// A constant of the ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constant {
    /// Name (or expression) in the kernel's headers, or in `<infiniband/verbs.h>` if it begins with
    /// `IBV_`, as some values of the ABI are in no exported kernel header. Empty if the value is in
    /// neither.
    pub c_name: &'static str,
    /// Value, zero-extended.
    pub value: u64,
}

/// Every struct of the crate.
pub fn structs() -> impl Iterator<Item = &'static Struct> {
    crate::STRUCT_TABLES.iter().copied().flatten()
}

/// Every constant of the crate, without the ids of objects, methods and attributes:
/// [`crate::objects::all`] lists those.
pub fn constants() -> impl Iterator<Item = &'static Constant> {
    crate::CONSTANT_TABLES.iter().copied().flatten()
}
