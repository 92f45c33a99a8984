//! SIDR: finds the queue pair and Q_Key of a service id, for datagrams (IBTA volume 1, 12.11.1).

use zerocopy::big_endian::{U16, U32, U64};

use super::CommId;
use super::bits::{bit_fields, body};

body! {
    /// A service id resolution request.
    SidrReq SidrReq {
        @24 request_id: U32,
        /// P_Key of both sides.
        @28 pub pkey: U16,
        @30 reserved_30: U16,
        /// The service id.
        @32 pub service_id: U64,
        /// Private data.
        @40 pub private_data: [u8; 216],
    }
}

impl SidrReq {
    /// A request for this service.
    pub fn new(request: CommId, pkey: u16, service_id: u64) -> Self {
        let (pkey, service_id) = (pkey.into(), service_id.into());
        Self { request_id: request.0.into(), pkey, service_id, ..Self::default() }
    }

    /// The sender's number for the request.
    pub fn request_id(&self) -> CommId {
        CommId(self.request_id.get())
    }
}

/// Result of a service id resolution (IBTA volume 1, table 135).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// Queue pair and Q_Key are valid.
    pub const SUCCESS: Self = Self(0);
    /// No CM id listens on the service id.
    pub const UNSUPPORTED: Self = Self(1);
    /// The listener refuses.
    pub const REJECT: Self = Self(2);
    /// No queue pair is available.
    pub const NO_QP: Self = Self(3);
}

body! {
    /// A service id resolution reply.
    SidrRep SidrRep {
        @24 request_id: U32,
        @28 status: u8,
        @29 info_length: u8,
        @30 vendor_word: U16,
        @32 qpn_word: U32,
        /// The service id of the request.
        @36 pub service_id: U64,
        /// Q_Key of the queue pair.
        @44 pub qkey: U32,
        @48 info: [u8; 72],
        /// Private data.
        @120 pub private_data: [u8; 136],
    }
}

bit_fields! { SidrRep {
    /// The queue pair.
    qpn, set_qpn: u32 = qpn_word[8, 24];
    vendor_high, set_vendor_high: u32 = vendor_word[0, 8];
    vendor_low, set_vendor_low: u32 = qpn_word[0, 8];
} }

impl SidrRep {
    /// Bytes of additional information that the message can hold.
    pub const INFO_LEN: usize = 72;

    /// A reply about this service.
    pub fn new(request: CommId, status: SidrStatus, service_id: u64) -> Self {
        let (request_id, service_id) = (request.0.into(), service_id.into());
        Self { request_id, status: status.0, service_id, ..Self::default() }
    }

    /// The receiver's number for the request.
    pub fn request_id(&self) -> CommId {
        CommId(self.request_id.get())
    }

    /// The result.
    pub fn status(&self) -> SidrStatus {
        SidrStatus(self.status)
    }

    /// Vendor id of enhanced connection establishment; only 16 bits are sent.
    pub fn vendor_id(&self) -> u32 {
        self.vendor_high() << 8 | self.vendor_low()
    }

    /// Sets the vendor id; only its low 16 bits are used.
    pub fn set_vendor_id(&mut self, id: u32) -> &mut Self {
        self.set_vendor_high(id >> 8).set_vendor_low(id)
    }

    /// Additional information, at most as long as the field.
    pub fn info(&self) -> &[u8] {
        &self.info[..usize::from(self.info_length).min(Self::INFO_LEN)]
    }

    /// Sets additional information; `false` if there is more than fits.
    pub fn set_info(&mut self, info: &[u8]) -> bool {
        let Some(field) = self.info.get_mut(..info.len()) else {
            return false;
        };
        field.copy_from_slice(info);
        self.info_length = info.len() as u8;
        true
    }
}
