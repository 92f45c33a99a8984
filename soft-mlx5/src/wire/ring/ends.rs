//! Finds out which other processes have ended.
//!
//! The kernel closes the sockets of every process that ends. But the end of a ring alone does not
//! show that its process has ended: a device also closes a ring when it has too many. So the
//! station's name is tried as well. It may become free a little later than the ring's socket,
//! because the kernel closes them one after the other.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;

use super::socket;
use crate::wire::Station;

/// Nanoseconds until a name that is still taken is tried again; doubles after each attempt.
const FIRST: u64 = 1_000_000;

/// The longest such time, about a minute. After it, a forked child is assumed to hold the name.
const LAST: u64 = FIRST << 16;

/// A process and its station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Party {
    pub(super) station: Station,
    pub(super) process: Option<i32>,
}

#[derive(Debug)]
struct Doubt {
    party: Party,
    next: u64,
    pause: u64,
}

/// Processes with an ended ring of which it is not known yet whether they have ended.
#[derive(Debug, Default)]
pub(super) struct Ends(Vec<Doubt>);

impl Ends {
    /// Notes that a ring to or from the station has ended; `socket` was its socket.
    pub(super) fn suspect(&mut self, now: u64, station: Station, socket: &OwnedFd) {
        let party = Party { station, process: socket::process(socket) };
        self.0.retain(|doubt| doubt.party != party);
        self.0.push(Doubt { party, next: now, pause: FIRST });
    }

    /// When [`Ends::take`] has to be called next.
    pub(super) fn next(&self) -> Option<u64> {
        self.0.iter().map(|doubt| doubt.next).min()
    }

    /// The stations of processes that have ended. A process that has another ring is skipped,
    /// because the end of that ring adds it again.
    pub(super) fn take(&mut self, now: u64, has_ring: impl Fn(Party) -> bool) -> Vec<Station> {
        let mut ended = Vec::new();
        self.0.retain_mut(|doubt| {
            let Party { station, process } = doubt.party;
            if now < doubt.next {
                return true;
            }
            if has_ring(doubt.party) {
                return false;
            }
            if socket::has_ended(station, process) {
                ended.push(station);
                return false;
            }
            (doubt.next, doubt.pause) = (now.saturating_add(doubt.pause), 2 * doubt.pause);
            doubt.pause <= LAST
        });
        ended
    }
}
