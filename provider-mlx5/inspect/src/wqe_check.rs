//! Checks WQEs.
//!
//! The rules are derived from libmlx5's layouts and known defects, and from the documentation of
//! verbs. What a device does with an illegal WQE is not public, apart from error CQEs.

use super::driver_check;
use super::{EthData, Finding, InlineData, Segment, Service, Wqe};
use uverbs_mlx5::format::{
    AddressVector, ControlFlags, ControlSegment, DataSegment, ETH_MIN_HEADER, EthChecksum, Fence,
    INLINE_FLAG, INLINE_LENGTH_MASK, MAX_DS, MAX_READ_SGE, MkeyContextSegment, OCTOWORD, Opcode,
    RemoteAddressSegment, UmrControlSegment, extended_atomic_size,
};

/// The longest message, in bytes (InfiniBand specification; `max_msg_sz` of every mlx5 port).
const MAX_MESSAGE: u64 = 1 << 31;

impl Wqe {
    /// What is illegal or suspicious about the WQE on a queue of this service, in order of offset.
    pub fn findings(&self, service: Service) -> Vec<Finding> {
        let mut found = Vec::new();
        size(self, &mut found);
        control(&self.control, &mut found);
        opcode(self, service, &mut found);
        missing(self, service, &mut found);
        for (offset, segment) in self.offsets() {
            one(self.control.opcode(), offset, segment, &mut found);
        }
        together(self, &mut found);
        found.sort_by_key(|finding| finding.offset);
        found
    }
}

fn size(wqe: &Wqe, found: &mut Vec<Finding>) {
    let (ds, counted) = (usize::from(wqe.control.ds()), wqe.octowords());
    if counted > usize::from(MAX_DS) {
        let text = format!("the segments take {counted} units of 16 bytes, ds counts to 63 only");
        found.push(Finding::illegal(7, text));
    } else if ds == 0 {
        found.push(Finding::illegal(7, "ds is 0: not even the control segment belongs to the WQE"));
    } else if ds > counted {
        let text = format!(
            "ds is {ds}, but only {counted} units of 16 bytes are here: the device would go on \
             with the bytes that follow"
        );
        found.push(Finding::illegal(7, text));
    } else if ds < counted {
        let text = format!("ds is {ds}, the device would not see the last of {counted} units");
        found.push(Finding::illegal(7, text));
    }
    if wqe.control.qpn_ds.get() & 0xc0 != 0 {
        found.push(Finding::illegal(7, "reserved bits 7:6 beside ds are set"));
    }
}

fn control(control: &ControlSegment, found: &mut Vec<Finding>) {
    let flags = control.flags;
    if flags.0 & ControlFlags::RESERVED.0 != 0 {
        found.push(Finding::illegal(11, "reserved bits of fm_ce_se are set"));
    }
    if flags.fence().name().is_none() {
        found.push(Finding::illegal(
            11,
            format!("fence mode {:#04x} has no meaning", flags.0 & Fence::MASK),
        ));
    }
    if flags.completion_mode() == 1 {
        found.push(Finding::suspicious(11, "completion mode 1: a CQE for the first error only"));
    }
    if control.signature != 0 {
        let text = "a signature: checked only on a queue that was created with signatures";
        found.push(Finding::suspicious(8, text));
    }
}

fn opcode(wqe: &Wqe, service: Service, found: &mut Vec<Finding>) {
    let control = &wqe.control;
    let opcode = control.opcode();
    if opcode.name().is_none() {
        found.push(Finding::illegal(3, format!("opcode {:#04x} is not known", opcode.0)));
        return;
    }
    if !service.allows(opcode) {
        found.push(Finding::illegal(3, format!("{opcode} does not exist on a {service} queue")));
    }
    modifier(control, found);
    immediate(control, found);
    if control.flags.is_solicited() && !can_solicit(opcode) {
        found.push(Finding::suspicious(
            11,
            format!("solicited, but {opcode} completes nothing at the responder"),
        ));
    }
    let fence = control.flags.fence();
    let waits_for_reads = fence == Fence::FENCE || fence == Fence::SMALL_AND_FENCE;
    if waits_for_reads && !service.is_reliable() {
        let text = format!("a fence, but a {service} queue has no reads or atomics to wait for");
        found.push(Finding::suspicious(11, text));
    }
    if control.dci_stream_channel_id.get() != 0 && service != Service::Dci {
        found.push(Finding::illegal(9, "reserved bytes are set (a stream, on a queue without)"));
    }
}

fn modifier(control: &ControlSegment, found: &mut Vec<Finding>) {
    let modifier = control.opcode_modifier();
    match control.opcode() {
        Opcode::ATOMIC_MASKED_COMPARE_SWAP | Opcode::ATOMIC_MASKED_FETCH_ADD
            if extended_atomic_size(modifier).is_none() =>
        {
            let text = format!("opcode modifier {modifier:#04x} gives no operand size");
            found.push(Finding::illegal(0, text));
        }
        Opcode::NOP
        | Opcode::UMR
        | Opcode::TSO
        | Opcode::ATOMIC_COMPARE_SWAP
        | Opcode::ATOMIC_FETCH_ADD
        | Opcode::RDMA_READ
        | Opcode::RDMA_WRITE
        | Opcode::RDMA_WRITE_IMMEDIATE
        | Opcode::SEND
        | Opcode::SEND_IMMEDIATE
        | Opcode::SEND_INVALIDATE
        | Opcode::SET_PSV
        | Opcode::TAG_MATCHING
            if modifier != 0 =>
        {
            let text = format!("opcode modifier {modifier:#04x}; libmlx5 writes 0 for this opcode");
            found.push(Finding::suspicious(0, text));
        }
        _ => {}
    }
}

fn immediate(control: &ControlSegment, found: &mut Vec<Finding>) {
    let opcode = control.opcode();
    let unused = matches!(
        opcode,
        Opcode::NOP
            | Opcode::SEND
            | Opcode::RDMA_WRITE
            | Opcode::RDMA_READ
            | Opcode::TSO
            | Opcode::TAG_MATCHING
    ) || opcode.is_atomic();
    if unused && control.immediate.get() != 0 {
        found.push(Finding::suspicious(12, format!("{opcode} does not use the immediate field")));
    }
    if control.immediate.get() == 0 && matches!(opcode, Opcode::SEND_INVALIDATE | Opcode::UMR) {
        found.push(Finding::suspicious(12, "key 0: nothing was registered under it"));
    }
}

fn can_solicit(opcode: Opcode) -> bool {
    opcode.is_send() || opcode.has_immediate()
}

fn missing(wqe: &Wqe, service: Service, found: &mut Vec<Finding>) {
    let opcode = wqe.control.opcode();
    let message = opcode.is_send() || opcode.has_remote_address();
    let has = |test: fn(&Segment) -> bool| wqe.segments.iter().any(test);
    let mut need = |needed: bool, present: bool, name: &str| {
        if needed && !present {
            found.push(Finding::illegal(OCTOWORD, format!("{opcode} without {name}")));
        }
    };
    need(
        message && service == Service::Xrc,
        has(|s| matches!(s, Segment::Xrc(_))),
        "an XRC segment",
    );
    need(
        message && service.has_address(),
        has(|s| matches!(s, Segment::Address(_) | Segment::ShortAddress(_))),
        "an address vector",
    );
    need(
        opcode.has_remote_address() && service.has_remote_memory(),
        has(|s| matches!(s, Segment::RemoteAddress(_))),
        "a remote address segment",
    );
    need(
        opcode == Opcode::UMR,
        has(|s| matches!(s, Segment::UmrControl(_)))
            && has(|s| matches!(s, Segment::MkeyContext(_))),
        "UMR control and mkey context segments",
    );
    need(opcode == Opcode::SET_PSV, has(|s| matches!(s, Segment::SetPsv(_))), "a PSV segment");
    need(
        opcode == Opcode::TAG_MATCHING,
        has(|s| matches!(s, Segment::TagMatching(_))),
        "a tag matching segment",
    );
    let eth = matches!(opcode, Opcode::SEND | Opcode::TSO) && service == Service::RawEthernet;
    need(eth, has(|s| matches!(s, Segment::Eth(_))), "an Ethernet segment");
}

fn one(opcode: Opcode, offset: usize, segment: &Segment, found: &mut Vec<Finding>) {
    match segment {
        Segment::Data(segment) => data(opcode, offset, segment, found),
        Segment::Inline(segment) => inline(opcode, offset, segment, found),
        Segment::RemoteAddress(segment) => remote(opcode, offset, segment, found),
        Segment::Address(segment) => address(offset, segment, found),
        Segment::ShortAddress(_) => found.push(Finding::suspicious(
            offset + 8,
            "the extended bit is clear: the device takes 16 bytes of address, libmlx5 always writes 48",
        )),
        Segment::Xrc(xrc) => {
            reserved(offset + 4, &xrc.reserved4, found);
            if xrc.srqn.get() > 0xff_ffff {
                found.push(Finding::illegal(offset, "an SRQ number has 24 bits"));
            }
        }
        Segment::UmrControl(segment) => umr(offset, segment, found),
        Segment::MkeyContext(segment) => mkey(offset, segment, found),
        Segment::Eth(segment) => eth(opcode, offset, segment, found),
        Segment::SetPsv(segment) => driver_check::set_psv(offset, segment, found),
        Segment::TagMatching(segment) => driver_check::tag_matching(offset, segment, found),
        Segment::Atomic(atomic)
            if opcode == Opcode::ATOMIC_FETCH_ADD && atomic.compare.get() != 0 =>
        {
            let text = "a fetch and add does not compare";
            found.push(Finding::suspicious(offset + 8, text));
        }
        _ => {}
    }
}

pub(super) fn reserved(offset: usize, bytes: &[u8], found: &mut Vec<Finding>) {
    if let Some(at) = bytes.iter().position(|byte| *byte != 0) {
        found.push(Finding::suspicious(offset + at, "reserved bytes are not zero"));
    }
}

fn data(opcode: Opcode, offset: usize, data: &DataSegment, found: &mut Vec<Finding>) {
    let length = data.byte_count.get();
    if driver_check::ends_with_terminator(opcode, data) {
        return;
    }
    if data.is_terminator() {
        let text = "a terminator (lkey 0x100) belongs into receive WQEs; a send ends by its ds";
        found.push(Finding::suspicious(offset, text));
        return;
    }
    if length == 0 {
        let text = "byte count 0 stands for 2 GiB: an empty entry must be left out";
        found.push(Finding::illegal(offset, text));
    }
    if data.address.get().checked_add(u64::from(length)).is_none() {
        found.push(Finding::illegal(offset + 8, "address and length wrap around"));
    }
    let wrong_size = opcode.is_atomic()
        && !matches!(opcode, Opcode::ATOMIC_MASKED_COMPARE_SWAP | Opcode::ATOMIC_MASKED_FETCH_ADD)
        && length != 8;
    if wrong_size {
        found.push(Finding::illegal(offset, format!("an atomic returns 8 bytes, not {length}")));
    }
}

/// Inline segments and pointers may follow each other in any order, which is that of the data in
/// the message. UCX posts inline data before pointers (`uct_ud_mlx5_ep_am_zcopy`); in DPDK the
/// lengths of the buffers determine the order (`mlx5_tx_dseg_iptr`).
fn inline(opcode: Opcode, offset: usize, inline: &InlineData, found: &mut Vec<Finding>) {
    let word = inline.header.byte_count.get();
    if word & !(INLINE_FLAG | INLINE_LENGTH_MASK) != 0 {
        let text = format!(
            "the inline flag with a length of {:#x}: inline lengths have 10 bits. A scatter entry of \
             2 GiB or more, written unchecked, looks like this ({word} bytes)",
            word & !INLINE_FLAG
        );
        found.push(Finding::illegal(offset, text));
    } else if inline.header.length() == 0 {
        let text = "the inline flag with length 0: empty inline data must be left out. A scatter \
                    entry of exactly 2 GiB, written unchecked, looks like this";
        found.push(Finding::illegal(offset, text));
    }
    if inline.data().len() < inline.header.length() as usize {
        let text = format!(
            "{} bytes of inline data, but the WQE ends after {}",
            inline.header.length(),
            inline.data().len()
        );
        found.push(Finding::illegal(offset, text));
    }
    if opcode == Opcode::RDMA_READ || opcode.is_atomic() {
        let text = format!("inline data, but {opcode} writes into its data segments");
        found.push(Finding::illegal(offset, text));
    }
    reserved(offset + 4 + inline.data().len(), inline.padding(), found);
}

fn remote(opcode: Opcode, offset: usize, remote: &RemoteAddressSegment, found: &mut Vec<Finding>) {
    if remote.reserved12.get() != 0 {
        found.push(Finding::suspicious(offset + 12, "reserved bytes are not zero"));
    }
    let plain = matches!(opcode, Opcode::ATOMIC_COMPARE_SWAP | Opcode::ATOMIC_FETCH_ADD);
    if plain && remote.address.get() % 8 != 0 {
        let text = "an atomic's remote address must be a multiple of 8: the responder refuses this";
        found.push(Finding::illegal(offset, text));
    }
}

fn address(offset: usize, av: &AddressVector, found: &mut Vec<Finding>) {
    if av.extended_qpn.get() & 0x7f00_0000 != 0 {
        found.push(Finding::illegal(offset + 8, "a remote QP number has 24 bits"));
    }
    reserved(offset + 16, &av.reserved16, found);
    if av.has_grh() && av.hop_limit == 0 {
        let text = "hop limit 0: a routed packet dies at the first router";
        found.push(Finding::suspicious(offset + 27, text));
    }
    if av.remote_lid_udp_port.get() == 0 && !av.has_grh() && av.remote_mac == [0; 6] {
        let text = "no LID, no GRH, no MAC address: it cannot leave on any kind of port";
        found.push(Finding::suspicious(offset + 14, text));
    }
}

fn umr(offset: usize, umr: &UmrControlSegment, found: &mut Vec<Finding>) {
    reserved(offset + 1, &umr.reserved1, found);
    reserved(offset + 20, &umr.reserved20, found);
    if umr.flags & 0b111 != 0 {
        found.push(Finding::suspicious(offset, "reserved flag bits are set"));
    }
    if umr.klm_octowords.get() % 4 != 0 {
        let text = "the translation's size is not a multiple of 4 units (64 bytes)";
        found.push(Finding::illegal(offset + 4, text));
    }
    if umr.mkey_mask.get() == 0 && umr.klm_octowords.get() == 0 {
        found.push(Finding::suspicious(offset + 8, "the mask is empty: nothing changes"));
    }
}

fn mkey(offset: usize, mkey: &MkeyContextSegment, found: &mut Vec<Finding>) {
    reserved(offset + 36, &mkey.reserved36, found);
    reserved(offset + 56, &mkey.reserved56, found);
    let remote = MkeyContextSegment::ACCESS_REMOTE_WRITE | MkeyContextSegment::ACCESS_ATOMIC;
    let local = mkey.access_flags & MkeyContextSegment::ACCESS_LOCAL_WRITE != 0;
    if mkey.access_flags & remote != 0 && !local {
        let text = "remote write or atomic without local write; a window is checked against its \
                    region, an ordinary key needs both";
        found.push(Finding::suspicious(offset + 2, text));
    }
}

fn eth(opcode: Opcode, offset: usize, eth: &EthData, found: &mut Vec<Finding>) {
    let segment = &eth.segment;
    let inline = segment.inline_length();
    if eth.header().len() < inline {
        let text = format!("an inline header of {inline} bytes, but the WQE ends before");
        found.push(Finding::illegal(offset + 12, text));
    }
    match (opcode == Opcode::TSO, segment.mss.get()) {
        (true, 0) => found.push(Finding::illegal(offset + 6, "TSO with an MSS of 0")),
        (false, 1..) => found.push(Finding::suspicious(offset + 6, "an MSS without TSO")),
        _ => {}
    }
    if opcode == Opcode::TSO && inline < ETH_MIN_HEADER {
        let text =
            format!("TSO needs the packet's headers inline, {ETH_MIN_HEADER} bytes at least");
        found.push(Finding::illegal(offset + 12, text));
    }
    let known = EthChecksum::IP_CSUM.0 | EthChecksum::L3_INNER.0 | EthChecksum::L4_INNER.0;
    if segment.checksum_flags.0 & !known != 0 {
        found.push(Finding::suspicious(offset + 4, "reserved checksum flags are set"));
    }
}

fn together(wqe: &Wqe, found: &mut Vec<Finding>) {
    let opcode = wqe.control.opcode();
    let entries = wqe.data().count();
    if opcode == Opcode::RDMA_READ && entries > MAX_READ_SGE as usize {
        let text = format!(
            "{entries} scatter entries: an RDMA read's WQE has 512 bytes, {MAX_READ_SGE} entries"
        );
        found.push(Finding::illegal(7, text));
    }
    if opcode.is_atomic() && entries != 1 {
        let text = format!("an atomic returns its value into one data segment, not {entries}");
        found.push(Finding::illegal(7, text));
    }
    driver_check::tag_buffer(wqe, found);
    let total: u64 = wqe.data().map(|data| u64::from(data.byte_count.get())).sum();
    if total > MAX_MESSAGE {
        let text = format!("{total} bytes: a message has 2 GiB at most");
        found.push(Finding::illegal(7, text));
    }
}
