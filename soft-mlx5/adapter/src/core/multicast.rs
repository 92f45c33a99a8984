//! Multicast groups and the UD QPs attached to them.

use std::collections::HashMap;

use super::{CoreError, ObjectKind, Qpn};
use crate::packet::Gid;

/// Groups by GID.
#[derive(Debug)]
pub(super) struct Groups {
    members: HashMap<Gid, Vec<Qpn>>,
    count: usize,
    limit: usize,
}

impl Groups {
    pub(super) fn new(limit: usize) -> Self {
        Self { members: HashMap::new(), count: 0, limit }
    }

    pub(super) fn attach(&mut self, group: Gid, qpn: Qpn) -> Result<bool, CoreError> {
        let members = self.members.entry(group).or_default();
        if members.contains(&qpn) {
            return Ok(false);
        }
        if self.count >= self.limit {
            return Err(CoreError::LimitReached { kind: ObjectKind::Multicast });
        }
        members.push(qpn);
        self.count += 1;
        Ok(true)
    }

    pub(super) fn detach(&mut self, group: Gid, qpn: Qpn) -> bool {
        let Some(members) = self.members.get_mut(&group) else { return false };
        let Some(at) = members.iter().position(|member| *member == qpn) else { return false };
        members.remove(at);
        self.count -= 1;
        if members.is_empty() {
            self.members.remove(&group);
        }
        true
    }

    /// The QPs that receive messages to a group.
    pub(super) fn members(&self, group: Gid) -> &[Qpn] {
        self.members.get(&group).map_or(&[], Vec::as_slice)
    }
}
