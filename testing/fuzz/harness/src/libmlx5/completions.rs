//! Compares the completions that this library and libmlx5 return for a CQE.

use arbitrary::{Result, Unstructured};
use uverbs_libmlx5_harness::Service;
use uverbs_libmlx5_harness::abi::WorkCompletion;
use uverbs_mlx5::format::{Cqe as Layout, CqeFormat, CqeOpcode, OpOwn, Opcode};
use uverbs_mlx5_inspect::{Cqe, Polled, poll_cqe};

use super::Libmlx5Queues;
use crate::generate::OPCODES;

/// The opcodes of a CQE that completes a request.
const CQE_OPCODES: [CqeOpcode; 7] = [
    CqeOpcode::REQUESTER,
    CqeOpcode::RESPONDER_WRITE_IMMEDIATE,
    CqeOpcode::RESPONDER_SEND,
    CqeOpcode::RESPONDER_SEND_IMMEDIATE,
    CqeOpcode::RESPONDER_SEND_INVALIDATE,
    CqeOpcode::REQUESTER_ERROR,
    CqeOpcode::RESPONDER_ERROR,
];

/// Flags of a completion that both have (`enum ibv_wc_flags`): routing header, immediate,
/// invalidated key. libmlx5 adds one for good checksums.
const COMMON_FLAGS: u32 = 1 | 2 | 8;

const BYTE_COUNT: usize = std::mem::offset_of!(Layout, byte_count);
/// In the CQE of a send, the first byte of this field is the opcode of the WQE.
const SEND_OPCODE: usize = std::mem::offset_of!(Layout, opcode_qpn_flow_tag);

pub(super) fn run(queues: &mut Libmlx5Queues, u: &mut Unstructured<'_>) -> Result<()> {
    let (service, _, pair) = u.choose_index(queues.pairs.len()).map(|at| &mut queues.pairs[at])?;
    let opcode = *u.choose(&CQE_OPCODES)?;
    if matches!(service, Service::XrcSend | Service::Dci)
        && !matches!(opcode, CqeOpcode::REQUESTER | CqeOpcode::REQUESTER_ERROR)
    {
        return Ok(());
    }
    let mut cqe = [0; 64];
    u.fill_buffer(&mut cqe)?;
    if opcode == CqeOpcode::REQUESTER && u.arbitrary()? {
        cqe[SEND_OPCODE] = u.choose(&OPCODES)?.0;
    }
    match Opcode(cqe[SEND_OPCODE]) {
        // libmlx5 does not support masked atomics, and leaves the completion's opcode unset. It
        // reports 8 bytes for every atomic; this library reports the CQE's byte count.
        Opcode::ATOMIC_MASKED_COMPARE_SWAP | Opcode::ATOMIC_MASKED_FETCH_ADD => return Ok(()),
        Opcode::ATOMIC_COMPARE_SWAP | Opcode::ATOMIC_FETCH_ADD => {
            cqe[BYTE_COUNT..][..4].copy_from_slice(&8u32.to_be_bytes());
        }
        _ => {}
    }
    // Inline data would be copied to a request's buffers, but no request is posted.
    cqe[63] = OpOwn::new(opcode, CqeFormat::NO_INLINE, u.arbitrary()?, false).0;
    queues.libmlx5.restart(pair);
    let theirs = pair.complete(cqe).expect("a completion");
    let ours = Cqe::decode(&cqe).ok().and_then(|cqe| poll_cqe(&cqe)).expect("a completion");
    compare(&ours, &theirs);
    Ok(())
}

fn compare(ours: &Polled, theirs: &WorkCompletion) {
    // `None`: this library does not report the field for such a completion.
    let agrees = |ours: Option<u32>, theirs: u32, what: &str| {
        assert_eq!(ours.unwrap_or(theirs), theirs, "{what} of {theirs:x?}");
    };
    assert_eq!(ours.status as u32, theirs.status, "{theirs:x?}");
    agrees(ours.opcode, theirs.opcode, "opcode");
    agrees(ours.byte_len, theirs.byte_len, "length");
    agrees(
        ours.immediate.map(|immediate| u32::from_ne_bytes(immediate.0)),
        theirs.immediate,
        "immediate",
    );
    agrees(ours.invalidated_rkey, theirs.immediate, "invalidated key");
    agrees(ours.vendor_err.map(u32::from), theirs.vendor_err, "vendor syndrome");
    assert_eq!(ours.qp_num, theirs.qp_num, "QP number");
    agrees(ours.src_qp, theirs.src_qp, "source QP");
    if ours.status as u32 == 0 {
        assert_eq!(
            ours.wc_flags & COMMON_FLAGS,
            theirs.wc_flags & COMMON_FLAGS,
            "flags of {theirs:x?}"
        );
    }
    agrees(ours.pkey_index.map(u32::from), theirs.pkey_index.into(), "P_Key index");
    agrees(ours.slid.map(u32::from), theirs.slid.into(), "source LID");
    agrees(ours.sl.map(u32::from), theirs.sl.into(), "service level");
    agrees(ours.dlid_path_bits.map(u32::from), theirs.dlid_path_bits.into(), "path bits");
}
