//! The choice of the next request to accept, when more peers connect than may be half open.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long a peer may be silent before it can lose its place. A live peer confirms (RTU) within a
/// round trip or, if a message was lost, when the reply (REP) is repeated.
const SILENCE: Duration = Duration::from_secs(5);

/// When Linux repeats a REP: after the response timeout in the request, which is 2^(20 - 8) ms from
/// a Linux peer. Timers of this length expire up to 5 % late.
const REPEATED: Duration = Duration::from_millis(4096 * 105 / 100);

const _: () = assert!(SILENCE.as_millis() > REPEATED.as_millis() + 500);

/// The peer's IP address or GID; `None` if it cannot be queried.
pub type Source = Option<IpAddr>;

/// A listener's half-open peers `P` (not confirmed yet), by their ids `K`, and its waiting requests
/// `R`.
///
/// A source whose peers never confirm cannot lock out other sources:
///
/// - The next request to accept is from the source with the fewest half-open peers.
/// - The last quarter of the places is reserved for sources with fewer half-open peers than that
///   quarter.
/// - When all places are taken, the oldest peer of the source with the most peers loses its place
///   after [`SILENCE`], as in a SYN queue, if a source with at least two fewer peers is waiting for
///   it.
/// - When the queue of requests is full, a new request replaces the newest one of the source with
///   the most waiting requests, if its own source has at least two fewer.
#[derive(Debug)]
#[doc(hidden)]
pub struct HalfOpen<K, P, R> {
    most: usize,
    most_waiting: usize,
    /// Number of peers in `open` and of those being accepted.
    half_open: usize,
    open: HashMap<K, Peer<P>>,
    /// When the channel was last empty: all events from before have been handled.
    heard: Instant,
    sources: HashMap<Source, Count>,
    waiting: VecDeque<(Source, R)>,
}

#[derive(Debug)]
struct Peer<P> {
    peer: P,
    source: Source,
    since: Instant,
}

/// The number of a source's peers.
#[derive(Debug, Default, Clone, Copy)]
struct Count {
    half_open: usize,
    waiting: usize,
}

impl<K: Copy + Eq + Hash, P, R> HalfOpen<K, P, R> {
    /// Empty, for at most `most` half-open peers and `most_waiting` waiting requests.
    pub fn new(most: usize, most_waiting: usize, now: Instant) -> Self {
        let (half_open, open, sources, waiting) = Default::default();
        Self { most, most_waiting, half_open, open, heard: now, sources, waiting }
    }

    /// The channel was empty after `now`.
    pub fn heard(&mut self, now: Instant) {
        self.heard = now;
    }

    /// Adds a request to the waiting ones.
    ///
    /// # Errors
    /// The request that has no place: this one, or the replaced one.
    pub fn queue(&mut self, source: Source, request: R) -> Result<(), R> {
        let replaced = match self.waiting.len() < self.most_waiting {
            true => None,
            false => match self.replaceable(source) {
                Some(at) => self.waiting.remove(at),
                None => return Err(request),
            },
        };
        self.change(source, |count| count.waiting += 1);
        self.waiting.push_back((source, request));
        let Some((source, request)) = replaced else { return Ok(()) };
        self.change(source, |count| count.waiting -= 1);
        Err(request)
    }

    /// The index of the newest request of the source with the most requests, if that has at least
    /// two more than `source`.
    fn replaceable(&self, source: Source) -> Option<usize> {
        let (most, count) = self.sources.iter().max_by_key(|(_, count)| count.waiting)?;
        let is_fair = count.waiting <= self.count(source).waiting + 1;
        if is_fair { None } else { self.waiting.iter().rposition(|(source, _)| source == most) }
    }

    /// The next request, if its peer may be half open. The peer is counted as half open; the caller
    /// then [adds](Self::add) it or [gives it up](Self::give_up). Also returns the silent peer, if
    /// any, that has lost its place, for the caller to drop.
    pub fn open_next(&mut self) -> Option<(Source, R, Option<P>)> {
        let (at, source) = self.next()?;
        let mut gave_up = None;
        if !self.may_open(source, self.half_open) {
            let (silent, _) = self.silent().filter(|(_, until)| self.heard >= *until)?;
            tracing::warn!("a silent peer gave up its place");
            gave_up = self.remove(silent);
        }
        let (source, request) = self.waiting.remove(at)?;
        self.begin(source);
        self.change(source, |count| count.waiting -= 1);
        Some((source, request, gave_up))
    }

    /// The index in the queue and the source of the next request, which is of a source with the
    /// fewest half-open peers.
    fn next(&self) -> Option<(usize, Source)> {
        let sources = self.waiting.iter().map(|(source, _)| *source);
        sources.enumerate().min_by_key(|(_, source)| self.count(*source).half_open)
    }

    fn may_open(&self, source: Source, half_open: usize) -> bool {
        let reserve = self.most / 4;
        let is_small = self.count(source).half_open < reserve;
        half_open < self.most - if is_small { 0 } else { reserve }
    }

    /// When a peer loses its place to the next request, if nothing happens before.
    pub fn next_eviction(&self) -> Option<Instant> {
        self.silent().map(|(_, until)| until)
    }

    /// The peer that loses its place to the next request if it is silent until the returned time.
    fn silent(&self) -> Option<(K, Instant)> {
        let crowding = self.crowding()?;
        let of_it = self.open.iter().filter(|(_, peer)| peer.source == crowding);
        let (key, peer) = of_it.min_by_key(|(_, peer)| peer.since)?;
        Some((*key, peer.since + SILENCE))
    }

    /// The source that has to give a place to the next request.
    fn crowding(&self) -> Option<Source> {
        let (_, next) = self.next()?;
        let (most, count) = self.sources.iter().max_by_key(|(_, count)| count.half_open)?;
        let has_two_more = count.half_open >= self.count(next).half_open + 2;
        let opens_one = self.half_open == self.most && self.may_open(next, self.half_open - 1);
        (opens_one && has_two_more).then_some(*most)
    }

    /// Counts a peer of this source as half open.
    pub fn begin(&mut self, source: Source) {
        self.half_open += 1;
        self.change(source, |count| count.half_open += 1);
    }

    /// Stores an accepted peer that is already [counted](Self::begin) as half open.
    pub fn add(&mut self, key: K, source: Source, peer: P, since: Instant) {
        drop(self.open.insert(key, Peer { peer, source, since }));
    }

    /// Uncounts a peer that was not accepted.
    pub fn give_up(&mut self, source: Source) {
        self.half_open -= 1;
        self.change(source, |count| count.half_open -= 1);
    }

    /// Removes a peer that has confirmed its connection or has given up.
    pub fn remove(&mut self, key: K) -> Option<P> {
        let Peer { peer, source, .. } = self.open.remove(&key)?;
        self.give_up(source);
        Some(peer)
    }

    /// Removes all peers and waiting requests.
    pub fn clear(&mut self) -> (Vec<P>, VecDeque<(Source, R)>) {
        let open: Vec<K> = self.open.keys().copied().collect();
        let peers = open.into_iter().filter_map(|key| self.remove(key)).collect();
        let waiting = std::mem::take(&mut self.waiting);
        waiting.iter().for_each(|(source, _)| self.change(*source, |count| count.waiting -= 1));
        (peers, waiting)
    }

    fn count(&self, source: Source) -> Count {
        self.sources.get(&source).copied().unwrap_or_default()
    }

    fn change(&mut self, source: Source, change: impl FnOnce(&mut Count)) {
        let count = self.sources.entry(source).or_default();
        change(count);
        if count.half_open == 0 && count.waiting == 0 {
            self.sources.remove(&source);
        }
    }
}

#[cfg(test)]
mod tests;
