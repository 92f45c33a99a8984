//! Packet sequence numbers: 24 bits, with wrapping arithmetic.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// A packet sequence number, 0..=0xff_ffff. Arithmetic wraps at 24 bits.
///
/// It is not `Ord`, because numbers that wrap have no total order. [`Psn::distance`] and
/// [`Psn::precedes`] compare numbers that are less than half the range apart (specification 9.7.2
/// "Packet Sequence Numbers").
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// The bits that are used.
    pub const MASK: u32 = 0xff_ffff;

    /// The low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MASK)
    }

    /// The number, 0..=0xff_ffff.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number after this one.
    pub const fn next(self) -> Self {
        Self::new(self.0.wrapping_add(1))
    }

    /// The number before this one.
    pub const fn prev(self) -> Self {
        Self::new(self.0.wrapping_sub(1))
    }

    /// How far `self` is ahead of `origin`: -0x80_0000..=0x7f_ffff, negative if behind.
    pub const fn distance(self, origin: Self) -> i32 {
        (self.0.wrapping_sub(origin.0) << 8) as i32 >> 8
    }

    /// Whether `self` is behind `other`: [`distance`](Self::distance) is negative.
    pub const fn precedes(self, other: Self) -> bool {
        self.distance(other) < 0
    }
}

impl Add<u32> for Psn {
    type Output = Self;

    fn add(self, count: u32) -> Self {
        Self::new(self.0.wrapping_add(count))
    }
}

impl AddAssign<u32> for Psn {
    fn add_assign(&mut self, count: u32) {
        *self = *self + count;
    }
}

impl Sub<u32> for Psn {
    type Output = Self;

    fn sub(self, count: u32) -> Self {
        Self::new(self.0.wrapping_sub(count))
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#08x})", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
