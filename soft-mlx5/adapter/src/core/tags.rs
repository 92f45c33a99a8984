//! The tag list of a tag matching SRQ: receives that are matched to messages by tag.
//!
//! Software adds and removes entries by WQEs of a command QP. The device searches the list when a
//! message arrives. A message that no entry matches is unexpected, and software handles it. Until
//! then, software may add entries that the message should have matched. So the device counts
//! unexpected messages, and software reports how many of them it has handled. While the two counts
//! differ, new entries are not matched (Documentation/tag_matching.md of rdma-core).

use super::ids::ObjectId;
use super::{CoreError, Cqn};

/// The additional properties of a tag matching SRQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagParams {
    /// The CQ to which the SRQ's receives and list operations complete.
    pub cq: Cqn,
    /// User index for its CQEs, 24 bits.
    pub user_index: u32,
    /// log2 of the list's length, at most 15.
    pub log_entries: u8,
}

impl TagParams {
    pub(super) fn object(&self) -> ObjectId {
        self.cq.object()
    }

    pub(super) fn check(&self) -> Result<(), CoreError> {
        let fits = self.log_entries < 16;
        if fits { Ok(()) } else { Err(CoreError::bad("log2 of tags", self.log_entries.into())) }
    }
}

/// The counts of a tag matching SRQ, as `tag_matching_topology_context` in `mlx5_ifc.h` has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagCounts {
    /// The place of the next entry.
    pub next: u16,
    /// Unexpected messages that arrived.
    pub arrived: u16,
    /// Unexpected messages that software has handled.
    pub handled: u16,
}

/// The buffer of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TagBuffer {
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) lkey: u32,
}

/// A receive that waits for a message with its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TagEntry {
    pub(super) tag: u64,
    /// Bits of a message's tag that are compared with `tag`.
    pub(super) mask: u64,
    /// `None` takes only messages without data.
    pub(super) buffer: Option<TagBuffer>,
}

impl TagEntry {
    /// ibv_post_srq_ops(3).
    fn matches(&self, tag: u64) -> bool {
        tag & self.mask == self.tag
    }
}

#[derive(Clone, Copy, Debug, Default)]
enum Place {
    #[default]
    Free,
    Listed(TagEntry),
    /// Matched by a message that is not complete.
    Matched,
}

/// The list, and the counts of unexpected messages.
#[derive(Debug)]
pub(super) struct TagList {
    places: Box<[Place]>,
    /// The places in the list, in the order in which they are searched.
    order: Vec<u16>,
    /// How many of them, from the first on, are searched.
    searched: usize,
    /// The place of the next entry.
    next: u16,
    /// Unexpected messages that arrived.
    arrived: u16,
    /// Unexpected messages that software has handled.
    handled: u16,
}

impl TagList {
    pub(super) fn new(log_entries: u8) -> Self {
        Self {
            places: vec![Place::default(); 1 << log_entries].into(),
            order: Vec::new(),
            searched: 0,
            next: 0,
            arrived: 0,
            handled: 0,
        }
    }

    pub(super) fn counts(&self) -> TagCounts {
        TagCounts { next: self.next, arrived: self.arrived, handled: self.handled }
    }

    /// Unexpected messages that arrived, modulo 2^16.
    pub(super) fn arrived(&self) -> u16 {
        self.arrived
    }

    /// Stores how many unexpected messages software has handled.
    pub(super) fn report(&mut self, handled: u16) {
        self.handled = handled;
        self.update_searched();
    }

    fn update_searched(&mut self) {
        if self.handled == self.arrived {
            self.searched = self.order.len();
        }
    }

    /// Adds an entry to the end of the list; `next` is the place of the one after it. `None` if
    /// there is no such place, or if the entry's own place is in use.
    pub(super) fn append(&mut self, entry: TagEntry, next: u16) -> Option<()> {
        self.places.get(usize::from(next))?;
        let place = &mut self.places[usize::from(self.next)];
        if !matches!(place, Place::Free) {
            return None;
        }
        *place = Place::Listed(entry);
        self.order.push(std::mem::replace(&mut self.next, next));
        self.update_searched();
        Some(())
    }

    /// Removes an entry that no message has matched; `false` if there is none at this place.
    pub(super) fn remove(&mut self, place: u16) -> bool {
        let Some(at) = self.order.iter().position(|listed| *listed == place) else { return false };
        self.unlist(at);
        self.places[usize::from(place)] = Place::Free;
        true
    }

    fn unlist(&mut self, at: usize) -> u16 {
        self.searched -= usize::from(at < self.searched);
        self.order.remove(at)
    }

    /// The first entry that a message with this tag matches.
    pub(super) fn find(&self, tag: u64) -> Option<Found> {
        self.order[..self.searched].iter().enumerate().find_map(|(at, &place)| {
            match self.places[usize::from(place)] {
                Place::Listed(entry) if entry.matches(tag) => Some(Found { at, place, entry }),
                _ => None,
            }
        })
    }

    /// Takes an entry out of the list. Its place is in use until the message is complete.
    pub(super) fn take(&mut self, found: Found) {
        self.unlist(found.at);
        self.places[usize::from(found.place)] = Place::Matched;
    }

    /// Frees the place of a message that is complete.
    pub(super) fn complete(&mut self, place: u16) {
        self.places[usize::from(place)] = Place::Free;
    }

    /// Counts an unexpected message.
    pub(super) fn count_unexpected(&mut self) {
        self.arrived = self.arrived.wrapping_add(1);
    }
}

/// The entry that a message matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    at: usize,
    pub(super) place: u16,
    pub(super) entry: TagEntry,
}

#[cfg(test)]
mod tests;
