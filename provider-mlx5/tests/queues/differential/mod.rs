//! Random requests, in all ways in which a queue takes them, against a model of the queue.
//!
//! A request may be posted alone or in a list, built in a batch or step by step, from its types, a
//! template, a value that names its operation at run time, or bytes that the program encoded. The
//! bytes in the ring must be the same each time, and each way has to see when the ring is full,
//! wraps, or has a request that changes a key before it. The rings are small, so these cases are
//! common; the counters begin where 16, 31 or 32 bits overflow soon.
//!
//! After each operation the queue is compared with the [model](model): the bytes of all requests in
//! flight, the doorbell record and the register; their ids and the free space now and then. The
//! bytes that the model wants come from [another queue](builds::Encode), where the request is built
//! alone, at the start of an empty ring; whether these are right is for other tests.
//!
//! `UVERBS_ROUNDS` is the number of operations on each queue (24 if not set); a longer run is
//! `UVERBS_ROUNDS=1000 cargo test --release -p uverbs-mlx5 --test queues differential`.
//! A failure prints both variables that repeat it, the queue and its last operations.

mod builds;
mod kinds;
mod model;
mod operations;
mod requests;
mod steps;
mod trial;
mod ways;

use std::str::FromStr;

use uverbs_mlx5::send_queue::{Dci, RawEthernet, Rc, Ud};

use requests::Tried;
use trial::{Counts, Setting, Trial};

const DEFAULT_ROUNDS: usize = 24;

/// Register halves: those of the devices, less, and no copies at all.
const HALVES: [u32; 4] = [256, 0, 64, 128];

/// Counters at the start and before overflows of 16, 32 and 31 bits.
const HEADS: [u32; 4] = [0, 0xfff0, 0xffff_fff0, 0x7fff_fff0];

#[test]
fn random_requests_of_rc_are_built_as_the_model_says() {
    try_all_settings::<Rc>();
}

#[test]
fn random_requests_of_ud_are_built_as_the_model_says() {
    try_all_settings::<Ud>();
}

#[test]
fn random_requests_of_dc_are_built_as_the_model_says() {
    try_all_settings::<Dci>();
}

#[test]
fn random_requests_of_raw_ethernet_are_built_as_the_model_says() {
    try_all_settings::<RawEthernet>();
}

/// Many laps of a ring, without a reset.
#[test]
fn many_random_requests_are_built_as_the_model_says() {
    let first = first_seed();
    for (blocks, half) in [(4, 256), (16, 256), (32, 0)] {
        let setting = Setting { blocks, max_requests: blocks, half, head: 0 };
        let seed = first + 77 + u64::from(blocks);
        try_queue::<Rc>(setting, seed, 250 * rounds(), false);
        try_queue::<Ud>(setting, seed, 250 * rounds(), false);
    }
}

fn try_all_settings<T: Tried>() {
    let first = first_seed();
    let mut all = Counts::default();
    for (seed, setting) in (first + 1..).zip(settings()) {
        all.add(&try_queue::<T>(setting, seed, rounds(), seed % 3 == 0));
    }
    // Sequences in which these never happen would compare little.
    if rounds() >= DEFAULT_ROUNDS {
        assert!(all.posted > 0 && all.full > 0 && all.panicked > 0, "{all:?}");
        assert_eq!(all.in_steps > 0, T::HAS_RUN_TIME_FORMS, "{all:?}");
    }
}

/// Rings of all sizes, with as many requests as blocks, or fewer.
fn settings() -> Vec<Setting> {
    let mut settings = Vec::new();
    for blocks in [1, 2, 4, 8, 16, 64] {
        let limits = [blocks, blocks / 2, 3, 1];
        for max_requests in limits.into_iter().filter(|limit| (1..=blocks).contains(limit)) {
            for half in HALVES {
                settings.extend(HEADS.map(|head| Setting { blocks, max_requests, half, head }));
            }
        }
    }
    settings
}

/// Tries random operations on a queue.
fn try_queue<T: Tried>(setting: Setting, seed: u64, rounds: usize, has_resets: bool) -> Counts {
    println!("{setting}, resets: {has_resets}");
    let mut trial = Trial::<T>::new(setting, seed);
    for _ in 0..rounds {
        operate(&mut trial, has_resets);
    }
    println!("{:?}, counter {:#x}", trial.counts, trial.model.next.head);
    trial.counts.clone()
}

fn operate<T: Tried>(trial: &mut Trial<T>, has_resets: bool) {
    match trial.random.below(16) {
        0..=5 => trial.post_one(),
        6 | 10 if T::HAS_RUN_TIME_FORMS => trial.steps(),
        6..=8 => trial.batch(),
        9 => trial.list(),
        11 if trial.happens_once_in(3) => trial.publish(),
        11 if has_resets && trial.happens_once_in(40) => trial.reset(),
        11 => trial.recheck(),
        _ => trial.complete(),
    }
}

fn rounds() -> usize {
    variable("UVERBS_ROUNDS").unwrap_or(DEFAULT_ROUNDS)
}

/// The seed of the first queue, which the harness shows if the test fails; each other queue has the
/// next.
fn first_seed() -> u64 {
    let seed = variable("UVERBS_SEED").unwrap_or(0);
    println!("UVERBS_SEED={seed} UVERBS_ROUNDS={}", rounds());
    seed
}

/// The number in an environment variable; a typing error must not pass for an unset one.
fn variable<N: FromStr>(name: &str) -> Option<N> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}
