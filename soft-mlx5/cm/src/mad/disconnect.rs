//! DREQ and DREP: the end of a connection (IBTA volume 1, 12.6.10 and 12.6.11).

use zerocopy::big_endian::U32;

use super::CommId;
use super::bits::{bit_fields, body};

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
    /// A request between these, about the receiver's queue pair.
    pub fn new(local: CommId, remote: CommId, remote_qpn: u32) -> Self {
        let (local_id, remote_id) = (local.0.into(), remote.0.into());
        let mut dreq = Self { local_id, remote_id, ..Self::default() };
        dreq.set_remote_qpn(remote_qpn);
        dreq
    }

    /// The sender's communication id.
    pub fn local_id(&self) -> CommId {
        CommId(self.local_id.get())
    }

    /// The receiver's communication id.
    pub fn remote_id(&self) -> CommId {
        CommId(self.remote_id.get())
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
    /// A reply between these.
    pub fn new(local: CommId, remote: CommId) -> Self {
        Self { local_id: local.0.into(), remote_id: remote.0.into(), ..Self::default() }
    }

    /// The sender's communication id.
    pub fn local_id(&self) -> CommId {
        CommId(self.local_id.get())
    }

    /// The receiver's communication id.
    pub fn remote_id(&self) -> CommId {
        CommId(self.remote_id.get())
    }
}
