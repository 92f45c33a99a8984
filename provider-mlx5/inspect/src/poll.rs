//! Converts CQEs to completions, with the real poller.

#![allow(unsafe_code)]

use core::mem::offset_of;

use super::plain_memory::Memory;
use super::post::TABLE;
use super::{Cqe, CqeBody};
use uverbs_mlx5::completion_queue::{
    Completion, CompletionOpcode, CompletionQueue, CompletionQueueConfig, Status,
};
use uverbs_mlx5::doorbell::DoorbellWord;
use uverbs_mlx5::format::{CQE_SIZE, CqeFormat, CqeOpcode, MiniCqeFormat, Opcode, U32, WQEBB_SIZE};
use uverbs_mlx5::mmio::ArmRegister;
use uverbs_mlx5::queue_state::Shape;
use uverbs_mlx5::request::Immediate;

/// A completion with the fields of `struct ibv_wc`. A field is `None` if the CQE does not have it,
/// or if libmlx5 does not set it for this kind of completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Polled {
    /// How the request ended.
    pub status: Status,
    /// What completed, numbered as in `enum ibv_wc_opcode`. `None` for errors, and for UMR and NOP,
    /// whose meaning only the poster knows.
    pub opcode: Option<u32>,
    /// Bytes received, read, or returned.
    pub byte_len: Option<u32>,
    /// Immediate data.
    pub immediate: Option<Immediate>,
    /// The remote key that the message invalidated.
    pub invalidated_rkey: Option<u32>,
    /// Vendor syndrome.
    pub vendor_err: Option<u8>,
    /// Local QP number.
    pub qp_num: u32,
    /// Remote QP number.
    pub src_qp: Option<u32>,
    /// `IBV_WC_*` flags: 1 GRH, 2 with immediate, 8 with invalidate.
    pub wc_flags: u32,
    /// Source LID.
    pub slid: Option<u16>,
    /// Service level.
    pub sl: Option<u8>,
    /// P_Key index: the low half of the word that can also be immediate data.
    pub pkey_index: Option<u16>,
    /// Path bits of the destination LID.
    pub dlid_path_bits: Option<u8>,
}

const WITH_GRH: u32 = 1;
const WITH_IMMEDIATE: u32 = 2;
const WITH_INVALIDATE: u32 = 8;

/// The completion that a poller returns for a CQE. `None` if the CQE completes no work request: it
/// is unwritten, a resize marker, or the title of a compressed session, or it has its inline data
/// in the CQE before.
///
/// The CQE is polled from a [`CompletionQueue`] of one entry, for a queue pair without rings, so
/// that data inside the CQE is not copied to buffers.
pub fn poll_cqe(cqe: &Cqe) -> Option<Polled> {
    let op_own = cqe.op_own();
    if op_own.format() == CqeFormat::COMPRESSED || op_own.opcode() == CqeOpcode::RESIZE {
        return None;
    }
    let length = cqe.encode().len();
    let ring = Memory::new(length, 0);
    let record = Memory::new(WQEBB_SIZE, 0);
    let register = Memory::new(WQEBB_SIZE, 0);
    // SAFETY: the three exist until the queue has been dropped, and only the queue uses them; only
    // `write` below acts as the device.
    let (memory, doorbell, arm) = unsafe {
        (ring.dma(), DoorbellWord::pair(record.start()), ArmRegister::new(register.start()))
    };
    let mut queue = CompletionQueue::new(CompletionQueueConfig {
        memory,
        entries: 1,
        cqe_size: length as u32,
        doorbell,
        arm,
        number: 0,
        table: &TABLE,
        mini_format: Some(MiniCqeFormat::HASH),
        null_lkey: None,
    })
    .ok()?;
    let shape = Shape { send_wqebbs: 1, recv_wqes: 1, shared_receive: false };
    let handle = TABLE.register(shape, &[queue.monitor()], None, 0).ok()?;
    let bytes = for_this_queue(cqe, handle.user_index());
    ring.write(0, &bytes);
    let at = length - CQE_SIZE + offset_of!(uverbs_mlx5::format::Cqe, wqe_counter);
    let counter = bytes.get(at..).and_then(|rest| rest.first_chunk())?;
    // SAFETY: the queue pair has no queues, so no memory of a request is in use; only this thread
    // has the queue.
    unsafe { handle.state().expect(u16::from_be_bytes(*counter)) };
    let completion = queue.poll().ok()?;
    Some(polled(&completion))
}

/// The CQE's bytes with the queue pair's user index, and the owner bit of the first lap.
fn for_this_queue(cqe: &Cqe, user_index: u32) -> Vec<u8> {
    let mut cqe = cqe.clone();
    let index = |old: U32| U32::new(old.get() & !0xff_ffff | user_index);
    match &mut cqe.body {
        CqeBody::Completion(cqe) => cqe.srqn_user_index = index(cqe.srqn_user_index),
        CqeBody::Error(cqe) => cqe.srqn_user_index = index(cqe.srqn_user_index),
        CqeBody::SignatureError(_) => {}
    }
    let mut bytes = cqe.encode();
    if let Some(op_own) = bytes.last_mut() {
        *op_own &= !1;
    }
    bytes
}

fn polled(completion: &Completion<'_>) -> Polled {
    let nothing = Polled {
        status: completion.status(),
        opcode: None,
        byte_len: None,
        immediate: None,
        invalidated_rkey: None,
        vendor_err: None,
        qp_num: completion.qp_num(),
        src_qp: None,
        wc_flags: 0,
        slid: None,
        sl: None,
        pkey_index: None,
        dlid_path_bits: None,
    };
    if completion.cqe_opcode().is_error() {
        return Polled { vendor_err: Some(completion.vendor_syndrome().0), ..nothing };
    }
    if completion.is_send() { sent(completion, nothing) } else { received(completion, nothing) }
}

fn sent(completion: &Completion<'_>, nothing: Polled) -> Polled {
    let cqe: uverbs_mlx5::format::Cqe = zerocopy::transmute!(completion.to_bytes());
    let opcode = cqe.wqe_opcode();
    let number = match completion.opcode() {
        CompletionOpcode::Send => Some(0),
        CompletionOpcode::Write => Some(1),
        CompletionOpcode::Read => Some(2),
        CompletionOpcode::CompareSwap => Some(3),
        CompletionOpcode::FetchAdd => Some(4),
        CompletionOpcode::Segmented => Some(7),
        _ => None,
    };
    let has_length = opcode == Opcode::RDMA_READ || opcode.is_atomic();
    Polled {
        opcode: number,
        byte_len: has_length.then(|| completion.byte_len()),
        wc_flags: if opcode.has_immediate() { WITH_IMMEDIATE } else { 0 },
        ..nothing
    }
}

fn received(completion: &Completion<'_>, nothing: Polled) -> Polled {
    if !completion.is_success() {
        return Polled { byte_len: Some(completion.byte_len()), ..nothing };
    }
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    let (immediate, invalidated_rkey) = (completion.immediate(), completion.invalidated_rkey());
    let remote = completion.remote();
    Polled {
        opcode: Some(match completion.opcode() {
            CompletionOpcode::RecvWriteImmediate => 129,
            _ => 128,
        }),
        byte_len: Some(completion.byte_len()),
        immediate,
        invalidated_rkey,
        src_qp: Some(remote.remote_qpn()),
        wc_flags: flag(completion.has_grh(), WITH_GRH)
            | flag(immediate.is_some(), WITH_IMMEDIATE)
            | flag(invalidated_rkey.is_some(), WITH_INVALIDATE),
        slid: Some(completion.slid()),
        sl: Some(remote.service_level()),
        pkey_index: Some(completion.pkey_index()),
        dlid_path_bits: Some(completion.dlid_path_bits()),
        ..nothing
    }
}
