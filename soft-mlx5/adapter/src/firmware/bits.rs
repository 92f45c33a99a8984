//! Bit fields of firmware structures.
//!
//! Firmware structures are big-endian bit streams: bit 0 is the most significant bit of the first
//! byte. The kernel's `include/linux/mlx5/mlx5_ifc.h` lists them as arrays of bits in that order,
//! so a [`Field`] is just the position and the width found there.

/// A field of a firmware structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    bit: usize,
    width: usize,
}

/// The field of `width` bits (at most 64) whose first, most significant bit is number `bit`.
pub const fn field(bit: usize, width: usize) -> Field {
    assert!(width >= 1 && width <= 64);
    Field { bit, width }
}

impl Field {
    /// The same field of a structure that itself starts `bit` bits into another one.
    pub const fn at(self, bit: usize) -> Field {
        Field { bit: self.bit + bit, width: self.width }
    }

    /// The same field of element `index` of an array whose elements take `stride` bits.
    pub const fn element(self, index: usize, stride: usize) -> Field {
        self.at(index * stride)
    }

    /// The largest value that the field can hold.
    pub const fn max(self) -> u64 {
        u64::MAX >> (64 - self.width)
    }

    /// Bytes that a structure needs for this field.
    pub const fn end(self) -> usize {
        (self.bit + self.width).div_ceil(8)
    }

    /// The field's value; bytes beyond the end of `bytes` read as zero.
    pub fn get(self, bytes: &[u8]) -> u64 {
        let mut value = 0u128;
        for index in self.bit / 8..self.end() {
            value = value << 8 | u128::from(bytes.get(index).copied().unwrap_or(0));
        }
        (value >> self.low_shift()) as u64 & self.max()
    }

    /// [`get`](Self::get) for fields of at most 32 bits.
    pub fn get32(self, bytes: &[u8]) -> u32 {
        self.get(bytes) as u32
    }

    /// Whether the field is not zero.
    pub fn is_set(self, bytes: &[u8]) -> bool {
        self.get(bytes) != 0
    }

    /// Stores `value`, cut to the field's width; bytes beyond the end of `bytes` are not written.
    pub fn set(self, bytes: &mut [u8], value: u64) {
        let mask = u128::from(self.max()) << self.low_shift();
        let value = u128::from(value & self.max()) << self.low_shift();
        for (back, index) in (self.bit / 8..self.end()).rev().enumerate() {
            if let Some(byte) = bytes.get_mut(index) {
                *byte = *byte & !((mask >> (8 * back)) as u8) | (value >> (8 * back)) as u8;
            }
        }
    }

    const fn low_shift(self) -> usize {
        self.end() * 8 - self.bit - self.width
    }
}

/// Declares the fields of one structure: a module with a constant per field and a table of all of
/// them by name, for the command trace.
macro_rules! structure {
    ($(#[$meta:meta])* $name:ident { $($field:ident: $bit:literal, $width:literal;)* }) => {
        $(#[$meta])*
        #[allow(missing_docs)] // The names are those of the kernel's header.
        pub mod $name {
            use crate::firmware::bits::{Field, field};
            $(pub const $field: Field = field($bit, $width);)*
            pub const FIELDS: &[(&str, Field)] = &[$((stringify!($field), $field)),*];
        }
    };
}
pub(crate) use structure;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_count_from_the_most_significant_bit() {
        let mut bytes = [0u8; 12];
        field(0x28, 24).set(&mut bytes, 0x123456);
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0x12, 0x34, 0x56, 0, 0, 0, 0]);
        field(3, 2).set(&mut bytes, 3);
        assert_eq!(bytes[0], 0b0001_1000);
        assert_eq!(field(3, 2).get(&bytes), 3);
        assert_eq!(field(2, 2).get(&bytes), 1);
    }

    #[test]
    fn a_field_of_64_bits_may_straddle_nine_bytes() {
        let mut bytes = [0u8; 10];
        field(4, 64).set(&mut bytes, u64::MAX);
        assert_eq!(bytes, [0x0f, 255, 255, 255, 255, 255, 255, 255, 0xf0, 0]);
        assert_eq!(field(4, 64).get(&bytes), u64::MAX);
    }

    #[test]
    fn setting_keeps_the_neighbours_and_cuts_the_value() {
        let mut bytes = [0xff; 4];
        field(4, 4).set(&mut bytes, 0x20);
        assert_eq!(bytes, [0xf0, 0xff, 0xff, 0xff]);
    }

    #[test]
    fn a_short_structure_reads_as_zero_and_drops_stores() {
        let mut bytes = [0u8; 2];
        field(0x40, 32).set(&mut bytes, 7);
        assert_eq!(field(0x40, 32).get(&bytes), 0);
        assert_eq!(bytes, [0; 2]);
    }
}
