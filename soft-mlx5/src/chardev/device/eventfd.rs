//! Eventfds of the program, which events signal (`eventfd_ctx_fdget`, `eventfd_signal`).
#![allow(unsafe_code)]

use std::fs::{File, read_link};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, RawFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// A duplicate of an eventfd descriptor of the program.
#[derive(Debug)]
pub(crate) struct EventFd(File);

impl EventFd {
    /// # Errors
    /// EBADF if the descriptor is not open, EINVAL if it is of another kind.
    pub(crate) fn duplicate(fd: RawFd) -> Result<Self, Errno> {
        let kind = read_link(format!("/proc/self/fd/{fd}")).map_err(|_| Errno::EBADF)?;
        if kind.as_os_str() != "anon_inode:[eventfd]" {
            return Err(Errno::EINVAL);
        }
        // SAFETY: it was open just now. If the program closes it concurrently, which is a defect of
        // the program, this fails or duplicates another of its files.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        let owned = borrowed.try_clone_to_owned().map_err(|_| Errno::EBADF)?;
        Ok(Self(File::from(owned)))
    }

    /// Adds one to the counter. A full counter stays as it is, because the device must not wait for
    /// the program.
    pub(crate) fn signal(&self) {
        let mut polled = [PollFd::new(self.0.as_fd(), PollFlags::POLLOUT)];
        if poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready == 1) {
            // This cannot fail: the counter had space.
            let _ = (&self.0).write(&1u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsRawFd;

    use super::*;
    use nix::sys::eventfd::EventFd as Counter;

    #[test]
    fn only_an_eventfd_is_taken() {
        let other = File::open("/dev/null").unwrap();
        assert_eq!(EventFd::duplicate(other.as_raw_fd()).err(), Some(Errno::EINVAL));
        assert_eq!(EventFd::duplicate(-1).err(), Some(Errno::EBADF));
    }

    #[test]
    fn signals_add_up_and_never_wait_for_a_full_counter() {
        let counter = Counter::new().unwrap();
        let signals = EventFd::duplicate(counter.as_fd().as_raw_fd()).unwrap();
        signals.signal();
        signals.signal();
        assert_eq!(counter.read(), Ok(2));
        counter.write(u64::MAX - 1).unwrap();
        signals.signal();
        let mut value = [0; 8];
        (&signals.0).read_exact(&mut value).unwrap();
        assert_eq!(u64::from_ne_bytes(value), u64::MAX - 1);
    }
}
