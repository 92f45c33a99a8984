//! CQEs: error texts, findings, compressed sessions.

use proptest::prelude::*;
use uverbs_mlx5::format::*;
use uverbs_mlx5_inspect::{
    self, CqeBody, ErrorText, SessionError, expand_session, expand_session_at,
};
use zerocopy::IntoBytes;

fn error(syndrome: Syndrome, vendor: u8) -> ErrorCqe {
    ErrorCqe {
        syndrome,
        vendor_syndrome: VendorSyndrome(vendor),
        opcode_qpn: (u32::from(Opcode::RDMA_WRITE.0) << 24 | 0x42).into(),
        op_own: OpOwn::new(CqeOpcode::REQUESTER_ERROR, CqeFormat::NO_INLINE, false, true),
        ..ErrorCqe::default()
    }
}

/// Words that must occur in each error's meaning, in its likely causes, and in what to check.
const TEXTS: [(Syndrome, [&str; 3]); 14] = [
    (Syndrome::LOCAL_LENGTH, ["length does not fit", "longer than the buffers", "scatter list"]),
    (Syndrome::LOCAL_QP_OPERATION, ["QP or the WQE inconsistent", "malformed WQE", "one thread"]),
    (Syndrome::LOCAL_PROTECTION, ["its lkey allows", "a wrong lkey", "against the registrations"]),
    (Syndrome::FLUSHED, ["error state already", "an earlier WQE", "the first error CQE"]),
    (Syndrome::MW_BIND, ["could not be bound", "bound already", "access flags"]),
    (Syndrome::BAD_RESPONSE, ["opcode that does not fit", "another connection", "QP numbers"]),
    (Syndrome::LOCAL_ACCESS, ["responder's own memory", "receive buffer", "the receive WQE"]),
    (Syndrome::REMOTE_INVALID_REQUEST, ["as invalid", "receive buffer", "qp_access_flags"]),
    (Syndrome::REMOTE_ACCESS, ["access to its memory", "stale or invalidated rkey", "registered"]),
    (Syndrome::REMOTE_OPERATION, ["reason of its own", "receive WQE failed", "asynchronous"]),
    (Syndrome::TRANSPORT_RETRY_EXCEEDED, ["No acknowledgement", "not (or no longer)", "ping"]),
    (Syndrome::RNR_RETRY_EXCEEDED, ["no receive WQE", "too late or too few", "rnr_retry"]),
    (Syndrome::REMOTE_ABORTED, ["aborted", "page fault", "vendor syndrome"]),
    (Syndrome(0x77), ["not known", "newer device or firmware", "release notes"]),
];

#[test]
fn every_syndrome_has_meaning_causes_and_checks_of_its_own() {
    let (known, _) = TEXTS.split_at(Syndrome::KNOWN.len());
    assert!(known.iter().map(|(syndrome, _)| syndrome).eq(Syndrome::KNOWN));
    let mut meanings = Vec::new();
    for (syndrome, words) in TEXTS {
        for kind in [CqeOpcode::REQUESTER_ERROR, CqeOpcode::RESPONDER_ERROR] {
            let cqe = ErrorCqe {
                op_own: OpOwn::new(kind, CqeFormat::NO_INLINE, false, true),
                ..error(syndrome, 0)
            };
            let text = ErrorText::of(&cqe);
            let parts = [text.meaning.into(), text.causes.join("; "), text.checks.join("; ")];
            for (part, word) in parts.iter().zip(words) {
                assert!(part.contains(word), "{syndrome}: no {word:?} in {part:?}");
            }
            let whole = text.to_string();
            assert!(parts.iter().all(|part| whole.contains(part)), "{whole}");
            assert!(whole.contains(&format!("failed: {syndrome}")), "{whole}");
        }
        meanings.push(ErrorText::of(&error(syndrome, 0)).meaning);
    }
    meanings.sort_unstable();
    meanings.dedup();
    assert_eq!(meanings.len(), TEXTS.len());
}

#[test]
fn an_error_names_the_wqe_and_says_what_is_known() {
    let text = ErrorText::of(&error(Syndrome::REMOTE_ACCESS, 0x88)).to_string();
    assert!(text.contains("QP 0x42 (RDMA_WRITE)"), "{text}");
    assert!(text.contains("rkey"), "{text}");
    assert!(text.contains("0x88: no published meaning"), "{text}");
    let unknown = ErrorText::of(&error(Syndrome::REMOTE_ACCESS, 0x12)).vendor;
    assert!(unknown.contains("not known"), "{unknown}");
    let fault = ErrorText::of(&error(Syndrome::LOCAL_PROTECTION, 0x93)).vendor;
    assert!(fault.contains("page fault"), "{fault}");
}

#[test]
fn findings() {
    let of = |cqe: &[u8], lap| uverbs_mlx5_inspect::Cqe::decode(cqe).unwrap().findings(lap);
    let bytes = |op_own: OpOwn, byte_count: u32| {
        let cqe = Cqe { op_own, byte_count: byte_count.into(), ..Cqe::default() };
        zerocopy::IntoBytes::as_bytes(&cqe).to_vec()
    };
    let op = |opcode, format, owner| OpOwn::new(opcode, format, false, owner);
    let send = CqeOpcode::RESPONDER_SEND;
    let good = bytes(op(send, CqeFormat::INLINE_32, true), 32);
    assert_eq!(of(&good, Some(true)), vec![]);
    assert!(of(&good, Some(false))[0].text.contains("another lap"));
    let long = bytes(op(send, CqeFormat::INLINE_32, true), 33);
    assert!(of(&long, None)[0].text.contains("33 bytes of inline data"));
    let misplaced = bytes(op(send, CqeFormat::INLINE_64, true), 33);
    assert!(of(&misplaced, None)[0].text.contains("the CQE before"));
    let unknown = bytes(op(CqeOpcode(9), CqeFormat::NO_INLINE, true), 0);
    assert!(of(&unknown, None)[0].text.contains("opcode 9"));
    let title = bytes(op(send, CqeFormat::COMPRESSED, true), 0);
    assert!(of(&title, None)[0].text.contains("no completions"));
}

#[test]
fn inline_data_is_found() {
    let mut bytes = [0u8; 128];
    bytes[..5].copy_from_slice(b"lower");
    bytes[64..69].copy_from_slice(b"upper");
    bytes[64 + 47] = 5;
    bytes[127] = 0x24;
    let cqe = uverbs_mlx5_inspect::Cqe::decode_128(&bytes).unwrap();
    assert_eq!(cqe.inline_data(), Some(&b"upper"[..]));
    bytes[127] = 0x28;
    let cqe = uverbs_mlx5_inspect::Cqe::decode_128(&bytes).unwrap();
    assert_eq!(cqe.inline_data(), Some(&b"lower"[..]));
    bytes[127] = 0x20;
    assert_eq!(uverbs_mlx5_inspect::Cqe::decode_128(&bytes).unwrap().inline_data(), None);
}

#[test]
fn owner_bits_over_laps() {
    let written = OpOwn::new(CqeOpcode::REQUESTER, CqeFormat::NO_INLINE, false, false);
    let second = OpOwn::new(CqeOpcode::REQUESTER, CqeFormat::NO_INLINE, false, true);
    for (consumer_index, own) in
        [(0, written), (3, written), (4, second), (7, second), (8, written)]
    {
        assert!(own.is_software(consumer_index, 2), "{consumer_index}");
        let other = OpOwn(own.0 ^ 1);
        assert!(!other.is_software(consumer_index, 2), "{consumer_index}");
    }
    assert!(!OpOwn::UNWRITTEN.is_software(0, 2));
    assert!(!OpOwn::UNWRITTEN.is_software(4, 2));
}

fn title(opcode: CqeOpcode, count: u32) -> Cqe {
    Cqe {
        byte_count: count.into(),
        wqe_counter: 0xfffe.into(),
        timestamp: 77.into(),
        opcode_qpn_flow_tag: 0x0a00_0123.into(),
        op_own: OpOwn::new(opcode, CqeFormat::COMPRESSED, false, true),
        ..Cqe::default()
    }
}

fn arrays(minis: &[MiniCqe]) -> Vec<MiniCqeArray> {
    let chunks = minis.chunks(MINI_CQES_PER_SLOT);
    chunks
        .map(|chunk| {
            let mut array = MiniCqeArray::default();
            array.entries[..chunk.len()].copy_from_slice(chunk);
            array
        })
        .collect()
}

proptest! {
    #[test]
    fn sessions_are_written_out(
        words in prop::collection::vec((any::<u32>(), any::<u32>()), 1..40),
        format in prop::sample::select(MiniCqeFormat::KNOWN),
    ) {
        let minis: Vec<_> =
            words.iter().map(|(word, length)| MiniCqe::with_hash(*word, *length)).collect();
        let title = title(CqeOpcode::RESPONDER_SEND, minis.len() as u32);
        let cqes = expand_session(&title, &arrays(&minis), format).unwrap();
        prop_assert_eq!(cqes.len(), minis.len());
        for (index, (cqe, (word, length))) in cqes.iter().zip(&words).enumerate() {
            prop_assert_eq!(cqe.byte_count.get(), *length);
            prop_assert_eq!(cqe.timestamp.get(), 77);
            prop_assert_eq!(cqe.op_own.format(), CqeFormat::NO_INLINE);
            let by_one = 0xfffeu16.wrapping_add(index as u16);
            let (hash, checksum, counter) = match format {
                MiniCqeFormat::HASH => (*word, 0, by_one),
                MiniCqeFormat::CHECKSUM => (0, (word >> 16) as u16, by_one),
                _ => (0, (word >> 16) as u16, *word as u16),
            };
            prop_assert_eq!(cqe.rss_hash.get(), hash);
            prop_assert_eq!(cqe.checksum.get(), checksum);
            prop_assert_eq!(cqe.wqe_counter.get(), counter);
        }
    }
}

#[test]
fn a_requesters_session_names_opcodes() {
    let minis = [MiniCqe::requester(9, Opcode::RDMA_WRITE), MiniCqe::requester(12, Opcode::SEND)];
    let title = title(CqeOpcode::REQUESTER, 2);
    let cqes = expand_session(&title, &arrays(&minis), MiniCqeFormat::HASH).unwrap();
    let seen: Vec<_> =
        cqes.iter().map(|cqe| (cqe.wqe_counter.get(), cqe.wqe_opcode(), cqe.qpn())).collect();
    assert_eq!(seen, [(9, Opcode::RDMA_WRITE, 0x123), (12, Opcode::SEND, 0x123)]);
}

/// The first array is one entry after the title, the next ones eight and sixteen entries after it.
/// In a whole queue they may wrap at its end.
#[test]
fn a_session_is_found_in_a_queue() {
    let minis: Vec<_> = (0..20).map(|word| MiniCqe::with_hash(word, 1)).collect();
    let title = title(CqeOpcode::RESPONDER_SEND, 20);
    for (stride, at, is_whole) in
        [(64, 0, false), (128, 12, false), (64, 20, true), (128, 31, true)]
    {
        let mut queue = vec![0; 32 * stride];
        let mut put = |place: usize, bytes: &[u8]| {
            let end = (place % 32 + 1) * stride;
            queue[end - 64..end].copy_from_slice(bytes);
        };
        put(at, title.as_bytes());
        for (array, place) in arrays(&minis).iter().zip([1, 8, 16]) {
            put(at + place, array.as_bytes());
        }
        let cqes = expand_session_at(&queue, stride, at, is_whole, MiniCqeFormat::HASH).unwrap();
        assert!(cqes.iter().map(|cqe| cqe.rss_hash.get()).eq(0..20), "{stride} {at}");
        let cut = expand_session_at(
            &queue[..at.min(14) * stride + 64],
            stride,
            at,
            false,
            MiniCqeFormat::HASH,
        );
        assert!(cut.is_err(), "{cut:?}");
    }
}

/// Whatever an entry contains, the reader stays within the queue.
#[test]
fn a_promise_beyond_the_queue_reads_nothing() {
    let compressed = title(CqeOpcode::RESPONDER_SEND, u32::MAX);
    let plain = Cqe { op_own: OpOwn(0x20), ..compressed };
    for (entry, is_whole) in
        [(compressed, false), (compressed, true), (plain, false), (plain, true)]
    {
        let mut queue = vec![0; 4 * 64];
        queue[..64].copy_from_slice(entry.as_bytes());
        let expanded = expand_session_at(&queue, 64, 0, is_whole, MiniCqeFormat::HASH);
        let expected = match entry == plain {
            true => SessionError::NotATitle,
            false => SessionError::TooFewArrays { promised: u32::MAX, given: 8 },
        };
        assert_eq!(expanded, Err(expected));
    }
}

#[test]
fn broken_sessions_are_refused() {
    let send = CqeOpcode::RESPONDER_SEND;
    let nine = title(send, 9);
    let one_array = [MiniCqeArray::default()];
    assert_eq!(
        expand_session(&nine, &one_array, MiniCqeFormat::HASH),
        Err(SessionError::TooFewArrays { promised: 9, given: 8 })
    );
    assert_eq!(
        expand_session(&nine, &one_array, MiniCqeFormat(2)),
        Err(SessionError::Format(MiniCqeFormat(2)))
    );
    let plain = Cqe { op_own: OpOwn(0x20), ..nine };
    assert_eq!(
        expand_session(&plain, &one_array, MiniCqeFormat::HASH),
        Err(SessionError::NotATitle)
    );
}

#[test]
fn layouts_follow_the_opcode() {
    let body = |op_own: u8| {
        let mut bytes = [0; 64];
        bytes[63] = op_own;
        uverbs_mlx5_inspect::Cqe::decode(&bytes).unwrap().body
    };
    assert!(matches!(body(0xd0), CqeBody::Error(_)));
    assert!(matches!(body(0xe1), CqeBody::Error(_)));
    assert!(matches!(body(0xc0), CqeBody::SignatureError(_)));
    assert!(matches!(body(0x20), CqeBody::Completion(_)));
}
