//! WQEs and segments for people: every field by name, with its offset.

use core::fmt::{self, Display, Formatter, Write};

use super::{EthData, InlineData, Segment, Wqe};
use uverbs_mlx5::format::{
    AddressVector, ControlSegment, DataSegment, EthChecksum, Klm, MkeyContextSegment, OCTOWORD,
    RepeatBlock, RepeatEntry, SetPsvSegment, SignatureInline, SignatureSegment, TagMatchingSegment,
    UmrControlSegment,
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
            Self::RemoteAddress(remote) => write!(
                f,
                "remote address: addr={:#018x} rkey={:#010x}",
                remote.address.get(),
                remote.rkey.get()
            ),
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
        Segment::Atomic(atomic) => write!(
            f,
            "atomic: swap_add={:#x} compare={:#x}",
            atomic.swap_add.get(),
            atomic.compare.get()
        ),
        Segment::MaskedCompareSwap32(atomic) => write!(
            f,
            "masked compare and swap, 4 bytes: swap={:#x} compare={:#x} swap_mask={:#x} \
             compare_mask={:#x}",
            atomic.swap.get(),
            atomic.compare.get(),
            atomic.swap_mask.get(),
            atomic.compare_mask.get()
        ),
        Segment::MaskedCompareSwap64(atomic) => write!(
            f,
            "masked compare and swap, 8 bytes: swap={:#x} compare={:#x} swap_mask={:#x} \
             compare_mask={:#x}",
            atomic.swap.get(),
            atomic.compare.get(),
            atomic.swap_mask.get(),
            atomic.compare_mask.get()
        ),
        Segment::MaskedFetchAdd32(atomic) => write!(
            f,
            "masked fetch and add, 4 bytes: add={:#x} field_boundary={:#x}",
            atomic.add.get(),
            atomic.field_boundary.get()
        ),
        Segment::MaskedFetchAdd64(atomic) => write!(
            f,
            "masked fetch and add, 8 bytes: add={:#x} field_boundary={:#x}",
            atomic.add.get(),
            atomic.field_boundary.get()
        ),
        _ => Ok(()),
    }
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
    write!(
        f,
        "data: byte_count={} lkey={:#010x} addr={:#018x}",
        data.byte_count.get(),
        data.lkey.get(),
        data.address.get()
    )
}

fn inline(f: &mut Formatter<'_>, inline: &InlineData) -> fmt::Result {
    write!(
        f,
        "inline: header={:#010x} length={} data={}",
        inline.header.byte_count.get(),
        inline.header.length(),
        Hex(inline.data())
    )
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
    write!(
        f,
        "umr control: flags={:#04x} klm_octowords={} translation_offset={} mkey_mask={:#x}",
        umr.flags,
        umr.klm_octowords,
        u64::from(umr.translation_offset_high.get()) << 16
            | u64::from(umr.translation_offset.get()),
        umr.mkey_mask.get()
    )
}

fn mkey_context(f: &mut Formatter<'_>, mkey: &MkeyContextSegment) -> fmt::Result {
    write!(
        f,
        "mkey context: free={} access={:#04x} qpn={:#x} key={:#04x} flags_pd={:#x} \
         start={:#018x} length={:#x} bsf_octowords={} translation_octowords={} log_page_size={}",
        u8::from(mkey.free & MkeyContextSegment::FREE != 0),
        mkey.access_flags,
        mkey.qpn_mkey.get() >> 8,
        mkey.qpn_mkey.get() & 0xff,
        mkey.flags_pd.get(),
        mkey.start_address.get(),
        mkey.length.get(),
        mkey.bsf_octowords.get(),
        mkey.translation_octowords.get(),
        mkey.log_page_size,
    )
}

fn translation(f: &mut Formatter<'_>, klm: &Klm) -> fmt::Result {
    write!(
        f,
        "translation: byte_count={} mkey={:#010x} addr={:#018x}",
        klm.byte_count.get(),
        klm.mkey.get(),
        klm.address.get()
    )
}

fn repeat(f: &mut Formatter<'_>, block: &RepeatBlock) -> fmt::Result {
    write!(
        f,
        "interleaved translation: bytes_per_cycle={} cycles={} entries={}",
        block.byte_count.get(),
        block.repeat_count.get(),
        block.entries
    )
}

fn repeat_entry(f: &mut Formatter<'_>, entry: &RepeatEntry) -> fmt::Result {
    write!(
        f,
        "interleaved entry: stride={} byte_count={} mkey={:#010x} addr={:#018x}",
        entry.stride,
        entry.byte_count,
        entry.mkey.get(),
        entry.address.get()
    )
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
    write!(
        f,
        " {of}_inline[valid_refresh={:#06x} type={} app_tag={:#06x} ref_tag={:#010x} seed={:#04x} check={:#04x} \
         app_mask={:#06x}]",
        inline.valid_refresh.get(),
        inline.signature_type,
        inline.app_tag.get(),
        inline.reference_tag.get(),
        inline.repeat_invert_seed,
        inline.increment_check,
        inline.app_tag_mask.get()
    )
}

fn set_psv(f: &mut Formatter<'_>, psv: &SetPsvSegment) -> fmt::Result {
    write!(
        f,
        "set psv: psv={:#x} syndrome={:#06x} transient_signature={:#018x}",
        psv.psv_index.get(),
        psv.syndrome.get(),
        psv.transient_signature.get()
    )
}

fn tag_matching(f: &mut Formatter<'_>, tag: &TagMatchingSegment) -> fmt::Result {
    let operation = match tag.operation {
        TagMatchingSegment::OPERATION_NOP => "nop",
        TagMatchingSegment::OPERATION_APPEND => "append",
        TagMatchingSegment::OPERATION_REMOVE => "remove",
        _ => "unknown",
    };
    write!(
        f,
        "tag matching: operation={operation} ({:#04x}) flags={:#04x} index={} software_count={} tag={:#018x} \
         mask={:#018x}",
        tag.operation,
        tag.flags,
        tag.index,
        tag.software_count,
        tag.tag.get(),
        tag.mask.get()
    )
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
