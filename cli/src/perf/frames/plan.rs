//! The agreement between the ends, and their messages between the rounds.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};
use uverbs::flow::UdpMulticast;

use crate::args::Perf;
use crate::failure::{Failure, Outcome};

/// Bytes of the shortest frame: headers, the number and the padding of Ethernet.
pub(super) const SHORTEST: u32 = 60;
/// Bytes of the longest frame that fits into a work request of four blocks.
pub(super) const LONGEST: u32 = 226;
/// Default number of receives of each queue.
const DEPTH: u32 = 512;

/// Frames of one length on two multicast lines: one to the answering end, one back.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::perf) struct Plan {
    pub(super) bytes: u32,
    /// The lines' group.
    group: Ipv4Addr,
    /// Receives of each queue.
    pub(super) depth: u32,
}

/// The port of the line to the answering end.
const THERE: u16 = 14_310;
/// The port of the line back.
const BACK: u16 = 14_311;

impl Plan {
    pub(super) fn new(arguments: &Perf) -> Outcome<Self> {
        let bytes = match arguments.sizes.as_deref() {
            None => 64,
            Some(text) => text.parse().ok().filter(|bytes| is_length(*bytes)).ok_or_else(|| {
                let bounds = format!("{SHORTEST} to {LONGEST} bytes");
                Failure::usage(format!(
                    "'{text}' is not the length of a frame ({bounds}, one length only)"
                ))
            })?,
        };
        // Simultaneous runs use different groups, from the administratively scoped range (RFC
        // 2365).
        let [.., a, b] = std::process::id().to_be_bytes();
        let (group, depth) = (Ipv4Addr::new(239, 192, a, b), arguments.depth.unwrap_or(DEPTH));
        Ok(Self { bytes, group, depth })
    }

    /// Checks a plan received from a peer.
    pub(in crate::perf) fn check(&self) -> Outcome {
        let is_group = self.group.octets()[..2] == [239, 192];
        match is_length(self.bytes) && is_group && (1..=8192).contains(&self.depth) {
            true => Ok(()),
            false => Err(Failure::failed("the peer's plan is out of range")),
        }
    }

    /// The line to the answering end.
    pub(super) fn there(&self) -> UdpMulticast {
        UdpMulticast::new(self.group, THERE)
    }

    /// The line back.
    pub(super) fn back(&self) -> UdpMulticast {
        UdpMulticast::new(self.group, BACK)
    }

    /// A line to which no frame is sent.
    pub(super) fn unused(&self, number: u16) -> UdpMulticast {
        UdpMulticast::new(self.group, BACK + 1 + number)
    }
}

fn is_length(bytes: u32) -> bool {
    (SHORTEST..=LONGEST).contains(&bytes)
}

/// A message of the measuring end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Say {
    /// Answer each frame.
    Answer,
    /// Answer each frame, and measure the times from arrival to departure.
    AnswerTimed,
    /// Count frames without answering.
    Count,
    /// All frames of the round have been sent: this many.
    Over(u64),
    /// There are no more rounds.
    Goodbye,
}

/// The answering end's counts of a round.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Counts {
    /// Frames that arrived.
    pub(super) frames: u64,
    /// Frames for which the device had no receive; `None` if it does not count them.
    pub(super) lost: Option<u64>,
    /// Times from arrival to departure on the device's clock, in nanoseconds, with their counts.
    pub(super) turnaround: Vec<(u64, u64)>,
    /// Why there are no such times.
    pub(super) untimed: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_of_strangers_are_checked() {
        let good = Plan { bytes: 64, group: Ipv4Addr::new(239, 192, 0, 1), depth: 512 };
        assert!(good.check().is_ok());
        for bad in [
            Plan { bytes: 59, ..good.clone() },
            Plan { bytes: 227, ..good.clone() },
            Plan { depth: 0, ..good.clone() },
            Plan { depth: 8193, ..good.clone() },
            Plan { group: Ipv4Addr::new(224, 0, 0, 1), ..good },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
