//! REQ: a request for communication (IBTA volume 1, 12.6.5).

use zerocopy::big_endian::{U16, U32, U64};

use super::CommId;
use super::bits::{bit_fields, body};
use uverbs_soft_packet::Gid;

/// Transport service type of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TransportService {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Extended reliable connection: the sender is an XRC initiator.
    Xrc,
    /// Reliable datagram or an unknown extension. Not supported.
    Other,
}

body! {
    /// A request for communication.
    Req Req {
        @24 local_id: U32,
        /// Reserved byte, then the vendor id of enhanced connection establishment.
        @28 vendor_word: U32,
        /// The service that the request is for.
        @32 pub service_id: U64,
        /// GUID of the sender's channel adapter.
        @40 pub ca_guid: U64,
        @48 reserved_48: U32,
        /// Q_Key, for reliable datagram.
        @52 pub qkey: U32,
        @56 qpn_word: U32,
        @60 eecn_word: U32,
        @64 remote_eecn_word: U32,
        @68 psn_word: U32,
        /// P_Key of both sides.
        @72 pub pkey: U16,
        @74 mtu_byte: u8,
        @75 retries_byte: u8,
        /// The path to use.
        @76 pub primary: ReqPath,
        /// The alternate path, all zero for none.
        @120 pub alternate: ReqPath,
        /// Private data.
        @164 pub private_data: [u8; 92],
    }
}

bit_fields! { Req {
    /// Vendor id of enhanced connection establishment; 0 for none.
    vendor_id, set_vendor_id: u32 = vendor_word[0, 24];
    /// The sender's queue pair.
    qpn, set_qpn: u32 = qpn_word[8, 24];
    /// RDMA reads and atomics that the sender can answer at a time.
    responder_resources, set_responder_resources: u8 = qpn_word[0, 8];
    /// The sender's EE context, or its XRC number.
    eecn, set_eecn: u32 = eecn_word[8, 24];
    /// RDMA reads and atomics that the sender may have in flight.
    initiator_depth, set_initiator_depth: u8 = eecn_word[0, 8];
    /// The time that the receiver may take to answer: 4.096 us << n.
    remote_cm_response_timeout, set_remote_cm_response_timeout: u8 = remote_eecn_word[3, 5];
    /// Transport service type's number: 0 RC, 1 UC, 3 extended.
    transport_number, set_transport_number: u8 = remote_eecn_word[1, 2];
    /// Whether there is end-to-end flow control.
    flow_control, set_flow_control: u8 = remote_eecn_word[0, 1];
    /// The first PSN that the sender expects from the receiver.
    starting_psn, set_starting_psn: u32 = psn_word[8, 24];
    /// The time that the sender may take to answer: 4.096 us << n.
    local_cm_response_timeout, set_local_cm_response_timeout: u8 = psn_word[3, 5];
    /// Retries after a timeout.
    retry_count, set_retry_count: u8 = psn_word[0, 3];
    /// Path MTU as a code.
    path_mtu, set_path_mtu: u8 = mtu_byte[4, 4];
    /// Retries after RNR.
    rnr_retry_count, set_rnr_retry_count: u8 = mtu_byte[0, 3];
    /// How often a CM message may be sent again.
    max_cm_retries, set_max_cm_retries: u8 = retries_byte[4, 4];
    /// Whether the sender's queue pair has a shared receive queue.
    srq, set_srq: u8 = retries_byte[3, 1];
    /// Extended transport type: 1 XRC.
    extended_transport, set_extended_transport: u8 = retries_byte[0, 3];
} }

impl Req {
    const EXTENDED: u8 = 3;

    /// The sender's communication id.
    pub fn local_id(&self) -> CommId {
        CommId(self.local_id.get())
    }

    /// Sets the sender's communication id.
    pub fn set_local_id(&mut self, id: CommId) -> &mut Self {
        self.local_id = id.0.into();
        self
    }

    /// Transport service type.
    pub fn transport(&self) -> TransportService {
        match (self.transport_number(), self.extended_transport()) {
            (0, _) => TransportService::Rc,
            (1, _) => TransportService::Uc,
            (Self::EXTENDED, 1) => TransportService::Xrc,
            _ => TransportService::Other,
        }
    }

    /// Sets the transport service type; [`TransportService::Other`] becomes reliable datagram.
    pub fn set_transport(&mut self, transport: TransportService) -> &mut Self {
        let (number, extended) = match transport {
            TransportService::Rc => (0, 0),
            TransportService::Uc => (1, 0),
            TransportService::Other => (2, 0),
            TransportService::Xrc => (Self::EXTENDED, 1),
        };
        self.set_transport_number(number).set_extended_transport(extended)
    }

    /// Whether there is an alternate path (`cm_req_has_alt_path`: its LID decides).
    pub fn has_alternate(&self) -> bool {
        self.alternate.local_lid.get() != 0
    }
}

uverbs_soft_packet::wire_struct! {
    /// A path in REQ's layout; "local" is the sender.
    pub struct ReqPath {
        /// The sender's LID; 0xffff if the path is routed.
        pub local_lid: U16,
        /// The receiver's LID; 0xffff if the path is routed.
        pub remote_lid: U16,
        /// The sender's GID.
        pub local_gid: [u8; 16],
        /// The receiver's GID.
        pub remote_gid: [u8; 16],
        flow_word: U32,
        /// Traffic class.
        pub traffic_class: u8,
        /// Hop limit.
        pub hop_limit: u8,
        sl_byte: u8,
        timeout_byte: u8,
    }
}

bit_fields! { ReqPath {
    /// Flow label.
    flow_label, set_flow_label: u32 = flow_word[12, 20];
    /// Rate as a code; 0 on RoCE.
    packet_rate, set_packet_rate: u8 = flow_word[0, 6];
    /// Service level.
    sl, set_sl: u8 = sl_byte[4, 4];
    /// Whether both ports are in one subnet.
    subnet_local, set_subnet_local: u8 = sl_byte[3, 1];
    /// Local ACK timeout: 4.096 us << n.
    ack_timeout, set_ack_timeout: u8 = timeout_byte[3, 5];
} }

impl ReqPath {
    /// The sender's GID.
    pub fn local(&self) -> Gid {
        Gid(self.local_gid)
    }

    /// The receiver's GID.
    pub fn remote(&self) -> Gid {
        Gid(self.remote_gid)
    }
}

const _: () = assert!(size_of::<ReqPath>() == 44);
