//! Random programs on simulated devices whose network loses, duplicates, reorders, delays and
//! corrupts packets. At the end memory must be equal to that of a simple model, and every signaled
//! request must have completed once, in order.
//!
//! `SEED=n cargo test -p uverbs-soft --test simulation one_seed` repeats one run;
//! `RUNS=n` sets how many seeds each test tries.

mod driver;
#[path = "../cm/tests/connections/seeds.rs"]
mod seeds;

use driver::model::{Run, Shape};

const SMALL: Shape = Shape { hosts: 3, pairs: 3, requests: 40, faults: [0; 5] };

/// Parts per million of drop, duplicate, corrupt, reorder, delay.
const MILD: [u32; 5] = [10_000, 10_000, 5_000, 20_000, 20_000];
const HARSH: [u32; 5] = [30_000, 50_000, 20_000, 80_000, 80_000];

fn runs() -> u64 {
    seeds::runs(12)
}

/// One run; the seed is printed if it fails.
fn run(seed: u64, shape: Shape) -> u64 {
    seeds::print_if_panics(seed, || {
        let mut run = Run::new(seed, shape);
        run.run();
        run.verify();
        run.world.trace()
    })
}

fn try_seeds(first: u64, shape: Shape) {
    for seed in first..first + runs() {
        run(seed, shape);
    }
}

#[test]
fn programs_do_what_the_model_does_on_a_good_network() {
    try_seeds(0, SMALL);
}

#[test]
fn programs_do_what_the_model_does_on_a_bad_network() {
    try_seeds(1000, Shape { faults: MILD, ..SMALL });
}

#[test]
fn programs_do_what_the_model_does_on_a_terrible_network() {
    try_seeds(2000, Shape { faults: HARSH, ..SMALL });
}

#[test]
fn many_queue_pairs_share_a_bad_network() {
    run(3000, Shape { hosts: 4, pairs: 40, requests: 25, faults: MILD });
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let shape = Shape { faults: HARSH, ..SMALL };
    assert_eq!(run(7, shape), run(7, shape));
    assert_ne!(run(7, shape), run(8, shape));
}

#[test]
fn one_seed() {
    let Some(seed) = seeds::single() else { return };
    let faults = match seed {
        0..1000 => [0; 5],
        2000..3000 => HARSH,
        _ => MILD,
    };
    run(seed, Shape { faults, ..SMALL });
}
