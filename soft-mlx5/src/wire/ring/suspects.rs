//! Finds out which other processes have ended.
//!
//! The kernel closes the sockets of every process that ends. But the end of a ring by itself does
//! not show that its process has ended: a device also closes a ring when it has too many. So the
//! station's name is also checked. It may become free a little later than the ring's socket,
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
pub(super) struct PeerProcess {
    pub(super) station: Station,
    pub(super) process: Option<i32>,
}

/// A process that may have ended, because one of its rings has.
#[derive(Debug)]
struct Suspect {
    peer: PeerProcess,
    /// When its name is tried next.
    next: u64,
    /// Nanoseconds between that attempt and the one after it.
    pause: u64,
}

/// Processes that may have ended, until it is known whether they have.
#[derive(Debug, Default)]
pub(super) struct Suspects(Vec<Suspect>);

impl Suspects {
    /// Records that a ring to or from the station has ended; `socket` was its socket.
    pub(super) fn suspect(&mut self, now: u64, station: Station, socket: &OwnedFd) {
        let peer = PeerProcess { station, process: socket::process(socket) };
        self.0.retain(|suspect| suspect.peer != peer);
        self.0.push(Suspect { peer, next: now, pause: FIRST });
    }

    /// When [`Suspects::take`] must be called next.
    pub(super) fn next(&self) -> Option<u64> {
        self.0.iter().map(|suspect| suspect.next).min()
    }

    /// The stations of processes that have ended. A process that has another ring is skipped,
    /// because the end of that ring adds it again.
    pub(super) fn take(
        &mut self,
        now: u64,
        has_ring: impl Fn(PeerProcess) -> bool,
    ) -> Vec<Station> {
        let mut ended = Vec::new();
        self.0.retain_mut(|suspect| {
            let PeerProcess { station, process } = suspect.peer;
            if now < suspect.next {
                return true;
            }
            if has_ring(suspect.peer) {
                return false;
            }
            if socket::has_ended(station, process) {
                ended.push(station);
                return false;
            }
            (suspect.next, suspect.pause) = (now.saturating_add(suspect.pause), 2 * suspect.pause);
            suspect.pause <= LAST
        });
        ended
    }
}
