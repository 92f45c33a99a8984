//! Writes the figures in README and docs from the benchmarks' counts.
//!
//! The counts of this library are in `provider-mlx5/benches/hot_path/{limits,grid}.txt` and, for
//! the safe layer, in `benches/safe_layer/limits.txt`, which the benchmarks write and CI compares.
//! Those of libmlx5 are in `docs/vs-libmlx5.json`, from the output of `cargo bench --features soft
//! --bench vs_libmlx5 -- --json` and `-- --grid`; those of many queue pairs are in
//! `docs/scale.json` (see `scale`).
//!
//! The pictures are drawn from the same counts. Tables are between marks. A figure in a sentence is
//! followed by its case in a comment: `48<!-- send_sge -->`, `33<!-- libmlx5 recv_32 -->`. It may
//! be a difference, also divided by a number: `7<!-- alone receive sges 4 - alone receive sges 2 /
//! 2 -->`. `points` is the number of points of the grid.
//!
//! `measured.rs` writes tables of times, and that of the C ABI, whose cases are `c-abi CALL`.
//! `tests/figures.rs` includes this file to check that the documents are up to date.

#[path = "measured.rs"]
mod measured;

use std::collections::BTreeMap;
use std::fs;
use std::io::Result;
use std::path::Path;

#[path = "figures/chart.rs"]
mod chart;
#[path = "figures/heat.rs"]
mod heat;
#[path = "figures/lines.rs"]
mod lines;
#[path = "figures/rivals.rs"]
mod rivals;
#[path = "figures/scale.rs"]
mod scale;

/// libmlx5's counts, an object per line.
const RIVAL: &str = "docs/vs-libmlx5.json";
const COUNT: &str = "libmlx5_instr";

/// The mark before a table, followed by its name and ` -->`. The mark after it is [`END`].
const BEGIN: &str = "<!-- cargo xtask figures: ";
const END: &str = "<!-- end of figures -->\n";

/// A row: its name, and the cases of two cells: this library's, and libmlx5's counterparts.
type Row = (&'static str, &'static [&'static str], &'static [&'static str]);

const TABLE: &[Row] = &[
    (
        "RDMA write, 16 bytes inline, length constant / known at run time",
        &["write_inline_16_fixed", "write_inline_16"],
        &["write_inline_16"],
    ),
    (
        "RDMA write, 64 bytes inline, length constant / at run time",
        &["write_inline_64_fixed", "write_inline_64"],
        &["write_inline_64"],
    ),
    (
        "RDMA write, one SGE / made for this request",
        &["write_sge", "write_sge_made"],
        &["write_sge"],
    ),
    ("send, one SGE", &["send_sge"], &["send_sge"]),
    (
        "32 writes, one SGE each, one doorbell, per write / made for this request",
        &["write_sge_32", "write_sge_made_32"],
        &["write_sge_32"],
    ),
    (
        "32 writes, 16 bytes inline, length constant / at run time",
        &["write_inline_16_fixed_32", "write_inline_16_32"],
        &["write_inline_16_32"],
    ),
    (
        "a write whose operation is known at run time only, alone / in a list of 16",
        &["list1 write sges 1", "list16 write sges 1"],
        &["list1 write sges 1", "list16 write sges 1"],
    ),
    (
        "UD send, 16 bytes inline, length at run time",
        &["ud_send_inline_16"],
        &["ud_send_inline_16"],
    ),
    (
        "template with new data, length constant / at run time",
        &["template_payload_fixed", "template_payload"],
        &[],
    ),
    ("template with new address", &["template_address"], &[]),
    ("receive, alone / in 32", &["recv", "recv_32"], &["recv", "recv_32"]),
    ("receive on an SRQ, alone", &["srq_recv"], &["srq_recv"]),
    ("poll one", &["poll_send_1"], &["poll_send_1"]),
    (
        "poll, per completion of 16: sends / receives",
        &["poll_send_16", "poll_recv_16"],
        &["poll_send_16", "poll_recv_16"],
    ),
    ("poll, per completion of 16, alternating", &["poll_mixed_16"], &[]),
    (
        "poll, 64 queue pairs in random order, of 16: sends / receives / alternating",
        &["poll_64_sends_16", "poll_64_receives_16", "poll_64_both_16"],
        &["poll_64_sends_16", "poll_64_receives_16", "poll_64_both_16"],
    ),
    ("the same, alternating, one by one", &["poll_64_both_1"], &["poll_64_both_1"]),
    (
        "the same, of 16, with immediate data / with timestamp and GRH flag",
        &["poll_64_immediate_16", "poll_64_timestamp_16"],
        &["poll_64_immediate_16", "poll_64_timestamp_16"],
    ),
    (
        "the same, receives with 32 bytes inside / one in 16 an error / of an SRQ",
        &["poll_64_inline_32_16", "poll_64_error_16", "poll_64_srq_16"],
        &["poll_64_inline_32_16", "poll_64_error_16", "poll_64_srq_16"],
    ),
    (
        "poll, 1,000 queue pairs, of 16: sends / alternating / with immediate data",
        &["poll_1000_sends_16", "poll_1000_both_16", "poll_1000_immediate_16"],
        &["poll_1000_sends_16", "poll_1000_both_16", "poll_1000_immediate_16"],
    ),
    ("poll, nothing there", &["poll_empty"], &["poll_empty"]),
];

/// Rows of points of the grid: their name, the case, and its sizes.
const GRID: &[(&str, &str, &[u32])] = &[
    (
        "write, inline, constant: 28 / 32 / 92 / 96 / 156 / 160 / 220 bytes",
        "write const",
        &[28, 32, 92, 96, 156, 160, 220],
    ),
    ("write, inline, run time: 16 / 64 / 128 / 200 bytes", "write run", &[16, 64, 128, 200]),
    ("send, SGEs: 1 / 2 / 3 / 4 / 8 / 16", "send sge", &[1, 2, 3, 4, 8, 16]),
    (
        "template, 8 bytes set at a constant offset, write of 16 / 64 / 128 / 200 bytes",
        "template write",
        &[16, 64, 128, 200],
    ),
    (
        "the same, Ethernet frame of 34 / 98 / 160 / 220 bytes",
        "template frame",
        &[34, 98, 160, 220],
    ),
    ("receive, 1 / 2 / 4 SGEs", "receive sges", &[1, 2, 4]),
    ("poll, of 1 / 64 / 1,000 queue pairs: sends", "poll sends", &[1, 64, 1000]),
    ("the same, receives", "poll receives", &[1, 64, 1000]),
    ("the same, alternating", "poll both", &[1, 64, 1000]),
    ("the same, with immediate data", "poll immediate", &[1, 64, 1000]),
    ("the same, compressed", "poll compressed", &[1, 64, 1000]),
];

/// The benchmarks' counts, by case.
pub(crate) struct Counts {
    ours: BTreeMap<String, f64>,
    rival: BTreeMap<String, f64>,
    /// Counts of this library and of libibverbs at the C ABI.
    calls: [BTreeMap<String, f64>; 2],
    /// Points of the grid, with neighbours next to each other.
    points: Vec<String>,
    /// Costs of many queue pairs, an object per line.
    scale: String,
}

/// A case or point in a picture, with its instructions per operation.
struct Square<'c> {
    case: &'c str,
    ours: f64,
    libmlx5: Option<f64>,
}

/// The files with figures.
const FILES: &[&str] = &["README.md", "docs/trading.md", "docs/vs-libmlx5.md"];

impl Counts {
    /// Reads the files in the repository.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let read = |name: &str| fs::read_to_string(root.join(name));
        let counted = |name: &str| -> Result<Vec<(String, f64)>> {
            let text = read(name)?;
            let count = |line: &str| {
                let (case, count) = line.trim_end().rsplit_once(' ')?;
                Some((case.trim_end().to_owned(), count.parse().ok()?))
            };
            Ok(text.lines().filter_map(count).collect())
        };
        let hot_path = |name: &str| counted(&format!("provider-mlx5/benches/hot_path/{name}"));
        let (cases, grid) = (hot_path("limits.txt")?, hot_path("grid.txt")?);
        let layers = counted("benches/safe_layer/limits.txt")?;
        let points = grid.iter().map(|(point, _)| point.clone()).collect();
        let ours = cases.into_iter().chain(grid).chain(layers).collect();
        let calls = |name| measured::numbers(root, "c-abi", name);
        let calls = [calls("ours")?, calls("libmlx5")?].map(|side| side.into_iter().collect());
        Ok(Self { ours, rival: counts_of(&read(RIVAL)?), calls, points, scale: read(scale::FILE)? })
    }

    /// Those of these cases that were counted.
    fn squares<'c>(&self, cases: impl Iterator<Item = &'c str>) -> Vec<Square<'c>> {
        let rival = |case: &str| self.rival.get(case).copied();
        let square = |case| {
            let ours = *self.ours.get(case)?;
            Some(Square { case, ours, libmlx5: rival(case) })
        };
        cases.filter_map(square).collect()
    }

    /// The pictures: the table's cases, and the grid.
    fn pictures(&self) -> [(&'static str, String); 2] {
        let mut cases: Vec<&str> = Vec::new();
        for case in TABLE.iter().flat_map(|(_, ours, _)| *ours) {
            if !cases.contains(case) {
                cases.push(case);
            }
        }
        let points = self.points.iter().map(String::as_str);
        [
            ("docs/vs-libmlx5.svg", chart::draw(&self.squares(cases.into_iter()))),
            ("docs/vs-libmlx5-grid.svg", heat::draw(&self.squares(points))),
        ]
    }

    fn rows(&self) -> impl Iterator<Item = [String; 3]> {
        TABLE.iter().map(|(name, ours, rival)| {
            [(*name).to_owned(), cell(&self.ours, ours), cell(&self.rival, rival)]
        })
    }

    fn points(&self) -> impl Iterator<Item = [String; 3]> {
        GRID.iter().map(|(name, case, sizes)| {
            let cell = |form: &str| {
                let text = |size| text_of(&self.ours, &format!("{form} {case} {size}"));
                sizes.iter().map(text).collect::<Vec<_>>().join(" / ")
            };
            [(*name).to_owned(), cell("alone"), cell("batch16")]
        })
    }

    /// The rows of the safe layer: alone and in a batch, raw and safe.
    fn layers(&self) -> impl Iterator<Item = [String; 3]> {
        ["post", "template", "receive", "SRQ receive", "ring", "poll", "life"].into_iter().map(
            |case| {
                let cell = |layer: &str| {
                    let text = |form| text_of(&self.ours, &format!("{layer} {case} {form}"));
                    format!("{} / {}", text("alone"), text("batch16"))
                };
                [format!("{case}, alone / in a batch of 16"), cell("raw"), cell("safe")]
            },
        )
    }

    /// The files with figures: name, current text and correct text.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn files(&self, root: &Path) -> Result<Vec<(&'static str, String, String)>> {
        let tables = [
            ("table", rows_below("| operation | ours | libmlx5 |\n", self.rows())),
            ("grid", rows_below("| case | alone | in a batch of 16 |\n", self.points())),
            ("safe", rows_below("| operation | raw | safe |\n", self.layers())),
            ("lines", lines::above(&self.ours)),
            ("steps", lines::steps(&self.ours)),
            ("near", lines::near(&self.ours, &self.rival)),
            ("scale", scale::posts(&self.scale)),
            ("lives", scale::lives(&self.scale)),
        ];
        let both = |name: &&'static str| {
            let before = fs::read_to_string(root.join(name))?;
            let fill = |text: String, (name, table): &(&str, String)| filled(&text, name, table);
            let after = tables.iter().fold(before.clone(), fill);
            Ok((*name, before, self.claimed(&after)))
        };
        let drawn = |(name, after): (&'static str, String)| {
            Ok((name, fs::read_to_string(root.join(name))?, after))
        };
        let counted = FILES.iter().map(both).chain(self.pictures().into_iter().map(drawn));
        let counted = counted.collect::<Result<Vec<_>>>()?;
        let measured = measured::files(root)?.into_iter();
        let measured = measured.map(|(name, before, after)| (name, before, self.claimed(&after)));
        Ok(counted.into_iter().chain(measured).collect())
    }

    /// The text with correct figures in its sentences.
    fn claimed(&self, text: &str) -> String {
        let mut parts = text.split("<!-- ");
        let mut new = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let without = new.trim_end_matches(|c: char| c.is_ascii_digit()).len();
            if let Some((cases, _)) = part.split_once(" -->").filter(|_| without < new.len()) {
                new.truncate(without);
                new.push_str(&self.figure(cases));
            }
            new.push_str("<!-- ");
            new.push_str(part);
        }
        new
    }

    /// The figure for a case, `A - B` or `A - B / NUMBER`.
    fn figure(&self, cases: &str) -> String {
        let (cases, share) = cases.rsplit_once(" / ").unwrap_or((cases, "1"));
        let count = |case: &str| match case.strip_prefix("libmlx5 ") {
            Some(case) => self.rival.get(case).or(self.calls[1].get(case)).copied(),
            None if case == "points" => Some(self.points.len() as f64),
            None => self.ours.get(case).or(self.calls[0].get(case)).copied(),
        };
        let (first, less) = cases.split_once(" - ").map_or((cases, None), |(a, b)| (a, Some(b)));
        let less = less.map_or(Some(0.0), count);
        match (count(first), less, share.parse::<f64>()) {
            (Some(count), Some(less), Ok(share)) => format!("{:.0}", (count - less) / share),
            _ => format!("no `{cases}`"),
        }
    }
}

fn text_of(counts: &BTreeMap<String, f64>, case: &str) -> String {
    counts.get(case).map_or_else(|| format!("no `{case}`"), |count| format!("{count:.0}"))
}

fn cell(counts: &BTreeMap<String, f64>, cases: &[&str]) -> String {
    let texts: Vec<_> = cases.iter().map(|case| text_of(counts, case)).collect();
    if texts.is_empty() { "—".to_owned() } else { texts.join(" / ") }
}

/// A table with this head.
fn rows_below(head: &str, rows: impl Iterator<Item = [String; 3]>) -> String {
    let rows: String = rows.map(|cells| format!("| {} |\n", cells.join(" | "))).collect();
    format!("{head}|---|---|---|\n{rows}")
}

/// The text with this table between the marks with its name, if there are any.
fn filled(text: &str, name: &str, table: &str) -> String {
    let begin = format!("{BEGIN}{name} -->\n");
    let Some((before, rest)) = text.split_once(&begin) else { return text.to_owned() };
    let (_, after) = rest.split_once(END).expect("the mark of a table's end");
    format!("{before}{begin}{table}{END}{after}")
}

/// A number in an object; `None` for `null` as well.
fn field(line: &str, name: &str) -> Option<f64> {
    measured::field(line, name)?.parse().ok()
}

/// The lines whose case begins with `case`, and the rest of that case's name.
fn lines_of<'a>(text: &'a str, case: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let rest = move |line| measured::field(line, "case")?.strip_prefix(case);
    text.lines().filter_map(move |line| Some((rest(line)?, line)))
}

/// libmlx5's counts in the benchmark's output: an object per line, `null` for a missing count.
fn counts_of(text: &str) -> BTreeMap<String, f64> {
    let count = |line| Some((measured::field(line, "case")?.to_owned(), field(line, COUNT)?));
    text.lines().filter_map(count).collect()
}

/// Reads the benchmarks' output in these files, and stores libmlx5's counts of this library's
/// cases, the costs of many queue pairs, and measured times.
///
/// # Errors
/// A file cannot be read or written.
#[allow(dead_code, reason = "the command's alone")]
pub(crate) fn take(root: &Path, printed: &[std::path::PathBuf]) -> Result<()> {
    measured::take(root, printed)?;
    let Counts { ours, rival: mut counts, mut scale, .. } = Counts::read(root)?;
    for file in printed {
        let text = fs::read_to_string(file)?;
        counts.extend(counts_of(&text));
        scale = scale::merged(&scale, &text);
    }
    let named: Vec<_> = TABLE.iter().flat_map(|(_, _, rival)| *rival).copied().collect();
    counts.retain(|case, _| ours.contains_key(case) || named.contains(&case.as_str()));
    let line = |(case, count): (&String, &f64)| {
        format!("{{\"case\":\"{case}\",\"{COUNT}\":{count:.2}}}\n")
    };
    fs::write(root.join(RIVAL), counts.iter().map(line).collect::<String>())?;
    fs::write(root.join(scale::FILE), scale)
}
