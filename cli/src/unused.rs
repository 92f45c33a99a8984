//! Refuses options that the chosen mode of a subcommand does not use.

use clap::ArgMatches;
use clap::parser::ValueSource;

use crate::args::{Command, Measure, Op, Peer};
use crate::failure::{Failure, Outcome};

/// The options of `perf` that only some measurements use, with those measurements. The listening
/// end uses none of them, because the other end decides.
const PERF: &[(&str, &[Measure])] = &[
    ("op", &[Measure::Lat, Measure::Bw]),
    ("sizes", &[Measure::Lat, Measure::Bw, Measure::Frames]),
    ("iters", &[Measure::Lat, Measure::Bw, Measure::Frames]),
    ("qps", &[Measure::Bw]),
    ("depth", &[Measure::Bw, Measure::Frames]),
    ("inline", &[Measure::Lat, Measure::Bw]),
    ("rate", &[Measure::Frames]),
    ("burst", &[Measure::Frames]),
    ("events", &[Measure::Lat]),
    ("plot", &[Measure::Lat, Measure::Bw, Measure::Frames]),
    ("cm", &[Measure::Lat, Measure::Bw]),
    ("gid_index", &[Measure::Lat, Measure::Bw]),
];

/// Options of `pingpong` that the other end sends to the listening end.
const PINGPONG: &[&str] = &["size", "iters", "op"];

/// Refuses an option on the command line that the command would ignore.
pub(crate) fn check(command: &Command, matches: &ArgMatches) -> Outcome {
    let Some((_, arguments)) = matches.subcommand() else { return Ok(()) };
    let typed = |option: &str| arguments.value_source(option) == Some(ValueSource::CommandLine);
    match command {
        Command::Perf(perf) => match perf.measure {
            Some(measure) => check_measure(measure, perf.op, typed),
            None => check_listener(PERF.iter().map(|(option, _)| *option), typed),
        },
        Command::Pingpong(pingpong)
            if pingpong.pair.listen.is_some() && pingpong.peer == Peer::Uverbs =>
        {
            check_listener(PINGPONG.iter().copied(), typed)
        }
        Command::Capture(_) | Command::Replay(_) if typed("gid_index") => {
            Err(Failure::usage("--gid-index does not go with frames, which have no GIDs"))
        }
        _ => Ok(()),
    }
}

fn check_measure(measure: Measure, op: Op, typed: impl Fn(&str) -> bool) -> Outcome {
    let mut unused = PERF.iter().filter(|(_, measures)| !measures.contains(&measure));
    if let Some((option, measures)) = unused.find(|(option, _)| typed(option)) {
        let names: Vec<&str> = measures.iter().map(|measure| name(*measure)).collect();
        return Err(Failure::usage(format!(
            "{} goes with {} only",
            flag(option),
            names.join(" and ")
        )));
    }
    if matches!(op, Op::Read | Op::Atomic) && typed("inline") {
        return Err(Failure::usage(
            "--inline goes with messages that are sent, not with reads and atomic operations",
        ));
    }
    Ok(())
}

fn check_listener<'a>(
    mut options: impl Iterator<Item = &'a str>,
    typed: impl Fn(&str) -> bool,
) -> Outcome {
    // A listener may be given the GID index of its own port.
    let refused = options.find(|option| *option != "gid_index" && typed(option));
    refused.map_or(Ok(()), |option| {
        let why = "the other end says what is done";
        Err(Failure::usage(format!("{} does not go with --listen: {why}", flag(option))))
    })
}

/// The option as the user types it.
fn flag(option: &str) -> String {
    format!("--{}", option.replace('_', "-"))
}

fn name(measure: Measure) -> &'static str {
    match measure {
        Measure::Lat => "lat",
        Measure::Bw => "bw",
        Measure::Frames => "frames",
    }
}
