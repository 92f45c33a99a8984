//! Why the core refuses a command.

use super::ids::ObjectId;
use super::{ObjectKind, QpState};
use crate::memory::BusError;

/// Why a command was refused. A refused command has changed nothing.
///
/// The character device turns these into errno values, the PCI front end into firmware status and
/// syndrome. The variants are those that at least one of them needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoreError {
    /// No object of this kind has this number.
    #[error("no {kind} {number:#x}")]
    NotFound {
        /// Kind of object.
        kind: ObjectKind,
        /// The number asked for.
        number: u32,
    },
    /// Other objects still use it.
    #[error("{kind} {number:#x} is still used by {users} objects")]
    InUse {
        /// Kind of object.
        kind: ObjectKind,
        /// Its number.
        number: u32,
        /// How many objects use it.
        users: u32,
    },
    /// The device has reached its limit of objects of this kind.
    #[error("no {kind} left")]
    LimitReached {
        /// Kind of object.
        kind: ObjectKind,
    },
    /// A parameter is out of range or contradicts another.
    #[error("bad {what}: {value:#x}")]
    BadParameter {
        /// The parameter's name.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// The QP cannot go from its state to the one asked for.
    #[error("no transition from {from:?} to {to:?}")]
    BadTransition {
        /// The QP's state.
        from: QpState,
        /// The state asked for.
        to: QpState,
    },
    /// Two flow rules of one priority and match contradict each other.
    #[error("flow rules with the same match: {0}")]
    FlowConflict(&'static str),
    /// A priority holds no more flow rules with new masks.
    #[error("no space for another mask among the flow rules of this priority")]
    FlowTableFull,
    /// The object is in its error state, in which it can only be destroyed.
    #[error("{kind} {number:#x} is in error")]
    InError {
        /// Kind of object.
        kind: ObjectKind,
        /// Its number.
        number: u32,
    },
    /// The object cannot do this.
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// Host memory that the command needs is not accessible.
    #[error(transparent)]
    Bus(#[from] BusError),
}

impl CoreError {
    pub(super) const fn missing((kind, number): ObjectId) -> Self {
        Self::NotFound { kind, number }
    }

    pub(super) const fn bad(what: &'static str, value: u64) -> Self {
        Self::BadParameter { what, value }
    }
}
