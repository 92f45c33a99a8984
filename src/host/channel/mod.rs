//! The interface to the character device: raw ioctl bytes, `mmap`, and files of events.
//!
//! Code above this module is the same for kernel devices and the software device. A `Channel` is
//! not specific to mlx5, so a second provider could use it, too. It is for the control path only:
//! doorbells are rung through mapped pages.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::children::FileId;
use super::system::{Call, Mapping};

mod kernel;
#[cfg(feature = "soft")]
mod soft;
pub(crate) mod sysfs;

pub(crate) use kernel::{KernelChannel, check, number_of};
#[cfg(feature = "soft")]
pub(crate) use soft::SoftSource;
pub use sysfs::Roots;
pub(crate) use sysfs::{Entry, node_guid, scan};

/// Waits with `poll(2)`; returns whether one of `files` became readable before `timeout`.
pub(crate) fn readable(files: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Result<bool, Errno> {
    let mut fds: Vec<_> = files.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    // Rounded up, so that a caller that retries until a deadline does not spin.
    let timeout = timeout.map_or(PollTimeout::NONE, |time| {
        PollTimeout::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(PollTimeout::MAX)
    });
    poll(&mut fds, timeout).map(|ready| ready > 0)
}

/// Access rights of a mapping of device pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Read only: clock pages.
    Read,
    /// Write only: doorbell pages.
    Write,
    /// Both: on-device memory.
    ReadWrite,
}

impl Access {
    pub(crate) fn protection(self) -> i32 {
        match self {
            Self::Read => libc::PROT_READ,
            Self::Write => libc::PROT_WRITE,
            Self::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        }
    }
}

/// What happens to an open file when its channel is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtDrop {
    /// Another descriptor may keep it open.
    Stays,
    /// It is closed.
    #[cfg(feature = "soft")]
    Ends,
    /// It is closed, unless a child of `vfork` or `posix_spawn` has a descriptor of it.
    EndsUnlessHeld(FileId),
}

/// Events that a software device passes directly to a waiting thread, not through the channel's
/// file.
pub(crate) trait Handed: fmt::Debug + Send + Sync {
    /// As [`readable`], but also ends when [`read`](Self::read) has an event. `files` begins with
    /// the channel's file. The device makes progress in the calling thread meanwhile.
    fn wait(&self, files: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Result<bool, Errno>;

    /// Takes one event. Returns its length in bytes; `None` if there is none.
    fn read(&self, record: &mut [u8]) -> Option<usize>;
}

/// An open uverbs character device, or the software device.
pub(crate) trait Channel: fmt::Debug + Send + Sync {
    /// Executes a request (`RDMA_VERBS_IOCTL`).
    ///
    /// # Errors
    /// The errno that the kernel would give.
    fn ioctl(&self, call: Call<'_>) -> io::Result<()>;

    /// Maps `length` bytes of the device at file offset `offset`, shared.
    ///
    /// # Errors
    /// The errno that `mmap(2)` would give.
    fn mmap(&self, length: usize, access: Access, offset: u64) -> Result<Mapping, Errno>;

    /// Text of a sysfs attribute of the RDMA device, named relative to `class/infiniband/<device>`.
    ///
    /// # Errors
    /// `NotFound` if the attribute does not exist.
    fn attribute(&self, name: &str) -> io::Result<String>;

    /// Called after a poll that found nothing. A hardware device makes progress by itself, so this
    /// is only a spin-loop hint, and never a system call. The software device makes progress in the
    /// calling thread.
    fn poll_idle(&self) {
        std::hint::spin_loop();
    }

    /// The events that the software device passes directly to threads that wait on this completion
    /// channel.
    fn handed(&self, _channel: BorrowedFd<'_>) -> Option<Arc<dyn Handed>> {
        None
    }

    /// Whether dropping this closes the open file, and so destroys all of its objects.
    fn at_drop(&self) -> AtDrop {
        AtDrop::Stays
    }

    /// Called before the device's clock is read: updates its page if that is ordinary memory.
    fn refresh_clock(&self) {}

    /// The file; `None` for the software device. The caller may duplicate it.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;
}
