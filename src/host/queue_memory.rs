//! Where the memory of queues comes from.

use std::fmt;
use std::io;
use std::sync::Arc;

use super::buffer::Buffer;
use crate::error::{Error, Result};

/// What memory of a queue is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueueUse {
    /// The ring of a completion queue: the device writes it.
    Completions,
    /// The rings of a queue pair: the device reads them.
    WorkRequests,
    /// The ring of a shared receive queue: the device reads it.
    SharedReceives,
    /// The doorbell record of a queue, 64 bytes: the device reads it.
    DoorbellRecord,
}

impl QueueUse {
    /// What its memory begins at a multiple of: rings with a page, records with a cache line.
    fn alignment(self) -> usize {
        match self {
            Self::Completions | Self::WorkRequests | Self::SharedReceives => 4096,
            Self::DoorbellRecord => 64,
        }
    }
}

type Allocator = dyn Fn(usize, QueueUse) -> io::Result<Buffer> + Send + Sync;

/// An allocator for the memory of queues and their doorbell records, in place of ordinary pages:
/// huge pages, memory of one NUMA node, an arena of the program's own (what
/// `ibv_alloc_parent_domain` takes `alloc` and `free` for).
///
/// Give it to a protection domain for what is made of that
/// ([`ProtectionDomain::with_queue_memory`]) and to completion queues
/// ([`CqBuilder::queue_memory`](crate::CqBuilder::queue_memory)). The [`Buffer`] that it returns
/// goes back the way buffers go, when the queue is destroyed.
///
/// ```no_run
/// use uverbs::memory::{Buffer, PageSize, QueueMemory};
/// let huge = QueueMemory::new(|length, _| Buffer::with_pages(length, PageSize::Huge2M));
/// let context = uverbs::open_default()?;
/// let pd = context.alloc_pd()?.with_queue_memory(&huge);
/// let cq = context.create_cq(1 << 16).queue_memory(&huge).build()?;
/// # Ok::<(), uverbs::Error>(())
/// ```
///
/// [`ProtectionDomain::with_queue_memory`]: crate::ProtectionDomain::with_queue_memory
#[derive(Clone)]
pub struct QueueMemory(Arc<Allocator>);

impl fmt::Debug for QueueMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QueueMemory")
    }
}

impl QueueMemory {
    /// An allocator that calls `allocate` with the number of bytes and what they are for. The
    /// buffer of a ring has to be zeroed and begin with a page of 4096 bytes, that of a doorbell
    /// record at a multiple of 64.
    pub fn new(
        allocate: impl Fn(usize, QueueUse) -> io::Result<Buffer> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(allocate))
    }
}

/// Memory for a queue, from the program's allocator if it gave one.
pub(crate) fn allocate(
    verb: &'static str,
    from: Option<&QueueMemory>,
    length: usize,
    purpose: QueueUse,
) -> Result<Buffer> {
    let made = match from {
        None => Buffer::new(length),
        Some(QueueMemory(allocator)) => allocator(length, purpose),
    };
    let buffer = made.map_err(|error| Error::io(verb, &error).asked(format!("{length} bytes")))?;
    let alignment = purpose.alignment();
    if buffer.len() < length || buffer.as_ptr() as usize % alignment != 0 {
        let cause = format!("the allocator gave {} bytes at {:p}", buffer.len(), buffer.as_ptr());
        let asked = format!("{length} bytes at a multiple of {alignment}");
        return Err(Error::invalid(verb, cause).asked(asked));
    }
    Ok(buffer)
}
