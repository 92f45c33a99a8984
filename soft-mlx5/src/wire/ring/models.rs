//! Models of the accesses of both sides of a ring to the same words.
//!
//! Each test runs the ring's own code with the model checker's atomics, under every interleaving
//! and every reordering that the memory model allows, up to a few preemptions. A second test
//! weakens one ordering and must fail, which shows that the model would find the mistake.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p uverbs-soft --lib --release models`

use std::sync::atomic::Ordering;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, fence};
use loom::thread;

use super::{CELL, Consumer, Control, Producer, Tag, Words};

/// The ordering that the model's memory leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weak {
    /// Nothing.
    Sound,
    /// Accesses to this count are relaxed.
    Count(Control),
    /// There is no fence.
    Fence,
}

/// A ring of one cell.
struct Memory {
    weak: Weak,
    controls: [AtomicU64; 4],
    words: [AtomicU64; CELL],
}

impl Memory {
    fn new(weak: Weak) -> Arc<Self> {
        let zeros = || std::array::from_fn(|_| AtomicU64::new(0));
        Arc::new(Self {
            weak,
            controls: zeros(),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        })
    }

    fn order(&self, which: Control, order: Ordering) -> Ordering {
        if self.weak == Weak::Count(which) { Ordering::Relaxed } else { order }
    }
}

impl Words for Arc<Memory> {
    fn cells(&self) -> u64 {
        1
    }

    fn control(&self, which: Control, order: Ordering) -> u64 {
        self.controls[which as usize].load(self.order(which, order))
    }

    fn set_control(&self, which: Control, value: u64, order: Ordering) {
        self.controls[which as usize].store(value, self.order(which, order));
    }

    fn take_control(&self, which: Control) -> u64 {
        self.controls[which as usize].swap(0, Ordering::Relaxed)
    }

    fn word(&self, at: u64) -> u64 {
        self.words[at as usize % CELL].load(Ordering::Relaxed)
    }

    fn set_word(&self, at: u64, value: u64) {
        self.words[at as usize % CELL].store(value, Ordering::Relaxed);
    }

    fn fence(&self) {
        if self.weak != Weak::Fence {
            fence(Ordering::SeqCst);
        }
    }
}

/// Explores `model` with as many preemptions as finish in seconds.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

fn pop(consumer: &mut Consumer<Arc<Memory>>) -> Option<u8> {
    let mut bytes = Vec::new();
    let tag = consumer.has_packet().unwrap().then(|| consumer.pop(&mut bytes).unwrap())?;
    assert_eq!(bytes, [tag.class; 3], "tag and bytes are of different packets");
    Some(tag.class)
}

fn push(producer: &mut Producer<Arc<Memory>>, class: u8) -> bool {
    producer.push(Tag { class, hop_limit: 1 }, &[class; 3]).unwrap()
}

/// Packets arrive complete, in order, each at most once; the second packet reuses the first one's
/// cell.
fn contents(weak: Weak) {
    check(move || {
        let memory = Memory::new(weak);
        let mut producer = Producer::new(memory.clone());
        let sender = thread::spawn(move || {
            assert!(push(&mut producer, 1));
            push(&mut producer, 2)
        });
        let mut consumer = Consumer::new(memory);
        let mut seen = Vec::new();
        for _ in 0..2 {
            seen.extend(pop(&mut consumer));
            consumer.give_back();
        }
        let both = sender.join().unwrap();
        while let Some(class) = pop(&mut consumer) {
            seen.push(class);
            consumer.give_back();
        }
        assert_eq!(seen, if both { vec![1, 2] } else { vec![1] });
    });
}

#[test]
fn packets_come_whole_and_in_order() {
    contents(Weak::Sound);
}

#[test]
#[should_panic]
fn a_relaxed_head_shows_a_packet_too_soon() {
    contents(Weak::Count(Control::Head));
}

/// `work` returns whether it wakes the other side, and `prepare` whether that side goes to sleep.
fn no_side_sleeps_for_ever(
    work: impl FnOnce() -> bool + Send + 'static,
    prepare: impl FnOnce() -> bool,
) {
    let worker = thread::spawn(work);
    let sleeps = prepare();
    let wakes = worker.join().unwrap();
    assert!(!sleeps || wakes, "it sleeps for ever");
}

/// One side prepares to sleep while the other publishes work: either the first sees the work, or
/// the second wakes it.
fn sleep(weak: Weak) {
    check(move || {
        let memory = Memory::new(weak);
        let mut producer = Producer::new(memory.clone());
        let sends = move || {
            assert!(push(&mut producer, 1));
            producer.must_wake()
        };
        no_side_sleeps_for_ever(sends, || Consumer::new(memory).prepare_sleep().unwrap());
    });
}

#[test]
fn no_packet_is_slept_through() {
    sleep(Weak::Sound);
}

#[test]
#[should_panic = "it sleeps for ever"]
fn without_the_fence_a_packet_is_slept_through() {
    sleep(Weak::Fence);
}

/// The reverse: a producer that sleeps until there is space.
fn free_space(weak: Weak) {
    check(move || {
        let memory = Memory::new(weak);
        let mut producer = Producer::new(memory.clone());
        assert!(push(&mut producer, 1));
        let mut consumer = Consumer::new(memory);
        let receives = move || {
            assert_eq!(pop(&mut consumer), Some(1));
            consumer.give_back()
        };
        no_side_sleeps_for_ever(receives, || producer.prepare_sleep(3).unwrap());
    });
}

#[test]
fn no_free_space_is_slept_through() {
    free_space(Weak::Sound);
}

#[test]
#[should_panic = "it sleeps for ever"]
fn without_the_fence_free_space_is_slept_through() {
    free_space(Weak::Fence);
}
