//! Applies disturbances to each frame of a recording.

use std::collections::BTreeMap;
use std::mem;

use super::{Arrival, Burst, Change, Disturbances, ReplayCounters};
use crate::prng::Prng;

pub(super) struct Disturber<'d> {
    plan: &'d Disturbances,
    prng: Prng,
    /// Frames that the current gap still drops.
    gap: u64,
    /// Delayed frames, by the index in the recording before which they arrive.
    held: BTreeMap<(usize, u64), Arrival>,
    holds: u64,
    /// The time of the last arrival.
    now: u64,
    burst: Vec<Arrival>,
    /// Frames of the current burst, 0 before the first.
    burst_frames: usize,
    bursts: Vec<Burst>,
    counters: ReplayCounters,
}

impl<'d> Disturber<'d> {
    pub(super) fn new(plan: &'d Disturbances) -> Self {
        Self {
            plan,
            prng: Prng::new(plan.seed),
            gap: 0,
            held: BTreeMap::new(),
            holds: 0,
            now: 0,
            burst: Vec::new(),
            burst_frames: 0,
            bursts: Vec::new(),
            counters: ReplayCounters::default(),
        }
    }

    /// Handles the next frame of the recording.
    pub(super) fn pass(&mut self, mut arrival: Arrival) {
        self.counters.recorded += 1;
        let place = arrival.frame;
        if self.is_lost() {
            self.counters.lost += 1;
        } else {
            self.damage(&mut arrival);
            self.send(arrival);
        }
        self.release(place + 1);
    }

    /// Ends the recording, and returns its bursts.
    pub(super) fn finish(mut self) -> (Vec<Burst>, ReplayCounters) {
        self.release(usize::MAX);
        self.end_burst();
        (self.bursts, self.counters)
    }

    fn is_lost(&mut self) -> bool {
        if self.gap == 0 && self.prng.chance(self.plan.gap) {
            self.gap = self.prng.within(1, self.plan.longest_gap.into());
        }
        let lost = self.gap > 0;
        self.gap -= u64::from(lost);
        lost
    }

    fn damage(&mut self, arrival: &mut Arrival) {
        let bits = 8 * arrival.bytes.len() as u64;
        if self.prng.chance(self.plan.corrupt) && bits > 0 {
            let bit = self.prng.below(bits) as usize;
            arrival.bytes[bit / 8] ^= 1 << (bit % 8);
            arrival.change = Change::Corrupt;
            self.counters.corrupt += 1;
        } else if self.prng.chance(self.plan.oversize) {
            self.lengthen(arrival);
        }
    }

    fn lengthen(&mut self, arrival: &mut Arrival) {
        let (length, longest) = (arrival.bytes.len() as u64, self.plan.longest.into());
        if length < longest {
            let longer = self.prng.within(length + 1, longest);
            arrival.bytes.resize(longer as usize, 0);
            arrival.change = Change::Oversize;
            self.counters.oversize += 1;
        }
    }

    /// Sends a frame: now, later or twice. A damaged frame is neither late nor duplicated, because
    /// an arrival has only one [`Change`].
    fn send(&mut self, mut arrival: Arrival) {
        if arrival.change != Change::Intact {
            return self.arrive(arrival);
        }
        if self.prng.chance(self.plan.duplicate) {
            let copy = Arrival { change: Change::Duplicate, ..arrival.clone() };
            self.counters.duplicates += 1;
            self.hold(copy);
            self.arrive(arrival);
        } else if self.prng.chance(self.plan.reorder) {
            arrival.change = Change::Late;
            self.counters.late += 1;
            self.hold(arrival);
        } else {
            self.arrive(arrival);
        }
    }

    fn hold(&mut self, arrival: Arrival) {
        let before = arrival.frame + 1 + self.prng.within(1, self.plan.reach.into()) as usize;
        self.holds += 1;
        self.held.insert((before, self.holds), arrival);
    }

    /// Sends the held frames that come before the frame at `place`.
    fn release(&mut self, place: usize) {
        while let Some(first) = self.held.first_entry() {
            if first.key().0 > place {
                return;
            }
            let arrival = first.remove();
            self.arrive(arrival);
        }
    }

    fn arrive(&mut self, mut arrival: Arrival) {
        if self.burst.len() >= self.burst_frames {
            self.end_burst();
            self.begin_burst();
        }
        self.now = self.now.max(arrival.at);
        arrival.at = self.now;
        self.counters.arrivals += 1;
        self.burst.push(arrival);
    }

    fn begin_burst(&mut self) {
        let is_flood = self.prng.chance(self.plan.flood);
        self.counters.floods += u64::from(is_flood);
        let frames = match is_flood {
            true => self.plan.flood_frames.max(1).into(),
            false => self.prng.within(1, self.plan.burst.into()),
        };
        self.burst_frames = frames as usize;
    }

    fn end_burst(&mut self) {
        if !self.burst.is_empty() {
            let arrivals = mem::take(&mut self.burst);
            self.bursts.push(Burst { index: self.bursts.len(), arrivals });
        }
    }
}
