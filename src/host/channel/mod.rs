//! The interface to the character device: raw ioctl bytes, `mmap`, and files of events.
//!
//! Everything above this module is the same for a kernel device and for the software one; a second
//! provider's device would come in here as well, since nothing in a `Channel` is particular to
//! mlx5. Calls through it are control path only: queues are rung through mapped pages.

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

/// `poll(2)` for reading: whether one of `files` is readable before `timeout` is over.
pub(crate) fn readable(files: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Result<bool, Errno> {
    let mut fds: Vec<_> = files.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    // Rounded up, so that a caller that tries again does not spin.
    let timeout = timeout.map_or(PollTimeout::NONE, |time| {
        PollTimeout::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(PollTimeout::MAX)
    });
    poll(&mut fds, timeout).map(|ready| ready > 0)
}

/// What a mapping of device pages may be used for.
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

/// What becomes of an open file when its channel is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtDrop {
    /// Another descriptor may keep it open.
    Stays,
    /// It ends.
    #[cfg(feature = "soft")]
    Ends,
    /// It ends, unless a child holds a descriptor of it that `vfork` or `posix_spawn` made.
    EndsUnlessHeld(FileId),
}

/// Events that are not in the file of their channel.
pub(crate) trait Handed: fmt::Debug + Send + Sync {
    /// As [`readable`], until [`read`](Self::read) or the first of `files` has an event. Does the
    /// device's work meanwhile.
    fn wait(&self, files: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Result<bool, Errno>;

    /// Reads one. Returns its length.
    fn read(&self, record: &mut [u8]) -> Option<usize>;
}

/// An open uverbs character device, or something that behaves like one.
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
    /// `NotFound` where the attribute does not exist.
    fn attribute(&self, name: &str) -> io::Result<String>;

    /// Called between two polls that found nothing. A hardware device makes progress by itself, so
    /// this is only the processor's hint for spin loops, and never a system call. The software
    /// device makes progress in the calling thread.
    fn poll_idle(&self) {
        std::hint::spin_loop();
    }

    /// What a thread that waits for events of this completion channel is handed by a device that
    /// it drives meanwhile.
    fn handed(&self, _channel: BorrowedFd<'_>) -> Option<Arc<dyn Handed>> {
        None
    }

    /// Whether the open file ends, and with it all of its objects, when this is dropped.
    fn at_drop(&self) -> AtDrop {
        AtDrop::Stays
    }

    /// Before the device's clock is read: brings its page up to date, where the page is not a
    /// register.
    fn refresh_clock(&self) {}

    /// The file itself, where there is one (the software device has none). The caller may duplicate
    /// it.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;
}
