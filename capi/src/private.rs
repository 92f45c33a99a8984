//! Functions that libibverbs exports for its providers, and for programs linked before 2008.
//!
//! Providers of libibverbs are C libraries that call the kernel through `ibv_cmd_…`. This library
//! has its one provider built in. The names exist because programs would not load without them:
//! perftest links libefa, whose constructor registers a driver.

use std::ffi::{c_int, c_void};

use crate::result::refused;

/// `verbs_register_driver_…` and `ibv_register_driver`: does nothing, because no drivers are
/// loaded.
pub(crate) unsafe extern "C" fn register_driver(_: *const c_void) {}

/// `__verbs_log`: messages of providers are dropped.
pub(crate) unsafe extern "C" fn log(_: *mut c_void, _: u32, _: *const std::ffi::c_char) {}

/// All others that return a code: ENOSYS.
pub(crate) unsafe extern "C" fn absent() -> c_int {
    refused(libc::ENOSYS)
}

/// All others that return a pointer: null, with ENOSYS in errno. Only providers call them.
pub(crate) unsafe extern "C" fn absent_pointer() -> *mut c_void {
    crate::result::null(libc::ENOSYS)
}

/// Verbs that this library does not implement: EOPNOTSUPP.
pub(crate) unsafe extern "C" fn unsupported() -> c_int {
    refused(libc::EOPNOTSUPP)
}

/// The same for verbs that return a pointer: null, with EOPNOTSUPP in errno.
pub(crate) unsafe extern "C" fn unsupported_pointer() -> *mut c_void {
    crate::result::null(libc::EOPNOTSUPP)
}

/// The same for verbs that return −1.
pub(crate) unsafe extern "C" fn unsupported_minus_one() -> c_int {
    refused(libc::EOPNOTSUPP);
    -1
}
