//! The two clock pages of a context: the device's counter, and its relation to wall-clock time.
//!
//! On a NIC the counter is a register of the initialization segment. Here a page of memory holds
//! it, so it does not change between two updates. The device's thread updates the counter in each
//! step, and runs a step at least every [`PERIOD`] nanoseconds while a context has one of the pages
//! mapped. This library requests an update before it reads.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::errno::Errno;

use super::shared_pages::SharedPages;
use crate::chardev::abi::user_memory::PAGE_SIZE;

/// Page of the counter: high half at 0, low half at 4, big endian (`struct mlx5_init_seg`,
/// internal_timer_h).
pub(crate) const COUNTER_PAGE: u64 = 0;
/// Page of `struct mlx5_ib_clock_info`.
pub(crate) const INFO_PAGE: u64 = 1;

const INFO: usize = INFO_PAGE as usize * PAGE_SIZE as usize;
// Offsets in struct mlx5_ib_clock_info.
const SIGN: usize = INFO;
const NSEC: usize = INFO + 8;
const CYCLES: usize = INFO + 16;
const MULT: usize = INFO + 32;
const MASK: usize = INFO + 40;
const OVERFLOW_PERIOD: usize = INFO + 48;

/// The counter's greatest age in nanoseconds, if the device's thread is not delayed: the interval
/// at which an idle device checks its doorbells.
pub(crate) const PERIOD: u64 = 8_000_000;

/// Bits of the counter that a conversion to wall-clock time uses (`MLX5_TIMER_MASK`, mlx5/core's
/// lib/clock.c).
const TIMER_MASK: u64 = (1 << 41) - 1;

/// Both pages.
#[derive(Debug)]
pub(crate) struct ClockPages {
    pages: SharedPages,
    /// The counter at the device's time 0.
    start: u64,
    info_at: AtomicU32,
    /// Contexts that have mapped a page.
    watchers: AtomicUsize,
}

impl ClockPages {
    /// The pages at the time `now` of a device whose counter was `start` at its time 0.
    pub(crate) fn new(now: u64, start: u64) -> Result<Self, Errno> {
        let pages = SharedPages::new(c"mlx5-clock", 2)?;
        let (info_at, watchers) = (AtomicU32::new(u32::MAX), AtomicUsize::new(0));
        let clock = Self { pages, start, info_at, watchers };
        clock.update(now);
        Ok(clock)
    }

    pub(crate) fn pages(&self) -> &SharedPages {
        &self.pages
    }

    /// Counts a context that maps a page: the counter must be updated from now on.
    pub(crate) fn watch(&self) {
        self.watchers.fetch_add(1, Ordering::SeqCst);
    }

    /// Undoes one [`watch`](Self::watch), when the context is closed.
    pub(crate) fn unwatch(&self) {
        self.watchers.fetch_sub(1, Ordering::SeqCst);
    }

    /// When the counter must be updated next; `None` if no context watches it.
    pub(crate) fn next_update(&self, now: u64) -> Option<u64> {
        (self.watchers.load(Ordering::SeqCst) != 0).then_some(now + PERIOD)
    }

    /// The device's time when the counter's page was written.
    pub(crate) fn shown(&self) -> u64 {
        u64::from_be(self.pages.word(0).load(Ordering::Relaxed)).wrapping_sub(self.start)
    }

    /// Sets the counter for the device's time `now`, in nanoseconds, and once a second the relation
    /// to wall-clock time.
    pub(crate) fn update(&self, now: u64) {
        // A single store, so that readers see both halves of the same time. The high half comes
        // first and each is big endian, which makes one big-endian word.
        let counter = now.wrapping_add(self.start);
        self.pages.word(0).store(counter.to_be(), Ordering::Relaxed);
        let second = (now / 1_000_000_000) as u32;
        if self.info_at.swap(second, Ordering::Relaxed) != second {
            self.write_info(now);
        }
    }

    /// Readers retry while the sign is odd or has changed (libmlx5, `_mlx5dv_get_clock_info`).
    fn write_info(&self, now: u64) {
        let wall =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let sign = self.pages.half(SIGN);
        let before = sign.load(Ordering::Relaxed);
        sign.store(before | 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.pages.word(NSEC).store(wall, Ordering::Relaxed);
        let counter = now.wrapping_add(self.start) & TIMER_MASK;
        self.pages.word(CYCLES).store(counter, Ordering::Relaxed);
        self.pages.half(MULT).store(1, Ordering::Relaxed);
        self.pages.word(MASK).store(TIMER_MASK, Ordering::Relaxed);
        self.pages.word(OVERFLOW_PERIOD).store(1_000_000_000, Ordering::Relaxed);
        sign.store((before | 1).wrapping_add(1), Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
