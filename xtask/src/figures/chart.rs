//! The bar chart of instructions per operation: a bar of each library for each case.

use std::fmt::Write;

use super::Square;

const LEFT: f64 = 210.0;
const WIDTH: f64 = 620.0;
const BAR: f64 = 11.0;
const GROUP: f64 = 32.0;
const TOP: f64 = 56.0;

/// An SVG of these cases.
pub(super) fn draw(rows: &[Square<'_>]) -> String {
    let counts = rows.iter().flat_map(|row| [Some(row.ours), row.libmlx5]);
    let most = counts.flatten().fold(1.0, f64::max);
    let height = TOP + GROUP * rows.len() as f64 + 12.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{height}\" viewBox=\"0 0 {0} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"12\" y=\"22\" font-size=\"14\">Instructions per operation (shorter is better)</text>\n\
         <rect x=\"12\" y=\"32\" width=\"11\" height=\"11\" fill=\"#2a6f97\"/><text x=\"28\" y=\"42\">uverbs</text>\n\
         <rect x=\"92\" y=\"32\" width=\"11\" height=\"11\" fill=\"#c9a227\"/><text x=\"108\" y=\"42\">libmlx5, thread domain</text>\n",
        LEFT + WIDTH + 60.0
    );
    for (i, row) in rows.iter().enumerate() {
        let y = TOP + GROUP * i as f64;
        // Writing to a String cannot fail.
        let _ = writeln!(svg, "<text x=\"12\" y=\"{:.0}\">{}</text>", y + 15.0, row.case);
        bar(&mut svg, y, Some(row.ours), most, "#2a6f97");
        bar(&mut svg, y + BAR + 1.0, row.libmlx5, most, "#c9a227");
    }
    svg + "</svg>\n"
}

fn bar(svg: &mut String, y: f64, count: Option<f64>, most: f64, colour: &str) {
    let Some(count) = count else { return };
    let width = WIDTH * count / most;
    let _ = writeln!(
        svg,
        "<rect x=\"{LEFT}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>\
         <text x=\"{:.1}\" y=\"{:.0}\">{count:.0}</text>",
        LEFT + width + 4.0,
        y + 10.0
    );
}
