//! The rounds of the measuring end.

use std::time::{Duration, Instant};

use super::client::Client;
use super::gaps::{Gaps, Stalled};
use super::plan::Say;
use crate::args::Perf;
use crate::failure::Outcome;
use crate::latency::Latency;
use crate::perf::report::Distribution;
use crate::perf::stalls::Stalls;

/// How long the program measures its own stalls without traffic.
const WITHOUT_TRAFFIC: Duration = Duration::from_millis(100);
/// The pause before a cold send.
const COLD: Duration = Duration::from_millis(1);
/// The most cold and warm sends, and the most steering rules.
const SAMPLES: u64 = 500;
/// The time after which a missing answer is no longer expected.
const QUIET: Duration = Duration::from_millis(100);
/// The number of warm-up round trips, which are not recorded.
const FIRST: u64 = 500;

/// Number of frames in each round, and their rate.
#[derive(Debug)]
pub(super) struct Settings {
    iters: u64,
    pub(super) rate: f64,
    pub(super) burst: u32,
}

impl Settings {
    pub(super) fn new(arguments: &Perf) -> Self {
        Self { iters: arguments.iters, rate: arguments.rate, burst: arguments.burst }
    }

    fn samples(&self) -> u64 {
        self.iters.min(SAMPLES)
    }

    fn bursts(&self) -> u64 {
        self.iters.div_ceil(self.burst.into()).min(1000)
    }
}

/// The results of all rounds.
pub(super) struct Rounds {
    pub(super) times: Vec<Times>,
    pub(super) burst: Burst,
    /// Missing answers: in the round trips, and at the fixed rate.
    pub(super) unanswered: u64,
    pub(super) without_traffic: Stalled,
    pub(super) stalled: Stalled,
    pub(super) untimed: Option<String>,
}

/// Times of one kind.
#[derive(Debug)]
pub(super) struct Times {
    pub(super) name: &'static str,
    pub(super) found: Distribution,
    pub(super) samples: u64,
}

#[derive(Debug, serde::Serialize)]
pub(super) struct Burst {
    frames_per_burst: u32,
    bursts: u64,
    sent: u64,
    arrived: u64,
    /// Frames that did not arrive.
    pub(super) lost: u64,
    /// The lost frames for which the other end's queue had no receive; `None` if it does not count
    /// them.
    without_receive: Option<u64>,
    /// While a burst was sent.
    frames_per_second: f64,
}

impl Times {
    pub(super) fn latency(&self) -> &Latency {
        &self.found.latency
    }
}

impl std::fmt::Display for Burst {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { frames_per_burst, bursts, sent, lost, frames_per_second, .. } = self;
        let receives = match self.without_receive {
            Some(count) => format!(" ({count} for want of a receive)"),
            None => String::new(),
        };
        write!(
            f,
            "{bursts} bursts of {frames_per_burst} frames: {sent} sent, {lost} lost{receives}, \
             {frames_per_second:.0} frames/s within a burst"
        )
    }
}

fn times(name: &'static str, latency: Latency, stalls: &Stalls) -> Times {
    let samples = latency.count();
    Times { name, found: Distribution::new(latency, stalls), samples }
}

impl<const BLOCKS: usize> Client<'_, BLOCKS> {
    pub(super) fn rounds(&mut self, settings: &Settings) -> Outcome<Rounds> {
        let without_traffic = without_traffic();
        let ((round_trip, mut unanswered), _) =
            self.round(Say::Answer, |client| client.round_trips(settings.iters))?;
        let ((at_rate, late, unanswered_at_rate), _) =
            self.round(Say::Answer, |client| client.fixed_rate(settings))?;
        unanswered += unanswered_at_rate;
        let burst = self.bursts(settings)?;
        let (_, counts) =
            self.round(Say::AnswerTimed, |client| client.round_trips(settings.iters))?;
        let turnaround = Latency::of(&counts.turnaround);
        let ((cold, warm), _) =
            self.round(Say::Answer, |client| client.cold_and_warm(settings.samples()))?;
        let (added, removed) = self.rules(settings.samples())?;
        self.say(Say::Goodbye)?;
        let mut all = vec![round_trip, at_rate, late];
        if turnaround.count() > 0 {
            all.push(times("turnaround", turnaround, &Stalls::default()));
        }
        all.extend([cold, warm, added, removed]);
        Ok(Rounds {
            times: all,
            burst,
            unanswered,
            without_traffic,
            stalled: self.gaps.report(),
            untimed: counts.untimed,
        })
    }

    /// Sends one frame after the other. Returns half of each round trip, and the number of missing
    /// answers.
    fn round_trips(&mut self, iters: u64) -> Outcome<(Times, u64)> {
        for _ in 0..FIRST.min(iters) {
            self.trip()?;
        }
        let (mut latency, mut stalls, mut missing) = (Latency::new(), Stalls::default(), 0);
        let began = self.gaps.now();
        for _ in 0..iters {
            let Some(trip) = self.trip()? else {
                missing += 1;
                continue;
            };
            latency.record(trip.time / 2);
            stalls.note_stalled(trip.time / 2, trip.ended - began, trip.stalled / 2);
        }
        Ok((times("half_round_trip", latency, &stalls), missing))
    }

    /// Sends each frame when it is due, even if earlier ones have not been answered. Times count
    /// from when the frame was due, so frames that wait behind a late one are late too.
    fn fixed_rate(&mut self, settings: &Settings) -> Outcome<(Times, Times, u64)> {
        let (mut latency, mut late) = (Latency::new(), Latency::new());
        let mut stalls = Stalls::default();
        let due = |at: u64| Duration::from_secs_f64(at as f64 / settings.rate);
        let (first, frames) = (self.next, settings.iters);
        self.next += frames;
        let began = self.gaps.now();
        let (mut sent, mut answered, mut last) = (0, 0, began);
        // The time that the program had lost at the last answer.
        let mut lost = self.gaps.lost();
        while answered < frames {
            let now = self.gaps.now();
            if sent < frames && now - began >= due(sent) {
                self.end.send(first + sent)?;
                late.record(now - began - due(sent));
                sent += 1;
                last = now;
            }
            match self.end.poll()? {
                Some(number) if (first..first + sent).contains(&number) => {
                    let now = self.gaps.now();
                    let time = (now - began).saturating_sub(due(number - first));
                    latency.record(time);
                    let stalled = (self.gaps.lost() - lost).min(time);
                    stalls.note_stalled(time, now - began, stalled);
                    (answered, last, lost) = (answered + 1, now, self.gaps.lost());
                }
                Some(_) => {}
                None if sent == frames && now - last > QUIET => break,
                None => self.idle(),
            }
        }
        let none = Stalls::default();
        let (rate, late) = (times("fixed_rate", latency, &stalls), times("late", late, &none));
        Ok((rate, late, frames - answered))
    }

    /// Sends bursts as fast as the queue accepts them, with pauses in between.
    fn bursts(&mut self, settings: &Settings) -> Outcome<Burst> {
        let bursts = settings.bursts();
        let (sending, counts) = self.round(Say::Count, |client| {
            let mut sending = Duration::ZERO;
            for _ in 0..bursts {
                let began = Instant::now();
                for _ in 0..settings.burst {
                    client.end.send(client.next)?;
                    client.next += 1;
                }
                sending += began.elapsed();
                client.pause(COLD)?;
            }
            Ok(sending)
        })?;
        let sent = bursts * u64::from(settings.burst);
        Ok(Burst {
            frames_per_burst: settings.burst,
            bursts,
            sent,
            arrived: counts.frames,
            lost: sent.saturating_sub(counts.frames),
            without_receive: counts.lost,
            frames_per_second: sent as f64 / sending.as_secs_f64().max(1e-9),
        })
    }

    /// Measures half round trips after a pause, and after an equally long time in which sends were
    /// executed without their doorbells.
    fn cold_and_warm(&mut self, samples: u64) -> Outcome<(Times, Times)> {
        let [mut cold, mut warm] = [Latency::new(), Latency::new()];
        for _ in 0..samples {
            std::thread::sleep(COLD);
            self.gaps.skip();
            cold.extend(self.trip()?.map(|trip| trip.time / 2));
            let began = Instant::now();
            while began.elapsed() < COLD {
                self.end.warm()?;
                self.end.poll()?;
                self.idle();
            }
            self.gaps.skip();
            warm.extend(self.trip()?.map(|trip| trip.time / 2));
        }
        let none = Stalls::default();
        Ok((times("cold", cold, &none), times("warm", warm, &none)))
    }

    /// Measures how long it takes to add and to remove a steering rule.
    fn rules(&mut self, samples: u64) -> Outcome<(Times, Times)> {
        let [mut added, mut removed] = [Latency::new(), Latency::new()];
        for number in 0..samples {
            let line = self.plan.unused(number as u16);
            let began = Instant::now();
            let rule = self.end.rx.steer(&line)?;
            added.record(began.elapsed());
            let began = Instant::now();
            rule.destroy().map_err(uverbs::Error::from)?;
            removed.record(began.elapsed());
        }
        let none = Stalls::default();
        Ok((times("rule_added", added, &none), times("rule_removed", removed, &none)))
    }

    /// Waits, while a software device makes progress.
    fn pause(&mut self, time: Duration) -> Outcome {
        let began = Instant::now();
        while began.elapsed() < time {
            self.end.poll()?;
            self.idle();
        }
        self.gaps.skip();
        Ok(())
    }
}

/// Measures the program's own stalls while it does nothing else.
fn without_traffic() -> Stalled {
    let mut gaps = Gaps::new();
    let began = gaps.now();
    while gaps.now() - began < WITHOUT_TRAFFIC {}
    gaps.report()
}
