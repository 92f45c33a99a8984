//! The client's results, as text and JSON.

use std::time::Duration;

use serde::Serialize;

use super::Plan;
use crate::args::Op;
use crate::device::{Chosen, DeviceReport};
use crate::failure::Outcome;
use crate::latency::{Latency, Percentiles};
use crate::output::{print, print_json};

#[derive(Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    device: DeviceReport,
    gid: String,
    gid_index: u32,
    gid_reason: String,
    peer: String,
    op: Op,
    size: u32,
    iters: u64,
    mode: &'static str,
    bytes_verified: u64,
    seconds: f64,
    round_trips_per_second: f64,
    latency: Percentiles,
}

/// Prints what is known before the messages.
pub(super) fn announce(chosen: &Chosen, peer: &str, plan: Plan, sleeps: bool) -> Outcome {
    let name = serde_json::to_value(plan.op).ok();
    let name = name.as_ref().and_then(|name| name.as_str()).unwrap_or_default();
    let Plan { size, iters, .. } = plan;
    print(lines(&[
        ("device", chosen.device_line()),
        ("link", chosen.link_line()),
        ("peer", peer.to_owned()),
        ("test", format!("{name}, {size} bytes, {iters} round trips, {}", mode(sleeps))),
    ]))
}

fn mode(sleeps: bool) -> &'static str {
    if sleeps { "events" } else { "poll" }
}

fn lines(lines: &[(&str, String)]) -> String {
    let lines: Vec<_> = lines.iter().map(|(name, value)| format!("{name:<9} {value}")).collect();
    lines.join("\n")
}

impl Report {
    #[allow(clippy::too_many_arguments, reason = "one call, at the end of a run")]
    pub(super) fn new(
        chosen: &Chosen,
        peer: String,
        plan: Plan,
        sleeps: bool,
        bytes_verified: u64,
        elapsed: Duration,
        latency: Latency,
    ) -> Self {
        Self {
            device: chosen.report(),
            gid: chosen.gid.entry.gid.to_string(),
            gid_index: chosen.gid.entry.index,
            gid_reason: chosen.gid.reason.to_string(),
            peer,
            op: plan.op,
            size: plan.size,
            iters: plan.iters,
            mode: mode(sleeps),
            bytes_verified,
            seconds: elapsed.as_secs_f64(),
            round_trips_per_second: plan.iters as f64 / elapsed.as_secs_f64().max(1e-9),
            latency: latency.percentiles(),
        }
    }

    pub(super) fn print(&self, json: bool) -> Outcome {
        if json { print_json(self) } else { print(self.text()) }
    }

    /// The results that [`announce`] did not print.
    fn text(&self) -> String {
        lines(&[
            ("verified", format!("{} bytes, all as expected", self.bytes_verified)),
            ("rate", format!("{:.0} round trips/s", self.round_trips_per_second)),
            ("latency", format!("{} (round trip)", self.latency)),
        ])
    }
}
