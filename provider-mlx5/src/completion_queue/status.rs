//! How a request ended, and which operation it was.

use core::fmt;

use crate::format::{Opcode, Syndrome, TagEvent};

/// How a request ended, numbered as in `enum ibv_wc_status`.
#[doc(alias = "ibv_wc_status_str")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u8)]
pub enum Status {
    /// Success.
    Success = 0,
    /// A message did not fit its buffer, or was longer than the service allows.
    LocalLength = 1,
    /// The QP or the request was inconsistent.
    LocalQpOperation = 2,
    /// A local key did not allow the access.
    LocalProtection = 4,
    /// Not executed: the QP was in error already.
    Flushed = 5,
    /// A memory window could not be bound.
    WindowBind = 6,
    /// The responder's answer was invalid.
    BadResponse = 7,
    /// The responder could not access its own buffer.
    LocalAccess = 8,
    /// The responder refused the request as invalid.
    RemoteInvalidRequest = 9,
    /// The responder refused the access to its memory.
    RemoteAccess = 10,
    /// The responder could not carry out the request.
    RemoteOperation = 11,
    /// No answer after all retries.
    RetryExceeded = 12,
    /// The responder had no receive after all retries.
    RnrRetryExceeded = 13,
    /// The responder aborted.
    RemoteAborted = 16,
    /// An error that has no other name.
    General = 21,
    /// An entry of a list of tags was not removed, because a message had matched it.
    TagNotRemoved = 22,
    /// A rendezvous that the program must finish itself matched an entry of a list of tags.
    RendezvousIncomplete = 23,
}

impl Status {
    /// The text that `ibv_wc_status_str` has for the status.
    #[doc(alias = "ibv_wc_status_str")]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::LocalLength => "local length error",
            Self::LocalQpOperation => "local QP operation error",
            Self::LocalProtection => "local protection error",
            Self::Flushed => "Work Request Flushed Error",
            Self::WindowBind => "memory management operation error",
            Self::BadResponse => "bad response error",
            Self::LocalAccess => "local access error",
            Self::RemoteInvalidRequest => "remote invalid request error",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperation => "remote operation error",
            Self::RetryExceeded => "transport retry counter exceeded",
            Self::RnrRetryExceeded => "RNR retry counter exceeded",
            Self::RemoteAborted => "aborted error",
            Self::General => "general error",
            Self::TagNotRemoved => "TM error",
            Self::RendezvousIncomplete => "TM software rendezvous",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

impl From<Syndrome> for Status {
    fn from(syndrome: Syndrome) -> Self {
        match syndrome {
            Syndrome::LOCAL_LENGTH => Self::LocalLength,
            Syndrome::LOCAL_QP_OPERATION => Self::LocalQpOperation,
            Syndrome::LOCAL_PROTECTION => Self::LocalProtection,
            Syndrome::FLUSHED => Self::Flushed,
            Syndrome::MW_BIND => Self::WindowBind,
            Syndrome::BAD_RESPONSE => Self::BadResponse,
            Syndrome::LOCAL_ACCESS => Self::LocalAccess,
            Syndrome::REMOTE_INVALID_REQUEST => Self::RemoteInvalidRequest,
            Syndrome::REMOTE_ACCESS => Self::RemoteAccess,
            Syndrome::REMOTE_OPERATION => Self::RemoteOperation,
            Syndrome::TRANSPORT_RETRY_EXCEEDED => Self::RetryExceeded,
            Syndrome::RNR_RETRY_EXCEEDED => Self::RnrRetryExceeded,
            Syndrome::REMOTE_ABORTED => Self::RemoteAborted,
            _ => Self::General,
        }
    }
}

/// The operation that completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names are those of the operations")]
pub enum CompletionOpcode {
    Send,
    Write,
    Read,
    CompareSwap,
    FetchAdd,
    BindWindow,
    LocalInvalidate,
    Nop,
    Segmented,
    /// A receive.
    Recv,
    /// A receive, consumed by an RDMA write with immediate.
    RecvWriteImmediate,
    /// An entry was added to a list of tags.
    TagAdd,
    /// An entry of a list of tags was removed, or was to be.
    TagRemove,
    /// A tag matching SRQ received the number of unexpected messages that the program has handled.
    TagSync,
    /// A message with a tag. [`Completion::tag_event`](super::Completion::tag_event) tells whether
    /// it matched an entry.
    TagRecv,
    /// A receive of a tag matching SRQ: a message without a tag.
    NoTagRecv,
    /// A send queue opcode without a name here.
    Other(Opcode),
}

impl CompletionOpcode {
    /// The operation of a CQE of tag matching.
    pub(super) fn of_tag(event: TagEvent) -> Self {
        match event {
            TagEvent::APPEND => Self::TagAdd,
            TagEvent::REMOVE => Self::TagRemove,
            TagEvent::NOOP => Self::TagSync,
            TagEvent::NO_TAG => Self::NoTagRecv,
            _ => Self::TagRecv,
        }
    }
}
