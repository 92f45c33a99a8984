//! The bar chart of software devices and the kernel's software RoCE. It has a group of bars for
//! each case; their lengths are relative to the largest figure of the group.

use std::fmt::Write;

const LEFT: f64 = 12.0;
const WIDTH: f64 = 560.0;
const BAR: f64 = 13.0;
const GROUP: f64 = 89.0;
const TOP: f64 = 66.0;

/// The measured systems: label and colour.
const WHO: [(&str, &str); 3] =
    [("software devices", "#2a6f97"), ("rxe", "#c9a227"), ("software device to rxe", "#7a9e7e")];

/// A case with its figures in the order of [`WHO`].
pub(crate) struct Group {
    pub(crate) case: String,
    pub(crate) figures: [f64; 4],
}

/// Whether more is better.
fn is_rate(case: &str) -> bool {
    case.contains("per second")
}

/// An SVG of these cases.
pub(crate) fn draw(groups: &[Group]) -> String {
    let (width, height) = (LEFT + WIDTH + 80.0, TOP + GROUP * groups.len() as f64);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"12\" y=\"22\" font-size=\"14\">Software devices over UDP and rdma_rxe, in one guest</text>\n"
    );
    for (n, (name, colour)) in WHO.iter().enumerate() {
        let x = LEFT + 150.0 * n as f64;
        // Writing to a String cannot fail.
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"34\" width=\"11\" height=\"11\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"44\">{name}</text>",
            x + 16.0
        );
    }
    for (n, group) in groups.iter().enumerate() {
        group.draw(&mut svg, TOP + GROUP * n as f64);
    }
    svg + "</svg>\n"
}

impl Group {
    fn draw(&self, svg: &mut String, y: f64) {
        let better = if is_rate(&self.case) { "longer" } else { "shorter" };
        let case = &self.case;
        let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{y}\">{case} ({better} is better)</text>");
        let most = self.figures.into_iter().fold(f64::MIN_POSITIVE, f64::max);
        for (n, (figure, (_, colour))) in self.figures.iter().zip(WHO).enumerate() {
            let (y, width) = (y + 6.0 + (BAR + 2.0) * n as f64, WIDTH * figure / most);
            let _ = writeln!(
                svg,
                "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{}\">{figure}</text>",
                LEFT + width + 4.0,
                y + 11.0
            );
        }
    }
}
