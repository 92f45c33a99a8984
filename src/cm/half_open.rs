//! Which request a listener accepts next while more peers connect than may be half open.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long a peer keeps its place before it may have to give it up. A peer that is alive confirms
/// (RTU) within a round trip, or else when the reply (REP) is repeated.
const SILENCE: Duration = Duration::from_secs(5);

/// When Linux repeats a REP: after the response timeout of the request, 2^(20 - 8) ms if Linux sent
/// that. Timers of this length end up to 5 % late.
const REPEATED: Duration = Duration::from_millis(4096 * 105 / 100);

const _: () = assert!(SILENCE.as_millis() > REPEATED.as_millis() + 500);

/// Where a request comes from: the peer's IP address or GID; `None` if it cannot be queried.
pub type Source = Option<IpAddr>;

/// A listener's peers `P` that have not confirmed their connection, by their ids `K`, and the
/// requests `R` that wait.
///
/// A source whose peers never confirm does not keep other sources out:
///
/// - The next request is one of the source with the fewest half-open peers.
/// - The last quarter of the half-open peers is for sources that have fewer than that quarter.
/// - When all places are taken, the source with the most gives up the place of its oldest peer once
///   that was silent for long, as a queue of SYNs does: to a source that may have it and has at
///   least two fewer.
/// - When the queue of requests is full, a request of a new source replaces the newest one of the
///   source that has the most.
#[derive(Debug)]
#[doc(hidden)]
pub struct HalfOpen<K, P, R> {
    most: usize,
    most_waiting: usize,
    /// The peers in `open`, and those that are being accepted.
    half_open: usize,
    open: HashMap<K, Peer<P>>,
    /// When the channel was last empty: all that peers had sent before has been handled.
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

/// How many peers a source has.
#[derive(Debug, Default, Clone, Copy)]
struct Count {
    half_open: usize,
    waiting: usize,
}

impl<K: Copy + Eq + Hash, P, R> HalfOpen<K, P, R> {
    /// None yet; at most `most` half-open peers, and `most_waiting` requests that wait.
    pub fn new(most: usize, most_waiting: usize, now: Instant) -> Self {
        let (half_open, open, sources, waiting) = Default::default();
        Self { most, most_waiting, half_open, open, heard: now, sources, waiting }
    }

    /// The channel was empty after `now`.
    pub fn heard(&mut self, now: Instant) {
        self.heard = now;
    }

    /// Adds a request to those that wait.
    ///
    /// # Errors
    /// The request that has no place: this one, or the one that it replaces.
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

    /// The place of the newest request of the source that has the most, if it has at least two more
    /// than `source`.
    fn replaceable(&self, source: Source) -> Option<usize> {
        let (most, count) = self.sources.iter().max_by_key(|(_, count)| count.waiting)?;
        let is_fair = count.waiting <= self.count(source).waiting + 1;
        if is_fair { None } else { self.waiting.iter().rposition(|(source, _)| source == most) }
    }

    /// The next request, if its peer may be half open. It counts as that from now on, and is to be
    /// [added](Self::add) or [given up](Self::give_up). With it comes the silent peer, if any, that
    /// gave up its place to it, for the caller to drop.
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

    /// The request of the source with the fewest half-open peers: its place in the queue.
    fn next(&self) -> Option<(usize, Source)> {
        let sources = self.waiting.iter().map(|(source, _)| *source);
        sources.enumerate().min_by_key(|(_, source)| self.count(*source).half_open)
    }

    fn may_open(&self, source: Source, half_open: usize) -> bool {
        let reserve = self.most / 4;
        let is_small = self.count(source).half_open < reserve;
        half_open < self.most - if is_small { 0 } else { reserve }
    }

    /// When a peer has to give up its place to the next request, if nothing happens before.
    pub fn next_eviction(&self) -> Option<Instant> {
        self.silent().map(|(_, until)| until)
    }

    /// The peer that has to give up its place to the next request, and how long it may be silent.
    fn silent(&self) -> Option<(K, Instant)> {
        let crowding = self.crowding()?;
        let of_it = self.open.iter().filter(|(_, peer)| peer.source == crowding);
        let (key, peer) = of_it.min_by_key(|(_, peer)| peer.since)?;
        Some((*key, peer.since + SILENCE))
    }

    /// The source that has to give up a place to the next request.
    fn crowding(&self) -> Option<Source> {
        let (_, next) = self.next()?;
        let (most, count) = self.sources.iter().max_by_key(|(_, count)| count.half_open)?;
        let has_two_more = count.half_open >= self.count(next).half_open + 2;
        let opens_one = self.half_open == self.most && self.may_open(next, self.half_open - 1);
        (opens_one && has_two_more).then_some(*most)
    }

    /// A peer of this source is half open.
    pub fn begin(&mut self, source: Source) {
        self.half_open += 1;
        self.change(source, |count| count.half_open += 1);
    }

    /// A peer that [counts](Self::begin) as half open was accepted.
    pub fn add(&mut self, key: K, source: Source, peer: P, since: Instant) {
        drop(self.open.insert(key, Peer { peer, source, since }));
    }

    /// One was not accepted.
    pub fn give_up(&mut self, source: Source) {
        self.half_open -= 1;
        self.change(source, |count| count.half_open -= 1);
    }

    /// Removes a peer that has confirmed its connection or given up.
    pub fn remove(&mut self, key: K) -> Option<P> {
        let Peer { peer, source, .. } = self.open.remove(&key)?;
        self.give_up(source);
        Some(peer)
    }

    /// Removes all peers, and the requests that wait.
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
