//! The two layers as types: queues, handles and builders of one cannot be used with those of the other.

#![forbid(unsafe_code)]

mod sealed {
    pub trait Sealed {
        /// Whether completions lead to slots.
        const TAKES_SLOTS: bool;
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
}

impl sealed::Sealed for Raw {
    const TAKES_SLOTS: bool = false;
}

impl Layer for Safe {}
impl Layer for Raw {}
