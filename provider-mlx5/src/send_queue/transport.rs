//! The services of a send queue, and which operations and data each takes: a request that its service does not have does
//! not compile.
//!
//! ```compile_fail,E0277
//! use uverbs_mlx5::send_queue::{Carries, Read, Uc};
//! fn carries<O: uverbs_mlx5::send_queue::Operation, T: Carries<O>>() {}
//! carries::<Read, Uc>(); // unconnected service has no RDMA read
//! ```
//!
//! ```compile_fail,E0277
//! use uverbs_mlx5::send_queue::{Carries, Send, Ud};
//! fn carries<O: uverbs_mlx5::send_queue::Operation, T: Carries<O>>() {}
//! carries::<Send, Ud>(); // a datagram needs an address
//! ```
//!
//! ```compile_fail,E0277
//! use uverbs_mlx5::send_queue::{Inline, Read, Takes};
//! fn takes<P, O: Takes<P>>() {}
//! takes::<Inline<'_>, Read>(); // what is read cannot be in the request
//! ```

use super::ethernet::{EthernetSend, EthernetSendHeader, EthernetTso, Segmented};
use super::operation::*;
use super::payload::{AtomicResult, Inline};
use super::window::{BindWindow, LocalInvalidate, UnbindWindow};
use crate::request::Sge;

mod sealed {
    pub trait Sealed {}
}

/// A service type of a send queue.
pub trait Transport: sealed::Sealed {
    /// The service, for code that learns it at run time.
    const SERVICE: Service;
}

/// The service types, as values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the types beside it")]
pub enum Service {
    Rc,
    Uc,
    Ud,
    Xrc,
    RawEthernet,
    Dci,
}

impl Service {
    /// Octowords between control segment and data in the longest request that carries data.
    pub const fn data_overhead(self) -> usize {
        match self {
            Self::Rc | Self::Uc => 1,
            Self::Ud => 3,
            Self::Xrc | Self::RawEthernet => 2,
            Self::Dci => 4,
        }
    }
}

macro_rules! transports {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl sealed::Sealed for $name {}
        impl Transport for $name {
            const SERVICE: Service = Service::$name;
        }
    )*};
}

transports! {
    /// Reliable connection.
    Rc;
    /// Unreliable connection: no reads, no atomics.
    Uc;
    /// Unreliable datagram: sends, each to its own address.
    Ud;
    /// The sending side of an extended reliable connection: each request names a remote SRQ.
    Xrc;
    /// Raw Ethernet packets.
    RawEthernet;
    /// The initiator of dynamic connections: each request names a target.
    Dci;
}

/// The service has the operation.
#[diagnostic::on_unimplemented(
    message = "a `{Self}` send queue has no `{O}`",
    note = "UD needs `To(Datagram(..), ..)`, XRC `To(XrcTarget(..), ..)`, DC `To(DcTarget(..), ..)`; reads and atomics need RC, XRC or DC"
)]
pub trait Carries<O: Operation>: Transport {}

/// The operation can carry such data.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot carry `{P}`",
    note = "inline data goes with sends and writes; an atomic takes one `AtomicResult`"
)]
pub trait Takes<P>: Operation {}

macro_rules! carries {
    ($transport:ident: $($operation:ty),* $(,)?) => {
        $(impl Carries<$operation> for $transport {})*
    };
}

carries!(Rc: Nop, Send, SendImmediate, SendInvalidate, Write, WriteImmediate, Read, CompareSwap, FetchAdd,
    MaskedCompareSwap, MaskedFetchAdd, BindWindow, UnbindWindow, LocalInvalidate);
// No send with invalidate: the unconnected service has no packet opcode for it (IBTA, table of BTH opcodes).
carries!(Uc: Nop, Send, SendImmediate, Write, WriteImmediate, BindWindow, UnbindWindow, LocalInvalidate);
carries!(Ud: Nop, To<Datagram<'_>, Send>, To<Datagram<'_>, SendImmediate>);
carries!(Xrc: Nop, To<XrcTarget, Send>, To<XrcTarget, SendImmediate>, To<XrcTarget, SendInvalidate>,
    To<XrcTarget, Write>, To<XrcTarget, WriteImmediate>, To<XrcTarget, Read>, To<XrcTarget, CompareSwap>,
    To<XrcTarget, FetchAdd>, To<XrcTarget, MaskedCompareSwap>, To<XrcTarget, MaskedFetchAdd>,
    BindWindow, UnbindWindow, LocalInvalidate);
carries!(RawEthernet: Nop, EthernetSend, EthernetSendHeader<'_>, EthernetTso<'_>);
carries!(Dci: Nop, To<DcTarget<'_>, Send>, To<DcTarget<'_>, SendImmediate>, To<DcTarget<'_>, SendInvalidate>,
    To<DcTarget<'_>, Write>, To<DcTarget<'_>, WriteImmediate>, To<DcTarget<'_>, Read>,
    To<DcTarget<'_>, CompareSwap>, To<DcTarget<'_>, FetchAdd>, To<DcTarget<'_>, MaskedCompareSwap>,
    To<DcTarget<'_>, MaskedFetchAdd>);

macro_rules! takes {
    ($($operation:ty),*: $($payload:ty),*) => {
        takes!(@each [$($operation),*] $($payload),*);
    };
    (@each $operations:tt $($payload:ty),*) => {
        $(takes!(@one $operations $payload);)*
    };
    (@one [$($operation:ty),*] $payload:ty) => {
        $(impl Takes<$payload> for $operation {})*
    };
}

takes!(Send, SendImmediate, SendInvalidate, Write, WriteImmediate: (), Sge, &[Sge], Inline<'_>);
takes!(Read: (), Sge, &[Sge]);
takes!(CompareSwap, FetchAdd, MaskedCompareSwap, MaskedFetchAdd: AtomicResult);
takes!(Nop, BindWindow, UnbindWindow, LocalInvalidate: ());
takes!(EthernetSend, EthernetSendHeader<'_>: (), Sge, &[Sge], Inline<'_>);
takes!(EthernetTso<'_>: Segmented<'_>);

impl<P, D: Destination, O: Takes<P>> Takes<P> for To<D, O> {}
