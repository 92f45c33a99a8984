//! The attributes of a queue pair, for modify and query.

use std::time::Duration;

use super::State;
use crate::device::address::{AddressVector, Mtu};
use crate::memory::AccessFlags;

pub use uverbs_uapi::flags::QpAttrMask;

/// How long the requester waits for an acknowledgement before it retransmits: between 4.096 µs ×
/// 2^code and four times that. The software device starts with the shortest time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AckTimeout(u8);

impl AckTimeout {
    /// Wait for ever.
    pub const INFINITE: Self = Self(0);
    /// About 67 ms, the usual choice (code 14).
    pub const DEFAULT: Self = Self(14);

    /// From the five-bit code; higher bits are dropped.
    pub const fn from_code(code: u8) -> Self {
        Self(code & 31)
    }

    /// The shortest timeout that is at least `duration` (at most about 2.4 hours).
    pub fn at_least(duration: Duration) -> Self {
        let units = duration.as_nanos().div_ceil(4096);
        let code = units.max(2).next_power_of_two().trailing_zeros();
        Self(code.min(31) as u8)
    }

    /// The five-bit code.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The shortest wait; `None` if infinite.
    pub fn duration(self) -> Option<Duration> {
        (self.0 != 0).then(|| Duration::from_nanos(4096 << self.0))
    }
}

/// How long the peer waits after a receiver-not-ready NAK (IBTA table 45).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RnrTimer(u8);

/// Times by code, in units of 10 µs; code 0 is the longest.
const RNR_TIMES: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

impl RnrTimer {
    /// 0.64 ms (code 12), the usual choice.
    pub const DEFAULT: Self = Self(12);

    /// From the five-bit code; higher bits are dropped.
    pub const fn from_code(code: u8) -> Self {
        Self(code & 31)
    }

    /// The shortest timer that is at least `duration` (at most 655.36 ms).
    pub fn at_least(duration: Duration) -> Self {
        let wanted = duration.as_nanos().div_ceil(10_000);
        let fits = (1..32u8).find(|code| u128::from(RNR_TIMES[usize::from(*code)]) >= wanted);
        Self(fits.unwrap_or(0))
    }

    /// The five-bit code.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The time that the code means.
    pub fn duration(self) -> Duration {
        Duration::from_micros(u64::from(RNR_TIMES[usize::from(self.0)]) * 10)
    }
}

/// State of automatic path migration, with the numbers of `enum ibv_mig_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigrationState {
    /// The alternate path has become the primary one, or none is loaded.
    Migrated,
    /// The device shall load the alternate path.
    Rearm,
    /// The alternate path is loaded.
    Armed,
}

/// An alternate path for automatic path migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AlternatePath {
    /// The address of the alternate path.
    pub address: AddressVector,
    /// Index into the port's partition table.
    pub pkey_index: u16,
    /// Local ACK timeout on that path.
    pub timeout: AckTimeout,
}

/// Attributes for `modify_qp`; only those that are `Some` are sent.
///
/// ```
/// use uverbs::qp::{AccessFlags, QpAttributes, State};
/// let to_init = QpAttributes::to(State::Init)
///     .port(1)
///     .pkey_index(0)
///     .access(AccessFlags::REMOTE_WRITE);
/// assert_eq!(to_init.mask().to_string(), "STATE | ACCESS_FLAGS | PKEY_INDEX | PORT");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
#[allow(missing_docs)] // each field has the documented setter of the same name
#[doc(alias = "ibv_qp_attr")]
pub struct QpAttributes {
    pub state: Option<State>,
    pub current_state: Option<State>,
    pub drained_notify: Option<bool>,
    pub access: Option<AccessFlags>,
    pub pkey_index: Option<u16>,
    pub port: Option<u8>,
    pub qkey: Option<u32>,
    pub address: Option<AddressVector>,
    pub path_mtu: Option<Mtu>,
    pub timeout: Option<AckTimeout>,
    pub retry_count: Option<u8>,
    pub rnr_retry: Option<u8>,
    pub receive_psn: Option<u32>,
    pub max_initiator_reads: Option<u8>,
    pub alternate_path: Option<AlternatePath>,
    pub min_rnr_timer: Option<RnrTimer>,
    pub send_psn: Option<u32>,
    pub max_responder_reads: Option<u8>,
    pub migration_state: Option<MigrationState>,
    pub remote_qpn: Option<u32>,
    pub rate_limit: Option<u32>,
}

macro_rules! setters {
    ($($(#[$doc:meta])* $field:ident: $type:ty, $bit:ident;)*) => {
        impl QpAttributes {
            /// Attributes for a change to `state`.
            pub fn to(state: State) -> Self {
                Self { state: Some(state), ..Self::default() }
            }

            $($(#[$doc])* #[must_use] pub fn $field(mut self, value: $type) -> Self {
                self.$field = Some(value);
                self
            })*

            /// The attributes that are set.
            pub fn mask(&self) -> QpAttrMask {
                let mut mask = QpAttrMask::empty();
                mask.set(QpAttrMask::STATE, self.state.is_some());
                $(mask.set(QpAttrMask::$bit, self.$field.is_some());)*
                mask
            }
        }
    };
}

setters! {
    /// The state that the queue pair is assumed to be in: the device may have changed it.
    current_state: State, CUR_STATE;
    /// With a change to [`State::Sqd`]: report the end of draining by an event.
    drained_notify: bool, EN_SQD_ASYNC_NOTIFY;
    /// What peers may do through this queue pair.
    access: AccessFlags, ACCESS_FLAGS;
    /// Index into the port's partition table.
    pkey_index: u16, PKEY_INDEX;
    /// The local port, from 1.
    port: u8, PORT;
    /// Q_Key of a datagram queue pair.
    qkey: u32, QKEY;
    /// The primary path.
    address: AddressVector, AV;
    /// Largest payload per packet.
    path_mtu: Mtu, PATH_MTU;
    /// Local ACK timeout.
    timeout: AckTimeout, TIMEOUT;
    /// Retransmissions after a timeout, 0 to 7.
    retry_count: u8, RETRY_CNT;
    /// Retransmissions after a receiver-not-ready NAK, 0 to 7; 7 is unlimited.
    rnr_retry: u8, RNR_RETRY;
    /// First PSN expected from the peer, 24 bits.
    receive_psn: u32, RQ_PSN;
    /// Outstanding READs and atomics of this end (`max_rd_atomic`).
    max_initiator_reads: u8, MAX_QP_RD_ATOMIC;
    /// Path for automatic migration.
    alternate_path: AlternatePath, ALT_PATH;
    /// How long the peer has to wait before a retry when no receive is posted here.
    min_rnr_timer: RnrTimer, MIN_RNR_TIMER;
    /// First PSN sent, 24 bits.
    send_psn: u32, SQ_PSN;
    /// Outstanding READs and atomics of the peer (`max_dest_rd_atomic`).
    max_responder_reads: u8, MAX_DEST_RD_ATOMIC;
    /// Path migration state.
    migration_state: MigrationState, PATH_MIG_STATE;
    /// The peer's queue pair number, 24 bits.
    remote_qpn: u32, DEST_QPN;
    /// Packet pacing in kbit/s; 0 is unlimited.
    rate_limit: u32, RATE_LIMIT;
}

#[cfg(test)]
mod tests;
