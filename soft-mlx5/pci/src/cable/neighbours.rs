//! MAC addresses of RoCE peers.

use std::collections::BTreeMap;

use uverbs_soft::packet::Gid;

/// A MAC address.
pub(crate) type Mac = [u8; 6];

const BROADCAST: Mac = [0xff; 6];

/// Peers kept at most; a guest cannot make the table grow without bound.
const MOST: usize = 4096;

/// What is known of the peers. The guest resolves addresses and tells them with its address paths; those of datagrams stand
/// in work requests, and who is not known yet is reached by a broadcast, as a switch floods what it cannot place.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    known: BTreeMap<Gid, Mac>,
}

impl Neighbours {
    pub(super) fn learn(&mut self, gid: Gid, mac: Mac) {
        let room = self.known.len() < MOST || self.known.contains_key(&gid);
        if mac != [0; 6] && !gid.is_zero() && room {
            self.known.insert(gid, mac);
        }
    }

    /// Learns from a frame that arrived: whose it is stands in its bytes 6 to 11.
    pub(super) fn learn_source(&mut self, gid: Gid, frame: &[u8]) {
        if let Some(mac) = frame.get(6..12).and_then(|bytes| bytes.try_into().ok()) {
            self.learn(gid, mac);
        }
    }

    /// The MAC address for a destination.
    pub(super) fn find(&self, gid: Gid) -> Mac {
        if gid.is_multicast() {
            return group(gid);
        }
        self.known.get(&gid).copied().or_else(|| link_local(gid)).unwrap_or(BROADCAST)
    }
}

/// RFC 1112 6.4 and RFC 2464 section 7.
fn group(gid: Gid) -> Mac {
    let [.., a, b, c, d] = gid.0;
    match gid.to_ipv4() {
        Some(_) => [0x01, 0x00, 0x5e, b & 0x7f, c, d],
        None => [0x33, 0x33, a, b, c, d],
    }
}

/// The address that the interface identifier of a link-local GID was made from (RFC 4291 appendix A).
fn link_local(gid: Gid) -> Option<Mac> {
    match gid.0 {
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f] => {
            Some([a ^ 2, b, c, d, e, f])
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_from_paths_frames_groups_and_identifiers() {
        let mut neighbours = Neighbours::default();
        let gid = Gid::from_ipv4([10, 0, 0, 1].into());
        assert_eq!(neighbours.find(gid), BROADCAST);
        neighbours.learn(gid, [2, 0, 0, 0, 0, 1]);
        assert_eq!(neighbours.find(gid), [2, 0, 0, 0, 0, 1]);
        neighbours.learn_source(gid, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 2, 8, 0]);
        assert_eq!(neighbours.find(gid), [2, 0, 0, 0, 0, 2]);
        let local = Gid::link_local([0, 0, 0x7f, 0xff, 0xfe, 0x12, 0, 1]);
        assert_eq!(neighbours.find(local), [2, 0, 0x7f, 0x12, 0, 1]);
        let group = Gid::from_ipv4([224, 1, 2, 3].into());
        assert_eq!(neighbours.find(group), [1, 0, 0x5e, 1, 2, 3]);
    }
}
