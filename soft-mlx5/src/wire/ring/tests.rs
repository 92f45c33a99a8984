use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, fence};

use super::*;
use crate::prng::Prng;

/// A ring in plain memory.
const CELLS: u64 = 128;

struct Memory {
    controls: [AtomicU64; 4],
    words: Vec<AtomicU64>,
}

impl Memory {
    fn new() -> Arc<Self> {
        let words = (0..CELLS * CELL as u64).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { controls: Default::default(), words })
    }

    fn at(&self, at: u64) -> &AtomicU64 {
        &self.words[at as usize % self.words.len()]
    }
}

impl Words for Arc<Memory> {
    fn cells(&self) -> u64 {
        CELLS
    }

    fn control(&self, which: Control, order: Ordering) -> u64 {
        self.controls[which as usize].load(order)
    }

    fn set_control(&self, which: Control, value: u64, order: Ordering) {
        self.controls[which as usize].store(value, order);
    }

    fn take_control(&self, which: Control) -> u64 {
        self.controls[which as usize].swap(0, Ordering::Relaxed)
    }

    fn word(&self, at: u64) -> u64 {
        self.at(at).load(Ordering::Relaxed)
    }

    fn set_word(&self, at: u64, value: u64) {
        self.at(at).store(value, Ordering::Relaxed);
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

fn ring() -> (Arc<Memory>, Producer<Arc<Memory>>, Consumer<Arc<Memory>>) {
    let memory = Memory::new();
    (memory.clone(), Producer::new(memory.clone()), Consumer::new(memory))
}

fn set(memory: &Arc<Memory>, which: Control, value: u64) {
    memory.set_control(which, value, Ordering::Relaxed);
}

fn pop(consumer: &mut Consumer<Arc<Memory>>) -> Result<Option<(Tag, Vec<u8>)>, Corrupt> {
    let mut bytes = vec![9; 20];
    if !consumer.has_packet()? {
        return Ok(None);
    }
    Ok(Some((consumer.pop(&mut bytes)?, bytes)))
}

#[test]
fn a_ring_is_a_queue_of_limited_space() {
    for seed in 0..20 {
        let mut prng = Prng::new(seed);
        let (_, mut producer, mut consumer) = ring();
        let (mut model, mut held, mut taken) = (VecDeque::new(), 0, 0);
        for step in 0..5000 {
            let len =
                if prng.chance(500_000) { prng.below(200) } else { prng.below(4161) } as usize;
            if prng.chance(500_000) {
                let tag = Tag { class: step as u8, hop_limit: prng.below(256) as u8 };
                let bytes: Vec<u8> = (0..len).map(|_| prng.below(256) as u8).collect();
                let fits = held + taken + cells(len) <= CELLS;
                assert_eq!(producer.push(tag, &bytes), Ok(fits), "seed {seed}, step {step}");
                if fits {
                    held += cells(len);
                    model.push_back((tag, bytes));
                }
            } else {
                let popped = pop(&mut consumer).unwrap();
                assert_eq!(popped, model.pop_front(), "seed {seed}, step {step}");
                let size = popped.map_or(0, |(_, bytes)| cells(bytes.len()));
                (held, taken) = (held - size, taken + size);
                if prng.chance(700_000) {
                    consumer.give_back();
                    taken = 0;
                }
            }
        }
    }
}

#[test]
fn packets_of_every_length_are_transferred() {
    let (_, mut producer, mut consumer) = ring();
    for len in 0..=MAX_PACKET {
        let bytes: Vec<u8> = (0..len).map(|at| (at ^ len) as u8).collect();
        let tag = Tag { class: 0xff, hop_limit: len as u8 };
        assert_eq!(producer.push(tag, &bytes), Ok(true));
        assert_eq!(pop(&mut consumer), Ok(Some((tag, bytes))));
        consumer.give_back();
    }
}

#[test]
fn a_buffer_does_not_grow() {
    let (_, mut producer, mut consumer) = ring();
    let mut packet = crate::packet::Packet::new();
    let room = packet.bytes_mut().capacity();
    assert_eq!(producer.push(Tag::default(), &[1; MAX_PACKET]), Ok(true));
    assert!(consumer.has_packet().unwrap());
    consumer.pop(packet.bytes_mut()).unwrap();
    assert_eq!((packet.bytes().len(), packet.bytes_mut().capacity()), (MAX_PACKET, room));
}

#[test]
fn a_sleeping_end_is_woken_once_and_only_for_packets_or_space() {
    let (_, mut producer, mut consumer) = ring();
    assert!(producer.push(Tag::default(), b"one").unwrap() && !producer.must_wake());
    assert_eq!(consumer.prepare_sleep(), Ok(false), "there is a packet");
    consumer.end_sleep();
    pop(&mut consumer).unwrap().unwrap();
    assert!(!consumer.give_back(), "the producer does not sleep");
    assert_eq!(consumer.prepare_sleep(), Ok(true));
    assert!(producer.push(Tag::default(), b"two").unwrap() && producer.must_wake());
    assert!(!producer.must_wake());
    while producer.push(Tag::default(), &[0; 1000]).unwrap() {}
    assert_eq!(producer.prepare_sleep(3), Ok(false), "there is space for a smaller packet");
    assert_eq!(producer.prepare_sleep(1000), Ok(true));
    assert!(!consumer.give_back(), "nothing was taken");
    pop(&mut consumer).unwrap().unwrap();
    assert!(consumer.give_back());
    pop(&mut consumer).unwrap().unwrap();
    assert!(!consumer.give_back(), "once");
}

#[test]
fn impossible_counts_and_lengths_are_corrupt() {
    for head in [CELLS + 1, u64::MAX, 1 << 63] {
        let (memory, _, mut consumer) = ring();
        set(&memory, Control::Head, head);
        assert_eq!((consumer.prepare_sleep(), consumer.has_packet()), (Err(Corrupt), Err(Corrupt)));
    }
    for tail in [1, CELLS, 1 << 63] {
        let (memory, producer, _) = ring();
        set(&memory, Control::Tail, tail);
        // The consumer has freed more than was written.
        assert_eq!(producer.prepare_sleep(1), Err(Corrupt), "{tail}");
    }
    for len in [57, MAX_PACKET as u64 + 1, 0xffff] {
        let (memory, _, mut consumer) = ring();
        memory.set_word(0, len);
        set(&memory, Control::Head, 1);
        assert_eq!(pop(&mut consumer), Err(Corrupt), "{len} bytes in a cell");
    }
    let (memory, mut producer, mut consumer) = ring();
    assert!(producer.push(Tag::default(), b"x").unwrap());
    pop(&mut consumer).unwrap().unwrap();
    set(&memory, Control::Head, 0);
    assert_eq!(consumer.has_packet(), Err(Corrupt), "the head has moved back");
}

#[test]
fn random_memory_causes_no_panic() {
    let mut prng = Prng::new(0x11e);
    for _ in 0..2000 {
        let (memory, mut producer, mut consumer) = ring();
        memory.words.iter().for_each(|word| {
            word.store(prng.below(70) << prng.below(40), Ordering::Relaxed);
        });
        for which in [Control::Head, Control::Tail] {
            set(&memory, which, prng.below(CELLS + 2));
        }
        let mut bytes = Vec::new();
        for _ in 0..CELLS {
            let _ = producer.push(Tag::default(), &[1; 100]);
            let popped = consumer.has_packet().and_then(|has| match has {
                true => consumer.pop(&mut bytes).map(drop),
                false => Ok(()),
            });
            assert!(bytes.len() <= MAX_PACKET || popped.is_err());
            consumer.give_back();
            let _ = (producer.prepare_sleep(7), consumer.prepare_sleep());
        }
    }
}

#[test]
fn two_threads_pass_packets_in_order() {
    const COUNT: u32 = 20_000;
    let (_, mut producer, mut consumer) = ring();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for n in 0..COUNT {
                let bytes = vec![n as u8; n as usize % 700];
                while !producer.push(Tag { class: n as u8, hop_limit: 0 }, &bytes).unwrap() {
                    std::thread::yield_now();
                }
            }
        });
        for n in 0..COUNT {
            let (tag, bytes) = loop {
                match pop(&mut consumer).unwrap() {
                    Some(packet) => break packet,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!((tag.class, bytes), (n as u8, vec![n as u8; n as usize % 700]));
            consumer.give_back();
        }
    });
}
