//! The values that flow tables match: a frame's headers in the layout of `fte_match_param`.

use crate::core::FrameLayout;
use crate::firmware::bits::{Field, field};

/// Bytes of the parameter, and of each of its sections: outer headers, miscellaneous, inner
/// headers, and so on.
pub(super) const MATCH_BYTES: usize = 512;
pub(super) const SECTION: usize = 64;

// `fte_match_set_lyr_2_4` in the section of the outer headers.
const SOURCE_MAC: usize = 0;
const ETHER_TYPE: Field = field(0x30, 16);
const DESTINATION_MAC: usize = 8;
const VLAN: Field = field(0x70, 16);
const IP_PROTOCOL: Field = field(0x80, 8);
const IP_DSCP_ECN: Field = field(0x88, 8);
const CUSTOMER_TAG: Field = field(0x90, 1);
const SERVICE_TAG: Field = field(0x91, 1);
const FRAGMENT: Field = field(0x92, 1);
const IP_VERSION: Field = field(0x93, 4);
const TCP_FLAGS: Field = field(0x97, 9);
const TCP_PORTS: usize = 20;
const HOP_LIMIT: Field = field(0xd8, 8);
const UDP_PORTS: usize = 28;
const SOURCE_IP: usize = 32;
const DESTINATION_IP: usize = 48;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// A frame's headers, the value of an entry, or the mask of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MatchValue(pub(super) Box<[u8; MATCH_BYTES]>);

impl Default for MatchValue {
    fn default() -> Self {
        Self(Box::new([0; MATCH_BYTES]))
    }
}

impl MatchValue {
    /// A frame's headers. Only the outer ones are parsed.
    pub(super) fn of(frame: &[u8]) -> Self {
        let mut value = Self::default();
        let layout = FrameLayout::of(frame);
        value.copy(SOURCE_MAC, frame.get(6..12));
        value.copy(DESTINATION_MAC, frame.get(..6));
        value.set(ETHER_TYPE, layout.ether_type.into());
        if let Some(control) = layout.vlan {
            let customer = frame.get(12..14) == Some(&[0x81, 0x00]);
            value.set(VLAN, control.into());
            value.set(if customer { CUSTOMER_TAG } else { SERVICE_TAG }, 1);
        }
        let ip = frame.get(layout.network..).unwrap_or_default();
        match layout.ip_version {
            4 => value.ipv4(ip),
            6 => value.ipv6(ip),
            _ => return value,
        }
        value.set(IP_VERSION, layout.ip_version.into());
        value.set(IP_PROTOCOL, layout.protocol.into());
        value.transport(&layout, frame);
        value
    }

    fn ipv4(&mut self, ip: &[u8]) {
        let fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff;
        self.set(FRAGMENT, u64::from(fragment != 0));
        self.set(IP_DSCP_ECN, ip[1].into());
        self.set(HOP_LIMIT, ip[8].into());
        self.copy(SOURCE_IP + 12, ip.get(12..16));
        self.copy(DESTINATION_IP + 12, ip.get(16..20));
    }

    fn ipv6(&mut self, ip: &[u8]) {
        self.set(IP_DSCP_ECN, (u64::from(ip[0]) << 4 | u64::from(ip[1]) >> 4) & 0xff);
        self.set(HOP_LIMIT, ip[7].into());
        self.copy(SOURCE_IP, ip.get(8..24));
        self.copy(DESTINATION_IP, ip.get(24..40));
    }

    fn transport(&mut self, layout: &FrameLayout, frame: &[u8]) {
        let Some(at) = layout.ports(frame) else { return };
        let ports = frame.get(at..at + 4);
        match layout.protocol {
            UDP => self.copy(UDP_PORTS, ports),
            TCP => {
                self.copy(TCP_PORTS, ports);
                self.set(TCP_FLAGS, u64::from(frame[at + 12]) << 8 | u64::from(frame[at + 13]));
            }
            _ => {}
        }
    }

    fn set(&mut self, field: Field, value: u64) {
        field.set(&mut self.0[..], value);
    }

    fn copy(&mut self, at: usize, bytes: Option<&[u8]>) {
        let bytes = bytes.unwrap_or_default();
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Whether the frame equals `value` in the bits of `mask`.
    pub(super) fn agrees(&self, value: &Self, mask: &Self) -> bool {
        let pairs = self.0.iter().zip(value.0.iter()).zip(mask.0.iter());
        pairs.into_iter().all(|((a, b), mask)| (a ^ b) & mask == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ethernet, VLAN 5 with priority 3, IPv4 from 10.0.0.1 to 10.0.0.2, UDP from 1000 to 2000.
    fn frame() -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x81, 0, 0x60, 5, 8, 0];
        frame.extend([0x45, 0x2e, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x03, 0xe8, 0x07, 0xd0, 0, 8, 0, 0]);
        frame
    }

    #[test]
    fn headers_are_where_the_kernel_has_them() {
        let value = MatchValue::of(&frame());
        let outer = &value.0[..64];
        assert_eq!(outer[..8], [2, 0, 0, 0, 0, 1, 8, 0]);
        assert_eq!(outer[8..16], [2, 0, 0, 0, 0, 2, 0x60, 5]);
        assert_eq!(outer[16..20], [17, 0x2e, 0b1000_1000, 0]);
        assert_eq!(outer[27..32], [64, 0x03, 0xe8, 0x07, 0xd0]);
        assert_eq!((&outer[44..48], &outer[60..]), (&[10, 0, 0, 1][..], &[10, 0, 0, 2][..]));
        assert_eq!(outer[20..24], [0; 4], "no TCP ports");
    }

    #[test]
    fn only_what_the_mask_chooses_has_to_agree() {
        let frame = MatchValue::of(&frame());
        let (mut mask, mut value) = (MatchValue::default(), MatchValue::default());
        assert!(frame.agrees(&value, &mask), "nothing chosen");
        mask.0[8..14].fill(0xff);
        assert!(!frame.agrees(&value, &mask));
        value.copy(8, Some(&[2, 0, 0, 0, 0, 2]));
        value.0[0] = 0x77;
        assert!(frame.agrees(&value, &mask));
    }

    #[test]
    fn frames_that_end_early_have_the_headers_that_fit() {
        let whole = frame();
        for length in 0..whole.len() {
            let value = MatchValue::of(&whole[..length]);
            assert_eq!(value.0[64..], [0; MATCH_BYTES - 64]);
        }
    }
}
