//! Tasks of the uverbs workspace that cargo itself cannot do. `cargo xtask help` lists them.

#![forbid(unsafe_code)]

mod msrv;

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
    /// Checks that the libraries build with the oldest supported Rust, from Debian's packages.
    Msrv,
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().task {
        Task::KernelTest(options) => uverbs_kernel_guests::run(&options),
        Task::Msrv => msrv::run(),
    }
}
