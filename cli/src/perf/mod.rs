//! `uverbs perf`: latency and bandwidth of any device, between two ends.

mod advice;
mod client;
mod frames;
mod lane;
mod lines;
mod plan;
mod plot;
mod report;
mod server;
mod stalls;

use std::path::Path;

use crate::args::{Measure, Perf};
use crate::failure::{Context, Failure, Outcome};
use crate::output::check_writable;

/// The name of the subcommand.
const SERVICE: &str = "perf";

/// Runs the command.
pub(crate) fn run(arguments: &Perf) -> Outcome {
    if arguments.pair.code.is_given() && arguments.host.is_none() && arguments.pair.listen.is_none()
    {
        return Err(Failure::usage("--code and --no-code go with HOST or --listen"));
    }
    arguments.plot.as_deref().map_or(Ok(()), check_picture)?;
    if let Some(cpu) = arguments.cpu {
        pin(cpu)?;
    }
    match arguments.pair.listen {
        Some(address) => server::run(arguments, address),
        None if arguments.measure == Some(Measure::Frames) => frames::run(arguments),
        None => client::run(arguments),
    }
}

/// Fails if the picture cannot be written, before anything is measured for it.
fn check_picture(path: &Path) -> Outcome {
    check_writable(path).context(|| format!("cannot write {}", path.display()))
}

/// Keeps this process, the software device's threads included, on one processor.
fn pin(cpu: usize) -> Outcome {
    let mut set = nix::sched::CpuSet::new();
    let pinned = set
        .set(cpu)
        .and_then(|()| nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set));
    pinned.map_err(|errno| {
        let cause = match errno {
            nix::Error::EINVAL => {
                "it is not there, or not allowed (taskset -pc $$ lists those that are)"
            }
            errno => errno.desc(),
        };
        Failure::usage(format!("cannot run on processor {cpu}: {cause}"))
    })
}
