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
