//! Line charts with two axes, as SVG.

use std::fmt::Write;

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 480.0;
const MARGIN: f64 = 70.0;
const COLOURS: [&str; 6] = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf"];

/// A line through points in the units of the axes.
pub(crate) struct Line {
    pub(crate) label: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// An axis: its range, its label and its marks.
pub(crate) struct Axis {
    pub(crate) label: &'static str,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) marks: Vec<(f64, String)>,
}

/// The lowest and the highest value of all lines.
pub(crate) fn range(lines: &[Line]) -> (f64, f64) {
    let values = lines.iter().flat_map(|line| &line.points).map(|point| point.1);
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    })
}

/// An axis for values that are logarithms to the base ten, with whole powers at its ends.
pub(crate) fn decades(lines: &[Line]) -> Axis {
    let (low, high) = range(lines);
    let low = low.floor();
    Axis::powers_of_ten(low as i32, high.ceil().max(low + 1.0) as i32)
}

impl Axis {
    /// From one power of ten to another one, a mark at each.
    pub(crate) fn powers_of_ten(low: i32, high: i32) -> Self {
        let mark = |power: i32| (f64::from(power), format!("{}", 10f64.powi(power)));
        let marks = (low..=high).map(mark).collect();
        Self { label: "", low: low.into(), high: high.into(), marks }
    }

    /// 0 at the low end, 1 at the high one.
    fn share(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }
}

/// The picture.
pub(crate) fn draw(lines: &[Line], across: &Axis, up: &Axis) -> String {
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
