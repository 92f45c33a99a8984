//! Event file descriptors: real, pollable ones.
//!
//! A queue is a pipe in packet mode: one record is one packet, so a read of any size takes exactly
//! one, as a read of ib_uverbs' event files does (uverbs_main.c, `ib_uverbs_event_read`). Only of a
//! record above 4,096 bytes does a short read leave the rest for the next read. The program has the
//! read end, the device the write end. This module adds two things to a pipe:
//! - records that do not fit in the pipe wait in a queue ([`EventQueue::flush`]);
//! - when an object is destroyed, its unread records are removed, and the object gets the number of
//!   its records that the program has read. For this the pipe is drained through a second,
//!   temporary read end, and the records of other objects are written back. Where no such end can
//!   be opened, the records stay, and the library drops them.
//!
//! A thread that does the device's work while it waits for a record takes the record that it raises
//! directly ([`EventQueue::expect`]), without the pipe.
//!
//! Differences from the kernel's files: after the end of the stream a read gives 0 bytes (kernel:
//! EIO) and poll says POLLHUP (kernel: POLLERR); a read into too small a buffer loses the rest of a
//! record of up to 4,096 bytes (kernel: EINVAL).
#![allow(unsafe_code)]

use crate::locking::lock;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use nix::errno::Errno;
use nix::sys::uio;

use crate::signals;

/// The most bytes that a pipe passes on as one packet. A longer record is alone in the pipe, which
/// is not in packet mode while it is written.
const LONGEST_PACKET: usize = libc::PIPE_BUF;

/// An object that reports to a queue: counts its records that the program has read.
#[derive(Debug, Default)]
pub(crate) struct Source {
    reported: AtomicU32,
}

impl Source {
    /// Records read so far; exact once [`EventQueue::forget`] has run.
    pub(crate) fn reported(&self) -> u32 {
        self.reported.load(Ordering::Relaxed)
    }
}

thread_local! {
    /// Its address identifies the thread. It has no destructor, so destructors and exit handlers
    /// that raise an event can still use it.
    static THREAD: u8 = const { 0 };
}

fn this_thread() -> usize {
    THREAD.with(|thread| std::ptr::from_ref(thread).addr())
}

/// A record, and the object that reported it; `None` for events of the device.
#[derive(Debug)]
struct Queued {
    record: Vec<u8>,
    source: Option<Arc<Source>>,
}

#[derive(Debug)]
struct Inner {
    /// `None` after the end of the stream.
    pipe: Option<File>,
    /// Records written to the pipe, oldest first; the oldest may have been read meanwhile.
    written: VecDeque<Queued>,
    /// Records that did not fit in the pipe.
    waiting: VecDeque<Queued>,
    /// The thread that takes the next record directly, if it raises that record and no older one is
    /// unread.
    expecting: Option<usize>,
    /// The record that this thread raised. It is older than the others.
    handed: Option<Queued>,
    /// The stream ends after the waiting records.
    ending: bool,
}

/// The device's side of an event file.
#[derive(Debug)]
pub(crate) struct EventQueue {
    identity: (u64, u64),
    inner: Mutex<Inner>,
    /// Whether `handed` may hold a record. A reader is often woken by a writer that still holds the
    /// lock; with this flag it need not wait for the lock to find no record.
    is_handed: AtomicBool,
}

impl EventQueue {
    /// Creates a queue and the descriptor for the program.
    pub(crate) fn new() -> Result<(Arc<Self>, OwnedFd), Errno> {
        let (read, write) = pipe()?;
        let pipe = File::from(above_standard_streams(write)?);
        let identity = identity(pipe.as_raw_fd())?;
        let inner = Inner {
            pipe: Some(pipe),
            written: VecDeque::new(),
            waiting: VecDeque::new(),
            expecting: None,
            handed: None,
            ending: false,
        };
        let is_handed = AtomicBool::new(false);
        Ok((Arc::new(Self { identity, inner: Mutex::new(inner), is_handed }), read))
    }

    /// Device and inode of the read end, which its duplicates share.
    pub(crate) fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Appends a record; true if the pipe was not full before and is now.
    pub(crate) fn push(&self, record: &[u8], source: Option<&Arc<Source>>) -> bool {
        self.append(&mut self.lock(), record, source)
    }

    /// As [`push`](Self::push), if no record of this source is unread. All records of such a queue
    /// have one length.
    pub(crate) fn push_once(&self, record: &[u8], source: &Arc<Source>) -> bool {
        let mut inner = self.lock();
        inner.count_all_read();
        let unread = inner.handed.iter().chain(&inner.written).chain(&inner.waiting);
        let unread = unread.into_iter().any(|queued| queued.is_from(source));
        !unread && self.append(&mut inner, record, Some(source))
    }

    fn append(&self, inner: &mut Inner, record: &[u8], source: Option<&Arc<Source>>) -> bool {
        let is_full = inner.append(record, source);
        if inner.handed.is_some() {
            self.is_handed.store(true, Ordering::Release);
        }
        is_full
    }

    /// Makes the pipe large enough for a record of this length.
    ///
    /// # Errors
    /// That of fcntl(2): the total size of a user's pipes is limited.
    pub(crate) fn make_space(&self, length: usize) -> Result<(), Errno> {
        self.lock().pipe.as_ref().map_or(Ok(()), |pipe| grow(pipe, length))
    }

    /// Bytes of all unread records.
    pub(crate) fn unread_bytes(&self) -> usize {
        let inner = self.lock();
        let kept = inner.handed.iter().chain(&inner.waiting);
        let waiting: usize = kept.map(|queued| queued.record.len()).sum();
        waiting + inner.pipe.as_ref().map_or(0, unread_bytes)
    }

    /// Moves waiting records into the pipe; true if some still do not fit.
    pub(crate) fn flush(&self) -> bool {
        let mut inner = self.lock();
        inner.flush();
        !inner.waiting.is_empty()
    }

    /// Removes the unread records of an object and updates the number of read ones.
    pub(crate) fn forget(&self, source: &Arc<Source>) {
        let mut inner = self.lock();
        inner.waiting.retain(|queued| !queued.is_from(source));
        inner.handed.take_if(|queued| queued.is_from(source));
        if inner.holds_long_of_another(source) {
            return inner.flush();
        }
        match inner.drain() {
            Some(unread) => {
                inner.count_read(unread);
                inner.written.retain(|queued| !queued.is_from(source));
                inner.put_back();
            }
            None => inner.disown(source),
        }
    }

    /// Announces that the calling thread is about to do the device's work, and will take the record
    /// that it raises by [`take_handed`](Self::take_handed). [`has_come`](Self::has_come) ends
    /// this.
    pub(crate) fn expect(&self) {
        let mut inner = self.lock();
        inner.expecting = inner.is_read().then(this_thread);
    }

    /// Whether there is a record to be taken.
    pub(crate) fn has_come(&self) -> bool {
        let mut inner = self.lock();
        inner.expecting = None;
        inner.handed.is_some()
    }

    /// Takes the record that was handed over, as a read of the file would.
    pub(crate) fn take_handed(&self, into: &mut [u8]) -> Option<usize> {
        if !self.is_handed.load(Ordering::Acquire) {
            return None;
        }
        let Queued { record, source } = self.take_handed_locked()?;
        if let Some(source) = source {
            source.reported.fetch_add(1, Ordering::Relaxed);
        }
        let length = record.len().min(into.len());
        into[..length].copy_from_slice(&record[..length]);
        Some(length)
    }

    fn take_handed_locked(&self) -> Option<Queued> {
        let mut inner = self.lock();
        self.is_handed.store(false, Ordering::Relaxed);
        inner.handed.take()
    }

    /// Ends the stream after the queued records.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.ending = true;
        inner.flush();
    }

    /// Whether the program has closed its end.
    pub(crate) fn abandoned(&self) -> bool {
        let inner = self.lock();
        let Some(pipe) = &inner.pipe else { return false };
        let mut poll = libc::pollfd { fd: pipe.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one valid pollfd, no waiting.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 && poll.revents & libc::POLLERR != 0 }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }
}

impl Queued {
    fn is_long(&self) -> bool {
        self.record.len() > LONGEST_PACKET
    }

    fn is_from(&self, source: &Arc<Source>) -> bool {
        self.source.as_ref().is_some_and(|own| Arc::ptr_eq(own, source))
    }
}

impl Inner {
    /// From this number of written records on, the pipe is queried for the number of unread ones.
    const COUNT_READ_AT: usize = 64;

    /// True if the pipe was not full before and is now.
    fn append(&mut self, record: &[u8], source: Option<&Arc<Source>>) -> bool {
        let queued = Queued { record: record.to_vec(), source: source.cloned() };
        if self.expecting.take_if(|thread| *thread == this_thread()).is_some()
            && self.written.is_empty()
            && self.waiting.is_empty()
        {
            self.handed = Some(queued);
            return false;
        }
        let waited = !self.waiting.is_empty();
        self.waiting.push_back(queued);
        self.flush();
        !waited && !self.waiting.is_empty()
    }

    fn flush(&mut self) {
        let Some(pipe) = &self.pipe else { return self.waiting.clear() };
        while let Some(next) = self.waiting.front() {
            match write(pipe, next, self.written.back()) {
                Ok(()) => self.written.extend(self.waiting.pop_front()),
                // The program has closed its end, so it will read no more records.
                Err(Errno::EPIPE) => self.waiting.clear(),
                Err(_) => break,
            }
        }
        if self.written.len() > Self::COUNT_READ_AT {
            self.count_all_read();
        }
        if self.ending && self.waiting.is_empty() {
            self.pipe = None;
        }
    }

    /// Whether the program has read all records, and the stream does not end.
    fn is_read(&mut self) -> bool {
        if self.ending || self.pipe.is_none() {
            return false;
        }
        if !self.written.is_empty() {
            self.count_all_read();
        }
        self.written.is_empty() && self.waiting.is_empty() && self.handed.is_none()
    }

    /// Counts the records that the program has read, if all have the length of the newest.
    fn count_all_read(&mut self) {
        let length = self.written.back().map_or(1, |last| last.record.len().max(1));
        // A long record that was read in part counts as unread: no short one may be written after
        // it.
        let unread = self.pipe.as_ref().map_or(0, unread_bytes).div_ceil(length);
        self.count_read(unread);
    }

    /// Whether the pipe has a long record of another object. It is alone there, and a part of it
    /// may have been read, so it stays as it is.
    fn holds_long_of_another(&mut self, source: &Arc<Source>) -> bool {
        if !self.written.back().is_some_and(Queued::is_long) {
            return false;
        }
        self.count_all_read();
        self.written.back().is_some_and(|queued| !queued.is_from(source))
    }

    /// Counts all but the newest `unread` records as read.
    fn count_read(&mut self, unread: usize) {
        while self.written.len() > unread {
            if let Some(source) = self.written.pop_front().and_then(|read| read.source) {
                source.reported.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Leaves the unread records of an object in the pipe, no longer attributed to it.
    fn disown(&mut self, source: &Arc<Source>) {
        self.count_all_read();
        for queued in self.written.iter_mut().filter(|queued| queued.is_from(source)) {
            queued.source = None;
        }
        self.flush();
    }

    /// Empties the pipe and counts its records. `None`: no second reader can be opened, as in a
    /// process without a free descriptor or without /proc.
    fn drain(&self) -> Option<usize> {
        let Some(pipe) = &self.pipe else { return Some(0) };
        let mut reader = second_reader(pipe).ok()?;
        let mut unread = 0;
        let mut record = [0; 64];
        loop {
            match reader.read(&mut record) {
                Ok(1..) => unread += 1,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => return Some(unread),
            }
        }
    }

    /// Writes the drained records again, before the waiting ones.
    fn put_back(&mut self) {
        while let Some(last) = self.written.pop_back() {
            self.waiting.push_front(last);
        }
        self.flush();
    }
}

/// A pipe in packet mode; the write end never blocks.
fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    let mut ends = [0; 2];
    // SAFETY: the array has space for two descriptors.
    Errno::result(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_DIRECT) })?;
    // SAFETY: pipe2 has just returned both; they have no other owner.
    let (read, write) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    // Packet mode belongs to the write end only; the read end shows the flags of the kernel's event
    // files (O_RDONLY).
    set_flags(&write, libc::O_NONBLOCK | libc::O_DIRECT)?;
    set_flags(&read, 0)?;
    Ok((read, write))
}

/// Moves the file to a descriptor above those of the standard streams, as the standard library's
/// duplicates are. A program that has closed its standard streams may still print to them, and here
/// the text would be taken for an event.
fn above_standard_streams(file: OwnedFd) -> Result<OwnedFd, Errno> {
    if file.as_raw_fd() > libc::STDERR_FILENO {
        return Ok(file);
    }
    file.try_clone().map_err(|error| Errno::try_from(error).unwrap_or(Errno::EIO))
}

/// Device and inode of a descriptor; EBADF if it is not open.
pub(crate) fn identity(fd: RawFd) -> Result<(u64, u64), Errno> {
    // SAFETY: an all-zero stat is a valid one; fstat fills it or fails.
    let (known, status) = unsafe {
        let mut status = std::mem::zeroed::<libc::stat>();
        (libc::fstat(fd, &mut status), status)
    };
    Errno::result(known)?;
    Ok((status.st_dev, status.st_ino))
}

/// Opens the pipe of a write end for reading, nonblocking.
pub(crate) fn second_reader(pipe: &File) -> std::io::Result<File> {
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

fn unread_bytes(pipe: &File) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: FIONREAD stores one int.
    let known = unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &mut bytes) };
    if known == 0 { bytes.max(0) as usize } else { 0 }
}

/// Writes a record after the last one; EAGAIN if the last one is unread and one of the two is long.
fn write(pipe: &File, next: &Queued, last: Option<&Queued>) -> Result<(), Errno> {
    let alone = next.is_long() || last.is_some_and(Queued::is_long);
    if alone && unread_bytes(pipe) != 0 {
        return Err(Errno::EAGAIN);
    }
    if !next.is_long() {
        return write_record(pipe, &next.record);
    }
    set_flags(pipe, libc::O_NONBLOCK)?;
    let written = write_record(pipe, &next.record);
    set_flags(pipe, libc::O_NONBLOCK | libc::O_DIRECT)?;
    written
}

/// Sets the flags of an end. O_DIRECT is packet mode.
fn set_flags(pipe: &impl AsRawFd, flags: libc::c_int) -> Result<(), Errno> {
    // SAFETY: setting the flags of a descriptor of ours.
    Errno::result(unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, flags) }).map(drop)
}

/// Makes a pipe hold at least `length` bytes.
fn grow(pipe: &File, length: usize) -> Result<(), Errno> {
    // SAFETY: asking for the capacity of a descriptor of ours, and changing it.
    let set = |command, capacity: libc::c_int| unsafe {
        Errno::result(libc::fcntl(pipe.as_raw_fd(), command, capacity))
    };
    if set(libc::F_GETPIPE_SZ, 0)? as usize >= length {
        return Ok(());
    }
    set(libc::F_SETPIPE_SZ, length as libc::c_int).map(drop)
}

/// Writes all of a record. A program that closed its end must not be killed by SIGPIPE.
///
/// Uses writev(2), because `uverbs run` replaces the C library's write(2). The replacement checks
/// whether the file is one of rdma_cm, which takes another system call.
fn write_record(pipe: &File, record: &[u8]) -> Result<(), Errno> {
    signals::without_signals(|| uio::writev(pipe, &[IoSlice::new(record)])).map(drop)
}

#[cfg(test)]
mod tests;
