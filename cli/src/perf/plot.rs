//! The results as a chart: latency over percentiles, with one line per size, or bandwidth over
//! sizes.

use super::lines::{Axis, Line, decades, draw, range};
use super::report::Report;
use crate::args::Measure;
use crate::latency::Latency;

/// The chart, as SVG.
pub(super) fn of(report: &Report) -> String {
    match report.measure {
        Measure::Lat | Measure::Frames => latency(report),
        Measure::Bw => bandwidth(report),
    }
}

/// The horizontal axis counts nines: 1 is 90 %, 2 is 99 % …; the vertical one shows powers of ten
/// of microseconds.
fn latency(report: &Report) -> String {
    let found = report.results.iter().filter_map(|result| {
        Some((format!("{} bytes", result.size), &result.figures.latency_us.as_ref()?.latency))
    });
    of_latencies(found)
}

/// Latencies over percentiles, one line for each.
pub(super) fn of_latencies<'a>(found: impl Iterator<Item = (String, &'a Latency)>) -> String {
    let line = |(label, latency): (String, &Latency)| {
        let point = |tenth: u32| {
            let nines = f64::from(tenth) / 10.0;
            (nines, latency.at(1.0 - 10f64.powf(-nines)).max(1e-3).log10())
        };
        Line { label, points: (0..=50).map(point).collect() }
    };
    let lines: Vec<Line> = found.map(line).collect();
    let names = ["0", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %"];
    let across = Axis {
        label: "share of the messages",
        low: 0.0,
        high: 5.0,
        marks: (0u8..).zip(names).map(|(at, name)| (at.into(), name.to_owned())).collect(),
    };
    let up = Axis { label: "microseconds", ..decades(&lines) };
    draw(&lines, &across, &up)
}

/// The horizontal axis counts powers of two of bytes.
fn bandwidth(report: &Report) -> String {
    let points = report.results.iter().filter_map(|result| {
        Some((f64::from(result.size).log2(), result.figures.bandwidth?.gigabits_per_second))
    });
    let mut points: Vec<(f64, f64)> = points.collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (low, high) =
        (points.first().map_or(0.0, |point| point.0), points.last().map_or(1.0, |point| point.0));
    let (low, high) = (low.floor(), high.ceil().max(low.floor() + 1.0));
    let lines = [Line { label: "bandwidth".to_owned(), points }];
    let top = range(&lines).1.max(1e-6) * 1.1;
    let marks =
        (low as i32..=high as i32).map(|log| (f64::from(log), format!("2^{log}"))).collect();
    let across = Axis { label: "bytes in a message", low, high, marks };
    let fifths = (0..=5).map(|fifth| f64::from(fifth) * top / 5.0);
    let up = Axis {
        label: "Gbit/s",
        low: 0.0,
        high: top,
        marks: fifths.map(|at| (at, format!("{at:.2}"))).collect(),
    };
    draw(&lines, &across, &up)
}
