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
/// Most descriptors that the kernel passes on in one read (`SCM_MAX_FD` of net/scm.h): none is cut
/// off and lost.
const MAX_IN_A_READ: usize = 253;

/// The connection to one client.
pub(super) struct Connection {
    stream: UnixStream,
    received: Vec<u8>,
    start: usize,
    /// Descriptors that arrived, in order. Each belongs to the message with the byte before this
    /// index, because the kernel ends a read after the buffer that carries descriptors.
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
            Err(nix::errno::Errno::EINTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Receives the bytes that have arrived. False at the end of the stream.
    pub(super) fn receive(&mut self) -> io::Result<bool> {
        self.discard_consumed();
        let mut chunk = [0u8; 16384];
        let mut control = nix::cmsg_space!([std::os::fd::RawFd; MAX_IN_A_READ]);
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
        let end = self.received.len();
        self.descriptors.extend(descriptors.into_iter().map(|descriptor| (end, descriptor)));
        Ok(bytes > 0)
    }

    /// The next complete message, if one has arrived.
    ///
    /// # Errors
    /// A message with a bad size or more than [`MAX_DESCRIPTORS`] descriptors, complete or not.
    pub(super) fn next(&mut self) -> io::Result<Option<Message>> {
        let message = self.complete()?;
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

    /// [`Connection::next`], without its descriptors.
    fn complete(&mut self) -> io::Result<Option<Message>> {
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
        self.descriptors.iter_mut().for_each(|(end, _)| *end -= self.start);
        self.start = 0;
    }
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends bytes with as many descriptors of the socket.
    fn send(client: &UnixStream, bytes: &[u8], descriptors: usize) {
        let sent = vec![client.as_raw_fd(); descriptors];
        let rights = [ControlMessage::ScmRights(&sent)];
        let rights = if descriptors > 0 { &rights[..] } else { &[] };
        let (socket, bytes) = (client.as_raw_fd(), [IoSlice::new(bytes)]);
        sendmsg::<()>(socket, &bytes, rights, MsgFlags::empty(), None).expect("sent");
    }

    /// A message of 64 bytes and the connection that receives it.
    fn pair() -> (UnixStream, Connection, Vec<u8>) {
        let (client, server) = UnixStream::pair().expect("sockets");
        let message = [&header(1, 2, 0, 0, 48)[..], &[0; 48]].concat();
        (client, Connection::new(server), message)
    }

    /// The numbers of descriptors of the messages that have arrived.
    fn arrived(server: &mut Connection) -> Vec<usize> {
        let next = || server.next().expect("a message").map(|message| message.descriptors.len());
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn descriptors_of_all_parts_of_a_message_are_its_own() {
        let (client, mut server, message) = pair();
        for (part, descriptors) in [(&message[..20], 2), (&message[20..40], 3), (&message[40..], 1)]
        {
            assert_eq!(arrived(&mut server), []);
            send(&client, part, descriptors);
            assert!(server.receive().expect("bytes"));
        }
        assert_eq!(arrived(&mut server), [6]);
    }

    #[test]
    fn descriptors_go_to_the_message_that_they_came_with() {
        let (client, mut server, message) = pair();
        send(&client, &[&message[..], &message[..30]].concat(), 1);
        assert!(server.receive().expect("bytes"));
        assert_eq!(arrived(&mut server), [0]);
        send(&client, &message[30..], 2);
        assert!(server.receive().expect("bytes"));
        assert_eq!(arrived(&mut server), [3]);
        send(&client, &message, 0);
        assert!(server.receive().expect("bytes"));
        assert_eq!(arrived(&mut server), [0]);
    }

    #[test]
    fn a_message_with_too_many_descriptors_is_refused() {
        for parts in [vec![MAX_DESCRIPTORS + 1], vec![MAX_DESCRIPTORS, 1]] {
            let (client, mut server, message) = pair();
            let mut next = Ok(None);
            for descriptors in parts {
                assert!(next.is_ok());
                send(&client, &message[..8], descriptors);
                assert!(server.receive().expect("bytes"));
                next = server.next();
            }
            let refused = next.expect_err("too many");
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        }
    }
}
