//! Lets the device make progress during polls that find nothing.
//!
//! The provider reads the completion queue in memory. So a program that polls in a loop makes no
//! call for which there is a hook, and the device's thread shares the processors with it: on a
//! machine with more threads than processors each message waits for time slices.
//!
//! Functions of this library therefore replace the provider's: [`poll_cq`] for `ibv_poll_cq`, and
//! those of [`extended`](crate::extended) for `ibv_start_poll`. They call the provider's, and after
//! several consecutive polls that found nothing they do the device's work, like
//! [`OpenFile::poll_idle`] in programs that use the Rust library.
//!
//! [`OpenFile::poll_idle`]: uverbs_soft::chardev::OpenFile::poll_idle

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::transmute;

use crate::contexts::{Context, Slot};

/// Consecutive polls without a completion before the thread does the device's work. So a program
/// that polls only now and then does not do it.
const EMPTY_POLLS: u32 = 8;

/// `struct ibv_cq`, as far as it is used here.
#[repr(C)]
pub struct CompletionQueue {
    context: *mut Context,
}

type PollCq = unsafe extern "C" fn(*mut CompletionQueue, c_int, *mut c_void) -> c_int;

thread_local! {
    /// Consecutive polls of this thread that found nothing.
    static EMPTY: Cell<u32> = const { Cell::new(0) };
    /// Whether this thread is doing the device's work.
    static IS_AT_WORK: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C" {
    /// `pthread_setcancelstate(3)`.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of `<pthread.h>`.
const CANCEL_DISABLE: c_int = 1;

/// Does the device's work in this thread, which holds the device's locks meanwhile.
/// `pthread_cancel(3)` does not end the thread during it, since `ibv_poll_cq` is not a cancellation
/// point.
pub(crate) fn at_work<T>(work: impl FnOnce() -> T) -> T {
    let before = set_cancellation(CANCEL_DISABLE);
    let outer = IS_AT_WORK.replace(true);
    let result = work();
    IS_AT_WORK.set(outer);
    set_cancellation(before);
    result
}

/// Whether this is called in a signal handler that has interrupted the device's work in this
/// thread. If the handler ends the process, the work never releases its locks.
pub(crate) fn is_interrupted_at_work() -> bool {
    IS_AT_WORK.try_with(Cell::get).unwrap_or(false)
}

/// Sets whether this thread can be cancelled, and returns the previous state.
fn set_cancellation(state: c_int) -> c_int {
    let mut before = 0;
    // SAFETY: it stores an integer in `before`. An unknown state is refused.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// Replaces the provider's function.
///
/// # Safety
/// As `ibv_poll_cq(3)`.
pub(crate) unsafe extern "C" fn poll_cq(
    queue: *mut CompletionQueue,
    entries: c_int,
    completions: *mut c_void,
) -> c_int {
    // SAFETY: the caller polls a completion queue, so its context is open.
    let context = unsafe { (*queue).context };
    let Some(slot) = Slot::find(context) else { return -1 };
    // SAFETY: the context's table had this function of the same type, before this one replaced it.
    let provider: PollCq = unsafe { transmute(slot.poll_cq()) };
    // SAFETY: the program's own call.
    let found = unsafe { provider(queue, entries, completions) };
    // SAFETY: the context is open while its queue is polled.
    unsafe { polled(context, found == 0) };
    found
}

/// Call this after each poll. If several consecutive polls found nothing, it lets the device make
/// progress, or other threads run.
///
/// # Safety
/// The context is open, and is not closed during the call.
pub(crate) unsafe fn polled(context: *mut Context, is_empty: bool) {
    let empty = if is_empty { EMPTY.get().saturating_add(1) } else { 0 };
    EMPTY.set(empty);
    if empty <= EMPTY_POLLS {
        return;
    }
    // SAFETY: the caller's.
    if let Some(node) = Slot::find(context).and_then(|slot| unsafe { slot.node() }) {
        at_work(|| node.file.poll_idle());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_not_cancelled_in_the_midst_of_the_devices_work() {
        let state = || {
            let state = set_cancellation(CANCEL_DISABLE);
            set_cancellation(state);
            (state, is_interrupted_at_work())
        };
        let outside = state();
        assert_ne!(outside, (CANCEL_DISABLE, true));
        at_work(|| assert_eq!(state(), (CANCEL_DISABLE, true)));
        assert_eq!(state(), outside);
    }
}
