//! Refused commands: a status that the driver turns into an errno, a syndrome, and a message for
//! the log.

use std::fmt;

use crate::core::CoreError;

/// Command status, `MLX5_CMD_STAT_*` in the kernel's `include/linux/mlx5/device.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Status {
    BadOpcode = 0x2,
    BadParameter = 0x3,
    BadSystemState = 0x4,
    BadResource = 0x5,
    Busy = 0x6,
    LimitExceeded = 0x8,
    BadResourceState = 0x9,
    BadQpState = 0x10,
    BadInputLength = 0x50,
    BadOutputLength = 0x51,
}

/// A refused command. Real syndromes are not public. This device has its own, one for each kind of
/// error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The driver turns it into an errno.
    pub status: Status,
    /// The kind of error.
    pub syndrome: u32,
    detail: String,
}

/// The outcome of a command.
pub type Done = Result<(), Refusal>;

impl Refusal {
    /// A refusal with another reason.
    pub fn new(status: Status, syndrome: u32, detail: impl Into<String>) -> Self {
        Self { status, syndrome, detail: detail.into() }
    }

    /// No command has this opcode.
    pub fn unknown_opcode(opcode: u16) -> Self {
        Self::new(Status::BadOpcode, 0x50_0001, format!("unknown opcode {opcode:#x}"))
    }

    /// The input is too short.
    pub fn short_input(have: usize, need: usize) -> Self {
        Self::new(
            Status::BadInputLength,
            0x50_0002,
            format!("input of {have} bytes, {need} needed"),
        )
    }

    /// The output is too short.
    pub fn short_output(have: usize, need: usize) -> Self {
        Self::new(
            Status::BadOutputLength,
            0x50_0003,
            format!("output of {have} bytes, {need} needed"),
        )
    }

    /// A parameter has an invalid value.
    pub fn parameter(what: &str, value: u64) -> Self {
        Self::new(Status::BadParameter, 0x50_0004, format!("bad {what}: {value:#x}"))
    }

    /// There is no such object.
    pub fn no_such(kind: &str, number: u32) -> Self {
        Self::new(Status::BadResource, 0x50_0005, format!("no {kind} {number:#x}"))
    }

    /// Something uses the object.
    pub fn busy(kind: &str, number: u32) -> Self {
        Self::new(Status::Busy, 0x50_0006, format!("{kind} {number:#x} is in use"))
    }

    /// The limit of such objects is reached.
    pub fn limit(kind: &str) -> Self {
        Self::new(Status::LimitExceeded, 0x50_0007, format!("no {kind} left"))
    }

    /// The adapter's state does not allow this.
    pub fn wrong_state(detail: impl Into<String>) -> Self {
        Self::new(Status::BadSystemState, 0x50_0008, detail)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} ({:#x}), syndrome {:#x}: {}",
            self.status, self.status as u8, self.syndrome, self.detail
        )
    }
}

impl From<CoreError> for Refusal {
    fn from(error: CoreError) -> Self {
        let (status, syndrome) = match error {
            CoreError::NotFound { .. } => (Status::BadResource, 0x50_0005),
            CoreError::InUse { .. } => (Status::Busy, 0x50_0006),
            CoreError::LimitReached { .. } => (Status::LimitExceeded, 0x50_0007),
            CoreError::BadTransition { .. } => (Status::BadQpState, 0x50_0009),
            CoreError::InError { .. } => (Status::BadResourceState, 0x50_000a),
            CoreError::BadParameter { .. }
            | CoreError::FlowConflict(_)
            | CoreError::FlowTableFull
            | CoreError::Unsupported(_) => (Status::BadParameter, 0x50_0004),
            CoreError::Bus(_) => (Status::BadParameter, 0x50_000b),
        };
        Self::new(status, syndrome, error.to_string())
    }
}
