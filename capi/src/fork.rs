//! Fork support: what programs ask for before they fork, and how locks recognise a child.

use std::ffi::{c_int, c_void};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use uverbs::fork::kernel_copies_pinned_pages;

use crate::result::refused;

/// The number of forks from the process that loaded the library to this one.
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
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler may run in any child: it adds to an atomic. Without memory for it
        // children are not told apart, and may wait for locks that no thread holds.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
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
