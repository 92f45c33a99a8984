//! `uverbs capture`: records frames of a port in pcapng files, with the device's timestamps.

mod files;
mod rule;
mod stop;
mod utc;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;
use uverbs::ethernet::recording::Snapped;
use uverbs::ethernet::{Clock, FrameError, RxBuilder, RxQueue, Timed};
use uverbs::{Context, ErrorKind, Flow};

use crate::args::Capture;
use crate::device::{Chosen, DeviceReport, choose_network};
use crate::failure::{Failure, Outcome};
use crate::output::{print, print_json};
use files::Files;
pub(crate) use rule::Rule;
pub(crate) use stop::Stop;
use utc::{Ptp, ToUtc};

/// Frames recorded between two checks of clock and signals.
const TURN: u32 = 256;
/// Polls of an empty queue before sleeping.
const SPINS: u32 = 1000;
/// The longest sleep, since a signal does not end it.
const SLEEP: Duration = Duration::from_millis(50);

/// Runs the command.
pub(crate) fn run(arguments: &Capture) -> Outcome {
    // Before the device starts threads, because they inherit the blocked signals.
    let stop = Stop::new()?;
    let chosen = choose_network(&arguments.choice)?;
    let builder = chosen.context.alloc_pd()?.create_rx_queue(arguments.depth);
    let builder = builder.port(chosen.port).frame_bytes(arguments.frame_bytes);
    let builder = if arguments.rule.is_counted() { builder.count_matches() } else { builder };
    if arguments.real_time {
        return capture(arguments, &chosen, builder.real_time(), Ptp, stop);
    }
    let utc = uverbs::ethernet::UtcClock::new(&chosen.context)?;
    capture(arguments, &chosen, builder, (utc, Instant::now()), stop)
}

fn capture<C: Timed>(
    arguments: &Capture,
    chosen: &Chosen,
    builder: RxBuilder<C>,
    clock: impl ToUtc<C>,
    stop: Stop,
) -> Outcome {
    let mut rx = builder.build()?;
    // Before the file is created, so that a refused capture leaves no file.
    let _rule: Flow = arguments.rule.steer(&mut rx)?;
    let _member = arguments.join.map(|address| arguments.rule.join(address)).transpose()?;
    let files = Files::create(arguments, chosen.context.device().name())?;
    let mut session = Session::new(arguments, clock, files, stop);
    if !arguments.json {
        print(format_args!("recording {} of {}", arguments.rule, chosen.device_line()))?;
    }
    let ended = session.run(&mut rx);
    // The frames recorded so far are reported even if the disk is full.
    let report = session.report(chosen, &rx);
    let closed = session.files.close(report.received, report.dropped());
    report.print(arguments.json)?;
    ended.and(closed)
}

/// A capture in progress.
struct Session<'a, U> {
    arguments: &'a Capture,
    clock: U,
    files: Files,
    stop: Stop,
    began: Instant,
    frames: u64,
    bytes: u64,
}

impl<'a, U> Session<'a, U> {
    fn new(arguments: &'a Capture, clock: U, files: Files, stop: Stop) -> Self {
        Self { arguments, clock, files, stop, began: Instant::now(), frames: 0, bytes: 0 }
    }

    fn run<C: Timed>(&mut self, rx: &mut RxQueue<C>) -> Outcome
    where
        U: ToUtc<C>,
    {
        while !self.is_over()? {
            self.clock.refresh();
            if self.turn(rx)? == 0 {
                self.files.flush()?;
                match rx.wait(SPINS, Some(self.patience())) {
                    Err(error) if error.kind() != ErrorKind::Interrupted => {
                        return Err(error.into());
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn is_over(&self) -> Outcome<bool> {
        let full = self.arguments.count.is_some_and(|count| self.frames >= count);
        Ok(full || self.left().is_some_and(|left| left.is_zero()) || self.stop.is_requested()?)
    }

    /// The time until the requested end.
    fn left(&self) -> Option<Duration> {
        let length = Duration::from_secs_f64(self.arguments.seconds?);
        Some(length.saturating_sub(self.began.elapsed()))
    }

    fn patience(&self) -> Duration {
        self.left().map_or(SLEEP, |left| left.min(SLEEP))
    }

    /// Records the frames that have arrived; returns how many.
    fn turn<C: Timed>(&mut self, rx: &mut RxQueue<C>) -> Outcome<u32>
    where
        U: ToUtc<C>,
    {
        let snap = self.arguments.snap.map_or(usize::MAX, |bytes| bytes as usize);
        let left = self.arguments.count.map_or(u64::MAX, |count| count - self.frames);
        let most = left.min(TURN.into()) as u32;
        let mut batch = rx.batch();
        for turn in 0..most {
            let frame = match batch.poll() {
                Ok(frame) => frame,
                Err(FrameError::Empty) => return Ok(turn),
                Err(error) => return Err(uverbs::Error::from(error).into()),
            };
            let (time, bytes) = (self.clock.nanoseconds(frame.timestamp()), frame.bytes());
            let start = bytes.get(..snap).unwrap_or(bytes);
            self.files.write(time, Snapped { start, length: bytes.len() as u32 })?;
            self.frames += 1;
            self.bytes += bytes.len() as u64;
        }
        Ok(most)
    }

    fn report<C: Clock>(&self, chosen: &Chosen, rx: &RxQueue<C>) -> Report {
        let counters = rx.counters();
        let seconds = self.began.elapsed().as_secs_f64();
        Report {
            device: chosen.report(),
            rule: self.arguments.rule.to_string(),
            files: self.files.names(),
            frames: self.frames,
            bytes: self.bytes,
            seconds,
            received: counters.frames,
            // Frames after the last requested one do not count as lost.
            lost: rx.lost().ok(),
            too_long: counters.too_long,
            exhausted: counters.exhausted,
            lowest: counters.lowest,
        }
    }
}

/// Counts of recorded and lost frames.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    device: DeviceReport,
    rule: String,
    files: Vec<PathBuf>,
    frames: u64,
    bytes: u64,
    seconds: f64,
    #[serde(skip)]
    received: u64,
    /// Frames that matched the rule but for which the queue had no receive; `None` if the device
    /// does not count them.
    lost: Option<u64>,
    /// Frames longer than a buffer.
    too_long: u64,
    /// How often the queue may have been without a receive.
    exhausted: u64,
    /// A lower bound of the receives that the queue had at all times.
    lowest: u32,
}

impl Report {
    fn dropped(&self) -> u64 {
        self.lost.unwrap_or(0) + self.too_long
    }

    fn print(&self, json: bool) -> Outcome {
        if json { print_json(self) } else { print(self.text()) }
    }

    fn text(&self) -> String {
        let lost = match (self.lost, self.exhausted) {
            (Some(lost), _) => format!("{lost} lost"),
            (None, 0) => "none lost".to_owned(),
            (None, times) => format!("some lost (the queue may have been empty {times} times)"),
        };
        format!(
            "{} frames, {} bytes in {:.3} s, {lost}, {} too long, {} receives left at least",
            self.frames, self.bytes, self.seconds, self.too_long, self.lowest
        )
    }
}

/// Fails unless the port is an Ethernet port that has queues of frames.
pub(crate) fn require_ethernet(context: &Context, port: u8) -> Outcome {
    let link = context.query_port(port)?.link_layer();
    match link {
        uverbs::LinkLayer::Ethernet => Ok(()),
        other => {
            Err(Failure::failed(format!("frames are for Ethernet ports, and this is {other}")))
        }
    }
}
