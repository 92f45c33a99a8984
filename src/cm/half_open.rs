//! Which request a listener accepts next while more peers connect than may be half open.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long a peer keeps its place before it may have to give it up. A peer that is alive confirms
/// within a round trip.
const SILENCE: Duration = Duration::from_secs(1);

/// Where a request comes from: the peer's IP address or GID; `None` if it cannot be queried.
pub type Source = Option<IpAddr>;

/// A listener's peers that have not confirmed their connection, counted by source, and the requests
/// `R` that wait.
///
/// A source whose peers never confirm does not keep other sources out:
///
/// - The next request is one of the source with the fewest half-open peers.
/// - The last quarter of the half-open peers is for sources that have fewer than that quarter.
/// - When all places are taken, the source with the most gives up the place of its oldest peer, as
///   a queue of SYNs does: to a source that may have it and has at least two fewer.
/// - When the queue of requests is full, a request of a new source replaces the newest one of the
///   source that has the most.
#[derive(Debug)]
#[doc(hidden)]
pub struct HalfOpen<R> {
    most: usize,
    most_waiting: usize,
    half_open: usize,
    sources: HashMap<Source, Count>,
    waiting: VecDeque<(Source, R)>,
}

/// What a source has.
#[derive(Debug, Default, Clone, Copy)]
struct Count {
    half_open: usize,
    waiting: usize,
}

impl<R> HalfOpen<R> {
    /// None yet; at most `most` half-open peers, and `most_waiting` requests that wait.
    pub fn new(most: usize, most_waiting: usize) -> Self {
        let (half_open, sources, waiting) = Default::default();
        Self { most, most_waiting, half_open, sources, waiting }
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

    /// The next request, if its peer may be half open. It counts as that from now on.
    pub fn open_next(&mut self) -> Option<(Source, R)> {
        let (at, source) = self.next()?;
        if !self.may_open(source, self.half_open) {
            return None;
        }
        let (source, request) = self.waiting.remove(at)?;
        self.begin(source);
        self.change(source, |count| count.waiting -= 1);
        Some((source, request))
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

    /// The peer that has to give up its place to the next request. `open` are all half-open peers,
    /// with the times since when they are.
    pub fn silent<K>(
        &self,
        now: Instant,
        open: impl Iterator<Item = (K, Source, Instant)>,
    ) -> Option<K> {
        let crowding = self.crowding()?;
        let of_it = open.filter(|(_, source, _)| *source == crowding);
        let (peer, _, since) = of_it.min_by_key(|(_, _, since)| *since)?;
        (now.saturating_duration_since(since) >= SILENCE).then_some(peer)
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

    /// A peer of this source is not half open any more.
    pub fn end(&mut self, source: Source) {
        self.half_open -= 1;
        self.change(source, |count| count.half_open -= 1);
    }

    /// Drops the requests that wait.
    pub fn drop_waiting(&mut self) {
        for (source, _) in std::mem::take(&mut self.waiting) {
            self.change(source, |count| count.waiting -= 1);
        }
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
