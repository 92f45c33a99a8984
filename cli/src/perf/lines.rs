//! Line charts with two axes, as SVG.

use std::fmt::{self, Write};

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
    /// From one power of ten to another, with a mark at each.
    pub(crate) fn powers_of_ten(low: i32, high: i32) -> Self {
        let mark = |power: i32| (f64::from(power), format!("{}", 10f64.powi(power)));
        let marks = (low..=high).map(mark).collect();
        Self { label: "", low: low.into(), high: high.into(), marks }
    }

    /// The position of a value: 0 at the low end, 1 at the high end.
    fn share(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }
}

const LEFT: f64 = MARGIN;
const RIGHT: f64 = WIDTH - MARGIN;
const TOP: f64 = MARGIN;
const BOTTOM: f64 = HEIGHT - MARGIN;

/// The chart, as SVG.
pub(crate) fn draw(lines: &[Line], across: &Axis, up: &Axis) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    // Writing to a string cannot fail.
    let _ = grid(&mut svg, across, up);
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        WIDTH / 2.0,
        HEIGHT - 20.0,
        across.label
    );
    let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{}\">{}</text>", TOP - 12.0, up.label);
    for (index, line) in lines.iter().enumerate() {
        let points = line.points.iter();
        let at = points.map(|(x, y)| format!("{:.1},{:.1}", across.to_right(*x), up.to_top(*y)));
        let _ = polyline(&mut svg, index, &at.collect::<Vec<_>>().join(" "), &line.label);
    }
    svg + "</svg>\n"
}

impl Axis {
    /// The horizontal position of a value.
    fn to_right(&self, value: f64) -> f64 {
        LEFT + self.share(value) * (RIGHT - LEFT)
    }

    /// The vertical position of a value.
    fn to_top(&self, value: f64) -> f64 {
        BOTTOM - self.share(value) * (BOTTOM - TOP)
    }
}

/// A grey line and a name for each mark.
fn grid(svg: &mut String, across: &Axis, up: &Axis) -> fmt::Result {
    for (value, name) in &across.marks {
        let (at, below) = (across.to_right(*value), BOTTOM + 18.0);
        writeln!(
            svg,
            "<path d=\"M{at:.1} {TOP}V{BOTTOM}\" stroke=\"#ddd\"/><text x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\">{name}</text>"
        )?;
    }
    for (value, name) in &up.marks {
        let (at, beside) = (up.to_top(*value), LEFT - 8.0);
        writeln!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{RIGHT}\" stroke=\"#ddd\"/><text x=\"{beside}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
            at + 4.0
        )?;
    }
    Ok(())
}

/// Line number `index`, and its label in the legend.
fn polyline(svg: &mut String, index: usize, points: &str, label: &str) -> fmt::Result {
    let colour = COLOURS[index % COLOURS.len()];
    writeln!(
        svg,
        "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" points=\"{points}\"/>"
    )?;
    let (x, y) = (LEFT + 12.0, TOP + 16.0 * (index as f64 + 1.0));
    writeln!(svg, "<text x=\"{x}\" y=\"{y}\" fill=\"{colour}\">{label}</text>")
}
