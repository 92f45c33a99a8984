//! `ibv_wr_…`: requests built by calls and posted together.
//!
//! The first request is noted as the program's calls name it. If the program completes then, it is
//! posted as `ibv_post_send` posts it, with one doorbell that may carry it. Where a second one
//! begins, the first goes into a batch; the data of requests behind it goes from the call that sets
//! it into the ring, unless they name a peer or are unusual. A failure is kept until
//! `ibv_wr_complete`, which then posts nothing: the batch is given up as a whole, and nothing that
//! was posted before is touched.
//!
//! The functions are made for each type of queue pair: no call looks its type up.

use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, transmute};

use uverbs::op::{CompareSwap, FetchAdd};
use uverbs::qp::{PostError, RunTimeDestination, RunTimeOperation, SendRequest};
use uverbs::qp_type::{QpType, Rc};
use uverbs::raw::Batch;
use uverbs::{DatagramAddress, Remote, Sge};
use uverbs_mlx5::mmio::BlueFlame;
use uverbs_mlx5::send_queue::{Inline, Payload, SendQueue};

use crate::abi::*;
use crate::ah::Ah;
use crate::post::{self, MOST_SGE, bytes, immediate, offload};
use crate::qp::Qp;
use crate::usual::{Kind, MOST_INLINE, NO_SRQ, Posts, Usual};
use crate::window;

/// Space for a `Batch` of any transport.
type Space = [MaybeUninit<u64>; 32];

/// How much of a request was named.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Stage {
    /// Nothing.
    None,
    /// The operation, which is of the usual kind.
    Named,
    /// The operation, which is not.
    Other,
    /// The operation and one SGE.
    One,
    /// The operation and data that was copied.
    Copied,
    /// The operation and a list of SGEs.
    List,
}

/// What became of the requests before the one that is being named.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Before {
    /// There are none.
    None,
    /// They are in the batch.
    Batch,
    /// One could not be built.
    Failed,
}

/// Requests that are being built between start and complete or abort.
#[repr(C)]
pub(crate) struct Building {
    error: c_int,
    stage: Stage,
    before: Before,
    has_batch: bool,
    /// The request; `kind` says if it is `operation` instead.
    usual: Usual,
    srqn: u32,
    count: usize,
    operation: RunTimeOperation<'static>,
    address: Option<DatagramAddress>,
    sges: [Sge; MOST_SGE],
    /// Inline data, or the header of packets to be cut up: the program may use its buffers again.
    copied: [u8; MOST_INLINE],
    /// A `Batch` of the queue pair's type, if `has_batch`. It borrows the send queue, whose lock is
    /// held.
    batch: MaybeUninit<Aligned>,
}

#[repr(align(64))]
struct Aligned(#[allow(dead_code, reason = "its size is that of the largest batch")] Space);

impl Default for Building {
    fn default() -> Self {
        Self {
            error: 0,
            stage: Stage::None,
            before: Before::None,
            has_batch: false,
            usual: Usual::NONE,
            srqn: NO_SRQ,
            count: 0,
            operation: RunTimeOperation::Send,
            address: None,
            sges: [Sge::default(); MOST_SGE],
            copied: [0; MOST_INLINE],
            batch: MaybeUninit::uninit(),
        }
    }
}

impl Building {
    /// Notes the first error.
    #[cold]
    fn fail(&mut self, errno: c_int) {
        if self.error == 0 {
            self.error = errno;
        }
        self.before = Before::Failed;
    }

    /// Whether the request that was named goes into the batch as soon as its data is known.
    #[inline(always)]
    fn is_direct<T: Posts>(&self) -> bool {
        T::IS_CONNECTED && (self.before, self.stage) == (Before::Batch, Stage::Named)
    }

    /// Copies inline data, and notes where it is now. `false` if it is more than any request has.
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

    /// Where the request goes; `None` if the program did not say.
    fn destination<T: Posts>(
        &self,
        operation: &RunTimeOperation<'_>,
    ) -> Option<RunTimeDestination<'_>> {
        match T::TYPE {
            QpType::Ud => self.address.as_ref().map(RunTimeDestination::Datagram),
            QpType::DcInitiator => self.address.as_ref().map(RunTimeDestination::Dc),
            QpType::XrcSend if self.srqn != NO_SRQ => Some(RunTimeDestination::Xrc(self.srqn)),
            // Windows belong to this side.
            QpType::XrcSend if is_of_windows(operation) => Some(RunTimeDestination::Connected),
            QpType::XrcSend => None,
            _ => Some(RunTimeDestination::Connected),
        }
    }

    /// The request that was named, of whatever form.
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

/// Copies bytes: few of them by loads and stores of which the last two may overlap, since a call
/// would cost more than the copy.
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
#[allow(clippy::mut_from_ref, reason = "the lock of the sends is what makes it the only one")]
unsafe fn queue<T: Posts, const SENDS: bool>(qp: &Qp) -> Option<&mut SendQueue<T, BlueFlame>> {
    if !SENDS {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe { post::sends::<T>(qp) }
}

/// Notes a request of the usual kind, with what the program wrote into the `ibv_qp_ex`.
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
        if of(qp).1.stage != Stage::None {
            let Remote { address, rkey } = remote.unwrap_or_default();
            return begin_later::<T, SENDS>(qp, opcode, immediate, rkey, address);
        }
        note::<T>(qp, Kind::of::<T>(opcode), immediate, remote);
    }
}

/// [`begin_usual`] behind a request that is not in the batch yet.
///
/// # Safety
/// As for [`of`].
#[inline(never)]
unsafe extern "C" fn begin_later<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    opcode: u32,
    immediate: u32,
    rkey: u32,
    address: u64,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let (queue_pair, building) = of(qp);
        finish::<T, SENDS>(queue_pair, building);
        note::<T>(qp, Kind::of::<T>(opcode), immediate, Some(Remote::new(address, rkey)));
    }
}

/// # Safety
/// As for [`of`].
#[inline(always)]
unsafe fn note<T: Posts>(qp: *mut ibv_qp_ex, kind: Kind, immediate: u32, remote: Option<Remote>) {
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
    match T::TYPE {
        QpType::Ud | QpType::DcInitiator => building.address = None,
        QpType::XrcSend => building.srqn = NO_SRQ,
        _ => {}
    }
}

/// Notes any other operation.
///
/// # Safety
/// As for [`of`].
unsafe fn begin<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    operation: RunTimeOperation<'static>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let (queue_pair, building) = of(qp);
        if building.stage != Stage::None {
            finish::<T, SENDS>(queue_pair, building);
        }
        note::<T>(qp, Kind::UNUSUAL, 0, None);
        of(qp).1.operation = operation;
    }
}

/// The batch that is being built.
///
/// # Safety
/// There is one, of type `T`, and nothing else uses it.
#[inline(always)]
unsafe fn batch<T: Posts>(building: &mut Building) -> &mut Batch<'static, T, BlueFlame> {
    // SAFETY: the caller's promise.
    unsafe { &mut *building.batch.as_mut_ptr().cast() }
}

/// Builds the request that was named behind those before it.
///
/// # Safety
/// As for [`of`], and the queue pair is of type `T`.
#[inline(never)]
unsafe fn finish<T: Posts, const SENDS: bool>(qp: &Qp, building: &mut Building) {
    if building.before == Before::None {
        // SAFETY: the caller's promise. An error is noted if it cannot begin.
        unsafe { begin_batch::<T, SENDS>(qp, building) };
    }
    let stage = std::mem::replace(&mut building.stage, Stage::None);
    if building.before == Before::Failed {
        return;
    }
    if stage == Stage::One && building.usual.kind.is_usual() {
        let (usual, sge) = (building.usual, building.sges[0]);
        let batch = building.batch.as_mut_ptr().cast::<Batch<'static, T, BlueFlame>>();
        if let Some(peer) = T::of_setters(&building.address, building.srqn) {
            // SAFETY: there is a batch of this type, of which the peer is no part; what a program
            // promises is what it asks for.
            if unsafe { usual.build(&mut *batch, peer, sge) } {
                return;
            }
        }
    }
    // SAFETY: there is a batch of this type.
    if let Err(reason) = unsafe { finish_any::<T>(building, stage) } {
        building.fail(errno(reason));
    }
}

/// # Safety
/// As for [`finish`]; there is a batch.
#[inline(never)]
unsafe fn finish_any<T: Posts>(building: &mut Building, stage: Stage) -> Result<(), PostError> {
    let batch = building.batch.as_mut_ptr().cast::<Batch<'static, T, BlueFlame>>();
    let request = building.any_request::<T>(stage)?;
    // SAFETY: the caller's promise; the request is read from other parts than the batch.
    unsafe { (*batch).build_request(&request) }
}

/// Begins a batch. `false`, and an error is noted, if the queue pair cannot send now.
///
/// # Safety
/// As for [`finish`].
unsafe fn begin_batch<T: Posts, const SENDS: bool>(qp: &Qp, building: &mut Building) -> bool {
    const {
        assert!(size_of::<Batch<'static, T, BlueFlame>>() <= size_of::<Aligned>());
        assert!(align_of::<Batch<'static, T, BlueFlame>>() <= align_of::<Aligned>());
    }
    // SAFETY: the caller's promise.
    let batch = unsafe { queue::<T, SENDS>(qp) }.map(SendQueue::batch);
    let Some(Ok(batch)) = batch else {
        building.fail(libc::EINVAL);
        return false;
    };
    // SAFETY: the batch borrows the send queue, which lives as long as the queue pair; the lock is
    // held until the batch is published or given up. The room was checked above.
    unsafe {
        let batch = transmute::<Batch<'_, T, BlueFlame>, Batch<'static, T, BlueFlame>>(batch);
        building.batch.as_mut_ptr().cast::<Batch<'static, T, BlueFlame>>().write(batch);
    }
    building.has_batch = true;
    building.before = Before::Batch;
    true
}

/// Takes the batch, if there is one.
///
/// # Safety
/// What is being built is for a queue pair of type `T`.
unsafe fn take<T: Posts>(building: &mut Building) -> Option<Batch<'static, T, BlueFlame>> {
    // SAFETY: there is a batch of this type, which is not used again.
    std::mem::take(&mut building.has_batch)
        .then(|| unsafe { building.batch.as_ptr().cast::<Batch<'static, T, BlueFlame>>().read() })
}

/// Gives up what was built.
///
/// # Safety
/// As for [`take`].
pub(crate) unsafe fn abort<T: Posts>(building: &mut Building) {
    building.stage = Stage::None;
    // SAFETY: the caller's promise.
    if let Some(batch) = unsafe { take::<T>(building) } {
        batch.abort();
    }
}

/// Gives up what this thread is building because the queue pair is reset: `ibv_wr_complete` will
/// say EINVAL.
///
/// # Safety
/// The calling thread is between start and complete.
pub(crate) unsafe fn give_up_for_reset(queue_pair: &Qp) {
    // SAFETY: the caller's promise: no other thread builds requests.
    unsafe {
        let building = &mut *queue_pair.building.get();
        (queue_pair.send.abort)(building);
        building.error = libc::EINVAL;
        building.before = Before::Failed;
    }
}

/// `ibv_wr_start`: holds the lock of the sends until complete or abort.
unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's queue pair.
    let queue_pair = unsafe { Qp::of(qp.cast()) };
    queue_pair.send_lock.acquire();
    queue_pair.send_lock.keep();
    // SAFETY: the lock is held.
    let building = unsafe { &mut *queue_pair.building.get() };
    building.error = 0;
    building.stage = Stage::None;
    building.before = Before::None;
    building.has_batch = false;
}

/// `ibv_wr_complete`: posts everything, or nothing and the first error.
unsafe extern "C" fn complete<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller's queue pair, after start.
    unsafe {
        let (queue_pair, building) = of(qp);
        let kind = building.usual.kind;
        if (building.before, building.stage) == (Before::None, Stage::One) && kind.is_usual() {
            if post_one::<T, SENDS>(queue_pair, building.sges[0]) {
                queue_pair.send_lock.release_kept();
                return 0;
            }
        } else if (building.before, building.stage) == (Before::None, Stage::Copied)
            && kind.takes_inline()
        {
            return complete_copied::<T, SENDS>(qp);
        }
        complete_any::<T, SENDS>(qp)
    }
}

/// [`complete`] of one request, whose data was copied.
///
/// # Safety
/// As for [`complete`].
#[inline(never)]
unsafe extern "C" fn complete_copied<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller's promise; as many bytes were copied, into a place that holds them.
    unsafe {
        let (queue_pair, building) = of(qp);
        let data = building.copied.get_unchecked(..building.count);
        if post_one::<T, SENDS>(queue_pair, Inline(data)) {
            queue_pair.send_lock.release_kept();
            return 0;
        }
        complete_any::<T, SENDS>(qp)
    }
}

/// Posts the only request, if it can be posted at once.
///
/// # Safety
/// As for [`complete`].
#[inline(always)]
unsafe fn post_one<T: Posts, const SENDS: bool>(qp: &Qp, payload: impl Payload) -> bool {
    // SAFETY: the caller's promise; what is being built is no part of the queue.
    let (queue, building) = unsafe { (queue::<T, SENDS>(qp), &*qp.building.get()) };
    let peer = T::of_setters(&building.address, building.srqn);
    let (Some(queue), Some(peer)) = (queue, peer) else { return false };
    // SAFETY: what a program promises is what it asks for.
    unsafe { building.usual.build(queue, peer, payload) }
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
        let errno = post_all::<T, SENDS>(queue_pair, building);
        queue_pair.send_lock.release_kept();
        errno
    }
}

/// Posts a batch, a request of another form, or nothing.
///
/// # Safety
/// As for [`finish`].
#[inline(always)]
unsafe fn post_all<T: Posts, const SENDS: bool>(qp: &Qp, building: &mut Building) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if building.before == Before::None && building.stage != Stage::None {
            let stage = std::mem::replace(&mut building.stage, Stage::None);
            let Some(queue) = queue::<T, SENDS>(qp) else { return libc::EINVAL };
            let posted = building.any_request::<T>(stage);
            let posted = posted.and_then(|request| queue.post_request(&request));
            return posted.map_or_else(errno, |()| 0);
        }
        if building.stage != Stage::None {
            finish::<T, SENDS>(qp, building);
        } else if building.before == Before::None {
            // Nothing to post; a queue pair that cannot send says so all the same.
            begin_batch::<T, SENDS>(qp, building);
        }
        if let Some(batch) = take::<T>(building) {
            if building.before == Before::Batch {
                batch.publish();
            } else {
                batch.abort();
            }
        }
    }
    building.error
}

/// `ibv_wr_abort`.
unsafe extern "C" fn give_up<T: Posts>(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's queue pair, after start.
    unsafe {
        let (queue_pair, building) = of(qp);
        abort::<T>(building);
        queue_pair.send_lock.release_kept();
    }
}

/// The part of an `ibv_qp_ex` that programs call, all of it.
pub(crate) fn table<T: Posts>(base: ibv_qp) -> ibv_qp_ex {
    table_with::<T, true>(base)
}

/// That of a queue pair that does not send.
pub(crate) fn table_of_none(base: ibv_qp) -> ibv_qp_ex {
    table_with::<Rc, false>(base)
}

fn table_with<T: Posts, const SENDS: bool>(qp_base: ibv_qp) -> ibv_qp_ex {
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
        wr_set_inline_data_list: set_inline_data_list,
        wr_set_sge: set_sge::<T, SENDS>,
        wr_set_sge_list: set_sge_list,
        wr_start: start,
        wr_complete: complete::<T, SENDS>,
        wr_abort: give_up::<T>,
        wr_atomic_write: atomic_write,
        wr_flush: flush,
    }
}

/// A request that the program has encoded itself, behind those before it.
///
/// # Safety
/// As for [`of`], and the queue pair is of type `T`.
pub(crate) unsafe fn encoded<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex, wqe: &[u8]) {
    // SAFETY: the caller's promise; what a program promises is what the batch asks for.
    unsafe {
        let (queue_pair, building) = of(qp);
        if building.stage != Stage::None {
            finish::<T, SENDS>(queue_pair, building);
        } else if building.before == Before::None {
            begin_batch::<T, SENDS>(queue_pair, building);
        }
        if building.before == Before::Batch {
            let built = batch::<T>(building).build_encoded((*qp).wr_id, wqe);
            built.unwrap_or_else(|reason| building.fail(errno(reason)));
        }
    }
}

/// What no device here has: nothing is posted, and `ibv_wr_complete` says EOPNOTSUPP.
///
/// # Safety
/// As for [`of`].
pub(crate) unsafe fn lacking(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    unsafe { of(qp) }.1.fail(libc::EOPNOTSUPP);
}

/// The operations that only note themselves.
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

/// Operations of the usual kind, but where the type of queue pair does not have them: they are
/// noted as they are then, and refused when the request is built.
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
        // What is being built stays where it is as long as the queue pair lives.
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
    // SAFETY: the caller's queue pair, after start.
    let (_, building) = unsafe { of(qp) };
    let sge = Sge::new(address, length, lkey);
    // SAFETY: there is a batch; what a program promises is what it asks for.
    if SENDS && building.is_direct::<T>() && unsafe { build_now::<T>(building, sge) } {
        return;
    }
    building.sges[0] = sge;
    building.count = 1;
    building.stage = Stage::One;
}

/// Builds the request that was named behind those in the batch, if it can be built at once.
///
/// # Safety
/// As for [`of`]; [`Building::is_direct`].
#[inline(always)]
unsafe fn build_now<T: Posts>(building: &mut Building, payload: impl Payload) -> bool {
    let usual = building.usual;
    let Some(peer) = T::of_setters(&None, NO_SRQ) else { return false };
    // SAFETY: the caller's promise; `peer` is that of a connected queue pair, which holds nothing.
    let built = unsafe { usual.build(batch::<T>(building), peer, payload) };
    if built {
        building.stage = Stage::None;
    }
    built
}

/// `ibv_wr_set_sge_list`.
unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: the caller's queue pair, after start.
    let (_, building) = unsafe { of(qp) };
    let length = count.min(c_int::MAX as usize) as c_int;
    // SAFETY: the caller's list.
    match unsafe { post::converted(&mut building.sges, list, length) } {
        Ok(_) => {
            (building.count, building.stage) = (count, Stage::List);
        }
        Err(reason) => building.fail(errno(reason)),
    }
}

/// Notes data that is copied.
///
/// # Safety
/// As for [`of`]; the buffers are readable.
#[inline(always)]
unsafe fn set_inline(qp: *mut ibv_qp_ex, buffers: impl Iterator<Item = (*const u8, usize)>) {
    // SAFETY: the caller's promise.
    let (_, building) = unsafe { of(qp) };
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
        let (_, building) = of(qp);
        let is_direct = SENDS && building.is_direct::<T>() && building.usual.kind.takes_inline();
        let is_direct = is_direct && length <= MOST_INLINE;
        if !(is_direct && build_now::<T>(building, Inline(bytes(start, length)))) {
            note_inline(qp, start, length);
        }
    }
}

/// # Safety
/// As for [`set_inline`].
#[inline(never)]
unsafe extern "C" fn note_inline(qp: *mut ibv_qp_ex, start: *const u8, length: usize) {
    // SAFETY: the caller's promise.
    unsafe { set_inline(qp, std::iter::once((start, length))) };
}

/// `ibv_wr_set_inline_data_list`.
unsafe extern "C" fn set_inline_data_list(
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
        set_inline(qp, buffers);
    }
}
