//! Doorbell records: eight bytes per queue that the library writes and the device reads.

use std::io;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::host::buffer::Buffer;
use crate::host::fork::Lock;
use crate::host::queue_memory::{self, QueueMemory, QueueUse};

/// Bytes from one record to the next: a cache line, so that queues of different threads do not
/// share one.
const STRIDE: usize = 64;

/// The doorbell records of a context. Records share pages; the kernel pins a page once, however
/// many of its records are in use.
#[derive(Debug, Clone, Default)]
pub(crate) struct Records(Arc<Lock<Vec<Free>>>);

/// A free record: its page and its byte offset in the page.
type Free = (Arc<Buffer>, usize);

/// One record, initially zero; dropping it frees it in its page.
#[derive(Debug)]
pub(crate) struct Record {
    memory: Arc<Buffer>,
    offset: usize,
    /// Whether it is in one of the context's pages.
    is_shared: bool,
    records: Records,
}

impl Records {
    /// A record in memory from the program's allocator if there is one, otherwise in one of the
    /// context's pages.
    pub(crate) fn allocate(
        &self,
        verb: &'static str,
        from: Option<&QueueMemory>,
    ) -> Result<Record> {
        if from.is_none() {
            return self.share_page().map_err(|error| Error::io(verb, &error));
        }
        let memory = queue_memory::allocate(verb, from, STRIDE, QueueUse::DoorbellRecord)?;
        memory.view().fill(0, STRIDE, 0)?;
        let (memory, records) = (Arc::new(memory), self.clone());
        Ok(Record { memory, offset: 0, is_shared: false, records })
    }

    fn share_page(&self) -> io::Result<Record> {
        let mut free = self.0.lock().ok_or(io::ErrorKind::Deadlock)?;
        if free.is_empty() {
            let page = Arc::new(Buffer::new(STRIDE)?);
            let offsets = (0..page.len()).step_by(STRIDE);
            free.extend(offsets.map(|offset| (page.clone(), offset)));
        }
        let (memory, offset) = free.pop().ok_or(io::ErrorKind::OutOfMemory)?;
        memory.view().fill(offset, STRIDE, 0).map_err(io::Error::from)?;
        Ok(Record { memory, offset, is_shared: true, records: self.clone() })
    }
}

#[cfg(test)]
impl Records {
    /// Holds the lock, so that all other threads wait.
    pub(crate) fn hold(&self) -> impl Sized + '_ {
        self.0.lock()
    }
}

impl Record {
    /// The first of the record's two words.
    pub(crate) fn as_ptr(&self) -> *mut u32 {
        self.memory.as_ptr().wrapping_add(self.offset).cast()
    }

    pub(crate) fn address(&self) -> u64 {
        self.as_ptr() as u64
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let Some(mut free) = self.records.0.lock() else { return };
        // Memory from the program's allocator is freed when `memory` is dropped.
        if self.is_shared {
            free.push((self.memory.clone(), self.offset));
        }
    }
}

#[cfg(test)]
mod tests;
