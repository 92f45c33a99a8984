//! A table of the device files of one kind that this process has open.
//!
//! A kernel closes a file within close(2). Here no call says that the program's last descriptor is
//! gone. So a thread watches the files, and each call whose result could show that a file is still
//! open checks them first (`node::catch_up`). Only the table, and a call on the file that has not
//! returned, keep a file open.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use crate::sys;

/// A device file of which the program has descriptors.
pub(crate) trait DeviceFile {
    /// Device and inode of the program's descriptors.
    fn identity(&self) -> (u64, u64);
    /// The descriptor of this library on which poll(2) reports that the program's are gone.
    fn kept(&self) -> c_int;
}

/// Whether the program has closed its last descriptor. Then poll(2) reports POLLHUP on the other
/// end of a socket and POLLERR on that of a pipe, for every set of requested events.
fn is_abandoned(file: &impl DeviceFile) -> bool {
    sys::poll(&mut [sys::waiting_for(file.kept(), 0)], Duration::ZERO) == 1
}

/// The open files of one kind.
pub(crate) struct OpenFiles<F: 'static> {
    files: RwLock<Vec<Arc<F>>>,
    /// Their number: a program that has none pays one load.
    count: AtomicUsize,
}

/// The lock on a table, held while the process forks.
pub(crate) type Table<F> = RwLockWriteGuard<'static, Vec<Arc<F>>>;

/// Held while files are closed, so that a second thread which looks for abandoned files finds none
/// that is being closed.
static CLOSING: Mutex<()> = Mutex::new(());

/// No other thread closes files while it lives.
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

    /// The file that a descriptor of the program refers to. A pipe's ends have one inode, so the
    /// library's own end is left out by its number.
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

    /// The descriptors on which poll(2) reports a file that the program has closed. They are
    /// numbers only: what waits on them keeps no file open.
    pub(crate) fn kept(&self) -> Vec<c_int> {
        self.read().iter().map(|file| file.kept()).collect()
    }

    /// Passes the files whose last descriptor was gone at the call to `close`. It returns when all
    /// of them are closed, by this thread or by another one.
    pub(crate) fn close_abandoned(&self, close: impl Fn(Arc<F>)) {
        if self.count() == 0 {
            return;
        }
        let _closing = closing();
        // They are closed without the table's lock: closing sends datagrams, and what is written
        // passes the hooks.
        self.take(is_abandoned).into_iter().for_each(close);
    }

    /// Takes files out of the table, which the caller closes.
    pub(crate) fn take(&self, is_one: impl Fn(&F) -> bool) -> Vec<Arc<F>> {
        self.change(|files| {
            let all = std::mem::take(files);
            let (taken, left) = all.into_iter().partition(|file| is_one(file));
            *files = left;
            taken
        })
    }

    /// Keeps every other thread out of the table.
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
