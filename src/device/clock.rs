//! The device's clock: converts the raw timestamps of completions.
//!
//! [`Completion::timestamp`](crate::raw::Completion::timestamp) returns the value of the device's
//! counter. The kernel maps two pages, with which a program can convert it without a system call:
//! one has the current counter, the other relates the counter to wall-clock time. The kernel
//! updates the second page every few seconds. A [`Conversion`] is a copy of it, for any number of
//! timestamps.
//!
//! ```no_run
//! # use uverbs::{Context, Result, raw::CompletionQueue};
//! # fn example(context: &Context, cq: &mut CompletionQueue) -> Result<()> {
//! let clock = context.clock()?;
//! let raw = cq.poll()?.timestamp();
//! println!("completed at {:?}", clock.conversion()?.wall_time(raw));
//! # Ok(())
//! # }
//! ```

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use uverbs_uapi::clock::ClockInfo;
use uverbs_uapi::mlx5::enums::MmapCommand;
use uverbs_uapi::mlx5::flags::{AllocUcontextRespMask, ClockInfoVersions};

use super::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::host::buffer::page_size;
use crate::host::channel::Access;
use crate::host::system::Mapping;

const VERB: &str = "query_clock";
/// Bit of the sequence counter that is set while the kernel writes
/// (`MLX5_IB_CLOCK_INFO_KERNEL_UPDATING`).
const UPDATING: u32 = 1;
/// Number of attempts to copy the page. The kernel writes for well under a microsecond.
const TRIES: u32 = 10_000;

/// The clock pages of a device.
#[derive(Debug)]
pub struct DeviceClock {
    counter: Option<Counter>,
    info: Mapping,
    khz: u64,
    context: Context,
}

/// The page with the device's counter.
#[derive(Debug)]
struct Counter {
    page: Mapping,
    offset: usize,
}

impl Context {
    /// Maps the pages of the device's clock.
    ///
    /// # Errors
    /// `Unsupported` if the device or the kernel has none; other errors of the kernel.
    pub fn clock(&self) -> Result<DeviceClock> {
        let limits = self.driver_limits();
        if !limits.clock_info_versions.contains(ClockInfoVersions::V1) {
            let cause = "the kernel offers no page that relates the device's clock to time";
            return Err(Error::unsupported(VERB, cause));
        }
        let page = page_size();
        let map = |command: MmapCommand| {
            let offset = command.offset(0, page as u64);
            self.commands().mmap(VERB, page, Access::Read, offset)
        };
        let has_counter = limits.comp_mask.contains(AllocUcontextRespMask::CORE_CLOCK_OFFSET);
        let counter = has_counter.then(|| map(MmapCommand::CORE_CLOCK)).transpose()?;
        let offset = (limits.hca_core_clock_offset as usize & (page - 8)) & !7;
        let counter = counter.map(|page| Counter { page, offset });
        let info = map(MmapCommand::CLOCK_INFO)?;
        let (khz, context) = (self.attributes()?.clock_khz(), self.clone());
        Ok(DeviceClock { counter, info, khz, context })
    }
}

impl DeviceClock {
    /// The counter's frequency in kHz.
    pub fn khz(&self) -> u64 {
        self.khz
    }

    /// The current counter in ticks, a read across PCIe.
    ///
    /// # Errors
    /// `Unsupported` if the kernel does not map the counter.
    #[doc(alias = "ibv_query_rt_values_ex")]
    pub fn ticks(&self) -> Result<u64> {
        self.context.commands().channel().refresh_clock();
        self.counter.as_ref().and_then(Counter::read).ok_or_else(|| {
            Error::unsupported(VERB, "the kernel does not show the device's counter")
        })
    }

    /// The current relation of the counter to wall-clock time.
    ///
    /// # Errors
    /// `Busy` if the kernel was writing at each of 10,000 attempts.
    pub fn conversion(&self) -> Result<Conversion> {
        first_whole(|| self.copy())
    }

    /// A consistent copy of the page; `None` if the kernel wrote meanwhile.
    fn copy(&self) -> Option<Conversion> {
        let sign = self.info.atomic_u32(offset_of!(ClockInfo, sign))?;
        between_updates(sign, || self.fields())
    }

    /// The page's fields, which may belong to different updates.
    fn fields(&self) -> Option<Conversion> {
        let half = |offset| Some(self.info.atomic_u32(offset)?.load(Ordering::Relaxed));
        let word = |offset| Some(self.info.atomic_u64(offset)?.load(Ordering::Relaxed));
        Some(Conversion {
            nanoseconds: word(offset_of!(ClockInfo, nsec))?,
            ticks: word(offset_of!(ClockInfo, cycles))?,
            fraction: word(offset_of!(ClockInfo, frac))?,
            multiplier: half(offset_of!(ClockInfo, mult))?,
            shift: half(offset_of!(ClockInfo, shift))? & 63,
            mask: word(offset_of!(ClockInfo, mask))?,
            update_period: Duration::from_nanos(word(offset_of!(ClockInfo, overflow_period))?),
        })
    }
}

/// The result of `read`; `None` if the page's sequence counter shows that the kernel wrote
/// meanwhile.
fn between_updates<T>(sign: &AtomicU32, read: impl FnOnce() -> Option<T>) -> Option<T> {
    let before = sign.load(Ordering::Acquire);
    let fields = read()?;
    // The fields are read before the counter is read again.
    fence(Ordering::Acquire);
    let after = sign.load(Ordering::Relaxed);
    (before & UPDATING == 0 && before == after).then_some(fields)
}

/// The first copy during which the kernel wrote no update.
fn first_whole<T>(mut copy: impl FnMut() -> Option<T>) -> Result<T> {
    let tries = (0..TRIES).find_map(|_| {
        let copy = copy();
        if copy.is_none() {
            std::thread::yield_now();
        }
        copy
    });
    tries.ok_or_else(|| Error::new(VERB, ErrorKind::Busy, "the kernel is always writing the page"))
}

impl Counter {
    /// Reads both big-endian halves, the high one first, and repeats if that changed meanwhile.
    /// `None` if the counter is outside its page.
    fn read(&self) -> Option<u64> {
        let half = |offset| self.page.read_register(self.offset + offset).map(u32::from_be);
        loop {
            let (high, low, again) = (half(0)?, half(4)?, half(0)?);
            if high == again {
                return Some(u64::from(high) << 32 | u64::from(low));
            }
        }
    }
}

/// The relation of the device's counter to wall-clock time: a copy of the kernel's page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conversion {
    nanoseconds: u64,
    ticks: u64,
    fraction: u64,
    multiplier: u32,
    shift: u32,
    mask: u64,
    update_period: Duration,
}

impl Conversion {
    /// The page's fields, for programs that convert themselves (mlx5dv_get_clock_info).
    #[doc(hidden)]
    pub fn page(&self) -> ClockInfo {
        ClockInfo {
            nsec: self.nanoseconds,
            cycles: self.ticks,
            frac: self.fraction,
            mult: self.multiplier,
            shift: self.shift,
            mask: self.mask,
            overflow_period: self.update_period.as_nanos() as u64,
            ..ClockInfo::default()
        }
    }

    /// Nanoseconds since 1970 at a raw timestamp. The timestamp must be within half the counter's
    /// range of the copy. The error grows with the distance, because the clocks drift: take a new
    /// copy regularly (see [`Conversion::update_period`]).
    #[doc(alias = "ibv_wc_read_completion_wallclock_ns")]
    pub fn nanoseconds(&self, raw: u64) -> u64 {
        let since = raw.wrapping_sub(self.ticks) & self.mask;
        if since <= self.mask / 2 {
            return self.nanoseconds.wrapping_add(self.scaled(since, self.fraction as i128));
        }
        let before = self.ticks.wrapping_sub(raw) & self.mask;
        self.nanoseconds.wrapping_sub(self.scaled(before, -(self.fraction as i128)))
    }

    /// Wall-clock time at a raw timestamp.
    pub fn wall_time(&self, raw: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.nanoseconds(raw))
    }

    /// The longest time between two updates of the page by the kernel.
    pub fn update_period(&self) -> Duration {
        self.update_period
    }

    /// Cannot overflow: ticks have 64 bits, the multiplier 32, the product 128.
    fn scaled(&self, ticks: u64, fraction: i128) -> u64 {
        let product = i128::from(ticks) * i128::from(self.multiplier) + fraction;
        (product.max(0) >> self.shift) as u64
    }
}

#[cfg(test)]
mod tests;
