//! Which other processes have ended.
//!
//! The kernel closes the sockets of a process that ends, however it ends. But a ring's end alone
//! does not show that its process has ended: a device also hangs up where it wants no more rings.
//! So the station's name is tried as well. It may be free a little later than the ring's socket, as
//! the kernel closes one after the other.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;

use super::socket;
use crate::wire::Station;

/// Nanoseconds until a name that is still taken is tried for the second time; then twice as long
/// each time.
const FIRST: u64 = 1_000_000;

/// The longest such time: some minute. After it a forked child is believed to keep the name.
const LAST: u64 = FIRST << 16;

/// A process that has a station.
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

/// The processes of which a ring has ended, until it is known whether they have ended too.
#[derive(Debug, Default)]
pub(super) struct Ends(Vec<Doubt>);

impl Ends {
    /// A ring to or from the station has ended, which had this socket.
    pub(super) fn suspect(&mut self, now: u64, station: Station, socket: &OwnedFd) {
        let party = Party { station, process: socket::process(socket) };
        self.0.retain(|doubt| doubt.party != party);
        self.0.push(Doubt { party, next: now, pause: FIRST });
    }

    /// When [`Ends::take`] has something to do next.
    pub(super) fn next(&self) -> Option<u64> {
        self.0.iter().map(|doubt| doubt.next).min()
    }

    /// The stations of those that have ended. One that has another ring still is not asked: the
    /// end of that ring will raise the doubt again.
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
