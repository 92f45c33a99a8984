//! Objects by number.

use std::collections::VecDeque;

/// Numbered objects: lookup by index, numbers reused as late as possible.
///
/// A number that was freed comes back only after [`Table::REST`] others were freed, so that a stale
/// number (a packet under way, a WQE with an old key) rarely meets a stranger.
#[derive(Debug)]
pub(super) struct Table<T> {
    base: u32,
    limit: usize,
    slots: Vec<Option<T>>,
    free: VecDeque<u32>,
}

impl<T> Table<T> {
    const REST: usize = 64;

    /// Numbers from `base` up, at most `limit` objects.
    pub(super) const fn new(base: u32, limit: usize) -> Self {
        Self { base, limit, slots: Vec::new(), free: VecDeque::new() }
    }

    /// Puts an object made from its number into the table; `None` if the table is full.
    pub(super) fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> Option<u32> {
        let slot = self.take_slot()?;
        let number = self.base + slot as u32;
        self.slots[slot] = Some(make(number));
        Some(number)
    }

    fn take_slot(&mut self) -> Option<usize> {
        if self.slots.len() < self.limit && self.free.len() < Self::REST {
            self.slots.push(None);
            return Some(self.slots.len() - 1);
        }
        self.free.pop_front().map(|slot| slot as usize)
    }

    fn slot(&self, number: u32) -> usize {
        number.wrapping_sub(self.base) as usize
    }

    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.slots.get(self.slot(number))?.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let slot = self.slot(number);
        self.slots.get_mut(slot)?.as_mut()
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let slot = self.slot(number);
        let object = self.slots.get_mut(slot)?.take()?;
        self.free.push_back(slot as u32);
        Some(object)
    }

    /// How many objects there are.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rest_before_they_are_reused() {
        let mut table = Table::new(16, 1 << 10);
        let first = table.insert_with(|n| n).unwrap();
        assert_eq!(first, 16);
        assert_eq!(table.remove(first), Some(16));
        assert_eq!(table.remove(first), None);
        let next: Vec<u32> = (0..64).map(|_| table.insert_with(|n| n).unwrap()).collect();
        assert!(!next.contains(&first));
        assert_eq!(table.len(), 64);
    }

    #[test]
    fn a_full_table_reuses_at_once_and_refuses_more() {
        let mut table = Table::new(0, 2);
        assert_eq!(table.insert_with(|n| n), Some(0));
        assert_eq!(table.insert_with(|n| n), Some(1));
        assert_eq!(table.insert_with(|n| n), None);
        table.remove(0);
        assert_eq!(table.insert_with(|n| n), Some(0));
        assert_eq!(table.get(7), None);
    }
}
