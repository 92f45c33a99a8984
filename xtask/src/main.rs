//! Tasks of the uverbs workspace that cargo itself cannot do. `cargo xtask help` lists them.

#![forbid(unsafe_code)]

mod drop_in;
mod figures;
mod msrv;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks of the uverbs workspace")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Runs tests in an unmodified Debian kernel, in QEMU on the software ConnectX.
    KernelTest(uverbs_kernel_guests::Options),
    /// Puts libibverbs.so.1, its other names and pkg-config files into a directory.
    DropIn(drop_in::Options),
    /// Writes the benchmarks' figures into README and docs
    ///
    /// FILES contain JSON from benchmarks: counts of libmlx5, and measured times. It replaces the
    /// same cases in docs/*.json. These print it, the last three with `-- --json`:
    ///   cargo bench --features soft --bench vs_libmlx5, with `-- --json`, `--grid` or `--scale`
    ///   benches/scale/count
    ///   capi/benches/compare, with --instructions to count only
    ///   cargo xtask kernel-test --kernel 6.12 --group rxe, in the file that it names
    ///   cargo bench -p uverbs-stream --features soft,tokio --bench beside_tcp
    ///   cargo bench -p uverbs-stream --features soft,tokio --bench system_calls
    ///   cargo bench -p uverbs-cli --bench connect_rate
    #[command(verbatim_doc_comment)]
    Figures { files: Vec<PathBuf> },
    /// Checks that the libraries build with the oldest supported Rust, from Debian's packages.
    Msrv,
}

/// Prints errors as sentences, even if `RUST_BACKTRACE` is set.
fn main() -> ExitCode {
    match run(Arguments::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> anyhow::Result<()> {
    match task {
        Task::KernelTest(options) => uverbs_kernel_guests::run(&options),
        Task::DropIn(options) => drop_in::run(&options),
        Task::Figures { files } => write_figures(&files),
        Task::Msrv => msrv::run(),
    }
}

fn write_figures(files: &[PathBuf]) -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    for file in files {
        std::fs::File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    }
    figures::take(root, files)?;
    for (name, before, after) in figures::Counts::read(root)?.files(root)? {
        if before != after {
            std::fs::write(root.join(name), after)?;
            println!("wrote {name}");
        }
    }
    Ok(())
}
