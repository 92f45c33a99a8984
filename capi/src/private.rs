//! What libibverbs exports for its providers, and for programs that were linked before 2008.
//!
//! The providers are C libraries that speak to the kernel through `ibv_cmd_…`. Here there is one
//! provider, built in. The names exist because programs would not load otherwise: perftest links
//! libefa, whose constructor registers a driver.

use std::ffi::{c_int, c_void};

use crate::result::refused;

/// `verbs_register_driver_…` and `ibv_register_driver`: no driver is loaded, so none is registered.
pub(crate) unsafe extern "C" fn register_driver(_: *const c_void) {}

/// `__verbs_log`: messages of providers are dropped.
pub(crate) unsafe extern "C" fn log(_: *mut c_void, _: u32, _: *const std::ffi::c_char) {}

/// All others: ENOSYS, for functions that return a code. Those that return a pointer are not called
/// without a provider.
pub(crate) unsafe extern "C" fn absent() -> c_int {
    refused(libc::ENOSYS)
}

/// Functions that return a pointer: null, ENOSYS.
pub(crate) unsafe extern "C" fn absent_pointer() -> *mut c_void {
    crate::result::null(libc::ENOSYS)
}

/// Verbs that the library does not have: EOPNOTSUPP.
pub(crate) unsafe extern "C" fn unsupported() -> c_int {
    refused(libc::EOPNOTSUPP)
}

/// Verbs that the library does not have and that return a pointer: null, EOPNOTSUPP.
pub(crate) unsafe extern "C" fn unsupported_pointer() -> *mut c_void {
    crate::result::null(libc::EOPNOTSUPP)
}

/// Verbs that the library does not have and that return −1.
pub(crate) unsafe extern "C" fn unsupported_minus_one() -> c_int {
    refused(libc::EOPNOTSUPP);
    -1
}
