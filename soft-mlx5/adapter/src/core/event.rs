//! Events from the core to its front end: completions of armed CQs, asynchronous events, and DC
//! access key violations.

use super::{Cqn, Qpn, Srqn};

/// An event for the host's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An armed CQ got a completion of the kind that it was armed for, and is disarmed.
    Completion {
        /// The CQ.
        cqn: Cqn,
    },
    /// An asynchronous event.
    Async {
        /// What happened.
        kind: AsyncKind,
        /// The object that it is about.
        object: EventObject,
    },
    /// An armed DC target got a packet with a wrong access key, and is disarmed.
    AccessKeyViolation {
        /// The target.
        dctn: Qpn,
    },
}

/// The object that an asynchronous event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventObject {
    /// A completion queue.
    Cq(Cqn),
    /// A queue pair.
    Qp(Qpn),
    /// A shared receive queue.
    Srq(Srqn),
    /// A port, counted from 1.
    Port(u8),
    /// The whole device.
    Device,
}

/// Kinds of asynchronous events, as `ibv_get_async_event(3)` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AsyncKind {
    /// The CQ is in error (overrun, or its buffer is gone).
    CqError,
    /// The QP failed in a way that no completion can report.
    QpFatal,
    /// The responder got an invalid request and went to the error state.
    QpRequestError,
    /// The responder got a request that its memory keys forbid and went to the error state.
    QpAccessError,
    /// The first packet arrived on a QP in RTR.
    CommunicationEstablished,
    /// The send queue is drained (SQD).
    SqDrained,
    /// The connection migrated to the alternate path.
    PathMigrated,
    /// The connection could not migrate to the alternate path.
    PathMigrationFailed,
    /// A QP in error has consumed its last WQE of its SRQ.
    LastWqeReached,
    /// The SRQ is in error.
    SrqError,
    /// Fewer receives than the limit are left in the SRQ.
    SrqLimitReached,
    /// The port became active.
    PortActive,
    /// The port became inactive.
    PortError,
    /// The port's LID changed.
    LidChange,
    /// The P_Key table changed.
    PkeyChange,
    /// The GID table changed.
    GidChange,
    /// The subnet manager changed.
    SmChange,
    /// The subnet manager asks clients to register again.
    ClientReregister,
    /// The device failed.
    DeviceFatal,
    /// A work queue (receive queue object) failed.
    WqFatal,
}
