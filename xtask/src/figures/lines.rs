//! Tables about the grid: how linear the counts are, and where libmlx5's are close.

use std::collections::BTreeMap;

/// The data whose amount varies along a line.
#[derive(Clone, Copy)]
enum Data {
    Sges,
    /// 16 bytes.
    Inline,
}

/// The limit for the points of a row: `base` for the first SGE or 16 bytes, and `slope` for each
/// further one.
struct Line {
    row: &'static str,
    data: Data,
    base: f64,
    slope: f64,
}

const fn line(row: &'static str, data: Data, base: f64, slope: f64) -> Line {
    Line { row, data, base, slope }
}

const LINES: &[Line] = &[
    line("alone send sge", Data::Sges, 50.0, 8.0),
    line("alone ethernet sge", Data::Sges, 50.0, 8.0),
    line("alone write const", Data::Inline, 52.0, 5.0),
    line("alone ethernet const", Data::Inline, 52.0, 5.0),
    line("alone write run", Data::Inline, 68.0, 5.0),
    line("batch16 send sge", Data::Sges, 36.0, 7.0),
    line("batch16 ethernet sge", Data::Sges, 36.0, 7.0),
    line("batch16 write const", Data::Inline, 38.0, 5.0),
    line("batch16 ethernet const", Data::Inline, 38.0, 5.0),
    line("batch16 write run", Data::Inline, 38.0, 5.0),
];

/// Largest allowed ratio between neighbours.
const STEP: f64 = 1.2;
/// Largest distance between neighbours, in bytes or SGEs.
const APART: u32 = 4;
/// The desired ratio of libmlx5's instructions to this library's.
const TIMES: f64 = 3.0;

impl Line {
    fn at(&self, size: u32) -> f64 {
        let further = match self.data {
            Data::Sges => size.saturating_sub(1),
            Data::Inline => size.saturating_sub(16).div_ceil(16),
        };
        self.base + self.slope * f64::from(further)
    }

    fn name(&self) -> String {
        let each = match self.data {
            Data::Sges => "SGE",
            Data::Inline => "16 bytes",
        };
        format!("{} + {} per further {each}", self.base, self.slope)
    }
}

/// The points of each row: their sizes and counts.
fn rows(counts: &BTreeMap<String, f64>) -> BTreeMap<&str, Vec<(u32, f64)>> {
    let mut rows = BTreeMap::<_, Vec<_>>::new();
    for (case, count) in counts {
        if let Some((row, size)) = case.rsplit_once(' ') {
            if let Ok(size) = size.parse() {
                rows.entry(row).or_default().push((size, *count));
            }
        }
    }
    rows.values_mut().for_each(|row| row.sort_by_key(|(size, _)| *size));
    rows
}

/// A table of the points that are above their row's line.
pub(super) fn above(ours: &BTreeMap<String, f64>) -> String {
    let rows = rows(ours);
    let mut table =
        "| row | line | points above it | farthest above |\n|---|---|---|---|\n".to_owned();
    for line in LINES {
        let points = rows.get(line.row).map_or(&[][..], Vec::as_slice);
        let over = points.iter().filter(|(size, count)| *count > line.at(*size)).count();
        let more = |point: &&(u32, f64)| point.1 - line.at(point.0);
        let farthest = points.iter().max_by(|a, b| more(a).total_cmp(&more(b)));
        let farthest = farthest.filter(|_| over != 0).map_or("—".to_owned(), |point| {
            format!("{}: {:.0}, by {:.0}", point.0, point.1, more(&point))
        });
        let (row, name) = (line.row, line.name());
        table += &format!("| {row} | {name} | {over} of {} | {farthest} |\n", points.len());
    }
    table
}

/// A table of neighbouring points of which one takes over a fifth more than the other.
pub(super) fn steps(ours: &BTreeMap<String, f64>) -> String {
    let mut table = "| row | from … to: instructions |\n|---|---|\n".to_owned();
    for (row, points) in rows(ours) {
        let is_step = |pair: &&[(u32, f64)]| {
            let (low, high) = (pair[0].1.min(pair[1].1), pair[0].1.max(pair[1].1));
            high > STEP * low && pair[1].0 - pair[0].0 <= APART
        };
        let steps: Vec<_> = points
            .windows(2)
            .filter(is_step)
            .map(|pair| {
                format!("{} … {}: {:.0} … {:.0}", pair[0].0, pair[1].0, pair[0].1, pair[1].1)
            })
            .collect();
        if !steps.is_empty() {
            table += &format!("| {row} | {} |\n", steps.join("; "));
        }
    }
    table
}

/// A table of the points for which libmlx5 takes less than three times as many instructions.
pub(super) fn near(ours: &BTreeMap<String, f64>, libmlx5: &BTreeMap<String, f64>) -> String {
    let ratios: BTreeMap<String, f64> = libmlx5
        .iter()
        .filter_map(|(case, theirs)| Some((case.clone(), theirs / ours.get(case)?)))
        .collect();
    let mut groups = rows(&ratios);
    for (case, ratio) in &ratios {
        let is_sized = case.rsplit_once(' ').is_some_and(|(_, size)| size.parse::<u32>().is_ok());
        if !is_sized {
            groups.insert(case, vec![(0, *ratio)]);
        }
    }
    let mut table =
        "| row | points below 3 times | sizes | least | most |\n|---|---|---|---|---|\n".to_owned();
    for (row, points) in groups {
        let near: Vec<_> = points.iter().filter(|(_, ratio)| *ratio < TIMES).collect();
        let (Some(first), Some(last)) = (near.first(), near.last()) else { continue };
        let sizes = match (first.0, last.0) {
            (0, _) => "—".to_owned(),
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first} … {last}"),
        };
        let least = near.iter().map(|point| point.1).fold(f64::INFINITY, f64::min);
        let most = points.iter().map(|point| point.1).fold(0.0, f64::max);
        table += &format!(
            "| {row} | {} of {} | {sizes} | {least:.1} | {most:.1} |\n",
            near.len(),
            points.len()
        );
    }
    table
}
