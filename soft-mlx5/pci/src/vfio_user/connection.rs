//! Messages and the file descriptors that travel with them, over a UNIX stream socket.

#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use nix::sys::time::TimeSpec;

use super::message::{ERROR, HEADER, Message, REPLY, header};

/// Largest accepted message; QEMU's transfers are at most a megabyte.
const MAX_MESSAGE: usize = (1 << 20) + 4096;
/// Most descriptors in one message, announced in the version reply.
pub(super) const MAX_DESCRIPTORS: usize = 16;

/// The connection to one client.
pub(super) struct Connection {
    stream: UnixStream,
    received: Vec<u8>,
    start: usize,
    descriptors: Vec<OwnedFd>,
    /// The descriptors belong to the message with the byte before this index, because the kernel
    /// ends a read after the buffer that carries descriptors.
    descriptors_end: usize,
}

impl Connection {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, received: Vec::new(), start: 0, descriptors: Vec::new(), descriptors_end: 0 }
    }

    /// Waits until bytes arrive, one of `others` is readable or `timeout` has passed; true if bytes
    /// arrived.
    pub(super) fn wait(&self, others: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<bool> {
        let all = std::iter::once(self.stream.as_fd()).chain(others.iter().copied());
        let mut polled: Vec<_> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match ppoll(&mut polled, Some(TimeSpec::from(timeout)), None) {
            Ok(_) => Ok(polled[0].any().unwrap_or(true)),
            Err(nix::errno::Errno::EINTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Receives the bytes that have arrived. False at the end of the stream.
    pub(super) fn receive(&mut self) -> io::Result<bool> {
        self.discard_consumed();
        let mut chunk = [0u8; 16384];
        let mut control = nix::cmsg_space!([std::os::fd::RawFd; MAX_DESCRIPTORS]);
        let mut slices = [IoSliceMut::new(&mut chunk)];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
        let message =
            match recvmsg::<()>(self.stream.as_raw_fd(), &mut slices, Some(&mut control), flags) {
                Ok(message) => message,
                Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => return Ok(true),
                Err(error) => return Err(error.into()),
            };
        let mut descriptors = Vec::new();
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(fds) = control {
                // SAFETY: the kernel has just installed these descriptors for this receive; they
                // have no other owner.
                descriptors.extend(fds.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        let bytes = message.bytes;
        self.received.extend_from_slice(&chunk[..bytes]);
        if !descriptors.is_empty() {
            self.descriptors = descriptors;
            self.descriptors_end = self.received.len();
        }
        Ok(bytes > 0)
    }

    /// The next complete message, if one has arrived.
    pub(super) fn next(&mut self) -> io::Result<Option<Message>> {
        let pending = &self.received[self.start..];
        let Some(head) = pending.get(..HEADER) else { return Ok(None) };
        let size = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if !(HEADER..=MAX_MESSAGE).contains(&size) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("vfio-user message of {size} bytes"),
            ));
        }
        let Some(body) = pending.get(HEADER..size) else { return Ok(None) };
        let mut message = Message {
            id: u16::from_le_bytes([head[0], head[1]]),
            command: u16::from_le_bytes([head[2], head[3]]),
            flags: u32::from_le_bytes([head[8], head[9], head[10], head[11]]),
            body: body.to_vec(),
            descriptors: Vec::new(),
        };
        let end = self.start + size;
        if (self.start + 1..=end).contains(&self.descriptors_end) {
            message.descriptors = std::mem::take(&mut self.descriptors);
        }
        self.start = end;
        Ok(Some(message))
    }

    /// Answers `message`; `error` is an errno or 0.
    pub(super) fn reply(&mut self, message: &Message, error: u32, body: &[u8]) -> io::Result<()> {
        let flags = if error == 0 { REPLY } else { REPLY | ERROR };
        let head = header(message.id, message.command, flags, error, body.len());
        self.send(&[&head, body].concat())
    }

    fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let none: &[ControlMessage<'_>] = &[];
            let slices = [IoSlice::new(bytes)];
            match sendmsg::<()>(
                self.stream.as_raw_fd(),
                &slices,
                none,
                MsgFlags::MSG_NOSIGNAL,
                None,
            ) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn discard_consumed(&mut self) {
        self.received.drain(..self.start);
        self.descriptors_end = self.descriptors_end.saturating_sub(self.start);
        self.start = 0;
    }
}
