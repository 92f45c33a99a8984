//! Structs to which releases of rdma-core have appended fields.
//!
//! A program that was built with older headers has a shorter struct than the one that is declared
//! here, and a mask in it says which of the later fields the struct has. A Rust reference to the
//! longer struct would cover bytes beyond its end, so such structs are copied field by field.

use std::mem::MaybeUninit;

use crate::abi::{Fields, padded};

/// A field that not every release has: the bit of the mask that names it, its offset, its size.
pub(crate) type Later = (u64, usize, usize);

/// A struct that has grown.
///
/// # Safety
/// All fields may be zero, and `COMMON` and `LATER` are within the struct.
pub(crate) unsafe trait Grown: Sized {
    /// The size of the part that the structs of all programs have.
    const COMMON: usize;
    /// The fields after it.
    const LATER: &'static [Later];
    /// The mask, if it is a field of the struct (then it is in the common part).
    fn mask(&self) -> u64 {
        0
    }
}

/// Copies a program's struct. Fields that its mask does not name are zero.
///
/// # Safety
/// A program's struct, with the common part and the fields that its mask names.
pub(crate) unsafe fn read<T: Grown>(from: *const T) -> T {
    // SAFETY: the caller's promise.
    unsafe { read_masked(from, 0) }
}

/// As [`read`], with a mask that the program passes beside the struct.
///
/// # Safety
/// A program's struct, with the common part and the fields that both masks name.
pub(crate) unsafe fn read_masked<T: Grown>(from: *const T, mask: u64) -> T {
    // SAFETY: fields may be zero.
    let mut to = unsafe { MaybeUninit::<T>::zeroed().assume_init() };
    // SAFETY: the caller has the common part; the mask is in it.
    unsafe { copy(from, &raw mut to, 0, T::COMMON) };
    let mask = mask | to.mask();
    for &(_, at, bytes) in T::LATER.iter().filter(|(bit, ..)| mask & bit != 0) {
        // SAFETY: the caller has the fields that the masks name.
        unsafe { copy(from, &raw mut to, at, bytes) };
    }
    to
}

/// Fills in a program's struct, with zeroes between the fields: the common part, and the fields
/// that the mask in `from` names.
///
/// # Safety
/// A program's struct, with the common part and the fields that the mask names.
pub(crate) unsafe fn write<T: Grown + Fields>(from: &T, to: *mut T) {
    let mut place = MaybeUninit::uninit();
    let from = padded(from, &mut place);
    let named = T::LATER.iter().filter(|(bit, ..)| from.mask() & bit != 0);
    // SAFETY: the caller's promise.
    unsafe {
        copy(from, to, 0, T::COMMON);
        named.for_each(|&(_, at, bytes)| copy(from, to, at, bytes));
    }
}

/// # Safety
/// Both have the bytes, and may be read and written.
unsafe fn copy<T>(from: *const T, to: *mut T, at: usize, bytes: usize) {
    // SAFETY: the caller's promise. A program's struct does not overlap a local one.
    unsafe {
        let to = to.cast::<u8>().add(at);
        to.copy_from_nonoverlapping(from.cast::<u8>().add(at), bytes);
    }
}

/// The size of a field, from its accessor function.
pub(crate) const fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// Declares structs of numbers, pointers and optional functions: `until` names the first field that
/// not every release has, `by` the mask in the struct, and the rows the fields that a bit of a mask
/// names.
macro_rules! grown {
    ($( $name:ident $(until $first:ident)? $(by $mask:ident)? {
        $( $bit:expr => $field:ident, )*
    } )*) => {$(
        // SAFETY: numbers, null pointers and `None` are zeroes; offsets and sizes are the struct's.
        unsafe impl $crate::grown::Grown for $name {
            const COMMON: usize = $crate::grown::grown!(@common $name $($first)?);
            const LATER: &'static [$crate::grown::Later] = &[$( (
                $bit as u64,
                std::mem::offset_of!($name, $field),
                $crate::grown::size_of_field(|given: &Self| &given.$field),
            ), )*];
            $(fn mask(&self) -> u64 {
                self.$mask.into()
            })?
        }
    )*};
    (@common $name:ident $first:ident) => { std::mem::offset_of!($name, $first) };
    (@common $name:ident) => { size_of::<$name>() };
}
pub(crate) use grown;
