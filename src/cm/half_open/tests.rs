use super::*;

fn source(last: u8) -> Source {
    Some(IpAddr::from([10, 0, 0, last]))
}

/// A request has its source and a number, a peer its key.
type Peers = HalfOpen<usize, (), (u8, usize)>;

fn peers(most: usize, most_waiting: usize) -> Peers {
    HalfOpen::new(most, most_waiting, Instant::now())
}

fn queue(peers: &mut Peers, who: u8, count: usize) -> Vec<(u8, usize)> {
    (0..count).filter_map(|n| peers.queue(source(who), (who, n)).err()).collect()
}

fn accept_all(peers: &mut Peers) -> Vec<u8> {
    std::iter::from_fn(|| peers.open_next()).map(|(_, (who, _), _)| who).collect()
}

#[test]
fn one_source_leaves_a_quarter_of_the_places() {
    let mut peers = peers(8, 100);
    assert!(queue(&mut peers, 1, 20).is_empty());
    assert_eq!(accept_all(&mut peers), [1; 6]);
    assert!(queue(&mut peers, 2, 3).is_empty());
    assert_eq!(accept_all(&mut peers), [2, 2], "behind fourteen of the other source");
    peers.give_up(source(1));
    assert_eq!(accept_all(&mut peers), [], "the last quarter is for smaller sources");
    peers.give_up(source(2));
    assert_eq!(accept_all(&mut peers), [2], "the source with fewer is first");
}

/// Six peers of one source and two of another have all places. The first peer of each source began
/// at `start`, and each later one a second after the one before.
fn crowded(start: Instant) -> Peers {
    let mut peers = HalfOpen::new(8, 100, start);
    for (who, count) in [(1, 6), (2, 2)] {
        queue(&mut peers, who, count);
        assert_eq!(accept_all(&mut peers), vec![who; count]);
        for age in 0..count {
            let since = start + Duration::from_secs(age as u64);
            peers.add(10 * usize::from(who) + age, source(who), (), since);
        }
    }
    peers
}

#[test]
fn a_new_source_gets_the_place_of_the_oldest_peer_of_the_largest() {
    let start = Instant::now();
    let mut peers = crowded(start);
    peers.heard(start + 9 * SILENCE);
    assert_eq!((accept_all(&mut peers), peers.next_eviction()), (vec![], None));
    queue(&mut peers, 1, 1);
    assert_eq!((accept_all(&mut peers), peers.next_eviction()), (vec![], None), "its own source");
    queue(&mut peers, 3, 3);
    assert_eq!(accept_all(&mut peers), [3, 3], "its share is a quarter");
    assert_eq!(peers.next_eviction(), None);
    let gone = [10, 11].map(|key| peers.remove(key));
    assert_eq!(gone, [None; 2], "the oldest");
    assert_eq!(peers.open.len(), 6);
}

#[test]
fn the_oldest_peer_gives_up_its_place_when_it_has_been_silent_for_long() {
    let start = Instant::now();
    let mut peers = crowded(start);
    queue(&mut peers, 3, 2);
    for age in 0..2 {
        let until = start + Duration::from_secs(age) + SILENCE;
        assert_eq!(peers.next_eviction(), Some(until));
        peers.heard(until - Duration::from_nanos(1));
        assert_eq!(accept_all(&mut peers), []);
        peers.heard(until);
        let (from, _, silent) = peers.open_next().unwrap();
        assert_eq!((from, silent), (source(3), Some(())), "with the peer that is to be dropped");
    }
    assert_eq!(peers.next_eviction(), None);
}

#[test]
fn a_peer_whose_confirmation_was_lost_once_keeps_its_place() {
    let start = Instant::now();
    let mut peers = crowded(start);
    queue(&mut peers, 3, 1);
    let repeated = start + REPEATED + Duration::from_millis(500);
    peers.heard(repeated);
    assert_eq!(accept_all(&mut peers), []);
    assert_eq!(peers.remove(10), Some(()), "it confirms now");
    assert_eq!(accept_all(&mut peers), [3]);
}

#[test]
fn a_full_queue_takes_one_of_another_source() {
    let mut peers = peers(1, 4);
    queue(&mut peers, 9, 1);
    assert_eq!(accept_all(&mut peers), [9]);
    assert!(queue(&mut peers, 1, 4).is_empty());
    assert_eq!(queue(&mut peers, 1, 1), [(1, 0)], "its own source has all");
    assert_eq!(queue(&mut peers, 2, 3), [(1, 3), (1, 2), (2, 2)]);
    let mut order = Vec::new();
    for who in [9, 1, 1, 2] {
        peers.give_up(source(who));
        order.extend(peers.open_next().map(|(_, request, _)| request));
    }
    assert_eq!(order, [(1, 0), (1, 1), (2, 0), (2, 1)]);
}

#[test]
fn nothing_is_kept_of_sources_that_are_gone() {
    let mut peers = peers(4, 4);
    for who in 1..=4 {
        queue(&mut peers, who, 1);
    }
    assert_eq!(accept_all(&mut peers), [1, 2, 3, 4]);
    (1..=4).for_each(|who| peers.give_up(source(who)));
    queue(&mut peers, 5, 4);
    let (open, waiting) = peers.clear();
    assert_eq!((open.len(), waiting.len()), (0, 4));
    assert_eq!(accept_all(&mut peers), []);
    assert!(peers.sources.is_empty());
}
