//! Tasks of the uverbs workspace that cargo itself cannot do. `cargo xtask help` lists them.

#![forbid(unsafe_code)]

mod drop_in;
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
    /// Puts libibverbs.so.1, its other names and pkg-config files into a directory.
    DropIn(drop_in::Options),
    /// Checks that the libraries build with the oldest supported Rust, from Debian's packages.
    Msrv,
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().task {
        Task::KernelTest(options) => uverbs_kernel_guests::run(&options),
        Task::DropIn(options) => drop_in::run(&options),
        Task::Msrv => msrv::run(),
    }
}
