//! Tables of many queue pairs, from the output of
//! `cargo bench --features soft --bench vs_libmlx5 -- --scale` and `benches/scale/count`.

use super::{field, lines_of};

/// The benchmarks' output, an object per line.
pub(super) const FILE: &str = "docs/scale.json";
/// Prefixes of the cases.
const CASES: [&str; 3] = ["scale ", "create ", "destroy "];

/// With fewer queue pairs, memory grows by whole pages rather than with the number of queue pairs.
const WEIGHED: f64 = 1000.0;

/// The objects of `old`, except for kinds of cases that occur in `new`, which are taken from there.
pub(super) fn merged(old: &str, new: &str) -> String {
    let of = |text: &str, case| {
        lines_of(text, case).map(|(_, line)| line.to_owned() + "\n").collect::<String>()
    };
    let newer = |case| Some(of(new, case)).filter(|lines| !lines.is_empty());
    CASES.map(|case| newer(case).unwrap_or_else(|| of(old, case))).concat()
}

/// The table of posts and polls.
pub(super) fn posts(text: &str) -> String {
    let mut table = "| queue pairs | instructions, ours / libmlx5 | first-level misses | \
                     second-level misses | libmlx5's time over ours | bytes per queue pair |\n\
                     |---|---|---|---|---|---|\n"
        .to_owned();
    for (pairs, line) in lines_of(text, "scale ") {
        let sides = |name: &str, digits| {
            let [ours, libmlx5] = ["ours", "libmlx5"]
                .map(|side| number(field(line, &format!("{side}_{name}")), digits));
            format!("{ours} / {libmlx5}")
        };
        let pairs = pairs.parse().unwrap_or(0.0);
        let time = field(line, "libmlx5_ns").zip(field(line, "ours_ns"));
        let cells = [
            number(Some(pairs), 0),
            sides("instr", 0),
            sides("l1_misses", 1),
            sides("l2_misses", 1),
            number(time.map(|(theirs, ours)| theirs / ours), 1),
            if pairs < WEIGHED { "—".to_owned() } else { sides("bytes", 0) },
        ];
        table += &format!("| {} |\n", cells.join(" | "));
    }
    table
}

/// The table of creation and destruction.
pub(super) fn lives(text: &str) -> String {
    let mut table = "| per queue pair | ours | libibverbs |\n|---|---|---|\n".to_owned();
    for (case, name) in [("create ", "created"), ("destroy ", "destroyed")] {
        for (pairs, line) in lines_of(text, case) {
            let pairs = number(pairs.parse().ok(), 0);
            for (what, value, scale, digits) in [
                ("ioctls", "ioctls", 1.0, 1),
                ("calls that change mappings", "mappings", 1.0, 2),
                ("microseconds", "ns", 1e-3, 0),
                ("bytes", "bytes", 1.0, 0),
            ] {
                let side = |side: &str| field(line, &format!("{side}_{value}"));
                let (Some(ours), Some(theirs)) = (side("ours"), side("libibverbs")) else {
                    continue;
                };
                let [ours, theirs] = [ours, theirs].map(|it| number(Some(scale * it), digits));
                table += &format!("| {pairs} {name}: {what} | {ours} | {theirs} |\n");
            }
        }
    }
    table
}

/// Formats a number, with commas between thousands.
fn number(value: Option<f64>, digits: usize) -> String {
    let Some(value) = value else { return "—".to_owned() };
    let text = format!("{value:.digits$}");
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + fraction
}
