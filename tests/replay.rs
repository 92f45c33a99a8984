//! Recordings as tests of a program that receives frames: the example's feed handler on the
//! software device.

#[allow(dead_code, reason = "its main function is not called")]
#[path = "../examples/replay.rs"]
mod replay;

use replay::{BUFFER, DEPTH, Handler, device, read, record};
use uverbs::Device;
use uverbs::ethernet::recording::Recording;
use uverbs::soft::replay::{Arrival, Change, Disturbances, Replay, seeds};

fn recording() -> Vec<(u64, Vec<u8>)> {
    read(Recording::new(&record(1000).unwrap()[..]).unwrap()).unwrap()
}

/// The handler at the end of the whole replay.
fn handled(replay: &Replay) -> Handler {
    let device = device().unwrap();
    let mut handler = Handler::new(&Device::from_soft(device.clone()).open().unwrap()).unwrap();
    replay.run(&device, |_| handler.poll()).unwrap();
    handler
}

fn arrivals(replay: &Replay) -> impl Iterator<Item = &Arrival> {
    replay.bursts().iter().flat_map(|burst| &burst.arrivals)
}

#[test]
fn a_recording_without_faults_arrives_unchanged() {
    let (recording, replay) = (recording(), Replay::new(recording(), &Disturbances::none()));
    let handler = handled(&replay);
    let quotes: Vec<_> = recording.iter().map(|(time, _)| *time).zip(0..).collect();
    assert_eq!(handler.quotes, quotes);
    assert_eq!((handler.gaps, handler.old, handler.foreign), (0, 0, 0));
    assert_eq!(handler.rx.lost().unwrap(), 0);
}

#[test]
fn the_same_seed_gives_the_same_replay() {
    for seed in seeds(4) {
        let plan = Disturbances { flood: 20_000, flood_frames: 200, ..Disturbances::usual(seed) };
        let [first, second] = [(), ()].map(|()| Replay::new(recording(), &plan));
        assert_eq!(first.digest(), second.digest());
        let [a, b] = [handled(&first), handled(&second)];
        assert_eq!(a.quotes, b.quotes, "seed {seed}");
        assert_eq!(a.report().unwrap(), b.report().unwrap(), "seed {seed}");
        assert_eq!(a.rx.counters(), b.rx.counters(), "seed {seed}");
        assert!(a.quotes.is_sorted() && a.gaps > 0, "seed {seed}");
    }
}

#[test]
fn the_handler_counts_each_kind_of_fault() {
    let none = Disturbances { seed: 5, burst: 16, reach: 5, ..Disturbances::none() };
    let duplicates = Replay::new(recording(), &Disturbances { duplicate: 100_000, ..none.clone() });
    let handler = handled(&duplicates);
    assert_ne!(duplicates.counters().duplicates, 0);
    assert_eq!((handler.old, handler.gaps), (duplicates.counters().duplicates, 0));

    let lost =
        Replay::new(recording(), &Disturbances { gap: 20_000, longest_gap: 9, ..none.clone() });
    let handler = handled(&lost);
    assert_eq!(handler.quotes.len() as u64, lost.counters().arrivals);
    // The handler cannot notice frames that were lost at the end.
    assert!(lost.counters().lost > 0 && handler.gaps <= lost.counters().lost);

    let late = Replay::new(recording(), &Disturbances { reorder: 50_000, ..none.clone() });
    let handler = handled(&late);
    assert_eq!(handler.quotes.len() as u64 + handler.old, 1000);
    // If two late frames follow each other, the first may still be in order.
    assert!((1..=late.counters().late).contains(&handler.old));

    let long = Replay::new(recording(), &Disturbances { oversize: 50_000, ..none.clone() });
    let handler = handled(&long);
    let too_long = arrivals(&long).filter(|arrival| arrival.bytes.len() > BUFFER).count();
    assert_ne!(too_long, 0);
    assert_eq!(handler.rx.counters().too_long, too_long as u64);
    assert_eq!(handler.quotes.len(), 1000 - too_long);

    let corrupt = Replay::new(recording(), &Disturbances { corrupt: 50_000, ..none });
    let handler = handled(&corrupt);
    let intact = arrivals(&corrupt).filter(|arrival| arrival.change == Change::Intact).count();
    // A frame with a damaged source MAC address arrives, because no checksum covers it.
    assert!(handler.quotes.len() as u64 + handler.old >= intact as u64);
    assert!(handler.gaps <= 1000 - intact as u64, "a damaged number was believed");
    assert_ne!(handler.rx.counters().rejected, 0);
}

#[test]
fn floods_exhaust_the_queue_by_the_exact_number_of_frames() {
    let plan = Disturbances {
        seed: 9,
        flood: 100_000,
        flood_frames: 100,
        burst: DEPTH,
        ..Disturbances::none()
    };
    let replay = Replay::new(recording(), &plan);
    let handler = handled(&replay);
    let beyond =
        |burst: &uverbs::soft::replay::Burst| burst.arrivals.len().saturating_sub(64) as u64;
    let lost: u64 = replay.bursts().iter().map(beyond).sum();
    assert_ne!(lost, 0);
    assert_eq!(handler.rx.lost().unwrap(), lost);
    assert_eq!(handler.quotes.len() as u64, 1000 - lost);
    assert!(handler.rx.counters().exhausted > 0 && handler.rx.counters().lowest == 0);
}

#[test]
fn a_handler_that_fails_does_so_again_at_the_same_burst() {
    let plan = Disturbances::usual(11);
    let fail = || {
        let (replay, device) = (Replay::new(recording(), &plan), device().unwrap());
        let mut handler = Handler::new(&Device::from_soft(device.clone()).open().unwrap()).unwrap();
        // A deliberate bug: the handler fails at each repeated frame.
        let stopped = replay.run(&device, |_| {
            handler.poll().map_err(|error| error.to_string())?;
            if handler.old == 0 { Ok(()) } else { Err(format!("{} old", handler.old)) }
        });
        stopped.unwrap_err()
    };
    assert_eq!(fail(), fail());
    assert!(fail().to_string().contains("UVERBS_REPLAY_SEED=11"));
}
