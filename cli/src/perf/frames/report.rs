//! The results, as text, JSON and a chart.

use serde::{Serialize, Serializer};

use super::gaps::Stalled;
use super::rounds::{Burst, Rounds, Settings, Times};
use crate::args::Perf;
use crate::device::{Chosen, DeviceReport};
use crate::failure::Outcome;
use crate::output::{print, print_json};
use crate::perf::client::store_picture;
use crate::perf::plot::of_latencies;
use crate::perf::report::{heading, worst};

#[derive(Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    device: DeviceReport,
    peer: String,
    measure: &'static str,
    /// Bytes of each frame.
    size: u32,
    /// Frames per second of the fixed rate.
    rate: f64,
    #[serde(serialize_with = "by_name")]
    times_us: Vec<Times>,
    /// Frames without an answer: in the round trips, and at the fixed rate.
    unanswered: u64,
    burst: Burst,
    /// The program's own stalls: in a loop without traffic, and in all rounds.
    stalled_without_traffic: Stalled,
    stalled: Stalled,
    /// Why there is no time from arrival to departure.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_turnaround: Option<String>,
    advice: Vec<String>,
}

/// Times as an object, in their order.
fn by_name<S: Serializer>(times: &[Times], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(times.iter().map(|times| (times.name, &times.found)))
}

impl Report {
    pub(super) fn new(
        chosen: &Chosen,
        peer: String,
        size: u32,
        settings: &Settings,
        rounds: Rounds,
    ) -> Self {
        Self {
            device: chosen.report(),
            peer,
            measure: "frames",
            size,
            rate: settings.rate,
            times_us: rounds.times,
            unanswered: rounds.unanswered,
            burst: rounds.burst,
            stalled_without_traffic: rounds.without_traffic,
            stalled: rounds.stalled,
            no_turnaround: rounds.untimed,
            advice: Vec::new(),
        }
    }

    /// Prints the results, and draws the chart if it was requested.
    pub(super) fn finish(mut self, arguments: &Perf, advice: Vec<String>) -> Outcome {
        self.advice = advice;
        if arguments.pair.json {
            print_json(&self)?;
        } else {
            print(self.text())?;
        }
        let Some(path) = &arguments.plot else { return Ok(()) };
        let found =
            self.times_us.iter().map(|times| (times.name.replace('_', " "), times.latency()));
        store_picture(path, &of_latencies(found))
    }

    fn text(&self) -> String {
        let mut lines = vec![
            format!("device    {}", self.device),
            format!("link      {}", self.device.link),
            format!("peer      {}", self.peer),
            format!("microseconds, frames of {} bytes, polling", self.size),
            format!("{:<24} {:>9} {}", "", "samples", heading()),
        ];
        lines.extend(self.times_us.iter().map(|times| self.line(times)));
        lines.push(format!("burst     {}", self.burst));
        lines.push(format!("unanswered {}", self.unanswered));
        lines.extend(self.times_us.iter().take(2).filter_map(|times| {
            Some(format!("{} in {}", worst(&times.found)?, self.label(times.name)))
        }));
        lines.push(format!("program stalled without traffic: {}", self.stalled_without_traffic));
        lines.push(format!("program stalled in all rounds:   {}", self.stalled));
        lines.extend(self.no_turnaround.iter().map(|why| format!("no turnaround: {why}")));
        lines.extend(self.advice.iter().map(|advice| format!("advice    {advice}")));
        lines.join("\n")
    }

    fn line(&self, times: &Times) -> String {
        let label = self.label(times.name);
        format!("{label:<24} {:>9} {}", times.samples, times.found.columns())
    }

    fn label(&self, name: &str) -> String {
        match name {
            "half_round_trip" => "half round trip".to_owned(),
            "fixed_rate" => format!("round trip, {}/s", self.rate),
            "late" => "sent after its time".to_owned(),
            "turnaround" => "arrival to departure".to_owned(),
            "cold" | "warm" => format!("half round trip, {name}"),
            other => other.replace('_', " "),
        }
    }
}
