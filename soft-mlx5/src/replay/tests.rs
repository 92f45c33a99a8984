use super::*;

fn recording(count: u64) -> Vec<(u64, Vec<u8>)> {
    (0..count).map(|i| (1000 * i, [&i.to_be_bytes()[..], &[0; 52]].concat())).collect()
}

fn all(replay: &Replay) -> Vec<&Arrival> {
    replay.bursts().iter().flat_map(|burst| &burst.arrivals).collect()
}

#[test]
fn a_replay_without_faults_is_the_recording() {
    let replay = Replay::new(recording(50), &Disturbances::none());
    assert_eq!(replay.bursts().len(), 50);
    let arrivals = all(&replay).into_iter();
    let same: Vec<_> = arrivals.map(|arrival| (arrival.at, arrival.bytes.clone())).collect();
    assert_eq!(same, recording(50));
    let expected = ReplayCounters { recorded: 50, arrivals: 50, ..Default::default() };
    assert_eq!(replay.counters(), expected);
}

#[test]
fn a_seed_decides_every_byte() {
    let make = |seed| Replay::new(recording(2000), &Disturbances::usual(seed));
    assert_eq!(make(1), make(1));
    assert_eq!(make(1).digest(), make(1).digest());
    assert_ne!(make(1).digest(), make(2).digest());
    // The digest is the same in every version and on every machine.
    assert_eq!(make(1).digest(), DIGEST_OF_SEED_1);
}

const DIGEST_OF_SEED_1: u64 = 1_302_413_923_296_679_858;

#[test]
fn the_counters_match_the_arrivals() {
    let usual = Disturbances { flood: 100_000, flood_frames: 100, ..Disturbances::usual(3) };
    let many = Disturbances { gap: 30_000, corrupt: 30_000, oversize: 30_000, ..usual };
    let replay = Replay::new(recording(5000), &many);
    let (counters, arrivals) = (replay.counters(), all(&replay));
    let of = |change| arrivals.iter().filter(|a| a.change == change).count() as u64;
    assert_eq!(of(Change::Duplicate), counters.duplicates);
    assert_eq!(of(Change::Late), counters.late);
    assert_eq!(of(Change::Corrupt), counters.corrupt);
    assert_eq!(of(Change::Oversize), counters.oversize);
    assert_eq!(arrivals.len() as u64, counters.arrivals);
    assert_eq!(counters.recorded, 5000);
    assert_eq!(counters.arrivals + counters.lost - counters.duplicates, 5000);
    let numbers = [counters.lost, counters.duplicates, counters.late, counters.corrupt];
    assert!(numbers.iter().all(|n| *n > 0) && counters.oversize > 0 && counters.floods > 0);
    assert!(arrivals.is_sorted_by_key(|arrival| arrival.at));
    let longest = replay.bursts().iter().map(|burst| burst.arrivals.len()).max();
    assert_eq!(longest, Some(100));
    for arrival in arrivals {
        let original = [&(arrival.frame as u64).to_be_bytes()[..], &[0; 52]].concat();
        let flipped = arrival.bytes.iter().zip(&original).map(|(a, b)| (a ^ b).count_ones());
        let flipped: u32 = flipped.sum();
        assert_eq!(flipped, u32::from(arrival.change == Change::Corrupt), "{arrival:?}");
        let longer = arrival.bytes.len() > 60;
        assert_eq!(longer, arrival.change == Change::Oversize, "{arrival:?}");
    }
}

#[test]
fn a_program_that_fails_names_the_seed() {
    let device = SoftDevice::builder("soft0").without_wire().build().unwrap();
    let plan = Disturbances { seed: 77, ..Disturbances::none() };
    let replay = Replay::new(recording(5), &plan);
    let failed = replay.run(&device, |burst| if burst.index == 3 { Err("bad") } else { Ok(()) });
    let stopped = failed.unwrap_err();
    assert_eq!((stopped.seed(), stopped.burst()), (77, 3));
    assert_eq!(stopped.to_string(), "burst 3 of 5, UVERBS_REPLAY_SEED=77: bad");
}
