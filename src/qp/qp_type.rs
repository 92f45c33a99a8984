//! The types of queue pairs, which decide at compile time what can be posted to them.

use std::fmt;

pub use uverbs_mlx5::send_queue::{Dci, RawEthernet as RawPacket, Rc, Uc, Ud, Xrc};
use uverbs_uapi::enums::QpType as KernelQpType;

mod sealed {
    pub trait Sealed {}
}

/// The type of a queue pair: [`Rc`], [`Uc`], [`Ud`], [`RawPacket`], or one of the initiators
/// [`Xrc`] and [`Dci`].
pub trait QueuePairType: sealed::Sealed + uverbs_mlx5::send_queue::Transport + 'static {
    /// The type as a value.
    const TYPE: QpType;
    /// Whether it has a receive side.
    const HAS_RECEIVES: bool;
}

/// A type that is connected to one peer.
pub trait Connected: QueuePairType {}

/// A type that has no peer of its own: datagrams, raw packets, and initiators of dynamic
/// connections.
pub trait Unconnected: QueuePairType {}

macro_rules! kinds {
    ($($kind:ident: $type:ident, $receives:literal;)*) => {$(
        impl sealed::Sealed for $kind {}
        impl QueuePairType for $kind {
            const TYPE: QpType = QpType::$type;
            const HAS_RECEIVES: bool = $receives;
        }
    )*};
}

kinds! {
    Rc: Rc, true;
    Uc: Uc, true;
    Ud: Ud, true;
    Xrc: XrcSend, false;
    RawPacket: RawPacket, true;
    Dci: DcInitiator, false;
}

impl Connected for Rc {}
impl Connected for Uc {}
impl Connected for Xrc {}
impl Unconnected for Ud {}
impl Unconnected for RawPacket {}
impl Unconnected for Dci {}

/// The type of a queue pair, as a value. The numbers are those of `enum ibv_qp_type`, except for
/// the two types of dynamic connections, both of which are `IBV_QPT_DRIVER` in C.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpType {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// Ethernet frames, headers included.
    RawPacket = 8,
    /// Extended reliable connection, initiator.
    XrcSend = 9,
    /// Extended reliable connection, target.
    XrcReceive = 10,
    /// Dynamically connected, target.
    DcTarget = 0xfe,
    /// Dynamically connected, initiator.
    DcInitiator = 0xff,
}

impl QpType {
    /// The kernel's number for the type.
    pub(crate) fn of_kernel(self) -> KernelQpType {
        match self {
            Self::DcInitiator | Self::DcTarget => KernelQpType::DRIVER,
            other => KernelQpType(other as u8),
        }
    }

    /// Whether a failed send leads to SQE instead of ERR (IBTA volume 1, section 10.3.1; for raw
    /// packets `sqrq_state_to_qp_state` of drivers/infiniband/hw/mlx5/qp.c).
    pub(crate) fn sends_fail_alone(self) -> bool {
        match self {
            Self::Uc | Self::Ud | Self::RawPacket => true,
            Self::Rc | Self::XrcSend | Self::XrcReceive => false,
            Self::DcInitiator | Self::DcTarget => false,
        }
    }
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::RawPacket => "raw packet",
            Self::XrcSend => "XRC initiator",
            Self::XrcReceive => "XRC target",
            Self::DcInitiator => "DC initiator",
            Self::DcTarget => "DC target",
        })
    }
}
