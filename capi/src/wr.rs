//! `ibv_wr_…`: requests built by calls and posted together.
//!
//! An operation is noted when it is named, and built when its data is. A failure is kept until
//! `ibv_wr_complete`, which then posts nothing: the batch is given up as a whole, and nothing that
//! was posted before is touched.

use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, transmute};

use uverbs::op::{CompareSwap, FetchAdd};
use uverbs::qp::{PostError, RunTimeDestination, RunTimeOperation, SendRequest};
use uverbs::qp_type::{QpType, QueuePairType};
use uverbs::raw::Batch;
use uverbs::{DatagramAddress, Remote, Sge};
use uverbs_mlx5::mmio::BlueFlame;

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

/// Requests that are being built between start and complete or abort.
pub(crate) struct Building {
    /// A `Batch` of the queue pair's type, if `has_batch`. It borrows the send queue, whose lock is
    /// held.
    batch: MaybeUninit<Aligned>,
    has_batch: bool,
    error: c_int,
    wr_id: u64,
    flags: u32,
    operation: Option<RunTimeOperation<'static>>,
    address: Option<DatagramAddress>,
    srqn: u32,
    data: Data,
    /// Inline data that waits for a destination: the program may use its buffers again.
    copied: [u8; MOST_INLINE],
}

#[repr(align(64))]
struct Aligned(#[allow(dead_code, reason = "room")] Space);

/// The data of a request whose destination comes last.
#[allow(clippy::large_enum_variant, reason = "one per queue pair, and never moved")]
enum Data {
    None,
    /// SGEs, how many, and whether they are to be copied.
    List([Sge; MOST_SGE], usize, bool),
}

impl Default for Building {
    fn default() -> Self {
        Self {
            batch: MaybeUninit::uninit(),
            has_batch: false,
            error: 0,
            wr_id: 0,
            flags: 0,
            operation: None,
            address: None,
            srqn: NO_SRQ,
            data: Data::None,
            copied: [0; MOST_INLINE],
        }
    }
}

/// The functions that depend on a queue pair's type.
#[derive(Clone, Copy)]
pub(crate) struct Functions {
    start: unsafe fn(&Qp, &mut Building),
    build: unsafe fn(&mut Building, &[Sge], bool),
    publish: unsafe fn(&mut Building),
    abort: unsafe fn(&mut Building),
    /// Whether requests name a destination.
    addressed: bool,
}

impl Functions {
    /// Those of queue pairs of type `T`.
    pub(crate) const fn of<T: QueuePairType>() -> Self {
        Self {
            start: start_batch::<T>,
            build: build::<T>,
            publish: publish::<T>,
            abort: abort::<T>,
            addressed: matches!(T::TYPE, QpType::Ud | QpType::XrcSend),
        }
    }

    /// Those of queue pairs that do not send.
    pub(crate) const NONE: Self = Self {
        start: |_, building| building.error = libc::EINVAL,
        build: |_, _, _| {},
        publish: |_| {},
        abort: |_| {},
        addressed: false,
    };
}

/// # Safety
/// The queue pair is of type `T`, and the caller holds the lock of its sends.
unsafe fn start_batch<T: QueuePairType>(qp: &Qp, building: &mut Building) {
    const {
        assert!(size_of::<Batch<'static, T, BlueFlame>>() <= size_of::<Aligned>());
        assert!(align_of::<Batch<'static, T, BlueFlame>>() <= align_of::<Aligned>());
    }
    // SAFETY: the caller's promise.
    let Some(queue) = (unsafe { post::sends::<T>(qp) }) else {
        building.error = libc::EINVAL;
        return;
    };
    match queue.batch() {
        Ok(batch) => {
            // SAFETY: the batch borrows the send queue, which lives as long as the queue pair; the
            // lock is held until the batch is published or given up. The room was checked above.
            unsafe {
                let batch =
                    transmute::<Batch<'_, T, BlueFlame>, Batch<'static, T, BlueFlame>>(batch);
                building.batch.as_mut_ptr().cast::<Batch<'static, T, BlueFlame>>().write(batch);
            }
            building.has_batch = true;
        }
        Err(_) => building.error = libc::EINVAL,
    }
}

/// Builds the request whose operation was noted.
///
/// # Safety
/// As for [`start_batch`], with a batch; the memory that `data` names is a program's.
unsafe fn build<T: QueuePairType>(building: &mut Building, data: &[Sge], inline: bool) {
    if building.error != 0 {
        return;
    }
    let Some(operation) = building.operation.take() else {
        building.error = libc::EINVAL;
        return;
    };
    let destination = match T::TYPE {
        QpType::Ud => match &building.address {
            Some(address) => RunTimeDestination::Datagram(address),
            None => {
                building.error = libc::EINVAL;
                return;
            }
        },
        QpType::XrcSend => RunTimeDestination::Xrc(building.srqn),
        _ => RunTimeDestination::Connected,
    };
    let request = SendRequest {
        wr_id: building.wr_id,
        operation,
        destination,
        flags: post::flags(building.flags),
        inline,
        data,
    };
    // SAFETY: there is a batch of this type, which nothing else uses; what a program promises is
    // what it asks for.
    let posted = unsafe {
        (*building.batch.as_mut_ptr().cast::<Batch<'static, T, BlueFlame>>())
            .build_request(&request)
    };
    if let Err(reason) = posted {
        building.error = errno(reason);
    }
}

/// As for `ibv_post_send`, but that a queue pair before RTS is EINVAL here.
fn errno(reason: PostError) -> c_int {
    match reason {
        PostError::BadState => libc::EINVAL,
        reason => post::send_errno(reason),
    }
}

/// # Safety
/// As for [`build`].
unsafe fn publish<T: QueuePairType>(building: &mut Building) {
    // SAFETY: there is a batch of this type; it is not used again.
    unsafe { building.batch.as_ptr().cast::<Batch<'static, T, BlueFlame>>().read() }.publish();
}

/// # Safety
/// As for [`build`].
unsafe fn abort<T: QueuePairType>(building: &mut Building) {
    // SAFETY: there is a batch of this type; it is not used again.
    unsafe { building.batch.as_ptr().cast::<Batch<'static, T, BlueFlame>>().read() }.abort();
}

/// The part of an `ibv_qp_ex` that programs call, all of it.
pub(crate) fn table(qp_base: ibv_qp) -> ibv_qp_ex {
    ibv_qp_ex {
        qp_base,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp: atomic_cmp_swp,
        wr_atomic_fetch_add: atomic_fetch_add,
        wr_bind_mw: bind_mw,
        wr_local_inv: local_inv,
        wr_rdma_read: rdma_read,
        wr_rdma_write: rdma_write,
        wr_rdma_write_imm: rdma_write_imm,
        wr_send: send,
        wr_send_imm: send_imm,
        wr_send_inv: send_inv,
        wr_send_tso: send_tso,
        wr_set_ud_addr: set_ud_addr,
        wr_set_xrc_srqn: set_xrc_srqn,
        wr_set_inline_data: set_inline_data,
        wr_set_inline_data_list: set_inline_data_list,
        wr_set_sge: set_sge,
        wr_set_sge_list: set_sge_list,
        wr_start: start,
        wr_complete: complete,
        wr_abort: give_up,
        wr_atomic_write: atomic_write,
        wr_flush: flush,
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

/// Notes an operation, with what the program wrote into the `ibv_qp_ex`.
///
/// # Safety
/// As for [`of`].
#[inline(always)]
unsafe fn begin(qp: *mut ibv_qp_ex, operation: RunTimeOperation<'static>) {
    // SAFETY: the caller's promise.
    let ((queue_pair, building), wr_id, flags) = unsafe { (of(qp), (*qp).wr_id, (*qp).wr_flags) };
    // SAFETY: the lock is held.
    unsafe { finish(queue_pair, building) };
    building.wr_id = wr_id;
    building.flags = flags;
    building.operation = Some(operation);
    building.address = None;
    building.srqn = NO_SRQ;
    building.data = Data::None;
}

/// Builds a request that waits for a destination, or that has no data.
///
/// # Safety
/// As for [`of`].
#[inline(always)]
unsafe fn finish(qp: &Qp, building: &mut Building) {
    if building.operation.is_some() {
        // SAFETY: the caller's promise.
        unsafe { finish_waiting(qp, building) };
    }
}

#[cold]
unsafe fn finish_waiting(qp: &Qp, building: &mut Building) {
    // SAFETY: the caller's promise.
    unsafe {
        match std::mem::replace(&mut building.data, Data::None) {
            Data::None => (qp.send.wr.build)(building, &[], false),
            Data::List(list, count, inline) => {
                (qp.send.wr.build)(building, list.get(..count).unwrap_or_default(), inline);
            }
        }
    }
}

/// The data of a request is known: builds it, unless its destination may still come.
///
/// # Safety
/// As for [`of`].
#[inline(always)]
unsafe fn give(qp: *mut ibv_qp_ex, data: &[Sge], inline: bool) {
    // SAFETY: the caller's promise.
    let (queue_pair, building) = unsafe { of(qp) };
    let functions = &queue_pair.send.wr;
    if functions.addressed && !building.has_destination() {
        // SAFETY: the caller's promise.
        unsafe { building.keep(data, inline) };
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { (functions.build)(building, data, inline) };
}

impl Building {
    fn has_destination(&self) -> bool {
        self.address.is_some() || self.srqn != NO_SRQ
    }

    /// Keeps data until the destination comes.
    ///
    /// # Safety
    /// Inline data is readable.
    #[cold]
    unsafe fn keep(&mut self, data: &[Sge], inline: bool) {
        let mut list = [Sge::default(); MOST_SGE];
        if inline {
            // SAFETY: the caller's promise.
            let Some(length) = (unsafe { self.copy(data) }) else {
                self.error = libc::ENOMEM;
                return;
            };
            let address = self.copied.as_ptr().expose_provenance() as u64;
            list[0] = Sge::new(address, length as u32, 0);
            self.data = Data::List(list, 1, true);
            return;
        }
        let Some(used) = list.get_mut(..data.len()) else {
            self.error = libc::ENOMEM;
            return;
        };
        used.copy_from_slice(data);
        self.data = Data::List(list, data.len(), false);
    }

    /// Copies inline data; its length, or `None` if it is more than any request has.
    ///
    /// # Safety
    /// The data is readable.
    unsafe fn copy(&mut self, data: &[Sge]) -> Option<usize> {
        let mut length = 0;
        for sge in data {
            let start = std::ptr::with_exposed_provenance(sge.address() as usize);
            let to = self.copied.get_mut(length..)?.get_mut(..sge.length() as usize)?;
            // SAFETY: the caller's promise.
            to.copy_from_slice(unsafe { bytes(start, to.len()) });
            length += to.len();
        }
        Some(length)
    }
}

/// `ibv_wr_start`: holds the lock of the sends until complete or abort.
unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's queue pair.
    let queue_pair = unsafe { Qp::of(qp.cast()) };
    queue_pair.send_lock.acquire();
    queue_pair.send_lock.keep();
    // SAFETY: the lock is held.
    unsafe {
        let building = &mut *queue_pair.building.get();
        building.has_batch = false;
        building.error = 0;
        building.operation = None;
        building.data = Data::None;
        (queue_pair.send.wr.start)(queue_pair, building);
    }
}

/// `ibv_wr_complete`: posts everything, or nothing and the first error.
unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller's queue pair, after start.
    unsafe {
        let (queue_pair, building) = of(qp);
        finish(queue_pair, building);
        let errno = building.error;
        let end = if errno == 0 { queue_pair.send.wr.publish } else { queue_pair.send.wr.abort };
        if building.has_batch {
            end(building);
        }
        building.has_batch = false;
        queue_pair.send_lock.release_kept();
        errno
    }
}

/// `ibv_wr_abort`.
unsafe extern "C" fn give_up(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's queue pair, after start.
    unsafe {
        let (queue_pair, building) = of(qp);
        if building.has_batch {
            (queue_pair.send.wr.abort)(building);
        }
        building.has_batch = false;
        queue_pair.send_lock.release_kept();
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
        if building.has_batch {
            (queue_pair.send.wr.abort)(building);
        }
        building.has_batch = false;
        building.operation = None;
        building.error = libc::EINVAL;
    }
}

/// The operations that only note themselves.
macro_rules! operations {
    ($( $(#[$meta:meta])* $name:ident($($argument:ident: $type:ty),*) = $operation:expr; )*) => {$(
        $(#[$meta])*
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $argument: $type)*) {
            // SAFETY: the caller's queue pair, after start.
            unsafe { begin(qp, $operation) };
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
        RunTimeOperation::CompareSwap(CompareSwap { remote: Remote::new(address, rkey), compare, swap });
    /// `ibv_wr_atomic_fetch_add`.
    atomic_fetch_add(rkey: u32, address: u64, add: u64) =
        RunTimeOperation::FetchAdd(FetchAdd { remote: Remote::new(address, rkey), add });
    /// `ibv_wr_local_inv`, which has no data.
    local_inv(rkey: u32) = RunTimeOperation::LocalInvalidate(rkey);
}

/// `ibv_wr_send`: on a raw packet queue pair, a frame.
unsafe extern "C" fn send(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's queue pair, after start.
    unsafe {
        let is_frame = (*qp).qp_base.qp_type == QpType::RawPacket as u32;
        let operation = match is_frame {
            true => RunTimeOperation::Packet(offload((*qp).wr_flags)),
            false => RunTimeOperation::Send,
        };
        begin(qp, operation);
    }
}

/// `ibv_wr_send_tso`: the header stays as it is until the request has its data.
unsafe extern "C" fn send_tso(qp: *mut ibv_qp_ex, header: *mut c_void, length: u16, mss: u16) {
    // SAFETY: the caller's queue pair, after start, and its header.
    unsafe {
        let header = bytes(header.cast(), length.into());
        begin(qp, RunTimeOperation::Segmented { offload: offload((*qp).wr_flags), mss, header });
    }
}

/// `ibv_wr_bind_mw`.
unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: the caller's queue pair, after start, its window and struct.
    unsafe {
        match window::operation(&BindMw { mw, rkey, bind_info: *info }) {
            Ok(operation) => begin(qp, operation),
            Err(errno) => fail(qp, errno),
        }
    }
}

/// # Safety
/// As for [`of`].
#[cold]
unsafe fn fail(qp: *mut ibv_qp_ex, errno: c_int) {
    // SAFETY: the caller's promise.
    let (_, building) = unsafe { of(qp) };
    if building.error == 0 {
        building.error = errno;
    }
}

/// `ibv_wr_atomic_write`: no mlx5 has it.
unsafe extern "C" fn atomic_write(qp: *mut ibv_qp_ex, _: u32, _: u64, _: *const c_void) {
    // SAFETY: the caller's queue pair, after start.
    unsafe { fail(qp, libc::EOPNOTSUPP) };
}

/// `ibv_wr_flush`: no mlx5 has it.
unsafe extern "C" fn flush(qp: *mut ibv_qp_ex, _: u32, _: u64, _: usize, _: u8, _: u8) {
    // SAFETY: the caller's queue pair, after start.
    unsafe { fail(qp, libc::EOPNOTSUPP) };
}

/// `ibv_wr_set_ud_addr`.
unsafe extern "C" fn set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: the caller's queue pair, after start, and its address handle.
    unsafe {
        let (queue_pair, building) = of(qp);
        building.address = Ah::datagram(ah, qpn, qkey);
        if !matches!(building.data, Data::None) {
            finish(queue_pair, building);
        }
    }
}

/// `ibv_wr_set_xrc_srqn`.
unsafe extern "C" fn set_xrc_srqn(qp: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: the caller's queue pair, after start.
    unsafe {
        let (queue_pair, building) = of(qp);
        building.srqn = srqn;
        if !matches!(building.data, Data::None) {
            finish(queue_pair, building);
        }
    }
}

/// `ibv_wr_set_sge`.
unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, address: u64, length: u32) {
    // SAFETY: the caller's queue pair, after start.
    unsafe { give(qp, &[Sge::new(address, length, lkey)], false) };
}

/// `ibv_wr_set_sge_list`.
unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    let mut converted = [Sge::default(); MOST_SGE];
    let count = count.min(c_int::MAX as usize) as c_int;
    // SAFETY: the caller's queue pair, after start, and its list.
    unsafe {
        match post::converted(&mut converted, list, count) {
            Ok(data) => give(qp, data, false),
            Err(reason) => fail(qp, errno(reason)),
        }
    }
}

/// `ibv_wr_set_inline_data`.
unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, address: *mut c_void, length: usize) {
    let Ok(length) = u32::try_from(length) else {
        // SAFETY: the caller's queue pair, after start.
        return unsafe { fail(qp, libc::ENOMEM) };
    };
    let data = [Sge::new(address.expose_provenance() as u64, length, 0)];
    // SAFETY: the caller's queue pair, after start; the bytes are the program's.
    unsafe { give(qp, &data, true) };
}

/// `ibv_wr_set_inline_data_list`.
unsafe extern "C" fn set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    let mut data = [Sge::default(); MOST_SGE];
    let Some(used) = data.get_mut(..count) else {
        // SAFETY: the caller's queue pair, after start.
        return unsafe { fail(qp, libc::ENOMEM) };
    };
    for (place, to) in used.iter_mut().enumerate() {
        // SAFETY: the caller's list.
        let from = unsafe { *list.add(place) };
        let length = u32::try_from(from.length).unwrap_or(u32::MAX);
        *to = Sge::new(from.addr.expose_provenance() as u64, length, 0);
    }
    // SAFETY: the caller's queue pair, after start; the bytes are the program's.
    unsafe { give(qp, used, true) };
}
