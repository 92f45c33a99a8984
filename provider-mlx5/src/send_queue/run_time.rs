//! Requests whose operation is known at run time only, in lists.
//!
//! They use the encoder of the typed functions. The service is a constant of the queue's type, so
//! one jump on the operation is left at run time. Requests that the typed functions refuse at
//! compile time are a [`PostError`] here.
//!
//! The same code decides on a request in two copies. The inline copy takes what most programs post:
//! a message or an access with one SGE or one inline buffer. The copy out of line takes everything
//! else, and all requests while the fast path has no space. It starts over, so the results of the
//! inline copy can stay in registers.
//!
//! Each operation and payload has its own copy of the encoder. With optimisation all copies are in
//! one function. Without it they are functions of their own (`debug_assertions`): in one, their
//! locals would need more than a megabyte of stack.

use core::borrow::Borrow;
use core::marker::PhantomData;
use core::mem::MaybeUninit;

use super::encode::Promised;
use super::ethernet::{EthernetOffload, EthernetSend, EthernetSendHeader};
use super::operation::*;
use super::payload::{Data, InlineList, InlineSge, Payload};
use super::wide::keep_apart;
use super::window::{BindWindow, LocalInvalidate, UnbindWindow};
use super::{Batch, SendQueue, Service, Transport};
use crate::format::{AddressVector, INLINE_LENGTH_MASK, MAX_DS, Opcode, U32};
use crate::mmio::Register;
use crate::request::{Immediate, ListError, PostError, PostFlags, Remote, Sge};

/// The operation of a [`SendRequest`].
// In an order in which few comparisons find what most programs post.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "each variant is the operation type of the same name")]
pub enum RunTimeOperation<'a> {
    Write(Remote),
    Read(Remote),
    Send,
    WriteImmediate(Remote, Immediate),
    SendImmediate(Immediate),
    SendInvalidate(u32),
    CompareSwap(CompareSwap),
    FetchAdd(FetchAdd),
    MaskedCompareSwap(MaskedCompareSwap),
    MaskedFetchAdd(MaskedFetchAdd),
    Nop,
    BindWindow(BindWindow),
    UnbindWindow(UnbindWindow),
    LocalInvalidate(u32),
    /// A raw Ethernet packet.
    Packet(EthernetOffload),
    /// A raw Ethernet packet that the device segments; header and segment size as in
    /// [`segmented`](super::segmented).
    Segmented {
        offload: EthernetOffload,
        mss: u16,
        header: &'a [u8],
    },
}

/// The destination of a [`SendRequest`].
#[derive(Clone, Copy, Debug)]
pub enum RunTimeDestination<'a> {
    /// The peer of the queue pair (RC, UC), or none (raw Ethernet).
    Connected,
    /// A UD address, as in [`Datagram`].
    Datagram(&'a AddressVector),
    /// An XRC SRQ.
    Xrc(u32),
    /// A DC target, as in [`DcTarget`].
    Dc(&'a AddressVector),
}

/// A send request, with everything decided at run time.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// The operation.
    pub operation: RunTimeOperation<'a>,
    /// The destination.
    pub destination: RunTimeDestination<'a>,
    /// How it completes and is ordered.
    pub flags: PostFlags,
    /// Whether the data is copied into the request.
    pub inline: bool,
    /// The data. For an atomic: one entry, the result's buffer, of 8 bytes.
    pub data: &'a [Sge],
}

impl<T: Transport, R: Register> SendQueue<T, R> {
    /// [`SendQueue::post_list`] of requests for which the promise was made.
    #[inline(always)]
    pub(super) fn post_promised_list<'a>(
        &mut self,
        mut requests: Promised<impl Iterator<Item = impl Borrow<SendRequest<'a>>>>,
    ) -> Result<(), ListError> {
        if requests.size_hint() == (1, Some(1)) {
            if let Some(one) = requests.next() {
                self.post_promised_request(one.lent()).map_err(ListError::first)?;
                // A program's own iterator may be wrong about its length.
                return match requests.next() {
                    None => Ok(()),
                    Some(second) => self.post_unannounced(second, requests),
                };
            }
        }
        self.post_several(requests)
    }

    /// Posts the requests that follow the only one that a list announced.
    #[cold]
    #[inline(never)]
    fn post_unannounced<'a, Q: Borrow<SendRequest<'a>>>(
        &mut self,
        second: Promised<Q>,
        requests: Promised<impl Iterator<Item = Q>>,
    ) -> Result<(), ListError> {
        for (index, request) in (1..).zip(core::iter::once(second).chain(requests)) {
            if let Err(reason) = decide(self, request.lent()) {
                self.refused(reason);
                return Err(ListError { index, reason });
            }
        }
        Ok(())
    }

    /// [`SendQueue::post_list`] of a list that may be longer.
    #[inline(never)]
    fn post_several<'a>(
        &mut self,
        requests: Promised<impl Iterator<Item = impl Borrow<SendRequest<'a>>>>,
    ) -> Result<(), ListError> {
        let mut result = Ok(());
        let mut batch = self.batch().map_err(ListError::first)?;
        for request in requests {
            if let Err(reason) = batch.build_promised_request(request.lent()) {
                // Counted only now, because an index would take a register.
                result = Err(ListError { index: batch.built(), reason });
                break;
            }
        }
        batch.publish();
        result
    }

    /// [`SendQueue::post_request`] of a request for which the promise was made.
    #[inline(always)]
    pub(super) fn post_promised_request(
        &mut self,
        request: Promised<&SendRequest<'_>>,
    ) -> Result<(), PostError> {
        if Decide::<T, _, true>(&mut *self, PhantomData).request(request).is_ok() {
            return Ok(());
        }
        crate::hint::cold_path();
        decide(self, request).inspect_err(|reason| self.refused(*reason))
    }

    #[cold]
    fn refused(&mut self, reason: PostError) {
        // As a longer list, which does not begin then.
        if reason != PostError::BadState {
            self.publish();
        }
    }
}

/// Turns an operation into one that the queue's service can carry.
trait Addressing: Copy {
    type Addressed<O: Operation>: Operation;
    fn address<O: Operation>(self, operation: O) -> Self::Addressed<O>;
}

#[derive(Clone, Copy)]
struct Connected;

impl Addressing for Connected {
    type Addressed<O: Operation> = O;
    #[inline(always)]
    fn address<O: Operation>(self, operation: O) -> O {
        operation
    }
}

#[derive(Clone, Copy)]
struct Via<D>(D);

impl<D: Destination> Addressing for Via<D> {
    type Addressed<O: Operation> = To<D, O>;
    #[inline(always)]
    fn address<O: Operation>(self, operation: O) -> To<D, O> {
        To(self.0, operation)
    }
}

/// Builds a request whose operation is known: a batch, or a queue that rings at once.
trait Builder<T: Transport> {
    type Register: Register;
    /// The queue that it builds for.
    fn target(&self) -> &SendQueue<T, Self::Register>;
    /// Builds the request if the fast path can; returns whether it did.
    fn build_fast<O: Operation, P: Payload>(
        &mut self,
        request: &SendRequest<'_>,
        operation: O,
        payload: Promised<P>,
    ) -> bool;
    /// Builds any request whose operation is known, out of line.
    fn build_general<O: Operation, P: Payload>(
        &mut self,
        request: &SendRequest<'_>,
        operation: O,
        payload: Promised<P>,
    ) -> Result<(), PostError>;
}

/// A builder of this type: its queue, and its two functions for requests whose promise was made.
macro_rules! builder {
    ($type:ty: |$this:ident| $queue:expr, $fast:ident, $any:ident) => {
        impl<T: Transport, R: Register> Builder<T> for $type {
            type Register = R;

            #[inline(always)]
            fn target(&self) -> &SendQueue<T, R> {
                let $this = self;
                $queue
            }

            #[cfg_attr(not(debug_assertions), inline(always))]
            fn build_fast<O: Operation, P: Payload>(
                &mut self,
                request: &SendRequest<'_>,
                operation: O,
                payload: Promised<P>,
            ) -> bool {
                self.$fast(request.wr_id, operation, payload, request.flags)
            }

            #[cfg_attr(not(debug_assertions), inline(always))]
            fn build_general<O: Operation, P: Payload>(
                &mut self,
                request: &SendRequest<'_>,
                operation: O,
                payload: Promised<P>,
            ) -> Result<(), PostError> {
                self.$any(request.wr_id, operation, payload, request.flags)
            }
        }
    };
}

builder!(Batch<'_, T, R>: |batch| batch.queue(), build_promised_fast, build_promised_general);
builder!(SendQueue<T, R>: |queue| queue, post_promised_fast, post_general);

/// Stands for any reason for which a request is not built with `QUICK`, see [`Decide`].
const UNUSUAL: PostError = PostError::Full;

/// Decides on any request, out of line.
#[inline(never)]
fn decide<T: Transport, B: Builder<T>>(
    builder: &mut B,
    request: Promised<&SendRequest<'_>>,
) -> Result<(), PostError> {
    Decide::<T, _, false>(builder, PhantomData).request(request)
}

impl<T: Transport, R: Register> Batch<'_, T, R> {
    /// [`Batch::build_request`] of a request for which the promise was made.
    #[inline]
    pub(super) fn build_promised_request(
        &mut self,
        request: Promised<&SendRequest<'_>>,
    ) -> Result<(), PostError> {
        if Decide::<T, _, true>(self, PhantomData).request(request).is_ok() {
            return Ok(());
        }
        crate::hint::cold_path();
        // On a copy of the batch, so that the original can stay in registers.
        self.lend(|copy| decide(copy, request))
    }
}

/// Matches a request's operation and data, and builds it. With `QUICK` it builds only the usual
/// ones, and an error says that it is none, whatever the reason: [`decide`] finds that.
struct Decide<'b, T, B, const QUICK: bool>(&'b mut B, PhantomData<T>);

impl<T: Transport, B: Builder<T>, const QUICK: bool> Decide<'_, T, B, QUICK> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn request(&mut self, request: Promised<&SendRequest<'_>>) -> Result<(), PostError> {
        use RunTimeDestination as D;
        match (T::SERVICE, request.destination) {
            (Service::Rc | Service::Uc, D::Connected) => self.addressed(request, Connected),
            (Service::Ud, D::Datagram(av)) => self.addressed(request, Via(Datagram(av))),
            (Service::Xrc, D::Xrc(srqn)) => self.addressed(request, Via(XrcTarget(srqn))),
            (Service::Dci, D::Dc(av)) => self.addressed(request, Via(DcTarget(av))),
            (Service::RawEthernet, D::Connected) => self.packet(request),
            _ if QUICK => Err(UNUSUAL),
            // Operations on windows are local, so they have no destination.
            (Service::Xrc, D::Connected) => self.window(request),
            _ if matches!(request.operation, RunTimeOperation::Nop) => self.bare(request, Nop),
            _ => Err(PostError::BadDestination),
        }
    }

    /// A message, or what else has a destination.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn addressed<A: Addressing>(
        &mut self,
        request: Promised<&SendRequest<'_>>,
        to: A,
    ) -> Result<(), PostError> {
        use RunTimeOperation as O;
        match request.operation {
            // In a copy of the encoder of its own, because opcode and immediate are constants there
            // and take no registers.
            O::Write(remote) if QUICK && T::SERVICE != Service::Ud => {
                let (opcode, immediate) = (Opcode::RDMA_WRITE, U32::new(0));
                return self
                    .with_data(request, to.address(AnyAccess { opcode, immediate, remote }));
            }
            _ => keep_apart(),
        }
        if let Some(access) = self.access(&request.operation) {
            return self.with_data(request, to.address(access));
        }
        let send = |opcode, immediate| AnySend { opcode, immediate };
        let send = match request.operation {
            O::Send => send(Opcode::SEND, U32::new(0)),
            O::SendImmediate(data) => send(Opcode::SEND_IMMEDIATE, U32::from_bytes(data.0)),
            O::SendInvalidate(key) if T::SERVICE.is_reliable() => {
                send(Opcode::SEND_INVALIDATE, U32::new(key))
            }
            _ if QUICK => return Err(UNUSUAL),
            _ => return self.other(request, to),
        };
        self.with_data(request, to.address(send))
    }

    /// The operation, if it is an access to remote memory that moves data.
    #[inline(always)]
    fn access(&self, operation: &RunTimeOperation<'_>) -> Option<AnyAccess> {
        use RunTimeOperation as O;
        let access = |opcode, remote, immediate| AnyAccess { opcode, immediate, remote };
        let (is_rdma, is_reliable) = (T::SERVICE != Service::Ud, T::SERVICE.is_reliable());
        match *operation {
            O::Write(remote) | O::Read(remote) if is_reliable => {
                let is_read = matches!(operation, O::Read(_));
                let opcode = if is_read { Opcode::RDMA_READ } else { Opcode::RDMA_WRITE };
                return Some(access(opcode, remote, U32::new(0)));
            }
            O::Write(remote) if is_rdma => {
                return Some(access(Opcode::RDMA_WRITE, remote, U32::new(0)));
            }
            _ => {}
        }
        keep_apart();
        match *operation {
            O::WriteImmediate(remote, data) if is_rdma => {
                Some(access(Opcode::RDMA_WRITE_IMMEDIATE, remote, U32::from_bytes(data.0)))
            }
            _ => None,
        }
    }

    /// Atomics, windows, and what does nothing.
    #[inline(never)]
    fn other<A: Addressing>(
        &mut self,
        request: Promised<&SendRequest<'_>>,
        to: A,
    ) -> Result<(), PostError> {
        use RunTimeOperation as O;
        let is_reliable = T::SERVICE.is_reliable();
        match request.operation {
            O::Nop => self.bare(request, Nop),
            _ if T::SERVICE == Service::Ud => Err(PostError::BadOpcode),
            O::CompareSwap(operands) if is_reliable => self.atomic(request, to.address(operands)),
            O::FetchAdd(operands) if is_reliable => self.atomic(request, to.address(operands)),
            O::MaskedCompareSwap(operands) if is_reliable => {
                self.atomic(request, to.address(operands))
            }
            O::MaskedFetchAdd(operands) if is_reliable => {
                self.atomic(request, to.address(operands))
            }
            O::BindWindow(_) | O::UnbindWindow(_) | O::LocalInvalidate(_) => self.window(request),
            _ => Err(PostError::BadOpcode),
        }
    }

    /// An operation on memory windows.
    #[cold]
    fn window(&mut self, request: Promised<&SendRequest<'_>>) -> Result<(), PostError> {
        use RunTimeOperation as O;
        let has_windows = matches!(T::SERVICE, Service::Rc | Service::Uc | Service::Xrc);
        match request.operation {
            O::BindWindow(bind) if has_windows => self.bare(request, bind),
            O::UnbindWindow(unbind) if has_windows => self.bare(request, unbind),
            O::LocalInvalidate(key) if has_windows => self.bare(request, LocalInvalidate(key)),
            O::Nop => self.bare(request, Nop),
            O::BindWindow(BindWindow { .. })
            | O::UnbindWindow(UnbindWindow { .. })
            | O::LocalInvalidate(_)
            | O::Packet(_)
            | O::Segmented { .. } => Err(PostError::BadOpcode),
            _ => Err(PostError::BadDestination),
        }
    }

    /// Data of either kind.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn with_data<O: Operation>(
        &mut self,
        request: Promised<&SendRequest<'_>>,
        operation: O,
    ) -> Result<(), PostError> {
        match request.given() {
            Data::One(sge) => self.built(request, operation, sge.copied()),
            Data::List(list) => self.built(request, operation, list),
            Data::Inline(_) | Data::InlineList(_) if operation.opcode() == Opcode::RDMA_READ => {
                Err(PostError::InlineNotAllowed)
            }
            Data::Inline(data) => self.inline(request, operation, data),
            Data::InlineList(_) if QUICK => Err(UNUSUAL),
            Data::InlineList(list) => self.inline_several(request, operation, list),
        }
    }

    /// Data copied into the request.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn inline<O: Operation>(
        &mut self,
        request: Promised<&SendRequest<'_>>,
        operation: O,
        data: InlineSge<'_>,
    ) -> Result<(), PostError> {
        // On the fast path the length is compared before a byte is read.
        if QUICK && !data.sge().is_usual() {
            return Err(UNUSUAL);
        }
        if !QUICK && data.sge().length() as usize > self.0.target().limits.max_inline {
            return Err(PostError::InlineTooLong);
        }
        self.built(request, operation, data.bytes())
    }

    /// Several buffers copied into the request. Out of line, because the buffer in which they are
    /// joined would make every caller's frame larger than a page.
    #[inline(never)]
    fn inline_several<O: Operation>(
        &mut self,
        request: Promised<&SendRequest<'_>>,
        operation: O,
        list: InlineList<'_>,
    ) -> Result<(), PostError> {
        let mut buffer = [MaybeUninit::uninit(); INLINE_LENGTH_MASK as usize];
        let limit = self.0.target().limits.max_inline;
        let buffer = buffer.get_mut(..limit).ok_or(PostError::InlineTooLong)?;
        let data = list.joined(buffer).ok_or(PostError::InlineTooLong)?;
        self.built(request, operation, data)
    }

    /// An atomic, with the buffer of its result.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn atomic<O: Operation>(
        &mut self,
        request: Promised<&SendRequest<'_>>,
        operation: O,
    ) -> Result<(), PostError> {
        if request.inline {
            return Err(PostError::InlineNotAllowed);
        }
        let result = request.result().ok_or(PostError::BadAtomic)?;
        self.built(request, operation, result)
    }

    /// An operation without data; `data` is ignored.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn bare<O: Operation>(
        &mut self,
        request: Promised<&SendRequest<'_>>,
        operation: O,
    ) -> Result<(), PostError> {
        self.built(request, operation, Promised::NONE)
    }

    /// A raw Ethernet packet; on a queue that wants the headers inline, the first 18 bytes of the
    /// data go there.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn packet(&mut self, request: Promised<&SendRequest<'_>>) -> Result<(), PostError> {
        let takes_all = self.0.target().min_inline_header == 0;
        let offload = match request.operation {
            RunTimeOperation::Packet(offload) if !QUICK || takes_all => offload,
            _ if QUICK => return Err(UNUSUAL),
            RunTimeOperation::Nop => return self.bare(request, Nop),
            RunTimeOperation::Segmented { .. } if request.inline => {
                return Err(PostError::InlineNotAllowed);
            }
            RunTimeOperation::Segmented { offload, mss, header } => {
                let (operation, data) = request.segmented(offload, mss, header);
                return self.built(request, operation, data);
            }
            _ => return Err(PostError::BadOpcode),
        };
        if QUICK || takes_all {
            return self.with_data(request, EthernetSend(offload));
        }
        let mut rest = [Sge::default(); MAX_DS as usize];
        if request.data.len() > rest.len() {
            return Err(PostError::TooManySge);
        }
        let taken = request.take_header(self.0.target(), &mut rest);
        let (header, rest) = taken.ok_or(PostError::BadHeader)?;
        self.with_data(rest.by_ref(), EthernetSendHeader(offload, &header))
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn built<O: Operation, P: Payload>(
        &mut self,
        request: Promised<&SendRequest<'_>>,
        operation: O,
        payload: Promised<P>,
    ) -> Result<(), PostError> {
        if !QUICK {
            return self.0.build_general(&request, operation, payload);
        }
        if self.0.build_fast(&request, operation, payload) { Ok(()) } else { Err(UNUSUAL) }
    }
}
