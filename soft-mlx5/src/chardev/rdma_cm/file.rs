//! An open file of the node.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use uverbs_soft_cm::cma::CmaError;

use super::commands::Call;
use super::context::FileNumber;
use super::host::RdmaCm;
use crate::chardev::abi::user_memory::UserMemory;

/// One open of `/dev/infiniband/rdma_cm`: an event channel with its ids. Dropping it is the last
/// close(2).
#[derive(Debug)]
pub struct CmFile {
    host: RdmaCm,
    number: FileNumber,
    identity: (u64, u64),
}

impl CmFile {
    pub(super) fn new(host: RdmaCm, number: FileNumber, identity: (u64, u64)) -> Self {
        Self { host, number, identity }
    }

    /// Device and inode of the program's descriptor, which duplicates share.
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Whether the program has closed its last descriptor.
    pub fn is_abandoned(&self) -> bool {
        self.host.shared.lock().queues.get(&self.number).is_none_or(|queue| queue.is_abandoned())
    }

    /// The device's end of the pipe: poll(2) reports POLLERR on it once the program has closed its
    /// last descriptor.
    pub fn kept(&self) -> RawFd {
        let state = self.host.shared.lock();
        state.queues.get(&self.number).map_or(-1, |queue| queue.kept().as_raw_fd())
    }

    /// The number of a command's error. [`Errno`] has no variant for [`CmaError::NOT_SUPPORTED`],
    /// the only error of the kernel that nix does not know: `UnknownErrno` represents it.
    pub fn errno_number(errno: Errno) -> i32 {
        match errno {
            Errno::UnknownErrno => CmaError::NOT_SUPPORTED.0,
            errno => errno as i32,
        }
    }

    /// As [`errno_number`](Self::errno_number).
    pub fn error(errno: Errno) -> io::Error {
        io::Error::from_raw_os_error(Self::errno_number(errno))
    }

    /// write(2): a command. Returns `length`.
    ///
    /// `descriptor` is the program's. Fetching an event waits until it is readable, unless it is
    /// non-blocking.
    ///
    /// # Errors
    /// The errno of ucma; EIO in a forked child; EINTR if a signal ends the wait for an event.
    ///
    /// # Safety
    /// `length` bytes at `address` may be read, and the command's response address may be
    /// overwritten. Addresses that are not mapped are EFAULT.
    pub unsafe fn write(
        &self,
        descriptor: BorrowedFd<'_>,
        address: *const u8,
        length: usize,
    ) -> Result<usize, Errno> {
        if !self.host.shared.is_here() {
            return Err(Errno::EIO);
        }
        // SAFETY: the caller guarantees that the command's addresses are valid.
        let memory = unsafe { UserMemory::new() };
        loop {
            let shared = &Arc::clone(&self.host.shared);
            let result = Call::run(shared, self.number, memory, address as u64, length);
            self.show_to(descriptor);
            match result {
                Err(Errno::EAGAIN) => wait(descriptor)?,
                result => return result.map(|()| length),
            }
        }
    }

    /// Makes the descriptor readable if there are events, and otherwise not readable.
    fn show_to(&self, descriptor: BorrowedFd<'_>) {
        if let Some(queue) = self.host.shared.lock().queues.get_mut(&self.number) {
            queue.show_to(descriptor);
        }
    }
}

/// Waits for an event. If another thread has closed the descriptor, no event will come. The
/// kernel's call then continues to wait until a signal ends it, and so does this one.
fn wait(descriptor: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = match fcntl(descriptor, FcntlArg::F_GETFL) {
        Err(Errno::EBADF) => return poll(&mut [], PollTimeout::NONE).map(drop),
        flags => OFlag::from_bits_retain(flags?),
    };
    if flags.contains(OFlag::O_NONBLOCK) {
        return Err(Errno::EAGAIN);
    }
    let mut fds = [PollFd::new(descriptor, PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::NONE).map(drop)
}

impl Drop for CmFile {
    fn drop(&mut self) {
        if self.host.shared.is_here() {
            let mut state = self.host.shared.lock();
            state.close(self.number);
            self.host.shared.unlock(state);
        }
    }
}
