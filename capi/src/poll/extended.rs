//! Extended polls: `ibv_start_poll` to `ibv_end_poll`, and reading the current completion.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::transmute;

use uverbs::PollError;
use uverbs::raw::Completion;
use uverbs_mlx5::completion_queue::{ByLap, LentCqe, Status};

use super::idle;
use super::tags::tagged_flags;
use super::wc::{flags, imm_data, known_opcode, other_opcode, vendor_err};
use crate::abi::*;
use crate::cq::{Cq, status};
use crate::forms::{either, forms, pick};
use crate::lock::Lock;

/// The result of an extended poll without a completion, as in libmlx5.
const NOTHING: c_int = libc::ENOENT;

/// Moves an extended poll to the next completion if that is a successful send. Returns whether it
/// is one.
///
/// # Safety
/// The caller holds the lock, or polls in one thread at a time.
#[inline(always)]
unsafe fn advance(queue: &Cq) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let sent = queue.provider().take_sent(ByLap::new(), |_| Some(()));
        sent.map(|(completion, ())| show(queue, &completion, 0)).is_some()
    }
}

forms! {
    beside
    /// Moves an extended poll, which has just started if `STARTS`, to the next completion, which is
    /// not a successful send.
    ///
    /// # Safety
    /// As for [`advance`].
    #[inline(never)]
    fn advance_received / advance_received_newer [const STARTS: bool](queue: &Cq) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            match queue.provider().take_received::<false>(ByLap::new()) {
                Some(completion) => show(queue, &completion, 0),
                None if STARTS => return start_other(queue),
                None => return next_other(queue),
            }
            if queue.provider().is_lap_over() { next_lap(queue) } else { 0 }
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
            unsafe { show(queue, &completion, status) };
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
unsafe fn show(queue: &Cq, completion: &Completion<'_>, status: c_uint) {
    // SAFETY: the caller's promise. The completion is lent until its CQE is given back, by
    // `end_poll` or a call that polls, arms or resizes. That happens after the program has read it,
    // or replaces it here.
    unsafe {
        let ex = &mut *queue.ex.get();
        (ex.wr_id, ex.status) = (completion.wr_id(), status);
        let cqe = transmute::<LentCqe<'_>, LentCqe<'static>>(completion.lent_cqe());
        (*queue.current.get()).write(cqe);
    }
}

/// `ibv_start_poll` of a queue, with or without a lock.
type StartPoll = unsafe extern "C" fn(*mut ibv_cq_ex, *mut c_void) -> c_int;

/// The `ibv_start_poll` of a queue.
pub(crate) fn start_poll_of(lock: &Lock) -> StartPoll {
    match lock.is_needed() {
        true => pick(start_poll::<true>, start_poll_newer::<true>),
        false => pick(start_poll::<false>, start_poll_newer::<false>),
    }
}

forms! {
    /// `ibv_start_poll`: holds the queue's lock until `ibv_end_poll`, unless it fails.
    fn start_poll / start_poll_newer [const LOCKS: bool](
        cq: *mut ibv_cq_ex,
        attributes: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller's queue, and the caller's struct, which begins with a mask: libmlx5
        // reads it, too, so no program passes null.
        unsafe {
            let queue = Cq::of(cq.cast());
            if attributes.cast::<u32>().read() != 0 {
                return refuse();
            }
            if !queue.lock.try_keep::<LOCKS>() {
                return start_waiting(queue);
            }
            if !advance(queue) {
                return either!(advance_received::<true>, advance_received_newer::<true>)(queue);
            }
            if queue.provider().is_lap_over() { next_lap(queue) } else { 0 }
        }
    }
}

/// The result for attributes that no release of libibverbs has. It is a function, so that the fast
/// path only jumps to it.
#[cold]
#[inline(never)]
extern "C" fn refuse() -> c_int {
    libc::EINVAL
}

/// [`start_poll`] after waiting for the thread that polls.
///
/// # Safety
/// As for [`start_poll`].
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
/// As for [`start_poll`].
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

/// [`next_poll`] when the fast path finds no completion.
///
/// # Safety
/// As for [`next_poll`].
#[inline(never)]
unsafe extern "C" fn next_other(queue: &Cq) -> c_int {
    // SAFETY: the lock is held.
    unsafe {
        queue.provider().note_lent();
        advance_any(queue)
    }
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

forms! {
    /// `ibv_next_poll`.
    pub(crate) fn next_poll / next_poll_newer [](cq: *mut ibv_cq_ex) -> c_int {
        // SAFETY: between start and end, so the lock is held.
        unsafe {
            let queue = Cq::of(cq.cast());
            if !advance(queue) {
                return either!(advance_received::<false>, advance_received_newer::<false>)(queue);
            }
            if queue.provider().is_lap_over() { next_lap(queue) } else { 0 }
        }
    }
}

/// `ibv_end_poll`: gives the entries of all completions since `ibv_start_poll` back, as libmlx5
/// does.
pub(crate) unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the caller's queue; between start and end, so the lock is held.
    unsafe {
        let queue = Cq::of(cq.cast());
        queue.provider().publish();
        queue.lock.release();
    }
}

/// The current completion of an extended poll. Its status is `Success`, or `General` for any error.
///
/// # Safety
/// Between start and end of an extended poll.
#[inline(always)]
pub(super) unsafe fn current<'a>(cq: *mut ibv_cq_ex) -> Completion<'a> {
    // SAFETY: the caller's promise: the poll has written it.
    unsafe {
        let cqe = (*Cq::of(cq.cast()).current.get()).assume_init_read();
        let status = if (*cq).status == 0 { Status::Success } else { Status::General };
        cqe.completion((*cq).wr_id, status)
    }
}

macro_rules! readers {
    ($(
        $(#[$meta:meta])*
        $name:ident / $newer:ident: $type:ty = |$completion:ident| $value:expr;
    )*) => {
        forms! {$(
            $(#[$meta])*
            pub(crate) fn $name / $newer [] (cq: *mut ibv_cq_ex) -> $type {
                // SAFETY: programs read fields between start and end of a poll.
                let $completion = &unsafe { current(cq) };
                $value
            }
        )*}
    };
}

forms! {
    /// `ibv_wc_read_opcode`.
    pub(crate) fn read_opcode / read_opcode_newer [](cq: *mut ibv_cq_ex) -> c_uint {
        // SAFETY: programs read fields between start and end of a poll.
        let completion = unsafe { current(cq) };
        known_opcode(&completion).unwrap_or_else(|| read_other_opcode(cq))
    }

    /// `ibv_wc_read_wc_flags`.
    pub(crate) fn read_wc_flags / read_wc_flags_newer [](cq: *mut ibv_cq_ex) -> c_uint {
        // SAFETY: programs read fields between start and end of a poll.
        let completion = unsafe { current(cq) };
        match completion.is_send() {
            true => 0,
            false if completion.may_match_tags() => read_tagged_flags(cq),
            false => flags(&completion),
        }
    }
}

/// [`read_opcode`] of a request that changed memory keys, or of tag matching.
#[inline(never)]
extern "C" fn read_other_opcode(cq: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: programs read fields between start and end of a poll.
    let completion = unsafe { current(cq) };
    other_opcode(&completion)
}

/// [`read_wc_flags`] of a completion that may be one of tag matching.
#[cold]
#[inline(never)]
extern "C" fn read_tagged_flags(cq: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: programs read fields between start and end of a poll.
    let completion = unsafe { current(cq) };
    tagged_flags(&completion)
}

readers! {
    /// `ibv_wc_read_vendor_err`.
    read_vendor_err / read_vendor_err_newer: u32 = |completion| vendor_err(completion);
    /// `ibv_wc_read_byte_len`.
    read_byte_len / read_byte_len_newer: u32 = |completion| completion.byte_len();
    /// `ibv_wc_read_imm_data` and `ibv_wc_read_invalidated_rkey`.
    read_imm_data / read_imm_data_newer: u32 = |completion| imm_data(completion);
    /// `ibv_wc_read_qp_num`.
    read_qp_num / read_qp_num_newer: u32 = |completion| completion.qp_num();
    /// `ibv_wc_read_src_qp`.
    read_src_qp / read_src_qp_newer: u32 = |completion| completion.remote().remote_qpn();
    /// `ibv_wc_read_slid`.
    read_slid / read_slid_newer: u32 = |completion| completion.slid().into();
    /// `ibv_wc_read_sl`.
    read_sl / read_sl_newer: u8 = |completion| completion.remote().service_level();
    /// `ibv_wc_read_dlid_path_bits`.
    read_dlid_path_bits / read_dlid_path_bits_newer: u8 = |completion| completion.dlid_path_bits();
    /// `ibv_wc_read_completion_ts`.
    read_completion_ts / read_completion_ts_newer: u64 = |completion| completion.timestamp();
    /// `ibv_wc_read_cvlan`.
    read_cvlan / read_cvlan_newer: u16 = |completion| completion.vlan().unwrap_or(0);
    /// `ibv_wc_read_flow_tag`.
    read_flow_tag / read_flow_tag_newer: u32 = |completion| completion.flow_tag();
}

/// `ibv_wc_read_completion_wallclock_ns`; 0 if the clock cannot be read.
pub(crate) unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: programs read fields between start and end of a poll.
    let (completion, queue) = unsafe { (current(cq), Cq::of(cq.cast())) };
    let conversion = queue.context().clock().and_then(|clock| clock.conversion().ok());
    conversion.map_or(0, |conversion| conversion.nanoseconds(completion.timestamp()))
}
