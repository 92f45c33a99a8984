//! Programs that poll with `ibv_poll_cq`: the polls that find nothing let the device make progress.
//!
//! `ibv_poll_cq` is an inline function of `<infiniband/verbs.h>`. It calls the provider through a
//! table in `struct ibv_context`, and the provider reads the completion queue in memory. So a
//! program that polls in a loop makes no call that a hook could see, and the device's thread has to
//! share the processors with it: on a machine with more threads than processors each message waits
//! for time slices.
//!
//! Here `ibv_open_device` puts a function of its own in that table. It calls the provider's, and
//! after some polls in a row that found nothing it looks in the device's stead, as
//! [`OpenFile::poll_idle`] does for programs of the Rust library.
//!
//! Contexts that are opened otherwise (`mlx5dv_open_device`, `ibv_import_device`) and extended
//! completion queues (`ibv_start_poll`) keep the provider's functions: the device's thread works
//! for them.
//!
//! [`OpenFile::poll_idle`]: uverbs_soft::chardev::OpenFile::poll_idle

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::mem::{ManuallyDrop, transmute};
use std::ptr;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use nix::errno::Errno;

use crate::node::{self, Node};

/// Functions in `struct ibv_context_ops`.
const OPERATIONS: usize = 32;

/// The place of `poll_cq` among them.
const POLL_CQ: usize = 11;

/// Polls in a row that may find nothing before the device is looked after. A program that polls now
/// and then between other work pays nothing for it.
const EMPTY_POLLS: u32 = 8;

/// `struct ibv_context` of `<infiniband/verbs.h>`, as far as it matters here.
#[repr(C)]
pub struct Context {
    device: *mut c_void,
    operations: [*mut c_void; OPERATIONS],
    cmd_fd: c_int,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::offset_of!(Context, cmd_fd) == 264);

/// `struct ibv_cq`, as far as it matters here.
#[repr(C)]
pub struct CompletionQueue {
    context: *mut Context,
}

type PollCq = unsafe extern "C" fn(*mut CompletionQueue, c_int, *mut c_void) -> c_int;

/// A context of the program on one of this library's nodes.
struct Slot {
    is_taken: AtomicBool,
    /// Null while the slot is not in use. The other two are set before.
    context: AtomicPtr<Context>,
    provider: AtomicPtr<c_void>,
    /// From [`Weak::into_raw`]: the context does not keep the node open.
    node: AtomicPtr<Node>,
}

/// No lock, since a forked child could find it held. Contexts beyond these keep the provider's
/// function.
static SLOTS: [Slot; 64] = [const { Slot::new() }; 64];

thread_local! {
    /// Polls of this thread in a row that found nothing.
    static EMPTY: Cell<u32> = const { Cell::new(0) };
}

impl Slot {
    const fn new() -> Self {
        Self {
            is_taken: AtomicBool::new(false),
            context: AtomicPtr::new(ptr::null_mut()),
            provider: AtomicPtr::new(ptr::null_mut()),
            node: AtomicPtr::new(ptr::null_mut()),
        }
    }

    fn find(context: *mut Context) -> Option<&'static Self> {
        SLOTS.iter().find(|slot| slot.context.load(Ordering::Acquire) == context)
    }

    fn take() -> Option<&'static Self> {
        SLOTS.iter().find(|slot| !slot.is_taken.swap(true, Ordering::AcqRel))
    }

    fn set(&self, context: *mut Context, provider: *mut c_void, node: Weak<Node>) {
        self.provider.store(provider, Ordering::Relaxed);
        self.node.store(node.into_raw().cast_mut(), Ordering::Relaxed);
        self.context.store(context, Ordering::Release);
    }

    /// # Safety
    /// No thread polls a queue of the slot's context, now or later.
    unsafe fn clear(&self) {
        self.context.store(ptr::null_mut(), Ordering::Release);
        let node = self.node.swap(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: from `into_raw` in `set`; `idle` does not use it any more, by this function's
        // contract.
        drop(unsafe { Weak::from_raw(node) });
        self.is_taken.store(false, Ordering::Release);
    }

    /// Lets the device make progress, or other threads run.
    ///
    /// # Safety
    /// The slot is in use, and not cleared meanwhile.
    unsafe fn idle(&self) {
        // SAFETY: from `into_raw` in `set`, which was before the context was stored; not yet
        // dropped, by this function's contract. The weak reference stays the slot's.
        let node = ManuallyDrop::new(unsafe { Weak::from_raw(self.node.load(Ordering::Relaxed)) });
        if let Some(node) = node.upgrade() {
            without_cancellation(|| node.file.poll_idle());
        }
    }
}

unsafe extern "C" {
    /// `pthread_setcancelstate(3)`.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of `<pthread.h>`.
const CANCEL_DISABLE: c_int = 1;

/// Runs `work`, in which `pthread_cancel(3)` does not end the thread: the device waits in the
/// kernel with its locks held, and `ibv_poll_cq` is no cancellation point.
fn without_cancellation(work: impl FnOnce()) {
    let before = set_cancellation(CANCEL_DISABLE);
    work();
    set_cancellation(before);
}

/// Sets whether this thread can be cancelled; how it was before.
fn set_cancellation(state: c_int) -> c_int {
    let mut before = 0;
    // SAFETY: it stores an integer in `before`. An unknown state is refused.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// In place of the provider's function.
///
/// # Safety
/// As `ibv_poll_cq(3)`.
unsafe extern "C" fn poll_cq(
    queue: *mut CompletionQueue,
    entries: c_int,
    completions: *mut c_void,
) -> c_int {
    // SAFETY: the caller polls a completion queue, so its context is open.
    let Some(slot) = Slot::find(unsafe { (*queue).context }) else { return -1 };
    // SAFETY: what `watch` found in a table of such functions, in the place of this one.
    let provider: PollCq = unsafe { transmute(slot.provider.load(Ordering::Relaxed)) };
    // SAFETY: the program's own call.
    let found = unsafe { provider(queue, entries, completions) };
    let empty = if found == 0 { EMPTY.get().saturating_add(1) } else { 0 };
    EMPTY.set(empty);
    if empty > EMPTY_POLLS {
        // SAFETY: the context is open while its queue is polled.
        unsafe { slot.idle() };
    }
    found
}

/// Puts [`poll_cq`] in the table of a context on one of this library's nodes.
///
/// # Safety
/// `context` is what `ibv_open_device` has just given.
unsafe fn watch(context: *mut Context) {
    // SAFETY: an open context, which no other thread knows yet.
    let context = unsafe { &mut *context };
    let Some(node) = node::find(context.cmd_fd) else { return };
    let Some(slot) = Slot::take() else { return };
    let provider = std::mem::replace(&mut context.operations[POLL_CQ], poll_cq as *mut c_void);
    slot.set(context, provider, std::sync::Arc::downgrade(&node));
}

/// libibverbs's own function of this name; null if there is none.
fn next(name: &CStr) -> *mut c_void {
    // SAFETY: C strings. The library may have been loaded for one module of the program alone, so
    // that the search in the order of libraries does not find it.
    unsafe {
        let function = libc::dlsym(libc::RTLD_NEXT, name.as_ptr());
        if !function.is_null() {
            return function;
        }
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
        let library = libc::dlopen(c"libibverbs.so.1".as_ptr(), flags);
        if library.is_null() { library } else { libc::dlsym(library, name.as_ptr()) }
    }
}

/// `ibv_open_device(3)`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut c_void) -> *mut Context {
    let function = next(c"ibv_open_device");
    if function.is_null() {
        Errno::ENOSYS.set();
        return ptr::null_mut();
    }
    // SAFETY: libibverbs's function of this name has this type.
    let open: unsafe extern "C" fn(*mut c_void) -> *mut Context = unsafe { transmute(function) };
    // SAFETY: the program's own call.
    let context = unsafe { open(device) };
    if !context.is_null() {
        let before = Errno::last();
        // SAFETY: just opened.
        unsafe { watch(context) };
        before.set();
    }
    context
}

/// `ibv_close_device(3)`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut Context) -> c_int {
    if let Some(slot) = Slot::find(context).filter(|_| !context.is_null()) {
        // SAFETY: a program that closes a context polls its queues no more.
        unsafe { slot.clear() };
    }
    let function = next(c"ibv_close_device");
    if function.is_null() {
        Errno::ENOSYS.set();
        return -1;
    }
    // SAFETY: libibverbs's function of this name has this type.
    let close: unsafe extern "C" fn(*mut Context) -> c_int = unsafe { transmute(function) };
    // SAFETY: the program's own call.
    unsafe { close(context) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_not_cancelled_in_the_midst_of_the_devices_work() {
        let state = || {
            let state = set_cancellation(CANCEL_DISABLE);
            set_cancellation(state);
            state
        };
        let outside = state();
        assert_ne!(outside, CANCEL_DISABLE);
        without_cancellation(|| assert_eq!(state(), CANCEL_DISABLE));
        assert_eq!(state(), outside);
    }
}
