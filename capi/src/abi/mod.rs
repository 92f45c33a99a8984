//! The structs of `infiniband/verbs.h`.
//!
//! They have C's names, so that a reader finds them in the header. Layouts are those of rdma-core
//! 65. Layouts of older releases are prefixes of them, or suffixes of [`verbs_context`]; a test
//! compares all of them with the installed header.
#![allow(non_camel_case_types, non_snake_case, reason = "names are the header's")]

mod attributes;
mod context;
mod given;
mod objects;
mod padding;
mod work;

pub(crate) use attributes::*;
pub(crate) use context::*;
pub(crate) use given::*;
pub(crate) use objects::*;
pub(crate) use padding::{Fields, fields, padded, write_padded};
pub(crate) use work::*;

/// A struct's name, its size, and the offsets of its fields.
#[cfg(test)]
pub(crate) struct Layout {
    pub(crate) name: &'static str,
    pub(crate) size: usize,
    pub(crate) fields: &'static [(&'static str, usize)],
}

/// Defines structs with C's layout, whose fields are visible in this crate.
macro_rules! c_structs {
    ($( $(#[$meta:meta])* struct $name:ident { $( $(#[$field_meta:meta])* $field:ident: $type:ty, )* } )*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            pub(crate) struct $name {
                $( $(#[$field_meta])* pub(crate) $field: $type, )*
            }
        )*

        #[cfg(test)]
        pub(crate) const LAYOUTS: &[$crate::abi::Layout] = &[$( $crate::abi::Layout {
            name: stringify!($name),
            size: size_of::<$name>(),
            fields: &[$( (stringify!($field), std::mem::offset_of!($name, $field)), )*],
        }, )*];
    };
}
use c_structs;

/// Defines [`c_structs`] that are written to a program's memory with zeroes between their fields.
macro_rules! given_structs {
    ($( $(#[$meta:meta])* struct $name:ident { $( $(#[$field_meta:meta])* $field:ident: $type:ty, )* } )*) => {
        $crate::abi::c_structs! {
            $( $(#[$meta])* struct $name { $( $(#[$field_meta])* $field: $type, )* } )*
        }

        $crate::abi::fields! { $( $name { $($field)* } )* }
    };
}
use given_structs;

#[cfg(test)]
pub(crate) mod tests;
