//! The calls that begin a request: `ibv_wr_send`, `ibv_wr_rdma_write` and so on.
//!
//! A call of a usual kind stores the request's header in the ring ([`begin_usual`]). All others
//! record the operation ([`begin`]).

use std::ffi::c_void;

use uverbs::Remote;
use uverbs::op::{CompareSwap, FetchAdd};
use uverbs::qp::RunTimeOperation;
use uverbs::qp_type::QpType;
use uverbs_mlx5::format::{AtomicSegment, Opcode, U32};
use uverbs_mlx5::send_queue::Header;

use super::*;
use crate::forms::forms;
use crate::post::{immediate, offload};
use crate::usual::Kind;
use crate::window;

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
        begin_recorded::<T, SENDS>(qp, rkey, address, opcode, immediate);
    }
}

/// The header of a request of a usual kind. The rest of it is what the program wrote into the
/// `ibv_qp_ex`.
#[derive(Clone, Copy)]
struct InCalls {
    qp: *const ibv_qp_ex,
    kind: Kind,
    immediate: u32,
    remote: Remote,
    operands: Option<AtomicSegment>,
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
    fn operands(&self) -> Option<AtomicSegment> {
        self.operands
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
    // SAFETY: the caller's promise.
    unsafe { name_header::<T, SENDS>(qp, InCalls { qp, kind, immediate, remote, operands: None }) }
}

/// [`name`] of a request with this header.
///
/// # Safety
/// As for [`name`]; the kind is of the queue's service.
#[inline(always)]
unsafe fn name_header<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex, header: InCalls) -> bool {
    // SAFETY: the caller's promise: the steps were begun.
    unsafe {
        let Some(queue) = queue::<T, SENDS>(qp) else { return false };
        let Building { steps, common, .. } = of(qp).1;
        queue.name(steps, common, header)
    }
}

/// [`begin_usual`] if this request has to be recorded, an earlier one was, or the one before has no
/// data or lacks its destination. The parameters are in the order of the program's call, so that
/// they stay where they are.
///
/// # Safety
/// As for [`of`].
#[inline(never)]
unsafe extern "C" fn begin_recorded<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    opcode: u32,
    immediate: u32,
) {
    let remote = Some(Remote::new(address, rkey));
    // SAFETY: the caller's promise.
    unsafe {
        let Some(&kind) = T::KINDS.get(opcode as usize) else { return };
        let header =
            InCalls { qp, kind, immediate, remote: Remote::new(address, rkey), operands: None };
        if !is_named_after_all::<T, SENDS>(qp, || name_header::<T, SENDS>(qp, header)) {
            record::<T, SENDS>(qp, kind, immediate, remote);
        }
    }
}

/// Ends what is before the next request, looks for space, and calls `name` again. Returns whether
/// it stored the header.
///
/// # Safety
/// As for [`of`].
#[inline(always)]
unsafe fn is_named_after_all<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    name: impl Fn() -> bool,
) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        match queue::<T, SENDS>(qp).map_or(Ok(false), SendQueue::end_request) {
            Ok(was_named) if (was_named || is_reopened::<T, SENDS>(qp)) && name() => return true,
            Ok(_) => of(qp).1.detour(),
            Err(reason) => of(qp).1.fail(errno(reason)),
        }
        let building = of(qp).1;
        if building.stage == Stage::None {
            return false;
        }
        finish::<T, SENDS>(qp, building);
        // A batch has looked for space.
        !building.has_failed && name()
    }
}

/// Begins an atomic.
///
/// # Safety
/// As for [`of`], and the queue pair is of type `T`.
#[inline(always)]
unsafe fn begin_atomic<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    opcode: u32,
    remote: Remote,
    operands: AtomicSegment,
    operation: RunTimeOperation<'static>,
) {
    let kind = Kind::of::<T>(opcode);
    // SAFETY: the caller's promise.
    unsafe {
        let is_placed = T::SERVICE.address_octowords() != 1 && remote.address % 8 == 0;
        let header = InCalls { qp, kind, immediate: 0, remote, operands: Some(operands) };
        let name = || name_header::<T, SENDS>(qp, header);
        let is_named =
            kind.is_atomic() && is_placed && (name() || is_named_after_all::<T, SENDS>(qp, name));
        if !is_named {
            begin::<T, SENDS>(qp, operation);
        }
    }
}

/// Opens the fast path for the next request, if there is space since the last poll, or the requests
/// before have fewer blocks than they might: a program that keeps its queue full begins so.
///
/// # Safety
/// As for [`of`], and the queue pair is of type `T`.
#[inline(always)]
unsafe fn is_reopened<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex) -> bool {
    // SAFETY: the caller's promise.
    let (queue, building) = unsafe { (queue::<T, SENDS>(qp), of(qp).1) };
    // With data, a datagram has two blocks.
    let blocks = if T::SERVICE.address_octowords() < 3 { 1 } else { 2 };
    queue.is_some_and(|queue| building.steps.is_straight() && queue.reopen(blocks))
}

/// # Safety
/// As for [`of`].
#[inline(always)]
unsafe fn record<T: Posts, const SENDS: bool>(
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
    building.stage = Stage::Named;
    (building.address, building.srqn) = (None, NO_SRQ);
    // SAFETY: as above.
    if let Some(queue) = unsafe { queue::<T, SENDS>(qp) } {
        queue.close_steps(&mut building.steps);
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
        let building = detour::<T, SENDS>(qp);
        if building.stage != Stage::None {
            finish::<T, SENDS>(qp, building);
        }
        record::<T, SENDS>(qp, Kind::UNUSUAL, 0, None);
        of(qp).1.operation = operation;
    }
}

/// Makes a noted request of the one that is in the ring, if that has no data yet: its data is
/// unusual.
///
/// # Safety
/// As for [`of`].
pub(super) unsafe fn record_named<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    let (building, queue) = unsafe { (of(qp).1, queue::<T, SENDS>(qp)) };
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
    (building.address, building.srqn) = (named.address, named.srqn.unwrap_or(NO_SRQ));
    building.stage = Stage::Named;
}

/// Adds a request that the program has encoded itself.
///
/// # Safety
/// As for [`of`], and the queue pair is of type `T`.
pub(crate) unsafe fn encoded<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex, wqe: &[u8]) {
    // SAFETY: the caller's promise. What a request demands of its memory and keys, the program
    // promises by its calls.
    unsafe {
        let building = detour::<T, SENDS>(qp);
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
pub(crate) unsafe fn unsupported(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    unsafe { of(qp) }.1.fail(libc::EOPNOTSUPP);
}

/// Operations that are only recorded.
macro_rules! operations {
    ($( $(#[$meta:meta])* $name:ident($($argument:ident: $type:ty),*) = $operation:expr; )*) => {$(
        $(#[$meta])*
        pub(super) unsafe extern "C" fn $name<T: Posts, const SENDS: bool>(
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
    /// `ibv_wr_local_inv`, which has no data.
    local_inv(rkey: u32) = RunTimeOperation::LocalInvalidate(rkey);
}

/// Operations of the usual kind. On a type of queue pair that does not have them they are recorded
/// as another operation, and refused when the request is built.
macro_rules! usual_operations {
    ($( $(#[$meta:meta])* $name:ident / $newer:ident ($($argument:ident: $type:ty),*) =
        $opcode:ident, $immediate:expr, $remote:expr, $operation:expr; )*) => {
        forms! {$(
            $(#[$meta])*
            pub(super) fn $name / $newer [T: Posts, const SENDS: bool] (
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
        )*}
    };
}

usual_operations! {
    /// `ibv_wr_rdma_write`.
    rdma_write / rdma_write_newer (rkey: u32, address: u64) =
        RDMA_WRITE, 0, Some(Remote::new(address, rkey)),
        RunTimeOperation::Write(Remote::new(address, rkey));
    /// `ibv_wr_rdma_write_imm`.
    rdma_write_imm / rdma_write_imm_newer (rkey: u32, address: u64, data: u32) =
        RDMA_WRITE_WITH_IMM, data, Some(Remote::new(address, rkey)),
        RunTimeOperation::WriteImmediate(Remote::new(address, rkey), immediate(data));
    /// `ibv_wr_rdma_read`.
    rdma_read / rdma_read_newer (rkey: u32, address: u64) =
        RDMA_READ, 0, Some(Remote::new(address, rkey)),
        RunTimeOperation::Read(Remote::new(address, rkey));
    /// `ibv_wr_send_imm`.
    send_imm / send_imm_newer (data: u32) =
        SEND_WITH_IMM, data, None, RunTimeOperation::SendImmediate(immediate(data));
}

forms! {
    /// `ibv_wr_send`: on a raw packet queue pair, a frame.
    pub(super) fn send / send_newer [T: Posts, const SENDS: bool] (qp: *mut ibv_qp_ex) {
        // SAFETY: the caller's queue pair, after start.
        unsafe {
            if T::TYPE == QpType::RawPacket {
                return begin::<T, SENDS>(qp, RunTimeOperation::Packet(offload((*qp).wr_flags)));
            }
            begin_usual::<T, SENDS>(qp, wr_opcode::SEND, 0, None);
        }
    }
}

/// `ibv_wr_atomic_cmp_swp`.
pub(super) unsafe extern "C" fn atomic_cmp_swp<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    compare: u64,
    swap: u64,
) {
    let remote = Remote::new(address, rkey);
    let (opcode, operands) =
        (wr_opcode::ATOMIC_CMP_AND_SWP, AtomicSegment::compare_swap(compare, swap));
    let operation = RunTimeOperation::CompareSwap(CompareSwap { remote, compare, swap });
    // SAFETY: the caller's queue pair, after start.
    unsafe { begin_atomic::<T, SENDS>(qp, opcode, remote, operands, operation) };
}

/// `ibv_wr_atomic_fetch_add`.
pub(super) unsafe extern "C" fn atomic_fetch_add<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    add: u64,
) {
    let remote = Remote::new(address, rkey);
    let (opcode, operands) = (wr_opcode::ATOMIC_FETCH_AND_ADD, AtomicSegment::fetch_add(add));
    let operation = RunTimeOperation::FetchAdd(FetchAdd { remote, add });
    // SAFETY: the caller's queue pair, after start.
    unsafe { begin_atomic::<T, SENDS>(qp, opcode, remote, operands, operation) };
}

/// `ibv_wr_send_tso`: the header is copied.
pub(super) unsafe extern "C" fn send_tso<T: Posts, const SENDS: bool>(
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
        building.header = length.into();
    }
}

/// `ibv_wr_bind_mw`.
pub(super) unsafe extern "C" fn bind_mw<T: Posts, const SENDS: bool>(
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
pub(super) unsafe extern "C" fn atomic_write(qp: *mut ibv_qp_ex, _: u32, _: u64, _: *const c_void) {
    // SAFETY: the caller's queue pair, after start.
    unsafe { unsupported(qp) };
}

/// `ibv_wr_flush`: no mlx5 has it.
pub(super) unsafe extern "C" fn flush(qp: *mut ibv_qp_ex, _: u32, _: u64, _: usize, _: u8, _: u8) {
    // SAFETY: the caller's queue pair, after start.
    unsafe { unsupported(qp) };
}
