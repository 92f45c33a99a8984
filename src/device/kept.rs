//! What a context keeps for the objects made from it until it ends.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::context::Context;
use crate::host::fork::Lock;

/// Something that is released some time after its owner was dropped.
pub(crate) trait Deferred: fmt::Debug + Send {
    /// Whether it can be given back now.
    fn is_ready(&self) -> bool;
    /// Gives it back.
    fn release(self: Box<Self>);
}

/// Blocks that outlive their users and are used again, and releases that wait until they are safe.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    blocks: Lock<Vec<Arc<dyn Any + Send + Sync>>>,
    deferred: Lock<Vec<Box<dyn Deferred>>>,
}

impl Kept {
    /// A block for which `fits` holds and that has no user, else a new one. `None` in a forked
    /// child that finds the list locked.
    pub(crate) fn block<T: Send + Sync + 'static>(
        &self,
        fits: impl Fn(&T) -> bool,
        make: impl FnOnce() -> T,
    ) -> Option<Arc<T>> {
        let mut all = self.blocks.lock()?;
        let unused = |block: &&Arc<dyn Any + Send + Sync>| {
            Arc::strong_count(block) == 1 && block.downcast_ref().is_some_and(&fits)
        };
        if let Some(block) = all.iter().find(unused) {
            // What the last user did comes before what the next one does, as in `Arc::get_mut`.
            fence(Ordering::Acquire);
            return block.clone().downcast().ok();
        }
        let block = Arc::new(make());
        all.push(block.clone());
        Some(block)
    }

    /// Releases `last` as soon as it is ready.
    pub(crate) fn defer(&self, last: impl Deferred + 'static) {
        match self.deferred.lock() {
            Some(mut deferred) => deferred.push(Box::new(last)),
            // A forked child found the list locked: what it holds is the parent's.
            None => std::mem::forget(last),
        }
        self.release_ready();
    }

    /// Releases what is ready. Does nothing in a forked child, where a queue's own locks could be
    /// held for ever.
    pub(crate) fn release_ready(&self) {
        if self.deferred.is_inherited() {
            return;
        }
        let Some(mut deferred) = self.deferred.lock() else { return };
        let (ready, waiting) = std::mem::take(&mut *deferred)
            .into_iter()
            .partition::<Vec<_>, _>(|deferred| deferred.is_ready());
        *deferred = waiting;
        drop(deferred);
        ready.into_iter().for_each(Deferred::release);
    }
}

/// Releases what is ready when it is dropped: the last field of objects that releases wait for.
#[derive(Debug)]
pub(crate) struct ReleaseOnDrop(pub(crate) Context);

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        self.0.inner().kept.release_ready();
    }
}

#[cfg(test)]
impl Kept {
    /// Keeps all other threads waiting.
    pub(crate) fn hold(&self) -> impl Sized + '_ {
        (self.deferred.lock(), self.blocks.lock())
    }
}
