//! LAP and APR: an alternate path for a connection (IBTA volume 1, 12.8.1 and 12.8.2). Linux
//! refuses them on RoCE and never sends LAP itself.

use zerocopy::big_endian::{U16, U32};

use super::CommId;
use super::bits::{bit_fields, body, both_ids};

uverbs_soft_packet::wire_struct! {
    /// A path in LAP's layout; "local" is the sender. Rate and traffic class have other positions
    /// than in [`ReqPath`](super::ReqPath).
    pub struct LapPath {
        /// The sender's LID.
        pub local_lid: U16,
        /// The receiver's LID.
        pub remote_lid: U16,
        /// The sender's GID.
        pub local_gid: [u8; 16],
        /// The receiver's GID.
        pub remote_gid: [u8; 16],
        flow_word: U32,
        /// Hop limit.
        pub hop_limit: u8,
        rate_byte: u8,
        sl_byte: u8,
        timeout_byte: u8,
    }
}

bit_fields! { LapPath {
    /// Flow label.
    flow_label, set_flow_label: u32 = flow_word[12, 20];
    /// Traffic class.
    traffic_class, set_traffic_class: u8 = flow_word[0, 8];
    /// Rate as a code.
    packet_rate, set_packet_rate: u8 = rate_byte[0, 6];
    /// Service level.
    sl, set_sl: u8 = sl_byte[4, 4];
    /// Whether both ports are in one subnet.
    subnet_local, set_subnet_local: u8 = sl_byte[3, 1];
    /// Local ACK timeout: 4.096 us << n.
    ack_timeout, set_ack_timeout: u8 = timeout_byte[3, 5];
} }

body! {
    /// Load alternate path.
    Lap Lap {
        @24 local_id: U32,
        @28 remote_id: U32,
        @32 reserved_32: U32,
        @36 qpn_word: U32,
        @40 reserved_40: U32,
        /// The path.
        @44 pub path: LapPath,
        /// Private data.
        @88 pub private_data: [u8; 168],
    }
}

bit_fields! { Lap {
    /// The receiver's queue pair.
    remote_qpn, set_remote_qpn: u32 = qpn_word[8, 24];
    /// The time that the receiver may take to answer: 4.096 us << n.
    remote_cm_response_timeout, set_remote_cm_response_timeout: u8 = qpn_word[3, 5];
} }

impl Lap {
    /// A message with these ids.
    pub fn new(local: CommId, remote: CommId, path: LapPath) -> Self {
        Self { path, ..*Self::default().set_ids(local, remote) }
    }
}

body! {
    /// Alternate path reply.
    Apr Apr {
        @24 local_id: U32,
        @28 remote_id: U32,
        @32 info_length: u8,
        /// 0 if the path was loaded, else the reason.
        @33 pub status: u8,
        @34 reserved_34: U16,
        @36 info: [u8; 72],
        /// Private data.
        @108 pub private_data: [u8; 148],
    }
}

impl Apr {
    /// Bytes of additional information that the message can hold.
    pub const INFO_LEN: usize = 72;

    /// A message with these ids.
    pub fn new(local: CommId, remote: CommId, status: u8) -> Self {
        Self { status, ..*Self::default().set_ids(local, remote) }
    }

    /// Additional information, at most as long as the field.
    pub fn info(&self) -> &[u8] {
        &self.info[..usize::from(self.info_length).min(Self::INFO_LEN)]
    }
}

both_ids! { Lap Apr }
