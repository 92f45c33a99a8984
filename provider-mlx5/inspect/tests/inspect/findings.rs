//! Causes each finding on its own.

use uverbs_mlx5::format::*;
use uverbs_mlx5_inspect::{EthData, InlineData, ReceiveWqe, Segment, Service, Severity, Wqe};

/// A send of 64 bytes without findings.
fn send() -> Wqe {
    Wqe::new(Opcode::SEND, 5, 0x100).with(DataSegment::new(0x1000, 64, 0x1234)).sealed()
}

fn write() -> Wqe {
    Wqe::new(Opcode::RDMA_WRITE, 5, 0x100).with(RemoteAddressSegment::new(0x2000, 7))
}

/// Asserts that the WQE, on an RC queue, has exactly one finding, with this severity, offset and
/// text.
#[track_caller]
fn has(wqe: &Wqe, severity: Severity, offset: usize, words: &str) {
    has_on(wqe, Service::Rc, severity, offset, words);
}

#[track_caller]
fn has_on(wqe: &Wqe, service: Service, severity: Severity, offset: usize, words: &str) {
    let findings = wqe.findings(service);
    let [finding] = findings.as_slice() else { panic!("one finding, not {findings:#?}") };
    assert_eq!((finding.severity, finding.offset), (severity, offset), "{finding}");
    assert!(finding.text.contains(words), "{finding}");
}

use Severity::{Illegal, Suspicious};

#[test]
fn a_correct_send_has_no_finding() {
    assert_eq!(send().findings(Service::Rc), vec![]);
}

#[test]
fn wrong_sizes_are_found() {
    let with_ds = |ds: u32| {
        let mut wqe = send();
        wqe.control.qpn_ds = (0x100 << 8 | ds).into();
        wqe
    };
    has(&with_ds(0), Illegal, 7, "ds is 0");
    has(&with_ds(1), Illegal, 7, "would not see the last of 2");
    has(&with_ds(3), Illegal, 7, "only 2 units");
    has(&with_ds(0x42), Illegal, 7, "reserved bits");
    let mut long = write();
    long.segments.extend((0..62).map(|_| Segment::from(DataSegment::new(0, 1, 2))));
    has(&long.sealed(), Illegal, 7, "64 units");
}

#[test]
fn wrong_control_flags_are_found() {
    has(&send().flags(ControlFlags(0x01)), Illegal, 11, "reserved bits");
    has(&send().flags(ControlFlags(0xe0)), Illegal, 11, "no meaning");
    has(&send().flags(ControlFlags(0x04)), Suspicious, 11, "first error only");
    let solicited = write().flags(ControlFlags::SOLICITED).sealed();
    has(&solicited, Suspicious, 11, "completes nothing");
    let fenced = send().flags(ControlFlags::NONE.with_fence(Fence::SMALL_AND_FENCE));
    has_on(&fenced, Service::Uc, Suspicious, 11, "no reads or atomics");
    has(&send().immediate(1), Suspicious, 12, "does not use the immediate");
    has(&send().modifier(1), Suspicious, 0, "opcode modifier");
}

#[test]
fn wrong_opcodes_are_found() {
    let unknown = Wqe::new(Opcode(0x7f), 0, 1).sealed();
    has(&unknown, Illegal, 3, "not known");
    let read = Wqe::new(Opcode::RDMA_READ, 0, 1).with(RemoteAddressSegment::new(0, 1)).sealed();
    has_on(&read, Service::Uc, Illegal, 3, "RDMA_READ does not exist on a UC queue");
    let masked = Wqe::new(Opcode::ATOMIC_MASKED_FETCH_ADD, 0, 1)
        .with(RemoteAddressSegment::new(0, 1))
        .with(DataSegment::new(0, 8, 1))
        .sealed();
    has(&masked, Illegal, 0, "no operand size");
}

#[test]
fn missing_segments_are_found() {
    has(&Wqe::new(Opcode::RDMA_WRITE, 0, 1).sealed(), Illegal, 16, "without a remote address");
    let bare = Wqe::new(Opcode::SEND, 0, 1).sealed();
    has_on(&bare, Service::Ud, Illegal, 16, "without an address vector");
    has_on(&bare, Service::Xrc, Illegal, 16, "without an XRC segment");
    has_on(&bare, Service::RawEthernet, Illegal, 16, "without an Ethernet segment");
    let umr = Wqe::new(Opcode::UMR, 0, 1).immediate(1).sealed();
    has(&umr, Illegal, 16, "without UMR control");
}

#[test]
fn wrong_data_segments_are_found() {
    let with = |data: DataSegment| write().with(data).sealed();
    has(&with(DataSegment::new(0x1000, 0, 1)), Illegal, 32, "stands for 2 GiB");
    has(&with(DataSegment::TERMINATOR), Suspicious, 32, "terminator");
    has(&with(DataSegment::new(u64::MAX, 2, 1)), Illegal, 40, "wrap around");
    let huge = DataSegment::new(0, 0x7fff_ffff, 1);
    has(&with(huge).with(huge).sealed(), Illegal, 7, "2 GiB at most");
}

#[test]
fn two_gib_entries_look_inline() {
    let as_entry = |length: u32| {
        let data = DataSegment { byte_count: length.into(), ..DataSegment::new(0x7000, 0, 9) };
        let mut bytes = send().encode();
        bytes[16..].copy_from_slice(zerocopy::IntoBytes::as_bytes(&data));
        Wqe::decode(&bytes, Service::Rc).unwrap()
    };
    let exactly = as_entry(1 << 31);
    assert!(matches!(exactly.segments[..], [Segment::Inline(_)]));
    assert!(exactly.findings(Service::Rc).iter().any(|f| f.text.contains("exactly 2 GiB")));
    let more = as_entry(0x8000_1000);
    assert!(more.findings(Service::Rc).iter().any(|f| f.text.contains("2 GiB or more")));
}

#[test]
fn wrong_inline_segments_are_found() {
    let mut cut = send();
    cut.segments =
        vec![Segment::Inline(InlineData { header: InlineHeader::new(100), bytes: vec![0; 12] })];
    has(&cut, Illegal, 16, "the WQE ends after 12");
    let empty = InlineData { header: InlineHeader::new(0), bytes: vec![0; 12] };
    has(&Wqe { segments: vec![empty.into()], ..send() }, Illegal, 16, "length 0");
    let mut padded = InlineData::new(&[1; 5]);
    padded.bytes[7] = 9;
    has(&Wqe { segments: vec![padded.into()], ..send() }, Suspicious, 27, "reserved");
    let read = Wqe::new(Opcode::RDMA_READ, 0, 1)
        .with(RemoteAddressSegment::new(0, 1))
        .with(InlineData::new(&[0; 4]))
        .sealed();
    has(&read, Illegal, 32, "writes into its data segments");
}

#[test]
fn inline_data_and_pointers_are_legal_in_any_order() {
    let wqe = || Wqe::new(Opcode::SEND, 5, 0x100);
    let (inline, pointer) = (InlineData::new(&[1; 6]), DataSegment::new(0x1000, 64, 0x1234));
    let behind = wqe().with(pointer).with(inline.clone()).sealed();
    assert_eq!(behind.findings(Service::Rc), vec![]);
    let mixed = wqe().with(inline).with(pointer).sealed();
    assert_eq!(mixed.findings(Service::Rc), vec![]);
    let text = mixed.explain(Service::Rc);
    let words =
        "6 bytes of inline data and 64 bytes of one memory area, in the order of the segments";
    assert!(text.contains(words), "{text}");
}

#[test]
fn wrong_atomics_are_found() {
    let atomic = |address, length| {
        Wqe::new(Opcode::ATOMIC_FETCH_ADD, 0, 1)
            .with(RemoteAddressSegment::new(address, 1))
            .with(AtomicSegment::fetch_add(1))
            .with(DataSegment::new(0x1000, length, 1))
            .sealed()
    };
    assert_eq!(atomic(8, 8).findings(Service::Rc), vec![]);
    has(&atomic(12, 8), Illegal, 16, "multiple of 8");
    has(&atomic(8, 16), Illegal, 48, "8 bytes, not 16");
    let two = atomic(8, 8).with(DataSegment::new(0x2000, 8, 1)).sealed();
    has(&two, Illegal, 7, "one data segment, not 2");
}

#[test]
fn wrong_addresses_are_found() {
    let av = AddressVector {
        remote_lid_udp_port: 4.into(),
        ..AddressVector::default().for_datagram(0x12_3456, 0x1111_1111)
    };
    let to = |av: AddressVector| Wqe::new(Opcode::SEND, 0, 1).with(av).sealed();
    assert_eq!(to(av).findings(Service::Ud), vec![]);
    let wide = AddressVector { extended_qpn: 0x8112_3456.into(), ..av };
    has_on(&to(wide), Service::Ud, Illegal, 24, "24 bits");
    let lost = AddressVector { grh_gid_flow: AddressVector::GRH.into(), ..av };
    has_on(&to(lost), Service::Ud, Suspicious, 43, "hop limit 0");
    let nowhere = AddressVector { remote_lid_udp_port: 0.into(), ..av };
    has_on(&to(nowhere), Service::Ud, Suspicious, 30, "cannot leave");
    let short = Wqe::new(Opcode::SEND, 0, 1).with_short_address();
    has_on(&short, Service::Ud, Suspicious, 24, "extended bit");
    let xrc = Wqe::new(Opcode::SEND, 0, 1).with(XrcSegment::new(1 << 24)).sealed();
    has_on(&xrc, Service::Xrc, Illegal, 16, "24 bits");
}

trait ShortAddress {
    fn with_short_address(self) -> Self;
}

impl ShortAddress for Wqe {
    fn with_short_address(mut self) -> Self {
        self.segments.push(Segment::ShortAddress([0; 16]));
        self.sealed()
    }
}

#[test]
fn wrong_ethernet_segments_are_found() {
    let packet = |opcode, segment, header: &[u8]| {
        let eth = EthData::new(segment, header);
        Wqe::new(opcode, 0, 1).with(eth).with(DataSegment::new(0x1000, 60, 1)).sealed()
    };
    let plain = EthSegment::default();
    let of = Service::RawEthernet;
    assert_eq!(packet(Opcode::SEND, plain, &[0; 18]).findings(of), vec![]);
    let with_mss = EthSegment { mss: 1460.into(), ..plain };
    has_on(&packet(Opcode::SEND, with_mss, &[]), of, Suspicious, 22, "without TSO");
    has_on(&packet(Opcode::TSO, plain, &[0; 54]), of, Illegal, 22, "MSS of 0");
    has_on(&packet(Opcode::TSO, with_mss, &[0; 13]), of, Illegal, 28, "14 bytes at least");
    let reserved = EthSegment { checksum_flags: EthChecksum(1), ..plain };
    has_on(&packet(Opcode::SEND, reserved, &[]), of, Suspicious, 20, "reserved checksum");
}

#[test]
fn wrong_receives_are_found() {
    let wqe = ReceiveWqe::new(&[DataSegment::new(0x1000, 64, 1)], 64);
    assert_eq!(wqe.findings(), vec![]);
    assert_eq!(wqe.list().len(), 1);
    let empty = ReceiveWqe::shared(3, &[DataSegment::new(0x1000, 0, 1)], 64);
    let [finding] = &empty.findings()[..] else { panic!("one finding") };
    assert_eq!((finding.severity, finding.offset), (Illegal, 16));
    let mut long = ReceiveWqe::new(&[DataSegment::new(0x1000, 64, 1)], 16);
    long.entries[0].byte_count = (1 << 31).into();
    assert!(long.findings()[0].text.contains("inline flag"));
}

#[test]
fn wrong_signature_variables_are_found() {
    let psv = SetPsvSegment {
        psv_index: 0xff_ffff.into(),
        transient_signature: 0x1234_5678_9abc_def0.into(),
        ..SetPsvSegment::default()
    };
    let set = |psv: SetPsvSegment| Wqe::new(Opcode::SET_PSV, 0, 1).with(psv).sealed();
    assert_eq!(set(psv).findings(Service::Rc), vec![]);
    has(&set(SetPsvSegment { psv_index: (1 << 24).into(), ..psv }), Illegal, 16, "24 bits");
    has(&set(SetPsvSegment { syndrome: 1.into(), ..psv }), Suspicious, 20, "drivers write 0");
    has(&set(SetPsvSegment { reserved6: 1.into(), ..psv }), Suspicious, 23, "reserved");
    has(&set(psv).modifier(1), Suspicious, 0, "opcode modifier");
    has(&Wqe::new(Opcode::SET_PSV, 0, 1).sealed(), Illegal, 16, "without a PSV segment");
    has_on(&set(psv), Service::Ud, Illegal, 3, "SET_PSV does not exist on a UD queue");
    let text = set(psv).explain(Service::Rc);
    let words = ["variable 0xffffff", "guard 0x1234", "tag 0x5678", "tag 0x9abcdef0", "No CQE"];
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

#[test]
fn wrong_tag_operations_are_found() {
    type T = TagMatchingSegment;
    let with = |tag: T| Wqe::new(Opcode::TAG_MATCHING, 0, 1).with(tag);
    let append = T {
        operation: T::OPERATION_APPEND,
        flags: T::FLAG_COMPLETION,
        index: 4.into(),
        tag: 0x77.into(),
        mask: 0xff.into(),
        ..T::default()
    };
    let buffer = DataSegment::new(0x1000, 64, 1);
    let whole = with(append).with(buffer).sealed();
    assert_eq!(whole.findings(Service::Rc), vec![]);
    let empty = with(append).with(DataSegment::TERMINATOR).sealed();
    assert_eq!(empty.findings(Service::Rc), vec![]);
    has(&with(append).sealed(), Suspicious, 7, "terminator for an empty one");
    has(&with(append).with(buffer).with(buffer).sealed(), Illegal, 7, "2 buffers");
    has(&with(T { operation: 0x30, ..append }).sealed(), Illegal, 16, "0x30 is not an operation");
    has(&Wqe::new(Opcode::TAG_MATCHING, 0, 1).sealed(), Illegal, 16, "without a tag matching");
    has(&whole.clone().immediate(1), Suspicious, 12, "does not use the immediate");
    let changed = |tag: T| with(tag).with(buffer).sealed();
    has(&changed(T { flags: 1, ..append }), Suspicious, 17, "reserved flag");
    has(&changed(T { reserved4: 1.into(), ..append }), Suspicious, 21, "reserved bytes");
    has(&changed(T { software_count: 1.into(), ..append }), Suspicious, 22, "without the flag");
    has(&changed(T { reserved8: 1.into(), ..append }), Suspicious, 31, "reserved bytes");
    let remove = T { operation: T::OPERATION_REMOVE, index: 4.into(), ..T::default() };
    assert_eq!(with(remove).sealed().findings(Service::Rc), vec![]);
    has(&with(T { tag: 1.into(), ..remove }).sealed(), Suspicious, 32, "removed by its place");
    has(&changed(remove), Suspicious, 7, "nothing is appended");
    has(&with(T { index: 1.into(), ..T::default() }).sealed(), Suspicious, 16, "nothing changes");
}

#[test]
fn tag_operations_are_explained() {
    type T = TagMatchingSegment;
    let append = T {
        operation: T::OPERATION_APPEND,
        flags: T::FLAG_COMPLETION | T::FLAG_SOFTWARE_COUNT,
        software_count: 3.into(),
        index: 4.into(),
        tag: 0x77.into(),
        mask: 0xff.into(),
        ..T::default()
    };
    let explained = |tag: T, data: Option<DataSegment>| {
        let wqe = Wqe::new(Opcode::TAG_MATCHING, 0, 1).with(tag);
        data.into_iter().fold(wqe, Wqe::with).sealed().explain(Service::Rc)
    };
    for (text, words) in [
        (explained(append, Some(DataSegment::new(0x1000, 64, 1))), "is 0x77 in the bits 0xff"),
        (explained(append, Some(DataSegment::new(0x1000, 64, 1))), "64 bytes of one memory"),
        (explained(append, Some(DataSegment::TERMINATOR)), "an empty buffer"),
        (explained(append, None), "seen 3 unexpected messages. A CQE tells"),
        (explained(T { operation: T::OPERATION_REMOVE, ..append }, None), "Removes entry 4"),
        (explained(T::default(), None), "Leaves the tag list as it is. No CQE"),
        (explained(T { operation: 0x70, ..append }, None), "expect an error CQE"),
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}
