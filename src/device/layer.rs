//! The two layers as types, so that the compiler refuses to mix queues, handles and builders of
//! different layers.

mod sealed {
    use std::fmt::Debug;

    pub trait Sealed {
        /// Whether requests take slots.
        const TAKES_SLOTS: bool;
        /// An `S` on the safe layer, nothing on the raw one.
        type IfSafe<S: Debug>: Debug;
        /// Creates a value that only the safe layer needs.
        fn if_safe<S: Debug>(make: impl FnOnce() -> S) -> Self::IfSafe<S>;
        /// The `S` on the safe layer, `None` on the raw one.
        fn get<S: Debug>(state: &mut Self::IfSafe<S>) -> Option<&mut S>;
    }
}

/// A layer: [`Safe`] or [`Raw`].
pub trait Layer: sealed::Sealed + Copy + std::fmt::Debug + Send + Sync + 'static {}

/// The layer that takes [`Slot`](crate::Slot)s: the types at the root of this crate.
#[derive(Debug, Clone, Copy)]
pub enum Safe {}

/// The layer that takes addresses and keys, in `unsafe` functions: [`crate::raw`].
#[derive(Debug, Clone, Copy)]
pub enum Raw {}

impl sealed::Sealed for Safe {
    const TAKES_SLOTS: bool = true;
    type IfSafe<S: std::fmt::Debug> = S;
    fn if_safe<S: std::fmt::Debug>(make: impl FnOnce() -> S) -> S {
        make()
    }
    fn get<S: std::fmt::Debug>(state: &mut S) -> Option<&mut S> {
        Some(state)
    }
}

impl sealed::Sealed for Raw {
    const TAKES_SLOTS: bool = false;
    type IfSafe<S: std::fmt::Debug> = ();
    fn if_safe<S: std::fmt::Debug>(_: impl FnOnce() -> S) {}
    fn get<S: std::fmt::Debug>((): &mut ()) -> Option<&mut S> {
        None
    }
}

impl Layer for Safe {}
impl Layer for Raw {}
