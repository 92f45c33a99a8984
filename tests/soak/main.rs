//! Random traffic over all QP types between two devices. Their link (RoCE or InfiniBand within the
//! process, shared memory, or UDP) loses, delays, duplicates, reorders and corrupts packets.
//! Meanwhile queue pairs are created and destroyed, completion queues are resized, and commands
//! fail. Reliable services must lose, repeat and change no message; the others must change none;
//! and no resource may grow.
//!
//! `UVERBS_SOAK_SECONDS` is the time for each link in seconds (default 1), `UVERBS_FAULT_SEED` the
//! seed of all choices.

#[path = "../common/mod.rs"]
mod common;
mod heap;
mod inventory;
mod link;
#[path = "../faults_observed/network.rs"]
mod network;
mod side;
mod world;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use inventory::Inventory;
use network::Medium;
use world::World;

/// Number of steps after which all links are ended and all resources counted.
const EPOCH: u32 = 400;
/// Epochs after which allocators and pools no longer grow.
const WARM_UP: u64 = 3;

fn duration() -> Duration {
    let set = std::env::var("UVERBS_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(set.unwrap_or(1))
}

/// Descriptors and pages are counted per process, so one link runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn traffic_under_random_faults_over_roce_loses_repeats_and_leaks_nothing() {
    soak(Medium::Roce, 0x50a4);
}

#[test]
fn traffic_under_random_faults_over_infiniband() {
    soak(Medium::InfiniBand, 0x1b50a4);
}

#[test]
fn traffic_under_random_faults_over_udp() {
    soak(Medium::Udp, 0x0d50a4);
}

#[test]
fn traffic_under_random_faults_through_shared_memory() {
    soak(Medium::Memory, 0x5a4ed);
}

fn soak(medium: Medium, seed: u64) {
    let _alone = alone();
    let (start, length) = (Instant::now(), duration());
    let mut world = World::new(medium, network::seed(seed));
    let mut first: Option<Inventory> = None;
    let (mut epochs, mut most) = (0u64, 0);
    while start.elapsed() < length || epochs <= WARM_UP {
        (0..EPOCH).for_each(|_| world.step());
        world.take_down();
        epochs += 1;
        let now = world.inventory();
        if epochs == WARM_UP {
            println!("first: {now:?}");
            first = Some(now);
        } else if let Some(first) = &first {
            first.assert_same(&now);
            most = most.max(now.heap_bytes);
        }
    }
    println!("{epochs} epochs, at most {most} bytes of heap, last: {:?}", world.inventory());
    let summary = world.summary();
    println!("{summary:#?}");
    // Every epoch tries far more actions of each kind, so a low count shows that one has stopped.
    for what in ["resized completion queues", "creations with an injected failure", "links ended"] {
        assert!(summary.get(what).is_some_and(|count| *count > epochs), "{what}");
    }
}
