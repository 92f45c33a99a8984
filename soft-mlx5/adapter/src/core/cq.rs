//! Completion queues: writing CQEs, arming, overrun, resize, moderation.

mod params;

use uverbs_mlx5_format::{CQE_SIZE, CqArm, Cqe, CqeFormat, CqeOpcode, MiniCqeFormat, OpOwn};
use zerocopy::IntoBytes;

pub use params::{
    Armed, CqInfo, CqModify, CqParams, CqRing, CqeSize, LOG_MAX_CQ, Moderation, Stamps,
};

use super::compression::Session;
use super::{AsyncKind, CoreError, Cqn, Event, EventObject};
use crate::memory::{BusError, HostMemory};

const INDEX_MASK: u32 = 0xff_ffff;

/// Bits of an arm word that the driver never sets.
const NEVER_ARMED: u32 = 0xce00_0000;

/// A completion queue.
#[derive(Debug)]
pub(super) struct Cq {
    pub(super) number: Cqn,
    ring: CqRing,
    doorbell_record: u64,
    ignore_overrun: bool,
    moderation: Moderation,
    stamps: Stamps,
    /// Completions that are held back, if the CQ compresses them.
    session: Option<Session>,
    producer: u32,
    consumer: u32,
    in_error: bool,
    armed: Option<Armed>,
    /// Sequence number of the arming that the last event answered.
    fired: Option<u8>,
    arm_sequence: u8,
    /// Index after the last solicited or error CQE: those raise an event if the CQ is armed for
    /// solicited completions.
    last_solicited: u32,
    /// Index after the last CQE that an event has announced (`last_notified_index` of the CQ
    /// context).
    announced: u32,
    held_back: u16,
    /// When an event that moderation holds back is due.
    pub(super) deadline: Option<u64>,
    pub(super) users: u32,
}

/// A CQE ready to be written: the 64 bytes, and inline data of up to 64 for the half before it.
#[derive(Debug)]
pub(super) struct Completion<'a> {
    pub(super) cqe: Cqe,
    pub(super) opcode: CqeOpcode,
    pub(super) solicited: bool,
    pub(super) inline: Option<&'a [u8]>,
}

impl Completion<'_> {
    /// Neither solicited nor with inline data.
    pub(super) fn new(cqe: Cqe, opcode: CqeOpcode) -> Self {
        Self { cqe, opcode, solicited: false, inline: None }
    }
}

/// The result of a change to a CQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Posted {
    /// No event.
    NoEvent,
    /// The event is to be raised now.
    Event,
    /// The event is to be raised at the CQ's deadline.
    Later,
    /// The CQ just failed.
    Failed,
    /// The CQ had failed before; the completion is lost.
    Lost,
}

impl Posted {
    /// The combined result of two changes. At most one of them raises an event, since that disarms
    /// the CQ.
    fn or(self, later: Self) -> Self {
        if later == Self::NoEvent { self } else { later }
    }
}

impl Cq {
    pub(super) fn new(number: u32, params: CqParams) -> Self {
        Self {
            number: Cqn(number),
            ring: params.ring,
            doorbell_record: params.doorbell_record,
            ignore_overrun: params.ignore_overrun,
            moderation: params.moderation,
            stamps: Stamps::Counter(0),
            session: None,
            producer: 0,
            consumer: 0,
            in_error: false,
            armed: None,
            fired: None,
            arm_sequence: 0,
            last_solicited: 0,
            announced: 0,
            held_back: 0,
            deadline: None,
            users: 0,
        }
    }

    pub(super) fn info(&self) -> CqInfo {
        CqInfo {
            ring: self.ring.clone(),
            in_error: self.in_error,
            producer_index: self.producer,
            consumer_index: self.consumer,
            armed: self.armed,
            moderation: self.moderation,
            ignore_overrun: self.ignore_overrun,
            users: self.users,
        }
    }

    pub(super) fn cqe_size(&self) -> CqeSize {
        self.ring.cqe_size
    }

    pub(super) fn stamp(&mut self, stamps: Stamps) {
        self.stamps = stamps;
    }

    /// Compresses completions from now on. Only where entries have 64 bytes.
    pub(super) fn compress(&mut self, format: MiniCqeFormat) {
        self.session = Some(Session::new(format));
    }

    /// Whether completions are held back.
    pub(super) fn is_holding(&self) -> bool {
        self.session.as_ref().is_some_and(|session| !session.held.is_empty())
    }

    pub(super) fn completion_event(&self) -> Event {
        Event::Completion { cqn: self.number }
    }

    pub(super) fn error_event(&self) -> Event {
        Event::Async { kind: AsyncKind::CqError, object: EventObject::Cq(self.number) }
    }

    /// Writes one CQE or holds it back. Returns whether an event is due.
    pub(super) fn post(
        &mut self,
        memory: &dyn HostMemory,
        now: u64,
        done: Completion<'_>,
    ) -> Posted {
        if self.in_error {
            return Posted::Lost;
        }
        let joins = self.session.as_ref().is_some_and(|session| session.joins(&done));
        let before = if joins { Posted::NoEvent } else { self.flush(memory, now) };
        if before == Posted::Failed {
            return before;
        }
        if !self.has_space(memory) {
            return self.fail();
        }
        match &mut self.session {
            Some(session) if Session::can_hold(&done) => {
                session.hold(&done);
                before
            }
            _ => before.or(self.write_one(memory, now, &done)),
        }
    }

    /// Writes the completions that are held back.
    pub(super) fn flush(&mut self, memory: &dyn HostMemory, now: u64) -> Posted {
        let Some(mut session) = self.session.take_if(|session| !session.held.is_empty()) else {
            return Posted::NoEvent;
        };
        let posted = self.write_session(memory, now, &session);
        session.held.clear();
        self.session = Some(session);
        posted
    }

    fn write_session(&mut self, memory: &dyn HostMemory, now: u64, session: &Session) -> Posted {
        let (opcode, solicited) = (session.opcode, session.solicited);
        let Some(cqe) = session.held.first().copied() else { return Posted::NoEvent };
        let mut title = Completion { cqe, opcode, solicited, inline: None };
        if session.held.len() == 1 {
            return self.write_one(memory, now, &title);
        }
        let count = session.held.len() as u32;
        title.cqe.byte_count = count.into();
        let arrays = session.arrays().try_for_each(|(index, array)| {
            let at = self.offset_of(self.producer.wrapping_add(index));
            self.write_entry(memory, array.as_bytes(), at)
        });
        // The title last: a host that sees it reads the arrays.
        let written = arrays.and_then(|()| self.write(memory, &title, CqeFormat::COMPRESSED));
        if written.is_err() {
            return self.fail();
        }
        (0..count).fold(Posted::NoEvent, |posted, _| posted.or(self.advance(now, &title)))
    }

    fn write_one(&mut self, memory: &dyn HostMemory, now: u64, done: &Completion<'_>) -> Posted {
        if self.write(memory, done, CqeFormat::NO_INLINE).is_err() {
            return self.fail();
        }
        self.advance(now, done)
    }

    /// Advances the producer index by one CQE. Indices are compared modulo 2^24, and one that fell
    /// more than half of that behind would compare as ahead. So the older indices are moved along.
    fn advance_producer(&mut self) {
        self.producer = self.producer.wrapping_add(1) & INDEX_MASK;
        for older in [&mut self.last_solicited, &mut self.announced] {
            if self.producer.wrapping_sub(*older) & INDEX_MASK >= 1 << 23 {
                *older = older.wrapping_add(1) & INDEX_MASK;
            }
        }
    }

    /// Counts a CQE that was written.
    fn advance(&mut self, now: u64, done: &Completion<'_>) -> Posted {
        self.advance_producer();
        let wakes = done.solicited || is_error(done.opcode);
        if wakes {
            self.last_solicited = self.producer;
        }
        match self.armed {
            Some(Armed::Any) => self.moderate(now),
            Some(Armed::Solicited) if wakes => self.moderate(now),
            _ => Posted::NoEvent,
        }
    }

    fn has_space(&mut self, memory: &dyn HostMemory) -> bool {
        self.ignore_overrun || !self.seems_full() || {
            // Reading the record costs an access to host memory, so it is read only when the ring
            // seems full.
            let Ok(word) = memory.load_be32(self.doorbell_record) else { return false };
            self.consumer = word & INDEX_MASK;
            !self.seems_full()
        }
    }

    fn seems_full(&self) -> bool {
        let held = self.session.as_ref().map_or(0, |session| session.held.len() as u32);
        let unread = self.producer.wrapping_add(held).wrapping_sub(self.consumer) & INDEX_MASK;
        unread >= 1 << self.ring.log_entries
    }

    fn fail(&mut self) -> Posted {
        self.in_error = true;
        self.armed = None;
        self.deadline = None;
        self.session = None;
        Posted::Failed
    }

    /// The offset in the ring buffer of the CQE with this index.
    fn offset_of(&self, index: u32) -> u64 {
        let slot = u64::from(index & ((1 << self.ring.log_entries) - 1));
        let size = self.ring.cqe_size.bytes();
        slot * size + (size - CQE_SIZE as u64)
    }

    /// Writes a CQE at the producer's index, of `format` unless it has inline data.
    fn write(
        &self,
        memory: &dyn HostMemory,
        done: &Completion<'_>,
        format: CqeFormat,
    ) -> Result<(), BusError> {
        let at = self.offset_of(self.producer);
        let mut cqe = done.cqe;
        cqe.timestamp = self.stamps.of(cqe.timestamp.get()).into();
        let format = match done.inline {
            Some(data) => self.place_inline(memory, &mut cqe, at, data)?,
            None => format,
        };
        let owner = self.producer >> self.ring.log_entries & 1 != 0;
        cqe.op_own = OpOwn::new(done.opcode, format, done.solicited, owner);
        self.write_entry(memory, cqe.as_bytes(), at)
    }

    fn place_inline(
        &self,
        memory: &dyn HostMemory,
        cqe: &mut Cqe,
        at: u64,
        data: &[u8],
    ) -> Result<CqeFormat, BusError> {
        if data.len() <= 32 {
            cqe.as_mut_bytes()[..data.len()].copy_from_slice(data);
            return Ok(CqeFormat::INLINE_32);
        }
        let before = at.checked_sub(64).ok_or(BusError { address: at, len: 64 })?;
        self.ring.buffer.write(memory, before, &data[..data.len().min(64)])?;
        Ok(CqeFormat::INLINE_64)
    }

    /// Writes a CQE or an array of mini-CQEs. The byte with the owner bit is last and with release,
    /// because the host takes the CQE as soon as it sees the bit. The byte is written separately,
    /// because the host polls it by loads of one byte.
    fn write_entry(&self, memory: &dyn HostMemory, entry: &[u8], at: u64) -> Result<(), BusError> {
        let (body, owner) = entry.split_at(CQE_SIZE - 1);
        self.ring.buffer.write(memory, at, body)?;
        let bad = BusError { address: at, len: 1 };
        let (address, _) = self.ring.buffer.locate(at + body.len() as u64, 1).ok_or(bad)?;
        memory.store_release_u8(address, owner[0])
    }

    /// Reads the arm word of the doorbell record.
    pub(super) fn arm(&mut self, memory: &dyn HostMemory, now: u64) -> Posted {
        let Ok(word) = memory.load_be32(self.doorbell_record.wrapping_add(4)) else {
            return if self.in_error { Posted::Lost } else { self.fail() };
        };
        // A front end that checks all CQs of a page after one doorbell fills the arm words with
        // such a mark at first. A word that the host has not written would otherwise be 0, like
        // that of a first arming.
        if word & NEVER_ARMED != 0 {
            return Posted::NoEvent;
        }
        self.arm_with(CqArm::from_word(word), now)
    }

    fn arm_with(&mut self, arm: CqArm, now: u64) -> Posted {
        // The host changes the sequence number when it consumes an event. The same number again is
        // the same arming, which has raised its event.
        if self.in_error || self.fired == Some(arm.sequence) {
            return Posted::NoEvent;
        }
        let wanted = if arm.solicited_only { Armed::Solicited } else { Armed::Any };
        let keeps_any = self.armed == Some(Armed::Any) && self.arm_sequence == arm.sequence;
        self.armed = Some(if keeps_any { Armed::Any } else { wanted });
        self.arm_sequence = arm.sequence;
        self.consumer = arm.consumer_index;
        let unread = match wanted {
            Armed::Any => self.producer,
            Armed::Solicited => self.last_solicited,
        };
        // Programs arm between an event and the poll that follows it (rdma-core's pingpongs,
        // perftest). The completions that the event announced are unread then, and must not raise
        // another one.
        if is_after(unread, arm.consumer_index) && is_after(unread, self.announced) {
            self.moderate(now)
        } else {
            Posted::NoEvent
        }
    }

    fn moderate(&mut self, now: u64) -> Posted {
        let Moderation { count, period } = self.moderation;
        self.held_back = self.held_back.saturating_add(1);
        if count <= 1 || period == 0 || self.held_back >= count {
            return self.fire();
        }
        if self.deadline.is_none() {
            self.deadline = Some(now.saturating_add(u64::from(period) * 1000));
        }
        Posted::Later
    }

    /// Called when the host takes the CQ's event. If exactly one more CQE has been written since
    /// the event was raised, the event announces it too: a message and an acknowledgement often
    /// arrive together, and a program that arms before it polls (see [`arm_with`](Self::arm_with))
    /// must not get a second event for them. It is at most one CQE, because programs poll a bounded
    /// number of CQEs for each event.
    pub(super) fn announce(&mut self) {
        if self.producer.wrapping_sub(self.announced) & INDEX_MASK == 1 {
            self.announced = self.producer;
        }
    }

    fn fire(&mut self) -> Posted {
        self.announced = self.to_announce();
        self.armed = None;
        self.deadline = None;
        self.held_back = 0;
        self.fired = Some(self.arm_sequence);
        Posted::Event
    }

    /// Index after the last CQE that an event announces. An event announces one CQE, or all that
    /// moderation held back. Later CQEs raise an event when the CQ is armed again, because more may
    /// be unread than a program polls for one event.
    fn to_announce(&self) -> u32 {
        let ahead = is_after(self.consumer, self.announced);
        let from = if ahead { self.consumer } else { self.announced };
        let to = from.wrapping_add(self.held_back.max(1).into()) & INDEX_MASK;
        if is_after(to, self.producer) { self.producer } else { to }
    }

    /// Handles the end of the moderation period.
    pub(super) fn expire(&mut self, now: u64) -> Posted {
        match self.deadline {
            Some(deadline) if deadline <= now => self.fire(),
            Some(_) => Posted::Later,
            None => Posted::NoEvent,
        }
    }

    pub(super) fn modify(
        &mut self,
        memory: &dyn HostMemory,
        change: CqModify,
    ) -> Result<(), CoreError> {
        if self.in_error {
            return Err(CoreError::InError { kind: super::ObjectKind::Cq, number: self.number.0 });
        }
        if let Some(ring) = change.ring {
            ring.check()?;
            self.resize(memory, ring)?;
        }
        self.moderation = change.moderation.unwrap_or(self.moderation);
        self.ignore_overrun = change.ignore_overrun.unwrap_or(self.ignore_overrun);
        Ok(())
    }

    /// The old ring ends with a resize CQE, which takes an index. The host copies the CQEs that it
    /// has not read to the new ring, one index later (`mlx5_cq_resize_copy_cqes` in libmlx5).
    fn resize(&mut self, memory: &dyn HostMemory, ring: CqRing) -> Result<(), CoreError> {
        self.consumer = memory.load_be32(self.doorbell_record)? & INDEX_MASK;
        let unread = self.producer.wrapping_sub(self.consumer) & INDEX_MASK;
        // The old ring needs space for the resize CQE. If CQEs may be overwritten, the host need
        // not update the consumer index, so the index is not checked.
        let most = self.ring.log_entries.min(ring.log_entries);
        if !self.ignore_overrun && unread >= 1 << most {
            return Err(CoreError::bad("CQ size", 1 << ring.log_entries));
        }
        let marker = Completion::new(Cqe::default(), CqeOpcode::RESIZE);
        self.write(memory, &marker, CqeFormat::NO_INLINE)?;
        self.advance_producer();
        self.ring = ring;
        Ok(())
    }

    /// Puts the CQ into its error state; `false` if it was there already.
    pub(super) fn set_error(&mut self) -> bool {
        !std::mem::replace(&mut self.in_error, true)
    }
}

fn is_error(opcode: CqeOpcode) -> bool {
    matches!(opcode, CqeOpcode::REQUESTER_ERROR | CqeOpcode::RESPONDER_ERROR)
}

/// Whether index `a` is after `b`, modulo 2^24.
fn is_after(a: u32, b: u32) -> bool {
    let distance = a.wrapping_sub(b) & INDEX_MASK;
    distance != 0 && distance < 1 << 23
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::PageMap;
    use crate::memory::recorder::{Accessed, Recorder};

    const BASE: u64 = 0x7000_0000;

    fn recorded() -> (Cq, Recorder) {
        let memory = Recorder::new(BASE, 4096);
        let ring = CqRing { buffer: PageMap::linear(BASE), log_entries: 2, cqe_size: CqeSize::B64 };
        let moderation = Moderation::default();
        let doorbell_record = BASE + 1024;
        let params = CqParams { ring, doorbell_record, ignore_overrun: false, moderation };
        (Cq::new(1, params), memory)
    }

    /// Asserts that one access, of one byte, touched the owner byte of an entry.
    fn assert_alone(accesses: &[Accessed], entry: u64) {
        let owner = BASE + 64 * entry + 63;
        let touches = |(at, size, _): &&Accessed| *at <= owner && at + size > owner;
        let touching: Vec<_> = accesses.iter().filter(touches).collect();
        assert_eq!(touching, [&(owner, 1, true)], "{accesses:?}");
    }

    /// Pollers load the owner byte while it is being written.
    #[test]
    fn the_owner_byte_is_written_last_and_alone() {
        let (mut cq, memory) = recorded();
        let done = Completion::new(Cqe::default(), CqeOpcode::REQUESTER);
        assert_eq!(cq.post(&memory, 0, done), Posted::NoEvent);
        let accesses = memory.take();
        assert_eq!(accesses.last(), Some(&(BASE + 63, 1, true)), "{accesses:?}");
        assert_alone(&accesses, 0);
    }

    /// Indices have 24 bits. The last event and the last solicited completion may be more than half
    /// of that range behind.
    #[test]
    fn arming_finds_what_is_unread_however_long_ago_the_last_event_was() {
        let (mut cq, _) = recorded();
        let done = Completion::new(Cqe::default(), CqeOpcode::REQUESTER);
        let arm = |sequence, solicited_only, consumer_index| CqArm {
            sequence,
            solicited_only,
            consumer_index: consumer_index & INDEX_MASK,
        };
        cq.producer = (1 << 23) - 2;
        for _ in 0..3 {
            assert_eq!(cq.advance(0, &done), Posted::NoEvent);
        }
        let (all, last) = (cq.producer, cq.producer.wrapping_sub(1));
        assert_eq!(cq.arm_with(arm(0, true, all), 0), Posted::NoEvent);
        assert_eq!(cq.arm_with(arm(1, true, last), 0), Posted::NoEvent);
        assert_eq!(cq.arm_with(arm(2, false, all), 0), Posted::NoEvent);
        assert_eq!(cq.arm_with(arm(3, false, last), 0), Posted::Event);
    }

    /// A thread that resets a queue loads the owner bytes of all entries of a CQ that is being
    /// resized.
    #[test]
    fn the_owner_byte_of_an_array_of_mini_cqes_is_written_alone() {
        let (mut cq, memory) = recorded();
        cq.compress(MiniCqeFormat::HASH);
        for counter in 0..2u16 {
            let cqe = Cqe { wqe_counter: counter.into(), ..Cqe::default() };
            let done = Completion::new(cqe, CqeOpcode::RESPONDER_SEND);
            assert_eq!(cq.post(&memory, 0, done), Posted::NoEvent);
        }
        assert_eq!(cq.flush(&memory, 0), Posted::NoEvent);
        let accesses = memory.take();
        (0..2).for_each(|entry| assert_alone(&accesses, entry));
    }
}
