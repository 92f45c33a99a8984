//! The device's time.

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`, the same in all processes of the machine.
pub fn now() -> u64 {
    read(ClockId::CLOCK_MONOTONIC)
}

/// Nanoseconds from 1970 to the start of that clock, according to the system's clock now.
pub(crate) fn epoch() -> u64 {
    read(ClockId::CLOCK_REALTIME).saturating_sub(now())
}

fn read(clock: ClockId) -> u64 {
    // These clocks exist on every Linux; the call cannot fail.
    let Ok(time) = clock_gettime(clock) else { return 0 };
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}
