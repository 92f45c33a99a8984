//! The heat map of the grid: a row per operation and form, a square per payload.

use std::fmt::Write;

use super::Square;

const LEFT: f64 = 210.0;
const SIDE: f64 = 24.0;
const HIGH: f64 = 17.0;
const TOP: f64 = 64.0;

/// Colours of squares, each with the upper bound of its ratios of libmlx5's instructions to this
/// library's.
const SCALE: [(f64, &str); 7] = [
    (1.0, "#d7301f"),
    (1.5, "#fc8d59"),
    (2.0, "#fdd49e"),
    (2.5, "#e5f5c8"),
    (3.0, "#c2e699"),
    (4.0, "#78c679"),
    (f64::INFINITY, "#31a354"),
];
/// The colour of squares without a count of libmlx5.
const OURS_ONLY: &str = "#e6e6e6";

/// An SVG of all points.
pub(super) fn draw(squares: &[Square<'_>]) -> String {
    let rows = rows(squares);
    let columns = rows.iter().map(|(_, row)| row.len()).max().unwrap_or(0);
    let (width, height) =
        (LEFT + SIDE * columns as f64 + 12.0, TOP + HIGH * rows.len() as f64 + 12.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"10\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"12\" y=\"20\" font-size=\"14\">Instructions per request; the colour is how many \
         times as many libmlx5 takes</text>\n"
    );
    legend(&mut svg);
    for (i, (label, row)) in rows.iter().enumerate() {
        let y = TOP + HIGH * i as f64;
        // Writing to a String cannot fail.
        let _ = writeln!(svg, "<text x=\"12\" y=\"{:.0}\">{label}</text>", y + 12.0);
        row.iter().enumerate().for_each(|(i, square)| cell(&mut svg, i, y, square));
    }
    svg + "</svg>\n"
}

/// Points that differ only in their last number, in one row.
fn rows<'s>(squares: &'s [Square<'s>]) -> Vec<(&'s str, Vec<&'s Square<'s>>)> {
    let mut rows: Vec<(&str, Vec<&Square<'_>>)> = Vec::new();
    for square in squares {
        let label = match square.case.rsplit_once(' ') {
            Some((label, number)) if number.parse::<u32>().is_ok() => label,
            _ => square.case,
        };
        match rows.iter_mut().find(|(known, _)| *known == label) {
            Some((_, row)) => row.push(square),
            None => rows.push((label, vec![square])),
        }
    }
    rows
}

fn legend(svg: &mut String) {
    let mut low = 0.0;
    for (i, (below, colour)) in SCALE.iter().enumerate() {
        let text =
            if below.is_finite() { format!("{low}–{below}") } else { format!("{low} –") };
        entry(svg, i, colour, &text);
        low = *below;
    }
    entry(svg, SCALE.len(), OURS_ONLY, "not compared");
}

fn entry(svg: &mut String, i: usize, colour: &str, text: &str) {
    let x = 12.0 + 70.0 * i as f64;
    let _ = writeln!(
        svg,
        "<rect x=\"{x}\" y=\"32\" width=\"14\" height=\"14\" fill=\"{colour}\"/>\
         <text x=\"{}\" y=\"43\">{text}</text>",
        x + 18.0
    );
}

fn cell(svg: &mut String, column: usize, y: f64, square: &Square<'_>) {
    let ours = square.ours;
    let ratio = square.libmlx5.map(|theirs| theirs / ours);
    let colour = ratio.and_then(|ratio| SCALE.iter().find(|(below, _)| ratio < *below));
    let colour = colour.map_or(OURS_ONLY, |(_, colour)| *colour);
    let x = LEFT + SIDE * column as f64;
    let theirs = square.libmlx5.map_or(String::new(), |count| format!(", libmlx5 {count:.0}"));
    let _ = writeln!(
        svg,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" fill=\"{colour}\">\
         <title>{}: {ours:.0}{theirs}</title></rect>\
         <text x=\"{}\" y=\"{}\" font-size=\"9\" text-anchor=\"middle\">{ours:.0}</text>",
        SIDE - 1.0,
        HIGH - 1.0,
        square.case,
        x + SIDE / 2.0,
        y + 12.0
    );
}
