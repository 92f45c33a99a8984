//! The results, as text and as JSON.

use serde::Serialize;

use super::plan::Plan;
use super::stalls::{Stall, Stalls};
use crate::args::{Measure, Op};
use crate::device::{Chosen, DeviceReport};
use crate::failure::Outcome;
use crate::latency::Latency;
use crate::output::{print, print_json};

/// The reported percentiles, as fractions, with their names.
const SHARES: [(f64, &str); 6] = [
    (0.5, "p50"),
    (0.9, "p90"),
    (0.99, "p99"),
    (0.999, "p99.9"),
    (0.9999, "p99.99"),
    (0.99999, "p99.999"),
];

#[derive(Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    device: DeviceReport,
    peer: String,
    pub(super) measure: Measure,
    pub(super) op: Op,
    qps: u32,
    depth: u32,
    inline: u32,
    mode: &'static str,
    pub(super) results: Vec<Result>,
    advice: Vec<String>,
}

/// The results for one size.
#[derive(Debug, Serialize)]
pub(super) struct Result {
    pub(super) size: u32,
    pub(super) messages: u64,
    #[serde(flatten)]
    pub(super) figures: Figures,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Figures {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) latency_us: Option<Distribution>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bandwidth: Option<Bandwidth>,
}

#[derive(Debug, Serialize)]
pub(super) struct Distribution {
    min: f64,
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    #[serde(rename = "p99.9")]
    p99_9: f64,
    #[serde(rename = "p99.99")]
    p99_99: f64,
    #[serde(rename = "p99.999")]
    p99_999: f64,
    max: f64,
    worst_stalls: Vec<Stall>,
    #[serde(skip)]
    pub(super) latency: Latency,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Bandwidth {
    pub(super) gigabits_per_second: f64,
    mebibytes_per_second: f64,
    messages_per_second: f64,
}

impl Distribution {
    pub(super) fn new(latency: Latency, stalls: &Stalls) -> Self {
        let [p50, p90, p99, p99_9, p99_99, p99_999] = SHARES.map(|(share, _)| latency.at(share));
        let (min, mean, max) = (latency.min(), latency.mean(), latency.max());
        let worst_stalls = stalls.list();
        Self { min, mean, p50, p90, p99, p99_9, p99_99, p99_999, max, worst_stalls, latency }
    }

    /// The shortest time, the percentiles and the longest time, in columns under [`heading`].
    pub(super) fn columns(&self) -> String {
        let shares = SHARES.map(|(share, _)| format!("{:>9.2}", self.latency.at(share)));
        format!("{:>9.2} {} {:>9.2}", self.min, shares.join(" "), self.max)
    }
}

/// The headings of the columns of a [`Distribution`].
pub(super) fn heading() -> String {
    let names = SHARES.map(|(_, name)| format!("{name:>9}"));
    format!("{:>9} {} {:>9}", "min", names.join(" "), "max")
}

impl Figures {
    pub(super) fn latency(latency: Latency, stalls: &Stalls) -> Self {
        Self { latency_us: Some(Distribution::new(latency, stalls)), bandwidth: None }
    }

    pub(super) fn bandwidth(size: u32, messages: u64, seconds: f64) -> Self {
        let bytes = messages as f64 * f64::from(size);
        let bandwidth = Some(Bandwidth {
            gigabits_per_second: bytes * 8.0 / seconds / 1e9,
            mebibytes_per_second: bytes / seconds / f64::from(1 << 20),
            messages_per_second: messages as f64 / seconds,
        });
        Self { latency_us: None, bandwidth }
    }
}

impl Report {
    pub(super) fn new(
        chosen: &Chosen,
        peer: String,
        plan: &Plan,
        results: Vec<Result>,
        advice: Vec<String>,
    ) -> Self {
        Self {
            device: chosen.report(),
            peer,
            measure: plan.measure,
            op: plan.op,
            qps: plan.qps,
            depth: plan.depth,
            inline: plan.inline,
            mode: if plan.events { "events" } else { "poll" },
            results,
            advice,
        }
    }

    pub(super) fn print(&self, json: bool) -> Outcome {
        if json { print_json(self) } else { print(self.text()) }
    }

    fn text(&self) -> String {
        let mut lines = vec![
            format!("device    {}", self.device),
            format!("link      {}", self.device.link),
            format!("peer      {}", self.peer),
        ];
        match self.measure {
            Measure::Lat | Measure::Frames => lines.extend(self.latency_lines()),
            Measure::Bw => lines.extend(self.bandwidth_lines()),
        }
        lines.extend(self.advice.iter().map(|advice| format!("advice    {advice}")));
        lines.join("\n")
    }

    fn latency_lines(&self) -> Vec<String> {
        let what = if matches!(self.op, Op::Read | Op::Atomic) { "whole" } else { "half the" };
        let mut lines = vec![
            format!("latency in microseconds, {what} round trip, {}", self.mode),
            format!("{:>9} {:>10} {}", "bytes", "messages", heading()),
        ];
        for result in &self.results {
            let Some(found) = &result.figures.latency_us else { continue };
            lines.push(format!("{:>9} {:>10} {}", result.size, result.messages, found.columns()));
        }
        lines.extend(
            self.results.last().and_then(|result| worst(result.figures.latency_us.as_ref()?)),
        );
        lines
    }

    fn bandwidth_lines(&self) -> Vec<String> {
        let plural = if self.qps == 1 { "" } else { "s" };
        let mut lines = vec![
            format!("{} queue pair{plural}, {} messages outstanding on each", self.qps, self.depth),
            format!(
                "{:>9} {:>10} {:>10} {:>10} {:>12}",
                "bytes", "messages", "Gbit/s", "MiB/s", "messages/s"
            ),
        ];
        for result in &self.results {
            let Some(found) = result.figures.bandwidth else { continue };
            lines.push(format!(
                "{:>9} {:>10} {:>10.3} {:>10.2} {:>12.0}",
                result.size,
                result.messages,
                found.gigabits_per_second,
                found.mebibytes_per_second,
                found.messages_per_second
            ));
        }
        lines
    }
}

pub(super) fn worst(found: &Distribution) -> Option<String> {
    let stalls: Vec<String> = found.worst_stalls.iter().take(5).map(ToString::to_string).collect();
    (!stalls.is_empty()).then(|| format!("stalls    {}", stalls.join(", ")))
}
