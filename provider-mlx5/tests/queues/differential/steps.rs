//! Requests that are built step by step, as `ibv_wr_*` does, with batches for what steps cannot
//! build.

use uverbs_mlx5::format::{AtomicSegment, Opcode, U32};
use uverbs_mlx5::request::{PostFlags, Remote, Sge};
use uverbs_mlx5::send_queue::{Common, Datagram, Entries, Header, SendQueue, Steps};

use super::builds::build;
use super::model::Draft;
use super::requests::{Data, RandomRequest, RequestOf, StepForm, Tried};
use super::trial::Trial;
use super::ways::Outcome;

/// A request that is to be built in steps.
#[derive(Debug)]
struct Planned<K> {
    request: RandomRequest<K>,
    choice: Choice,
    fits: bool,
    blocks: u32,
    /// The counter of the block behind it, if it is built.
    end: u32,
}

/// Which of the calls that have the same effect a program makes: a number below [`Choice::COUNT`].
#[derive(Clone, Copy, Debug)]
struct Choice(usize);

impl Choice {
    const COUNT: usize = 10;

    /// One call builds the request, if its service needs no destination.
    fn is_whole(self) -> bool {
        self.0 == 0
    }

    /// One call builds any request, and looks for space before a batch does.
    fn is_whole_of_any(self) -> bool {
        self.0 >= 8
    }

    /// Data that is copied is in so many buffers.
    fn buffers(self) -> usize {
        if self.0 % 2 == 0 { 1 } else { 3 }
    }

    /// The destination is set before the data.
    fn has_destination_first(self) -> bool {
        self.0 % 2 == 0
    }

    /// The steps are closed before a batch goes on.
    fn closes(self) -> bool {
        self.0 % 3 == 0
    }

    /// The program looks for space before a batch does.
    fn reopens(self) -> bool {
        self.0 > 3
    }

    /// The batch tries its fast path.
    fn is_fast(self) -> bool {
        self.0 > 1
    }
}

impl<T: Tried> Trial<T> {
    /// A few requests in steps, which are published together or aborted.
    pub(super) fn steps(&mut self) {
        let count = 1 + self.random.below(4);
        let aborts = self.happens_once_in(6);
        let mut draft = self.model.draft();
        let planned: Vec<_> = (0..count).map(|_| self.plan_steps(&mut draft)).collect();
        let ways: Vec<_> = planned.iter().map(|one| (one.request.kind, one.choice)).collect();
        self.note(format!("steps {ways:?} at {:#x}, aborts {aborts}", self.model.next.head));
        let block_at =
            |counter: u32| self.sq.ring.read((counter % self.model.blocks) as usize * 64, 64);
        let mut program = Program::new(&mut self.sq.queue);
        for planned in &planned {
            let Planned { request, choice, fits, blocks, end } = planned;
            let behind = block_at(*end);
            if program.build_in_steps(request, *choice) {
                assert!(fits, "{planned:?}");
                // A request may take all blocks. Only steps may store a part that is not needed.
                let is_whole = choice.is_whole_of_any() && self.model.blocks > *blocks;
                assert!(!is_whole || block_at(*end) == behind, "behind {planned:?}");
                self.counts.in_steps += 1;
            } else {
                let outcome = program.build_in_batch(request, *choice);
                self.counts.full += usize::from(outcome.was_full(*fits, planned));
            }
        }
        if aborts {
            program.abort();
        } else {
            program.publish();
            self.take_published(draft);
        }
        self.check();
    }

    fn plan_steps(&mut self, draft: &mut Draft) -> Planned<T::Kind> {
        let request = self.draw();
        let choice = Choice(self.random.below(Choice::COUNT));
        let (expected, fits) = self.add(draft, &request);
        let end = expected.start.wrapping_add(expected.blocks);
        Planned { request, choice, fits, blocks: expected.blocks, end }
    }
}

/// A program between the start of its steps and the call that publishes or aborts them. Only it
/// uses the queue meanwhile, as the steps demand.
struct Program<'q, T: Tried> {
    queue: &'q mut SendQueue<T>,
    common: Common,
    steps: Steps,
}

impl<'q, T: Tried> Program<'q, T> {
    fn new(queue: &'q mut SendQueue<T>) -> Self {
        let common = queue.common(PostFlags::from_bits_truncate);
        Self { queue, common, steps: Steps::NEW }
    }

    /// Builds a request without a batch; `false`, and nothing of it is left, if it needs one.
    fn build_in_steps(&mut self, request: &RequestOf<T>, choice: Choice) -> bool {
        let Some(form) = T::step_form(request) else { return false };
        let header = StepHeader { form, wr_id: request.wr_id, flags: request.flags };
        if choice.is_whole() && T::destination(request).is_none() && form.operands.is_none() {
            return self.build_whole(header, &request.data);
        }
        if choice.is_whole_of_any() {
            let data = Listed::of(form.data, &request.data, choice);
            let (queue, common, inline) = (&mut *self.queue, &self.common, data.is_copied());
            // SAFETY: as below.
            return unsafe {
                match T::destination(request) {
                    Some(to) => queue.build_whole(common, header, to, inline, data),
                    None => queue.build_whole(common, header, (), inline, data),
                }
            };
        }
        // SAFETY: the program's steps are in order; the service has the operation, and no device
        // reads the data.
        let is_named = unsafe {
            self.queue.name(&mut self.steps, &self.common, header)
                || choice.reopens()
                    && self.is_reopened(T::destination(request).is_some())
                    && self.queue.name(&mut self.steps, &self.common, header)
        };
        if !is_named {
            return false;
        }
        let is_built = self.complete_named(request, form.data, choice);
        if !is_built {
            self.take_back(request.wr_id);
        }
        is_built
    }

    /// Opens the fast path for the next request, if there is space. With data, a datagram has two
    /// blocks.
    fn is_reopened(&mut self, is_datagram: bool) -> bool {
        let blocks = if is_datagram { 2 } else { 1 };
        self.steps.is_straight() && self.queue.reopen(blocks)
    }

    /// Builds a request by one call, which inline data and one SGE have.
    fn build_whole(&mut self, header: StepHeader<'_>, inline: &[u8]) -> bool {
        let (queue, common) = (&mut *self.queue, &self.common);
        // SAFETY: as in `build_in_steps`, here and below; inline data is there.
        unsafe {
            match header.form.data {
                Data::Inline => {
                    queue.build_inline(common, header, inline.len(), || inline.as_ptr())
                }
                Data::Sges([sge]) => {
                    let place = || (sge.address(), sge.lkey());
                    queue.build_sge(common, header, sge.length(), place)
                }
                Data::Sges(_) => false,
            }
        }
    }

    /// Gives the named request its data, and its destination before or after it.
    fn complete_named(&mut self, request: &RequestOf<T>, data: Data<'_>, choice: Choice) -> bool {
        let destination = T::destination(request);
        let has_none = matches!(data, Data::Sges([]));
        let is_first = has_none || choice.has_destination_first();
        if is_first {
            self.set_destination(destination);
        }
        let is_added = match data {
            Data::Inline => self.add_inline(&request.data, choice),
            Data::Sges([]) => self.queue.end_request() == Ok(true),
            Data::Sges(sges) => self.add_sges(sges),
        };
        if is_added && !is_first {
            self.set_destination(destination);
        }
        is_added
    }

    fn set_destination(&mut self, destination: Option<Datagram<'_>>) {
        if let Some(destination) = destination {
            // SAFETY: as in `build_in_steps`; a request was named.
            let is_set = unsafe { self.queue.add_destination(&self.steps, destination) };
            assert!(is_set);
        }
    }

    /// From the call for short data to that for any.
    fn add_inline(&mut self, data: &[u8], choice: Choice) -> bool {
        let list = Listed::of(Data::Inline, data, choice);
        let (queue, common) = (&mut *self.queue, &self.common);
        let (start, length) = (data.as_ptr(), data.len());
        // SAFETY: as in `build_in_steps`; the data is there.
        unsafe {
            queue.add_short(common, start, length)
                || queue.add_longer(common, start, length)
                || queue.add_copied(common, list)
        }
    }

    fn add_sges(&mut self, sges: &[Sge]) -> bool {
        // SAFETY: as in `build_in_steps`.
        unsafe {
            match sges {
                // The result of an atomic, or data.
                [sge] => {
                    self.queue.add_result(sge.address(), sge.lkey())
                        || self.queue.add(sge.address(), sge.length(), sge.lkey())
                }
                list => self.queue.add_list(&self.common, Listed { sges: list, buffers: vec![] }),
            }
        }
    }

    /// Takes back the request that was named, whose data needs a batch.
    fn take_back(&mut self, wr_id: u64) {
        self.steps.detour();
        let named = self.queue.take_back().expect("a named request");
        assert_eq!(named.wr_id, wr_id);
        self.queue.close_steps(&mut self.steps);
    }

    fn build_in_batch(&mut self, request: &RequestOf<T>, choice: Choice) -> Outcome {
        self.steps.detour();
        if choice.closes() {
            self.queue.close_steps(&mut self.steps);
        }
        // SAFETY: only the program has used the queue since the steps began.
        let mut batch = unsafe { self.queue.batch_from(&mut self.steps) }.expect("ready");
        let outcome = build(&mut batch, request, choice.is_fast());
        // SAFETY: the batch was made from these steps, which the program goes on with or publishes.
        unsafe { batch.pause(&mut self.steps) };
        outcome
    }

    fn abort(mut self) {
        self.steps.detour();
        // SAFETY: only the program has used the queue since the steps began.
        unsafe { self.queue.batch_from(&mut self.steps) }.expect("ready").abort();
    }

    fn publish(mut self) {
        if self.steps.is_straight() && self.publish_straight() {
            return;
        }
        self.steps.detour();
        // SAFETY: as in `abort`.
        unsafe { self.queue.batch_from(&mut self.steps) }.expect("ready").publish();
    }

    /// Publishes requests that no batch has built: from the call for the shortest to that for any.
    fn publish_straight(&mut self) -> bool {
        let queue = &mut *self.queue;
        // SAFETY: only the program has used the queue since the steps began, and made no detour.
        unsafe {
            match queue.publish_short() {
                Ok(()) => true,
                Err((start, head)) => {
                    queue.publish_longer(start, head)
                        || queue.publish_long()
                        || queue.publish_steps()
                }
            }
        }
    }
}

/// The data of a request as a list.
struct Listed<'a> {
    sges: &'a [Sge],
    buffers: Vec<&'a [u8]>,
}

impl<'a> Listed<'a> {
    fn of(data: Data<'a>, bytes: &'a [u8], choice: Choice) -> Self {
        match data {
            Data::Sges(sges) => Self { sges, buffers: vec![] },
            Data::Inline => {
                // The first one is empty if there are few bytes.
                let (first, rest) = bytes.split_at(bytes.len() / choice.buffers());
                let (second, third) = rest.split_at(rest.len() / choice.buffers());
                let buffers =
                    if choice.buffers() == 1 { vec![bytes] } else { vec![first, second, third] };
                Self { sges: &[], buffers }
            }
        }
    }

    fn is_copied(&self) -> bool {
        !self.buffers.is_empty()
    }
}

impl Entries for Listed<'_> {
    fn count(&self) -> usize {
        self.sges.len().max(self.buffers.len())
    }

    fn sge(&self, place: usize) -> (u64, u32, u32) {
        let sge = self.sges[place];
        (sge.address(), sge.length(), sge.lkey())
    }

    fn buffer(&self, place: usize) -> (*const u8, usize) {
        (self.buffers[place].as_ptr(), self.buffers[place].len())
    }
}

/// What is said of a request before its data.
#[derive(Clone, Copy)]
struct StepHeader<'a> {
    form: StepForm<'a>,
    wr_id: u64,
    flags: PostFlags,
}

impl Header for StepHeader<'_> {
    fn octowords(&self) -> usize {
        1 + usize::from(self.form.remote.is_some()) + usize::from(self.form.operands.is_some())
    }

    fn opcode(&self) -> Opcode {
        self.form.opcode
    }

    fn immediate(&self) -> U32 {
        U32::ZERO
    }

    /// Of a request without remote memory it is ignored: what would be seen if it were stored.
    fn remote(&self) -> Remote {
        self.form.remote.unwrap_or(Remote::new(u64::MAX, u32::MAX))
    }

    fn operands(&self) -> Option<AtomicSegment> {
        self.form.operands
    }

    fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// The flags themselves: [`Program::new`] gave the queue a table that has each at its number.
    fn mode(&self) -> u32 {
        self.flags.bits().into()
    }
}
