//! The progress of a file: a bar if standard error is a terminal, and one line at the end.

use std::fmt;
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

/// The bar of one file.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    began: Instant,
    bytes: u64,
}

const LAYOUT: &str = "{msg} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";

impl Progress {
    /// Begins the bar for a file of `bytes` bytes.
    pub(super) fn new(name: &str, bytes: u64) -> Self {
        let bar =
            ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr_with_hz(10));
        if let Ok(style) = ProgressStyle::with_template(LAYOUT) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(name.to_owned());
        Self { bar, began: Instant::now(), bytes }
    }

    /// Counts bytes as transferred.
    pub(super) fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Removes the bar and reports size, time and throughput.
    pub(super) fn finish(self) -> Finished {
        self.bar.finish_and_clear();
        Finished { bytes: self.bytes, time: self.began.elapsed() }
    }
}

/// The result of a finished file.
#[derive(Debug)]
pub(super) struct Finished {
    bytes: u64,
    time: Duration,
}

impl Finished {
    /// The report for scripts: `done` is `sent` or `stored`.
    pub(super) fn json(&self, done: &str, path: &str, checksum: &str, peer: &str) -> Value {
        json!({
            done: path,
            "bytes": self.bytes,
            "seconds": self.time.as_secs_f64(),
            "blake3": checksum,
            "peer": peer,
        })
    }
}

impl fmt::Display for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.time.as_secs_f64();
        let rate = HumanBytes((self.bytes as f64 / seconds.max(1e-9)) as u64);
        write!(f, "{} bytes in {seconds:.2} s ({rate}/s)", self.bytes)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_bytes_time_and_rate() {
        let finished = Finished { bytes: 1 << 21, time: Duration::from_secs(2) };
        assert_eq!(finished.to_string(), "2097152 bytes in 2.00 s (1.00 MiB/s)");
    }
}
