//! `glob(3)`: the C library's bypasses the hooks when it reads directories, unless it is given
//! functions for this (`GLOB_ALTDIRFUNC`).

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

use crate::hooks_stat::{lstat, stat};
use crate::sys::{self, next};

/// `GLOB_ALTDIRFUNC` of glob.h: the functions of [`Glob`] are used.
const ALTDIRFUNC: c_int = 1 << 9;

/// `glob_t` of glob.h.
#[repr(C)]
#[derive(Debug)]
pub struct Glob {
    paths: usize,
    list: *mut *mut c_char,
    offset: usize,
    flags: c_int,
    close: unsafe extern "C" fn(*mut libc::DIR) -> c_int,
    read: unsafe extern "C" fn(*mut libc::DIR) -> *mut libc::dirent,
    open: unsafe extern "C" fn(*const c_char) -> *mut libc::DIR,
    lstat: unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int,
    stat: unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int,
}

const _: () = {
    assert!(size_of::<Glob>() == size_of::<libc::glob_t>());
    assert!(offset_of!(Glob, offset) == offset_of!(libc::glob_t, gl_offs));
};

type Failed = Option<unsafe extern "C" fn(*const c_char, c_int) -> c_int>;
type Function = unsafe extern "C" fn(*const c_char, c_int, Failed, *mut c_void) -> c_int;

/// # Safety
/// As `glob(3)`.
unsafe fn with_hooks(
    next: Function,
    pattern: *const c_char,
    flags: c_int,
    failed: Failed,
    into: *mut Glob,
) -> c_int {
    if flags & ALTDIRFUNC == 0 {
        // SAFETY: the C function's contract: a struct of the program. The C library does not read
        // its functions without the flag.
        unsafe {
            (&raw mut (*into).close).write(libc::closedir);
            (&raw mut (*into).read).write(libc::readdir);
            (&raw mut (*into).open).write(libc::opendir);
            (&raw mut (*into).lstat).write(lstat);
            (&raw mut (*into).stat).write(stat);
        }
    }
    // SAFETY: the program's own call, with functions that behave like the C library's.
    unsafe { next(pattern, flags | ALTDIRFUNC, failed, into.cast()) }
}

/// Both names of the C function are the same where `off_t` has 64 bits.
macro_rules! glob_family {
    ($($name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        /// As the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            pattern: *const c_char,
            flags: c_int,
            failed: Failed,
            into: *mut Glob,
        ) -> c_int {
            let Some(next) = next!($name as Function) else {
                return sys::fail(libc::ENOSYS);
            };
            // SAFETY: the C function's contract.
            unsafe { with_hooks(next, pattern, flags, failed, into) }
        }
    )*};
}

glob_family! { glob glob64 }
