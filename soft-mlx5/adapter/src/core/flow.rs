//! Flow rules: which raw packet QPs get a frame.

use std::collections::BTreeMap;

use uverbs_mlx5_format::{U16, U32};
use zerocopy::IntoBytes;

use super::flow_table::FlowTable;
use super::frame::Layout;
use super::{CoreError, Qpn};

uverbs_soft_packet::wire_struct! {
    /// The fields of a frame's outermost headers that rules can match. A frame matches if it equals
    /// the value in every bit that is set in the mask.
    pub struct FlowFields {
        /// Destination MAC address.
        pub destination_mac: [u8; 6],
        /// Source MAC address.
        pub source_mac: [u8; 6],
        /// The type after all VLAN tags.
        pub ether_type: U16,
        /// Control information of the outermost VLAN tag.
        pub vlan: U16,
        /// 1 if there is a VLAN tag.
        pub tagged: u8,
        /// 4 or 6 if there is an IP header.
        pub ip_version: u8,
        /// Protocol that the IP header names.
        pub protocol: u8,
        /// Type of service or traffic class.
        pub traffic_class: u8,
        /// Time to live or hop limit.
        pub hop_limit: u8,
        /// Flags of the IPv4 header, in the lowest three bits.
        pub ip_flags: u8,
        /// Flow label of the IPv6 header.
        pub flow_label: U32,
        /// Source IP address; IPv4 in the first four bytes.
        pub source_ip: [u8; 16],
        /// Destination IP address; IPv4 in the first four bytes.
        pub destination_ip: [u8; 16],
        /// Source port of TCP or UDP.
        pub source_port: U16,
        /// Destination port of TCP or UDP.
        pub destination_port: U16,
    }
}

impl FlowFields {
    /// The fields of a frame; missing fields are zero.
    pub fn of(frame: &[u8]) -> Self {
        let layout = Layout::of(frame);
        let mut fields = Self { ether_type: U16::new(layout.ether_type), ..Self::default() };
        if let Some((macs, _)) = frame.split_at_checked(12) {
            fields.destination_mac.copy_from_slice(&macs[..6]);
            fields.source_mac.copy_from_slice(&macs[6..]);
        }
        if let Some(control) = layout.vlan {
            (fields.tagged, fields.vlan) = (1, U16::new(control));
        }
        fields.ip_version = layout.ip_version;
        fields.protocol = layout.protocol;
        let ip = frame.get(layout.network..).unwrap_or_default();
        match layout.ip_version {
            4 => fields.take_ipv4(ip),
            6 => fields.take_ipv6(ip),
            _ => {}
        }
        if let Some(at) = layout.ports(frame) {
            fields.source_port = U16::from_bytes([frame[at], frame[at + 1]]);
            fields.destination_port = U16::from_bytes([frame[at + 2], frame[at + 3]]);
        }
        fields
    }

    fn take_ipv4(&mut self, header: &[u8]) {
        self.traffic_class = header[1];
        self.ip_flags = header[6] >> 5;
        self.hop_limit = header[8];
        self.source_ip[..4].copy_from_slice(&header[12..16]);
        self.destination_ip[..4].copy_from_slice(&header[16..20]);
    }

    fn take_ipv6(&mut self, header: &[u8]) {
        let first = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
        self.traffic_class = (first >> 20) as u8;
        self.flow_label = U32::new(first & 0xf_ffff);
        self.hop_limit = header[7];
        self.source_ip.copy_from_slice(&header[8..24]);
        self.destination_ip.copy_from_slice(&header[24..40]);
    }
}

/// A rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowRule {
    /// Rules with the lowest number win.
    pub priority: u32,
    /// The required values. Bits outside the mask are refused.
    pub value: FlowFields,
    /// The bits of the fields that count.
    pub mask: FlowFields,
    /// The raw packet QP that gets the frame; `None` drops it.
    pub target: Option<Qpn>,
    /// Flow tag in the CQE, 24 bits. All rules of a priority with the same match have one tag: a
    /// rule without any gets the tag of the first.
    pub flow_tag: Option<u32>,
    /// Rules of later priorities see the frame as well (`IBV_FLOW_ATTR_FLAGS_DONT_TRAP`).
    pub passes_on: bool,
}

impl FlowRule {
    /// `check_valid_spec` of mlx5_core.
    fn check(&self) -> Result<(), CoreError> {
        let mut pairs = self.value.as_bytes().iter().zip(self.mask.as_bytes());
        let beyond = pairs.find_map(|(value, mask)| (value & !mask != 0).then_some(*value));
        match beyond {
            Some(value) => Err(CoreError::bad("value outside a rule's mask", value.into())),
            None => Ok(()),
        }
    }
}

/// Number of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u64);

/// The frames that a rule matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowHits {
    /// Frames.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// All rules of a device.
#[derive(Debug, Default)]
pub(super) struct Flows {
    /// By priority.
    tables: BTreeMap<u32, FlowTable>,
    rules: BTreeMap<FlowId, (FlowRule, FlowHits)>,
    last: u64,
}

impl Flows {
    pub(super) fn add(&mut self, rule: FlowRule) -> Result<FlowId, CoreError> {
        rule.check()?;
        let id = FlowId(self.last + 1);
        self.tables.entry(rule.priority).or_default().add(id, &rule)?;
        self.rules.insert(id, (rule, FlowHits::default()));
        self.last += 1;
        Ok(id)
    }

    pub(super) fn remove(&mut self, id: FlowId) -> Option<FlowRule> {
        let (rule, _) = self.rules.remove(&id)?;
        if let Some(table) = self.tables.get_mut(&rule.priority) {
            table.remove(id, &rule);
        }
        self.tables.retain(|_, table| !table.is_empty());
        Some(rule)
    }

    pub(super) fn hits(&self, id: FlowId) -> Option<FlowHits> {
        self.rules.get(&id).map(|(_, hits)| *hits)
    }

    /// The QPs that get the frame, with its flow tag; counts the hits.
    pub(super) fn steer(&mut self, frame: &[u8]) -> Vec<(Qpn, u32)> {
        let fields = FlowFields::of(frame);
        let mut receivers = Vec::new();
        for table in self.tables.values() {
            let Some(entry) = table.find(&fields) else { continue };
            receivers.extend(entry.receivers());
            for id in entry.rules() {
                let Some((_, hits)) = self.rules.get_mut(&id) else { continue };
                hits.frames += 1;
                hits.bytes += frame.len() as u64;
            }
            if !entry.passes_on() {
                break;
            }
        }
        receivers
    }
}
