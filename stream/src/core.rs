//! A stream's queues and counters, which one lock protects.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use uverbs::cq::{CompletionOpcode, Immediate, Status};
use uverbs::qp::PostFlags;
use uverbs::qp_type::Rc;
use uverbs::{CompletionQueue, MemoryView, PollError, QueuePair, Slot, op};

use crate::broken::Broken;
use crate::buffers::SendBuffers;
use crate::config::{INLINE, SENDS};
use crate::gather::Gather;
use crate::readiness::{Side, Waiting};
use crate::window::{Incoming, Outgoing, Report};

/// At least one of this many consecutive sends is signaled. Few are, because the completion of a
/// send can wake a reader unnecessarily. The send queue has more entries than this.
const SIGNALED_EVERY: u64 = 64;
/// Send queue entries that only reports may use.
const REPORTS: u64 = 32;

/// Whether this side has ended its data, and reported that to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    /// To be reported as soon as the send queue has space.
    Wanted,
    Told,
}

/// The result of a call that does not wait; `None` if it would have to.
pub(crate) type Attempt<T> = io::Result<Option<T>>;

#[derive(Debug)]
pub(crate) struct Core {
    qp: QueuePair<Rc>,
    cq: CompletionQueue,
    buffers: SendBuffers,
    pub(crate) incoming: Incoming,
    outgoing: Outgoing,
    end: End,
    is_read_shut: bool,
    broken: Option<Broken>,
    /// The sides whose calls have returned the reset error. After that they find the end of the
    /// stream, as with a socket.
    knows_of_reset: [bool; 2],
    /// The connection manager reported that the connection has ended.
    is_disconnected: bool,
    /// The completion queue is armed: the next completion raises an event.
    is_armed: bool,
    /// A thread sleeps until an event arrives.
    pub(crate) is_watched: bool,
    /// The number of threads that sleep until that thread has taken the event.
    pub(crate) followers: usize,
    /// The sides for which the program waits for the stream's file itself.
    pub(crate) waiting: Waiting,
    /// The number of sends posted, the number known to be complete, and the sequence numbers of the
    /// signaled sends among the others.
    posted: u64,
    done: u64,
    signaled: VecDeque<u64>,
}

impl Core {
    pub(crate) fn new(
        (qp, cq, buffers): (QueuePair<Rc>, CompletionQueue, SendBuffers),
        incoming: Incoming,
        outgoing: Outgoing,
    ) -> Self {
        Self {
            qp,
            cq,
            buffers,
            incoming,
            outgoing,
            end: End::Open,
            is_read_shut: false,
            broken: None,
            knows_of_reset: [false; 2],
            is_disconnected: false,
            is_armed: false,
            is_watched: false,
            followers: 0,
            waiting: Waiting::default(),
            posted: 0,
            done: 0,
            signaled: VecDeque::new(),
        }
    }

    /// Polls all completions, and reports freed bytes of the ring to the peer.
    pub(crate) fn progress(&mut self) {
        loop {
            let (slot, fields, status) = match self.cq.poll() {
                Ok(done) => {
                    let completion = &done.completion;
                    let immediate = completion.immediate().unwrap_or_default().to_u32();
                    let fields = (completion.opcode(), immediate, completion.byte_len());
                    (done.slot, fields, completion.status())
                }
                Err(PollError::Empty) => break,
                Err(PollError::NotOutstanding) => continue,
                Err(error) => return self.fail(Broken::Verb(error.into())),
            };
            if let Err(broken) = self.complete(slot, fields, status) {
                self.fail(broken);
            }
        }
        self.report_if_due();
    }

    fn complete(
        &mut self,
        slot: Option<Slot>,
        (opcode, immediate, bytes): (CompletionOpcode, u32, u32),
        status: Status,
    ) -> Result<(), Broken> {
        match (status, opcode) {
            (Status::Success, CompletionOpcode::RecvWriteImmediate) => {
                // If it were larger, a reader would get stale bytes of the ring.
                if immediate != bytes {
                    return Err(Broken::Protocol("a length that is not that of the data"));
                }
                self.incoming.arrived(bytes)?;
                self.receive_again(slot)
            }
            (Status::Success, CompletionOpcode::Recv) => {
                let report = Report::decode(slot.as_deref().unwrap_or_default())?;
                self.outgoing.credit(&report)?;
                self.incoming.finished |= report.finished;
                self.receive_again(slot)
            }
            (Status::Success, _) => {
                self.done = self.signaled.pop_front().unwrap_or(self.done);
                Ok(())
            }
            // Requests are flushed once the connection has ended.
            (Status::Flushed, _) if self.is_disconnected => Ok(()),
            (status, _) => Err(Broken::Failed(status)),
        }
    }

    fn receive_again(&mut self, slot: Option<Slot>) -> Result<(), Broken> {
        let Some(slot) = slot else { return Ok(()) };
        self.qp.post_receive(slot).map_err(|refused| Broken::Verb(refused.into()))
    }

    /// Records a failure, unless there was one before.
    fn fail(&mut self, broken: Broken) {
        tracing::debug!(%broken, "a stream broke");
        self.broken.get_or_insert(broken);
    }

    /// The connection manager reported that the connection has ended.
    pub(crate) fn disconnected(&mut self) {
        self.progress();
        self.is_disconnected = true;
        if !self.incoming.finished {
            self.fail(Broken::Disconnected);
        }
    }

    pub(crate) fn removed(&mut self) {
        self.fail(Broken::DeviceRemoved);
    }

    /// Fails the stream in a forked child, where nothing can be received or sent.
    pub(crate) fn require_opener(&mut self) {
        let refused = self.qp.receive_batch().err();
        if let Some(error) = refused.filter(|_| self.broken.is_none()) {
            self.fail(Broken::Verb(error.into()));
        }
    }

    /// Asks for an event at the next completion. Completions that have already arrived raise none.
    pub(crate) fn arm(&mut self) {
        if !self.is_armed {
            self.cq.arm();
            self.is_armed = true;
        }
    }

    /// Notes that the completion event was taken.
    pub(crate) fn disarmed(&mut self) {
        self.is_armed = false;
    }

    fn check(&self) -> io::Result<()> {
        self.broken.as_ref().map_or(Ok(()), |broken| Err(broken.into()))
    }

    /// [`Core::check`] for a side that reads or writes; notes that the side gets the reset error.
    fn tell(&mut self, side: Side) -> io::Result<()> {
        let is_reset = self.broken.as_ref().is_some_and(Broken::is_reset);
        self.knows_of_reset[side as usize] |= is_reset;
        self.check()
    }

    /// The number of bytes that can be read; `Some(0)` is the end of the stream.
    pub(crate) fn readable(&mut self) -> Attempt<usize> {
        if self.incoming.available() == 0 {
            self.progress();
        }
        let is_over =
            self.incoming.finished || self.is_read_shut || self.knows_of_reset[Side::Read as usize];
        match self.incoming.available() {
            0 if is_over => Ok(Some(0)),
            0 => self.tell(Side::Read).map(|()| None),
            bytes => Ok(Some(bytes)),
        }
    }

    /// Whether a side that had to wait may succeed now.
    pub(crate) fn may_go_on(&mut self, side: Side) -> bool {
        self.progress();
        self.broken.is_some()
            || match side {
                Side::Read => {
                    self.incoming.available() > 0 || self.incoming.finished || self.is_read_shut
                }
                // After `finish`, this side waits until the peer's device has everything.
                Side::Write => self.is_disconnected || self.end != End::Open || self.space() > 0,
            }
    }

    /// Copies received bytes, and leaves them in the ring.
    pub(crate) fn peek(&mut self, ring: MemoryView<'_>, into: &mut [u8]) -> Attempt<usize> {
        match self.readable()? {
            None => Ok(None),
            Some(_) => Ok(Some(self.incoming.copy(ring, into)?)),
        }
    }

    /// Copies received bytes out of the ring and frees them.
    pub(crate) fn read(&mut self, ring: MemoryView<'_>, into: &mut [u8]) -> Attempt<usize> {
        let taken = self.peek(ring, into)?;
        self.consume(taken.unwrap_or_default());
        Ok(taken)
    }

    /// Frees bytes of the ring.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.incoming.consume(bytes);
        self.report_if_due();
    }

    /// Fails if this side can never send again.
    fn check_writable(&mut self) -> io::Result<()> {
        if self.end != End::Open {
            let cause = "the stream was shut down for writing";
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, cause));
        }
        let is_over = self.knows_of_reset[Side::Write as usize];
        if !is_over {
            self.tell(Side::Write)?;
        }
        if is_over || self.is_disconnected {
            let cause = "the peer has closed the connection";
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, cause));
        }
        Ok(())
    }

    /// The number of bytes that the next message may have.
    fn space(&self) -> usize {
        let queue_has_space = self.posted - self.done < u64::from(SENDS) - REPORTS;
        if queue_has_space { self.outgoing.space() } else { 0 }
    }

    /// Sends as many bytes as there is space for, and returns their number.
    pub(crate) fn write(&mut self, buffers: &[IoSlice<'_>]) -> Attempt<usize> {
        self.progress();
        self.check_writable()?;
        let mut data = Gather::new(buffers);
        while data.left() > 0 && self.write_once(&mut data)? {}
        Ok(if data.taken() == 0 && data.left() > 0 { None } else { Some(data.taken()) })
    }

    /// Sends one message; false if there is no space.
    fn write_once(&mut self, data: &mut Gather<'_>) -> io::Result<bool> {
        let space = self.space().min(data.left());
        if space == 0 {
            return Ok(false);
        }
        if space <= INLINE as usize {
            let mut bytes = [0; INLINE as usize];
            data.take(&mut bytes[..space]);
            return self.post_inline(&bytes[..space]).map(|()| true);
        }
        let Some(mut slot) = self.buffers.take(space) else { return Ok(false) };
        slot.set_len(space);
        data.take(&mut slot);
        self.post(slot).map(|()| true)
    }

    /// A buffer for the program to fill, whose length is the number of bytes that can be sent now.
    pub(crate) fn reserve(&mut self) -> Attempt<Slot> {
        self.progress();
        self.check_writable()?;
        let space = self.space();
        let Some(mut slot) = self.buffers.take(space).filter(|_| space > 0) else {
            return Ok(None);
        };
        slot.set_len(space);
        Ok(Some(slot))
    }

    /// Sends the filled part of a buffer from [`Core::reserve`]. The space is still free: only one
    /// writer at a time can use it, and reports only add to it.
    pub(crate) fn post(&mut self, slot: Slot) -> io::Result<()> {
        self.buffers.sends(&slot);
        let (length, write, flags) = self.next(slot.len());
        match self.qp.post_send(write, slot, flags) {
            Ok(()) => self.sent(length, flags),
            Err(refused) => return self.refuse(refused.into()),
        }
        Ok(())
    }

    fn post_inline(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (length, write, flags) = self.next(bytes.len());
        match self.qp.post_inline(write, bytes, flags) {
            Ok(()) => self.sent(length, flags),
            Err(error) => return self.refuse(error.into()),
        }
        Ok(())
    }

    fn next(&self, length: usize) -> (usize, op::WriteImmediate, PostFlags) {
        let immediate = Immediate::from_u32(length as u32);
        (length, op::WriteImmediate(self.outgoing.target(), immediate), self.flags())
    }

    fn refuse(&mut self, error: uverbs::Error) -> io::Result<()> {
        self.fail(Broken::Verb(error));
        self.check()
    }

    fn sent(&mut self, length: usize, flags: PostFlags) {
        self.outgoing.advance(length);
        self.count(flags);
    }

    /// The flags of the next send. Only some sends are signaled; the completion of one also retires
    /// all before it.
    fn flags(&self) -> PostFlags {
        let last = self.signaled.back().copied().unwrap_or(self.done);
        match self.posted + 1 - last >= SIGNALED_EVERY || self.buffers.is_signal_due() {
            true => PostFlags::SIGNALED,
            false => PostFlags::empty(),
        }
    }

    fn count(&mut self, flags: PostFlags) {
        self.posted += 1;
        if flags.contains(PostFlags::SIGNALED) {
            self.signaled.push_back(self.posted);
            self.buffers.signaled();
        }
    }

    fn report_if_due(&mut self) {
        if self.is_over() {
            return;
        }
        if self.end == End::Wanted {
            self.tell_end();
        } else if self.incoming.is_report_due() {
            self.send_report(self.end == End::Told, self.report_flags());
        }
    }

    /// The flags of a report. After the end of the data no other send may follow to retire the
    /// report, and [`Core::finished`] waits for all sends.
    fn report_flags(&self) -> PostFlags {
        match self.end {
            End::Told => PostFlags::SIGNALED,
            End::Open | End::Wanted => self.flags(),
        }
    }

    /// Whether nothing more can be sent.
    pub(crate) fn is_over(&self) -> bool {
        self.broken.is_some() || self.is_disconnected
    }

    /// Sends a report. Returns false if the send queue is full.
    fn send_report(&mut self, finished: bool, flags: PostFlags) -> bool {
        let report = self.incoming.report(finished);
        let sent = self.qp.post_inline(op::Send, &report.encode(), flags).is_ok();
        if sent {
            self.incoming.reported(&report);
            self.count(flags);
        }
        sent
    }

    fn tell_end(&mut self) {
        if self.send_report(true, PostFlags::SIGNALED) {
            self.end = End::Told;
        }
    }

    /// Ends the data of this side.
    pub(crate) fn finish(&mut self) {
        if self.end == End::Open {
            self.end = End::Wanted;
            self.require_opener();
            self.report_if_due();
        }
    }

    /// Ends the reading side: readers get the bytes that have arrived, then the end. Sends a
    /// report, because its completion wakes a sleeping reader.
    pub(crate) fn shut_read(&mut self) {
        if !std::mem::replace(&mut self.is_read_shut, true) && !self.is_over() {
            self.send_report(self.end == End::Told, PostFlags::SIGNALED);
        }
    }

    /// Ready once the peer's device has received all written data and the end.
    pub(crate) fn finished(&mut self) -> Attempt<()> {
        self.progress();
        if self.is_disconnected {
            return Ok(Some(()));
        }
        self.check()?;
        Ok((self.end == End::Told && self.done == self.posted).then_some(()))
    }

    /// Why the stream broke, if it did.
    pub(crate) fn failure(&mut self) -> Option<io::Error> {
        self.progress();
        self.broken.as_ref().map(io::Error::from)
    }
}
