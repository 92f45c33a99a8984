//! The file of a stream on which event loops wait.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// A direction of a stream.
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

/// An epoll file for the stream's two event files and an eventfd. The eventfd is readable while a
/// side should try again because the other side took an event.
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

/// Which sides wait, and which of those were notified to try again.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    waits: [bool; 2],
    told: [bool; 2],
}

impl Waiting {
    /// Notes that a side has to wait.
    pub(crate) fn waits(&mut self, side: Side) {
        self.waits[side as usize] = true;
    }

    /// Notes that a side tries again, and clears its notification.
    pub(crate) fn tries(&mut self, side: Side, readiness: Option<&Readiness>) {
        self.waits[side as usize] = false;
        let was_told = std::mem::replace(&mut self.told[side as usize], false);
        if let (true, [false, false], Some(readiness)) = (was_told, self.told, readiness) {
            // It cannot block: this lock protects the counter, and a notified side has written to
            // it.
            let _ = readiness.told.read();
        }
    }

    /// Notifies a waiting side to try again. If there is no file, no program waits on it.
    pub(crate) fn tell(&mut self, side: Side, readiness: Option<&Readiness>) {
        let waits = self.waits[side as usize] && !self.told[side as usize];
        if let (true, Some(readiness)) = (waits, readiness) {
            self.told[side as usize] = readiness.told.write(1).is_ok();
        }
    }
}
