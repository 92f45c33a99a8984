//! A look of the device: at the wire, the doorbells and the clock. The device's thread does it, and who lends it time.

use super::pacing::{Pacing, Pause};
use super::uar::Ring;
use super::{Machine, Shared, clock, lock};
use crate::packet::{Opcode, Packet, PacketPool, Transport};

/// How much the core may do between two looks at doorbells, wire and waiting commands. Also how much of a long message has left
/// before the other side can begin with it.
const BUDGET: u32 = 16;

/// What is kept from one look to the next.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) pacing: Pacing,
    incoming: Vec<Packet>,
    /// Acknowledgements wait in the outbox for this look.
    pub(super) holds_back: bool,
    /// Empty between two sends; kept for its allocation.
    outgoing: Vec<Packet>,
    /// Buffers of the wire's side. Each packet that crosses to the core is paid back with an empty
    /// one, so neither side's pool runs dry.
    pool: PacketPool,
}

/// What one look found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) did_work: bool,
    /// There is more to do at once.
    pub(super) more: bool,
    polling: bool,
    pub(super) deadline: Option<u64>,
}

/// Whose time a look takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// The thread's, which pauses so if there is nothing to do.
    Own(Pause),
    /// A program's.
    Lent,
}

fn is_acknowledgement(packet: &Packet) -> bool {
    packet.bth().is_some_and(|bth| bth.opcode().on(Transport::Rc) == Opcode::RC_ACKNOWLEDGE)
}

impl Worker {
    pub(super) fn new() -> Self {
        let pacing = Pacing::new(clock::now());
        let (incoming, holds_back, outgoing, pool) = Default::default();
        Self { pacing, incoming, holds_back, outgoing, pool }
    }

    /// Looks at everything once: first at the wire, so that an acknowledgement which is there in time is not missed
    /// because nobody looked; then at the doorbells and the clock.
    pub(super) fn look(&mut self, shared: &Shared, now: u64, whose: Whose) -> Look {
        // Not held over the step: a command that holds the core may want the wire as well.
        lock(&shared.wire).receive(now, &mut self.incoming, &mut self.pool);
        let arrived = !self.incoming.is_empty();
        let mut look = self.step(shared, now, whose);
        look.did_work |= arrived;
        let mut wire = lock(&shared.wire);
        self.holds_back = arrived && !self.holds_back && may_wait(shared, whose);
        if !self.holds_back {
            shared.send(now, &mut **wire, &mut self.outgoing, &mut self.pool);
        }
        look.deadline = look.deadline.into_iter().chain(wire.next_wake()).min();
        drop(wire);
        self.pacing.looked(now, look.did_work, look.polling);
        if look.did_work {
            shared.work.note();
        }
        look
    }

    /// Gives the core what arrived, rings what rang, lets it run and takes what it wants to send.
    fn step(&mut self, shared: &Shared, now: u64, whose: Whose) -> Look {
        let mut machine = lock(&shared.machine);
        let Machine { core, uars } = &mut *machine;
        let mut rang = false;
        let owed = uars.look(whose == Whose::Own(Pause::Sleep), |ring| {
            rang = true;
            // A doorbell with a wrong number in it rings nobody.
            let _ = match ring {
                Ring::Send(qpn) => core.ring_sq(qpn),
                Ring::Arm(cqn) => core.arm_cq(now, cqn),
            };
        });
        for packet in self.incoming.drain(..) {
            core.receive(now, packet);
            self.pool.give(core.empty_packet());
        }
        let step = core.step(now, BUDGET);
        let mut outbox = lock(&shared.outbox);
        while let Some(packet) = core.take_packet() {
            outbox.push(packet);
            core.recycle(self.pool.take());
        }
        drop(outbox);
        let polling = !uars.is_empty();
        shared.pass_events(&mut machine);
        let wish = shared.host.tick(now);
        let did_work = rang || owed || step.did_work || step.more;
        let deadline = step.next_wake.into_iter().chain(wish).min();
        Look { did_work, more: step.more, polling, deadline }
    }
}

/// Whether what is to be sent may wait until the next look, being nothing but acknowledgements: the program that
/// waits for what they acknowledge runs first, and its answer leaves with them in the same system call. Who has lent
/// this look may not lend another.
fn may_wait(shared: &Shared, whose: Whose) -> bool {
    whose == Whose::Own(Pause::Yield) && lock(&shared.outbox).iter().all(is_acknowledgement)
}
