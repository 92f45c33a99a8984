//! Tasks around uverbs that cargo itself cannot do. `cargo xtask help` lists them.

#![forbid(unsafe_code)]

mod guest;
mod initramfs;
mod kernel;
mod kernel_test;
mod msrv;
mod options;
mod packages;
mod programs;
mod record;
mod report;
mod script;
mod suite;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks around uverbs")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Runs an unmodified Debian kernel in QEMU on the software ConnectX, and tests in it.
    KernelTest(options::Options),
    /// Checks the libraries with the oldest Rust that they promise to build with, from Debian's
    /// packages.
    Msrv,
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().task {
        Task::KernelTest(options) => kernel_test::run(&options),
        Task::Msrv => msrv::run(),
    }
}
