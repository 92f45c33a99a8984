//! The end that measures, one round after the other.

use std::time::{Duration, Instant};

use serde::Serialize;
use uverbs::ethernet::blocks;

use super::end::End;
use super::gaps::Gaps;
use super::plan::{Counts, Plan, Say};
use super::report::Report;
use super::rounds::Settings;
use crate::args::Perf;
use crate::device::{self, Chosen};
use crate::failure::{Failure, Outcome};
use crate::gone::require_device;
use crate::perf::advice::{self, Use};
use crate::perf::client::with_peer;
use crate::perf::plan::Hello;
use crate::rendezvous::Rendezvous;

/// Timeout for an answer.
const ANSWER: Duration = Duration::from_millis(500);
/// Most consecutive answers that may be missing.
const MISSING: u64 = 4;

/// Runs the measuring end, and the other end too unless a host is given.
pub(in crate::perf) fn run(arguments: &Perf) -> Outcome {
    let plan = Plan::new(arguments)?;
    let settings = Settings::new(arguments);
    let chosen = device::choose(&arguments.pair.choice)?;
    let report = with_peer(arguments, &chosen, |peer| match blocks(plan.bytes as usize) {
        ..=2 => Client::<2>::measure(&chosen, peer, &plan, &settings),
        3 => Client::<3>::measure(&chosen, peer, &plan, &settings),
        _ => Client::<4>::measure(&chosen, peer, &plan, &settings),
    })?;
    let advice = advice::for_device(&chosen, Use { cpu: arguments.cpu, sleeps: false });
    report.finish(arguments, advice)
}

pub(super) struct Client<'a, const BLOCKS: usize> {
    pub(super) end: End<BLOCKS>,
    pub(super) peer: Rendezvous,
    pub(super) plan: &'a Plan,
    pub(super) gaps: Gaps,
    /// The number of the next frame.
    pub(super) next: u64,
    /// The number of answers that never arrived.
    pub(super) missing: u64,
}

/// The round trip of a frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trip {
    pub(super) time: Duration,
    /// The part of the round trip that this program lost in stalls.
    pub(super) stalled: Duration,
    pub(super) ended: Instant,
}

impl<'a, const BLOCKS: usize> Client<'a, BLOCKS> {
    fn measure(
        chosen: &Chosen,
        peer: Rendezvous,
        plan: &'a Plan,
        settings: &Settings,
    ) -> Outcome<Report> {
        let end = End::new(chosen, plan, [plan.back(), plan.there()])?;
        let mut client = Self { end, peer, plan, gaps: Gaps::new(), next: 0, missing: 0 };
        let rounds = client.begin().and_then(|()| client.rounds(settings));
        let rounds = rounds.inspect_err(|failure| client.peer.abort(&failure.to_string()))?;
        Ok(Report::new(chosen, client.peer.peer(), plan.bytes, settings, rounds))
    }

    fn begin(&mut self) -> Outcome {
        self.peer.send(&Hello::of_frames(self.plan.clone()))?;
        let _: Counts = self.peer.receive()?;
        Ok(())
    }

    /// Announces a round to the other end, runs it, and returns the other end's counts.
    pub(super) fn round<T>(
        &mut self,
        say: Say,
        run: impl FnOnce(&mut Self) -> Outcome<T>,
    ) -> Outcome<(T, Counts)> {
        self.say(say)?;
        let _: Counts = self.peer.receive()?;
        self.gaps.skip();
        let first = self.next;
        let result = run(self)?;
        self.say(Say::Over(self.next - first))?;
        let counts = self.peer.receive()?;
        // Discards answers that arrived late.
        while self.end.poll()?.is_some() {}
        Ok((result, counts))
    }

    pub(super) fn say(&mut self, say: impl Serialize) -> Outcome {
        self.peer.send(&say)
    }

    /// Sends a frame and waits for its answer; `None` if the answer does not arrive.
    #[inline]
    pub(super) fn trip(&mut self) -> Outcome<Option<Trip>> {
        let number = self.next;
        self.next += 1;
        let (began, lost) = (self.gaps.now(), self.gaps.lost());
        self.end.send(number)?;
        loop {
            let answered = self.end.poll()? == Some(number);
            let now = self.gaps.now();
            if answered {
                self.missing = 0;
                let stalled = self.gaps.lost() - lost;
                return Ok(Some(Trip { time: now - began, stalled, ended: now }));
            }
            if now - began > ANSWER {
                return self.none().map(|()| None);
            }
            self.idle();
        }
    }

    /// Handles a missing answer.
    #[cold]
    fn none(&mut self) -> Outcome {
        require_device(&self.end.context)?;
        self.peer.watch()?;
        self.missing += 1;
        if self.missing < MISSING {
            return Ok(());
        }
        let group = self.plan.there().group;
        Err(Failure::failed(format!(
            "no answers come: do frames to the group {group} reach the other end's port, and back? \
             (A switch that snoops IGMP passes a group on to ports that joined it.)"
        )))
    }

    /// To be called after an empty poll.
    #[inline]
    pub(super) fn idle(&mut self) {
        self.end.context.poll_idle();
        if self.end.is_software {
            self.gaps.skip();
        }
    }
}
