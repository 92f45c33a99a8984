//! The registered buffers from which written bytes are sent.

use uverbs::{ProtectionDomain, Slab, Slot};

use crate::config::Config;

/// The number of small buffers, for writes that do not fit into the work request but would waste a
/// large buffer. Without them, only as many such writes as there are large buffers could be in
/// flight, and the writer would often sleep.
const SMALL: u32 = 32;
/// The size of a small buffer.
const SMALL_BYTES: u32 = 1 << 10;

/// A stream's buffers. The completion of a signaled send returns them.
#[derive(Debug)]
pub(crate) struct SendBuffers {
    large: Size,
    small: Size,
}

/// The buffers of one size.
#[derive(Debug)]
struct Size {
    slab: Slab,
    /// The buffers of sends since the last signaled one.
    unsignaled: usize,
    /// The most of them before a send must be signaled: half of all buffers.
    most: usize,
}

impl Size {
    fn new(slab: Slab) -> Self {
        let most = slab.free() / 2;
        Self { slab, unsignaled: 0, most }
    }
}

impl SendBuffers {
    /// Creates the buffers, and a slab for `receives` (number, bytes), in one registration.
    pub(crate) fn with_receives(
        pd: &ProtectionDomain,
        config: &Config,
        receives: (u32, u32),
    ) -> uverbs::Result<(Self, Slab)> {
        let small = (SMALL, SMALL_BYTES.min(config.slot_bytes));
        let slabs = pd.create_slabs([(config.slots, config.slot_bytes), small, receives])?;
        let [large, small, receives] = slabs;
        Ok((Self { large: Size::new(large), small: Size::new(small) }, receives))
    }

    /// Takes a free buffer for a message of `bytes`, or for a part of it.
    pub(crate) fn take(&self, bytes: usize) -> Option<Slot> {
        let fits = bytes <= self.small.slab.slot_bytes() as usize;
        let small = if fits { self.small.slab.take() } else { None };
        small.or_else(|| self.large.slab.take())
    }

    /// Counts the buffer of the next send. If small and large buffers have the same size, all count
    /// as large, of which there are fewer.
    pub(crate) fn sends(&mut self, slot: &Slot) {
        let is_small = slot.capacity() < self.large.slab.slot_bytes() as usize;
        let size = if is_small { &mut self.small } else { &mut self.large };
        size.unsignaled += 1;
    }

    /// Whether the next send must be signaled so that buffers are returned.
    pub(crate) fn is_signal_due(&self) -> bool {
        [&self.large, &self.small].iter().any(|size| size.unsignaled >= size.most)
    }

    /// Notes that a signaled send was posted.
    pub(crate) fn signaled(&mut self) {
        (self.large.unsignaled, self.small.unsignaled) = (0, 0);
    }
}
