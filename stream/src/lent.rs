//! Access to registered memory for callers that avoid copies.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};

use uverbs::{MemoryView, Slot};

use crate::shared::Shared;

/// Received bytes, in the ring where the peer wrote them, from
/// [`Stream::lend`](crate::Stream::lend).
#[derive(Debug)]
pub struct Lent<'a> {
    shared: &'a Shared,
    parts: [MemoryView<'a>; 2],
}

impl<'a> Lent<'a> {
    pub(crate) fn new(shared: &'a Shared) -> io::Result<Self> {
        let [first, second] = shared.lock()?.incoming.parts();
        let ring = shared.ring();
        let parts = [ring.part(first.0, first.1)?, ring.part(second.0, second.1)?];
        Ok(Self { shared, parts })
    }

    /// The bytes in order: a first part, and a second one, which is empty unless they wrap around
    /// to the start of the ring.
    pub fn parts(&self) -> [&MemoryView<'a>; 2] {
        [&self.parts[0], &self.parts[1]]
    }

    /// The number of bytes; 0 at the end of the stream.
    pub fn len(&self) -> usize {
        self.parts[0].len() + self.parts[1].len()
    }

    /// Whether the stream has ended.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Frees the first `bytes` bytes, or all if there are fewer, for the peer to overwrite. The
    /// next read begins after them.
    pub fn consume(self, bytes: usize) {
        let _ = self.shared.lock().map(|mut core| core.consume(bytes.min(self.len())));
    }
}

/// A registered buffer to fill, from [`Stream::reserve`](crate::Stream::reserve). It has at least
/// one byte, and contains zeros or the bytes of an earlier send. Dropping it sends nothing.
pub struct Reservation<'a> {
    shared: &'a Shared,
    slot: Slot,
}

impl<'a> Reservation<'a> {
    pub(crate) fn new(shared: &'a Shared, slot: Slot) -> Self {
        Self { shared, slot }
    }

    /// Sends the first `bytes` bytes, or all if there are fewer; nothing if `bytes` is 0.
    ///
    /// # Errors
    /// As [`Write::write`](io::Write::write).
    pub fn commit(mut self, bytes: usize) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.slot.set_len(bytes.min(self.slot.len()));
        self.shared.lock()?.post(self.slot)
    }
}

impl Deref for Reservation<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.slot
    }
}

impl DerefMut for Reservation<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.slot
    }
}

impl fmt::Debug for Reservation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({} bytes)", self.len())
    }
}
