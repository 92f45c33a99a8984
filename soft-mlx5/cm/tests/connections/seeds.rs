//! Seeds of random runs: their number, and the one that failed.

/// Seeds that each test tries: `RUNS`, or `default`.
pub(crate) fn runs(default: u64) -> u64 {
    std::env::var("RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(default)
}

/// The seed in `SEED`.
pub(crate) fn single() -> Option<u64> {
    std::env::var("SEED").ok().and_then(|seed| seed.parse().ok())
}

/// Calls `run`; prints the seed if that panics.
pub(crate) fn print_if_panics<R>(seed: u64, run: impl FnOnce() -> R) -> R {
    let _guard = PrintOnPanic(seed);
    run()
}

struct PrintOnPanic(u64);

impl Drop for PrintOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with seed {}", self.0);
        }
    }
}
