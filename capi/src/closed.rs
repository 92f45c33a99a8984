//! Contexts that a program closes while it has objects of them. The objects point to their context,
//! and destroying them reads it, in inline functions of the header as well. So its memory stays
//! until they are gone, and is given back when a device is opened or closed after that.

use std::any::Any;
use std::sync::atomic::{Ordering, fence};
use std::sync::{LazyLock, Weak};

use crate::context::Context;
use crate::lock::Shared;

/// A closed context, and what lives as long as its objects.
struct Closed {
    context: *mut Context,
    objects: Weak<dyn Any + Send + Sync>,
}

// SAFETY: nothing but its objects' destruction uses the context, under a lock of its own.
unsafe impl Send for Closed {}

static CLOSED: LazyLock<Shared<Vec<Closed>>> = LazyLock::new(Shared::default);

impl Closed {
    /// Gives the memory back if no object is left; whether it has not.
    fn stays(&self) -> bool {
        if self.objects.strong_count() > 0 {
            return true;
        }
        // What the objects' destruction did comes first, as in the drop of an `Arc`.
        fence(Ordering::Acquire);
        // SAFETY: the program closed it, no object points to it, and the caller forgets it.
        unsafe { crate::observe::free(self.context) };
        false
    }
}

/// Closes a context.
///
/// # Safety
/// From `Box::into_raw`, and closed once.
pub(crate) unsafe fn close(context: *mut Context) {
    // SAFETY: the caller's promise; no thread uses a context while it is closed.
    let objects = unsafe { Context::close(context) };
    // In a forked child that cannot have the lock the memory stays.
    if let Some(mut closed) = CLOSED.lock() {
        closed.push(Closed { context, objects });
    }
    release();
}

/// Gives back the contexts whose last object is gone.
pub(crate) fn release() {
    if let Some(mut closed) = CLOSED.lock() {
        closed.retain(Closed::stays);
    }
}
