//! Striding receive queues: frames in strides, fillers, exhaustion, frames that are too long.

use uverbs_mlx5_format::{Cqe, CqeOpcode, DataSegment, StrideByteCount, Syndrome, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::harness::*;
use crate::core::*;

/// 8 strides of 64 bytes.
const WQE_BYTES: u64 = 8 * 64;

struct Queue {
    pair: Pair,
    inbox: Region,
    read: u64,
}

/// Fields of a CQE: WQE, first stride, number of strides, bytes, filler.
type Found = (u16, u16, u16, u16, bool);

impl Queue {
    fn new(two_byte_shift: bool, wqes: u16) -> Self {
        let striding = Some(Striding { log_bytes: 6, log_strides: 3, two_byte_shift });
        let none = |_: usize, attributes: &mut QpAttributes| *attributes = QpAttributes::default();
        let params = |side: usize, params: &mut QpParams| {
            if side == 1 {
                params.striding = striding;
            }
        };
        let mut pair = Pair::with(QpType::RawPacket, params, none);
        let inbox = pair.host(1).region(64 * WQE_BYTES, ALL);
        let mut queue = Self { pair, inbox, read: 0 };
        (0..wqes).for_each(|_| queue.post());
        queue
    }

    /// Posts the next buffer. Every WQE begins with a link segment.
    fn post(&mut self) {
        let qp = &mut self.pair.qps[1];
        let slot = u64::from(qp.received);
        qp.received += 1;
        let (entry, record, posted) =
            (qp.receive_ring + (slot << LOG_STRIDE) + 16, qp.record, u32::from(qp.received));
        let segment = DataSegment {
            byte_count: U32::new(WQE_BYTES as u32),
            lkey: U32::new(self.inbox.key.0),
            address: U64::new(self.inbox.address + slot * WQE_BYTES),
        };
        let host = self.pair.host(1);
        host.memory_write(entry, segment.as_bytes());
        host.memory_write(entry + 16, DataSegment::TERMINATOR.as_bytes());
        host.memory_write(record, &posted.to_be_bytes());
    }

    fn deliver(&mut self, length: usize) -> bool {
        let (qpn, frame) = (self.pair.qps[1].qpn, vec![length as u8; length]);
        self.pair.host(1).core.deliver_frame(5, qpn, &frame, Steered::default())
    }

    fn cqe(&mut self) -> Cqe {
        let at = self.pair.cqs[1].ring + 64 * self.read;
        self.read += 1;
        Cqe::read_from_bytes(&self.pair.host(1).bytes(at, 64)).unwrap()
    }

    fn next(&mut self) -> Found {
        let cqe = self.cqe();
        assert_eq!(cqe.op_own.opcode(), CqeOpcode::RESPONDER_SEND);
        let count = StrideByteCount::from_word(cqe.byte_count.get());
        let bytes = count.byte_count.get();
        (cqe.wqe_id.get(), cqe.wqe_counter.get(), count.strides(), bytes, count.is_filler())
    }

    fn memory(&mut self, offset: u64, length: u64) -> Vec<u8> {
        let at = self.inbox.address + offset;
        self.pair.host(1).bytes(at, length)
    }
}

#[test]
fn frames_of_mixed_sizes_use_the_strides_that_they_need() {
    let mut queue = Queue::new(false, 2);
    for length in [60, 64, 65, 200] {
        assert!(queue.deliver(length));
    }
    let found: Vec<Found> = (0..4).map(|_| queue.next()).collect();
    assert_eq!(
        found,
        [(0, 0, 1, 60, false), (0, 1, 1, 64, false), (0, 2, 2, 65, false), (0, 4, 4, 200, false)]
    );
    assert_eq!(queue.memory(2 * 64, 65), vec![65; 65]);
    assert_eq!(queue.memory(4 * 64, 200), vec![200; 200]);
    // The WQE is full, so the device writes no filler.
    assert!(queue.deliver(70));
    assert_eq!(queue.next(), (1, 0, 2, 70, false));
    assert_eq!(queue.memory(WQE_BYTES, 70), vec![70; 70]);
}

#[test]
fn a_filler_consumes_strides_that_are_too_few_for_a_frame() {
    let mut queue = Queue::new(false, 2);
    assert!(queue.deliver(6 * 64));
    assert!(queue.deliver(3 * 64));
    assert_eq!(queue.next(), (0, 0, 6, 384, false));
    assert_eq!(queue.next(), (0, 6, 2, 0, true));
    assert_eq!(queue.next(), (1, 0, 3, 192, false));
    assert_eq!(queue.memory(6 * 64, 64), vec![0; 64]);
}

#[test]
fn frames_are_lost_without_a_wqe_and_arrive_after_one_is_posted() {
    let mut queue = Queue::new(false, 1);
    assert!(queue.deliver(8 * 64));
    assert!(!queue.deliver(60));
    assert!(!queue.deliver(60));
    assert_eq!(queue.pair.host(1).core.counters().datagrams_lost, 2);
    queue.post();
    assert!(queue.deliver(60));
    queue.next();
    assert_eq!(queue.next(), (1, 0, 1, 60, false));
}

#[test]
fn only_the_frame_longer_than_a_wqe_fails() {
    let mut queue = Queue::new(false, 2);
    assert!(queue.deliver(60));
    assert!(!queue.deliver(8 * 64 + 1));
    assert!(queue.deliver(61));
    assert_eq!(queue.next().3, 60);
    let cqe = queue.cqe();
    assert_eq!(cqe.op_own.opcode(), CqeOpcode::RESPONDER_ERROR);
    let error = uverbs_mlx5_format::ErrorCqe::read_from_bytes(cqe.as_bytes()).unwrap();
    assert_eq!(error.syndrome, Syndrome::LOCAL_LENGTH);
    let count = StrideByteCount::from_word(cqe.byte_count.get());
    assert_eq!((cqe.wqe_id.get(), cqe.wqe_counter.get(), count.strides()), (0, 1, 7));
    assert_eq!(queue.next(), (1, 0, 1, 61, false));
}

#[test]
fn the_two_byte_shift_counts_for_the_number_of_strides() {
    let mut queue = Queue::new(true, 2);
    assert!(queue.deliver(62));
    assert!(queue.deliver(63));
    assert_eq!(queue.next(), (0, 0, 1, 62, false));
    assert_eq!(queue.next(), (0, 1, 2, 63, false));
    assert_eq!(queue.memory(0, 64), [vec![0; 2], vec![62; 62]].concat());
    assert_eq!(queue.memory(64, 66), [vec![0; 2], vec![63; 63], vec![0]].concat());
    // With the shift the frame is two bytes longer than a WQE.
    assert!(!queue.deliver(8 * 64));
}

#[test]
fn wqes_wrap_in_the_ring() {
    let mut queue = Queue::new(false, 1);
    for lap in 0..40u16 {
        assert!(queue.deliver(5 * 64));
        assert!(queue.deliver(3 * 64));
        assert_eq!(queue.next(), (lap, 0, 5, 320, false));
        assert_eq!(queue.next(), (lap, 5, 3, 192, false));
        queue.post();
    }
}

#[test]
fn an_error_flushes_the_wqe_being_filled_and_all_others() {
    let mut queue = Queue::new(false, 2);
    assert!(queue.deliver(60));
    let qpn = queue.pair.qps[1].qpn;
    let host = queue.pair.host(1);
    host.core.modify_qp(qpn, QpState::Error, &QpAttributes::default()).unwrap();
    queue.next();
    let flushed: Vec<_> = (0..2)
        .map(|_| {
            let cqe = queue.cqe();
            assert_eq!(cqe.op_own.opcode(), CqeOpcode::RESPONDER_ERROR);
            let count = StrideByteCount::from_word(cqe.byte_count.get());
            (cqe.wqe_id.get(), cqe.wqe_counter.get(), count.strides())
        })
        .collect();
    assert_eq!(flushed, [(0, 1, 7), (1, 0, 8)]);
    assert!(!queue.deliver(60));
}
