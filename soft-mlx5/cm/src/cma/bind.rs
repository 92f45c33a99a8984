//! Binding and listening.

use std::collections::BTreeSet;
use std::net::{Ipv6Addr, SocketAddr};

use uverbs_uapi::cm::PortSpace;
use uverbs_uapi::cm::address::SockaddrIb;

use super::address::Address;
use super::{
    Addresses, Binding, Cma, CmaError, CmaId, CmaState, DeviceNumber, Interface, Listening,
};
use crate::ib_cm::CmId;

/// The addresses of an id that binds, and whether the caller is privileged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) source: Address,
    pub(super) destination: Option<Address>,
    pub(super) privileged: bool,
}

/// Bits of a service id that name a port space (`RDMA_IB_IP_PS_MASK`).
const SPACE_MASK: u64 = 0xffff_ffff_ffff_0000;

impl Cma {
    /// Binds an id to an address; port 0 selects any free port. Only `privileged` callers may bind
    /// to ports below 1024.
    ///
    /// # Errors
    /// EINVAL unless the id is idle, or for a link-local address without scope; EADDRNOTAVAIL,
    /// EADDRINUSE, EACCES; ENODEV, also for an InfiniBand address that does not belong to an
    /// InfiniBand port.
    pub fn bind(
        &mut self,
        id: CmaId,
        source: Address,
        privileged: bool,
        addresses: &dyn Addresses,
    ) -> Result<(), CmaError> {
        self.bind_to(id, Wanted { source, destination: None, privileged }, addresses)
    }

    pub(super) fn bind_to(
        &mut self,
        id: CmaId,
        wanted: Wanted,
        addresses: &dyn Addresses,
    ) -> Result<(), CmaError> {
        if self.id(id)?.state != CmaState::Idle {
            return Err(CmaError::INVALID);
        }
        let at = self.interface_of(&wanted.source, addresses)?;
        let source = self.take_port(id, wanted, at.is_none())?;
        let entry = self.id_mut(id)?;
        (entry.state, entry.source, entry.at) = (CmaState::AddrBound, Some(source), at);
        Ok(())
    }

    /// The device with an address; `None` for a wildcard.
    fn interface_of(
        &self,
        source: &Address,
        addresses: &dyn Addresses,
    ) -> Result<Option<Interface>, CmaError> {
        if let Address::Ip(SocketAddr::V6(v6)) = source {
            if v6.ip().is_unicast_link_local() && v6.scope_id() == 0 {
                return Err(CmaError::INVALID);
            }
        }
        match source {
            Address::Ip(ip) if addresses.is_wildcard(ip.ip()) => Ok(None),
            Address::Ip(ip) => addresses.interface_of(ip.ip()).map(Some),
            Address::Ib(_) if source.is_any() => Ok(None),
            Address::Ib(_) => {
                let found = addresses.interface_of(source.as_ip().ip()).ok();
                found
                    .filter(|at| self.is_infiniband(at.device))
                    .map(Some)
                    .ok_or(CmaError::NO_DEVICE)
            }
        }
    }

    /// Whether InfiniBand addresses are bound to the device (`cma_validate_port`). The GIDs of RoCE
    /// ports represent IP addresses.
    fn is_infiniband(&self, device: DeviceNumber) -> bool {
        self.devices.get(device).is_some_and(|device| device.info.infiniband)
    }

    /// Releases the port of a bound id, which then is idle.
    ///
    /// # Errors
    /// EINVAL unless the id is bound and not resolved or connected.
    pub fn unbind(&mut self, id: CmaId) -> Result<(), CmaError> {
        let entry = self.advance(id, CmaState::AddrBound, CmaState::Idle)?;
        (entry.source, entry.at) = (None, None);
        self.ports.release(id);
        Ok(())
    }

    /// The address with its port (`cma_get_port`).
    fn take_port(
        &mut self,
        id: CmaId,
        wanted: Wanted,
        is_wildcard: bool,
    ) -> Result<Address, CmaError> {
        let entry = self.id(id)?;
        let settings = entry.settings;
        let (space, mut source) = match wanted.source {
            Address::Ip(_) => (entry.space, wanted.source),
            Address::Ib(ib) => select_space(entry.space, ib)?,
        };
        let mut binding = Binding::new(socket_address(&source));
        binding.destination = wanted.destination.and_then(|address| address.ip());
        (binding.reuse, binding.is_wildcard) = (settings.reuse, is_wildcard);
        if let Some(only) = settings.family_only {
            binding.family_only = only;
        }
        let port = self.ports.bind(space, id, binding, wanted.privileged)?;
        source.set_port(port);
        Ok(source)
    }

    /// Makes an id listen. An idle id is bound to any IPv4 address and port first.
    ///
    /// # Errors
    /// EINVAL unless the id is idle or bound; EADDRINUSE and EADDRNOTAVAIL if the port is shared.
    pub fn listen(&mut self, id: CmaId, addresses: &dyn Addresses) -> Result<(), CmaError> {
        if self.id(id)?.state == CmaState::Idle {
            let any = SocketAddr::from(([0, 0, 0, 0], 0));
            self.bind(id, Address::Ip(any), false, addresses)?;
        }
        let entry = self.advance(id, CmaState::AddrBound, CmaState::Listen)?;
        let (at, is_shared) = (entry.at, entry.settings.reuse);
        let devices = at.map_or(0..self.devices.len(), |at| at.device..at.device + 1);
        let result = match is_shared {
            true => self.ports.listen(id).map_err(CmaError::from),
            false => Ok(()),
        };
        result
            .and_then(|()| devices.into_iter().try_for_each(|device| self.listen_on(id, device)))
            .inspect_err(|_| {
                self.stop_listening(0, id);
                let _ = self.advance(id, CmaState::Listen, CmaState::AddrBound);
            })
    }

    pub(super) fn listen_on(&mut self, id: CmaId, device: DeviceNumber) -> Result<(), CmaError> {
        let entry = self.id(id)?;
        let source = entry.source.ok_or(CmaError::INVALID)?;
        let service = source.service_id(entry.space);
        if self.devices[device].is_removed {
            return Ok(());
        }
        let key = (device, service);
        if !self.listening.contains_key(&key) {
            let cm = self.listen_with_engine(key)?;
            self.listening.insert(key, Listening { cm, ids: BTreeSet::new() });
        }
        self.listening.get_mut(&key).map(|listening| listening.ids.insert(id));
        self.id_mut(id)?.listeners.push(key);
        Ok(())
    }

    fn listen_with_engine(
        &mut self,
        (device, service): (DeviceNumber, u64),
    ) -> Result<CmId, CmaError> {
        let engine = &mut self.devices[device].engine;
        let cm = engine.create();
        engine.listen(cm, service, 0).inspect_err(|_| {
            let _ = engine.forget(cm);
        })?;
        Ok(cm)
    }

    /// Removes an id's listeners. An engine stops listening to a service id with the last id.
    pub(super) fn stop_listening(&mut self, now: u64, id: CmaId) {
        let Ok(entry) = self.id_mut(id) else { return };
        for key in std::mem::take(&mut entry.listeners) {
            let Some(listening) = self.listening.get_mut(&key) else { continue };
            listening.ids.remove(&id);
            if listening.ids.is_empty() {
                let _ = self.devices[key.0].engine.destroy(now, listening.cm);
                self.listening.remove(&key);
            }
        }
    }
}

/// The address in the form that the port table uses.
fn socket_address(address: &Address) -> SocketAddr {
    match address {
        Address::Ip(ip) => *ip,
        Address::Ib(ib) => SocketAddr::new(Ipv6Addr::from(ib.addr).into(), address.port()),
    }
}

/// The port space that an InfiniBand address's service id names (`cma_select_ib_ps`).
fn select_space(space: PortSpace, mut ib: SockaddrIb) -> Result<(PortSpace, Address), CmaError> {
    let mask = ib.sid_mask.get() & SPACE_MASK;
    let sid = ib.sid.get() & mask;
    let is_named = |candidate: &PortSpace| {
        (space == PortSpace::IB || space == *candidate)
            && sid == (u64::from(candidate.0) << 16) & mask
    };
    let candidates = [PortSpace::IB, PortSpace::TCP, PortSpace::UDP];
    let Some(named) = candidates.into_iter().find(is_named) else {
        return Err(CmaError(libc::EPROTONOSUPPORT));
    };
    let port = ib.sid.get() & ib.sid_mask.get() & 0xffff;
    ib.sid = (u64::from(named.0) << 16 | port).into();
    ib.sid_mask = (SPACE_MASK | ib.sid_mask.get()).into();
    Ok((named, Address::Ib(ib)))
}
