//! An object's entries in the registries of the event files that may name it.

use std::sync::Arc;

use super::registry::{ObjectId, Observer, Registry, Wait, destroy_when_idle};
use crate::error::Result;

/// The registration of an object for events, from before its creation until after its destruction.
///
/// Dropping it without [`destroy`](Self::destroy) removes the object without waiting for its
/// unacknowledged events: it was never created, or the kernel did not destroy it.
#[derive(Debug)]
pub(crate) struct Registered {
    id: ObjectId,
    /// The completion channel's registry before the context's, which is the locking order.
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

    /// The object's id in events.
    pub(crate) fn id(&self) -> ObjectId {
        self.id
    }

    /// Sets the object's name for messages, when its number is known.
    pub(crate) fn set_name(&self, name: &str) {
        self.registries.iter().for_each(|registry| registry.set_name(self.id, name.to_owned()));
    }

    /// Replaces the observer of the object's asynchronous events.
    pub(crate) fn set_observer(&self, observer: Observer) {
        if let Some(registry) = self.registries.last() {
            registry.set_observer(self.id, observer);
        }
    }

    /// Waits until no event of the object is held, then runs `destroy`. Removes the object if that
    /// succeeds.
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
