//! Memory that a context keeps for its objects until it is closed.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::context::Context;
use crate::host::fork::Lock;

/// A resource that is released some time after its owner was dropped.
pub(crate) trait Deferred: fmt::Debug + Send {
    /// Whether it can be released now.
    fn is_ready(&self) -> bool;
    /// Releases it.
    fn release(self: Box<Self>);
}

/// Blocks of memory that outlive their users and are reused, and releases that wait until they are
/// safe.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    blocks: Lock<HashMap<(TypeId, usize), Blocks>>,
    deferred: Lock<Releases>,
}

/// Waiting releases.
#[derive(Debug, Default)]
struct Releases {
    waiting: Vec<Box<dyn Deferred>>,
    /// Calls of [`Kept::release_some`] to skip before the next search: as many as the last search
    /// left waiting, so that a call makes a constant number of checks on average.
    until_search: usize,
}

impl Releases {
    fn search(&mut self) -> Vec<Box<dyn Deferred>> {
        let all = std::mem::take(&mut self.waiting).into_iter();
        let (ready, waiting) = all.partition(|deferred| deferred.is_ready());
        self.waiting = waiting;
        self.until_search = self.waiting.len();
        ready
    }
}

type Block = Arc<dyn Any + Send + Sync>;

/// Blocks of one type and size.
#[derive(Debug, Default)]
struct Blocks {
    all: Vec<Block>,
    /// Indices of the blocks that the last search found unused and that are still unused.
    unused: Vec<usize>,
    /// Blocks to hand out before the next search: as many as the last search found in use, so that
    /// handing out a block makes a constant number of checks on average.
    until_search: usize,
    /// Number of blocks checked so far.
    #[cfg(test)]
    checks: usize,
}

impl Blocks {
    fn take(&mut self, is_unused: impl Fn(&Block) -> bool) -> Option<&Block> {
        if self.unused.is_empty() && self.until_search == 0 {
            self.search(is_unused);
        }
        self.until_search = self.until_search.saturating_sub(1);
        let place = self.unused.pop()?;
        self.all.get(place)
    }

    fn search(&mut self, is_unused: impl Fn(&Block) -> bool) {
        #[cfg(test)]
        {
            self.checks += self.all.len();
        }
        let places = (0..).zip(&self.all).filter(|(_, block)| is_unused(block));
        self.unused = places.map(|(place, _)| place).collect();
        self.until_search = self.all.len() - self.unused.len();
    }
}

impl Kept {
    /// A block of this size that has no user and for which `is_unused` holds, or a new one. `None`
    /// in a forked child if the list was locked at the fork.
    pub(crate) fn block<T: Send + Sync + 'static>(
        &self,
        size: usize,
        is_unused: impl Fn(&T) -> bool,
        make: impl FnOnce() -> T,
    ) -> Option<Arc<T>> {
        let mut blocks = self.blocks.lock()?;
        let own = blocks.entry((TypeId::of::<T>(), size)).or_default();
        let unused = |block: &Block| {
            Arc::strong_count(block) == 1 && block.downcast_ref().is_some_and(&is_unused)
        };
        if let Some(block) = own.take(unused) {
            // Orders the last user's accesses before the next one's, as in `Arc::get_mut`.
            fence(Ordering::Acquire);
            return block.clone().downcast().ok();
        }
        let block = Arc::new(make());
        own.all.push(block.clone());
        Some(block)
    }

    /// Releases `last` when a search finds it ready.
    pub(crate) fn defer(&self, last: impl Deferred + 'static) {
        match self.deferred.lock() {
            Some(mut deferred) => deferred.waiting.push(Box::new(last)),
            // In a forked child the list may stay locked for ever; the resource is the parent's.
            None => std::mem::forget(last),
        }
        self.release_some();
    }

    /// As [`release_ready`](Self::release_ready), but skips some calls if many releases wait: for
    /// callers with many queues.
    fn release_some(&self) {
        self.release(|deferred| {
            let left_out = deferred.until_search > 0;
            deferred.until_search = deferred.until_search.saturating_sub(1);
            if left_out { Vec::new() } else { deferred.search() }
        });
    }

    /// Does all ready releases. Does nothing in a forked child, where a queue's locks could be held
    /// for ever.
    pub(crate) fn release_ready(&self) {
        self.release(Releases::search);
    }

    fn release(&self, find: impl FnOnce(&mut Releases) -> Vec<Box<dyn Deferred>>) {
        if self.deferred.is_inherited() {
            return;
        }
        let ready = self.deferred.lock().map(|mut deferred| find(&mut deferred));
        ready.into_iter().flatten().for_each(Deferred::release);
    }
}

/// Does the ready releases when dropped: the last field of objects that releases wait for.
#[derive(Debug)]
pub(crate) struct ReleaseOnDrop(pub(crate) Context);

/// As [`ReleaseOnDrop`], for objects of which there may be many: skips some drops if many releases
/// wait.
#[derive(Debug)]
pub(crate) struct ReleaseSomeOnDrop(pub(crate) Context);

impl Drop for ReleaseSomeOnDrop {
    fn drop(&mut self) {
        self.0.inner().kept.release_some();
    }
}

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        self.0.inner().kept.release_ready();
    }
}

#[cfg(test)]
impl Kept {
    /// Holds the lock, so that all other threads wait.
    pub(crate) fn hold(&self) -> impl Sized + '_ {
        (self.deferred.lock(), self.blocks.lock())
    }
}

#[cfg(test)]
mod tests;
