//! The services of a send queue, and the operations and data that each takes. A request that the
//! service does not have does not compile.
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

use super::ethernet::{EthernetFrame, EthernetSend, EthernetSendHeader, EthernetTso, Segmented};
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

impl Service {
    /// Octowords that name the destination, between control segment and operation: an address
    /// vector, a remote SRQ.
    pub const fn address_octowords(self) -> usize {
        match self {
            Self::Rc | Self::Uc | Self::RawEthernet => 0,
            Self::Ud | Self::Dci => 3,
            Self::Xrc => 1,
        }
    }

    /// Octowords between control segment and data in the longest request that carries data.
    pub const fn data_overhead(self) -> usize {
        match self {
            Self::Rc | Self::Uc | Self::Xrc | Self::Dci => self.address_octowords() + 1,
            Self::Ud => self.address_octowords(),
            // The Ethernet segment, with 18 bytes of the packet's header.
            Self::RawEthernet => 2,
        }
    }
}

macro_rules! transports {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            pub struct $name;
            impl sealed::Sealed for $name {}
            impl Transport for $name {
                const SERVICE: Service = Service::$name;
            }
        )*

        /// The service types, as values.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Service {
            $($(#[$doc])* $name,)*
        }

        impl Service {
            /// All services, the most common first.
            pub const ALL: [Self; [$(Self::$name),*].len()] = [$(Self::$name),*];
        }
    };
}

transports! {
    /// Reliable connection.
    Rc;
    /// Unreliable datagram: sends, each to its own address.
    Ud;
    /// Raw Ethernet packets.
    RawEthernet;
    /// The sending side of an extended reliable connection: each request names a remote SRQ.
    Xrc;
    /// The initiator of dynamic connections: each request names a target.
    Dci;
    /// Unreliable connection: no reads, no atomics.
    Uc;
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
// No send with invalidate: the unconnected service has no packet opcode for it (IBTA, table of BTH
// opcodes).
carries!(Uc: Nop, Send, SendImmediate, Write, WriteImmediate, BindWindow, UnbindWindow, LocalInvalidate);
carries!(Ud: Nop, To<Datagram<'_>, Send>, To<Datagram<'_>, SendImmediate>);
carries!(Xrc: Nop, To<XrcTarget, Send>, To<XrcTarget, SendImmediate>, To<XrcTarget, SendInvalidate>,
    To<XrcTarget, Write>, To<XrcTarget, WriteImmediate>, To<XrcTarget, Read>, To<XrcTarget, CompareSwap>,
    To<XrcTarget, FetchAdd>, To<XrcTarget, MaskedCompareSwap>, To<XrcTarget, MaskedFetchAdd>,
    BindWindow, UnbindWindow, LocalInvalidate);
carries!(RawEthernet: Nop, EthernetSend, EthernetSendHeader<'_>, EthernetTso<'_>, EthernetFrame<'_>);
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
takes!(EthernetFrame<'_>: Segmented<'_>, Segmented<'_, ()>, Segmented<'_, Sge>);

impl<P, D: Destination, O: Takes<P>> Takes<P> for To<D, O> {}
