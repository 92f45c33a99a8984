//! Polling: `ibv_poll_cq`, and arming. `extended.rs` has the polls that are read field by field.

mod extended;
mod tags;
mod wc;

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use uverbs::PollError;
use uverbs_mlx5::completion_queue::{ByLap, Good, GoodBatch};

use crate::abi::*;
use crate::cq::Cq;
use crate::events::uncancelled;
use crate::forms::{either, forms};
pub(crate) use extended::*;
pub(crate) use tags::{read_tm_info, read_wc_flags as read_wc_flags_with_tags};
use wc::{put_immediate, put_receive, put_send, sent, write};

forms! {
    /// `ibv_poll_cq`: returns the number of completions; −1 after a catastrophic error of the
    /// queue.
    ///
    /// Calls all other functions in tail position, so it saves no registers for them.
    pub(crate) fn poll_cq / poll_cq_newer [](
        cq: *mut ibv_cq,
        most: c_int,
        into: *mut ibv_wc,
    ) -> c_int {
        // SAFETY: the caller's queue, whose lock is held, or the program polls in one thread at a
        // time; the caller's array has `most` places.
        unsafe {
            let queue = Cq::of(cq);
            if queue.lock.try_acquire().is_none() {
                return poll_waiting(queue, most, into);
            }
            if most != 1 {
                return either!(poll_several, poll_several_newer)(queue, most, into);
            }
            let library = queue.provider();
            match library.take_sent(ByLap::new(), sent) {
                Some((completion, sent)) => {
                    put_send::<NEWER>(&completion, sent, into);
                    polled_one(queue, into)
                }
                None => either!(poll_received, poll_received_newer)(queue, into),
            }
        }
    }
}

forms! {
    beside
    /// [`poll_cq`] for one completion that is not a successful send.
    ///
    /// # Safety
    /// As for [`poll_rest`].
    #[inline(never)]
    fn poll_received / poll_received_newer [](queue: &Cq, into: *mut ibv_wc) -> c_int {
        // SAFETY: the lock is held, or the program polls in one thread at a time.
        unsafe {
            match queue.provider().take_received::<true>(ByLap::new()) {
                Some(completion) => {
                    put_receive::<NEWER>(&completion, into);
                    polled_one(queue, into)
                }
                None => either!(poll_first, poll_first_newer)(queue, 1, into),
            }
        }
    }
}

/// Gives back the CQE of the only completion that the caller asked for, which is in the array, and
/// releases the lock.
///
/// # Safety
/// As for [`poll_rest`].
#[inline(always)]
unsafe fn polled_one(queue: &Cq, into: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let library = queue.provider();
        if library.is_lap_over() {
            return poll_given_back(queue, 1, into, 0, 1);
        }
        library.publish();
    }
    queue.lock.release();
    1
}

forms! {
    beside
    /// [`poll_cq`] for several completions. The lock is held.
    ///
    /// # Safety
    /// As for [`poll_rest`].
    #[inline(never)]
    fn poll_several / poll_several_newer [](queue: &Cq, most: c_int, into: *mut ibv_wc) -> c_int {
        // SAFETY: the lock is held, or the program polls in one thread at a time; the caller's
        // array has `most` places.
        unsafe {
            let mut batch = queue.provider().good_batch(ByLap::new(), most.max(0) as u32);
            let mut place = into;
            while !batch.is_over() {
                match batch.next(sent) {
                    Some(Good::Sent(completion, sent)) => {
                        put_send::<NEWER>(&completion, sent, place);
                    }
                    Some(Good::Received(completion)) => put_receive::<NEWER>(&completion, place),
                    None if place == into => {
                        return either!(poll_first, poll_first_newer)(queue, most, into);
                    }
                    None => {
                        return match batch.finish() {
                            Ok(count) => {
                                either!(poll_after, poll_after_newer)(queue, most, into, count)
                            }
                            Err(count) => poll_given_back(queue, most, into, 0, count),
                        };
                    }
                }
                place = place.wrapping_add(1);
            }
            match batch.finish() {
                Ok(count) => {
                    queue.lock.release();
                    count as c_int
                }
                Err(count) => poll_given_back(queue, most, into, 0, count),
            }
        }
    }
}

/// [`poll_cq`] after waiting for the thread that holds the lock.
///
/// # Safety
/// As for [`poll_rest`], except that the lock is not held.
#[cold]
#[inline(never)]
unsafe extern "C" fn poll_waiting(queue: &Cq, most: c_int, into: *mut ibv_wc) -> c_int {
    queue.lock.wait();
    // SAFETY: the caller's promise; the lock is held.
    unsafe { poll_rest(queue, most, into, 0) }
}

forms! {
    beside
    /// [`poll_cq`] when the fast path finds no completion.
    ///
    /// # Safety
    /// As for [`poll_rest`].
    #[inline(never)]
    fn poll_first / poll_first_newer [](queue: &Cq, most: c_int, into: *mut ibv_wc) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            if !queue.provider().has_nothing() {
                if most == 1 && queue.provider().is_at_receive() {
                    return either!(poll_immediate, poll_immediate_newer)(queue, into);
                }
                return either!(poll_others, poll_others_newer)(queue, most, into, 0);
            }
        }
        queue.lock.release();
        if queue.is_soft {
            return idle(queue);
        }
        0
    }

    /// [`poll_cq`] for one completion where the next is a receive, probably with immediate data.
    ///
    /// # Safety
    /// As for [`poll_rest`].
    #[inline(never)]
    fn poll_immediate / poll_immediate_newer [](queue: &Cq, into: *mut ibv_wc) -> c_int {
        // SAFETY: the lock is held, or the program polls in one thread at a time.
        unsafe {
            match queue.provider().take_received::<false>(ByLap::new()) {
                Some(completion) => {
                    put_immediate::<NEWER>(&completion, into);
                    polled_one(queue, into)
                }
                None => poll_rest(queue, 1, into, 0),
            }
        }
    }

    /// [`poll_cq`] after the completions that the fast path has polled.
    ///
    /// # Safety
    /// As for [`poll_rest`].
    #[inline(never)]
    fn poll_after / poll_after_newer [](
        queue: &Cq,
        most: c_int,
        into: *mut ibv_wc,
        count: u32,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            if queue.provider().has_nothing() {
                queue.lock.release();
                return count as c_int;
            }
            either!(poll_others, poll_others_newer)(queue, most, into, count as c_int)
        }
    }

    /// Polls the rest of `most` completions, of which the fast path does not take the next.
    ///
    /// # Safety
    /// As for [`poll_rest`].
    #[inline]
    fn poll_others / poll_others_newer [](
        queue: &Cq,
        most: c_int,
        into: *mut ibv_wc,
        before: c_int,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            if queue.provider().is_at_inline() {
                return poll_inline(queue, most, into, before);
            }
            match queue.provider().is_at_receive() {
                true => either!(poll_receives, poll_receives_newer)(queue, most, into, before),
                false => poll_rest(queue, most, into, before),
            }
        }
    }

    /// [`poll_rest`] where the next completion is a receive, probably with immediate data. Apart
    /// from the fast path, which would become longer.
    ///
    /// # Safety
    /// As for [`poll_rest`].
    #[inline(never)]
    fn poll_receives / poll_receives_newer [](
        queue: &Cq,
        most: c_int,
        into: *mut ibv_wc,
        before: c_int,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            poll_run::<NEWER>(queue, most, into, before, |batch, place| {
                batch.next_received().map(|one| put_immediate::<NEWER>(&one, place))
            })
        }
    }
}

/// [`poll_rest`] where the next completion is a receive with data inside the CQE, as probably those
/// after it are.
///
/// # Safety
/// As for [`poll_rest`].
#[inline(never)]
unsafe extern "C" fn poll_inline(
    queue: &Cq,
    most: c_int,
    into: *mut ibv_wc,
    before: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        poll_run::<false>(queue, most, into, before, |batch, place| {
            batch.next_inline().map(|one| write(one, place))
        })
    }
}

/// Polls the rest of `most` completions where the next is of a kind that the fast path does not
/// take, as probably those after it are. `take` takes a completion of that kind to its place.
///
/// # Safety
/// As for [`poll_rest`].
#[inline(always)]
unsafe fn poll_run<const NEWER: bool>(
    queue: &Cq,
    most: c_int,
    into: *mut ibv_wc,
    before: c_int,
    take: impl Fn(&mut GoodBatch<'_>, *mut ibv_wc) -> Option<()>,
) -> c_int {
    let mut place = into.wrapping_add(before as usize);
    // SAFETY: the lock is held, or the program polls in one thread at a time; the caller's array
    // has `most` places.
    unsafe {
        let mut batch = queue.provider().good_batch(ByLap::new(), (most - before) as u32);
        while !batch.is_over() {
            if take(&mut batch, place).is_none() {
                match batch.next(sent) {
                    Some(Good::Sent(completion, sent)) => {
                        put_send::<NEWER>(&completion, sent, place);
                    }
                    Some(Good::Received(completion)) => put_receive::<NEWER>(&completion, place),
                    None => break,
                }
            }
            place = place.wrapping_add(1);
        }
        poll_on(queue, most, into, before, batch.finish())
    }
}

/// Polls the rest of `most` completions after a batch that began after `before`, and finished with
/// this result. If it took nothing, the next completion is one for [`poll_rest`].
///
/// # Safety
/// As for [`poll_rest`].
#[inline(always)]
unsafe fn poll_on(
    queue: &Cq,
    most: c_int,
    into: *mut ibv_wc,
    before: c_int,
    finished: Result<u32, u32>,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        match finished {
            Ok(0) => poll_rest(queue, most, into, before),
            Ok(count) if before + count as c_int == most => {
                queue.lock.release();
                most
            }
            Ok(count) if queue.provider().has_nothing() => {
                queue.lock.release();
                before + count as c_int
            }
            // Not the fast path again: completions that are one kind and another in turn would need
            // a frame of the stack each.
            Ok(count) => poll_rest(queue, most, into, before + count as c_int),
            Err(count) => poll_given_back(queue, most, into, before, count),
        }
    }
}

/// Gives back the CQEs of `count` completions, which were polled after `before`, outside the fast
/// path, and polls the rest of `most`.
///
/// # Safety
/// As for [`poll_rest`].
#[cold]
#[inline(never)]
unsafe extern "C" fn poll_given_back(
    queue: &Cq,
    most: c_int,
    into: *mut ibv_wc,
    before: c_int,
    count: u32,
) -> c_int {
    // SAFETY: the lock is held, or the program polls in one thread at a time.
    unsafe {
        queue.provider().give_back(count);
        poll_rest(queue, most, into, before + count as c_int)
    }
}

/// Polls the rest of `most` completions after the `before` that are already in the array, and
/// releases the lock.
///
/// # Safety
/// As for [`poll_cq`], which has filled the places before; the lock is held.
#[inline(never)]
unsafe extern "C" fn poll_rest(queue: &Cq, most: c_int, into: *mut ibv_wc, before: c_int) -> c_int {
    let (mut place, mut count) = (into.wrapping_add(before as usize), before);
    // SAFETY: the lock is held, or the program polls in one thread at a time.
    let library = unsafe { &mut *queue.queue.get() };
    let mut batch = library.batch();
    let mut failed = None;
    for _ in before..most {
        match batch.next() {
            Ok(completion) => {
                // SAFETY: the caller's array has `most` places.
                unsafe { write(completion, place) };
                place = place.wrapping_add(1);
                count += 1;
            }
            Err(PollError::Empty) => break,
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    if let (Some(error), true) = (failed, count > 0) {
        batch.keep(error);
    }
    drop(batch);
    queue.lock.release();
    match (count, failed) {
        (0, Some(_)) => -1,
        (0, None) if queue.is_soft => idle(queue),
        (count, _) => count,
    }
}

/// Called when there was no completion: lets a software device make progress in the calling thread.
/// Returns 0.
#[inline(never)]
extern "C" fn idle(queue: &Cq) -> c_int {
    // `poll_idle` holds locks of the device, so the thread must not be cancelled in it.
    uncancelled(|| queue.context().library.poll_idle());
    0
}

/// `ibv_req_notify_cq`.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited: c_int) -> c_int {
    // SAFETY: the caller's queue.
    let queue = unsafe { Cq::of(cq) };
    // A program may arm the queue between start and end of a poll.
    let _guard = queue.lock.guard_unless_kept();
    // SAFETY: the lock is held, or the program polls in one thread at a time.
    let library = unsafe { &mut *queue.queue.get() };
    if queue.is_shown.load(Ordering::Relaxed) {
        library.follow_record();
    }
    if solicited != 0 {
        library.arm_solicited()
    } else {
        library.arm()
    }
    0
}
