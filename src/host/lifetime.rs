//! How objects end: what destroying has in common for all of them.

use std::sync::Arc;

use crate::error::{DestroyError, Error, ErrorKind, Result};
use crate::host::events::Wait;

/// An object of the kernel's that may have events.
pub(crate) trait Destroy: Sized {
    /// Destroys it, once its events have been acknowledged. On failure nothing has changed.
    fn destroy_in_place(&mut self, wait: Wait) -> Result<()>;
}

/// Destroys `object`, or gives it back with the reason.
pub(crate) fn destroy<T: Destroy>(
    mut object: T,
    wait: Wait,
) -> std::result::Result<(), DestroyError<T>> {
    object.destroy_in_place(wait).map_err(|error| DestroyError::new(object, error))
}

/// Runs `destroy` on what handles share, if nobody else holds one; else says who does, and what.
pub(crate) fn destroy_unshared<S>(
    shared: &mut Arc<S>,
    verb: &'static str,
    (users, name): (&str, &str),
    destroy: impl FnOnce(&mut S) -> Result<()>,
) -> Result<()> {
    let others = Arc::strong_count(shared) - 1;
    match Arc::get_mut(shared) {
        Some(alone) => destroy(alone),
        None => {
            let cause = format!("{others} {users}(s) or handle(s) still use {name}");
            Err(Error::new(verb, ErrorKind::Busy, cause))
        }
    }
}

/// The three ways to destroy an object with events; the argument says what can go wrong.
macro_rules! destroy_methods {
    ($errors:literal) => {
        /// Destroys it, waiting until every event got for it has been acknowledged.
        ///
        /// # Errors
        #[doc = $errors]
        pub fn destroy(self) -> std::result::Result<(), $crate::error::DestroyError<Self>> {
            $crate::host::lifetime::destroy(self, $crate::host::events::Wait::Forever)
        }

        /// As `destroy`, waiting for at most `bound`.
        ///
        /// # Errors
        /// Also `TimedOut`, naming what is outstanding.
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
        /// Also `Busy`, naming what is outstanding.
        #[doc = $errors]
        pub fn try_destroy(self) -> std::result::Result<(), $crate::error::DestroyError<Self>> {
            $crate::host::lifetime::destroy(self, $crate::host::events::Wait::Never)
        }
    };
}
pub(crate) use destroy_methods;
