//! The ways in which a request gets into the queue, and what comes of each.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use uverbs_mlx5::request::{PostError, PostFlags};
use uverbs_mlx5::send_queue::{
    Carries, Operation, Payload, RequestId, SendQueue, Takes, Transport,
};

use super::requests::{RequestOf, Tried, Visitor, at_run_time};

/// What came of a request.
#[derive(Debug)]
pub(super) enum Outcome {
    Built,
    Refused(PostError),
    /// Taking its id panicked, as it was to.
    Panicked,
    /// This way is not one for such requests.
    Unsuitable,
}

impl From<Result<(), PostError>> for Outcome {
    fn from(result: Result<(), PostError>) -> Self {
        result.map_or_else(Self::Refused, |()| Self::Built)
    }
}

impl Outcome {
    /// Panics unless the request was built where it `fits`, and found the queue full elsewhere;
    /// returns whether the queue was full.
    pub(super) fn was_full(&self, fits: bool, request: &dyn Debug) -> bool {
        match self {
            Self::Built => assert!(fits, "built: {request:?}"),
            Self::Refused(error) => {
                assert_eq!((*error, fits), (PostError::Full, false), "{request:?}");
            }
            _ => panic!("{self:?}: {request:?}"),
        }
        !fits
    }
}

/// A way of posting a request alone.
#[derive(Clone, Copy, Debug)]
pub(super) enum PostWay {
    Post,
    /// The fast path, and the other where it refuses.
    FastThenAny,
    /// With an id whose taking panics: nothing may be left of the request.
    PanickingId,
    /// By a template of at most so many blocks.
    Template1,
    Template2,
    Template3,
    Template4,
    Template6,
    /// As a request that names its operation at run time.
    AtRunTime,
    /// As a list of one such request.
    ListOfOne,
}

pub(super) const POST_WAYS: [PostWay; 10] = [
    PostWay::Post,
    PostWay::FastThenAny,
    PostWay::PanickingId,
    PostWay::Template1,
    PostWay::Template2,
    PostWay::Template3,
    PostWay::Template4,
    PostWay::Template6,
    PostWay::AtRunTime,
    PostWay::ListOfOne,
];

impl PostWay {
    pub(super) fn names_operation_at_run_time(self) -> bool {
        matches!(self, Self::AtRunTime | Self::ListOfOne)
    }

    pub(super) fn post<T: Tried>(
        self,
        queue: &mut SendQueue<T>,
        request: &RequestOf<T>,
    ) -> Outcome {
        if self.names_operation_at_run_time() {
            return self.post_at_run_time(queue, request);
        }
        let (wr_id, flags) = (request.wr_id, request.flags);
        T::visit(request, Post { queue, wr_id, flags, way: self })
    }

    fn post_at_run_time<T: Tried>(
        self,
        queue: &mut SendQueue<T>,
        request: &RequestOf<T>,
    ) -> Outcome {
        let Some(request) = at_run_time::<T>(request) else { return Outcome::Unsuitable };
        if let Self::AtRunTime = self {
            // SAFETY: no device reads the data; inline data is in the random request.
            return unsafe { queue.post_request(&request) }.into();
        }
        // SAFETY: as above.
        let posted = unsafe { queue.post_list([request]) };
        let first = posted.map_err(|error| {
            assert_eq!(error.index, 0);
            error.reason
        });
        first.into()
    }
}

/// An id whose taking panics.
#[derive(Clone, Copy)]
struct PanickingId;

impl RequestId for PanickingId {
    fn take(self) -> u64 {
        // Without the panic hook's message.
        resume_unwind(Box::new("taken"))
    }
}

/// Posts a request alone.
struct Post<'q, T: Transport> {
    queue: &'q mut SendQueue<T>,
    wr_id: u64,
    flags: PostFlags,
    way: PostWay,
}

impl<T: Transport> Post<'_, T> {
    fn fast_then_any<O: Operation, P: Payload>(self, operation: O, payload: P) -> Outcome {
        let Self { queue, wr_id, flags, .. } = self;
        // SAFETY: no device reads the data.
        if unsafe { queue.post_fast(wr_id, operation, payload, flags) } {
            return Outcome::Built;
        }
        // SAFETY: as above.
        unsafe { queue.post_any(wr_id, operation, payload, flags) }.into()
    }

    fn with_panicking_id<O, P>(self, operation: O, payload: P) -> Outcome
    where
        T: Carries<O>,
        O: Takes<P>,
        P: Payload,
    {
        let Self { queue, flags, .. } = self;
        let run = || {
            // SAFETY: no device reads the data.
            unsafe { queue.post_as(PanickingId, operation, payload, flags) }
        };
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(())) => panic!("the id was not taken"),
            Ok(Err(error)) => Outcome::Refused(error),
            Err(_) => Outcome::Panicked,
        }
    }

    fn by_template<const BLOCKS: usize, O, P>(self, operation: O, payload: P) -> Outcome
    where
        T: Carries<O> + Carries<O::Held>,
        O: Operation + Takes<P>,
        P: Payload,
    {
        let Self { queue, wr_id, flags, .. } = self;
        match queue.long_template::<BLOCKS, _, _>(operation, payload, flags) {
            // SAFETY: no device reads the data.
            Ok(template) => unsafe { queue.post_template(wr_id, &template) }.into(),
            Err(_) => Outcome::Unsuitable,
        }
    }
}

impl<T: Transport> Visitor<T> for Post<'_, T> {
    type Out = Outcome;

    fn visit<O, P>(self, operation: O, payload: P) -> Outcome
    where
        T: Carries<O> + Carries<O::Held>,
        O: Operation + Takes<P>,
        P: Payload,
    {
        match self.way {
            PostWay::FastThenAny => self.fast_then_any(operation, payload),
            PostWay::PanickingId => self.with_panicking_id(operation, payload),
            PostWay::Template1 => self.by_template::<1, _, _>(operation, payload),
            PostWay::Template2 => self.by_template::<2, _, _>(operation, payload),
            PostWay::Template3 => self.by_template::<3, _, _>(operation, payload),
            PostWay::Template4 => self.by_template::<4, _, _>(operation, payload),
            PostWay::Template6 => self.by_template::<6, _, _>(operation, payload),
            PostWay::Post | PostWay::AtRunTime | PostWay::ListOfOne => {
                // SAFETY: no device reads the data.
                unsafe { self.queue.post(self.wr_id, operation, payload, self.flags) }.into()
            }
        }
    }
}
