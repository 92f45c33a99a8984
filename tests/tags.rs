//! Tag matching SRQs, on an InfiniBand port: lists of tags, messages that match an entry or none,
//! and refused calls.

mod common;

use common::{Setup, completion};
use uverbs::cq::{CompletionOpcode, Status, TagEvent, WorkCompletion};
use uverbs::qp::{Inline, PostError, PostFlags, TagChange, TagError, TagQueue, TagRequest};
use uverbs::qp_type::Rc;
use uverbs::{ErrorKind, LinkLayer, MemoryRegion, PollError, Sge, op, raw};

use CompletionOpcode::{NoTagRecv, TagAdd, TagRecv, TagRemove, TagSync};
use Status::{Success, TagNotRemoved};

/// Bytes of an entry's buffer, and of a receive's.
const LENGTH: usize = 64;
/// Receives that are posted; their buffers follow those of 16 entries.
const RECEIVES: u64 = 4;
/// Operations of a message's header (`enum ibv_tmh_op`).
const NO_TAG: u8 = 0;
const EAGER: u8 = 3;
const CONTEXT: u32 = 0x0a0b_0c0d;

/// The kernel's device in a guest with an InfiniBand port, a software device everywhere else.
fn setup() -> Setup {
    if !common::is_soft() {
        let context = common::open();
        if context.query_port(1).expect("a port").link_layer() == LinkLayer::InfiniBand {
            return Setup::on(context);
        }
    }
    let device = common::soft_device(uverbs::soft::DeviceBuilder::infiniband);
    Setup::on(device.open().expect("the device opens"))
}

/// A client, and a server that receives through a tag matching SRQ. The SRQ completes to the
/// setup's CQ, the client to its own.
struct Tags {
    setup: Setup,
    region: MemoryRegion,
    list: TagQueue,
    server: raw::QueuePair<Rc>,
    srq: raw::SharedReceiveQueue,
    client: raw::QueuePair<Rc>,
    client_cq: raw::CompletionQueue,
    /// Changes that were posted.
    changes: u64,
}

impl Tags {
    fn new(tags: u16, changes: u32) -> Self {
        let setup = setup();
        let region = setup.region(4096);
        let srq = setup.pd.create_raw_srq(8).match_tags(setup.cq.handle(), tags);
        let mut srq = srq.build().expect("the port matches tags");
        let list = srq.create_tag_queue(changes).expect("it has none");
        for id in 0..RECEIVES {
            let buffer = region.sge((16 + id as usize) * LENGTH, LENGTH).unwrap();
            // SAFETY: the region outlives the queue, and is read after completions only.
            unsafe { srq.post(0x500 + id, &[buffer]) }.unwrap();
        }
        let client_cq = setup.context.create_raw_cq(64).build().unwrap();
        let (client, server) = pair(&setup, &client_cq, &srq);
        Self { setup, region, list, server, srq, client, client_cq, changes: 0 }
    }

    fn buffer(&self, place: usize) -> Sge {
        self.region.sge(place * LENGTH, LENGTH).unwrap()
    }

    fn post(&mut self, change: TagChange, unexpected: Option<u32>) -> Result<u16, TagError> {
        self.changes += 1;
        let request = TagRequest { wr_id: self.changes, change, signaled: true, unexpected };
        let mut batch = self.list.batch()?;
        // SAFETY: buffers are of the region, which outlives the queue, and are read after
        // completions only.
        let handle = unsafe { batch.build(&request) }?;
        batch.publish();
        Ok(handle.unwrap_or(u16::MAX))
    }

    /// Adds an entry with the buffer at `place`; its messages complete with the id 0x100 + tag.
    fn add(&mut self, tag: u64, mask: u64, place: usize) -> Result<u16, TagError> {
        let buffer = Some(self.buffer(place));
        self.post(TagChange::Add { tag, mask, buffer, receive_id: 0x100 + tag }, None)
    }

    /// Adds an entry and waits until the device has it.
    fn added(&mut self, tag: u64, mask: u64, place: usize) -> u16 {
        let handle = self.add(tag, mask, place).expect("space");
        let done = self.expect(self.changes, Success, TagAdd);
        assert!(!done.asks_for_tag_sync());
        handle
    }

    /// Makes the client send a message, and waits for its completion.
    fn send(&mut self, operation: u8, tag: u64, data: &[u8]) -> Status {
        let message = message(operation, tag, data);
        // SAFETY: inline data.
        unsafe { self.client.post_send(7, op::Send, Inline(&message), PostFlags::SIGNALED) }
            .unwrap();
        completion(&mut self.client_cq).status
    }

    fn expect(&mut self, wr_id: u64, status: Status, opcode: CompletionOpcode) -> WorkCompletion {
        let done = self.setup.completion();
        assert_eq!((done.wr_id, done.status, done.opcode()), (wr_id, status, opcode), "{done:?}");
        done
    }

    /// Sends a message that matches this entry, and checks its data in the buffer at `place`.
    fn takes(&mut self, entry: u64, tag: u64, place: usize) {
        let data = [tag as u8; 20];
        assert_eq!(self.send(EAGER, tag, &data), Success);
        let done = self.expect(0x100 + entry, Success, TagRecv);
        assert_eq!(done.tag_event(), Some(TagEvent::CONSUMED_MESSAGE));
        assert_eq!((done.tag_info(), done.byte_len()), ((tag, CONTEXT), 20));
        assert_eq!(self.region.view().to_vec()[place * LENGTH..][..20], data);
    }
}

/// A client and a server on the SRQ, connected.
fn pair(
    setup: &Setup,
    client_cq: &raw::CompletionQueue,
    srq: &raw::SrqHandle,
) -> (raw::QueuePair<Rc>, raw::QueuePair<Rc>) {
    let client = setup.pd.create_raw_qp::<Rc>(client_cq.handle(), client_cq.handle());
    let mut client = client.build().unwrap();
    let server = setup.builder::<Rc>().shared_receive_queue(srq);
    let mut server = server.build().unwrap();
    client.connect(&server.endpoint()).unwrap();
    server.connect(&client.endpoint()).unwrap();
    (client, server)
}

/// A header (`struct ibv_tmh`), and the data.
fn message(operation: u8, tag: u64, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![operation, 0, 0, 0];
    bytes.extend(CONTEXT.to_be_bytes());
    bytes.extend(tag.to_be_bytes());
    bytes.extend(data);
    bytes
}

#[test]
fn entries_take_messages_whose_tag_they_match() {
    let mut tags = Tags::new(7, 8);
    tags.added(0x1234, u64::MAX, 0);
    tags.added(0xab00, 0xff00, 1);
    tags.added(0x5678, u64::MAX, 2);
    tags.takes(0x5678, 0x5678, 2);
    tags.takes(0xab00, 0x77_ab55, 1);
    tags.takes(0x1234, 0x1234, 0);
    assert_eq!(tags.setup.cq.poll().map(|done| done.wr_id()), Err(PollError::Empty));
}

#[test]
fn the_first_of_several_entries_that_match_takes_a_message() {
    let mut tags = Tags::new(7, 8);
    tags.added(0, 0, 0);
    tags.added(2, u64::MAX, 1);
    tags.takes(0, 2, 0);
    tags.takes(2, 2, 1);
}

#[test]
fn a_removed_entry_takes_no_message() {
    let mut tags = Tags::new(7, 8);
    let handle = tags.added(3, u64::MAX, 0);
    tags.post(TagChange::Remove(handle), None).unwrap();
    tags.expect(2, Success, TagRemove);
    assert_eq!(tags.post(TagChange::Remove(handle), None), Err(TagError::NotListed));
    assert_eq!(tags.send(EAGER, 3, b"late"), Success);
    let done = tags.expect(0x500, Success, TagRecv);
    assert_eq!(done.tag_event(), Some(TagEvent::UNEXPECTED));
}

/// The message's completion was not polled when the removal was posted.
#[test]
fn an_entry_that_took_a_message_is_not_removed() {
    let mut tags = Tags::new(7, 8);
    let handle = tags.added(3, u64::MAX, 0);
    assert_eq!(tags.send(EAGER, 3, b"first"), Success);
    tags.post(TagChange::Remove(handle), None).unwrap();
    tags.expect(0x103, Success, TagRecv);
    tags.expect(2, TagNotRemoved, TagRemove);
    assert_eq!(tags.post(TagChange::Remove(handle), None), Err(TagError::NotListed));
    assert_eq!(tags.region.view().to_vec()[..5], *b"first");
}

#[test]
fn an_unexpected_message_stops_matching_until_the_device_is_told_of_it() {
    let mut tags = Tags::new(7, 8);
    assert_eq!(tags.send(EAGER, 9, b"early"), Success);
    let done = tags.expect(0x500, Success, TagRecv);
    assert_eq!((done.tag_event(), done.byte_len()), (Some(TagEvent::UNEXPECTED), 21));
    let received = tags.region.view().to_vec()[16 * LENGTH..][..21].to_vec();
    assert_eq!(received, message(EAGER, 9, b"early"));
    assert_eq!(tags.send(NO_TAG, 9, b"other"), Success);
    tags.expect(0x501, Success, NoTagRecv);
    // The program added the entry before it knew of the message, so the message may be intended for
    // it.
    tags.add(9, u64::MAX, 0).unwrap();
    assert!(tags.expect(1, Success, TagAdd).asks_for_tag_sync());
    assert_eq!(tags.send(EAGER, 9, b"again"), Success);
    tags.expect(0x502, Success, TagRecv);
    tags.post(TagChange::Sync, Some(2)).unwrap();
    tags.expect(2, Success, TagSync);
    tags.takes(9, 9, 0);
}

#[test]
fn a_full_list_takes_an_entry_again_when_a_message_has_taken_one() {
    let mut tags = Tags::new(2, 8);
    tags.added(1, u64::MAX, 0);
    tags.added(2, u64::MAX, 1);
    assert_eq!(tags.add(3, u64::MAX, 2), Err(TagError::ListFull));
    tags.takes(1, 1, 0);
    tags.changes -= 1;
    tags.added(3, u64::MAX, 2);
    for _ in 0..20 {
        tags.takes(2, 2, 1);
        tags.added(2, u64::MAX, 1);
        tags.takes(3, 3, 2);
        tags.added(3, u64::MAX, 2);
    }
}

#[test]
fn a_queue_of_changes_holds_as_many_as_it_was_made_for() {
    let mut tags = Tags::new(100, 4);
    let capacity = (0..).take_while(|tag| tags.add(*tag, u64::MAX, 0).is_ok()).count();
    assert!((4..64).contains(&capacity), "{capacity}");
    let full = Err(TagError::Post(PostError::Full));
    assert_eq!(tags.add(99, u64::MAX, 0), full, "no completion was polled");
    for id in 1..=capacity as u64 {
        tags.expect(id, Success, TagAdd);
    }
    assert!(tags.add(99, u64::MAX, 0).is_ok());
}

#[test]
fn a_queue_with_entries_in_its_list_is_destroyed() {
    let Tags { list, srq, server, client, region, client_cq, setup, .. } = {
        let mut tags = Tags::new(7, 8);
        tags.added(1, u64::MAX, 0);
        tags.add(2, u64::MAX, 1).unwrap();
        tags
    };
    let Setup { cq, pd, context } = setup;
    let busy = srq.destroy().expect_err("two queue pairs are on it");
    assert_eq!(busy.error.kind(), ErrorKind::Busy);
    let srq = *busy.object;
    list.destroy().expect("nothing holds it");
    let again = srq.create_tag_queue(8).expect_err("it has had one");
    assert_eq!(again.kind(), ErrorKind::InvalidInput);
    drop((server, client));
    srq.destroy().expect("no queue pair is left");
    region.deregister().expect("no list names it");
    cq.destroy().expect("nothing completes to it");
    drop((client_cq, pd, context));
}

#[test]
fn entries_outlive_a_queue_pair_that_fails() {
    let mut tags = Tags::new(7, 8);
    tags.added(1, u64::MAX, 0);
    tags.server.to_error().unwrap();
    assert_ne!(tags.send(EAGER, 1, b"lost"), Success);
    (tags.client, tags.server) = pair(&tags.setup, &tags.client_cq, &tags.srq);
    tags.takes(1, 1, 0);
}

/// The device cannot store the message, so it cancels it.
#[test]
fn a_buffer_of_another_domain_gets_no_data() {
    let mut tags = Tags::new(7, 8);
    let other = tags.setup.context.alloc_pd().unwrap();
    let foreign = other.register(uverbs::Buffer::new(4096).unwrap(), common::ALL_ACCESS).unwrap();
    let buffer = Some(foreign.sge(0, LENGTH).unwrap());
    let change = TagChange::Add { tag: 1, mask: u64::MAX, buffer, receive_id: 0x101 };
    tags.post(change, None).unwrap();
    tags.expect(1, Success, TagAdd);
    assert_ne!(tags.send(EAGER, 1, b"astray"), Success);
    assert_eq!(foreign.view().to_vec()[..6], [0; 6]);
    tags.expect(0x101, Status::RendezvousIncomplete, TagRecv);
    assert_eq!(tags.setup.cq.poll().map(|done| done.wr_id()), Err(PollError::Empty));
}

#[test]
fn what_the_device_cannot_is_refused() {
    let setup = setup();
    let of = |tags| setup.pd.create_raw_srq(8).match_tags(setup.cq.handle(), tags).build();
    for tags in [0, u16::MAX] {
        let error = of(tags).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("holds 1 to"), "{error}");
    }
    let other = Setup::new();
    let foreign = setup.pd.create_raw_srq(8).match_tags(other.cq.handle(), 7).build();
    assert_eq!(foreign.expect_err("of another context").kind(), ErrorKind::InvalidInput);
    let srq = of(7).unwrap();
    assert_eq!(srq.create_tag_queue(0).expect_err("no changes").kind(), ErrorKind::InvalidInput);
    assert!(srq.create_tag_queue(u32::MAX).is_err());
    let list = srq.create_tag_queue(8).unwrap();
    assert_eq!(srq.create_tag_queue(8).expect_err("a second").kind(), ErrorKind::InvalidInput);
    drop(list);
    let plain = setup.pd.create_raw_srq(8).build().unwrap();
    assert_eq!(plain.create_tag_queue(8).expect_err("no list").kind(), ErrorKind::InvalidInput);
    // A RoCE port of the software device matches no tags.
    let roce = Setup::on(common::soft_device(|builder| builder).open().unwrap());
    let refused = roce.pd.create_raw_srq(8).match_tags(roce.cq.handle(), 7).build();
    let error = refused.expect_err("RoCE");
    assert!(error.to_string().contains("matches no tags"), "{error}");
}
