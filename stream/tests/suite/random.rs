//! Random numbers from a seed, and bytes that depend on their position in a stream.

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 1 to `most`, as often small as large.
    pub(crate) fn size(&mut self, most: usize) -> usize {
        let most = (self.next() as usize % most) + 1;
        (self.next() as usize % most) + 1
    }
}

/// The bytes of a stream from `start` on.
pub(crate) fn pattern(start: usize, length: usize) -> Vec<u8> {
    (start..start + length).map(|at| ((at * 31) ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}
