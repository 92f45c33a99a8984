//! A device reports random completions. The safe layer must not return a slot twice, and no code
//! may write to a slot that the program has.

mod common;

use std::alloc::{Layout, alloc_zeroed};
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};

use uverbs::memory::{QueueMemory, QueueUse};
use uverbs::qp::{AckTimeout, PostFlags};
use uverbs::qp_type::Rc;
use uverbs::soft::prng::Prng;
use uverbs::{
    Buffer, CompletionQueue, Context, Endpoint, PollError, ProtectionDomain, QueuePair,
    SharedReceiveQueue, Slab, Slot, op,
};

const SIGNALED: PostFlags = PostFlags::SIGNALED;
const SLOTS: u32 = 1000;
const BYTES: usize = 64;
const ENTRIES: u32 = 256;
const PAIRS: usize = 4;
const ROUNDS: u64 = 30;
const STEPS: u64 = 2000;

/// The ring of a completion queue to which only this test writes.
struct Ring {
    start: *mut u8,
    produced: u32,
}

impl Ring {
    /// Writes a CQE, the byte with the owner last.
    fn produce(&mut self, cqe: [u8; 64], opcode: u8, format: u8) {
        let index = self.produced % ENTRIES;
        let lap = u8::from(self.produced & ENTRIES != 0);
        // SAFETY: inside the ring, which is leaked; the poller, of this thread, is not polling.
        unsafe {
            let at = self.start.add(64 * index as usize);
            at.copy_from_nonoverlapping(cqe.as_ptr(), 63);
            at.add(63).write(opcode << 4 | format << 2 | lap);
        }
        self.produced += 1;
    }
}

/// Memory that is never freed; `rings` gets the addresses of rings of completion queues.
fn leaked(rings: &Arc<Mutex<Vec<usize>>>) -> QueueMemory {
    let rings = rings.clone();
    QueueMemory::new(move |length, purpose| {
        let layout = Layout::from_size_align(length, 4096).expect("a layout");
        // SAFETY: the length is not 0.
        let start = unsafe { alloc_zeroed(layout) };
        if purpose == QueueUse::Completions {
            rings.lock().unwrap().push(start.expose_provenance());
        }
        // SAFETY: leaked. Only the test writes there too, as the device does.
        Ok(unsafe { Buffer::from_raw(start, length, || ()) })
    })
}

/// Fills a slot with a mark that it must keep while the program has it.
fn mark(slot: &mut Slot, mark: u8) {
    slot.set_len(BYTES);
    slot.fill(mark);
}

struct World {
    chance: Prng,
    rings: [Ring; 2],
    /// The first one is for all sends and some receives.
    cqs: [CompletionQueue; 2],
    pairs: Vec<QueuePair<Rc>>,
    srq: SharedReceiveQueue,
    peer: Endpoint,
    slab: Slab,
    pd: ProtectionDomain,
    /// Slots of the program by their addresses, with their marks.
    held: HashMap<usize, (Slot, u8)>,
    /// Completions that returned a slot.
    completed: usize,
}

impl World {
    fn new(context: &Context, seed: u64) -> Self {
        let pd = context.alloc_pd().unwrap();
        let found = Arc::default();
        let memory = leaked(&found);
        let cqs =
            [(); 2].map(|()| context.create_cq(ENTRIES - 1).queue_memory(&memory).build().unwrap());
        let starts = found.lock().unwrap().clone();
        let ring = |at: usize| Ring {
            start: std::ptr::with_exposed_provenance_mut(starts[at]),
            produced: 0,
        };
        let elsewhere = common::open().alloc_pd().unwrap();
        let other_cq = elsewhere.context().create_cq(1).build().unwrap();
        let peer = elsewhere.create_qp::<Rc>(other_cq.handle(), other_cq.handle()).build().unwrap();
        let mut world = Self {
            chance: Prng::new(seed),
            rings: [ring(0), ring(1)],
            cqs,
            pairs: Vec::new(),
            srq: pd.create_srq(8).build().unwrap(),
            peer: peer.endpoint(),
            slab: pd.create_slab(SLOTS, BYTES as u32).unwrap(),
            pd,
            held: HashMap::new(),
            completed: 0,
        };
        while world.pairs.len() < PAIRS {
            let pair = world.pair();
            world.pairs.push(pair);
        }
        world
    }

    fn pair(&mut self) -> QueuePair<Rc> {
        let [sends, receives] = self.cqs.each_ref().map(CompletionQueue::handle);
        let receives = if self.chance.below(2) == 0 { sends } else { receives };
        let mut builder = self.pd.create_qp::<Rc>(sends, receives).max_send_wr(8).max_recv_wr(8);
        if self.chance.below(3) == 0 {
            builder = builder.shared_receive_queue(self.srq.handle());
        }
        // The peer does not answer, and the device waits forever.
        let mut pair = builder.path(|path| path.timeout = AckTimeout::INFINITE).build().unwrap();
        pair.connect(&self.peer).unwrap();
        pair
    }

    /// Stores a slot that the library has returned.
    fn keep(&mut self, mut slot: Slot) {
        let new = self.chance.next() as u8;
        mark(&mut slot, new);
        let before = self.held.insert(slot.as_ptr() as usize, (slot, new));
        assert!(before.is_none(), "it was given out twice");
    }

    fn slot(&mut self) -> Option<Slot> {
        if self.held.is_empty() || self.chance.below(2) == 0 {
            return self.slab.take();
        }
        let at = *self.held.keys().nth(self.chance.below(self.held.len() as u64) as usize)?;
        let (slot, mark) = self.held.remove(&at)?;
        assert!(slot.iter().all(|byte| *byte == mark), "the program has it alone");
        Some(slot)
    }

    fn step(&mut self) {
        let at = self.chance.below(PAIRS as u64) as usize;
        match self.chance.below(20) {
            0..5 => self.post(at),
            5 => self.post_batch(at),
            6 => {
                let flags = self.flags();
                let _ = self.pairs[at].post_inline(op::Send, b"!", flags);
            }
            7 if self.chance.below(2) == 0 => {
                self.pairs[at].reset().unwrap();
                self.pairs[at].connect(&self.peer.clone()).unwrap();
            }
            8 if self.chance.below(4) == 0 => self.pairs[at] = self.pair(),
            9 => {
                if let Some(slot) = self.slab.take() {
                    self.keep(slot);
                }
            }
            10 => {
                let at = self.held.keys().next().copied();
                drop(at.and_then(|at| self.held.remove(&at)));
            }
            11..15 => self.poll(),
            _ => (0..4).for_each(|_| self.forge()),
        }
    }

    fn flags(&mut self) -> PostFlags {
        if self.chance.below(2) == 0 { SIGNALED } else { PostFlags::empty() }
    }

    fn post(&mut self, at: usize) {
        let (Some(slot), flags) = (self.slot(), self.flags()) else { return };
        let refused = match self.chance.below(3) {
            0 => self.pairs[at].post_send(op::Send, slot, flags),
            1 => self.pairs[at].post_receive(slot),
            _ => self.srq.post(slot),
        };
        if let Err(refused) = refused {
            self.keep(refused.slot);
        }
    }

    fn post_batch(&mut self, at: usize) {
        let slots: Vec<_> = (0..self.chance.below(5)).filter_map(|_| self.slot()).collect();
        let flags: Vec<_> = slots.iter().map(|_| self.flags()).collect();
        let forgets = self.chance.below(16) == 0;
        let Ok(mut batch) = self.pairs[at].batch() else {
            return slots.into_iter().for_each(|slot| self.keep(slot));
        };
        let build = |(slot, flags)| batch.build(op::Send, slot, flags).err();
        let refused: Vec<_> = slots.into_iter().zip(flags).filter_map(build).collect();
        if forgets {
            std::mem::forget(batch)
        } else {
            batch.publish()
        }
        refused.into_iter().for_each(|refused| self.keep(refused.slot));
    }

    /// Shows at most `most` completions, and panics after one of them.
    fn poll(&mut self) {
        let (which, most) = (self.chance.below(2) as usize, 1 + self.chance.below(6) as usize);
        let ends_at = self.chance.below(12) as usize;
        let (mut got, mut shown) = (Vec::new(), 0);
        let mut visit = |slot: Option<Slot>| {
            got.extend(slot);
            shown += 1;
            if shown == ends_at {
                resume_unwind(Box::new(()));
            }
        };
        let cq = &mut self.cqs[which];
        let poll = || cq.poll_up_to(most, |done| visit(done.slot));
        let _ = catch_unwind(AssertUnwindSafe(poll));
        self.completed += got.len();
        got.into_iter().for_each(|slot| self.keep(slot));
    }

    /// Polls all that was reported.
    fn drain(&mut self, which: usize) {
        loop {
            match self.cqs[which].poll().map(|done| done.slot) {
                Ok(slot) => {
                    self.completed += usize::from(slot.is_some());
                    slot.into_iter().for_each(|slot| self.keep(slot));
                }
                Err(PollError::NotOutstanding) => {}
                Err(error) => return assert_eq!(error, PollError::Empty),
            }
        }
    }

    fn forge(&mut self) {
        let which = usize::from(self.chance.below(4) == 0);
        if self.rings[which].produced % (ENTRIES / 2) == 0 {
            self.drain(which);
        }
        let chance = &mut self.chance;
        let mut cqe = [0u8; 64];
        cqe.iter_mut().for_each(|byte| *byte = chance.next() as u8);
        // The first indices are 1, 2, … as they are in a CQE.
        let number = 1 + chance.below(8) as u16;
        cqe[32..34].fill(0);
        cqe[34..36].copy_from_slice(&number.to_le_bytes());
        let bytes =
            if chance.below(8) == 0 { chance.next() as u32 } else { chance.below(80) as u32 };
        cqe[44..48].copy_from_slice(&bytes.to_be_bytes());
        cqe[56] = 0x0a; // SEND
        let counter = match chance.below(8) {
            0 => chance.next() as u16,
            _ => chance.below(8) as u16,
        };
        cqe[60..62].copy_from_slice(&counter.to_be_bytes());
        let opcode = match chance.below(64) {
            0..30 => 0,
            30..60 => 2,
            60 => 13,
            61 => 14,
            // Not 15, which marks an entry as not written yet.
            _ => chance.below(15) as u8,
        };
        let format = if chance.below(8) == 0 { chance.below(4) as u8 } else { 0 };
        self.rings[which].produce(cqe, opcode, format);
    }

    /// Drops the queues, and returns the number of slots that completions returned.
    fn end(mut self) -> usize {
        self.pairs.clear();
        [0, 1].into_iter().for_each(|which| self.drain(which));
        let Self { srq, held, slab, completed, .. } = self;
        drop(srq);
        for (slot, mark) in held.into_values() {
            assert!(slot.iter().all(|byte| *byte == mark), "the program has it alone");
        }
        let free: Vec<_> = std::iter::from_fn(|| slab.take()).collect();
        let places: HashSet<_> = free.iter().map(|slot| slot.as_ptr()).collect();
        assert_eq!(places.len(), free.len(), "each is free once");
        completed
    }
}

#[test]
fn no_completion_gives_a_slot_out_twice() {
    let completed = (0..ROUNDS).map(|seed| {
        let mut world = World::new(&common::open(), seed);
        (0..STEPS).for_each(|_| world.step());
        world.end()
    });
    let completed = completed.sum::<usize>() as u64;
    assert!(completed > 500, "{completed} slots");
}
