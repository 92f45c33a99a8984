//! Clocks as types, so that timestamps of different formats cannot be mixed.

use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::cq::{Compression, TimestampFormat};
use crate::device::clock::{Conversion, DeviceClock};
use crate::device::context::Context;
use crate::error::Result;

mod sealed {
    pub trait Sealed {
        const FORMAT: crate::cq::TimestampFormat;
        /// Whether completions are compressed.
        const COMPRESSED: bool = false;
    }
}

/// The clock of a queue's timestamps: [`FreeRunning`], [`RealTime`], or [`Untimed`] for none.
pub trait Clock: sealed::Sealed + fmt::Debug + Copy + Send + Sync + 'static {}

/// A clock that gives each frame a timestamp.
pub trait Timed: Clock {}

/// No timestamps: the queue's completions are compressed, and most have none.
///
/// ```compile_fail,E0599
/// use uverbs::ethernet::{Frame, Untimed};
/// fn wrong(frame: &Frame<'_, Untimed>) {
///     frame.timestamp();
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Untimed {}

/// Ticks of the device's core clock, which is never adjusted. The kernel converts 41 bits of them
/// (`MLX5_TIMER_MASK`, drivers/net/ethernet/mellanox/mlx5/core/lib/clock.c), so they wrap around
/// after 36 minutes at 1 GHz.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreeRunning {}

/// Seconds and nanoseconds of the device's PTP hardware clock: UTC or TAI, as the program that sets
/// the clock decides. They need `REAL_TIME_CLOCK_ENABLE` in the firmware's configuration; without
/// it making the queue fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RealTime {}

impl sealed::Sealed for FreeRunning {
    const FORMAT: TimestampFormat = TimestampFormat::FreeRunning;
}

impl sealed::Sealed for RealTime {
    const FORMAT: TimestampFormat = TimestampFormat::RealTime;
}

impl sealed::Sealed for Untimed {
    const FORMAT: TimestampFormat = TimestampFormat::Default;
    const COMPRESSED: bool = true;
}

impl Clock for FreeRunning {}
impl Clock for RealTime {}
impl Clock for Untimed {}
impl Timed for FreeRunning {}
impl Timed for RealTime {}

/// The timestamp format of clock `C`.
pub(super) fn format<C: Clock>() -> TimestampFormat {
    C::FORMAT
}

/// `compression`, if clock `C` means compressed completions.
pub(super) fn compressed<C: Clock>(compression: Compression) -> Option<Compression> {
    C::COMPRESSED.then_some(compression)
}

/// A timestamp of a queue with clock `C`, as the device wrote it.
///
/// ```compile_fail,E0599
/// use uverbs::ethernet::{FreeRunning, Timestamp};
/// fn wrong(time: Timestamp<FreeRunning>) -> u64 {
///     // Ticks are not nanoseconds: `UtcClock` converts them.
///     time.nanoseconds()
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Timestamp<C> {
    raw: u64,
    clock: PhantomData<C>,
}

impl<C> Timestamp<C> {
    /// The timestamp with this device value.
    #[inline(always)]
    pub const fn from_raw(raw: u64) -> Self {
        Self { raw, clock: PhantomData }
    }

    /// The device's value.
    #[inline(always)]
    pub const fn raw(self) -> u64 {
        self.raw
    }
}

impl<C> fmt::Debug for Timestamp<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timestamp({:#x})", self.raw)
    }
}

impl Timestamp<RealTime> {
    /// Whole seconds since 1970 (of the clock's time scale).
    #[inline(always)]
    pub const fn seconds(self) -> u32 {
        (self.raw >> 32) as u32
    }

    /// Nanoseconds since 1970.
    #[inline(always)]
    pub const fn nanoseconds(self) -> u64 {
        (self.raw >> 32) * 1_000_000_000 + (self.raw & 0xffff_ffff)
    }

    /// The time as [`SystemTime`].
    pub fn time(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.nanoseconds())
    }
}

/// Converts [`FreeRunning`] timestamps to nanoseconds since 1970.
///
/// It uses a copy of the kernel's clock page. Take a new copy with [`UtcClock::refresh`] at least
/// once per [`UtcClock::period`]. A new copy may set the clock back a little, but
/// [`UtcClock::nanoseconds`] never decreases.
#[derive(Debug)]
pub struct UtcClock {
    device: DeviceClock,
    conversion: Conversion,
    last: u64,
}

impl UtcClock {
    /// The clock of a device.
    ///
    /// # Errors
    /// Those of [`Context::clock`](crate::Context::clock) and [`DeviceClock::conversion`].
    pub fn new(context: &Context) -> Result<Self> {
        let device = context.clock()?;
        let conversion = device.conversion()?;
        Ok(Self { device, conversion, last: 0 })
    }

    /// Takes a new copy of the kernel's clock page.
    ///
    /// # Errors
    /// Those of [`DeviceClock::conversion`]; the old copy stays.
    pub fn refresh(&mut self) -> Result<()> {
        self.conversion = self.device.conversion()?;
        Ok(())
    }

    /// The interval at which the kernel updates its page.
    pub fn period(&self) -> Duration {
        self.conversion.update_period()
    }

    /// Nanoseconds since 1970 at a timestamp; never less than the result of the last call. The
    /// timestamp must be within half the counter's range of the last [`UtcClock::refresh`].
    pub fn nanoseconds(&mut self, time: Timestamp<FreeRunning>) -> u64 {
        self.last = self.last.max(self.conversion.nanoseconds(time.raw));
        self.last
    }

    /// The device's clock.
    pub fn device(&self) -> &DeviceClock {
        &self.device
    }
}

#[cfg(test)]
mod tests;
