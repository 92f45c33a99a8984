//! `/dev/infiniband/rdma_cm`: the open files of this process, and the calls on their descriptors.
//!
//! A program gets the read end of a pipe, which is readable while events wait
//! (`uverbs_soft::chardev::RdmaCm`). This library recognises it by its inode, like a verbs node
//! (`node.rs`), so duplicates need no bookkeeping. The library keeps the pipe's other end, which
//! has the same inode and is excluded by its number. Commands come through `write(2)`; the kernel's
//! file has neither read nor ioctl nor mmap.

use std::ffi::{c_int, c_ulong, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use uverbs_soft::chardev::CmFile;

use crate::open_files::{self, DeviceFile, OpenFiles};
use crate::sys::{self, next};
use crate::{device, node, trace};

/// One open of the node.
pub(crate) struct Open {
    file: CmFile,
    /// The pipe's end that this library keeps.
    kept: c_int,
}

static OPEN: OpenFiles<Open> = OpenFiles::new();

/// A bit for each descriptor below 1024 that [`open`] has returned.
static RETURNED: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

/// The word and the bit of a descriptor; none for high numbers.
fn bit(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    RETURNED.get(fd / 64).map(|word| (word, 1 << (fd % 64)))
}

fn note_returned(fd: c_int) {
    if let Some((word, bit)) = bit(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Whether [`open`] may have returned this descriptor.
fn may_be_returned(fd: c_int) -> bool {
    bit(fd).is_none_or(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

impl DeviceFile for Open {
    fn identity(&self) -> (u64, u64) {
        self.file.identity()
    }

    fn kept(&self) -> c_int {
        self.kept
    }
}

/// Opens the node and returns the program's descriptor. With `does_not_block`, fetching an event
/// does not wait for one.
pub(crate) fn open(close_on_exec: bool, does_not_block: bool) -> Result<c_int, Errno> {
    node::close_abandoned();
    let host = device::connection_manager()?;
    let (file, descriptor) = host.open(close_on_exec)?;
    if does_not_block {
        fcntl(&descriptor, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    }
    let kept = file.kept();
    OPEN.add(Open { file, kept });
    node::ensure_reaper();
    note_returned(descriptor.as_raw_fd());
    trace::cm_opened(descriptor.as_raw_fd());
    Ok(descriptor.into_raw_fd())
}

/// The open file that a descriptor of the program's refers to.
pub(crate) fn find(fd: c_int) -> Option<Arc<Open>> {
    OPEN.find(fd)
}

/// The number of open files.
pub(crate) fn count() -> usize {
    OPEN.count()
}

/// The ends of the pipes that this library keeps.
pub(crate) fn kept() -> Vec<c_int> {
    OPEN.kept()
}

/// Closes the files whose last descriptor is closed.
pub(crate) fn close_abandoned() {
    OPEN.close_abandoned(|file| {
        drop(file);
        trace::cm_closed();
    });
}

/// Closes all files, as the end of a process does.
pub(crate) fn close_all() {
    drop(OPEN.take(|_| true));
}

/// The lock on the table, held while the process forks.
pub(crate) type Table = open_files::Table<Open>;

/// Locks out other threads.
pub(crate) fn lock() -> Table {
    OPEN.lock()
}

/// In a forked child: forgets the files without closing them, since they are the parent's.
pub(crate) fn forget(table: Table) {
    OPEN.forget(table, |_| ());
}

/// ioctl requests that the kernel answers for every file.
const OF_EVERY_FILE: [c_ulong; 4] = [libc::FIONBIO, libc::FIOCLEX, libc::FIONCLEX, libc::FIOASYNC];

/// Whether an ioctl is refused because the kernel's file of this node does not have it.
pub(crate) fn refuses(fd: c_int, request: c_ulong) -> bool {
    !OF_EVERY_FILE.contains(&request) && find(fd).is_some()
}

/// `read(2)` or `write(2)`.
type ReadOrWrite<P> = unsafe extern "C" fn(c_int, P, usize) -> isize;

fn failed(errno: Errno) -> isize {
    sys::fail(errno as c_int) as isize
}

fn command_failed(errno: Errno) -> isize {
    sys::fail(CmFile::errno_number(errno)) as isize
}

/// `write(2)`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, length: usize) -> isize {
    if let Some(open) = find(fd) {
        node::catch_up();
        // SAFETY: the program's own command on its open descriptor. Its addresses are as valid as
        // for the kernel.
        let result = unsafe {
            let fd = BorrowedFd::borrow_raw(fd);
            open.file.write(fd, bytes.cast(), length)
        };
        trace::cm_command(bytes as u64, length, result);
        return result.map_or_else(command_failed, |length| length as isize);
    }
    match next!(write as ReadOrWrite<*const c_void>) {
        // SAFETY: the program's own call.
        Some(next) => unsafe { next(fd, bytes, length) },
        None => failed(Errno::ENOSYS),
    }
}

/// `read(2)`: the kernel's file has none.
///
/// Programs often read from other files, and identifying a file takes a system call. So only
/// descriptors that [`open`] has returned are checked. A read from a duplicate of one, which fails
/// with the kernel's file, returns the pipe's byte.
///
/// # Safety
/// As the C function.
#[unsafe(export_name = "read")]
pub unsafe extern "C" fn read_hook(fd: c_int, into: *mut c_void, length: usize) -> isize {
    if may_be_returned(fd) && find(fd).is_some() {
        return failed(Errno::EINVAL);
    }
    match next!(read as ReadOrWrite<*mut c_void>) {
        // SAFETY: the program's own call.
        Some(next) => unsafe { next(fd, into, length) },
        None => failed(Errno::ENOSYS),
    }
}
