//! DREQ and DREP: the end of a connection (IBTA volume 1, 12.6.10 and 12.6.11).

use zerocopy::big_endian::U32;

use super::CommId;
use super::bits::{bit_fields, body, both_ids};

body! {
    /// A request for disconnection.
    Dreq Dreq {
        @24 local_id: U32,
        @28 remote_id: U32,
        @32 qpn_word: U32,
        /// Private data.
        @36 pub private_data: [u8; 220],
    }
}

bit_fields! { Dreq {
    /// The receiver's queue pair. A request that names another one is ignored.
    remote_qpn, set_remote_qpn: u32 = qpn_word[8, 24];
} }

impl Dreq {
    /// A request with these ids, about the receiver's queue pair.
    pub fn new(local: CommId, remote: CommId, remote_qpn: u32) -> Self {
        *Self::default().set_ids(local, remote).set_remote_qpn(remote_qpn)
    }
}

body! {
    /// The reply to a request for disconnection.
    Drep Drep {
        @24 local_id: U32,
        @28 remote_id: U32,
        /// Private data.
        @32 pub private_data: [u8; 224],
    }
}

impl Drep {
    /// A reply with these ids.
    pub fn new(local: CommId, remote: CommId) -> Self {
        *Self::default().set_ids(local, remote)
    }
}

both_ids! { Dreq Drep }
