//! Event queue entries, by which the device notifies the kernel. User space never sees them; the
//! software device's PCI front end writes them.

use super::{U16, U32};

/// Size in bytes of an event queue entry.
pub const EQE_SIZE: usize = 64;

open_values! {
    /// The type of an event (`MLX5_EVENT_TYPE_*`).
    pub struct EventType {
        /// An armed CQ has a completion.
        COMPLETION = 0x00 => "completion",
        /// Path migration succeeded.
        PATH_MIGRATED = 0x01 => "path migrated",
        /// A QP in RTR received a packet.
        COMMUNICATION_ESTABLISHED = 0x02 => "communication established",
        /// The send queue is drained.
        SQ_DRAINED = 0x03 => "send queue drained",
        /// A CQ overran or failed.
        CQ_ERROR = 0x04 => "CQ error",
        /// A work queue failed.
        WQ_CATASTROPHIC_ERROR = 0x05 => "work queue catastrophic error",
        /// Path migration failed.
        PATH_MIGRATION_FAILED = 0x07 => "path migration failed",
        /// The device failed.
        INTERNAL_ERROR = 0x08 => "internal error",
        /// A port changed; see [`PortEvent`].
        PORT_CHANGE = 0x09 => "port change",
        /// Commands completed.
        COMMAND = 0x0a => "command",
        /// The device requests pages, or returns them.
        PAGE_REQUEST = 0x0b => "page request",
        /// A page fault on on-demand paging memory.
        PAGE_FAULT = 0x0c => "page fault",
        /// A virtual port's context changed.
        NIC_VPORT_CHANGE = 0x0d => "vport change",
        /// The eswitch's functions changed.
        ESW_FUNCTIONS_CHANGED = 0x0e => "eswitch functions changed",
        /// A function's state changed.
        VHCA_STATE_CHANGE = 0x0f => "function state change",
        /// A responder refused an invalid request.
        WQ_INVALID_REQUEST_ERROR = 0x10 => "work queue invalid request error",
        /// A responder refused an access.
        WQ_ACCESS_ERROR = 0x11 => "work queue access error",
        /// An SRQ failed.
        SRQ_CATASTROPHIC_ERROR = 0x12 => "SRQ catastrophic error",
        /// A QP in error has taken its last WQE from the SRQ.
        SRQ_LAST_WQE = 0x13 => "SRQ last WQE",
        /// An SRQ fell below its limit.
        SRQ_LIMIT = 0x14 => "SRQ limit",
        /// A general purpose pin.
        GPIO = 0x15 => "GPIO",
        /// A transceiver was plugged or unplugged.
        PORT_MODULE = 0x16 => "port module",
        /// The device is too hot.
        TEMPERATURE_WARNING = 0x17 => "temperature warning",
        /// An XRQ failed.
        XRQ_ERROR = 0x18 => "XRQ error",
        /// Doorbell or BlueFlame congestion.
        DOORBELL_CONGESTION = 0x1a => "doorbell congestion",
        /// A virtual lane stalled.
        STALL = 0x1b => "stall",
        /// A DC target is drained.
        DCT_DRAINED = 0x1c => "DCT drained",
        /// A DC target received a request with a wrong key.
        DCT_KEY_VIOLATION = 0x1d => "DCT key violation",
        /// A general event, see the subtype.
        GENERAL = 0x22 => "general event",
        /// A monitored counter passed its threshold.
        MONITOR_COUNTER = 0x24 => "monitor counter",
        /// Pulse per second.
        PPS = 0x25 => "PPS",
        /// The firmware tracer has records.
        DEVICE_TRACER = 0x26 => "device tracer",
        /// A firmware object changed.
        OBJECT_CHANGE = 0x27 => "object change",
    }
}

wire! {
    /// An event queue entry.
    pub struct Eqe: 64 {
        /// Reserved.
        0 => pub reserved0: u8,
        /// What happened.
        1 => pub event_type: EventType,
        /// Reserved.
        2 => pub reserved2: u8,
        /// Detail of what happened.
        3 => pub event_subtype: u8,
        /// Reserved.
        4 => pub reserved4: [u8; 28],
        /// One of the 28-byte structures below.
        32 => pub data: [u8; 28],
        /// Reserved.
        60 => pub reserved60: U16,
        /// Checksum.
        62 => pub signature: u8,
        /// 0 owner: parity of the lap; 1 in a new ring.
        63 => pub owner: u8,
    }
}

wire! {
    /// Event data: a completion.
    pub struct CompletionEvent: 28 {
        /// Reserved.
        0 => pub reserved0: [u8; 24],
        /// CQ number.
        24 => pub cqn: U32,
    }
}

wire! {
    /// Event data: a QP or SRQ. (A DC target's event has its number in the same place.)
    pub struct QpSrqEvent: 28 {
        /// Reserved.
        0 => pub reserved0: [u8; 20],
        /// 0 QP, 1 RQ, 2 SQ, 6 DCT (`MLX5_EVENT_QUEUE_TYPE_*`).
        20 => pub queue_type: u8,
        /// Reserved.
        21 => pub reserved21: [u8; 3],
        /// QP or SRQ number.
        24 => pub number: U32,
    }
}

wire! {
    /// Event data: a CQ error.
    pub struct CqErrorEvent: 28 {
        /// CQ number.
        0 => pub cqn: U32,
        /// Reserved.
        4 => pub reserved4: [u8; 7],
        /// Detail. The values are not public (1 for an overrun: unconfirmed).
        11 => pub syndrome: u8,
        /// Reserved.
        12 => pub reserved12: [u8; 16],
    }
}

wire! {
    /// Event data: a port changed. The EQE's subtype is the kind of change (1 down, 4 active, 5
    /// initialized, 6 LID, 7 P_Key, 8 GUID, 9 client reregistration).
    pub struct PortEvent: 28 {
        /// Reserved.
        0 => pub reserved0: [u8; 8],
        /// 7:4 port number.
        8 => pub port: u8,
        /// Reserved.
        9 => pub reserved9: [u8; 19],
    }
}

wire! {
    /// Event data: commands completed.
    pub struct CommandEvent: 28 {
        /// Bit N: the command in entry N of the command queue completed.
        0 => pub vector: U32,
        /// Reserved.
        4 => pub reserved4: [u8; 24],
    }
}

wire! {
    /// Event data: the device requests pages (positive) or returns them (negative).
    pub struct PageRequestEvent: 28 {
        /// 15 function of the embedded processor.
        0 => pub ec_function: U16,
        /// Function number.
        2 => pub function_id: U16,
        /// Number of 4 KiB pages, two's complement.
        4 => pub pages: U32,
        /// Reserved.
        8 => pub reserved8: [u8; 20],
    }
}
