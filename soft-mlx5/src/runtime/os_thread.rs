//! Threads created by `pthread_create` rather than by the standard library.
//!
//! The standard library keeps a list of its threads behind a process-wide lock (for its message on
//! stack overflow), which a thread takes when it begins and ends. In a child that was forked at
//! such a moment the lock stays locked forever, and a thread started by the standard library would
//! hang. But devices must also start in such a child.
#![allow(unsafe_code)]

use std::ffi::{CString, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// Bytes of stack, as many as the standard library gives a thread. Some C libraries give far fewer.
/// Unused pages take no memory.
const STACK: usize = 2 << 20;

type Work = Box<dyn FnOnce() + Send>;

/// A running thread. Dropping this value does not end the thread.
#[derive(Debug)]
pub(crate) struct OsThread(libc::pthread_t);

// SAFETY: POSIX lets any thread of the process join any other; on some systems the id is a pointer
// that only the C library looks behind.
unsafe impl Send for OsThread {}
// SAFETY: nothing can be done through a shared reference.
unsafe impl Sync for OsThread {}

impl OsThread {
    /// Starts `work`, with the first 15 bytes of `name` as the thread's name. A panic of `work`
    /// ends the thread.
    ///
    /// # Errors
    /// `EAGAIN` if no thread can be created.
    pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let name = CString::new(name).unwrap_or_default();
        let named: Work = Box::new(move || {
            let _ = nix::sys::prctl::set_name(&name);
            work();
        });
        // A pointer to a trait object is two words, but a thread's argument is one, so there is a
        // second box.
        let argument = Box::into_raw(Box::new(named));
        match create(argument.cast()) {
            Ok(id) => Ok(Self(id)),
            Err(error) => {
                // SAFETY: from `Box::into_raw` above, and no thread was started with it.
                drop(unsafe { Box::from_raw(argument) });
                Err(error)
            }
        }
    }

    /// Waits for its end.
    pub(crate) fn join(self) {
        // SAFETY: a thread of this process (a forked child does not call this) that was neither
        // joined nor detached: that takes `self`.
        unsafe { libc::pthread_join(self.0, ptr::null_mut()) };
    }
}

fn create(argument: *mut c_void) -> io::Result<libc::pthread_t> {
    let (mut attributes, mut id) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: attributes are initialized before they are used and destroyed after; `main` takes
    // what `spawn` gives.
    let error = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK);
        let error = libc::pthread_create(id.as_mut_ptr(), attributes.as_ptr(), main, argument);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        error
    };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    // SAFETY: written by `pthread_create`, which has succeeded.
    Ok(unsafe { id.assume_init() })
}

extern "C" fn main(argument: *mut c_void) -> *mut c_void {
    // SAFETY: from `Box::into_raw` in `spawn`, which leaves it to this thread.
    let work = unsafe { Box::from_raw(argument.cast::<Work>()) };
    // Unwinding must not reach C. Work whose outcome matters catches its own panics.
    let _ = catch_unwind(AssertUnwindSafe(work));
    ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn work_runs_under_its_name_and_is_waited_for() {
        let (tell, told) = mpsc::channel();
        let name = || std::fs::read_to_string("/proc/thread-self/comm").unwrap();
        let thread = OsThread::spawn("soft a long name", move || tell.send(name()).unwrap());
        thread.unwrap().join();
        assert_eq!(told.try_recv().unwrap(), "soft a long nam\n");
    }

    #[test]
    fn a_panic_ends_the_thread_alone() {
        OsThread::spawn("panics", || panic!("on purpose")).unwrap().join();
    }
}
