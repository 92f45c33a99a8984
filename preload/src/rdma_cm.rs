//! `/dev/infiniband/rdma_cm`: the open files of this process, and the calls on their descriptors.
//!
//! What a program gets is the read end of a pipe, which is readable while events wait
//! (`uverbs_soft::chardev::RdmaCm`). It is recognised by its inode, as a verbs node is (`node.rs`),
//! so duplicates need no bookkeeping. The pipe's other end has the same inode and is this library's
//! own; it is left alone by its number. Commands come through `write(2)`; the kernel's file has
//! neither read nor ioctl nor mmap.

use std::ffi::{c_int, c_ulong, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use nix::errno::Errno;
use uverbs_soft::chardev::CmFile;

use crate::sys::{self, next};
use crate::{device, node, trace};

/// One open of the node.
pub(crate) struct Open {
    file: CmFile,
    kept: c_int,
}

/// All of them.
pub(crate) type Table = RwLockWriteGuard<'static, Vec<Arc<Open>>>;

static OPEN: RwLock<Vec<Arc<Open>>> = RwLock::new(Vec::new());
/// How many there are, so that a program that has none pays one load.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn read() -> RwLockReadGuard<'static, Vec<Arc<Open>>> {
    OPEN.read().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps every other thread out of the table.
pub(crate) fn lock() -> Table {
    OPEN.write().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the node: the descriptor to hand to the program.
pub(crate) fn open(close_on_exec: bool) -> Result<c_int, Errno> {
    reap();
    let host = device::connection_manager()?;
    let (file, descriptor) = host.open(close_on_exec)?;
    let kept = file.kept();
    let mut table = lock();
    table.push(Arc::new(Open { file, kept }));
    COUNT.store(table.len(), Ordering::Release);
    drop(table);
    node::ensure_reaper();
    trace::cm_opened(descriptor.as_raw_fd());
    Ok(descriptor.into_raw_fd())
}

/// The open file that a descriptor of the program's refers to.
pub(crate) fn find(fd: c_int) -> Option<Arc<Open>> {
    if COUNT.load(Ordering::Acquire) == 0 || fd < 0 {
        return None;
    }
    let identity = sys::identity(fd)?;
    read().iter().find(|open| open.file.identity() == identity && open.kept != fd).cloned()
}

/// Closes the files whose last descriptor is gone.
pub(crate) fn reap() {
    if COUNT.load(Ordering::Acquire) == 0 {
        return;
    }
    for open in take(|open| open.file.is_abandoned()) {
        drop(open);
        trace::cm_closed();
    }
}

/// Closes all files, as the end of a process does.
pub(crate) fn close_all() {
    drop(take(|_| true));
}

/// Takes files out of the table. They are closed by the caller, without the table's lock: closing
/// sends datagrams, and what is written passes the hooks below.
fn take(is_one: impl Fn(&Open) -> bool) -> Vec<Arc<Open>> {
    let all = read().clone();
    let chosen: Vec<Arc<Open>> = all.into_iter().filter(|open| is_one(open)).collect();
    let mut table = lock();
    table.retain(|open| !chosen.iter().any(|one| Arc::ptr_eq(one, open)));
    COUNT.store(table.len(), Ordering::Release);
    drop(table);
    chosen
}

/// The ends of the pipes on which the reaper waits, each with what keeps it open.
pub(crate) fn kept() -> Vec<Arc<Open>> {
    read().clone()
}

impl Open {
    pub(crate) fn kept_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the file owns the descriptor, and is not closed before `self` goes.
        unsafe { BorrowedFd::borrow_raw(self.kept) }
    }
}

/// In a forked child: forgets the files without closing them, since they are the parent's.
pub(crate) fn forget(mut table: Table) {
    std::mem::forget(std::mem::take(&mut *table));
    COUNT.store(0, Ordering::Release);
}

/// ioctl requests that the kernel answers for every file.
const OF_EVERY_FILE: [c_ulong; 4] = [libc::FIONBIO, libc::FIOCLEX, libc::FIONCLEX, libc::FIOASYNC];

/// Whether an ioctl is refused, because the descriptor is of this node.
pub(crate) fn refuses(fd: c_int, request: c_ulong) -> bool {
    !OF_EVERY_FILE.contains(&request) && find(fd).is_some()
}

type Move<P> = unsafe extern "C" fn(c_int, P, usize) -> isize;

fn failed(errno: Errno) -> isize {
    sys::fail(errno as c_int) as isize
}

/// `write(2)`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, length: usize) -> isize {
    if let Some(open) = find(fd) {
        // SAFETY: the program's open descriptor; a command of its own, whose addresses it vouches
        // for as it would to the kernel.
        let result = unsafe {
            let fd = BorrowedFd::borrow_raw(fd);
            open.file.write(fd, bytes.cast(), length)
        };
        trace::cm_command(bytes as u64, length, result);
        return result.map_or_else(failed, |length| length as isize);
    }
    match next!(write as Move<*const c_void>) {
        // SAFETY: the program's own call.
        Some(next) => unsafe { next(fd, bytes, length) },
        None => failed(Errno::ENOSYS),
    }
}

/// `read(2)`: the kernel's file has none.
///
/// # Safety
/// As the C function.
#[unsafe(export_name = "read")]
pub unsafe extern "C" fn read_hook(fd: c_int, into: *mut c_void, length: usize) -> isize {
    if find(fd).is_some() {
        return failed(Errno::EINVAL);
    }
    match next!(read as Move<*mut c_void>) {
        // SAFETY: the program's own call.
        Some(next) => unsafe { next(fd, into, length) },
        None => failed(Errno::ENOSYS),
    }
}
