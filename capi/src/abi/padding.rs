//! Structs whose padding is zero in a program's memory.
//!
//! A Rust value has undefined padding: a copy of it may leave old bytes of the memory there. But
//! programs compare such structs as bytes, write them to files and send them to peers.

use std::mem::MaybeUninit;

/// A value that can be written field by field.
///
/// # Safety
/// `write_fields` writes each field.
pub(crate) unsafe trait Fields: Copy {
    /// Writes the fields to `to`, and leaves the padding unchanged.
    ///
    /// # Safety
    /// `to` may be written.
    unsafe fn write_fields(&self, to: *mut Self);
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        // SAFETY: a number has no fields, and is written.
        unsafe impl Fields for $type {
            unsafe fn write_fields(&self, to: *mut Self) {
                // SAFETY: the caller's promise.
                unsafe { to.write(*self) };
            }
        }
    )*};
}

numbers! { i8 u8 u16 i32 u32 u64 usize }

// SAFETY: a pointer has no fields, and is written.
unsafe impl<T> Fields for *mut T {
    unsafe fn write_fields(&self, to: *mut Self) {
        // SAFETY: the caller's promise.
        unsafe { to.write(*self) };
    }
}

/// Implements [`Fields`] for structs; all fields must be listed.
macro_rules! fields {
    ($( $name:ident { $($field:ident)* } )*) => {$(
        // SAFETY: writes the fields; the pattern has each of them.
        unsafe impl $crate::abi::Fields for $name {
            unsafe fn write_fields(&self, to: *mut Self) {
                let Self { $($field),* } = self;
                // SAFETY: the fields of the caller's struct.
                unsafe { $( $crate::abi::Fields::write_fields($field, &raw mut (*to).$field); )* }
            }
        }
    )*};
}
pub(crate) use fields;

// SAFETY: writes each element.
unsafe impl<T: Fields, const N: usize> Fields for [T; N] {
    unsafe fn write_fields(&self, to: *mut Self) {
        for (place, value) in self.iter().enumerate() {
            // SAFETY: an element of the caller's array.
            unsafe { value.write_fields(to.cast::<T>().add(place)) };
        }
    }
}

/// Writes a struct with zeroes between its fields.
///
/// # Safety
/// `to` may be written.
pub(crate) unsafe fn write_padded<T: Fields>(from: &T, to: *mut T) {
    // SAFETY: the caller's promise.
    unsafe {
        to.write_bytes(0, 1);
        from.write_fields(to);
    }
}

/// A struct with zeroes between its fields, for copies of its bytes.
pub(crate) fn padded<'a, T: Fields>(from: &T, place: &'a mut MaybeUninit<T>) -> &'a T {
    // SAFETY: a place for the struct, of which each field is written.
    unsafe {
        write_padded(from, place.as_mut_ptr());
        place.assume_init_ref()
    }
}
