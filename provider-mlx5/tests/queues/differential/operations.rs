//! What a program does with the queue (single requests, batches, lists, doorbells, resets), and the
//! completions of the device, which names some requests that it must not name.

use uverbs_mlx5::queue_state::QpState;
use uverbs_mlx5::request::{PostError, PostFlags};
use uverbs_mlx5::send_queue::Nop;

use super::builds::{BUILD_WAYS, BuildWay};
use super::model::{Draft, Expected};
use super::requests::{RandomRequest, RequestOf, Tried, at_run_time};
use super::trial::Trial;
use super::ways::{Outcome, POST_WAYS, PostWay};
use crate::device::{Cqe, renew};

/// A request that a batch is to build.
#[derive(Debug)]
struct Planned<K> {
    request: RandomRequest<K>,
    way: BuildWay,
    expected: Expected,
    fits: bool,
}

/// What becomes of a batch.
#[derive(Clone, Copy, Debug)]
enum End {
    Abort,
    /// It is leaked; the queue is to go on as if it had never been.
    Forget,
    /// Its requests stay, unpublished.
    Drop,
    Publish,
}

impl End {
    /// Most batches are published.
    fn of(number: usize) -> Self {
        match number {
            0 => Self::Abort,
            1 => Self::Forget,
            2 => Self::Drop,
            _ => Self::Publish,
        }
    }
}

impl<T: Tried> Trial<T> {
    /// Posts one request in one of the ways.
    pub(super) fn post_one(&mut self) {
        let request = self.draw();
        let way = POST_WAYS[self.random.below(POST_WAYS.len())];
        let mut draft = self.model.draft();
        let (_, fits) = self.add(&mut draft, &request);
        self.note(format!("{way:?} at {:#x}, fits {fits}: {request:?}", self.model.next.head));
        let ring = self.ring();
        match way.post(&mut self.sq.queue, &request) {
            Outcome::Unsuitable => return,
            Outcome::Panicked => {
                assert!(fits);
                self.counts.panicked += 1;
            }
            outcome if outcome.was_full(fits, &request) => self.refused(way, &ring),
            _ => self.posted(draft),
        }
        self.check();
    }

    /// A refused request leaves the ring as it was.
    fn refused(&mut self, way: PostWay, ring: &[u8]) {
        assert_eq!(self.ring(), ring);
        self.counts.full += 1;
        if way.names_operation_at_run_time() {
            // As a list does, it rings for what was built before.
            self.model.publish();
        }
    }

    fn posted(&mut self, draft: Draft) {
        let is_alone = !self.model.has_unpublished();
        self.take(draft);
        self.model.publish();
        self.check();
        self.check_register(is_alone);
    }

    /// A batch of requests, each in one of the ways.
    pub(super) fn batch(&mut self) {
        let count = self.random.below(6);
        let end = End::of(self.random.below(8));
        let mut draft = self.model.draft();
        let planned: Vec<_> = (0..count).map(|_| self.plan(&mut draft)).collect();
        let ways: Vec<_> = planned.iter().map(|one| (one.request.kind, one.way)).collect();
        self.note(format!("batch of {ways:?}, {end:?} at {:#x}", self.model.next.head));
        let mut batch = self.sq.queue.batch().expect("ready");
        for planned in &planned {
            let Planned { request, way, expected, fits } = planned;
            let outcome = way.build(&mut batch, &mut self.scratch, request, expected);
            self.counts.full += usize::from(outcome.was_full(*fits, &(way, request)));
        }
        assert_eq!(batch.head(), draft.next.head, "{planned:?}");
        match end {
            End::Abort => batch.abort(),
            End::Forget => std::mem::forget(batch),
            End::Drop => {
                drop(batch);
                self.take(draft);
            }
            End::Publish => {
                batch.publish();
                self.take_published(draft);
            }
        }
        // Without a look at the queue, the next operation is the first after the leak.
        if !matches!(end, End::Forget) || self.happens_once_in(2) {
            self.check();
        }
    }

    fn plan(&mut self, draft: &mut Draft) -> Planned<T::Kind> {
        let request = self.draw();
        let way = BUILD_WAYS[self.random.below(BUILD_WAYS.len())];
        let (expected, fits) = self.add(draft, &request);
        Planned { request, way, expected, fits }
    }

    /// A list of requests; those before the first without space are posted.
    pub(super) fn list(&mut self) {
        let Some(requests) = self.draw_list() else { return };
        let mut draft = self.model.draft();
        let refused = requests.iter().position(|request| !self.add(&mut draft, request).1);
        let (count, head) = (requests.len(), self.model.next.head);
        self.note(format!("list of {count} at {head:#x}, refused {refused:?}"));
        let list: Vec<_> = requests.iter().filter_map(at_run_time::<T>).collect();
        // SAFETY: no device reads the data; inline data is in the random requests.
        let posted = unsafe { self.sq.queue.post_list(&list) };
        let error = posted.err().map(|error| (error.index, error.reason));
        assert_eq!(error, refused.map(|index| (index, PostError::Full)), "{requests:?}");
        self.counts.full += usize::from(refused.is_some());
        self.take_published(draft);
        self.check();
    }

    /// Requests that can be in a list; `None` if the transport has none.
    fn draw_list(&mut self) -> Option<Vec<RequestOf<T>>> {
        let count = 2 + self.random.below(4);
        let mut requests = Vec::new();
        while requests.len() < count {
            let request = self.draw();
            if at_run_time::<T>(&request).is_some() {
                requests.push(request);
            } else if !T::HAS_RUN_TIME_FORMS {
                return None;
            }
        }
        Some(requests)
    }

    /// Rings for what dropped batches left.
    pub(super) fn publish(&mut self) {
        self.note("publish".into());
        self.sq.queue.publish();
        self.model.publish();
        self.check();
    }

    /// Makes the next post check the QP's state, which has not changed.
    pub(super) fn recheck(&mut self) {
        self.note("recheck".into());
        self.sq.queue.recheck_state();
    }

    /// The QP goes back to its first state and is made ready again.
    pub(super) fn reset(&mut self) {
        self.note("reset".into());
        self.sq.handle = renew(&self.sq.handle);
        self.sq.queue.reset(self.sq.handle.clone());
        if self.happens_once_in(2) {
            self.check_not_ready();
        }
        self.sq.handle.set_state(QpState::Rts);
        self.model.reset();
        self.check();
    }

    fn check_not_ready(&mut self) {
        // SAFETY: there is no data.
        let is_posted = unsafe { self.sq.queue.post_fast(1, Nop, (), PostFlags::empty()) };
        assert!(!is_posted);
        assert_eq!(self.sq.queue.batch().map(drop), Err(PostError::BadState));
    }
}

/// What the device does.
impl<T: Tried> Trial<T> {
    /// One or two completions of published requests.
    pub(super) fn complete(&mut self) {
        if self.model.published_requests() == 0 {
            return;
        }
        for _ in 0..1 + self.random.below(2) {
            let published = self.model.published_requests();
            if published == 0 {
                return;
            }
            if !self.happens_once_in(12) || !self.complete_none_of(published) {
                self.complete_one_of(published);
            }
        }
    }

    /// A completion that names no published request is an error and changes nothing; `false` if
    /// the counter that was drawn names one.
    fn complete_none_of(&mut self, published: usize) -> bool {
        let counter = self.draw_counter(published);
        if self.model.in_flight.range(..published).any(|request| request.start == counter) {
            return false;
        }
        self.cq.produce(Cqe::send(&self.sq.handle, counter));
        assert!(self.cq.queue.poll().is_err(), "{counter:#x}");
        true
    }

    /// A counter within a published request, behind them all, or before them.
    fn draw_counter(&mut self, published: usize) -> u32 {
        match self.random.below(3) {
            0 => self.model.in_flight[self.random.below(published)].start.wrapping_add(1),
            1 => self.model.published,
            _ => self.model.in_flight[0].start.wrapping_sub(1),
        }
    }

    /// A completion completes its request and those before it.
    fn complete_one_of(&mut self, published: usize) {
        let at = self.random.below(published);
        let last = self.model.in_flight.drain(..=at).next_back().expect("a request");
        self.note(format!("complete {:#x}", last.start));
        self.cq.produce(Cqe::send(&self.sq.handle, last.start));
        assert_eq!(self.poll(), last.wr_id);
    }

    /// The id of the next completion.
    fn poll(&mut self) -> u64 {
        if !self.happens_once_in(4) {
            return self.cq.queue.poll().expect("a completion").wr_id();
        }
        let mut ids = Vec::new();
        let polled = self.cq.queue.poll_up_to(4, |completion| ids.push(completion.wr_id()));
        assert_eq!((polled, ids.len()), (Ok(1), 1));
        ids[0]
    }
}
