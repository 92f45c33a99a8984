//! The measured part of a case: timed, and counted under callgrind.

use std::time::Instant;

use super::valgrind;

/// Operations per timed batch.
pub(crate) const OPERATIONS: usize = 256;

/// Runs the measured part, and returns how many nanoseconds it took.
#[inline(always)]
pub(crate) fn measured(work: impl FnOnce()) -> u64 {
    valgrind::toggle_collect();
    let start = Instant::now();
    work();
    let time = start.elapsed().as_nanos() as u64;
    valgrind::toggle_collect();
    time
}
