//! Rules for common kinds of traffic.
//!
//! The program chooses the traffic, and the parts of the rule follow from it. A rule that cannot
//! work, or that would take frames that the kernel needs, is refused with the reason before the
//! kernel is asked.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, SocketAddrV6};

use super::build::{FlowBuilder, FlowKind, VERB};
use super::matches::{Ethernet, Ipv4, Ipv6, Masked, Ports};
use crate::error::{Error, Result};

/// UDP ports of PTP, which synchronises the kernel's clock (IEEE 1588-2019, annex C).
const PTP: [u16; 2] = [319, 320];
/// A VLAN number is 12 bits of the tag's control information.
const VLAN_NUMBER: u16 = 0xfff;

/// A kind of traffic, for a rule.
pub trait Traffic {
    /// Adds the parts to a rule.
    ///
    /// # Errors
    /// `InvalidInput` for traffic that cannot be matched, or should not be.
    fn describe<'q>(&self, rule: FlowBuilder<'q>) -> Result<FlowBuilder<'q>>;
}

/// Whether queues with rules for the same traffic each get a copy of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "of two rules that are not shared only one gets the frames"]
pub enum Sharing {
    /// The rule has the same masks as all [`UdpMulticast`] rules without source and VLAN: every
    /// queue with the same group and port gets a copy.
    Shared,
    /// The rule has other masks. It competes with rules of this machine for the same group that do
    /// not have the same source or VLAN: a frame goes to only one of them, which the device
    /// chooses.
    Apart,
}

/// UDP packets to a multicast group and port: a market data line.
///
/// The rule has the parts Ethernet with the group's MAC address, IPv4 with the group and UDP with
/// the port, so that several queues, of this process and of others, can have copies of the same
/// line. The first part makes it a multicast-only rule, without priority.
///
/// The rule does not make the port join the group: see [`Membership`](super::Membership).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpMulticast {
    /// The group, 224.0.0.0/4.
    pub group: Ipv4Addr,
    /// The destination port.
    pub port: u16,
    /// Accepts packets from this source only. The rule is then [`Sharing::Apart`].
    pub source: Option<Ipv4Addr>,
    /// Accepts packets with this VLAN number only, 0 to 4094. The rule is then [`Sharing::Apart`].
    /// `None` accepts any tag or none.
    pub vlan: Option<u16>,
    /// The frames' [`flow_tag`](crate::ethernet::Frame::flow_tag), 24 bits. All rules of the same
    /// line share it: another tag is refused with EEXIST, and a rule without a tag gets the tag of
    /// the first rule.
    pub tag: Option<u32>,
}

impl UdpMulticast {
    /// Packets to `group` and `port` from any source, with or without a VLAN tag.
    pub const fn new(group: Ipv4Addr, port: u16) -> Self {
        Self { group, port, source: None, vlan: None, tag: None }
    }

    /// Accepts packets from `source` only.
    pub const fn source(mut self, source: Ipv4Addr) -> Self {
        self.source = Some(source);
        self
    }

    /// Accepts packets with VLAN number `vlan` only.
    pub const fn vlan(mut self, vlan: u16) -> Self {
        self.vlan = Some(vlan);
        self
    }

    /// Sets the frames' flow tag.
    pub const fn tag(mut self, tag: u32) -> Self {
        self.tag = Some(tag);
        self
    }

    /// Whether other queues can get copies.
    pub const fn sharing(&self) -> Sharing {
        match (self.source, self.vlan) {
            (None, None) => Sharing::Shared,
            _ => Sharing::Apart,
        }
    }

    /// The MAC address of the group: 01:00:5e and the group's last 23 bits (RFC 1112, section 6.4).
    pub const fn mac(&self) -> [u8; 6] {
        let [_, b, c, d] = self.group.octets();
        [1, 0, 0x5e, b & 0x7f, c, d]
    }

    fn check(&self) -> Result<()> {
        if !self.group.is_multicast() {
            let cause = "not a multicast group: groups are 224.0.0.0 to 239.255.255.255";
            return Err(Error::invalid(VERB, cause).asked(self.group.to_string()));
        }
        check_port(self.port)?;
        check_vlan(self.vlan)
    }
}

impl Traffic for UdpMulticast {
    fn describe<'q>(&self, rule: FlowBuilder<'q>) -> Result<FlowBuilder<'q>> {
        self.check()?;
        let source = self.source.map(Masked::from).unwrap_or_default();
        let rule = rule
            .ethernet(Ethernet {
                destination: self.mac().into(),
                vlan: self
                    .vlan
                    .map_or_else(Masked::default, |vlan| Masked::under(vlan, VLAN_NUMBER)),
                ..Ethernet::default()
            })
            .ipv4(Ipv4 { source, destination: self.group.into(), ..Ipv4::default() })
            .udp(Ports { destination: self.port.into(), ..Ports::default() });
        Ok(tagged(rule, self.tag))
    }
}

/// The protocol of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
}

/// The packets of one IPv4 connection towards this machine: an order session, or a unicast feed.
///
/// They no longer reach the kernel, so a TCP connection of the kernel gets no answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FiveTuple {
    /// UDP or TCP.
    pub protocol: Protocol,
    /// The peer.
    pub source: SocketAddrV4,
    /// This machine.
    pub destination: SocketAddrV4,
    /// The frames' [`flow_tag`](crate::ethernet::Frame::flow_tag), 24 bits.
    pub tag: Option<u32>,
}

impl Traffic for FiveTuple {
    fn describe<'q>(&self, rule: FlowBuilder<'q>) -> Result<FlowBuilder<'q>> {
        let [from, to] = [self.source, self.destination];
        check_ends((*from.ip()).into(), (*to.ip()).into())?;
        // A first part for Ethernet keeps the rule out of the table of multicast-only rules.
        let rule = rule.ethernet(Ethernet { ether_type: 0x0800.into(), ..Ethernet::default() });
        let (source, destination) = ((*from.ip()).into(), (*to.ip()).into());
        let rule = rule.ipv4(Ipv4 { source, destination, ..Ipv4::default() });
        let ports = Ports { source: from.port().into(), destination: to.port().into() };
        Ok(tagged(with_ports(rule, self.protocol, ports)?, self.tag))
    }
}

/// As [`FiveTuple`], over IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FiveTupleV6 {
    /// UDP or TCP.
    pub protocol: Protocol,
    /// The peer.
    pub source: SocketAddrV6,
    /// This machine.
    pub destination: SocketAddrV6,
    /// The frames' [`flow_tag`](crate::ethernet::Frame::flow_tag), 24 bits.
    pub tag: Option<u32>,
}

impl Traffic for FiveTupleV6 {
    fn describe<'q>(&self, rule: FlowBuilder<'q>) -> Result<FlowBuilder<'q>> {
        let [from, to] = [self.source, self.destination];
        check_ends((*from.ip()).into(), (*to.ip()).into())?;
        let rule = rule.ethernet(Ethernet { ether_type: 0x86dd.into(), ..Ethernet::default() });
        let (source, destination) = ((*from.ip()).into(), (*to.ip()).into());
        let rule = rule.ipv6(Ipv6 { source, destination, ..Ipv6::default() });
        let ports = Ports { source: from.port().into(), destination: to.port().into() };
        Ok(tagged(with_ports(rule, self.protocol, ports)?, self.tag))
    }
}

/// IPv4 packets to one port of this machine, from any source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// UDP or TCP.
    pub protocol: Protocol,
    /// The destination port.
    pub port: u16,
    /// The frames' [`flow_tag`](crate::ethernet::Frame::flow_tag), 24 bits.
    pub tag: Option<u32>,
}

impl Traffic for Port {
    fn describe<'q>(&self, rule: FlowBuilder<'q>) -> Result<FlowBuilder<'q>> {
        let rule = rule.ethernet(Ethernet { ether_type: 0x0800.into(), ..Ethernet::default() });
        let rule = rule.ipv4(Ipv4::default());
        let ports = Ports { destination: self.port.into(), ..Ports::default() };
        Ok(tagged(with_ports(rule, self.protocol, ports)?, self.tag))
    }
}

/// Copies of all frames of the port, in and out, for captures beside a running program. Other rules
/// and the kernel still get their frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sniffer;

impl Traffic for Sniffer {
    fn describe<'q>(&self, rule: FlowBuilder<'q>) -> Result<FlowBuilder<'q>> {
        Ok(rule.kind(FlowKind::Sniffer))
    }
}

/// All frames that neither another rule nor the kernel takes. While the port's network device is
/// up, the kernel takes frames to its own address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leftovers;

impl Traffic for Leftovers {
    fn describe<'q>(&self, rule: FlowBuilder<'q>) -> Result<FlowBuilder<'q>> {
        Ok(rule.kind(FlowKind::AllDefault))
    }
}

fn with_ports<'q>(
    rule: FlowBuilder<'q>,
    protocol: Protocol,
    ports: Ports,
) -> Result<FlowBuilder<'q>> {
    match protocol {
        Protocol::Tcp => {
            check_nonzero(ports.destination.value)?;
            Ok(rule.tcp(ports))
        }
        Protocol::Udp => {
            check_port(ports.destination.value)?;
            Ok(rule.udp(ports))
        }
    }
}

fn tagged(rule: FlowBuilder<'_>, tag: Option<u32>) -> FlowBuilder<'_> {
    match tag {
        Some(tag) => rule.tag(tag),
        None => rule,
    }
}

fn check_vlan(vlan: Option<u16>) -> Result<()> {
    match vlan {
        Some(VLAN_NUMBER..) => {
            let asked = format!("VLAN {}", vlan.unwrap_or_default());
            Err(Error::invalid(VERB, "VLAN numbers are 0 to 4094").asked(asked))
        }
        _ => Ok(()),
    }
}

/// Refuses addresses that no packet of a connection has.
fn check_ends(source: IpAddr, destination: IpAddr) -> Result<()> {
    for (end, address) in [("source", source), ("destination", destination)] {
        let cause = match address {
            _ if address.is_unspecified() => "no packet has this address",
            _ if address.is_multicast() && end == "source" => "a group sends nothing",
            _ => continue,
        };
        return Err(Error::invalid(VERB, cause).asked(format!("{end} {address}")));
    }
    Ok(())
}

fn check_nonzero(port: u16) -> Result<()> {
    if port == 0 {
        let cause = "port 0 is not valid: no program sends such packets";
        return Err(Error::invalid(VERB, cause).asked("port 0"));
    }
    Ok(())
}

fn check_port(port: u16) -> Result<()> {
    check_nonzero(port)?;
    if PTP.contains(&port) {
        let cause = "the rule would take PTP's messages from the kernel, whose clock they set";
        let cure = "use FlowBuilder with parts of your own if that is what you want";
        return Err(Error::invalid(VERB, cause).asked(format!("UDP port {port}")).cure_with(cure));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
