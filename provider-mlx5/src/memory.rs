//! Memory that the device may read or write as long as a queue uses it.

pub use crate::mapped::DmaMemory;

impl DmaMemory {
    /// Whether there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a ring of `entries` (a power of two) of `stride` bytes fits and is aligned to 64
    /// bytes.
    pub(crate) fn holds(&self, entries: u32, stride: usize) -> bool {
        let needed = (entries as usize).checked_mul(stride);
        entries.is_power_of_two()
            && needed.is_some_and(|n| n <= self.len())
            && self.as_ptr().addr() % 64 == 0
    }
}
