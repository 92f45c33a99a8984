//! Seeds of random runs: their number, and the one that failed.

/// Seeds that each test tries: `RUNS`, or `default`.
pub(crate) fn runs(default: u64) -> u64 {
    std::env::var("RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(default)
}

/// The seed in `SEED`.
pub(crate) fn one() -> Option<u64> {
    std::env::var("SEED").ok().and_then(|seed| seed.parse().ok())
}

/// Calls `run`; prints the seed if that panics.
pub(crate) fn say_if_failed<R>(seed: u64, run: impl FnOnce() -> R) -> R {
    let guard = SaySeed(seed);
    let outcome = run();
    std::mem::forget(guard);
    outcome
}

struct SaySeed(u64);

impl Drop for SaySeed {
    fn drop(&mut self) {
        eprintln!("failed with seed {}", self.0);
    }
}
