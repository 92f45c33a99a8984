//! The `uverbs` command: shows RDMA devices, measures, transfers files, captures and replays
//! frames, runs programs on the software device, and decodes work queues.
//!
//! Exit status: 0 success; 1 the device, the peer, a file or the contents failed; 2 the command
//! line or the input is invalid.
#![deny(unsafe_code)]

use std::process::ExitCode;

use clap::FromArgMatches;
use clap::error::ErrorKind;

mod args;
mod by_address;
mod capture;
mod device;
mod devices;
mod diagnosis;
mod doctor;
mod failure;
mod gone;
mod info;
mod inspect;
mod latency;
mod link;
mod output;
mod pair;
mod pattern;
mod perf;
mod pingpong;
mod rendezvous;
mod replay;
mod run;
#[cfg(test)]
mod scratch;
mod transfer;
mod unused;

use args::{Cli, Command};
use failure::{Failure, Outcome};

fn main() -> ExitCode {
    let outcome = parse().and_then(|cli| cli.map_or(Ok(()), |cli| run(&cli.command)));
    outcome.map_or_else(
        |failure| {
            if let Some(sentence) = failure.sentence() {
                // Escaped because it may contain file names and a peer's text.
                output::remark(format_args!("uverbs: {}", output::escaped(sentence)));
            }
            ExitCode::from(failure.status())
        },
        |()| ExitCode::SUCCESS,
    )
}

fn run(command: &Command) -> Outcome {
    match command {
        Command::Devices(arguments) => devices::run(arguments),
        Command::Info(arguments) => info::run(arguments),
        Command::Doctor(arguments) => doctor::run(arguments),
        Command::Pingpong(arguments) => pingpong::run(arguments),
        Command::Perf(arguments) => perf::run(arguments),
        Command::Transfer(command) => transfer::run(command),
        Command::Capture(arguments) => capture::run(arguments),
        Command::Replay(arguments) => replay::run(arguments),
        Command::Run(arguments) => run::run(arguments),
        Command::Wqe(command) => inspect::wqe(command),
        Command::Cqe(command) => inspect::cqe(command),
    }
}

/// Parses the command line; `None` if it asked for help or the version, which was printed.
fn parse() -> Outcome<Option<Cli>> {
    match Cli::grammar().try_get_matches().and_then(|matches| {
        let cli = Cli::from_arg_matches(&matches)?;
        Ok((cli, matches))
    }) {
        Ok((cli, matches)) => unused::check(&cli.command, &matches).map(|()| Some(cli)),
        Err(error)
            if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) =>
        {
            output::print(error.to_string().trim_end())?;
            Ok(None)
        }
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Err(Failure::usage("a command is missing (--help lists them)"))
        }
        Err(error) => Err(Failure::usage(first_sentence(&error.to_string()))),
    }
}

/// The first sentence and the suggestion of clap's message, without its usage text.
fn first_sentence(rendered: &str) -> String {
    let paragraph = rendered.split("\n\n").next().unwrap_or(rendered);
    let words: Vec<&str> = paragraph.trim_start_matches("error: ").split_whitespace().collect();
    let tip = rendered.lines().find_map(|line| line.trim_start().strip_prefix("tip: "));
    format!("{} ({})", words.join(" "), tip.unwrap_or("--help shows more"))
}
