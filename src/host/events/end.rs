//! The end of a stream of events that the kernel does not end, and records that are read before a
//! program asks.
//!
//! ib_uverbs gives DEVICE_FATAL as the last asynchronous event of a device that is removed, and
//! leaves the file as it is: a read after it waits for ever (`uverbs_async_event_destroy_uobj`,
//! drivers/infiniband/core/uverbs_std_types_async_fd.c; the files of completion channels do end,
//! with EIO). So the end is kept here, and every waiting thread is woken.
//!
//! That event is also the only statement of the kernel that all objects of a file are gone: the
//! file of asynchronous events is the oldest object of its context, and they are destroyed newest
//! first (`__uverbs_cleanup_ufile`, drivers/infiniband/core/rdma_core.c). An object that the driver
//! fails to destroy is tried again after the event, and Linux before 5.8 sends the event before it
//! destroys the first object. Both happen while `hw_destroy_rwsem` is held, which a command that
//! destroys an object waits for (`uobj_destroy`). So a destroy that failed reads ahead here, and is
//! sent again once the event is there. An event that names a port is another one: mlx5_ib reports a
//! fatal error of the firmware so (`MLX5_DEV_EVENT_SYS_ERROR`, drivers/infiniband/hw/mlx5/main.c),
//! while all objects exist.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::RECORD;
use crate::error::{Error, ErrorKind, Result};
use crate::host::fork::{self, Lock};

type Record = [u8; RECORD];

/// Whether a stream has ended, and a descriptor that is readable when it has or when events are
/// there.
#[derive(Debug)]
pub(crate) struct End {
    reached: AtomicBool,
    /// The DEVICE_FATAL of a removal was read, by a program's call or ahead of one.
    removed: AtomicBool,
    /// Records that were read ahead, oldest first. Its lock is held where `reached` and `signal`
    /// change.
    ahead: Lock<VecDeque<Record>>,
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
        let (reached, removed) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { reached, removed, ahead: Lock::default(), signal, either })
    }

    /// Ends the stream, since its last event was taken: wakes all threads that wait.
    pub(crate) fn reach(&self) {
        let Some(_ahead) = self.ahead.lock() else { return };
        if !self.reached.swap(true, Ordering::AcqRel) {
            self.raise();
        }
    }

    fn raise(&self) {
        // This fails only when the count overflows, and there are far fewer records.
        let _ = self.signal.write(1);
    }

    /// The next record: one that was read ahead, or what `read` gets. Of records that were read
    /// ahead it skips those of destroyed objects, which are not `is_known`: the kernel does the
    /// same with records in its own queue.
    pub(crate) fn next(
        &self,
        verb: &'static str,
        is_known: impl Fn(&Record) -> bool,
        read: impl FnOnce() -> Result<Record>,
    ) -> Result<Record> {
        self.require_not_reached(verb)?;
        let mut ahead = self.ahead.lock().ok_or_else(|| fork::forked(verb))?;
        if ahead.is_empty() {
            return read().inspect(|record| self.note(record));
        }
        let next = std::iter::from_fn(|| ahead.pop_front()).find(is_known);
        if ahead.is_empty() && !self.reached.load(Ordering::Acquire) {
            // Fails only where there is nothing to take back.
            let _ = self.signal.read();
        }
        next.map_or_else(|| read().inspect(|record| self.note(record)), Ok)
    }

    fn note(&self, record: &Record) {
        if super::is_removal(record) {
            self.removed.store(true, Ordering::Release);
        }
    }

    /// Whether the kernel has said that the device is gone. Reads what `read` gets, and keeps it
    /// for the program.
    pub(crate) fn device_is_gone(&self, read: impl Fn() -> Result<Record>) -> bool {
        self.keep_events(read, |_| ()) && self.removed.load(Ordering::Acquire)
    }

    /// Reads what `read` gets, shows it to `learn`, and keeps it for the program. False in a forked
    /// child that finds the lock held.
    pub(crate) fn keep_events(
        &self,
        read: impl Fn() -> Result<Record>,
        mut learn: impl FnMut(&Record),
    ) -> bool {
        let Some(mut ahead) = self.ahead.lock() else { return false };
        let before = ahead.len();
        while let Ok(record) = read() {
            self.note(&record);
            learn(&record);
            ahead.push_back(record);
        }
        if before == 0 && !ahead.is_empty() {
            self.raise();
        }
        true
    }

    /// # Errors
    /// `DeviceGone` once the end is reached.
    fn require_not_reached(&self, verb: &'static str) -> Result<()> {
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
