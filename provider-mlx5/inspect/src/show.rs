//! Formats WQEs and segments: every field by name, with its offset.

use core::fmt::{self, Display, Formatter, Write};

use super::{EthData, InlineData, Segment, Wqe};
use uverbs_mlx5::format::{
    AddressVector, AtomicSegment, ControlSegment, DataSegment, EthChecksum, Klm,
    MkeyContextSegment, OCTOWORD, RemoteAddressSegment, RepeatBlock, RepeatEntry, SetPsvSegment,
    SignatureInline, SignatureSegment, TagMatchingSegment, UmrControlSegment,
};

impl Display for Wqe {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        control(f, &self.control)?;
        for (offset, segment) in self.offsets() {
            write!(f, "\n{offset:#06x} {segment}")?;
        }
        Ok(())
    }
}

fn control(f: &mut Formatter<'_>, control: &ControlSegment) -> fmt::Result {
    write!(
        f,
        "0x0000 control: opcode={} ({:#04x}) opmod={:#04x} wqe_index={} qpn={:#x} ds={} ({} bytes)",
        control.opcode(),
        control.opcode().0,
        control.opcode_modifier(),
        control.index(),
        control.qpn(),
        control.ds(),
        usize::from(control.ds()) * OCTOWORD,
    )?;
    let flags = control.flags;
    write!(
        f,
        " signature={:#04x} stream={} fm_ce_se={:#04x} [fence={} completion={} solicited={}] \
         immediate={:#010x}",
        control.signature,
        control.dci_stream_channel_id,
        flags.0,
        flags.fence(),
        ["in error", "in error, first only", "always", "always, with event"]
            [usize::from(flags.completion_mode())],
        if flags.is_solicited() { "yes" } else { "no" },
        control.immediate.get(),
    )
}

impl Display for Segment {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Xrc(xrc) => write!(f, "xrc: srqn={:#x}", xrc.srqn.get()),
            Self::Address(av) => address(f, av),
            Self::ShortAddress(bytes) => write!(f, "address, short form: {}", Hex(bytes)),
            Self::RemoteAddress(RemoteAddressSegment { address, rkey, .. }) => {
                write!(f, "remote address: addr={address:#018x} rkey={rkey:#010x}")
            }
            Self::Data(data) => data_segment(f, data),
            Self::Inline(data) => inline(f, data),
            Self::Eth(data) => eth(f, data),
            Self::Raw(bytes) => write!(f, "raw: {}", Hex(bytes)),
            Self::UmrControl(umr) => umr_control(f, umr),
            Self::MkeyContext(mkey) => mkey_context(f, mkey),
            Self::Klm(klm) => translation(f, klm),
            Self::Repeat(block) => repeat(f, block),
            Self::RepeatEntry(entry) => repeat_entry(f, entry),
            Self::Signature(segment) => signature(f, segment),
            Self::SetPsv(psv) => set_psv(f, psv),
            Self::TagMatching(tag) => tag_matching(f, tag),
            _ => operands(f, self),
        }
    }
}

fn operands(f: &mut Formatter<'_>, segment: &Segment) -> fmt::Result {
    match segment {
        Segment::Atomic(AtomicSegment { swap_add, compare }) => {
            write!(f, "atomic: swap_add={swap_add:#x} compare={compare:#x}")
        }
        Segment::MaskedCompareSwap32(atomic) => {
            let values = [atomic.swap, atomic.compare, atomic.swap_mask, atomic.compare_mask];
            compare_swap(f, 4, values.map(|value| value.get().into()))
        }
        Segment::MaskedCompareSwap64(atomic) => {
            let values = [atomic.swap, atomic.compare, atomic.swap_mask, atomic.compare_mask];
            compare_swap(f, 8, values.map(|value| value.get()))
        }
        Segment::MaskedFetchAdd32(atomic) => {
            fetch_add(f, 4, atomic.add.get().into(), atomic.field_boundary.get().into())
        }
        Segment::MaskedFetchAdd64(atomic) => {
            fetch_add(f, 8, atomic.add.get(), atomic.field_boundary.get())
        }
        _ => Ok(()),
    }
}

fn compare_swap(f: &mut Formatter<'_>, bytes: u8, values: [u64; 4]) -> fmt::Result {
    let [swap, compare, swap_mask, compare_mask] = values;
    write!(f, "masked compare and swap, {bytes} bytes: swap={swap:#x} compare={compare:#x}")?;
    write!(f, " swap_mask={swap_mask:#x} compare_mask={compare_mask:#x}")
}

fn fetch_add(f: &mut Formatter<'_>, bytes: u8, add: u64, boundary: u64) -> fmt::Result {
    write!(f, "masked fetch and add, {bytes} bytes: add={add:#x} field_boundary={boundary:#x}")
}

fn address(f: &mut Formatter<'_>, av: &AddressVector) -> fmt::Result {
    write!(
        f,
        "address: key={:#018x} (qkey={:#010x}) remote_qpn={:#x} extended={} static_rate={} sl={} \
         fl_path={:#04x} rlid_sport={:#06x} rmac={} tclass={} hop_limit={} grh={} sgid_index={} \
         flow_label={:#x} rgid={}",
        av.key.get(),
        av.qkey(),
        av.remote_qpn(),
        u8::from(av.is_extended()),
        av.static_rate_sl >> 4,
        av.static_rate_sl & 0xf,
        av.loopback_path_bits,
        av.remote_lid_udp_port.get(),
        Mac(&av.remote_mac),
        av.traffic_class,
        av.hop_limit,
        u8::from(av.has_grh()),
        av.source_gid_index(),
        av.flow_label(),
        std::net::Ipv6Addr::from(av.remote_gid),
    )
}

pub(super) fn data_segment(f: &mut Formatter<'_>, data: &DataSegment) -> fmt::Result {
    if data.is_terminator() {
        return f.write_str("data: end of the list (lkey 0x100)");
    }
    let DataSegment { byte_count, lkey, address } = data;
    write!(f, "data: byte_count={byte_count} lkey={lkey:#010x} addr={address:#018x}")
}

fn inline(f: &mut Formatter<'_>, inline: &InlineData) -> fmt::Result {
    let (header, length) = (inline.header.byte_count, inline.header.length());
    write!(f, "inline: header={header:#010x} length={length} data={}", Hex(inline.data()))
}

fn eth(f: &mut Formatter<'_>, eth: &EthData) -> fmt::Result {
    let segment = &eth.segment;
    write!(
        f,
        "eth: cs_flags={:#04x} [{}] mss={} metadata={:#x}",
        segment.checksum_flags.0,
        Checksums(segment.checksum_flags),
        segment.mss,
        segment.flow_table_metadata.get()
    )?;
    if segment.inserts_vlan() {
        write!(f, " insert_vlan tci={:#06x}", segment.vlan_tci())
    } else {
        let header = eth.header();
        write!(f, " inline_header={} bytes {}", segment.inline_header_size, Hex(&header))
    }
}

fn umr_control(f: &mut Formatter<'_>, umr: &UmrControlSegment) -> fmt::Result {
    let UmrControlSegment { flags, klm_octowords, mkey_mask, .. } = umr;
    let high = u64::from(umr.translation_offset_high.get()) << 16;
    let offset = high | u64::from(umr.translation_offset.get());
    write!(f, "umr control: flags={flags:#04x} klm_octowords={klm_octowords}")?;
    write!(f, " translation_offset={offset} mkey_mask={mkey_mask:#x}")
}

fn mkey_context(f: &mut Formatter<'_>, mkey: &MkeyContextSegment) -> fmt::Result {
    let MkeyContextSegment { flags_pd, start_address, length, log_page_size, .. } = mkey;
    let free = u8::from(mkey.free & MkeyContextSegment::FREE != 0);
    let (qpn, key) = (mkey.qpn_mkey.get() >> 8, mkey.qpn_mkey.get() & 0xff);
    let (access, bsf) = (mkey.access_flags, mkey.bsf_octowords);
    let octowords = mkey.translation_octowords;
    write!(f, "mkey context: free={free} access={access:#04x} qpn={qpn:#x} key={key:#04x}")?;
    write!(f, " flags_pd={flags_pd:#x} start={start_address:#018x} length={length:#x}")?;
    write!(f, " bsf_octowords={bsf} translation_octowords={octowords}")?;
    write!(f, " log_page_size={log_page_size}")
}

fn translation(f: &mut Formatter<'_>, klm: &Klm) -> fmt::Result {
    let Klm { byte_count, mkey, address } = klm;
    write!(f, "translation: byte_count={byte_count} mkey={mkey:#010x} addr={address:#018x}")
}

fn repeat(f: &mut Formatter<'_>, block: &RepeatBlock) -> fmt::Result {
    let RepeatBlock { byte_count, repeat_count, entries, .. } = block;
    write!(f, "interleaved translation: bytes_per_cycle={byte_count}")?;
    write!(f, " cycles={repeat_count} entries={entries}")
}

fn repeat_entry(f: &mut Formatter<'_>, entry: &RepeatEntry) -> fmt::Result {
    let RepeatEntry { stride, byte_count, mkey, address, .. } = entry;
    write!(f, "interleaved entry: stride={stride} byte_count={byte_count}")?;
    write!(f, " mkey={mkey:#010x} addr={address:#018x}")
}

fn signature(f: &mut Formatter<'_>, segment: &SignatureSegment) -> fmt::Result {
    write!(
        f,
        "signature: size_block={:#04x} check_mask={:#04x} wire={:#04x} memory={:#04x} raw_data_size={} wire_psv={:#x} \
         memory_psv={:#x} preamble={:#x} epilogue={:#x} wire_transaction_psv={:#x} memory_transaction_psv={:#x}",
        segment.size_block,
        segment.check_byte_mask,
        segment.wire,
        segment.memory,
        segment.raw_data_size.get(),
        segment.wire_psv.get(),
        segment.memory_psv.get(),
        segment.transaction_preamble.get(),
        segment.transaction_epilogue.get(),
        segment.wire_transaction_psv.get(),
        segment.memory_transaction_psv.get(),
    )?;
    signature_inline(f, "wire", &segment.wire_inline)?;
    signature_inline(f, "memory", &segment.memory_inline)
}

fn signature_inline(f: &mut Formatter<'_>, of: &str, inline: &SignatureInline) -> fmt::Result {
    let (valid, kind, check) =
        (inline.valid_refresh, inline.signature_type, inline.increment_check);
    let (app, reference, mask) = (inline.app_tag, inline.reference_tag, inline.app_tag_mask);
    let seed = inline.repeat_invert_seed;
    write!(f, " {of}_inline[valid_refresh={valid:#06x} type={kind} app_tag={app:#06x}")?;
    write!(
        f,
        " ref_tag={reference:#010x} seed={seed:#04x} check={check:#04x} app_mask={mask:#06x}]"
    )
}

fn set_psv(f: &mut Formatter<'_>, psv: &SetPsvSegment) -> fmt::Result {
    let SetPsvSegment { psv_index, syndrome, transient_signature, .. } = psv;
    write!(f, "set psv: psv={psv_index:#x} syndrome={syndrome:#06x}")?;
    write!(f, " transient_signature={transient_signature:#018x}")
}

fn tag_matching(f: &mut Formatter<'_>, tag: &TagMatchingSegment) -> fmt::Result {
    let operation = match tag.operation {
        TagMatchingSegment::OPERATION_NOP => "nop",
        TagMatchingSegment::OPERATION_APPEND => "append",
        TagMatchingSegment::OPERATION_REMOVE => "remove",
        _ => "unknown",
    };
    let TagMatchingSegment { operation: code, flags, index, software_count, tag, mask, .. } = tag;
    write!(f, "tag matching: operation={operation} ({code:#04x}) flags={flags:#04x}")?;
    write!(f, " index={index} software_count={software_count} tag={tag:#018x} mask={mask:#018x}")
}

/// Bytes as hexadecimal digits.
pub(super) struct Hex<'a>(pub(super) &'a [u8]);

impl Display for Hex<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

struct Mac<'a>(&'a [u8; 6]);

impl Display for Mac<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ":" };
            write!(f, "{separator}{byte:02x}")?;
        }
        Ok(())
    }
}

struct Checksums(EthChecksum);

impl Display for Checksums {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let names = [
            (EthChecksum::L3_INNER, "inner L3"),
            (EthChecksum::L4_INNER, "inner L4"),
            (EthChecksum::L3, "L3"),
            (EthChecksum::L4, "L4"),
        ];
        let mut first = true;
        for (_, name) in names.iter().filter(|(flag, _)| self.0.contains(*flag)) {
            if !core::mem::take(&mut first) {
                f.write_char(' ')?;
            }
            f.write_str(name)?;
        }
        Ok(())
    }
}
