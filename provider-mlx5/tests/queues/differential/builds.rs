//! The ways of building a request in a batch, and the encoding that all ways are compared with.

use uverbs_mlx5::format::Opcode;
use uverbs_mlx5::mmio::BlueFlame;
use uverbs_mlx5::request::PostFlags;
use uverbs_mlx5::send_queue::{Batch, Carries, Operation, Payload, Takes, Transport};

use super::model::Expected;
use super::requests::{RequestOf, Tried, Visitor, at_run_time};
use super::ways::Outcome;
use crate::device::Sq;

/// A way of building a request in a batch.
#[derive(Clone, Copy, Debug)]
pub(super) enum BuildWay {
    Build,
    /// The fast path, and the other where it refuses.
    FastThenAny,
    /// As a request that names its operation at run time; by [`BuildWay::FastThenAny`] if it has
    /// no such form.
    AtRunTime,
    /// From the bytes that a program encoded.
    Encoded,
    /// By the shortest template that holds it.
    ShortestTemplate,
    /// By a template of the longest request.
    LongTemplate,
}

pub(super) const BUILD_WAYS: [BuildWay; 8] = [
    BuildWay::Build,
    BuildWay::Build,
    BuildWay::FastThenAny,
    BuildWay::AtRunTime,
    BuildWay::AtRunTime,
    BuildWay::Encoded,
    BuildWay::ShortestTemplate,
    BuildWay::LongTemplate,
];

impl BuildWay {
    /// Builds the request in this way, or plainly if it has no such form. Templates are made on
    /// the scratch queue.
    pub(super) fn build<T: Tried>(
        self,
        batch: &mut Batch<'_, T, BlueFlame>,
        scratch: &mut Sq<T>,
        request: &RequestOf<T>,
        expected: &Expected,
    ) -> Outcome {
        let outcome = match self {
            Self::Build => build(batch, request, false),
            Self::FastThenAny => build(batch, request, true),
            Self::AtRunTime => build_at_run_time(batch, request),
            Self::Encoded => build_encoded(batch, expected, request.flags),
            Self::ShortestTemplate => build_by_template(batch, scratch, request, true),
            Self::LongTemplate => build_by_template(batch, scratch, request, false),
        };
        match outcome {
            Outcome::Unsuitable => build(batch, request, false),
            outcome => outcome,
        }
    }
}

/// Builds a request by its types: by the fast path first if it `is_fast`.
pub(super) fn build<T: Tried>(
    batch: &mut Batch<'_, T, BlueFlame>,
    request: &RequestOf<T>,
    is_fast: bool,
) -> Outcome {
    let (wr_id, flags) = (request.wr_id, request.flags);
    T::visit(request, Build { batch, wr_id, flags, is_fast })
}

fn build_at_run_time<T: Tried>(
    batch: &mut Batch<'_, T, BlueFlame>,
    request: &RequestOf<T>,
) -> Outcome {
    match at_run_time::<T>(request) {
        // SAFETY: no device reads the data; inline data is in the random request.
        Some(request) => unsafe { batch.build_request(&request) }.into(),
        None => build(batch, request, true),
    }
}

fn build_encoded<T: Transport>(
    batch: &mut Batch<'_, T, BlueFlame>,
    expected: &Expected,
    flags: PostFlags,
) -> Outcome {
    let bytes = expected.encoded_by_program(flags);
    // SAFETY: no device reads the data.
    let built = unsafe {
        if expected.fences {
            batch.build_key_change(expected.wr_id, &bytes)
        } else {
            batch.build_encoded(expected.wr_id, &bytes)
        }
    };
    built.into()
}

fn build_by_template<T: Tried>(
    batch: &mut Batch<'_, T, BlueFlame>,
    scratch: &mut Sq<T>,
    request: &RequestOf<T>,
    is_shortest: bool,
) -> Outcome {
    let (wr_id, flags) = (request.wr_id, request.flags);
    T::visit(request, BuildByTemplate { batch, scratch, wr_id, flags, is_shortest })
}

struct Build<'b, 'q, T: Transport> {
    batch: &'b mut Batch<'q, T, BlueFlame>,
    wr_id: u64,
    flags: PostFlags,
    is_fast: bool,
}

impl<T: Transport> Visitor<T> for Build<'_, '_, T> {
    type Out = Outcome;

    fn visit<O, P>(self, operation: O, payload: P) -> Outcome
    where
        T: Carries<O> + Carries<O::Held>,
        O: Operation + Takes<P>,
        P: Payload,
    {
        let Self { batch, wr_id, flags, is_fast } = self;
        if !is_fast {
            // SAFETY: no device reads the data, here and below.
            return unsafe { batch.build(wr_id, operation, payload, flags) }.into();
        }
        // SAFETY: as above.
        if unsafe { batch.build_fast(wr_id, operation, payload, flags) } {
            return Outcome::Built;
        }
        // SAFETY: as above.
        unsafe { batch.build_any(wr_id, operation, payload, flags) }.into()
    }
}

/// Builds a request by a template without flags, which are given when it is built.
struct BuildByTemplate<'b, 'q, T: Transport> {
    batch: &'b mut Batch<'q, T, BlueFlame>,
    scratch: &'b mut Sq<T>,
    wr_id: u64,
    flags: PostFlags,
    is_shortest: bool,
}

impl<T: Transport> BuildByTemplate<'_, '_, T> {
    /// `None` if the request has more than `BLOCKS`, or no template.
    fn in_blocks<const BLOCKS: usize, O, P>(&mut self, operation: O, payload: P) -> Option<Outcome>
    where
        T: Carries<O> + Carries<O::Held>,
        O: Operation + Takes<P>,
        P: Payload,
    {
        let none = PostFlags::empty();
        let template = self.scratch.queue.long_template::<BLOCKS, _, _>(operation, payload, none);
        let template = template.ok()?;
        // SAFETY: no device reads the data.
        let built = unsafe { self.batch.build_template_with(self.wr_id, &template, self.flags) };
        Some(built.into())
    }

    fn in_fewest_blocks<O, P>(&mut self, operation: O, payload: P) -> Option<Outcome>
    where
        T: Carries<O> + Carries<O::Held>,
        O: Operation + Takes<P>,
        P: Payload,
    {
        self.in_blocks::<1, _, _>(operation, payload)
            .or_else(|| self.in_blocks::<2, _, _>(operation, payload))
            .or_else(|| self.in_blocks::<3, _, _>(operation, payload))
            .or_else(|| self.in_blocks::<4, _, _>(operation, payload))
            .or_else(|| self.in_blocks::<6, _, _>(operation, payload))
    }
}

impl<T: Transport> Visitor<T> for BuildByTemplate<'_, '_, T> {
    type Out = Outcome;

    fn visit<O, P>(mut self, operation: O, payload: P) -> Outcome
    where
        T: Carries<O> + Carries<O::Held>,
        O: Operation + Takes<P>,
        P: Payload,
    {
        let outcome = if self.is_shortest {
            self.in_fewest_blocks(operation, payload)
        } else {
            self.in_blocks::<6, _, _>(operation, payload)
        };
        outcome.unwrap_or(Outcome::Unsuitable)
    }
}

/// Encodes a request on a scratch queue, whose ring is long enough for every request to begin and
/// end within it: returns its bytes without padding, and whether it changes a key.
pub(super) struct Encode<'s, T: Transport> {
    pub(super) scratch: &'s mut Sq<T>,
    pub(super) flags: PostFlags,
}

impl<T: Transport> Visitor<T> for Encode<'_, T> {
    type Out = (Vec<u8>, bool);

    fn visit<O, P>(self, operation: O, payload: P) -> Self::Out
    where
        T: Carries<O> + Carries<O::Held>,
        O: Operation + Takes<P>,
        P: Payload,
    {
        let Self { scratch, flags } = self;
        scratch.ring.write(0, &[0; 16 * 64]);
        let mut batch = scratch.queue.batch().expect("ready");
        // SAFETY: no device reads the data.
        unsafe { batch.build(1, operation, payload, flags) }.expect("space");
        let blocks = batch.head() as usize;
        batch.abort();
        let mut bytes = scratch.ring.read(0, 64 * blocks);
        assert_eq!(bytes[3], O::OPCODE.0);
        bytes.truncate(length(&bytes, O::DATA_START, payload.copied()));
        assert_eq!(bytes.len().div_ceil(64), blocks);
        (bytes, O::OPCODE == Opcode::UMR)
    }
}

/// The length of a request: as it says itself, in octowords, but without the bytes behind inline
/// data in its last octoword, which the device ignores.
fn length(request: &[u8], data_start: usize, copied: usize) -> usize {
    let said = usize::from(request[7] & 63) * 16;
    let data_end = data_start + copied;
    let ends_inline = copied > 0 && data_end.next_multiple_of(16) == said;
    if ends_inline { data_end } else { said }
}
