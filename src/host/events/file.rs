//! Files of events.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::registry::{ObjectId, Observer, Registry};
use crate::error::{Error, ErrorKind, Result};
use crate::host::channel::Handed;

/// A file of events, and the registry whose lock every read takes. The file is always non-blocking;
/// blocking calls poll it first, so that the lock is not held while waiting.
#[derive(Debug)]
pub(crate) struct EventFile {
    fd: OwnedFd,
    pub(crate) handed: Option<Arc<dyn Handed>>,
    pub(crate) registry: Arc<Registry>,
}

impl EventFile {
    /// Takes a file that the kernel opened, and makes it non-blocking.
    pub(crate) fn new(verb: &'static str, fd: OwnedFd) -> Result<Self> {
        let flags = fcntl(&fd, FcntlArg::F_GETFL).map_err(|errno| Error::os(verb, errno))?;
        let flags = OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK;
        fcntl(&fd, FcntlArg::F_SETFL(flags)).map_err(|errno| Error::os(verb, errno))?;
        Ok(Self { fd, handed: None, registry: Arc::default() })
    }

    /// Takes one record if there is one, and counts it for its object.
    pub(crate) fn try_take<const N: usize>(
        &self,
        verb: &'static str,
        whose: impl FnOnce(&[u8; N]) -> Option<ObjectId>,
        learn: impl FnOnce(&[u8; N], &Observer),
    ) -> Result<[u8; N]> {
        self.registry.take(verb, |_| self.read(verb), whose, learn)
    }

    /// Reads one record if there is one, without counting it.
    pub(super) fn read<const N: usize>(&self, verb: &'static str) -> Result<[u8; N]> {
        let mut record = [0; N];
        let handed = self.handed.as_ref().and_then(|handed| handed.read(&mut record));
        match handed.map_or_else(|| nix::unistd::read(&self.fd, &mut record), Ok) {
            Ok(length) if length == N => Ok(record),
            Ok(0) | Err(Errno::EIO) => Err(ended(verb)),
            Ok(_) => Err(Error::os(verb, Errno::EIO)),
            Err(errno) => Err(Error::os(verb, errno)),
        }
    }

    /// Takes one record, after `wait` has waited until the file is readable. It waits first,
    /// because callers have mostly just polled, and a read before the wait would be one more system
    /// call.
    pub(crate) fn take<const N: usize>(
        &self,
        verb: &'static str,
        wait: impl Fn(BorrowedFd<'_>) -> nix::Result<bool>,
        whose: impl Fn(&[u8; N]) -> Option<ObjectId>,
        learn: impl Fn(&[u8; N], &Observer),
    ) -> Result<[u8; N]> {
        self.registry.require_opener(verb)?;
        loop {
            wait(self.as_fd()).map_err(|errno| Error::os(verb, errno))?;
            match self.try_take(verb, &whose, &learn) {
                // Another thread took it first.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
    }
}

/// The error of a read after the device was removed: the kernel's files then fail with EIO
/// (`ib_uverbs_event_read`, `devx_async_event_read`), and the software device's files end.
pub(crate) fn ended(verb: &'static str) -> Error {
    Error::os(verb, Errno::EIO).with_kind(ErrorKind::DeviceGone)
}

/// Waits until `fd` is readable.
pub(super) fn wait(verb: &'static str, fd: BorrowedFd<'_>) -> Result<()> {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::NONE).map(drop).map_err(|errno| Error::os(verb, errno))
}

/// Readable if there is an event, or after the device was removed.
impl AsFd for EventFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
