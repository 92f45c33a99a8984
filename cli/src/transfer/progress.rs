//! How far a file is: a bar on a terminal, nothing elsewhere; and one line when it is done.

use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The bar of one file.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    began: Instant,
    bytes: u64,
}

const LAYOUT: &str = "{msg} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";

impl Progress {
    /// A file of `bytes` bytes begins.
    pub(super) fn new(name: &str, bytes: u64) -> Self {
        let bar =
            ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr_with_hz(10));
        if let Ok(style) = ProgressStyle::with_template(LAYOUT) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(name.to_owned());
        Self { bar, began: Instant::now(), bytes }
    }

    /// So many bytes more have been handled.
    pub(super) fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Takes the bar away and tells size, time and throughput.
    pub(super) fn finish(self) -> String {
        self.bar.finish_and_clear();
        summary(self.bytes, self.began.elapsed())
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn summary(bytes: u64, time: Duration) -> String {
    let rate = bytes as f64 / time.as_secs_f64().max(1e-9);
    format!("{bytes} bytes in {:.2} s ({}/s)", time.as_secs_f64(), HumanBytes(rate as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_bytes_time_and_rate() {
        assert_eq!(
            summary(1 << 21, Duration::from_secs(2)),
            "2097152 bytes in 2.00 s (1.00 MiB/s)"
        );
    }
}
