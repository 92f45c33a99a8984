//! Tables of objects by number.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use crate::prng::RandomSource;

/// Numbered objects: lookup by index, numbers reused as late as possible.
/// A freed number is reused only after [`Table::REST`] others were freed. So a stale number (in a
/// packet in transit, or in a WQE with an old key) rarely names a new object.
#[derive(Debug)]
pub(super) struct Table<T> {
    base: u32,
    limit: usize,
    slots: Vec<Option<T>>,
    free: VecDeque<u32>,
}

impl<T> Table<T> {
    const REST: usize = 64;

    /// A table for at most `limit` objects, with numbers from `base` up.
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

/// Objects by random numbers. Packets name these objects, so other hosts must not be able to guess
/// them.
#[derive(Debug)]
pub(super) struct RandomTable<T> {
    range: Range<u32>,
    limit: usize,
    random: RandomSource,
    objects: HashMap<u32, T, BuildHasherDefault<NumberHasher>>,
    /// Ranges that no object gets a number of, by their first number.
    reserved: BTreeMap<u32, u32>,
}

impl<T> RandomTable<T> {
    /// Numbers in `range`, for at most `limit` objects and at most half as many as the range has.
    pub(super) fn new(range: Range<u32>, limit: usize, random: RandomSource) -> Self {
        // A draw finds a free number in two attempts on average, even when the table is full.
        let limit = limit.min(range.len() / 2);
        let (objects, reserved) = (HashMap::default(), BTreeMap::new());
        Self { range, limit, random, objects, reserved }
    }

    /// Puts an object made from its number into the table; `None` if the table is full.
    pub(super) fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> Option<u32> {
        if self.objects.len() >= self.limit {
            return None;
        }
        let number = loop {
            let number = self.random.within(&self.range);
            if !self.objects.contains_key(&number) && !self.is_reserved(number) {
                break number;
            }
        };
        self.objects.insert(number, make(number));
        Some(number)
    }

    /// Reserves `length` numbers, a power of two. The first is a multiple of it.
    ///
    /// The caller leaves at least half of the numbers unreserved.
    pub(super) fn reserve(&mut self, length: u32) -> u32 {
        loop {
            let first = self.random.within(&self.range) / length * length;
            let all = first..first + length;
            let inside = self.range.contains(&first) && all.end <= self.range.end;
            let mut used = all.map(|number| self.get(number).is_some() || self.is_reserved(number));
            if inside && !used.any(|used| used) {
                self.reserved.insert(first, length);
                return first;
            }
        }
    }

    /// Releases the numbers that were reserved together.
    pub(super) fn release(&mut self, first: u32) {
        self.reserved.remove(&first);
    }

    /// How many ranges are reserved.
    pub(super) fn reserved(&self) -> usize {
        self.reserved.len()
    }

    fn is_reserved(&self, number: u32) -> bool {
        let before = self.reserved.range(..=number).next_back();
        before.is_some_and(|(first, length)| number - first < *length)
    }

    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.objects.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.objects.get_mut(&number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.objects.iter().map(|(number, object)| (*number, object))
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        self.objects.remove(&number)
    }

    /// How many objects there are.
    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }
}

/// Spreads a number over 64 bits. The device chooses the numbers in a table at random, so peers
/// cannot choose colliding ones.
#[derive(Debug, Default)]
pub(super) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32((*byte).into()));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests;
