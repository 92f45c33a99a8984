//! The device thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::time::TimeSpec;

use super::os_thread::OsThread;
use super::pacing::{Pacing, Pause};
use super::uar::Ring;
use super::{Machine, Shared, clock, lock};
use crate::core::{AsyncKind, Event, EventObject};
use crate::packet::{Opcode, Packet, PacketPool, Transport};

/// How much the core may do between two looks at doorbells, wire and waiting commands.
const BUDGET: u32 = 64;

/// How often the thread yields to a waiting command before it takes the lock all the same.
const COURTESY: usize = 1000;

/// Starts the thread with all signals blocked: they are the program's, not the device's.
pub(super) fn spawn(name: &str, shared: Arc<Shared>) -> io::Result<OsThread> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let thread = OsThread::spawn(&format!("soft {name}"), move || main(&shared));
    before.thread_set_mask()?;
    thread
}

/// A bug that panics here must not leave the program waiting for ever: it sees a fatal device.
fn main(shared: &Shared) {
    // Sleeps of microseconds end on time, not up to 50 us late. Where this fails they do.
    let _ = nix::sys::prctl::set_timerslack(1);
    let mut worker = Worker::new(shared);
    if catch_unwind(AssertUnwindSafe(|| worker.run())).is_err() {
        let fatal = Event::Async { kind: AsyncKind::DeviceFatal, object: EventObject::Device };
        shared.host.event(fatal);
    }
}

struct Worker<'a> {
    shared: &'a Shared,
    pacing: Pacing,
    incoming: Vec<Packet>,
    /// Acknowledgements wait in the outbox for this look.
    holds_back: bool,
    /// Empty between two sends; kept for its allocation.
    outgoing: Vec<Packet>,
    /// Buffers of the wire's side. Each packet that crosses to the core is paid back with an empty
    /// one, so neither side's pool runs dry.
    pool: PacketPool,
}

/// What one look found.
#[derive(Clone, Copy)]
struct Look {
    did_work: bool,
    /// There is more to do at once.
    more: bool,
    polling: bool,
    deadline: Option<u64>,
}

fn is_acknowledgement(packet: &Packet) -> bool {
    packet.bth().is_some_and(|bth| bth.opcode().on(Transport::Rc) == Opcode::RC_ACKNOWLEDGE)
}

impl<'a> Worker<'a> {
    fn new(shared: &'a Shared) -> Self {
        let pacing = Pacing::new(clock::now());
        let (incoming, holds_back, outgoing, pool) = Default::default();
        Self { shared, pacing, incoming, holds_back, outgoing, pool }
    }

    fn run(&mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            self.give_way();
            let now = clock::now();
            let pause = self.pacing.plan(now);
            if pause == Pause::Sleep {
                // Said before the look, so that whoever brings work after it wakes the thread.
                self.shared.waker.prepare();
            }
            let look = self.look(now, pause);
            self.pacing.looked(now, look.did_work, look.polling);
            match pause {
                // Also after work: the program that waits for it may need this core.
                Pause::Yield if !look.more => self.let_others_run(),
                Pause::Sleep if !look.did_work => self.sleep(now, look.deadline),
                _ => {}
            }
            if pause == Pause::Sleep {
                self.shared.waker.awake();
            }
        }
    }

    /// Lets commands have the locks.
    fn give_way(&self) {
        for _ in 0..COURTESY {
            if self.shared.waiting.load(Ordering::SeqCst) == 0 {
                return;
            }
            thread::yield_now();
        }
    }

    /// Looks at everything once: first at the wire, so that an acknowledgement which is there in time is not missed
    /// because this thread was not; then at the doorbells and the clock.
    fn look(&mut self, now: u64, pause: Pause) -> Look {
        // Not held over the step: a command that holds the core may want the wire as well.
        lock(&self.shared.wire).receive(now, &mut self.incoming, &mut self.pool);
        let arrived = !self.incoming.is_empty();
        let mut look = self.step(now, pause);
        look.did_work |= arrived;
        let mut wire = lock(&self.shared.wire);
        self.holds_back = arrived && !self.holds_back && self.may_wait(pause);
        if !self.holds_back {
            self.shared.send(now, &mut **wire, &mut self.outgoing, &mut self.pool);
        }
        look.deadline = look.deadline.into_iter().chain(wire.next_wake()).min();
        look
    }

    /// Whether what is to be sent may wait until the next look, being nothing but acknowledgements: the program that
    /// waits for what they acknowledge runs first, and its answer leaves with them in the same system call.
    fn may_wait(&self, pause: Pause) -> bool {
        pause == Pause::Yield && lock(&self.shared.outbox).iter().all(is_acknowledgement)
    }

    /// Gives the core what arrived, rings what rang, lets it run and takes what it wants to send.
    fn step(&mut self, now: u64, pause: Pause) -> Look {
        let mut machine = lock(&self.shared.machine);
        let Machine { core, uars } = &mut *machine;
        let mut rang = false;
        let owed = uars.look(pause == Pause::Sleep, |ring| {
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
        let mut outbox = lock(&self.shared.outbox);
        while let Some(packet) = core.take_packet() {
            outbox.push(packet);
            core.recycle(self.pool.take());
        }
        drop(outbox);
        let polling = !uars.is_empty();
        self.shared.pass_events(&mut machine);
        let wish = self.shared.host.tick(now);
        let did_work = rang || owed || step.did_work || step.more;
        let deadline = step.next_wake.into_iter().chain(wish).min();
        Look { did_work, more: step.more, polling, deadline }
    }

    fn let_others_run(&mut self) {
        let before = clock::now();
        thread::yield_now();
        self.pacing.yielded(before, clock::now());
    }

    fn sleep(&mut self, now: u64, deadline: Option<u64>) {
        let timeout = self.pacing.timeout(now, deadline);
        let wire = lock(&self.shared.wire);
        // Both may have come after they were last looked at, but before the waker was prepared.
        if self.shared.is_wanted() {
            return;
        }
        let mut fds: Vec<BorrowedFd<'_>> = vec![self.shared.waker.as_fd()];
        wire.poll_fds(&mut fds);
        let mut fds: Vec<_> =
            fds.into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let timeout = timeout.map(|nanoseconds| {
            TimeSpec::new(
                (nanoseconds / 1_000_000_000) as i64,
                (nanoseconds % 1_000_000_000) as i64,
            )
        });
        // All signals are blocked, and a failure only means to look again.
        if ppoll(&mut fds, timeout, None).is_ok_and(|ready| ready > 0) {
            self.pacing.woken(now);
        }
    }
}
