//! The doorbells of one page: which of its words are checked, and which queues may have rung.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::atomic::Ordering;

use uverbs_mlx5_format::{
    BLUEFLAME_HALF_SIZE, BLUEFLAME_OFFSET, BLUEFLAME_REGISTER_SIZE, BLUEFLAME_REGISTERS_PER_UAR,
    CQ_ARM_OFFSET,
};

use super::region::UarPage;
use crate::core::{Core, Cqn, Qpn};

/// Offsets of both halves of both BlueFlame registers of a page that programs use, and of the
/// register by which CQs are armed.
pub(super) const WORDS: [usize; 5] = [
    BLUEFLAME_OFFSET,
    BLUEFLAME_OFFSET + BLUEFLAME_HALF_SIZE,
    BLUEFLAME_OFFSET + BLUEFLAME_REGISTER_SIZE,
    BLUEFLAME_OFFSET + BLUEFLAME_REGISTER_SIZE + BLUEFLAME_HALF_SIZE,
    CQ_ARM_OFFSET,
];

/// Which of [`WORDS`] arms CQs.
pub(super) const ARM: usize = WORDS.len() - 1;

/// The words of both registers, as bits. The halves of a register are checked together, the first
/// one first.
const REGISTERS: [u8; BLUEFLAME_REGISTERS_PER_UAR] = [0b0011, 0b1100];

/// All words, as bits.
const ALL: u8 = (1 << WORDS.len()) - 1;

const _: () = assert!(ARM == 2 * BLUEFLAME_REGISTERS_PER_UAR);

/// A doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// A send queue may have new work.
    Send(Qpn),
    /// A CQ may have been armed.
    Arm(Cqn),
}

impl Doorbell {
    /// Passes the doorbell to the core. A doorbell with an unknown queue number has no effect.
    pub(in crate::runtime) fn pass_to(self, core: &mut Core, now: u64) {
        let _ = match self {
            Self::Send(qpn) => core.ring_sq(qpn),
            Self::Arm(cqn) => core.arm_cq(now, cqn),
        };
    }
}

/// After this many looks that found a doorbell, the other queues of the page are checked, too. A
/// look that finds none checks them at once.
const SWEEP_AFTER: u8 = 4;

/// Most queues of a page that one look checks.
pub(super) const SWEEP: usize = 32;

/// After this many looks without a doorbell, a page takes turns with others.
pub(super) const COOL_AFTER: u8 = 100;

/// For this many looks after a CQ was armed, each look checks the page's arm word.
pub(super) const ARMED_RECENTLY: u8 = 100;

/// A page with queues.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) uar: UarPage,
    send_queues: Sharers<Qpn>,
    completion_queues: Sharers<Cqn>,
    /// How many looks found a doorbell since the other queues were checked.
    unswept: u8,
    /// How many looks there were since the last doorbell, while the page is warm.
    pub(super) silent: u8,
    /// The register that rang last, as the bits of its words.
    register: u8,
    /// The words of each register that were written when it rang last.
    last: u8,
    /// For how many more looks the arm word is checked each time.
    armed: u8,
    /// The register, or the arm word, that was last checked in turn.
    turn: u8,
}

/// Queues that may overwrite each other's words.
#[derive(Debug, Default)]
pub(super) struct Sharers<T> {
    queues: BTreeSet<T>,
    /// How many queues still have to be checked, because they may have rung unnoticed: those after
    /// `last`, cyclically.
    pub(super) unchecked: usize,
    /// Whether one of them has probably rung.
    urgent: bool,
    /// The queue that was checked last.
    last: T,
}

impl<T: Copy + Ord> Sharers<T> {
    pub(super) fn add(&mut self, queue: T) {
        // Its number may be between those of two queues that still have to be checked.
        self.unchecked += usize::from(self.queues.insert(queue) && self.unchecked != 0);
    }

    pub(super) fn remove(&mut self, queue: T) {
        self.queues.remove(&queue);
        self.unchecked = self.unchecked.min(self.queues.len());
    }

    /// Records a doorbell that may have overwritten that of any other queue, and probably has if
    /// `is_likely`.
    pub(super) fn note_ring(&mut self, is_likely: bool) {
        self.unchecked = if self.queues.len() > 1 { self.queues.len() } else { 0 };
        self.urgent |= is_likely;
    }

    /// Whether queues must be checked soon.
    fn is_urgent(&self) -> bool {
        self.urgent && self.unchecked != 0
    }

    pub(super) fn sweep(&mut self, mut ring: impl FnMut(T)) {
        let Self { queues, unchecked, last, urgent } = self;
        let count = (*unchecked).min(SWEEP);
        *unchecked -= count;
        *urgent &= *unchecked != 0;
        if count == 0 {
            return;
        }
        for &queue in queues.range((Excluded(*last), Unbounded)).chain(&*queues).take(count) {
            *last = queue;
            ring(queue);
        }
    }
}

impl Page {
    pub(super) fn new(uar: UarPage) -> Self {
        Self {
            uar,
            send_queues: Sharers::default(),
            completion_queues: Sharers::default(),
            unswept: 0,
            silent: COOL_AFTER,
            register: REGISTERS[0] | REGISTERS[1],
            last: 0,
            armed: 0,
            turn: 0,
        }
    }

    /// The program rings this doorbell here from now on.
    pub(super) fn attach(&mut self, doorbell: Doorbell) {
        match doorbell {
            Doorbell::Send(qpn) => self.send_queues.add(qpn),
            Doorbell::Arm(cqn) => self.completion_queues.add(cqn),
        }
    }

    /// The queue of this doorbell is destroyed.
    pub(super) fn detach(&mut self, doorbell: Doorbell) {
        match doorbell {
            Doorbell::Send(qpn) => self.send_queues.remove(qpn),
            Doorbell::Arm(cqn) => self.completion_queues.remove(cqn),
        }
    }

    /// Whether it has no queues.
    pub(super) fn is_idle(&self) -> bool {
        self.send_queues.queues.is_empty() && self.completion_queues.queues.is_empty()
    }

    /// Whether queues must be checked soon.
    pub(super) fn needs_sweep(&self) -> bool {
        self.send_queues.is_urgent() || self.completion_queues.is_urgent()
    }

    /// Rings the queues that the written words name. Checks all words, or those that are likely to
    /// have been written. Returns whether a word was written.
    fn named(&mut self, all: bool, ring: &mut impl FnMut(Doorbell)) -> bool {
        let words = match all {
            true if !self.is_written() => 0,
            true => ALL,
            false => self.likely(),
        };
        self.silent = self.silent.saturating_add(1);
        self.armed = self.armed.saturating_sub(1);
        let mut rang = 0;
        for word in (0..WORDS.len()).filter(|word| words >> word & 1 != 0) {
            rang |= u8::from(self.take(word, ring)) << word;
        }
        REGISTERS.into_iter().for_each(|register| self.note_written(register, rang & register));
        rang != 0
    }

    /// Whether any word was written since the last time.
    fn is_written(&self) -> bool {
        WORDS.iter().any(|offset| self.uar.word(*offset).load(Ordering::Relaxed) != 0)
    }

    /// Notes which words of a register were found written, as bits.
    fn note_written(&mut self, register: u8, rang: u8) {
        if rang == 0 {
            return;
        }
        // Programs alternate between the halves. If this half was written twice since the last
        // look, the other half was written in between. So if the other half was and is empty, no
        // doorbell was overwritten.
        let is_alone = rang != register && rang != self.last & register && {
            let other = (register & !rang).trailing_zeros() as usize;
            self.uar.word(WORDS[other]).load(Ordering::Relaxed) == 0
        };
        self.send_queues.note_ring(!is_alone);
        (self.register, self.last) = (register, self.last & !register | rang);
    }

    /// The words to check this time, as bits.
    fn likely(&mut self) -> u8 {
        const TURNS: [u8; 3] = [REGISTERS[0], REGISTERS[1], 1 << ARM];
        self.turn = (self.turn + 1) % TURNS.len() as u8;
        self.register | TURNS[usize::from(self.turn)] | u8::from(self.armed > 0) << ARM
    }

    /// Rings the queue that the word names, if it was written. Returns whether it was.
    fn take(&mut self, word: usize, ring: &mut impl FnMut(Doorbell)) -> bool {
        let Some(value) = self.uar.take(WORDS[word]) else { return false };
        self.silent = 0;
        if word == ARM {
            self.armed = ARMED_RECENTLY;
            ring(Doorbell::Arm(Cqn(second_half(value) & 0xff_ffff)));
            self.completion_queues.note_ring(true);
        } else {
            // A CQ that the program armed before this doorbell is armed when the send completes.
            self.take(ARM, ring);
            ring(Doorbell::Send(Qpn(second_half(value) >> 8)));
        }
        true
    }

    /// Whether every look must check this page.
    pub(super) fn is_warm(&self) -> bool {
        self.needs_sweep() || self.silent < COOL_AFTER
    }

    /// Checks the words, all or the likely ones, and then, if it is time, queues whose doorbells
    /// may have been overwritten.
    pub(super) fn look(&mut self, all: bool, ring: &mut impl FnMut(Doorbell)) {
        let rang = self.named(all, ring);
        self.unswept = self.unswept.saturating_add(rang.into());
        let is_due =
            if self.needs_sweep() { self.unswept >= SWEEP_AFTER || !rang } else { all && !rang };
        if is_due {
            self.unswept = 0;
            self.completion_queues.sweep(|cqn| ring(Doorbell::Arm(cqn)));
            self.send_queues.sweep(|qpn| ring(Doorbell::Send(qpn)));
        }
    }
}

/// The second big-endian half of a doorbell: QP number and size of a control segment, or the CQ
/// number of an arm command.
fn second_half(word: u64) -> u32 {
    u64::from_be_bytes(word.to_ne_bytes()) as u32
}
