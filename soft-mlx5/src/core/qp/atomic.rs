//! Atomic operations: what they compute, and the headers that carry them.

use super::super::mkey::Operand;
use crate::memory::{BusError, HostMemory};
use crate::packet::{AtomicEth, MaskedAtomicEth};

/// Operands of an atomic, plain or masked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AtomicRequest {
    /// Operand size in bytes, 4 or 8.
    pub(super) size: u8,
    /// Compare and swap, else fetch and add.
    pub(super) swaps: bool,
    pub(super) swap_add: u64,
    pub(super) compare: u64,
    /// Bits that a swap changes.
    pub(super) swap_mask: u64,
    /// Bits that a swap compares.
    pub(super) compare_mask: u64,
    /// Bits out of which an addition does not carry.
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

/// Adds without letting a carry out of a bit that is set in `boundary`.
fn add_in_fields(a: u64, b: u64, boundary: u64) -> u64 {
    // The top bit of each field is added without carry (by exclusive or), so nothing crosses into
    // the next field.
    let low = (a & !boundary).wrapping_add(b & !boundary);
    low ^ (a ^ b) & boundary
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::recorder::Recorder;

    #[test]
    fn plain_operations() {
        assert_eq!(AtomicRequest::fetch_add(3).apply(u64::MAX), 2);
        assert_eq!(AtomicRequest::compare_swap(5, 9).apply(5), 9);
        assert_eq!(AtomicRequest::compare_swap(5, 9).apply(6), 6);
        assert!(AtomicRequest::fetch_add(3).is_plain());
    }

    #[test]
    fn masks_limit_what_is_compared_and_swapped() {
        let masked = AtomicRequest {
            compare_mask: 0xff,
            swap_mask: 0xff00,
            ..AtomicRequest::compare_swap(0x12, 0xabcd)
        };
        assert!(!masked.is_plain());
        assert_eq!(masked.apply(0x7712), 0xab12);
        assert_eq!(masked.apply(0x7713), 0x7713);
    }

    #[test]
    fn four_bytes_are_changed_by_way_of_their_word() {
        let memory = Recorder::new(0x7000_0000, 16);
        memory
            .memory
            .write(0x7000_0000, &[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0])
            .unwrap();
        let add = AtomicRequest { size: 4, ..AtomicRequest::fetch_add(u32::from_le(0x10).into()) };
        for (at, in_word, size) in [(0, true, 8), (4, true, 8), (8, false, 4), (12, true, 8)] {
            let address = 0x7000_0000 + at;
            let before = add.execute(&memory, Operand { address, in_word }).unwrap();
            assert_eq!(u32::from_le(before as u32), at as u32 / 4 + 1);
            assert!(memory.take().iter().all(|access| access.1 == size), "{at}");
        }
        let mut after = [0; 16];
        memory.memory.read(0x7000_0000, &mut after).unwrap();
        assert_eq!(after, [0x11, 0, 0, 0, 0x12, 0, 0, 0, 0x13, 0, 0, 0, 0x14, 0, 0, 0]);
    }

    #[test]
    fn carries_stop_at_boundaries() {
        let fields = AtomicRequest { boundary: 0x80_80, ..AtomicRequest::fetch_add(0x01_01) };
        assert_eq!(fields.apply(0x00_ff), 0x01_00);
        assert_eq!(fields.apply(0xff_7f), 0x00_80);
        let words = AtomicRequest { boundary: 1 << 31, ..AtomicRequest::fetch_add(1) };
        assert_eq!(words.apply(0xffff_ffff), 0);
        assert_eq!(AtomicRequest::fetch_add(1).apply(0xffff_ffff), 1 << 32);
    }
}
