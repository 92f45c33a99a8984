//! Atomic operations: their results, and the headers that carry them.

use std::collections::VecDeque;

use super::super::mkey::Operand;
use crate::memory::{BusError, HostMemory};
use crate::packet::{AtomicEth, MaskedAtomicEth, Psn};

/// Operands of an atomic, plain or masked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AtomicRequest {
    /// Operand size in bytes, 4 or 8.
    pub(super) size: u8,
    /// Whether it is a compare-and-swap; otherwise a fetch-and-add.
    pub(super) swaps: bool,
    pub(super) swap_add: u64,
    pub(super) compare: u64,
    /// Bits that a swap changes.
    pub(super) swap_mask: u64,
    /// Bits that a swap compares.
    pub(super) compare_mask: u64,
    /// The highest bit of each field. An addition does not carry beyond it.
    pub(super) boundary: u64,
}

impl AtomicRequest {
    pub(super) fn compare_swap(compare: u64, swap: u64) -> Self {
        Self {
            size: 8,
            swaps: true,
            swap_add: swap,
            compare,
            swap_mask: u64::MAX,
            compare_mask: u64::MAX,
            ..Self::default()
        }
    }

    pub(super) fn fetch_add(add: u64) -> Self {
        Self { size: 8, swap_add: add, ..Self::default() }
    }

    /// Whether the InfiniBand operation of 8 bytes, without masks, has the same effect.
    pub(super) fn is_plain(&self) -> bool {
        let plain = if self.swaps {
            Self::compare_swap(self.compare, self.swap_add)
        } else {
            Self::fetch_add(self.swap_add)
        };
        *self == plain
    }

    /// The request of a plain header.
    pub(super) fn plain(swaps: bool, header: &AtomicEth) -> Self {
        match swaps {
            true => Self::compare_swap(header.compare.get(), header.swap_add.get()),
            false => Self::fetch_add(header.swap_add.get()),
        }
    }

    /// The request of a masked header; `None` if its size is neither 4 nor 8.
    pub(super) fn masked(swaps: bool, header: &MaskedAtomicEth) -> Option<Self> {
        let size = match header.size.get() {
            4 => 4,
            8 => 8,
            _ => return None,
        };
        let mask = header.swap_mask_boundary.get();
        let (swap_add, compare) = (header.swap_add.get(), header.compare.get());
        Some(if swaps {
            let compare_mask = header.compare_mask.get();
            Self { size, swap_mask: mask, compare_mask, ..Self::compare_swap(compare, swap_add) }
        } else {
            Self { size, boundary: mask, ..Self::fetch_add(swap_add) }
        })
    }

    /// The masked header of the request.
    pub(super) fn header(&self, address: u64, rkey: u32) -> MaskedAtomicEth {
        let mask = if self.swaps { self.swap_mask } else { self.boundary };
        MaskedAtomicEth {
            address: address.into(),
            rkey: rkey.into(),
            size: u32::from(self.size).into(),
            swap_add: self.swap_add.into(),
            compare: self.compare.into(),
            swap_mask_boundary: mask.into(),
            compare_mask: self.compare_mask.into(),
        }
    }

    /// Changes the operand and returns its old value. An operand of four bytes is changed through
    /// the aligned eight bytes around it, because the program accesses such memory at that size
    /// (see `Margins`).
    pub(super) fn execute(
        &self,
        memory: &dyn HostMemory,
        operand: Operand,
    ) -> Result<u64, BusError> {
        let at = operand.address;
        if self.size != 4 {
            return memory.update_u64(at, &mut |value| self.apply(value));
        }
        let change = &mut |value: u32| self.apply(value.into()) as u32;
        if !operand.in_word {
            return memory.update_u32(at, change).map(u64::from);
        }
        let half = if at % 8 == 4 { 1 } else { 0 };
        let mut before = 0;
        memory.update_u64(at & !7, &mut |word| {
            let mut halves: [u32; 2] = zerocopy::transmute!(word);
            before = halves[half];
            halves[half] = change(before);
            zerocopy::transmute!(halves)
        })?;
        Ok(before.into())
    }

    /// The value to store over `value`.
    pub(super) fn apply(&self, value: u64) -> u64 {
        if !self.swaps {
            return add_in_fields(value, self.swap_add, self.boundary);
        }
        let equal = (value ^ self.compare) & self.compare_mask == 0;
        if equal { value & !self.swap_mask | self.swap_add & self.swap_mask } else { value }
    }
}

/// The last atomics that a responder executed, to answer duplicates of their requests.
#[derive(Debug, Default)]
pub(super) struct ExecutedAtomics(VecDeque<(Psn, u64)>);

impl ExecutedAtomics {
    /// Adds an atomic and the value before it. The last `depth` are kept, and at least one.
    pub(super) fn add(&mut self, psn: Psn, original: u64, depth: usize) {
        if self.0.len() >= depth {
            self.0.pop_front();
        }
        self.0.push_back((psn, original));
    }

    /// The value before the atomic with this PSN. The newest counts: an old one may have the same
    /// PSN, from before the PSNs wrapped around.
    pub(super) fn original(&self, psn: Psn) -> Option<u64> {
        let found = self.0.iter().rev().find(|(executed, _)| *executed == psn);
        found.map(|(_, original)| *original)
    }
}

/// Adds without letting a carry out of a bit that is set in `boundary`.
fn add_in_fields(a: u64, b: u64, boundary: u64) -> u64 {
    // The top bit of each field is added without carry (by exclusive or), so nothing crosses into
    // the next field.
    let low = (a & !boundary).wrapping_add(b & !boundary);
    low ^ (a ^ b) & boundary
}

#[cfg(test)]
mod tests;
