//! The file of a stream on which event loops and tasks wait.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// A direction of a stream, for which a thread or a task waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Read,
    Write,
}

impl Side {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Read => Self::Write,
            Self::Write => Self::Read,
        }
    }
}

/// An epoll file over the stream's two event files and an eventfd. The eventfd is readable while a
/// side has to try again because the other side took an event.
#[derive(Debug)]
pub(crate) struct Readiness {
    epoll: Epoll,
    told: EventFd,
}

impl Readiness {
    pub(crate) fn new(files: [BorrowedFd<'_>; 2]) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let told = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        for file in files.into_iter().chain([told.as_fd()]) {
            epoll.add(file, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        }
        Ok(Self { epoll, told })
    }
}

impl AsFd for Readiness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

/// Which sides wait, and which of those were told to try again.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    waits: [bool; 2],
    told: [bool; 2],
}

impl Waiting {
    /// A side has to wait.
    pub(crate) fn waits(&mut self, side: Side) {
        self.waits[side as usize] = true;
    }

    /// A side tries again: it needs to be told no longer.
    pub(crate) fn tries(&mut self, side: Side, readiness: Option<&Readiness>) {
        self.waits[side as usize] = false;
        let was_told = std::mem::replace(&mut self.told[side as usize], false);
        if let (true, [false, false], Some(readiness)) = (was_told, self.told, readiness) {
            // It counts up to where it would block, and is read under the same lock.
            let _ = readiness.told.read();
        }
    }

    /// Tells a side that waits to try again. Without the file, no program waits on it.
    pub(crate) fn tell(&mut self, side: Side, readiness: Option<&Readiness>) {
        let waits = self.waits[side as usize] && !self.told[side as usize];
        if let (true, Some(readiness)) = (waits, readiness) {
            self.told[side as usize] = readiness.told.write(1).is_ok();
        }
    }
}
