//! Counts references to objects, for the kinds of objects that the core does not know.
//!
//! An object with references cannot be destroyed. That a ConnectX refuses this is unconfirmed; the
//! driver destroys an object's users first.

use std::collections::HashMap;

use super::command::Command;
use super::refusal::{Done, Refusal};
use super::{Firmware, Objects};
use crate::core::{ObjectId, ObjectKind};

/// How often each object is referred to.
#[derive(Debug, Default)]
pub(super) struct References(HashMap<ObjectId, usize>);

impl References {
    pub(super) fn add(&mut self, objects: impl IntoIterator<Item = ObjectId>) {
        objects.into_iter().for_each(|object| *self.0.entry(object).or_default() += 1);
    }

    pub(super) fn remove(&mut self, objects: impl IntoIterator<Item = ObjectId>) {
        for object in objects {
            if let Some(count) = self.0.get_mut(&object) {
                *count -= 1;
                if *count == 0 {
                    self.0.remove(&object);
                }
            }
        }
    }

    /// Refuses the destruction of an object that another refers to.
    pub(super) fn check_unused(&self, object: ObjectId) -> Done {
        let (kind, number) = object;
        let is_used = self.0.contains_key(&object);
        if is_used { Err(Refusal::busy(&kind.to_string(), number)) } else { Ok(()) }
    }
}

impl Objects {
    /// Whether the object exists and others may refer to it. Of queues, only those that receive
    /// frames count.
    fn exists(&self, (kind, number): ObjectId) -> bool {
        match kind {
            ObjectKind::TransportDomain => self.transport_domains.check(number).is_ok(),
            ObjectKind::Tis => self.tis.contains(number),
            ObjectKind::Tir => self.tir.contains(number),
            ObjectKind::Rqt => self.rqt.contains(number),
            ObjectKind::Qp => self.is_receive_queue(number),
            _ => false,
        }
    }
}

impl Firmware<'_> {
    /// Whether a command may create references to these objects.
    pub(super) fn check_references(&self, command: &Command<'_>, objects: &[ObjectId]) -> Done {
        objects.iter().try_for_each(|object| match *object {
            (ObjectKind::Qp, number) if self.front.has_work_queue(number) => Ok(()),
            lacking if !self.objects.exists(lacking) => Err(no_such(lacking)),
            known => self.check_uses(command, &[known]),
        })
    }
}

/// The refusal for an object that does not exist, or that the command may not name.
pub(super) fn no_such((kind, number): ObjectId) -> Refusal {
    Refusal::no_such(&kind.to_string(), number)
}
