//! Side by side with libmlx5: the same operations on the same kind of memory, in the same process
//! and the same run.
//!
//! ```text
//! cargo bench --features soft --bench vs_libmlx5 [-- OPTION]
//! ```
//!
//! | option | what it prints |
//! |---|---|
//! | none | a table: times, ratios, instructions |
//! | `--json` | one object per case |
//! | `--grid` | one object per point of the grid |
//! | `--scale` | posts and polls over many queue pairs |
//!
//! `cargo xtask figures FILE` reads libmlx5's figures from this output, and draws docs' charts.
//!
//! There is no device: queues and doorbell page are plain memory, and the benchmark writes the
//! completions. Runs alternate between the two sides, so that other load of the machine affects
//! both. Debian's libibverbs and libmlx5 are opened at run time if they are installed, in their
//! fastest configuration (see `libmlx5`). `floor` is the cost of any doorbell here: storing one
//! WQEBB, the doorbell record, two fences, and the BlueFlame copy.

use std::path::{Path, PathBuf};

#[path = "../../provider-mlx5/benches/hot_path/cases.rs"]
mod cases;
#[path = "../../provider-mlx5/benches/hot_path/edges.rs"]
mod edges;
#[path = "../../provider-mlx5/benches/hot_path/fixture.rs"]
mod fixture;
#[allow(dead_code, reason = "for the fixture")]
#[path = "../../provider-mlx5/benches/hot_path/frames.rs"]
mod frames;
#[path = "../../provider-mlx5/benches/hot_path/grid.rs"]
mod grid;
#[path = "../../provider-mlx5/benches/hot_path/grid_more.rs"]
mod grid_more;
mod halted;
#[path = "../../provider-mlx5/benches/hot_path/instructions.rs"]
mod instructions;
mod libmlx5;
#[path = "../../provider-mlx5/benches/hot_path/measure.rs"]
mod measure;
#[path = "../../provider-mlx5/benches/hot_path/polls.rs"]
mod polls;
#[path = "../../provider-mlx5/benches/hot_path/producer.rs"]
mod producer;
mod report;
mod safe;
mod scale;
#[path = "../../provider-mlx5/benches/hot_path/shapes.rs"]
mod shapes;
mod sides;
#[path = "../../provider-mlx5/benches/hot_path/valgrind.rs"]
mod valgrind;

use measure::{OPERATIONS, measured};
use report::Row;
use sides::Sides;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let has = |wanted: &str| args.iter().any(|arg| arg == wanted);
    let options = ["--count", "--json", "--grid", "--count-grid", "--scale", "--count-scale"];
    if let Some(unknown) = args.iter().find(|arg| !options.contains(&arg.as_str())) {
        eprintln!("unknown argument {unknown}; there are --json, --grid and --scale");
        std::process::exit(2);
    }
    if has("--count-grid") {
        sides::count_grid();
    }
    if has("--count-scale") {
        scale::count();
    }
    if has("--scale") {
        scale::table();
    }
    if has("--grid") {
        sides::grid().iter().for_each(|square| println!("{}", square.json()));
        // The device's thread is halted, so nothing waits for it.
        std::process::exit(0);
    }
    let mut sides = Sides::new();
    if has("--count") {
        sides.count();
        // The device's thread is halted, so nothing waits for it.
        std::process::exit(0);
    }
    let counts = instructions::run("--count", &scratch());
    let rows: Vec<Row> = sides.measure(counts.as_ref().unwrap_or(&Default::default()));
    if has("--json") {
        rows.iter().for_each(|row| println!("{}", row.json()));
    } else {
        report::table(&rows);
        sides.missing().iter().for_each(|missing| println!("{missing}"));
        if let Err(missing) = &counts {
            println!("instructions were not counted: {missing}");
        }
    }
    std::process::exit(0);
}

/// A directory for callgrind's output.
pub(crate) fn scratch() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("vs_libmlx5-{}", std::process::id()))
}
