//! Allocators for the memory of queues.

use std::fmt;
use std::io;
use std::sync::Arc;

use nix::errno::Errno;

use super::buffer::{Buffer, PageSize};
use super::fork::Lock;
use crate::error::{Error, Result};

/// Alignment of rings in bytes.
const PAGE: usize = 4096;

/// The use of a queue's memory.
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
    /// The buffers of an [`RxQueue`](crate::ethernet::RxQueue): the device writes them.
    Frames,
}

impl QueueUse {
    /// Alignment in bytes: a page for rings, a cache line for others.
    fn alignment(self) -> usize {
        match self {
            Self::Completions | Self::WorkRequests | Self::SharedReceives => PAGE,
            Self::DoorbellRecord | Self::Frames => 64,
        }
    }
}

type Allocator = dyn Fn(usize, QueueUse) -> io::Result<Buffer> + Send + Sync;

/// An allocator for the memory of queues and their doorbell records, instead of ordinary pages: for
/// huge pages, memory of one NUMA node, or an arena of the program (like `alloc` and `free` of
/// `ibv_alloc_parent_domain`).
///
/// Set it for a protection domain, and so for the queues made from it
/// ([`ProtectionDomain::with_queue_memory`]), and for completion queues
/// ([`CqBuilder::queue_memory`](crate::CqBuilder::queue_memory)). Queues of frames
/// ([`uverbs::ethernet`](crate::ethernet)) take all their memory from it, including buffers. The
/// [`Buffer`] that it returns is dropped when the queue is destroyed.
///
/// ```no_run
/// use uverbs::memory::{PageSize, QueueMemory};
/// let huge = QueueMemory::pages(PageSize::Huge2M);
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
    /// An allocator that calls `allocate` with the number of bytes and their use. The buffer of a
    /// ring has to be zeroed and aligned to 4096 bytes; other buffers have to be aligned to 64
    /// bytes.
    pub fn new(
        allocate: impl Fn(usize, QueueUse) -> io::Result<Buffer> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(allocate))
    }

    /// Pages of `size`. Rings, doorbell records and buffers of several queues share huge pages. A
    /// page is freed when no part of it is in use.
    ///
    /// If there are too few pages, creating the queue fails (ENOMEM if the kernel's pool of huge
    /// pages is empty). There is no fallback to other pages.
    pub fn pages(size: PageSize) -> Self {
        Self::cut_from(size, move |length| Buffer::with_pages(length, size))
    }

    /// Pages of `size` of one NUMA node: see [`Buffer::on_node`], whose errors creating the queue
    /// returns. [`Context::numa_node`](crate::Context::numa_node) returns the device's node.
    ///
    /// ```no_run
    /// use uverbs::memory::{PageSize, QueueMemory};
    /// let context = uverbs::open_default()?;
    /// let near = QueueMemory::on_node(PageSize::Huge2M, context.numa_node().unwrap_or(0));
    /// let mut rx = context.alloc_pd()?.create_rx_queue(4096).memory(&near).build()?;
    /// # Ok::<(), uverbs::Error>(())
    /// ```
    pub fn on_node(size: PageSize, node: u32) -> Self {
        Self::cut_from(size, move |length| Buffer::on_node(length, size, node))
    }

    fn cut_from(
        size: PageSize,
        pages: impl Fn(usize) -> io::Result<Buffer> + Send + Sync + 'static,
    ) -> Self {
        let rest = Lock::new(None);
        Self::new(move |length, _| {
            let length = length.next_multiple_of(PAGE);
            let mut rest = rest.lock().ok_or(io::ErrorKind::Deadlock)?;
            let from = match rest.take() {
                Some(rest) if Buffer::len(&rest) >= length => rest,
                _ => pages(length.next_multiple_of(size.bytes()))?,
            };
            let (piece, left) = from.split(length);
            *rest = Some(left).filter(|left| !left.is_empty());
            Ok(piece)
        })
    }
}

const POOL_CURE: &str = "for huge pages, enlarge the kernel's pool: sysctl vm.nr_hugepages";

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
    let buffer = made.map_err(|error| {
        let failed = Error::io(verb, &error).asked(format!("{length} bytes"));
        if from.is_none() || failed.errno() != Errno::ENOMEM as i32 {
            return failed;
        }
        failed.because("the queue's allocator has too few pages").cure_with(POOL_CURE)
    })?;
    let alignment = purpose.alignment();
    if buffer.len() < length || buffer.as_ptr() as usize % alignment != 0 {
        let cause = format!("the allocator gave {} bytes at {:p}", buffer.len(), buffer.as_ptr());
        let asked = format!("{length} bytes at a multiple of {alignment}");
        return Err(Error::invalid(verb, cause).asked(asked));
    }
    Ok(buffer)
}
