//! Access sizes for memory that a program and peers access at the same time.

#![forbid(unsafe_code)]

/// The number of bytes of the same memory region before and after the bytes of an access.
///
/// The standard library forbids atomic accesses of different sizes to the same bytes if one of them
/// is a write and nothing orders them. So memory that peers access while the program reads it is
/// accessed by aligned words of eight bytes on both sides. A word that is only partly in the region
/// may hold other code's bytes, so single bytes are accessed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Margins {
    /// Bytes before the first one.
    pub before: u64,
    /// Bytes after the last one.
    pub after: u64,
}

impl Margins {
    /// No limits: all of the memory is one region.
    pub const EVERYWHERE: Self = Self { before: u64::MAX, after: u64::MAX };

    /// For an access that touches no bytes besides its own: only words inside it are accessed
    /// whole.
    pub const NONE: Self = Self { before: 0, after: 0 };

    /// The aligned word around `at`, one of the `length` bytes from `address`, if the region holds
    /// all of it.
    pub fn word(self, address: u64, length: usize, at: u64) -> Option<u64> {
        let word = at & !7;
        let before = address.saturating_sub(word);
        let after = (word - (address & !7) + 8).saturating_sub((address & 7) + length as u64);
        (before <= self.before && after <= self.after).then_some(word)
    }

    /// How many of the `rest` bytes from `at` are accessed in one way: up to the end of their word,
    /// or whole words.
    pub(super) fn span(self, address: u64, length: usize, at: u64, rest: usize) -> usize {
        let inside = (at & 7) as usize;
        if inside != 0 || rest < 8 || self.word(address, length, at).is_none() {
            return rest.min(8 - inside);
        }
        rest & !7
    }
}

#[cfg(test)]
mod tests;
