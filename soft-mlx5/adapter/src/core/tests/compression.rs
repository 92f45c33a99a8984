//! Compressed completions: which ones share a title, and when the device writes them.

use uverbs_mlx5_format::{
    Cqe, CqeFormat, CqeOpcode, MINI_CQES_PER_SLOT, MiniCqe, MiniCqeFormat, OpOwn,
};
use zerocopy::FromBytes;

use super::harness::*;
use crate::core::*;

/// A raw packet queue whose completions are compressed.
struct Queue {
    pair: Pair,
    inbox: Region,
    /// CQEs read, including those inside sessions.
    read: u32,
}

/// Completions that were written together: index of the first receive, and bytes of each.
type Written = (u16, Vec<u32>);

impl Queue {
    fn new(format: MiniCqeFormat) -> Self {
        let none = |_: usize, attributes: &mut QpAttributes| *attributes = QpAttributes::default();
        let mut pair = Pair::with_attributes(QpType::RawPacket, none);
        let inbox = pair.host(1).region(2048, ALL);
        let cqn = pair.cqs[1].cqn;
        pair.host(1).core.compress(cqn, format).unwrap();
        Self { pair, inbox, read: 0 }
    }

    fn deliver(&mut self, length: usize, flow_tag: u32) {
        assert!(self.try_to_deliver(length, flow_tag));
    }

    fn try_to_deliver(&mut self, length: usize, flow_tag: u32) -> bool {
        self.pair.post_receive(1, self.inbox);
        let (qpn, frame) = (self.pair.qps[1].qpn, vec![0; length]);
        let steered = Steered { flow_tag, hash: Some((length as u32, 1)) };
        self.pair.host(1).core.deliver_frame(5, qpn, &frame, steered)
    }

    fn step(&mut self) {
        self.pair.host(1).core.step(6, 0);
    }

    fn slot(&mut self, ahead: u32) -> Vec<u8> {
        let slot = u64::from((self.read + ahead) & 0xff);
        let at = self.pair.cqs[1].ring + 64 * slot;
        self.pair.host(1).bytes(at, 64)
    }

    /// The next CQE or session, if there is one. Returns its entries to the device.
    fn next(&mut self) -> Option<Written> {
        let title = Cqe::read_from_bytes(&self.slot(0)).unwrap();
        if !title.op_own.is_software(self.read, 8) {
            return None;
        }
        assert_eq!(title.op_own.opcode(), CqeOpcode::RESPONDER_SEND);
        let is_session = title.op_own.format() == CqeFormat::COMPRESSED;
        let bytes = match is_session {
            true => self.session(&title),
            false => vec![title.byte_count.get()],
        };
        bytes.iter().for_each(|_| self.pass());
        let record = self.pair.cqs[1].record;
        let read = self.read.to_be_bytes();
        self.pair.host(1).memory_write(record, &read);
        Some((title.wqe_counter.get(), bytes))
    }

    /// Moves past an entry and marks it unwritten, as software does for the entries of a session.
    fn pass(&mut self) {
        let at = self.pair.cqs[1].ring + 64 * u64::from(self.read & 0xff) + 63;
        let owner = OpOwn::UNWRITTEN.0 & !1 | (self.read >> 8 & 1) as u8;
        self.pair.host(1).memory_write(at, &[owner]);
        self.read += 1;
    }

    fn session(&mut self, title: &Cqe) -> Vec<u32> {
        let count = title.byte_count.get();
        assert!(count > 1);
        let mini = |i: u32| {
            let array = i / MINI_CQES_PER_SLOT as u32 * MINI_CQES_PER_SLOT as u32;
            let place = 8 * (i as usize % MINI_CQES_PER_SLOT);
            let slot = self.slot(array.max(1));
            let mini = MiniCqe::read_from_bytes(&slot[place..place + 8]).unwrap();
            assert_eq!(mini.hash(), mini.byte_count.get(), "these tests give the length as hash");
            mini.byte_count.get()
        };
        (0..count).map(mini).collect()
    }
}

#[test]
fn completions_of_a_step_share_a_title() {
    let mut queue = Queue::new(MiniCqeFormat::HASH);
    let lengths = [60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70];
    lengths.iter().for_each(|length| queue.deliver(*length, 9));
    assert_eq!(queue.next(), None, "held back");
    queue.step();
    assert_eq!(queue.next(), Some((0, lengths.map(|length| length as u32).to_vec())));
    queue.deliver(60, 9);
    queue.step();
    assert_eq!(queue.next(), Some((11, vec![60])));
    assert_eq!(queue.next(), None);
}

#[test]
fn another_flow_tag_begins_a_new_session() {
    let mut queue = Queue::new(MiniCqeFormat::HASH);
    for (length, tag) in [(60, 9), (61, 9), (62, 8), (63, 9), (64, 9)] {
        queue.deliver(length, tag);
    }
    queue.step();
    let found: Vec<_> = std::iter::from_fn(|| queue.next()).collect();
    assert_eq!(found, [(0, vec![60, 61]), (2, vec![62]), (3, vec![63, 64])]);
}

#[test]
fn sessions_have_a_greatest_length_and_wrap_around_the_ring() {
    let mut queue = Queue::new(MiniCqeFormat::HASH);
    let mut expected = 0u32;
    for round in 0..40 {
        let count = 1 + round * 7 % 90;
        (0..count).for_each(|_| queue.deliver(60 + round as usize, 1));
        queue.step();
        let mut found = 0;
        while let Some((first, bytes)) = queue.next() {
            assert_eq!(first, expected as u16);
            assert!(bytes.len() <= MAX_COMPRESSED && bytes.iter().all(|n| *n == 60 + round));
            expected += bytes.len() as u32;
            found += bytes.len() as u32;
        }
        assert_eq!(found, count);
    }
    assert!(expected > 2 * 256, "more than a lap");
}

/// A command that depends on written CQEs first writes those that are held back.
#[test]
fn commands_write_what_is_held_back() {
    let commands: [fn(&mut Queue); 4] = [
        |queue| {
            let cq = queue.pair.cqs[1].clone();
            queue.pair.host(1).arm(&cq, false);
            let found = queue.pair.host(1).events();
            assert_eq!(found, [Event::Completion { cqn: cq.cqn }]);
        },
        |queue| {
            let qpn = queue.pair.qps[1].qpn;
            let attributes = QpAttributes::default();
            queue.pair.host(1).core.modify_qp(qpn, QpState::Reset, &attributes).unwrap();
        },
        |queue| {
            let qpn = queue.pair.qps[1].qpn;
            queue.pair.host(1).core.destroy_qp(qpn).unwrap();
        },
        |queue| {
            let (cqn, change) = (queue.pair.cqs[1].cqn, CqModify::default());
            queue.pair.host(1).core.modify_cq(cqn, change).unwrap();
        },
    ];
    for command in commands {
        let mut queue = Queue::new(MiniCqeFormat::HASH);
        (0..3).for_each(|_| queue.deliver(60, 1));
        command(&mut queue);
        assert_eq!(queue.next(), Some((0, vec![60; 3])));
    }
}

#[test]
fn an_armed_queue_raises_one_event_for_a_session() {
    let mut queue = Queue::new(MiniCqeFormat::CHECKSUM_STRIDE_INDEX);
    let cq = queue.pair.cqs[1].clone();
    queue.pair.host(1).arm(&cq, false);
    (0..5).for_each(|_| queue.deliver(60, 1));
    assert_eq!(queue.pair.host(1).events(), []);
    queue.step();
    assert_eq!(queue.pair.host(1).events(), [Event::Completion { cqn: cq.cqn }]);
}

/// Completions that are held back already occupy entries of the ring.
#[test]
fn an_unpolled_queue_overruns_as_without_compression() {
    let mut queue = Queue::new(MiniCqeFormat::HASH);
    (0..256).for_each(|_| queue.deliver(60, 1));
    queue.step();
    assert_eq!(queue.pair.host(1).async_events(), []);
    assert!(!queue.try_to_deliver(60, 1));
    let cqn = queue.pair.cqs[1].cqn;
    let failed = (AsyncKind::CqError, EventObject::Cq(cqn));
    assert_eq!(queue.pair.host(1).async_events().first(), Some(&failed));
}

/// Errors are not compressed. Their CQEs follow those that were held back.
#[test]
fn errors_end_a_session() {
    let mut queue = Queue::new(MiniCqeFormat::HASH);
    (0..2).for_each(|_| queue.deliver(60, 1));
    queue.pair.post_receive(1, queue.inbox);
    let (qpn, attributes) = (queue.pair.qps[1].qpn, QpAttributes::default());
    queue.pair.host(1).core.modify_qp(qpn, QpState::Error, &attributes).unwrap();
    queue.step();
    assert_eq!(queue.next(), Some((0, vec![60; 2])));
    let flushed = Cqe::read_from_bytes(&queue.slot(0)).unwrap();
    assert_eq!(flushed.op_own.opcode(), CqeOpcode::RESPONDER_ERROR);
}
