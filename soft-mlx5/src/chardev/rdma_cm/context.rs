//! What ucma knows of ids and memberships (`struct ucma_context`, `struct ucma_multicast`).

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;

use nix::errno::Errno;

use uverbs_soft_cm::cma::{CmaId, MembershipId};

/// Names an open file.
pub(super) type FileNumber = u64;

/// An id of a file.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) file: FileNumber,
    pub(super) id: CmaId,
    /// The user's own value. While it is 0, as of requests that are not accepted, events are
    /// dropped.
    pub(super) uid: u64,
    /// Events fetched.
    pub(super) reported: u32,
    /// Connection requests that may still be queued.
    pub(super) backlog: u32,
    /// The device is gone: every command fails, except destroying the id.
    pub(super) is_closing: bool,
    /// Keep other processes' ids from its port.
    pub(super) claims: Vec<OwnedFd>,
    /// List a listener for other processes' connections.
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

/// Numbers of which the lowest free one is given.
#[derive(Debug)]
pub(super) struct Numbered<T>(BTreeMap<u32, T>);

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> Numbered<T> {
    pub(super) fn insert(&mut self, value: T) -> u32 {
        let taken = self.0.keys().zip(0..).take_while(|(number, at)| **number == *at).count();
        let number = taken as u32;
        self.0.insert(number, value);
        number
    }

    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.0.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.0.get_mut(&number)
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        self.0.remove(&number)
    }

    /// The numbers of those that are so.
    pub(super) fn numbers(&self, is_one: impl Fn(&T) -> bool) -> Vec<u32> {
        self.0.iter().filter(|(_, value)| is_one(value)).map(|(number, _)| *number).collect()
    }
}

/// All ids and memberships of a host.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    pub(super) ids: Numbered<Context>,
    pub(super) members: Numbered<Member>,
    numbers: HashMap<CmaId, u32>,
}

impl Contexts {
    pub(super) fn add(&mut self, file: FileNumber, id: CmaId, uid: u64) -> u32 {
        let (reported, backlog, is_closing, claims, listing) = Default::default();
        let context = Context { file, id, uid, reported, backlog, is_closing, claims, listing };
        let number = self.ids.insert(context);
        self.numbers.insert(id, number);
        number
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<Context> {
        let context = self.ids.remove(number)?;
        self.numbers.remove(&context.id);
        Some(context)
    }

    /// The number of the state machine's id.
    pub(super) fn number(&self, id: CmaId) -> Option<u32> {
        self.numbers.get(&id).copied()
    }

    /// An id of this file, whether or not its device is gone.
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
