//! Random requests: what is drawn of each, and how the kinds of a transport are said in types, at
//! run time and in steps.

use std::fmt::Debug;

use uverbs_mlx5::format::{AddressVector, AtomicSegment, Opcode};
use uverbs_mlx5::request::{PostFlags, Remote, Sge};
use uverbs_mlx5::send_queue::{
    Carries, Datagram, Inline, Operation, Payload, RunTimeDestination, RunTimeOperation,
    SendRequest, Service, Takes, Transport,
};

use crate::device::Random;

/// The number that the queue keeps in place of an id where no request starts: `NO_START` of
/// `src/queue_state/side.rs`, which only the crate sees. A program may use it as an id, so every
/// 16th random request does.
const NO_START: u64 = 0xffff_ffff_9d3a_c571;

const FLAGS: [PostFlags; 4] =
    [PostFlags::empty(), PostFlags::SIGNALED, PostFlags::FENCE, PostFlags::SOLICITED];

/// The longest inline data that is drawn: the queue's `max_inline`.
const MAX_INLINE: usize = 200;

/// A transport and the kinds of requests that are tried on it.
pub(super) trait Tried: Transport + Sized {
    type Kind: Copy + Debug + 'static;

    const KINDS: &'static [Self::Kind];

    /// Whether any kind has a form for lists or for steps.
    const HAS_RUN_TIME_FORMS: bool;

    /// Hands the request's operation and data to the visitor, in their own types.
    fn visit<V: Visitor<Self>>(request: &RequestOf<Self>, visitor: V) -> V::Out;

    /// The address of a datagram, or the same octowords for a DC target; none of a connected
    /// transport.
    fn destination(_: &RequestOf<Self>) -> Option<Datagram<'_>> {
        None
    }

    /// What [`SendRequest`] says of the request, if it can.
    fn run_time_form(_: &RequestOf<Self>) -> Option<(RunTimeOperation<'_>, Data<'_>)> {
        None
    }

    /// How the request is built step by step, if it can be.
    fn step_form(_: &RequestOf<Self>) -> Option<StepForm<'_>> {
        None
    }
}

/// What is done with a request once the types of its operation and data are known.
pub(super) trait Visitor<T: Transport> {
    type Out;

    fn visit<O, P>(self, operation: O, payload: P) -> Self::Out
    where
        T: Carries<O> + Carries<O::Held>,
        O: Operation + Takes<P>,
        P: Payload;
}

/// Which of a request's data is sent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Data<'a> {
    /// [`RandomRequest::data`].
    Inline,
    Sges(&'a [Sge]),
}

/// A request as steps build it.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepForm<'a> {
    pub(super) opcode: Opcode,
    pub(super) remote: Option<Remote>,
    /// Of an atomic.
    pub(super) operands: Option<AtomicSegment>,
    pub(super) data: Data<'a>,
}

impl<'a> StepForm<'a> {
    pub(super) fn send(data: Data<'a>) -> Option<Self> {
        Some(Self { opcode: Opcode::SEND, remote: None, operands: None, data })
    }

    pub(super) fn write(remote: Remote, data: Data<'a>) -> Option<Self> {
        Some(Self { opcode: Opcode::RDMA_WRITE, remote: Some(remote), operands: None, data })
    }

    pub(super) fn fetch_add(remote: Remote, addend: u64, result: &'a [Sge]) -> Option<Self> {
        let (opcode, data) = (Opcode::ATOMIC_FETCH_ADD, Data::Sges(result));
        let operands = Some(AtomicSegment::fetch_add(addend));
        Some(Self { opcode, remote: Some(remote), operands, data })
    }
}

/// A random request of a transport.
pub(super) type RequestOf<T> = RandomRequest<<T as Tried>::Kind>;

/// A request of a random kind; each kind uses some of the other fields.
#[derive(Debug)]
pub(super) struct RandomRequest<K> {
    pub(super) kind: K,
    pub(super) wr_id: u64,
    pub(super) flags: PostFlags,
    /// Inline data.
    pub(super) data: Vec<u8>,
    /// Where `data` is: a [`SendRequest`] says so of inline data.
    data_sge: [Sge; 1],
    /// The SGE of kinds that have exactly one.
    pub(super) sge: Sge,
    /// The buffer of an atomic's result.
    pub(super) result: [Sge; 1],
    /// The SGEs of the other kinds, up to the queue's `max_sge`; some are empty.
    pub(super) sges: Vec<Sge>,
    pub(super) remote: Remote,
    /// Immediate data, key or other number that the queue only copies.
    pub(super) number: u32,
    pub(super) av: AddressVector,
}

impl<K: Copy> RandomRequest<K> {
    /// A request with an id of its own, or with [`NO_START`].
    pub(super) fn draw(kinds: &[K], random: &mut Random, last_id: &mut u64) -> Self {
        let length = random_length(random);
        let number = random.below(1 << 20) as u32;
        let sges = random_sges(random, number);
        let kind = kinds[random.below(kinds.len())];
        let data = random_data(length, number);
        let remote = Remote::new(8 * random.below(1 << 30) as u64, random.below(1 << 20) as u32);
        let flags = FLAGS[random.below(FLAGS.len())];
        *last_id += 1;
        let wr_id = if random.below(16) == 0 { NO_START } else { *last_id };
        let address = data.as_ptr().expose_provenance() as u64;
        Self {
            kind,
            wr_id,
            flags,
            data_sge: [Sge::new(address, data.len() as u32, 7)],
            data,
            sge: Sge::new(0x1234, number, 9),
            sges,
            result: [Sge::new(8, 8, 3)],
            remote,
            number,
            av: AddressVector::default().for_datagram(number, 7),
        }
    }

    pub(super) fn inline(&self) -> Inline<'_> {
        Inline(&self.data)
    }
}

/// Lengths of all sizes; more often those about which the queue's shortest forms end.
fn random_length(random: &mut Random) -> usize {
    match random.below(4) {
        0 => random.below(32),
        1 => random.below(70),
        2 => 44 + random.below(3),
        _ => random.below(MAX_INLINE + 1),
    }
}

/// No byte is zero, so that data differs from what an empty ring holds.
fn random_data(length: usize, number: u32) -> Vec<u8> {
    (0..length).map(|i| (i as u8).wrapping_add(number as u8) | 1).collect()
}

fn random_sges(random: &mut Random, lkey: u32) -> Vec<Sge> {
    let count = random.below(9) as u64;
    (0..count).map(|i| Sge::new(i * 64 + 5, (random.below(6) * 64) as u32, lkey)).collect()
}

/// The request for [`post_list`](uverbs_mlx5::send_queue::SendQueue::post_list) and its like.
pub(super) fn at_run_time<T: Tried>(request: &RequestOf<T>) -> Option<SendRequest<'_>> {
    let (operation, data) = T::run_time_form(request)?;
    let (inline, data) = match data {
        Data::Inline => (true, request.data_sge.as_slice()),
        Data::Sges(sges) => (false, sges),
    };
    let destination = match (T::SERVICE, T::destination(request)) {
        (_, None) => RunTimeDestination::Connected,
        (Service::Dci, Some(Datagram(av))) => RunTimeDestination::Dc(av),
        (_, Some(Datagram(av))) => RunTimeDestination::Datagram(av),
    };
    let (wr_id, flags) = (request.wr_id, request.flags);
    Some(SendRequest { wr_id, operation, destination, flags, inline, data })
}
