//! The structures that a ConnectX reads and writes, for the queues, the inspector and the software
//! device.
//!
//! Every structure is `repr(C)` over big-endian field types of alignment 1, so it has no padding,
//! may be anywhere in a buffer, and is converted from and to bytes without copying. Its size and
//! field offsets are asserted at compile time; a test compares them with `infiniband/mlx5dv.h` with
//! a C compiler.
//!
//! Opcodes, syndromes, event types and similar numbers are newtypes that also hold values without a
//! name. Reserved fields are public, and called `reservedN` after their byte offset N; this crate
//! writes zero to them.
//!
//! Sources: `infiniband/mlx5dv.h` and `providers/mlx5/wqe.h` of rdma-core,
//! `include/linux/mlx5/{device,qp,cq,eq}.h` of Linux 6.12. Facts from other sources cite them.

#![forbid(unsafe_code)]

/// Declares a newtype over `u8` with constants for the known values. It also holds all others.
macro_rules! open_values {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($(#[$value_meta:meta])* $constant:ident = $value:expr => $text:literal,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, zerocopy::FromBytes, zerocopy::IntoBytes,
            zerocopy::KnownLayout, zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(transparent)]
        pub struct $name(pub u8);

        impl $name {
            $($(#[$value_meta])* pub const $constant: Self = Self($value);)*

            /// Every value that has a name here, in order of definition.
            pub const KNOWN: &'static [Self] = &[$(Self::$constant),*];

            /// The name of a known value.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$constant => Some($text),)*
                    _ => None,
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "unknown {:#04x}", self.0),
                }
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => write!(f, "{}({name})", stringify!($name)),
                    None => write!(f, "{}({:#04x})", stringify!($name), self.0),
                }
            }
        }
    };
}

/// Declares a structure in the device's layout: `repr(C)`, big-endian, alignment 1, with its size
/// and every field's offset asserted at compile time. The default is all zero.
///
/// The second form declares a packed field with named bits.
macro_rules! wire {
    (
        $(#[$meta:meta])*
        pub struct $name:ident: $size:literal {
            $($(#[$field_meta:meta])* $offset:literal => pub $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, zerocopy::FromBytes, zerocopy::IntoBytes,
            zerocopy::KnownLayout, zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }
        }

        const _: () = {
            assert!(core::mem::size_of::<$name>() == $size);
            assert!(core::mem::align_of::<$name>() == 1);
            $(assert!(core::mem::offset_of!($name, $field) == $offset);)*
        };
    };
    ($(#[$meta:meta])* pub struct $name:ident(pub $type:ty);) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, zerocopy::FromBytes, zerocopy::IntoBytes,
            zerocopy::KnownLayout, zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(transparent)]
        pub struct $name(pub $type);
    };
}

mod address;
mod atomic;
mod control;
mod cqe;
mod cqe_fields;
mod data;
mod doorbell;
mod eqe;
mod eth;
mod mini_cqe;
mod opcode;
mod receive;
mod routing_header;
mod signature;
mod syndrome;
mod tag_matching;
mod umr;

pub use address::*;
pub use atomic::*;
pub use control::*;
pub use cqe::*;
pub use cqe_fields::*;
pub use data::*;
pub use doorbell::*;
pub use eqe::*;
pub use eth::*;
pub use mini_cqe::*;
pub use opcode::*;
pub use receive::*;
pub use routing_header::*;
pub use signature::*;
pub use syndrome::*;
pub use tag_matching::*;
pub use umr::*;

pub use zerocopy::big_endian::{U16, U32, U64};

/// Size in bytes of a send queue's basic block (WQEBB). Send WQEs start at such a boundary, and the
/// send queue's counters count these blocks.
pub const WQEBB_SIZE: usize = 64;

/// log2 of [`WQEBB_SIZE`].
pub const WQEBB_SHIFT: u32 = 6;

/// Size in bytes of the unit that a control segment's `ds` counts (an octoword).
pub const OCTOWORD: usize = 16;

/// Largest value of the control segment's `ds`. A device's limit is `max_wqe_sz_sq`; on some it is
/// 1024 bytes, 64 units, which the 6-bit field cannot represent.
pub const MAX_DS: u8 = 63;

/// Most scatter entries of an RDMA read, whose WQE has at most 512 bytes (`MLX5_MAX_SGE_RD` in
/// Linux).
pub const MAX_READ_SGE: u32 = 30;
