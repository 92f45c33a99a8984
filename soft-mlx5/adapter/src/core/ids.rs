//! Numbers of objects: one type per kind, so that a CQ number cannot be taken for a QP number.

use std::fmt;

macro_rules! ids {
    ($($(#[$meta:meta])* $name:ident: $kind:ident),* $(,)?) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// Its kind and number.
            pub const fn object(self) -> ObjectId {
                (ObjectKind::$kind, self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    )*};
}

ids! {
    /// Number of a protection domain, 24 bits.
    Pdn: Pd,
    /// Number of an XRC domain, 24 bits.
    Xrcdn: Xrcd,
    /// A memory key as lkey and rkey use it: index in bits 31:8, variant in bits 7:0.
    Mkey: Mkey,
    /// Number of a completion queue, 24 bits.
    Cqn: Cq,
    /// Number of a queue pair, 24 bits.
    Qpn: Qp,
    /// Number of a shared receive queue, 24 bits.
    Srqn: Srq,
}

/// Any object: its kind and its number.
pub type ObjectId = (ObjectKind, u32);

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// Protection domain.
    Pd,
    /// XRC domain.
    Xrcd,
    /// Memory key: region, window, null key.
    Mkey,
    /// Completion queue.
    Cq,
    /// Queue pair.
    Qp,
    /// Shared receive queue.
    Srq,
    /// Membership of a QP in a multicast group.
    Multicast,
    /// Flow rule.
    Flow,
    /// Transport domain. This kind and the following exist only in the firmware.
    TransportDomain,
    /// Transport interface of senders.
    Tis,
    /// Transport interface of receivers.
    Tir,
    /// Receive queue table.
    Rqt,
    /// Flow table.
    FlowTable,
    /// Flow counter.
    FlowCounter,
    /// Set of queue counters.
    QueueCounter,
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pd => "protection domain",
            Self::Xrcd => "XRC domain",
            Self::Mkey => "memory key",
            Self::Cq => "completion queue",
            Self::Qp => "queue pair",
            Self::Srq => "shared receive queue",
            Self::Multicast => "multicast group membership",
            Self::Flow => "flow rule",
            Self::TransportDomain => "transport domain",
            Self::Tis => "TIS",
            Self::Tir => "TIR",
            Self::Rqt => "RQT",
            Self::FlowTable => "flow table",
            Self::FlowCounter => "flow counter",
            Self::QueueCounter => "queue counter",
        })
    }
}
