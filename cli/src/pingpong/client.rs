//! The client: sends a message, waits for the answer, and measures the time.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use uverbs::op;
use uverbs::qp::PostFlags;

use super::protocol::{Hello, Memory, Ready, Step, Verified, Welcome};
use super::report::{Report, announce};
use super::slots::End;
use super::{Plan, SERVICE};
use crate::args::{Op, Pingpong};
use crate::device::{self, Chosen};
use crate::failure::{Failure, Outcome};
use crate::latency::Latency;
use crate::pair::Server;
use crate::pattern;
use crate::rendezvous::{Code, Rendezvous, SIGN_OF_LIFE};

/// Runs the client of the server at `host`.
pub(super) fn run(arguments: &Pingpong, plan: Plan, host: &str) -> Outcome {
    let chosen = device::choose(&arguments.pair.choice)?.by_address(arguments.pair.cm);
    let code = Code::to_connect(&arguments.pair.code);
    let peer = Rendezvous::connect(host, arguments.port, SERVICE, code.as_ref())?;
    play(arguments, &chosen, peer, plan)?.print(arguments.pair.json)
}

/// Runs the client of a server that it starts itself.
pub(super) fn run_with_server(arguments: &Pingpong, plan: Plan) -> Outcome {
    let chosen = device::choose(&arguments.pair.choice)?.by_address(arguments.pair.cm);
    let mode = if arguments.events { "--events" } else { "--poll" };
    let mut server = Server::start(SERVICE, &chosen, &[mode])?;
    let report = play(arguments, &chosen, server.connect()?, plan)?;
    server.finish()?;
    report.print(arguments.pair.json)
}

/// Exchanges messages with the server at the other end of `peer`.
fn play(arguments: &Pingpong, chosen: &Chosen, peer: Rendezvous, plan: Plan) -> Outcome<Report> {
    let sleeps = arguments.events;
    let mut end = End::new(chosen, peer, plan, sleeps)?;
    if !arguments.pair.json {
        announce(chosen, &end.peer.peer(), plan, sleeps)?;
    }
    let played = run_game(&mut end);
    let (latency, elapsed, server) =
        played.inspect_err(|failure| end.peer.abort(&failure.to_string()))?;
    Ok(Report::new(
        chosen,
        end.peer.peer(),
        plan,
        sleeps,
        end.verified() + server,
        elapsed,
        latency,
    ))
}

/// Connects, exchanges all messages and ends the run. Returns the latencies, the total time, and
/// the number of bytes that the server verified.
fn run_game(end: &mut End) -> Outcome<(Latency, Duration, u64)> {
    let hello = Hello::new(end.plan, end.link.endpoint()?, end.link.remote()?);
    end.peer.send(&hello)?;
    end.link.accept(&mut end.peer)?;
    let welcome: Welcome = end.peer.receive()?;
    end.link.connect(&welcome.endpoint, &mut end.peer)?;
    end.peer.send(&Ready { ready: true })?;
    let began = Instant::now();
    let (latency, counter) = exchange(end, welcome.memory)?;
    let elapsed = began.elapsed();
    end.peer.send(&Step::Done { counter })?;
    let verified: Verified = end.peer.receive()?;
    Ok((latency, elapsed, verified.bytes))
}

/// Exchanges all messages. Returns the latencies and the last value of the server's counter.
fn exchange(end: &mut End, there: Memory) -> Outcome<(Latency, u64)> {
    let mut latency = Latency::new();
    let mut counter = 0;
    // The server's program does not see these operations.
    let is_one_sided = matches!(end.plan.op, Op::Read | Op::Atomic);
    let mut last_sign = Instant::now();
    for message in 0..end.plan.iters {
        let time = match end.plan.op {
            Op::Send | Op::Write | Op::WriteImm => there_and_back(end, message, there),
            Op::Read => read(end, message, there),
            Op::Atomic => atomic(end, message, there, &mut counter),
        }?;
        latency.record(time);
        if is_one_sided && last_sign.elapsed() > SIGN_OF_LIFE {
            end.peer.send(&Step::Playing)?;
            last_sign = Instant::now();
        }
    }
    Ok((latency, counter))
}

fn there_and_back(end: &mut End, message: u64, there: Memory) -> Outcome<Duration> {
    end.prepare(message, pattern::question(message))?;
    let began = Instant::now();
    end.send(message, there)?;
    end.arrival(message)?;
    let time = began.elapsed();
    end.verify(message, pattern::answer(message))?;
    Ok(time)
}

/// Reads one of the server's two messages into the buffer of the previous one.
fn read(end: &mut End, message: u64, there: Memory) -> Outcome<Duration> {
    let range = end.incoming(0);
    let remote = there.at(end.outgoing(message).offset);
    let began = Instant::now();
    end.link.post(op::Read(remote), range, PostFlags::SIGNALED)?;
    end.link.next(&mut end.peer)?;
    let time = began.elapsed();
    end.verify_at(range, message, |scratch| pattern::first_difference(scratch, message % 2))?;
    Ok(time)
}

/// Alternates fetch-and-add and compare-and-swap on the server's counter.
fn atomic(end: &mut End, message: u64, there: Memory, counter: &mut u64) -> Outcome<Duration> {
    let remote = there.at(0);
    let before = *counter;
    let began = Instant::now();
    if message.is_multiple_of(2) {
        let add = message.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        *counter = before.wrapping_add(add);
        end.link.post_atomic(op::FetchAdd { remote, add }, 0)?;
    } else {
        *counter = before.rotate_left(7) ^ message;
        end.link.post_atomic(op::CompareSwap { remote, compare: before, swap: *counter }, 0)?;
    }
    end.link.next(&mut end.peer)?;
    let time = began.elapsed();
    let found = end.link.memory().atomic_u64(0)?.load(Ordering::Acquire);
    if found != before {
        return Err(Failure::failed(format!(
            "atomic {message} found {found:#x} instead of {before:#x}"
        )));
    }
    end.count(8);
    Ok(time)
}
