//! The results as a picture: latency over percentiles, one line per size; or bandwidth over sizes.

use std::fmt::Write;

use super::report::Report;
use crate::args::Measure;

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 480.0;
const MARGIN: f64 = 70.0;
const COLOURS: [&str; 6] = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf"];

/// A line through points in the units of the axes.
struct Line {
    label: String,
    points: Vec<(f64, f64)>,
}

/// An axis: its range, what it is called, and where it has marks.
struct Axis {
    label: &'static str,
    low: f64,
    high: f64,
    marks: Vec<(f64, String)>,
}

/// The picture, as SVG.
pub(super) fn of(report: &Report) -> String {
    match report.measure {
        Measure::Lat => latency(report),
        Measure::Bw => bandwidth(report),
    }
}

/// The horizontal axis counts nines: 1 is 90 %, 2 is 99 % …; the vertical one powers of ten of microseconds.
fn latency(report: &Report) -> String {
    let lines: Vec<Line> = report
        .results
        .iter()
        .filter_map(|result| {
            let found = result.figures.latency_us.as_ref()?;
            let point = |tenth: u32| {
                let nines = f64::from(tenth) / 10.0;
                (nines, found.latency.at(1.0 - 10f64.powf(-nines)).max(1e-3).log10())
            };
            Some(Line {
                label: format!("{} bytes", result.size),
                points: (0..=50).map(point).collect(),
            })
        })
        .collect();
    let (low, high) = range(&lines);
    let names = ["0", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %"];
    let across = Axis {
        label: "share of the messages",
        low: 0.0,
        high: 5.0,
        marks: (0u8..).zip(names).map(|(at, name)| (at.into(), name.to_owned())).collect(),
    };
    let (low, high) = (low.floor(), high.ceil().max(low.floor() + 1.0));
    let powers = (low as i32..=high as i32)
        .map(|power| (f64::from(power), format!("{}", 10f64.powi(power))));
    let up = Axis { label: "microseconds", low, high, marks: powers.collect() };
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

fn range(lines: &[Line]) -> (f64, f64) {
    let values = lines.iter().flat_map(|line| &line.points).map(|point| point.1);
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    })
}

impl Axis {
    /// 0 at the low end, 1 at the high one.
    fn share(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }
}

fn draw(lines: &[Line], across: &Axis, up: &Axis) -> String {
    let x = |value: f64| MARGIN + across.share(value) * (WIDTH - 2.0 * MARGIN);
    let y = |value: f64| HEIGHT - MARGIN - up.share(value) * (HEIGHT - 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let (left, right, top, bottom) = (MARGIN, WIDTH - MARGIN, MARGIN, HEIGHT - MARGIN);
    // Writing to a string cannot fail.
    for (value, name) in &across.marks {
        let at = x(*value);
        let _ = writeln!(
            svg,
            "<path d=\"M{at:.1} {top}V{bottom}\" stroke=\"#ddd\"/><text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{name}</text>",
            bottom + 18.0
        );
    }
    for (value, name) in &up.marks {
        let at = y(*value);
        let _ = writeln!(
            svg,
            "<path d=\"M{left} {at:.1}H{right}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
            left - 8.0,
            at + 4.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        WIDTH / 2.0,
        HEIGHT - 20.0,
        across.label
    );
    let _ = writeln!(svg, "<text x=\"{left}\" y=\"{}\">{}</text>", top - 12.0, up.label);
    for (index, line) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let points: Vec<String> = line
            .points
            .iter()
            .map(|point| format!("{:.1},{:.1}", x(point.0), y(point.1)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" points=\"{}\"/>",
            points.join(" ")
        );
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" fill=\"{colour}\">{}</text>",
            left + 12.0,
            top + 16.0 * (index as f64 + 1.0),
            line.label
        );
    }
    svg + "</svg>\n"
}
