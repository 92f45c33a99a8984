//! Completions as programs read them: as `ibv_wc`, and field by field.

use std::ffi::c_uint;
use std::mem::offset_of;

use uverbs::cq::{CompletionOpcode, CqeOpcode};
use uverbs::raw::Completion;
#[cfg(target_arch = "x86_64")]
use uverbs_mlx5::completion_queue::Ssse3;
use uverbs_mlx5::completion_queue::{ENCODED, Requested};
use uverbs_mlx5::format::Opcode;

use crate::abi::*;
use crate::cq::status;
use crate::create::CHECKS_IP;

/// Writes a completion as programs read it.
///
/// # Safety
/// `into` is a place to write to.
pub(super) unsafe fn write(completion: Completion<'_>, into: *mut ibv_wc) {
    // SAFETY: the caller's place.
    unsafe {
        match completion.is_success() {
            true if completion.is_send() => write_sent(completion, into),
            true => write_received(completion, into),
            // By value: a reference passed to a function out of line would force all completions
            // into memory.
            false => write_unusual(completion, into),
        }
    }
}

/// The row of [`SENT`] for a successful send. `None` if the opcode does not identify the operation.
#[inline(always)]
pub(super) fn sent(requested: Requested) -> Option<Sent> {
    let sent = SENT[usize::from(requested.opcode().0)];
    (sent != UNUSUAL).then_some(sent)
}

/// Writes a successful send.
///
/// # Safety
/// As for [`write`].
#[inline(always)]
unsafe fn write_sent(completion: Completion<'_>, into: *mut ibv_wc) {
    let sent = SENT[usize::from(completion.wqe_opcode().0)];
    // SAFETY: the caller's place.
    unsafe {
        if sent == UNUSUAL {
            return write_unusual(completion.again(), into);
        }
        put_send::<false>(&completion, sent, into);
    }
}

/// Writes a successful receive.
///
/// # Safety
/// As for [`write`].
#[inline(always)]
unsafe fn write_received(completion: Completion<'_>, into: *mut ibv_wc) {
    // SAFETY: the caller's place.
    unsafe {
        match completion.cqe_opcode() {
            CqeOpcode::RESPONDER_SEND => put_receive::<false>(&completion, into),
            CqeOpcode::RESPONDER_WRITE_IMMEDIATE
            | CqeOpcode::RESPONDER_SEND_IMMEDIATE
            | CqeOpcode::RESPONDER_SEND_INVALIDATE => write_immediate(completion.again(), into),
            _ => write_unusual(completion.again(), into),
        }
    }
}

/// A [`Sent`] is two fields of an `ibv_wc`, which is written in parts of 16 bytes from there on.
/// The second part begins with the vendor's code, which is followed by length, immediate data and
/// number; the third with the remote number, which is followed by the flags.
const _: () = {
    assert!(offset_of!(ibv_wc, status) == 8 && offset_of!(ibv_wc, opcode) == 12);
    assert!(offset_of!(ibv_wc, vendor_err) == 16 && offset_of!(ibv_wc, byte_len) == 20);
    assert!(offset_of!(ibv_wc, imm_data) == 24 && offset_of!(ibv_wc, qp_num) == 28);
    assert!(offset_of!(ibv_wc, src_qp) == 32 && offset_of!(ibv_wc, wc_flags) == 36);
    assert!(offset_of!(ibv_wc, pkey_index) == 40 && offset_of!(ibv_wc, slid) == 42);
    assert!(offset_of!(ibv_wc, sl) == 44 && offset_of!(ibv_wc, dlid_path_bits) == 45);
    assert!(size_of::<ibv_wc>() == 48);
};

/// Writes a send that went well, of which `sent` is in [`SENT`]. `NEWER`: see
/// [`forms`](crate::forms).
///
/// # Safety
/// As for [`write`].
#[inline(always)]
pub(super) unsafe fn put_send<const NEWER: bool>(
    completion: &Completion<'_>,
    sent: Sent,
    into: *mut ibv_wc,
) {
    // SAFETY: the caller's place, and processors with the newer instructions have SSSE3.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if NEWER {
            (*into).wr_id = completion.wr_id();
            into.cast::<Sent>().add(1).write(sent);
            into.cast::<[u32; 4]>().add(1).write(completion.length_and_number(Ssse3::new()));
            into.cast::<[u32; 4]>().add(2).write([0; 4]);
            return;
        }
        let wc = ibv_wc {
            wr_id: completion.wr_id(),
            status: sent[0],
            opcode: sent[1],
            vendor_err: 0,
            byte_len: completion.byte_len(),
            imm_data: 0,
            qp_num: completion.qp_num(),
            src_qp: 0,
            wc_flags: 0,
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        };
        write_padded(&wc, into);
    }
}

/// Writes a receive of a message without immediate data. `NEWER`: see [`forms`](crate::forms).
///
/// # Safety
/// As for [`write`].
#[inline(always)]
pub(super) unsafe fn put_receive<const NEWER: bool>(
    completion: &Completion<'_>,
    into: *mut ibv_wc,
) {
    // SAFETY: the caller's place, and processors with the newer instructions have SSSE3.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if NEWER {
            (*into).wr_id = completion.wr_id();
            ((*into).status, (*into).opcode) = (0, wc_opcode::RECV);
            into.cast::<[u32; 4]>().add(1).write(completion.length_and_number(Ssse3::new()));
            into.cast::<[u32; 4]>().add(2).write(completion.sender(Ssse3::new()));
            (*into).pkey_index = completion.pkey_index();
            if completion.may_have_receive_flags() {
                (*into).wc_flags = receive_flags(completion);
            }
            return;
        }
        let remote = completion.remote();
        let wc = ibv_wc {
            wr_id: completion.wr_id(),
            status: 0,
            opcode: wc_opcode::RECV,
            vendor_err: 0,
            byte_len: completion.byte_len(),
            imm_data: 0,
            qp_num: completion.qp_num(),
            src_qp: remote.remote_qpn(),
            wc_flags: receive_flags(completion),
            pkey_index: completion.pkey_index(),
            slid: completion.slid(),
            sl: remote.service_level(),
            dlid_path_bits: completion.dlid_path_bits(),
        };
        write_padded(&wc, into);
    }
}

/// Writes a receive with immediate data or an invalidated key.
///
/// # Safety
/// As for [`write`].
#[inline(always)]
pub(super) unsafe fn put_immediate<const NEWER: bool>(
    completion: &Completion<'_>,
    into: *mut ibv_wc,
) {
    let opcode = match completion.cqe_opcode() {
        CqeOpcode::RESPONDER_WRITE_IMMEDIATE => wc_opcode::RECV_RDMA_WITH_IMM,
        _ => wc_opcode::RECV,
    };
    let (data, flag) = match completion.immediate() {
        Some(immediate) => (u32::from_ne_bytes(immediate.0), wc_flags::WITH_IMM),
        None => match completion.invalidated_rkey() {
            Some(rkey) => (rkey, wc_flags::WITH_INV),
            None => (0, 0),
        },
    };
    // SAFETY: the caller's place.
    unsafe {
        put_receive::<NEWER>(completion, into);
        ((*into).opcode, (*into).imm_data) = (opcode, data);
        (*into).wc_flags |= flag;
    }
}

/// [`put_immediate`], out of line.
///
/// # Safety
/// As for [`write`].
#[inline(never)]
unsafe fn write_immediate(completion: Completion<'_>, into: *mut ibv_wc) {
    // SAFETY: the caller's place.
    unsafe { put_immediate::<false>(&completion, into) };
}

/// The flags of a receive of a message without immediate data.
#[inline(always)]
fn receive_flags(completion: &Completion<'_>) -> c_uint {
    let grh = if completion.has_grh() { wc_flags::GRH } else { 0 };
    grh | checksum_flag(completion)
}

/// Writes the rarer completions: errors, and requests that changed keys.
///
/// # Safety
/// As for [`write`].
#[inline(never)]
unsafe fn write_unusual(completion: Completion<'_>, into: *mut ibv_wc) {
    let completion = &completion;
    let remote = completion.remote();
    let is_send = completion.is_send();
    let wc = ibv_wc {
        wr_id: completion.wr_id(),
        status: status(completion.status()),
        opcode: opcode(completion),
        vendor_err: vendor_err(completion),
        byte_len: completion.byte_len(),
        imm_data: imm_data(completion),
        qp_num: completion.qp_num(),
        src_qp: remote.remote_qpn(),
        wc_flags: if is_send { 0 } else { flags(completion) },
        pkey_index: if is_send { 0 } else { completion.pkey_index() },
        slid: completion.slid(),
        sl: remote.service_level(),
        dlid_path_bits: completion.dlid_path_bits(),
    };
    // SAFETY: the caller's place.
    unsafe { write_padded(&wc, into) };
}

/// Status and `ibv_wc_opcode` of a send that went well, as they are in an `ibv_wc`. Together, so
/// that one load and one store move both.
pub(super) type Sent = [c_uint; 2];

/// Value in [`SENT`]: the opcode does not identify the operation.
const UNUSUAL: Sent = [0, c_uint::MAX];

/// [`Sent`] by the opcode of a send's work request.
static SENT: [Sent; 256] = {
    let mut table = [[0, wc_opcode::DRIVER1]; 256];
    table[Opcode::SEND.0 as usize] = [0, wc_opcode::SEND];
    table[Opcode::SEND_IMMEDIATE.0 as usize] = [0, wc_opcode::SEND];
    table[Opcode::SEND_INVALIDATE.0 as usize] = [0, wc_opcode::SEND];
    table[Opcode::RDMA_WRITE.0 as usize] = [0, wc_opcode::RDMA_WRITE];
    table[Opcode::RDMA_WRITE_IMMEDIATE.0 as usize] = [0, wc_opcode::RDMA_WRITE];
    table[Opcode::RDMA_READ.0 as usize] = [0, wc_opcode::RDMA_READ];
    table[Opcode::ATOMIC_COMPARE_SWAP.0 as usize] = [0, wc_opcode::COMP_SWAP];
    table[Opcode::ATOMIC_MASKED_COMPARE_SWAP.0 as usize] = [0, wc_opcode::COMP_SWAP];
    table[Opcode::ATOMIC_FETCH_ADD.0 as usize] = [0, wc_opcode::FETCH_ADD];
    table[Opcode::ATOMIC_MASKED_FETCH_ADD.0 as usize] = [0, wc_opcode::FETCH_ADD];
    table[Opcode::TSO.0 as usize] = [0, wc_opcode::TSO];
    table[Opcode::UMR.0 as usize] = UNUSUAL;
    table[ENCODED.0 as usize] = [0, wc_opcode::DRIVER2];
    table
};

fn opcode(completion: &Completion<'_>) -> c_uint {
    known_opcode(completion).unwrap_or_else(|| other_opcode(completion))
}

/// The `ibv_wc_opcode` of a completion; `None` if it is of a request that changed memory keys, or
/// may be one of tag matching.
#[inline(always)]
pub(super) fn known_opcode(completion: &Completion<'_>) -> Option<c_uint> {
    if completion.is_send() {
        return match SENT[usize::from(completion.wqe_opcode().0)] {
            UNUSUAL => None,
            [_, opcode] => Some(opcode),
        };
    }
    match completion.cqe_opcode() {
        CqeOpcode::RESPONDER_WRITE_IMMEDIATE => Some(wc_opcode::RECV_RDMA_WITH_IMM),
        _ if completion.may_match_tags() => None,
        _ => Some(wc_opcode::RECV),
    }
}

/// The `ibv_wc_opcode` that [`known_opcode`] does not know.
#[inline(never)]
pub(super) fn other_opcode(completion: &Completion<'_>) -> c_uint {
    match completion.opcode() {
        CompletionOpcode::LocalInvalidate => wc_opcode::LOCAL_INV,
        CompletionOpcode::BindWindow => wc_opcode::BIND_MW,
        CompletionOpcode::TagAdd => wc_opcode::TM_ADD,
        CompletionOpcode::TagRemove => wc_opcode::TM_DEL,
        CompletionOpcode::TagSync => wc_opcode::TM_SYNC,
        CompletionOpcode::TagRecv => wc_opcode::TM_RECV,
        CompletionOpcode::NoTagRecv => wc_opcode::TM_NO_TAG,
        CompletionOpcode::Recv => wc_opcode::RECV,
        _ => wc_opcode::DRIVER1,
    }
}

#[inline(always)]
pub(super) fn vendor_err(completion: &Completion<'_>) -> u32 {
    if completion.is_success() { 0 } else { completion.vendor_syndrome().0.into() }
}

/// Immediate data in network byte order, or the key that was invalidated.
#[inline(always)]
pub(super) fn imm_data(completion: &Completion<'_>) -> u32 {
    match completion.immediate() {
        Some(immediate) => u32::from_ne_bytes(immediate.0),
        None => completion.invalidated_rkey().unwrap_or(0),
    }
}

pub(super) fn flags(completion: &Completion<'_>) -> c_uint {
    if !completion.is_success() {
        return 0;
    }
    bit(wc_flags::GRH, completion.has_grh())
        | bit(wc_flags::WITH_IMM, completion.immediate().is_some())
        | bit(wc_flags::WITH_INV, completion.invalidated_rkey().is_some())
        | checksum_flag(completion)
}

/// A flag if it is set, or 0.
#[inline(always)]
pub(super) fn bit(flag: c_uint, is_set: bool) -> c_uint {
    if is_set { flag } else { 0 }
}

/// The flag for good checksums, on a queue pair that asks for it.
#[inline(always)]
fn checksum_flag(completion: &Completion<'_>) -> c_uint {
    if completion.ip_checksum_ok() && completion.user_context() == CHECKS_IP {
        return wc_flags::IP_CSUM_OK;
    }
    0
}
