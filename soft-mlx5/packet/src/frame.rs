//! Ethernet frames of raw packet queue pairs between software devices.
//!
//! RoCEv2 has no packet for an Ethernet frame, so the frame is the payload of a packet with a
//! manufacturer's opcode (specification 9.2.1: 0b110xxxxx to 0b111xxxxx). Every wire carries,
//! damages and checks it like any other packet. A recording contains only the frame.

use std::net::Ipv4Addr;

use super::{Addressing, Bth, Gid, MAX_PACKET, Opcode, Packet, Psn};

/// Opcode of a packet that carries a frame.
const FRAME: Opcode = Opcode(0xc0);

/// The longest frame that a wire carries: an IP packet of 4130 bytes after an Ethernet header and a
/// tag.
pub const LONGEST_FRAME: usize = MAX_PACKET - size_of::<Bth>();

/// The multicast group of all devices that receive Ethernet frames. A frame to a MAC address that
/// belongs to no station goes to this group, as a switch would flood it.
pub const ETHERNET_GROUP: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 18, 0, 1]);

/// The destination of a frame: the station that its MAC address names (`02:00:7f:x:y:z` is
/// 127.x.y.z), else [`ETHERNET_GROUP`].
pub fn frame_destination(frame: &[u8]) -> Gid {
    match frame {
        [0x02, 0x00, a @ 0x7f, b, c, d, ..] => Gid::from_ipv4(Ipv4Addr::new(*a, *b, *c, *d)),
        _ => ETHERNET_GROUP,
    }
}

impl Packet {
    /// Replaces the content by an Ethernet frame.
    pub fn start_frame(&mut self, addressing: Addressing, frame: &[u8]) {
        self.start(addressing, Bth::new(FRAME, 0xffff, 0, Psn::new(0)));
        self.payload(frame.len()).copy_from_slice(frame);
    }

    /// The Ethernet frame, if it carries one.
    pub fn frame(&self) -> Option<&[u8]> {
        let bth = self.bth().filter(|bth| bth.opcode() == FRAME && bth.version() == 0)?;
        let payload = self.bytes().get(size_of::<Bth>()..)?;
        payload.get(..payload.len().checked_sub(bth.pad())?)
    }
}
