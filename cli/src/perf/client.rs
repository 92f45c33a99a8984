//! The end that measures.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Instant;

use nix::unistd::{SysconfVar, sysconf};

use super::SERVICE;
use super::advice::{self, Use};
use super::lane::Lane;
use super::plan::{Hello, Plan, Ready, Step, Welcome};
use super::plot;
use super::report::{Figures, Report, Result};
use super::stalls::Stalls;
use crate::args::{Measure, Op, Perf};
use crate::device::{self, Chosen};
use crate::failure::{Context, Outcome};
use crate::latency::Latency;
use crate::output::remark;
use crate::pair::Server;
use crate::rendezvous::{Code, Rendezvous, SIGN_OF_LIFE};

/// Most requests per doorbell.
const BATCH: u32 = 16;
/// For bandwidth: polls of each lane between two readings of the clock.
const ROUNDS_PER_CLOCK: u32 = 1024;

/// Runs the measuring end, and also the other end unless a host is given.
pub(super) fn run(arguments: &Perf) -> Outcome {
    let plan = Plan::new(arguments)?;
    let chosen = device::choose(&arguments.pair.choice)?.by_address(arguments.pair.cm);
    let report = with_peer(arguments, &chosen, |peer| measure(&chosen, peer, plan, arguments.cpu))?;
    report.print(arguments.pair.json)?;
    arguments.plot.as_ref().map_or(Ok(()), |path| store_picture(path, &plot::of(&report)))
}

/// Measures with the other end: at the given host, or in a process of this machine.
pub(super) fn with_peer<T>(
    arguments: &Perf,
    chosen: &Chosen,
    measure: impl FnOnce(Rendezvous) -> Outcome<T>,
) -> Outcome<T> {
    if let Some(host) = &arguments.host {
        let code = Code::to_connect(&arguments.pair.code);
        return measure(Rendezvous::connect(host, arguments.port, SERVICE, code.as_ref())?);
    }
    let cpu = arguments.cpu.map(|cpu| next_cpu(cpu).to_string());
    let options: Vec<&str> = cpu.iter().flat_map(|cpu| ["--cpu", cpu]).collect();
    let mut server = Server::start(SERVICE, chosen, &options)?;
    let result = measure(server.connect()?)?;
    server.finish()?;
    Ok(result)
}

pub(super) fn store_picture(path: &Path, picture: &str) -> Outcome {
    std::fs::write(path, picture).context(|| format!("cannot write {}", path.display()))?;
    remark(format_args!("drawn into {}", path.display()));
    Ok(())
}

/// The processor of the other end.
fn next_cpu(cpu: usize) -> usize {
    let online = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten().unwrap_or(1);
    (cpu + 1) % online.max(1) as usize
}

struct Client {
    lanes: Vec<Lane>,
    peer: Rendezvous,
    plan: Plan,
}

fn measure(chosen: &Chosen, peer: Rendezvous, plan: Plan, cpu: Option<usize>) -> Outcome<Report> {
    let lanes = (0..plan.qps).map(|_| Lane::new(chosen, &plan)).collect::<Outcome<_>>()?;
    let mut client = Client { lanes, peer, plan };
    let results = client.connect().and_then(|()| client.rounds());
    let results = results.inspect_err(|failure| client.peer.abort(&failure.to_string()))?;
    let advice = advice::for_device(chosen, Use { cpu, sleeps: client.plan.events });
    Ok(Report::new(chosen, client.peer.peer(), &client.plan, results, advice))
}

impl Client {
    fn connect(&mut self) -> Outcome {
        let ends = self.lanes.iter().map(Lane::end).collect::<Outcome<Vec<_>>>()?;
        self.peer.send(&Hello::new(self.plan.clone(), ends))?;
        let Self { lanes, peer, .. } = self;
        lanes.iter_mut().try_for_each(|lane| lane.link.accept(peer))?;
        let welcome: Welcome = peer.receive()?;
        let mut ends = lanes.iter_mut().zip(&welcome.lanes);
        ends.try_for_each(|(lane, end)| lane.connect(end, peer))
    }

    fn rounds(&mut self) -> Outcome<Vec<Result>> {
        let sizes = self.plan.sizes.clone();
        let results = sizes.iter().map(|size| self.round(*size)).collect::<Outcome<_>>()?;
        self.peer.send(&Step::Goodbye)?;
        Ok(results)
    }

    fn round(&mut self, size: u32) -> Outcome<Result> {
        self.peer.send(&Step::Round { size })?;
        for lane in &mut self.lanes {
            lane.set_size(size, &self.plan)?;
        }
        let _: Ready = self.peer.receive()?;
        let messages = self.plan.messages(size);
        let figures = match self.plan.measure {
            Measure::Lat | Measure::Frames => self.latency(messages)?,
            Measure::Bw => self.bandwidth(size, messages)?,
        };
        self.peer.send(&Step::Over)?;
        let _: Ready = self.peer.receive()?;
        Ok(Result { size, messages: messages * self.lanes.len() as u64, figures })
    }

    /// Sends one message after the other. A message's time starts when the previous one ends, so
    /// every stall is measured.
    fn latency(&mut self, messages: u64) -> Outcome<Figures> {
        let Self { lanes, peer, plan } = self;
        let Some(lane) = lanes.first_mut() else { return Ok(Figures::default()) };
        let is_one_sided = matches!(plan.op, Op::Read | Op::Atomic);
        let ways = if is_one_sided { 1 } else { 2 };
        if !is_one_sided {
            lane.receive(2)?;
        }
        let (mut latency, mut stalls) = (Latency::new(), Stalls::default());
        let mut signs = Signs::new(plan);
        let began = Instant::now();
        let mut before = began;
        for number in 0..messages {
            lane.send_one(number, peer)?;
            if is_one_sided {
                lane.next(peer)?;
            } else {
                lane.arrival(number, peer)?;
            }
            let now = Instant::now();
            let time = (now - before) / ways;
            latency.record(time);
            stalls.note(time, now - began);
            signs.give(now, peer)?;
            before = now;
        }
        lane.drain(peer)?;
        Ok(Figures::latency(latency, &stalls))
    }

    fn bandwidth(&mut self, size: u32, messages: u64) -> Outcome<Figures> {
        let Self { lanes, peer, plan } = self;
        let batch = plan.depth.div_ceil(4).min(BATCH);
        let mut flows: Vec<Flow> = lanes.iter().map(|_| Flow::new(messages)).collect();
        let mut signs = Signs::new(plan);
        let began = Instant::now();
        let mut rounds = 0u32;
        while flows.iter().any(|flow| flow.completed < messages) {
            let mut idle = true;
            for (lane, flow) in lanes.iter_mut().zip(&mut flows) {
                idle &= !flow.advance(lane, plan.depth, batch)?;
            }
            rounds = rounds.wrapping_add(1);
            if rounds.is_multiple_of(ROUNDS_PER_CLOCK) {
                signs.give(Instant::now(), peer)?;
            }
            // The first lane's timeout serves all lanes.
            match lanes.first_mut() {
                Some(lane) if idle => lane.link.pause(peer)?,
                Some(lane) => lane.link.made_progress(),
                None => {}
            }
        }
        let seconds = began.elapsed().as_secs_f64().max(1e-9);
        Ok(Figures::bandwidth(size, messages * lanes.len() as u64, seconds))
    }
}

/// Messages that tell the server that the measurement continues, if its process does not see the
/// operations (one-sided ones).
struct Signs {
    next: Option<Instant>,
}

impl Signs {
    fn new(plan: &Plan) -> Self {
        Self { next: plan.is_unseen().then(|| Instant::now() + SIGN_OF_LIFE) }
    }

    /// Sends a sign of life if one is due.
    fn give(&mut self, now: Instant, peer: &mut Rendezvous) -> Outcome {
        if self.next.is_none_or(|next| now < next) {
            return Ok(());
        }
        self.next = Some(now + SIGN_OF_LIFE);
        peer.send(&Step::Going)
    }
}

/// The sends of one lane.
struct Flow {
    unposted: u64,
    outstanding: u32,
    completed: u64,
    /// The sizes of the outstanding batches, each of which generates one completion.
    batches: VecDeque<u32>,
}

impl Flow {
    fn new(messages: u64) -> Self {
        Self { unposted: messages, outstanding: 0, completed: 0, batches: VecDeque::new() }
    }

    /// Polls completions and posts as many requests as fit. Returns false if there was nothing to
    /// do.
    fn advance(&mut self, lane: &mut Lane, depth: u32, batch: u32) -> Outcome<bool> {
        let mut worked = false;
        while lane.poll()?.is_some() {
            let count = self.batches.pop_front().unwrap_or_default();
            self.outstanding -= count;
            self.completed += u64::from(count);
            worked = true;
        }
        while self.unposted > 0 && depth - self.outstanding >= batch {
            let count = self.unposted.min(batch.into()) as u32;
            lane.send(count)?;
            self.batches.push_back(count);
            self.unposted -= u64::from(count);
            self.outstanding += count;
            worked = true;
        }
        Ok(worked)
    }
}
