//! Changes of a list of tags: `ibv_post_srq_ops` of libmlx5 and this project's queue write the same
//! bytes, give out the same handles, and refuse the same.

use std::alloc::{Layout, alloc_zeroed};
use std::ptr::{NonNull, null_mut};

use uverbs_libmlx5_harness::abi::{OpsWr, Sge as EntryOfC};
use uverbs_libmlx5_harness::{Libmlx5, TagQueue};
use uverbs_mlx5::completion_queue::{CompletionQueue, CompletionQueueConfig};
use uverbs_mlx5::doorbell::DoorbellWord;
use uverbs_mlx5::memory::DmaMemory;
use uverbs_mlx5::mmio::{ArmRegister, BlueFlame};
use uverbs_mlx5::queue_state::{QpState, Shape};
use uverbs_mlx5::request::Sge;
use uverbs_mlx5::send_queue::{Rc, SendQueue, SendQueueConfig, TagChange, TagError, TagRequest};
use uverbs_mlx5::user_index::UserIndexTable;
use uverbs_soft::chardev::SoftDevice;

const TAGS: u32 = 20;
const CHANGES: u32 = 64;
/// `IBV_OPS_SIGNALED` and `IBV_OPS_TM_SYNC`.
const SIGNALED: u32 = 1;
const SYNC: u32 = 2;

/// Memory that stays until the process ends, zeroed.
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
    _cq: CompletionQueue,
}

impl Ours {
    /// A queue with this number of blocks, of the queue pair with this number.
    fn new(blocks: u32, number: u32) -> Self {
        let table = UserIndexTable::new();
        let [ring, record, register] = [blocks as usize * 64, 64, 4096].map(memory);
        let cq = completion_queue(&table);
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
        Self { queue: queue.expect("a queue"), ring, record, _cq: cq }
    }

    fn post(&mut self, request: &TagRequest) -> Result<Option<u16>, TagError> {
        let mut batch = self.queue.batch()?;
        // SAFETY: no device writes to the buffers.
        let handle = unsafe { batch.build_tags(request) };
        batch.publish();
        handle
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

fn completion_queue(table: &UserIndexTable) -> CompletionQueue {
    let [ring, record, arm] = [4096, 64, 64].map(memory);
    let queue = CompletionQueue::new(CompletionQueueConfig {
        // SAFETY: leaked; no device writes to it.
        memory: unsafe { DmaMemory::new(ring, 4096) },
        entries: 64,
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

/// The next of a deterministic random sequence (xorshift), below `limit`.
fn below(state: &mut u64, limit: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 16) % limit
}

/// A random request. `listed` holds the entries that are in the list.
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

#[test]
fn changes_of_tags_are_the_same_bytes() {
    let device = || SoftDevice::builder("mlx5_0").without_wire().infiniband().build();
    let libmlx5 = match Libmlx5::load_on(device) {
        Ok(libmlx5) => libmlx5,
        Err(reason) => {
            assert!(std::env::var_os("CI").is_none(), "{reason}");
            return eprintln!("skipped: {reason}");
        }
    };
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
            // Only its WQEs tell the number of libmlx5's queue pair.
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
