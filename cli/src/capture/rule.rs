//! The rule that selects the recorded frames.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use uverbs::Flow;
use uverbs::ethernet::{Clock, RxQueue};
use uverbs::flow::{Leftovers, Membership, Port, Protocol, Sniffer, UdpMulticast};

/// VLAN number 4095 is reserved (IEEE 802.1Q).
const LAST_VLAN: u16 = 4094;

/// A steering rule in the form of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Copies of all frames, received and sent.
    Sniffer,
    /// Frames that neither a rule nor the kernel receives.
    Leftovers,
    /// A multicast line. The rule is equal to a program's rule for this line, so both get the
    /// frames.
    Line(UdpMulticast),
    /// A port, whose packets the kernel no longer gets.
    Port(Protocol, u16),
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let rules = "sniffer, leftovers, udp:PORT, tcp:PORT or GROUP:PORT[@VLAN]";
            format!("'{text}' is not a rule: write {rules}")
        };
        let port = |text: &str| match text.parse::<u64>() {
            Ok(number) => port_of(number),
            Err(_) => Err(wrong()),
        };
        match text.rsplit_once(':') {
            None if text == "sniffer" => Ok(Self::Sniffer),
            None if text == "leftovers" => Ok(Self::Leftovers),
            Some(("udp", number)) => Ok(Self::Port(Protocol::Udp, port(number)?)),
            Some(("tcp", number)) => Ok(Self::Port(Protocol::Tcp, port(number)?)),
            Some((group, rest)) => {
                let group: Ipv4Addr = group.parse().map_err(|_| wrong())?;
                let (number, vlan) =
                    rest.split_once('@').map_or((rest, None), |(a, b)| (a, Some(b)));
                if !group.is_multicast() {
                    return Err(format!(
                        "{group} is not a multicast group: groups are 224.0.0.0 to 239.255.255.255"
                    ));
                }
                let line = UdpMulticast::new(group, port(number)?);
                let vlan: Option<u16> = vlan.map(|v| v.parse().map_err(|_| wrong())).transpose()?;
                if vlan.is_some_and(|vlan| vlan > LAST_VLAN) {
                    return Err(format!("VLAN numbers are 0 to {LAST_VLAN}"));
                }
                Ok(Self::Line(vlan.map_or(line, |vlan| line.vlan(vlan))))
            }
            None => Err(wrong()),
        }
    }
}

fn port_of(number: u64) -> Result<u16, String> {
    let port = u16::try_from(number).ok().filter(|port| *port != 0);
    port.ok_or_else(|| "ports are 1 to 65535".to_owned())
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sniffer => f.write_str("sniffer"),
            Self::Leftovers => f.write_str("leftovers"),
            Self::Port(Protocol::Udp, port) => write!(f, "udp:{port}"),
            Self::Port(_, port) => write!(f, "tcp:{port}"),
            Self::Line(UdpMulticast { group, port, vlan: None, .. }) => write!(f, "{group}:{port}"),
            Self::Line(UdpMulticast { group, port, vlan: Some(vlan), .. }) => {
                write!(f, "{group}:{port}@{vlan}")
            }
        }
    }
}

impl Rule {
    /// Whether the device counts the matches of the rule: the kernel makes sniffers and leftovers
    /// without counters (`create_sniffer_rule` of drivers/infiniband/hw/mlx5/fs.c).
    pub(super) fn is_counted(&self) -> bool {
        matches!(self, Self::Line(_) | Self::Port(..))
    }

    pub(super) fn steer<C: Clock>(&self, rx: &mut RxQueue<C>) -> uverbs::Result<Flow> {
        match *self {
            Self::Sniffer => rx.steer(&Sniffer),
            Self::Leftovers => rx.steer(&Leftovers),
            Self::Line(line) => rx.steer(&line),
            Self::Port(protocol, port) => rx.steer(&Port { protocol, port, tag: None }),
        }
    }

    /// Joins the line's group on the network device with this address.
    pub(super) fn join(&self, address: IpAddr) -> Result<Membership, crate::failure::Failure> {
        match (self, address) {
            (Self::Line(line), IpAddr::V4(address)) => Ok(Membership::join(line.group, address)?),
            _ => {
                Err(crate::failure::Failure::usage("--join goes with a rule GROUP:PORT, and IPv4"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_as_they_are_shown() {
        for text in
            ["sniffer", "leftovers", "udp:9000", "tcp:80", "239.1.2.3:14310", "239.1.2.3:14310@5"]
        {
            assert_eq!(text.parse::<Rule>().expect(text).to_string(), text);
        }
        for text in ["", "sniff", "udp:", "udp:port", "tcp:-1", "1.2.3:4", "239.1.2.3:1@x", "a:b:c"]
        {
            assert!(text.parse::<Rule>().expect_err(text).contains("GROUP:PORT"));
        }
        for (text, cause) in [
            ("10.0.0.1:5", "not a multicast group"),
            ("239.1.2.3:5@4095", "0 to 4094"),
            ("239.1.2.3:0", "1 to 65535"),
            ("tcp:70000", "1 to 65535"),
        ] {
            assert!(text.parse::<Rule>().expect_err(text).contains(cause));
        }
    }
}
