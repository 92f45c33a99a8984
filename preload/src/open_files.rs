//! A table of the device files of one kind that this process has open.
//!
//! A kernel closes a file within close(2). Here there is no hook for the close of the program's
//! last descriptor. So a thread watches the files, and each call whose result could depend on a
//! file that is still open checks them first (`node::catch_up`). A file is kept open only by the
//! table, and by calls on it that have not returned.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use crate::sys;

/// A device file of which the program has descriptors.
pub(crate) trait DeviceFile {
    /// Device and inode of the program's descriptors.
    fn identity(&self) -> (u64, u64);
    /// The library's own descriptor, on which poll(2) reports that the program's are closed.
    fn kept(&self) -> c_int;
}

/// Whether the program has closed its last descriptor. poll(2) then reports POLLHUP for the other
/// end of a socket and POLLERR for that of a pipe, whatever events are requested.
fn is_abandoned(file: &impl DeviceFile) -> bool {
    sys::poll(&mut [sys::waiting_for(file.kept(), 0)], Duration::ZERO) == 1
}

/// The open files of one kind.
pub(crate) struct OpenFiles<F: 'static> {
    files: RwLock<Vec<Arc<F>>>,
    /// Their number, so that in a program without any a call costs only a load.
    count: AtomicUsize,
}

/// The lock on a table, held while the process forks.
pub(crate) type Table<F> = RwLockWriteGuard<'static, Vec<Arc<F>>>;

/// Held while files are closed, so that a thread that looks for abandoned files waits until another
/// thread has closed them.
static CLOSING: Mutex<()> = Mutex::new(());

/// While held, no other thread closes files.
pub(crate) type Closing = MutexGuard<'static, ()>;

/// Waits until no other thread closes files.
pub(crate) fn closing() -> Closing {
    CLOSING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: DeviceFile> OpenFiles<F> {
    pub(crate) const fn new() -> Self {
        Self { files: RwLock::new(Vec::new()), count: AtomicUsize::new(0) }
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Arc<F>>> {
        self.files.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Vec<Arc<F>>) -> T) -> T {
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut files);
        self.count.store(files.len(), Ordering::Release);
        result
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    pub(crate) fn add(&self, file: F) {
        self.change(|files| files.push(Arc::new(file)));
    }

    /// The file that a descriptor of the program refers to. Both ends of a pipe have the same
    /// inode, so the library's own end is excluded by its number.
    pub(crate) fn find(&self, fd: c_int) -> Option<Arc<F>> {
        if self.count() == 0 || fd < 0 {
            return None;
        }
        let identity = sys::identity(fd)?;
        self.read().iter().find(|file| file.identity() == identity && file.kept() != fd).cloned()
    }

    /// The file of this library's own descriptor `kept`.
    pub(crate) fn of_kept(&self, kept: c_int) -> Option<Arc<F>> {
        self.read().iter().find(|file| file.kept() == kept).cloned()
    }

    /// The descriptors on which poll(2) reports a file that the program has closed. They are only
    /// numbers, which do not keep the files open.
    pub(crate) fn kept(&self) -> Vec<c_int> {
        self.read().iter().map(|file| file.kept()).collect()
    }

    /// Calls `close` for the files whose last descriptor is closed. Returns when all of them are
    /// closed, by this thread or by another one.
    pub(crate) fn close_abandoned(&self, close: impl Fn(Arc<F>)) {
        if self.count() == 0 {
            return;
        }
        let _closing = closing();
        // Close them without the table's lock: closing sends datagrams, and these calls go through
        // the hooks.
        self.take(is_abandoned).into_iter().for_each(close);
    }

    /// Removes files from the table and returns them to be closed.
    pub(crate) fn take(&self, is_one: impl Fn(&F) -> bool) -> Vec<Arc<F>> {
        self.change(|files| {
            let all = std::mem::take(files);
            let (taken, left) = all.into_iter().partition(|file| is_one(file));
            *files = left;
            taken
        })
    }

    /// Locks out other threads.
    pub(crate) fn lock(&'static self) -> Table<F> {
        self.files.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// In a forked child: forgets the files without closing them, since they are the parent's.
    pub(crate) fn forget(&self, mut table: Table<F>, each: impl FnMut(&F)) {
        let files = std::mem::take(&mut *table);
        files.iter().map(|file| &**file).for_each(each);
        std::mem::forget(files);
        self.count.store(0, Ordering::Release);
    }
}
