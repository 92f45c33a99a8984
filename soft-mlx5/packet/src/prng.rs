//! Random numbers: a small seeded generator, and numbers that peers cannot guess.

use std::hash::{BuildHasher, RandomState};

/// SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014). The
/// same seed gives the same numbers on every machine and in every version of this crate.
#[derive(Clone, Debug)]
pub struct Prng(u64);

impl Prng {
    /// A generator that starts at `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number in `0..bound`; 0 if `bound` is 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.next() as u128 * bound as u128) >> 64) as u64
    }

    /// A number in `low..=high`; `low` if the range is empty.
    pub const fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// True in `parts` of a million cases.
    pub const fn chance(&mut self, parts: u32) -> bool {
        parts != 0 && self.below(1_000_000) < parts as u64
    }

    /// A separate generator, seeded from this one.
    pub const fn split(&mut self) -> Self {
        Self(self.next())
    }
}

/// A source of numbers for objects that peers name: queue pairs and memory keys.
#[derive(Clone, Debug)]
pub enum RandomSource {
    /// Numbers computed from a seed, the same in every run. A peer that knows some of them can
    /// compute the others.
    Seeded(Prng),
    /// SipHash of a counter under a key from the operating system: some of the numbers do not
    /// reveal the others.
    Secret {
        /// The key.
        key: RandomState,
        /// Numbers drawn.
        drawn: u64,
    },
}

impl RandomSource {
    /// A source that starts at `seed`, or that is seeded by the operating system.
    pub fn new(seed: Option<u64>) -> Self {
        match seed {
            Some(seed) => Self::Seeded(Prng::new(seed)),
            None => Self::Secret { key: RandomState::new(), drawn: 0 },
        }
    }

    /// 64 random bits.
    pub fn draw(&mut self) -> u64 {
        match self {
            Self::Seeded(prng) => prng.next(),
            Self::Secret { key, drawn } => {
                *drawn += 1;
                key.hash_one(*drawn)
            }
        }
    }

    /// A number in a range that is not empty.
    pub fn within(&mut self, range: &std::ops::Range<u32>) -> u32 {
        range.start + (self.draw() % u64::from(range.end - range.start)) as u32
    }

    /// A separate source.
    pub fn split(&mut self) -> Self {
        match self {
            Self::Seeded(prng) => Self::Seeded(prng.split()),
            Self::Secret { .. } => Self::new(None),
        }
    }
}
