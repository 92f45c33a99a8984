//! Port spaces: the addresses and ports to which ids are bound.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use uverbs_uapi::cm::PortSpace;

use super::is_any;
use uverbs_soft_packet::prng::RandomSource;

/// Ports below this one require a privilege.
const UNPRIVILEGED: u16 = 1024;

/// An id's address and options for binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The id's own address; port 0 selects any free port.
    pub source: SocketAddr,
    /// The peer's address, for an id that connects.
    pub destination: Option<SocketAddr>,
    /// Other ids with this option may bind to the same address (`RDMA_OPTION_ID_REUSEADDR`).
    pub reuse: bool,
    /// The binding is only for addresses of its own family: always for IPv4; for IPv6 by
    /// `RDMA_OPTION_ID_AFONLY`.
    pub family_only: bool,
    /// Whether the address is a wildcard, for all addresses of the machine.
    pub is_wildcard: bool,
}

impl Binding {
    /// A binding to an address, with default options.
    pub fn new(source: SocketAddr) -> Self {
        Self {
            source,
            destination: None,
            reuse: false,
            family_only: source.is_ipv4(),
            is_wildcard: is_any(source.ip()),
        }
    }

    /// Whether two bindings may share a port (`cma_check_port`).
    fn check(&self, other: &Self, reuse: bool) -> Result<(), BindError> {
        if reuse && other.reuse {
            return Ok(());
        }
        let same_family = self.source.is_ipv4() == other.source.is_ipv4();
        if self.family_only && other.family_only && !same_family {
            return Ok(());
        }
        if self.is_wildcard || other.is_wildcard {
            return Err(BindError::NotAvailable);
        }
        if self.same_source(other) { Err(BindError::InUse) } else { Ok(()) }
    }

    fn same_source(&self, other: &Self) -> bool {
        match (self.source, other.source) {
            (SocketAddr::V6(a), SocketAddr::V6(b)) => {
                a.ip() == b.ip()
                    && (!a.ip().is_unicast_link_local() || a.scope_id() == b.scope_id())
            }
            (a, b) => a.ip() == b.ip(),
        }
    }

    /// Whether connections of two bindings can be told apart although their ports are the same
    /// (`cma_port_is_unique`).
    fn is_apart(&self, other: &Self) -> bool {
        let sources =
            self.source.ip() != other.source.ip() && !self.is_wildcard && !other.is_wildcard;
        let (Some(a), Some(b)) = (self.destination, other.destination) else {
            return sources;
        };
        let ports = a.port() != b.port() && a.port() != 0 && b.port() != 0;
        let peers = a.ip() != b.ip() && !is_any(a.ip()) && !is_any(b.ip());
        sources || ports || peers
    }
}

/// Why an id cannot be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// Another id has exactly this address and port.
    #[error("another id is bound to this address and port")]
    InUse,
    /// Another id has the port, and one of the two addresses is a wildcard; or no port is free.
    #[error("the port is taken for a wildcard address, or no port is free")]
    NotAvailable,
    /// A port below 1024 without the privilege.
    #[error("ports below 1024 need CAP_NET_BIND_SERVICE")]
    Access,
    /// The id is not bound, or is bound already.
    #[error("the id is bound already, or not at all")]
    State,
}

impl BindError {
    /// The kernel's errno.
    pub fn errno(self) -> i32 {
        match self {
            Self::InUse => libc::EADDRINUSE,
            Self::NotAvailable => libc::EADDRNOTAVAIL,
            Self::Access => libc::EACCES,
            Self::State => libc::EINVAL,
        }
    }
}

/// The port spaces of one network namespace. `Id` identifies the owner of a port.
#[derive(Debug)]
pub struct Ports<Id> {
    owners: HashMap<(PortSpace, u16), Vec<(Id, Binding)>>,
    bound: HashMap<Id, (PortSpace, u16)>,
    /// Ports for owners that bind to port 0.
    ephemeral: RangeInclusive<u16>,
    last_used: Option<u16>,
    random: RandomSource,
}

impl<Id: Copy + Eq + Hash> Ports<Id> {
    /// An empty table. `ephemeral` is the host's `ip_local_port_range`. The seed determines which
    /// of these ports are chosen; without one they are unpredictable.
    pub fn new(ephemeral: RangeInclusive<u16>, seed: Option<u64>) -> Self {
        let (owners, bound) = Default::default();
        Self { owners, bound, ephemeral, last_used: None, random: RandomSource::new(seed) }
    }

    /// Binds an id and returns its port.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind(
        &mut self,
        space: PortSpace,
        id: Id,
        binding: Binding,
        privileged: bool,
    ) -> Result<u16, BindError> {
        if self.bound.contains_key(&id) {
            return Err(BindError::State);
        }
        let port = match binding.source.port() {
            0 => self.free_port(space, &binding)?,
            port if port < UNPRIVILEGED && !privileged => return Err(BindError::Access),
            port => self.check(space, port, &binding)?,
        };
        let mut binding = binding;
        binding.source.set_port(port);
        self.owners.entry((space, port)).or_default().push((id, binding));
        self.bound.insert(id, (space, port));
        Ok(port)
    }

    fn check(&self, space: PortSpace, port: u16, binding: &Binding) -> Result<u16, BindError> {
        let mut others = self.owners.get(&(space, port)).into_iter().flatten();
        others.try_for_each(|(_, other)| binding.check(other, binding.reuse))?;
        Ok(port)
    }

    /// Searches upwards from a random port. Skips the port assigned last, and ports whose
    /// connections could not be told apart from those of `binding`.
    fn free_port(&mut self, space: PortSpace, binding: &Binding) -> Result<u16, BindError> {
        let (low, high) = (u32::from(*self.ephemeral.start()), u32::from(*self.ephemeral.end()));
        let count = (high + 1).saturating_sub(low).max(1);
        let start = (self.random.draw() % u64::from(count)) as u32;
        let mut ports = (0..count).map(|step| (low + (start + step) % count) as u16);
        let owners = &self.owners;
        let free = ports.find(|port| {
            let mut others = owners.get(&(space, *port)).into_iter().flatten();
            Some(*port) != self.last_used && others.all(|(_, other)| binding.is_apart(other))
        });
        self.last_used = free.or(self.last_used);
        free.ok_or(BindError::NotAvailable)
    }

    /// Checks that a bound id may listen. A listening id does not share its port, even if it was
    /// allowed to when it was bound (`cma_bind_listen`).
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn listen(&self, id: Id) -> Result<(), BindError> {
        let key = self.bound.get(&id).ok_or(BindError::State)?;
        let owners = self.owners.get(key).map(Vec::as_slice).unwrap_or_default();
        let own = owners.iter().find(|(owner, _)| *owner == id).ok_or(BindError::State)?.1;
        let mut others = owners.iter().filter(|(owner, _)| *owner != id);
        others.try_for_each(|(_, other)| own.check(other, false))
    }

    /// The binding of an id.
    pub fn binding(&self, id: Id) -> Option<&Binding> {
        let owners = self.owners.get(self.bound.get(&id)?)?;
        owners.iter().find(|(owner, _)| *owner == id).map(|(_, binding)| binding)
    }

    /// Sets whether a bound id shares its address; no effect if the id is not bound.
    pub fn set_reuse(&mut self, id: Id, reuse: bool) {
        self.change(id, |binding| binding.reuse = reuse);
    }

    /// Sets whether a bound id's address is only for its own family.
    pub fn set_family_only(&mut self, id: Id, only: bool) {
        self.change(id, |binding| binding.family_only = only);
    }

    fn change(&mut self, id: Id, change: impl FnOnce(&mut Binding)) {
        let owners = self.bound.get(&id).and_then(|key| self.owners.get_mut(key));
        let own = owners.and_then(|owners| owners.iter_mut().find(|(owner, _)| *owner == id));
        if let Some((_, binding)) = own {
            change(binding);
        }
    }

    /// Releases an id's port; no effect if it has none.
    pub fn release(&mut self, id: Id) {
        let Some(key) = self.bound.remove(&id) else {
            return;
        };
        let Some(owners) = self.owners.get_mut(&key) else {
            return;
        };
        owners.retain(|(owner, _)| *owner != id);
        if owners.is_empty() {
            self.owners.remove(&key);
        }
    }
}
