//! Fork support: what programs ask for before they fork.

use std::ffi::{c_int, c_void};

use uverbs::fork::kernel_copies_pinned_pages;

use crate::result::refused;

/// `ibv_fork_init`: nothing is to do where the kernel copies pinned pages (5.12 and later). On an
/// older kernel the memory of queues is left out of children by the library itself, and registered
/// memory is the program's affair, so it is ENOSYS there rather than a promise that is not kept.
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
