//! Tests of the doorbells.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use uverbs_mlx5_format::{BLUEFLAME_HALF_SIZE, BLUEFLAME_OFFSET, CQ_ARM_OFFSET};

use super::page::{ARM, ARMED_RECENTLY, COOL_AFTER, SWEEP, Sharers, WORDS};
use super::*;
use crate::core::{Cqn, Qpn};

fn doorbell(first: u32, second: u32) -> u64 {
    u64::from_ne_bytes((u64::from(first) << 32 | u64::from(second)).to_be_bytes())
}

fn looks(uars: &mut Uars, count: usize) -> Vec<Vec<Doorbell>> {
    let mut seen = vec![Vec::new(); count];
    seen.iter_mut().for_each(|rings| {
        uars.look(true, |ring| rings.push(ring));
    });
    seen
}

#[test]
fn a_dedicated_register_rings_its_queue_once() {
    let region = Arc::new(UarRegion::new(2).unwrap());
    let page = UarPage::new(region.clone(), 1).unwrap();
    assert!(UarPage::new(region.clone(), 2).is_none());
    let mut uars = Uars::default();
    uars.attach(&page, Doorbell::Send(Qpn(0x47)));
    uars.attach(&page, Doorbell::Arm(Cqn(3)));
    region.word(1, 0x900).store(doorbell(0x0800, 0x47 << 8 | 3), Ordering::Release);
    region.word(0, 0x800).store(1, Ordering::Release);
    assert_eq!(looks(&mut uars, 3), [vec![Doorbell::Send(Qpn(0x47))], vec![], vec![]]);
    region.word(1, CQ_ARM_OFFSET).store(doorbell(1, 3), Ordering::Release);
    assert_eq!(looks(&mut uars, 2), [vec![Doorbell::Arm(Cqn(3))], vec![]]);
    assert_eq!(region.word(0, 0x800).load(Ordering::Relaxed), 1, "page 0 is not used");
}

#[test]
fn every_ring_of_a_shared_register_is_seen_after_some_looks() {
    let region = Arc::new(UarRegion::new(1).unwrap());
    let page = UarPage::new(region.clone(), 0).unwrap();
    let mut uars = Uars::default();
    let queues = [Qpn(0x40), Qpn(0x41), Qpn(0x42)];
    queues.iter().for_each(|&qpn| uars.attach(&page, Doorbell::Send(qpn)));
    // The ring of 0x41 overwrites that of 0x40.
    region.word(0, 0x800).store(doorbell(1, 0x40 << 8), Ordering::Release);
    region.word(0, 0x800).store(doorbell(1, 0x41 << 8), Ordering::Release);
    let seen = looks(&mut uars, 3);
    assert_eq!(seen[0], [Doorbell::Send(Qpn(0x41))]);
    assert_eq!(seen[1], queues.map(Doorbell::Send));
    assert_eq!(seen[2], []);
    // A page whose doorbell is rung all the time is swept nevertheless.
    let mut rings = 0;
    for _ in 0..8 {
        region.word(0, 0x800).store(doorbell(1, 0x41 << 8), Ordering::Release);
        uars.look(true, |ring| rings += usize::from(ring == Doorbell::Send(Qpn(0x42))));
    }
    assert!(rings >= 1);
}

#[test]
fn a_cq_that_was_armed_before_a_send_is_armed_when_the_send_begins() {
    let region = Arc::new(UarRegion::new(1).unwrap());
    let page = UarPage::new(region.clone(), 0).unwrap();
    let mut uars = Uars::default();
    uars.attach(&page, Doorbell::Send(Qpn(1)));
    uars.attach(&page, Doorbell::Arm(Cqn(2)));
    for turn in 0..1000 {
        let half = turn % 2 * BLUEFLAME_HALF_SIZE;
        region.word(0, CQ_ARM_OFFSET).store(doorbell(1, 2), Ordering::Release);
        region.word(0, BLUEFLAME_OFFSET + half).store(doorbell(1, 1 << 8), Ordering::Release);
        let mut rung = Vec::new();
        while rung.last() != Some(&Doorbell::Send(Qpn(1))) {
            uars.look(false, |ring| rung.push(ring));
        }
        assert_eq!(rung, [Doorbell::Arm(Cqn(2)), Doorbell::Send(Qpn(1))], "turn {turn}");
        // Without another arming, for so long that the arm word is read only in its turn.
        if turn % 10 == 0 {
            (0..=ARMED_RECENTLY).for_each(|_| assert!(!uars.look(false, |_| ())));
        }
    }
}

/// Most rings found by one look: those of the page's words, and of swept queues of the page.
const BOUND: usize = WORDS.len() + 2 * SWEEP;

#[test]
fn a_look_is_short_however_many_queues_share_a_page() {
    const QUEUES: u32 = 10_000;
    let region = Arc::new(UarRegion::new(1).unwrap());
    let page = UarPage::new(region.clone(), 0).unwrap();
    let mut uars = Uars::default();
    (0..QUEUES).for_each(|qpn| uars.attach(&page, Doorbell::Send(Qpn(qpn))));
    let mut prng = crate::prng::Prng::new(0x10_0000);
    let mut half = BLUEFLAME_HALF_SIZE;
    for round in 0..20 {
        // In a burst all rings but the last are overwritten, whether or not a look is in between.
        let mut unseen = BTreeSet::new();
        for _ in 0..50 {
            let qpn = prng.below(QUEUES.into()) as u32;
            half ^= BLUEFLAME_HALF_SIZE;
            region.word(0, 0x800 + half).store(doorbell(1, qpn << 8), Ordering::Release);
            unseen.insert(qpn);
            if prng.chance(200_000) {
                assert!(take(&mut uars, &mut unseen) <= BOUND);
            }
        }
        // Queues are attached and detached meanwhile.
        uars.detach(&page, Doorbell::Send(Qpn(QUEUES + round)));
        uars.attach(&page, Doorbell::Send(Qpn(QUEUES + round + 1)));
        let mut looks = 0;
        while !unseen.is_empty() {
            assert!(take(&mut uars, &mut unseen) <= BOUND);
            looks += 1;
            assert!(looks <= 1 + (QUEUES as usize + 2).div_ceil(SWEEP), "{unseen:?}");
        }
    }
    while uars.look(true, |_| ()) {}
}

#[test]
fn a_single_ring_rings_no_other_queue() {
    let region = Arc::new(UarRegion::new(1).unwrap());
    let page = UarPage::new(region.clone(), 0).unwrap();
    let mut uars = Uars::default();
    (0..100).for_each(|qpn| uars.attach(&page, Doorbell::Send(Qpn(qpn))));
    for turn in 0..1000u32 {
        // Both registers of the page, each with alternating halves.
        let offset = WORDS[(turn % 4).reverse_bits() as usize >> 30];
        region.word(0, offset).store(doorbell(1, (turn % 100) << 8), Ordering::Release);
        let mut seen = Vec::new();
        while seen.is_empty() {
            assert!(!uars.look(false, |ring| seen.push(ring)));
        }
        assert_eq!(seen, [Doorbell::Send(Qpn(turn % 100))], "turn {turn}");
    }
    // A program that does not alternate the halves: each ring is seen after some looks.
    let mut unseen = BTreeSet::from_iter(0..100);
    for _ in 0..10 {
        uars.look(true, |ring| rung(ring, &mut unseen));
    }
    assert!(unseen.is_empty(), "{unseen:?}");
}

#[test]
fn a_register_written_at_one_half_is_swept_at_once() {
    let region = Arc::new(UarRegion::new(1).unwrap());
    let page = UarPage::new(region.clone(), 0).unwrap();
    let mut uars = Uars::default();
    (0..3).for_each(|qpn| uars.attach(&page, Doorbell::Send(Qpn(qpn))));
    for _ in 0..2 {
        region.word(0, 0x900).store(doorbell(1, 1 << 8), Ordering::Release);
        uars.look(false, |_| ());
    }
    let mut unseen = BTreeSet::from([0, 1, 2]);
    take(&mut uars, &mut unseen);
    assert!(unseen.is_empty(), "{unseen:?}");
}

/// The program also rings between the reads of two words of one look.
#[test]
fn rings_during_a_look_are_seen() {
    const QUEUES: u64 = 200;
    let region = Arc::new(UarRegion::new(1).unwrap());
    let page = UarPage::new(region.clone(), 0).unwrap();
    let mut uars = Uars::default();
    (0..QUEUES as u32).for_each(|qpn| uars.attach(&page, Doorbell::Send(Qpn(qpn))));
    let mut prng = crate::prng::Prng::new(0xbe11);
    let mut unseen = BTreeSet::new();
    let mut half = BLUEFLAME_HALF_SIZE;
    let mut silence = 0;
    for look in 0..20_000 {
        let rings_now = look % 1000 < 500;
        let program = |prng: &mut crate::prng::Prng, unseen: &mut BTreeSet<u32>| {
            for _ in 0..if rings_now { prng.below(4) } else { 0 } {
                let qpn = prng.below(QUEUES) as u32;
                half ^= BLUEFLAME_HALF_SIZE;
                region.word(0, 0x800 + half).store(doorbell(1, qpn << 8), Ordering::Release);
                unseen.insert(qpn);
            }
        };
        let mut program = program;
        if prng.chance(200_000) {
            program(&mut prng, &mut unseen);
        }
        let more = uars.look(false, |ring| {
            rung(ring, &mut unseen);
            if prng.chance(50_000) {
                program(&mut prng, &mut unseen);
            }
        });
        silence = if more || rings_now { 0 } else { silence + 1 };
        assert!(silence < 5 || unseen.is_empty(), "look {look}: {unseen:?}");
    }
}

/// One look; returns the number of queues that it rang.
fn take(uars: &mut Uars, unseen: &mut BTreeSet<u32>) -> usize {
    let mut rings = 0;
    uars.look(false, |ring| {
        rung(ring, unseen);
        rings += 1;
    });
    rings
}

fn rung(ring: Doorbell, unseen: &mut BTreeSet<u32>) {
    let Doorbell::Send(qpn) = ring else { panic!("nothing was armed") };
    unseen.remove(&qpn.0);
}

#[test]
fn a_queue_attached_during_a_sweep_hides_no_other() {
    let mut sharers = Sharers::default();
    (10..100).for_each(|qpn| sharers.add(qpn));
    sharers.note_ring(true);
    let mut seen = Vec::new();
    sharers.sweep(|qpn| seen.push(qpn));
    (100..200).for_each(|qpn| sharers.add(qpn));
    (10..15).for_each(|qpn| sharers.remove(qpn));
    while sharers.unchecked != 0 {
        sharers.sweep(|qpn| seen.push(qpn));
    }
    assert!((15..100).all(|qpn| seen.contains(&qpn)));
}

const MANY: usize = 300;

/// One queue in each of many pages.
fn many() -> (Arc<UarRegion>, Uars) {
    pages(MANY)
}

fn pages(count: usize) -> (Arc<UarRegion>, Uars) {
    let region = Arc::new(UarRegion::new(count).unwrap());
    let mut uars = Uars::default();
    for number in 0..count {
        let page = UarPage::new(region.clone(), number).unwrap();
        uars.attach(&page, Doorbell::Send(Qpn(number as u32)));
    }
    (region, uars)
}

fn seen(uars: &mut Uars, all: bool) -> Vec<u32> {
    let mut seen = seen_once(uars, all);
    while uars.is_sweeping() {
        seen.extend(seen_once(uars, all));
    }
    seen
}

fn seen_once(uars: &mut Uars, all: bool) -> Vec<u32> {
    let mut seen = Vec::new();
    uars.look(all, |ring| match ring {
        Doorbell::Send(qpn) => seen.push(qpn.0),
        Doorbell::Arm(_) => panic!("nothing was armed"),
    });
    seen
}

/// Rings a queue at its own word.
fn ring(region: &UarRegion, number: u32) {
    let word = WORDS[number as usize % ARM];
    region.word(number as usize, word).store(doorbell(1, number << 8), Ordering::Release);
}

#[test]
fn every_ring_is_seen_in_time_whichever_other_queues_ring() {
    let (region, mut uars) = many();
    let mut prng = crate::prng::Prng::new(0xd00b);
    let mut waiting = std::collections::BTreeMap::new();
    for look in 0..3000u32 {
        // Some queues ring all the time, some now and then, and there are long pauses.
        if look % 500 < 300 {
            for _ in 0..prng.below(20) {
                let number =
                    if prng.chance(500_000) { prng.below(5) } else { prng.below(MANY as u64) };
                ring(&region, number as u32);
                waiting.entry(number as u32).or_insert(look);
            }
        }
        let all = prng.chance(50_000);
        for number in seen(&mut uars, all) {
            assert!(waiting.remove(&number).is_some(), "{number} did not ring");
        }
        // Each page is read after this many looks; a page that was skipped once waits for its next
        // turn.
        let turns = 2 * (WORDS.len() * (MANY / PAGES.1 + 1)) as u32;
        let late = waiting.iter().find(|(_, since)| look - **since > turns);
        assert_eq!((late, all && !waiting.is_empty()), (None, false), "look {look}");
    }
    assert!(uars.warm < MANY, "silent pages are no longer warm");
}

/// Threads begin to wait now and then. By the next sleep every earlier ring is seen, whatever rings
/// and cools down while the pages are read.
#[test]
fn every_ring_is_seen_before_a_sleep() {
    const COUNT: usize = PORTION + 100;
    let (region, mut uars) = pages(COUNT);
    let mut prng = crate::prng::Prng::new(0x51ee);
    let mut unseen = BTreeSet::new();
    let mut sleeps = 0;
    while sleeps < 2000 {
        uars.sweep_anew();
        let mut before = unseen.clone();
        loop {
            for number in seen_once(&mut uars, true) {
                assert!(unseen.remove(&number), "{number} did not ring");
                before.remove(&number);
            }
            if !uars.is_sweeping() {
                sleeps += 1;
                break;
            }
            // Mostly so few that a page cools down as often as one rings, but sometimes many.
            let is_busy = sleeps % 200 < 20;
            let rings = if is_busy { prng.below(30) } else { prng.chance(300_000).into() };
            let among = if is_busy && prng.chance(500_000) { 40 } else { COUNT as u64 };
            for number in (0..rings).map(|_| prng.below(among) as u32) {
                // A second ring of the same page would also be seen.
                if unseen.insert(number) {
                    ring(&region, number);
                }
            }
            if prng.chance(20_000) {
                // Another thread polls, or begins to wait.
                seen_once(&mut uars, false).into_iter().for_each(|number| {
                    assert!(unseen.remove(&number));
                    before.remove(&number);
                });
            }
        }
        assert!(before.is_empty(), "{} are not seen", before.len());
    }
}

/// A page that cools down during a look does not make the look skip the last page.
#[test]
fn a_page_that_cools_down_hides_no_other() {
    let (region, mut uars) = pages(PORTION + 50);
    ring(&region, 0);
    assert_eq!(seen(&mut uars, true), [0]);
    while uars.pages[0].silent < COOL_AFTER - 1 {
        assert!(seen_once(&mut uars, true).is_empty());
    }
    uars.sweep_anew();
    let last = if uars.cursor > uars.warm { uars.cursor } else { uars.pages.len() } - 1;
    let number = uars.pages[last].uar.page as u32;
    ring(&region, number);
    assert!(seen_once(&mut uars, true).is_empty());
    assert_eq!(uars.warm, 0, "it cools down in the middle");
    assert_eq!(seen(&mut uars, true), [number]);
}

/// A look takes as long with a thousand idle pages as with many thousands, and each look sees the
/// busy page's rings.
#[test]
fn idle_pages_do_not_slow_a_busy_one() {
    let (region, mut uars) = pages(8 * PORTION);
    for round in 0..200 {
        uars.sweep_anew();
        ring(&region, 7);
        let before = uars.looked;
        let at_once = seen_once(&mut uars, true);
        assert_eq!(at_once, [7], "round {round}");
        assert!(uars.looked - before <= PORTION + 1, "round {round}");
    }
    assert!(seen(&mut uars, true).is_empty());
}

/// However many pages rang recently, a look reads only a limited number of them, so that arriving
/// packets do not wait long.
#[test]
fn a_look_beside_many_warm_pages_takes_a_portion() {
    for warm in [PAGES.0 + 1, PORTION + 10] {
        let (region, mut uars) = pages(8 * PORTION);
        (0..warm as u32).for_each(|number| ring(&region, number));
        seen(&mut uars, true);
        assert_eq!(uars.warm, warm);
        uars.sweep_anew();
        loop {
            let before = uars.looked;
            assert_eq!(seen_once(&mut uars, true), []);
            assert!(uars.looked - before <= warm + PORTION.max(warm), "beside {warm}");
            if !uars.is_sweeping() {
                break;
            }
        }
    }
}

#[test]
fn every_word_of_a_busy_page_is_read_soon() {
    let region = Arc::new(UarRegion::new(1).unwrap());
    let page = UarPage::new(region.clone(), 0).unwrap();
    let mut uars = Uars::default();
    uars.attach(&page, Doorbell::Send(Qpn(7)));
    uars.attach(&page, Doorbell::Arm(Cqn(9)));
    for round in 0..100 {
        let word = round * 3 % WORDS.len();
        let (number, rings) =
            if word == ARM { (9, Doorbell::Arm(Cqn(9))) } else { (7 << 8, Doorbell::Send(Qpn(7))) };
        region.word(0, WORDS[word]).store(doorbell(1, number), Ordering::Release);
        let mut seen = Vec::new();
        for _ in 0..WORDS.len() {
            uars.look(false, |ring| seen.push(ring));
        }
        assert_eq!(seen, [rings], "round {round}");
        // The next ring uses the register's other half, which is read without a delay.
        if word != ARM {
            region.word(0, WORDS[word ^ 1]).store(doorbell(1, number), Ordering::Release);
            uars.look(false, |ring| seen.push(ring));
            assert_eq!(seen.len(), 2);
        }
    }
}

#[test]
fn a_recently_armed_queue_is_seen_at_once() {
    let region = Arc::new(UarRegion::new(1).unwrap());
    let mut uars = Uars::default();
    let page = UarPage::new(region.clone(), 0).unwrap();
    uars.attach(&page, Doorbell::Arm(Cqn(9)));
    let mut arms = |all| {
        region.word(0, CQ_ARM_OFFSET).store(doorbell(1, 9), Ordering::Release);
        let mut seen = 0;
        uars.look(all, |ring| seen += u32::from(ring == Doorbell::Arm(Cqn(9))));
        seen
    };
    assert_eq!(arms(true), 1);
    (0..1000).for_each(|_| assert_eq!(arms(false), 1));
}

#[test]
fn a_recently_rung_queue_is_seen_at_once() {
    let (region, mut uars) = many();
    ring(&region, 299);
    assert_eq!(seen(&mut uars, true), [299]);
    assert_eq!(uars.warm, 1);
    for _ in 0..1000 {
        ring(&region, 299);
        assert_eq!(seen(&mut uars, false), [299]);
    }
    (0..COOL_AFTER).for_each(|_| assert!(seen(&mut uars, false).is_empty()));
    assert_eq!(uars.warm, 0);
    uars.detach(&UarPage::new(region.clone(), 299).unwrap(), Doorbell::Send(Qpn(299)));
    ring(&region, 299);
    assert!(seen(&mut uars, true).is_empty());
}

#[test]
fn detached_queues_leave_nothing() {
    let region = Arc::new(UarRegion::new(1).unwrap());
    let page = UarPage::new(region, 0).unwrap();
    let mut uars = Uars::default();
    uars.attach(&page, Doorbell::Send(Qpn(0x40)));
    uars.attach(&page, Doorbell::Arm(Cqn(1)));
    uars.detach(&page, Doorbell::Send(Qpn(0x40)));
    assert!(!uars.is_empty());
    uars.detach(&page, Doorbell::Arm(Cqn(1)));
    assert!(uars.is_empty());
}
