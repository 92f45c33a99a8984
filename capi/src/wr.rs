//! `ibv_wr_…`: requests built by calls and posted together.
//!
//! Each call stores its part of a request where that belongs in the ring: the operation its header,
//! the setter the data ([`Steps`]). `ibv_wr_complete` publishes what was built; a single request
//! goes to the doorbell register from the ring.
//!
//! Other requests are recorded instead, call by call: a request with a peer of its own, with an
//! unusual operation or data, or beyond the fast limit. A recorded request is built when the next
//! one begins, in a batch that continues where the steps end, or by `ibv_wr_complete`. A failure is
//! kept until `ibv_wr_complete`, which then discards all requests since `ibv_wr_start` and posts
//! nothing. Requests that were posted before are not affected.
//!
//! The functions are generic over the type of queue pair, so no call looks it up.

use std::ffi::{c_int, c_void};
use std::mem::replace;

use uverbs::op::{CompareSwap, FetchAdd};
use uverbs::qp::{PostError, RunTimeDestination, RunTimeOperation, SendRequest};
use uverbs::qp_type::{QpType, Rc};
use uverbs::raw::Batch;
use uverbs::{DatagramAddress, Remote, Sge};
use uverbs_mlx5::format::{Opcode, U32};
use uverbs_mlx5::mmio::BlueFlame;
use uverbs_mlx5::send_queue::{Common, Header, Inline, SendQueue, Steps};

use crate::abi::*;
use crate::ah::Ah;
use crate::post::{self, MOST_SGE, bytes, immediate, offload};
use crate::qp::Qp;
use crate::usual::{Kind, MOST_INLINE, NO_SRQ, Posts, Usual};
use crate::window;

/// How much of a request is recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Stage {
    /// Nothing.
    None,
    /// The operation, of a kind that `usual.rs` builds.
    Named,
    /// The operation, of another kind.
    Other,
    /// The operation and one SGE.
    One,
    /// The operation and data that was copied.
    Copied,
    /// The operation and a list of SGEs.
    List,
}

/// Requests that are being built between start and complete or abort.
#[repr(C)]
pub(crate) struct Building {
    /// What became of the requests so far. Not straight if the queue pair does not send.
    steps: Steps,
    /// What the queue pair's requests have in common.
    pub(crate) common: Common,
    /// The fields from here on are valid only after [`Building::detour`].
    error: c_int,
    stage: Stage,
    /// Whether a request could not be built.
    has_failed: bool,
    /// Whether the requests are lost, because the queue pair was reset.
    is_gone: bool,
    /// The recorded request; its `kind` says whether `operation` replaces it.
    usual: Usual,
    srqn: u32,
    count: usize,
    operation: RunTimeOperation<'static>,
    address: Option<DatagramAddress>,
    sges: [Sge; MOST_SGE],
    /// Inline data, or the header of packets to be segmented. It is copied, because the program may
    /// reuse its buffers.
    copied: [u8; MOST_INLINE],
}

impl Default for Building {
    fn default() -> Self {
        Self {
            steps: Steps::NONE,
            common: Common::NONE,
            error: 0,
            stage: Stage::None,
            has_failed: false,
            is_gone: false,
            usual: Usual::NONE,
            srqn: NO_SRQ,
            count: 0,
            operation: RunTimeOperation::Send,
            address: None,
            sges: [Sge::default(); MOST_SGE],
            copied: [0; MOST_INLINE],
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
        (self.has_failed, self.is_gone) = (false, false);
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

    /// Copies inline data into `copied`. `false` if it is longer than any request may have.
    ///
    /// # Safety
    /// The buffers are readable.
    #[inline(always)]
    unsafe fn copy(&mut self, buffers: impl Iterator<Item = (*const u8, usize)>) -> bool {
        let mut length = 0;
        for (start, size) in buffers {
            if size > MOST_INLINE - length {
                return false;
            }
            // SAFETY: the caller's promise; just compared with the room that is left.
            unsafe { copy_bytes(start, self.copied.as_mut_ptr().add(length), size) };
            length += size;
        }
        self.count = length;
        true
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

    /// The current request, of any kind.
    fn any_request<T: Posts>(&mut self, stage: Stage) -> Result<SendRequest<'_>, PostError> {
        let operation = match self.usual.kind.is_usual() {
            true => self.usual.operation(),
            false => self.operation,
        };
        let is_atomic =
            matches!(operation, RunTimeOperation::CompareSwap(_) | RunTimeOperation::FetchAdd(_));
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
        let count = if matches!(stage, Stage::Named | Stage::Other) { 0 } else { self.count };
        let data = self.sges.get(..count).unwrap_or_default();
        let destination = self.destination::<T>(&operation).ok_or(PostError::BadDestination)?;
        let Usual { wr_id, flags, .. } = self.usual;
        Ok(SendRequest { wr_id, operation, destination, flags, inline, data })
    }
}

/// Copies bytes. Short copies are loads and stores of which the last two may overlap, because
/// calling `memcpy` would cost more than the copy.
///
/// # Safety
/// `from` is readable and `to` writable for `length` bytes, and they do not overlap.
#[inline(always)]
unsafe fn copy_bytes(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: within the `length` bytes of both.
    unsafe {
        match length {
            16..=32 => copy_ends::<u128>(from, to, length),
            8..=15 => copy_ends::<u64>(from, to, length),
            33..=64 => {
                copy_ends::<[u128; 2]>(from, to, length);
            }
            _ => copy_others(from, to, length),
        }
    }
}

/// # Safety
/// As for [`copy_bytes`].
#[inline(never)]
unsafe fn copy_others(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller's promise; a null pointer may come with no bytes.
    unsafe { to.copy_from_nonoverlapping(bytes(from, length).as_ptr(), length) };
}

/// Copies the first and the last bytes that a `U` holds.
///
/// # Safety
/// As for [`copy_bytes`], and the length is one to two times a `U`'s.
#[inline(always)]
unsafe fn copy_ends<U: Copy>(from: *const u8, to: *mut u8, length: usize) {
    let last = length - size_of::<U>();
    // SAFETY: both are within the bytes.
    unsafe {
        let ends = (from.cast::<U>().read_unaligned(), from.add(last).cast::<U>().read_unaligned());
        to.cast::<U>().write_unaligned(ends.0);
        to.add(last).cast::<U>().write_unaligned(ends.1);
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
/// `qp` is a program's, between start and complete.
#[inline(always)]
unsafe fn of<'a>(qp: *mut ibv_qp_ex) -> (&'a Qp, &'a mut Building) {
    // SAFETY: the lock of the sends is held, or the program posts in one thread at a time.
    unsafe {
        let queue_pair = Qp::of(qp.cast());
        (queue_pair, &mut *queue_pair.building.get())
    }
}

/// The send queue; `None` if the queue pair does not send.
///
/// # Safety
/// As for [`post::sends`], if `SENDS`.
#[inline(always)]
unsafe fn queue<'a, T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
) -> Option<&'a mut SendQueue<T, BlueFlame>> {
    // SAFETY: the caller's promise.
    SENDS.then(|| unsafe { post::sends::<T>(qp.cast()) })
}

/// The send queue, if requests are built there step by step: not where they name a peer.
///
/// # Safety
/// As for [`queue`].
#[inline(always)]
unsafe fn straight<'a, T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
) -> Option<&'a mut SendQueue<T, BlueFlame>> {
    // SAFETY: the caller's promise.
    if T::IS_CONNECTED { unsafe { queue::<T, SENDS>(qp) } } else { None }
}

/// Begins a request of the usual kind, with what the program wrote into the `ibv_qp_ex`.
///
/// # Safety
/// As for [`of`].
#[inline(always)]
unsafe fn begin_usual<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    opcode: u32,
    immediate: u32,
    remote: Option<Remote>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if name::<T, SENDS>(qp, opcode, immediate, remote) {
            return;
        }
        let Remote { address, rkey } = remote.unwrap_or_default();
        begin_noted::<T, SENDS>(qp, rkey, address, opcode, immediate);
    }
}

/// The header of a request of a usual kind. The rest of it is what the program wrote into the
/// `ibv_qp_ex`.
struct InCalls {
    qp: *const ibv_qp_ex,
    kind: Kind,
    immediate: u32,
    remote: Remote,
}

impl Header for InCalls {
    #[inline(always)]
    fn octowords(&self) -> usize {
        self.kind.octowords()
    }
    #[inline(always)]
    fn may_have_remote(&self) -> bool {
        self.kind.is_access()
    }
    #[inline(always)]
    fn opcode(&self) -> Opcode {
        self.kind.opcode()
    }
    #[inline(always)]
    fn immediate(&self) -> U32 {
        self.kind.immediate(self.immediate)
    }
    #[inline(always)]
    fn remote(&self) -> Remote {
        self.remote
    }
    #[inline(always)]
    fn wr_id(&self) -> u64 {
        // SAFETY: a program's queue pair.
        unsafe { (*self.qp).wr_id }
    }
    #[inline(always)]
    fn mode(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.qp).wr_flags }
    }
}

/// Stores the header of a request of the usual kind, if that needs no more.
///
/// # Safety
/// As for [`of`], and the queue pair is of type `T`.
#[inline(always)]
unsafe fn name<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    opcode: u32,
    immediate: u32,
    remote: Option<Remote>,
) -> bool {
    let (kind, remote) = (Kind::of::<T>(opcode), remote.unwrap_or_default());
    // SAFETY: the caller's promise: the steps were begun. Kinds are of the queue's service.
    unsafe {
        let Some(queue) = straight::<T, SENDS>(qp) else { return false };
        queue.name(&of(qp).1.common, InCalls { qp, kind, immediate, remote })
    }
}

/// [`begin_usual`] if this request has to be recorded, an earlier one was, or the one before has no
/// data. The parameters are in the order of the program's call, so that they stay where they are.
///
/// # Safety
/// As for [`of`].
#[inline(never)]
unsafe extern "C" fn begin_noted<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    opcode: u32,
    immediate: u32,
) {
    let remote = Some(Remote::new(address, rkey));
    // SAFETY: the caller's promise.
    unsafe {
        let building = of(qp).1;
        let was_named = straight::<T, SENDS>(qp).is_some_and(|queue| queue.end_named());
        if was_named && name::<T, SENDS>(qp, opcode, immediate, remote) {
            return;
        }
        building.detour();
        if building.stage != Stage::None {
            finish::<T, SENDS>(qp, building);
            // A batch has looked for space.
            if !building.has_failed && name::<T, SENDS>(qp, opcode, immediate, remote) {
                return;
            }
        }
        note::<T, SENDS>(qp, Kind::of::<T>(opcode), immediate, remote);
    }
}

/// # Safety
/// As for [`of`].
#[inline(always)]
unsafe fn note<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    kind: Kind,
    immediate: u32,
    remote: Option<Remote>,
) {
    // SAFETY: the caller's promise.
    let (_, building) = unsafe { of(qp) };
    let usual = &mut building.usual;
    // SAFETY: the caller's promise.
    (usual.wr_id, usual.flags) = unsafe { ((*qp).wr_id, post::flags((*qp).wr_flags)) };
    usual.kind = kind;
    usual.immediate = immediate;
    if let Some(remote) = remote {
        usual.remote = remote;
    }
    building.stage = if kind.is_usual() { Stage::Named } else { Stage::Other };
    // SAFETY: as above.
    if let Some(queue) = unsafe { straight::<T, SENDS>(qp) } {
        queue.close_steps(&mut building.steps);
    }
    match T::TYPE {
        QpType::Ud | QpType::DcInitiator => building.address = None,
        QpType::XrcSend => building.srqn = NO_SRQ,
        _ => {}
    }
}

/// Records any other operation.
///
/// # Safety
/// As for [`of`].
unsafe fn begin<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    operation: RunTimeOperation<'static>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let building = of(qp).1;
        building.detour();
        if building.stage != Stage::None {
            finish::<T, SENDS>(qp, building);
        }
        note::<T, SENDS>(qp, Kind::UNUSUAL, 0, None);
        of(qp).1.operation = operation;
    }
}

/// Makes a noted request of the one that is in the ring, if that has no data yet: its data is
/// unusual.
///
/// # Safety
/// As for [`of`].
unsafe fn note_named<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    let (building, queue) = unsafe { (of(qp).1, straight::<T, SENDS>(qp)) };
    building.detour();
    let Some(queue) = queue else { return };
    let Some(named) = queue.take_back() else { return };
    queue.close_steps(&mut building.steps);
    building.usual = Usual {
        kind: Kind::named::<T>(named.opcode),
        wr_id: named.wr_id,
        remote: named.remote,
        immediate: u32::from_ne_bytes(named.immediate.to_bytes()),
        flags: named.flags,
    };
    building.stage = Stage::Named;
}

/// Builds the recorded request after those before it.
///
/// # Safety
/// As for [`of`], and the queue pair is of type `T`.
#[inline(never)]
unsafe fn finish<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex, building: &mut Building) {
    let stage = replace(&mut building.stage, Stage::None);
    // SAFETY: the caller's promise; what a program promises is what the batch asks for.
    unsafe {
        in_batch::<T, SENDS>(qp, building, |building, batch| {
            if stage == Stage::One && building.usual.kind.is_usual() {
                let (usual, sge) = (building.usual, building.sges[0]);
                if let Some(peer) = T::of_setters(&building.address, building.srqn) {
                    if usual.build(batch, peer, sge) {
                        return Ok(());
                    }
                }
            }
            let request = building.any_request::<T>(stage)?;
            batch.build_request(&request)
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
    // SAFETY: the caller's promise; the queue is used as `of` says.
    let begun = unsafe { batch::<T, SENDS>(qp, building) };
    let Some(mut batch) = begun else { return building.fail(libc::EINVAL) };
    let built = build(building, &mut batch);
    batch.pause(&mut building.steps);
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
    // SAFETY: the caller's promise: since start this thread has the queue, and used it for what is
    // being built alone.
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
    building.detour();
    building.stage = Stage::None;
    if building.is_gone {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        if !is_alone::<T, SENDS>(qp, building) {
            if let Some(batch) = batch::<T, SENDS>(qp, building) {
                batch.abort();
            }
        } else if let Some(queue) = straight::<T, SENDS>(qp) {
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
    // SAFETY: the caller's promise: no other thread builds requests.
    unsafe {
        let building = &mut *queue_pair.building.get();
        (queue_pair.send.abort)(queue_pair.pointer().cast(), building);
        building.fail(libc::EINVAL);
        building.error = libc::EINVAL;
        building.is_gone = true;
    }
}

/// The queue pair is used by other verbs while this thread is building.
///
/// # Safety
/// The calling thread is between start and complete.
pub(crate) unsafe fn leave_straight_way(queue_pair: &Qp) {
    // SAFETY: the caller's promise: no other thread builds requests.
    unsafe { &mut *queue_pair.building.get() }.detour();
}

/// `ibv_wr_start`: holds the lock of the sends until complete or abort.
unsafe extern "C" fn start<T: Posts, const SENDS: bool, const LOCKS: bool>(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's queue pair; the lock is held.
    unsafe {
        if !Qp::of(qp.cast()).send_lock.try_keep::<LOCKS>() {
            return start_waiting::<T, SENDS>(qp);
        }
        begin_all::<T, SENDS>(qp);
    }
}

/// Begins to build requests.
///
/// # Safety
/// As for [`of`].
#[inline(always)]
unsafe fn begin_all<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    unsafe {
        let building = of(qp).1;
        match queue::<T, SENDS>(qp) {
            Some(queue) => queue.begin_steps(&mut building.steps),
            None => building.forget(),
        }
    }
}

/// [`start`] while another thread posts.
///
/// # Safety
/// As there.
#[cold]
#[inline(never)]
unsafe extern "C" fn start_waiting<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's queue pair.
    unsafe {
        let lock = &Qp::of(qp.cast()).send_lock;
        lock.wait();
        lock.keep();
        begin_all::<T, SENDS>(qp);
    }
}

/// `ibv_wr_complete`: posts everything, or nothing and the first error.
unsafe extern "C" fn complete<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller's queue pair, after start.
    unsafe {
        let (queue_pair, building) = of(qp);
        let Some(queue) = straight::<T, SENDS>(qp) else { return complete_any::<T, SENDS>(qp) };
        if !building.steps.is_straight() {
            return complete_any::<T, SENDS>(qp);
        }
        if !queue.publish_one() {
            return complete_straight::<T, SENDS>(qp);
        }
        queue_pair.send_lock.release();
        0
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
    building.detour();
    // SAFETY: the caller's promise.
    unsafe {
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
    let is_usual = building.usual.kind.is_usual();
    // SAFETY: the caller's promise; what is being built is no part of the queue, and as many bytes
    // were copied. What a program promises is what building asks for.
    unsafe {
        let Some(queue) = queue::<T, SENDS>(qp) else { return libc::EINVAL };
        queue.reopen_steps(&mut building.steps);
        if let Some(peer) = T::of_setters(&building.address, building.srqn) {
            let usual = building.usual;
            let data = building.copied.get(..building.count).unwrap_or_default();
            let posted = match stage {
                Stage::One if is_usual => usual.build(queue, peer, building.sges[0]),
                Stage::Copied if usual.kind.takes_inline() => {
                    usual.build(queue, peer, Inline(data))
                }
                _ => false,
            };
            if posted {
                return 0;
            }
        }
        let posted = building.any_request::<T>(stage);
        let posted = posted.and_then(|request| queue.post_request(&request));
        posted.map_or_else(errno, |()| 0)
    }
}

/// `ibv_wr_abort`.
unsafe extern "C" fn give_up<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's queue pair, after start.
    unsafe {
        let (queue_pair, building) = of(qp);
        abort::<T, SENDS>(qp, building);
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
        wr_rdma_read: rdma_read::<T, SENDS>,
        wr_rdma_write: rdma_write::<T, SENDS>,
        wr_rdma_write_imm: rdma_write_imm::<T, SENDS>,
        wr_send: send::<T, SENDS>,
        wr_send_imm: send_imm::<T, SENDS>,
        wr_send_inv: send_inv::<T, SENDS>,
        wr_send_tso: send_tso::<T, SENDS>,
        wr_set_ud_addr: set_ud_addr,
        wr_set_xrc_srqn: set_xrc_srqn,
        wr_set_inline_data: set_inline_data::<T, SENDS>,
        wr_set_inline_data_list: set_inline_data_list::<T, SENDS>,
        wr_set_sge: set_sge::<T, SENDS>,
        wr_set_sge_list: set_sge_list::<T, SENDS>,
        wr_start: if locks { start::<T, SENDS, true> } else { start::<T, SENDS, false> },
        wr_complete: complete::<T, SENDS>,
        wr_abort: give_up::<T, SENDS>,
        wr_atomic_write: atomic_write,
        wr_flush: flush,
    }
}

/// Adds a request that the program has encoded itself.
///
/// # Safety
/// As for [`of`], and the queue pair is of type `T`.
pub(crate) unsafe fn encoded<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex, wqe: &[u8]) {
    // SAFETY: the caller's promise; what a program promises is what the batch asks for.
    unsafe {
        let building = of(qp).1;
        building.detour();
        if building.stage != Stage::None {
            finish::<T, SENDS>(qp, building);
        }
        let wr_id = (*qp).wr_id;
        in_batch::<T, SENDS>(qp, building, |_, batch| batch.build_encoded(wr_id, wqe));
    }
}

/// An operation that no device here has: `ibv_wr_complete` posts nothing and returns EOPNOTSUPP.
///
/// # Safety
/// As for [`of`].
pub(crate) unsafe fn lacking(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    unsafe { of(qp) }.1.fail(libc::EOPNOTSUPP);
}

/// Operations that are only recorded.
macro_rules! operations {
    ($( $(#[$meta:meta])* $name:ident($($argument:ident: $type:ty),*) = $operation:expr; )*) => {$(
        $(#[$meta])*
        unsafe extern "C" fn $name<T: Posts, const SENDS: bool>(
            qp: *mut ibv_qp_ex $(, $argument: $type)*
        ) {
            // SAFETY: the caller's queue pair, after start.
            unsafe { begin::<T, SENDS>(qp, $operation) };
        }
    )*};
}

operations! {
    /// `ibv_wr_send_inv`.
    send_inv(rkey: u32) = RunTimeOperation::SendInvalidate(rkey);
    /// `ibv_wr_atomic_cmp_swp`.
    atomic_cmp_swp(rkey: u32, address: u64, compare: u64, swap: u64) =
        RunTimeOperation::CompareSwap(CompareSwap {
            remote: Remote::new(address, rkey),
            compare,
            swap,
        });
    /// `ibv_wr_atomic_fetch_add`.
    atomic_fetch_add(rkey: u32, address: u64, add: u64) =
        RunTimeOperation::FetchAdd(FetchAdd { remote: Remote::new(address, rkey), add });
    /// `ibv_wr_local_inv`, which has no data.
    local_inv(rkey: u32) = RunTimeOperation::LocalInvalidate(rkey);
}

/// Operations of the usual kind. On a type of queue pair that does not have them they are recorded
/// as another operation, and refused when the request is built.
macro_rules! usual_operations {
    ($( $(#[$meta:meta])* $name:ident($($argument:ident: $type:ty),*) =
        $opcode:ident, $immediate:expr, $remote:expr, $operation:expr; )*) => {$(
        $(#[$meta])*
        unsafe extern "C" fn $name<T: Posts, const SENDS: bool>(
            qp: *mut ibv_qp_ex $(, $argument: $type)*
        ) {
            // SAFETY: the caller's queue pair, after start.
            unsafe {
                if Kind::of::<T>(wr_opcode::$opcode).is_usual() {
                    begin_usual::<T, SENDS>(qp, wr_opcode::$opcode, $immediate, $remote);
                } else {
                    begin::<T, SENDS>(qp, $operation);
                }
            }
        }
    )*};
}

usual_operations! {
    /// `ibv_wr_rdma_write`.
    rdma_write(rkey: u32, address: u64) = RDMA_WRITE, 0, Some(Remote::new(address, rkey)),
        RunTimeOperation::Write(Remote::new(address, rkey));
    /// `ibv_wr_rdma_write_imm`.
    rdma_write_imm(rkey: u32, address: u64, data: u32) =
        RDMA_WRITE_WITH_IMM, data, Some(Remote::new(address, rkey)),
        RunTimeOperation::WriteImmediate(Remote::new(address, rkey), immediate(data));
    /// `ibv_wr_rdma_read`.
    rdma_read(rkey: u32, address: u64) = RDMA_READ, 0, Some(Remote::new(address, rkey)),
        RunTimeOperation::Read(Remote::new(address, rkey));
    /// `ibv_wr_send_imm`.
    send_imm(data: u32) = SEND_WITH_IMM, data, None, RunTimeOperation::SendImmediate(immediate(data));
}

/// `ibv_wr_send`: on a raw packet queue pair, a frame.
unsafe extern "C" fn send<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's queue pair, after start.
    unsafe {
        if T::TYPE == QpType::RawPacket {
            return begin::<T, SENDS>(qp, RunTimeOperation::Packet(offload((*qp).wr_flags)));
        }
        begin_usual::<T, SENDS>(qp, wr_opcode::SEND, 0, None);
    }
}

/// `ibv_wr_send_tso`: the header is copied.
unsafe extern "C" fn send_tso<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    header: *mut c_void,
    length: u16,
    mss: u16,
) {
    // SAFETY: the caller's queue pair, after start, and its header.
    unsafe {
        let offload = offload((*qp).wr_flags);
        begin::<T, SENDS>(qp, RunTimeOperation::Segmented { offload, mss, header: &[] });
        let (_, building) = of(qp);
        if !building.copy(std::iter::once((header.cast_const().cast(), length.into()))) {
            return building.fail(libc::EINVAL);
        }
        // `Building` stays at its address as long as the queue pair lives.
        let header = std::slice::from_raw_parts(building.copied.as_ptr(), length.into());
        building.operation = RunTimeOperation::Segmented { offload, mss, header };
    }
}

/// `ibv_wr_bind_mw`.
unsafe extern "C" fn bind_mw<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: the caller's queue pair, after start, its window and struct.
    unsafe {
        match window::operation(&BindMw { mw, rkey, bind_info: *info }) {
            Ok(operation) => begin::<T, SENDS>(qp, operation),
            Err(errno) => of(qp).1.fail(errno),
        }
    }
}

/// `ibv_wr_atomic_write`: no mlx5 has it.
unsafe extern "C" fn atomic_write(qp: *mut ibv_qp_ex, _: u32, _: u64, _: *const c_void) {
    // SAFETY: the caller's queue pair, after start.
    unsafe { lacking(qp) };
}

/// `ibv_wr_flush`: no mlx5 has it.
unsafe extern "C" fn flush(qp: *mut ibv_qp_ex, _: u32, _: u64, _: usize, _: u8, _: u8) {
    // SAFETY: the caller's queue pair, after start.
    unsafe { lacking(qp) };
}

/// `ibv_wr_set_ud_addr`.
unsafe extern "C" fn set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: the caller's queue pair, after start, and its address handle.
    unsafe { of(qp).1.address = Ah::datagram(ah, qpn, qkey) };
}

/// `mlx5dv_wr_set_dc_addr`.
///
/// # Safety
/// The caller's queue pair, after start, and its address handle.
pub(crate) unsafe fn set_dc_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, dctn: u32, key: u64) {
    // SAFETY: the caller's promise.
    unsafe { of(qp).1.address = Ah::dc_target(ah, dctn, key) };
}

/// `ibv_wr_set_xrc_srqn`.
unsafe extern "C" fn set_xrc_srqn(qp: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: the caller's queue pair, after start.
    unsafe { of(qp) }.1.srqn = srqn;
}

/// `ibv_wr_set_sge`.
unsafe extern "C" fn set_sge<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    lkey: u32,
    address: u64,
    length: u32,
) {
    // SAFETY: the caller's queue pair, after start; what a program promises is what it asks for.
    unsafe {
        let queue = straight::<T, SENDS>(qp);
        if !queue.is_some_and(|queue| queue.add(address, length, lkey)) {
            note_sge::<T, SENDS>(qp, lkey, address, length);
        }
    }
}

/// # Safety
/// As for [`set_sge`].
#[inline(never)]
unsafe extern "C" fn note_sge<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    lkey: u32,
    address: u64,
    length: u32,
) {
    // SAFETY: the caller's queue pair, after start.
    let (takes_data, building) = unsafe { (takes_data::<T, SENDS>(qp), of(qp).1) };
    if takes_data {
        building.sges[0] = Sge::new(address, length, lkey);
        building.count = 1;
        building.stage = Stage::One;
    }
}

/// Whether a recorded request waits for data; records EINVAL if none does.
///
/// # Safety
/// As for [`of`].
unsafe fn takes_data<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex) -> bool {
    // SAFETY: the caller's promise.
    let building = unsafe {
        note_named::<T, SENDS>(qp);
        of(qp).1
    };
    if building.stage == Stage::None {
        building.fail(libc::EINVAL);
    }
    building.stage != Stage::None
}

/// `ibv_wr_set_sge_list`.
unsafe extern "C" fn set_sge_list<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_sge,
) {
    // SAFETY: the caller's queue pair, after start, and its list; what a program promises is what
    // it asks for.
    unsafe {
        let sge = |place| {
            let sge = *list.add(place);
            Sge::new(sge.addr, sge.length, sge.lkey)
        };
        let queue = straight::<T, SENDS>(qp);
        if !queue.is_some_and(|queue| queue.add_list(&of(qp).1.common, count, sge)) {
            note_list::<T, SENDS>(qp, count, list);
        }
    }
}

/// # Safety
/// As for [`set_sge_list`].
#[inline(never)]
unsafe fn note_list<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_sge,
) {
    // SAFETY: the caller's queue pair, after start.
    let (takes_data, building) = unsafe { (takes_data::<T, SENDS>(qp), of(qp).1) };
    if !takes_data {
        return;
    }
    let length = count.min(c_int::MAX as usize) as c_int;
    // SAFETY: the caller's list.
    match unsafe { post::converted(&mut building.sges, list, length) } {
        Ok(_) => {
            (building.count, building.stage) = (count, Stage::List);
        }
        Err(reason) => building.fail(errno(reason)),
    }
}

/// Copies inline data and records it.
///
/// # Safety
/// As for [`of`]; the buffers are readable.
#[inline(always)]
unsafe fn set_inline<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    buffers: impl Iterator<Item = (*const u8, usize)>,
) {
    // SAFETY: the caller's promise.
    let (takes_data, building) = unsafe { (takes_data::<T, SENDS>(qp), of(qp).1) };
    if !takes_data {
        return;
    }
    let is_usual = building.usual.kind.is_usual();
    if !is_usual && matches!(building.operation, RunTimeOperation::Segmented { .. }) {
        return building.fail(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    if !unsafe { building.copy(buffers) } {
        return building.fail(libc::ENOMEM);
    }
    building.stage = Stage::Copied;
}

/// `ibv_wr_set_inline_data`.
unsafe extern "C" fn set_inline_data<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    address: *mut c_void,
    length: usize,
) {
    let start = address.cast_const().cast();
    // SAFETY: the caller's queue pair, after start; the bytes are the program's.
    unsafe {
        let queue = straight::<T, SENDS>(qp);
        if !queue.is_some_and(|queue| queue.add_short(&of(qp).1.common, start, length)) {
            set_long::<T, SENDS>(qp, start, length);
        }
    }
}

/// [`set_inline_data`] of data that needs more than one block.
///
/// # Safety
/// As there.
#[inline(never)]
unsafe extern "C" fn set_long<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    start: *const u8,
    length: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let queue = straight::<T, SENDS>(qp);
        if !queue.is_some_and(|queue| queue.add_inline(&of(qp).1.common, start, length)) {
            note_inline::<T, SENDS>(qp, start, length);
        }
    }
}

/// # Safety
/// As for [`set_inline`].
#[inline(never)]
unsafe extern "C" fn note_inline<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    start: *const u8,
    length: usize,
) {
    // SAFETY: the caller's promise.
    unsafe { set_inline::<T, SENDS>(qp, std::iter::once((start, length))) };
}

/// `ibv_wr_set_inline_data_list`.
unsafe extern "C" fn set_inline_data_list<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: the caller's queue pair, after start, its list, and the bytes that it names.
    unsafe {
        let buffers = (0..count).map(|place| {
            let buffer = *list.add(place);
            (buffer.addr.cast_const().cast(), buffer.length)
        });
        set_inline::<T, SENDS>(qp, buffers);
    }
}
