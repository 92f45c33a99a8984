//! `uverbs pingpong`: two ends bounce messages over RC queue pairs, verify every byte and measure
//! the round trips.

mod client;
mod ibv;
mod protocol;
mod report;
mod server;
mod slots;

use crate::args::{Op, Peer, Pingpong};
use crate::failure::{Failure, Outcome};

/// The parameters of a run, agreed between the ends.
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
struct Plan {
    op: Op,
    size: u32,
    iters: u64,
}

/// Default bytes of a message; atomics always have eight.
const DEFAULT_SIZE: u32 = 64;
const ATOMIC_SIZE: u32 = 8;
/// Default number of round trips.
const DEFAULT_ITERS: u64 = 10_000;

/// The name of the subcommand.
const SERVICE: &str = "pingpong";

/// Runs the command.
pub(crate) fn run(arguments: &Pingpong) -> Outcome {
    let plan = plan(arguments)?;
    if arguments.pair.code.is_given() && (arguments.peer == Peer::Ibv || !has_other_end(arguments))
    {
        return Err(Failure::usage(
            "--code and --no-code go with HOST or --listen, and not with --peer ibv, which has no code",
        ));
    }
    if arguments.pair.cm && arguments.peer == Peer::Ibv {
        return Err(Failure::usage(
            "--cm does not go with --peer ibv, which tells the other end of its queue pair",
        ));
    }
    match &arguments.host {
        _ if arguments.peer == Peer::Ibv => ibv::run(arguments, plan),
        Some(host) => client::run(arguments, plan, host),
        None => match arguments.pair.listen {
            Some(address) => server::run(arguments, address),
            None => client::run_with_server(arguments, plan),
        },
    }
}

fn has_other_end(arguments: &Pingpong) -> bool {
    arguments.host.is_some() || arguments.pair.listen.is_some()
}

fn plan(arguments: &Pingpong) -> Outcome<Plan> {
    let (usual_size, usual_iters) = match arguments.peer {
        Peer::Uverbs => (DEFAULT_SIZE, DEFAULT_ITERS),
        Peer::Ibv => (ibv::DEFAULT_SIZE, ibv::DEFAULT_ITERS),
    };
    let size = match (arguments.op, arguments.size) {
        (Op::Atomic, None | Some(ATOMIC_SIZE)) => ATOMIC_SIZE,
        (Op::Atomic, Some(_)) => {
            return Err(Failure::usage(
                "atomic operations are 8 bytes, so --size does not go with --op atomic",
            ));
        }
        (_, size) => size.unwrap_or(usual_size),
    };
    Ok(Plan { op: arguments.op, size, iters: arguments.iters.unwrap_or(usual_iters) })
}
