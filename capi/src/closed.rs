//! Contexts that a program closes before it destroys their objects. Destroying an object reads its
//! context, even in inline functions of the header. So a context's memory stays until its objects
//! are gone, and is freed the next time that a device is opened or closed.

use std::any::Any;
use std::sync::Weak;
use std::sync::atomic::{Ordering, fence};

use crate::context::Context;
use crate::table::Table;

/// A closed context, and a reference that is valid as long as one of its objects exists.
struct Closed {
    context: *mut Context,
    objects: Weak<dyn Any + Send + Sync>,
}

// SAFETY: only the destruction of its objects uses the context, and that takes a lock.
unsafe impl Send for Closed {}

static CLOSED: Table<Vec<Closed>> = Table::new();

impl Closed {
    /// Frees the memory if no object is left. Returns whether it has to stay.
    fn stays(&self) -> bool {
        if self.objects.strong_count() > 0 {
            return true;
        }
        // Orders the destruction of the objects before the free, as in the drop of an `Arc`.
        fence(Ordering::Acquire);
        // SAFETY: the program closed it, no object points to it, and the caller forgets it.
        unsafe { crate::observe::free(self.context) };
        false
    }
}

/// Closes a context.
///
/// # Safety
/// `context` is from `Box::into_raw`, and is closed once.
pub(crate) unsafe fn close(context: *mut Context) {
    // SAFETY: the caller's promise; no thread uses a context while it is closed.
    let objects = unsafe { Context::close(context) };
    CLOSED.lock().push(Closed { context, objects });
    release();
}

/// Frees the contexts whose last object is gone.
pub(crate) fn release() {
    CLOSED.lock().retain(Closed::stays);
}
