//! How slots go into flight: what the single posts and the batches have in common.

use std::fmt;
use std::mem::ManuallyDrop;

use uverbs_mlx5::request::{PostError, PostFlags, Sge};
use uverbs_mlx5::send_queue::AtomicResult;

use super::flight::Flight;
use super::slot::{Chain, Launch, Slot};
use crate::error::Error;

/// A slot that could not be posted, and why.
pub struct Refused {
    /// The slot, untouched; one that was to take the result of an atomic counts 8 bytes as filled.
    pub slot: Slot,
    /// Why.
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
    #[inline(always)]
    fn unless(posted: Result<(), PostError>, slot: Slot) -> Result<ManuallyDrop<Slot>, Self> {
        match posted {
            Ok(()) => Ok(ManuallyDrop::new(slot)),
            Err(reason) => Err(Self { slot, reason }),
        }
    }
}

/// Which slots a queue takes, and how they are identified in flight on it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Admission {
    /// The protection domain whose memory it takes.
    pub(crate) domain: usize,
    pub(crate) flight: Flight,
}

impl Admission {
    /// Checks the slot's domain: the device would refuse memory of another domain, and a slot of
    /// another context might be freed before the queue's last requests are done.
    #[inline(always)]
    fn check(&self, slot: &Slot) -> Result<(), PostError> {
        if slot.header().domain() == self.domain {
            return Ok(());
        }
        Err(refusal(slot))
    }

    /// Launches `slot` if `build` builds a receive with this id into all of it, which the device
    /// must not learn of before.
    #[inline(always)]
    pub(crate) fn receive(
        &self,
        slot: Slot,
        build: impl FnOnce(u64, &[Sge]) -> Result<(), PostError>,
    ) -> Result<(), Refused> {
        let launch = Launch::new(&slot, self.flight);
        let built = self.check(&slot).and_then(|()| build(launch.id(), &[slot.whole()]));
        Refused::unless(built, slot).map(|_in_flight| launch.start())
    }
}

#[cold]
fn refusal(slot: &Slot) -> PostError {
    if slot.header().is_inherited() { PostError::ForkedChild } else { PostError::ForeignMemory }
}

/// The state that sends of a queue pair share.
#[derive(Debug)]
pub(crate) struct Sends {
    pub(crate) admission: Admission,
    pub(crate) signal_all: bool,
    /// Slots posted unsignaled since the last signaled one, newest first.
    pub(crate) pending: Chain,
}

impl Sends {
    #[inline(always)]
    fn is_unsignaled(&self, flags: PostFlags) -> bool {
        !self.signal_all && !flags.contains(PostFlags::SIGNALED)
    }

    /// Posts a send that carries `slot`: `post` launches it if it can.
    #[inline(always)]
    pub(crate) fn send(
        &mut self,
        slot: Slot,
        flags: PostFlags,
        post: impl FnOnce(Launch) -> Result<(), PostError>,
    ) -> Result<(), Refused> {
        let is_unsignaled = self.is_unsignaled(flags);
        let flight = self.admission.flight;
        let posted = self
            .admission
            .check(&slot)
            .and_then(|()| post(Launch::send(&slot, flight, self.pending, is_unsignaled)));
        let slot = Refused::unless(posted, slot)?;
        // An unsignaled slot waits for the next signaled one, which has taken all before it.
        self.pending = if is_unsignaled { Chain::ending_in(&slot) } else { Chain::EMPTY };
        Ok(())
    }

    /// Posts a send without a slot: `post` gets its id.
    #[inline(always)]
    pub(crate) fn send_without_slot(
        &mut self,
        flags: PostFlags,
        post: impl FnOnce(u64) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        if self.is_unsignaled(flags) {
            return post(0);
        }
        post(self.pending.releasing_id())?;
        self.pending = Chain::EMPTY;
        Ok(())
    }
}

/// Prepares `slot` for the result of an atomic, which goes into its first 8 bytes.
#[inline(always)]
pub(crate) fn for_atomic(slot: Slot) -> Result<(Slot, AtomicResult), Refused> {
    if slot.capacity() < 8 {
        return Err(Refused { slot, reason: PostError::BadAtomic });
    }
    slot.header().set_length(8);
    let whole = slot.whole();
    Ok((slot, AtomicResult { address: whole.address(), lkey: whole.lkey() }))
}
