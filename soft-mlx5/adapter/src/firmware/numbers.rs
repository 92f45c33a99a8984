//! Numbers of objects that exist only in the firmware.

use std::collections::BTreeSet;
use std::ops::Range;

use super::refusal::{Done, Refusal};

/// A pool of object numbers of one kind.
#[derive(Debug)]
pub struct Numbers {
    kind: &'static str,
    range: Range<u32>,
    next: u32,
    used: BTreeSet<u32>,
}

impl Numbers {
    /// Numbers of a range, all free.
    pub fn new(kind: &'static str, range: Range<u32>) -> Self {
        Self { kind, next: range.start, range, used: BTreeSet::new() }
    }

    /// Allocates a free number. Freed numbers are reused as late as possible, so that stale uses
    /// fail.
    ///
    /// # Errors
    /// A refusal if none is free.
    pub fn allocate(&mut self) -> Result<u32, Refusal> {
        let later = self.next..self.range.end;
        let earlier = self.range.start..self.next;
        let number = later.chain(earlier).find(|number| !self.used.contains(number));
        let number = number.ok_or_else(|| Refusal::limit(self.kind))?;
        self.used.insert(number);
        self.next = if number + 1 < self.range.end { number + 1 } else { self.range.start };
        Ok(number)
    }

    /// Frees a number.
    ///
    /// # Errors
    /// A refusal if it is free.
    pub fn free(&mut self, number: u32) -> Done {
        if self.used.remove(&number) { Ok(()) } else { Err(Refusal::no_such(self.kind, number)) }
    }

    /// # Errors
    /// A refusal if the number is free.
    pub fn check(&self, number: u32) -> Done {
        if self.used.contains(&number) { Ok(()) } else { Err(Refusal::no_such(self.kind, number)) }
    }

    /// How many are not free.
    pub fn in_use(&self) -> usize {
        self.used.len()
    }

    /// Frees all.
    pub fn clear(&mut self) {
        self.used.clear();
    }
}
