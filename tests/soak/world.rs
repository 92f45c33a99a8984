//! The two ends, their links, and the random actions on them.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

use uverbs::ErrorKind;
use uverbs::cq::{Status, WorkCompletion};
use uverbs::qp::PostFlags;
use uverbs::soft::fault::FaultPlan;
use uverbs::soft::prng::Prng;
use uverbs::soft::{Errno, Fault, Moment};

use crate::common::{PATIENCE, pattern};
use crate::inventory::Inventory;
use crate::link::{Link, Operation, Queues, Sent};
use crate::network::{self, Medium};
use crate::side::{LINKS, Posted, SLOT, SRQ, Side, XRC_SRQ};

/// Bytes before a message's contents: the link's serial number, the message's number, the length.
const HEAD: usize = 20;
/// Offset of the counter for atomics in a link's scratch slot.
const COUNTER: usize = SLOT - 8;
/// The rate of each fault, in parts per million.
const SOMETIMES: u32 = 3000;

/// How often each action happened, by its name.
type Summary = BTreeMap<String, u64>;

pub(crate) struct World {
    links: Vec<Link>,
    sides: [Side; 2],
    chance: Prng,
    serial: u64,
    /// A slot of the receiving side that links do not change, and its contents.
    constant: (usize, Vec<u8>),
    summary: Summary,
}

impl World {
    pub(crate) fn new(medium: Medium, seed: u64) -> Self {
        let plan = FaultPlan {
            seed,
            drop: SOMETIMES,
            duplicate: SOMETIMES,
            corrupt: SOMETIMES,
            reorder: SOMETIMES,
            delay: SOMETIMES,
            delay_range: (1000, 3_000_000),
            ..FaultPlan::default()
        };
        let mut sides = network::ends_of(medium, &plan).map(Side::new);
        let constant = (sides[1].take_slot(), pattern(SLOT, 77));
        sides[1].memory.view().write(constant.0 * SLOT, &constant.1).unwrap();
        let (links, summary) = (Vec::new(), Summary::new());
        Self { links, sides, chance: Prng::new(seed), serial: 0, constant, summary }
    }

    /// Does one random action, then polls all completion queues.
    pub(crate) fn step(&mut self) {
        match self.chance.below(100) {
            0..40 => self.send_some(),
            40..65 => self.one_sided(),
            65..85 => self.some_receives(),
            85..92 => self.new_link(),
            92..96 => self.end_a_link(),
            96..98 => self.resize(),
            _ => self.sides.iter().for_each(Side::check_events),
        }
        self.poll();
    }

    pub(crate) fn inventory(&self) -> Inventory {
        Inventory::take(&self.sides)
    }

    pub(crate) fn summary(&self) -> Summary {
        let mut all = self.summary.clone();
        for (name, side) in ["one", "two"].iter().zip(&self.sides) {
            let counters = *side.end.counters.lock().unwrap();
            all.insert(format!("packets of side {name}: {counters:?}"), counters.seen);
        }
        all
    }

    fn count(&mut self, what: impl Into<String>) {
        *self.summary.entry(what.into()).or_default() += 1;
    }

    fn any_link(&mut self) -> Option<usize> {
        let count = self.links.len();
        (count > 0).then(|| self.chance.below(count as u64) as usize)
    }

    fn new_link(&mut self) {
        if self.links.len() == LINKS {
            return;
        }
        let faulty = self.chance.chance(300_000).then(|| self.inject_a_failure());
        let built = Queues::build(&self.sides, &mut self.chance);
        let left: usize = self.sides.iter().map(|side| side.end.soft.clear_faults()).sum();
        match (built, faulty) {
            (Ok(queues), _) => self.add(queues),
            (Err(error), Some(errno)) => {
                assert_eq!((error.errno(), left), (errno as i32, 0), "{error}");
                self.count("creations with an injected failure");
            }
            (Err(error), None) => panic!("{error}"),
        }
    }

    fn inject_a_failure(&mut self) -> Errno {
        let errnos = [Errno::EINTR, Errno::ENOMEM, Errno::EAGAIN];
        let errno = errnos[self.chance.below(3) as usize];
        let moments = [Moment::Call, Moment::Completed];
        let moment = match errno {
            // An interrupted call has changed nothing, and the library retries it.
            Errno::EINTR => Moment::Call,
            _ => moments[self.chance.below(2) as usize],
        };
        let moment = moment(self.chance.below(6));
        let side = &self.sides[self.chance.below(2) as usize];
        side.end.soft.inject(Fault { moment, errno });
        errno
    }

    fn add(&mut self, queues: Queues) {
        self.count(format!("links of {}", queues.name()));
        self.serial += 1;
        let scratch = self.sides[1].take_slot();
        let counter = self.sides[1].memory.view().atomic_u64(scratch * SLOT + COUNTER).unwrap();
        counter.store(0, Ordering::Relaxed);
        let serial = self.serial;
        let (sends, receives) = Default::default();
        let (messages, arrived, added) = Default::default();
        let link = Link { serial, queues, sends, receives, messages, arrived, added, scratch };
        self.links.push(link);
    }

    fn send_some(&mut self) {
        let Some(at) = self.any_link() else { return };
        for _ in 0..=self.chance.below(4) {
            self.send(at);
        }
    }

    fn send(&mut self, at: usize) {
        let link = &mut self.links[at];
        let [one, two] = &mut self.sides;
        let longest = if self.chance.chance(500_000) { 200 } else { link.queues.longest() };
        let length = self.chance.within(HEAD as u64, longest as u64) as usize;
        let signaled = !self.chance.chance(250_000);
        let slot = one.take_slot();
        let wr_id = one.note(link.serial, Some(slot));
        one.memory.view().write(slot * SLOT, &message(link.serial, link.messages, length)).unwrap();
        let data = one.memory.sge(slot * SLOT, length).unwrap();
        let flags = if signaled { PostFlags::SIGNALED } else { PostFlags::empty() };
        // SAFETY: no other code uses the slot until the request has completed or the link is gone.
        if unsafe { link.queues.send(two, wr_id, data, flags) }.is_err() {
            one.forget(wr_id);
            return;
        }
        link.messages += 1;
        link.sends.push_back(Sent { wr_id, operation: Operation::Send, signaled });
        let name = format!("messages over {}", link.queues.name());
        self.count(name);
    }

    fn one_sided(&mut self) {
        let Some(at) = self.any_link() else { return };
        let link = &mut self.links[at];
        let [one, two] = &mut self.sides;
        let operations = [Operation::Write, Operation::Read, Operation::Add];
        let operation = operations[self.chance.below(3) as usize];
        let length = self.chance.within(8, COUNTER as u64) as usize;
        let slot = one.take_slot();
        let wr_id = one.note(link.serial, Some(slot));
        let data = one.memory.sge(slot * SLOT, length).unwrap();
        let remote = two.memory.remote(match operation {
            Operation::Read => self.constant.0 * SLOT,
            Operation::Write => link.scratch * SLOT,
            _ => link.scratch * SLOT + COUNTER,
        });
        // SAFETY: no other code uses the slot until the request has completed or the link is gone;
        // the memory at the other end exists as long.
        match unsafe { link.queues.one_sided(operation, wr_id, data, remote.unwrap()) } {
            Some(Ok(())) => link.sends.push_back(Sent { wr_id, operation, signaled: true }),
            Some(Err(_)) | None => one.forget(wr_id),
        }
    }

    fn some_receives(&mut self) {
        self.sides[1].fill_shared();
        if let Some(at) = self.any_link() {
            self.fill(at);
        }
    }

    /// Posts as many receives as there is space for.
    fn fill(&mut self, at: usize) {
        let (link, two) = (&mut self.links[at], &mut self.sides[1]);
        if link.queues.shares_receives() {
            return;
        }
        loop {
            let slot = two.take_slot();
            let wr_id = two.note(link.serial, Some(slot));
            let room = two.memory.sge(slot * SLOT, SLOT).unwrap();
            // SAFETY: no other code uses the slot until the request has completed or the link is
            // gone.
            if unsafe { link.queues.receive(wr_id, room) }.is_err() {
                two.forget(wr_id);
                return;
            }
            link.receives.push_back(wr_id);
        }
    }

    fn resize(&mut self) {
        let side = &mut self.sides[self.chance.below(2) as usize];
        let which = self.chance.below(side.cqs.len() as u64) as usize;
        let entries = self.chance.within(600, 4000) as u32;
        match side.cqs[which].resize(entries) {
            Ok(()) => self.count("resized completion queues"),
            // The poller has not yet consumed the old ring of an earlier resize.
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
                self.count("resizes before the one before was through");
            }
        }
    }

    /// Ends a link with its requests in flight. A link with a shared receive queue is drained
    /// first, because its unfinished messages would use up receives of other links.
    fn end_a_link(&mut self) {
        let Some(at) = self.any_link() else { return };
        if self.links[at].queues.shares_receives() {
            self.drain();
        }
        let link = self.links.swap_remove(at);
        self.end(link);
    }

    fn end(&mut self, link: Link) {
        let fails = self.chance.chance(200_000);
        if fails {
            let fault = Fault { moment: Moment::Call(0), errno: Errno::EAGAIN };
            self.sides.iter().for_each(|side| side.end.soft.inject(fault));
        }
        match link.queues {
            Queues::Rc(a, b) | Queues::Shared(a, b) => {
                destroy(a);
                destroy(b);
            }
            Queues::Uc(a, b) => {
                destroy(a);
                destroy(b);
            }
            Queues::Ud(a, b, there) => {
                destroy(a);
                destroy(b);
                there.destroy().unwrap();
            }
            Queues::Xrc(a, b) => {
                destroy(a);
                b.destroy().or_else(|failed| failed.object.destroy()).unwrap();
            }
        }
        assert_eq!(self.sides.iter().map(|side| side.end.soft.clear_faults()).sum::<usize>(), 0);
        self.sides.iter_mut().for_each(|side| side.forget_link(link.serial));
        self.sides[1].give_slot(Some(link.scratch));
        self.count("links ended");
    }

    fn poll(&mut self) {
        for (completion, posted) in self.sides[0].poll() {
            self.assert_success(&completion, posted);
            self.sent(&completion, posted);
        }
        for (completion, posted) in self.sides[1].poll() {
            self.assert_success(&completion, posted);
            self.received(&completion, posted);
        }
    }

    fn assert_success(&self, completion: &WorkCompletion, posted: Posted) {
        if completion.status != Status::Success {
            let link = self.links.iter().find(|link| link.serial == posted.link);
            let link =
                link.map(|link| (link.queues.name(), &link.sends, &link.receives, link.arrived));
            let [one, two] = self.sides.each_ref().map(Side::report);
            panic!("{completion:?} of {posted:?}\nlink {link:?}\none: {one}\ntwo: {two}");
        }
    }

    fn sent(&mut self, completion: &WorkCompletion, posted: Posted) {
        self.count("send completions");
        let one = &mut self.sides[0];
        let link = self.links.iter_mut().find(|link| link.serial == posted.link).unwrap();
        let sent = loop {
            let first = link.sends.pop_front().expect("as many sends as completions");
            if first.wr_id == completion.wr_id {
                break first;
            }
            assert!(!first.signaled, "{first:?} was overtaken by {completion:?}");
            one.forget(first.wr_id);
        };
        assert!(sent.signaled, "{sent:?}");
        let slot = posted.slot.unwrap_or_default();
        match sent.operation {
            Operation::Read => {
                let mut got = vec![0; completion.byte_len() as usize];
                one.memory.view().read(slot * SLOT, &mut got).unwrap();
                assert_eq!(got, self.constant.1[..got.len()]);
            }
            Operation::Add => {
                let before = one.memory.view().atomic_u64(slot * SLOT).unwrap();
                assert_eq!(before.load(Ordering::Relaxed), link.added, "added once each time");
                link.added += 1;
            }
            Operation::Send | Operation::Write | Operation::Nop => {}
        }
        one.give_slot(posted.slot);
    }

    fn received(&mut self, completion: &WorkCompletion, posted: Posted) {
        self.count("receive completions");
        let two = &mut self.sides[1];
        let slot = posted.slot.expect("receives have a slot");
        let own = self.links.iter_mut().find(|link| link.serial == posted.link);
        let header = own.as_ref().map_or(0, |link| link.queues.header());
        if let Some(link) = own {
            assert_eq!(link.receives.pop_front(), Some(completion.wr_id), "in order");
        } else {
            assert!(posted.link == SRQ || posted.link == XRC_SRQ);
        }
        let mut got = vec![0; completion.byte_len() as usize - header];
        two.memory.view().read(slot * SLOT + header, &mut got).unwrap();
        let number = |at: usize| u64::from_le_bytes(got[at..at + 8].try_into().unwrap());
        let (serial, message_number) = (number(0), number(8));
        let link = self.links.iter_mut().find(|link| link.serial == serial).unwrap();
        assert_eq!(got, message(serial, message_number, got.len()), "unharmed and whole");
        assert!(message_number < link.messages);
        if link.queues.is_reliable() {
            assert_eq!(message_number, link.arrived, "once and in order");
        }
        link.arrived += 1;
        two.give_slot(posted.slot);
    }

    /// Waits until all requests that can complete have completed.
    fn drain(&mut self) {
        let start = Instant::now();
        loop {
            self.sides[1].fill_shared();
            for at in 0..self.links.len() {
                self.fill(at);
                self.finish(at);
            }
            self.poll();
            let is_done = |link: &Link| {
                let all = !link.queues.is_reliable() || link.arrived == link.messages;
                link.sends.is_empty() && all
            };
            if self.links.iter().all(is_done) {
                return;
            }
            let waiting = self.links.iter().filter(|link| !is_done(link));
            let waiting = waiting.map(|link| (link.queues.name(), link.sends.front()));
            assert!(
                start.elapsed() < PATIENCE,
                "a completion is lost: {:?}",
                waiting.collect::<Vec<_>>()
            );
            std::thread::yield_now();
        }
    }

    /// Posts a signaled request, whose completion also covers the unsignaled ones before it.
    fn finish(&mut self, at: usize) {
        let (link, one) = (&mut self.links[at], &mut self.sides[0]);
        if link.sends.back().is_none_or(|last| last.signaled) {
            return;
        }
        let wr_id = one.note(link.serial, None);
        match link.queues.nop(wr_id) {
            Ok(()) => {
                let operation = Operation::Nop;
                link.sends.push_back(Sent { wr_id, operation, signaled: true });
            }
            Err(_) => one.forget(wr_id),
        }
    }

    /// Ends all links, and checks that no request is left.
    pub(crate) fn take_down(&mut self) {
        self.drain();
        while let Some(link) = self.links.pop() {
            self.end(link);
        }
        self.poll();
        self.sides.iter().for_each(Side::check_events);
        assert!(self.sides[0].posted.is_empty(), "{:?}", self.sides[0].posted);
        let shared = |posted: &Posted| posted.link == SRQ || posted.link == XRC_SRQ;
        assert!(self.sides[1].posted.values().all(shared));
    }
}

fn destroy<T: uverbs::qp_type::QueuePairType>(qp: uverbs::raw::QueuePair<T>) {
    qp.destroy().or_else(|failed| failed.object.destroy()).unwrap();
}

/// A message that contains its link's serial number and its own number.
fn message(serial: u64, number: u64, length: usize) -> Vec<u8> {
    let mut bytes = pattern(length, (serial + number) as u8);
    bytes[..8].copy_from_slice(&serial.to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes
}
