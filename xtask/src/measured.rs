//! Tables of times from benchmarks that compare with something else in the same run. The data is in
//! `docs/measured.json`: an object per line, as the benchmarks print it with `--json`.

use std::collections::BTreeSet;
use std::fs;
use std::io::Result;
use std::path::{Path, PathBuf};

use super::{filled, rivals};

/// The benchmarks' lines.
const FILE: &str = "docs/measured.json";

struct Table {
    /// The name in the document's marks, and in the field `table` of the lines.
    name: &'static str,
    document: &'static str,
    /// Heads of the columns, each with its fields; a range has two.
    columns: &'static [(&'static str, &'static [&'static str])],
}

const TABLES: &[Table] = &[
    Table {
        name: "streams",
        document: "docs/streams.md",
        columns: &[
            ("", &["case"]),
            ("streams, µs", &["ours_us"]),
            ("TCP, µs", &["tcp_us"]),
            ("ratio", &["ratio"]),
            ("lowest to highest", &["lowest", "highest"]),
            ("of processor time", &["processor_ratio"]),
        ],
    },
    Table {
        name: "stream-calls",
        document: "docs/streams.md",
        columns: &[
            ("", &["case"]),
            ("streams, one thread", &["rdma_current_thread"]),
            ("TCP, one thread", &["tcp_current_thread"]),
            ("streams, two threads", &["rdma_multi_thread"]),
            ("TCP, two threads", &["tcp_multi_thread"]),
        ],
    },
    Table {
        name: "c-abi",
        document: "docs/drop-in.md",
        columns: &[
            ("call", &["case"]),
            ("here", &["ours"]),
            ("libmlx5", &["libmlx5"]),
            ("ratio", &["ratio"]),
            ("of times", &["time_ratio"]),
            ("of times without locks", &["time_ratio_free"]),
        ],
    },
    Table {
        name: "connect",
        document: "docs/network.md",
        columns: &[
            ("", &["case"]),
            ("uverbs::cm, µs", &["ours_us"]),
            ("librdmacm, µs", &["librdmacm_us"]),
            ("ratio", &["ratio"]),
            ("lowest to highest", &["lowest", "highest"]),
        ],
    },
    Table {
        name: "rxe",
        document: "docs/network.md",
        columns: &[
            ("", &["case"]),
            ("software devices", &["ours"]),
            ("rxe", &["rxe"]),
            ("ratio", &["ratio"]),
            ("lowest to highest", &["lowest", "highest"]),
            ("software device to rxe", &["mixed"]),
            ("UDP alone", &["udp"]),
        ],
    },
    Table {
        name: "rdma-io",
        document: "docs/streams.md",
        columns: &[
            ("", &["case"]),
            ("µs", &["us"]),
            ("over uverbs-stream's", &["ratio"]),
            ("lowest to highest", &["lowest", "highest"]),
            ("of processor time", &["processor_ratio"]),
            ("system calls", &["calls"]),
        ],
    },
];

impl Table {
    fn text(&self, lines: &str) -> String {
        let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let head = row(self.columns.iter().map(|(head, _)| (*head).to_owned()).collect());
        let rule = format!("|{}\n", "---|".repeat(self.columns.len()));
        let own = lines.lines().filter(|line| field(line, "table") == Some(self.name));
        let rows = own.map(|line| {
            let value = |name: &&str| {
                field(line, name).map_or_else(|| format!("no `{name}`"), str::to_owned)
            };
            let cell = |fields: &[&str]| fields.iter().map(value).collect::<Vec<_>>().join(" to ");
            row(self.columns.iter().map(|(_, fields)| cell(fields)).collect())
        });
        head + &rule + &rows.collect::<String>()
    }
}

/// A field's value in a line, without the quotes of a text.
pub(super) fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, value) = line.split_once(&format!("\"{name}\":"))?;
    match value.strip_prefix('"') {
        Some(text) => Some(text.split_once('"')?.0),
        None => Some(&value[..value.find([',', '}'])?]),
    }
}

/// The number `name` of each line of a table, by `TABLE CASE` without backticks.
///
/// # Errors
/// The file cannot be read.
pub(super) fn numbers(root: &Path, table: &str, name: &str) -> Result<Vec<(String, f64)>> {
    let lines = fs::read_to_string(root.join(FILE))?;
    let own = lines.lines().filter(|line| field(line, "table") == Some(table));
    let number = |line| {
        let case = field(line, "case")?.replace('`', "");
        Some((format!("{table} {case}"), field(line, name)?.parse().ok()?))
    };
    Ok(own.filter_map(number).collect())
}

/// The documents with such tables: name, current text and correct text.
///
/// # Errors
/// A file cannot be read.
pub(super) fn files(root: &Path) -> Result<Vec<(&'static str, String, String)>> {
    let lines = fs::read_to_string(root.join(FILE))?;
    let documents: BTreeSet<&str> = TABLES.iter().map(|table| table.document).collect();
    let both = |document| {
        let before = fs::read_to_string(root.join(document))?;
        let tables = TABLES.iter().filter(|table| table.document == document);
        let fill = |text: String, table: &Table| filled(&text, table.name, &table.text(&lines));
        let after = tables.fold(before.clone(), fill);
        Ok((document, before, after))
    };
    let drawn = [(PICTURE, fs::read_to_string(root.join(PICTURE))?, rivals::draw(&groups(root)?))];
    documents.into_iter().map(both).chain(drawn.map(Ok)).collect()
}

/// The picture of the table "rxe".
const PICTURE: &str = "docs/network-rxe.svg";

/// The cases of the picture.
fn groups(root: &Path) -> Result<Vec<rivals::Group>> {
    let ours = numbers(root, "rxe", "ours")?;
    let [rxe, mixed, udp] = ["rxe", "mixed", "udp"].map(|name| numbers(root, "rxe", name));
    let others = rxe?.into_iter().zip(mixed?).zip(udp?);
    let group = |((name, ours), (((_, rxe), (_, mixed)), (_, udp)))| {
        let name: String = name;
        rivals::Group {
            case: name.trim_start_matches("rxe ").to_owned(),
            figures: [ours, rxe, mixed, udp],
        }
    };
    Ok(ours.into_iter().zip(others).map(group).collect())
}

/// Replaces the lines of each table that occurs in these files. Fields that a new line does not
/// have, as in counts without times, keep their values.
///
/// # Errors
/// A file cannot be read or written.
#[allow(dead_code, reason = "the command's alone")]
pub(super) fn take(root: &Path, printed: &[PathBuf]) -> Result<()> {
    let mut kept: Vec<String> =
        fs::read_to_string(root.join(FILE))?.lines().map(str::to_owned).collect();
    for file in printed {
        let text = fs::read_to_string(file)?;
        let new: Vec<&str> = text.lines().filter(|line| field(line, "table").is_some()).collect();
        let completed = completed(&new, &kept);
        let is_old =
            |line: &String| new.iter().any(|new| field(new, "table") == field(line, "table"));
        kept.retain(|line| !is_old(line));
        kept.extend(completed);
    }
    fs::write(root.join(FILE), kept.iter().map(|line| format!("{line}\n")).collect::<String>())
}

/// The new lines, completed by fields of the old lines, or by a dash for a column without a field
/// in either.
fn completed(new: &[&str], old: &[String]) -> Vec<String> {
    let complete = |line: &&str| {
        let of_line = |name: &str| field(line, name);
        let is_same = |old: &&String| {
            ["table", "case"].into_iter().all(|name| field(old, name) == of_line(name))
        };
        let old = old.iter().find(is_same);
        let table = TABLES.iter().find(|table| Some(table.name) == of_line("table"));
        let names = table.into_iter().flat_map(|table| table.columns).flat_map(|(_, names)| *names);
        let missing: String = names
            .filter(|name| of_line(name).is_none())
            .map(|name| match old.and_then(|old| field(old, name)) {
                Some(value) if value.parse::<f64>().is_ok() => format!(",\"{name}\":{value}"),
                value => format!(",\"{name}\":\"{}\"", value.unwrap_or("–")),
            })
            .collect();
        format!("{}{missing}}}", line.trim_end_matches('}'))
    };
    new.iter().map(complete).collect()
}
