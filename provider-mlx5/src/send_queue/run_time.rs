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

#![allow(unsafe_code)]

use core::borrow::Borrow;
use core::marker::PhantomData;
use core::mem::MaybeUninit;

use super::ethernet::{EthernetOffload, EthernetSend, EthernetSendHeader, segmented};
use super::operation::*;
use super::payload::{AtomicResult, Inline, Payload};
use super::window::{BindWindow, LocalInvalidate, UnbindWindow};
use super::{Batch, SendQueue, Service, Transport};
use crate::format::{AddressVector, ETH_INLINE_L2, INLINE_LENGTH_MASK, MAX_DS, Opcode, U32};
use crate::mmio::Register;
use crate::request::{Immediate, ListError, PostError, PostFlags, Remote, Sge};

/// The operation of a [`SendRequest`].
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "each variant is the operation type of the same name")]
pub enum RunTimeOperation<'a> {
    Send,
    SendImmediate(Immediate),
    SendInvalidate(u32),
    Write(Remote),
    WriteImmediate(Remote, Immediate),
    Read(Remote),
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
    /// A raw Ethernet packet that the device segments; header and segment size as in [`segmented`].
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
    /// Posts requests in order and rings the doorbell once for all that were posted.
    ///
    /// # Errors
    /// The first request that cannot be posted, with the reason; those before it are posted and
    /// rung.
    ///
    /// # Safety
    /// The memory that the requests' `data` names stays registered, and is not used against the
    /// device's reading (or, for reads and atomics, writing) it, until the request has completed or
    /// the QP has been destroyed. The data of inline requests, and of packets on a queue that wants
    /// headers inline, is readable by this process now.
    #[inline(always)]
    pub unsafe fn post_list<'a>(
        &mut self,
        requests: impl IntoIterator<Item = impl Borrow<SendRequest<'a>>>,
    ) -> Result<(), ListError> {
        let mut requests = requests.into_iter();
        if requests.size_hint() == (1, Some(1)) {
            if let Some(one) = requests.next() {
                // SAFETY: passed on to the caller.
                let posted = unsafe { self.post_request(one.borrow()) };
                return posted.map_err(ListError::first);
            }
        }
        // SAFETY: passed on to the caller.
        unsafe { self.post_several(requests) }
    }

    /// [`SendQueue::post_list`] of a list that may be longer.
    ///
    /// # Safety
    /// As there.
    #[inline(never)]
    unsafe fn post_several<'a>(
        &mut self,
        requests: impl Iterator<Item = impl Borrow<SendRequest<'a>>>,
    ) -> Result<(), ListError> {
        let mut result = Ok(());
        let mut batch = self.batch().map_err(ListError::first)?;
        for (index, request) in requests.enumerate() {
            // SAFETY: passed on to the caller.
            if let Err(reason) = unsafe { batch.build_request(request.borrow()) } {
                result = Err(ListError { index, reason });
                break;
            }
        }
        batch.publish();
        result
    }

    /// A list of one request: rung by itself, which copies it to the register if it fits.
    ///
    /// # Errors
    /// Why it cannot be posted. What was built before it is rung.
    ///
    /// # Safety
    /// As for [`SendQueue::post_list`].
    #[inline(always)]
    pub unsafe fn post_request(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        // SAFETY: passed on to the caller.
        let posted = unsafe { Decide::<T, _, true>(&mut *self, PhantomData).request(request) };
        posted.inspect_err(|reason| self.refused(*reason))
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
    ///
    /// # Safety
    /// As for [`SendQueue::post_list`].
    unsafe fn build_fast<O: Operation, P: Payload>(
        &mut self,
        request: &SendRequest<'_>,
        operation: O,
        payload: P,
    ) -> bool;
    /// Builds any request whose operation is known.
    ///
    /// # Safety
    /// As for [`SendQueue::post_list`].
    unsafe fn build<O: Operation, P: Payload>(
        &mut self,
        request: &SendRequest<'_>,
        operation: O,
        payload: P,
    ) -> Result<(), PostError>;
    /// Decides on any request and builds it, out of line.
    ///
    /// # Safety
    /// As for [`SendQueue::post_list`].
    unsafe fn build_any(&mut self, request: &SendRequest<'_>) -> Result<(), PostError>;
}

impl<T: Transport, R: Register> Builder<T> for Batch<'_, T, R> {
    type Register = R;

    #[inline(always)]
    fn target(&self) -> &SendQueue<T, R> {
        self.queue()
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn build_fast<O: Operation, P: Payload>(
        &mut self,
        request: &SendRequest<'_>,
        operation: O,
        payload: P,
    ) -> bool {
        // SAFETY: passed on to the caller.
        unsafe { self.build_fast(request.wr_id, operation, payload, request.flags) }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn build<O: Operation, P: Payload>(
        &mut self,
        request: &SendRequest<'_>,
        operation: O,
        payload: P,
    ) -> Result<(), PostError> {
        // SAFETY: passed on to the caller.
        unsafe { self.build_any(request.wr_id, operation, payload, request.flags) }
    }

    /// On a copy of the batch, so that the original can stay in registers.
    #[inline(always)]
    unsafe fn build_any(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        // SAFETY: passed on to the caller.
        self.lend(|copy| unsafe { decide(copy, request) })
    }
}

impl<T: Transport, R: Register> Builder<T> for SendQueue<T, R> {
    type Register = R;

    #[inline(always)]
    fn target(&self) -> &Self {
        self
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn build_fast<O: Operation, P: Payload>(
        &mut self,
        request: &SendRequest<'_>,
        operation: O,
        payload: P,
    ) -> bool {
        // SAFETY: passed on to the caller.
        unsafe { self.post_fast(request.wr_id, operation, payload, request.flags) }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn build<O: Operation, P: Payload>(
        &mut self,
        request: &SendRequest<'_>,
        operation: O,
        payload: P,
    ) -> Result<(), PostError> {
        // SAFETY: passed on to the caller.
        unsafe { self.post_any(request.wr_id, operation, payload, request.flags) }
    }

    #[inline(always)]
    unsafe fn build_any(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        // SAFETY: passed on to the caller.
        unsafe { decide(self, request) }
    }
}

/// Decides on any request, out of line.
///
/// # Safety
/// As for [`SendQueue::post_list`].
#[inline(never)]
unsafe fn decide<T: Transport, B: Builder<T>>(
    builder: &mut B,
    request: &SendRequest<'_>,
) -> Result<(), PostError> {
    // SAFETY: passed on to the caller.
    unsafe { Decide::<T, _, false>(builder, PhantomData).request(request) }
}

impl<T: Transport, R: Register> Batch<'_, T, R> {
    /// Builds one request after those built before.
    ///
    /// # Errors
    /// Any [`PostError`] but `BadState`. Nothing has been stored then.
    ///
    /// # Safety
    /// As for `post_list`.
    #[inline]
    pub unsafe fn build_request(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        // SAFETY: passed on to the caller.
        unsafe { Decide::<T, _, true>(self, PhantomData).request(request) }
    }
}

/// Matches a request's operation and data, and builds it. With `QUICK` it builds only the usual
/// ones, and leaves all others to [`Builder::build_any`].
struct Decide<'b, T, B, const QUICK: bool>(&'b mut B, PhantomData<T>);

impl<T: Transport, B: Builder<T>, const QUICK: bool> Decide<'_, T, B, QUICK> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn request(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        use RunTimeDestination as D;
        // SAFETY: passed on to the caller, in each arm.
        unsafe {
            match (T::SERVICE, request.destination) {
                (Service::Rc | Service::Uc, D::Connected) => self.addressed(request, Connected),
                (Service::Ud, D::Datagram(av)) => self.addressed(request, Via(Datagram(av))),
                (Service::Xrc, D::Xrc(srqn)) => self.addressed(request, Via(XrcTarget(srqn))),
                (Service::Dci, D::Dc(av)) => self.addressed(request, Via(DcTarget(av))),
                (Service::RawEthernet, D::Connected) => self.packet(request),
                _ if QUICK => self.0.build_any(request),
                // Operations on windows are local, so they have no destination.
                (Service::Xrc, D::Connected) => self.window(request),
                _ if matches!(request.operation, RunTimeOperation::Nop) => self.bare(request, Nop),
                _ => Err(PostError::BadDestination),
            }
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn addressed<A: Addressing>(
        &mut self,
        request: &SendRequest<'_>,
        to: A,
    ) -> Result<(), PostError> {
        use RunTimeOperation as O;
        let is_rdma = T::SERVICE != Service::Ud;
        let is_reliable = T::SERVICE.is_reliable();
        let send = |opcode, immediate| AnySend { opcode, immediate };
        let send = match request.operation {
            O::Send => send(Opcode::SEND, U32::new(0)),
            O::SendImmediate(data) => send(Opcode::SEND_IMMEDIATE, U32::from_bytes(data.0)),
            O::SendInvalidate(key) if is_reliable => send(Opcode::SEND_INVALIDATE, U32::new(key)),
            // SAFETY: passed on to the caller.
            _ if is_rdma => return unsafe { self.access(request, to) },
            // SAFETY: as above.
            O::Nop if !QUICK => return unsafe { self.bare(request, Nop) },
            // SAFETY: as above.
            _ if QUICK => return unsafe { self.0.build_any(request) },
            _ => return Err(PostError::BadOpcode),
        };
        // SAFETY: passed on to the caller.
        unsafe { self.with_data(request, to.address(send)) }
    }

    /// An access to remote memory, or an operation without a peer.
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn access<A: Addressing>(
        &mut self,
        request: &SendRequest<'_>,
        to: A,
    ) -> Result<(), PostError> {
        use RunTimeOperation as O;
        let is_reliable = T::SERVICE.is_reliable();
        let access = |opcode, remote, immediate| AnyAccess { opcode, immediate, remote };
        let access = match request.operation {
            O::Write(remote) => access(Opcode::RDMA_WRITE, remote, U32::new(0)),
            O::WriteImmediate(remote, data) => {
                access(Opcode::RDMA_WRITE_IMMEDIATE, remote, U32::from_bytes(data.0))
            }
            O::Read(_) if is_reliable && request.inline => return Err(PostError::InlineNotAllowed),
            O::Read(remote) if is_reliable => access(Opcode::RDMA_READ, remote, U32::new(0)),
            // SAFETY: passed on to the caller.
            _ if QUICK => return unsafe { self.0.build_any(request) },
            // SAFETY: as above.
            _ => return unsafe { self.other(request, to) },
        };
        // SAFETY: passed on to the caller.
        unsafe { self.with_data(request, to.address(access)) }
    }

    /// Atomics, windows, and what does nothing.
    #[inline(never)]
    unsafe fn other<A: Addressing>(
        &mut self,
        request: &SendRequest<'_>,
        to: A,
    ) -> Result<(), PostError> {
        use RunTimeOperation as O;
        let is_reliable = T::SERVICE.is_reliable();
        // SAFETY: passed on to the caller, in each arm.
        unsafe {
            match request.operation {
                O::CompareSwap(operands) if is_reliable => {
                    self.atomic(request, to.address(operands))
                }
                O::FetchAdd(operands) if is_reliable => self.atomic(request, to.address(operands)),
                O::MaskedCompareSwap(operands) if is_reliable => {
                    self.atomic(request, to.address(operands))
                }
                O::MaskedFetchAdd(operands) if is_reliable => {
                    self.atomic(request, to.address(operands))
                }
                O::BindWindow(_) | O::UnbindWindow(_) | O::LocalInvalidate(_) | O::Nop => {
                    self.window(request)
                }
                _ => Err(PostError::BadOpcode),
            }
        }
    }

    /// An operation on memory windows.
    #[cold]
    unsafe fn window(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        use RunTimeOperation as O;
        let has_windows = matches!(T::SERVICE, Service::Rc | Service::Uc | Service::Xrc);
        // SAFETY: passed on to the caller, in each arm.
        unsafe {
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
    }

    /// Data of either kind.
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn with_data<O: Operation>(
        &mut self,
        request: &SendRequest<'_>,
        operation: O,
    ) -> Result<(), PostError> {
        // SAFETY: passed on to the caller, in each arm.
        unsafe {
            match request.data {
                [one] if !request.inline => self.built(request, operation, *one),
                [one] => self.inline(request, operation, one),
                list if !request.inline => self.built(request, operation, list),
                _ if QUICK => self.0.build_any(request),
                list => self.inline_several(request, operation, list),
            }
        }
    }

    /// Data copied into the request.
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn inline<O: Operation>(
        &mut self,
        request: &SendRequest<'_>,
        operation: O,
        one: &Sge,
    ) -> Result<(), PostError> {
        // On the fast path the length is compared before a byte is read.
        if QUICK && !one.is_usual() {
            // SAFETY: passed on to the caller.
            return unsafe { self.0.build_any(request) };
        }
        if !QUICK && one.length() as usize > self.0.target().limits.max_inline {
            return Err(PostError::InlineTooLong);
        }
        // SAFETY: the caller vouches that the memory is readable; passed on to the caller.
        unsafe { self.built(request, operation, Inline(bytes_of(one))) }
    }

    /// Several buffers copied into the request. Out of line, because the buffer in which they are
    /// joined would make every caller's frame larger than a page. The total is summed without
    /// overflow and compared before a byte is read.
    #[inline(never)]
    unsafe fn inline_several<O: Operation>(
        &mut self,
        request: &SendRequest<'_>,
        operation: O,
        data: &[Sge],
    ) -> Result<(), PostError> {
        let limit = self.0.target().limits.max_inline as u64;
        if data.iter().map(|sge| u64::from(sge.length())).sum::<u64>() > limit {
            return Err(PostError::InlineTooLong);
        }
        let mut buffer = [MaybeUninit::uninit(); INLINE_LENGTH_MASK as usize];
        // SAFETY: the caller vouches that the buffers are readable; passed on to the caller.
        unsafe { self.built(request, operation, Inline(joined(data, &mut buffer))) }
    }

    /// An atomic, with the buffer of its result.
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn atomic<O: Operation>(
        &mut self,
        request: &SendRequest<'_>,
        operation: O,
    ) -> Result<(), PostError> {
        if request.inline {
            return Err(PostError::InlineNotAllowed);
        }
        match request.data {
            [sge] if sge.length() == 8 => {
                let result = AtomicResult { address: sge.address(), lkey: sge.lkey() };
                // SAFETY: passed on to the caller.
                unsafe { self.built(request, operation, result) }
            }
            _ => Err(PostError::BadAtomic),
        }
    }

    /// An operation without data; `data` is ignored.
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn bare<O: Operation>(
        &mut self,
        request: &SendRequest<'_>,
        operation: O,
    ) -> Result<(), PostError> {
        // SAFETY: passed on to the caller.
        unsafe { self.built(request, operation, ()) }
    }

    /// A raw Ethernet packet; on a queue that wants the headers inline, the first 18 bytes of the
    /// data go there.
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn packet(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        let takes_all = self.0.target().min_inline_header == 0;
        let offload = match request.operation {
            RunTimeOperation::Packet(offload) if !QUICK || takes_all => offload,
            // SAFETY: passed on to the caller.
            _ if QUICK => return unsafe { self.0.build_any(request) },
            // SAFETY: passed on to the caller.
            RunTimeOperation::Nop => return unsafe { self.bare(request, Nop) },
            RunTimeOperation::Segmented { .. } if request.inline => {
                return Err(PostError::InlineNotAllowed);
            }
            RunTimeOperation::Segmented { offload, mss, header } => {
                let (operation, data) = segmented(offload, mss, header, request.data);
                // SAFETY: passed on to the caller.
                return unsafe { self.built(request, operation, data) };
            }
            _ => return Err(PostError::BadOpcode),
        };
        if QUICK || takes_all {
            // SAFETY: passed on to the caller.
            return unsafe { self.with_data(request, EthernetSend(offload)) };
        }
        if request.data.len() > MAX_DS as usize {
            return Err(PostError::TooManySge);
        }
        let mut rest = [Sge::default(); MAX_DS as usize];
        let Some(rest) = rest.get_mut(..request.data.len()) else {
            return Err(PostError::TooManySge);
        };
        rest.copy_from_slice(request.data);
        // SAFETY: the caller vouches that the data is readable.
        let header = unsafe { take_header(rest) }.ok_or(PostError::BadHeader)?;
        let operation = EthernetSendHeader(offload, &header);
        // SAFETY: passed on to the caller.
        unsafe {
            match (request.inline, &*rest) {
                (true, [one]) => self.inline(request, operation, one),
                (true, several) => self.inline_several(request, operation, several),
                (false, list) => self.built(request, operation, list),
            }
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn built<O: Operation, P: Payload>(
        &mut self,
        request: &SendRequest<'_>,
        operation: O,
        payload: P,
    ) -> Result<(), PostError> {
        // SAFETY: passed on to the caller.
        unsafe {
            if !QUICK {
                return self.0.build(request, operation, payload);
            }
            if self.0.build_fast(request, operation, payload) {
                return Ok(());
            }
            crate::hint::cold_path();
            self.0.build_any(request)
        }
    }
}

/// The bytes that an SGE names.
///
/// # Safety
/// They are readable, and nothing writes them meanwhile.
#[inline(always)]
unsafe fn bytes_of<'a>(sge: &Sge) -> &'a [u8] {
    if sge.is_empty() {
        return &[];
    }
    let start = core::ptr::with_exposed_provenance(sge.address() as usize);
    // SAFETY: the caller vouches for it; memory that exists does not wrap around.
    unsafe { core::slice::from_raw_parts(start, sge.length() as usize) }
}

/// Joins the bytes of several SGEs in `buffer`.
///
/// # Safety
/// The SGEs' bytes are readable, and together fit into `buffer`.
unsafe fn joined<'a>(data: &[Sge], buffer: &'a mut [MaybeUninit<u8>]) -> &'a [u8] {
    let mut length = 0;
    for sge in data {
        // SAFETY: the caller vouches for it.
        let bytes = unsafe { bytes_of(sge) };
        // SAFETY: the sum of all lengths is at most the buffer's.
        unsafe {
            let to = buffer.as_mut_ptr().add(length).cast::<u8>();
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        length += bytes.len();
    }
    // SAFETY: the first `length` bytes were just written.
    unsafe { core::slice::from_raw_parts(buffer.as_ptr().cast(), length) }
}

/// Takes the first 18 bytes off the SGEs. `None` if they have fewer.
///
/// # Safety
/// The SGEs' bytes are readable.
unsafe fn take_header(data: &mut [Sge]) -> Option<[u8; ETH_INLINE_L2]> {
    let mut header = [0; ETH_INLINE_L2];
    let mut left = &mut header[..];
    for sge in data {
        let length = left.len().min(sge.length() as usize);
        // SAFETY: the caller vouches for it; these are the first bytes of the SGE.
        let bytes = unsafe { bytes_of(&sge.with_length(length as u32)) };
        let (now, later) = left.split_at_mut_checked(length)?;
        now.copy_from_slice(bytes);
        left = later;
        *sge = sge.skip(length as u32);
    }
    left.is_empty().then_some(header)
}
