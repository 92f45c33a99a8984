//! The answering end.

use std::time::{Duration, Instant};

use uverbs::PollError;
use uverbs::ethernet::blocks;

use super::end::End;
use super::plan::{Counts, Plan, Say};
use crate::device::Chosen;
use crate::failure::{Failure, Outcome};
use crate::gone::require_device;
use crate::latency::Latency;
use crate::rendezvous::{PATIENCE, Rendezvous};

/// Empty polls between two checks of the device and the peer.
const POLLS_PER_LOOK: u32 = 4096;
/// After this much silence at the end of a round, missing frames count as lost.
const QUIET: Duration = Duration::from_secs(1);
/// The most frames whose arrival times are kept until their answers have left.
const REMEMBERED: usize = 1024;
/// The valid bits of the free-running clock (`MLX5_TIMER_MASK`).
const CLOCK: u64 = (1 << 41) - 1;

/// Answers until the peer ends the last round.
pub(in crate::perf) fn serve(chosen: &Chosen, peer: &mut Rendezvous, plan: &Plan) -> Outcome {
    match blocks(plan.bytes as usize) {
        ..=2 => Server::<2>::new(chosen, plan)?.serve(peer),
        3 => Server::<3>::new(chosen, plan)?.serve(peer),
        _ => Server::<4>::new(chosen, plan)?.serve(peer),
    }
}

struct Server<const BLOCKS: usize> {
    end: End<BLOCKS>,
    /// The arrival times of the frames that are being answered, by number.
    arrivals: Box<[u64; REMEMBERED]>,
    turnaround: Latency,
    /// Frequency of the device's clock in kHz, or why it is unknown.
    clock: Result<u64, String>,
}

impl<const BLOCKS: usize> Server<BLOCKS> {
    fn new(chosen: &Chosen, plan: &Plan) -> Outcome<Self> {
        let end = End::new(chosen, plan, [plan.there(), plan.back()])?;
        let clock = chosen.context.clock().map(|clock| clock.khz());
        let clock = clock.map_err(|error| error.to_string());
        let arrivals = Box::new([0; REMEMBERED]);
        Ok(Self { end, arrivals, turnaround: Latency::new(), clock })
    }

    fn serve(&mut self, peer: &mut Rendezvous) -> Outcome {
        peer.send(&Counts::default())?;
        loop {
            let say: Say = peer.receive()?;
            match say {
                Say::Goodbye => return Ok(()),
                Say::Over(_) => return Err(Failure::failed("the peer ends no round")),
                Say::Answer | Say::AnswerTimed | Say::Count => {
                    peer.send(&Counts::default())?;
                    let counts = self.round(say, peer)?;
                    peer.send(&counts)?;
                }
            }
        }
    }

    fn round(&mut self, say: Say, peer: &mut Rendezvous) -> Outcome<Counts> {
        self.turnaround = Latency::new();
        let (mut frames, mut idle) = (0, 0u32);
        let mut last = Instant::now();
        // How many frames the peer has sent, at the end of the round.
        let mut sent = None;
        loop {
            // Before the poll: frames may arrive while this thread waits for a processor.
            let is_quiet = sent.is_some() && last.elapsed() > QUIET;
            if let Some((number, arrived)) = self.end.poll_timed()? {
                frames += 1;
                self.answer(say, number, arrived)?;
                (idle, last) = (0, if sent.is_some() { Instant::now() } else { last });
                continue;
            }
            self.departures()?;
            self.end.context.poll_idle();
            idle = idle.wrapping_add(1);
            let has_left = || say != Say::AnswerTimed || self.turnaround.count() >= frames;
            if is_quiet || sent.is_some_and(|sent| frames >= sent && has_left()) {
                break;
            }
            if sent.is_some() || !idle.is_multiple_of(POLLS_PER_LOOK) {
                continue;
            }
            require_device(&self.end.context)?;
            if peer.has_news()? {
                let Say::Over(count) = peer.receive()? else {
                    return Err(Failure::failed("the peer says something else than the end"));
                };
                (sent, last) = (Some(count), Instant::now());
            }
        }
        let (turnaround, untimed) = (self.turnaround.counts(), self.clock.clone().err());
        Ok(Counts { frames, lost: self.end.rx.lost().ok(), turnaround, untimed })
    }

    #[inline]
    fn answer(&mut self, say: Say, number: u64, arrived: u64) -> Outcome {
        match say {
            Say::Answer => self.end.send(number),
            Say::AnswerTimed => {
                self.arrivals[number as usize % REMEMBERED] = arrived;
                self.end.send_timed(number)
            }
            _ => Ok(()),
        }
    }

    /// Polls the completions of answers.
    fn departures(&mut self) -> Outcome {
        loop {
            match self.end.tx.poll() {
                Ok(sent) => {
                    let Ok(khz) = &self.clock else { continue };
                    let arrived = self.arrivals[sent.id as usize % REMEMBERED];
                    let ticks = sent.timestamp.raw().wrapping_sub(arrived) & CLOCK;
                    let nanoseconds = u128::from(ticks) * 1_000_000 / u128::from((*khz).max(1));
                    let time = Duration::from_nanos(nanoseconds.min(u64::MAX.into()) as u64);
                    self.turnaround.record(time.min(PATIENCE));
                }
                Err(PollError::Empty) => return Ok(()),
                Err(error) => return Err(uverbs::Error::from(error).into()),
            }
        }
    }
}
