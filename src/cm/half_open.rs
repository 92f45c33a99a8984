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
        self.half_open += 1;
        self.change(source, |count| {
            count.waiting -= 1;
            count.half_open += 1;
        });
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
mod tests {
    use super::*;

    fn source(last: u8) -> Source {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    /// A request is named by its source and a number.
    fn queue(peers: &mut HalfOpen<(u8, usize)>, who: u8, count: usize) -> Vec<(u8, usize)> {
        (0..count).filter_map(|n| peers.queue(source(who), (who, n)).err()).collect()
    }

    fn accept_all(peers: &mut HalfOpen<(u8, usize)>) -> Vec<u8> {
        std::iter::from_fn(|| peers.open_next()).map(|(_, (who, _))| who).collect()
    }

    #[test]
    fn one_source_leaves_a_quarter_of_the_places() {
        let mut peers = HalfOpen::new(8, 100);
        assert!(queue(&mut peers, 1, 20).is_empty());
        assert_eq!(accept_all(&mut peers), [1; 6]);
        assert!(queue(&mut peers, 2, 3).is_empty());
        assert_eq!(accept_all(&mut peers), [2, 2], "behind fourteen of the other source");
        peers.end(source(1));
        assert_eq!(accept_all(&mut peers), [], "the last quarter is for smaller sources");
        peers.end(source(2));
        assert_eq!(accept_all(&mut peers), [2], "the source with fewer is first");
    }

    #[test]
    fn a_new_source_gets_the_place_of_the_oldest_peer_of_the_largest() {
        let mut peers = HalfOpen::new(8, 100);
        let start = Instant::now();
        queue(&mut peers, 1, 6);
        assert_eq!(accept_all(&mut peers), [1; 6]);
        queue(&mut peers, 2, 2);
        assert_eq!(accept_all(&mut peers), [2, 2], "no place is left");
        // Named by their ages, the youngest first.
        let open = [2, 2, 1, 1, 1, 1, 1, 1].into_iter().enumerate();
        let open: Vec<_> =
            open.map(|(age, who)| (age, source(who), start - age as u32 * SILENCE)).collect();
        let silent = |peers: &HalfOpen<_>, now| peers.silent(now, open.iter().copied());
        assert_eq!(silent(&peers, start), None, "no request waits");
        queue(&mut peers, 1, 1);
        assert_eq!(silent(&peers, start), None, "of its own source");
        queue(&mut peers, 3, 3);
        assert_eq!(accept_all(&mut peers), []);
        assert_eq!(silent(&peers, start), Some(7));
        assert_eq!(silent(&peers, start - 7 * SILENCE), None, "not yet");
        for _ in 0..2 {
            peers.end(source(1));
            assert_eq!(accept_all(&mut peers), [3]);
        }
        assert_eq!(silent(&peers, start), None, "its share is a quarter");
    }

    #[test]
    fn a_full_queue_takes_one_of_another_source() {
        let mut peers = HalfOpen::new(1, 4);
        queue(&mut peers, 9, 1);
        assert_eq!(accept_all(&mut peers), [9]);
        assert!(queue(&mut peers, 1, 4).is_empty());
        assert_eq!(queue(&mut peers, 1, 1), [(1, 0)], "its own source has all");
        assert_eq!(queue(&mut peers, 2, 3), [(1, 3), (1, 2), (2, 2)]);
        let mut order = Vec::new();
        for who in [9, 1, 1, 2] {
            peers.end(source(who));
            order.extend(peers.open_next().map(|(_, request)| request));
        }
        assert_eq!(order, [(1, 0), (1, 1), (2, 0), (2, 1)]);
    }

    #[test]
    fn nothing_is_kept_of_sources_that_are_gone() {
        let mut peers = HalfOpen::new(4, 4);
        for who in 1..=4 {
            queue(&mut peers, who, 1);
        }
        assert_eq!(accept_all(&mut peers), [1, 2, 3, 4]);
        (1..=4).for_each(|who| peers.end(source(who)));
        queue(&mut peers, 5, 4);
        peers.drop_waiting();
        assert_eq!(accept_all(&mut peers), []);
        assert!(peers.sources.is_empty());
    }
}
