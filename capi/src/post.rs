//! Posting sends: `ibv_post_send`.
//!
//! Converts a request to the library's form and passes it to the queue's run-time entry point. This
//! file encodes nothing.

use std::ffi::c_int;

use uverbs::op::{CompareSwap, FetchAdd};
use uverbs::qp::{
    DcReceiver, EthChecksum, EthernetOffload, Immediate, PostError, PostFlags, QpAttributes,
    QpInfo, RunTimeDestination, RunTimeOperation, SendRequest, XrcReceiver,
};
use uverbs::qp_type::{Dci, QpType, QueuePairType, RawPacket, Rc, Uc, Ud, Xrc};
use uverbs::raw::QueuePair;
use uverbs::{DatagramAddress, Error, Remote, Sge};
use uverbs_mlx5::mmio::BlueFlame;
use uverbs_mlx5::send_queue::{Common, SendQueue, Steps};

use crate::abi::*;
use crate::ah::Ah;
use crate::dv::DirectQp;
use crate::qp::Qp;
use crate::usual::{Posts, Usual};
use crate::window;
use crate::wr::{self, Building};

/// Most SGEs that a request of any queue can have.
pub(crate) const MOST_SGE: usize = 64;

/// `ibv_post_send`.
type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;

/// The functions of a transport's send queue.
pub(crate) struct SendTable {
    /// Posts a list of one request whose data is not inline.
    one: PostSend,
    /// Posts a list of one request with short inline data.
    inline: PostSend,
    /// Posts a list of one request with inline data that probably needs two blocks.
    two: PostSend,
    /// Posts a list of one request with inline data of any length.
    long: PostSend,
    /// Posts any list.
    list: PostSend,
    /// The functions of `ibv_qp_ex`, for a queue pair whose sends have a lock, or not.
    pub(crate) wr: fn(ibv_qp, bool) -> ibv_qp_ex,
    /// The functions of `mlx5dv_qp_ex`.
    pub(crate) direct: DirectQp,
    /// Aborts the requests that are being built.
    pub(crate) abort: unsafe fn(*mut ibv_qp_ex, &mut Building),
    /// Queries all attributes. Other threads may post meanwhile.
    pub(crate) query: unsafe fn(*mut ibv_qp) -> Result<QpInfo, Error>,
    /// Changes attributes. Other threads may post meanwhile.
    pub(crate) modify: unsafe fn(&Qp, &QpAttributes) -> Result<(), Error>,
}

macro_rules! tables {
    ($($name:ident: $type:ty;)*) => {$(
        /// The functions for this type of queue pair: first for one without a send queue, then for
        /// one with it.
        pub(crate) static $name: [SendTable; 2] = [
            SendTable {
                one: post_full,
                inline: post_full,
                two: post_full,
                long: post_full,
                list: post_full,
                query: query_of::<$type>,
                modify: modify_of::<$type>,
                ..NONE
            },
            SendTable {
                one: post_one::<$type>,
                inline: post_inline::<$type>,
                two: post_two_blocks::<$type>,
                long: post_long::<$type>,
                list: post_list::<$type>,
                wr: wr::table::<$type>,
                direct: DirectQp::of::<$type, true>(),
                abort: wr::abort::<$type, true>,
                query: query_of::<$type>,
                modify: modify_of::<$type>,
            },
        ];
    )*};
}

tables! {
    RC: Rc;
    UC: Uc;
    UD: Ud;
    XRC: Xrc;
    DCI: Dci;
    RAW: RawPacket;
}

/// The functions of a queue pair that cannot send: an XRC target.
pub(crate) static NONE: SendTable = SendTable {
    one: post_nothing,
    inline: post_nothing,
    two: post_nothing,
    long: post_nothing,
    list: post_nothing,
    wr: wr::table_of_none,
    direct: DirectQp::of::<Rc, false>(),
    abort: |_, _| {},
    query: query_target,
    modify: modify_target,
};

/// The functions of a DC target, which cannot send.
pub(crate) static DCT: SendTable =
    SendTable { query: query_dc_target, modify: modify_dc_target, ..NONE };

/// # Safety
/// `qp` is a DC target, which no other thread changes meanwhile.
unsafe fn query_dc_target(qp: *mut ibv_qp) -> Result<QpInfo, Error> {
    // SAFETY: the caller's promise.
    unsafe { &*Qp::library::<DcReceiver>(qp) }.query()
}

/// # Safety
/// The queue pair is a DC target, which no other thread uses meanwhile.
unsafe fn modify_dc_target(qp: &Qp, attributes: &QpAttributes) -> Result<(), Error> {
    // SAFETY: the caller's promise.
    unsafe { &mut *Qp::library::<DcReceiver>(qp.pointer()) }.modify(attributes)
}

/// The functions of a queue pair that has neither queues nor states: an RSS target.
pub(crate) static SPREADS: SendTable = SendTable {
    query: |_| Err(Error::from(PostError::NoQueue)),
    modify: |_, _| Err(Error::from(PostError::NoQueue)),
    ..NONE
};

/// # Safety
/// `qp` is of type `T`, and no other thread changes it meanwhile.
unsafe fn query_of<T: QueuePairType>(qp: *mut ibv_qp) -> Result<QpInfo, Error> {
    // SAFETY: the caller's promise.
    unsafe { QueuePair::query_beside(Qp::library::<QueuePair<T>>(qp)) }
}

/// # Safety
/// The queue pair is of type `T`, and no other thread changes it meanwhile.
unsafe fn modify_of<T: QueuePairType>(qp: &Qp, attributes: &QpAttributes) -> Result<(), Error> {
    // SAFETY: the caller's promise; posting takes the locks.
    unsafe {
        let queue = Qp::library::<QueuePair<T>>(qp.pointer());
        QueuePair::modify_beside(queue, attributes, || qp.exclude())
    }
}

/// # Safety
/// `qp` is an XRC target, which no other thread changes meanwhile.
unsafe fn query_target(qp: *mut ibv_qp) -> Result<QpInfo, Error> {
    // SAFETY: the caller's promise.
    unsafe { &*Qp::library::<XrcReceiver>(qp) }.query()
}

/// # Safety
/// The queue pair is an XRC target, which no other thread uses meanwhile.
unsafe fn modify_target(qp: &Qp, attributes: &QpAttributes) -> Result<(), Error> {
    // SAFETY: the caller's promise.
    unsafe { &mut *Qp::library::<XrcReceiver>(qp.pointer()) }.modify(attributes)
}

unsafe extern "C" fn post_nothing(
    _: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: null, or the caller's place, to be written.
    unsafe { refuse(wr, bad, libc::EINVAL) }
}

/// Refuses a list because the queue pair has no send queue.
unsafe extern "C" fn post_full(
    _: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: null, or the caller's place, to be written.
    unsafe { refuse(wr, bad, send_errno(PostError::NoQueue)) }
}

/// `ibv_post_send`. Chooses the function that posts the list: for one request, for one inline
/// request, or for any list. So each of them saves only the registers that it needs.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's queue pair and list.
    unsafe {
        let table = Qp::of(qp).send;
        if wr.is_null() || !(*wr).next.is_null() {
            return (table.list)(qp, wr, bad);
        }
        if (*wr).send_flags & send_flags::INLINE != 0 {
            let length = if (*wr).num_sge == 1 { (*(*wr).sg_list).length as usize } else { 0 };
            return match length {
                1..=MOST_SHORT => (table.inline)(qp, wr, bad),
                ..=MOST_OF_TWO => (table.two)(qp, wr, bad),
                _ => (table.long)(qp, wr, bad),
            };
        }
        (table.one)(qp, wr, bad)
    }
}

/// The send queue of a queue pair.
///
/// # Safety
/// The queue pair is of type `T` and has a send queue; the caller holds the lock of its sends, or
/// is the only thread that posts.
#[inline(always)]
pub(crate) unsafe fn sends<'a, T: Posts>(qp: *mut ibv_qp) -> &'a mut SendQueue<T, BlueFlame> {
    // SAFETY: the caller's promise: no other code uses the send queue while the lock is held. A
    // send queue that exists at creation exists until the queue pair is destroyed.
    unsafe { (*QueuePair::sides(Qp::library::<QueuePair<T>>(qp)).0).as_mut().unwrap_unchecked() }
}

/// The parts of control segments that all requests of a queue pair share.
///
/// # Safety
///
/// `qp` is a queue pair of this library.
#[inline(always)]
unsafe fn common<'a>(qp: *mut ibv_qp) -> &'a Common {
    // SAFETY: written only at creation.
    unsafe { &(*Qp::of(qp).building.get()).common }
}

/// Posts a list of one request whose data is not inline.
///
/// # Safety
/// As for `ibv_post_send`, and the queue pair is of type `T`.
unsafe extern "C" fn post_one<T: Posts>(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { post_usual::<T, 1>(qp, wr, bad, false) }
}

/// Most bytes of data in a request of one block, whatever its header.
pub(crate) const MOST_SHORT: usize = 64 - 32 - 4;

/// Most bytes of data in a request of two blocks, whatever its header.
const MOST_OF_TWO: usize = MOST_SHORT + 64;

/// Posts a list of one request with inline data that fits into one block.
///
/// # Safety
/// As for [`post_one`].
unsafe extern "C" fn post_inline<T: Posts>(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { post_usual::<T, 1>(qp, wr, bad, true) }
}

/// Posts a list of one request with inline data that needs two blocks.
///
/// # Safety
/// As for [`post_one`].
unsafe extern "C" fn post_two_blocks<T: Posts>(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    if !T::IS_CONNECTED {
        // SAFETY: the caller's promise.
        return unsafe { post_long::<T>(qp, wr, bad) };
    }
    // SAFETY: the caller's queue pair and list; the lock is held, or the program posts in one
    // thread at a time.
    unsafe {
        let queue_pair = Qp::of(qp);
        if !queue_pair.send_lock.try_acquire() {
            return post_waiting::<T>(qp, wr, bad);
        }
        if !Usual::post_two_blocks::<T>(sends::<T>(qp), common(qp), &*wr) {
            return post_long_held::<T>(qp, wr, bad);
        }
        queue_pair.send_lock.release();
        0
    }
}

/// Posts a list of one request with inline data that may need several blocks.
///
/// # Safety
/// As for [`post_one`].
unsafe extern "C" fn post_long<T: Posts>(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { post_usual::<T, 4>(qp, wr, bad, true) }
}

/// Posts a list of one request. Requests that need more checks are left to a function in tail
/// position, so this function saves few registers. `inline` is a constant; `BLOCKS` is for inline
/// data.
///
/// # Safety
/// As for [`post_one`].
#[inline(always)]
unsafe fn post_usual<T: Posts, const BLOCKS: usize>(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
    inline: bool,
) -> c_int {
    // SAFETY: the caller's queue pair and list; the lock is held, or the program posts in one
    // thread at a time.
    unsafe {
        if !Qp::of(qp).send_lock.try_acquire() {
            return post_waiting::<T>(qp, wr, bad);
        }
        post_held::<T, BLOCKS>(qp, wr, bad, inline)
    }
}

/// [`post_usual`] when the lock is held, which it gives back.
///
/// # Safety
/// As for [`post_one`].
#[inline(always)]
unsafe fn post_held<T: Posts, const BLOCKS: usize>(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
    inline: bool,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let queue = sends::<T>(qp);
        let posted = match T::IS_CONNECTED {
            true => Usual::post_ring::<T, BLOCKS>(queue, common(qp), &*wr, inline),
            false => Usual::post::<T>(queue, &*wr, inline),
        };
        if !posted {
            return post_any::<T>(qp, wr, bad);
        }
        Qp::of(qp).send_lock.release();
        0
    }
}

/// [`post_long`] when the lock is held.
///
/// # Safety
/// As for [`post_one`].
#[inline(never)]
unsafe extern "C" fn post_long_held<T: Posts>(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { post_held::<T, 4>(qp, wr, bad, true) }
}

/// Posts a list of one after waiting for the thread that holds the lock.
///
/// # Safety
/// As for [`post_one`].
#[cold]
#[inline(never)]
unsafe extern "C" fn post_waiting<T: Posts>(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        Qp::of(qp).send_lock.wait();
        post_any::<T>(qp, wr, bad)
    }
}

/// Posts a list of one request of any form.
///
/// # Safety
/// As for [`post_one`]; the lock is held, and is given back.
#[inline(never)]
unsafe extern "C" fn post_any<T: Posts>(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's promise; a list of one rings for itself.
    unsafe {
        let queue = sends::<T>(qp);
        let posted = with_request::<T>(&*wr, |request| queue.post_request(request));
        Qp::of(qp).send_lock.release();
        posted.map_or_else(|reason| refuse(wr, bad, send_errno(reason)), |()| 0)
    }
}

/// Posts a list in order, rings the doorbell once, and reports the first request that cannot be
/// posted.
///
/// # Safety
/// As for [`post_one`].
unsafe extern "C" fn post_list<T: Posts>(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's promise.
    let queue_pair = unsafe { Qp::of(qp) };
    queue_pair.send_lock.acquire();
    // SAFETY: the caller's promise; the lock is held.
    let posted = unsafe { post_several::<T>(qp, first) };
    queue_pair.send_lock.release();
    // SAFETY: the caller's place, to be written.
    posted.map_or_else(|(wr, reason)| unsafe { refuse(wr, bad, send_errno(reason)) }, |()| 0)
}

/// The refused request of a list, and the reason.
type Refused = (*mut ibv_send_wr, PostError);

/// Posts the usual requests at the head of the list, and leaves the rest of the list to
/// [`post_rest`].
///
/// # Safety
/// As for [`post_list`], whose caller holds the lock.
#[inline(always)]
unsafe fn post_several<T: Posts>(qp: *mut ibv_qp, first: *mut ibv_send_wr) -> Result<(), Refused> {
    // SAFETY: the caller's promise, and that of the program for each request of its list.
    unsafe {
        if !T::IS_CONNECTED {
            return post_rest::<T>(qp, first);
        }
        let (queue, common) = (sends::<T>(qp), common(qp));
        queue.find_place();
        let mut wr = first;
        while let Some(request) = wr.as_ref() {
            // Two calls, in each of which `inline` is a constant, so that the code tests the flag
            // once.
            let built = match request.send_flags & send_flags::INLINE {
                0 => Usual::build_ring::<T>(queue, common, request, false),
                _ => Usual::build_ring::<T>(queue, common, request, true),
            };
            if !built {
                return post_rest::<T>(qp, wr);
            }
            wr = request.next;
        }
        queue.publish_steps();
    }
    Ok(())
}

/// Builds the requests of a list from `wr` on, of any form, and publishes them with those built
/// before.
///
/// # Safety
/// As for [`post_list`].
#[inline(never)]
unsafe fn post_rest<T: Posts>(qp: *mut ibv_qp, mut wr: *mut ibv_send_wr) -> Result<(), Refused> {
    // SAFETY: the lock is held.
    let queue = unsafe { sends::<T>(qp) };
    let mut steps = Steps::NONE;
    let batch = match T::IS_CONNECTED {
        // SAFETY: the requests built so far are those at the head of the list.
        true => unsafe { queue.batch_from(&mut steps) },
        false => queue.batch(),
    };
    let mut batch = batch.map_err(|reason| (wr, reason))?;
    let mut result = Ok(());
    // SAFETY: the caller's list; as promised by the program for each of them.
    unsafe {
        while let Some(request) = wr.as_ref() {
            let inline = request.send_flags & send_flags::INLINE != 0;
            let built = Usual::post::<T>(&mut batch, request, inline);
            if !built {
                result = with_request::<T>(request, |request| batch.build_request(request));
            }
            if let Err(reason) = result {
                batch.publish();
                return Err((wr, reason));
            }
            wr = request.next;
        }
    }
    batch.publish();
    result.map_err(|reason| (wr, reason))
}

/// Stores the refused request in `bad`, and returns the errno.
///
/// # Safety
/// `bad` is null or a place to write to.
#[cold]
pub(crate) unsafe fn refuse<W>(wr: *mut W, bad: *mut *mut W, errno: c_int) -> c_int {
    if wr.is_null() {
        return 0; // an empty list is posted on any queue
    }
    if !bad.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *bad = wr };
    }
    errno
}

/// The errno of libmlx5 for a refused send. In libmlx5 a queue pair before RTS has space for no
/// SGE, hence ENOMEM.
pub(crate) fn send_errno(reason: PostError) -> c_int {
    match reason {
        PostError::Full
        | PostError::TooManySge
        | PostError::InlineTooLong
        | PostError::BadState
        | PostError::NoQueue => libc::ENOMEM,
        PostError::WindowTooLong => libc::EOPNOTSUPP,
        PostError::ForkedChild => libc::EPERM,
        _ => libc::EINVAL,
    }
}

/// Calls `run` with a request in the library's form.
///
/// # Safety
/// The request and what it points to are a program's, and it is for a queue pair of type `T`.
#[inline(always)]
unsafe fn with_request<T: Posts>(
    wr: &ibv_send_wr,
    run: impl FnOnce(&SendRequest<'_>) -> Result<(), PostError>,
) -> Result<(), PostError> {
    let mut address = None;
    // SAFETY: the caller's promise.
    let (operation, destination) =
        unsafe { (operation::<T>(wr)?, destination::<T>(wr, &mut address)?) };
    let make = |data| SendRequest {
        wr_id: wr.wr_id,
        operation,
        destination,
        flags: flags(wr.send_flags),
        inline: wr.send_flags & send_flags::INLINE != 0,
        data,
    };
    match wr.num_sge {
        0 => run(&make(&[])),
        1 => {
            // SAFETY: the caller's list of one.
            let sge = unsafe { *wr.sg_list };
            let is_atomic = matches!(
                wr.opcode,
                wr_opcode::ATOMIC_CMP_AND_SWP | wr_opcode::ATOMIC_FETCH_AND_ADD
            );
            // libmlx5 takes any length for the result of an atomic, which is always 8 bytes.
            let length = if is_atomic { 8 } else { sge.length };
            run(&make(&[Sge::new(sge.addr, length, sge.lkey)]))
        }
        count => {
            let mut list = [Sge::default(); MOST_SGE];
            // SAFETY: the caller's list of `count`.
            run(&make(unsafe { converted(&mut list, wr.sg_list, count) }?))
        }
    }
}

/// A list of SGEs in the library's form.
///
/// # Safety
/// `from` has `count` entries.
#[inline(always)]
pub(crate) unsafe fn converted(
    into: &mut [Sge; MOST_SGE],
    from: *const ibv_sge,
    count: c_int,
) -> Result<&[Sge], PostError> {
    let count = usize::try_from(count).map_err(|_| PostError::BadOpcode)?;
    let Some(used) = into.get_mut(..count) else { return Err(PostError::TooManySge) };
    for (place, to) in used.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        let sge = unsafe { *from.add(place) };
        *to = Sge::new(sge.addr, sge.length, sge.lkey);
    }
    Ok(used)
}

/// `enum ibv_send_flags` as the control segment has them.
#[inline(always)]
pub(crate) fn flags(flags: u32) -> PostFlags {
    const TABLE: [u8; 8] = {
        let mut table = [0; 8];
        let mut flags = 0;
        while flags < 8 {
            if flags & send_flags::FENCE != 0 {
                table[flags as usize] |= PostFlags::FENCE.bits();
            }
            if flags & send_flags::SIGNALED != 0 {
                table[flags as usize] |= PostFlags::SIGNALED.bits();
            }
            if flags & send_flags::SOLICITED != 0 {
                table[flags as usize] |= PostFlags::SOLICITED.bits();
            }
            flags += 1;
        }
        table
    };
    PostFlags::from_bits_retain(TABLE[flags as usize % TABLE.len()])
}

/// The operation of a request.
///
/// # Safety
/// As for [`with_request`].
#[inline(always)]
unsafe fn operation<T: Posts>(wr: &ibv_send_wr) -> Result<RunTimeOperation<'_>, PostError> {
    use RunTimeOperation as O;
    if T::TYPE == QpType::RawPacket {
        // SAFETY: the caller's promise.
        return unsafe { packet(wr) };
    }
    // SAFETY: the opcode says which part of the unions a program has filled.
    unsafe {
        let remote = || Remote::new(wr.wr.rdma.remote_addr, wr.wr.rdma.rkey);
        let counter = || Remote::new(wr.wr.atomic.remote_addr, wr.wr.atomic.rkey);
        Ok(match wr.opcode {
            wr_opcode::RDMA_WRITE => O::Write(remote()),
            wr_opcode::SEND => O::Send,
            wr_opcode::RDMA_READ => O::Read(remote()),
            wr_opcode::SEND_WITH_IMM => O::SendImmediate(immediate(wr.imm_data)),
            wr_opcode::RDMA_WRITE_WITH_IMM => O::WriteImmediate(remote(), immediate(wr.imm_data)),
            wr_opcode::ATOMIC_CMP_AND_SWP => O::CompareSwap(CompareSwap {
                remote: counter(),
                compare: wr.wr.atomic.compare_add,
                swap: wr.wr.atomic.swap,
            }),
            wr_opcode::ATOMIC_FETCH_AND_ADD => {
                O::FetchAdd(FetchAdd { remote: counter(), add: wr.wr.atomic.compare_add })
            }
            wr_opcode::SEND_WITH_INV => O::SendInvalidate(wr.imm_data),
            wr_opcode::LOCAL_INV => O::LocalInvalidate(wr.imm_data),
            wr_opcode::BIND_MW => {
                window::operation(&wr.bind_mw.bind_mw).map_err(|_| PostError::BadOpcode)?
            }
            _ => return Err(PostError::BadOpcode),
        })
    }
}

/// Immediate data, which programs pass in network byte order.
#[inline(always)]
pub(crate) fn immediate(data: u32) -> Immediate {
    Immediate(data.to_ne_bytes())
}

/// The operation of a request of a raw packet queue pair.
///
/// # Safety
/// As for [`with_request`].
unsafe fn packet(wr: &ibv_send_wr) -> Result<RunTimeOperation<'_>, PostError> {
    let offload = offload(wr.send_flags);
    match wr.opcode {
        wr_opcode::SEND => Ok(RunTimeOperation::Packet(offload)),
        wr_opcode::TSO => {
            // SAFETY: the opcode says that this part of the union is filled; the header is the
            // program's.
            unsafe {
                let tso = wr.bind_mw.tso;
                let header = bytes(tso.hdr.cast(), tso.hdr_sz.into());
                Ok(RunTimeOperation::Segmented { offload, mss: tso.mss, header })
            }
        }
        _ => Err(PostError::BadOpcode),
    }
}

/// The offloads that the flags ask for.
pub(crate) fn offload(flags: u32) -> EthernetOffload {
    let checksum = match flags & send_flags::IP_CSUM {
        0 => EthChecksum::NONE,
        _ => EthChecksum::IP_CSUM,
    };
    EthernetOffload { checksum, ..EthernetOffload::default() }
}

/// # Safety
/// `start` is null or points to `length` bytes, which do not change while the result is used.
pub(crate) unsafe fn bytes<'a>(start: *const u8, length: usize) -> &'a [u8] {
    if start.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(start, length) }
}

/// The peer that a request goes to.
///
/// # Safety
/// As for [`with_request`].
#[inline(always)]
unsafe fn destination<'a, T: Posts>(
    wr: &ibv_send_wr,
    place: &'a mut Option<DatagramAddress>,
) -> Result<RunTimeDestination<'a>, PostError> {
    match T::TYPE {
        QpType::Ud => {
            // Other operations, which UD queue pairs do not have, use that part of the union for a
            // remote address.
            if !matches!(wr.opcode, wr_opcode::SEND | wr_opcode::SEND_WITH_IMM) {
                return Err(PostError::BadOpcode);
            }
            // SAFETY: messages of datagram queue pairs have this part of the union filled.
            let ud = unsafe { wr.wr.ud };
            // SAFETY: the caller's address handle.
            let address = unsafe { Ah::datagram(ud.ah, ud.remote_qpn, ud.remote_qkey) };
            let address = address.ok_or(PostError::BadDestination)?;
            Ok(RunTimeDestination::Datagram(place.insert(address)))
        }
        QpType::XrcSend => Ok(RunTimeDestination::Xrc(wr.qp_type)),
        // `ibv_send_wr` has no field for a DC target: only `mlx5dv_wr_set_dc_addr` names one.
        QpType::DcInitiator => Err(PostError::BadDestination),
        _ => Ok(RunTimeDestination::Connected),
    }
}
