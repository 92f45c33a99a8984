//! Replays a recording as a deterministic test of a program that receives frames.
//!
//! [`Replay`] disturbs a recording like a network and a slow program: frames are lost, arrive
//! twice, late, damaged or too long, and arrive in bursts, some of them longer than the program's
//! queue. All of this follows from a seed, so a failing run can be repeated exactly. The frames
//! arrive through [`SoftDevice::receive_frames`], so nothing depends on threads or timing.
//!
//! ```
//! use uverbs_soft::chardev::SoftDevice;
//! use uverbs_soft::replay::{Disturbances, Replay, seeds};
//! # use std::convert::Infallible;
//! let recording: Vec<(u64, Vec<u8>)> = (0..100).map(|i| (1000 * i, vec![i as u8; 60])).collect();
//! for seed in seeds(3) {
//!     let replay = Replay::new(recording.clone(), &Disturbances::usual(seed));
//!     let device = SoftDevice::builder("soft0").without_wire().build()?;
//!     // … the program opens the device and makes its queues …
//!     let mut arrived = 0;
//!     replay.run(&device, |burst| {
//!         // … the program polls until it finds nothing more …
//!         arrived += burst.arrivals.len();
//!         Ok::<(), Infallible>(())
//!     })?;
//!     assert_eq!(arrived as u64, replay.counters().arrivals);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod disturb;

use std::error::Error;
use std::fmt;

use nix::errno::Errno;

use crate::chardev::SoftDevice;
use disturb::Disturber;

/// Environment variable with the only seed that [`seeds`] returns.
pub const SEED_VARIABLE: &str = "UVERBS_REPLAY_SEED";

/// The seeds `0..count`, or only the seed in the environment variable `UVERBS_REPLAY_SEED`, if it
/// is set.
///
/// # Panics
/// If the variable is not a number.
pub fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let asked = std::env::var(SEED_VARIABLE).ok();
    let asked = asked.map(|text| text.parse().expect("UVERBS_REPLAY_SEED is a number"));
    asked.map_or(0..count, |seed| seed..seed + 1)
}

/// How a recording is disturbed. Probabilities are in parts per million and apply to each frame,
/// except `flood`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disturbances {
    /// All random choices follow from it.
    pub seed: u64,
    /// A gap begins: this frame and perhaps more after it are lost.
    pub gap: u32,
    /// Frames of the longest gap.
    pub longest_gap: u32,
    /// The frame arrives once more, up to [`reach`](Self::reach) frames later.
    pub duplicate: u32,
    /// The frame arrives up to [`reach`](Self::reach) frames later.
    pub reorder: u32,
    /// How many frames may arrive before one that is late, and before the second of two copies.
    pub reach: u32,
    /// One bit of the frame is inverted. The device's checksums may or may not detect it.
    pub corrupt: u32,
    /// Zeros are appended, up to [`longest`](Self::longest) bytes in total.
    pub oversize: u32,
    /// Bytes of the longest frame.
    pub longest: u32,
    /// Frames of the longest burst, at least 1. The program runs between bursts.
    pub burst: u32,
    /// Probability that a burst is a flood.
    pub flood: u32,
    /// Frames of a flood. To exhaust the program's queue, it must exceed the number of receives.
    pub flood_frames: u32,
}

impl Disturbances {
    /// No disturbances: one frame per burst.
    pub const fn none() -> Self {
        Self {
            seed: 0,
            gap: 0,
            longest_gap: 1,
            duplicate: 0,
            reorder: 0,
            reach: 1,
            corrupt: 0,
            oversize: 0,
            longest: 9000,
            burst: 1,
            flood: 0,
            flood_frames: 0,
        }
    }

    /// All disturbances at low rates, except floods, which depend on the program's queue.
    pub const fn usual(seed: u64) -> Self {
        Self {
            seed,
            gap: 5_000,
            longest_gap: 20,
            duplicate: 5_000,
            reorder: 5_000,
            reach: 10,
            corrupt: 2_000,
            oversize: 2_000,
            burst: 32,
            ..Self::none()
        }
    }
}

/// What happened to a frame on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// Nothing.
    Intact,
    /// It is the second of two copies.
    Duplicate,
    /// It was delayed; frames recorded after it may have arrived before it.
    Late,
    /// A bit is inverted.
    Corrupt,
    /// Zeros follow it.
    Oversize,
}

/// A frame that arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The device's time, in nanoseconds; never earlier than that of the previous arrival.
    pub at: u64,
    /// Its place in the recording, from 0.
    pub frame: usize,
    /// What happened to it.
    pub change: Change,
    /// From the destination address on, without check sequence.
    pub bytes: Vec<u8>,
}

/// Frames that arrive before the program runs again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Its place, from 0.
    pub index: usize,
    /// At least one.
    pub arrivals: Vec<Arrival>,
}

/// The totals of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayCounters {
    /// Frames of the recording.
    pub recorded: u64,
    /// Frames that arrive, including copies.
    pub arrivals: u64,
    /// Frames lost in gaps.
    pub lost: u64,
    /// Second copies.
    pub duplicates: u64,
    /// Frames that arrive late.
    pub late: u64,
    /// Frames with an inverted bit.
    pub corrupt: u64,
    /// Frames that were made longer.
    pub oversize: u64,
    /// Bursts that are floods.
    pub floods: u64,
}

/// A disturbed recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    seed: u64,
    bursts: Vec<Burst>,
    counters: ReplayCounters,
}

impl Replay {
    /// Disturbs a recording: frames, each with the time of the device at which it arrives.
    pub fn new(
        recording: impl IntoIterator<Item = (u64, Vec<u8>)>,
        disturbances: &Disturbances,
    ) -> Self {
        let mut disturber = Disturber::new(disturbances);
        for (frame, (at, bytes)) in recording.into_iter().enumerate() {
            disturber.pass(Arrival { at, frame, change: Change::Intact, bytes });
        }
        let (bursts, counters) = disturber.finish();
        Self { seed: disturbances.seed, bursts, counters }
    }

    /// The seed of its disturbances.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The bursts, in order.
    pub fn bursts(&self) -> &[Burst] {
        &self.bursts
    }

    /// The totals.
    pub fn counters(&self) -> ReplayCounters {
        self.counters
    }

    /// A number that identifies the replay: FNV-1a over times, bytes and ends of bursts. It is the
    /// same on every machine.
    pub fn digest(&self) -> u64 {
        let mut digest = 0xcbf2_9ce4_8422_2325;
        let mut add = |bytes: &[u8]| {
            for byte in bytes {
                digest = (digest ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
            }
        };
        for burst in &self.bursts {
            add(&(burst.arrivals.len() as u64).to_le_bytes());
            for Arrival { at, bytes, .. } in &burst.arrivals {
                add(&at.to_le_bytes());
                add(&(bytes.len() as u64).to_le_bytes());
                add(bytes);
            }
        }
        digest
    }

    /// Delivers each burst to the device's port, and runs the program after it. If the program
    /// panics, the seed is printed.
    ///
    /// # Errors
    /// The program's error, with seed and burst; `Device` in a child process.
    pub fn run<E>(
        &self,
        device: &SoftDevice,
        mut program: impl FnMut(&Burst) -> Result<(), E>,
    ) -> Result<(), Stopped<E>> {
        for burst in &self.bursts {
            let place = Place { seed: self.seed, burst: burst.index, bursts: self.bursts.len() };
            let stopped = |cause| Stopped { place, cause };
            let frames = burst.arrivals.iter().map(|arrival| (arrival.at, &arrival.bytes[..]));
            device.receive_frames(frames).map_err(|errno| stopped(Cause::Device(errno)))?;
            let told = TellOnPanic(place);
            program(burst).map_err(|error| stopped(Cause::Program(error)))?;
            drop(told);
        }
        Ok(())
    }
}

/// The position of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    seed: u64,
    burst: usize,
    bursts: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, burst, bursts } = self;
        write!(f, "burst {burst} of {bursts}, {SEED_VARIABLE}={seed}")
    }
}

/// Prints the place if the program panics there.
struct TellOnPanic(Place);

impl Drop for TellOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay: {}", self.0);
        }
    }
}

/// Why a replay stopped before its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped<E> {
    place: Place,
    /// The reason.
    pub cause: Cause<E>,
}

/// The reason why a replay stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause<E> {
    /// The program failed.
    Program(E),
    /// The device takes no frames.
    Device(Errno),
}

impl<E> Stopped<E> {
    /// The seed that repeats it.
    pub fn seed(&self) -> u64 {
        self.place.seed
    }

    /// The burst after which the program failed, from 0.
    pub fn burst(&self) -> usize {
        self.place.burst
    }
}

impl<E: fmt::Display> fmt::Display for Stopped<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::Program(error) => write!(f, "{}: {error}", self.place),
            Cause::Device(errno) => write!(f, "{}: the device: {}", self.place, errno.desc()),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> Error for Stopped<E> {}

#[cfg(test)]
mod tests;
