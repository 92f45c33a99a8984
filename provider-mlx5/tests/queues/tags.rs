//! Tag matching SRQs: the WQEs that change the list of tags, as libmlx5 writes them, and every
//! completion.

use uverbs_mlx5::completion_queue::{
    CompletionOpcode, CqMonitor, PollError, Status, WorkCompletion,
};
use uverbs_mlx5::doorbell::DoorbellWord;
use uverbs_mlx5::format::{CqeFormat, CqeOpcode, Syndrome, TagEvent};
use uverbs_mlx5::queue_error::QueueError;
use uverbs_mlx5::queue_state::{QpState, Shape};
use uverbs_mlx5::request::{PostError, Sge};
use uverbs_mlx5::send_queue::{Rc, TagChange, TagError, TagRequest};
use uverbs_mlx5::shared_recv_queue::{SharedRecvQueue, SharedRecvQueueConfig};
use uverbs_mlx5::user_index::{QueueHandle, UserIndexTable};

use crate::device::{Cq, Cqe, Memory, Sq, send_queue, send_queue_of, shared_recv_queue};

const BUFFER: Sge = Sge::new(0x1_0000_2000, 64, 0x77);
/// Number of the command QP.
const COMMAND: u32 = 0x1234;

/// A tag matching SRQ with two receives, a QP on it, and the command QP that changes its list.
pub(crate) struct Tags {
    pub(crate) cq: Cq,
    pub(crate) queue: SharedRecvQueue,
    pub(crate) srq: QueueHandle,
    pub(crate) qp: QueueHandle,
    pub(crate) command: Sq<Rc>,
    changes: u64,
}

impl Tags {
    fn new(tags: u16, changes: u32) -> Self {
        Self::with(Cq::new(64, 64), tags, changes)
    }

    pub(crate) fn with(cq: Cq, tags: u16, changes: u32) -> Self {
        let shape = Shape { send_wqebbs: 0, recv_wqes: 4, shared_receive: true };
        let srq = cq.table.register(shape, &cq.monitors(), None, 1).expect("an index");
        srq.match_tags(tags);
        let of = |send_wqebbs, number| {
            let shape = Shape { send_wqebbs, recv_wqes: 0, shared_receive: false };
            let qp = cq.table.register(shape, &cq.monitors(), Some(&srq), 2).expect("an index");
            qp.set_number(number);
            qp.set_state(QpState::Rts);
            qp
        };
        let (qp, command) = (of(1, 0x99), of(changes, COMMAND));
        srq.set_tag_command(&command).expect("it has none");
        let (ring, record) = (Memory::new(4 * 32), Memory::new(8));
        let queue = SharedRecvQueue::new(SharedRecvQueueConfig {
            memory: ring.dma(),
            // SAFETY: leaked.
            doorbell: unsafe { DoorbellWord::new(record.ptr().cast()) },
            handle: srq.clone(),
            stride: 32,
            scatter_to_cqe: true,
        });
        let mut queue = queue.expect("a queue");
        for id in 0..2 {
            // SAFETY: no device writes to it.
            unsafe { queue.post(0x500 + id, &[BUFFER]) }.expect("space");
        }
        let command = send_queue_of(command, [changes, changes], 256, false);
        Self { cq, queue, srq, qp, command, changes: 0 }
    }

    pub(crate) fn post(&mut self, request: &TagRequest) -> Result<Option<u16>, TagError> {
        let mut batch = self.command.queue.batch().expect("it sends");
        // SAFETY: the test is the device, and writes to buffers of its own only.
        let handle = unsafe { batch.build_tags(request) };
        batch.publish();
        handle
    }

    fn add(&mut self, tag: u64, buffer: Option<Sge>, signaled: bool) -> Result<u16, TagError> {
        let change = TagChange::Add { tag, mask: u64::MAX, buffer, receive_id: 0x100 + tag };
        let request = TagRequest { wr_id: self.next_id(), change, signaled, unexpected: None };
        self.post(&request).map(|handle| handle.expect("the handle of an entry"))
    }

    fn change(&mut self, change: TagChange) -> Result<Option<u16>, TagError> {
        let wr_id = self.next_id();
        self.post(&TagRequest { wr_id, change, signaled: true, unexpected: None })
    }

    fn next_id(&mut self) -> u64 {
        self.changes += 1;
        self.changes
    }

    /// A CQE that names the SRQ, as tag matching CQEs do.
    fn cqe(&self, opcode: CqeOpcode, event: TagEvent, info: u16, head: [u8; 16]) -> Cqe {
        let [high, low] = info.to_be_bytes();
        let tagged = Some((head, [1, event.0, high, low]));
        Cqe { tagged, ..Cqe::recv(&self.srq, 0xffff).opcode(opcode) }
    }

    /// The confirmation of a change, with the device's count of unexpected messages.
    pub(crate) fn confirms(&mut self, event: TagEvent, is_done: bool, phase: u16) {
        let mut report = [0; 16];
        report[0] = u8::from(is_done) << 7;
        report[4..6].copy_from_slice(&phase.to_be_bytes());
        let cqe = self.cqe(CqeOpcode::NO_PACKET, event, 0, report);
        self.cq.produce(cqe);
    }

    /// A message with tag 0x0102030405060708 and context 0x0a0b0c0d.
    fn takes(&mut self, opcode: CqeOpcode, event: TagEvent, entry: u16) {
        let header = [3, 0, 0, 0, 10, 11, 12, 13, 1, 2, 3, 4, 5, 6, 7, 8];
        let cqe = self.cqe(opcode, event, entry, header);
        self.cq.produce(cqe);
    }

    /// A message in receive `index` of the SRQ.
    pub(crate) fn receives(&mut self, event: TagEvent, index: u16) {
        let cqe = self.cqe(CqeOpcode::RESPONDER_SEND, event, 0, [0; 16]);
        self.cq.produce(Cqe { wqe_counter: index, ..cqe });
    }

    pub(crate) fn poll(&mut self) -> Result<WorkCompletion, PollError> {
        self.cq.queue.poll().map(|done| done.to_work_completion())
    }

    pub(crate) fn expect(
        &mut self,
        wr_id: u64,
        status: Status,
        opcode: CompletionOpcode,
    ) -> WorkCompletion {
        let done = self.poll().expect("a completion");
        assert_eq!((done.wr_id(), done.status(), done.opcode()), (wr_id, status, opcode));
        assert!(!done.is_send());
        done
    }
}

use CompletionOpcode::{NoTagRecv, Recv, TagAdd, TagRecv, TagRemove, TagSync};
use CqeOpcode as Op;
use Status::{RendezvousIncomplete, Success, TagNotRemoved};

/// `mlx5_post_srq_ops` and `set_tm_seg` of libmlx5, byte by byte.
#[test]
fn changes_are_encoded_as_by_libmlx5() {
    let mut tags = Tags::new(7, 8);
    let (tag, mask) = (0x0102_0304_0506_0708, 0x1112_1314_1516_1718);
    let change = TagChange::Add { tag, mask, buffer: Some(BUFFER), receive_id: 5 };
    let request = TagRequest { wr_id: 1, change, signaled: true, unexpected: Some(0x3_0405) };
    assert_eq!(tags.post(&request), Ok(Some(0)));
    let quiet = TagRequest { signaled: false, unexpected: None, ..request };
    let empty = TagChange::Add { tag, mask, buffer: None, receive_id: 6 };
    assert_eq!(tags.post(&TagRequest { change: empty, ..quiet }), Ok(Some(1)));
    assert_eq!(tags.post(&TagRequest { change: TagChange::Remove(1), ..request }), Ok(None));
    let sync = TagRequest { change: TagChange::Sync, ..request };
    assert_eq!(tags.post(&sync), Ok(None));
    let expected: [&[u8]; 4] = [
        &[
            0, 0, 0, 0x28, 0, 0x12, 0x34, 4, 0, 0, 0, 0, 0, 0, 0, 0, // control
            0x10, 0xc0, 0, 1, 0, 0, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, // append, next entry, count
            1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17,
            0x18, // tag, mask
            0, 0, 0, 64, 0, 0, 0, 0x77, 0, 0, 0, 1, 0, 0, 0x20, 0, // buffer
        ],
        &[
            0, 0, 1, 0x28, 0, 0x12, 0x34, 4, 0, 0, 0, 0, 0, 0, 0, 0, //
            0x10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // append, next entry
            1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, //
            0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, // no buffer
        ],
        &[
            0, 0, 2, 0x28, 0, 0x12, 0x34, 3, 0, 0, 0, 0, 0, 0, 0, 0, //
            0x20, 0xc0, 0, 1, 0, 0, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, // remove, entry, count
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ],
        &[
            0, 0, 3, 0x28, 0, 0x12, 0x34, 3, 0, 0, 0, 0, 0, 0, 0, 0, //
            0, 0xc0, 0, 0, 0, 0, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, // nothing, count
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ],
    ];
    for (place, wqe) in expected.iter().enumerate() {
        assert_eq!(tags.command.ring.read(64 * place, wqe.len()), *wqe, "request {place}");
    }
    assert_eq!(tags.command.record.word(4), 4);
}

#[test]
fn changes_complete_in_order_and_free_their_space() {
    let mut tags = Tags::new(7, 4);
    for _ in 0..40 {
        let first = tags.add(1, Some(BUFFER), false).expect("space");
        let second = tags.add(2, Some(BUFFER), true).expect("space");
        tags.change(TagChange::Sync).expect("space");
        tags.change(TagChange::Remove(second)).expect("space");
        let last = tags.changes;
        let refused = tags.change(TagChange::Sync);
        assert_eq!(refused, Err(TagError::Post(PostError::Full)));
        tags.confirms(TagEvent::APPEND, true, 0);
        tags.expect(last - 2, Success, TagAdd);
        tags.confirms(TagEvent::NOOP, true, 0);
        tags.expect(last - 1, Success, TagSync);
        tags.confirms(TagEvent::REMOVE, true, 0);
        tags.expect(last, Success, TagRemove);
        tags.takes(Op::RESPONDER_SEND, TagEvent::CONSUMED_MESSAGE, first);
        tags.expect(0x101, Success, TagRecv);
        assert_eq!(tags.poll(), Err(PollError::Empty));
    }
}

#[test]
fn a_full_list_refuses_an_entry_until_a_message_has_taken_one() {
    let mut tags = Tags::new(2, 8);
    assert_eq!([tags.add(1, None, false), tags.add(2, None, false)], [Ok(0), Ok(1)]);
    assert_eq!(tags.add(3, None, false), Err(TagError::ListFull));
    assert_eq!(tags.command.record.word(4), 2, "nothing was posted");
    tags.takes(Op::RESPONDER_SEND, TagEvent::CONSUMED_MESSAGE, 1);
    tags.expect(0x102, Success, TagRecv);
    assert_eq!(tags.add(3, None, false), Ok(2));
    assert_eq!(tags.change(TagChange::Remove(1)), Err(TagError::NotListed));
    assert_eq!(tags.change(TagChange::Remove(9)), Err(TagError::NotListed));
    let long = Sge::new(0, 1 << 31, 7);
    tags.takes(Op::RESPONDER_SEND, TagEvent::CONSUMED_MESSAGE, 0);
    tags.expect(0x101, Success, TagRecv);
    let too_long = tags.add(4, Some(long), false);
    assert_eq!(too_long, Err(TagError::Post(PostError::SgeTooLong)));
}

#[test]
fn messages_of_entries_tell_their_tag_once_and_their_data_once() {
    let mut tags = Tags::new(7, 8);
    for tag in 0..5 {
        tags.add(tag, Some(BUFFER), false).expect("space");
    }
    tags.takes(Op::RESPONDER_SEND, TagEvent::CONSUMED_MESSAGE, 0);
    let done = tags.expect(0x100, Success, TagRecv);
    assert_eq!(done.tag_event(), Some(TagEvent::CONSUMED_MESSAGE));
    assert_eq!(done.tag_info(), (0x0102_0304_0506_0708, 0x0a0b_0c0d));
    assert_eq!((done.byte_len(), done.asks_for_tag_sync()), (64, false));
    // A rendezvous: the tag is known before the data is there.
    tags.takes(Op::NO_PACKET, TagEvent::CONSUMED, 1);
    tags.takes(Op::RESPONDER_SEND, TagEvent::EXPECTED, 1);
    assert_eq!(tags.expect(0x101, Success, TagRecv).tag_event(), Some(TagEvent::CONSUMED));
    assert_eq!(tags.expect(0x101, Success, TagRecv).tag_event(), Some(TagEvent::EXPECTED));
    tags.takes(Op::NO_PACKET, TagEvent::CONSUMED_SOFTWARE_RENDEZVOUS, 2);
    tags.takes(Op::RESPONDER_SEND, TagEvent::CANCELED, 2);
    tags.expect(0x102, RendezvousIncomplete, TagRecv);
    tags.expect(0x102, RendezvousIncomplete, TagRecv);
    tags.takes(Op::RESPONDER_SEND, TagEvent::CONSUMED_MESSAGE_SOFTWARE_RENDEZVOUS, 3);
    tags.expect(0x103, RendezvousIncomplete, TagRecv);
    // All of them are free again, and completed.
    for entry in [0, 1, 2, 3, 5, 0x7fff] {
        tags.takes(Op::RESPONDER_SEND, TagEvent::CONSUMED_MESSAGE, entry);
        assert_eq!(tags.poll(), Err(PollError::NotOutstanding), "entry {entry}");
    }
}

#[test]
fn a_removal_that_a_message_has_outrun_fails() {
    let mut tags = Tags::new(7, 8);
    tags.add(1, Some(BUFFER), true).expect("space");
    tags.change(TagChange::Remove(0)).expect("listed");
    tags.confirms(TagEvent::APPEND, true, 0);
    tags.confirms(TagEvent::REMOVE, false, 0);
    tags.takes(Op::RESPONDER_SEND, TagEvent::CONSUMED_MESSAGE, 0);
    tags.expect(1, Success, TagAdd);
    tags.expect(2, TagNotRemoved, TagRemove);
    tags.expect(0x101, Success, TagRecv);
}

/// An entry is listed until its removal was confirmed, and afterwards it takes nothing.
#[test]
fn a_removed_entry_takes_no_message() {
    let mut tags = Tags::new(7, 8);
    tags.add(1, Some(BUFFER), false).expect("space");
    tags.change(TagChange::Remove(0)).expect("listed");
    tags.confirms(TagEvent::REMOVE, true, 0);
    tags.expect(2, Success, TagRemove);
    tags.takes(Op::RESPONDER_SEND, TagEvent::CONSUMED_MESSAGE, 0);
    assert_eq!(tags.poll(), Err(PollError::NotOutstanding));
}

/// The device has begun with the message, so it cannot remove the entry.
#[test]
fn a_silent_removal_leaves_an_entry_to_the_message_that_has_begun() {
    let mut tags = Tags::new(7, 8);
    tags.add(1, Some(BUFFER), false).expect("space");
    tags.takes(Op::NO_PACKET, TagEvent::CONSUMED, 0);
    tags.expect(0x101, Success, TagRecv);
    let change = TagChange::Remove(0);
    let silent = TagRequest { wr_id: 9, change, signaled: false, unexpected: None };
    assert_eq!(tags.post(&silent), Ok(None));
    tags.takes(Op::RESPONDER_SEND, TagEvent::EXPECTED, 0);
    tags.expect(0x101, Success, TagRecv);
    assert_eq!(tags.post(&silent), Err(TagError::NotListed));
}

/// The device takes entry 2 for the next append, and the list entry 3.
#[test]
fn nothing_is_appended_after_a_batch_that_was_leaked() {
    let mut tags = Tags::new(7, 8);
    let change = TagChange::Add { tag: 1, mask: 1, buffer: Some(BUFFER), receive_id: 5 };
    let request = TagRequest { wr_id: 1, change, signaled: true, unexpected: None };
    let mut batch = tags.command.queue.batch().expect("it sends");
    // SAFETY: no device writes to the buffer.
    assert_eq!(unsafe { batch.build_tags(&request) }, Ok(Some(0)));
    // The next change also posts what the dropped batch has built.
    drop(batch);
    assert_eq!(tags.add(2, Some(BUFFER), true), Ok(1));
    assert_eq!(tags.command.record.word(4), 2);
    let mut batch = tags.command.queue.batch().expect("it sends");
    // SAFETY: as above.
    assert_eq!(unsafe { batch.build_tags(&request) }, Ok(Some(2)));
    std::mem::forget(batch);
    assert_eq!(tags.add(3, Some(BUFFER), true), Err(TagError::OutOfStep));
    assert_eq!(tags.command.record.word(4), 2, "nothing was posted");
}

#[test]
fn a_list_is_changed_by_one_queue_only() {
    let tags = Tags::new(7, 8);
    let shape = Shape { send_wqebbs: 8, recv_wqes: 0, shared_receive: false };
    let monitors = tags.cq.monitors();
    let other = tags.cq.table.register(shape, &monitors, Some(&tags.srq), 2).expect("an index");
    assert_eq!(tags.srq.set_tag_command(&other), Err(QueueError::InUse));
    tags.srq.clear_tag_command(&other);
    tags.srq.clear_tag_command(&tags.command.handle);
    assert_eq!(tags.srq.set_tag_command(&other), Err(QueueError::InUse));
    assert_eq!(other.set_tag_command(&tags.command.handle), Err(QueueError::NoTags));
}

/// The SRQ's poller completes the sends of the queue, so no other may.
#[test]
fn a_list_is_changed_by_a_queue_of_its_own_completion_queue() {
    let cq = Cq::new(8, 64);
    let shape = Shape { send_wqebbs: 0, recv_wqes: 4, shared_receive: true };
    let srq = cq.table.register(shape, &cq.monitors(), None, 1).expect("an index");
    srq.match_tags(7);
    let shape = Shape { send_wqebbs: 8, recv_wqes: 0, shared_receive: false };
    let elsewhere = Cq::on(&cq.table, 8, 64);
    let on = |cqs: &[CqMonitor]| cq.table.register(shape, cqs, Some(&srq), 2).expect("an index");
    let [sends, receives] = [&elsewhere, &cq].map(|cq| cq.queue.monitor());
    let other = UserIndexTable::new().register(shape, &cq.monitors(), None, 2);
    let strangers = [on(&[sends, receives]), on(&[]), other.expect("an index")];
    for command in &strangers {
        assert_eq!(srq.set_tag_command(command), Err(QueueError::NoTags));
    }
    // Neither has a completion queue.
    let shape = Shape { send_wqebbs: 0, recv_wqes: 4, shared_receive: true };
    let alone = cq.table.register(shape, &[], None, 3).expect("an index");
    alone.match_tags(7);
    assert_eq!(alone.set_tag_command(&strangers[1]), Err(QueueError::NoTags));
    assert_eq!(srq.set_tag_command(&on(&cq.monitors())), Ok(()));
}

#[test]
fn changes_ask_for_a_synchronization_if_the_device_has_counted_more() {
    let mut tags = Tags::new(7, 8);
    tags.add(1, Some(BUFFER), true).expect("space");
    tags.confirms(TagEvent::APPEND, true, 1);
    assert!(tags.expect(1, Success, TagAdd).asks_for_tag_sync());
    let sync =
        TagRequest { wr_id: 9, change: TagChange::Sync, signaled: true, unexpected: Some(1) };
    tags.post(&sync).expect("space");
    tags.confirms(TagEvent::NOOP, true, 1);
    assert!(!tags.expect(9, Success, TagSync).asks_for_tag_sync());
    tags.add(2, Some(BUFFER), true).expect("space");
    tags.confirms(TagEvent::APPEND, true, 1);
    assert!(!tags.expect(2, Success, TagAdd).asks_for_tag_sync());
}

#[test]
fn other_messages_take_receives_of_the_queue() {
    let mut tags = Tags::new(7, 8);
    tags.receives(TagEvent::UNEXPECTED, 1);
    let done = tags.expect(0x501, Success, TagRecv);
    assert_eq!(done.tag_event(), Some(TagEvent::UNEXPECTED));
    tags.receives(TagEvent::NO_TAG, 0);
    tags.expect(0x500, Success, NoTagRecv);
    tags.receives(TagEvent::NO_TAG, 0);
    assert_eq!(tags.poll(), Err(PollError::NotOutstanding));
    // A write with immediate data is one of the QP, and no header was read.
    // SAFETY: no device writes to it.
    unsafe { tags.queue.post(7, &[BUFFER]) }.expect("space");
    let write = Cqe::recv(&tags.qp, 2).opcode(Op::RESPONDER_WRITE_IMMEDIATE);
    tags.cq.produce(write);
    tags.expect(7, Success, CompletionOpcode::RecvWriteImmediate);
}

/// The device stops matching at 2^14 unexpected messages that it was not told of.
#[test]
fn many_unexpected_messages_ask_for_a_synchronization() {
    let mut tags = Tags::new(7, 8);
    let mut asked = Vec::new();
    let mut entry = 0;
    for count in 1..=0x4001 {
        tags.receives(TagEvent::UNEXPECTED, entry);
        let done = tags.poll().expect("a completion");
        if done.asks_for_tag_sync() {
            asked.push(count);
        }
        // SAFETY: no device writes to it.
        unsafe { tags.queue.post(1, &[BUFFER]) }.expect("space");
        entry = (entry + 1) % 4;
    }
    assert_eq!(asked, [0x4000, 0x4001]);
}

/// Both indices lead to the SRQ: that of the SRQ and that of a QP on it.
#[test]
fn completions_may_name_the_qp() {
    let mut tags = Tags::new(7, 8);
    tags.add(1, Some(BUFFER), true).expect("space");
    let user_index = tags.command.handle.user_index();
    let head = [0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let cqe = tags.cqe(Op::NO_PACKET, TagEvent::APPEND, 0, head);
    tags.cq.produce(Cqe { user_index, ..cqe });
    tags.expect(1, Success, TagAdd);
    let user_index = tags.qp.user_index();
    let cqe = tags.cqe(Op::RESPONDER_SEND, TagEvent::CONSUMED_MESSAGE, 0, [0; 16]);
    tags.cq.produce(Cqe { user_index, ..cqe });
    tags.expect(0x101, Success, TagRecv);
}

#[test]
fn a_device_confirms_only_changes_that_were_posted() {
    let mut tags = Tags::new(7, 8);
    tags.confirms(TagEvent::NOOP, true, 0);
    assert_eq!(tags.poll(), Err(PollError::NotOutstanding));
    tags.change(TagChange::Sync).expect("space");
    tags.confirms(TagEvent::APPEND, true, 0);
    assert_eq!(tags.poll(), Err(PollError::NotOutstanding));
    tags.confirms(TagEvent::NOOP, true, 0);
    tags.expect(1, Success, TagSync);
    // Events without a name are dropped.
    tags.takes(Op::NO_PACKET, TagEvent(0x8), 0);
    assert_eq!((tags.poll(), tags.cq.queue.dropped()), (Err(PollError::Empty), 1));
}

/// The queue of changes went before its confirmations were polled.
#[test]
fn confirmations_of_a_queue_that_is_gone_are_dropped() {
    let mut tags = Tags::new(7, 8);
    tags.add(1, Some(BUFFER), true).expect("space");
    tags.srq.clear_tag_command(&tags.command.handle);
    tags.confirms(TagEvent::APPEND, true, 0);
    assert_eq!((tags.poll(), tags.cq.queue.dropped()), (Err(PollError::Empty), 1));
}

/// The device completes to a CQ that is not the queue's.
#[test]
fn completions_of_tags_in_a_foreign_cq_complete_nothing() {
    let mut tags = Tags::new(7, 8);
    tags.add(1, Some(BUFFER), true).expect("space");
    let mut foreign = Cq::on(&tags.cq.table, 8, 64);
    for (opcode, event) in [
        (Op::NO_PACKET, TagEvent::APPEND),
        (Op::RESPONDER_SEND, TagEvent::CONSUMED_MESSAGE),
        (Op::RESPONDER_SEND, TagEvent::UNEXPECTED),
    ] {
        let cqe = tags.cqe(opcode, event, 0, [0; 16]);
        foreign.produce(Cqe { wqe_counter: 0, ..cqe });
        assert_eq!(foreign.queue.poll().map(|done| done.wr_id()), Err(PollError::NotOutstanding));
    }
    tags.confirms(TagEvent::APPEND, true, 0);
    tags.expect(1, Success, TagAdd);
}

/// A change that was not posted leaves the list as it was.
#[test]
fn a_change_that_is_refused_takes_no_entry() {
    let mut tags = Tags::new(7, 2);
    tags.add(1, None, true).expect("space");
    tags.add(2, None, true).expect("space");
    assert_eq!(tags.add(3, None, true), Err(TagError::Post(PostError::Full)));
    tags.confirms(TagEvent::APPEND, true, 0);
    tags.expect(1, Success, TagAdd);
    assert_eq!(tags.add(3, None, true), Ok(2));
}

#[test]
fn changes_after_an_error_are_flushed() {
    let mut tags = Tags::new(7, 8);
    tags.add(1, Some(BUFFER), true).expect("space");
    let cqe = Cqe::send(&tags.command.handle, 0).failed(0, Syndrome::FLUSHED.0);
    tags.cq.produce(Cqe { wqe_opcode: 0x28, ..cqe });
    let done = tags.poll().expect("a completion");
    assert_eq!((done.wr_id(), done.status()), (1, Status::Flushed));
    tags.confirms(TagEvent::APPEND, true, 0);
    assert_eq!(tags.poll(), Err(PollError::NotOutstanding));
    tags.takes(Op::RESPONDER_SEND, TagEvent::CONSUMED_MESSAGE, 0);
    assert_eq!(tags.poll(), Err(PollError::NotOutstanding), "the device never had the entry");
}

/// Inline data of 64 bytes goes to the entry's buffer, unless it is longer.
#[test]
fn inline_data_goes_to_the_buffer_of_the_entry() {
    let mut tags = Tags::with(Cq::new(16, 128), 7, 8);
    let memory = Memory::new(64);
    let address = memory.ptr().as_ptr().expose_provenance() as u64;
    tags.add(1, Some(Sge::new(address, 48, 7)), false).expect("space");
    tags.add(2, Some(Sge::new(address, 32, 7)), false).expect("space");
    for (entry, status, filled) in [(0, Success, 48), (1, Status::LocalLength, 0)] {
        memory.write(0, &[0; 64]);
        let cqe = tags.cqe(Op::RESPONDER_SEND, TagEvent::CONSUMED_MESSAGE, entry, [0; 16]);
        tags.cq.produce(cqe.inline(CqeFormat::INLINE_64, &[5; 48]));
        assert_eq!(tags.poll().map(|done| done.status()), Ok(status));
        assert_eq!(memory.read(0, 64), [vec![5; filled], vec![0; 64 - filled]].concat());
    }
}

#[test]
fn other_queues_know_no_tags() {
    let cq = Cq::new(8, 64);
    let mut srq = shared_recv_queue(&cq, 4, 32, false);
    let mut sq = send_queue::<Rc>(&cq, 4);
    let request =
        TagRequest { wr_id: 1, change: TagChange::Sync, signaled: true, unexpected: None };
    let mut batch = sq.queue.batch().expect("it sends");
    // SAFETY: names no memory.
    assert_eq!(unsafe { batch.build_tags(&request) }, Err(TagError::NoList));
    batch.publish();
    assert_eq!(sq.record.word(4), 0);
    // A CQE of tag matching is dropped, or completes what any receive's does.
    let mut cq = cq;
    let tagged = Some(([0; 16], [1, TagEvent::APPEND.0, 0, 0]));
    cq.produce(Cqe { tagged, ..Cqe::recv(&srq.qp, 0).opcode(Op::NO_PACKET) });
    assert_eq!(cq.queue.poll().map(|done| done.wr_id()), Err(PollError::Empty));
    assert_eq!(cq.queue.dropped(), 1);
    // SAFETY: no device writes to it.
    unsafe { srq.queue.post(0x77, &[BUFFER]) }.expect("space");
    let tagged = Some(([0; 16], [1, TagEvent::CONSUMED_MESSAGE.0, 0, 0]));
    cq.produce(Cqe { tagged, ..Cqe::recv(&srq.qp, 0) });
    let done = cq.queue.poll().expect("a completion");
    assert_eq!((done.wr_id(), done.opcode(), done.tag_event()), (0x77, Recv, None));
    let copy = done.to_work_completion();
    assert_eq!((copy.opcode(), copy.tag_event()), (Recv, None));
}
