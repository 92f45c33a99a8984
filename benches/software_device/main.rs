//! The software device beside TCP over loopback: latency and messages per second, within a process
//! and between two.
//!
//! ```text
//! cargo bench --features soft --bench software_device [-- OPTION…]
//! ```
//!
//! | option | what it does |
//! |---|---|
//! | none | tables |
//! | `--json` | one object per line |
//! | `--chart` | also draws docs/software-device-*.svg |
//! | `--quick` | few messages, to see whether it runs |
//! | `--only Rate Poll 65536 processes` | only cases whose names have all these words; no chart |
//! | `--busy 8` | round trips per second beside eight busy loops |
//!
//! Runs alternate between the two transports, so that other load of the machine affects both. A
//! message is one request with its own doorbell over RDMA and one `write` over TCP; it has arrived
//! when the other program has it. A program waits by polling, where it yields between two polls, or
//! by sleeping in `read` or on a completion channel.

use std::path::Path;

mod crowd;
#[path = "../../cli/src/perf/lines.rs"]
mod lines;
mod link;
mod partner;
mod rdma;
mod report;
mod scaling;
mod tcp;

use link::{Case, Measure, Transport, Wait};
use partner::{Client, Place};
use report::{Row, Table};
use scaling::Scaling;

/// The extent of the measurements.
#[derive(Clone, Copy)]
struct Effort {
    runs: usize,
    round_trips: u64,
    /// The most messages that measure a rate, and the most bytes in all of them.
    messages: u64,
    bytes: u64,
}

const FULL: Effort = Effort { runs: 7, round_trips: 3000, messages: 100_000, bytes: 64 << 20 };
const QUICK: Effort = Effort { runs: 2, round_trips: 50, messages: 500, bytes: 1 << 20 };

const LATENCY_SIZES: [usize; 4] = [16, 256, 4096, 65_536];
const RATE_SIZES: [usize; 8] = [64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1 << 20];

impl Effort {
    fn messages(&self, size: usize) -> u64 {
        self.messages.min(self.bytes / size as u64)
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if let [flag, number] = &args[..] {
        if flag == "--partner" {
            return partner::run(number.parse().expect("a port"));
        }
        if flag == "--spin" {
            return crowd::spin(number.parse().expect("a process id"));
        }
    }
    let only = args.iter().position(|arg| arg == "--only");
    let (args, words) = args.split_at(only.unwrap_or(args.len()));
    let words = words.get(1..).unwrap_or_default();
    if let [flag, count] = args {
        if flag == "--busy" {
            let count = count.parse().expect("a number of busy loops");
            return crowd::measure(count, |place, wait| {
                is_wanted(place, Measure::RoundTrips, wait, crowd::BYTES, words)
            });
        }
    }
    let has = |wanted: &str| args.iter().any(|arg| arg == wanted);
    let options = ["--json", "--chart", "--quick"];
    if let Some(unknown) = args.iter().find(|arg| !options.contains(&arg.as_str())) {
        eprintln!(
            "unknown argument {unknown}; there are {}, --only WORD…, and --busy COUNT alone",
            options.join(", ")
        );
        std::process::exit(2);
    }
    let effort = if has("--quick") { QUICK } else { FULL };
    let table = Table {
        rows: Place::ALL.iter().flat_map(|place| measure(*place, effort, words)).collect(),
    };
    let print = if has("--json") { Table::print_json } else { Table::print };
    print(&table);
    if !words.is_empty() && words != ["QPs"] {
        return;
    }
    let scaling = scaling::measure(effort.messages);
    let print = if has("--json") { Scaling::print_json } else { Scaling::print };
    print(&scaling);
    if has("--chart") {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
        let write = |name: &str, svg: String| {
            std::fs::write(docs.join(name), svg).expect("docs/ is writable")
        };
        write("software-device-sizes.svg", table.chart());
        write("software-device-qps.svg", scaling.chart());
    }
}

/// Whether a case has all these words.
fn is_wanted(place: Place, measure: Measure, wait: Wait, size: usize, words: &[String]) -> bool {
    let name = format!("{place} {measure:?} {wait:?} {size}");
    let has = |word: &String| name.split([' ', ',']).any(|part| part == word);
    words.iter().all(has)
}

/// Runs the wanted cases with the partner in one place.
fn measure(place: Place, effort: Effort, words: &[String]) -> Vec<Row> {
    let latencies = LATENCY_SIZES.map(|size| (Measure::Latency, size, effort.round_trips));
    let rates = RATE_SIZES.map(|size| (Measure::Rate, size, effort.messages(size)));
    let cases: Vec<_> = [Wait::Poll, Wait::Sleep]
        .into_iter()
        .flat_map(|wait| latencies.into_iter().chain(rates).map(move |case| (wait, case)))
        .filter(|&(wait, (measure, size, _))| is_wanted(place, measure, wait, size, words))
        .collect();
    if cases.is_empty() {
        return Vec::new();
    }
    let mut client = Client::start(place);
    let compared =
        |(wait, (measure, size, count))| compare(&mut client, effort, (measure, wait, size, count));
    cases.into_iter().map(compared).collect()
}

/// Measures both transports in alternation.
fn compare(
    client: &mut Client,
    effort: Effort,
    (measure, wait, size, count): (Measure, Wait, usize, u64),
) -> Row {
    let mut row = Row::new(client.place(), measure, wait, size);
    for _ in 0..effort.runs {
        for transport in [Transport::Tcp, Transport::Rdma] {
            let case = Case { measure, transport, wait, size, count };
            row.note(transport, client.run(case));
        }
    }
    row
}
