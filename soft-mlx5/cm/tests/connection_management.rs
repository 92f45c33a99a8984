//! Random programs connect, accept, refuse and disconnect through engines of connection management.
//! Their network loses, duplicates and reorders datagrams. A model checks the events of each side.
//!
//! `SEED=n cargo test -p uverbs-soft-cm --test connection_management one_seed` repeats one run;
//! `RUNS=n` sets how many seeds each test tries.

#[path = "connections/model.rs"]
mod model;
#[path = "connections/network.rs"]
mod network;
#[path = "connections/seeds.rs"]
mod seeds;

use model::{Outcome, Run};
use network::Faults;

const GOOD: Faults = Faults { drop: 0, duplicate: 0, delay: 5 };
const MILD: Faults = Faults { drop: 50_000, duplicate: 50_000, delay: 500 };
/// Datagrams arrive up to twenty seconds late: after several repetitions, and after the connection.
const HARSH: Faults = Faults { drop: 300_000, duplicate: 200_000, delay: 20_000 };

fn runs() -> u64 {
    seeds::runs(20)
}

fn run(seed: u64, faults: Faults) -> Outcome {
    seeds::print_if_panics(seed, || Run::new(seed, faults).run_to_end())
}

#[test]
fn every_attempt_ends_as_intended_on_a_good_network() {
    for seed in 0..runs() {
        let outcome = run(seed, GOOD);
        assert_eq!(outcome.unreachable, 0, "seed {seed}");
        let ends = outcome.established + outcome.rejected + outcome.cancelled;
        assert_eq!(ends, outcome.attempts, "seed {seed}: {outcome:?}");
        let unconfirmed = outcome.accepted - outcome.established;
        assert!(unconfirmed <= outcome.cancelled, "seed {seed}: {outcome:?}");
    }
}

#[test]
fn both_sides_agree_on_a_bad_network() {
    let total: u64 = (1000..1000 + runs()).map(|seed| run(seed, MILD).established).sum();
    assert!(total > runs(), "{total} connections only: the programs do not get far");
}

#[test]
fn both_sides_agree_on_a_terrible_network() {
    let total: u64 = (2000..2000 + runs()).map(|seed| run(seed, HARSH).established).sum();
    assert!(total > runs(), "{total} connections only: the programs do not get far");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(run(2007, HARSH), run(2007, HARSH));
    assert_ne!(run(2007, HARSH).trace, run(2008, HARSH).trace);
}

#[test]
fn one_seed() {
    let Some(seed) = seeds::single() else { return };
    let faults = match seed {
        0..1000 => GOOD,
        1000..2000 => MILD,
        _ => HARSH,
    };
    println!("{:?}", run(seed, faults));
}
