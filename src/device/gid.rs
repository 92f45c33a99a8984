//! A port's GID table, and the choice of an entry.

use std::fmt;

use super::address::{Gid, GidKind, LinkLayer};
use crate::error::{Error, ErrorKind, Result};

/// A filled entry of a port's GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidEntry {
    /// Port, from 1.
    pub port: u8,
    /// Index in the port's table.
    pub index: u32,
    /// The GID.
    pub gid: Gid,
    /// The kind of the GID, which decides the packet headers.
    pub kind: GidKind,
    /// Interface index of its network device; 0 if there is none.
    pub interface: u32,
}

/// A chosen GID and the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidChoice {
    /// The entry.
    pub entry: GidEntry,
    /// Why it was chosen.
    pub reason: GidReason,
}

/// Why a GID was chosen, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum GidReason {
    /// The program named its index.
    Asked,
    /// InfiniBand: the lowest entry, normally 0, is the port's own.
    InfiniBandDefault,
    /// RoCE v2 over an IPv4 address.
    RoceV2Ipv4,
    /// RoCE v2 over a global IPv6 address.
    RoceV2Ipv6,
    /// Only a link-local RoCE v2 address: peers must be on the same link.
    RoceV2LinkLocal,
    /// Only RoCE v1: peers must be on the same Ethernet.
    RoceV1,
}

impl fmt::Display for GidReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Asked => "it was asked for",
            Self::InfiniBandDefault => "the lowest entry of an InfiniBand port is its own",
            Self::RoceV2Ipv4 => "RoCE v2 over IPv4 is routable",
            Self::RoceV2Ipv6 => "no IPv4 address; RoCE v2 over a global IPv6 address is routable",
            Self::RoceV2LinkLocal => {
                "no routable address; a link-local one reaches peers on the same link only"
            }
            Self::RoceV1 => "no RoCE v2 address; RoCE v1 reaches peers on the same Ethernet only",
        })
    }
}

/// Chooses an entry of `table` for a port with link layer `link`: the most widely routable one, and
/// the lowest index among equals.
///
/// # Errors
/// `NotFound` if the table is empty, with the cure.
pub fn choose(link: LinkLayer, table: &[GidEntry]) -> Result<GidChoice> {
    table
        .iter()
        .map(|entry| GidChoice { entry: *entry, reason: rank(link, entry) })
        .min_by_key(|choice| (choice.reason, choice.entry.index))
        .ok_or_else(|| no_gid(link))
}

/// The entry with index `index`.
///
/// # Errors
/// `NotFound` with the indices that exist.
pub fn choose_index(table: &[GidEntry], index: u32) -> Result<GidChoice> {
    let found = table.iter().find(|entry| entry.index == index);
    found.map(|entry| GidChoice { entry: *entry, reason: GidReason::Asked }).ok_or_else(|| {
        let filled: Vec<_> = table.iter().map(|entry| entry.index.to_string()).collect();
        let cause = format!("GID index {index} is empty; filled are: {}", filled.join(", "));
        Error::new("choose_gid", ErrorKind::NotFound, cause)
    })
}

fn rank(link: LinkLayer, entry: &GidEntry) -> GidReason {
    match entry.kind {
        _ if link == LinkLayer::InfiniBand => GidReason::InfiniBandDefault,
        GidKind::InfiniBand | GidKind::RoceV1 => GidReason::RoceV1,
        GidKind::RoceV2 if entry.gid.ipv4().is_some() => GidReason::RoceV2Ipv4,
        GidKind::RoceV2 if entry.gid.is_link_local() => GidReason::RoceV2LinkLocal,
        GidKind::RoceV2 => GidReason::RoceV2Ipv6,
    }
}

fn no_gid(link: LinkLayer) -> Error {
    let error = Error::new("choose_gid", ErrorKind::NotFound, "the port's GID table is empty");
    error.cure_with(match link {
        LinkLayer::InfiniBand => "wait for the subnet manager, or start one (opensm)",
        _ => {
            "give the port's network interface an IP address and bring it up (ip link set dev … up)"
        }
    })
}

#[cfg(test)]
mod tests;
