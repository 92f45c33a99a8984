//! The event files of an open device file: found by their descriptor, dropped once the program has
//! closed them.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::Arc;

use nix::errno::Errno;

use super::event_queue::{EventQueue, identity};
use crate::chardev::objects::object::{EventFile, Kind};

/// Up to this many files are searched for closed ones whenever one is added.
const FEW: usize = 16;

/// Event files by device and inode of their descriptors. No other file can get the inode of one in
/// this table, because the device holds the other end of its pipe.
#[derive(Debug, Default)]
pub(crate) struct EventFiles {
    files: BTreeMap<(u64, u64), EventFile>,
    /// The number of files at which closed ones are searched for.
    sweep_at: usize,
    /// The first asynchronous one, which the kernel keeps until the device file is closed.
    first_async: Option<Arc<EventQueue>>,
    /// How many times a file was checked for being closed.
    #[cfg(test)]
    checks: usize,
}

impl EventFiles {
    /// The first asynchronous event file. Objects report to it if they name no other.
    pub(crate) fn default_async(&self) -> Option<&Arc<EventQueue>> {
        self.first_async.as_ref()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &EventFile> {
        self.files.values()
    }

    /// The queue of a descriptor; EBADF if there is no event file of that kind with it.
    pub(crate) fn find(&self, fd: RawFd, kind: Kind) -> Result<Arc<EventQueue>, Errno> {
        self.file(fd, kind).map(|file| file.queue.clone())
    }

    /// As [`find`](Self::find), the whole file.
    pub(crate) fn file(&self, fd: RawFd, kind: Kind) -> Result<&EventFile, Errno> {
        let file = self.files.get(&identity(fd)?).filter(|file| file.kind == kind);
        file.ok_or(Errno::EBADF)
    }

    /// Adds a file. If there are many, it searches for closed ones once there are twice as many as
    /// the last search left, so that each new file costs a constant number of checks.
    pub(crate) fn add(&mut self, file: EventFile) {
        if self.files.len() <= FEW || self.files.len() >= self.sweep_at {
            self.sweep();
        }
        if file.kind == Kind::AsyncEvent && self.first_async.is_none() {
            self.first_async = Some(file.queue.clone());
        }
        self.files.insert(file.queue.identity(), file);
    }

    /// Drops the files that the program has closed.
    pub(crate) fn sweep(&mut self) {
        #[cfg(test)]
        {
            self.checks += self.files.len();
        }
        let first = self.first_async.as_ref().map(|queue| queue.identity());
        self.files.retain(|own, file| Some(*own) == first || !file.queue.abandoned());
        self.sweep_at = 2 * self.files.len();
    }

    /// Ends all files.
    pub(crate) fn close(&mut self) {
        std::mem::take(&mut self.files).values().for_each(|file| file.queue.close());
        self.first_async = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, OwnedFd};

    fn file(kind: Kind) -> (EventFile, OwnedFd) {
        let (queue, fd) = EventQueue::new().unwrap();
        (EventFile { kind, queue, omits_data: false }, fd)
    }

    #[test]
    fn a_file_is_found_by_its_descriptor_and_kind() {
        let (mut files, (one, fd)) = (EventFiles::default(), file(Kind::CompChannel));
        let queue = one.queue.clone();
        files.add(one);
        let found = files.find(fd.as_raw_fd(), Kind::CompChannel);
        assert!(found.is_ok_and(|found| Arc::ptr_eq(&found, &queue)));
        assert_eq!(files.find(fd.as_raw_fd(), Kind::AsyncEvent).err(), Some(Errno::EBADF));
        let (_, other) = file(Kind::CompChannel);
        assert_eq!(files.find(other.as_raw_fd(), Kind::CompChannel).err(), Some(Errno::EBADF));
    }

    #[test]
    fn each_new_file_costs_a_constant_number_of_checks() {
        let (mut files, mut kept) = (EventFiles::default(), Vec::new());
        for _ in 0..400 {
            let (one, fd) = file(Kind::CompChannel);
            files.add(one);
            kept.push(fd);
        }
        assert!(files.checks <= FEW * FEW + 2 * kept.len(), "{} checks", files.checks);
    }

    #[test]
    fn closed_files_are_dropped() {
        let mut files = EventFiles::default();
        let (first, async_fd) = file(Kind::AsyncEvent);
        let (kept, fd) = file(Kind::CompChannel);
        files.add(first);
        files.add(kept);
        drop(async_fd);
        for _ in 0..10 * FEW {
            files.add(file(Kind::CompChannel).0);
            assert!(files.files.len() <= FEW + 1);
        }
        files.sweep();
        assert_eq!(files.files.len(), 2, "the open one, and the first asynchronous one");
        assert!(files.find(fd.as_raw_fd(), Kind::CompChannel).is_ok());
        assert!(files.default_async().is_some());
    }
}
