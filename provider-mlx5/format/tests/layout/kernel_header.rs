//! The kernel's `include/linux/mlx5/{qp,device}.h`: definitions that user space headers lack or
//! call reserved.

use std::fs;
use std::path::PathBuf;

use uverbs_mlx5_format::*;

use crate::{Row, compare, compiler::skip, constants, structure};

/// The types and macros of the kernel that the structures use.
const PRELUDE: &str = "
#include <stdint.h>
typedef uint8_t u8; typedef uint16_t u16; typedef uint32_t u32; typedef uint64_t u64;
typedef uint16_t __be16; typedef uint32_t __be32; typedef uint64_t __be64;
#define __packed __attribute__((packed))
#define BIT(n) (1ul << (n))
#define GENMASK(h, l) (((~0ul) << (l)) & (~0ul >> (63 - (h))))
#define MLX5_CMD_DATA_BLOCK_SIZE 512
#define DECLARE_FLEX_ARRAY(type, name) struct { struct { } empty_##name; type name[]; }
#define struct_group(tag, ...) union { struct { __VA_ARGS__ }; struct { __VA_ARGS__ } tag; }
";

/// The directory of the headers: `UVERBS_KERNEL_INCLUDE` (which contains `linux/mlx5`), or that of
/// Debian's linux-headers packages.
fn directory() -> Option<PathBuf> {
    let named = std::env::var_os("UVERBS_KERNEL_INCLUDE").map(PathBuf::from);
    let installed = fs::read_dir("/usr/src").into_iter().flatten().flatten();
    let mut candidates: Vec<_> = installed.map(|entry| entry.path().join("include")).collect();
    candidates.sort();
    let candidates = named.into_iter().chain(candidates.into_iter().rev());
    candidates.map(|path| path.join("linux/mlx5")).find(|path| path.join("device.h").exists())
}

/// The lines from the first that starts with `start` to the next that starts with `end`.
fn cut(text: &str, start: &str, end: &str) -> String {
    let lines = text.lines().skip_while(|line| !line.starts_with(start));
    let mut found: Vec<&str> = Vec::new();
    for line in lines {
        found.push(line);
        if line.starts_with(end) {
            return found.join("\n") + "\n";
        }
    }
    panic!("the kernel's header has no {start:?} up to {end:?}");
}

fn structures(text: &str, names: &[&str]) -> String {
    names.iter().map(|name| cut(text, &format!("struct {name} {{"), "}")).collect()
}

/// The enumeration that has the constant `name`.
fn enumeration(text: &str, name: &str) -> String {
    let at = text.find(&format!("\t{name}")).unwrap_or_else(|| panic!("no {name}"));
    let start = text[..at].rfind("enum").expect("an enumeration around it");
    cut(&text[start..], "enum", "};")
}

fn check(rows: Vec<Row>, source: fn(qp: &str, device: &str) -> String) {
    let Some(directory) = directory() else {
        return skip("include/linux/mlx5/device.h is missing (Debian: linux-headers-amd64)");
    };
    let read = |name| fs::read_to_string(directory.join(name)).expect("the header is readable");
    let prelude = format!("{PRELUDE}{}", source(&read("qp.h"), &read("device.h")));
    compare(&prelude, &rows);
}

#[test]
fn send_segments() {
    let mut rows = structure!(EthSegment = "mlx5_wqe_eth_seg" {
        swp_outer_l4_offset = "swp_outer_l4_offset", swp_outer_l3_offset = "swp_outer_l3_offset",
        swp_inner_l4_offset = "swp_inner_l4_offset", swp_inner_l3_offset = "swp_inner_l3_offset",
        checksum_flags = "cs_flags", swp_flags = "swp_flags", mss = "mss",
        flow_table_metadata = "flow_table_metadata", inline_header_size = "inline_hdr.sz",
        inline_header_start = "insert.vlan_tci",
    });
    rows.extend(structure!(XrcSegment = "mlx5_wqe_xrc_seg" {
        srqn = "xrc_srqn", reserved4 = "rsvd",
    }));
    rows.extend(structure!(MaskedCompareSwap64 = "mlx5_wqe_masked_atomic_seg" {
        swap = "swap_add", compare = "compare", swap_mask = "swap_add_mask",
        compare_mask = "compare_mask",
    }));
    rows.extend(structure!(AddressVector = "mlx5_av" {
        extended_qpn = "dqp_dct", remote_lid_udp_port = "udp_sport", remote_mac = "rmac",
        remote_gid = "rgid",
    }));
    rows.extend(structure!(UmrControlSegment = "mlx5_wqe_umr_ctrl_seg" {
        klm_octowords = "xlt_octowords", translation_offset = "xlt_offset",
        mkey_mask = "mkey_mask", translation_offset_high = "xlt_offset_47_16",
        reserved20 = "rsvd1",
    }));
    rows.extend(structure!(ReceiveSignature = "mlx5_rwqe_sig" {
        reserved0 = "rsvd0", signature = "signature", reserved5 = "rsvd1",
    }));
    rows.extend(structure!(RepeatBlock = "mlx5_stride_block_ctrl_seg" {
        byte_count = "bcount_per_cycle", operation = "op", repeat_count = "repeat_count",
        entries = "num_entries",
    }));
    rows.extend(structure!(SignatureInline = "mlx5_bsf_inl" {
        valid_refresh = "vld_refresh", app_tag = "dif_apptag", reference_tag = "dif_reftag",
        signature_type = "sig_type", repeat_invert_seed = "rp_inv_seed", reserved10 = "rsvd",
        increment_check = "dif_inc_ref_guard_check", app_tag_mask = "dif_app_bitmask_check",
    }));
    rows.extend(structure!(SignatureSegment = "mlx5_bsf" {
        size_block = "basic.bsf_size_sbs", check_byte_mask = "basic.check_byte_mask",
        wire = "basic.wire", memory = "basic.mem", raw_data_size = "basic.raw_data_size",
        wire_psv = "basic.w_bfs_psv", memory_psv = "basic.m_bfs_psv",
        transaction_preamble = "ext.t_init_gen_pro_size",
        transaction_epilogue = "ext.rsvd_epi_size", wire_transaction_psv = "ext.w_tfs_psv",
        memory_transaction_psv = "ext.m_tfs_psv", wire_inline = "w_inl", memory_inline = "m_inl",
    }));
    check(rows, |qp, _| {
        structures(
            qp,
            &[
                "mlx5_bsf_inl",
                "mlx5_bsf",
                "mlx5_wqe_eth_seg",
                "mlx5_wqe_xrc_seg",
                "mlx5_wqe_masked_atomic_seg",
                "mlx5_av",
                "mlx5_wqe_umr_ctrl_seg",
                "mlx5_rwqe_sig",
                "mlx5_stride_block_ctrl_seg",
            ],
        )
    });
}

#[test]
fn completions() {
    let mut rows = structure!(Cqe = "mlx5_cqe64" {
        tls_tunneled = "tls_outer_l3_tunneled", reserved1 = "rsvd0", wqe_id = "wqe_id",
        lro_flags = "lro.tcppsh_abort_dupack", lro_min_ttl = "lro.min_ttl",
        lro_tcp_window = "lro.tcp_win", lro_ack_sequence = "lro.ack_seq_num",
        rss_hash = "rss_hash_result", rss_hash_type = "rss_hash_type", path_bits = "ml_path",
        reserved18 = "rsvd20", checksum = "check_sum", slid = "slid",
        flags_remote_qpn = "flags_rqpn", checks = "hds_ip_ext", header_types = "l4_l3_hdr_type",
        vlan_info = "vlan_info", srqn_user_index = "srqn", immediate = "immediate",
        byte_count = "byte_cnt", timestamp = "timestamp_h", opcode_qpn_flow_tag = "sop_drop_qpn",
        wqe_counter = "wqe_counter", signature = "validity_iteration_count", op_own = "op_own",
    });
    rows.extend(structure!(MiniCqe = "mlx5_mini_cqe8" {
        word = "rx_hash_result", byte_count = "byte_cnt",
    }));
    rows.extend(structure!(SignatureErrorCqe = "mlx5_sig_err_cqe" {
        expected_signature = "expected_trans_sig", actual_signature = "actual_trans_sig",
        expected_reference_tag = "expected_reftag", actual_reference_tag = "actual_reftag",
        syndrome = "syndrome", mkey = "mkey", error_offset = "err_offset",
        signature = "signature", op_own = "op_own",
    }));
    rows.extend(structure!(StrideByteCount = "mpwrq_cqe_bc" {
        filler_strides = "filler_consumed_strides", byte_count = "byte_cnt",
    }));
    check(rows, |_, device| {
        structures(device, &["mlx5_cqe64", "mlx5_mini_cqe8", "mlx5_sig_err_cqe", "mpwrq_cqe_bc"])
    });
}

#[test]
fn events() {
    let mut rows = structure!(Eqe = "mlx5_eqe" {
        reserved0 = "rsvd0", event_type = "type", reserved2 = "rsvd1", event_subtype = "sub_type",
        reserved4 = "rsvd2", data = "data", reserved60 = "rsvd3", signature = "signature",
        owner = "owner",
    });
    rows.extend(structure!(CompletionEvent = "mlx5_eqe_comp" { cqn = "cqn" }));
    rows.extend(structure!(QpSrqEvent = "mlx5_eqe_qp_srq" {
        queue_type = "type", number = "qp_srq_n",
    }));
    rows.extend(structure!(PageRequestEvent = "mlx5_eqe_page_req" {
        ec_function = "ec_function", function_id = "func_id", pages = "num_pages",
    }));
    rows.extend(structure!(CommandEvent = "mlx5_eqe_cmd" { vector = "vector" }));
    // These two structures of the kernel are shorter than 28 bytes.
    rows.extend(constants! {
        core::mem::offset_of!(CqErrorEvent, syndrome) => "offsetof(struct mlx5_eqe_cq_err, syndrome)",
        core::mem::offset_of!(PortEvent, port) => "offsetof(struct mlx5_eqe_port_state, port)",
        EventType::COMPLETION.0 => "MLX5_EVENT_TYPE_COMP",
        EventType::PATH_MIGRATED.0 => "MLX5_EVENT_TYPE_PATH_MIG",
        EventType::COMMUNICATION_ESTABLISHED.0 => "MLX5_EVENT_TYPE_COMM_EST",
        EventType::SQ_DRAINED.0 => "MLX5_EVENT_TYPE_SQ_DRAINED",
        EventType::SRQ_LAST_WQE.0 => "MLX5_EVENT_TYPE_SRQ_LAST_WQE",
        EventType::SRQ_LIMIT.0 => "MLX5_EVENT_TYPE_SRQ_RQ_LIMIT",
        EventType::CQ_ERROR.0 => "MLX5_EVENT_TYPE_CQ_ERROR",
        EventType::WQ_CATASTROPHIC_ERROR.0 => "MLX5_EVENT_TYPE_WQ_CATAS_ERROR",
        EventType::PATH_MIGRATION_FAILED.0 => "MLX5_EVENT_TYPE_PATH_MIG_FAILED",
        EventType::WQ_INVALID_REQUEST_ERROR.0 => "MLX5_EVENT_TYPE_WQ_INVAL_REQ_ERROR",
        EventType::WQ_ACCESS_ERROR.0 => "MLX5_EVENT_TYPE_WQ_ACCESS_ERROR",
        EventType::SRQ_CATASTROPHIC_ERROR.0 => "MLX5_EVENT_TYPE_SRQ_CATAS_ERROR",
        EventType::INTERNAL_ERROR.0 => "MLX5_EVENT_TYPE_INTERNAL_ERROR",
        EventType::PORT_CHANGE.0 => "MLX5_EVENT_TYPE_PORT_CHANGE",
        EventType::COMMAND.0 => "MLX5_EVENT_TYPE_CMD",
        EventType::PAGE_REQUEST.0 => "MLX5_EVENT_TYPE_PAGE_REQUEST",
        EventType::PAGE_FAULT.0 => "MLX5_EVENT_TYPE_PAGE_FAULT",
        EventType::GENERAL.0 => "MLX5_EVENT_TYPE_GENERAL_EVENT",
        EventType::OBJECT_CHANGE.0 => "MLX5_EVENT_TYPE_OBJECT_CHANGE",
    });
    check(rows, |_, device| {
        let data = cut(device, "struct mlx5_eqe_comp {", "struct mlx5_cmd_prot_block {");
        let data = data.trim_end().trim_end_matches("struct mlx5_cmd_prot_block {");
        enumeration(device, "MLX5_EVENT_TYPE_NOTIFY_ANY") + data
    });
}

#[test]
fn constants() {
    let rows = constants! {
        ControlFlags::COMPLETION_AND_EVENT.0 => "MLX5_WQE_CTRL_CQ_UPDATE_AND_EQE",
        Fence::NONE.0 => "MLX5_FENCE_MODE_NONE",
        Fence::SMALL.0 => "MLX5_FENCE_MODE_INITIATOR_SMALL",
        Fence::FENCE.0 => "MLX5_FENCE_MODE_FENCE",
        Fence::STRONG_ORDERING.0 => "MLX5_FENCE_MODE_STRONG_ORDERING",
        Fence::SMALL_AND_FENCE.0 => "MLX5_FENCE_MODE_SMALL_AND_FENCE",
        EthChecksum::L3_INNER.0 => "MLX5_ETH_WQE_L3_INNER_CSUM",
        EthChecksum::L4_INNER.0 => "MLX5_ETH_WQE_L4_INNER_CSUM",
        EthSegment::INSERT_VLAN => "MLX5_ETH_WQE_INSERT_VLAN",
        EthSegment::INSERT_SERVICE_VLAN => "MLX5_ETH_WQE_SVLAN",
        Opcode::BIND_MW.0 => "MLX5_OPCODE_BIND_MW",
        Opcode::ENHANCED_MPSW.0 => "MLX5_OPCODE_ENHANCED_MPSW",
        Opcode::GET_PSV.0 => "MLX5_OPCODE_GET_PSV",
        Opcode::CHECK_PSV.0 => "MLX5_OPCODE_CHECK_PSV",
        Opcode::DUMP.0 => "MLX5_OPCODE_DUMP",
        Opcode::RGET_PSV.0 => "MLX5_OPCODE_RGET_PSV",
        Opcode::RCHECK_PSV.0 => "MLX5_OPCODE_RCHECK_PSV",
        Opcode::ACCESS_ASO.0 => "MLX5_OPCODE_ACCESS_ASO",
        CqeFormat::INLINE_32.0 => "MLX5_INLINE_DATA32_SEG",
        CqeFormat::INLINE_64.0 => "MLX5_INLINE_DATA64_SEG",
        CqeFormat::COMPRESSED.0 => "MLX5_COMPRESSED",
        L4Type::TCP_NO_ACK.0 => "CQE_L4_HDR_TYPE_TCP_NO_ACK",
        L4Type::UDP.0 => "CQE_L4_HDR_TYPE_UDP",
        L4Type::TCP_ACK_NO_DATA.0 => "CQE_L4_HDR_TYPE_TCP_ACK_NO_DATA",
        L4Type::TCP_ACK_AND_DATA.0 => "CQE_L4_HDR_TYPE_TCP_ACK_AND_DATA",
        RoceHeader::GRH.0 => "MLX5_CQE_ROCE_L3_HEADER_TYPE_GRH",
        RoceHeader::IPV6.0 => "MLX5_CQE_ROCE_L3_HEADER_TYPE_IPV6",
        RoceHeader::IPV4.0 => "MLX5_CQE_ROCE_L3_HEADER_TYPE_IPV4",
        UmrControlSegment::FLAG_CHECK_FREE => "MLX5_UMR_CHECK_FREE",
        UmrControlSegment::FLAG_CHECK_NOT_FREE => "MLX5_UMR_CHECK_NOT_FREE",
        UmrControlSegment::MASK_PAGE_SIZE => "MLX5_MKEY_MASK_PAGE_SIZE",
        UmrControlSegment::MASK_PD => "MLX5_MKEY_MASK_PD",
        UmrControlSegment::MASK_REMOTE_INVALIDATE => "MLX5_MKEY_MASK_EN_RINVAL",
        UmrControlSegment::MASK_LOCAL_READ => "MLX5_MKEY_MASK_LR",
        BLUEFLAME_REGISTERS_PER_UAR => "MLX5_NON_FP_BFREGS_PER_UAR",
        MINI_CQES_PER_SLOT => "MLX5_MINI_CQE_ARRAY_SIZE",
        INLINE_LENGTH_MASK => "MLX5_WQE_INLINE_SEG_BYTE_COUNT_MASK",
        RepeatBlock::OPERATION => "MLX5_STRIDE_BLOCK_OP",
    };
    check(rows, |qp, device| {
        let defines = |text: &str| -> String {
            let wanted =
                ["MLX5_MINI_CQE_ARRAY_SIZE", "MLX5_WQE_INLINE_SEG", "MLX5_STRIDE_BLOCK_OP"];
            let mine = |line: &&str| wanted.iter().any(|name| line.contains(name));
            let lines = text.lines().filter(|line| line.starts_with("#define")).filter(mine);
            lines.map(|line| format!("{line}\n")).collect()
        };
        let of_qp = [
            "MLX5_WQE_CTRL_CQ_UPDATE",
            "MLX5_FENCE_MODE_NONE",
            "MLX5_ETH_WQE_L3_INNER_CSUM",
            "MLX5_ETH_WQE_SVLAN",
        ];
        let of_device = [
            "MLX5_OPCODE_NOP",
            "MLX5_NO_INLINE_DATA",
            "CQE_L4_HDR_TYPE_NONE",
            "MLX5_CQE_ROCE_L3_HEADER_TYPE_GRH",
            "MLX5_UMR_TRANSLATION_OFFSET_EN",
            "MLX5_MKEY_MASK_LEN",
        ];
        let qp_enums: String = of_qp.iter().map(|name| enumeration(qp, name)).collect();
        let device_enums: String = of_device.iter().map(|name| enumeration(device, name)).collect();
        let uar = "#define PAGE_SIZE 4096\n".to_owned()
            + &enumeration(device, "MLX5_BFREGS_PER_UAR").replace("MLX5_ADAPTER_PAGE_SIZE", "4096");
        defines(qp) + &defines(device) + &qp_enums + &device_enums + &uar
    });
}
