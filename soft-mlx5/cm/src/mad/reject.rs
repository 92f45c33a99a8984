//! REJ and MRA: refusing a message, and delaying its answer (IBTA volume 1, 12.6.6 and 12.6.7).

use zerocopy::big_endian::{U16, U32};

use super::CommId;
use super::bits::{bit_fields, body, both_ids};

/// The message that REJ refuses or MRA acknowledges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rejected(pub u8);

impl Rejected {
    /// REQ.
    pub const REQ: Self = Self(0);
    /// REP.
    pub const REP: Self = Self(1);
    /// Another message. In MRA: LAP. In REJ: no message is refused, but the attempt to connect is
    /// cancelled.
    pub const OTHER: Self = Self(2);
}

/// Why a message is refused (IBTA volume 1, 12.6.7.2). Numbers without a name are kept as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RejReason(pub u16);

impl RejReason {
    /// The sender of REJ timed out while it waited for an answer.
    pub const TIMEOUT: Self = Self(4);
    /// No id listens to the service id.
    pub const INVALID_SERVICE_ID: Self = Self(8);
    /// The queue pair or the communication id belongs to a connection that still exists here.
    pub const STALE_CONNECTION: Self = Self(10);
    /// The consumer's own reason.
    pub const CONSUMER_DEFINED: Self = Self(28);
}

body! {
    /// Refuses a message, or ends an attempt to connect.
    Rej Rej {
        /// 0 if the sender has none. In a refusal of a request that matched no id, these are bytes
        /// 28..32 of the request.
        @24 local_id: U32,
        /// 0 if the sender does not know it.
        @28 remote_id: U32,
        @32 message_byte: u8,
        @33 length_byte: u8,
        @34 reason: U16,
        @36 ari: [u8; 72],
        /// Private data.
        @108 pub private_data: [u8; 148],
    }
}

bit_fields! { Rej {
    rejected_number, set_rejected_number: u8 = message_byte[6, 2];
    /// Bytes of additional reject information, as the sender states it; may exceed the field.
    ari_length, set_ari_length: u8 = length_byte[1, 7];
} }

impl Rej {
    /// Bytes of additional reject information that the message can hold.
    pub const ARI_LEN: usize = 72;

    /// A refusal without further information.
    pub fn new(local: CommId, remote: CommId, rejected: Rejected, reason: RejReason) -> Self {
        let mut rej = Self { reason: reason.0.into(), ..Self::default() };
        *rej.set_ids(local, remote).set_rejected_number(rejected.0)
    }

    /// The message that is refused.
    pub fn rejected(&self) -> Rejected {
        Rejected(self.rejected_number())
    }

    /// The reason.
    pub fn reason(&self) -> RejReason {
        RejReason(self.reason.get())
    }

    /// Additional reject information, at most as long as the field.
    pub fn ari(&self) -> &[u8] {
        &self.ari[..usize::from(self.ari_length()).min(Self::ARI_LEN)]
    }

    /// Sets additional reject information; `false` if there is more than fits.
    pub fn set_ari(&mut self, ari: &[u8]) -> bool {
        let Some(field) = self.ari.get_mut(..ari.len()) else {
            return false;
        };
        field.copy_from_slice(ari);
        self.set_ari_length(ari.len() as u8);
        true
    }

    /// The sender's CA GUID, which is the additional information of a refusal with
    /// [`RejReason::TIMEOUT`]. As in the kernel, the length is not checked.
    pub fn ca_guid(&self) -> u64 {
        u64::from_be_bytes(std::array::from_fn(|index| self.ari[index]))
    }
}

body! {
    /// Message receipt acknowledgement: an answer will follow later.
    Mra Mra {
        @24 local_id: U32,
        @28 remote_id: U32,
        @32 message_byte: u8,
        @33 timeout_byte: u8,
        /// Private data.
        @34 pub private_data: [u8; 222],
    }
}

bit_fields! { Mra {
    acknowledged_number, set_acknowledged_number: u8 = message_byte[6, 2];
    /// The time that the sender needs: 4.096 us << n.
    service_timeout, set_service_timeout: u8 = timeout_byte[3, 5];
} }

impl Mra {
    /// An acknowledgement that asks the peer to wait for `4.096 us << service_timeout`.
    pub fn new(local: CommId, remote: CommId, message: Rejected, service_timeout: u8) -> Self {
        let mut mra = Self::default();
        mra.set_ids(local, remote).set_acknowledged_number(message.0);
        *mra.set_service_timeout(service_timeout)
    }

    /// The message that is acknowledged.
    pub fn acknowledged(&self) -> Rejected {
        Rejected(self.acknowledged_number())
    }
}

both_ids! { Rej Mra }
