//! An object's entries in the registries of the event files that may name it.

use std::sync::Arc;

use super::registry::{ObjectId, Observer, Registry, Wait, destroy_when_idle};
use crate::error::Result;

/// An object that events may name, from before the kernel knows it until it is gone.
///
/// Dropping it forgets the object without waiting for events of it that are held: it was never
/// created, or the kernel did not destroy it.
#[derive(Debug)]
pub(crate) struct Registered {
    id: ObjectId,
    /// A completion channel's before the context's: the order in which they are locked.
    registries: Vec<Arc<Registry>>,
}

impl Registered {
    /// Registers a new object, with an observer for each registry.
    pub(crate) fn new(entries: impl IntoIterator<Item = (Arc<Registry>, Observer)>) -> Self {
        let id = ObjectId::new();
        let register = |(registry, observer): (Arc<Registry>, _)| {
            registry.register(id, observer);
            registry
        };
        Self { id, registries: entries.into_iter().map(register).collect() }
    }

    /// The id by which events name the object.
    pub(crate) fn id(&self) -> ObjectId {
        self.id
    }

    /// Gives the object the name that messages use, once the device has numbered it.
    pub(crate) fn set_name(&self, name: &str) {
        self.registries.iter().for_each(|registry| registry.set_name(self.id, name.to_owned()));
    }

    /// Changes what learns of the object's asynchronous events.
    pub(crate) fn set_observer(&self, observer: Observer) {
        if let Some(registry) = self.registries.last() {
            registry.set_observer(self.id, observer);
        }
    }

    /// Runs `destroy` at a moment when no event of the object is held, and forgets the object if
    /// that succeeds.
    pub(crate) fn destroy<R>(
        &self,
        verb: &'static str,
        wait: Wait,
        destroy: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        destroy_when_idle(&self.registries, self.id, verb, wait, destroy)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.registries.iter().for_each(|registry| registry.unregister(self.id));
    }
}
