//! Converts events of the core to event queue entries.

use uverbs_mlx5_format::EventType;

use super::Firmware;
use uverbs_soft::core::{AsyncKind, Event, EventObject};

/// Queue types in QP and SRQ events, `MLX5_EVENT_QUEUE_TYPE_*`.
const QUEUE_QP: u8 = 0;

/// Port change subtypes, `MLX5_PORT_CHANGE_SUBTYPE_*`.
const PORT_DOWN: u8 = 1;
const PORT_ACTIVE: u8 = 4;
const PORT_LID: u8 = 6;
const PORT_PKEY: u8 = 7;
const PORT_GUID: u8 = 8;
const PORT_CLIENT_REREGISTER: u8 = 9;

/// The one port.
const PORT: u8 = 1;

impl Firmware {
    /// Delivers all events that the core has reported.
    pub(crate) fn deliver_events(&mut self) {
        while let Some(event) = self.core.take_event() {
            match event {
                Event::Completion { cqn } => self.completion(cqn.0),
                Event::Async { kind, object } => self.asynchronous(kind, object),
            }
        }
    }

    /// Tells the driver whether the port is up.
    pub(super) fn announce_port(&mut self) {
        let subtype = if self.port.is_up() { PORT_ACTIVE } else { PORT_DOWN };
        self.announce(EventType::PORT_CHANGE, subtype, &with_port(PORT));
    }

    /// Tells the driver that a DC target is drained.
    pub(super) fn drained(&mut self, dctn: u32) {
        self.announce(EventType::DCT_DRAINED, 0, &with_number(24, dctn));
    }

    fn completion(&mut self, cqn: u32) {
        let Some(queue) = self.objects.event_queue_of(cqn) else { return };
        self.post_event(queue, EventType::COMPLETION, 0, &with_number(24, cqn));
    }

    fn asynchronous(&mut self, kind: AsyncKind, object: EventObject) {
        let Some((event, subtype)) = event_type(kind) else {
            self.warn(format_args!("the driver knows no event for {kind:?}"));
            return;
        };
        let data = match object {
            EventObject::Cq(cqn) => with_number(0, cqn.0),
            EventObject::Qp(qpn) => queue(qpn.0),
            EventObject::Srq(srqn) => queue(srqn.0),
            EventObject::Port(port) => with_port(port),
            EventObject::Device => [0; 28],
        };
        self.announce(event, subtype, &data);
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

fn with_number(at: usize, number: u32) -> [u8; 28] {
    let mut data = [0; 28];
    data[at..at + 4].copy_from_slice(&number.to_be_bytes());
    data
}

fn queue(number: u32) -> [u8; 28] {
    let mut data = with_number(24, number);
    data[20] = QUEUE_QP;
    data
}

/// The port is in the upper half of byte 8.
fn with_port(port: u8) -> [u8; 28] {
    let mut data = [0; 28];
    data[8] = port << 4;
    data
}
