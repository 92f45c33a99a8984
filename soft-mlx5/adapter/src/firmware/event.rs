//! Events as the device reports them to the driver, in entries of event queues.

use uverbs_mlx5_format::{EQE_SIZE, EventType};

use crate::core::{AsyncKind, Cqn, Event, EventObject};

/// Queue types in events of queues, `MLX5_EVENT_QUEUE_TYPE_*`: queue pairs, and queues that have no
/// type of their own.
pub const QUEUE_QP: u8 = 0;
/// Receive queues.
pub const QUEUE_RQ: u8 = 1;
/// Send queues.
pub const QUEUE_SQ: u8 = 2;
/// DC targets.
pub const QUEUE_DCT: u8 = 6;

/// Port change subtypes, `MLX5_PORT_CHANGE_SUBTYPE_*`.
const PORT_DOWN: u8 = 1;
const PORT_ACTIVE: u8 = 4;
const PORT_LID: u8 = 6;
const PORT_PKEY: u8 = 7;
const PORT_GUID: u8 = 8;
const PORT_CLIENT_REREGISTER: u8 = 9;

/// Bytes of an entry's data, and where they are in the entry.
const DATA: usize = 28;
const DATA_AT: usize = 32;

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// What happened.
    pub kind: EventType,
    /// Detail of what happened.
    pub subtype: u8,
    /// The data of the entry.
    pub data: [u8; DATA],
}

impl Report {
    /// An event of the core; `None` if the driver knows no such event.
    pub fn of(event: Event) -> Option<Self> {
        let (kind, object) = match event {
            Event::Completion { cqn } => return Some(Self::completion(cqn)),
            Event::AccessKeyViolation { dctn } => return Some(Self::key_violation(dctn.0)),
            Event::Async { kind, object } => (kind, object),
        };
        let (kind, subtype) = event_type(kind)?;
        let data = match object {
            EventObject::Cq(cqn) => with_number(0, cqn.0),
            EventObject::Qp(qpn) => queue(QUEUE_QP, qpn.0),
            EventObject::Srq(srqn) => queue(QUEUE_QP, srqn.0),
            EventObject::Port(port) => with_port(port),
            EventObject::Device => [0; DATA],
        };
        Some(Self { kind, subtype, data })
    }

    fn completion(cqn: Cqn) -> Self {
        Self { kind: EventType::COMPLETION, subtype: 0, data: with_number(24, cqn.0) }
    }

    /// The port is up, or not.
    pub fn of_port(port: u8, is_up: bool) -> Self {
        let subtype = if is_up { PORT_ACTIVE } else { PORT_DOWN };
        Self { kind: EventType::PORT_CHANGE, subtype, data: with_port(port) }
    }

    /// A DC target is drained.
    pub fn drained(dctn: u32) -> Self {
        Self { kind: EventType::DCT_DRAINED, subtype: 0, data: with_number(24, dctn) }
    }

    /// A DC target got a packet with a wrong access key.
    fn key_violation(dctn: u32) -> Self {
        Self { kind: EventType::DCT_KEY_VIOLATION, subtype: 0, data: with_number(24, dctn) }
    }

    /// Commands have completed: a mask of their descriptors.
    pub fn of_commands(mask: u32) -> Self {
        Self { kind: EventType::COMMAND, subtype: 0, data: with_number(0, mask) }
    }

    /// The same event, if it is about a queue of this type. The core's events do not name the type.
    pub fn of_queue(mut self, queue_type: u8) -> Self {
        let elsewhere = [EventType::COMPLETION, EventType::CQ_ERROR, EventType::PORT_CHANGE];
        if !elsewhere.contains(&self.kind) {
            self.data[20] = queue_type;
        }
        self
    }

    /// The entry, which the software owns in the first lap of the ring.
    pub fn entry(&self) -> [u8; EQE_SIZE] {
        let mut entry = [0; EQE_SIZE];
        entry[1] = self.kind.0;
        entry[3] = self.subtype;
        entry[DATA_AT..DATA_AT + DATA].copy_from_slice(&self.data);
        entry
    }

    /// The number of the queue that the event is about. Events of ports are about none.
    /// Kernel: `devx_get_obj_id_from_event` of hw/mlx5/devx.c.
    pub fn number(&self) -> Option<u32> {
        let at = match self.kind {
            EventType::PORT_CHANGE => return None,
            EventType::CQ_ERROR => 0,
            _ => 24,
        };
        let bytes = &self.data[at + 1..at + 4];
        Some(u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]))
    }
}

fn event_type(kind: AsyncKind) -> Option<(EventType, u8)> {
    Some(match kind {
        AsyncKind::CqError => (EventType::CQ_ERROR, 0),
        AsyncKind::QpFatal | AsyncKind::WqFatal => (EventType::WQ_CATASTROPHIC_ERROR, 0),
        AsyncKind::QpRequestError => (EventType::WQ_INVALID_REQUEST_ERROR, 0),
        AsyncKind::QpAccessError => (EventType::WQ_ACCESS_ERROR, 0),
        AsyncKind::CommunicationEstablished => (EventType::COMMUNICATION_ESTABLISHED, 0),
        AsyncKind::SqDrained => (EventType::SQ_DRAINED, 0),
        AsyncKind::PathMigrated => (EventType::PATH_MIGRATED, 0),
        AsyncKind::PathMigrationFailed => (EventType::PATH_MIGRATION_FAILED, 0),
        AsyncKind::LastWqeReached => (EventType::SRQ_LAST_WQE, 0),
        AsyncKind::SrqError => (EventType::SRQ_CATASTROPHIC_ERROR, 0),
        AsyncKind::SrqLimitReached => (EventType::SRQ_LIMIT, 0),
        AsyncKind::PortActive => (EventType::PORT_CHANGE, PORT_ACTIVE),
        AsyncKind::PortError => (EventType::PORT_CHANGE, PORT_DOWN),
        AsyncKind::LidChange => (EventType::PORT_CHANGE, PORT_LID),
        AsyncKind::PkeyChange => (EventType::PORT_CHANGE, PORT_PKEY),
        AsyncKind::GidChange => (EventType::PORT_CHANGE, PORT_GUID),
        AsyncKind::ClientReregister => (EventType::PORT_CHANGE, PORT_CLIENT_REREGISTER),
        AsyncKind::DeviceFatal => (EventType::INTERNAL_ERROR, 0),
        AsyncKind::SmChange => return None,
    })
}

fn with_number(at: usize, number: u32) -> [u8; DATA] {
    let mut data = [0; DATA];
    data[at..at + 4].copy_from_slice(&number.to_be_bytes());
    data
}

fn queue(kind: u8, number: u32) -> [u8; DATA] {
    let mut data = with_number(24, number);
    data[20] = kind;
    data
}

/// The port is in the upper half of byte 8.
fn with_port(port: u8) -> [u8; DATA] {
    let mut data = [0; DATA];
    data[8] = port << 4;
    data
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{Qpn, Srqn};

    fn number_of(kind: AsyncKind, object: EventObject) -> Option<u32> {
        Report::of(Event::Async { kind, object }).and_then(|report| report.number())
    }

    #[test]
    fn an_event_names_its_queue() {
        let report = Report::of(Event::Completion { cqn: Cqn(7) }).unwrap();
        assert_eq!(report.number(), Some(7));
        assert_eq!(report.of_queue(QUEUE_SQ), report, "a CQ has no type");
        let cq = EventObject::Cq(Cqn(0x12_3456));
        assert_eq!(number_of(AsyncKind::CqError, cq), Some(0x12_3456));
        let qp = EventObject::Qp(Qpn(8));
        assert_eq!(number_of(AsyncKind::CommunicationEstablished, qp), Some(8));
        let srq = EventObject::Srq(Srqn(9));
        assert_eq!(number_of(AsyncKind::SrqLimitReached, srq), Some(9));
        assert_eq!(number_of(AsyncKind::PortError, EventObject::Port(1)), None);
        assert_eq!(Report::drained(10).number(), Some(10));
        let fatal = Report::of(Event::Async { kind: AsyncKind::QpFatal, object: qp }).unwrap();
        assert_eq!((fatal.data[20], fatal.of_queue(QUEUE_SQ).data[20]), (QUEUE_QP, QUEUE_SQ));
    }
}
