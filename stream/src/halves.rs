//! The two directions of a stream.

use std::io::{self, BufRead, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;

use crate::core::Core;
use crate::lent::{Lent, Reservation};
use crate::readiness::Side;
use crate::shared::Shared;

/// The most bytes that [`BufRead::fill_buf`] copies out of the ring at a time.
const BUFFERED: usize = 16 << 10;

/// The half of a stream that reads.
#[derive(Debug)]
pub struct ReadHalf {
    shared: Arc<Shared>,
    pub(crate) buffer: ReadBuffer,
}

/// Bytes copied out of the ring and not yet read: `at..end` of `space`.
#[derive(Debug, Default)]
pub(crate) struct ReadBuffer {
    space: Vec<u8>,
    at: usize,
    end: usize,
}

impl ReadBuffer {
    pub(crate) fn left(&self) -> &[u8] {
        &self.space[self.at..self.end]
    }

    pub(crate) fn consume(&mut self, bytes: usize) {
        self.at = self.at.saturating_add(bytes).min(self.end);
    }

    /// The space for the next bytes, once the buffer is empty. It is zeroed only the first time.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        (self.at, self.end) = (0, 0);
        self.space.resize(BUFFERED, 0);
        &mut self.space
    }

    /// Notes that the first `bytes` of the space were filled.
    pub(crate) fn filled(&mut self, bytes: usize) {
        self.end = bytes.min(self.space.len());
    }

    /// Copies out as many of the remaining bytes as fit.
    pub(crate) fn take(&mut self, into: &mut [u8]) -> usize {
        let length = self.left().len().min(into.len());
        into[..length].copy_from_slice(&self.left()[..length]);
        self.consume(length);
        length
    }
}

impl ReadHalf {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, buffer: ReadBuffer::default() }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Reads without consuming the bytes: the next read returns them again.
    ///
    /// # Errors
    /// As [`Read::read`].
    pub fn peek(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.buffer.left();
        if into.is_empty() || !left.is_empty() {
            let length = left.len().min(into.len());
            into[..length].copy_from_slice(&left[..length]);
            return Ok(length);
        }
        let shared = &self.shared;
        shared.wait(Side::Read, |core| core.peek(shared.ring(), into))
    }

    /// Waits for bytes and returns views of those that have arrived, in the ring where the peer
    /// wrote them. If there are none, the stream has ended. Nothing is copied.
    ///
    /// These are views, from which the program copies the bytes that it needs: the peer may write
    /// to the ring at any time, so there can be no slice of it. [`BufRead::fill_buf`] returns a
    /// slice of a copy.
    ///
    /// # Errors
    /// As [`Read::read`]; `InvalidInput` while bytes of [`BufRead::fill_buf`] are not consumed.
    pub fn lend(&mut self) -> io::Result<Lent<'_>> {
        self.require_empty()?;
        let shared = &*self.shared;
        shared.wait(Side::Read, Core::readable)?;
        Lent::new(shared)
    }

    pub(crate) fn require_empty(&self) -> io::Result<()> {
        match self.buffer.left() {
            [] => Ok(()),
            _ => {
                let cause = "fill_buf() returned bytes that are not consumed yet";
                Err(io::Error::new(io::ErrorKind::InvalidInput, cause))
            }
        }
    }
}

impl Read for ReadHalf {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() || !self.buffer.left().is_empty() {
            return Ok(self.buffer.take(into));
        }
        let shared = &self.shared;
        shared.wait(Side::Read, |core| core.read(shared.ring(), into))
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut done = 0;
        for buffer in into.iter_mut().filter(|buffer| !buffer.is_empty()) {
            // Waits only for the first buffer; the others take bytes that have already arrived.
            if done > 0
                && self.shared.lock()?.incoming.available() == 0
                && self.buffer.left().is_empty()
            {
                break;
            }
            let length = self.read(buffer)?;
            done += length;
            if length < buffer.len() {
                break;
            }
        }
        Ok(done)
    }
}

impl BufRead for ReadHalf {
    /// Copies bytes out of the ring, which frees them for the peer to overwrite.
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.buffer.left().is_empty() {
            let shared = self.shared.clone();
            let into = self.buffer.space();
            let read = shared.wait(Side::Read, |core| core.read(shared.ring(), into));
            self.buffer.filled(*read.as_ref().unwrap_or(&0));
            read?;
        }
        Ok(self.buffer.left())
    }

    fn consume(&mut self, bytes: usize) {
        self.buffer.consume(bytes);
    }
}

/// The half of a stream that writes. Dropping it ends the data of this side, as [`Shutdown::Write`]
/// does.
#[derive(Debug)]
pub struct WriteHalf {
    shared: Arc<Shared>,
    /// Dropping this half does not end the data, because a tokio stream has taken over the
    /// connection.
    #[cfg(feature = "tokio")]
    is_kept_open: bool,
}

impl WriteHalf {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            #[cfg(feature = "tokio")]
            is_kept_open: false,
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Drops this half without ending the data of this side.
    #[cfg(feature = "tokio")]
    pub(crate) fn keep_open(mut self) {
        self.is_kept_open = true;
    }

    /// Ends one direction, or both: see [`Stream::shutdown`](crate::Stream::shutdown).
    ///
    /// # Errors
    /// None.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.shared.shutdown(how);
        Ok(())
    }

    /// Waits for space and returns a registered buffer, whose length is the number of bytes that
    /// can be sent at once. [`Reservation::commit`] sends what the program has written into it.
    /// Nothing is copied.
    ///
    /// # Errors
    /// As [`Write::write`].
    pub fn reserve(&mut self) -> io::Result<Reservation<'_>> {
        let shared = &*self.shared;
        let slot = shared.wait(Side::Write, Core::reserve)?;
        Ok(Reservation::new(shared, slot))
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        #[cfg(feature = "tokio")]
        if self.is_kept_open {
            return;
        }
        self.shared.finish_unless_aborting();
    }
}

impl Write for WriteHalf {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(data)])
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        let shared = &self.shared;
        shared.wait(Side::Write, |core| core.write(data))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_space_of_a_buffer_is_zeroed_once() {
        let mut buffer = ReadBuffer::default();
        buffer.space().fill(7);
        buffer.filled(3);
        assert_eq!(buffer.left(), [7; 3]);
        buffer.consume(4);
        assert!(buffer.left().is_empty());
        assert!(buffer.space().iter().all(|byte| *byte == 7));
    }
}
