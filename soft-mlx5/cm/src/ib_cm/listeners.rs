//! Listening ids, by service id.

use std::collections::HashMap;

use super::CmId;

/// An id and the service ids that it listens to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listener {
    pub(super) id: CmId,
    pub(super) service_id: u64,
    pub(super) mask: u64,
}

impl Listener {
    fn takes(&self, service_id: u64) -> bool {
        service_id & self.mask == self.service_id
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.mask & other.service_id == other.mask & self.service_id
    }

    fn is_exact(&self) -> bool {
        self.mask == u64::MAX
    }
}

/// All listeners of a device. A listener for a single service id, as rdma_cm's are, is found in
/// constant time.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    by_id: HashMap<CmId, Listener>,
    exact: HashMap<u64, CmId>,
    masked: Vec<Listener>,
}

impl Listeners {
    /// Adds a listener; `false` if another id listens to one of its service ids.
    pub(super) fn add(&mut self, new: Listener) -> bool {
        let is_taken = self.masked.iter().any(|other| other.overlaps(&new))
            || match new.is_exact() {
                true => self.exact.contains_key(&new.service_id),
                false => self.by_id.values().any(|other| other.overlaps(&new)),
            };
        if is_taken {
            return false;
        }
        match new.is_exact() {
            true => drop(self.exact.insert(new.service_id, new.id)),
            false => self.masked.push(new),
        }
        self.by_id.insert(new.id, new);
        true
    }

    /// The id that listens to a service id.
    pub(super) fn find(&self, service_id: u64) -> Option<CmId> {
        let masked = || self.masked.iter().find(|listener| listener.takes(service_id));
        self.exact.get(&service_id).copied().or_else(|| Some(masked()?.id))
    }

    /// Removes a listener; no effect if the id does not listen.
    pub(super) fn remove(&mut self, id: CmId) {
        match self.by_id.remove(&id) {
            Some(listener) if listener.is_exact() => drop(self.exact.remove(&listener.service_id)),
            Some(_) => self.masked.retain(|listener| listener.id != id),
            None => {}
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty() && self.exact.is_empty() && self.masked.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(id: u32, service_id: u64, mask: u64) -> Listener {
        Listener { id: CmId(id), service_id: service_id & mask, mask }
    }

    #[test]
    fn no_two_listeners_take_the_same_service_id() {
        let mut all = Listeners::default();
        assert!(all.add(listener(1, 0x1234, u64::MAX)));
        assert!(!all.add(listener(2, 0x1234, u64::MAX)));
        assert!(!all.add(listener(2, 0x1200, !0xff)), "the range has another's service id");
        assert!(all.add(listener(2, 0x5600, !0xff)));
        assert!(!all.add(listener(3, 0x56ab, u64::MAX)), "the service id is in another's range");
        assert!(!all.add(listener(3, 0x5000, !0xfff)));
        assert!(all.add(listener(3, 0x5700, u64::MAX)));
    }

    #[test]
    fn a_service_id_is_taken_until_its_listener_goes() {
        let mut all = Listeners::default();
        assert!(all.add(listener(1, 0x1234, u64::MAX)) && all.add(listener(2, 0x5600, !0xff)));
        assert_eq!(
            [0x1234, 0x5678, 0x1235].map(|id| all.find(id)),
            [Some(CmId(1)), Some(CmId(2)), None]
        );
        all.remove(CmId(1));
        all.remove(CmId(1));
        assert_eq!([0x1234, 0x5678].map(|id| all.find(id)), [None, Some(CmId(2))]);
        all.remove(CmId(2));
        assert!(all.is_empty());
    }
}
