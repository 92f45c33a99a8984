//! A link: connected queues of one kind at the two ends.

use std::collections::VecDeque;

use uverbs::qp::{
    AckTimeout, AtomicResult, Datagram, PathOptions, PostError, PostFlags, XrcReceiver, XrcTarget,
};
use uverbs::qp_type::{Connected, Rc, Uc, Ud, Xrc};
use uverbs::soft::prng::Prng;
use uverbs::{AddressHandle, Result, Sge, op, raw};

use crate::common::REMOTE;
use crate::side::{SLOT, Side};

/// Requests that a queue holds.
const DEPTH: u32 = 16;

pub(crate) enum Queues {
    Rc(raw::QueuePair<Rc>, raw::QueuePair<Rc>),
    /// The receiver uses the shared receive queue.
    Shared(raw::QueuePair<Rc>, raw::QueuePair<Rc>),
    Uc(raw::QueuePair<Uc>, raw::QueuePair<Uc>),
    Ud(raw::QueuePair<Ud>, raw::QueuePair<Ud>, AddressHandle),
    Xrc(raw::QueuePair<Xrc>, XrcReceiver),
}

/// The operation of a request on the sending side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Send,
    Write,
    Read,
    Add,
    Nop,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) wr_id: u64,
    pub(crate) operation: Operation,
    pub(crate) signaled: bool,
}

pub(crate) struct Link {
    pub(crate) serial: u64,
    pub(crate) queues: Queues,
    /// Sends in the order of posting.
    pub(crate) sends: VecDeque<Sent>,
    /// Receives in the order of posting, if the link does not use a shared receive queue.
    pub(crate) receives: VecDeque<u64>,
    /// Number of messages sent, and number of the message that must arrive next.
    pub(crate) messages: u64,
    pub(crate) arrived: u64,
    /// Additions that have completed.
    pub(crate) added: u64,
    /// Slot of the receiving side that RDMA writes and atomics change.
    pub(crate) scratch: usize,
}

fn cq<'a>(side: &'a Side, chance: &mut Prng) -> &'a uverbs::raw::CqHandle {
    side.cqs[chance.below(side.cqs.len() as u64) as usize].handle()
}

fn builder<T: uverbs::qp_type::QueuePairType>(side: &Side, chance: &mut Prng) -> raw::QpBuilder<T> {
    let (send, receive) = (cq(side, chance), cq(side, chance));
    let builder = side.end.setup.pd.create_raw_qp::<T>(send, receive);
    let builder = builder.max_send_wr(DEPTH).max_recv_wr(DEPTH).access(REMOTE);
    // A long ACK timeout: the peer's thread may not be scheduled for a second.
    builder.path(|path| path.timeout = AckTimeout::from_code(16))
}

fn connect<T: Connected>(a: &mut raw::QueuePair<T>, b: &mut raw::QueuePair<T>) -> Result<()> {
    let (end_a, end_b) = (a.endpoint(), b.endpoint());
    a.connect(&end_b)?;
    b.connect(&end_a)
}

impl Queues {
    /// Queues of a random kind.
    pub(crate) fn build([one, two]: &[Side; 2], chance: &mut Prng) -> Result<Self> {
        match chance.below(5) {
            0 => {
                let (mut a, mut b) = (builder(one, chance).build()?, builder(two, chance).build()?);
                connect(&mut a, &mut b)?;
                Ok(Self::Rc(a, b))
            }
            1 => {
                let mut a = builder(one, chance).build()?;
                let shared = builder(two, chance).shared_receive_queue(two.srq.handle());
                let mut b = shared.build()?;
                connect(&mut a, &mut b)?;
                Ok(Self::Shared(a, b))
            }
            2 => {
                let (mut a, mut b) = (builder(one, chance).build()?, builder(two, chance).build()?);
                connect(&mut a, &mut b)?;
                Ok(Self::Uc(a, b))
            }
            3 => {
                let (mut a, mut b) =
                    (builder::<Ud>(one, chance).build()?, builder::<Ud>(two, chance).build()?);
                a.activate()?;
                b.activate()?;
                let there = one.end.setup.pd.create_ah(&a.address_of(&b.endpoint())?)?;
                Ok(Self::Ud(a, b, there))
            }
            _ => {
                let mut a = builder::<Xrc>(one, chance).build()?;
                let path = PathOptions { access: REMOTE, ..PathOptions::default() };
                let mut b = two.xrcd.create_receiver(path)?;
                b.connect(&a.endpoint())?;
                a.connect(&b.endpoint(two.xrc_srq.handle()))?;
                Ok(Self::Xrc(a, b))
            }
        }
    }

    /// Whether every message arrives, once and in order.
    pub(crate) fn is_reliable(&self) -> bool {
        !matches!(self, Self::Uc(..) | Self::Ud(..))
    }

    /// Whether messages consume receives that other links also use.
    pub(crate) fn shares_receives(&self) -> bool {
        matches!(self, Self::Shared(..) | Self::Xrc(..))
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Rc(..) => "RC",
            Self::Shared(..) => "RC with SRQ",
            Self::Uc(..) => "UC",
            Self::Ud(..) => "UD",
            Self::Xrc(..) => "XRC",
        }
    }

    /// Bytes before the message in a receive's slot.
    pub(crate) fn header(&self) -> usize {
        if matches!(self, Self::Ud(..)) { uverbs::ah::GRH_BYTES } else { 0 }
    }

    /// The longest message.
    pub(crate) fn longest(&self) -> usize {
        if matches!(self, Self::Ud(..)) { 4000 } else { SLOT - 40 }
    }

    /// Sends one message.
    ///
    /// # Safety
    /// The memory is not touched before the request has completed or its queue pair is gone.
    pub(crate) unsafe fn send(
        &mut self,
        two: &Side,
        wr_id: u64,
        data: Sge,
        flags: PostFlags,
    ) -> std::result::Result<(), PostError> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Rc(a, _) | Self::Shared(a, _) => a.post_send(wr_id, op::Send, data, flags),
                Self::Uc(a, _) => a.post_send(wr_id, op::Send, data, flags),
                Self::Ud(a, b, there) => {
                    let address = there.datagram_to(&b.endpoint());
                    a.post_send(wr_id, op::To(Datagram(&address), op::Send), data, flags)
                }
                Self::Xrc(a, _) => {
                    let target = XrcTarget(two.xrc_srq.number());
                    a.post_send(wr_id, op::To(target, op::Send), data, flags)
                }
            }
        }
    }

    /// Posts a NOP, which completes when all requests before it have.
    pub(crate) fn nop(&mut self, wr_id: u64) -> std::result::Result<(), PostError> {
        let flags = PostFlags::SIGNALED;
        // SAFETY: no memory is named.
        unsafe {
            match self {
                Self::Rc(a, _) | Self::Shared(a, _) => a.post_send(wr_id, op::Nop, (), flags),
                Self::Uc(a, _) => a.post_send(wr_id, op::Nop, (), flags),
                Self::Ud(a, ..) => a.post_send(wr_id, op::Nop, (), flags),
                Self::Xrc(a, _) => a.post_send(wr_id, op::Nop, (), flags),
            }
        }
    }

    /// Posts a one-sided operation; `None` if this kind of link has none.
    ///
    /// # Safety
    /// As [`Queues::send`].
    pub(crate) unsafe fn one_sided(
        &mut self,
        operation: Operation,
        wr_id: u64,
        data: Sge,
        remote: uverbs::Remote,
    ) -> Option<std::result::Result<(), PostError>> {
        let (Self::Rc(a, _) | Self::Shared(a, _)) = self else { return None };
        let flags = PostFlags::SIGNALED;
        let result = AtomicResult { address: data.address(), lkey: data.lkey() };
        // SAFETY: the caller's promise.
        Some(unsafe {
            match operation {
                Operation::Write => a.post_send(wr_id, op::Write(remote), data, flags),
                Operation::Read => a.post_send(wr_id, op::Read(remote), data, flags),
                _ => a.post_send(wr_id, op::FetchAdd { remote, add: 1 }, result, flags),
            }
        })
    }

    /// Posts one receive, if the link does not use a shared receive queue.
    ///
    /// # Safety
    /// As [`Queues::send`].
    pub(crate) unsafe fn receive(
        &mut self,
        wr_id: u64,
        room: Sge,
    ) -> std::result::Result<(), PostError> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Rc(_, b) => b.post_receive(wr_id, &[room]),
                Self::Uc(_, b) => b.post_receive(wr_id, &[room]),
                Self::Ud(_, b, _) => b.post_receive(wr_id, &[room]),
                Self::Shared(..) | Self::Xrc(..) => Err(PostError::NoQueue),
            }
        }
    }
}
