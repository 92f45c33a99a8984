//! Memory that records how each byte is accessed.

use std::ptr::NonNull;
use std::sync::Mutex;

use super::{BufferMemory, BusError, HostMemory};

/// One access: its first byte, its size, whether it may write.
pub(crate) type Accessed = (u64, u64, bool);

/// A buffer that records the atomic accesses to it, with the sizes of `crate::copy`.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) memory: BufferMemory,
    accesses: Mutex<Vec<Accessed>>,
}

impl Recorder {
    pub(crate) fn new(base: u64, len: usize) -> Self {
        Self { memory: BufferMemory::new(base, len), accesses: Mutex::default() }
    }

    /// The accesses since the last call.
    pub(crate) fn take(&self) -> Vec<Accessed> {
        std::mem::take(&mut self.accesses.lock().unwrap())
    }

    fn note(&self, access: Accessed) {
        self.accesses.lock().unwrap().push(access);
    }

    /// Aligned words, and single bytes where there is no whole one.
    fn note_copy(&self, mut at: u64, len: usize, writes: bool) {
        let end = at + len as u64;
        while at < end {
            let size = if at % 8 == 0 && end - at >= 8 { 8 } else { 1 };
            self.note((at, size, writes));
            at += size;
        }
    }
}

// SAFETY: passes on the pointers of a `BufferMemory`.
unsafe impl HostMemory for Recorder {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), BusError> {
        self.note_copy(address, into.len(), false);
        self.memory.read(address, into)
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), BusError> {
        self.note_copy(address, from.len(), true);
        self.memory.write(address, from)
    }

    fn with(
        &self,
        address: u64,
        len: usize,
        writes: bool,
        access: &mut dyn FnMut(NonNull<u8>),
    ) -> Result<(), BusError> {
        self.note((address, len as u64, writes));
        self.memory.with(address, len, writes, access)
    }
}
