//! Software's copy of the tag list of a tag matching SRQ: the entries that the device has, and the
//! changes that it has not confirmed yet.
//!
//! The device keeps the list. Software numbers the entries, and an append names the entry that the
//! *next* append will take. So both sides use the same queue of free entries, the last of which is
//! never taken.
//!
//! As libmlx5 does (`mlx5_post_srq_ops`, `handle_tag_matching`), with two differences. Invalid
//! completions of the device are refused: a second one for an entry's message, or one for a change
//! that was not posted. And every change that reports the number of unexpected messages to the
//! device counts, not only an append, so that a later append does not request another
//! synchronization.

use std::collections::VecDeque;

use crate::format::TagEvent;
use crate::request::Sge;

/// After the last free entry.
const NONE: u32 = u32::MAX;

/// How many unexpected messages the device may be ahead of software (`MLX5_TM_MAX_SYNC_DIFF`): it
/// counts them in 16 bits.
const MAX_UNTOLD: u32 = 0x3fff;

/// The QP that posts the changes. A list has only one during its life, because the CQEs of changes
/// name the SRQ: CQEs left by an earlier QP would confirm changes of the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    NotSet,
    /// Its user index.
    Set(u32),
    Gone,
}

/// The entries, and the changes that the device must confirm.
#[derive(Debug)]
pub(crate) struct TagList {
    entries: Box<[Entry]>,
    first_free: u32,
    last_free: u32,
    /// Signaled changes, in order.
    changes: VecDeque<Change>,
    /// Unsignaled removals that no signaled change has confirmed, in order. At most as many as the
    /// QP has WQEs, which only signaled ones free.
    removals: VecDeque<Removal>,
    command: Command,
    /// Index of the WQE of the next change, once there was one.
    next_index: Option<u16>,
    /// How many changes there were.
    entered: u64,
    /// The state of the last search for entries that were not appended: how many changes the device
    /// had made, and how many were posted.
    failed: (u64, u64),
    /// The numbers of unexpected messages that were polled, and that were reported to the device.
    /// Both wrap.
    unexpected: u32,
    told: u32,
}

#[derive(Clone, Debug)]
struct Entry {
    next_free: u32,
    wr_id: u64,
    buffer: Option<Sge>,
    /// The number that had been reported to the device when the entry was appended.
    phase: u16,
    /// Number of the change that appended it, from 1.
    appended: u64,
    /// Whether a message can still complete it.
    is_listed: bool,
    /// Whether the first of two completions of a message was polled.
    is_consumed: bool,
    /// Changes of the entry that the device must confirm.
    changes: u32,
}

#[derive(Debug)]
struct Change {
    kind: TagEvent,
    entry: Option<u16>,
    wr_id: u64,
    index: u16,
    /// As in [`Entry::appended`].
    number: u64,
}

/// An entry as it was before an unsignaled removal.
#[derive(Debug)]
struct Removal {
    at: u16,
    before: Entry,
    /// As in [`Entry::appended`].
    number: u64,
}

/// A change of the list that is about to be posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// The id of its completion.
    pub(crate) wr_id: u64,
    /// Index of its WQE.
    pub(crate) index: u16,
    /// Whether the device confirms the change.
    pub(crate) is_signaled: bool,
    /// The number of unexpected messages that the change reports to the device.
    pub(crate) unexpected: Option<u32>,
}

/// A message that matched an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matched {
    pub(crate) wr_id: u64,
    /// Where its data is.
    pub(crate) buffer: Option<Sge>,
}

/// A change that the device has confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Confirmed {
    pub(crate) wr_id: u64,
    /// Index of its WQE.
    pub(crate) index: u16,
    /// Whether the device has counted unexpected messages that were not reported to it.
    pub(crate) is_behind: bool,
}

impl TagList {
    /// A list that holds `tags` entries.
    pub(crate) fn new(tags: u16) -> Self {
        let last = u32::from(tags);
        let entry = |at| Entry {
            next_free: if at < last { at + 1 } else { NONE },
            wr_id: 0,
            buffer: None,
            phase: 0,
            appended: 0,
            is_listed: false,
            is_consumed: false,
            changes: 0,
        };
        Self {
            entries: (0..=last).map(entry).collect(),
            first_free: 0,
            last_free: last,
            changes: VecDeque::new(),
            removals: VecDeque::new(),
            command: Command::NotSet,
            next_index: None,
            entered: 0,
            failed: (0, 0),
            unexpected: 0,
            told: 0,
        }
    }

    /// Sets which QP posts the changes. Returns whether there was none before.
    pub(crate) fn set_command(&mut self, user_index: u32) -> bool {
        let is_first = self.command == Command::NotSet;
        if is_first {
            self.command = Command::Set(user_index);
        }
        is_first
    }

    /// Records that the QP with this user index was destroyed.
    pub(crate) fn clear_command(&mut self, user_index: u32) {
        if self.command == Command::Set(user_index) {
            self.command = Command::Gone;
        }
    }

    /// Whether the QP that posted the changes is gone.
    pub(crate) fn command_is_gone(&self) -> bool {
        self.command == Command::Gone
    }

    /// The user index of the QP that posts the changes.
    pub(crate) fn command(&self) -> Option<u32> {
        match self.command {
            Command::Set(user_index) => Some(user_index),
            Command::NotSet | Command::Gone => None,
        }
    }

    /// Whether a change in the WQE with this index follows the last one. It does not if the last
    /// change was in a leaked or aborted batch: the device has not executed that change, so it
    /// numbers its next entry differently from this list.
    pub(crate) fn is_next(&self, index: u16) -> bool {
        self.next_index.is_none_or(|next| next == index)
    }

    /// The entry that the next append takes, and the one after it; `None` if the list is full.
    pub(crate) fn next_entries(&self) -> Option<[u16; 2]> {
        let next = self.entries.get(self.first_free as usize)?.next_free;
        (next != NONE).then_some([self.first_free as u16, next as u16])
    }

    /// Whether the device has the entry.
    pub(crate) fn is_listed(&self, entry: u16) -> bool {
        self.entries.get(usize::from(entry)).is_some_and(|entry| entry.is_listed)
    }

    /// Records that the entry which [`TagList::next_entries`] returned is appended.
    pub(crate) fn append(&mut self, receive_id: u64, buffer: Option<Sge>, asked: Asked) {
        let Some([taken, next]) = self.next_entries() else { return };
        self.enter(asked);
        let (phase, number) = (self.told as u16, self.entered);
        self.first_free = u32::from(next);
        if let Some(entry) = self.entry_mut(taken) {
            (entry.wr_id, entry.buffer, entry.phase) = (receive_id, buffer, phase);
            entry.appended = number;
            (entry.next_free, entry.is_listed, entry.is_consumed) = (NONE, true, false);
        }
        self.expect(TagEvent::APPEND, Some(taken), asked);
    }

    /// Records that an entry is to be removed. If the change is unsignaled, the entry is free at
    /// once. If a message has matched the entry, the device cannot remove it, and completes the
    /// message.
    pub(crate) fn remove(&mut self, at: u16, asked: Asked) {
        self.enter(asked);
        if asked.is_signaled {
            return self.expect(TagEvent::REMOVE, Some(at), asked);
        }
        let number = self.entered;
        let Some(entry) = self.entry_mut(at).filter(|entry| !entry.is_consumed) else { return };
        let before = entry.clone();
        entry.is_listed = false;
        self.removals.push_back(Removal { at, before, number });
        self.release(at);
    }

    /// Records that a number of unexpected messages is reported to the device.
    pub(crate) fn sync(&mut self, asked: Asked) {
        self.enter(asked);
        self.expect(TagEvent::NOOP, None, asked);
    }

    /// Records the data that all changes have in common.
    fn enter(&mut self, asked: Asked) {
        self.next_index = Some(asked.index.wrapping_add(1));
        self.entered += 1;
        self.told = asked.unexpected.unwrap_or(self.told);
    }

    fn expect(&mut self, kind: TagEvent, entry: Option<u16>, asked: Asked) {
        if !asked.is_signaled {
            return;
        }
        if let Some(entry) = entry.and_then(|at| self.entry_mut(at)) {
            entry.changes += 1;
        }
        let Asked { wr_id, index, .. } = asked;
        self.changes.push_back(Change { kind, entry, wr_id, index, number: self.entered });
    }

    /// Records that the change in the WQE with this index was not made, and none after it: the QP
    /// that posts them is in error. Entries that these changes were to append are free, and the
    /// device still has those that they were to remove.
    pub(crate) fn fail(&mut self, index: u16) {
        let Some(next) = self.next_index else { return };
        let made = self.entered.saturating_sub(next.wrapping_sub(index).into());
        let still_made = self.changes.partition_point(|change| change.number <= made);
        for change in self.changes.split_off(still_made) {
            let Some(at) = change.entry else { continue };
            self.entry_mut(at).into_iter().for_each(|entry| entry.changes -= 1);
            self.release(at);
        }
        // A queue in error completes each change. The completions after the first change nothing.
        let (made_then, entered_then) = self.failed;
        if made < made_then || self.entered != entered_then {
            self.failed = (made, self.entered);
            self.free_what_came_after(made);
            self.list_again(made);
        }
    }

    /// Restores the entries that unsignaled changes after number `made` were to remove.
    fn list_again(&mut self, made: u64) {
        for Removal { at, before, number } in std::mem::take(&mut self.removals) {
            let Some(entry) = self.entry_mut(at) else { continue };
            if before.appended <= made && made < number {
                *entry = Entry { changes: entry.changes, ..before };
            }
        }
        self.link_free();
    }

    /// Links all entries that the device does not have and that no pending change names. Their
    /// order no longer matters, because the QP makes no more changes.
    fn link_free(&mut self) {
        let is_free = |entry: &Entry| !entry.is_listed && entry.changes == 0;
        let all = self.entries.iter().zip(0..).filter(|(entry, _)| is_free(entry));
        let free: Vec<u32> = all.map(|(_, at)| at).collect();
        let links = free.iter().skip(1).copied().chain([NONE]);
        for (at, next) in free.iter().zip(links) {
            self.entries[*at as usize].next_free = next;
        }
        self.first_free = free.first().copied().unwrap_or(NONE);
        self.last_free = free.last().copied().unwrap_or(NONE);
    }

    /// Frees the entries that changes after number `made` were to append.
    fn free_what_came_after(&mut self, made: u64) {
        for at in 0..self.entries.len() {
            let entry = &mut self.entries[at];
            if entry.is_listed && entry.appended > made {
                entry.is_listed = false;
                self.release(at as u16);
            }
        }
    }

    /// Frees an entry if the device does not have it and no pending change names it.
    fn release(&mut self, at: u16) {
        let Some(entry) = self.entry_mut(at) else { return };
        if entry.is_listed || entry.changes > 0 {
            return;
        }
        entry.next_free = NONE;
        if let Some(last) = self.entries.get_mut(self.last_free as usize) {
            last.next_free = u32::from(at);
        }
        self.last_free = u32::from(at);
    }

    /// Completes a message that matched an entry. `None` if the device does not have the entry, or
    /// completes the message's first part twice.
    pub(crate) fn complete(&mut self, event: TagEvent, at: u16) -> Option<Matched> {
        let entry = self.entry_mut(at).filter(|entry| entry.is_listed)?;
        let matched = Matched { wr_id: entry.wr_id, buffer: entry.buffer };
        if event.is_first_of_two() {
            return (!std::mem::replace(&mut entry.is_consumed, true)).then_some(matched);
        }
        entry.is_listed = false;
        self.release(at);
        Some(matched)
    }

    /// The index of the WQE of the next change to be confirmed, if it is of this kind.
    pub(crate) fn next_change(&self, event: TagEvent) -> Option<u16> {
        self.changes.front().filter(|change| change.kind == event).map(|change| change.index)
    }

    /// Takes the next change, which the device has confirmed. `is_done` is false if a message had
    /// taken the entry to be removed; `phase` is the device's count of unexpected messages.
    pub(crate) fn confirm(&mut self, is_done: bool, phase: u16) -> Option<Confirmed> {
        let Change { kind, entry, wr_id, index, number } = self.changes.pop_front()?;
        self.removals.drain(..self.removals.partition_point(|removal| removal.number < number));
        let mut is_behind = false;
        if let Some((at, entry)) = entry.and_then(|at| Some((at, self.entry_mut(at)?))) {
            entry.changes -= 1;
            entry.is_listed &= !(kind == TagEvent::REMOVE && is_done);
            is_behind = entry.phase != phase;
            self.release(at);
        }
        Some(Confirmed { wr_id, index, is_behind })
    }

    fn entry_mut(&mut self, at: u16) -> Option<&mut Entry> {
        self.entries.get_mut(usize::from(at))
    }

    /// Counts an unexpected message. Returns whether software must report its count to the device,
    /// because otherwise the device stops matching.
    pub(crate) fn count_unexpected(&mut self) -> bool {
        self.unexpected = self.unexpected.wrapping_add(1);
        // If the program has reported more than were polled, it is ahead, and the difference is
        // negative.
        (self.unexpected.wrapping_sub(self.told) as i32) > MAX_UNTOLD as i32
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SIGNALED: Asked = Asked { wr_id: 7, index: 0, is_signaled: true, unexpected: None };
    const QUIET: Asked = Asked { is_signaled: false, ..SIGNALED };
    const DONE: TagEvent = TagEvent::CONSUMED_MESSAGE;

    fn append(list: &mut TagList, id: u64, asked: Asked) -> u16 {
        let [entry, _] = list.next_entries().expect("a free entry");
        list.append(id, None, asked);
        entry
    }

    fn wr_id(matched: Option<Matched>) -> Option<u64> {
        matched.map(|matched| matched.wr_id)
    }

    #[test]
    fn a_list_holds_as_many_tags_as_asked_for_and_reuses_entries_in_order() {
        let mut list = TagList::new(3);
        assert_eq!([1, 2, 3].map(|id| append(&mut list, id, QUIET)), [0, 1, 2]);
        assert_eq!(list.next_entries(), None);
        assert_eq!(wr_id(list.complete(DONE, 1)), Some(2));
        assert_eq!(list.next_entries(), Some([3, 1]), "the append names the entry after it");
        assert_eq!(wr_id(list.complete(DONE, 0)), Some(1));
        assert_eq!([4, 5].map(|id| append(&mut list, id, QUIET)), [3, 1]);
        assert_eq!(list.next_entries(), None);
        assert_eq!(TagList::new(u16::MAX).next_entries(), Some([0, 1]));
    }

    #[test]
    fn an_entry_is_free_when_its_message_and_its_changes_are_complete() {
        let mut list = TagList::new(1);
        append(&mut list, 1, SIGNALED);
        assert_eq!(wr_id(list.complete(DONE, 0)), Some(1));
        assert_eq!(list.next_entries(), None, "the append is not confirmed");
        assert_eq!(list.next_change(TagEvent::APPEND), Some(0));
        assert_eq!(list.confirm(true, 0).map(|done| done.wr_id), Some(7));
        assert!(list.next_entries().is_some());
    }

    #[test]
    fn a_device_completes_an_entry_once() {
        let mut list = TagList::new(4);
        assert_eq!(list.complete(DONE, 0), None, "never appended");
        append(&mut list, 1, QUIET);
        assert_eq!(wr_id(list.complete(TagEvent::CONSUMED, 0)), Some(1));
        assert_eq!(list.complete(TagEvent::CONSUMED, 0), None);
        assert_eq!(wr_id(list.complete(TagEvent::EXPECTED, 0)), Some(1));
        assert_eq!(list.complete(TagEvent::EXPECTED, 0), None);
        assert_eq!(list.complete(DONE, 0xffff), None, "beyond the list");
        assert_eq!(list.confirm(true, 0), None, "no change was posted");
    }

    #[test]
    fn a_removal_that_comes_too_late_leaves_the_entry_to_its_message() {
        let mut list = TagList::new(2);
        append(&mut list, 1, QUIET);
        list.remove(0, SIGNALED);
        assert_eq!(list.next_change(TagEvent::APPEND), None, "another kind");
        assert!(list.confirm(false, 0).is_some() && list.is_listed(0));
        assert_eq!(wr_id(list.complete(DONE, 0)), Some(1));
        append(&mut list, 2, QUIET);
        list.remove(1, SIGNALED);
        assert!(list.confirm(true, 0).is_some() && !list.is_listed(1));
        assert_eq!(list.complete(DONE, 1), None);
        let entry = append(&mut list, 3, QUIET);
        list.remove(entry, QUIET);
        assert!(!list.is_listed(entry) && list.next_entries().is_some());
    }

    #[test]
    fn a_change_that_failed_and_those_after_it_list_nothing() {
        let mut list = TagList::new(4);
        let at = |index| Asked { index, ..SIGNALED };
        assert_eq!(append(&mut list, 1, at(0xfffe)), 0);
        assert_eq!(append(&mut list, 2, at(0xffff)), 1);
        list.remove(0, at(0));
        assert_eq!(append(&mut list, 3, Asked { is_signaled: false, ..at(1) }), 2);
        assert!(list.confirm(true, 0).is_some(), "the first");
        list.fail(0xffff);
        list.fail(0);
        assert!(list.is_listed(0) && !list.is_listed(1) && !list.is_listed(2));
        assert_eq!(list.confirm(true, 0), None);
        assert_eq!(wr_id(list.complete(DONE, 0)), Some(1), "it was not removed");
        let free = std::iter::from_fn(|| list.next_entries().map(|_| append(&mut list, 4, QUIET)));
        assert_eq!(free.count(), 4);
    }

    #[test]
    fn an_unsignaled_removal_that_failed_leaves_the_entry_to_its_message() {
        let at = |index| Asked { index, ..QUIET };
        // The removed entry may be free, or taken by an append that failed as well.
        for reused in [0, 1, 2] {
            let mut list = TagList::new(2);
            append(&mut list, 1, at(0));
            append(&mut list, 2, at(1));
            list.remove(0, at(2));
            (0..reused).for_each(|round| {
                let entry = append(&mut list, 3, at(3 + 2 * round));
                list.remove(entry, at(4 + 2 * round));
            });
            list.fail(2);
            list.fail(3);
            assert_eq!(list.next_entries(), None, "the device has two");
            assert_eq!(wr_id(list.complete(DONE, 0)), Some(1));
            assert_eq!(wr_id(list.complete(DONE, 1)), Some(2));
            assert_eq!(list.complete(DONE, 2), None);
            assert!(list.next_entries().is_some());
        }
    }

    #[test]
    fn a_removal_before_a_confirmed_change_was_made() {
        let mut list = TagList::new(2);
        append(&mut list, 1, QUIET);
        list.remove(0, Asked { index: 1, ..QUIET });
        append(&mut list, 2, Asked { index: 2, ..SIGNALED });
        assert!(list.confirm(true, 0).is_some() && list.removals.is_empty());
        list.fail(3);
        assert_eq!(list.complete(DONE, 0), None);
        assert_eq!(wr_id(list.complete(DONE, 1)), Some(2));
    }

    #[test]
    fn a_change_tells_whether_the_device_has_counted_more() {
        let mut list = TagList::new(4);
        append(&mut list, 1, SIGNALED);
        assert_eq!(list.confirm(true, 0).map(|done| done.is_behind), Some(false));
        append(&mut list, 2, SIGNALED);
        assert_eq!(list.confirm(true, 1).map(|done| done.is_behind), Some(true));
        list.sync(Asked { unexpected: Some(0x1_0001), ..SIGNALED });
        assert_eq!(list.confirm(true, 1).map(|done| done.is_behind), Some(false));
        append(&mut list, 3, SIGNALED);
        assert_eq!(list.confirm(true, 1).map(|done| done.is_behind), Some(false));
    }

    #[test]
    fn unexpected_messages_ask_for_a_synchronization_before_the_device_stops() {
        let mut list = TagList::new(1);
        let asked = (0..0x3fff).filter(|_| list.count_unexpected()).count();
        assert!(asked == 0 && list.count_unexpected());
        list.sync(Asked { unexpected: Some(0x4000), ..QUIET });
        assert!(!list.count_unexpected());
    }
}
