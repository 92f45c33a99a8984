//! Numbers of things that are free, such as slots of memory: a stack that any thread takes from and
//! gives back to, without a lock. No thread waits for another, nor a forked child for a thread that
//! only its parent has.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// What a place of the stack holds: nothing (0), or one more than a number.
type Place = u32;

/// A stack of the numbers below a count.
#[derive(Debug)]
pub struct FreeStack {
    /// The place on top, in the bits of `mask`. The bits above count how often a number was taken:
    /// a thread that has read what is below the top, and was then overtaken by others which took
    /// the top and gave it back, must not put on top what it has read.
    ///
    /// The count has 32 bits at least (48 for up to 65,535 numbers), and wraps: a thread would have
    /// to be stopped between two instructions while others take exactly that many.
    top: AtomicU64,
    mask: u64,
    /// The place below each number that is on the stack.
    below: Box<[AtomicU32]>,
}

/// Numbers that go back together, with [`FreeStack::give_back`].
#[derive(Debug, Default)]
pub struct Returned {
    newest: Place,
    oldest: Place,
}

impl FreeStack {
    /// A stack with all numbers below `count`, the lowest on top.
    pub fn full(count: u32) -> Self {
        Self::with_mask(count, (u64::from(count) + 1).next_power_of_two() - 1)
    }

    /// One that does not count how often numbers are taken.
    #[cfg(all(test, loom))]
    pub(crate) fn without_count(count: u32) -> Self {
        Self::with_mask(count, u64::MAX)
    }

    fn with_mask(count: u32, mask: u64) -> Self {
        let above = |number: u32| if number + 1 < count { number + 2 } else { 0 };
        Self {
            top: AtomicU64::new(count.min(1).into()),
            mask,
            below: (0..count).map(|number| AtomicU32::new(above(number))).collect(),
        }
    }

    /// Takes a number, the one that was given back last. `None` if none is there.
    #[inline]
    pub fn take(&self) -> Option<u32> {
        let mut top = self.top.load(Ordering::Acquire);
        loop {
            let number = ((top & self.mask) as Place).wrapping_sub(1);
            let below = self.below(number)?.load(Ordering::Relaxed);
            // One more in the bits above the mask.
            let next = (top | self.mask).wrapping_add(1 + u64::from(below));
            match self.exchange(top, next, Ordering::Acquire) {
                Ok(_) => return Some(number),
                Err(now) => top = now,
            }
        }
    }

    /// Adds a number that was taken to those that go back together. One that is on the stack
    /// already would be taken twice.
    #[inline(always)]
    pub fn add(&self, returned: &mut Returned, number: u32) {
        let Some(below) = self.below(number) else { return };
        below.store(returned.newest, Ordering::Relaxed);
        returned.newest = number + 1;
        if returned.oldest == 0 {
            returned.oldest = number + 1;
        }
    }

    /// Gives back all numbers that were added, in one step. The one that was added last is the
    /// first to be taken.
    #[inline(always)]
    pub fn give_back(&self, returned: Returned) {
        // Release: what was done with the numbers' things comes before another thread has them.
        self.put(returned, Ordering::Release);
    }

    #[inline(always)]
    pub(crate) fn put(&self, returned: Returned, order: Ordering) {
        let Some(lowest) = self.below(returned.oldest.wrapping_sub(1)) else { return };
        let mut top = self.top.load(Ordering::Relaxed);
        loop {
            let place = top & self.mask;
            lowest.store(place as Place, Ordering::Relaxed);
            let next = top - place + u64::from(returned.newest);
            match self.exchange(top, next, order) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    /// How many numbers are on the stack. While others take numbers and give them back it counts
    /// again, until none did so meanwhile.
    pub fn len(&self) -> usize {
        loop {
            let top = self.top.load(Ordering::Acquire);
            let mut place = (top & self.mask) as Place;
            let mut count = 0;
            // Others may change what is below meanwhile, so the places may lead in a circle.
            while let Some(below) = self.below(place.wrapping_sub(1)) {
                place = below.load(Ordering::Acquire);
                count += 1;
                if count > self.below.len() {
                    break;
                }
            }
            if self.top.load(Ordering::Relaxed) == top {
                return count;
            }
        }
    }

    /// Whether no number is on the stack.
    pub fn is_empty(&self) -> bool {
        self.top.load(Ordering::Relaxed) & self.mask == 0
    }

    #[inline(always)]
    fn below(&self, number: u32) -> Option<&AtomicU32> {
        self.below.get(number as usize)
    }

    #[inline(always)]
    fn exchange(&self, top: u64, next: u64, order: Ordering) -> Result<u64, u64> {
        self.top.compare_exchange_weak(top, next, order, Ordering::Acquire)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn give_back(stack: &FreeStack, numbers: &[u32]) {
        let mut returned = Returned::default();
        numbers.iter().for_each(|number| stack.add(&mut returned, *number));
        stack.give_back(returned);
    }

    fn take_all(stack: &FreeStack) -> Vec<u32> {
        core::iter::from_fn(|| stack.take()).collect()
    }

    #[test]
    fn what_went_back_last_is_taken_first() {
        let stack = FreeStack::full(3);
        assert_eq!((stack.len(), take_all(&stack)), (3, vec![0, 1, 2]));
        assert!(stack.is_empty() && stack.take().is_none());
        give_back(&stack, &[1]);
        give_back(&stack, &[0, 2]);
        give_back(&stack, &[]);
        assert_eq!((stack.len(), take_all(&stack)), (3, vec![2, 0, 1]));
    }

    #[test]
    fn numbers_that_do_not_exist_are_not_taken_back() {
        for count in [0, 1, 2] {
            let stack = FreeStack::full(count);
            give_back(&stack, &[count, u32::MAX]);
            assert_eq!(take_all(&stack), Vec::from_iter(0..count));
        }
    }

    #[test]
    fn the_count_of_takes_wraps() {
        for count in [1, 2, 3, 7, 8, 100] {
            let stack = FreeStack::full(count);
            // The count is all ones.
            stack.top.fetch_or(!stack.mask, Ordering::Relaxed);
            for _ in 0..3 {
                let all = take_all(&stack);
                assert_eq!(all.len(), count as usize);
                give_back(&stack, &all);
                assert_eq!(stack.len(), count as usize);
            }
        }
    }

    #[test]
    fn each_number_has_one_owner_at_a_time() {
        const ROUNDS: usize = 20_000;
        let stack = FreeStack::full(5);
        let owned: [AtomicU32; 5] = core::array::from_fn(|_| AtomicU32::new(0));
        let run = |thread: usize| {
            for round in 0..ROUNDS {
                let numbers: Vec<_> =
                    (0..=(round + thread) % 3).map_while(|_| stack.take()).collect();
                let mut returned = Returned::default();
                for number in numbers {
                    assert_eq!(owned[number as usize].fetch_add(1, Ordering::Relaxed), 0);
                    owned[number as usize].store(0, Ordering::Relaxed);
                    stack.add(&mut returned, number);
                }
                stack.give_back(returned);
            }
        };
        let run = &run;
        std::thread::scope(|scope| {
            (0..3).for_each(|thread| drop(scope.spawn(move || run(thread))))
        });
        assert_eq!(stack.len(), 5);
    }
}
