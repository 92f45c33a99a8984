//! REP and RTU: the reply to a request, and its confirmation (IBTA volume 1, 12.6.8 and 12.6.9).

use zerocopy::big_endian::{U32, U64};

use super::CommId;
use super::bits::{bit_fields, body, both_ids};

body! {
    /// A reply to a request for communication.
    Rep Rep {
        @24 local_id: U32,
        @28 remote_id: U32,
        /// Q_Key, for reliable datagram.
        @32 pub qkey: U32,
        @36 qpn_word: U32,
        @40 eecn_word: U32,
        @44 psn_word: U32,
        /// RDMA reads and atomics that the sender can answer at a time.
        @48 pub responder_resources: u8,
        /// RDMA reads and atomics that the sender may have in flight.
        @49 pub initiator_depth: u8,
        @50 delay_byte: u8,
        @51 retry_byte: u8,
        /// GUID of the sender's channel adapter.
        @52 pub ca_guid: U64,
        /// Private data.
        @60 pub private_data: [u8; 196],
    }
}

bit_fields! { Rep {
    /// The sender's queue pair.
    qpn, set_qpn: u32 = qpn_word[8, 24];
    /// The sender's EE context, or its XRC number.
    eecn, set_eecn: u32 = eecn_word[8, 24];
    /// The first PSN that the sender expects.
    starting_psn, set_starting_psn: u32 = psn_word[8, 24];
    /// The time in which the sender acknowledges: 4.096 us << n.
    target_ack_delay, set_target_ack_delay: u8 = delay_byte[3, 5];
    /// Whether the alternate path was accepted: 0 yes, 1 not supported, 2 rejected.
    failover_accepted, set_failover_accepted: u8 = delay_byte[1, 2];
    /// Whether there is end-to-end flow control.
    flow_control, set_flow_control: u8 = delay_byte[0, 1];
    /// Retries after RNR.
    rnr_retry_count, set_rnr_retry_count: u8 = retry_byte[5, 3];
    /// Whether the sender's queue pair has a shared receive queue.
    srq, set_srq: u8 = retry_byte[4, 1];
    vendor_high, set_vendor_high: u32 = qpn_word[0, 8];
    vendor_middle, set_vendor_middle: u32 = eecn_word[0, 8];
    vendor_low, set_vendor_low: u32 = psn_word[0, 8];
} }

impl Rep {
    /// Vendor id of enhanced connection establishment, 24 bits in three places.
    pub fn vendor_id(&self) -> u32 {
        self.vendor_high() << 16 | self.vendor_middle() << 8 | self.vendor_low()
    }

    /// Sets the vendor id; only its low 24 bits are used.
    pub fn set_vendor_id(&mut self, id: u32) -> &mut Self {
        self.set_vendor_high(id >> 16).set_vendor_middle(id >> 8).set_vendor_low(id)
    }
}

body! {
    /// Ready to use: confirms a reply.
    Rtu Rtu {
        @24 local_id: U32,
        @28 remote_id: U32,
        /// Private data.
        @32 pub private_data: [u8; 224],
    }
}

impl Rtu {
    /// A message between these.
    pub fn new(local: CommId, remote: CommId) -> Self {
        *Self::default().set_ids(local, remote)
    }
}

both_ids! { Rep Rtu }
