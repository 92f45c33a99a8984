//! `infiniband/mlx5dv.h`.

use std::path::Path;

use uverbs_mlx5_format::*;

use crate::{Row, compare, compiler::skip, constants, structure};

const HEADER: &str = "/usr/include/infiniband/mlx5dv.h";

fn check(rows: Vec<Row>) {
    if !Path::new(HEADER).exists() {
        return skip("infiniband/mlx5dv.h is missing (Debian: libibverbs-dev)");
    }
    compare("#include <infiniband/mlx5dv.h>", &rows);
}

#[test]
fn send_segments() {
    let mut rows = structure!(ControlSegment = "mlx5_wqe_ctrl_seg" {
        opmod_index_opcode = "opmod_idx_opcode", qpn_ds = "qpn_ds", signature = "signature",
        dci_stream_channel_id = "dci_stream_channel_id", flags = "fm_ce_se", immediate = "imm",
    });
    rows.extend(structure!(DataSegment = "mlx5_wqe_data_seg" {
        byte_count = "byte_count", lkey = "lkey", address = "addr",
    }));
    rows.extend(structure!(InlineHeader = "mlx5_wqe_inl_data_seg" { byte_count = "byte_count" }));
    rows.extend(structure!(RemoteAddressSegment = "mlx5_wqe_raddr_seg" {
        address = "raddr", rkey = "rkey", reserved12 = "reserved",
    }));
    rows.extend(structure!(AtomicSegment = "mlx5_wqe_atomic_seg" {
        swap_add = "swap_add", compare = "compare",
    }));
    rows.extend(structure!(AddressVector = "mlx5_wqe_av" {
        key = "key", extended_qpn = "dqp_dct", static_rate_sl = "stat_rate_sl",
        loopback_path_bits = "fl_mlid", remote_lid_udp_port = "rlid", reserved16 = "reserved0",
        remote_mac = "rmac", traffic_class = "tclass", hop_limit = "hop_limit",
        grh_gid_flow = "grh_gid_fl", remote_gid = "rgid",
    }));
    check(rows);
}

#[test]
fn receive_and_memory_segments() {
    let mut rows = structure!(SrqNextSegment = "mlx5_wqe_srq_next_seg" {
        reserved0 = "rsvd0", next_wqe_index = "next_wqe_index", signature = "signature",
        reserved5 = "rsvd1",
    });
    rows.extend(structure!(StridingWqe = "mlx5_mprq_wqe" { next = "nseg", data = "dseg" }));
    rows.extend(structure!(UmrControlSegment = "mlx5_wqe_umr_ctrl_seg" {
        flags = "flags", reserved1 = "rsvd0", klm_octowords = "klm_octowords",
        translation_offset = "translation_offset", mkey_mask = "mkey_mask",
        translation_offset_high = "rsvd1",
    }));
    rows.extend(structure!(MkeyContextSegment = "mlx5_wqe_mkey_context_seg" {
        free = "free", reserved1 = "reserved1", access_flags = "access_flags", sf = "sf",
        qpn_mkey = "qpn_mkey", reserved8 = "reserved2", flags_pd = "flags_pd",
        start_address = "start_addr", length = "len", bsf_octowords = "bsf_octword_size",
        reserved36 = "reserved3", translation_octowords = "translations_octword_size",
        reserved56 = "reserved4", log_page_size = "log_page_size", reserved60 = "reserved",
    }));
    rows.extend(structure!(TagMatchingSegment = "mlx5_wqe_tm_seg" {
        operation = "opcode", flags = "flags", index = "index", reserved4 = "rsvd0",
        software_count = "sw_cnt", reserved8 = "rsvd1", tag = "append_tag", mask = "append_mask",
    }));
    rows.extend(structure!(Klm = "mlx5_wqe_umr_klm_seg" {
        byte_count = "byte_count", mkey = "mkey", address = "address",
    }));
    rows.extend(structure!(RepeatBlock = "mlx5_wqe_umr_repeat_block_seg" {
        byte_count = "byte_count", operation = "op", repeat_count = "repeat_count",
        reserved12 = "reserved", entries = "num_ent",
    }));
    rows.extend(structure!(RepeatEntry = "mlx5_wqe_umr_repeat_ent_seg" {
        stride = "stride", byte_count = "byte_count", mkey = "memkey", address = "va",
    }));
    check(rows);
}

#[test]
fn completions() {
    let mut rows = structure!(Cqe = "mlx5_cqe64" {
        tls_tunneled = "rsvd0", wqe_id = "wqe_id", path_bits = "ml_path", slid = "slid",
        flags_remote_qpn = "flags_rqpn", checks = "hds_ip_ext", header_types = "l4_hdr_type_etc",
        vlan_info = "vlan_info", srqn_user_index = "srqn_uidx", immediate = "imm_inval_pkey",
        app = "app", app_op = "app_op", app_info = "app_info", byte_count = "byte_cnt",
        timestamp = "timestamp", opcode_qpn_flow_tag = "sop_drop_qpn",
        wqe_counter = "wqe_counter", signature = "signature", op_own = "op_own",
    });
    rows.extend(structure!(ErrorCqe = "mlx5_err_cqe" {
        reserved0 = "rsvd0", srqn_user_index = "srqn", reserved36 = "rsvd1",
        vendor_syndrome = "vendor_err_synd", syndrome = "syndrome",
        opcode_qpn = "s_wqe_opcode_qpn", wqe_counter = "wqe_counter", signature = "signature",
        op_own = "op_own",
    }));
    check(rows);
}

/// C's structure of the report has 20 bytes, so its fields are compared at their offsets in a CQE.
#[test]
fn headers_of_tag_matching() {
    check(structure!(TagHeader = "ibv_tmh" {
        operation = "opcode", reserved1 = "reserved", context = "app_ctx", tag = "tag",
    }));
    check(structure!(RendezvousHeader = "ibv_rvh" {
        address = "va", rkey = "rkey", length = "len",
    }));
    check(constants! {
        TagReport::SUCCESS => "MLX5_TMC_SUCCESS",
        TagHeader::NO_TAG => "IBV_TMH_NO_TAG",
        TagHeader::RENDEZVOUS => "IBV_TMH_RNDV",
        TagHeader::FIN => "IBV_TMH_FIN",
        TagHeader::EAGER => "IBV_TMH_EAGER",
        core::mem::offset_of!(TagReport, success) => "offsetof(struct mlx5_cqe64, tm_cqe.success)",
        core::mem::offset_of!(TagReport, hardware_phase) =>
            "offsetof(struct mlx5_cqe64, tm_cqe.hw_phase_cnt)",
        core::mem::offset_of!(TagHeader, tag) => "offsetof(struct mlx5_cqe64, tmh.tag)",
        core::mem::offset_of!(TagHeader, context) => "offsetof(struct mlx5_cqe64, tmh.app_ctx)",
    });
}

#[test]
fn opcodes() {
    check(constants! {
        Opcode::NOP.0 => "MLX5_OPCODE_NOP",
        Opcode::SEND_INVALIDATE.0 => "MLX5_OPCODE_SEND_INVAL",
        Opcode::RDMA_WRITE.0 => "MLX5_OPCODE_RDMA_WRITE",
        Opcode::RDMA_WRITE_IMMEDIATE.0 => "MLX5_OPCODE_RDMA_WRITE_IMM",
        Opcode::SEND.0 => "MLX5_OPCODE_SEND",
        Opcode::SEND_IMMEDIATE.0 => "MLX5_OPCODE_SEND_IMM",
        Opcode::TSO.0 => "MLX5_OPCODE_TSO",
        Opcode::RDMA_READ.0 => "MLX5_OPCODE_RDMA_READ",
        Opcode::ATOMIC_COMPARE_SWAP.0 => "MLX5_OPCODE_ATOMIC_CS",
        Opcode::ATOMIC_FETCH_ADD.0 => "MLX5_OPCODE_ATOMIC_FA",
        Opcode::ATOMIC_MASKED_COMPARE_SWAP.0 => "MLX5_OPCODE_ATOMIC_MASKED_CS",
        Opcode::ATOMIC_MASKED_FETCH_ADD.0 => "MLX5_OPCODE_ATOMIC_MASKED_FA",
        Opcode::FMR.0 => "MLX5_OPCODE_FMR",
        Opcode::LOCAL_INVALIDATE.0 => "MLX5_OPCODE_LOCAL_INVAL",
        Opcode::CONFIG_COMMAND.0 => "MLX5_OPCODE_CONFIG_CMD",
        Opcode::SET_PSV.0 => "MLX5_OPCODE_SET_PSV",
        Opcode::UMR.0 => "MLX5_OPCODE_UMR",
        Opcode::TAG_MATCHING.0 => "MLX5_OPCODE_TAG_MATCHING",
        Opcode::FLOW_TABLE_ACCESS.0 => "MLX5_OPCODE_FLOW_TBL_ACCESS",
        Opcode::MMO.0 => "MLX5_OPCODE_MMO",
        CqeOpcode::REQUESTER.0 => "MLX5_CQE_REQ",
        CqeOpcode::RESPONDER_WRITE_IMMEDIATE.0 => "MLX5_CQE_RESP_WR_IMM",
        CqeOpcode::RESPONDER_SEND.0 => "MLX5_CQE_RESP_SEND",
        CqeOpcode::RESPONDER_SEND_IMMEDIATE.0 => "MLX5_CQE_RESP_SEND_IMM",
        CqeOpcode::RESPONDER_SEND_INVALIDATE.0 => "MLX5_CQE_RESP_SEND_INV",
        CqeOpcode::RESIZE.0 => "MLX5_CQE_RESIZE_CQ",
        CqeOpcode::NO_PACKET.0 => "MLX5_CQE_NO_PACKET",
        CqeOpcode::SIGNATURE_ERROR.0 => "MLX5_CQE_SIG_ERR",
        CqeOpcode::REQUESTER_ERROR.0 => "MLX5_CQE_REQ_ERR",
        CqeOpcode::RESPONDER_ERROR.0 => "MLX5_CQE_RESP_ERR",
        CqeOpcode::INVALID.0 => "MLX5_CQE_INVALID",
    });
}

#[test]
fn flags_and_syndromes() {
    check(constants! {
        ControlFlags::COMPLETION.0 => "MLX5_WQE_CTRL_CQ_UPDATE",
        ControlFlags::SOLICITED.0 => "MLX5_WQE_CTRL_SOLICITED",
        Fence::SMALL_AND_FENCE.0 => "MLX5_WQE_CTRL_FENCE",
        Fence::SMALL.0 => "MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE",
        INLINE_FLAG => "(unsigned)MLX5_INLINE_SEG",
        TERMINATOR_LKEY => "MLX5_INVALID_LKEY",
        AddressVector::EXTENDED => "(unsigned)MLX5_EXTENDED_UD_AV",
        WQEBB_SIZE => "MLX5_SEND_WQE_BB",
        WQEBB_SHIFT => "MLX5_SEND_WQE_SHIFT",
        CQ_ARM_OFFSET => "MLX5_CQ_DOORBELL",
        CqArm::SOLICITED_ONLY => "MLX5_CQ_DB_REQ_NOT_SOL",
        EthChecksum::L3.0 => "MLX5_ETH_WQE_L3_CSUM",
        EthChecksum::L4.0 => "MLX5_ETH_WQE_L4_CSUM",
        CqeChecksum::L2_OK => "MLX5_CQE_L2_OK",
        CqeChecksum::L3_OK => "MLX5_CQE_L3_OK",
        CqeChecksum::L4_OK => "MLX5_CQE_L4_OK",
        L3Type::IPV6.0 => "MLX5_CQE_L3_HDR_TYPE_IPV6",
        L3Type::IPV4.0 => "MLX5_CQE_L3_HDR_TYPE_IPV4",
        CqeFormat::INLINE_32.0 << 2 => "MLX5_INLINE_SCATTER_32",
        CqeFormat::INLINE_64.0 << 2 => "MLX5_INLINE_SCATTER_64",
        Syndrome::LOCAL_LENGTH.0 => "MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR",
        Syndrome::LOCAL_QP_OPERATION.0 => "MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR",
        Syndrome::LOCAL_PROTECTION.0 => "MLX5_CQE_SYNDROME_LOCAL_PROT_ERR",
        Syndrome::FLUSHED.0 => "MLX5_CQE_SYNDROME_WR_FLUSH_ERR",
        Syndrome::MW_BIND.0 => "MLX5_CQE_SYNDROME_MW_BIND_ERR",
        Syndrome::BAD_RESPONSE.0 => "MLX5_CQE_SYNDROME_BAD_RESP_ERR",
        Syndrome::LOCAL_ACCESS.0 => "MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR",
        Syndrome::REMOTE_INVALID_REQUEST.0 => "MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR",
        Syndrome::REMOTE_ACCESS.0 => "MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR",
        Syndrome::REMOTE_OPERATION.0 => "MLX5_CQE_SYNDROME_REMOTE_OP_ERR",
        Syndrome::TRANSPORT_RETRY_EXCEEDED.0 => "MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR",
        Syndrome::RNR_RETRY_EXCEEDED.0 => "MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR",
        Syndrome::REMOTE_ABORTED.0 => "MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR",
        VendorSyndrome::ODP_PAGE_FAULT.0 => "MLX5_CQE_VENDOR_SYNDROME_ODP_PFAULT",
    });
}

#[test]
fn memory_flags() {
    check(constants! {
        UmrControlSegment::FLAG_INLINE => "MLX5_WQE_UMR_CTRL_FLAG_INLINE",
        UmrControlSegment::FLAG_CHECK_NOT_FREE => "MLX5_WQE_UMR_CTRL_FLAG_CHECK_FREE",
        UmrControlSegment::FLAG_TRANSLATION_OFFSET => "MLX5_WQE_UMR_CTRL_FLAG_TRNSLATION_OFFSET",
        UmrControlSegment::FLAG_CHECK_QPN => "MLX5_WQE_UMR_CTRL_FLAG_CHECK_QPN",
        UmrControlSegment::MASK_LENGTH => "MLX5_WQE_UMR_CTRL_MKEY_MASK_LEN",
        UmrControlSegment::MASK_START_ADDRESS => "MLX5_WQE_UMR_CTRL_MKEY_MASK_START_ADDR",
        UmrControlSegment::MASK_SIGNATURE_ERROR => "MLX5_WQE_UMR_CTRL_MKEY_MASK_SIG_ERR",
        UmrControlSegment::MASK_BSF_ENABLE => "MLX5_WQE_UMR_CTRL_MKEY_MASK_BSF_ENABLE",
        UmrControlSegment::MASK_KEY => "MLX5_WQE_UMR_CTRL_MKEY_MASK_MKEY",
        UmrControlSegment::MASK_QPN => "MLX5_WQE_UMR_CTRL_MKEY_MASK_QPN",
        UmrControlSegment::MASK_LOCAL_WRITE => "MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_LOCAL_WRITE",
        UmrControlSegment::MASK_REMOTE_READ => "MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_READ",
        UmrControlSegment::MASK_REMOTE_WRITE => "MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_WRITE",
        UmrControlSegment::MASK_ATOMIC => "MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_ATOMIC",
        UmrControlSegment::MASK_FREE => "MLX5_WQE_UMR_CTRL_MKEY_MASK_FREE",
        MkeyContextSegment::FREE => "MLX5_WQE_MKEY_CONTEXT_FREE",
        MkeyContextSegment::ACCESS_ATOMIC => "MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_ATOMIC",
        MkeyContextSegment::ACCESS_REMOTE_WRITE => "MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_WRITE",
        MkeyContextSegment::ACCESS_REMOTE_READ => "MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_READ",
        MkeyContextSegment::ACCESS_LOCAL_WRITE => "MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_LOCAL_WRITE",
        MkeyContextSegment::ACCESS_LOCAL_READ => "MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_LOCAL_READ",
    });
}
