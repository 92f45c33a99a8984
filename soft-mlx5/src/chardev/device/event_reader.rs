//! A completion channel of a thread that does the device's work while it waits for an event.
//!
//! Such a thread usually raises its event itself. Through the channel's pipe, that would take three
//! system calls: write, poll(2) and read. Here the thread takes the event directly. Events that
//! other threads raise go through the pipe, so the thread also waits for the file.
#![forbid(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::event_queue::EventQueue;
use super::shared::DeviceShared;
use crate::runtime::Expected;

/// Waits for events of a completion channel, and reads those that are not in its file.
#[derive(Debug)]
pub struct EventReader {
    pub(super) device: Arc<DeviceShared>,
    pub(super) queue: Arc<EventQueue>,
}

impl EventReader {
    /// As [`OpenFile::wait_readable`]; the first file is the channel's. Also returns `Some(0)` if
    /// [`read`](Self::read) has an event.
    ///
    /// # Errors
    /// As poll(2): EINTR by a signal.
    ///
    /// [`OpenFile::wait_readable`]: crate::chardev::OpenFile::wait_readable
    pub fn wait(
        &self,
        files: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> nix::Result<Option<usize>> {
        self.device.wait_for_event(&*self.queue, files, timeout)
    }

    /// Reads an event that is not in the file, which is the oldest one. Returns its length.
    pub fn read(&self, record: &mut [u8]) -> Option<usize> {
        self.queue.take_handed(record)
    }
}

impl Expected for EventQueue {
    fn expect(&self) {
        self.expect();
    }

    fn has_come(&self) -> bool {
        self.has_come()
    }
}
