//! A deterministic test of a feed handler: a recording is replayed on the software device.
//!
//! `cargo run --features soft --example replay [FILE]`. FILE is a pcap or pcapng recording, for
//! instance of `uverbs capture`. Without FILE the example generates a recording.
//!
//! The frames arrive as they would in a bad network: some are lost, duplicated, late, damaged or
//! too long, and sometimes more arrive at once than the queue has receives. A seed determines all
//! of this: `UVERBS_REPLAY_SEED=7` repeats the run of seed 7 exactly.

use std::error::Error;
use std::fs::File;
use std::io::BufReader;
use std::net::Ipv4Addr;

use uverbs::ethernet::recording::{Recorder, Recording};
use uverbs::ethernet::{FrameError, RealTime, RxQueue};
use uverbs::flow::UdpMulticast;
use uverbs::soft::SoftDevice;
use uverbs::soft::replay::{Disturbances, Replay, seeds};
use uverbs::{Context, Device, Flow};

/// The multicast group and port of the feed.
pub(crate) const LINE: UdpMulticast = UdpMulticast::new(Ipv4Addr::new(239, 1, 2, 3), 14310);
/// The number of receives of the handler's queue.
pub(crate) const DEPTH: u32 = 64;
/// The bytes of each of its buffers.
pub(crate) const BUFFER: usize = 2048;
/// The bytes of the Ethernet, IPv4 and UDP headers.
const HEADERS: usize = 14 + 20 + 8;

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1);
    let recording = match file {
        Some(path) => {
            let file = File::open(&path).map_err(|error| format!("{path}: {error}"))?;
            let recording = Recording::new(BufReader::new(file)).and_then(read);
            recording.map_err(|error| format!("{path}: {error}"))?
        }
        None => read(Recording::new(&record(1000)?[..])?)?,
    };
    for seed in seeds(5) {
        let plan = Disturbances { flood: 20_000, flood_frames: 100, ..Disturbances::usual(seed) };
        let replay = Replay::new(recording.clone(), &plan);
        let device = device()?;
        let mut handler = Handler::new(&Device::from_soft(device.clone()).open()?)?;
        replay.run(&device, |_| handler.poll())?;
        println!("seed {seed}: {}", handler.report()?);
    }
    Ok(())
}

/// A device whose PTP clock has the time of the recording.
pub(crate) fn device() -> std::io::Result<SoftDevice> {
    SoftDevice::builder("soft0").without_wire().real_time_clock_from(0).build()
}

/// The times and bytes of the frames that were recorded in full.
pub(crate) fn read<R: std::io::Read>(
    recording: Recording<R>,
) -> uverbs::Result<Vec<(u64, Vec<u8>)>> {
    let whole = |frame: &uverbs::Result<uverbs::ethernet::recording::Recorded>| {
        frame.as_ref().map_or(true, |frame| frame.is_whole())
    };
    recording.filter(whole).map(|frame| frame.map(|frame| (frame.time, frame.bytes))).collect()
}

/// A recording of `quotes` quotes, ten microseconds apart.
pub(crate) fn record(quotes: u64) -> uverbs::Result<Vec<u8>> {
    let mut file = Vec::new();
    let mut recorder = Recorder::new(&mut file, "feed")?;
    for number in 0..quotes {
        recorder.write(1_700_000_000_000_000_000 + 10_000 * number, &quote(number))?;
    }
    Ok(file)
}

/// A frame with the number of a quote.
fn quote(number: u64) -> Vec<u8> {
    let mut frame = [&LINE.mac()[..], &[2, 0, 0, 0, 0, 1, 8, 0]].concat();
    frame.extend_from_slice(&[0x45, 0, 0, 60, 0, 0, 0x40, 0, 16, 17, 0, 0, 10, 0, 0, 1]);
    frame.extend_from_slice(&LINE.group.octets());
    for word in [14310, LINE.port, 40, 0] {
        frame.extend_from_slice(&word.to_be_bytes());
    }
    frame.extend_from_slice(&number.to_be_bytes());
    frame.resize(HEADERS + 32, 0);
    uverbs::ethernet::fill_checksums(&mut frame);
    frame
}

/// The program under test. It takes each quote once, in order, and counts the missing ones.
pub(crate) struct Handler {
    pub(crate) rx: RxQueue<RealTime>,
    _line: Flow,
    /// The number that the next quote should have.
    next: u64,
    /// The time of arrival and the number of each quote.
    pub(crate) quotes: Vec<(u64, u64)>,
    /// The number of missing quotes.
    pub(crate) gaps: u64,
    /// The number of quotes that arrived again, or too late.
    pub(crate) old: u64,
    /// The number of frames that are not quotes.
    pub(crate) foreign: u64,
}

impl Handler {
    pub(crate) fn new(context: &Context) -> Result<Self, Box<dyn Error>> {
        let rx = context.alloc_pd()?.create_rx_queue(DEPTH).frame_bytes(BUFFER as u32);
        let mut rx = rx.count_matches().real_time().build()?;
        let line = rx.steer(&LINE)?;
        Ok(Self { rx, _line: line, next: 0, quotes: Vec::new(), gaps: 0, old: 0, foreign: 0 })
    }

    /// Takes all frames that have arrived.
    pub(crate) fn poll(&mut self) -> uverbs::Result<()> {
        loop {
            let frame = match self.rx.poll() {
                Ok(frame) => frame,
                Err(FrameError::Empty) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            if !frame.checksums_ok() {
                frame.reject();
                continue;
            }
            let number = frame.bytes().get(HEADERS..).and_then(|data| data.first_chunk());
            let (number, time) = (number.copied().map(u64::from_be_bytes), frame.timestamp());
            drop(frame);
            match number {
                None => self.foreign += 1,
                Some(number) if number < self.next => self.old += 1,
                Some(number) => self.take(number, time.nanoseconds()),
            }
        }
    }

    fn take(&mut self, number: u64, time: u64) {
        self.gaps += number - self.next;
        self.next = number + 1;
        self.quotes.push((time, number));
    }

    /// A summary of the run.
    pub(crate) fn report(&self) -> uverbs::Result<String> {
        let counters = self.rx.counters();
        Ok(format!(
            "{} quotes, {} missing, {} old, {} rejected, {} too long, {} lost by the queue",
            self.quotes.len(),
            self.gaps,
            self.old,
            counters.rejected,
            counters.too_long,
            self.rx.lost()?,
        ))
    }
}
