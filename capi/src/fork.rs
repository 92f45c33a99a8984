//! Fork support: the verbs that programs call before they fork, and how locks recognise a forked
//! child.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use uverbs::fork::kernel_copies_pinned_pages;

use crate::result::refused;

/// Changes with each fork from the process that loaded the library to this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// A process, as distinct from its parents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    /// Whether the calling process is a forked child of this one.
    pub(crate) fn is_parent(self) -> bool {
        self.0 != FORKS.load(Ordering::Relaxed)
    }
}

/// The calling process. From this call on, its forked children are recognised.
pub(crate) fn process() -> Process {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if !REGISTERED.load(Ordering::Acquire) {
        // If several threads come first, each registers the handler, which is harmless. They do not
        // wait for each other, because a forked child has only one of them. SAFETY: the handler may
        // run in any child: it only increments an atomic. If there is no memory to register it,
        // children are not recognised, and may wait for locks that no thread will release.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        REGISTERED.store(true, Ordering::Release);
    }
    Process(FORKS.load(Ordering::Relaxed))
}

unsafe extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// `ibv_fork_init`: does nothing where the kernel copies pinned pages at fork (5.12 and later). On
/// an older kernel it is ENOSYS, because only the memory of queues is protected (the library keeps
/// it out of children) and registered memory is not.
pub(crate) unsafe extern "C" fn fork_init() -> c_int {
    if kernel_copies_pinned_pages() { 0 } else { refused(libc::ENOSYS) }
}

/// `ibv_is_fork_initialized`: 2 where it is not needed, 0 where it is disabled.
pub(crate) unsafe extern "C" fn is_fork_initialized() -> c_int {
    if kernel_copies_pinned_pages() { 2 } else { 0 }
}

/// `ibv_dontfork_range` and `ibv_dofork_range`, exported for old providers.
pub(crate) unsafe extern "C" fn fork_range(_start: *mut c_void, _length: usize) -> c_int {
    0
}

#[cfg(test)]
pub(crate) mod tests {
    /// Whether a forked child returns from `what` before an alarm ends it.
    pub(crate) fn a_child_returns(what: impl FnOnce()) -> bool {
        // SAFETY: the child allocates, which glibc allows after a fork, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: it only sets a timer.
            unsafe { libc::alarm(20) };
            what();
            // SAFETY: ends the child without running the test harness.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: a child of this process, and a status to write.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        waited == child && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}
