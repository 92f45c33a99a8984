//! The end of an event stream that the kernel does not end, and records that are read ahead of the
//! program's calls.
//!
//! When a device is removed, DEVICE_FATAL is its last asynchronous event, but ib_uverbs does not
//! end the file: a later read waits for ever (`uverbs_async_event_destroy_uobj`,
//! drivers/infiniband/core/uverbs_std_types_async_fd.c; the files of completion channels do end,
//! with EIO). So the library records the end here, and wakes every waiting thread.
//!
//! That event is also the kernel's only report that all objects of a file are destroyed: the file
//! of asynchronous events is the oldest object of its context, and objects are destroyed newest
//! first (`__uverbs_cleanup_ufile`, drivers/infiniband/core/rdma_core.c). But an object that the
//! driver fails to destroy is tried again after the event, and Linux before 5.8 sends the event
//! before it destroys the first object. Both happen while `hw_destroy_rwsem` is held, for which a
//! destroying command waits (`uobj_destroy`). So after a failed destroy the library reads ahead
//! here and, if the event is there, sends the command again. A DEVICE_FATAL with a port number is a
//! different event: mlx5_ib reports a fatal firmware error that way (`MLX5_DEV_EVENT_SYS_ERROR`,
//! drivers/infiniband/hw/mlx5/main.c), while all objects still exist.

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

/// The end of a stream, and a descriptor that is readable if the stream has ended or has events.
#[derive(Debug)]
pub(crate) struct End {
    reached: AtomicBool,
    /// Whether the DEVICE_FATAL of a removal was read, by a program's call or ahead.
    removed: AtomicBool,
    /// Records that were read ahead, oldest first. `reached` and `signal` change only with this
    /// lock held.
    ahead: Lock<VecDeque<Record>>,
    signal: EventFd,
    either: Epoll,
}

impl End {
    /// For the stream of the file `events`.
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

    /// Ends the stream, after its last event was taken: wakes all waiting threads.
    pub(crate) fn reach(&self) {
        let Some(_ahead) = self.ahead.lock() else { return };
        if !self.reached.swap(true, Ordering::AcqRel) {
            self.raise();
        }
    }

    fn raise(&self) {
        // Fails only if the count overflows, which needs far more records.
        let _ = self.signal.write(1);
    }

    /// The next record: one that was read ahead, or one from `read`. Skips records read ahead for
    /// destroyed objects, for which `is_known` is false, as the kernel does in its own queue.
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
            // Fails only if the signal is not set.
            let _ = self.signal.read();
        }
        next.map_or_else(|| read().inspect(|record| self.note(record)), Ok)
    }

    fn note(&self, record: &Record) {
        if super::is_removal(record) {
            self.removed.store(true, Ordering::Release);
        }
    }

    /// Whether the kernel has reported the removal of the device. Reads all records that are there,
    /// and keeps them for the program.
    pub(crate) fn device_is_gone(&self, read: impl Fn() -> Result<Record>) -> bool {
        self.keep_events(read, |_| ()) && self.removed.load(Ordering::Acquire)
    }

    /// Reads all records that are there, calls `learn` with each, and keeps them for the program.
    /// Returns false in a forked child if the lock is held.
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
    /// `DeviceGone` after the end of the stream.
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
