//! The device's time.

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`, the same in all processes of the machine.
pub fn now() -> u64 {
    // CLOCK_MONOTONIC exists on every Linux; the call cannot fail.
    let Ok(time) = clock_gettime(ClockId::CLOCK_MONOTONIC) else { return 0 };
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}
