//! How memory is accessed that a program reads and writes while peers access it.

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

    /// Of bytes that no other access may touch: words inside them are accessed whole, and no byte
    /// beside them.
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
mod tests {
    use super::*;
    use crate::memory::HostMemory;
    use crate::memory::recorder::Recorder;

    const BASE: u64 = 0x7000_0000;

    /// Copies within a region of every position, and checks what is copied and at which sizes.
    #[test]
    fn shared_words_are_accessed_whole_where_the_region_holds_them() {
        let memory = Recorder::new(BASE, 64);
        for (start, end) in [(0, 64), (3, 61), (5, 12), (9, 15), (16, 40)] {
            for first in start..end {
                for last in first..=end {
                    check_words(&memory, (start, end), (first, last));
                }
            }
        }
    }

    fn check_words(memory: &Recorder, (start, end): (u64, u64), (first, last): (u64, u64)) {
        let margins = Margins { before: first - start, after: end - last };
        let before: Vec<u8> = (0..64).map(|i| 0x80 | i).collect();
        memory.memory.write(BASE, &before).unwrap();
        let data: Vec<u8> = (first..last).map(|i| i as u8).collect();
        memory.write_words(BASE + first, &data, margins).unwrap();
        let mut back = vec![0xff; data.len()];
        memory.read_words(BASE + first, &mut back, margins).unwrap();
        assert_eq!(back, data);
        let mut after = [0; 64];
        memory.memory.read(BASE, &mut after).unwrap();
        let (low, high) = (first as usize, last as usize);
        assert_eq!((&after[..low], &after[high..]), (&before[..low], &before[high..]));
        for (at, size, _) in memory.take() {
            let word = (at - BASE) & !7;
            let whole = word >= start && word + 8 <= end;
            assert_eq!(size, if whole { 8 } else { 1 }, "{at:#x} of {first}..{last}");
            assert!(at - BASE >= start && at - BASE + size <= end, "outside of the region");
        }
    }
}
