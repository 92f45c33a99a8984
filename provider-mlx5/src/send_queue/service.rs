//! What the service of a queue decides about its WQEs. The bytes of a WQE do not name the service.

use core::fmt;

use super::Service;
use crate::format::Opcode;

impl Service {
    /// The name that tools use: rc, uc, ud, `xrc_send`, dci, `raw_packet`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
            Self::Xrc => "xrc_send",
            Self::Dci => "dci",
            Self::RawEthernet => "raw_packet",
        }
    }

    /// The service with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|service| service.name() == name)
    }

    /// Whether messages carry an address vector.
    pub const fn has_address(self) -> bool {
        matches!(self, Self::Ud | Self::Dci)
    }

    /// Whether a message may name remote memory. A datagram has no segment for it, whatever the
    /// opcode.
    pub const fn has_remote_memory(self) -> bool {
        match self {
            Self::Rc | Self::Uc | Self::Xrc | Self::Dci | Self::RawEthernet => true,
            Self::Ud => false,
        }
    }

    /// Whether the service acknowledges messages, and so has reads and atomics.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc | Self::Dci)
    }

    /// Whether a WQE with this opcode belongs on a queue of this service. Opcodes outside of verbs
    /// are let through: nothing public says where they are refused.
    pub const fn allows(self, opcode: Opcode) -> bool {
        let connected = self.is_reliable() || matches!(self, Self::Uc);
        match opcode {
            Opcode::SEND_IMMEDIATE => !matches!(self, Self::RawEthernet),
            Opcode::SEND_INVALIDATE | Opcode::RDMA_READ => self.is_reliable(),
            Opcode::RDMA_WRITE | Opcode::RDMA_WRITE_IMMEDIATE | Opcode::UMR => connected,
            Opcode::SET_PSV | Opcode::GET_PSV | Opcode::CHECK_PSV => connected,
            Opcode::TSO | Opcode::ENHANCED_MPSW | Opcode::DUMP => matches!(self, Self::RawEthernet),
            _ => self.is_reliable() || !opcode.is_atomic(),
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Xrc => "XRC send",
            Self::Dci => "DCI",
            Self::RawEthernet => "raw Ethernet",
        })
    }
}
