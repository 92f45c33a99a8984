//! Options of ids (`rdma_set_service_type` and similar).

use uverbs_uapi::enums::QpType;

use super::{Cma, CmaError, CmaId, CmaState};

impl Cma {
    /// Sets the type of service of the packets.
    ///
    /// # Errors
    /// ENOENT.
    pub fn set_tos(&mut self, id: CmaId, tos: u8) -> Result<(), CmaError> {
        self.id_mut(id)?.settings.tos = Some(tos);
        Ok(())
    }

    /// Sets the local ACK timeout as a code, which replaces the one computed from the path.
    ///
    /// # Errors
    /// EINVAL unless the id is for RC or an XRC initiator.
    pub fn set_ack_timeout(&mut self, id: CmaId, timeout: u8) -> Result<(), CmaError> {
        let entry = self.id_mut(id)?;
        if !matches!(entry.qp_type, QpType::RC | QpType::XRC_INI) {
            return Err(CmaError::INVALID);
        }
        entry.settings.ack_timeout = Some(timeout & 0x1f);
        Ok(())
    }

    /// Sets whether other ids with this option may bind to the same address.
    ///
    /// # Errors
    /// EINVAL to allow it for an id that listens, or to forbid it unless the id is idle.
    pub fn set_reuse(&mut self, id: CmaId, reuse: bool) -> Result<(), CmaError> {
        let entry = self.id_mut(id)?;
        let is_settable = entry.state == CmaState::Idle || reuse && entry.state != CmaState::Listen;
        if !is_settable {
            return Err(CmaError::INVALID);
        }
        entry.settings.reuse = reuse;
        self.ports.set_reuse(id, reuse);
        Ok(())
    }

    /// Sets whether an IPv6 address accepts only IPv6.
    ///
    /// # Errors
    /// EINVAL unless the id is idle or bound.
    pub fn set_family_only(&mut self, id: CmaId, only: bool) -> Result<(), CmaError> {
        let entry = self.id_mut(id)?;
        if !matches!(entry.state, CmaState::Idle | CmaState::AddrBound) {
            return Err(CmaError::INVALID);
        }
        entry.settings.family_only = Some(only);
        self.ports.set_family_only(id, only);
        Ok(())
    }
}
