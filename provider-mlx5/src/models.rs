//! Model-checked accesses of two threads, or of a thread and the device, to the same words.
//!
//! Each test runs the crate's own code (or, where the words are in a ring, the same steps on words
//! of the model) under every interleaving and every reordering that the memory model allows, up to
//! a few preemptions. Each has a twin in which one ordering is weakened and which must fail, to
//! show that the model finds that mistake. The other party's accesses are loom cells, in which a
//! race is an error.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p uverbs-mlx5 --lib --release models`

#![allow(unsafe_code)]

use core::ptr::NonNull;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use loom::thread;

use crate::completion_queue::{CompletionQueue, CompletionQueueConfig};
use crate::doorbell::DoorbellWord;
use crate::format::{CqeFormat, CqeOpcode, MiniCqeFormat, OpOwn};
use crate::free_list::{ANY, FreeList, list_of};
use crate::free_stack::{FreeStack, Returned};
use crate::memory::DmaMemory;
use crate::mmio::sealed::Sealed;
use crate::mmio::{ArmRegister, BlueFlame, SharedBlueFlame};
use crate::queue_state::{PolledReceives, QpState, QueueState, Shape};
use crate::recv_queue::{RecvQueue, RecvQueueConfig};
use crate::shown_ring::Ring;
use crate::user_index::{QueueHandle, UserIndexTable, WasReset};

/// Explores `model` with as many preemptions as finish in seconds.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

const RECEIVES: Shape = Shape { send_wqebbs: 0, recv_wqes: 1, shared_receive: false };

#[repr(align(64))]
struct Lines {
    _bytes: [u8; 256],
}

/// Memory that the models do not check, because only one side accesses it.
fn lines() -> NonNull<u8> {
    NonNull::from(Box::leak(Box::new(Lines { _bytes: [0; 256] }))).cast()
}

/// A word of the model that replaces one of a doorbell record.
fn word() -> (&'static AtomicU32, DoorbellWord) {
    let word: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(0)));
    // SAFETY: under the model checker a doorbell word is one of its atomics, which this is; it is
    // never freed.
    (word, unsafe { DoorbellWord::new(NonNull::from(word).cast()) })
}

mod owner_bit {
    use super::*;

    /// The device writes a CQE, its last byte last; the poller reads that byte first.
    fn cqe(poll: fn(&AtomicU32) -> bool) {
        let cqe = Arc::new((AtomicU64::new(0), AtomicU32::new(1)));
        let device = cqe.clone();
        let device = thread::spawn(move || {
            device.0.store(7, Ordering::Relaxed);
            device.1.store(0, Ordering::Release);
        });
        if poll(&cqe.1) {
            assert_eq!(cqe.0.load(Ordering::Relaxed), 7, "read before it was written");
        }
        device.join().unwrap();
    }

    #[test]
    fn the_barrier_orders_owner_and_contents() {
        check(|| {
            cqe(|owner| {
                let ours = owner.load(Ordering::Relaxed) == 0;
                crate::barrier::from_device();
                ours
            });
        });
    }

    /// The consumer index gives the place back to the device, which writes the next CQE there.
    fn place(give_back: fn(&DoorbellWord)) {
        let (index, consumer) = word();
        let cqe = Arc::new(UnsafeCell::new(()));
        let device = cqe.clone();
        let device = thread::spawn(move || {
            if index.load(Ordering::Acquire) != 0 {
                device.with_mut(|_| ());
            }
        });
        cqe.with(|_| ());
        give_back(&consumer);
        device.join().unwrap();
    }

    #[test]
    fn a_cqe_is_read_before_its_place_is_given_back() {
        check(|| place(|consumer| consumer.store_release(1)));
    }

    #[test]
    #[should_panic]
    fn a_relaxed_consumer_index_gives_it_back_too_soon() {
        check(|| place(|consumer| consumer.store(1)));
    }

    #[test]
    #[should_panic = "read before it was written"]
    fn without_the_barrier_old_contents_are_seen() {
        check(|| cqe(|owner| owner.load(Ordering::Relaxed) == 0));
    }
}

mod doorbell_record {
    use super::*;

    /// A receive queue of one entry, and the table of the handle.
    fn queue(table: &UserIndexTable) -> (&'static AtomicU32, RecvQueue) {
        let handle = table.register(RECEIVES, &[], None, 0).unwrap();
        handle.set_state(QpState::Rts);
        let (record, doorbell) = word();
        let config = RecvQueueConfig {
            // SAFETY: 256 bytes that are never freed and that only this queue touches.
            memory: unsafe { DmaMemory::new(lines(), 256) },
            doorbell,
            handle,
            stride: 64,
            head_octowords: 0,
            scatter_to_cqe: false,
        };
        (record, RecvQueue::new(config).unwrap())
    }

    /// What the device sees of an entry once the doorbell record counts it.
    fn device(record: &AtomicU32, handle: &QueueHandle) {
        if u32::from_be(record.load(Ordering::Acquire)) == 1 {
            let seen = handle.state().recv_entry(0).load(Ordering::Relaxed);
            assert_eq!(seen, 9, "announced before it was written");
        }
    }

    #[test]
    fn an_entry_is_there_before_the_record_counts_it() {
        check(|| {
            let table = UserIndexTable::new();
            let (record, mut queue) = queue(&table);
            let handle = queue.handle().clone();
            let device = thread::spawn(move || device(record, &handle));
            // SAFETY: the entry names no memory.
            unsafe { queue.build(9, &[]) }.unwrap();
            queue.publish();
            device.join().unwrap();
        });
    }

    #[test]
    #[should_panic = "announced before it was written"]
    fn without_the_barrier_the_record_overtakes_the_entry() {
        check(|| {
            let table = UserIndexTable::new();
            let (record, queue) = queue(&table);
            let handle = queue.handle().clone();
            let device = thread::spawn(move || device(record, &handle));
            queue.handle().state().recv_entry(0).store(9, Ordering::Relaxed);
            record.store(1u32.to_be(), Ordering::Relaxed);
            device.join().unwrap();
        });
    }
}

mod tail {
    use super::*;

    /// The poller reads an entry and retires it. When the posting side sees that, it fills the
    /// entry again.
    fn entry(publish: fn(&QueueState), retire: fn(&QueueState), retired: fn(&QueueState) -> bool) {
        let shared = Arc::new((QueueState::new(RECEIVES), UnsafeCell::new(1)));
        publish(&shared.0);
        let poller = shared.clone();
        let poller = thread::spawn(move || {
            // SAFETY: the loom cell itself checks that no thread writes meanwhile.
            assert_eq!(poller.1.with(|id| unsafe { *id }), 1);
            retire(&poller.0);
        });
        if retired(&shared.0) {
            // SAFETY: the loom cell itself checks that no thread reads meanwhile.
            shared.1.with_mut(|id| unsafe { *id = 2 });
        }
        poller.join().unwrap();
    }

    #[test]
    fn what_was_retired_was_read() {
        let receive = |state: &QueueState| {
            assert!(state.has_receive(0));
            state.complete_receives(0);
        };
        check(move || {
            entry(|state| state.publish_receives(1), receive, |state| state.completed_recv() == 0);
        });
        let send = |state: &QueueState| {
            assert!(state.has_send(0));
            state.complete_sends(0);
        };
        check(move || {
            entry(|state| state.publish_sends(1), send, |state| state.completed_send() == 0);
        });
    }

    /// The device completes a request that is still being published, so the CQE does not order the
    /// load of the request's id.
    fn own_id(poll: fn(&QueueState) -> Option<u64>) {
        let table = UserIndexTable::new();
        let handle = table.register(RECEIVES, &[], None, 0).unwrap();
        let posting = handle.clone();
        let posting = thread::spawn(move || {
            posting.state().recv_entry(0).store(9, Ordering::Relaxed);
            posting.state().publish_receives(1);
        });
        let id = poll(handle.state());
        assert!(id.is_none_or(|id| id == 9), "the id of the request before it");
        posting.join().unwrap();
    }

    #[test]
    fn a_request_completes_with_its_own_id() {
        // SAFETY: no other thread polls.
        check(|| own_id(|state| unsafe { PolledReceives::new(state) }.complete(0)));
    }

    #[test]
    #[should_panic = "the id of the request before it"]
    fn an_id_that_is_loaded_too_soon_is_of_the_request_before() {
        check(|| {
            own_id(|state| {
                let id = state.recv_entry(0).load(Ordering::Relaxed);
                // SAFETY: no other thread polls.
                unsafe { PolledReceives::new(state) }.outstanding(0).map(|_| id)
            });
        });
    }

    #[test]
    #[should_panic]
    fn a_relaxed_tail_lets_the_poster_overtake() {
        // The number is accessed without ordering. Here it replaces the tail.
        let retired = |state: &QueueState| state.number() == 1;
        check(move || entry(|_| (), |state| state.set_number(1), retired));
    }
}

mod user_index {
    use super::*;

    /// Writes a receive's CQE of the first user index at `index` of a ring, in the first lap.
    fn write_cqe(ring: NonNull<u8>, index: usize) {
        let owner = OpOwn::new(CqeOpcode::RESPONDER_SEND, CqeFormat::NO_INLINE, false, false).0;
        // SAFETY: inside the ring; the model runs one thread at a time.
        unsafe {
            ring.add(64 * index + 34).write(1);
            ring.add(64 * index + 63).write(owner);
        }
    }

    /// A CQ of this ring, with two entries, the first of which holds a CQE of the first user index.
    fn cq(table: &UserIndexTable, ring: NonNull<u8>) -> CompletionQueue {
        let (_, consumer) = word();
        let (_, arm) = word();
        let cq = CompletionQueue::new(CompletionQueueConfig {
            // SAFETY: 128 bytes that are never freed, and that the model's device writes besides.
            memory: unsafe { DmaMemory::new(ring, 128) },
            entries: 2,
            cqe_size: 64,
            doorbell: (consumer, arm),
            // SAFETY: 8 aligned bytes that are never freed.
            arm: unsafe { ArmRegister::new(lines().cast()) },
            number: 1,
            table,
            mini_format: Some(MiniCqeFormat::HASH),
            null_lkey: None,
        });
        write_cqe(ring, 0);
        cq.unwrap()
    }

    /// The capacity of an SRQ changes while a queue that consumes it is registered.
    #[test]
    fn a_cq_bears_each_load_once() {
        check(|| {
            let table = UserIndexTable::new();
            let cq = cq(&table, lines());
            let shape = Shape { send_wqebbs: 0, recv_wqes: 2, shared_receive: true };
            let srq = table.register(shape, &[], None, 0).unwrap();
            let consumed = srq.clone();
            let setter = thread::spawn(move || consumed.set_capacity(0, 2));
            let pair = Shape { send_wqebbs: 0, recv_wqes: 0, shared_receive: false };
            let pair = table.register(pair, &[cq.monitor()], Some(&srq), 0).unwrap();
            setter.join().unwrap();
            assert!(cq.monitor().can_overrun(), "it holds one");
            srq.set_capacity(0, 1);
            assert!(!cq.monitor().can_overrun());
            drop(pair);
        });
    }

    /// A queue closes and another one is opened while its CQE is being polled.
    fn reuse(watched: bool) {
        let table = UserIndexTable::new();
        let mut cq = cq(&table, lines());
        let monitors = if watched { vec![cq.monitor()] } else { Vec::new() };
        let handle = table.register(RECEIVES, &monitors, None, 1).unwrap();
        assert_eq!(handle.user_index(), 0x100);
        if !watched {
            handle.state().complete_anywhere();
        }
        // Both queues have posted the receive that the CQE names.
        handle.state().publish_receives(1);
        let closer = thread::spawn(move || {
            handle.close();
            drop(handle);
            let next = table.register(RECEIVES, &monitors, None, 2).unwrap();
            if monitors.is_empty() {
                next.state().complete_anywhere();
            }
            next.state().publish_receives(1);
            next
        });
        let contexts = [0; 2].map(|_| cq.poll().map_or(1, |completion| completion.user_context()));
        drop(closer.join().unwrap());
        assert_eq!(contexts, [1; 2], "a completion of the next queue");
    }

    #[test]
    fn an_index_is_reused_once_its_completions_are_polled() {
        check(|| reuse(true));
    }

    #[test]
    #[should_panic = "a completion of the next queue"]
    fn an_index_reused_at_once_meets_old_completions() {
        check(|| reuse(false));
    }

    /// A queue is reset while its CQE is being polled, and completes a receive in its next life.
    fn reset(watched: bool) {
        let table = UserIndexTable::new();
        let ring = lines();
        let mut cq = cq(&table, ring);
        let monitors = if watched { vec![cq.monitor()] } else { Vec::new() };
        let handle = table.register(RECEIVES, &monitors, None, 0).unwrap();
        if !watched {
            handle.state().complete_anywhere();
        }
        let post = |handle: &QueueHandle, wr_id| {
            handle.state().recv_entry(0).store(wr_id, Ordering::Relaxed);
            handle.state().publish_receives(1);
        };
        post(&handle, 1);
        let resetter = thread::spawn(move || {
            // SAFETY: the model's device accesses no memory that requests name.
            let next = handle.renew(unsafe { WasReset::new() });
            post(&next, 2);
            (handle, next)
        });
        let mut ids = Vec::new();
        let mut poll = || {
            if let Ok(completion) = cq.poll() {
                ids.push(completion.wr_id());
            }
        };
        poll();
        let lives = resetter.join().unwrap();
        // The device knows of the next life's receive by a doorbell that was rung after the reset.
        write_cqe(ring, 1);
        poll();
        poll();
        drop(lives);
        assert!(ids == [1, 2] || ids == [2], "{ids:?}: each life has its own");
        assert_eq!(cq.consumer_index(), 2);
        assert_eq!(cq.dropped() + ids.len() as u64, 2, "the old life's CQE completed the next one");
    }

    #[test]
    fn completions_of_before_a_reset_are_of_the_old_life_or_dropped() {
        check(|| reset(true));
    }

    #[test]
    #[should_panic]
    fn a_reset_that_looks_into_no_cq_meets_old_completions() {
        check(|| reset(false));
    }

    /// A ring's memory is freed after `close`, and the poller reads it only before.
    fn ring(close: fn(&QueueHandle)) {
        let table = UserIndexTable::new();
        let handle = table.register(RECEIVES, &[], None, 1).unwrap();
        let ring = Ring::on(DmaMemory::leaked(64), 1, 64, 0);
        handle.state().set_recv_ring(ring.as_ref());
        let memory = Arc::new(UnsafeCell::new(()));
        let (poller, seen) = (handle.clone(), memory.clone());
        let poller = thread::spawn(move || {
            poller.state().with_recv_ring(|_| seen.with(|_| ()));
        });
        close(&handle);
        memory.with_mut(|_| ());
        poller.join().unwrap();
    }

    #[test]
    fn a_closed_ring_is_not_looked_into() {
        check(|| ring(QueueHandle::close));
    }

    #[test]
    #[should_panic]
    fn a_ring_that_is_not_closed_is() {
        check(|| ring(|_| {}));
    }
}

mod shared_register {
    use super::*;

    /// Two queues ring the same register, which the cell represents.
    #[test]
    fn one_queue_at_a_time_has_the_register() {
        check(|| {
            // SAFETY: 256 bytes, aligned to 64, that are never freed.
            let register = SharedBlueFlame::new(unsafe { BlueFlame::new(lines(), 32) });
            let cell = Arc::new(UnsafeCell::new(()));
            let (mut other, seen) = (register.clone(), cell.clone());
            let mut register = register;
            let queue =
                thread::spawn(move || other.with(|_: &mut BlueFlame| seen.with_mut(|_| ())));
            register.with(|_: &mut BlueFlame| cell.with_mut(|_| ()));
            queue.join().unwrap();
        });
    }

    /// The same lock, given back in this order.
    fn given_back(order: Ordering) {
        let shared = Arc::new((AtomicU32::new(0), UnsafeCell::new(())));
        let ring = move |shared: &(AtomicU32, UnsafeCell<()>)| {
            while shared.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
                thread::yield_now();
            }
            shared.1.with_mut(|_| ());
            shared.0.store(0, order);
        };
        let other = shared.clone();
        let queue = thread::spawn(move || ring(&other));
        ring(&shared);
        queue.join().unwrap();
    }

    #[test]
    fn a_release_gives_the_register_back() {
        check(|| given_back(Ordering::Release));
    }

    #[test]
    #[should_panic]
    fn a_relaxed_store_gives_it_back_too_soon() {
        check(|| given_back(Ordering::Relaxed));
    }
}

mod shared_queues {
    use super::*;

    /// Two pollers give entries back while the posting side takes them.
    #[test]
    fn free_entries_are_given_to_one() {
        check(|| {
            let list = Arc::new(list_of(4));
            for head in 0..2 {
                list.take(head);
                list.mark(head);
            }
            let pollers = [0, 1].map(|index| {
                let list = list.clone();
                thread::spawn(move || assert!(list.give_back(index)))
            });
            let (mut position, mut head) = (2, 2);
            let mut taken = Vec::new();
            let mut take_all = || {
                while let Some(next) = list.next(position) {
                    list.take(position);
                    list.mark(head);
                    taken.push(head);
                    (position, head) = (position + 1, next);
                }
            };
            take_all();
            pollers.into_iter().for_each(|poller| poller.join().unwrap());
            take_all();
            taken.push(head);
            taken.sort_unstable();
            assert_eq!(taken, [0, 1, 2, 3]);
        });
    }

    /// Two pollers give back entries that the device did not use. Each is found once.
    #[test]
    fn unused_entries_are_found_once() {
        check(|| {
            let list = Arc::new(list_of(4));
            (0..3).for_each(|head| {
                list.take(head);
                list.mark(head);
            });
            let pollers = [0, 1].map(|index| {
                let list = list.clone();
                thread::spawn(move || assert!(list.return_for_repost(index)))
            });
            let mut found: Vec<u32> = list.take_unused().into_iter().collect();
            pollers.into_iter().for_each(|poller| poller.join().unwrap());
            found.extend(core::iter::from_fn(|| list.take_unused()));
            found.sort_unstable();
            assert_eq!(found, [0, 1]);
        });
    }

    /// A poller gives back an unused entry while the posting side checks for such entries: either
    /// it finds the entry, or its next post does not take the fast path.
    #[test]
    fn an_unused_entry_is_found_or_stops_the_next_post() {
        check(|| {
            let list = Arc::new(list_of(4));
            list.take(0);
            list.mark(0);
            let poller = list.clone();
            let poller = thread::spawn(move || assert!(poller.return_for_repost(0)));
            list.set_limit(ANY);
            let found = list.take_unused();
            poller.join().unwrap();
            // SAFETY: the list is alive.
            let taken = unsafe { list.posting().take_next(&mut list.at(1)) };
            assert!(found.is_some() || taken.is_none());
        });
    }

    /// A completion has read an entry before the posting side gets the entry.
    fn returned(
        give_back: fn(&FreeList, &AtomicBool),
        is_free: fn(&FreeList, &AtomicBool) -> bool,
    ) {
        let list = list_of(2);
        list.take(0);
        list.mark(0);
        let shared = Arc::new((list, AtomicBool::new(false), UnsafeCell::new(())));
        let poller = shared.clone();
        let poller = thread::spawn(move || {
            poller.2.with(|_| ());
            give_back(&poller.0, &poller.1);
        });
        if is_free(&shared.0, &shared.1) {
            shared.2.with_mut(|_| ());
        }
        poller.join().unwrap();
    }

    #[test]
    fn an_entry_comes_back_after_it_was_read() {
        check(|| {
            let give_back = |list: &FreeList, _: &AtomicBool| assert!(list.give_back(0));
            returned(give_back, |list, _| list.next(1) == Some(0));
        });
    }

    #[test]
    #[should_panic]
    fn a_relaxed_return_races() {
        check(|| {
            let give_back = |_: &FreeList, free: &AtomicBool| free.store(true, Ordering::Relaxed);
            returned(give_back, |_, free| free.load(Ordering::Relaxed));
        });
    }
}

mod free_numbers {
    use super::*;

    /// Things of which two threads take each two, while the other one gives its first one back.
    fn taken(stack: fn(u32) -> FreeStack) {
        let shared = Arc::new((stack(2), [UnsafeCell::new(()), UnsafeCell::new(())]));
        let take = |(stack, things): &(FreeStack, [UnsafeCell<()>; 2])| {
            let number = stack.take()?;
            things[number as usize].with_mut(|_| ());
            Some(number)
        };
        let other = shared.clone();
        let other = thread::spawn(move || {
            let first = take(&other);
            let second = take(&other);
            let mut returned = Returned::default();
            first.into_iter().for_each(|number| other.0.add(&mut returned, number));
            other.0.give_back(returned);
            second
        });
        let own = [take(&shared), take(&shared)];
        let others = other.join().unwrap();
        let mut all: Vec<u32> = own.into_iter().chain([others]).flatten().collect();
        all.extend(core::iter::from_fn(|| shared.0.take()));
        all.sort_unstable();
        assert_eq!(all, [0, 1]);
    }

    #[test]
    fn a_number_is_taken_by_one() {
        check(|| taken(FreeStack::full));
    }

    #[test]
    #[should_panic]
    fn without_a_count_of_takes_one_is_taken_twice() {
        check(|| taken(FreeStack::without_count));
    }

    /// One thread uses a thing and gives it back, the other takes it and uses it.
    fn given_back(order: Ordering) {
        let shared = Arc::new((FreeStack::full(1), UnsafeCell::new(())));
        let number = shared.0.take().unwrap();
        let other = shared.clone();
        let other = thread::spawn(move || {
            if other.0.take().is_some() {
                other.1.with_mut(|_| ());
            }
        });
        shared.1.with_mut(|_| ());
        let mut returned = Returned::default();
        shared.0.add(&mut returned, number);
        shared.0.put(returned, order);
        other.join().unwrap();
    }

    #[test]
    fn a_thing_was_used_before_it_is_taken_again() {
        check(|| given_back(Ordering::Release));
    }

    #[test]
    #[should_panic]
    fn a_relaxed_return_races() {
        check(|| given_back(Ordering::Relaxed));
    }
}
