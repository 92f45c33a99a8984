//! Posting receives: `ibv_post_recv`, and lists of any queue's.

use std::ffi::c_int;

use uverbs::Sge;
use uverbs::qp::PostError;
use uverbs::raw::{ReceiveBatch as RecvBatch, WorkQueue};
use uverbs_mlx5::recv_queue::RecvQueue;

use crate::abi::*;
use crate::forms::{either, forms};
use crate::post::{refuse, with_converted};
use crate::qp::Qp;

forms! {
    /// `ibv_post_recv`.
    pub(crate) fn post_recv / post_recv_newer [](
        qp: *mut ibv_qp,
        first: *mut ibv_recv_wr,
        bad: *mut *mut ibv_recv_wr,
    ) -> c_int {
        // SAFETY: the caller's queue pair and list.
        unsafe {
            let queue_pair = Qp::of(qp);
            let Some(lock) = queue_pair.recv_lock.try_acquire() else {
                return post_waiting(queue_pair, first, bad);
            };
            if !post_alone(queue_pair, first) {
                return either!(post_held, post_held_newer)(queue_pair, first, bad);
            }
            lock.release();
        }
        0
    }
}

/// Posts a list of one that has one SGE, if it can be posted at once.
///
/// # Safety
/// As for `ibv_post_recv`; the lock of the receives is held.
#[inline(always)]
unsafe fn post_alone(queue_pair: &Qp, first: *mut ibv_recv_wr) -> bool {
    // SAFETY: the caller's promise: the receive side is there, since its lock is held, and is this
    // thread's. The program promises of the memory what the queue requires.
    unsafe {
        let queue = &mut *queue_pair.receive.get();
        single_usual(first).is_some_and(|(request, sge)| queue.post_fast(|| parts(request, sge)))
    }
}

/// [`post_recv`] after waiting for the thread that posts, if there is a receive queue.
///
/// # Safety
/// As for `ibv_post_recv`.
#[cold]
#[inline(never)]
unsafe extern "C" fn post_waiting(
    queue_pair: &Qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if queue_pair.receive.get().is_null() {
            return refuse(first, bad, libc::ENOMEM);
        }
        queue_pair.recv_lock.wait();
        post_held(queue_pair, first, bad)
    }
}

forms! {
    beside
    /// Posts a list of any length, and releases the lock, which the caller holds. A program that
    /// keeps its queue full posts each receive so: there is space since its last poll.
    ///
    /// # Safety
    /// As for `ibv_post_recv`.
    #[inline(never)]
    fn post_held / post_held_newer [](
        queue_pair: &Qp,
        first: *mut ibv_recv_wr,
        bad: *mut *mut ibv_recv_wr,
    ) -> c_int {
        let rest = either!(post_rest::<RecvQueue>, post_rest_newer::<RecvQueue>);
        let alone = either!(post_listed_alone, post_listed_alone_newer);
        // SAFETY: the receive side is there, since its lock is held. The lock, or the program,
        // keeps it for this thread. The caller's list and place.
        let errno = unsafe {
            let queue = queue_pair.receive.get();
            if first.as_ref().is_some_and(|request| usual_sge(request).is_none()) {
                if alone(&mut *queue, first) { 0 } else { rest(&mut *queue, first, bad) }
            } else if (*queue).reopen() && post_alone(queue_pair, first) {
                0
            } else {
                post_list(&mut *queue, rest, first, bad)
            }
        };
        queue_pair.recv_lock.release();
        errno
    }
}

forms! {
    beside
    /// Posts a list of one receive, of any SGEs that are neither empty nor too long. Returns
    /// `false`, with nothing posted, for other lists, and if the queue has to do more.
    ///
    /// # Safety
    /// As for `ibv_post_recv`; the lock of the receives is held.
    #[inline(never)]
    fn post_listed_alone / post_listed_alone_newer [](
        queue: &mut RecvQueue,
        first: *mut ibv_recv_wr,
    ) -> bool {
        // SAFETY: the caller's list, which is not empty. The program promises of the memory what
        // the queue requires.
        unsafe {
            let request = &*first;
            request.next.is_null()
                && queue.post_listed(request.wr_id, request.num_sge as usize, sges(request))
        }
    }
}

/// The SGEs of a request, by their places.
///
/// # Safety
/// A program's request; the places are below its number of SGEs.
#[inline(always)]
unsafe fn sges(request: &ibv_recv_wr) -> impl Fn(usize) -> Sge {
    let list = request.sg_list.cast_const();
    move |place| {
        // SAFETY: the caller's promise.
        let (address, length, lkey) = unsafe { ibv_sge::parts(list.add(place)) };
        Sge::new(address, length, lkey)
    }
}

/// The request of a list of one and its SGE, if it is usual.
///
/// # Safety
/// A program's list.
#[inline(always)]
pub(crate) unsafe fn single_usual<'a>(
    first: *mut ibv_recv_wr,
) -> Option<(&'a ibv_recv_wr, *const ibv_sge)> {
    // SAFETY: the caller's promise.
    unsafe {
        let request = first.as_ref().filter(|request| request.next.is_null())?;
        Some((request, usual_sge(request)?))
    }
}

/// The only SGE of a request, which is neither empty nor too long; `None` for other requests.
///
/// # Safety
/// A program's request.
#[inline(always)]
pub(crate) unsafe fn usual_sge(request: &ibv_recv_wr) -> Option<*const ibv_sge> {
    let sge = request.sg_list.cast_const();
    // SAFETY: a list of one.
    (request.num_sge == 1 && unsafe { (*sge).length as i32 > 0 }).then_some(sge)
}

/// The id of a request, and its SGE.
///
/// # Safety
/// As [`usual_sge`] returned it.
#[inline(always)]
pub(crate) unsafe fn parts(request: &ibv_recv_wr, sge: *const ibv_sge) -> (u64, Sge) {
    // SAFETY: a list of one, whose length the caller has checked. Without the hint the compiler
    // would check it again.
    let (address, length, lkey) = unsafe {
        let parts = ibv_sge::parts(sge);
        std::hint::assert_unchecked(parts.1 as i32 > 0);
        parts
    };
    (request.wr_id, Sge::new(address, length, lkey))
}

/// A queue that lists of receives are posted to.
pub(crate) trait Receives {
    /// Starts a list.
    fn start(&mut self) -> Result<RecvBatch<'_>, PostError>;
}

impl Receives for RecvQueue {
    #[inline(always)]
    fn start(&mut self) -> Result<RecvBatch<'_>, PostError> {
        self.batch()
    }
}

impl Receives for WorkQueue {
    #[inline(always)]
    fn start(&mut self) -> Result<RecvBatch<'_>, PostError> {
        self.receive_batch()
    }
}

/// Posts a list of receives, up to the first that is not usual; `rest` is [`post_rest`].
///
/// # Safety
/// The list and what it points to are a program's.
#[inline(always)]
pub(crate) unsafe fn post_list<Q: Receives>(
    queue: &mut Q,
    rest: unsafe extern "C" fn(&mut Q, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let Ok(mut batch) = queue.start() else {
        // SAFETY: the caller's promise. It says why nothing can be posted.
        return unsafe { rest(queue, first, bad) };
    };
    let mut wr = first;
    // SAFETY: the caller's list; what it promises of the memory is what the queue asks for.
    unsafe {
        while let Some(request) = wr.as_ref() {
            let Some(sge) = usual_sge(request) else { break };
            let (wr_id, sge) = parts(request, sge);
            if !batch.build_fast(wr_id, sge) {
                break;
            }
            wr = request.next;
        }
        batch.publish();
        if wr.is_null() { 0 } else { rest(queue, wr, bad) }
    }
}

forms! {
    beside
    /// Posts a list of any receives. Out of line, because it would take registers from
    /// [`post_list`].
    ///
    /// # Safety
    /// As for [`post_list`].
    #[inline(never)]
    pub(crate) fn post_rest / post_rest_newer [Q: Receives](
        queue: &mut Q,
        first: *mut ibv_recv_wr,
        bad: *mut *mut ibv_recv_wr,
    ) -> c_int {
        let mut batch = match queue.start() {
            Ok(batch) => batch,
            // SAFETY: the caller's place, to be written.
            Err(reason) => return unsafe { refuse(first, bad, errno(reason)) },
        };
        // SAFETY: the caller's list; what it promises of the memory is what the queue asks for.
        unsafe {
            let mut wr = first;
            while let Some(request) = wr.as_ref() {
                let count = request.num_sge as usize;
                if !batch.build_listed(request.wr_id, count, sges(request)) {
                    break;
                }
                wr = request.next;
            }
            let errno = post_any(wr, bad, |wr_id, data| batch.build(wr_id, data));
            batch.publish();
            errno
        }
    }
}

/// Calls `post` with each receive of a list in the library's form, up to the first that cannot be
/// posted.
///
/// # Safety
/// The list and what it points to are a program's.
#[inline(always)]
pub(crate) unsafe fn post_any(
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    mut post: impl FnMut(u64, &[Sge]) -> Result<(), PostError>,
) -> c_int {
    let mut wr = first;
    // SAFETY: the caller's list.
    while let Some(request) = unsafe { wr.as_ref() } {
        let posted = if request.num_sge == 1 {
            // SAFETY: the caller's list of one.
            let sge = unsafe { *request.sg_list };
            post(request.wr_id, &[Sge::new(sge.addr, sge.length, sge.lkey)])
        } else {
            let post = |data: &[Sge]| post(request.wr_id, data);
            // SAFETY: the caller's list.
            unsafe { with_converted(request.sg_list, request.num_sge, post) }
        };
        if let Err(reason) = posted {
            // SAFETY: the caller's place, to be written.
            return unsafe { refuse(wr, bad, errno(reason)) };
        }
        wr = request.next;
    }
    0
}

/// The errno that libmlx5 has for a refused receive.
fn errno(reason: PostError) -> c_int {
    match reason {
        PostError::Full | PostError::NoQueue => libc::ENOMEM,
        PostError::ForkedChild => libc::EPERM,
        _ => libc::EINVAL,
    }
}
