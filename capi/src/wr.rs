//! `ibv_wr_…`: requests built by calls and posted together.
//!
//! A request is noted as the program's calls name it, and is whole when the next one begins or when
//! the program completes. A single request is then posted as `ibv_post_send` posts it, with one
//! doorbell that may carry it. Several are built into a batch. A failure is kept until
//! `ibv_wr_complete`, which then posts nothing: the batch is given up as a whole, and nothing that
//! was posted before is touched.
//!
//! The functions are made for each type of queue pair: no call looks its type up.

use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, transmute};

use uverbs::op::{CompareSwap, FetchAdd};
use uverbs::qp::{PostError, RunTimeDestination, RunTimeOperation, SendRequest};
use uverbs::qp_type::{QpType, QueuePairType, Rc};
use uverbs::raw::Batch;
use uverbs::{DatagramAddress, Remote, Sge};
use uverbs_mlx5::mmio::BlueFlame;
use uverbs_mlx5::send_queue::SendQueue;

use crate::abi::*;
use crate::ah::Ah;
use crate::post::{self, MOST_SGE, bytes, immediate, offload};
use crate::qp::Qp;
use crate::window;

/// Space for a `Batch` of any transport.
type Space = [MaybeUninit<u64>; 32];

/// No shared receive queue was named: numbers have 24 bits.
const NO_SRQ: u32 = u32::MAX;
/// Most inline data of a request (`INLINE_LENGTH_MASK` has ten bits).
const MOST_INLINE: usize = 1024;

/// How much of a request was named.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Stage {
    /// Nothing.
    None,
    /// The operation.
    Named,
    /// The operation and one SGE.
    One,
    /// The operation and data that was copied.
    Copied,
    /// The operation and a list of SGEs.
    List,
}

/// Requests that are being built between start and complete or abort.
pub(crate) struct Building {
    error: c_int,
    stage: Stage,
    has_batch: bool,
    flags: u32,
    srqn: u32,
    wr_id: u64,
    operation: RunTimeOperation<'static>,
    address: Option<DatagramAddress>,
    count: usize,
    sges: [Sge; MOST_SGE],
    /// Inline data, or the header of packets to be cut up: the program may use its buffers again.
    copied: [u8; MOST_INLINE],
    /// A `Batch` of the queue pair's type, if `has_batch`. It borrows the send queue, whose lock is
    /// held.
    batch: MaybeUninit<Aligned>,
}

#[repr(align(64))]
struct Aligned(#[allow(dead_code, reason = "room")] Space);

impl Default for Building {
    fn default() -> Self {
        Self {
            error: 0,
            stage: Stage::None,
            has_batch: false,
            flags: 0,
            srqn: NO_SRQ,
            wr_id: 0,
            operation: RunTimeOperation::Send,
            address: None,
            count: 0,
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
    }

    /// Copies inline data, and notes where it is now. `false` if it is more than any request has.
    ///
    /// # Safety
    /// The buffers are readable.
    #[inline(always)]
    unsafe fn copy(&mut self, buffers: impl Iterator<Item = (*const u8, usize)>) -> bool {
        let mut length = 0;
        for (start, size) in buffers {
            let Some(to) = self.copied.get_mut(length..).and_then(|rest| rest.get_mut(..size))
            else {
                return false;
            };
            // SAFETY: the caller's promise.
            to.copy_from_slice(unsafe { bytes(start, size) });
            length += size;
        }
        let address = self.copied.as_ptr().expose_provenance() as u64;
        self.sges[0] = Sge::new(address, length as u32, 0);
        self.count = 1;
        true
    }

    /// Where the request goes; `None` if the program did not say.
    #[inline(always)]
    fn destination<T: QueuePairType>(&self) -> Option<RunTimeDestination<'_>> {
        match T::TYPE {
            QpType::Ud => self.address.as_ref().map(RunTimeDestination::Datagram),
            QpType::XrcSend if self.srqn != NO_SRQ => Some(RunTimeDestination::Xrc(self.srqn)),
            // Windows belong to this side.
            QpType::XrcSend if is_of_windows(&self.operation) => {
                Some(RunTimeDestination::Connected)
            }
            QpType::XrcSend => None,
            _ => Some(RunTimeDestination::Connected),
        }
    }

    /// The request that was named, but for its data.
    #[inline(always)]
    fn request<'a, T: QueuePairType>(
        &'a self,
        operation: RunTimeOperation<'a>,
    ) -> Result<SendRequest<'a>, PostError> {
        let destination = self.destination::<T>().ok_or(PostError::BadDestination)?;
        let (wr_id, flags) = (self.wr_id, post::flags(self.flags));
        Ok(SendRequest { wr_id, operation, destination, flags, inline: false, data: &[] })
    }

    /// The request that was named, of whatever form.
    fn any_request<T: QueuePairType>(
        &mut self,
        stage: Stage,
    ) -> Result<SendRequest<'_>, PostError> {
        let is_atomic = matches!(
            self.operation,
            RunTimeOperation::CompareSwap(_) | RunTimeOperation::FetchAdd(_)
        );
        if is_atomic && self.count == 1 {
            // libmlx5 takes any length for the result of an atomic, which is always 8 bytes.
            self.sges[0] = self.sges[0].with_length(8);
        }
        let count = if stage == Stage::Named { 0 } else { self.count };
        let data = self.sges.get(..count).unwrap_or_default();
        let inline = stage == Stage::Copied;
        Ok(SendRequest { inline, data, ..self.request::<T>(self.operation)? })
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
unsafe fn queue<T: QueuePairType, const SENDS: bool>(
    qp: &Qp,
) -> Option<&mut SendQueue<T, BlueFlame>> {
    if !SENDS {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe { post::sends::<T>(qp) }
}

/// Notes an operation, with what the program wrote into the `ibv_qp_ex`.
///
/// # Safety
/// As for [`of`].
#[inline(always)]
unsafe fn begin<T: QueuePairType, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    operation: RunTimeOperation<'static>,
) {
    // SAFETY: the caller's promise.
    let (queue_pair, building) = unsafe { of(qp) };
    if building.stage != Stage::None {
        // SAFETY: the caller's promise.
        unsafe { finish::<T, SENDS>(queue_pair, building) };
    }
    // SAFETY: the caller's promise.
    (building.wr_id, building.flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
    building.operation = operation;
    building.stage = Stage::Named;
    match T::TYPE {
        QpType::Ud => building.address = None,
        QpType::XrcSend => building.srqn = NO_SRQ,
        _ => {}
    }
}

/// Builds the request that was named behind those before it.
///
/// # Safety
/// As for [`of`], and the queue pair is of type `T`.
#[inline(never)]
unsafe fn finish<T: QueuePairType, const SENDS: bool>(qp: &Qp, building: &mut Building) {
    if building.error == 0 && !building.has_batch {
        // SAFETY: the caller's promise. An error is noted if it cannot begin.
        unsafe { begin_batch::<T, SENDS>(qp, building) };
    }
    if building.error != 0 {
        building.stage = Stage::None;
        return;
    }
    let stage = std::mem::replace(&mut building.stage, Stage::None);
    let batch = building.batch.as_mut_ptr().cast::<Batch<'static, T, BlueFlame>>();
    // SAFETY: there is a batch of this type, which nothing else uses, and which is no part of what
    // the request is read from; what a program promises is what it asks for.
    let posted = unsafe {
        match (stage, post::usual_of(building.operation)) {
            (Stage::One, Some(operation)) => building.request::<T>(operation).and_then(|request| {
                let data = [building.sges[0]];
                (*batch).build_request(&SendRequest { inline: false, data: &data, ..request })
            }),
            _ => finish_any::<T>(building, stage, batch),
        }
    };
    if let Err(reason) = posted {
        building.fail(errno(reason));
    }
}

/// # Safety
/// As for [`finish`]; `batch` is what is being built.
#[inline(never)]
unsafe fn finish_any<T: QueuePairType>(
    building: &mut Building,
    stage: Stage,
    batch: *mut Batch<'static, T, BlueFlame>,
) -> Result<(), PostError> {
    let request = building.any_request::<T>(stage)?;
    // SAFETY: the caller's promise; the request is read from other parts than the batch.
    unsafe { (*batch).build_request(&request) }
}

/// Begins a batch. `false`, and an error is noted, if the queue pair cannot send now.
///
/// # Safety
/// As for [`finish`].
unsafe fn begin_batch<T: QueuePairType, const SENDS: bool>(
    qp: &Qp,
    building: &mut Building,
) -> bool {
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
    true
}

/// Takes the batch, if there is one.
///
/// # Safety
/// What is being built is for a queue pair of type `T`.
unsafe fn take<T: QueuePairType>(building: &mut Building) -> Option<Batch<'static, T, BlueFlame>> {
    // SAFETY: there is a batch of this type, which is not used again.
    std::mem::take(&mut building.has_batch)
        .then(|| unsafe { building.batch.as_ptr().cast::<Batch<'static, T, BlueFlame>>().read() })
}

/// Gives up what was built.
///
/// # Safety
/// As for [`take`].
pub(crate) unsafe fn abort<T: QueuePairType>(building: &mut Building) {
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
    building.has_batch = false;
}

/// `ibv_wr_complete`: posts everything, or nothing and the first error.
unsafe extern "C" fn complete<T: QueuePairType, const SENDS: bool>(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller's queue pair, after start.
    unsafe {
        let (queue_pair, building) = of(qp);
        let is_first = !building.has_batch && building.error == 0;
        let errno = match building.stage {
            Stage::One if is_first => complete_one::<T, SENDS>(queue_pair, building),
            Stage::Copied if is_first => complete_copied::<T, SENDS>(queue_pair, building),
            _ => complete_any::<T, SENDS>(queue_pair, building),
        };
        queue_pair.send_lock.release_kept();
        errno
    }
}

/// Posts the only request.
///
/// # Safety
/// As for [`finish`].
#[inline(always)]
unsafe fn complete_one<T: QueuePairType, const SENDS: bool>(
    qp: &Qp,
    building: &mut Building,
) -> c_int {
    // SAFETY: the caller's promise.
    let queue = unsafe { queue::<T, SENDS>(qp) };
    let (Some(operation), Some(queue)) = (post::usual_of(building.operation), queue) else {
        // SAFETY: the caller's promise.
        return unsafe { complete_any::<T, SENDS>(qp, building) };
    };
    let data = [building.sges[0]];
    let posted = building.request::<T>(operation).and_then(|request| {
        // SAFETY: what a program promises is what it asks for.
        unsafe { queue.post_request(&SendRequest { inline: false, data: &data, ..request }) }
    });
    posted.map_or_else(errno, |()| 0)
}

/// Posts the only request, whose data was copied.
///
/// # Safety
/// As for [`finish`].
#[inline(never)]
unsafe fn complete_copied<T: QueuePairType, const SENDS: bool>(
    qp: &Qp,
    building: &mut Building,
) -> c_int {
    // SAFETY: the caller's promise.
    let queue = unsafe { queue::<T, SENDS>(qp) };
    let (Some(operation), Some(queue)) = (post::usual_of(building.operation), queue) else {
        // SAFETY: the caller's promise.
        return unsafe { complete_any::<T, SENDS>(qp, building) };
    };
    let data = [building.sges[0]];
    let posted = building.request::<T>(operation).and_then(|request| {
        // SAFETY: what a program promises is what it asks for.
        unsafe { queue.post_inline(&SendRequest { data: &data, ..request }) }
    });
    posted.map_or_else(errno, |()| 0)
}

/// Posts a batch, a request of another form, or nothing.
///
/// # Safety
/// As for [`finish`].
#[inline(never)]
unsafe fn complete_any<T: QueuePairType, const SENDS: bool>(
    qp: &Qp,
    building: &mut Building,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if !building.has_batch && building.error == 0 && building.stage != Stage::None {
            let stage = std::mem::replace(&mut building.stage, Stage::None);
            let Some(queue) = queue::<T, SENDS>(qp) else { return libc::EINVAL };
            let posted = building.any_request::<T>(stage);
            let posted = posted.and_then(|request| queue.post_request(&request));
            return posted.map_or_else(errno, |()| 0);
        }
        if building.stage != Stage::None {
            finish::<T, SENDS>(qp, building);
        } else if !building.has_batch && building.error == 0 {
            // Nothing to post; a queue pair that cannot send says so all the same.
            begin_batch::<T, SENDS>(qp, building);
        }
        if let Some(batch) = take::<T>(building) {
            if building.error == 0 {
                batch.publish();
            } else {
                batch.abort();
            }
        }
    }
    building.error
}

/// `ibv_wr_abort`.
unsafe extern "C" fn give_up<T: QueuePairType>(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's queue pair, after start.
    unsafe {
        let (queue_pair, building) = of(qp);
        abort::<T>(building);
        queue_pair.send_lock.release_kept();
    }
}

/// The part of an `ibv_qp_ex` that programs call, all of it.
pub(crate) fn table<T: QueuePairType>(base: ibv_qp) -> ibv_qp_ex {
    table_with::<T, true>(base)
}

/// That of a queue pair that does not send.
pub(crate) fn table_of_none(base: ibv_qp) -> ibv_qp_ex {
    table_with::<Rc, false>(base)
}

fn table_with<T: QueuePairType, const SENDS: bool>(qp_base: ibv_qp) -> ibv_qp_ex {
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
        wr_set_inline_data: set_inline_data,
        wr_set_inline_data_list: set_inline_data_list,
        wr_set_sge: set_sge,
        wr_set_sge_list: set_sge_list,
        wr_start: start,
        wr_complete: complete::<T, SENDS>,
        wr_abort: give_up::<T>,
        wr_atomic_write: atomic_write,
        wr_flush: flush,
    }
}

/// The operations that only note themselves.
macro_rules! operations {
    ($( $(#[$meta:meta])* $name:ident($($argument:ident: $type:ty),*) = $operation:expr; )*) => {$(
        $(#[$meta])*
        unsafe extern "C" fn $name<T: QueuePairType, const SENDS: bool>(
            qp: *mut ibv_qp_ex $(, $argument: $type)*
        ) {
            // SAFETY: the caller's queue pair, after start.
            unsafe { begin::<T, SENDS>(qp, $operation) };
        }
    )*};
}

operations! {
    /// `ibv_wr_rdma_write`.
    rdma_write(rkey: u32, address: u64) = RunTimeOperation::Write(Remote::new(address, rkey));
    /// `ibv_wr_rdma_write_imm`.
    rdma_write_imm(rkey: u32, address: u64, data: u32) =
        RunTimeOperation::WriteImmediate(Remote::new(address, rkey), immediate(data));
    /// `ibv_wr_rdma_read`.
    rdma_read(rkey: u32, address: u64) = RunTimeOperation::Read(Remote::new(address, rkey));
    /// `ibv_wr_send_imm`.
    send_imm(data: u32) = RunTimeOperation::SendImmediate(immediate(data));
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

/// `ibv_wr_send`: on a raw packet queue pair, a frame.
unsafe extern "C" fn send<T: QueuePairType, const SENDS: bool>(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's queue pair, after start.
    unsafe {
        let operation = match T::TYPE {
            QpType::RawPacket => RunTimeOperation::Packet(offload((*qp).wr_flags)),
            _ => RunTimeOperation::Send,
        };
        begin::<T, SENDS>(qp, operation);
    }
}

/// `ibv_wr_send_tso`: the header is copied.
unsafe extern "C" fn send_tso<T: QueuePairType, const SENDS: bool>(
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
unsafe extern "C" fn bind_mw<T: QueuePairType, const SENDS: bool>(
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
    unsafe { of(qp) }.1.fail(libc::EOPNOTSUPP);
}

/// `ibv_wr_flush`: no mlx5 has it.
unsafe extern "C" fn flush(qp: *mut ibv_qp_ex, _: u32, _: u64, _: usize, _: u8, _: u8) {
    // SAFETY: the caller's queue pair, after start.
    unsafe { of(qp) }.1.fail(libc::EOPNOTSUPP);
}

/// `ibv_wr_set_ud_addr`.
unsafe extern "C" fn set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: the caller's queue pair, after start, and its address handle.
    unsafe { of(qp).1.address = Ah::datagram(ah, qpn, qkey) };
}

/// `ibv_wr_set_xrc_srqn`.
unsafe extern "C" fn set_xrc_srqn(qp: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: the caller's queue pair, after start.
    unsafe { of(qp) }.1.srqn = srqn;
}

/// `ibv_wr_set_sge`.
unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, address: u64, length: u32) {
    // SAFETY: the caller's queue pair, after start.
    let (_, building) = unsafe { of(qp) };
    building.sges[0] = Sge::new(address, length, lkey);
    building.count = 1;
    building.stage = Stage::One;
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
    if matches!(building.operation, RunTimeOperation::Segmented { .. }) {
        return building.fail(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    if !unsafe { building.copy(buffers) } {
        return building.fail(libc::ENOMEM);
    }
    building.stage = Stage::Copied;
}

/// `ibv_wr_set_inline_data`.
unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, address: *mut c_void, length: usize) {
    // SAFETY: the caller's queue pair, after start; the bytes are the program's.
    unsafe { set_inline(qp, std::iter::once((address.cast_const().cast(), length))) };
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
