//! Flow rules of raw packet QPs.
//! Kernel: `ib_uverbs_ex_create_flow` (core/uverbs_cmd.c), `mlx5_ib_create_flow` and
//! `parse_flow_attr` (hw/mlx5/fs.c).
//!
//! The kernel requires CAP_NET_RAW. This device does not, because its frames reach no real network.
#![forbid(unsafe_code)]

use nix::errno::Errno;
use uverbs_uapi::enums::{FlowAttrType, FlowSpecType};
use uverbs_uapi::flags::FlowFlags;
use uverbs_uapi::objects::device::invoke_write;
use uverbs_uapi::objects::flow::destroy;
use uverbs_uapi::write::flow::{
    CreateFlow, CreateFlowResp, DestroyFlow, FlowAttr, FlowEthFilter, FlowIpv4Filter,
    FlowIpv6Filter, FlowSpecActionCount, FlowSpecActionTag, FlowSpecHdr, FlowTcpUdpFilter,
};
use zerocopy::{FromBytes, IntoBytes};

use super::counters::{self, Counters};
use super::object::{Kind, Object};
use super::qp::rss;
use crate::chardev::abi::call::Call;
use crate::chardev::abi::spec::Attribute;
use crate::chardev::device::DeviceShared;
use crate::core::{Core, CoreError, FlowFields, FlowId, FlowRule, QpType, Qpn, ReceiveSource};
use crate::locking::lock;
use crate::packet::ETHERNET_GROUP;

/// A rule.
#[derive(Debug)]
pub(crate) struct Flow {
    /// Handles of the objects that receive its frames, and of its matcher, if it has one.
    parents: Vec<u32>,
    /// An internal queue pair that spreads its frames over several receive queues.
    spread: Option<Qpn>,
    /// One, or two for [`FlowAttrType::ALL_DEFAULT`].
    rules: Vec<FlowId>,
    /// Handle and counter set that count its frames.
    counters: Option<(u32, Counters)>,
    /// Whether a counter of the firmware counts them.
    counted_by_firmware: bool,
}

impl Flow {
    pub(crate) fn parents(&self) -> Vec<u32> {
        let counters = self.counters.as_ref().map(|(handle, _)| *handle);
        self.parents.iter().copied().chain(counters).collect()
    }

    pub(crate) fn destroy(&self, device: &DeviceShared) -> Result<(), Errno> {
        for rule in &self.rules {
            let hits = device.core(|core| {
                let hits = core.flow_hits(*rule)?;
                if self.counted_by_firmware {
                    lock(&device.firmware).flow_counters.unbind(*rule, core);
                }
                core.remove_flow(*rule).map(|()| hits)
            })?;
            if let Some((_, counters)) = &self.counters {
                counters.unbind(*rule, hits);
            }
        }
        device.leave(ETHERNET_GROUP);
        self.spread.map_or(Ok(()), |qpn| device.core(|core| core.destroy_qp(qpn)))
    }
}

/// Where a rule in mlx5's own form sends frames.
pub(super) enum Destination {
    /// They are dropped.
    Nowhere,
    /// To a queue pair, with its handle.
    Queue(u32, Qpn),
    /// To this receiver. The handles of these objects stay as long as the rule.
    Passing(Vec<u32>, ReceiveSource),
}

/// `MLX5_IB_FLOW_LAST_PRIO`.
pub(super) const LAST_PRIORITY: u16 = 15;
/// `IB_FLOW_SPEC_SUPPORT_LAYERS`.
const MAX_SPECS: u8 = 10;
/// Sniffers get copies before all other rules (in the kernel they have their own namespaces,
/// `MLX5_FLOW_NAMESPACE_SNIFFER_RX` and `_TX`). Frames that the port sends come back to it here, so
/// one rule covers both directions.
const SNIFFERS: u32 = 0;
/// Priority 0 of a program.
const FIRST: u32 = SNIFFERS + 1;
/// `MLX5_IB_FLOW_MCAST_PRIO`: after all priorities that a program can name, each of which has two
/// tables.
const MULTICAST: u32 = FIRST + 2 * (LAST_PRIORITY as u32 + 1);
/// After the multicast rules (`MLX5_IB_FLOW_LEFTOVERS_PRIO`).
const LEFTOVERS: u32 = MULTICAST + 1;
/// This flag and all higher ones are unknown (`IB_FLOW_ATTR_FLAGS_RESERVED`).
const RESERVED_FLAGS: u32 = 1 << 3;

const ETHER_TYPE_IPV4: u16 = 0x0800;
const ETHER_TYPE_IPV6: u16 = 0x86dd;
const ETHER_TYPE_MPLS: u16 = 0x8847;
const ETHER_TYPE_MPLS_GROUP: u16 = 0x8848;

pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;

pub(crate) const DESTROY: &[Attribute] = &[Attribute::destroy(destroy::HANDLE, Kind::Flow)];

/// `IB_USER_VERBS_EX_CMD_CREATE_FLOW`.
pub(crate) fn create(call: &mut Call<'_>) -> Result<(), Errno> {
    let whole = call.bytes(invoke_write::CORE_IN)?;
    let (request, specs) = CreateFlow::read_from_prefix(&whole).map_err(|_| Errno::ENOSPC)?;
    let attr = request.flow_attr;
    check(&request)?;
    let specs = specs.get(..attr.size.into()).ok_or(Errno::ENOSPC)?;
    let flow_handle = call.reserve()?;
    if attr.port != 1 {
        return Err(Errno::EINVAL);
    }
    let qp = call.object(Kind::Qp, request.qp_handle)?.qp()?;
    let (qpn, qp_type) = (qp.qpn, qp.qp_type);
    match qp_type {
        QpType::RawPacket => {}
        // Underlay QPs of IPoIB.
        QpType::Ud => return Err(Errno::EOPNOTSUPP),
        _ => return Err(Errno::EINVAL),
    }
    let parsed = parse(&attr, specs, qpn)?;
    let points = counters::read_points(call)?;
    let (rules, counters) = place(&attr, parsed)?;
    let counters = counters.map(|handle| Ok((handle, Counters::of(call, handle)?))).transpose()?;
    if let Some((_, counters)) = &counters {
        counters.check(&points)?;
    }
    let rules = enter(call, &rules)?;
    if let (Some((_, counters)), [rule]) = (&counters, &*rules) {
        counters.bind(*rule, points);
    }
    let parents = vec![request.qp_handle];
    let flow = Flow { parents, spread: None, rules, counters, counted_by_firmware: false };
    call.commit(Object::Flow(flow))?;
    call.response(&CreateFlowResp { comp_mask: 0, flow_handle })
}

/// A rule in mlx5's own form.
pub(super) fn commit(
    call: &mut Call<'_>,
    matcher: u32,
    to: Destination,
    counter: Option<(u32, u32)>,
    rule: FlowRule,
) -> Result<(), Errno> {
    let device = call.file.device.clone();
    let mut parents = vec![matcher];
    let mut spread = None;
    let target = match to {
        Destination::Nowhere => None,
        Destination::Queue(handle, qpn) => {
            parents.push(handle);
            Some(qpn)
        }
        Destination::Passing(handles, receiver) => {
            parents.extend(handles);
            spread = Some(rss::create_without_queues(&device, receiver)?);
            spread
        }
    };
    match enter(call, &[FlowRule { target, ..rule }]) {
        Ok(rules) => {
            parents.extend(counter.map(|(handle, _)| handle));
            count_by(&device, &rules, counter);
            let counted_by_firmware = counter.is_some();
            let flow = Flow { parents, spread, rules, counters: None, counted_by_firmware };
            call.commit(Object::Flow(flow)).map(drop)
        }
        Err(error) => {
            spread.map_or(Ok(()), |qpn| device.core(|core| core.destroy_qp(qpn)))?;
            Err(error)
        }
    }
}

/// Counts the frames of new rules by a counter of the firmware.
fn count_by(device: &DeviceShared, rules: &[FlowId], counter: Option<(u32, u32)>) {
    if let Some((_, number)) = counter {
        let counters = &mut lock(&device.firmware).flow_counters;
        rules.iter().for_each(|rule| counters.bind(*rule, number));
    }
}

/// Adds the rules to the device, and joins the port to the group of the ports that receive Ethernet
/// frames.
fn enter(call: &Call<'_>, rules: &[FlowRule]) -> Result<Vec<FlowId>, Errno> {
    let device = &call.file.device;
    let rules = device.core(|core| add(core, rules))?;
    // If joining fails, the rules are removed here. If the call fails after `commit`, destroying
    // the object removes both.
    let joined = device.join(ETHERNET_GROUP);
    if let Err(error) = joined {
        rules.iter().try_for_each(|rule| device.core(|core| core.remove_flow(*rule)))?;
        return Err(error);
    }
    Ok(rules)
}

/// Adds all of the rules, or none.
fn add(core: &mut Core, rules: &[FlowRule]) -> Result<Vec<FlowId>, CoreError> {
    let mut added = Vec::new();
    for rule in rules {
        match core.add_flow(*rule) {
            Ok(id) => added.push(id),
            Err(error) => {
                added.into_iter().try_for_each(|id| core.remove_flow(id))?;
                return Err(error);
            }
        }
    }
    Ok(added)
}

/// Checks that ib_core makes before it parses the specs.
fn check(request: &CreateFlow) -> Result<(), Errno> {
    let attr = &request.flow_attr;
    let default = matches!(attr.kind, FlowAttrType::ALL_DEFAULT | FlowAttrType::MC_DEFAULT);
    let bad = request.comp_mask != 0
        || attr.flags.bits() >= RESERVED_FLAGS
        || attr.flags.contains(FlowFlags::DONT_TRAP) && default
        || attr.num_of_specs > MAX_SPECS
        || attr.reserved != [0; 2];
    if bad { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Sets the rule's priority and whether frames continue to later rules (`get_flow_table`,
/// `_create_flow_rule`). Multicast-only rules come after all priorities that a program can name,
/// default rules after those. Within a priority, rules that pass frames on come first. The default
/// rule of all frames becomes two rules, and its specs are ignored (`create_leftovers_rule`).
fn place(attr: &FlowAttr, parsed: Parsed) -> Result<(Vec<FlowRule>, Option<u32>), Errno> {
    let Parsed { rule, qpn, counters, multicast } = parsed;
    if attr.priority > LAST_PRIORITY {
        return Err(Errno::ENOMEM);
    }
    if !FlowFlags::all().contains(attr.flags) {
        return Err(Errno::EINVAL);
    }
    let passes_on = attr.flags.contains(FlowFlags::DONT_TRAP);
    match attr.kind {
        // Rules for outgoing frames.
        _ if attr.flags.contains(FlowFlags::EGRESS) => Err(Errno::EOPNOTSUPP),
        // The specs of a sniffer are ignored (`create_sniffer_rule`).
        FlowAttrType::SNIFFER => Ok((vec![sniffer(qpn)], None)),
        FlowAttrType::NORMAL => {
            check_ether_type(&rule)?;
            let priority = table(attr.priority, multicast, passes_on);
            let passes_on = passes_on && rule.target.is_some();
            Ok((vec![FlowRule { priority, passes_on, ..rule }], counters))
        }
        FlowAttrType::ALL_DEFAULT => Ok((vec![leftovers(qpn, 1), leftovers(qpn, 0)], None)),
        FlowAttrType::MC_DEFAULT => Ok((vec![leftovers(qpn, 1)], None)),
        _ => Err(Errno::EINVAL),
    }
}

/// The number of the table of a normal rule.
pub(super) fn table(priority: u16, multicast: bool, passes_on: bool) -> u32 {
    match multicast && !passes_on {
        true => MULTICAST,
        false => FIRST + u32::from(priority) * 2 + u32::from(!passes_on),
    }
}

/// Copies of all frames.
fn sniffer(qpn: Qpn) -> FlowRule {
    FlowRule { target: Some(qpn), priority: SNIFFERS, passes_on: true, ..FlowRule::default() }
}

/// The default rule for frames whose MAC address has this group bit.
fn leftovers(qpn: Qpn, group: u8) -> FlowRule {
    let target = Some(qpn);
    let mut rule = FlowRule { target, priority: LEFTOVERS, ..FlowRule::default() };
    (rule.mask.destination_mac[0], rule.value.destination_mac[0]) = (1, group);
    rule
}

/// An Ethernet type next to an IP spec must be fully masked and be the IP version's or MPLS
/// (`is_valid_ethertype`).
fn check_ether_type(rule: &FlowRule) -> Result<(), Errno> {
    let (mask, value) = (rule.mask.ether_type.get(), rule.value.ether_type.get());
    if mask == 0 || rule.mask.ip_version == 0 {
        return Ok(());
    }
    let agrees = matches!(
        (value, rule.value.ip_version),
        (ETHER_TYPE_IPV4, 4) | (ETHER_TYPE_IPV6, 6) | (ETHER_TYPE_MPLS | ETHER_TYPE_MPLS_GROUP, _)
    );
    if mask == 0xffff && agrees { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Whether a rule whose first spec is this one matches multicast only (`flow_is_multicast_only`).
fn is_multicast(kind: FlowSpecType, spec: &[u8]) -> Result<bool, Errno> {
    Ok(match kind {
        FlowSpecType::ETH => {
            let Filter { val, mask } = filter::<FlowEthFilter>(spec)?;
            val.dst_mac[0] & mask.dst_mac[0] & 1 != 0
        }
        FlowSpecType::IPV4 => filter::<FlowIpv4Filter>(spec)?.val.dst_ip.as_bytes()[0] >> 4 == 0xe,
        _ => false,
    })
}

/// A parsed rule, its QP, and the handle of its counter set.
struct Parsed {
    rule: FlowRule,
    qpn: Qpn,
    multicast: bool,
    counters: Option<u32>,
}

/// Parses the specs of a rule, in order.
fn parse(attr: &FlowAttr, mut specs: &[u8], target: Qpn) -> Result<Parsed, Errno> {
    let rule = FlowRule { target: Some(target), ..FlowRule::default() };
    let mut parsed = Parsed { rule, qpn: target, multicast: false, counters: None };
    let mut count = 0;
    while count < attr.num_of_specs && specs.len() >= size_of::<FlowSpecHdr>() {
        let (header, _) = FlowSpecHdr::read_from_prefix(specs).map_err(|_| Errno::EINVAL)?;
        let size = usize::from(header.size);
        if header.reserved != 0 || size < size_of::<FlowSpecHdr>() || size > specs.len() {
            return Err(Errno::EINVAL);
        }
        let (spec, rest) = specs.split_at(size);
        if count == 0 {
            parsed.multicast = is_multicast(header.kind, spec)?;
        }
        take(header.kind, spec, &mut parsed)?;
        specs = rest;
        count += 1;
    }
    if specs.is_empty() && count == attr.num_of_specs { Ok(parsed) } else { Err(Errno::EINVAL) }
}

fn take(kind: FlowSpecType, spec: &[u8], parsed: &mut Parsed) -> Result<(), Errno> {
    let rule = &mut parsed.rule;
    match kind {
        FlowSpecType::ETH => take_ethernet(&filter(spec)?, rule),
        FlowSpecType::IPV4 => take_ipv4(&filter(spec)?, rule),
        FlowSpecType::IPV6 => take_ipv6(&filter(spec)?, rule),
        FlowSpecType::TCP => take_ports(TCP, &filter(spec)?, rule),
        FlowSpecType::UDP => take_ports(UDP, &filter(spec)?, rule),
        FlowSpecType::ACTION_TAG => {
            let spec = FlowSpecActionTag::read_from_bytes(spec);
            let FlowSpecActionTag { tag_id, .. } = spec.map_err(|_| Errno::EINVAL)?;
            rule.flow_tag = Some(tag_id);
            if tag_id >= 1 << 24 { Err(Errno::EINVAL) } else { Ok(()) }
        }
        FlowSpecType::ACTION_DROP => {
            rule.target = None;
            Ok(())
        }
        FlowSpecType::ACTION_COUNT => {
            let spec = FlowSpecActionCount::read_from_bytes(spec);
            let FlowSpecActionCount { handle, .. } = spec.map_err(|_| Errno::EINVAL)?;
            // "For now support only one counters spec per flow" (`parse_flow_attr`).
            if parsed.counters.replace(handle).is_some() { Err(Errno::EINVAL) } else { Ok(()) }
        }
        // Inner headers, tunnels, MPLS, ESP and action objects.
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// Value and mask of a spec.
struct Filter<T> {
    val: T,
    mask: T,
}

impl<T> Filter<T> {
    /// Fills fields of the rule's value, and the same fields of its mask.
    fn fill(&self, rule: &mut FlowRule, fill: impl Fn(&mut FlowFields, &T)) {
        fill(&mut rule.value, &self.val);
        fill(&mut rule.mask, &self.mask);
    }
}

/// Value and mask are the two halves of the bytes after the header. A half may be shorter than the
/// kernel's struct (libibverbs sends 8 of 12 bytes for IPv4). In a longer one, the mask after the
/// struct must be zero (`spec_filter_size`).
fn filter<T: FromBytes + IntoBytes>(spec: &[u8]) -> Result<Filter<T>, Errno> {
    let both = &spec[size_of::<FlowSpecHdr>()..];
    let (val, mask) = both.split_at(both.len() / 2);
    let beyond = mask.get(size_of::<T>()..).unwrap_or_default();
    let odd = val.len() != mask.len() || val.len() % 4 != 0 || val.is_empty();
    if odd || beyond.iter().any(|byte| *byte != 0) {
        return Err(Errno::EINVAL);
    }
    let extend = |bytes: &[u8]| {
        let mut value = T::new_zeroed();
        let length = bytes.len().min(size_of::<T>());
        value.as_mut_bytes()[..length].copy_from_slice(&bytes[..length]);
        value
    };
    Ok(Filter { val: extend(val), mask: extend(mask) })
}

fn take_ethernet(spec: &Filter<FlowEthFilter>, rule: &mut FlowRule) -> Result<(), Errno> {
    spec.fill(rule, |to, from| {
        to.destination_mac = from.dst_mac;
        to.source_mac = from.src_mac;
        to.ether_type = from.ether_type.get().into();
    });
    if spec.mask.vlan_tag.get() != 0 {
        rule.value.vlan = spec.val.vlan_tag.get().into();
        rule.mask.vlan = spec.mask.vlan_tag.get().into();
        (rule.value.tagged, rule.mask.tagged) = (1, 1);
    }
    Ok(())
}

fn take_ipv4(spec: &Filter<FlowIpv4Filter>, rule: &mut FlowRule) -> Result<(), Errno> {
    // `LAST_IPV4_FIELD` is the type of service.
    if spec.mask.ttl != 0 || spec.mask.flags != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    spec.fill(rule, |to, from| {
        to.source_ip[..4].copy_from_slice(from.src_ip.as_bytes());
        to.destination_ip[..4].copy_from_slice(from.dst_ip.as_bytes());
        to.traffic_class = from.tos;
    });
    (rule.value.ip_version, rule.mask.ip_version) = (4, 0xf);
    protocol(spec.mask.proto, spec.val.proto, rule)
}

fn take_ipv6(spec: &Filter<FlowIpv6Filter>, rule: &mut FlowRule) -> Result<(), Errno> {
    // `LAST_IPV6_FIELD` is the traffic class.
    if spec.mask.hop_limit != 0 || spec.mask.reserved != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    if (spec.mask.flow_label.get() | spec.val.flow_label.get()) >= 1 << 20 {
        return Err(Errno::EINVAL);
    }
    spec.fill(rule, |to, from| {
        to.source_ip = from.src_ip;
        to.destination_ip = from.dst_ip;
        to.flow_label = from.flow_label.get().into();
        to.traffic_class = from.traffic_class;
    });
    (rule.value.ip_version, rule.mask.ip_version) = (6, 0xf);
    protocol(spec.mask.next_hdr, spec.val.next_hdr, rule)
}

fn take_ports(
    number: u8,
    spec: &Filter<FlowTcpUdpFilter>,
    rule: &mut FlowRule,
) -> Result<(), Errno> {
    protocol(0xff, number, rule)?;
    spec.fill(rule, |to, from| {
        to.source_port = from.src_port.get().into();
        to.destination_port = from.dst_port.get().into();
    });
    Ok(())
}

/// `set_proto`: two specs may not name different protocols.
fn protocol(mask: u8, value: u8, rule: &mut FlowRule) -> Result<(), Errno> {
    let known = (rule.mask.protocol, rule.value.protocol);
    if mask == 0 {
        return Ok(());
    }
    if known.0 != 0 && known != (mask, value) {
        return Err(Errno::EINVAL);
    }
    (rule.mask.protocol, rule.value.protocol) = (mask, value);
    Ok(())
}

/// `IB_USER_VERBS_EX_CMD_DESTROY_FLOW`.
pub(crate) fn destroy_by_write(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: DestroyFlow = call.request()?;
    if request.comp_mask != 0 {
        return Err(Errno::EINVAL);
    }
    call.destroy(Kind::Flow, request.flow_handle)
}
