//! `ibv_wr_…`: requests built by calls and posted together.
//!
//! Each call stores its part of a request where it belongs in the ring: the operation its header,
//! the setters the data and the destination ([`SendQueue::name`]). `ibv_wr_complete` publishes what
//! was built, a single request by a copy from the ring to the doorbell register.
//!
//! Other requests are recorded, call by call: those of an unusual operation or with unusual data,
//! and those beyond the fast limit. A recorded request is built when the next one begins, or by
//! `ibv_wr_complete`, in a batch that continues where the requests before it end. A failure is kept
//! until `ibv_wr_complete`, which then discards all requests since `ibv_wr_start` and posts
//! nothing. Requests that were posted before are not affected.
//!
//! The calls are in two files: the operations, each of which begins a request, and the setters of
//! its data and peer. This file starts, completes and aborts. All are generic over the type of
//! queue pair, so no call looks it up.

mod keys;
mod operations;
mod setters;

use std::ffi::c_int;
use std::mem::replace;

use uverbs::qp::{PostError, RunTimeDestination, RunTimeOperation, SendRequest};
use uverbs::qp_type::{QpType, Rc};
use uverbs::raw::Batch;
use uverbs::{DatagramAddress, Sge};
use uverbs_mlx5::mmio::BlueFlame;
use uverbs_mlx5::send_queue::{Common, SendQueue, Steps};

use crate::abi::*;
use crate::forms::{either, forms, pick};
use crate::post::{self, MAX_SGE};
use crate::qp::Qp;
use crate::usual::{MAX_INLINE, NO_SRQ, Posts, Usual};
use keys::Configuration;
pub(crate) use keys::{
    ConfAttr, Interleaved, NOTHING_ELSE, configure, set_access, set_interleaved, set_list,
};
use operations::*;
pub(crate) use operations::{encoded, unsupported};
pub(crate) use setters::set_dc_addr;
use setters::*;

/// How much of a request is recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Stage {
    /// Nothing.
    None,
    /// The operation.
    Named,
    /// The operation and data that was copied.
    Copied,
    /// The operation and SGEs.
    Listed,
}

/// Requests that are being built between start and complete or abort.
#[repr(C)]
pub(crate) struct Building {
    /// What became of the requests so far.
    steps: Steps,
    /// What the queue pair's requests have in common.
    pub(crate) common: Common,
    /// The fields from here on are valid only after [`Building::detour`].
    error: c_int,
    stage: Stage,
    /// Whether a request could not be built.
    has_failed: bool,
    /// The recorded request; its `kind` says whether `operation` replaces it.
    usual: Usual,
    srqn: u32,
    count: usize,
    /// Without the header of packets to be segmented, which is in `copied`.
    operation: RunTimeOperation<'static>,
    /// The length of that header.
    header: usize,
    address: Option<DatagramAddress>,
    /// The configuration of a memory key that is being encoded.
    configuration: Configuration,
    sges: [Sge; MAX_SGE],
    /// Inline data, or the header of packets to be segmented. It is copied, because the program may
    /// reuse its buffers.
    copied: [u8; MAX_INLINE],
}

impl Default for Building {
    fn default() -> Self {
        Self {
            steps: Steps::NEW,
            common: Common::NONE,
            error: 0,
            stage: Stage::None,
            has_failed: false,
            usual: Usual::NONE,
            srqn: NO_SRQ,
            count: 0,
            operation: RunTimeOperation::Send,
            header: 0,
            address: None,
            configuration: Configuration::default(),
            sges: [Sge::default(); MAX_SGE],
            copied: [0; MAX_INLINE],
        }
    }
}

impl Building {
    /// Leaves the fast path: from here on there may be a recorded request, or an error.
    fn detour(&mut self) {
        if self.steps.detour() {
            self.forget();
        }
    }

    /// Discards the recorded request and the error.
    fn forget(&mut self) {
        (self.error, self.stage) = (0, Stage::None);
        self.has_failed = false;
        self.configuration.is_open = false;
    }

    /// Records the first error.
    #[cold]
    fn fail(&mut self, errno: c_int) {
        self.detour();
        if self.error == 0 {
            self.error = errno;
        }
        self.has_failed = true;
    }

    /// The request's peer; `None` if the program did not set it.
    fn destination<T: Posts>(
        &self,
        operation: &RunTimeOperation<'_>,
    ) -> Option<RunTimeDestination<'_>> {
        match T::TYPE {
            QpType::Ud => self.address.as_ref().map(RunTimeDestination::Datagram),
            QpType::DcInitiator => self.address.as_ref().map(RunTimeDestination::Dc),
            QpType::XrcSend if self.srqn != NO_SRQ => Some(RunTimeDestination::Xrc(self.srqn)),
            // A bind goes to this device, so it names no peer.
            QpType::XrcSend if is_of_windows(operation) => Some(RunTimeDestination::Connected),
            QpType::XrcSend => None,
            _ => Some(RunTimeDestination::Connected),
        }
    }

    /// The recorded operation that is not usual. Out of line: usual ones need not pass the header.
    #[inline(never)]
    fn operation(&self) -> RunTimeOperation<'_> {
        match self.operation {
            RunTimeOperation::Segmented { offload, mss, .. } => {
                let header = self.copied.get(..self.header).unwrap_or_default();
                RunTimeOperation::Segmented { offload, mss, header }
            }
            operation => operation,
        }
    }

    /// The recorded request.
    fn request<T: Posts>(&mut self, stage: Stage) -> Result<SendRequest<'_>, PostError> {
        let is_atomic = !self.usual.kind.is_usual()
            && matches!(
                self.operation,
                RunTimeOperation::CompareSwap(_) | RunTimeOperation::FetchAdd(_)
            );
        let inline = stage == Stage::Copied;
        if inline {
            let address = self.copied.as_ptr().expose_provenance() as u64;
            self.sges[0] = Sge::new(address, self.count as u32, 0);
            self.count = 1;
        }
        if is_atomic && self.count == 1 {
            // libmlx5 takes any length for the result of an atomic, which is always 8 bytes.
            self.sges[0] = self.sges[0].with_length(8);
        }
        let count = if stage == Stage::Named { 0 } else { self.count };
        let operation = match self.usual.kind.is_usual() {
            true => self.usual.operation(),
            false => self.operation(),
        };
        let data = self.sges.get(..count).unwrap_or_default();
        let destination = self.destination::<T>(&operation).ok_or(PostError::BadDestination)?;
        let Usual { wr_id, flags, .. } = self.usual;
        Ok(SendRequest { wr_id, operation, destination, flags, inline, data })
    }
}

fn is_of_windows(operation: &RunTimeOperation<'_>) -> bool {
    matches!(
        operation,
        RunTimeOperation::BindWindow(_)
            | RunTimeOperation::UnbindWindow(_)
            | RunTimeOperation::LocalInvalidate(_)
    )
}

/// As for `ibv_post_send`, but that a queue pair before RTS is EINVAL here.
fn errno(reason: PostError) -> c_int {
    match reason {
        PostError::BadState => libc::EINVAL,
        reason => post::send_errno(reason),
    }
}

/// The queue pair, and what is being built.
///
/// # Safety
/// `qp` is a program's queue pair, and the calling thread is between its start and its complete or
/// abort. The caller uses no other result of this function after the call.
#[inline(always)]
unsafe fn of<'a>(qp: *mut ibv_qp_ex) -> (&'a Qp, &'a mut Building) {
    // SAFETY: the queue pair is alive. Since start this thread holds the lock of the sends, or the
    // program posts in one thread at a time, so no other thread has a reference to `building`.
    unsafe {
        let queue_pair = Qp::of(qp.cast());
        (queue_pair, &mut *queue_pair.building.get())
    }
}

/// The send queue; `None` if the queue pair does not send.
///
/// # Safety
/// As for [`of`], and the queue pair is of type `T`, which sends if `SENDS`.
#[inline(always)]
unsafe fn queue<'a, T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
) -> Option<&'a mut SendQueue<T, BlueFlame>> {
    // SAFETY: a queue pair of this type has such a send queue, and this thread holds its lock.
    SENDS.then(|| unsafe { post::sends::<T>(qp.cast()) })
}

/// Leaves the fast path: ends the request in the ring that was begun last. Records a failure if it
/// lacks its destination.
///
/// # Safety
/// As for [`of`], and the queue pair is of type `T`.
unsafe fn detour<'a, T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex) -> &'a mut Building {
    // SAFETY: the caller's promise.
    unsafe {
        let building = of(qp).1;
        end_steps::<T, SENDS>(qp, building);
        building
    }
}

/// [`detour`] for callers that have what is being built.
///
/// # Safety
/// As for [`finish`].
unsafe fn end_steps<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex, building: &mut Building) {
    building.detour();
    // SAFETY: the caller's promise. The queue is not a part of what is being built.
    let ended = unsafe { queue::<T, SENDS>(qp) }.map(SendQueue::end_request);
    if let Some(Err(reason)) = ended {
        building.fail(errno(reason));
    }
}

/// Builds the recorded request after those before it.
///
/// # Safety
/// As for [`of`], which has returned `building`, and the queue pair is of type `T`.
#[inline(never)]
unsafe fn finish<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex, building: &mut Building) {
    let stage = replace(&mut building.stage, Stage::None);
    // SAFETY: the caller's promise. What a request demands of its memory and keys, the program
    // promises by its calls.
    unsafe {
        in_batch::<T, SENDS>(qp, building, |building, batch| {
            batch.build_request(&building.request::<T>(stage)?)
        });
    }
}

/// Runs `build` on a batch after the requests built so far, unless one has failed. Records a
/// failure.
///
/// # Safety
/// As for [`finish`].
unsafe fn in_batch<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    building: &mut Building,
    build: impl FnOnce(&mut Building, &mut Batch<'_, T, BlueFlame>) -> Result<(), PostError>,
) {
    if building.has_failed {
        return;
    }
    // SAFETY: the caller's promise.
    let begun = unsafe { batch::<T, SENDS>(qp, building) };
    let Some(mut batch) = begun else { return building.fail(libc::EINVAL) };
    let built = build(building, &mut batch);
    // SAFETY: the batch was begun from these steps. Until complete or abort the send queue is used
    // only by calls that go on from them: the lock keeps other posts out.
    unsafe { batch.pause(&mut building.steps) };
    if let Err(reason) = built {
        building.fail(errno(reason));
    }
}

/// A batch after the requests built so far; `None` if the queue pair cannot send now.
///
/// # Safety
/// As for [`finish`].
unsafe fn batch<'a, T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    building: &mut Building,
) -> Option<Batch<'a, T, BlueFlame>> {
    // SAFETY: the caller's promise. Since start the lock has kept other posts out, so the queue was
    // used only for the requests of these steps.
    unsafe { queue::<T, SENDS>(qp)?.batch_from(&mut building.steps).ok() }
}

/// Aborts the batch.
///
/// # Safety
/// As for [`finish`].
pub(crate) unsafe fn abort<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    building: &mut Building,
) {
    // SAFETY: the caller's promise, which is that of each of these functions. The steps are those
    // of the queue.
    unsafe {
        end_steps::<T, SENDS>(qp, building);
        building.stage = Stage::None;
        if !is_alone::<T, SENDS>(qp, building) {
            if let Some(batch) = batch::<T, SENDS>(qp, building) {
                batch.abort();
            }
        } else if let Some(queue) = queue::<T, SENDS>(qp) {
            queue.reopen_steps(&mut building.steps);
        }
    }
}

/// Aborts what this thread is building, because the queue pair is reset. Its `ibv_wr_complete` will
/// return EINVAL.
///
/// # Safety
/// The calling thread is between start and complete.
pub(crate) unsafe fn give_up_for_reset(queue_pair: &Qp) {
    // SAFETY: this thread keeps the lock of the sends, so no other thread builds requests, and none
    // of this thread's calls that do is running. `abort` is the function for this type.
    unsafe {
        let building = &mut *queue_pair.building.get();
        (queue_pair.send.abort)(queue_pair.pointer().cast(), building);
        building.fail(libc::EINVAL);
        building.error = libc::EINVAL;
    }
}

/// The queue pair is used by other verbs while this thread is building.
///
/// # Safety
/// The calling thread is between start and complete.
pub(crate) unsafe fn leave_fast_path(queue_pair: &Qp) {
    // SAFETY: this thread keeps the lock of the sends, so no other thread builds requests, and none
    // of this thread's calls that do is running.
    unsafe { &mut *queue_pair.building.get() }.detour();
}

forms! {
    /// `ibv_wr_start`: holds the lock of the sends until complete or abort.
    fn start / start_newer [const LOCKS: bool](qp: *mut ibv_qp_ex) {
        // SAFETY: the caller's queue pair; the lock is held.
        unsafe {
            if !Qp::of(qp.cast()).send_lock.try_keep::<LOCKS>() {
                start_waiting(qp);
            }
            // Setters that were called outside of start and complete leave nothing behind.
            of(qp).1.steps.end();
        }
    }
}

/// [`start`] while another thread posts.
///
/// # Safety
/// As for [`start`].
#[cold]
#[inline(never)]
unsafe extern "C" fn start_waiting(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's queue pair.
    unsafe {
        let lock = &Qp::of(qp.cast()).send_lock;
        lock.wait();
        lock.keep();
    }
}

forms! {
    /// `ibv_wr_complete`: posts everything, or nothing and the first error.
    fn complete / complete_newer [T: Posts, const SENDS: bool](qp: *mut ibv_qp_ex) -> c_int {
        // SAFETY: the caller's queue pair, after start.
        unsafe {
            let (queue_pair, building) = of(qp);
            let Some(queue) = queue::<T, SENDS>(qp) else {
                return complete_any::<T, SENDS>(qp);
            };
            if !building.steps.is_straight() {
                return complete_any::<T, SENDS>(qp);
            }
            if let Err((start, head)) = queue.publish_short() {
                return either!(complete_longer::<T, SENDS>, complete_longer_newer::<T, SENDS>)(
                    qp, start, head,
                );
            }
            queue_pair.send_lock.release();
            0
        }
    }
}

forms! {
    beside
    /// [`complete`] of one request with a block more than the shortest: `start` and `head` are
    /// those of [`SendQueue::publish_short`].
    ///
    /// # Safety
    /// As for [`complete`].
    #[inline(never)]
    fn complete_longer / complete_longer_newer [T: Posts, const SENDS: bool](
        qp: *mut ibv_qp_ex,
        start: usize,
        head: u32,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            if post::sends::<T>(qp.cast()).publish_longer(start, head) {
                Qp::of(qp.cast()).send_lock.release();
                return 0;
            }
            complete_straight::<T, SENDS>(qp)
        }
    }
}

/// [`complete`] of requests that were all built step by step.
///
/// # Safety
/// As for [`complete`].
#[inline(never)]
unsafe extern "C" fn complete_straight<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if post::sends::<T>(qp.cast()).publish_long() {
            Qp::of(qp.cast()).send_lock.release();
            return 0;
        }
        complete_several::<T, SENDS>(qp)
    }
}

/// [`complete`] of several requests that were all built step by step.
///
/// # Safety
/// As for [`complete`].
#[inline(never)]
unsafe extern "C" fn complete_several<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if post::sends::<T>(qp.cast()).publish_steps() {
            Qp::of(qp.cast()).send_lock.release();
            return 0;
        }
        complete_any::<T, SENDS>(qp)
    }
}

/// [`complete`] of a batch, a request of another form, or nothing.
///
/// # Safety
/// As for [`complete`].
#[inline(never)]
unsafe extern "C" fn complete_any<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let (queue_pair, building) = of(qp);
        let errno = post_all::<T, SENDS>(qp, building);
        building.steps.end();
        queue_pair.send_lock.release();
        errno
    }
}

/// Posts a batch, a request of another form, or nothing.
///
/// # Safety
/// As for [`finish`].
#[inline(always)]
unsafe fn post_all<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    building: &mut Building,
) -> c_int {
    // SAFETY: the caller's promise, which is that of each of these functions.
    unsafe {
        end_steps::<T, SENDS>(qp, building);
        if building.stage != Stage::None && !building.has_failed {
            if is_alone::<T, SENDS>(qp, building) {
                return post_alone::<T, SENDS>(qp, building);
            }
            finish::<T, SENDS>(qp, building);
        }
        if building.has_failed {
            abort::<T, SENDS>(qp, building);
            return building.error;
        }
        // With nothing to post: a queue pair that cannot send says so all the same.
        match batch::<T, SENDS>(qp, building) {
            Some(batch) => batch.publish(),
            None => return libc::EINVAL,
        }
    }
    building.error
}

/// Whether the recorded request is the first one.
///
/// # Safety
/// As for [`finish`].
unsafe fn is_alone<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex, building: &Building) -> bool {
    // SAFETY: the caller's promise.
    let queue = unsafe { queue::<T, SENDS>(qp) };
    queue.is_none_or(|queue| queue.has_no_steps() && !building.steps.has_batch())
}

/// Posts the only request, which is recorded.
///
/// # Safety
/// As for [`finish`].
unsafe fn post_alone<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    building: &mut Building,
) -> c_int {
    let stage = replace(&mut building.stage, Stage::None);
    // SAFETY: the caller's promise. The queue is not a part of what is being built, where the
    // copied bytes stay until the request is posted. What a request demands of its memory and keys,
    // the program promises by its calls.
    unsafe {
        let Some(queue) = queue::<T, SENDS>(qp) else { return libc::EINVAL };
        queue.reopen_steps(&mut building.steps);
        let posted = building.request::<T>(stage);
        let posted = posted.and_then(|request| post::post_request(queue, &request));
        posted.map_or_else(errno, |()| 0)
    }
}

/// `ibv_wr_abort`.
unsafe extern "C" fn abort_and_release<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's queue pair, after start.
    unsafe {
        let (queue_pair, building) = of(qp);
        abort::<T, SENDS>(qp, building);
        building.steps.end();
        queue_pair.send_lock.release();
    }
}

/// The part of an `ibv_qp_ex` that programs call, all of it. `locks` says whether the queue pair's
/// sends have a lock.
pub(crate) fn table<T: Posts>(base: ibv_qp, locks: bool) -> ibv_qp_ex {
    table_with::<T, true>(base, locks)
}

/// That of a queue pair that does not send.
pub(crate) fn table_of_none(base: ibv_qp, locks: bool) -> ibv_qp_ex {
    table_with::<Rc, false>(base, locks)
}

fn table_with<T: Posts, const SENDS: bool>(qp_base: ibv_qp, locks: bool) -> ibv_qp_ex {
    ibv_qp_ex {
        qp_base,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp: atomic_cmp_swp::<T, SENDS>,
        wr_atomic_fetch_add: atomic_fetch_add::<T, SENDS>,
        wr_bind_mw: bind_mw::<T, SENDS>,
        wr_local_inv: local_inv::<T, SENDS>,
        wr_rdma_read: pick(rdma_read::<T, SENDS>, rdma_read_newer::<T, SENDS>),
        wr_rdma_write: pick(rdma_write::<T, SENDS>, rdma_write_newer::<T, SENDS>),
        wr_rdma_write_imm: pick(rdma_write_imm::<T, SENDS>, rdma_write_imm_newer::<T, SENDS>),
        wr_send: pick(send::<T, SENDS>, send_newer::<T, SENDS>),
        wr_send_imm: pick(send_imm::<T, SENDS>, send_imm_newer::<T, SENDS>),
        wr_send_inv: send_inv::<T, SENDS>,
        wr_send_tso: send_tso::<T, SENDS>,
        wr_set_ud_addr: pick(set_ud_addr::<T, SENDS>, set_ud_addr_newer::<T, SENDS>),
        wr_set_xrc_srqn: pick(set_xrc_srqn::<T, SENDS>, set_xrc_srqn_newer::<T, SENDS>),
        wr_set_inline_data: pick(set_inline_data::<T, SENDS>, set_inline_data_newer::<T, SENDS>),
        wr_set_inline_data_list: pick(
            set_inline_data_list::<T, SENDS>,
            set_inline_data_list_newer::<T, SENDS>,
        ),
        wr_set_sge: pick(set_sge::<T, SENDS>, set_sge_newer::<T, SENDS>),
        wr_set_sge_list: pick(set_sge_list::<T, SENDS>, set_sge_list_newer::<T, SENDS>),
        wr_start: match locks {
            true => pick(start::<true>, start_newer::<true>),
            false => pick(start::<false>, start_newer::<false>),
        },
        wr_complete: pick(complete::<T, SENDS>, complete_newer::<T, SENDS>),
        wr_abort: abort_and_release::<T, SENDS>,
        wr_atomic_write: atomic_write,
        wr_flush: flush,
    }
}
