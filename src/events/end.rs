//! The end of a stream of events that the kernel does not end.
//!
//! ib_uverbs gives DEVICE_FATAL as the last asynchronous event of a device that is removed, and leaves the file as it
//! is: a read after it waits for ever (`uverbs_async_event_destroy_uobj`, drivers/infiniband/core/uverbs_std_types_async_fd.c;
//! the files of completion channels do end, with EIO). So the end is kept here, and whoever waits is woken.

#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::{Error, ErrorKind, Result};

/// Whether a stream has ended, and a descriptor that is readable when it has or when events are there.
#[derive(Debug)]
pub(crate) struct End {
    reached: AtomicBool,
    signal: EventFd,
    either: Epoll,
}

impl End {
    /// Of the stream in the file `events`.
    pub(crate) fn new(verb: &'static str, events: BorrowedFd<'_>) -> Result<Self> {
        Self::open(events).map_err(|errno| Error::os(verb, errno))
    }

    fn open(events: BorrowedFd<'_>) -> nix::Result<Self> {
        let signal = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let either = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        either.add(events, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        either.add(&signal, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        Ok(Self { reached: AtomicBool::new(false), signal, either })
    }

    /// The last event was taken: everybody who waits or will wait is told.
    pub(crate) fn reach(&self) {
        if !self.reached.swap(true, Ordering::AcqRel) {
            // Its count of zero has room for one, which is the only way for this to fail.
            let _ = self.signal.write(1);
        }
    }

    /// # Errors
    /// `DeviceGone` once the end is reached.
    pub(crate) fn require_not_reached(&self, verb: &'static str) -> Result<()> {
        if !self.reached.load(Ordering::Acquire) {
            return Ok(());
        }
        let gone = Error::os(verb, Errno::EIO).with_kind(ErrorKind::DeviceGone);
        Err(gone.because("the device is gone, and its last event, DEVICE_FATAL, was taken"))
    }
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.either.0.as_fd()
    }
}
