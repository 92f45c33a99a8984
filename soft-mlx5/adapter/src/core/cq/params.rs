//! What a CQ is made with, what of it can change, and what a query says of it.

use crate::core::CoreError;
use crate::memory::PageMap;

/// Bytes from one CQE to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CqeSize {
    /// 64 bytes.
    #[default]
    B64,
    /// 128 bytes: the CQE proper is the second half, the first holds inline data.
    B128,
}

impl CqeSize {
    /// Bytes from one CQE to the next.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::B64 => 64,
            Self::B128 => 128,
        }
    }
}

/// When completions raise an event: at the `count`-th completion or `period` after the first,
/// whichever comes first. Zero in either means "at once".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moderation {
    /// Completions.
    pub count: u16,
    /// Microseconds.
    pub period: u16,
}

/// A ring of CQEs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CqRing {
    /// Where it is.
    pub buffer: PageMap,
    /// log2 of the number of CQEs, at most 24.
    pub log_entries: u8,
    /// Size of a CQE.
    pub cqe_size: CqeSize,
}

/// A CQ to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CqParams {
    /// The ring. The host has filled it with CQEs of opcode "invalid".
    pub ring: CqRing,
    /// Bus address of the doorbell record, a multiple of 8.
    pub doorbell_record: u64,
    /// Overwrite unread CQEs instead of going to the error state.
    pub ignore_overrun: bool,
    /// When completions raise events.
    pub moderation: Moderation,
}

/// The changes of a modify command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CqModify {
    /// Another ring; the host reads a resize CQE in the old one and continues in the new one.
    pub ring: Option<CqRing>,
    /// Other moderation.
    pub moderation: Option<Moderation>,
    /// Other overrun behaviour.
    pub ignore_overrun: Option<bool>,
}

/// The state of a CQ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CqInfo {
    /// The ring in use.
    pub ring: CqRing,
    /// Whether the CQ is in error.
    pub in_error: bool,
    /// CQEs written so far, modulo 2^24.
    pub producer_index: u32,
    /// CQEs that the host has consumed, modulo 2^24, according to its doorbell record when it was
    /// last read.
    pub consumer_index: u32,
    /// What the CQ is armed for, if it is.
    pub armed: Option<Armed>,
    /// When completions raise events.
    pub moderation: Moderation,
    /// Whether overruns are ignored.
    pub ignore_overrun: bool,
    /// QPs and SRQs that complete here.
    pub users: u32,
}

/// What an armed CQ waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// Any completion.
    Any,
    /// A solicited completion or an error.
    Solicited,
}

/// log2 of the most entries of a CQ (`log_max_cq_sz` of a ConnectX-5 and later). The distance of
/// two indices of a CQ is then less than half of their range.
pub const LOG_MAX_CQ: u8 = 22;

impl CqRing {
    pub(in crate::core) fn check(&self) -> Result<(), CoreError> {
        if self.log_entries > LOG_MAX_CQ {
            return Err(CoreError::bad("log2 of CQ size", u64::from(self.log_entries)));
        }
        Ok(())
    }
}

/// The clock behind a CQ's timestamps. Both numbers are the clock's value at the device's time 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamps {
    /// A counter of nanoseconds.
    Counter(u64),
    /// Seconds and nanoseconds since 1970.
    RealTime(u64),
}

impl Stamps {
    pub(super) fn of(self, now: u64) -> u64 {
        match self {
            Self::Counter(start) => now.wrapping_add(start),
            Self::RealTime(start) => split_seconds(now.wrapping_add(start)),
        }
    }
}

/// A real-time timestamp: seconds in the upper half, nanoseconds in the lower one
/// (`mlx5_real_time_cyc2time`, include/linux/mlx5/driver.h).
fn split_seconds(nanoseconds: u64) -> u64 {
    let (seconds, rest) = (nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
    (seconds << 32) | rest
}
