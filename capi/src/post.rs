//! Posting sends: `ibv_post_send`.
//!
//! `usual.rs` builds the usual requests in the ring. Others are converted to the library's form
//! (`request.rs`) and passed to the queue's run-time entry point. Nothing here encodes a request.

mod request;
mod table;

use std::ffi::c_int;

use uverbs::qp::{PostError, SendRequest};
use uverbs::raw::QueuePair;
use uverbs_mlx5::mmio::BlueFlame;
use uverbs_mlx5::send_queue::{Common, SendQueue, Steps};

use crate::abi::*;
use crate::forms::{either, forms};
use crate::qp::Qp;
use crate::usual::{Posts, Usual};
use request::with_request;
pub(crate) use request::{MAX_SGE, bytes, bytes_mut, flags, immediate, offload, with_converted};
use table::PostSend;
pub(crate) use table::{DCI, DCT, NONE, RAW, RC, RSS, SendTable, UC, UD, XRC, place};

/// Refuses a list because the queue pair cannot send.
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
                1..=MAX_SHORT => (table.inline)(qp, wr, bad),
                ..=MAX_OF_TWO => (table.two)(qp, wr, bad),
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

forms! {
    /// Posts a list of one request whose data is not inline.
    ///
    /// # Safety
    /// As for `ibv_post_send`, and the queue pair is of type `T`.
    fn post_one / post_one_newer [T: Posts](
        qp: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad: *mut *mut ibv_send_wr,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { post_usual::<T, 1, NEWER>(qp, wr, bad, false) }
    }
}

/// Most bytes of data in a request of one block, whatever its header.
pub(crate) const MAX_SHORT: usize = 64 - 32 - 4;

/// Most bytes of data in a request of two blocks, whatever its header.
const MAX_OF_TWO: usize = MAX_SHORT + 64;

forms! {
    /// Posts a list of one request with inline data that fits into one block.
    ///
    /// # Safety
    /// As for [`post_one`].
    fn post_inline / post_inline_newer [T: Posts](
        qp: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad: *mut *mut ibv_send_wr,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { post_usual::<T, 1, NEWER>(qp, wr, bad, true) }
    }
}

forms! {
    /// Posts a list of one request with inline data that needs two blocks.
    ///
    /// # Safety
    /// As for [`post_one`].
    fn post_two_blocks / post_two_blocks_newer [T: Posts](
        qp: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad: *mut *mut ibv_send_wr,
    ) -> c_int {
        if !T::IS_CONNECTED {
            // SAFETY: the caller's promise.
            return unsafe { either!(post_long::<T>, post_long_newer::<T>)(qp, wr, bad) };
        }
        // SAFETY: the caller's queue pair and list; the lock is held, or the program posts in one
        // thread at a time.
        unsafe {
            let queue_pair = Qp::of(qp);
            if queue_pair.send_lock.try_acquire().is_none() {
                return post_waiting::<T>(qp, wr, bad);
            }
            let queue = sends::<T>(qp);
            if !Usual::post_two_blocks::<T>(queue, common(qp), wr) {
                return match queue.is_open() {
                    true => either!(post_shorter::<T>, post_shorter_newer::<T>)(qp, wr, bad),
                    false => either!(post_others::<T>, post_others_newer::<T>)(qp, wr, bad),
                };
            }
            queue_pair.send_lock.release();
            0
        }
    }
}

forms! {
    beside
    /// Posts a request with inline data that may fit into one block after all, when the lock is
    /// held.
    ///
    /// # Safety
    /// As for [`post_one`].
    #[inline(never)]
    fn post_shorter / post_shorter_newer [T: Posts](
        qp: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad: *mut *mut ibv_send_wr,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            if !Usual::post_ring::<T, 2>(sends::<T>(qp), common(qp), wr, true) {
                return post_others::<T>(qp, wr, bad);
            }
            Qp::of(qp).send_lock.release();
            0
        }
    }
}

forms! {
    /// Posts a list of one request with inline data that may need several blocks.
    ///
    /// # Safety
    /// As for [`post_one`].
    fn post_long / post_long_newer [T: Posts](
        qp: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad: *mut *mut ibv_send_wr,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { post_usual::<T, 4, NEWER>(qp, wr, bad, true) }
    }
}

/// Posts a list of one request. Requests that need more checks are left to a function in tail
/// position, so this function saves few registers. `inline` is a constant; `BLOCKS` is for inline
/// data.
///
/// # Safety
/// As for [`post_one`].
#[inline(always)]
unsafe fn post_usual<T: Posts, const BLOCKS: usize, const NEWER: bool>(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
    inline: bool,
) -> c_int {
    // SAFETY: the caller's queue pair and list; the lock is held, or the program posts in one
    // thread at a time.
    unsafe {
        if Qp::of(qp).send_lock.try_acquire().is_none() {
            return post_waiting::<T>(qp, wr, bad);
        }
        let queue = sends::<T>(qp);
        let is_posted = match T::IS_CONNECTED {
            true => Usual::post_ring::<T, BLOCKS>(queue, common(qp), wr, inline),
            false => Usual::post::<T>(queue, wr, inline),
        };
        if !is_posted {
            return match queue.is_open() || !T::IS_CONNECTED || BLOCKS > 1 {
                true => either!(post_others::<T>, post_others_newer::<T>)(qp, wr, bad),
                false => post_reopened::<T, NEWER>(
                    qp,
                    wr,
                    bad,
                    match inline {
                        true => either!(post_inline::<T>, post_inline_newer::<T>),
                        false => either!(post_one::<T>, post_one_newer::<T>),
                    },
                ),
            };
        }
        Qp::of(qp).send_lock.release();
        0
    }
}

/// Posts a request of one block that the fast path was not open for, when the lock is held. A
/// program that keeps its queue full posts each request so: there is space since its last poll.
/// `again` is the function that posts such requests where the fast path is open.
///
/// # Safety
/// As for [`post_one`].
#[inline(never)]
unsafe extern "C" fn post_reopened<T: Posts, const NEWER: bool>(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
    again: PostSend,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if (*wr).num_sge != 1 {
            return either!(post_others::<T>, post_others_newer::<T>)(qp, wr, bad);
        }
        if !sends::<T>(qp).reopen(1) {
            return post_any::<T>(qp, wr, bad);
        }
        // For one block the path is open as far as any thread may post.
        Qp::of(qp).send_lock.release();
        again(qp, wr, bad)
    }
}

forms! {
    beside
    /// Posts a request that the fast path does not take, when the lock is held: it has other data,
    /// or space has to be looked for. A program that keeps its queue full posts each request so:
    /// there is space since its last poll.
    ///
    /// # Safety
    /// As for [`post_one`].
    #[inline(never)]
    fn post_others / post_others_newer [T: Posts](
        qp: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad: *mut *mut ibv_send_wr,
    ) -> c_int {
        // SAFETY: the caller's promise. Nothing is built that was not published.
        unsafe {
            if !Usual::whole::<T, true>(sends::<T>(qp), common(qp), wr) {
                return post_any::<T>(qp, wr, bad);
            }
            Qp::of(qp).send_lock.release();
            0
        }
    }
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
        let posted = with_request::<T>(wr, |request| post_request(queue, request));
        Qp::of(qp).send_lock.release();
        posted.map_or_else(|reason| refuse(wr, bad, send_errno(reason)), |()| 0)
    }
}

/// Posts a request of any form. Out of line, because it is some 20 KB of code for each type of
/// queue pair, which `ibv_wr_*` posts with, too.
///
/// # Safety
/// As for [`SendQueue::post_request`].
#[inline(never)]
pub(crate) unsafe fn post_request<T: Posts>(
    queue: &mut SendQueue<T, BlueFlame>,
    request: &SendRequest<'_>,
) -> Result<(), PostError> {
    // SAFETY: the caller's promise.
    unsafe { queue.post_request(request) }
}

forms! {
    /// Posts a list in order, rings the doorbell once, and reports the first request that cannot be
    /// posted.
    ///
    /// # Safety
    /// As for [`post_one`].
    fn post_list / post_list_newer [T: Posts](
        qp: *mut ibv_qp,
        first: *mut ibv_send_wr,
        bad: *mut *mut ibv_send_wr,
    ) -> c_int {
        // SAFETY: the caller's promise.
        let queue_pair = unsafe { Qp::of(qp) };
        queue_pair.send_lock.acquire();
        // SAFETY: the caller's promise; the lock is held.
        let posted = unsafe { post_several::<T, NEWER>(qp, first) };
        queue_pair.send_lock.release();
        // SAFETY: the caller's place, to be written.
        posted.map_or_else(|(wr, reason)| unsafe { refuse(wr, bad, send_errno(reason)) }, |()| 0)
    }
}

/// The refused request of a list, and the reason.
type Refused = (*mut ibv_send_wr, PostError);

/// Posts the usual requests at the head of the list, and leaves the rest of the list to
/// [`post_rest`].
///
/// # Safety
/// As for [`post_list`], whose caller holds the lock.
#[inline(always)]
unsafe fn post_several<T: Posts, const NEWER: bool>(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
) -> Result<(), Refused> {
    // SAFETY: the caller's promise, and that of the program for each request of its list.
    unsafe {
        let (queue, common) = (sends::<T>(qp), common(qp));
        if !T::IS_CONNECTED && queue.is_open() {
            return post_rest::<T>(qp, first);
        }
        let mut wr = first;
        while !wr.is_null() {
            // Two calls, in each of which `inline` is a constant, so that the code tests the flag
            // once.
            let built = T::IS_CONNECTED
                && match (*wr).send_flags & send_flags::INLINE {
                    0 => Usual::build_ring::<T>(queue, common, wr, false),
                    _ => Usual::build_ring::<T>(queue, common, wr, true),
                };
            let others = either!(build_others::<T>, build_others_newer::<T>);
            if !built && !others(queue, common, wr) {
                return post_rest::<T>(qp, wr);
            }
            wr = (*wr).next;
        }
        queue.publish_steps();
    }
    Ok(())
}

forms! {
    beside
    /// [`Usual::whole`] of a request of a list, out of line.
    ///
    /// # Safety
    /// As for [`Usual::whole`].
    #[inline(never)]
    fn build_others / build_others_newer [T: Posts](
        queue: &mut SendQueue<T, BlueFlame>,
        common: &Common,
        wr: *const ibv_send_wr,
    ) -> bool {
        // SAFETY: the caller's promise.
        unsafe { Usual::whole::<T, false>(queue, common, wr) }
    }
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
    let mut steps = Steps::NEW;
    // SAFETY: the requests built so far are those at the head of the list.
    let batch = unsafe { queue.batch_from(&mut steps) };
    let mut batch = batch.map_err(|reason| (wr, reason))?;
    let mut result = Ok(());
    // SAFETY: the caller's list; as promised by the program for each of them.
    unsafe {
        while !wr.is_null() {
            let inline = (*wr).send_flags & send_flags::INLINE != 0;
            let built = Usual::post::<T>(&mut batch, wr, inline);
            if !built {
                result = with_request::<T>(wr, |request| batch.build_request(request));
            }
            if let Err(reason) = result {
                batch.publish();
                return Err((wr, reason));
            }
            wr = (*wr).next;
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
