//! Registered buffers that written bytes are sent from.

use uverbs::{ProtectionDomain, Slab, Slot};

use crate::config::Config;

/// How many small buffers a stream has, for writes that do not fit into the work request but would
/// waste a large buffer. Each holds [`SMALL_BYTES`]. Without them, as few such writes would be on
/// their way as there are large buffers, and the writer would sleep for each few of them.
const SMALL: u32 = 32;
const SMALL_BYTES: u32 = 1 << 10;

/// A stream's buffers. They come back with the completion of a signaled send.
#[derive(Debug)]
pub(crate) struct SendBuffers {
    large: Size,
    small: Size,
}

/// The buffers of one size.
#[derive(Debug)]
struct Size {
    slab: Slab,
    /// Buffers of sends since the last signaled one, and how many there may be with the next: at
    /// most half of all wait for a signaled send.
    unsignaled: usize,
    most: usize,
}

impl Size {
    fn new(slab: Slab) -> Self {
        let most = slab.free() / 2;
        Self { slab, unsignaled: 0, most }
    }
}

impl SendBuffers {
    /// The buffers, and a slab for receives, in one registration.
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

    /// A buffer for a message of `bytes`, or of as many as it holds.
    pub(crate) fn take(&self, bytes: usize) -> Option<Slot> {
        let fits = bytes <= self.small.slab.slot_bytes() as usize;
        let small = if fits { self.small.slab.take() } else { None };
        small.or_else(|| self.large.slab.take())
    }

    /// Counts a buffer that the next send takes along. If all have one size, the few large ones
    /// decide.
    pub(crate) fn sends(&mut self, slot: &Slot) {
        let is_small = slot.capacity() < self.large.slab.slot_bytes() as usize;
        let size = if is_small { &mut self.small } else { &mut self.large };
        size.unsignaled += 1;
    }

    /// Whether the next send has to be signaled so that buffers come back.
    pub(crate) fn is_signal_due(&self) -> bool {
        [&self.large, &self.small].iter().any(|size| size.unsignaled >= size.most)
    }

    /// A signaled send was posted.
    pub(crate) fn signaled(&mut self) {
        (self.large.unsignaled, self.small.unsignaled) = (0, 0);
    }
}
