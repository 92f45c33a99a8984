//! Tag matching: `ibv_post_srq_ops` of libmlx5 and this project's queue write the same bytes,
//! return the same handles, and refuse the same requests. The same CQEs result in the same
//! completions.
//!
//! Three intended differences are not compared. libmlx5 leaves bytes of an earlier WQE in one that
//! removes an entry. It counts unexpected messages as reported to the device only when it adds an
//! entry. It treats the cancellation of a message as an ordinary receive.

use std::alloc::{Layout, alloc_zeroed};
use std::collections::VecDeque;
use std::ptr::{NonNull, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use uverbs_libmlx5_harness::abi::{OpsWr, Sge as EntryOfC};
use uverbs_libmlx5_harness::{Libmlx5, TagCompletion, TagQueue};
use uverbs_mlx5::completion_queue::{CompletionOpcode, CompletionQueue, CompletionQueueConfig};
use uverbs_mlx5::doorbell::DoorbellWord;
use uverbs_mlx5::format::{CqeOpcode, TagEvent};
use uverbs_mlx5::memory::DmaMemory;
use uverbs_mlx5::mmio::{ArmRegister, BlueFlame};
use uverbs_mlx5::queue_state::{QpState, Shape};
use uverbs_mlx5::request::Sge;
use uverbs_mlx5::send_queue::{Rc, SendQueue, SendQueueConfig, TagChange, TagError, TagRequest};
use uverbs_mlx5::user_index::UserIndexTable;
use uverbs_soft::chardev::SoftDevice;

const TAGS: u32 = 20;
const CHANGES: u32 = 64;
/// `IBV_WC_RECV`.
const RECEIVE: u32 = 128;
/// Entries of this project's completion queue.
const CQES: usize = 64;
/// `IBV_OPS_SIGNALED` and `IBV_OPS_TM_SYNC`.
const SIGNALED: u32 = 1;
const SYNC: u32 = 2;

/// Zeroed memory that is never freed.
fn memory(length: usize) -> NonNull<u8> {
    let layout = Layout::from_size_align(length, 4096).expect("a layout");
    // SAFETY: the size is not zero.
    NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory")
}

/// This project's queue of changes.
struct Ours {
    queue: SendQueue<Rc>,
    ring: NonNull<u8>,
    record: NonNull<u8>,
    cq: CompletionQueue,
    cqes: NonNull<u8>,
    /// CQEs that were written.
    produced: u32,
    /// The SRQ's.
    user_index: u32,
}

impl Ours {
    /// A queue with `blocks` blocks for the queue pair number `number`.
    fn new(blocks: u32, number: u32) -> Self {
        let table = UserIndexTable::new();
        let [ring, record, register] = [blocks as usize * 64, 64, 4096].map(memory);
        let cqes = memory(CQES * 64);
        let cq = completion_queue(&table, cqes);
        let monitors = [cq.monitor()];
        let shape =
            |send_wqebbs, shared_receive| Shape { send_wqebbs, recv_wqes: 8, shared_receive };
        let srq = table.register(shape(0, true), &monitors, None, 1).expect("an index");
        srq.match_tags(TAGS as u16);
        let shape = Shape { recv_wqes: 0, ..shape(blocks, false) };
        let command = table.register(shape, &monitors, Some(&srq), 2).expect("an index");
        command.set_number(number);
        command.set_state(QpState::Rts);
        srq.set_tag_command(&command).expect("it has none");
        let queue = SendQueue::new(SendQueueConfig {
            // SAFETY: leaked; used by one queue, and by the test between the queue's calls.
            memory: unsafe { DmaMemory::new(ring, blocks as usize * 64) },
            // SAFETY: leaked.
            doorbell: unsafe { DoorbellWord::pair(record.cast()) }.1,
            // SAFETY: leaked, and used by this queue only.
            register: unsafe { BlueFlame::new(register, 256) },
            handle: command,
            number,
            max_requests: CHANGES,
            max_sge: 1,
            max_inline: 0,
            signal_all: false,
            min_inline_header: 0,
            scatter_to_cqe: false,
        });
        let (queue, user_index) = (queue.expect("a queue"), srq.user_index());
        Self { queue, ring, record, cq, cqes, produced: 0, user_index }
    }

    fn post(&mut self, request: &TagRequest) -> Result<Option<u16>, TagError> {
        let mut batch = self.queue.batch()?;
        // SAFETY: no device writes to the buffers.
        let handle = unsafe { batch.build_tags(request) };
        batch.publish();
        handle
    }

    /// As [`TagQueue::complete`].
    fn complete(&mut self, mut cqe: [u8; 64]) -> TagCompletion {
        cqe[33..36].copy_from_slice(&self.user_index.to_be_bytes()[1..]);
        cqe[63] |= u8::from(self.produced & CQES as u32 != 0);
        let place = self.produced as usize % CQES;
        self.produced += 1;
        // SAFETY: within the ring, which only the queue reads, in the call below.
        unsafe { self.cqes.cast::<[u8; 64]>().add(place).write(cqe) };
        let done = self.cq.poll().expect("a completion");
        let (event, asks) = (done.tag_event().expect("one of tags"), done.asks_for_tag_sync());
        let bit = |flag, is_set| if is_set { flag } else { 0 };
        TagCompletion {
            wr_id: done.wr_id(),
            status: done.status() as u32,
            opcode: match done.opcode() {
                CompletionOpcode::TagAdd => 130,
                CompletionOpcode::TagRemove => 131,
                CompletionOpcode::TagSync => 132,
                CompletionOpcode::TagRecv => 133,
                other => panic!("{other:?}"),
            },
            // IBV_WC_TM_SYNC_REQ, _MATCH and _DATA_VALID, as in the drop-in.
            flags: bit(16, asks)
                | bit(32, event.is_of_entry() && event != TagEvent::EXPECTED)
                | bit(64, event.is_last_of_entry()),
        }
    }

    fn wqe(&self, at: usize) -> Vec<u8> {
        // SAFETY: within the ring, which no other code uses meanwhile.
        unsafe { std::slice::from_raw_parts(self.ring.as_ptr().add(at * 64), 64) }.to_vec()
    }

    fn counter(&self) -> u32 {
        // SAFETY: the record has eight bytes.
        u32::from_be(unsafe { self.record.cast::<u32>().add(1).read() })
    }
}

fn completion_queue(table: &UserIndexTable, ring: NonNull<u8>) -> CompletionQueue {
    let [record, arm] = [64, 64].map(memory);
    let queue = CompletionQueue::new(CompletionQueueConfig {
        // SAFETY: leaked; no device writes to it.
        memory: unsafe { DmaMemory::new(ring, CQES * 64) },
        entries: CQES as u32,
        cqe_size: 64,
        // SAFETY: leaked.
        doorbell: unsafe { DoorbellWord::pair(record.cast()) },
        // SAFETY: leaked.
        arm: unsafe { ArmRegister::new(arm.cast()) },
        number: 1,
        table,
        mini_format: None,
        null_lkey: None,
    });
    queue.expect("a queue")
}

/// libmlx5's errno, or the handle of an entry that was added.
fn post_by_c(libmlx5: &Libmlx5, queue: &TagQueue, request: &TagRequest) -> Result<u32, i32> {
    let buffer = match request.change {
        TagChange::Add { buffer, .. } => buffer,
        _ => None,
    };
    let mut entry = buffer.map(|sge| EntryOfC {
        address: sge.address(),
        length: sge.length(),
        lkey: sge.lkey(),
    });
    let mut wr = OpsWr {
        wr_id: request.wr_id,
        next: null_mut(),
        opcode: 0,
        flags: if request.signaled { SIGNALED } else { 0 },
        unexpected: request.unexpected.unwrap_or(0x77),
        handle: u32::MAX,
        receive_id: 0,
        sges: entry.as_mut().map_or(null_mut(), |entry| &raw mut *entry),
        sge_count: buffer.is_some().into(),
        tag: 0,
        mask: 0,
    };
    wr.flags |= if request.unexpected.is_some() { SYNC } else { 0 };
    match request.change {
        TagChange::Add { tag, mask, receive_id, .. } => {
            (wr.tag, wr.mask, wr.receive_id) = (tag, mask, receive_id);
        }
        TagChange::Remove(handle) => (wr.opcode, wr.handle) = (1, handle.into()),
        TagChange::Sync => wr.opcode = 2,
    }
    let mut bad = null_mut();
    // SAFETY: libibverbs' contract; the device does not see the request.
    let errno =
        unsafe { (libmlx5.verbs_context().post_srq_ops)(queue.srq, &raw mut wr, &raw mut bad) };
    if errno == 0 { Ok(wr.handle) } else { Err(errno) }
}

/// The next number below `limit` of a deterministic random sequence (xorshift).
fn below(state: &mut u64, limit: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 16) % limit
}

/// A random request. `listed` holds the entries of the list.
fn request(state: &mut u64, wr_id: u64, listed: &mut Vec<u16>) -> TagRequest {
    let mut pick = |limit| below(state, limit);
    let change = match pick(6) {
        0 => TagChange::Sync,
        1 | 2 if !listed.is_empty() => {
            let at = pick(listed.len() as u64) as usize;
            TagChange::Remove(listed.swap_remove(at))
        }
        _ => {
            let long = Sge::new(pick(1 << 48), pick(1 << 31) as u32, pick(1 << 32) as u32);
            let buffer = [None, Some(long), Some(Sge::new(1, 0, 2))][pick(3) as usize];
            TagChange::Add { tag: pick(1 << 48), mask: pick(1 << 48), buffer, receive_id: wr_id }
        }
    };
    let unexpected = (pick(2) == 0).then(|| pick(1 << 32) as u32);
    TagRequest { wr_id, change, signaled: pick(2) == 0, unexpected }
}

/// libmlx5 on a device with an InfiniBand port, for one test at a time.
fn load() -> Option<(&'static Libmlx5, MutexGuard<'static, ()>)> {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = || SoftDevice::builder("mlx5_0").without_wire().infiniband().build();
    match Libmlx5::load_on(device) {
        Ok(libmlx5) => Some((libmlx5, one)),
        Err(reason) => {
            assert!(std::env::var_os("CI").is_none(), "{reason}");
            eprintln!("skipped: {reason}");
            None
        }
    }
}

#[test]
fn changes_of_tags_are_the_same_bytes() {
    let Some((libmlx5, _one)) = load() else { return };
    for seed in 1..=40u64 {
        let theirs = libmlx5.create_tag_queue(TAGS, CHANGES).expect("the port matches tags");
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut ours: Option<Ours> = None;
        let mut listed = Vec::new();
        let mut posted = 0;
        while posted < CHANGES as usize {
            let request = request(&mut state, posted as u64, &mut listed);
            let by_c = post_by_c(libmlx5, &theirs, &request);
            let wqe = &theirs.ring()[posted * 64..][..64];
            // Only the WQEs contain the number of libmlx5's queue pair.
            let number = u32::from_be_bytes([0, wqe[4], wqe[5], wqe[6]]);
            let ours = ours.get_or_insert_with(|| Ours::new(theirs.blocks, number));
            match (ours.post(&request), by_c) {
                (Ok(handle), Ok(by_c)) => {
                    assert_eq!(handle.map_or(by_c, u32::from), by_c, "{request:?}");
                    assert_eq!(ours.wqe(posted), wqe, "seed {seed}: {request:?}");
                    listed.extend(handle);
                    posted += 1;
                }
                (Err(TagError::ListFull), Err(libc::ENOMEM)) => {}
                differing => panic!("seed {seed}: {differing:?} for {request:?}"),
            }
            assert_eq!(ours.counter(), theirs.counter());
        }
        let last = request(&mut state, 0, &mut listed);
        let ours = ours.as_mut().expect("requests were posted");
        assert!(ours.post(&last).is_err());
        assert_eq!(post_by_c(libmlx5, &theirs, &last), Err(libc::ENOMEM));
        assert_eq!(ours.counter(), theirs.counter());
    }
}

/// A correct device's state of a tag list.
#[derive(Default)]
struct Device {
    /// Entries that messages can match, and whether the first of two completions was written.
    entries: Vec<(u16, bool)>,
    /// Changes without a completion yet, with the entry that is added or removed.
    changes: VecDeque<(TagEvent, u16)>,
}

impl Device {
    fn execute(&mut self, request: &TagRequest, added: Option<u16>) {
        let (event, entry) = match request.change {
            TagChange::Add { .. } => (TagEvent::APPEND, added.expect("a handle")),
            TagChange::Remove(entry) => (TagEvent::REMOVE, entry),
            TagChange::Sync => (TagEvent::NOOP, 0),
        };
        self.entries.extend(added.map(|entry| (entry, false)));
        if request.signaled {
            self.changes.push_back((event, entry));
        } else if event == TagEvent::REMOVE {
            self.remove(entry);
        }
    }

    /// Removes an entry that no message has matched. Returns whether there was such an entry.
    fn remove(&mut self, entry: u16) -> bool {
        let before = self.entries.len();
        self.entries.retain(|(listed, has_begun)| *listed != entry || *has_begun);
        self.entries.len() < before
    }

    /// The CQE of the next change, with a random number of unexpected messages.
    fn confirm(&mut self, state: &mut u64) -> Option<[u8; 64]> {
        let (event, entry) = self.changes.pop_front()?;
        let is_done = event != TagEvent::REMOVE || self.remove(entry);
        let mut cqe = cqe(CqeOpcode::NO_PACKET, event, 0);
        cqe[0] = u8::from(is_done) << 7;
        cqe[4..6].copy_from_slice(&(below(state, 3) as u16).to_be_bytes());
        Some(cqe)
    }

    /// The CQE of a message that matches an entry.
    fn message(&mut self, state: &mut u64) -> Option<[u8; 64]> {
        const FIRST: [TagEvent; 6] = [
            TagEvent::CONSUMED,
            TagEvent::CONSUMED_SOFTWARE_RENDEZVOUS,
            TagEvent::CONSUMED_MESSAGE,
            TagEvent::CONSUMED_MESSAGE,
            TagEvent::CONSUMED_MESSAGE_SOFTWARE_RENDEZVOUS,
            TagEvent::CANCELED,
        ];
        const SECOND: [TagEvent; 2] = [TagEvent::EXPECTED, TagEvent::CANCELED];
        let at = below(state, self.entries.len() as u64 + 1) as usize;
        let (entry, has_begun) = self.entries.get_mut(at)?;
        let event = if *has_begun {
            SECOND[below(state, 2) as usize]
        } else {
            FIRST[below(state, 6) as usize]
        };
        let opcode = match event {
            TagEvent::CONSUMED => CqeOpcode::NO_PACKET,
            _ => CqeOpcode::RESPONDER_SEND,
        };
        let cqe = cqe(opcode, event, *entry);
        *has_begun = true;
        if event.is_last_of_entry() {
            self.entries.swap_remove(at);
        }
        Some(cqe)
    }
}

fn cqe(opcode: CqeOpcode, event: TagEvent, entry: u16) -> [u8; 64] {
    let mut cqe = [0; 64];
    (cqe[40], cqe[41], cqe[63]) = (1, event.0, opcode.0 << 4);
    cqe[42..44].copy_from_slice(&entry.to_be_bytes());
    cqe
}

#[test]
fn completions_of_tags_are_the_same() {
    let Some((libmlx5, _one)) = load() else { return };
    for seed in 1..=20u64 {
        let mut theirs = libmlx5.create_tag_queue(TAGS, CHANGES).expect("the port matches tags");
        let mut ours = Ours::new(theirs.blocks, 1);
        let mut state = seed.wrapping_mul(0xd129_8a2e_03b5_f7c1);
        let mut device = Device::default();
        for step in 0..1000 {
            let cqe = match below(&mut state, 4) {
                0 => device.message(&mut state),
                1 | 2 => device.confirm(&mut state),
                _ => {
                    let mut listed = device.entries.clone();
                    listed.retain(|(entry, has_begun)| {
                        let removal = (TagEvent::REMOVE, *entry);
                        !has_begun && !device.changes.contains(&removal)
                    });
                    let mut listed: Vec<_> = listed.iter().map(|(entry, _)| *entry).collect();
                    let mut request = request(&mut state, step, &mut listed);
                    let is_added = matches!(request.change, TagChange::Add { .. });
                    request.unexpected = request.unexpected.map(|n| n & 3).filter(|_| is_added);
                    let by_c = post_by_c(libmlx5, &theirs, &request);
                    match (ours.post(&request), by_c) {
                        (Ok(added), Ok(by_c)) => {
                            assert_eq!(added.map_or(by_c, u32::from), by_c, "{request:?}");
                            device.execute(&request, added);
                        }
                        (Err(_), Err(libc::ENOMEM)) => {}
                        differing => panic!("seed {seed}: {differing:?} for {request:?}"),
                    }
                    None
                }
            };
            if let Some(cqe) = cqe {
                let mut done = ours.complete(cqe);
                if cqe[41] == TagEvent::CANCELED.0 {
                    done.opcode = RECEIVE;
                }
                assert_eq!(Ok(done), theirs.complete(cqe), "seed {seed}, step {step}");
            }
        }
    }
}
