//! Ids and memberships, like those of ucma (`struct ucma_context`, `struct ucma_multicast`).

use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;

use nix::errno::Errno;

use uverbs_soft_cm::cma::{CmaId, MembershipId};

/// Identifies an open file.
pub(super) type FileNumber = u64;

/// An id of a file.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) file: FileNumber,
    pub(super) id: CmaId,
    /// The user's own value. While it is 0, as for requests that are not accepted yet, events are
    /// dropped.
    pub(super) uid: u64,
    /// Events fetched.
    pub(super) reported: u32,
    /// Connection requests that may still be queued.
    pub(super) backlog: u32,
    /// The device was removed: every command fails, except destroying the id.
    pub(super) is_closing: bool,
    /// Sockets that claim its port, so that other processes' ids cannot bind to it.
    pub(super) claims: Vec<OwnedFd>,
    /// Sockets that announce a listener to other processes.
    pub(super) listing: Vec<OwnedFd>,
}

/// A membership in a multicast group.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) context: u32,
    pub(super) id: MembershipId,
    pub(super) uid: u64,
    pub(super) reported: u32,
}

/// Values by number. A new value gets the lowest free number.
#[derive(Debug)]
pub(super) struct Numbered<T> {
    values: HashMap<u32, T>,
    /// Numbers below `next` that are free.
    free: BTreeSet<u32>,
    next: u32,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self { values: HashMap::new(), free: BTreeSet::new(), next: 0 }
    }
}

impl<T> Numbered<T> {
    pub(super) fn insert(&mut self, value: T) -> u32 {
        let number = self.free.pop_first().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        self.values.insert(number, value);
        number
    }

    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.values.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.values.get_mut(&number)
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let value = self.values.remove(&number)?;
        self.free.insert(number);
        Some(value)
    }
}

/// All ids and memberships of a host.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    ids: Numbered<Context>,
    members: Numbered<Member>,
    numbers: HashMap<CmaId, u32>,
    of_files: BTreeSet<(FileNumber, u32)>,
    /// The numbers of memberships, by the state machine's membership.
    joined: HashMap<MembershipId, u32>,
    of_contexts: BTreeSet<(u32, u32)>,
}

impl Contexts {
    pub(super) fn add(&mut self, file: FileNumber, id: CmaId, uid: u64) -> u32 {
        let (reported, backlog, is_closing, claims, listing) = Default::default();
        let context = Context { file, id, uid, reported, backlog, is_closing, claims, listing };
        let number = self.ids.insert(context);
        self.numbers.insert(id, number);
        self.of_files.insert((file, number));
        number
    }

    /// Removes an id with its memberships.
    pub(super) fn remove(&mut self, number: u32) -> Option<Context> {
        let context = self.ids.remove(number)?;
        self.numbers.remove(&context.id);
        self.of_files.remove(&(context.file, number));
        while let Some(member) = second(&self.of_contexts, number) {
            self.remove_member(member);
        }
        Some(context)
    }

    /// An id of any file.
    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Context> {
        self.ids.get_mut(number)
    }

    /// An id of a file that is being closed; `None` if no id is left.
    pub(super) fn any_of_file(&self, file: FileNumber) -> Option<u32> {
        second(&self.of_files, file)
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.ids.values.len()
    }

    /// Moves an id to another file.
    pub(super) fn migrate(&mut self, number: u32, to: FileNumber) {
        let Some(context) = self.ids.get_mut(number) else { return };
        self.of_files.remove(&(context.file, number));
        context.file = to;
        self.of_files.insert((to, number));
    }

    pub(super) fn add_member(&mut self, member: Member) -> u32 {
        let (context, id) = (member.context, member.id);
        let number = self.members.insert(member);
        self.joined.insert(id, number);
        self.of_contexts.insert((context, number));
        number
    }

    pub(super) fn remove_member(&mut self, number: u32) -> Option<Member> {
        let member = self.members.remove(number)?;
        self.joined.remove(&member.id);
        self.of_contexts.remove(&(member.context, number));
        Some(member)
    }

    pub(super) fn member(&self, number: u32) -> Option<&Member> {
        self.members.get(number)
    }

    pub(super) fn member_mut(&mut self, number: u32) -> Option<&mut Member> {
        self.members.get_mut(number)
    }

    /// The number of a membership of the state machine.
    pub(super) fn member_number(&self, id: MembershipId) -> Option<u32> {
        self.joined.get(&id).copied()
    }

    /// The number of an id of the state machine.
    pub(super) fn number(&self, id: CmaId) -> Option<u32> {
        self.numbers.get(&id).copied()
    }

    /// An id of this file, even if its device was removed.
    pub(super) fn of_file(&mut self, file: FileNumber, number: u32) -> Result<&mut Context, Errno> {
        let context = self.ids.get_mut(number).ok_or(Errno::ENOENT)?;
        if context.file == file { Ok(context) } else { Err(Errno::EINVAL) }
    }

    /// An id of this file (`ucma_get_ctx`).
    pub(super) fn find(&mut self, file: FileNumber, number: u32) -> Result<&mut Context, Errno> {
        let context = self.of_file(file, number)?;
        if context.is_closing { Err(Errno::ENXIO) } else { Ok(context) }
    }
}

/// The lowest second half of the pairs with this first half.
fn second<A: Copy + Ord>(pairs: &BTreeSet<(A, u32)>, first: A) -> Option<u32> {
    pairs.range((first, 0)..=(first, u32::MAX)).next().map(|(_, second)| *second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_number_is_given() {
        let mut all = Numbered::default();
        assert_eq!([(); 4].map(|()| all.insert(())), [0, 1, 2, 3]);
        assert_eq!((all.remove(2), all.remove(0), all.remove(0)), (Some(()), Some(()), None));
        assert_eq!([(); 3].map(|()| all.insert(())), [0, 2, 4]);
    }

    #[test]
    fn an_id_goes_with_its_memberships_and_moves_with_its_number() {
        let mut all = Contexts::default();
        let [one, other] = [1, 2].map(|id| all.add(7, CmaId(id), 0));
        let member = |context, id| Member { context, id: MembershipId(id), uid: 0, reported: 0 };
        let joined = all.add_member(member(one, 5));
        let kept = all.add_member(member(other, 6));
        all.migrate(other, 8);
        assert_eq!([7, 8, 9].map(|file| all.any_of_file(file)), [Some(one), Some(other), None]);
        assert!(all.remove(one).is_some());
        assert_eq!((all.any_of_file(7), all.number(CmaId(1))), (None, None));
        assert!(all.member(joined).is_none() && all.member(kept).is_some());
        assert_eq!([5, 6].map(|id| all.member_number(MembershipId(id))), [None, Some(kept)]);
    }
}
