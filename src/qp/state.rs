//! States and transports of queue pairs.

#![forbid(unsafe_code)]

use std::fmt;

pub use uverbs_mlx5::queue_state::QpState as State;

/// The kind of service of a queue pair, numbered as `enum ibv_qp_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Transport {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// Ethernet frames as they are.
    RawPacket = 8,
    /// Extended reliable connection, initiator.
    XrcSend = 9,
    /// Extended reliable connection, target.
    XrcReceive = 10,
}

impl Transport {
    /// Whether a failed send leads to SQE instead of ERR (IBTA volume 1, section 10.3.1; for raw packets
    /// `sqrq_state_to_qp_state` of drivers/infiniband/hw/mlx5/qp.c).
    pub(super) fn sends_fail_alone(self) -> bool {
        match self {
            Self::Uc | Self::Ud | Self::RawPacket => true,
            Self::Rc | Self::XrcSend | Self::XrcReceive => false,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::RawPacket => "raw packet",
            Self::XrcSend => "XRC initiator",
            Self::XrcReceive => "XRC target",
        })
    }
}
