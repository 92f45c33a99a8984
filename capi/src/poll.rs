//! Polling, and reading the fields of a completion.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::{ManuallyDrop, transmute};
use std::sync::atomic::Ordering;

use uverbs::PollError;
use uverbs::cq::{CompletionOpcode, CqeOpcode};
use uverbs::raw::Completion;
use uverbs_mlx5::completion_queue::{Good, Requested};
use uverbs_mlx5::format::Opcode;

use crate::abi::*;
use crate::cq::Cq;
use crate::cq::status;
use crate::create::CHECKS_IP;
use crate::events::uncancelled;
use crate::lock::Lock;

/// The result of an extended poll without a completion, as in libmlx5.
const NOTHING: c_int = libc::ENOENT;

/// `ibv_poll_cq`: returns the number of completions; −1 after a catastrophic error of the queue.
///
/// Calls all other functions in tail position, so it saves no registers for them.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, most: c_int, into: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's queue, whose lock is held, or the program polls in one thread at a time;
    // the caller's array has `most` places.
    unsafe {
        let queue = Cq::of(cq);
        if !queue.lock.try_acquire() {
            return poll_waiting(queue, most, into);
        }
        if most != 1 {
            return poll_several(queue, most, into);
        }
        let library = queue.provider();
        match library.take_sent(sent) {
            Some((completion, sent)) => {
                let wc = of_send(&completion, sent);
                polled_one(queue, into, wc)
            }
            None => poll_received(queue, into),
        }
    }
}

/// [`poll_cq`] for one completion that is not a successful send.
///
/// # Safety
/// As for [`poll_rest`].
#[inline(never)]
unsafe extern "C" fn poll_received(queue: &Cq, into: *mut ibv_wc) -> c_int {
    // SAFETY: the lock is held, or the program polls in one thread at a time.
    unsafe {
        match queue.provider().take_received() {
            Some(completion) => {
                let wc = of_receive(&completion);
                polled_one(queue, into, wc)
            }
            None => poll_first(queue, 1, into),
        }
    }
}

/// Writes `wc`, the only completion that the caller asked for, gives back its CQE, and releases the
/// lock.
///
/// # Safety
/// As for [`poll_rest`].
#[inline(always)]
unsafe fn polled_one(queue: &Cq, into: *mut ibv_wc, wc: ibv_wc) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let library = queue.provider();
        if library.is_lap_over() {
            into.write(wc);
            return poll_given_back(queue, 1, into, 1);
        }
        library.publish();
        into.write(wc);
    }
    queue.lock.release();
    1
}

/// [`poll_cq`] for several completions. The lock is held.
///
/// # Safety
/// As for [`poll_rest`].
#[inline(never)]
unsafe extern "C" fn poll_several(queue: &Cq, most: c_int, into: *mut ibv_wc) -> c_int {
    // SAFETY: the lock is held, or the program polls in one thread at a time; the caller's array
    // has `most` places.
    unsafe {
        let mut batch = queue.provider().good_batch(most.max(0) as u32);
        let mut place = into;
        while !batch.is_over() {
            match batch.next(sent) {
                Some(Good::Sent(completion, sent)) => place.write(of_send(&completion, sent)),
                Some(Good::Received(completion)) => place.write(of_receive(&completion)),
                None if place == into => return poll_first(queue, most, into),
                None => {
                    return match batch.finish() {
                        Ok(count) => poll_after(queue, most, into, count),
                        Err(count) => poll_given_back(queue, most, into, count),
                    };
                }
            }
            place = place.wrapping_add(1);
        }
        match batch.finish() {
            Ok(count) => {
                queue.lock.release();
                count as c_int
            }
            Err(count) => poll_given_back(queue, most, into, count),
        }
    }
}

/// [`poll_cq`] after waiting for the thread that holds the lock.
///
/// # Safety
/// As for [`poll_rest`], except that the lock is not held.
#[cold]
#[inline(never)]
unsafe extern "C" fn poll_waiting(queue: &Cq, most: c_int, into: *mut ibv_wc) -> c_int {
    queue.lock.wait();
    // SAFETY: the caller's promise; the lock is held.
    unsafe { poll_rest(queue, most, into, 0) }
}

/// [`poll_cq`] when the fast path finds no completion.
///
/// # Safety
/// As for [`poll_rest`].
#[inline(never)]
unsafe extern "C" fn poll_first(queue: &Cq, most: c_int, into: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if !queue.provider().has_nothing() {
            return poll_rest(queue, most, into, 0);
        }
    }
    queue.lock.release();
    if queue.is_soft {
        return idle(queue);
    }
    0
}

/// [`poll_cq`] after the completions that the fast path has polled.
///
/// # Safety
/// As for [`poll_rest`].
#[inline(never)]
unsafe extern "C" fn poll_after(queue: &Cq, most: c_int, into: *mut ibv_wc, count: u32) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if queue.provider().has_nothing() {
            queue.lock.release();
            return count as c_int;
        }
        poll_rest(queue, most, into, count as c_int)
    }
}

/// Gives back the polled CQEs, outside the fast path, and polls the rest of `most`.
///
/// # Safety
/// As for [`poll_rest`].
#[cold]
#[inline(never)]
unsafe extern "C" fn poll_given_back(
    queue: &Cq,
    most: c_int,
    into: *mut ibv_wc,
    before: u32,
) -> c_int {
    // SAFETY: the lock is held, or the program polls in one thread at a time.
    unsafe {
        queue.provider().give_back(before);
        poll_rest(queue, most, into, before as c_int)
    }
}

/// Polls the rest of `most` completions after the `before` that are already in the array, and
/// releases the lock.
///
/// # Safety
/// As for [`poll_cq`], which has filled the places before; the lock is held.
#[inline(never)]
unsafe extern "C" fn poll_rest(queue: &Cq, most: c_int, into: *mut ibv_wc, before: c_int) -> c_int {
    let (mut place, mut count) = (into.wrapping_add(before as usize), before);
    // SAFETY: the lock is held, or the program polls in one thread at a time.
    let library = unsafe { &mut *queue.queue.get() };
    let mut batch = library.batch();
    let mut failed = None;
    for _ in before..most {
        match batch.next() {
            Ok(completion) => {
                // SAFETY: the caller's array has `most` places.
                unsafe { write(completion, place) };
                place = place.wrapping_add(1);
                count += 1;
            }
            Err(PollError::Empty) => break,
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    if let (Some(error), true) = (failed, count > 0) {
        batch.keep(error);
    }
    drop(batch);
    queue.lock.release();
    match (count, failed) {
        (0, Some(_)) => -1,
        (0, None) if queue.is_soft => idle(queue),
        (count, _) => count,
    }
}

/// Called when there was no completion: lets a software device make progress in the calling thread.
/// Returns 0.
#[inline(never)]
extern "C" fn idle(queue: &Cq) -> c_int {
    // `poll_idle` holds locks of the device, so the thread must not be cancelled in it.
    uncancelled(|| queue.context().library.poll_idle());
    0
}

/// Writes a completion as programs read it.
///
/// # Safety
/// `into` is a place to write to.
unsafe fn write(completion: Completion<'_>, into: *mut ibv_wc) {
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

/// What a successful send's CQE says about its request.
#[derive(Clone, Copy)]
struct Sent {
    opcode: u8,
    qp_num: u32,
}

/// `None` if the opcode alone does not identify the operation.
#[inline(always)]
fn sent(requested: Requested) -> Option<Sent> {
    let (opcode, qp_num) = requested.opcode_and_number();
    let opcode = SENT[usize::from(opcode.0)];
    (opcode != UNUSUAL).then_some(Sent { opcode, qp_num })
}

/// Writes a send that went well.
///
/// # Safety
/// As for [`write`].
#[inline(always)]
unsafe fn write_sent(completion: Completion<'_>, into: *mut ibv_wc) {
    let (opcode, qp_num) = (SENT[usize::from(completion.wqe_opcode().0)], completion.qp_num());
    // SAFETY: the caller's place.
    unsafe {
        if opcode == UNUSUAL {
            return write_unusual(completion.again(), into);
        }
        into.write(of_send(&completion, Sent { opcode, qp_num }));
    }
}

/// Writes a receive that went well.
///
/// # Safety
/// As for [`write`].
#[inline(always)]
unsafe fn write_received(completion: Completion<'_>, into: *mut ibv_wc) {
    // SAFETY: the caller's place.
    unsafe {
        if completion.cqe_opcode() != CqeOpcode::RESPONDER_SEND {
            return write_unusual(completion.again(), into);
        }
        into.write(of_receive(&completion));
    }
}

/// A send that went well.
#[inline(always)]
fn of_send(completion: &Completion<'_>, sent: Sent) -> ibv_wc {
    ibv_wc {
        wr_id: completion.wr_id(),
        status: 0,
        opcode: sent.opcode.into(),
        vendor_err: 0,
        byte_len: completion.byte_len(),
        imm_data: 0,
        qp_num: sent.qp_num,
        src_qp: 0,
        wc_flags: 0,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}

/// A receive of a message without immediate data.
#[inline(always)]
fn of_receive(completion: &Completion<'_>) -> ibv_wc {
    let remote = completion.remote();
    let grh = if remote.grh() != 0 { wc_flags::GRH } else { 0 };
    ibv_wc {
        wr_id: completion.wr_id(),
        status: 0,
        opcode: wc_opcode::RECV,
        vendor_err: 0,
        byte_len: completion.byte_len(),
        imm_data: 0,
        qp_num: completion.qp_num(),
        src_qp: remote.remote_qpn(),
        wc_flags: grh | checksum_flag(completion),
        pkey_index: completion.pkey_index(),
        slid: completion.slid(),
        sl: remote.service_level(),
        dlid_path_bits: completion.dlid_path_bits(),
    }
}

/// Writes the rarer completions: errors, immediate data, invalidated keys, and requests that
/// changed keys.
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
    unsafe { into.write(wc) };
}

/// Value in [`SENT`]: the opcode does not identify the operation.
const UNUSUAL: u8 = u8::MAX;

/// `enum ibv_wc_opcode` by the opcode of a send's work request.
static SENT: [u8; 256] = {
    let mut table = [wc_opcode::DRIVER1 as u8; 256];
    table[Opcode::SEND.0 as usize] = wc_opcode::SEND as u8;
    table[Opcode::SEND_IMMEDIATE.0 as usize] = wc_opcode::SEND as u8;
    table[Opcode::SEND_INVALIDATE.0 as usize] = wc_opcode::SEND as u8;
    table[Opcode::RDMA_WRITE.0 as usize] = wc_opcode::RDMA_WRITE as u8;
    table[Opcode::RDMA_WRITE_IMMEDIATE.0 as usize] = wc_opcode::RDMA_WRITE as u8;
    table[Opcode::RDMA_READ.0 as usize] = wc_opcode::RDMA_READ as u8;
    table[Opcode::ATOMIC_COMPARE_SWAP.0 as usize] = wc_opcode::COMP_SWAP as u8;
    table[Opcode::ATOMIC_MASKED_COMPARE_SWAP.0 as usize] = wc_opcode::COMP_SWAP as u8;
    table[Opcode::ATOMIC_FETCH_ADD.0 as usize] = wc_opcode::FETCH_ADD as u8;
    table[Opcode::ATOMIC_MASKED_FETCH_ADD.0 as usize] = wc_opcode::FETCH_ADD as u8;
    table[Opcode::TSO.0 as usize] = wc_opcode::TSO as u8;
    table[Opcode::UMR.0 as usize] = UNUSUAL;
    table
};

#[inline(always)]
fn opcode(completion: &Completion<'_>) -> c_uint {
    if completion.is_send() {
        return match SENT[usize::from(completion.wqe_opcode().0)] {
            UNUSUAL => opcode_of_keys(completion),
            opcode => opcode.into(),
        };
    }
    match completion.cqe_opcode() {
        CqeOpcode::RESPONDER_WRITE_IMMEDIATE => wc_opcode::RECV_RDMA_WITH_IMM,
        _ => wc_opcode::RECV,
    }
}

/// The `ibv_wc_opcode` of a request that changed memory keys.
#[inline(never)]
extern "C" fn opcode_of_keys(completion: &Completion<'_>) -> c_uint {
    match completion.opcode() {
        CompletionOpcode::LocalInvalidate => wc_opcode::LOCAL_INV,
        CompletionOpcode::BindWindow => wc_opcode::BIND_MW,
        _ => wc_opcode::DRIVER1,
    }
}

#[inline(always)]
fn vendor_err(completion: &Completion<'_>) -> u32 {
    if completion.is_success() { 0 } else { completion.vendor_syndrome().0.into() }
}

/// Immediate data in network byte order, or the key that was invalidated.
#[inline(always)]
fn imm_data(completion: &Completion<'_>) -> u32 {
    match completion.immediate() {
        Some(immediate) => u32::from_ne_bytes(immediate.0),
        None => completion.invalidated_rkey().unwrap_or(0),
    }
}

fn flags(completion: &Completion<'_>) -> c_uint {
    if !completion.is_success() {
        return 0;
    }
    let bit = |flag: c_uint, is_set: bool| if is_set { flag } else { 0 };
    bit(wc_flags::GRH, completion.has_grh())
        | bit(wc_flags::WITH_IMM, completion.immediate().is_some())
        | bit(wc_flags::WITH_INV, completion.invalidated_rkey().is_some())
        | checksum_flag(completion)
}

/// The flag for good checksums, on a queue pair that asks for it.
#[inline(always)]
fn checksum_flag(completion: &Completion<'_>) -> c_uint {
    if completion.ip_checksum_ok() && completion.user_context() == CHECKS_IP {
        return wc_flags::IP_CSUM_OK;
    }
    0
}

/// `ibv_req_notify_cq`.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited: c_int) -> c_int {
    // SAFETY: the caller's queue.
    let queue = unsafe { Cq::of(cq) };
    // A program may arm the queue between start and end of a poll.
    let _guard = queue.lock.guard_unless_kept();
    // SAFETY: the lock is held, or the program polls in one thread at a time.
    let library = unsafe { &mut *queue.queue.get() };
    if queue.is_shown.load(Ordering::Relaxed) {
        library.follow_record();
    }
    if solicited != 0 {
        library.arm_solicited()
    } else {
        library.arm()
    }
    0
}

/// Moves an extended poll to the next completion if the fast path can; returns whether it did.
///
/// # Safety
/// The caller holds the lock, or polls in one thread at a time.
#[inline(always)]
unsafe fn advance(queue: &Cq) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        match queue.provider().take_good() {
            Some(Good::Sent(completion, ()) | Good::Received(completion)) => {
                show(queue, completion, 0);
                true
            }
            None => false,
        }
    }
}

/// Moves an extended poll to the next completion of any kind.
///
/// # Safety
/// As for [`advance`].
#[inline(never)]
unsafe extern "C" fn advance_any(queue: &Cq) -> c_int {
    // SAFETY: the caller's promise.
    let library = unsafe { &mut *queue.queue.get() };
    match library.poll() {
        Ok(completion) => {
            let status = status(completion.status());
            // SAFETY: the caller's promise.
            unsafe { show(queue, completion, status) };
            0
        }
        Err(PollError::Empty) => NOTHING,
        Err(_) => libc::EIO,
    }
}

/// Makes a completion the one that the program reads.
///
/// # Safety
/// As for [`advance`]; the completion is of that queue.
#[inline(always)]
unsafe fn show(queue: &Cq, completion: Completion<'_>, status: c_uint) {
    // SAFETY: the caller's promise. The completion is lent until its CQE is given back, by
    // `end_poll` or a call that polls, arms or resizes. That happens after the program has read it,
    // or replaces it here.
    unsafe {
        let ex = &mut *queue.ex.get();
        (ex.wr_id, ex.status) = (completion.wr_id(), status);
        let completion = transmute::<Completion<'_>, Completion<'static>>(completion);
        queue.current.get().write(Some(ManuallyDrop::new(completion)));
    }
}

/// `ibv_start_poll` of a queue, with or without a lock.
type StartPoll = unsafe extern "C" fn(*mut ibv_cq_ex, *mut c_void) -> c_int;

/// The `ibv_start_poll` of a queue.
pub(crate) fn start_poll_of(lock: &Lock) -> StartPoll {
    if lock.is_needed() { start_poll::<true> } else { start_poll::<false> }
}

/// `ibv_start_poll`: holds the queue's lock until `ibv_end_poll`, unless it fails.
unsafe extern "C" fn start_poll<const LOCKS: bool>(
    cq: *mut ibv_cq_ex,
    attributes: *mut c_void,
) -> c_int {
    // SAFETY: the caller's queue; null or the caller's struct, which begins with a mask.
    unsafe {
        let queue = Cq::of(cq.cast());
        if attributes.cast::<u32>().as_ref().is_some_and(|mask| *mask != 0) {
            return libc::EINVAL;
        }
        if !queue.lock.try_keep::<LOCKS>() {
            return start_waiting(queue);
        }
        if !advance(queue) {
            return start_other(queue);
        }
        if queue.provider().is_lap_over() { next_lap(queue) } else { 0 }
    }
}

/// [`start_poll`] after waiting for the thread that polls.
///
/// # Safety
/// As there.
#[cold]
#[inline(never)]
unsafe extern "C" fn start_waiting(queue: &Cq) -> c_int {
    queue.lock.wait();
    // SAFETY: the caller's promise; the lock is held.
    unsafe { start_other(queue) }
}

/// [`start_poll`] when the fast path finds no completion. The lock is held.
///
/// # Safety
/// As there.
#[inline(never)]
unsafe extern "C" fn start_other(queue: &Cq) -> c_int {
    // SAFETY: the lock is held.
    let errno = unsafe { advance_any(queue) };
    if errno == 0 {
        queue.lock.keep();
        return 0;
    }
    queue.lock.release();
    if errno == NOTHING && queue.is_soft {
        idle(queue);
    }
    errno
}

/// Continues at the start of the ring, after a completion that was read.
///
/// # Safety
/// As for [`advance`].
#[cold]
#[inline(never)]
unsafe extern "C" fn next_lap(queue: &Cq) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { queue.provider().begin_lap() };
    0
}

/// `ibv_next_poll`.
pub(crate) unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: between start and end, so the lock is held.
    unsafe {
        let queue = Cq::of(cq.cast());
        if !advance(queue) {
            return advance_any(queue);
        }
        if queue.provider().is_lap_over() { next_lap(queue) } else { 0 }
    }
}

/// `ibv_end_poll`.
pub(crate) unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the caller's queue.
    let queue = unsafe { Cq::of(cq.cast()) };
    // SAFETY: between start and end, so the lock is held.
    unsafe { *queue.current.get() = None };
    queue.lock.release();
}

/// The current completion of an extended poll.
///
/// # Safety
/// Between start and end of an extended poll.
#[inline(always)]
unsafe fn current<'a>(cq: *mut ibv_cq_ex) -> Option<&'a Completion<'static>> {
    // SAFETY: the caller's promise.
    unsafe { (*Cq::of(cq.cast()).current.get()).as_deref() }
}

macro_rules! readers {
    ($( $(#[$meta:meta])* $name:ident: $type:ty = |$completion:ident| $value:expr; )*) => {$(
        $(#[$meta])*
        pub(crate) unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: programs read fields between start and end of a poll.
            let Some($completion) = (unsafe { current(cq) }) else { return 0 };
            $value
        }
    )*};
}

readers! {
    /// `ibv_wc_read_opcode`.
    read_opcode: c_uint = |completion| opcode(completion);
    /// `ibv_wc_read_vendor_err`.
    read_vendor_err: u32 = |completion| vendor_err(completion);
    /// `ibv_wc_read_byte_len`.
    read_byte_len: u32 = |completion| completion.byte_len();
    /// `ibv_wc_read_imm_data` and `ibv_wc_read_invalidated_rkey`.
    read_imm_data: u32 = |completion| imm_data(completion);
    /// `ibv_wc_read_qp_num`.
    read_qp_num: u32 = |completion| completion.qp_num();
    /// `ibv_wc_read_src_qp`.
    read_src_qp: u32 = |completion| completion.remote().remote_qpn();
    /// `ibv_wc_read_wc_flags`.
    read_wc_flags: c_uint = |completion| if completion.is_send() { 0 } else { flags(completion) };
    /// `ibv_wc_read_slid`.
    read_slid: u32 = |completion| completion.slid().into();
    /// `ibv_wc_read_sl`.
    read_sl: u8 = |completion| completion.remote().service_level();
    /// `ibv_wc_read_dlid_path_bits`.
    read_dlid_path_bits: u8 = |completion| completion.dlid_path_bits();
    /// `ibv_wc_read_completion_ts`.
    read_completion_ts: u64 = |completion| completion.timestamp();
    /// `ibv_wc_read_cvlan`.
    read_cvlan: u16 = |completion| completion.vlan().unwrap_or(0);
    /// `ibv_wc_read_flow_tag`.
    read_flow_tag: u32 = |completion| completion.flow_tag();
}

/// `ibv_wc_read_tm_info`: there is no tag matching.
pub(crate) unsafe extern "C" fn read_tm_info(_cq: *mut ibv_cq_ex, into: *mut ibv_wc_tm_info) {
    // SAFETY: the caller's struct, to be written.
    unsafe { into.write(ibv_wc_tm_info { tag: 0, r#priv: 0 }) };
}

/// `ibv_wc_read_completion_wallclock_ns`; 0 if the clock cannot be read.
pub(crate) unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: programs read fields between start and end of a poll.
    let (Some(completion), queue) = (unsafe { (current(cq), Cq::of(cq.cast())) }) else { return 0 };
    let conversion = queue.context().clock().and_then(|clock| clock.conversion().ok());
    conversion.map_or(0, |conversion| conversion.nanoseconds(completion.timestamp()))
}
