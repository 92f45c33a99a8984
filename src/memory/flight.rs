//! The identity of slots in flight: a queue, a kind of request and a completion queue in one word.

use crate::error::{Error, ErrorKind, Result};
use crate::host::events::ObjectId;

/// A flight has the queue's serial number in the bits from here on; below are a [`Kind`] and the
/// number of a completion queue.
pub(super) const SERIAL_SHIFT: u32 = 27;
const KIND_SHIFT: u32 = 24;
/// Completion queues have numbers of 24 bits.
const CQ_MASK: u64 = (1 << KIND_SHIFT) - 1;
const KINDS: u64 = (1 << SERIAL_SHIFT) - (1 << KIND_SHIFT);

/// The kind of request that carries a slot. 0, none of these, is a signaled send that releases only
/// its own slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Kind {
    Receive = 1,
    /// An unsignaled send, whose slot the completion of a later send releases.
    Unsignaled = 2,
    /// A signaled send that also releases the unsignaled sends before it.
    Chained = 3,
    /// A receive of a shared queue.
    SharedReceive = 4,
}

impl Kind {
    const fn bits(self) -> u64 {
        (self as u64) << KIND_SHIFT
    }
}

/// The serial number of a queue pair or shared receive queue: 37 bits, never 0, unique in the
/// process. Completions of the queue carry it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Serial(u64);

impl Serial {
    /// # Errors
    /// `Refused` after 2^37 objects: a number is never reused, so that a completion of an old queue
    /// cannot release a slot of a new one.
    pub(crate) fn new(verb: &'static str) -> Result<Self> {
        Self::of_object(verb, ObjectId::new().0)
    }

    pub(super) fn of_object(verb: &'static str, id: u64) -> Result<Self> {
        if id >= 1 << (u64::BITS - SERIAL_SHIFT) {
            let cause =
                "this process has made 2^37 objects, and no number is left for another queue";
            return Err(Error::new(verb, ErrorKind::Refused, cause).cure_with("start it again"));
        }
        Ok(Self(id << SERIAL_SHIFT))
    }

    /// The serial number of the shared receive queue that a completion names, which was registered
    /// with [`Serial::get`].
    #[inline(always)]
    pub(crate) fn of(user_context: u64) -> Self {
        Self(user_context)
    }

    pub(crate) fn get(self) -> u64 {
        self.0
    }

    /// The flights that completions of its sends and of its receives carry, for the completion
    /// queues of both.
    pub(crate) fn side_contexts(self, cqs: [CqBits; 2]) -> [u64; 2] {
        [self.sends(cqs[0]).0, self.receives(cqs[1]).0]
    }

    /// The flight of signaled sends that complete to `cq` and release only their own slot.
    #[inline(always)]
    pub(crate) fn sends(self, cq: CqBits) -> Flight {
        Flight(self.0 | cq.0)
    }

    /// The flight of receives of its own receive queue that complete to `cq`.
    pub(crate) fn receives(self, cq: CqBits) -> Flight {
        self.sends(cq).of(Kind::Receive)
    }

    /// The flight of receives of a shared receive queue, whichever completion queue they complete
    /// to.
    #[inline(always)]
    pub(crate) fn shared_receives(self) -> Flight {
        Flight(self.0 | Kind::SharedReceive.bits())
    }
}

/// The number of a completion queue, as flights contain it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CqBits(u64);

impl CqBits {
    pub(crate) fn of(number: u32) -> Self {
        Self(u64::from(number) & CQ_MASK)
    }
}

/// The queue that a slot is in flight on, the kind of its request, and the completion queue. Never
/// 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flight(pub(super) u64);

impl Flight {
    #[inline(always)]
    pub(super) fn of(self, kind: Kind) -> Self {
        Self(self.0 & !KINDS | kind.bits())
    }

    /// The flight in a completion ([`Serial::side_contexts`]): a receive of the queue's own, or a
    /// signaled send that releases only its own slot.
    #[inline(always)]
    pub(crate) fn of_completion(side_context: u64) -> Self {
        Self(side_context)
    }

    /// The queue that requests in this flight are on.
    #[inline(always)]
    pub(crate) fn serial(self) -> Serial {
        Serial(self.0 & !((1 << SERIAL_SHIFT) - 1))
    }

    /// The completion queue that requests in this flight complete to.
    #[inline(always)]
    pub(crate) fn cq(self) -> CqBits {
        CqBits(self.0 & CQ_MASK)
    }

    /// Whether a flight [of a completion](Flight::of_completion) is that of a receive.
    #[inline(always)]
    pub(crate) fn is_of_receive(self) -> bool {
        self.0 & KINDS != 0
    }

    /// Whether other slots are to be released with the one in this flight.
    pub(super) fn has_chain(self) -> bool {
        self == self.of(Kind::Unsignaled) || self == self.of(Kind::Chained)
    }

    /// Whether it is a flight on the queue with this serial number.
    pub(super) fn is_on(self, serial: Serial) -> bool {
        self.0 >> SERIAL_SHIFT == serial.0 >> SERIAL_SHIFT
    }
}
