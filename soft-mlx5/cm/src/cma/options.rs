//! Options of ids (`rdma_set_service_type` and its like).

use uverbs_uapi::enums::QpType;

use super::{Cma, CmaError, CmaId, CmaState};

impl Cma {
    /// Type of service of the packets.
    ///
    /// # Errors
    /// ENOENT.
    pub fn set_tos(&mut self, id: CmaId, tos: u8) -> Result<(), CmaError> {
        self.id_mut(id)?.settings.tos = Some(tos);
        Ok(())
    }

    /// Local ACK timeout as a code, instead of the one that follows from the path.
    ///
    /// # Errors
    /// EINVAL unless the id is for RC or an XRC initiator.
    pub fn set_ack_timeout(&mut self, id: CmaId, timeout: u8) -> Result<(), CmaError> {
        let of = self.id_mut(id)?;
        if !matches!(of.qp_type, QpType::RC | QpType::XRC_INI) {
            return Err(CmaError::INVALID);
        }
        of.settings.ack_timeout = Some(timeout & 0x1f);
        Ok(())
    }

    /// Whether other ids that allow it, too, may bind to the same address.
    ///
    /// # Errors
    /// EINVAL for an id that listens and allows it.
    pub fn set_reuse(&mut self, id: CmaId, reuse: bool) -> Result<(), CmaError> {
        let of = self.id_mut(id)?;
        if reuse && of.state == CmaState::Listen {
            return Err(CmaError::INVALID);
        }
        of.settings.reuse = reuse;
        self.ports.set_reuse(id, reuse);
        Ok(())
    }

    /// Whether an IPv6 address is for IPv6 only.
    ///
    /// # Errors
    /// EINVAL unless the id is idle or bound.
    pub fn set_family_only(&mut self, id: CmaId, only: bool) -> Result<(), CmaError> {
        let of = self.id_mut(id)?;
        if !matches!(of.state, CmaState::Idle | CmaState::AddrBound) {
            return Err(CmaError::INVALID);
        }
        of.settings.family_only = Some(only);
        self.ports.set_family_only(id, only);
        Ok(())
    }
}
