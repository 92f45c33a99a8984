//! A look: one pass of the device over the wire, the doorbells and the clock. The device's thread
//! does looks, and so do programs in their calls.

use std::mem;

use super::pacing::{Pacing, Pause};
use super::{Machine, Shared, clock, lock};
use crate::core::Core;
use crate::packet::{Aeth, Operation, Packet, PacketPool, Syndrome};
use crate::wire::{SOCKET_DATAGRAMS, Station, Wire};

/// Most packets that the core sends or receives between two looks at doorbells, wire and waiting
/// commands. The receiver can begin to process a long message once these packets have been sent.
/// With the largest MTU, 15 packets fit into one UDP message that the kernel segments.
const BUDGET: u32 = 15;

/// State from one look to the next.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) pacing: Pacing,
    /// The work counter that `pacing` has taken into account.
    paced: u64,
    incoming: Vec<Packet>,
    /// The last look sent acknowledgements without waking their receivers, or left them in the
    /// outbox. The next look makes up for it.
    pub(super) left_asleep: bool,
    /// Whether the wire's files may hold packets that no look has taken: they ended the last sleep,
    /// or the thread does not sleep after its looks.
    files_ready: bool,
    /// There was no look since the last sleep, which ended by polling the files.
    was_asleep: bool,
    /// The last look left doorbells to the next one, although the thread was to sleep.
    pub(super) is_sweeping: bool,
    /// The deadline that the last look found.
    deadline: Option<u64>,
    /// Empty between two sends; kept for its allocation.
    outgoing: Vec<Packet>,
    /// Buffers of the wire's side. Each packet that crosses to the core is exchanged for an empty
    /// one, so neither side's pool runs dry.
    pool: PacketPool,
}

/// What one look found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) did_work: bool,
    /// Whether there is more to do at once.
    pub(super) more: bool,
    /// Whether events were passed to programs.
    pub(super) passed_events: bool,
    polling: bool,
    pub(super) deadline: Option<u64>,
}

/// Which thread does a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// The device's thread, which then pauses like this if there was nothing to do.
    Own(Pause),
    /// A program's thread, which polls.
    Polling,
    /// A program's thread, which then sleeps if there was nothing to do.
    Waiting,
}

impl Whose {
    /// Whether the thread may sleep right after the look. It then polls the wire's files.
    fn sleeps(self) -> bool {
        matches!(self, Self::Own(Pause::Sleep) | Self::Waiting)
    }
}

/// Whether the packet is an ACK. A NAK must not wait, because it makes the peer retransmit.
fn is_acknowledgement(packet: &Packet) -> bool {
    packet.view().is_ok_and(|view| {
        let acknowledges = |aeth: &Aeth| matches!(aeth.syndrome(), Syndrome::Ack { .. });
        view.operation == Operation::Acknowledge && view.aeth.is_some_and(acknowledges)
    })
}

impl Worker {
    pub(super) fn new() -> Self {
        let pacing = Pacing::new(clock::now());
        let paced = 0;
        let (incoming, left_asleep, deadline, outgoing, pool) = Default::default();
        Self {
            pacing,
            paced,
            incoming,
            left_asleep,
            files_ready: true,
            was_asleep: false,
            is_sweeping: false,
            deadline,
            outgoing,
            pool,
        }
    }

    /// Does one look: first at the wire, then at the doorbells and the clock. So an acknowledgement
    /// that has arrived is handled before its timeout, even if the look is late.
    pub(super) fn look(&mut self, shared: &Shared, now: u64, whose: Whose) -> Look {
        // Earlier looks have received all packets of these processes.
        for station in self.receive(shared, now, whose) {
            shared.host.peer_ended(station);
        }
        let arrived = self.incoming.len();
        let mut look = self.step(shared, now, whose);
        look.did_work |= arrived > 0;
        let mut wire = lock(&shared.wire);
        let are_few = arrived <= FEW || !wire.joins_packets();
        let may_wait = arrived > 0 && are_few && may_wait(shared, now, whose, look.passed_events);
        self.send(shared, now, &mut **wire, may_wait);
        look.deadline = look.deadline.into_iter().chain(wire.next_wake()).min();
        drop(wire);
        self.deadline = look.deadline;
        self.pacing.looked(now, look.did_work, look.polling);
        if look.did_work {
            shared.work.note();
            self.paced += 1;
        }
        look
    }

    /// Counts commands since the last call as work, because a doorbell, which wakes no thread, may
    /// follow a command. `now` may be the time before a long sleep.
    pub(super) fn pace_commands(&mut self, shared: &Shared, now: u64) {
        let done = shared.work.done();
        if self.paced != done {
            self.paced = done;
            self.pacing.woken(now.max(clock::now()));
        }
    }

    /// Sends the core's packets. If receivers `may_wait`, they are not woken, or the packets stay
    /// in the outbox if that saves more; the next look makes up for it.
    fn send(&mut self, shared: &Shared, now: u64, wire: &mut dyn Wire, may_wait: bool) {
        let was_left = mem::take(&mut self.left_asleep);
        let may_wait = may_wait && !was_left;
        if may_wait && wire.joins_packets() {
            self.left_asleep = !lock(&shared.outbox).is_empty();
            return;
        }
        let sends = shared.take_outbox(&mut self.outgoing);
        self.left_asleep = may_wait && sends;
        match (self.left_asleep, sends) {
            (true, _) => wire.send_quietly(now, &mut self.outgoing, &mut self.pool),
            (false, true) => wire.send(now, &mut self.outgoing, &mut self.pool),
            (false, false) if was_left => wire.wake_receivers(),
            (false, false) => {}
        }
        shared.has_sent(wire);
    }

    /// Takes the packets that have arrived. Returns the stations of processes that have ended.
    fn receive(&mut self, shared: &Shared, now: u64, whose: Whose) -> Vec<Station> {
        // Released before the step, because a command that holds the core may also need the wire.
        let mut wire = lock(&shared.wire);
        let is_late = self.deadline.is_some_and(|at| now >= at);
        let is_polled = mem::take(&mut self.was_asleep) || whose.sleeps();
        if is_polled && !self.files_ready && !is_late {
            wire.skip_files();
        }
        wire.receive(now, &mut self.incoming, &mut self.pool);
        self.files_ready = false;
        wire.take_ended(now)
    }

    /// Records that a sleep has ended. `ready` says whether the wire's files were readable then.
    pub(super) fn woken(&mut self, ready: bool) {
        self.files_ready |= ready;
        self.was_asleep = true;
    }

    /// Passes arrived packets and doorbells to the core, runs it, and takes the packets that it
    /// sends.
    fn step(&mut self, shared: &Shared, now: u64, whose: Whose) -> Look {
        let mut machine = lock(&shared.machine);
        let Machine { core, uars } = &mut *machine;
        let mut rang = false;
        if shared.takes_sweep() {
            uars.sweep_anew();
        }
        let needs_sweep = uars.look(whose.sleeps(), |ring| {
            rang = true;
            ring.pass_to(core, now);
        });
        self.is_sweeping = uars.is_sweeping();
        self.files_ready |= self.is_sweeping;
        self.deliver(core, now);
        let due = core.run_due(now);
        if due.is_answer_late {
            self.receive_rest(shared, core, now);
        }
        let step = core.step(now, BUDGET);
        let polling = !uars.is_empty();
        let passed_events = shared.pass_events(&mut machine);
        let (core, mut outbox) = (&mut machine.core, lock(&shared.outbox));
        while let Some(packet) = core.take_packet() {
            outbox.push(packet);
            core.recycle(self.pool.take());
        }
        drop(outbox);
        let host_wake = shared.host.tick(now);
        let more = needs_sweep || step.more;
        let did_work = rang || more || due.did_work || step.did_work;
        let deadline = step.next_wake.into_iter().chain(host_wake).min();
        // A sweep does not count as work, which would keep the thread from sleeping.
        Look { did_work, more: more || self.is_sweeping, passed_events, polling, deadline }
    }

    /// Passes arrived packets to the core.
    fn deliver(&mut self, core: &mut Core, now: u64) {
        for packet in self.incoming.drain(..) {
            core.receive(now, packet);
            self.pool.give(core.empty_packet());
        }
    }

    /// Passes all other packets that have arrived to the core, because an answer is late. If this
    /// thread did not run for a while, timeouts have expired although the peer has answered. The
    /// answer may be behind more packets than one look takes (including datagrams that the wire
    /// drops), or in files that the look skipped. Packets that the device sent to itself wait in
    /// the core.
    ///
    /// It stops after more datagrams than had arrived when it began. Without this limit, a flood of
    /// datagrams could keep a device from retransmitting.
    fn receive_rest(&mut self, shared: &Shared, core: &mut Core, now: u64) {
        core.work(now, Machine::CATCH_UP);
        let mut wire = lock(&shared.wire);
        let mut read = 0;
        while read < SOCKET_DATAGRAMS {
            wire.look_at_files();
            match wire.receive(now, &mut self.incoming, &mut self.pool) {
                0 => return,
                count => read += count,
            }
            self.deliver(core, now);
        }
    }
}

/// Receivers are left asleep only if the device's thread does a look within this many nanoseconds,
/// because the program may not call again.
const SOON: u64 = 1_000_000;

/// Most packets of a look that a program may be about to answer. More packets are a stream, whose
/// sender waits for the acknowledgement.
const FEW: usize = 4;

/// Whether waking sleeping receivers may be left to the next look, because only acknowledgements
/// are to be sent. Then the program that received the message runs first, and its answer wakes the
/// sleeping peer once instead of twice.
fn may_wait(shared: &Shared, now: u64, whose: Whose, passed_events: bool) -> bool {
    let looks_again = match whose {
        Whose::Own(pause) => pause == Pause::Yield,
        Whose::Polling => shared.standby.waits_until() <= now.saturating_add(SOON),
        Whose::Waiting => passed_events && shared.standby.waits_until() <= now.saturating_add(SOON),
    };
    looks_again && lock(&shared.outbox).iter().all(is_acknowledgement)
}

#[cfg(test)]
mod late_tests;
#[cfg(test)]
mod tests;
