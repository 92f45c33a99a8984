//! Bit fields that share a word.

use zerocopy::big_endian::{U16, U32};

/// A word of a datagram.
pub(super) trait Word: Copy {
    fn load(self) -> u32;
    /// Keeps the low bits that fit.
    fn store(value: u32) -> Self;
}

impl Word for u8 {
    fn load(self) -> u32 {
        self.into()
    }

    fn store(value: u32) -> Self {
        value as u8
    }
}

impl Word for U16 {
    fn load(self) -> u32 {
        self.get().into()
    }

    fn store(value: u32) -> Self {
        (value as u16).into()
    }
}

impl Word for U32 {
    fn load(self) -> u32 {
        self.get()
    }

    fn store(value: u32) -> Self {
        value.into()
    }
}

const fn mask(width: u32) -> u32 {
    u32::MAX >> (32 - width)
}

/// The `width` bits of `word` from bit `low` (0 is the least significant).
pub(super) fn get<W: Word>(word: W, low: u32, width: u32) -> u32 {
    word.load() >> low & mask(width)
}

/// Replaces the `width` bits of `word` from bit `low` by the low bits of `value`.
pub(super) fn set<W: Word>(word: &mut W, low: u32, width: u32, value: u32) {
    let kept = word.load() & !(mask(width) << low);
    *word = W::store(kept | (value & mask(width)) << low);
}

/// Declares accessors: `name, setter: type = word[lowest bit, width]`. A setter ignores the higher
/// bits of its argument.
macro_rules! bit_fields {
    ($of:ident { $( $(#[$meta:meta])* $name:ident, $setter:ident: $ty:ty = $word:ident[$low:literal, $width:literal]; )* }) => {
        impl $of {
            $(
                $(#[$meta])*
                #[doc = concat!("(", stringify!($width), " bits.)")]
                pub fn $name(&self) -> $ty {
                    super::bits::get(self.$word, $low, $width) as $ty
                }

                #[doc = concat!(
                    "Sets [`", stringify!($name), "`](Self::", stringify!($name), "), of which ",
                    stringify!($width), " bits count.",
                )]
                pub fn $setter(&mut self, value: $ty) -> &mut Self {
                    super::bits::set(&mut self.$word, $low, $width, u32::from(value));
                    self
                }
            )*
        }
    };
}

/// Declares a body: a struct of all bytes after the header, with the offsets of its fields in the
/// datagram.
macro_rules! body {
    (
        $(#[$meta:meta])*
        $attribute:ident $name:ident {
            $( $(#[$field_meta:meta])* @$offset:literal $vis:vis $field:ident: $ty:ty, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, zerocopy::FromBytes, zerocopy::IntoBytes,
            zerocopy::KnownLayout, zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name {
            $( $(#[$field_meta])* $vis $field: $ty, )*
        }

        const _: () = {
            const HEADER: usize = size_of::<super::MadHeader>();
            assert!(size_of::<$name>() == super::BODY_LEN);
            $( assert!(core::mem::offset_of!($name, $field) + HEADER == $offset); )*
        };

        impl Default for $name {
            /// All bytes zero.
            fn default() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }
        }

        impl super::Body for $name {
            const ATTRIBUTE: super::Attribute = super::Attribute::$attribute;
        }

        impl $name {
            /// Bytes of private data that the message can hold.
            pub const PRIVATE_DATA_LEN: usize =
                super::MAD_LEN - super::bits::last_offset(&[$($offset),*]);

            /// Fills the private data, padded with zeros; `false` if there is more than fits.
            pub fn set_private_data(&mut self, data: &[u8]) -> bool {
                let Some(field) = self.private_data.get_mut(..data.len()) else {
                    return false;
                };
                field.copy_from_slice(data);
                self.private_data[data.len()..].fill(0);
                true
            }
        }
    };
}

/// Declares the accessors of bodies that name both ends of a connection.
macro_rules! both_ids {
    ($($name:ident)*) => {$(
        impl $name {
            /// The sender's communication id.
            pub fn local_id(&self) -> CommId {
                CommId(self.local_id.get())
            }

            /// The receiver's communication id.
            pub fn remote_id(&self) -> CommId {
                CommId(self.remote_id.get())
            }

            /// Sets both communication ids.
            pub fn set_ids(&mut self, local: CommId, remote: CommId) -> &mut Self {
                (self.local_id, self.remote_id) = (local.0.into(), remote.0.into());
                self
            }
        }
    )*};
}

/// The offset of the last field, which is the private data in every body.
pub(super) const fn last_offset(offsets: &[usize]) -> usize {
    offsets[offsets.len() - 1]
}

pub(super) use {bit_fields, body, both_ids};
