//! Flow rules and their specifications.

use zerocopy::big_endian::{U16, U32};

use crate::enums::{FlowAttrType, FlowSpecType};
use crate::flags::FlowFlags;

crate::macros::abi_structs! {
    /// Head of a specification.
    struct FlowSpecHdr = "struct ib_uverbs_flow_spec_hdr", 8 {
        @0 kind: FlowSpecType as "type",
        /// Bytes of this specification.
        @4 size: u16,
        @6 reserved: u16,
    }

    /// Ethernet fields.
    struct FlowEthFilter = "struct ib_uverbs_flow_eth_filter", 16 {
        @0 dst_mac: [u8; 6],
        @6 src_mac: [u8; 6],
        @12 ether_type: U16,
        @14 vlan_tag: U16,
    }

    /// Matches Ethernet.
    struct FlowSpecEth = "struct ib_uverbs_flow_spec_eth", 40 {
        @0 hdr: FlowSpecHdr,
        /// Values to match.
        @8 val: FlowEthFilter,
        /// Which bits to match.
        @24 mask: FlowEthFilter,
    }

    /// IPv4 fields.
    struct FlowIpv4Filter = "struct ib_uverbs_flow_ipv4_filter", 12 {
        @0 src_ip: U32,
        @4 dst_ip: U32,
        @8 proto: u8,
        @9 tos: u8,
        @10 ttl: u8,
        @11 flags: u8,
    }

    /// Matches IPv4.
    struct FlowSpecIpv4 = "struct ib_uverbs_flow_spec_ipv4", 32 {
        @0 hdr: FlowSpecHdr,
        /// Values to match.
        @8 val: FlowIpv4Filter,
        /// Which bits to match.
        @20 mask: FlowIpv4Filter,
    }

    /// TCP or UDP fields.
    struct FlowTcpUdpFilter = "struct ib_uverbs_flow_tcp_udp_filter", 4 {
        @0 dst_port: U16,
        @2 src_port: U16,
    }

    /// Matches TCP or UDP.
    struct FlowSpecTcpUdp = "struct ib_uverbs_flow_spec_tcp_udp", 16 {
        @0 hdr: FlowSpecHdr,
        /// Values to match.
        @8 val: FlowTcpUdpFilter,
        /// Which bits to match.
        @12 mask: FlowTcpUdpFilter,
    }

    /// IPv6 fields.
    struct FlowIpv6Filter = "struct ib_uverbs_flow_ipv6_filter", 40 {
        @0 src_ip: [u8; 16],
        @16 dst_ip: [u8; 16],
        @32 flow_label: U32,
        @36 next_hdr: u8,
        @37 traffic_class: u8,
        @38 hop_limit: u8,
        @39 reserved: u8,
    }

    /// Matches IPv6.
    struct FlowSpecIpv6 = "struct ib_uverbs_flow_spec_ipv6", 88 {
        @0 hdr: FlowSpecHdr,
        /// Values to match.
        @8 val: FlowIpv6Filter,
        /// Which bits to match.
        @48 mask: FlowIpv6Filter,
    }

    /// Tags matching packets.
    struct FlowSpecActionTag = "struct ib_uverbs_flow_spec_action_tag", 16 {
        @0 hdr: FlowSpecHdr,
        @8 tag_id: u32,
        @12 reserved1: u32,
    }

    /// Drops matching packets.
    struct FlowSpecActionDrop = "struct ib_uverbs_flow_spec_action_drop", 8 {
        @0 hdr: FlowSpecHdr,
    }

    /// Counts matching packets in a counters object.
    struct FlowSpecActionCount = "struct ib_uverbs_flow_spec_action_count", 16 {
        @0 hdr: FlowSpecHdr,
        @8 handle: u32,
        @12 reserved1: u32,
    }

    /// Head of a rule; its specifications follow.
    struct FlowAttr = "struct ib_uverbs_flow_attr", 16 {
        @0 kind: FlowAttrType as "type",
        /// Bytes of the specifications.
        @4 size: u16,
        /// The rule with the lower number comes first.
        @6 priority: u16,
        /// Number of specifications.
        @8 num_of_specs: u8,
        @9 reserved: [u8; 2],
        /// Port, from 1.
        @11 port: u8,
        @12 flags: FlowFlags,
    }

    /// Adds a rule.
    struct CreateFlow = "struct ib_uverbs_create_flow", 24 {
        @0 comp_mask: u32,
        @4 qp_handle: u32,
        /// The rule.
        @8 flow_attr: FlowAttr,
    }

    /// The rule.
    struct CreateFlowResp = "struct ib_uverbs_create_flow_resp", 8 {
        @0 comp_mask: u32,
        /// Handle of the rule.
        @4 flow_handle: u32,
    }

    /// Removes a rule.
    struct DestroyFlow = "struct ib_uverbs_destroy_flow", 8 {
        @0 comp_mask: u32,
        /// Handle of the rule.
        @4 flow_handle: u32,
    }
}
