//! An open file's queue of events, and the descriptor that is readable while one waits.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::uio::{readv, writev};
use nix::unistd::pipe2;
use uverbs_soft_cm::cma::CmaId;
use uverbs_uapi::cm::event::EventResp;

use crate::chardev::device::event_queue;
use crate::signals;

/// An event that was not fetched yet.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) response: EventResp,
    /// The id that counts it: for a connection request, the listener.
    pub(super) context: u32,
    pub(super) membership: Option<u32>,
    /// For a connection request: the new id. Not its number, because the program could guess the
    /// number, free it and use it again.
    pub(super) request: Option<CmaId>,
}

/// The device's side of a file. The program has the read end of a pipe that holds one byte while
/// the queue is not empty. So the descriptor is readable then, and never writable, like ucma's
/// file.
#[derive(Debug)]
pub(super) struct Queue {
    pipe: File,
    identity: (u64, u64),
    /// The events in order of arrival.
    events: BTreeMap<u64, Queued>,
    next: u64,
    /// The events of each context, so that finding those of one id is fast.
    of_contexts: BTreeSet<(u32, u64)>,
    is_ready: bool,
}

impl Queue {
    /// A queue and the descriptor for the program.
    pub(super) fn new(close_on_exec: bool) -> Result<(Self, OwnedFd), Errno> {
        let flags = if close_on_exec { OFlag::O_CLOEXEC } else { OFlag::empty() };
        let (read, write) = pipe2(flags)?;
        let pipe = File::from(write.try_clone().map_err(|_| Errno::EMFILE)?);
        drop(write);
        let identity = event_queue::identity(read.as_raw_fd())?;
        let (events, of_contexts) = Default::default();
        Ok((Self { pipe, identity, events, next: 0, of_contexts, is_ready: false }, read))
    }

    /// Device and inode of the program's descriptor.
    pub(super) fn identity(&self) -> (u64, u64) {
        self.identity
    }

    pub(super) fn kept(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    /// Whether the program has closed its last descriptor.
    pub(super) fn is_abandoned(&self) -> bool {
        let mut fds = [PollFd::new(self.pipe.as_fd(), PollFlags::empty())];
        poll(&mut fds, PollTimeout::ZERO) == Ok(1)
    }

    pub(super) fn push(&mut self, event: Queued) {
        self.of_contexts.insert((event.context, self.next));
        self.events.insert(self.next, event);
        self.next += 1;
        self.show();
    }

    pub(super) fn first(&self) -> Option<&Queued> {
        self.events.first_key_value().map(|(_, event)| event)
    }

    pub(super) fn pop(&mut self) -> Option<Queued> {
        let (number, event) = self.events.pop_first()?;
        self.of_contexts.remove(&(event.context, number));
        self.show();
        Some(event)
    }

    /// Removes and returns the events of a context for which `is_one` is true.
    pub(super) fn extract(
        &mut self,
        context: u32,
        is_one: impl Fn(&Queued) -> bool,
    ) -> Vec<Queued> {
        let own = self.of_contexts.range((context, 0)..=(context, u64::MAX));
        let numbers: Vec<u64> = own.map(|(_, number)| *number).collect();
        let mut taken = Vec::new();
        for number in numbers {
            if self.events.get(&number).is_some_and(&is_one) {
                self.of_contexts.remove(&(context, number));
                taken.extend(self.events.remove(&number));
            }
        }
        self.show();
        taken
    }

    /// Makes the descriptor readable exactly if there are events.
    fn show(&mut self) {
        let is_ready = !self.events.is_empty();
        if is_ready == self.is_ready {
            return;
        }
        // The pipe holds one byte. If the program has closed its end, nothing needs to be done. The
        // calls are vectored, because `uverbs run` may take plain reads and writes on this pipe for
        // commands of the program.
        self.is_ready = match is_ready {
            true => self.fill().is_ok(),
            false => self.drain().is_err(),
        };
    }

    /// As [`Queue::show`], after a command that the program made with its descriptor. If no second
    /// reader can be opened, as in a process without free descriptors or without /proc, reads the
    /// byte through that descriptor. Otherwise the program would be woken for events that do not
    /// exist.
    pub(super) fn show_to(&mut self, program: BorrowedFd<'_>) {
        self.show();
        if self.is_ready && self.events.is_empty() {
            self.is_ready = self.drain_by(program).is_err();
        }
    }

    fn fill(&self) -> Result<usize, Errno> {
        signals::without_signals(|| writev(&self.pipe, &[IoSlice::new(&[1])]))
    }

    /// Never waits, and never reads from another file that got the descriptor's number.
    fn drain_by(&self, program: BorrowedFd<'_>) -> Result<usize, Errno> {
        if event_queue::identity(program.as_raw_fd())? != self.identity {
            return Err(Errno::EBADF);
        }
        match poll(&mut [PollFd::new(program, PollFlags::POLLIN)], PollTimeout::ZERO)? {
            0 => Err(Errno::EAGAIN),
            _ => readv(program, &mut [IoSliceMut::new(&mut [0])]),
        }
    }

    fn drain(&self) -> io::Result<usize> {
        let mut reader = event_queue::second_reader(&self.pipe)?;
        reader.read_vectored(&mut [IoSliceMut::new(&mut [0])])
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::Signal;

    use super::*;
    use crate::signals::{SignalsBlocked, is_pending};

    /// Another thread may close the reader at any time.
    #[test]
    fn a_reader_that_closes_meanwhile_leaves_no_sigpipe() {
        let (queue, reader) = Queue::new(true).unwrap();
        drop(reader);
        let _blocked = SignalsBlocked::new().unwrap();
        assert!(queue.fill().is_err() && queue.is_abandoned());
        assert!(!is_pending(Signal::SIGPIPE), "it would end the program");
    }
}
