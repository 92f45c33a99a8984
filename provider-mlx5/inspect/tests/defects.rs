//! A test for each defect that libmlx5 has and this crate does not have.
//!
//! Two of them are impossible with the types of this crate; their tests only document this.

use std::ptr::NonNull;

use uverbs_mlx5::completion_queue::{
    Completion, CompletionQueue, CompletionQueueConfig, PollError,
};
use uverbs_mlx5::doorbell::DoorbellWord;
use uverbs_mlx5::format::{
    Cqe, CqeFormat, CqeOpcode, MiniCqeFormat, OpOwn, Opcode, TERMINATOR_LKEY,
};
use uverbs_mlx5::memory::DmaMemory;
use uverbs_mlx5::mmio::ArmRegister;
use uverbs_mlx5::queue_state::Shape;
use uverbs_mlx5::request::{ListError, PostError, PostFlags, Remote, Sge};
use uverbs_mlx5::send_queue::{EthernetOffload, RunTimeDestination, RunTimeOperation};
use uverbs_mlx5::user_index::UserIndexTable;
use uverbs_mlx5_inspect::{
    Buffer, Posted, ReceiveWqe, SendQueueSpec, Service, SharedRecvQueueSpec, Work, Wqe, post_sends,
    post_shared_receives,
};

fn spec(service: Service, blocks: u32) -> SendQueueSpec {
    SendQueueSpec {
        service,
        number: 0x100,
        blocks,
        start: 0,
        small_fence: false,
        signal_all: false,
        max_sge: 4,
        max_inline: 60,
        min_inline_header: 0,
    }
}

fn work<'a>(operation: RunTimeOperation<'a>, data: &'a [Buffer<'a>]) -> Work<'a> {
    Work {
        operation,
        destination: RunTimeDestination::Connected,
        flags: PostFlags::SIGNALED,
        inline: false,
        data,
    }
}

const WRITE: RunTimeOperation<'static> = RunTimeOperation::Write(Remote::new(0x2000, 9));

fn buffer(address: u64, length: u32) -> Buffer<'static> {
    Buffer { sge: Sge::new(address, length, 7), bytes: &[] }
}

fn refused(index: usize, reason: PostError) -> Option<ListError> {
    Some(ListError { index, reason })
}

fn post(spec: &SendQueueSpec, works: &[Work<'_>]) -> Posted {
    post_sends(spec, works).expect("the queue can be made")
}

/// In libmlx5 the `ibv_wr_*` setters of a request for which the queue has no space write into the
/// previous request.
#[test]
fn a_full_queue_leaves_posted_requests_alone() {
    let buffers: Vec<_> = (0..6).map(|index| [buffer(0x1000 * (index + 1), 64)]).collect();
    let works: Vec<_> = buffers.iter().map(|data| work(WRITE, data)).collect();
    let spec = spec(Service::Rc, 4);
    let all = post(&spec, &works);
    assert_eq!(all.refused, refused(4, PostError::Full));
    let fitting = post(&spec, &works[..4]);
    assert_eq!(fitting.refused, None);
    assert_eq!(Posted { refused: None, ..all }, fitting);
}

/// In libmlx5 a request that fails after it has got a slot is posted to the device in place of the
/// good ones before it.
#[test]
fn a_bad_request_in_a_list_rings_exactly_the_good_ones_before_it() {
    let (good, long) = ([buffer(0x1000, 64)], [0u8; 61]);
    let too_long = [Buffer { sge: Sge::new(0, 61, 0), bytes: &long }];
    let bad = Work { inline: true, ..work(WRITE, &too_long) };
    let works = [work(WRITE, &good), work(WRITE, &good), bad, work(WRITE, &good)];
    // Also in a later lap, when the slot of the bad request contains an old one.
    for start in [0, 7, 0xffff] {
        let spec = SendQueueSpec { start, ..spec(Service::Rc, 8) };
        let list = post(&spec, &works);
        assert_eq!(list.refused, refused(2, PostError::InlineTooLong));
        let alone = post(&spec, &works[..2]);
        assert_eq!(list.wqes, alone.wqes);
        assert_eq!(list.doorbell_record, (start.wrapping_add(2) & 0xffff).to_be_bytes());
        let [store] = &list.mmio[..] else { panic!("one store, not {:?}", list.mmio) };
        assert_eq!(store[..8], list.wqes[1].bytes[..8]);
    }
}

/// If the first request is bad, no doorbell is rung.
#[test]
fn a_list_of_bad_requests_rings_nothing() {
    let data = [buffer(0, 1 << 31)];
    let posted = post(&spec(Service::Rc, 8), &[work(WRITE, &data)]);
    assert_eq!(posted.refused, refused(0, PostError::SgeTooLong));
    assert_eq!((posted.end, posted.doorbell_record), (0, [0; 4]));
    assert!(posted.wqes.is_empty() && posted.mmio.is_empty());
}

/// Bit 31 of a length is the inline flag, so in libmlx5 longer entries become inline data.
#[test]
fn entries_of_2_gib_and_more_do_not_become_inline_data() {
    for length in [1 << 31, (1 << 31) + 16, u32::MAX] {
        let (one, two) = ([buffer(0, length)], [buffer(0, 64), buffer(0, length)]);
        for data in [&one[..], &two[..]] {
            let posted = post(&spec(Service::Rc, 8), &[work(WRITE, data)]);
            assert_eq!(posted.refused, refused(0, PostError::SgeTooLong), "{length:#x}");
        }
    }
}

/// libmlx5 adds inline lengths in a signed 32-bit number. A sum that overflows passes the check of
/// the limit, and the data is copied.
#[test]
fn inline_lengths_do_not_overflow() {
    const SHORT: [u8; 8] = [0; 8];
    for lengths in [&[0xffff_fff0][..], &[0x8000_0000, 0x8000_0010], &[0xffff_ffff, 1, 8]] {
        let bytes = |length: u32| SHORT.get(..length as usize).unwrap_or_default();
        let data: Vec<_> = lengths
            .iter()
            .map(|length| Buffer { sge: Sge::new(0, *length, 0), bytes: bytes(*length) })
            .collect();
        let inline = Work { inline: true, ..work(WRITE, &data) };
        let posted = post(&spec(Service::Rc, 8), &[inline]);
        assert_eq!(posted.refused, refused(0, PostError::InlineTooLong));
    }
}

/// libmlx5 encodes opcodes that the service does not have, and inline data for operations without
/// it.
#[test]
fn what_cannot_be_executed_is_refused() {
    let read = RunTimeOperation::Read(Remote::new(0x2000, 9));
    let data = [Buffer { sge: Sge::new(0, 8, 7), bytes: &[1; 8] }];
    let inline_read = Work { inline: true, ..work(read, &data) };
    assert_eq!(
        post(&spec(Service::Rc, 8), &[inline_read]).refused,
        refused(0, PostError::InlineNotAllowed)
    );
    assert_eq!(
        post(&spec(Service::Uc, 8), &[work(read, &data)]).refused,
        refused(0, PostError::BadOpcode)
    );
    let av = Default::default();
    let datagram = Work { destination: RunTimeDestination::Datagram(&av), ..work(read, &data) };
    assert_eq!(post(&spec(Service::Ud, 8), &[datagram]).refused, refused(0, PostError::BadOpcode));
}

/// Empty entries are skipped in sends, because a byte count of 0 means 2 GiB.
#[test]
fn empty_entries_are_left_out_of_sends() {
    let data = [buffer(0x1000, 0), buffer(0x2000, 5), buffer(0x3000, 0)];
    let posted = post(&spec(Service::Rc, 8), &[work(WRITE, &data)]);
    let wqe = Wqe::decode(&posted.wqes[0].bytes, Service::Rc).unwrap();
    let entries: Vec<_> =
        wqe.data().map(|data| (data.address.get(), data.byte_count.get())).collect();
    assert_eq!(entries, [(0x2000, 5)]);
}

/// libmlx5 keeps the offset of a packet's data after its inline header from one request of a list
/// to the next.
#[test]
fn every_packet_of_a_list_has_its_own_header() {
    let bytes: Vec<Vec<u8>> = (1..4).map(|value| vec![value; 64]).collect();
    let buffers: Vec<_> =
        bytes.iter().map(|bytes| [Buffer { sge: Sge::new(0x1000, 64, 7), bytes }]).collect();
    let packet = RunTimeOperation::Packet(EthernetOffload::default());
    let works: Vec<_> = buffers.iter().map(|data| work(packet, data)).collect();
    let spec = SendQueueSpec { min_inline_header: 18, ..spec(Service::RawEthernet, 8) };
    let list = post(&spec, &works);
    assert_eq!(list.refused, None);
    for (index, (wqe, work)) in list.wqes.iter().zip(&works).enumerate() {
        let alone = post(&SendQueueSpec { start: index as u32, ..spec }, &[*work]);
        assert_eq!(*wqe, alone.wqes[0]);
        let decoded = Wqe::decode(&wqe.bytes, Service::RawEthernet).unwrap();
        assert_eq!(decoded.findings(Service::RawEthernet), vec![]);
        let data = decoded.data().next().unwrap();
        assert_eq!((data.address.get(), data.byte_count.get()), (0x1012, 46));
    }
}

/// libmlx5 does not skip empty entries on a shared receive queue, and writes a byte count of 0 with
/// the caller's key.
#[test]
fn empty_entries_of_a_shared_receive_queue_do_not_become_2_gib() {
    let data = [Sge::new(0x1000, 0, 7), Sge::new(0x2000, 9, 7), Sge::new(0x3000, 0, 7)];
    let spec = SharedRecvQueueSpec { entries: 4, stride: 64 };
    let posted = post_shared_receives(&spec, &[&data, &data[..1]]).unwrap();
    assert_eq!((posted.refused, posted.wqes.len()), (None, 2));
    let wqe = ReceiveWqe::decode(&posted.wqes[0].bytes, true).unwrap();
    assert_eq!(wqe.findings(), vec![]);
    let [entry] = wqe.list() else { panic!("one entry, not {wqe}") };
    assert_eq!((entry.address.get(), entry.byte_count.get()), (0x2000, 9));
    assert_eq!(wqe.entries[1].lkey.get(), TERMINATOR_LKEY);
    let empty = ReceiveWqe::decode(&posted.wqes[1].bytes, true).unwrap();
    assert_eq!(empty.list(), []);
}

/// `num_sge` is signed in libmlx5. A negative number passes the check, and the request is sent
/// without data. Here a list is a slice, whose length is not negative, and any list that is too
/// long is refused.
#[test]
fn a_list_has_no_negative_length() {
    let length: fn(&[Buffer<'static>]) -> usize = <[Buffer<'static>]>::len;
    let data = vec![buffer(0x1000, 1); 70_000];
    assert_eq!(length(&data), 70_000);
    let posted = post(&spec(Service::Rc, 8), &[work(WRITE, &data)]);
    assert_eq!(posted.refused, refused(0, PostError::TooManySge));
    let lists = [&vec![Sge::new(0x1000, 1, 7); 70_000][..]];
    let spec = SharedRecvQueueSpec { entries: 4, stride: 64 };
    let posted = post_shared_receives(&spec, &lists).unwrap();
    assert_eq!(posted.refused, refused(0, PostError::TooManySge));
}

/// If libmlx5 cannot read the clock while polling, it loses the completion. Here polling reads no
/// clock: the timestamp is a number in the completion, and reading it cannot fail.
#[test]
fn a_timestamp_costs_no_completion() {
    let timestamp: fn(&Completion<'_>) -> u64 = |completion| completion.timestamp();
    let _ = timestamp;
}

/// Zeroed memory shared with the simulated device. It is leaked.
fn memory(bytes: usize) -> NonNull<u8> {
    #[derive(Clone)]
    #[repr(align(64))]
    #[allow(dead_code, reason = "reached through raw pointers")]
    struct Line([u8; 64]);
    let lines = vec![Line([0xcc; 64]); bytes.div_ceil(64)].leak();
    NonNull::from(lines).cast()
}

/// libmlx5's `ibv_poll_cq` consumes a CQE of an unknown QP, then fails and loses the completions
/// that it has decoded before.
#[test]
fn a_completion_of_an_unknown_queue_costs_no_other_completion() {
    let table = UserIndexTable::new();
    let shape = Shape { send_wqebbs: 4, recv_wqes: 0, shared_receive: false };
    let (ring, record, register) = (memory(4 * 64), memory(64), memory(64));
    // SAFETY: all are leaked, so they stay valid; only the queue and the writes below, which
    // simulate the device, use them.
    let (memory, doorbell, arm) = unsafe {
        (
            DmaMemory::new(ring, 4 * 64),
            DoorbellWord::pair(record.cast()),
            ArmRegister::new(register.cast()),
        )
    };
    let mut queue = CompletionQueue::new(CompletionQueueConfig {
        memory,
        entries: 4,
        cqe_size: 64,
        doorbell,
        arm,
        number: 1,
        table: &table,
        mini_format: Some(MiniCqeFormat::HASH),
        null_lkey: None,
    })
    .unwrap();
    let handle = table.register(shape, &[queue.monitor()], None, 77).unwrap();
    let ours = handle.user_index();
    for (place, user_index) in [ours, 0xff_fffe, ours].into_iter().enumerate() {
        let cqe = Cqe {
            srqn_user_index: user_index.into(),
            opcode_qpn_flow_tag: (u32::from(Opcode::SEND.0) << 24 | 0x100).into(),
            wqe_counter: (place as u16).into(),
            op_own: OpOwn::new(CqeOpcode::REQUESTER, CqeFormat::NO_INLINE, false, false),
            ..Cqe::default()
        };
        // SAFETY: the entry lies within the ring.
        unsafe { ring.cast::<Cqe>().add(place).write(cqe) };
    }
    let mut seen = Vec::new();
    let end = loop {
        // SAFETY: the handle has no queues.
        unsafe { handle.state().expect(2 * seen.len() as u16) };
        match queue.poll() {
            Ok(completion) => seen.push((completion.wqe_index(), completion.user_context())),
            Err(error) => break error,
        }
    };
    assert_eq!((seen, end), (vec![(0, 77), (2, 77)], PollError::Empty));
    assert_eq!(queue.dropped(), 1);
}

/// Found by fuzzing: data and headers can each be within their limits, but not both together. An
/// RDMA read has a limit of its own.
#[test]
fn what_does_not_fit_a_wqe_is_refused() {
    let data = [buffer(0x1000, 8); 58];
    let raw = SendQueueSpec { max_sge: 58, max_inline: 200, ..spec(Service::RawEthernet, 64) };
    let header = [0x11; 130];
    let offload = EthernetOffload::default();
    let segmented = RunTimeOperation::Segmented { offload, mss: 100, header: &header };
    let most = 63 - 2 - 128 / 16;
    assert_eq!(post(&raw, &[work(segmented, &data[..most])]).refused, None);
    let posted = post(&raw, &[work(segmented, &data[..=most])]);
    assert_eq!(posted.refused, refused(0, PostError::TooManySge));
    let reliable = SendQueueSpec { max_sge: 58, ..spec(Service::Rc, 64) };
    let read = RunTimeOperation::Read(Remote::new(0x2000, 9));
    assert_eq!(post(&reliable, &[work(read, &data[..30])]).refused, None);
    let posted = post(&reliable, &[work(read, &data[..31])]);
    assert_eq!(posted.refused, refused(0, PostError::TooManySge));
}
