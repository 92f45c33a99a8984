//! `uverbs replay`: sends the frames of a recording at their times or at a rate.

mod pace;
mod sender;

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use serde::Serialize;
use uverbs::ethernet::recording::{Recorded, Recording};

use crate::args::Replay;
use crate::capture::{Stop, require_ethernet};
use crate::device::{Chosen, DeviceReport, choose_network};
use crate::failure::{Context, Failure, Outcome};
use crate::latency::{Latency, Percentiles};
use crate::output::{print, print_json};
use pace::Pace;
use sender::Sender;

type Frames = Recording<BufReader<File>>;

/// Runs the command.
pub(crate) fn run(arguments: &Replay) -> Outcome {
    let pace = Pace::new(arguments);
    // The file is checked before the device is opened.
    let mut first = Some(open(&arguments.file)?);
    let stop = Stop::new()?;
    let chosen = choose_network(&arguments.choice)?;
    require_ethernet(&chosen.context, chosen.port)?;
    let sender = Sender::new(&chosen, arguments.depth)?;
    let mut session = Session { arguments, pace, sender, stop, sent: 0, skipped: 0, bytes: 0 };
    let mut stopped = false;
    for _ in 0..arguments.loops {
        let frames = match first.take() {
            Some(frames) => frames,
            None => open(&arguments.file)?,
        };
        stopped = session.send_all(frames)?;
        if stopped {
            break;
        }
    }
    session.sender.finish()?;
    session.report(&chosen, stopped).print(arguments.json)
}

fn open(path: &Path) -> Outcome<Frames> {
    let file = File::open(path).context(|| format!("cannot open {}", path.display()))?;
    Recording::new(BufReader::new(file)).map_err(|error| refused(path, &error))
}

/// An invalid recording is an error of the input.
fn refused(path: &Path, error: &uverbs::Error) -> Failure {
    Failure::usage(format!("{}: {error}", path.display()))
}

struct Session<'a> {
    arguments: &'a Replay,
    pace: Pace,
    sender: Sender,
    stop: Stop,
    sent: u64,
    skipped: u64,
    bytes: u64,
}

impl Session<'_> {
    /// Sends a recording; returns whether it was stopped before its end.
    fn send_all(&mut self, frames: Frames) -> Outcome<bool> {
        self.pace.restart();
        // Checked here, too, because a recording may have no frames.
        if self.stop.is_requested()? {
            return Ok(true);
        }
        for frame in frames {
            if self.arguments.count.is_some_and(|count| self.sent >= count) {
                return Ok(true);
            }
            let frame = frame.map_err(|error| refused(&self.arguments.file, &error))?;
            if !self.send(&frame)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Sends a frame when it is due; returns whether the replay continues.
    fn send(&mut self, frame: &Recorded) -> Outcome<bool> {
        if !frame.is_whole() || !self.sender.takes(frame.bytes.len()) {
            self.skipped += 1;
            return self.goes_on(self.skipped);
        }
        let due = self.pace.due(frame.time);
        while !self.pace.is_reached(due) {
            if self.stop.is_requested()? {
                return Ok(false);
            }
            self.sender.idle()?;
        }
        self.sender.send(&frame.bytes)?;
        self.pace.note(due);
        self.sent += 1;
        self.bytes += frame.bytes.len() as u64;
        self.goes_on(self.sent)
    }

    /// Checks for a signal at every 256th frame.
    fn goes_on(&self, frames: u64) -> Outcome<bool> {
        Ok(!frames.is_multiple_of(256) || !self.stop.is_requested()?)
    }

    fn report(&self, chosen: &Chosen, stopped: bool) -> Report {
        Report {
            device: chosen.report(),
            frames: self.sent,
            bytes: self.bytes,
            skipped: self.skipped,
            seconds: self.pace.elapsed().as_secs_f64(),
            late: self.pace.late().map(Latency::percentiles),
            stopped,
        }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    device: DeviceReport,
    frames: u64,
    bytes: u64,
    /// Frames that were not recorded completely, or that are too long or short for the port.
    skipped: u64,
    seconds: f64,
    /// How much later than their times the frames were passed to the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    late: Option<Percentiles>,
    stopped: bool,
}

impl Report {
    fn print(&self, json: bool) -> Outcome {
        if json { print_json(self) } else { print(self.text()) }
    }

    fn text(&self) -> String {
        let rate = self.frames as f64 / self.seconds.max(1e-9);
        let mut lines = vec![
            format!("device    {}", self.device),
            format!(
                "{} frames, {} bytes in {:.6} s, {rate:.0} frames/s, {} skipped",
                self.frames, self.bytes, self.seconds, self.skipped
            ),
        ];
        lines.extend(self.late.as_ref().map(|late| format!("late      {late}")));
        lines.join("\n")
    }
}
