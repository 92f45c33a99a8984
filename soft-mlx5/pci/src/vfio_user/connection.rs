//! Messages and the file descriptors that travel with them, over a UNIX stream socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{MsgFlags, send};
use nix::sys::time::TimeSpec;
use uverbs_soft::passed::receive;

use super::message::{ERROR, HEADER, Message, REPLY, header};

/// Largest accepted message; QEMU's transfers are at most a megabyte.
const MAX_MESSAGE: usize = (1 << 20) + 4096;
/// Most descriptors in one message, announced in the version reply.
pub(super) const MAX_DESCRIPTORS: usize = 16;

/// The connection to one client.
pub(super) struct Connection {
    stream: UnixStream,
    received: Vec<u8>,
    /// Bytes of `received` that were returned as messages.
    start: usize,
    /// Descriptors that arrived, in order. Each has the length of `received` after the read that
    /// brought it: its message contains the byte before that, because the kernel ends a read after
    /// a buffer that carries descriptors.
    descriptors: Vec<(usize, OwnedFd)>,
}

impl Connection {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, received: Vec::new(), start: 0, descriptors: Vec::new() }
    }

    /// Waits until bytes arrive, one of `others` is readable or `timeout` has passed; true if bytes
    /// arrived.
    pub(super) fn wait(&self, others: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<bool> {
        let all = std::iter::once(self.stream.as_fd()).chain(others.iter().copied());
        let mut polled: Vec<_> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match ppoll(&mut polled, Some(TimeSpec::from(timeout)), None) {
            Ok(_) => Ok(polled[0].any().unwrap_or(true)),
            Err(Errno::EINTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Receives the bytes that have arrived. False at the end of the stream.
    pub(super) fn receive(&mut self) -> io::Result<bool> {
        self.discard_consumed();
        let mut chunk = [0u8; 16384];
        let received = match receive(self.stream.as_fd(), &mut chunk) {
            Ok(received) => received,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(true),
            Err(error) => return Err(error.into()),
        };
        if received.is_cut_off {
            let text = "this process has no space for the descriptors of a vfio-user message";
            return Err(io::Error::other(text));
        }
        self.received.extend_from_slice(&chunk[..received.bytes]);
        let end = self.received.len();
        self.descriptors.extend(received.files.into_iter().map(|descriptor| (end, descriptor)));
        Ok(received.bytes > 0)
    }

    /// The next complete message, if one has arrived.
    ///
    /// # Errors
    /// A message with a bad size or more than [`MAX_DESCRIPTORS`] descriptors, complete or not.
    pub(super) fn next(&mut self) -> io::Result<Option<Message>> {
        let message = self.next_bytes()?;
        let end = if message.is_some() { self.start } else { self.received.len() };
        let own = self.descriptors.iter().take_while(|(at, _)| *at <= end).count();
        if own > MAX_DESCRIPTORS {
            return Err(invalid(format!("vfio-user message with {own} descriptors")));
        }
        Ok(message.map(|message| {
            let descriptors = self.descriptors.drain(..own).map(|(_, own)| own).collect();
            Message { descriptors, ..message }
        }))
    }

    /// The next complete message, without its descriptors.
    fn next_bytes(&mut self) -> io::Result<Option<Message>> {
        let pending = &self.received[self.start..];
        let Some(head) = pending.get(..HEADER) else { return Ok(None) };
        let size = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if !(HEADER..=MAX_MESSAGE).contains(&size) {
            return Err(invalid(format!("vfio-user message of {size} bytes")));
        }
        let Some(body) = pending.get(HEADER..size) else { return Ok(None) };
        let message = Message {
            id: u16::from_le_bytes([head[0], head[1]]),
            command: u16::from_le_bytes([head[2], head[3]]),
            flags: u32::from_le_bytes([head[8], head[9], head[10], head[11]]),
            body: body.to_vec(),
            descriptors: Vec::new(),
        };
        self.start += size;
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
            match send(self.stream.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn discard_consumed(&mut self) {
        self.received.drain(..self.start);
        self.descriptors.iter_mut().for_each(|(end, _)| *end -= self.start);
        self.start = 0;
    }
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests;
