//! Errors as C functions report them: errno, with a code or a null pointer.

use std::ffi::c_int;
use std::ptr;

use uverbs::{DestroyError, Error};

/// Sets `errno` of the calling thread.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the address of the calling thread's own errno.
    unsafe { *libc::__errno_location() = errno };
}

/// A null pointer, with the reason in `errno`.
pub(crate) fn null<T>(errno: c_int) -> *mut T {
    set_errno(errno);
    ptr::null_mut()
}

/// Sets errno to the error of a failed verb, and returns it.
pub(crate) fn failed(error: &Error) -> c_int {
    crate::trace::failure(error);
    set_errno(error.errno());
    error.errno()
}

/// The result of a verb that returns a code: zero or an errno.
pub(crate) fn code(result: Result<(), Error>) -> c_int {
    result.map_or_else(|error| failed(&error), |()| 0)
}

/// Sets errno to one that this library chose, and returns it.
pub(crate) fn refused(errno: c_int) -> c_int {
    set_errno(errno);
    errno
}

/// The result of a verb that returns an object: a pointer to it, or null.
pub(crate) fn pointer<T, B>(made: Result<Box<T>, Error>) -> *mut B {
    match made {
        Ok(object) => Box::into_raw(object).cast(),
        Err(error) => null(failed(&error)),
    }
}

/// Destroys the object in `slot`; puts it back if that fails.
pub(crate) fn destroy<T, R>(
    slot: &mut Option<T>,
    destroy: impl FnOnce(T) -> Result<R, DestroyError<T>>,
) -> c_int {
    let Some(object) = slot.take() else { return refused(libc::EINVAL) };
    match destroy(object) {
        Ok(_) => 0,
        Err(DestroyError { object, error, .. }) => {
            *slot = Some(*object);
            failed(&error)
        }
    }
}

/// Destroys a program's object: the library's part of it, which `part` finds, and then the memory.
/// If the former fails, nothing has changed. Returns the errno.
///
/// # Safety
/// `object` is from `Box::into_raw` and not destroyed, and no other thread uses it now.
pub(crate) unsafe fn destroy_and_free<S, T, R>(
    object: *mut S,
    part: impl FnOnce(&mut S) -> &mut Option<T>,
    how: impl FnOnce(T) -> Result<R, DestroyError<T>>,
) -> c_int {
    // SAFETY: the caller's promise.
    let errno = destroy(part(unsafe { &mut *object }), how);
    if errno == 0 {
        // SAFETY: the caller's promise; the object is freed once.
        unsafe { crate::observe::free(object) };
    }
    errno
}

#[cfg(test)]
pub(crate) mod tests;
