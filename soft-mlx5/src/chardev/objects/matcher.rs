//! Rules in mlx5's own form: a matcher has the mask and each of its rules has a value, in the
//! layout of `fte_match_param`. Kernel: `MLX5_IB_METHOD_FLOW_MATCHER_CREATE`, `mlx5_ib_matcher_ns`,
//! `MLX5_IB_METHOD_CREATE_FLOW`, `get_dests`, `raw_fs_is_multicast` and `_create_raw_flow_rule` of
//! hw/mlx5/fs.c.
//!
//! Only received frames are modelled, and only their outer headers. Other tables, other headers and
//! fields that [`FlowFields`] does not have fail with EOPNOTSUPP.
#![forbid(unsafe_code)]

use nix::errno::Errno;
use uverbs_mlx5_format::U16;
use uverbs_uapi::mlx5::flags::CreateFlowFlags;
use uverbs_uapi::mlx5::object::{flow, flow_matcher};

use super::devx::destination::{self, receiver};
use super::flow::{self as rules, Destination, LAST_PRIORITY, TCP, UDP};
use super::object::{Kind, Object};
use crate::chardev::abi::call::Call;
use crate::chardev::abi::spec::Attribute;
use crate::core::{FlowFields, FlowRule, QpType};

/// Bytes of a match parameter (`struct mlx5_ib_match_params`), and of the outer headers in it.
const MATCH_BYTES: usize = 512;
const OUTER_BYTES: usize = 64;
/// `match_criteria_enable`: the outer headers count.
const OUTER: u8 = 1;
/// `IB_FLOW_ATTR_FLAGS_EGRESS`.
const EGRESS: u32 = 1 << 2;
/// `MLX5_IB_FLOW_TYPE_NORMAL`.
const NORMAL: u8 = 0;
/// `MLX5_IB_UAPI_FLOW_TABLE_TYPE_NIC_RX`, and the last of these that Linux 6.12 has, `_RDMA_TX`.
const RECEIVE: u64 = 0;
const LAST_TABLE: u64 = 4;

// Bytes of `fte_match_set_lyr_2_4`.
const DESTINATION_MAC: usize = 8;
const TCP_PORTS: usize = 20;
const UDP_PORTS: usize = 28;
const SOURCE_IP: usize = 32;
const DESTINATION_IP: usize = 48;

/// The bits of the outer headers that the rules of a matcher compare.
#[derive(Debug)]
pub(crate) struct Matcher {
    mask: Outer,
    kind: u8,
    priority: u16,
}

pub(crate) const CREATE: &[Attribute] = &[
    Attribute::new_handle(flow_matcher::create::HANDLE, Kind::FlowMatcher),
    Attribute::input_between(flow_matcher::create::MATCH_MASK, 1, MATCH_BYTES),
    // The priority of a normal rule; the other types have no data.
    Attribute::choice(flow_matcher::create::FLOW_TYPE, &[2, 0, 0, 0]),
    Attribute::input(flow_matcher::create::MATCH_CRITERIA, 1),
    Attribute::flags(flow_matcher::create::FLOW_FLAGS),
    Attribute::constant(flow_matcher::create::FT_TYPE).optional(),
];

pub(crate) const DESTROY: &[Attribute] =
    &[Attribute::destroy(flow_matcher::destroy::HANDLE, Kind::FlowMatcher)];

pub(crate) const CREATE_FLOW: &[Attribute] = &[
    Attribute::new_handle(flow::create::HANDLE, Kind::Flow),
    Attribute::input_between(flow::create::MATCH_VALUE, 1, MATCH_BYTES),
    Attribute::handle(flow::create::MATCHER, Kind::FlowMatcher),
    Attribute::handle(flow::create::DEST_QP, Kind::Qp).optional(),
    Attribute::handle(flow::create::DEST_DEVX, Kind::DevxObj).optional(),
    Attribute::input(flow::create::TAG, 4).optional(),
    Attribute::handles(flow::create::ARR_COUNTERS_DEVX, Kind::DevxObj, 1).optional(),
    Attribute::input_min(flow::create::ARR_COUNTERS_DEVX_OFFSET, 4).optional(),
    Attribute::flags(flow::create::FLAGS),
];

pub(crate) const DESTROY_FLOW: &[Attribute] =
    &[Attribute::destroy(flow::destroy::HANDLE, Kind::Flow)];

/// `MLX5_IB_METHOD_FLOW_MATCHER_CREATE`.
pub(crate) fn create(call: &mut Call<'_>) -> Result<(), Errno> {
    let mask = call.bytes(flow_matcher::create::MATCH_MASK)?;
    let (kind, data) = call.choice(flow_matcher::create::FLOW_TYPE)?;
    let criteria: u8 = call.input(flow_matcher::create::MATCH_CRITERIA)?;
    check_table(call)?;
    if criteria & !OUTER != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let mask = if criteria == OUTER { Outer::new(&mask) } else { Outer::new(&[]) };
    mask.check()?;
    let matcher = Matcher { mask, kind, priority: data as u16 };
    call.commit(Object::FlowMatcher(matcher)).map(drop)
}

/// `mlx5_ib_matcher_ns`: older programs name the egress table by the flag.
fn check_table(call: &Call<'_>) -> Result<(), Errno> {
    let named = call.has(flow_matcher::create::FT_TYPE.id());
    if named && call.has(flow_matcher::create::FLOW_FLAGS.id()) {
        return Err(Errno::EINVAL);
    }
    let table = match named {
        true => call.constant(flow_matcher::create::FT_TYPE, LAST_TABLE)?,
        false => RECEIVE,
    };
    let sends = call.flags(flow_matcher::create::FLOW_FLAGS, EGRESS)? != 0;
    if table != RECEIVE || sends {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(())
}

/// `MLX5_IB_METHOD_CREATE_FLOW`.
pub(crate) fn create_flow(call: &mut Call<'_>) -> Result<(), Errno> {
    let handle = call.handle(flow::create::MATCHER)?;
    let value = Outer::new(&call.bytes(flow::create::MATCH_VALUE)?);
    let known = CreateFlowFlags::DEFAULT_MISS | CreateFlowFlags::DROP;
    let flags = call.flags(flow::create::FLAGS, known.bits())?;
    let flags = CreateFlowFlags::from_bits_retain(flags);
    let destination = destination(call, flags)?;
    let counter = counter(call)?;
    let tag = call.has(flow::create::TAG.id()).then(|| call.input::<_, u32>(flow::create::TAG));
    let flow_tag = tag.transpose()?;
    if flow_tag.is_some_and(|tag| tag >= 1 << 24) {
        return Err(Errno::EINVAL);
    }
    let Matcher { mask, kind, priority } = call.object(Kind::FlowMatcher, handle)?.matcher()?;
    if *kind != NORMAL || flags.contains(CreateFlowFlags::DEFAULT_MISS) {
        return Err(Errno::EOPNOTSUPP);
    }
    if *priority > LAST_PRIORITY {
        return Err(Errno::ENOMEM);
    }
    let priority = rules::table(*priority, value.is_multicast(mask), false);
    let (value, mask) = value.fields(mask);
    let rule = FlowRule { priority, value, mask, target: None, flow_tag, passes_on: false };
    rules::commit(call, handle, destination, counter, rule)
}

/// Handle and number of the counter that a rule names (`get_counters`).
fn counter(call: &Call<'_>) -> Result<Option<(u32, u32)>, Errno> {
    let handles = call.handles(flow::create::ARR_COUNTERS_DEVX)?;
    let Some(handle) = handles.first() else { return Ok(None) };
    let offset = match call.given(flow::create::ARR_COUNTERS_DEVX_OFFSET.id()) {
        Ok(given) if given.length != 4 => return Err(Errno::EINVAL),
        Ok(_) => call.input(flow::create::ARR_COUNTERS_DEVX_OFFSET)?,
        Err(_) => 0,
    };
    Ok(Some((*handle, destination::counter(call, *handle, offset)?)))
}

/// Where frames go: either to an object or to the target that the flag names (`get_dests`).
fn destination(call: &Call<'_>, flags: CreateFlowFlags) -> Result<Destination, Errno> {
    let qp = call.optional_handle(flow::create::DEST_QP);
    let firmware = call.optional_handle(flow::create::DEST_DEVX);
    let both = CreateFlowFlags::DROP | CreateFlowFlags::DEFAULT_MISS;
    match (qp, firmware, !flags.is_empty()) {
        (Some(handle), None, false) => {
            let qp = call.object(Kind::Qp, handle)?.qp()?;
            let fits = qp.qp_type == QpType::RawPacket;
            if fits { Ok(Destination::Queue(handle, qp.qpn)) } else { Err(Errno::EINVAL) }
        }
        (None, Some(handle), false) => {
            let (receiver, mut handles) = receiver(call, handle)?;
            handles.push(handle);
            Ok(Destination::Passing(handles, receiver))
        }
        (None, None, true) if flags != both => Ok(Destination::Nowhere),
        _ => Err(Errno::EINVAL),
    }
}

/// The outer headers of a match parameter, `fte_match_set_lyr_2_4`.
#[derive(Clone, Copy, Debug)]
struct Outer([u8; OUTER_BYTES]);

/// Bits of byte 18: tags, fragments, the IP version, and the first of the TCP flags.
const CUSTOMER_TAG: u8 = 1 << 7;
const SERVICE_TAG: u8 = 1 << 6;
const FRAGMENT: u8 = 1 << 5;
const VERSION: u8 = 0xf << 1;
const FIRST_FLAG: u8 = 1;

impl Outer {
    /// Bytes that the program did not pass are zero.
    fn new(given: &[u8]) -> Self {
        let mut outer = [0; OUTER_BYTES];
        let length = given.len().min(OUTER_BYTES);
        outer[..length].copy_from_slice(&given[..length]);
        Self(outer)
    }

    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|i| self.0[at + i])
    }

    fn number(&self, at: usize) -> U16 {
        U16::new(u16::from_be_bytes(self.bytes(at)))
    }

    /// Refuses a mask with fields that the device's rules do not have.
    fn check(&self) -> Result<(), Errno> {
        let unknown = self.0[18] & (SERVICE_TAG | FRAGMENT | FIRST_FLAG) | self.0[19];
        let both = self.has_ports(TCP_PORTS) && self.has_ports(UDP_PORTS);
        if unknown != 0 || both { Err(Errno::EOPNOTSUPP) } else { Ok(()) }
    }

    fn has_ports(&self, at: usize) -> bool {
        self.bytes::<4>(at) != [0; 4]
    }

    /// Whether a mask is that of IPv4 addresses, which are in the last four bytes of the field.
    fn has_ipv4(&self) -> bool {
        let [source, destination] = [SOURCE_IP, DESTINATION_IP].map(|at| self.bytes::<12>(at));
        source == [0; 12] && destination == [0; 12]
    }

    fn ip(&self, at: usize, is_ipv4: bool) -> [u8; 16] {
        let mut ip = self.bytes(at);
        if is_ipv4 {
            ip.rotate_left(12);
        }
        ip
    }

    /// `raw_fs_is_multicast`, reproduced exactly: the mask of an IPv4 group must look like a group
    /// address, so a mask of all ones is not multicast.
    fn is_multicast(&self, mask: &Self) -> bool {
        let is_group = |outer: &Self| outer.0[DESTINATION_IP + 12] >> 4 == 0xe;
        let by_mac = self.0[DESTINATION_MAC] & mask.0[DESTINATION_MAC] & 1 == 1;
        by_mac || is_group(self) && is_group(mask)
    }

    /// A value and its mask as fields of the device's rules.
    fn fields(&self, mask: &Self) -> (FlowFields, FlowFields) {
        let is_ipv4 = mask.has_ipv4();
        let at = if mask.has_ports(TCP_PORTS) { TCP_PORTS } else { UDP_PORTS };
        let [mut value, mut bits] = [self, mask].map(|outer| FlowFields {
            destination_mac: outer.bytes(DESTINATION_MAC),
            source_mac: outer.bytes(0),
            ether_type: outer.number(6),
            vlan: outer.number(14),
            tagged: (outer.0[18] & CUSTOMER_TAG) >> 7,
            ip_version: (outer.0[18] & VERSION) >> 1,
            protocol: outer.0[16],
            traffic_class: outer.0[17],
            hop_limit: outer.0[27],
            source_ip: outer.ip(SOURCE_IP, is_ipv4),
            destination_ip: outer.ip(DESTINATION_IP, is_ipv4),
            source_port: outer.number(at),
            destination_port: outer.number(at + 2),
            ..FlowFields::default()
        });
        // Ports imply their protocol, even if the rule does not match it.
        if mask.has_ports(at) && bits.protocol == 0 {
            (value.protocol, bits.protocol) = (if at == TCP_PORTS { TCP } else { UDP }, 0xff);
        }
        (value, bits)
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    /// From 02:…:01 to 02:…:02, VLAN 5 with priority 3, IPv4 from 10.0.0.1 to 10.0.0.2, UDP from
    /// 1000 to 2000.
    fn frame() -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x81, 0, 0x60, 5, 8, 0];
        frame.extend([0x45, 0x2e, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x03, 0xe8, 0x07, 0xd0, 0, 8, 0, 0]);
        frame
    }

    /// Whether a rule takes the frame whose outer headers have `value` at `at`, all bits of it.
    fn takes(at: usize, value: &[u8]) -> bool {
        let (mut outer, mut mask) = (Outer::new(&[]), Outer::new(&[]));
        outer.0[at..at + value.len()].copy_from_slice(value);
        mask.0[at..at + value.len()].fill(0xff);
        if at == 18 {
            mask.0[18] = CUSTOMER_TAG | VERSION;
        }
        assert_eq!(mask.check(), Ok(()));
        let (value, mask) = outer.fields(&mask);
        let frame = FlowFields::of(&frame());
        let bytes = frame.as_bytes().iter().zip(value.as_bytes()).zip(mask.as_bytes());
        let mut bytes = bytes.map(|((frame, value), mask)| (frame ^ value) & mask);
        bytes.all(|difference| difference == 0)
    }

    #[test]
    fn fields_are_where_the_device_has_them() {
        let good: [(usize, &[u8]); 12] = [
            (0, &[2, 0, 0, 0, 0, 1]),
            (6, &[8, 0]),
            (8, &[2, 0, 0, 0, 0, 2]),
            (14, &[0x60, 5]),
            (16, &[17]),
            (17, &[0x2e]),
            (18, &[CUSTOMER_TAG | 4 << 1]),
            (27, &[64]),
            (28, &[0x03, 0xe8]),
            (30, &[0x07, 0xd0]),
            (44, &[10, 0, 0, 1]),
            (60, &[10, 0, 0, 2]),
        ];
        for (at, value) in good {
            assert!(takes(at, value), "byte {at}");
            let mut other = value.to_vec();
            other[0] ^= 8;
            assert!(!takes(at, &other), "byte {at}");
        }
        assert!(!takes(20, &[0x03, 0xe8]), "a TCP port");
        assert!(!takes(32, &[0; 16]), "an IPv6 address");
    }

    #[test]
    fn a_group_is_multicast_by_its_mac_or_under_a_mask_like_a_group() {
        let with = |at: usize, value: u8, mask: u8| {
            let (mut outer, mut bits) = (Outer::new(&[]), Outer::new(&[]));
            (outer.0[at], bits.0[at]) = (value, mask);
            outer.is_multicast(&bits)
        };
        assert!(with(8, 1, 0xff) && !with(8, 1, 0xfe) && !with(8, 2, 0xff));
        assert!(with(60, 0xe0, 0xe0) && !with(60, 0xe0, 0xff) && !with(60, 0xf0, 0xe0));
    }
}
