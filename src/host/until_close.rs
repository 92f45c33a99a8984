//! Memory of objects that could not be destroyed. The device may use it until the open file is
//! closed.
//!
//! When the last descriptor of the file is closed, the kernel destroys all objects of the file
//! before close(2) returns (`ib_uverbs_close`, drivers/infiniband/core/uverbs_main.c). This
//! library's descriptor is known to be the last one if the library never gave it out, did not
//! import it, and the process has not forked since the device was opened: a child has its own
//! descriptor until it ends or calls exec. Mapped device pages also keep the file open, so they are
//! unmapped first. In all other cases the memory stays until the process ends. It also stays if
//! another thread is inside `vfork` or `posix_spawn`, which run no handlers: the child holds the
//! file open until its exec ([`Children`]).

use std::fmt;
use std::sync::{Arc, Weak};

use crate::error::{Error, ErrorKind};
use crate::host::channel::{AtDrop, Channel};
use crate::host::children::Children;
use crate::host::fork::Lock;
use crate::host::system;

type Memory = Box<dyn Send>;

/// The kept memory of one context.
pub(crate) struct UntilClose {
    channel: Weak<dyn Channel>,
    /// The number of forks when `prepare` was called.
    forks: u64,
    kept: Lock<Vec<Memory>>,
    mapped: Lock<Vec<Memory>>,
    /// Whether closing the descriptor closes the file, from `prepare`.
    at_drop: AtDrop,
    /// The children before closing the descriptor, if they matter.
    children: Option<Children>,
}

impl fmt::Debug for UntilClose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UntilClose")
    }
}

impl UntilClose {
    pub(crate) fn new(channel: &Arc<dyn Channel>) -> Self {
        Self {
            channel: Arc::downgrade(channel),
            forks: 0,
            kept: Lock::default(),
            mapped: Lock::default(),
            at_drop: AtDrop::Stays,
            children: None,
        }
    }

    /// Keeps the memory of an object `what` that a `Drop` could not destroy because of `error`.
    pub(crate) fn keep(&self, what: &str, error: &Error, memory: impl Send + 'static) {
        let forked = error.kind() == ErrorKind::ForkedChild;
        if !forked {
            tracing::warn!(what, %error, "not destroyed; its memory is kept until the device is closed");
        }
        match self.kept.lock().filter(|_| !forked) {
            Some(mut kept) => kept.push(Box::new(memory)),
            // It belongs to the parent.
            None => std::mem::forget(memory),
        }
    }

    /// Keeps the doorbell register of a queue pair, and so device pages mapped: otherwise another
    /// queue pair could get the register.
    pub(crate) fn keep_mapped(&self, register: impl Send + 'static) {
        match self.mapped.lock() {
            Some(mut mapped) => mapped.push(Box::new(register)),
            None => std::mem::forget(register),
        }
    }

    /// Called when the context ends: its objects have been dropped; next its doorbell pages are
    /// unmapped, and then the descriptor is closed.
    pub(crate) fn prepare(&mut self) {
        self.forks = system::forks();
        if let Some(mut mapped) = self.mapped.lock() {
            mapped.clear();
        }
        let is_needed = self.kept.lock().is_some_and(|kept| !kept.is_empty());
        if let Some(channel) = self.channel.upgrade().filter(|_| is_needed) {
            self.at_drop = channel.at_drop();
            if let AtDrop::EndsUnlessHeld(file) = self.at_drop {
                self.children = Children::before_close(file).ok();
            }
        }
    }

    fn file_is_closed(&self) -> bool {
        self.channel.strong_count() == 0
            && self.forks == system::forks()
            && !self.kept.is_inherited()
            && match self.at_drop {
                AtDrop::Stays => false,
                #[cfg(feature = "soft")]
                AtDrop::Ends => true,
                AtDrop::EndsUnlessHeld(_) => {
                    self.children.as_ref().is_some_and(|children| !children.may_hold())
                }
            }
    }
}

impl Drop for UntilClose {
    fn drop(&mut self) {
        if self.file_is_closed() {
            return;
        }
        if let Some(mut kept) = self.kept.lock() {
            kept.drain(..).for_each(std::mem::forget);
        }
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "tests spawn processes that hang before exec")]
mod tests;
