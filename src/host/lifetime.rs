//! Destroying the kernel's objects.

use std::sync::Arc;

use crate::error::{DestroyError, Error, ErrorKind, Result};
use crate::host::command::Commands;
use crate::host::events::{Wait, log_failed_drop};

/// A kernel object that may have events.
pub(crate) trait Destroy: Sized {
    /// Destroys it after its events have been acknowledged. On failure nothing has changed.
    fn destroy_in_place(&mut self, wait: Wait) -> Result<()>;
}

/// Destroys `object`, or returns it with the reason.
pub(crate) fn destroy<T: Destroy>(
    mut object: T,
    wait: Wait,
) -> std::result::Result<(), DestroyError<T>> {
    object.destroy_in_place(wait).map_err(|error| DestroyError::new(object, error))
}

/// Destroys the shared object if this is its last handle. Otherwise the error names the object and
/// its users.
pub(crate) fn destroy_unshared<S>(
    shared: &mut Arc<S>,
    verb: &'static str,
    (users, name): (&str, &str),
    destroy: impl FnOnce(&mut S) -> Result<()>,
) -> Result<()> {
    let others = Arc::strong_count(shared) - 1;
    match Arc::get_mut(shared) {
        Some(last) => destroy(last),
        None => {
            let cause = format!("{others} {users}(s) or handle(s) still use {name}");
            Err(Error::new(verb, ErrorKind::Busy, cause))
        }
    }
}

/// The parent that an object keeps alive.
pub(crate) trait Parent {
    /// The open device that commands go to.
    fn commands(&self) -> &Commands;
}

/// A kind of objects that are destroyed the same way.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) verb: &'static str,
    /// For messages: "protection domain".
    pub(crate) name: &'static str,
    pub(crate) destroy: fn(&Commands, &'static str, u32) -> Result<()>,
}

/// Makes a [`Kind`] of its verb, its name, and the handle attribute of the destroying method, which
/// has no other argument.
macro_rules! object_kind {
    ($verb:expr, $name:literal, $handle:path) => {
        $crate::host::lifetime::Kind {
            verb: $verb,
            name: $name,
            destroy: |commands, verb, handle| commands.destroy_handle(verb, $handle, handle),
        }
    };
}
pub(crate) use object_kind;

/// A kernel object without events and without memory. Dropping it destroys it, unless
/// [`Object::destroy`] has.
#[derive(Debug)]
pub(crate) struct Object<P: Parent> {
    pub(crate) parent: P,
    pub(crate) handle: u32,
    kind: &'static Kind,
    /// Whether this process still has to destroy it.
    live: bool,
}

impl<P: Parent> Object<P> {
    pub(crate) fn new(parent: P, handle: u32, kind: &'static Kind) -> Self {
        Self { parent, handle, kind, live: true }
    }

    /// An object that another context created and will destroy.
    pub(crate) fn borrowed(parent: P, handle: u32, kind: &'static Kind) -> Self {
        Self { parent, handle, kind, live: false }
    }

    pub(crate) fn destroy(&mut self) -> Result<()> {
        if self.live {
            (self.kind.destroy)(self.parent.commands(), self.kind.verb, self.handle)?;
            self.live = false;
        }
        Ok(())
    }
}

impl<P: Parent> Drop for Object<P> {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            log_failed_drop(self.kind.name, &error);
        }
    }
}

/// Defines the three methods that destroy an object with events, for its verb in C and its errors.
macro_rules! destroy_methods {
    ($verb:literal, $errors:literal) => {
        /// Destroys it, after waiting until every event taken for it has been acknowledged.
        ///
        /// # Errors
        #[doc = $errors]
        #[doc(alias = $verb)]
        pub fn destroy(self) -> std::result::Result<(), $crate::error::DestroyError<Self>> {
            $crate::host::lifetime::destroy(self, $crate::host::events::Wait::Forever)
        }

        /// As `destroy`, waiting for at most `bound`.
        ///
        /// # Errors
        /// Also `TimedOut`, with the number of unacknowledged events.
        #[doc = $errors]
        pub fn destroy_within(
            self,
            bound: std::time::Duration,
        ) -> std::result::Result<(), $crate::error::DestroyError<Self>> {
            $crate::host::lifetime::destroy(self, $crate::host::events::Wait::AtMost(bound))
        }

        /// As `destroy`, without waiting.
        ///
        /// # Errors
        /// Also `Busy`, with the number of unacknowledged events.
        #[doc = $errors]
        pub fn try_destroy(self) -> std::result::Result<(), $crate::error::DestroyError<Self>> {
            $crate::host::lifetime::destroy(self, $crate::host::events::Wait::Never)
        }
    };
}
pub(crate) use destroy_methods;

/// Defines the method that destroys an object of the raw layer in place, for its errors.
macro_rules! destroy_in_place_method {
    ($errors:literal) => {
        /// Destroys it in place, after waiting for at most `bound` until every event taken for it
        /// has been acknowledged: for programs that cannot move it, because other threads have its
        /// address.
        ///
        /// # Errors
        /// `TimedOut` while events are held;
        #[doc = $errors]
        /// On an error nothing has changed.
        ///
        /// # Safety
        /// After `Ok` the value is only posted to, polled or dropped: the kernel may reuse its
        /// handle for another object.
        pub unsafe fn destroy_in_place_within(
            &mut self,
            bound: std::time::Duration,
        ) -> $crate::error::Result<()> {
            self.destroy_in_place($crate::host::events::Wait::AtMost(bound))
        }
    };
}
pub(crate) use destroy_in_place_method;
