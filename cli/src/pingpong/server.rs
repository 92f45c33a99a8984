//! The listening end: answers every message of one client.

use std::net::{IpAddr, SocketAddr};

use serde_json::json;

use super::protocol::{Hello, Memory, Ready, Step, Verified, Welcome};
use super::slots::End;
use super::{Plan, SERVICE};
use crate::args::{Op, Pingpong};
use crate::device::Chosen;
use crate::failure::{Context, Failure, Outcome};
use crate::output::{print, print_json};
use crate::pair::ListenOptions;
use crate::pattern;
use crate::rendezvous::Rendezvous;

/// Runs the listening end.
pub(super) fn run(arguments: &Pingpong, address: IpAddr) -> Outcome {
    let address = SocketAddr::new(address, arguments.port);
    let beginning = ListenOptions { service: SERVICE, address, options: &arguments.pair };
    let (chosen, listener) = beginning.listen(|chosen| {
        format!("device    {}\nlink      {}", chosen.device_line(), chosen.link_line())
    })?;
    let peer = listener.accept()?;
    let client = peer.peer();
    let bytes = serve(&chosen, peer, arguments)?;
    if arguments.pair.json {
        print_json(&json!({ "client": client, "bytes_verified": bytes }))
    } else {
        print(format_args!("verified  {bytes} bytes from {client}"))
    }
}

fn serve(chosen: &Chosen, mut peer: Rendezvous, arguments: &Pingpong) -> Outcome<u64> {
    let hello: Hello = peer.receive()?;
    let plan = hello.checked()?;
    let mut end = End::new(chosen, peer, plan, arguments.events)?;
    let played = play(&mut end, &hello, arguments.pair.json);
    if let Err(failure) = &played {
        end.peer.abort(&failure.to_string());
    }
    played.map(|()| end.verified())
}

fn play(end: &mut End, hello: &Hello, json: bool) -> Outcome {
    end.link.connect(&hello.endpoint, &mut end.peer)?;
    let is_exposed = matches!(end.plan.op, Op::Read);
    if is_exposed {
        (0..2).try_for_each(|message| end.prepare(message, message))?;
    }
    let welcome = Welcome { endpoint: end.link.endpoint()?, memory: end.link.remote()?.into() };
    end.peer.send(&welcome)?;
    let _: Ready = end.peer.receive()?;
    if !json {
        print(format_args!("peer      {}", end.peer.peer()))?;
    }
    if matches!(end.plan.op, Op::Send | Op::Write | Op::WriteImm) {
        answer(end, end.plan, hello.memory)?;
    }
    // The device itself answers RDMA READs and atomics.
    let counter = loop {
        match end.peer.receive()? {
            Step::Playing => {}
            Step::Done { counter } => break counter,
        }
    };
    if end.plan.op == Op::Atomic {
        verify_counter(end, counter)?;
    }
    end.peer.send(&Verified { bytes: end.verified() })
}

fn answer(end: &mut End, plan: Plan, there: Memory) -> Outcome {
    for message in 0..plan.iters {
        end.prepare(message, pattern::answer(message))?;
        end.arrival(message)?;
        end.send(message, there)?;
        end.verify(message, pattern::question(message))?;
    }
    Ok(())
}

fn verify_counter(end: &mut End, expected: u64) -> Outcome {
    let counter = end.link.memory().atomic_u64(0).context(|| "no counter".into())?;
    let found = counter.load(std::sync::atomic::Ordering::Acquire);
    if found != expected {
        return Err(Failure::failed(format!(
            "the counter is {found:#x} after all atomics instead of {expected:#x}"
        )));
    }
    end.count(8);
    Ok(())
}
