//! How slots go into flight: the common code of posts and batches.

use std::fmt;
use std::mem::ManuallyDrop;

use uverbs_mlx5::request::{PostError, PostFlags};
use uverbs_mlx5::send_queue::AtomicResult;

use super::flight::{Flight, Kind};
use super::slot::{Chain, INHERITED, Launch, Slot};
use crate::error::Error;

/// A slot that could not be posted, and the reason.
pub struct Refused {
    /// The slot, with its bytes unchanged. The slot of an atomic now has length 8.
    pub slot: Slot,
    /// The reason.
    pub reason: PostError,
}

impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Refused({:?})", self.reason)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl std::error::Error for Refused {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.reason)
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        refused.reason.into()
    }
}

impl Refused {
    /// Keeps a slot in flight if its request was posted.
    #[inline(always)]
    pub(crate) fn unless(posted: Result<(), PostError>, slot: Slot) -> Result<(), Self> {
        if let Err(reason) = posted {
            return Err(Self { slot, reason });
        }
        let _in_flight = ManuallyDrop::new(slot);
        Ok(())
    }
}

impl Launch {
    /// Marks the slot as in flight, if its request was built.
    #[inline(always)]
    pub(crate) fn started(self, built: Result<(), PostError>) -> Result<(), PostError> {
        built.map(|()| self.start())
    }
}

/// The domain of the slots that a queue takes, and the flight that they get.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Admission {
    /// The protection domain whose memory it takes.
    pub(crate) domain: usize,
    pub(crate) flight: Flight,
}

impl Admission {
    /// Checks the slot's domain: the device would refuse memory of another domain, and a slot of
    /// another context might be freed before the queue's last requests complete.
    #[inline(always)]
    fn check(&self, slot: &Slot) -> Result<(), PostError> {
        let domain = slot.header().domain();
        if domain == self.domain { Ok(()) } else { Err(refusal(domain)) }
    }

    /// The launch of a slot for a receive into all of it.
    #[inline(always)]
    pub(crate) fn launch(&self, slot: Slot) -> Result<(Slot, Launch), Refused> {
        let launch = Launch::new(&slot, self.flight);
        match self.check(&slot) {
            Ok(()) => Ok((slot, launch)),
            Err(reason) => Err(Refused { slot, reason }),
        }
    }
}

/// The reason to refuse a slot of this domain. Takes only the domain, so that the slot can stay in
/// a register.
#[cold]
fn refusal(domain: usize) -> PostError {
    if domain == INHERITED { PostError::ForkedChild } else { PostError::ForeignMemory }
}

/// The state of a queue pair's sends.
#[derive(Debug)]
pub(crate) struct Sends {
    admission: Admission,
    /// The domain of the slots that the fast path of signaled sends takes; [`NO_DOMAIN`] while
    /// slots are pending.
    fast_domain: usize,
    signal_all: bool,
    /// Slots posted unsignaled since the last signaled one, newest first.
    pending: Chain,
}

/// No slot has this domain.
const NO_DOMAIN: usize = 0;

impl Sends {
    pub(crate) fn new(admission: Admission, signal_all: bool) -> Self {
        Self { admission, fast_domain: admission.domain, signal_all, pending: Chain::EMPTY }
    }

    /// Moves the state out. The remaining value must not post.
    pub(crate) fn move_out(&mut self) -> Self {
        let mut moved = Self::new(self.admission, self.signal_all);
        moved.set_pending(self.pending);
        self.set_pending(Chain::EMPTY);
        moved
    }

    /// Starts over after a reset: later sends are in `flight`, and no slot is pending.
    pub(crate) fn start_over(&mut self, flight: Flight) {
        self.admission.flight = flight;
        self.set_pending(Chain::EMPTY);
    }

    /// Slots of unsignaled sends after the last signaled one.
    pub(crate) fn pending(&self) -> Chain {
        self.pending
    }

    #[inline(always)]
    fn set_pending(&mut self, pending: Chain) {
        self.pending = pending;
        self.fast_domain = if pending.is_empty() { self.admission.domain } else { NO_DOMAIN };
    }

    #[inline(always)]
    fn is_unsignaled(&self, flags: PostFlags) -> bool {
        !self.signal_all && !flags.contains(PostFlags::SIGNALED)
    }

    /// The launch of a slot that is to be sent; [`Sends::finish`] has to follow. No function here
    /// takes a closure that posts: of a closure with several callers the compiler makes a function,
    /// whose arguments go through memory.
    ///
    /// The fast path, one comparison, is for signaled sends that release only their own slot.
    #[inline(always)]
    pub(crate) fn launch(
        &mut self,
        slot: Slot,
        flags: PostFlags,
    ) -> Result<(Slot, Launch), Refused> {
        let is_unsignaled = self.is_unsignaled(flags);
        if slot.header().domain() == self.fast_domain && !is_unsignaled {
            let launch = Launch::new(&slot, self.admission.flight);
            return Ok((slot, launch));
        }
        let (slot, launch) = self.admission.launch(slot)?;
        // The completion of the next signaled send releases the unsignaled slots before it.
        let (next, kind) = if is_unsignaled {
            (Chain::ending_in(&slot), Kind::Unsignaled)
        } else {
            (Chain::EMPTY, Kind::Chained)
        };
        let launch = launch.following(self.pending, kind);
        self.set_pending(next);
        Ok((slot, launch))
    }

    /// Keeps the slot of a send in flight if it was posted; else undoes the launch.
    #[inline(always)]
    pub(crate) fn finish(
        &mut self,
        posted: Result<(), PostError>,
        slot: Slot,
        launch: Launch,
    ) -> Result<(), Refused> {
        Refused::unless(posted.inspect_err(|_| self.take_back(launch)), slot)
    }

    #[inline(always)]
    fn take_back(&mut self, launch: Launch) {
        if let Some(before) = launch.before() {
            self.set_pending(before);
        }
    }

    /// The id of a send without a slot; [`Sends::finish_without_slot`] has to follow.
    #[inline(always)]
    pub(crate) fn id_without_slot(&self, flags: PostFlags) -> u64 {
        if self.fast_domain == NO_DOMAIN && !self.is_unsignaled(flags) {
            cold_path();
            return self.pending.releasing_id();
        }
        0
    }

    /// Records that the completion of a send without a slot, if it was posted, releases the pending
    /// slots.
    #[inline(always)]
    pub(crate) fn finish_without_slot(
        &mut self,
        posted: Result<(), PostError>,
        id: u64,
    ) -> Result<(), PostError> {
        if id != 0 && posted.is_ok() {
            cold_path();
            self.set_pending(Chain::EMPTY);
        }
        posted
    }
}

/// Marks a branch as rarely taken.
#[cold]
pub(super) fn cold_path() {}

/// Prepares `slot` for the result of an atomic, which the device writes to its first 8 bytes.
#[inline(always)]
pub(crate) fn for_atomic(slot: Slot) -> Result<(Slot, AtomicResult), Refused> {
    if slot.capacity() < 8 {
        return Err(Refused { slot, reason: PostError::BadAtomic });
    }
    slot.header().set_length(8);
    let whole = slot.whole();
    Ok((slot, AtomicResult { address: whole.address(), lkey: whole.lkey() }))
}
