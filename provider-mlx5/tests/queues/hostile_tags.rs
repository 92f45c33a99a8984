//! A hostile device on a tag matching SRQ: it writes CQEs with random fields, and none of them may
//! complete what is not outstanding, complete it twice, or write to memory of another request.

use std::collections::{BTreeMap, VecDeque};

use uverbs_mlx5::completion_queue::{CompletionOpcode, PollError, Status, WorkCompletion};
use uverbs_mlx5::format::{CqeFormat, CqeOpcode, TagEvent};
use uverbs_mlx5::request::Sge;
use uverbs_mlx5::send_queue::{TagChange, TagRequest};

use crate::device::{Cq, Cqe, Memory, Random};
use crate::tags::Tags;

const TAGS: u16 = 5;
const CHANGES: u32 = 8;
/// Bytes of each buffer.
const LENGTH: usize = 32;
/// Buffers: more than entries and receives that are outstanding together.
const BUFFERS: usize = 64;

/// An entry of the list that a message can complete.
struct Entry {
    handle: u16,
    is_consumed: bool,
}

/// A change that was posted. `handle` is that of its entry.
struct Change {
    wr_id: u64,
    opcode: CompletionOpcode,
    handle: u16,
    is_signaled: bool,
    /// The id of the entry that it appends.
    added: Option<u64>,
    /// The entry that it removes without a completion, and its id. The device may still have it.
    removed: Option<(u64, Entry)>,
}

/// What is outstanding.
struct Model {
    tags: Tags,
    random: Random,
    memory: Memory,
    /// By the ids of their receives, as are `receives`.
    entries: BTreeMap<u64, Entry>,
    receives: Vec<u64>,
    changes: VecDeque<Change>,
    next_id: u64,
    completed: Vec<CompletionOpcode>,
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut tags = Tags::with(Cq::new(64, 128), TAGS, CHANGES);
        for index in 0..2 {
            // They name no memory of this process.
            tags.receives(TagEvent::NO_TAG, index);
            tags.expect(0x500 + u64::from(index), Status::Success, CompletionOpcode::NoTagRecv);
        }
        Self {
            tags,
            random: Random::new(seed),
            memory: Memory::new(LENGTH * BUFFERS),
            entries: BTreeMap::new(),
            receives: Vec::new(),
            changes: VecDeque::new(),
            next_id: 0x1000,
            completed: Vec::new(),
        }
    }

    /// A number that no request has, and the buffer that belongs to it.
    fn request(&mut self) -> (u64, Sge) {
        self.next_id += 1;
        let start = self.memory.ptr().as_ptr().expose_provenance() as u64;
        let address = start + (LENGTH * place(self.next_id)) as u64;
        (self.next_id, Sge::new(address, LENGTH as u32, 7))
    }

    fn change(&mut self) {
        let (receive_id, buffer) = self.request();
        let listed = self.entries.values().nth(self.random.below(4)).map(|entry| entry.handle);
        let (change, opcode) = match (self.random.below(4), listed) {
            (0 | 2, Some(handle)) => (TagChange::Remove(handle), CompletionOpcode::TagRemove),
            (1, _) => (TagChange::Sync, CompletionOpcode::TagSync),
            _ => {
                let (tag, mask, buffer) = (1, 1, Some(buffer));
                (TagChange::Add { tag, mask, buffer, receive_id }, CompletionOpcode::TagAdd)
            }
        };
        let (wr_id, is_signaled) = (self.request().0, self.random.below(4) != 0);
        let unexpected = (self.random.below(4) == 0).then_some(7);
        let request = TagRequest { wr_id, change, signaled: is_signaled, unexpected };
        let Ok(added) = self.tags.post(&request) else { return };
        let handle = added.or(listed).unwrap_or_default();
        if let Some(handle) = added {
            let is_taken = self.entries.values().any(|entry| entry.handle == handle);
            assert!(!is_taken, "entry {handle} has two uses");
            self.entries.insert(receive_id, Entry { handle, is_consumed: false });
        }
        let removes = opcode == CompletionOpcode::TagRemove && !is_signaled;
        let mut has = self.entries.iter().filter(|(_, entry)| removes && entry.handle == handle);
        let id = has.find(|(_, entry)| !entry.is_consumed).map(|(id, _)| *id);
        let removed = id.and_then(|id| Some((id, self.entries.remove(&id)?)));
        let added = added.map(|_| receive_id);
        self.changes.push_back(Change { wr_id, opcode, handle, is_signaled, added, removed });
    }

    fn receive(&mut self) {
        let (id, buffer) = self.request();
        // SAFETY: leaked memory, which only the poller writes to.
        if unsafe { self.tags.queue.post(id, &[buffer]) }.is_ok() {
            self.receives.push(id);
        }
    }

    fn forged(&mut self) -> Cqe {
        let mut pick = |choices: &[u32]| choices[self.random.below(choices.len())];
        let opcode = CqeOpcode(pick(&[2, 2, 2, 6, 6, 6, 0, 1, 3, 4, 7, 12, 13, 14]) as u8);
        let format = [CqeFormat::NO_INLINE, CqeFormat::INLINE_32, CqeFormat::INLINE_64];
        let format = format[pick(&[0, 0, 0, 1, 2, 2]) as usize];
        let event = pick(&[1, 2, 3, 4, 5, 6, 7, 9, 10, 10, 11, 12, 0, 8, 13, 255]) as u8;
        let [high, low] = (pick(&[0, 1, 2, 3, 4, 5, 6, 7, 0x7fff, 0xffff]) as u16).to_be_bytes();
        let app = pick(&[1, 1, 1, 1, 1, 1, 1, 0, 2, 0x81]) as u8;
        let head = [[0; 16], [0x80; 16]][pick(&[0, 1]) as usize];
        let of =
            [&self.tags.srq, &self.tags.qp, &self.tags.command.handle].map(|of| of.user_index());
        let user_index = pick(&[of[0], of[0], of[0], of[1], of[2], of[2] + 1, 0, 0xff_ffff]);
        let length = if format == CqeFormat::INLINE_32 { 32 } else { 64 };
        Cqe {
            user_index,
            opcode,
            format,
            byte_count: pick(&[0, 1, 16, 32, 33, 64, 65, 4096, u32::MAX]),
            data: vec![0xaa; length],
            error: [0, pick(&[1, 4, 5, 0x13, 0]) as u8],
            wqe_opcode: pick(&[0x28, 0x28, 0x0a, 0x10]) as u8,
            tagged: Some((head, [app, event, high, low])),
            ..Cqe::recv(&self.tags.srq, pick(&[0, 1, 2, 3, 4, 5, 7, 0xffff]))
        }
    }

    /// Has the device confirm the next change, if there is one.
    fn confirm(&mut self) {
        let next = self.changes.iter().find(|change| change.is_signaled);
        let event = match next.map(|change| change.opcode) {
            Some(CompletionOpcode::TagAdd) => TagEvent::APPEND,
            Some(CompletionOpcode::TagRemove) => TagEvent::REMOVE,
            _ => TagEvent::NOOP,
        };
        let is_done = self.random.below(4) != 0;
        self.tags.confirms(event, is_done, 0);
        self.poll();
    }

    /// Has the device write any CQE.
    fn lie(&mut self) {
        let cqe = self.forged();
        self.tags.cq.produce(cqe);
        self.poll();
    }

    fn poll(&mut self) {
        self.memory.write(0, &[0; LENGTH * BUFFERS]);
        match self.tags.poll() {
            Ok(done) => self.complete(&done),
            Err(error) => {
                assert!(matches!(error, PollError::Empty | PollError::NotOutstanding), "{error}");
                self.assert_written_only_at(None);
            }
        }
    }

    fn complete(&mut self, done: &WorkCompletion) {
        self.completed.push(done.opcode());
        self.assert_written_only_at(Some(place(done.wr_id())));
        let opcode = done.opcode();
        let is_change = self.changes.iter().any(|change| change.wr_id == done.wr_id());
        if is_change {
            return self.complete_change(done);
        }
        assert!(!done.is_send(), "{opcode:?} {:#x}", done.wr_id());
        if let Some(at) = self.receives.iter().position(|id| *id == done.wr_id()) {
            self.receives.remove(at);
            return;
        }
        let Some(entry) = self.entries.get_mut(&done.wr_id()) else {
            panic!("{opcode:?} completes {:#x}, which is not outstanding", done.wr_id())
        };
        assert_eq!(opcode, CompletionOpcode::TagRecv);
        if done.tag_event().is_some_and(TagEvent::is_first_of_two) {
            assert!(!entry.is_consumed, "the first part twice");
            entry.is_consumed = true;
        } else {
            self.entries.remove(&done.wr_id());
        }
    }

    /// Changes are executed in order, so the ones before it are not outstanding any more.
    fn complete_change(&mut self, done: &WorkCompletion) {
        let change = loop {
            let change = self.changes.pop_front().expect("it is one of them");
            if change.wr_id == done.wr_id() {
                break change;
            }
        };
        if done.is_send() && !done.is_success() {
            return self.fail(change);
        }
        if done.is_send() {
            return;
        }
        assert_eq!((change.opcode, change.is_signaled), (done.opcode(), true));
        if change.opcode == CompletionOpcode::TagRemove && done.status() == Status::Success {
            self.entries.retain(|_, entry| entry.handle != change.handle);
        }
    }

    /// Neither this change nor a later one is made. The later ones complete as failed sends, too.
    fn fail(&mut self, first: Change) {
        self.changes.push_front(first);
        let removed = self.changes.iter_mut().filter_map(|change| change.removed.take());
        self.entries.extend(removed);
        for change in &mut self.changes {
            change.is_signaled = false;
            change.added.iter().for_each(|id| _ = self.entries.remove(id));
        }
        self.changes.pop_front();
    }

    fn assert_written_only_at(&self, allowed: Option<usize>) {
        for buffer in (0..BUFFERS).filter(|buffer| Some(*buffer) != allowed) {
            let bytes = self.memory.read(LENGTH * buffer, LENGTH);
            assert_eq!(bytes, [0; LENGTH], "buffer {buffer}");
        }
    }
}

/// The buffer of a request.
fn place(id: u64) -> usize {
    id as usize % BUFFERS
}

/// Lies soon leave requests that nothing completes any more, hence many short runs.
#[test]
fn random_completions_complete_only_what_is_outstanding_and_once() {
    let mut completed = Vec::new();
    for seed in 1..=200u64 {
        let mut model = Model::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for _ in 0..150 {
            match model.random.below(8) {
                0 | 1 => model.change(),
                2 => model.receive(),
                3 => model.confirm(),
                _ => model.lie(),
            }
        }
        completed.append(&mut model.completed);
    }
    use CompletionOpcode::{NoTagRecv, TagAdd, TagRecv, TagRemove, TagSync};
    for opcode in [TagAdd, TagRemove, TagSync, TagRecv, NoTagRecv] {
        let count = completed.iter().filter(|done| **done == opcode).count();
        assert!(count > 50, "{opcode:?}: {count}");
    }
}
